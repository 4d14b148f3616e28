//! Checks a volume and prints what is wrong, and the time and memory of the
//! check: `check [--data] FILE...`.

use butterfs_check::{DataChecksums, NoProgress, Options, check};
use butterfs_device::{Access, BlockDevice, FileDevice};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn main() {
    let mut options = Options::default();
    let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for word in std::env::args().skip(1) {
        if word == "--data" {
            options.data = DataChecksums::Verify;
            continue;
        }
        let device = FileDevice::open(Path::new(&word), Access::ReadOnly);
        devices.push(Arc::new(device.expect("the device opens")));
    }
    let begin = Instant::now();
    let report = check(devices, &options, &NoProgress).expect("the volume can be checked");
    for fault in &report.faults {
        println!("{fault}");
    }
    println!("{:?} {:?}", report.counts, report.unchecked);
    println!(
        "{:?} in {:.3} s",
        report.figures,
        begin.elapsed().as_secs_f64()
    );
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    println!("{}", peak.unwrap_or_default());
}
