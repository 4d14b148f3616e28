//! Makes a volume in a file, puts a file into it, takes a snapshot, and looks at
//! what is there:
//! `cargo run -p butterfs --example first -- disk.img`

use butterfs::{MkfsOptions, OpenOptions, SnapshotAccess, Volume};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args().nth(1).ok_or("usage: first IMAGE")?;
    butterfs::make_volume(&image, 256 << 20, &MkfsOptions::default())?;

    let volume = Volume::open(&image, OpenOptions::default())?;
    volume.create_dir_all("/2026/may")?;
    let mut file = volume.create_file("/2026/may/note.txt")?;
    writeln!(file, "the first of May")?;
    // Durable from here on, whatever happens to the machine.
    file.sync_all()?;

    volume.snapshot("/", "/monday", SnapshotAccess::ReadOnly)?;
    let mut file = volume.create_file("/2026/may/note.txt")?;
    writeln!(file, "the second of May")?;

    for path in ["/2026/may/note.txt", "/monday/2026/may/note.txt"] {
        let text = String::from_utf8(volume.read_file(path)?)?;
        println!("{path}: {}", text.trim_end());
    }
    volume.close()?;
    Ok(())
}
