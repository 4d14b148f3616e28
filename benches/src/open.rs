//! Opening a volume of 1 TiB as it fills: time and memory must not grow with
//! the number of files.

use super::peak_memory_mib;
use super::volume::Volume;
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::FileDevice;
use butterfs_fs::Options;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

const SIZE: u64 = 1 << 40;
const PER_DIR: usize = 10_000;

/// Fills a volume and opens it, in processes of their own. With the variable
/// `OPEN_IMAGE`, this is such a process.
pub fn measure(base: &Path, files: usize) -> io::Result<()> {
    if let Some(image) = std::env::var_os("OPEN_IMAGE") {
        let start = Instant::now();
        let _volume = Volume::open(Path::new(&image), Options::default());
        let seconds = start.elapsed().as_secs_f64();
        let peak = peak_memory_mib("self");
        println!("{:.1} ms | {peak:.1} MiB |", seconds * 1e3);
        return Ok(());
    }
    let image = base.join(format!("butterfs-open-{}.img", std::process::id()));
    let device = FileDevice::create(&image, SIZE).map_err(io::Error::other)?;
    make(&device, &MkfsOptions::default()).map_err(io::Error::other)?;
    drop(device);
    println!("| files on 1 TiB | opening takes | peak memory |\n|---|---|---|");
    let mut made = 0;
    for goal in [0, files / 10, files] {
        let volume = Volume::open(&image, Options::default());
        while made < goal {
            let directory = volume.directory(&format!("d{}", made / PER_DIR));
            for _ in made % PER_DIR..PER_DIR.min(made % PER_DIR + goal - made) {
                directory.create(&format!("f{made}"), &[]);
                made += 1;
            }
        }
        volume.sync();
        drop(volume);
        let output = Command::new(std::env::current_exe()?)
            .args(["open", "0"])
            .env("OPEN_IMAGE", &image)
            .output()?;
        print!("| {goal} | {}", String::from_utf8_lossy(&output.stdout));
    }
    fs::remove_file(image)
}
