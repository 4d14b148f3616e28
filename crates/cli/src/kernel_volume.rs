//! Reading a volume that the kernel has mounted, from its devices.
//!
//! Owns how a command reads trees for which the kernel has no request. First
//! the kernel makes a commit. Then the devices hold everything that was changed
//! until then, and the kernel overwrites none of it before the commit after its
//! next one. Each node is verified by checksum, address and generation, so what
//! was overwritten meanwhile gives an error, never a wrong answer. It is for
//! users who may read the devices.

use crate::fail::{Context, Done, Failure};
use crate::host;
use butterfs::{Degraded, OpenOptions, Subvolume, Volume};
use butterfs_format::{DeviceId, Generation};
use butterfs_kernel as kernel;
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Runs a command on the volume that the kernel has mounted at `mountpoint`, in
/// its state after a commit, seen from its top level.
pub fn run(mountpoint: &Path, command: impl FnOnce() -> Done) -> Done {
    let (volume, devices) = open(mountpoint).map_err(|error| error.at(mountpoint.display()))?;
    let read = volume.superblock().generation;
    host::run_on(volume, command).map_err(|failure| match generation(&devices) {
        Ok(now) if now != read => Failure(format!(
            "{}; the kernel changed the volume while it was read: try again",
            failure.0
        )),
        _ => failure,
    })
}

fn open(mountpoint: &Path) -> Result<(Volume, Vec<PathBuf>), Failure> {
    let file = File::open(mountpoint)?;
    match kernel::sync(file.as_fd()) {
        // A read-only volume has nothing to commit.
        Ok(()) | Err(Errno::ROFS) => {}
        Err(error) => return Err(error.into()),
    }
    let (devices, missing) = devices(file.as_fd())?;
    let mut options = OpenOptions::as_committed();
    options.subvolume = Subvolume::Id(5);
    if missing > 0 {
        options.store.degraded = Degraded::Allowed;
    }
    for device in &devices {
        let context = format!(
            "what this asks for is read from {}, which is for root",
            device.display()
        );
        let device = File::open(device).context(context)?;
        // What this system has read of the device before may be older than what
        // the kernel's Btrfs has written since.
        fadvise(&device, 0, None, Advice::DontNeed)?;
    }
    Ok((Volume::open_all(&devices, options)?, devices))
}

/// The devices that are there, and how many are not.
fn devices(file: BorrowedFd<'_>) -> Result<(Vec<PathBuf>, u64), Errno> {
    let volume = kernel::mounted_volume(file)?;
    let (mut found, mut missing) = (Vec::new(), 0);
    for id in (1..=volume.last_device.get()).map(DeviceId) {
        match kernel::mounted_device(file, id) {
            Err(Errno::NODEV) => {}
            Ok(device) if device.path.is_empty() => missing += 1,
            device => found.push(OsStr::from_bytes(&device?.path).into()),
        }
    }
    Ok((found, missing))
}

/// The generation of the last commit on the devices.
fn generation(devices: &[PathBuf]) -> Result<Generation, Failure> {
    let mut options = OpenOptions::as_committed();
    options.store.degraded = Degraded::Allowed;
    Ok(Volume::open_all(devices, options)?.superblock().generation)
}
