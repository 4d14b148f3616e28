//! Where the run was made and how to repeat it.

use super::digest::Digest;
use super::page::{Page, escape};
use crate::plan::Choice;
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
    // The run is the experiment with the choices of the command line.
    let fact = |topic: &str, name: &str| run.manifest.facts.get(topic)?.get(name);
    let choice = fact("run", "choice").and_then(|text| serde_json::from_str::<Choice>(text).ok());
    let arguments = match choice {
        Some(mut choice) => {
            choice.seed = Some(run.seed);
            choice.arguments()
        }
        None => format!("--seed {} --repeats {}", run.seed, run.blocks),
    };
    let mut command = format!("butterfs lab run repeat.toml {arguments}");
    let given = run.manifest.facts.get("file systems").into_iter().flatten();
    for (file, _) in given {
        command.push_str(&format!(" --file-systems {file}"));
    }
    page.paragraph(
        "Save the experiment below as <code>repeat.toml</code>. This command runs it as it was run here; \
         <code>butterfs lab compare</code> then sets the two runs side by side, beginning with what differs between the machines.",
    );
    page.push(&format!("<pre>{}</pre>\n", escape(&command)));
    page.push(&format!("<pre>{}</pre>\n", escape(&run.experiment)));
    page.end_section();
}
