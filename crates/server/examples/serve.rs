//! Serves the volume in a file at a directory, until it is unmounted or Ctrl-C:
//! `cargo run -p butterfs-server --example serve -- disk.img /mnt`

use butterfs::{MountOptions, Volume};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, image, directory] = &words[..] else {
        return Err("usage: serve IMAGE DIRECTORY".into());
    };
    let options = MountOptions::default();
    let volume = Volume::open(Path::new(image), options.open_options())?;
    let mut serving = butterfs_server::serve(volume, Path::new(directory), &options)?;
    serving.end_on_signals()?;
    Ok(serving.wait()?)
}
