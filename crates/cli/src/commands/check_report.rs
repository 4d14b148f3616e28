//! How the report of a check is printed.

use crate::fail::Done;
use crate::sizes;
use butterfs_check::{Report, Severity};

/// The word for a severity.
pub const fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Fault => "fault",
        Severity::Warning => "warning",
    }
}

/// Prints a report.
pub fn show(report: &Report) -> Done {
    for fault in &report.faults {
        say!("{}: {fault}", severity_name(fault.code.severity()));
    }
    for (code, count) in &report.counts {
        let shown = report
            .faults
            .iter()
            .filter(|fault| fault.code == *code)
            .count() as u64;
        if shown < *count {
            say!("{code}: {} more", count - shown);
        }
    }
    for what in &report.unchecked {
        say!("not checked: {what}");
    }
    let figures = &report.figures;
    say!(
        "{} in {} extents, {} nodes, {} subvolumes, {} inodes ({} directories)",
        sizes::human(figures.bytes_used),
        figures.extents,
        figures.nodes,
        figures.subvolumes,
        figures.inodes,
        figures.directories
    );
    if figures.data_bytes_read > 0 {
        say!(
            "{} of file data read",
            sizes::human(figures.data_bytes_read)
        );
    }
    match (
        report.count(Severity::Fault),
        report.count(Severity::Warning),
    ) {
        (0, 0) => say!("no faults found"),
        (0, warnings) => say!("no faults found, {warnings} warnings"),
        (faults, warnings) => say!("{faults} faults found, {warnings} warnings"),
    }
    Ok(())
}
