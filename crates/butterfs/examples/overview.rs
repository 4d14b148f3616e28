//! Says what a volume holds, without changing it:
//! `cargo run -p butterfs --example overview -- disk.img`

use butterfs::{Error, OpenOptions, Volume, Walk};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args().nth(1).ok_or("usage: overview IMAGE")?;
    let volume = Volume::open(&image, OpenOptions::read_only())?;

    let superblock = volume.superblock();
    println!("label: {}", String::from_utf8_lossy(&superblock.label));
    println!("last commit: {}", superblock.generation);

    let usage = volume.usage();
    println!(
        "{} of {} bytes are used; files can take about {} more",
        usage.device_used(),
        usage.device_size,
        usage.data_free
    );

    for entry in volume.read_dir("/")? {
        let entry = entry?;
        let what = if entry.is_subvolume() {
            " (subvolume)"
        } else {
            ""
        };
        println!("/{}{what}", entry.file_name().display());
    }

    let (mut files, mut bytes) = (0_u64, 0_u64);
    volume.walk::<Error>(volume.resolve("/")?, &mut |entry| {
        if !entry.attributes.is_directory() {
            files += 1;
            bytes += entry.attributes.size;
        }
        Ok(Walk::Enter)
    })?;
    println!("{files} files, {bytes} bytes");
    volume.close()?;
    Ok(())
}
