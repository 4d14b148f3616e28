//! Attributes: stat, mode, owner, times, flags.

use crate::change::NODES_PER_PATH;
use crate::error::FsError;
use crate::file::extents;
use crate::file::flush::InlineRule;
use crate::inode::{Inode, InodeState, load_item, store_item};
use crate::names::{S_IFDIR, S_IFMT, S_IFREG, S_ISGID, S_ISUID};
use crate::options::{AccessTimes, Compress};
use crate::{Filesystem, acl, dir, xattr};
use butterfs_format::InodeId;
use butterfs_format::compression::Algorithm;
use butterfs_format::item::inode::{InodeFlags, InodeItem, Timespec};
use butterfs_store::{Engine, Purpose, now};
use std::ops::Range;

/// Attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode.
    pub id: InodeId,
    /// Type and permissions.
    pub mode: u32,
    /// Links; 1 for directories.
    pub nlink: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number as it is on disk (`major << 20 | minor`), for devices.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes of space, before compression, in whole sectors.
    pub allocated: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of anything.
    pub ctime: Timespec,
    /// Birth.
    pub btime: Timespec,
    /// Flags as on disk.
    pub flags: InodeFlags,
    /// Grows with each change.
    pub sequence: u64,
}

impl Attributes {
    fn new(id: InodeId, item: &InodeItem, allocated: u64) -> Self {
        Self {
            id,
            mode: item.mode,
            nlink: item.nlink,
            uid: item.uid,
            gid: item.gid,
            rdev: item.rdev,
            size: item.size,
            allocated,
            atime: item.atime,
            mtime: item.mtime,
            ctime: item.ctime,
            btime: item.otime,
            flags: item.flags,
            sequence: item.sequence,
        }
    }

    /// True for directories.
    #[must_use]
    pub const fn is_directory(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }
}

/// Times to set.
#[derive(Clone, Copy, Debug)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This one.
    At(Timespec),
}

/// Attributes to set; `None` leaves one unchanged.
#[derive(Clone, Debug, Default)]
pub struct SetAttributes {
    /// Permissions.
    pub mode: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// Time of the last change of anything; now, unless given.
    pub ctime: Option<Timespec>,
    /// Birth, for restoring.
    pub btime: Option<Timespec>,
    /// What to do with set-user and set-group bits and capabilities.
    pub privileges: Privileges,
}

impl SetAttributes {
    /// Errors if a time has a second's worth of nanoseconds or more: the kernel
    /// would show what no program understands.
    fn check_times(&self) -> Result<(), FsError> {
        let told = |time: Option<SetTime>| match time {
            Some(SetTime::At(time)) => Some(time),
            _ => None,
        };
        let times = [told(self.atime), told(self.mtime), self.ctime, self.btime];
        let in_second = |time: &Timespec| time.nanoseconds < 1_000_000_000;
        match times.iter().flatten().all(in_second) {
            true => Ok(()),
            false => Err(FsError::Invalid(
                "a time has more nanoseconds than a second",
            )),
        }
    }
}

/// Whether a change takes privileges from a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Privileges {
    /// It does not.
    #[default]
    Keep,
    /// Set-user bits, set-group bits of executable files, and capabilities are
    /// removed.
    Drop,
    /// As [`Self::Drop`], and the set-group bit is removed in any case.
    DropAll,
}

/// Where data wait that are not in the tree, or were not when their flush began.
fn waiting(state: &InodeState) -> Vec<Range<u64>> {
    let leaving = state.leaving.iter().flat_map(|data| data.runs());
    let mut runs: Vec<_> = state
        .buffer
        .runs()
        .chain(leaving)
        .map(|(start, data)| start..start + data.len() as u64)
        .collect();
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|run, before| {
        let joins = run.start <= before.end;
        if joins {
            before.end = before.end.max(run.end);
        }
        joins
    });
    runs
}

impl Filesystem {
    /// Attributes of an inode.
    ///
    /// # Errors
    /// [`FsError::NotFound`], damage, reading.
    pub fn attributes(&self, id: InodeId) -> Result<Attributes, FsError> {
        if dir::is_absent_subvolume(id) {
            return self.attributes_of(&*self.inode(id)?);
        }
        if let Some(inode) = self.inodes.get(id) {
            return self.attributes_of(&inode);
        }
        let item = self.store.look(|engine| {
            crate::inode::check_alive(engine, id.tree)?;
            load_item(engine, id)
        })?;
        // Another thread may have loaded and changed it meanwhile.
        if let Some(inode) = self.inodes.get(id) {
            return self.attributes_of(&inode);
        }
        let allocated = item.nbytes.next_multiple_of(self.sector_size);
        Ok(Attributes::new(id, &item, allocated))
    }

    /// Attributes of an inode in use.
    ///
    /// # Errors
    /// [`FsError::NotFound`] when it was deleted.
    pub fn attributes_of(&self, inode: &Inode) -> Result<Attributes, FsError> {
        let state = inode.state.read_beside();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        let allocated = self.allocated(inode.id, &state);
        Ok(Attributes::new(inode.id, &state.item, allocated))
    }

    /// Bytes of space that a file has, or needs for data that wait. A damaged
    /// file extent counts for nothing: reading it is an error.
    fn allocated(&self, id: InodeId, state: &InodeState) -> u64 {
        let sector = self.sector_size;
        let waiting = waiting(state);
        let bytes: u64 = waiting.iter().map(|run| run.end - run.start).sum();
        if state.emptied {
            return bytes;
        }
        let held = |nbytes: u64| nbytes.next_multiple_of(sector);
        if bytes == 0 || (state.item.nbytes == 0 && state.leaving.is_none()) {
            return held(state.item.nbytes).saturating_add(bytes);
        }
        let engine = self.store.read();
        // Whether data that leave are in the tree yet, only the tree knows.
        let entered = state
            .leaving
            .as_ref()
            .and_then(|_| load_item(&engine, id).ok());
        let (nbytes, size) = match entered {
            Some(item) => (item.nbytes, item.size),
            None => (state.item.nbytes, state.disk_size),
        };
        let end = size.next_multiple_of(sector);
        let prealloc = state.item.flags.contains(InodeFlags::PREALLOC);
        let covered = |run: Range<u64>| {
            let found = extents::overlapping(&engine, id, run.clone(), usize::MAX);
            let real = found
                .into_iter()
                .flatten()
                .filter(|extent| !extent.is_hole());
            real.map(|extent| {
                let to = extent.end().next_multiple_of(sector).min(run.end);
                to.saturating_sub(extent.start.max(run.start))
            })
            .sum::<u64>()
        };
        let has_space: u64 = waiting
            .into_iter()
            .filter(|run| prealloc || run.start < end)
            .map(covered)
            .sum();
        held(nbytes).saturating_add(bytes.saturating_sub(has_space))
    }

    /// Sets attributes at a user's request: [`Filesystem::set_attributes`] if a
    /// quota leaves room for it. A change that only frees space is always
    /// allowed.
    ///
    /// # Errors
    /// As there; [`FsError::QuotaExceeded`].
    pub fn change_attributes(&self, inode: &Inode, set: &SetAttributes) -> Result<(), FsError> {
        if set.size.is_none() {
            self.ensure_quota_of_names(inode.id.tree)?;
        }
        self.set_attributes(inode, set)
    }

    /// Sets attributes. The caller checks who may do so.
    ///
    /// # Errors
    /// Those of truncation; no space, damage.
    pub fn set_attributes(&self, inode: &Inode, set: &SetAttributes) -> Result<(), FsError> {
        dir::check_kept(inode.id)?;
        set.check_times()?;
        if let Some(size) = set.size {
            self.truncate(inode, size)?;
        }
        let mut state = inode.state.write();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        let room = (6 * NODES_PER_PATH, Purpose::Shrink);
        self.change(&mut *state, inode.id.tree, room, |engine, state| {
            apply(engine, inode.id, state, set)
        })
    }

    /// Notes that `inode` was read, if `times` asks for it and neither the
    /// inode nor its subvolume forbids it. If there is no space for the note,
    /// or the device fails, the note is left out: reading must go on.
    pub fn accessed(&self, inode: &Inode, times: AccessTimes) {
        const DAY: i64 = 24 * 60 * 60;
        if times == AccessTimes::Never || self.store.check_writable().is_err() {
            return;
        }
        let time = now();
        let due = |item: &InodeItem| {
            let order = |time: Timespec| (time.seconds, time.nanoseconds);
            let old = order(item.atime) <= order(item.mtime)
                || order(item.atime) <= order(item.ctime)
                || time.seconds.saturating_sub(item.atime.seconds) >= DAY;
            !item.flags.contains(InodeFlags::NOATIME) && (old || times == AccessTimes::Always)
        };
        if dir::is_absent_subvolume(inode.id) || !due(&inode.state.read_beside().item) {
            return;
        }
        let mut state = inode.state.write();
        if state.deleted || !due(&state.item) {
            return;
        }
        let room = (NODES_PER_PATH, Purpose::Grow);
        let noted = self.change(&mut *state, inode.id.tree, room, |engine, state| {
            state.item.atime = time;
            store_item(engine, inode.id, state)
        });
        if let Err(error) = noted {
            tracing::debug!(%error, "an access time was not noted");
        }
    }

    /// Removes set-user and set-group bits and capabilities from a file that
    /// was changed by a user without the right to keep them.
    ///
    /// # Errors
    /// No space, damage.
    pub fn drop_privileges(&self, inode: &Inode, privileges: Privileges) -> Result<(), FsError> {
        let mode = inode.state.read_beside().item.mode;
        let privileged = mode & dropped(mode, privileges) != 0;
        let capable = self.get_xattr(inode.id, xattr::CAPABILITY).map_or_else(
            |error| match error {
                FsError::NoAttribute => Ok(false),
                other => Err(other),
            },
            |_| Ok(true),
        )?;
        if privileged || capable {
            let set = SetAttributes {
                privileges,
                ..SetAttributes::default()
            };
            self.set_attributes(inode, &set)?;
        }
        Ok(())
    }

    /// Sets the flags that chattr knows. Other flags do not change.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for combinations that the kernel refuses;
    /// [`FsError::QuotaExceeded`].
    pub fn set_flags(&self, inode: &Inode, wanted: InodeFlags) -> Result<(), FsError> {
        self.change_flags(inode, wanted, Compression::Set)
    }

    /// As [`Filesystem::set_flags`], but how the inode is compressed stays as it
    /// is (FS_IOC_FSSETXATTR).
    ///
    /// # Errors
    /// As there.
    pub fn set_other_flags(&self, inode: &Inode, wanted: InodeFlags) -> Result<(), FsError> {
        self.change_flags(inode, wanted, Compression::Kept)
    }

    fn change_flags(
        &self,
        inode: &Inode,
        wanted: InodeFlags,
        compression: Compression,
    ) -> Result<(), FsError> {
        dir::check_kept(inode.id)?;
        self.ensure_quota_of_names(inode.id.tree)?;
        let mut state = inode.state.write();
        if state.deleted {
            return Err(FsError::NotFound);
        }
        if state.emptied {
            // The file must have no data before the way in which they are kept
            // can change.
            self.flush_locked(inode, &mut state, InlineRule::Allowed)?;
        }
        let settable = InodeFlags::SYNC
            | InodeFlags::IMMUTABLE
            | InodeFlags::APPEND
            | InodeFlags::NODUMP
            | InodeFlags::NOATIME
            | InodeFlags::DIRSYNC
            | InodeFlags::NODATACOW
            | InodeFlags::COMPRESS
            | InodeFlags::NOCOMPRESS;
        let old = state.item.flags;
        let compressed = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
        // An inode can have both on disk.
        let (wanted, excluded) = match compression {
            Compression::Kept => (
                (wanted - compressed) | (old & compressed),
                InodeFlags::NODATACOW,
            ),
            Compression::Set => (wanted, InodeFlags::NOCOMPRESS | InodeFlags::NODATACOW),
        };
        if wanted.contains(InodeFlags::COMPRESS) && wanted.intersects(excluded) {
            return Err(FsError::Invalid(
                "nodatacow and compression exclude each other",
            ));
        }
        if (old.contains(InodeFlags::NODATACOW) && wanted.intersects(compressed))
            || (old.intersects(compressed) && wanted.contains(InodeFlags::NODATACOW))
        {
            return Err(FsError::Invalid(
                "nodatacow and compression exclude each other",
            ));
        }
        let mut flags = (old - settable) | (wanted & settable);
        let regular = state.item.mode & S_IFMT == S_IFREG;
        if regular {
            // The way in which data are kept can change only while the file is
            // empty. As in the kernel, the file gets its checksums back.
            if state.item.size != 0 {
                flags = (flags - InodeFlags::NODATACOW) | (old & InodeFlags::NODATACOW);
            } else if flags.contains(InodeFlags::NODATACOW) {
                flags |= InodeFlags::NODATASUM;
            } else {
                flags -= InodeFlags::NODATASUM;
            }
        }
        let id = inode.id;
        if compression == Compression::Set && flags.contains(InodeFlags::COMPRESS) {
            // The longest name of an algorithm.
            xattr::check_room(&self.store.read(), id, xattr::COMPRESSION, b"zlib")?;
        }
        let room = (4 * NODES_PER_PATH, Purpose::Grow);
        self.change(&mut *state, id.tree, room, |engine, state| {
            if compression == Compression::Set {
                xattr::delete(engine, id, xattr::COMPRESSION)?;
                state.compression = None;
            }
            if compression == Compression::Set && flags.contains(InodeFlags::COMPRESS) {
                let algorithm = match self.options.compress {
                    Compress::Try(algorithm, _) | Compress::Force(algorithm, _) => algorithm,
                    Compress::Off => Algorithm::Zlib,
                };
                let value = algorithm.name().as_bytes();
                xattr::put(engine, id, xattr::COMPRESSION, value)?;
                state.compression = Some(Some(algorithm));
            }
            state.item.flags = flags;
            state.item.ctime = now();
            state.item.sequence = state.item.sequence.wrapping_add(1);
            store_item(engine, id, state)
        })
    }
}

/// What a change of flags does to how an inode is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    /// The flags say it.
    Set,
    /// Nothing.
    Kept,
}

/// Set-id bits that a file of `mode` loses.
const fn dropped(mode: u32, privileges: Privileges) -> u32 {
    match (privileges, mode & 0o010) {
        (Privileges::Keep, _) => 0,
        (Privileges::Drop, 0) => S_ISUID,
        (Privileges::Drop | Privileges::DropAll, _) => S_ISUID | S_ISGID,
    }
}

fn apply(
    engine: &mut Engine,
    id: InodeId,
    state: &mut InodeState,
    set: &SetAttributes,
) -> Result<(), FsError> {
    let time = now();
    let resolve = |wanted: SetTime| match wanted {
        SetTime::Now => time,
        SetTime::At(time) => time,
    };
    let item = &mut state.item;
    if let Some(mode) = set.mode {
        item.mode = (item.mode & S_IFMT) | (mode & 0o7777);
        if let Some(acl) = xattr::get(engine, id, xattr::ACL_ACCESS)? {
            let changed = acl::after_chmod(&acl, item.mode)?;
            xattr::delete(engine, id, xattr::ACL_ACCESS)?;
            xattr::put(engine, id, xattr::ACL_ACCESS, &changed)?;
        }
    }
    item.uid = set.uid.unwrap_or(item.uid);
    item.gid = set.gid.unwrap_or(item.gid);
    if set.privileges != Privileges::Keep && item.mode & S_IFMT != S_IFDIR {
        item.mode &= !dropped(item.mode, set.privileges);
        xattr::delete(engine, id, xattr::CAPABILITY)?;
    }
    item.atime = set.atime.map_or(item.atime, resolve);
    item.mtime = set.mtime.map_or(item.mtime, resolve);
    item.otime = set.btime.unwrap_or(item.otime);
    item.ctime = set.ctime.unwrap_or(time);
    item.sequence = item.sequence.wrapping_add(1);
    store_item(engine, id, state)
}
