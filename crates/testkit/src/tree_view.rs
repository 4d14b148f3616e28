//! A tree of files that anything can show: a mounted file system, an unmounted
//! volume through the library, the model.

use std::fmt;

/// Type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// A point in time, as inodes keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Since the epoch.
    pub seconds: i64,
    /// Below a second.
    pub nanoseconds: u32,
}

/// Attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Identity within its tree. Names of one inode have the same.
    pub inode: u64,
    /// Type.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: 12 bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device; 0 and 0 for others.
    pub device: (u32, u32),
    /// Names.
    pub links: u64,
    /// Bytes.
    pub size: u64,
    /// Time of the last change of the content, if it is known.
    pub modified: Option<Time>,
}

/// A name with what it names.
pub type Named<N> = (Vec<u8>, N);
/// An extended attribute: full name and value.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// A tree that can be walked. Names, targets and values are bytes.
pub trait TreeView {
    /// An inode, in a form by which the view finds it again.
    type Node;
    /// Why something could not be read.
    type Error: fmt::Display;

    /// The root directory.
    ///
    /// # Errors
    /// Whatever the tree says.
    fn root(&self) -> Result<Self::Node, Self::Error>;

    /// Names in a directory, without `.` and `..`, in any order.
    ///
    /// # Errors
    /// Whatever the tree says.
    fn read_dir(&self, node: &Self::Node) -> Result<Vec<Named<Self::Node>>, Self::Error>;

    /// Attributes.
    ///
    /// # Errors
    /// Whatever the tree says.
    fn stat(&self, node: &Self::Node) -> Result<Stat, Self::Error>;

    /// Reads from `offset` of a regular file. Fewer bytes than `buffer` has
    /// room for do not mean the end; no bytes do.
    ///
    /// # Errors
    /// Whatever the tree says.
    fn read(&self, node: &Self::Node, offset: u64, buffer: &mut [u8])
    -> Result<usize, Self::Error>;

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// Whatever the tree says.
    fn read_link(&self, node: &Self::Node) -> Result<Vec<u8>, Self::Error>;

    /// Extended attributes with full names (`user.x`), ACLs among them, in any
    /// order.
    ///
    /// # Errors
    /// Whatever the tree says.
    fn xattrs(&self, node: &Self::Node) -> Result<Vec<Xattr>, Self::Error>;
}
