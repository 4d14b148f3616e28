//! Volumes to check, and a way to damage them.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod image;
pub mod volume;

use butterfs_check::{DataChecksums, FaultCode, NoProgress, Options, Report, check};
use butterfs_device::{Access, BlockDevice, FileDevice};
use std::path::Path;
use std::sync::Arc;

/// Checks an image, with its data.
pub fn report(path: &Path) -> Report {
    let device = FileDevice::open(path, Access::ReadOnly).expect("the image opens");
    report_of(Arc::new(device))
}

/// Checks a device, with its data.
pub fn report_of(device: Arc<dyn BlockDevice>) -> Report {
    let options = Options {
        data: DataChecksums::Verify,
        threads: 2,
        ..Options::default()
    };
    check(vec![device], &options, &NoProgress).expect("the volume can be checked")
}

/// Fails unless nothing is wrong. mkfs.btrfs 6.2 leaves entries in the
/// free-space tree that belong to no block group; those are warnings.
pub fn assert_clean(report: &Report, context: &str) {
    let text: Vec<String> = report
        .faults
        .iter()
        .filter(|fault| fault.code != FaultCode::FreeSpaceOrphan)
        .map(ToString::to_string)
        .collect();
    assert!(
        text.is_empty() && report.is_clean() && report.unchecked.is_empty(),
        "{context}: {:?} {:?}\n{}",
        report.counts,
        report.unchecked,
        text.join("\n")
    );
}
