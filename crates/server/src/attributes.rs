//! Attributes of a mount's root that no listing shows.
//!
//! Owns their names. One of them asks for the socket of a mount's server. A
//! process without a connection to the server finds it by these attributes, and
//! the kernel checks who may ask.

use crate::mounts::Mount;
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use std::path::Path;

/// Holds a mount's facts, as JSON.
pub(crate) const FACTS: &str = "butterfs.facts";
/// Sets a mount's error counters to zero.
pub(crate) const STATS: &str = "butterfs.stats";
/// Sets a mount's label.
pub(crate) const LABEL: &str = "butterfs.label";
/// Followed by the id of a subvolume, or by `default`: the name of the
/// attribute with that subvolume's path from the top level. Only servers that
/// serve the top level have it.
pub(crate) const PLACE: &str = "butterfs.place.";
/// Holds the name of its server's socket. The name is in no directory.
pub(crate) const SERVICE: &str = "butterfs.service";

/// The name of the socket of the server that has a volume mounted there.
#[must_use]
pub fn server_of(mountpoint: &Path) -> Option<Vec<u8>> {
    let ask = || {
        let mut name = vec![0; 256];
        let length = rustix::fs::getxattr(mountpoint, SERVICE, &mut name[..])?;
        name.truncate(length);
        Ok(name)
    };
    match ask() {
        Ok(name) => Some(name),
        // The kernel lets only the user who mounted look at the mount.
        Err(Errno::ACCESS) if rustix::process::geteuid().is_root() => as_mounter(mountpoint, &ask),
        Err(_) => None,
    }
}

/// Has a thread with the ids of the user who mounted ask.
fn as_mounter(
    mountpoint: &Path,
    ask: &(impl Fn() -> Result<Vec<u8>, Errno> + Sync),
) -> Option<Vec<u8>> {
    let mount = Mount::of_path(mountpoint).filter(|mount| mount.point == mountpoint)?;
    let user = Uid::from_raw(mount.user()?);
    let group = Gid::from_raw(mount.group()?);
    std::thread::scope(|scope| {
        let asked = scope.spawn(move || {
            set_thread_res_gid(group, group, group).ok()?;
            set_thread_res_uid(user, user, user).ok()?;
            ask().ok()
        });
        asked.join().ok().flatten()
    })
}
