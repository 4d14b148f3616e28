//! Btrfs volumes in userspace: open one and use its files.
//!
//! Owns the one small API over the crates below: [`Volume`] (open, commit,
//! close), [`MountOptions`] (what `-o` can say) and paths. Owns no format and
//! no policy of its own. Never prints; events go to `tracing`.
//!
//! ```no_run
//! use butterfs::{OpenOptions, Volume};
//! use std::path::Path;
//!
//! # fn main() -> Result<(), butterfs::Error> {
//! let volume = Volume::open(Path::new("disk.img"), OpenOptions::default())?;
//! volume.write_file(b"/hello.txt", b"hello\n")?;
//! assert_eq!(volume.read_file(b"/hello.txt")?, b"hello\n");
//! volume.close()?;
//! # Ok(())
//! # }
//! ```

mod clone_tree;
mod error;
mod held;
mod members;
mod mount_options;
mod part;
mod paths;
mod quotas;
mod receive_directory;
mod rescue;
mod state;
mod subvolumes;
mod trees;
mod usage;
mod volume;

pub use clone_tree::ClonedTree;
pub use error::Error;
pub use held::Held;
pub use members::{FoundDevice, FoundVolume, find_members, scan};
pub use mount_options::{
    MountOptions, OPTIONS, OptionError, OptionHelp, Subvolume, Transport, Wake, WriteCache,
};
pub use part::{Part, held_instead, open_part, part_of};
pub use paths::{Walk, WalkEntry};
pub use receive_directory::copy_tree::{CopiedTree, copy_host_tree};
pub use receive_directory::{DirectoryKind, DirectoryTarget};
pub use rescue::{PathChange, preview_log, zero_log};
pub use trees::{TreeItem, Trees};
pub use usage::{KindUsage, Usage};
pub use volume::{Cleaner, OpenOptions, Volume};

pub use butterfs_device::{Access, BlockDevice, DeviceError, FileDevice, MemoryDevice};
pub use butterfs_format::compression::{Algorithm, Level, Method};
pub use butterfs_format::item::dir::FileType;
pub use butterfs_format::item::inode::{InodeFlags, Timespec};
pub use butterfs_format::{
    FileOffset, Generation, InodeId, InodeNumber, Logical, TreeId, UuidBytes,
};
pub use butterfs_fs::access;
pub use butterfs_fs::attr::{Attributes, Privileges, SetAttributes, SetTime};
pub use butterfs_fs::dir::{ListedEntry, NAME_MAX, Target};
pub use butterfs_fs::file::{
    CloneSpan, Deduped, Defragment, Defragmented, FallocateMode, Flusher, Recompress, SeekTarget,
    Sharing,
};
pub use butterfs_fs::log::Change;
pub use butterfs_fs::names::{NewInode, Owner};
pub use butterfs_fs::options::{AccessTimes, AclPolicy, Compress, DataCow, Options};
pub use butterfs_fs::rename::{OldName, Place, RenameMode};
pub use butterfs_fs::subvolume::{Cleaning, Received, diff, du, find_new, history, list};
pub use butterfs_fs::xattr::SetMode;
pub use butterfs_fs::{Filesystem, FsError, Inode};
pub use butterfs_fs::{receive, send};
pub use butterfs_store::{
    Barriers, Degraded, DeviceFacts, Discard, LogPolicy, MemberFault, MemberState, StoreError, Trim,
};
pub use butterfs_tree::CompareCost;

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
