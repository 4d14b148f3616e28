//! Copies a volume's newest state into another volume. It sends only what
//! changed since the last run:
//! `cargo run -p butterfs --example backup -- disk.img backup.img NAME`

use butterfs::{Error, OpenOptions, SnapshotAccess, Volume};
use std::io;
use std::thread;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Where the source keeps the snapshot that it sent last.
const LAST: &str = "/.backup";

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [source, target, name] = &words[..] else {
        return Err("usage: backup SOURCE TARGET NAME".into());
    };
    let source = Volume::open(source, OpenOptions::default())?;
    let target = Volume::open(target, OpenOptions::default())?;
    let bytes = back_up(&source, &target, name).map_err(|failure| {
        let error = failure.downcast_ref::<Error>();
        match error.and_then(Error::next_step) {
            Some(step) => format!("{failure}; {step}").into(),
            None => failure,
        }
    })?;
    println!("{name}: a stream of {bytes} bytes");
    target.close()?;
    source.close()?;
    Ok(())
}

fn back_up(source: &Volume, target: &Volume, name: &str) -> Result<u64, Failure> {
    let new = format!("/{name}");
    let last = match source.exists(LAST)? {
        true => Some(source.read_link(LAST)?),
        false => None,
    };
    source.snapshot("/", &new, SnapshotAccess::ReadOnly)?;
    // One thread sends into a pipe, this one receives from it.
    let (reader, writer) = io::pipe()?;
    let bytes = thread::scope(|scope| {
        let sender = scope.spawn(|| match &last {
            Some(last) => source.send_changes(last, &new, writer),
            None => source.send(&new, writer),
        });
        target.receive("/", reader)?;
        Ok::<_, Failure>(sender.join().map_err(|_| "the sender panicked")??)
    })?;
    // Only now is the new snapshot the one from which the next send starts.
    if let Some(last) = &last {
        source.remove_file(LAST)?;
        source.delete_subvolume(last)?;
    }
    source.symlink(&new, LAST)?;
    source.sync()?;
    Ok(bytes)
}
