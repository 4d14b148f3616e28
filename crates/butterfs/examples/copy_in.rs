//! Copies a directory of the host into a volume, compressed:
//! `cargo run -p butterfs --example copy_in -- disk.img DIRECTORY`
//!
//! (`butterfs copy` keeps owners, times and attributes too, and `copy_host_tree`
//! of the library does that work for programs.)

use butterfs::{MountOptions, Volume};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, directory] = &words[..] else {
        return Err("usage: copy_in IMAGE DIRECTORY".into());
    };
    // The words of `mount -o`.
    let mut options = MountOptions::default();
    options.apply("compress=zstd:3")?;
    let volume = Volume::open(image, options.open_options())?;

    let (mut files, mut bytes) = (0_u64, 0_u64);
    let mut waiting = vec![(PathBuf::from(directory), PathBuf::from("/"))];
    while let Some((from, to)) = waiting.pop() {
        volume.create_dir_all(&to)?;
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            let kind = entry.file_type()?;
            if kind.is_dir() {
                waiting.push((from, to));
            } else if kind.is_symlink() {
                volume.symlink(fs::read_link(&from)?, &to)?;
            } else if kind.is_file() {
                bytes += copy(&volume, &from, &to)?;
                files += 1;
            }
        }
    }
    // Everything is on the device when this returns.
    volume.close()?;
    println!("{files} files, {bytes} bytes");
    Ok(())
}

fn copy(volume: &Volume, from: &Path, to: &Path) -> io::Result<u64> {
    let mut target = volume.create_file(to)?;
    io::copy(&mut fs::File::open(from)?, &mut target)
}
