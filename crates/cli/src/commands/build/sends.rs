//! Send streams as a source of an image.
//!
//! Owns the volume in a temporary file into which the streams are received. Its
//! file has no name, so nothing is left of it, however the program ends.

use crate::commands::tar::archive::{self, Left};
use crate::fail::{Context, Failure, fail};
use crate::files_bar::FilesBar;
use crate::left_out::{LeftOut, OnUndone};
use butterfs::{FileDevice, MkfsOptions, OpenOptions, Volume, mkfs};
use butterfs_admin::build::{FileTree, Gathered};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of the volume. Its file takes only what the streams hold.
const VOLUME_BYTES: u64 = 4 << 40;

/// What happens to the state after a send if another one follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Each {
    /// It is kept as a layer.
    Kept,
    /// Only the last one counts.
    Replaced,
}

/// Lays the files of the last send over what was gathered.
pub fn add(gathered: &mut Gathered, streams: &[PathBuf], each: Each) -> Result<(), Failure> {
    let volume = scratch()?;
    let base = gathered.tree.clone();
    let mut before = None;
    for stream in streams {
        let input: Box<dyn Read + Send> = match stream.as_os_str() == "-" {
            true => Box::new(io::stdin()),
            false => Box::new(File::open(stream).context(stream.display())?),
        };
        let received = volume.receive("/", input).context(stream.display())?;
        if received.is_empty() {
            return fail(format!("{}: it holds no snapshot", stream.display()));
        }
        for new in received {
            if let Some(name) = before.replace(new.name)
                && each == Each::Kept
            {
                state(gathered, &base, &volume, &name)?;
                gathered.layers.push(gathered.tree.clone());
            }
        }
    }
    match before {
        Some(name) => state(gathered, &base, &volume, &name),
        None => Ok(()),
    }
}

/// A new volume in a file without a name.
fn scratch() -> Result<Volume, Failure> {
    let folder = tempfile::tempdir().context("a temporary directory")?;
    let device = Arc::new(FileDevice::create(
        &folder.path().join("received"),
        VOLUME_BYTES,
    )?);
    mkfs::make(&*device, &MkfsOptions::default())?;
    // The device keeps the file.
    folder.close().context("a temporary directory")?;
    Ok(Volume::open_device(device, OpenOptions::default())?)
}

/// Makes the files of a received snapshot, on top of `base`, which was gathered
/// before.
fn state(
    gathered: &mut Gathered,
    base: &FileTree,
    volume: &Volume,
    name: &[u8],
) -> Result<(), Failure> {
    let start = volume.resolve(name)?;
    let (mut reader, writer) = io::pipe().context("a pipe")?;
    let (put, written) = std::thread::scope(|scope| {
        let write = move || -> Result<Left, Failure> {
            let mut left = Left::default();
            let mut members = tar::Builder::new(BufWriter::with_capacity(1 << 20, writer));
            // An image is whole, and so are the snapshots of which it is made.
            let left_out = LeftOut::new(OnUndone::Ends, &FilesBar::new(true));
            let from = (start, &b""[..]);
            archive::add(&mut members, volume, from, (&mut left, &left_out), &|_| {
                Ok(())
            })?;
            members.into_inner()?.flush()?;
            Ok(left)
        };
        let writing = std::thread::Builder::new().spawn_scoped(scope, write);
        let put = gathered.put_state(base, &mut reader);
        // Reads whatever is left. Otherwise the writer would fail because
        // nobody reads.
        let drained = io::copy(&mut reader, &mut io::sink());
        (
            put,
            drained.context("a pipe").and(match writing {
                Ok(writing) => writing
                    .join()
                    .unwrap_or_else(|_| fail("reading what was received failed; please report it")),
                Err(error) => Err(error).context("a thread that reads what was received"),
            }),
        )
    });
    // If the writer failed, that is why the archive was short.
    written?.say();
    Ok(put?)
}
