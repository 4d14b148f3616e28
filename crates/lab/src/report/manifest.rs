//! Where the run was made and how to repeat it.

use super::digest::Digest;
use super::page::{Page, escape};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn write(digest: &Digest<'_>, page: &mut Page) {
    let run = &digest.recorded.run;
    page.section("Where it was made", "The machine, the tools and the seeds.");
    for (topic, facts) in &run.manifest.facts {
        page.heading(topic);
        page.push("<dl class=\"facts\">\n");
        for (name, value) in facts {
            page.push(&format!(
                "<dt>{}</dt><dd>{}</dd>\n",
                escape(name),
                escape(value)
            ));
        }
        page.push("</dl>\n");
    }
    let mut workloads: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for cell in &digest.recorded.cells {
        for (name, value) in &cell.workload {
            workloads
                .entry(&cell.experiment)
                .or_default()
                .insert(format!("{name}: {value}"));
        }
    }
    if !workloads.is_empty() {
        page.push("<details><summary>Tools and command lines</summary>\n");
        for (experiment, lines) in workloads {
            let lines: Vec<String> = lines.into_iter().collect();
            page.push(&format!(
                "<h3>{}</h3><pre>{}</pre>\n",
                escape(experiment),
                escape(&lines.join("\n"))
            ));
        }
        page.push("</details>\n");
    }
    page.end_section();
    page.section("How to repeat it", "");
    page.paragraph(&format!(
        "Save the experiment below as <code>repeat.toml</code> and run <code>butterfs lab run repeat.toml</code>. The run's seed was <code>{}</code>, \
         its blocks {}. <code>butterfs lab compare</code> sets the two runs side by side, beginning with what differs between the machines.",
        run.seed, run.blocks
    ));
    page.push(&format!("<pre>{}</pre>\n", escape(&run.experiment)));
    page.end_section();
}
