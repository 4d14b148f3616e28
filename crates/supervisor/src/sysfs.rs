//! Files below /sys/fs/btrfs, which the kernel has for its own mounts alone.
//! btrfs-progs looks there for which devices are seeds, and whether an operation
//! on the whole volume is under way.
//!
//! Source: the documentation's page on the sysfs interface.

use crate::mounts::Mounts;
use butterfs_format::DeviceId;
use butterfs_kernel::butterfs_mount::exclusive_operation;
use butterfs_kernel::mounted_device;
use std::os::fd::AsFd;
use uuid::Uuid;

/// What is in a file; `None` if it is no such file of a mount of ButterFS.
pub(crate) fn content(path: &[u8], mounts: &Mounts) -> Option<Vec<u8>> {
    let path = path.strip_prefix(b"/sys/fs/btrfs/")?;
    let (fsid, file) = std::str::from_utf8(path).ok()?.split_once('/')?;
    let fsid = Uuid::try_parse(fsid).ok()?;
    let root = mounts.of_volume(fsid.into_bytes())?.open()?;
    let words: Vec<&str> = file.split('/').collect();
    let text = match words[..] {
        ["devinfo", number, about] => {
            let id = DeviceId(number.parse().ok()?);
            let device = mounted_device(root.as_fd(), id).ok()?;
            let is_there = !device.path.is_empty();
            match about {
                "fsid" => fsid.to_string(),
                "missing" => u8::from(!is_there).to_string(),
                "in_fs_metadata" | "writeable" => u8::from(is_there).to_string(),
                "replace_target" => "0".to_owned(),
                _ => return None,
            }
        }
        ["exclusive_operation"] => {
            let running = exclusive_operation(root.as_fd()).ok()?;
            running.map_or("none", |one| one.name()).to_owned()
        }
        _ => return None,
    };
    Some(format!("{text}\n").into_bytes())
}
