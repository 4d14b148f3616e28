//! Devices of volumes that the kernel has mounted: they come, they go, and one
//! takes the place of another.

use super::named::{is_same, open_new};
use crate::beside::beside;
use crate::fail::{Context, Done, Failure, fail};
use crate::meter::Meter;
use crate::sizes::human;
use butterfs_admin::devices::{self as admin, Discard};
use butterfs_format::DeviceId;
use butterfs_kernel::{self as kernel, MountedDevice, NamedDevice, RemoveAnswer};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// What happens to the content of a device that is added.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// It may hold a file system.
    pub force: bool,
    /// It is not discarded.
    pub nodiscard: bool,
}

/// Why the kernel does not do it.
pub fn refused(error: Errno) -> String {
    match error {
        Errno::INPROGRESS => "a balance, or another change of the devices, runs or waits; \
                              `butterfs balance status` and `butterfs replace status` show them"
            .into(),
        Errno::BUSY => "the device is in use".into(),
        Errno::EXIST => "the device belongs to the volume already".into(),
        Errno::NOENT | Errno::NODEV => {
            "it has no such device; `butterfs filesystem show` lists its devices".into()
        }
        Errno::NOTBLK => "the kernel takes block devices only".into(),
        Errno::NOSPC => "the other devices have no room for what must move; `butterfs filesystem \
                         usage` shows what is free"
            .into(),
        Errno::PERM => "not permitted: this is for root".into(),
        Errno::ROFS => "the file system is read-only".into(),
        Errno::TXTBSY => "a swap file on the volume is in use".into(),
        Errno::CANCELED => "it was cancelled".into(),
        other => std::io::Error::from(other).to_string(),
    }
}

/// Opens a directory of the mounted volume.
pub fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).context(path.display())
}

/// Checks a block device that is to be added, and discards its content. Returns
/// its absolute path and its size in bytes.
pub fn prepare(path: &Path, fresh: Fresh) -> Result<(PathBuf, u64), Failure> {
    let name = path.display();
    let facts = path.metadata().context(&name)?;
    if !facts.file_type().is_block_device() {
        return fail(format!(
            "{name}: the kernel takes block devices only; `losetup -f --show {name}` makes one of \
             a file"
        ));
    }
    let device = open_new(path, fresh.force)?;
    let size = device.size();
    let discard = match fresh.nodiscard {
        true => Discard::Nothing,
        false => Discard::Whole,
    };
    admin::prepare(&*device, discard).context(&name)?;
    Ok((path.canonicalize().context(&name)?, size))
}

/// The devices of the volume that the kernel knows.
fn devices(file: BorrowedFd<'_>) -> Result<Vec<MountedDevice>, Errno> {
    let last = kernel::mounted_volume(file)?.last_device;
    let all = (0..=last.get()).map(DeviceId);
    let found = all.map(|id| kernel::mounted_device(file, id));
    found
        .filter(|device| *device != Err(Errno::NODEV))
        .collect()
}

/// How a device is named to the kernel: by its number, if the volume has it.
#[derive(Debug)]
pub enum Meant {
    /// A device of the volume.
    Known(DeviceId),
    /// The first that is missing.
    Missing,
}

impl Meant {
    /// The device of the volume that somebody named: by its number, by its
    /// path, or `missing`.
    pub fn of(file: BorrowedFd<'_>, name: &str) -> Result<Self, Failure> {
        if name == "missing" {
            return Ok(Self::Missing);
        }
        let all = devices(file).map_err(|error| Failure(refused(error)))?;
        let is_it = |device: &&MountedDevice| match name.parse::<u64>() {
            Ok(number) => device.id.get() == number,
            Err(_) => is_same(Path::new(name), Path::new(OsStr::from_bytes(&device.path))),
        };
        match all.iter().find(is_it) {
            Some(device) => Ok(Self::Known(device.id)),
            None => fail(format!(
                "{name} is no device of the volume; `butterfs filesystem show` lists its devices"
            )),
        }
    }

    /// The name in a request for a replacement. That knows no `missing`, so
    /// this is the number of the first device that is missing.
    pub fn number(&self, file: BorrowedFd<'_>) -> Result<NamedDevice<'static>, Failure> {
        if let Self::Known(_) = self {
            return Ok(self.named());
        }
        let all = devices(file).map_err(|error| Failure(refused(error)))?;
        match all.iter().find(|device| device.path.is_empty()) {
            Some(device) => Ok(NamedDevice::Number(device.id)),
            None => fail("no device of the volume is missing"),
        }
    }

    /// The name in other requests.
    pub const fn named(&self) -> NamedDevice<'static> {
        match self {
            Self::Known(id) => NamedDevice::Number(*id),
            Self::Missing => NamedDevice::Path(b"missing"),
        }
    }
}

/// Adds devices.
pub fn add(volume: &Path, paths: &[PathBuf], fresh: Fresh) -> Done {
    let file = open(volume)?;
    let new = paths.iter().map(|path| prepare(path, fresh));
    let new: Vec<_> = new.collect::<Result<_, _>>()?;
    for (path, size) in new {
        let name = path.display();
        kernel::add_device(file.as_fd(), path.as_os_str().as_bytes()).map_err(|error| {
            Failure(format!("error adding device '{name}': {}", refused(error)))
        })?;
        let all = devices(file.as_fd()).map_err(|error| Failure(refused(error)))?;
        let own = all
            .iter()
            .find(|device| is_same(&path, Path::new(OsStr::from_bytes(&device.path))));
        let id = own.map_or_else(String::new, |own| format!("{} ", own.id));
        say!("Device {id}is {name} with {}", human(size));
    }
    Ok(())
}

/// Removes devices, one after the other.
pub fn remove(volume: &Path, named: &[String]) -> Done {
    let file = open(volume)?;
    for name in named {
        let removed = remove_one(file.as_fd(), name);
        removed.map_err(|failure| failure.at(format!("error removing device '{name}'")))?;
    }
    Ok(())
}

fn remove_one(file: BorrowedFd<'_>, name: &str) -> Done {
    let meant = Meant::of(file, name)?;
    let allocated = || match meant {
        Meant::Known(id) => kernel::mounted_device(file, id).map_or(0, |device| device.allocated),
        Meant::Missing => 0,
    };
    let all = allocated();
    let mut meter = Meter::new();
    let removed = beside(
        || kernel::remove_device(file, meant.named()),
        || meter.show(all.saturating_sub(allocated()), all),
    );
    meter.end();
    match removed?.map_err(|error| Failure(refused(error)))? {
        RemoveAnswer::Removed => Ok(()),
        RemoveAnswer::Needs(profile, least) => fail(format!(
            "the volume has {profile}, which needs {least} devices at least; `butterfs balance \
             start -dconvert=PROFILE -mconvert=PROFILE` gives it another profile"
        )),
        RemoveAnswer::IsTarget => fail("a replacement writes to it"),
        RemoveAnswer::NoneMissing => fail("no device of the volume is missing"),
        RemoveAnswer::OnlyWritable => fail("it is the only device that can be written"),
        RemoveAnswer::Other(number) => fail(format!("the kernel refuses it ({number})")),
    }
}

/// Ends the running removal.
pub fn cancel_removal(volume: &Path) -> Done {
    let file = open(volume)?;
    match kernel::remove_device(file.as_fd(), NamedDevice::Path(b"cancel")) {
        Ok(_) => Ok(()),
        Err(Errno::NOTCONN) => fail("no removal of a device runs"),
        Err(error) => Err(Failure(refused(error))),
    }
}
