//! Opening a volume to read it, as far as its devices are there.
//!
//! Owns that a volume with a missing or stale device can be looked at: what is
//! read is what the other devices have, and the user is told.

use crate::fail::{Context, Failure};
use butterfs::{Degraded, Error, MemberFault, OpenOptions, StoreError, Volume};
use std::path::{Path, PathBuf};

/// Opens the volume at `path` by `options`, which ask for reading alone. Where a
/// device is missing or stale, it is left out, and standard error says so.
pub fn open(path: &Path, options: OpenOptions) -> Result<Volume, Failure> {
    degraded(path, options, |options| Volume::open(path, options))
}

/// The same for the devices at `paths`, without a look for others.
pub fn open_these(paths: &[PathBuf], options: OpenOptions) -> Result<Volume, Failure> {
    let first = paths.first().map_or(Path::new(""), PathBuf::as_path);
    degraded(first, options, |options| Volume::open_all(paths, options))
}

fn degraded(
    path: &Path,
    mut options: OpenOptions,
    open: impl Fn(OpenOptions) -> Result<Volume, Error>,
) -> Result<Volume, Failure> {
    let fault = match open(options.clone()) {
        Err(Error::Store(StoreError::Members(fault))) => fault,
        other => return other.context(path.display()),
    };
    match &fault {
        MemberFault::Missing(_) | MemberFault::Stale { .. } => {}
        _ => return Err(Error::from(StoreError::Members(fault))).context(path.display()),
    }
    options.store.degraded = Degraded::Allowed;
    let volume = open(options).context(path.display())?;
    note!(
        "warning: {} is read without some of its devices: {fault}",
        path.display()
    );
    Ok(volume)
}
