//! A volume in memory, which several threads fill at the same time:
//! `cargo run -p butterfs --example threads`

use butterfs::{BlockDevice, Error, MemoryDevice, MkfsOptions, OpenOptions, Volume, mkfs};
use std::io::Write;
use std::sync::Arc;
use std::thread;

const THREADS: usize = 4;
const FILES: usize = 250;

fn fill(volume: &Volume, thread: usize) -> Result<(), Error> {
    volume.create_dir(format!("/{thread}"))?;
    for number in 0..FILES {
        let path = format!("/{thread}/{number}");
        let mut file = volume.create_file(&path)?;
        // Errors of the library pass through std::io and keep their kind.
        if let Err(error) = writeln!(file, "file {number} of thread {thread}") {
            eprintln!("{path}: {:?}", error.kind());
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(256 << 20));
    mkfs::make(&*device, &MkfsOptions::default())?;
    let volume = Volume::open_device(Arc::clone(&device), OpenOptions::default())?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let volume = &volume;
                scope.spawn(move || fill(volume, thread))
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    volume.close()?;

    // When the volume is closed, everything is on the device: whoever opens it
    // sees all of it.
    let volume = Volume::open_device(device, OpenOptions::read_only())?;
    let mut count = 0;
    for thread in 0..THREADS {
        count += volume.read_dir(format!("/{thread}"))?.count();
    }
    println!("{count} files");
    Ok(())
}
