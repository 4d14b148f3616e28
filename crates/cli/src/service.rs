//! Commands about mounted volumes, carried out by the server that has them.
//!
//! Owns which commands can be asked for ([`Asked`]) and how a path becomes one
//! in the mounted volume. A command reads a volume that is open: its own where
//! the volume is not mounted; where it is, the command goes to the server of
//! the mount ([`client`]), which runs it ([`host`]) and sends back what it
//! prints. The server's name is the value of an extended attribute of the
//! mount's root; who asks is known from the socket.

pub mod client;
pub mod farewell;
pub mod host;
mod parts;

use crate::commands::send::Send;
use crate::commands::subvolume::{Diff, Du, FindNew, History, List, Show};
use crate::fail::{Done, Failure, fail};
use crate::mounts::Mount;
use crate::place::Place;
use butterfs_kernel::is_kernel_btrfs;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The attribute of a mount's root with the name of its server's socket, which
/// is in no directory.
pub const SERVICE: &str = "butterfs.service";

/// A command that a server can run.
#[derive(Debug, Deserialize, Serialize)]
pub enum Asked {
    Diff(Diff),
    Du(Du),
    FindNew(FindNew),
    History(History),
    List(List),
    Send(Send),
    Show(Show),
}

impl Asked {
    /// Runs it, here or where the volume is mounted.
    pub fn run(mut self) -> Done {
        let mut mounts: Vec<Option<PathBuf>> = Vec::new();
        let command = self.name();
        self.each_place(&mut |place| {
            mounts.push(localize(place, command)?);
            Ok(())
        })?;
        let mount = mounts.first().cloned().flatten();
        if mounts.iter().any(|other| *other != mount) {
            return fail("all paths must be in one volume");
        }
        match mount {
            Some(mount) => client::ask(&mount, self),
            None => self.run_here(),
        }
    }

    /// Runs it on the volume that its places, or the server, have open.
    pub(self) fn run_here(self) -> Done {
        match self {
            Self::Diff(diff) => diff.run(),
            Self::Du(du) => du.run(),
            Self::FindNew(find_new) => find_new.run(),
            Self::History(history) => history.run(),
            Self::List(list) => list.run(),
            Self::Send(send) => send.run(),
            Self::Show(show) => show.run(),
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Diff(_) => "subvolume diff",
            Self::Du(_) => "subvolume du",
            Self::FindNew(_) => "subvolume find-new",
            Self::History(_) => "subvolume history",
            Self::List(_) => "subvolume list",
            Self::Send(_) => "send",
            Self::Show(_) => "subvolume show",
        }
    }

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        match self {
            Self::Diff(diff) => diff.places().into_iter().try_for_each(visit),
            Self::Du(du) => du.places().iter_mut().try_for_each(visit),
            Self::FindNew(find_new) => visit(find_new.place()),
            Self::History(history) => visit(history.place()),
            Self::List(list) => visit(list.place()),
            Self::Send(send) => send.each_place(visit),
            Self::Show(show) => visit(show.place()),
        }
    }
}

/// Turns a path below a mountpoint into the mountpoint and the path in the
/// mounted volume, and gives the mountpoint; `None` for a file or device that
/// holds a volume.
fn localize(place: &mut Place, command: &str) -> Result<Option<PathBuf>, Failure> {
    let Ok(here) = place.volume.canonicalize() else {
        return Ok(None);
    };
    let Ok(meta) = here.metadata() else {
        return Ok(None);
    };
    let mount = Mount::of_path(&here);
    let mountpoint = mount.as_ref().map_or(&here, |mount| &mount.point).clone();
    let is_ours = server_of(&mountpoint).is_some();
    // An image that lies on a mount is a volume; a file's history is asked for
    // by its path alone.
    let is_subject = is_ours && place.path == "/" && command == "subvolume history";
    if !meta.is_dir() && !is_subject {
        return Ok(None);
    }
    if !is_ours {
        return fail(if is_kernel_btrfs(&here) {
            format!(
                "{}: the kernel has this volume mounted; use `btrfs {}`, or unmount it and name \
                 the file or device that holds it",
                place.volume.display(),
                match command {
                    "subvolume du" => "filesystem du",
                    "subvolume diff" | "subvolume history" => "send --no-data -p",
                    other => other,
                }
            )
        } else {
            format!(
                "{}: is a directory, and in no volume that ButterFS has mounted; name a path on \
                 such a mount, or VOLUME or VOLUME:/path",
                place.volume.display()
            )
        });
    }
    let below = here.strip_prefix(&mountpoint).unwrap_or(Path::new(""));
    let more = Path::new(&place.path);
    // A mount may show a subvolume of what its server has.
    let root = mount.as_ref().map_or(Path::new("/"), |mount| &mount.root);
    let path = root.join(below);
    let path = path.join(more.strip_prefix("/").unwrap_or(more));
    place.path = path.into_os_string();
    // All mounts of a volume are one.
    let first = Mount::seen_by("self").into_iter().find(|other| {
        let same = mount.as_ref().map(|mount| &mount.device);
        same == Some(&other.device) && server_of(&other.point).is_some()
    });
    let mountpoint = first.map_or(mountpoint, |first| first.point);
    place.volume.clone_from(&mountpoint);
    Ok(Some(mountpoint))
}

/// The name of the socket of the server that has a volume mounted there.
pub fn server_of(mountpoint: &Path) -> Option<Vec<u8>> {
    let mut name = vec![0; 256];
    let length = rustix::fs::getxattr(mountpoint, SERVICE, &mut name[..]).ok()?;
    name.truncate(length);
    Some(name)
}
