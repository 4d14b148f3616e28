//! One HTML file that says what a run can say, without network, fonts or other
//! files.
//!
//! Owns words, tables and charts. It judges nothing: every "better" comes from
//! [`crate::stats`], every "reproduced" from [`crate::published`]. Equal
//! records give equal bytes.

mod bars;
mod chart;
mod curves;
mod digest;
mod first;
mod latency;
mod manifest;
mod number;
mod overlay;
mod page;
mod summary;
mod tables;
mod timelines;
mod words;

use crate::results::Recorded;
use digest::Digest;

/// The report of a run.
pub fn html(recorded: &Recorded) -> String {
    let digest = Digest::of(recorded);
    let mut page = page::Page::new(recorded);
    first::write(&digest, &mut page);
    summary::write(&digest, &mut page);
    overlay::write(&digest, &mut page);
    for experiment in &digest.experiments {
        page.section(
            &experiment.name,
            "What each system did, and on which conditions.",
        );
        experiment.introduce(&mut page);
        bars::write(experiment, &digest, &mut page);
        curves::write(experiment, &digest, &mut page);
        // A printed page leaves this out.
        page.push(
            "<details open class=\"figures\"><summary>All figures of this experiment</summary>\n",
        );
        curves::fits(experiment, &digest, &mut page);
        timelines::write(experiment, &mut page);
        latency::write(experiment, &mut page);
        tables::write(experiment, &digest, &mut page);
        page.push("</details>\n");
        page.end_section();
    }
    manifest::write(&digest, &mut page);
    page.finish()
}

pub(crate) use digest::{durability_label, label_of};
pub(crate) use number::{quantity, ratio};
