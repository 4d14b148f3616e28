//! Opening a volume to read it, with the devices that are there.
//!
//! Owns the rule that a volume with a missing or stale device can be looked at.
//! The content of the other devices is read, and the user is told.

use crate::fail::{Context, Failure};
use butterfs::{Degraded, Error, MemberFault, OpenOptions, StoreError, Volume};
use std::path::{Path, PathBuf};

/// Opens the volume at `path` with `options`, which ask only for reading. A
/// device that is missing or stale is left out, and standard error says so.
pub fn open(path: &Path, options: OpenOptions) -> Result<Volume, Failure> {
    degraded(path, options, |options| Volume::open(path, options))
}

/// The same for the devices at `paths`, without looking for others.
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
