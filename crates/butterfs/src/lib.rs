//! Btrfs volumes without the kernel and without root: make them, open them, and
//! read and change what is in them.
//!
//! What this library writes is ordinary Btrfs. The Linux kernel mounts it, and
//! what the kernel wrote can be opened here.
//!
//! # Tour
//!
//! **Make a volume, open it, use its files.** [`make_volume`] makes one in a
//! new file; [`make_volume_on`] makes one on existing files and block devices.
//! [`Volume::open`] opens one. Names are those of `std::fs`, and [`File`] has
//! [`std::io::Read`], [`std::io::Write`] and [`std::io::Seek`]:
//!
//! ```
//! use butterfs::{MkfsOptions, OpenOptions, Volume};
//! use std::io::{Read, Seek, Write};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("disk.img");
//! butterfs::make_volume(&image, 256 << 20, &MkfsOptions::default())?;
//! let volume = Volume::open(&image, OpenOptions::default())?;
//!
//! volume.create_dir_all("/2026/may")?;
//! let mut file = volume.create_file("/2026/may/note.txt")?;
//! writeln!(file, "hello")?;
//! file.rewind()?;
//! let mut text = String::new();
//! file.read_to_string(&mut text)?;
//! assert_eq!(text, "hello\n");
//!
//! for entry in volume.read_dir("/2026")? {
//!     println!("{}", entry?.path().display());
//! }
//! volume.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! **Paths** can be anything that is a path of the host, and bytes
//! ([`VolumePath`]). They begin at the root of the opened subvolume. Beside the
//! calls with paths there are calls with inodes, for programs that look up a
//! name once and use it often: [`Volume::files`] gives the [`Filesystem`].
//!
//! **Snapshots, and streams of them:**
//!
//! ```
//! # use butterfs::{MkfsOptions, OpenOptions, SnapshotAccess, Volume};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let (image, other) = (folder.path().join("disk.img"), folder.path().join("copy.img"));
//! # butterfs::make_volume(&image, 256 << 20, &MkfsOptions::default())?;
//! # butterfs::make_volume(&other, 256 << 20, &MkfsOptions::default())?;
//! # let volume = Volume::open(&image, OpenOptions::default())?;
//! # let backup = Volume::open(&other, OpenOptions::default())?;
//! volume.create_subvolume("/home")?;
//! volume.write_file("/home/list.txt", b"one\n")?;
//! volume.snapshot("/home", "/monday", SnapshotAccess::ReadOnly)?;
//!
//! let mut stream = Vec::new();
//! volume.send("/monday", &mut stream)?;
//! backup.receive("/", std::io::Cursor::new(stream))?;
//! assert_eq!(backup.read_file("/monday/list.txt")?, b"one\n");
//! # backup.close()?;
//! # volume.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! **Whole volumes.** [`check()`] verifies a volume that is not open, and
//! writes nothing. The verifier shares no code with the writer.
//! [`Volume::scrub`] reads every copy of everything while the volume is in use.
//! The modules [`balance`], [`resize`], [`scrub`], [`mkfs`] and [`mod@build`]
//! can do everything that the commands of the same names can do. They take the
//! store below a volume, `volume.files().store()`.
//!
//! **Options.** [`OpenOptions`] says how to open; [`MountOptions`] makes it from
//! the words of `-o` (`compress=zstd:3,subvol=@home`). Six programs in
//! `examples/` show more.
//!
//! # What you can rely on
//!
//! **Errors** are typed ([`Error`]) and name the path that you gave.
//! [`Error::kind`] gives the matching [`std::io::ErrorKind`],
//! [`Error::next_step`] what to do. They become [`std::io::Error`] with `?`.
//!
//! **Durability.** This table says when the result of a call is on the device;
//! before that it may not be. After a crash the volume is as it was at one of
//! these moments, never in between.
//!
//! | Call | Durable when it returns |
//! |---|---|
//! | writing, [`Volume::write_file`], names, attributes, [`Volume::reflink`] | no: with the next commit. One comes 30 seconds after the last ([`OpenOptions::commit_interval`]) |
//! | [`File::sync_all`] | that file: data, attributes, name |
//! | [`Volume::sync`] | everything |
//! | [`Volume::create_subvolume`], [`Volume::snapshot`], [`Volume::delete_subvolume`] | yes, with all that was changed before it |
//! | [`Volume::receive`] | what was received |
//! | [`Volume::rename`] over a file | not by itself, but after a crash the name has the old content or the new, whole |
//! | [`Volume::close`] | everything |
//! | dropping a [`File`] | it does nothing |
//! | dropping a [`Volume`] | as [`Volume::close`], but an error is only logged: call `close` |
//!
//! **Use after close is an error.** After [`Volume::close`], every call on any
//! handle of the volume that can fail does fail ([`StoreError::Closed`]).
//! Nothing is accepted and then lost.
//!
//! **Threads.** All types are `Send`, and all but the iterators and streams are
//! `Sync`: share a [`Volume`] behind an `Arc`, or make further handles with
//! [`Volume::share`]. Calls block; there is no async. Reads of different files,
//! and of one file, go on at the same time. Changes take turns for the few
//! microseconds in which they edit trees in memory. File data are compressed,
//! checksummed and written outside of that time. One thread of the library
//! commits in the background, and short-lived ones help with large flushes.
//!
//! **Blocking.** Reads wait for the device if the data are not in memory.
//! Writes wait only if the write buffer is full. `sync`, `sync_all`, `close`
//! and everything that commits wait until the device is flushed.
//!
//! **Memory** is bounded: clean nodes by [`OpenOptions::store`] (a 16th of the
//! memory of the machine or the control group, at most 128 MiB), waiting file data
//! by [`Options::buffer_bytes`] (96 MiB), changed nodes of a commit by 64 MiB; both
//! are less with less than 1 GiB of memory.
//! [`Volume::read_file`] holds the whole file; [`File`] does not.
//!
//! **Panics.** Nothing that a caller passes and nothing on a device makes the
//! library panic. Damage is an error. If one of the library's own invariants
//! fails, it does panic, on purpose. The volume is read-only from then on, with
//! its last commit on the device.
//!
//! **One at a time.** A volume that is open for writing is locked: a second
//! opening, here or by the kernel, is refused. Nothing here checks permissions
//! of users: whoever can open the device can do everything ([`access`] has the
//! rules for programs that need them). What calls with paths make belongs to
//! [`OpenOptions::owner`].
//!
//! Never prints; events go to `tracing`.

mod calls;
mod clone_tree;
mod error;
mod file;
mod finish_conversion;
mod held;
mod members;
mod mount_options;
mod names;
mod operations;
mod overlaid;
mod part;
mod paths;
mod pressure;
mod quotas;
mod read_dir;
mod readable;
mod receive_directory;
mod removing;
mod rescue;
mod snapshots;
mod state;
mod streams;
mod subvolumes;
mod trees;
mod usage;
mod volume;
mod volume_path;
mod whole;

pub use calls::{Calls, GivenOwner, walk};
pub use clone_tree::ClonedTree;
pub use error::Error;
pub use file::{File, FileOptions};
pub use held::Held;
pub use members::{FoundDevice, FoundVolume, find_members, find_members_to_use, scan};
pub use mount_options::{
    MountOptions, OPTIONS, OptionError, OptionHelp, Subvolume, Transport, Wake, WriteCache,
};
pub use operations::{
    DeviceChange, DeviceChangeProgress, ExclusiveOperation, RunningBalance, RunningChange,
    RunningScrub,
};
pub use overlaid::{
    devices_of_overlay, is_overlay, only_overlay, open_members, open_overlay, open_to_look,
};
pub use part::{Part, held_instead, open_part, part_of};
pub use paths::{Walk, WalkEntry};
pub use read_dir::{DirEntry, ReadDir};
pub use readable::{Compared, compare_readable};
pub use receive_directory::copy_tree::{CopiedTree, copy_host_tree};
pub use receive_directory::{DirectoryKind, DirectoryTarget};
pub use removing::remove_tree;
pub use rescue::{PathChange, preview_log, replayed_in_memory, zero_log};
pub use snapshots::SnapshotAccess;
pub use trees::{TreeItem, Trees};
pub use usage::{KindUsage, Usage};
pub use volume::{AtReplay, Cleaner, DirectIo, OpenOptions, Volume};
pub use volume_path::VolumePath;
pub use whole::{Content, check, is_seed, make_volume, make_volume_on, sprout};

pub use butterfs_admin::mkfs::{MkfsError, MkfsOptions, RootOwner};
pub use butterfs_admin::{balance, build, devices, mkfs, resize, scrub};

pub use butterfs_device::{
    Access, BlockDevice, Caching, DeviceError, FileDevice, MemoryDevice, NotDirect,
};
pub use butterfs_format::compression::{Algorithm, Level, Method};
pub use butterfs_format::item::dir::FileType;
pub use butterfs_format::item::inode::{InodeFlags, Timespec};
pub use butterfs_format::{
    FileOffset, Generation, InodeId, InodeNumber, Logical, TreeId, UuidBytes,
};
pub use butterfs_fs::access;
pub use butterfs_fs::attr::{Attributes, Privileges, SetAttributes, SetTime};
pub use butterfs_fs::dir::{
    ListedEntry, NAME_MAX, Target, absent_subvolume, in_place_of_absent, is_absent_subvolume,
};
pub use butterfs_fs::file::{
    CloneSpan, Deduped, Defragment, Defragmented, Doubts, FallocateMode, FileSpace, Flusher,
    MappedExtent, MappedKind, Recompress, SeekTarget, Sharing,
};
pub use butterfs_fs::log::Change;
pub use butterfs_fs::names::{NewInode, Owner};
pub use butterfs_fs::options::{AccessTimes, AclPolicy, Compress, DataCow, Options};
pub use butterfs_fs::rename::{OldName, Place, RenameMode};
pub use butterfs_fs::subvolume::{Cleaning, Received, diff, du, files_at, find_new, history, list};
pub use butterfs_fs::xattr::SetMode;
pub use butterfs_fs::{Filesystem, FsError, Inode};
pub use butterfs_fs::{receive, send};
pub use butterfs_store::{
    Barriers, Degraded, DeviceFacts, Discard, LogPolicy, MemberFault, MemberState, MembershipFault,
    OnFault, OnReplacement, OnShortDevice, Profile, Rescue, StoreError, Trim,
};
pub use butterfs_tree::CompareCost;

/// The independent verifier: what a check can be told, and what it finds.
pub mod check {
    pub use butterfs_check::{
        CheckError, DataChecksums, Fault, FaultCode, Figures, NoProgress, Options, Phase, Place,
        Progress, Report, Severity, Status, check,
    };
}

/// Quota groups.
pub mod quota {
    pub use crate::quotas::QuotaState;
    pub use butterfs_format::item::qgroup::{
        GroupId, QgroupInfo, QgroupLimit, QgroupLimitFlags, QgroupStatus, QgroupStatusFlags,
    };
    pub use butterfs_store::{
        Assigned, GroupNumbers, LimitChange, QuotaError, QuotaGroup, QuotaItems, QuotaMode,
    };
}

/// The program in README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
