//! Commands about volumes, mounted or not.
//!
//! Owns how a path is translated into one in the mounted volume. A command
//! reads an open volume. If the volume is not mounted, the command opens it
//! itself. If it is, the command goes to the server of the mount, which runs it
//! and sends back what it prints. If the kernel has mounted it, commands that
//! only read see the state of a commit.

use crate::fail::{Done, Failure, fail};
use crate::kernel_volume;
use crate::output::{self, Notes};
use crate::patience;
use crate::place::Place;
use butterfs::Part;
use butterfs_kernel::is_kernel_btrfs;
use butterfs_server::{Connection, Mount, server_of};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Whether a command works if the kernel has the volume mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnKernel {
    /// It works, because it only reads trees.
    Reads,
    /// It works, by asking the kernel to do it.
    Asks,
    /// It does not work.
    Refused,
}

/// Whether a command changes its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It only looks, or ends what another command has begun.
    Reads,
    /// It changes the volume.
    Changes,
}

/// Who has a volume mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MountedBy {
    /// The server of the mount at a path.
    Server(PathBuf),
    /// The kernel, at a path.
    Kernel(PathBuf),
}

/// A command that runs on an open volume, here or in the server of a mount.
pub trait OnVolume: Serialize + Sized {
    /// Its name, for people.
    const NAME: &'static str;
    /// Its name, in requests.
    const TAG: &'static str;
    /// What it does if the kernel has the volume mounted.
    const ON_KERNEL: OnKernel = OnKernel::Refused;

    /// Lets `visit` change all places.
    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done;

    /// The place of a command about a whole volume. The command does not follow
    /// its path, which must exist all the same.
    fn whole_volume(&self) -> Option<(&Place, Part)> {
        None
    }

    /// What it does to the volume. A command that changes it is refused through a
    /// mount that is read-only, as the kernel refuses its ioctl.
    fn effect(&self) -> Effect {
        Effect::Reads
    }

    /// Runs it on the volume that its paths name, or that the server has open.
    fn run_here(self) -> Done;

    /// Has the kernel do it, where [`OnKernel::Asks`] says so; otherwise reads
    /// what the kernel has mounted. `given` is the path by which somebody named
    /// the volume.
    fn ask_kernel(self, mountpoint: &Path, given: &Path) -> Done {
        let _ = given;
        kernel_volume::run(mountpoint, || self.run_here())
    }

    /// Has a server run it, and prints what that prints.
    fn ask(self, server: Connection) -> Done {
        let request = self.request()?;
        match server.run(&request, &mut output::own(), &mut Notes)? {
            0 => Ok(()),
            code => output::end_with(code),
        }
    }

    /// The bytes of the request to a server.
    fn request(&self) -> Result<Vec<u8>, Failure> {
        Ok(serde_json::to_vec(&BTreeMap::from([(Self::TAG, self)]))?)
    }

    /// Runs it, here or where the volume is mounted.
    fn run(mut self) -> Done {
        if let Some((place, part)) = self.whole_volume() {
            place.verify_exists(part)?;
        }
        let mut mounts: Vec<Option<MountedBy>> = Vec::new();
        let mut given = PathBuf::new();
        let effect = self.effect();
        self.each_place(&mut |place| {
            if mounts.is_empty() {
                given.clone_from(&place.volume);
            }
            if effect == Effect::Changes {
                verify_writable(place)?;
            }
            let given = place.volume.clone();
            let mount = || localize(place, Self::NAME, Self::ON_KERNEL);
            mounts.push(patience::asking(&given, mount)?);
            Ok(())
        })?;
        let mount = mounts.first().cloned().flatten();
        if mounts.iter().any(|other| *other != mount) {
            return fail("all paths must be in one volume");
        }
        match mount {
            Some(MountedBy::Server(mount)) => self.ask(Connection::to(&mount)?),
            Some(MountedBy::Kernel(mount)) => self.ask_kernel(&mount, &given),
            None => self.run_here(),
        }
    }
}

/// Errors if a path is on a mount of ours that is read-only, whatever other
/// mounts of the volume are.
fn verify_writable(place: &Place) -> Done {
    let Ok(here) = place.volume.canonicalize() else {
        return Ok(());
    };
    let mount = Mount::of_path(&here).filter(|mount| mount.is_ours() && mount.is_read_only);
    match mount {
        // An image file on such a mount is a volume of its own.
        Some(mount) if here.is_dir() => fail(format!(
            "{}: is mounted read-only, so the volume cannot be changed here; `butterfs mount -o remount,rw {}` changes that",
            place.volume.display(),
            mount.point.display()
        )),
        _ => Ok(()),
    }
}

/// Turns a path below a mountpoint into the mountpoint and the path in the
/// mounted volume, and says who has it mounted. `None` for a file or device
/// that holds a volume.
fn localize(
    place: &mut Place,
    command: &str,
    on_kernel: OnKernel,
) -> Result<Option<MountedBy>, Failure> {
    let Ok(here) = place.volume.canonicalize() else {
        return Ok(None);
    };
    let Ok(meta) = here.metadata() else {
        return Ok(None);
    };
    let mount = Mount::of_path(&here);
    let mountpoint = mount.as_ref().map_or(&here, |mount| &mount.point).clone();
    let is_ours = server_of(&mountpoint).is_some();
    // An image file that lies on a mount is a volume of its own. Only
    // `subvolume history` takes the path of a file on a mount as a file of the
    // mounted volume.
    let is_kernels = !is_ours && is_kernel_btrfs(&here);
    let is_mounted = is_ours || is_kernels;
    let is_subject = is_mounted && place.path == "/" && command == "subvolume history";
    if !meta.is_dir() && !is_subject {
        return Ok(None);
    }
    if !(is_ours || is_kernels && on_kernel != OnKernel::Refused) {
        return fail(if is_kernels {
            format!(
                "{}: the kernel has this volume mounted; use `command btrfs {}` of the Btrfs \
                 tools, or unmount it and name the file or device that holds it",
                place.volume.display(),
                match command {
                    "subvolume history" => "subvolume find-new",
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
    // A mount may show only a subvolume of what its server has.
    let root = mount.as_ref().map_or(Path::new("/"), |mount| &mount.root);
    let path = root.join(below);
    let path = path.join(more.strip_prefix("/").unwrap_or(more));
    place.path = path.into_os_string();
    if is_kernels {
        place.volume.clone_from(&mountpoint);
        return Ok(Some(MountedBy::Kernel(mountpoint)));
    }
    // All mounts of a volume have one server: take the first that leads to it.
    let first = Mount::seen_by("self").into_iter().find(|other| {
        let same = mount.as_ref().map(|mount| &mount.device);
        same == Some(&other.device) && server_of(&other.point).is_some()
    });
    let mountpoint = first.map_or(mountpoint, |first| first.point);
    place.volume.clone_from(&mountpoint);
    Ok(Some(MountedBy::Server(mountpoint)))
}
