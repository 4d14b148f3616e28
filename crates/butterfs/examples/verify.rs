//! Checks a volume, then reads all of it, compares it with its checksums and
//! repairs what can be repaired: `cargo run -p butterfs --example verify --
//! disk.img`

use butterfs::scrub::Repair;
use butterfs::{OpenOptions, Volume};
use std::process::ExitCode;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let image = std::env::args().nth(1).ok_or("usage: verify IMAGE")?;
    // The structure: trees, references, names, free space. Writes nothing.
    let report = butterfs::check(&image)?;
    for fault in &report.faults {
        println!("{fault}");
    }
    if !report.is_clean() {
        return Ok(ExitCode::FAILURE);
    }
    // The content: every copy of every byte that has a checksum.
    let volume = Volume::open(&image, OpenOptions::default())?;
    let mut uncorrected = 0;
    for device in volume.scrub(Repair::Rewrite)? {
        let counts = device.counts;
        println!(
            "device {}: {} bytes read, {} bad sectors mended, {} not",
            device.device,
            counts.data_bytes + counts.tree_bytes,
            counts.corrected_errors,
            counts.uncorrectable_errors
        );
        uncorrected += counts.uncorrectable_errors;
    }
    volume.close()?;
    Ok(match uncorrected {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
