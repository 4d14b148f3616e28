//! Mounts of ButterFS, as their files' device numbers tell them.
//!
//! Owns the table. It is read again when the kernel says that mounts changed.
//! What a volume says of itself is asked when it is needed first, since a server
//! that hangs must hold up nobody else.

use butterfs_format::{TreeId, UuidBytes};
use butterfs_kernel::{mounted_volume, subvolume_info, sync_any};
use butterfs_server::{Facts, Mount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Major and minor number of a device.
pub(crate) type Device = (u32, u32);

/// What a mount shows.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) fsid: UuidBytes,
    /// The subvolume at its root.
    pub(crate) tree: TreeId,
    /// That subvolume's path from the top level, if its server says so.
    pub(crate) path: Option<String>,
}

/// A mount of ButterFS.
#[derive(Debug)]
pub(crate) struct Volume {
    point: PathBuf,
    device: Device,
    shown: OnceLock<Option<Shown>>,
}

impl Volume {
    /// What the mount shows; `None` if its server does not say so.
    pub(crate) fn shown(&self) -> Option<&Shown> {
        self.shown.get_or_init(|| self.ask()).as_ref()
    }

    /// The mount's root.
    pub(crate) fn open(&self) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.point, flags, Mode::empty()).ok()?;
        // Another mount may cover this one.
        let found = rustix::fs::fstat(&root).ok()?.st_dev;
        let is_same = (rustix::fs::major(found), rustix::fs::minor(found)) == self.device;
        is_same.then_some(root)
    }

    fn ask(&self) -> Option<Shown> {
        let root = self.open()?;
        let tree = subvolume_info(root.as_fd()).ok()?.id;
        Some(Shown {
            fsid: mounted_volume(root.as_fd()).ok()?.fsid,
            tree,
            path: match tree == TreeId::FS {
                true => Some("/".to_owned()),
                false => self.option("subvol="),
            },
        })
    }

    /// An option that the server says is in effect.
    fn option(&self, name: &str) -> Option<String> {
        let options = Facts::of_mount(&self.point).ok()?.options?;
        let value = options
            .split(',')
            .find_map(|word| word.strip_prefix(name))?;
        Some(format!("/{}", value.trim_start_matches('/')))
    }
}

#[derive(Debug)]
struct Table {
    /// The kernel's table, which says when it changed.
    changes: File,
    volumes: HashMap<Device, Arc<Volume>>,
}

/// All mounts of ButterFS that this process sees.
#[derive(Debug)]
pub(crate) struct Mounts(Mutex<Table>);

fn device(text: &str) -> Option<Device> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

impl Mounts {
    /// Reads the table.
    ///
    /// # Errors
    /// There is no /proc.
    pub(crate) fn new() -> std::io::Result<Self> {
        let mut table = Table {
            changes: File::open("/proc/self/mountinfo")?,
            volumes: HashMap::new(),
        };
        table.read();
        Ok(Self(Mutex::new(table)))
    }

    /// Makes everything on all mounts durable, as sync(2) promises.
    pub(crate) fn sync(&self) {
        let volumes: Vec<Arc<Volume>> = {
            let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if table.has_changed() {
                table.read();
            }
            table.volumes.values().map(Arc::clone).collect()
        };
        for volume in volumes {
            if let Some(root) = volume.open() {
                // sync(2) tells of no error either.
                let _ = sync_any(root.as_fd());
            }
        }
    }

    /// A mount of the volume with this UUID.
    pub(crate) fn of_volume(&self, fsid: UuidBytes) -> Option<Arc<Volume>> {
        let volumes: Vec<Arc<Volume>> = {
            let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if table.has_changed() {
                table.read();
            }
            table.volumes.values().map(Arc::clone).collect()
        };
        let is_it = |volume: &Arc<Volume>| volume.shown().is_some_and(|shown| shown.fsid == fsid);
        volumes.into_iter().find(is_it)
    }

    /// The mount whose files have this device number.
    pub(crate) fn find(&self, device: Device) -> Option<Arc<Volume>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.has_changed() {
            table.read();
        }
        table.volumes.get(&device).map(Arc::clone)
    }
}

impl Table {
    fn has_changed(&self) -> bool {
        let mut waits = [PollFd::new(&self.changes, PollFlags::PRI | PollFlags::ERR)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        !matches!(poll(&mut waits, Some(&now)), Ok(0))
    }

    fn read(&mut self) {
        // The kernel gives numbers again: nothing of before is kept.
        self.volumes.clear();
        for mount in Mount::seen_by("self") {
            let Some(device) = device(&mount.device).filter(|_| mount.is_ours()) else {
                continue;
            };
            let volume = || {
                Arc::new(Volume {
                    point: mount.point,
                    device,
                    shown: OnceLock::new(),
                })
            };
            self.volumes.entry(device).or_insert_with(volume);
        }
    }
}
