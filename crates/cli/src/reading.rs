//! Opening a volume to read it, with the devices that are there.
//!
//! Owns the rule that a volume with a missing or stale device can be looked at.
//! The content of the other devices is read, and the user is told.

use crate::fail::{Context, Failure};
use crate::patient::guided;
use butterfs::{Degraded, Error, LogPolicy, MemberFault, OpenOptions, StoreError, Volume};
use std::path::{Path, PathBuf};

/// Opens the volume at `path` with `options`, which ask only for reading. A
/// device that is missing or stale is left out, and standard error says so.
pub fn open(path: &Path, options: OpenOptions) -> Result<Volume, Failure> {
    degraded(path, options, |options| Volume::open(path, options))
}

/// As [`open`], with what only a waiting fsync log has. If the log cannot be
/// replayed, standard error says so, and the volume is shown as of its last
/// commit.
pub fn open_with_log(path: &Path, mut options: OpenOptions) -> Result<Volume, Failure> {
    let failed = match open(path, options.clone()) {
        Err(failed) if options.store.log == LogPolicy::Replay => failed,
        opened => return opened,
    };
    options.store.log = LogPolicy::Ignore;
    let volume = open(path, options)?;
    note!(
        "warning: {} is shown as of its last commit, without what programs made durable since \
         then: {}",
        path.display(),
        failed.0
    );
    Ok(volume)
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
        Ok(volume) => return Ok(volume),
        Err(error) => {
            let failure: Result<Volume, Failure> = Err(&error).context(path.display());
            return failure.map_err(|failure| guided(failure, &error, path));
        }
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
