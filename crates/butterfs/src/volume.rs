//! An open volume and its life.
//!
//! Owns opening (device, store, subvolume), the thread that commits, and the
//! end. After [`Volume::close`] everything is on the device, and no handle can
//! do anything with the volume.

use crate::Error;
use crate::mount_options::{MountOptions, Subvolume};
use crate::operations::Operations;
use crate::overlaid::only_overlay;
use crate::part::{self, Part};
use crate::pressure::Pressure;
use crate::rescue::replayed_over;
use butterfs_device::{Access, BlockDevice};
use butterfs_format::{DeviceId, InodeNumber, TreeId};
use butterfs_fs::names::Owner;
use butterfs_fs::subvolume::Cleaning;
use butterfs_fs::{Filesystem, FsError, Options};
use butterfs_store::{
    FreeSpace, LogPolicy, OnReplacement, Purpose, Rescue, SpaceFault, Store, StoreError, Trim,
};
use parking_lot::{Condvar, Mutex};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The store below.
    pub store: butterfs_store::OpenOptions,
    /// How files are kept.
    pub files: Options,
    /// Which part of the device holds it. Only [`Volume::open`] looks at this.
    pub part: Part,
    /// Which subvolume is the root.
    pub subvolume: Subvolume,
    /// Time between commits while something changes.
    pub commit_interval: Duration,
    /// A commit follows when nothing has changed for this long. It may come up
    /// to a second later, because the cleaner's thread looks once a second.
    /// None: only when `commit_interval` is over.
    pub commit_when_quiet: Option<Duration>,
    /// When the trees of deleted subvolumes are freed.
    pub cleaner: Cleaner,
    /// Who owns what calls with paths make, as [`Volume::write_file`] and
    /// [`Volume::create_dir`]; root by default.
    pub owner: Owner,
    /// What comes before the commit of a replay, if an fsync log waits.
    pub at_replay: AtReplay,
    /// How files and block devices are written and read that are opened here
    /// for writing. Devices that are given are used as they were opened.
    pub direct_io: DirectIo,
    /// File that keeps all changes, so that the devices stay as they are. It is
    /// made if nothing is there and the volume is opened for writing.
    pub overlay: Option<PathBuf>,
}

/// Whether direct I/O is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// No: what is read twice is in the system's page cache the second time.
    #[default]
    Unused,
    /// Where the system has it: an fsync is faster, and memory has nothing
    /// twice. For those who keep what they read, as the kernel does with files
    /// of a mount.
    Preferred,
}

/// What comes before the commit of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtReplay {
    /// Nothing.
    #[default]
    Commit,
    /// Free space is discarded. The commit may need what that gives back to a
    /// full file system under an image.
    TrimFirst,
}

/// When the trees of deleted subvolumes are freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cleaner {
    /// Beside everything else, in small steps.
    #[default]
    InBackground,
    /// By [`Filesystem::clean`] alone.
    OnDemand,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            direct_io: DirectIo::Unused,
            ..MountOptions::default().open_options()
        }
    }
}

impl OpenOptions {
    /// Options that change nothing on the device. If an fsync log waits after a
    /// crash, its replay is kept in memory, so that files are shown with all
    /// that was durable. If it cannot be replayed, opening fails, and
    /// [`OpenOptions::as_committed`] shows the last commit.
    #[must_use]
    pub fn read_only() -> Self {
        let mut options = Self::default();
        options.store.access = Access::ReadOnly;
        options
    }

    /// What the devices have to be open for: with an overlay, nothing is written
    /// to them.
    #[must_use]
    pub const fn device_access(&self) -> Access {
        match self.overlay {
            Some(_) => Access::ReadOnly,
            None => self.store.access,
        }
    }

    /// As [`OpenOptions::read_only`], but shows the volume as of its last
    /// commit: exactly what its trees on the device have.
    #[must_use]
    pub fn as_committed() -> Self {
        let mut options = Self::read_only();
        options.store.log = LogPolicy::Ignore;
        options
    }
}

/// An open volume, seen from one subvolume. Dropping it closes it. An error is
/// then only logged.
pub struct Volume {
    files: Arc<Filesystem>,
    /// The devices on which it was opened, as far as they are still used. A
    /// device that was removed or replaced is not held.
    devices: Arc<[Weak<dyn BlockDevice>]>,
    /// `None` if nothing commits: the volume is read-only or closed.
    committer: Arc<Mutex<Option<Committer>>>,
    role: Role,
    /// Owner of what calls with paths make.
    pub(crate) owner: Owner,
    /// What runs on it.
    pub(crate) operations: Arc<Operations>,
}

/// Which handle of an open volume it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The one that opening returned. It closes the volume.
    First,
    /// One that was shared.
    Share,
}

#[derive(Debug)]
struct Committer {
    stop: Arc<Stop>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl Volume {
    /// Opens the volume in the file or block device at `path`. If the volume
    /// has several devices, the others are looked for
    /// ([`crate::find_members`]). An overlay stands for its devices
    /// ([`crate::open_overlay`]).
    ///
    /// # Errors
    /// A device is busy or not there, holds no volume, is damaged, or the
    /// subvolume does not exist.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        let path = path.as_ref();
        if crate::is_overlay(path) {
            return Self::open_all(&[path], options);
        }
        if options.part != Part::Whole {
            let direct = options.direct_io;
            let device = crate::members::open_to_use(path, (options.device_access(), direct))?;
            let device = part::part_of(Arc::new(device), options.part)?;
            return Self::open_device(device, options);
        }
        let paths = crate::find_members_to_use(path, options.store.on_replacement)?;
        Self::open_all(&paths, options)
    }

    /// Opens the volume in the files and block devices at `paths`, in any
    /// order.
    ///
    /// # Errors
    /// As [`Volume::open`]; they are not the devices of one volume.
    pub fn open_all<P: AsRef<Path>>(paths: &[P], options: OpenOptions) -> Result<Self, Error> {
        // An overlay on top of another one would name devices that there are not.
        if let (Some(path), Some(_)) = (only_overlay(paths)?, &options.overlay) {
            return Err(Error::OverlayAmongDevices(path.to_owned()));
        }
        let devices = crate::members::open_as(paths, (options.device_access(), options.direct_io))?;
        Self::open_devices(devices, options)
    }

    /// Opens the volume on `device`.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_device(
        device: Arc<dyn butterfs_device::BlockDevice>,
        options: OpenOptions,
    ) -> Result<Self, Error> {
        Self::open_devices(vec![device], options)
    }

    /// Opens the volume on `devices`, in any order.
    ///
    /// # Errors
    /// As [`Volume::open_all`].
    pub fn open_devices(
        devices: Vec<Arc<dyn BlockDevice>>,
        options: OpenOptions,
    ) -> Result<Self, Error> {
        let devices = match &options.overlay {
            Some(path) => butterfs_repair::overlay::open(path, devices, options.store.access)?,
            None => devices,
        };
        let writable = options.store.access == Access::ReadWrite;
        let first = devices.first().cloned();
        let (store, tree) =
            open_store(devices.clone(), &options).map_err(|error| match &first {
                Some(device) => instead(device, error),
                None => error,
            })?;
        let files = Arc::new(Filesystem::new(store, tree, options.files));
        if writable {
            files.end_cut_balance()?;
        }
        if writable && let Err(error) = files.delete_orphans(tree) {
            // They only take space, and a replay may have written already.
            tracing::error!(%error, "files without names stay; run a check of the volume");
        }
        let committer = if writable {
            Some(Committer::start(
                Arc::clone(&files),
                Pace {
                    interval: options.commit_interval,
                    quiet: options.commit_when_quiet,
                    cleaner: options.cleaner,
                },
            )?)
        } else {
            None
        };
        Ok(Self {
            files,
            devices: devices.iter().map(Arc::downgrade).collect(),
            committer: Arc::new(Mutex::new(committer)),
            role: Role::First,
            owner: options.owner,
            operations: Arc::default(),
        })
    }

    /// Another handle of the same open volume. Dropping it does not close the
    /// volume.
    #[must_use]
    pub fn share(&self) -> Self {
        Self {
            files: Arc::clone(&self.files),
            devices: Arc::clone(&self.devices),
            committer: Arc::clone(&self.committer),
            role: Role::Share,
            owner: self.owner,
            operations: Arc::clone(&self.operations),
        }
    }

    /// Errors when the volume was closed.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        Ok(self.store().check_open()?)
    }

    /// Its files. After [`Volume::close`], changes through them are errors.
    #[must_use]
    pub const fn files(&self) -> &Arc<Filesystem> {
        &self.files
    }

    /// The tree of the subvolume asked for.
    ///
    /// # Errors
    /// There is none; reading.
    pub fn find_subvolume(&self, wanted: &Subvolume) -> Result<TreeId, Error> {
        find_subvolume(self.store(), wanted)
    }

    /// The store below.
    pub(crate) fn store(&self) -> &Arc<Store> {
        self.files.store()
    }

    /// Gives the volume another label, with the next commit.
    ///
    /// # Errors
    /// The label has more than 255 bytes or a NUL; the volume cannot be
    /// written.
    pub fn set_label(&self, label: &[u8]) -> Result<(), Error> {
        self.check_open()?;
        let mut transaction = self.store().begin(0, Purpose::Shrink)?;
        let set = transaction.set_label(label);
        Ok(transaction.end(set)?)
    }

    /// Sets the error counters of the devices to zero, with the next commit.
    ///
    /// # Errors
    /// A volume that cannot be written.
    pub fn reset_device_stats(&self) -> Result<(), Error> {
        let mut transaction = self.store().begin(0, Purpose::Shrink)?;
        transaction.reset_device_stats();
        transaction.finish();
        Ok(())
    }

    /// [`Volume::reset_device_stats`] of one device.
    ///
    /// # Errors
    /// The volume is closed or read-only.
    pub fn reset_stats_of(&self, device: DeviceId) -> Result<(), Error> {
        let transaction = self.store().begin(0, Purpose::Shrink)?;
        transaction.reset_stats_of(device);
        transaction.finish();
        Ok(())
    }

    /// Makes everything that changed durable.
    ///
    /// # Errors
    /// Errors of writing. The volume is read-only after most of them.
    pub fn sync(&self) -> Result<(), Error> {
        self.check_open()?;
        if self.store().access() == Access::ReadOnly {
            return Ok(());
        }
        Ok(self.files.sync_all()?)
    }

    /// Makes everything durable and ends the use of the volume. From then on
    /// every call on any handle that can fail is an error, this one too, and
    /// others may open the volume.
    ///
    /// # Errors
    /// As [`Volume::sync`]; the volume is closed then, too. It is also an error
    /// if others keep changing the volume.
    pub fn close(&self) -> Result<(), Error> {
        self.check_open()?;
        let closed = self.save_and_end();
        let used = self.store().space().devices();
        for device in self
            .devices
            .iter()
            .filter_map(Weak::upgrade)
            .chain(used.map(|(_, device)| device))
        {
            device.let_go();
        }
        closed
    }

    fn save_and_end(&self) -> Result<(), Error> {
        /// Greatest number of commits in a row that find something new. After
        /// that, others change the volume too much.
        const ROUNDS_MAX: usize = 8;
        let committer = self.committer.lock().take();
        if let Some(committer) = committer {
            committer.stop();
        }
        for _ in 0..ROUNDS_MAX {
            if let Err(error) = self.sync() {
                self.store().abandon();
                return Err(error);
            }
            if self.store().close_if_clean()? {
                return match self.files.has_waiting() {
                    false => Ok(()),
                    true => Err(StoreError::ChangedAtClose.into()),
                };
            }
        }
        self.store().abandon();
        Err(StoreError::ChangedAtClose.into())
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.devices.iter().filter_map(Weak::upgrade);
        let devices = devices.map(|device| device.identity());
        f.debug_struct("Volume")
            .field("devices", &devices.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.role == Role::First
            && self.committer.lock().is_some()
            && let Err(error) = self.close()
        {
            tracing::error!(%error, "the last changes are not on the device");
        }
    }
}

/// When the thread that commits does what.
#[derive(Clone, Copy)]
struct Pace {
    interval: Duration,
    quiet: Option<Duration>,
    cleaner: Cleaner,
}

impl Committer {
    fn start(files: Arc<Filesystem>, pace: Pace) -> Result<Self, Error> {
        let stop = Arc::new(Stop::default());
        let thread = std::thread::Builder::new()
            .name("commit".into())
            .spawn({
                let stop = Arc::clone(&stop);
                move || stop.commit_until_asked(&files, pace)
            })
            .map_err(Error::Thread)?;
        Ok(Self { stop, thread })
    }

    fn stop(self) {
        *self.stop.asked.lock() = true;
        self.stop.changed.notify_all();
        if self.thread.join().is_err() {
            tracing::error!("the thread that commits panicked");
        }
    }
}

impl Stop {
    fn commit_until_asked(&self, files: &Filesystem, pace: Pace) {
        /// How often deleted subvolumes are looked for.
        const LOOK: Duration = Duration::from_secs(1);
        /// Pause between two steps of cleaning, so that others come first.
        const PAUSE: Duration = Duration::from_millis(1);
        // Otherwise nobody would notice that this thread panicked.
        let _watch = files.store().fail_on_panic();
        let mut committed = Instant::now();
        let mut pause = LOOK;
        // The state at the last look, and since when, and the state at the last
        // commit.
        let (mut seen, mut seen_since) = (files.activity(), Instant::now());
        let mut saved = None;
        let (mut ended_with, mut told) = (None, None);
        let mut pressure = Pressure::default();
        let mut asked = self.asked.lock();
        while !*asked {
            let next = pace.interval.saturating_sub(committed.elapsed());
            let wait = match pace.cleaner {
                Cleaner::InBackground => next.min(pause),
                Cleaner::OnDemand => next,
            };
            let wait = pace.quiet.map_or(wait, |quiet| wait.min(quiet));
            self.changed.wait_for(&mut asked, wait);
            if *asked {
                break;
            }
            parking_lot::MutexGuard::unlocked(&mut asked, || {
                pressure.follow(files);
                if files.store().check_writable().is_err() {
                    committed = Instant::now();
                    pause = LOOK;
                    return;
                }
                let now = files.activity();
                if now != seen {
                    (seen, seen_since) = (now, Instant::now());
                }
                let is_quiet = pace.quiet.is_some_and(|quiet| {
                    saved != Some(seen) && seen_since.elapsed() >= quiet && files.has_uncommitted()
                });
                if committed.elapsed() >= pace.interval || is_quiet {
                    let failure = match files.write_out() {
                        Ok(None) => None,
                        Ok(Some(error)) => Some(format!("all else is committed: {error}")),
                        Err(error) => Some(format!("a commit failed: {error}")),
                    };
                    // The same failure may come with each commit. It is logged
                    // once for each interval.
                    if let Some(failure) = &failure
                        && (told.as_ref() != Some(failure) || committed.elapsed() >= pace.interval)
                    {
                        tracing::error!("{failure}");
                    }
                    let is_sound = failure.is_none();
                    told = failure;
                    committed = Instant::now();
                    // The commit itself changed something. If anybody changed
                    // anything before it, one more commit follows, which tells
                    // whether that was all.
                    (seen, seen_since) = (files.activity(), committed);
                    let was_used = ended_with != Some(now);
                    ended_with = Some(seen);
                    saved = match is_sound && was_used && files.has_uncommitted() {
                        true => None,
                        false => Some(seen),
                    };
                }
                if pace.cleaner == Cleaner::InBackground {
                    pause = clean(files).map_or(LOOK, |()| PAUSE);
                }
            });
        }
    }
}

/// A step of cleaning; `None` when there is nothing to do or it failed.
fn clean(files: &Filesystem) -> Option<()> {
    match files.clean() {
        Ok(Cleaning::Idle) => None,
        Ok(Cleaning::Step(_) | Cleaning::Stuck(_)) => Some(()),
        Ok(Cleaning::Freed(tree)) => {
            tracing::info!(%tree, "a deleted subvolume is freed");
            Some(())
        }
        Err(error) => {
            tracing::error!(%error, "deleted subvolumes cannot be freed; run a check of the volume");
            None
        }
    }
}

/// Says what a device holds if it holds no volume.
fn instead(device: &Arc<dyn BlockDevice>, error: Error) -> Error {
    if !matches!(error, Error::Store(StoreError::NoSuperblock { .. })) {
        return error;
    }
    // `error` remains if nothing is recognized or the device cannot be read.
    match part::held_instead(device) {
        Ok(Some(held)) => Error::Holds {
            device: device.identity(),
            held,
        },
        Ok(None) | Err(_) => error,
    }
}

/// Opens a store, finds the subvolume that is asked for, and handles the fsync
/// log last of all, because a replay writes. A store that is opened for reading
/// shows what a replay would make, which is kept in memory.
fn open_store(
    devices: Vec<Arc<dyn BlockDevice>>,
    options: &OpenOptions,
) -> Result<(Arc<Store>, TreeId), Error> {
    let store = Arc::new(Store::open_all(devices.clone(), &options.store)?);
    let has_log = store.read().waiting_log().is_some();
    let waits = has_log && options.store.log == LogPolicy::Replay;
    if has_log && options.store.rescue != Rescue::default() && !waits {
        tracing::warn!(
            "a fsync log waits and is not shown: what programs made durable since the last commit \
             is missing (without rescue=all, -o ro shows it)"
        );
    }
    let is_written = options.store.access == Access::ReadWrite;
    if !waits || is_written {
        let tree = find_subvolume(&store, &options.subvolume)?;
        if waits {
            let replayed = match options.at_replay {
                AtReplay::Commit => butterfs_fs::log::replay(&store),
                AtReplay::TrimFirst => butterfs_fs::log::replay_after(&store, |store| {
                    store.trim(&Trim::EVERYTHING).map(drop)
                }),
            };
            replayed?;
        } else if options.store.free_space == FreeSpace::Remade {
            store.commit_remade()?;
        }
        if is_written && options.store.on_replacement == OnReplacement::Cancel {
            store.commit_cancelled_replacement()?;
        }
        if is_written {
            store.mend_tree_bytes()?;
        }
        return Ok((store, tree));
    }
    if store.read().has_stripe_tree() {
        return Err(Error::Store(StoreError::Unsupported {
            what:
                "its fsync log waits for its replay, which changes the volume, and ButterFS only \
                   reads volumes with a RAID stripe tree; read it as of its last commit (-o \
                   ro,norecovery), or mount it with the kernel's Btrfs"
                    .to_owned(),
            read_only_possible: false,
        }));
    }
    drop(store);
    let shown = match replayed_over(&devices, &options.store) {
        Ok(overlays) => overlays,
        // What it may have left in the overlays is not used.
        Err(error) if can_be_read_without_log(&error) => {
            tracing::warn!("the fsync log is not shown: {error}");
            devices
        }
        Err(error) => return Err(error),
    };
    let store = Arc::new(Store::open_all(shown, &options.store)?);
    let tree = find_subvolume(&store, &options.subvolume)?;
    Ok((store, tree))
}

/// Whether an error of changing a volume in memory says nothing against reading
/// it as of its last commit: the volume cannot be changed, or not now. A damaged
/// log is refused, as in the kernel.
fn can_be_read_without_log(error: &Error) -> bool {
    let error = match error {
        Error::Store(error) | Error::Fs(FsError::Store(error)) => error,
        Error::Fs(FsError::NotReplayed(cause)) => match &**cause {
            FsError::Store(error) => error,
            _ => return false,
        },
        _ => return false,
    };
    matches!(
        error,
        StoreError::Unsupported {
            read_only_possible: true,
            ..
        } | StoreError::Inconsistent(SpaceFault::VolumeSize { .. } | SpaceFault::DeviceSize { .. })
            | StoreError::OlderCopy(_)
            | StoreError::NoSpace
    )
}

/// The tree of the subvolume asked for.
fn find_subvolume(store: &Arc<Store>, wanted: &Subvolume) -> Result<TreeId, Error> {
    let tree = match wanted {
        Subvolume::Default => {
            let files = Filesystem::new(Arc::clone(store), TreeId::FS, Options::default());
            files.default_subvolume()?
        }
        // As in the kernel, 0 stands for the top level.
        Subvolume::Id(0) => TreeId::FS,
        Subvolume::Id(id) => TreeId(*id),
        Subvolume::Path(path) => return subvolume_at(store, path),
    };
    let missing = || Error::NoSubvolume(format!("{tree}"));
    if !tree.is_subvolume() {
        return Err(missing());
    }
    match store.read().tree_state(tree) {
        Ok(state) if state.item.refs > 0 => Ok(tree),
        Ok(_) => Err(missing()),
        Err(StoreError::Tree(butterfs_tree::TreeError::NoSuchTree(_))) => Err(missing()),
        Err(error) => Err(error.into()),
    }
}

fn subvolume_at(store: &Arc<Store>, path: &[u8]) -> Result<TreeId, Error> {
    let missing = || Error::NoSubvolume(String::from_utf8_lossy(path).into_owned());
    let files = Filesystem::new(Arc::clone(store), TreeId::FS, Options::default());
    let id = match crate::paths::resolve(&files, path) {
        Ok(id) => id,
        Err(FsError::NotFound | FsError::NotADirectory) => return Err(missing()),
        Err(error) => return Err(Error::at(path, error)),
    };
    if id.number == InodeNumber::ROOT {
        Ok(id.tree)
    } else {
        Err(missing())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewInode, StoreError};
    use butterfs_admin::mkfs::{MkfsOptions, make};
    use butterfs_device::MemoryDevice;

    const MODE: u32 = 0o100_644;

    fn fresh() -> (Arc<MemoryDevice>, Volume) {
        let device = Arc::new(MemoryDevice::new(128 << 20));
        make(&*device, &MkfsOptions::default()).unwrap();
        let options = OpenOptions {
            owner: Owner { uid: 12, gid: 34 },
            ..OpenOptions::default()
        };
        let volume = Volume::open_device(Arc::clone(&device) as _, options).unwrap();
        (device, volume)
    }

    fn is_closed<T>(result: Result<T, Error>) -> bool {
        matches!(
            result,
            Err(Error::Store(StoreError::Closed) | Error::Fs(FsError::Store(StoreError::Closed)))
                | Err(Error::At {
                    error: FsError::Store(StoreError::Closed),
                    ..
                })
        )
    }

    #[test]
    fn a_closed_volume_takes_and_gives_nothing() {
        let (device, volume) = fresh();
        volume.write_file(b"/kept", b"one").unwrap();
        let share = volume.share();
        let files = Arc::clone(volume.files());
        let inode = files.inode(volume.resolve(b"/kept").unwrap()).unwrap();
        volume.close().unwrap();
        for volume in [&volume, &share] {
            let root = volume.files().root();
            assert!(is_closed(volume.write_file(b"/lost", b"two")));
            assert!(is_closed(volume.read_file(b"/kept")));
            assert!(is_closed(volume.create_dir(b"/dir")));
            assert!(is_closed(volume.resolve(b"/")));
            assert!(is_closed(volume.attributes(b"/kept")));
            assert!(is_closed(volume.list(root).map_err(Error::from)));
            assert!(is_closed(volume.set_label(b"new")));
            assert!(is_closed(volume.reset_device_stats()));
            assert!(is_closed(volume.subvolumes().map(drop)));
            assert!(is_closed(volume.remove_tree(root, b"kept")));
            assert!(is_closed(volume.sync()));
            assert!(is_closed(volume.close()));
        }
        let new = NewInode::new(MODE, Owner::default());
        let root = files.root();
        assert!(is_closed(files.write(&inode, 0, b"x").map_err(Error::from)));
        assert!(is_closed(files.truncate(&inode, 0).map_err(Error::from)));
        assert!(is_closed(files.fsync(&inode).map_err(Error::from)));
        assert!(is_closed(
            files.create(root, b"n", &new).map_err(Error::from)
        ));
        assert!(is_closed(files.unlink(root, b"kept").map_err(Error::from)));
        drop((volume, share, files, inode));
        let volume = Volume::open_device(device, OpenOptions::read_only()).unwrap();
        assert_eq!(volume.read_file(b"/kept").unwrap(), b"one");
        let kept = volume.attributes(b"/kept").unwrap();
        assert_eq!((kept.uid, kept.gid), (12, 34));
        assert_eq!(volume.list(volume.files().root()).unwrap().len(), 1);
    }

    /// What was answered with Ok beside a close is there after it.
    #[test]
    fn whoever_writes_beside_a_close_is_told() {
        for round in 0..8_u64 {
            let (device, volume) = fresh();
            let share = volume.share();
            let writer = std::thread::spawn(move || {
                let mut written = 0;
                loop {
                    let path = format!("/{written}");
                    match share.write_file(path.as_bytes(), path.as_bytes()) {
                        Ok(()) => written += 1,
                        Err(error) => return (written, error),
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(round * 3));
            let closed = volume.close();
            let (written, error) = writer.join().unwrap();
            assert!(is_closed::<()>(Err(error)));
            drop(volume);
            if closed.is_err() {
                continue;
            }
            let volume = Volume::open_device(device, OpenOptions::read_only()).unwrap();
            for number in 0..written {
                let path = format!("/{number}");
                let content = volume.read_file(path.as_bytes()).unwrap();
                assert_eq!(content, path.as_bytes());
            }
        }
    }
}
