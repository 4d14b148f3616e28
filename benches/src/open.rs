//! Opening a volume of 1 TiB as it fills: time and memory must not grow with
//! the number of files.

use super::{Library, Target, peak_memory_mib};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::FileDevice;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const SIZE: u64 = 1 << 40;
const PER_DIR: usize = 10_000;

/// Fills a volume and opens it in processes of their own; with the variable
/// `OPEN_IMAGE` it is such a process.
pub fn measure(base: &Path, files: usize) -> io::Result<()> {
    if let Some(image) = std::env::var_os("OPEN_IMAGE") {
        let mut library = library(image.into());
        let start = Instant::now();
        library.open();
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
    let mut library = library(image.clone());
    let mut made = 0;
    for goal in [0, files / 10, files] {
        library.open();
        while made < goal {
            if made % PER_DIR == 0 {
                library.mkdir(made / PER_DIR);
            }
            library.create(made / PER_DIR, made, &[]);
            made += 1;
        }
        library.sync();
        library.end();
        let output = Command::new(std::env::current_exe()?)
            .args(["open", "0"])
            .env("OPEN_IMAGE", &image)
            .output()?;
        print!("| {goal} | {}", String::from_utf8_lossy(&output.stdout));
    }
    fs::remove_file(image)
}

fn library(image: PathBuf) -> Library {
    Library {
        image,
        fs: None,
        dirs: Vec::new(),
        big: None,
    }
}
