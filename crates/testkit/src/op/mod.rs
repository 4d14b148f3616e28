//! The operations that tests are made of.
//!
//! Owns the enum. [`generate`] makes sequences of it, and [`apply`] does them
//! on a mounted directory. Paths are relative to the root of the tree. Unless
//! said otherwise, an operation affects what the path itself names. Operations
//! on content follow a symbolic link at its end, as open(2) does.

pub mod apply;
pub mod generate;
mod generate_subvolumes;
pub mod names;
mod subvolumes;

use crate::tree_view::Time;
use std::fmt;

/// A path below the root of a tree, of bytes, without a leading slash.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpPath(pub Vec<u8>);

impl fmt::Debug for OpPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.split(|byte| *byte == b'/').map(short).collect();
        write!(f, "\"{}\"", names.join("/"))
    }
}

/// Bytes of a name or value. Long ones are abbreviated when printed, because a
/// seed reproduces them.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", short(&self.0))
    }
}

fn short(bytes: &[u8]) -> String {
    match bytes.split_at_checked(20) {
        Some((start, rest)) if rest.len() > 20 => {
            format!("{}<{} bytes>", start.escape_ascii(), bytes.len())
        }
        _ => bytes.escape_ascii().to_string(),
    }
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

/// What happens to a name that exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameHow {
    /// It is replaced.
    Replace,
    /// EEXIST.
    NoReplace,
    /// The two change places.
    Exchange,
    /// It is replaced, and the old name becomes a whiteout.
    Whiteout,
}

/// Whether allocation may move the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfFile {
    /// It moves to the end of the range if it is before that.
    Extend,
    /// It stays.
    Keep,
}

/// Kinds that mknod makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// An empty regular file.
    Regular,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device, major and minor.
    CharDevice(u32, u32),
    /// Block device, major and minor.
    BlockDevice(u32, u32),
}

/// Whether an extended attribute must exist before it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrHow {
    /// It may exist or not.
    Any,
    /// EEXIST if it exists.
    Create,
    /// ENODATA if it does not exist.
    Replace,
}

/// Whether a snapshot can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotAccess {
    /// It can.
    Writable,
    /// EROFS.
    ReadOnly,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "fields are named after what the system calls take"
)]
pub enum Op {
    /// open(2) with O_CREAT | O_EXCL.
    Create {
        path: OpPath,
        mode: u32,
    },
    Mkdir {
        path: OpPath,
        mode: u32,
    },
    Symlink {
        path: OpPath,
        target: Bytes,
    },
    /// link(2): a symbolic link at the end of `from` gets the name itself.
    Link {
        from: OpPath,
        to: OpPath,
    },
    Unlink {
        path: OpPath,
    },
    Rmdir {
        path: OpPath,
    },
    Rename {
        from: OpPath,
        to: OpPath,
        how: RenameHow,
    },
    /// Writes `content(seed, length)`; nothing is created.
    Write {
        path: OpPath,
        span: Span,
        seed: u64,
    },
    /// The same, at the end of the file.
    Append {
        path: OpPath,
        length: u64,
        seed: u64,
    },
    Truncate {
        path: OpPath,
        size: u64,
    },
    PunchHole {
        path: OpPath,
        span: Span,
    },
    Allocate {
        path: OpPath,
        span: Span,
        end: EndOfFile,
    },
    ZeroRange {
        path: OpPath,
        span: Span,
        end: EndOfFile,
    },
    /// FICLONERANGE; `span` is in `from`, its length is not 0.
    Clone {
        from: OpPath,
        span: Span,
        to: OpPath,
        to_offset: u64,
    },
    /// copy_file_range(2) of the part of `span` that lies in `from`.
    Copy {
        from: OpPath,
        span: Span,
        to: OpPath,
        to_offset: u64,
    },
    SetXattr {
        path: OpPath,
        name: Bytes,
        value: Bytes,
        how: XattrHow,
    },
    RemoveXattr {
        path: OpPath,
        name: Bytes,
    },
    /// chmod(2), which follows symbolic links.
    Chmod {
        path: OpPath,
        mode: u32,
    },
    Chown {
        path: OpPath,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// Sets the time of the last change of content.
    SetModified {
        path: OpPath,
        time: Time,
    },
    Mknod {
        path: OpPath,
        kind: NodeKind,
        mode: u32,
    },
    /// An O_TMPFILE of `directory` gets content, then a name.
    LinkTmpfile {
        directory: OpPath,
        path: OpPath,
        mode: u32,
        length: u64,
        seed: u64,
    },
    /// fsync(2) of a file or directory.
    Fsync {
        path: OpPath,
    },
    /// Makes everything durable.
    Sync,
    /// The volume is closed and opened again by the code that runs the
    /// operations.
    Remount,
    /// Makes an empty subvolume whose root directory has `mode`.
    Subvolume {
        path: OpPath,
        mode: u32,
    },
    /// A snapshot of the subvolume whose root is `from`.
    Snapshot {
        from: OpPath,
        to: OpPath,
        access: SnapshotAccess,
    },
    /// Deletes the subvolume with all that is in it.
    DeleteSubvolume {
        path: OpPath,
    },
    /// Sends the read-only subvolume `from`, as a difference from `parent` if
    /// there is one, and receives it in the new directory `into`.
    SendReceive {
        from: OpPath,
        parent: Option<OpPath>,
        into: OpPath,
    },
}
