//! What to do about a fsync log that waits for its replay: look at what the
//! replay would change, or throw the log away.

use crate::Error;
use butterfs_device::{Access, BlockDevice, OverlayDevice};
use butterfs_format::{InodeId, InodeNumber, TreeId};
use butterfs_fs::log::Change;
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{Degraded, FreeSpace, OnReplacement, OnShortDevice, OpenOptions, Store};
use std::path::Path;
use std::sync::Arc;

/// One change that a replay would make, with paths from the root of its
/// subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathChange {
    /// Subvolume.
    pub subvolume: TreeId,
    /// Path; `None` for a file without names.
    pub path: Option<Vec<u8>>,
    /// What happens there.
    pub change: Change,
}

/// What a replay of the log of the volume at `path` would change. Nothing is
/// written. Empty if there is no log.
///
/// # Errors
/// The volume cannot be opened, or its log not replayed.
pub fn preview_log(path: &Path) -> Result<Vec<PathChange>, Error> {
    let devices = crate::members::open(&crate::find_members(path), Access::ReadOnly)?;
    let overlay = |device| Arc::new(OverlayDevice::new(device)) as Arc<dyn BlockDevice>;
    let devices = devices.into_iter().map(overlay).collect();
    let store = Arc::new(Store::open_all(devices, &OpenOptions::default())?);
    let replayed = butterfs_fs::log::replay(&store)?;
    let mut all = Vec::new();
    for (subvolume, changes) in replayed {
        let files = Filesystem::new(Arc::clone(&store), subvolume, Options::default());
        let path_of = |number: InodeNumber| {
            files.path_of(InodeId {
                tree: subvolume,
                number,
            })
        };
        for change in changes {
            let path = match &change {
                Change::NameAdded { dir, name, .. } | Change::NameRemoved { dir, name, .. } => {
                    path_of(*dir)?.map(|dir| {
                        let slash: &[u8] = if dir.is_empty() { b"" } else { b"/" };
                        [&dir[..], slash, name].concat()
                    })
                }
                Change::Inode { inode, .. }
                | Change::Extent { inode, .. }
                | Change::Unreadable { inode, .. }
                | Change::AttributeSet(inode)
                | Change::AttributeRemoved { inode, .. } => path_of(*inode)?,
            };
            all.push(PathChange {
                subvolume,
                path,
                change,
            });
        }
    }
    Ok(all)
}

/// The devices of a volume as they are after the replay of its fsync log, which
/// is kept in memory alone. `devices` are only read.
///
/// # Errors
/// The volume cannot be opened, or its log not replayed.
pub fn replayed_in_memory(
    devices: &[Arc<dyn BlockDevice>],
) -> Result<Vec<Arc<dyn BlockDevice>>, Error> {
    let options = OpenOptions {
        degraded: Degraded::Allowed,
        ..OpenOptions::default()
    };
    replayed_over(devices, &options)
}

/// [`replayed_in_memory`] of a volume that is opened with `options`.
pub(crate) fn replayed_over(
    devices: &[Arc<dyn BlockDevice>],
    options: &OpenOptions,
) -> Result<Vec<Arc<dyn BlockDevice>>, Error> {
    let overlay = |device: &Arc<dyn BlockDevice>| {
        Arc::new(OverlayDevice::new(Arc::clone(device))) as Arc<dyn BlockDevice>
    };
    let overlays: Vec<_> = devices.iter().map(overlay).collect();
    let changing = OpenOptions {
        access: Access::ReadWrite,
        // `clear_cache` has no effect when a volume is opened for reading.
        free_space: FreeSpace::Kept,
        // Only the overlay cancels it: in the kernel, it continues later.
        on_replacement: OnReplacement::Cancel,
        on_short_device: OnShortDevice::EndThere,
        ..options.clone()
    };
    let store = Store::open_all(overlays.clone(), &changing)?;
    butterfs_fs::log::replay(&store)?;
    Ok(overlays)
}

/// Throws away the log of the volume at `path`. What fsync made durable since
/// the last commit is lost. False if there is no log.
///
/// # Errors
/// The volume cannot be opened for writing.
pub fn zero_log(path: &Path) -> Result<bool, Error> {
    let devices = crate::members::open(&crate::find_members(path), Access::ReadWrite)?;
    let store = Store::open_all(devices, &OpenOptions::default())?;
    Ok(store.zero_log()?)
}
