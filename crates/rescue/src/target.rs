//! Where files go that come back.

mod directory;
mod tar_stream;

pub use directory::DirectoryTarget;
pub use tar_stream::TarTarget;

use butterfs_format::item::inode::{InodeItem, Timespec};
use std::io;

/// Names from the target's root down.
pub type TargetPath = [Vec<u8>];

/// Attributes of a file.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// Permissions, without the type.
    pub permissions: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last access.
    pub atime: Timespec,
}

impl Attributes {
    pub(crate) const fn of(item: &InodeItem) -> Self {
        Self {
            permissions: item.mode & 0o7777,
            uid: item.uid,
            gid: item.gid,
            mtime: item.mtime,
            atime: item.atime,
        }
    }
}

/// What is set of a file beside its content.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    /// Owner, permissions and times, if they are wanted and known.
    pub attributes: Option<Attributes>,
    /// Extended attributes, if they are wanted.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What a device, a pipe or a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialKind {
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A pipe with a name.
    Fifo,
    /// A socket.
    Socket,
}

/// A device, a pipe or a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// What it is.
    pub kind: SpecialKind,
    /// The number of a device, as its inode item has it.
    rdev: u64,
}

impl Special {
    /// By the inode item; `None` for what has another type.
    pub(crate) const fn of(item: &InodeItem) -> Option<Self> {
        let kind = match item.mode & 0o170_000 {
            0o020_000 => SpecialKind::CharacterDevice,
            0o060_000 => SpecialKind::BlockDevice,
            0o010_000 => SpecialKind::Fifo,
            0o140_000 => SpecialKind::Socket,
            _ => return None,
        };
        Some(Self {
            kind,
            rdev: item.rdev,
        })
    }

    /// Whether it is a device.
    #[must_use]
    pub const fn is_device(self) -> bool {
        matches!(
            self.kind,
            SpecialKind::CharacterDevice | SpecialKind::BlockDevice
        )
    }

    /// The number of a device as an inode item has it; 0 for all else.
    #[must_use]
    pub const fn device_number(self) -> u64 {
        match self.is_device() {
            true => self.rdev,
            false => 0,
        }
    }

    /// Major and minor number of a device.
    #[must_use]
    pub fn numbers(self) -> (u32, u32) {
        let part = |bits: u64| u32::try_from(bits).unwrap_or(u32::MAX);
        let number = self.device_number();
        (part(number >> 20), part(number & 0xf_ffff))
    }
}

/// Whether a file is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Its content can be written.
    Writes,
    /// It is there already.
    Exists,
}

/// Why a target cannot hold a device, a pipe or a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut(pub &'static str);

/// An extended attribute that a target did not take.
#[derive(Debug)]
pub struct RefusedAttribute {
    /// Its name.
    pub name: Vec<u8>,
    /// What the target says.
    pub error: io::Error,
}

/// Takes files. Paths never leave it.
pub trait Target {
    /// Makes a directory, and those above it. It may be there.
    ///
    /// # Errors
    /// What the system says.
    fn directory(&mut self, path: &TargetPath) -> io::Result<()>;

    /// Sets what belongs to a directory, after all that is in it is written.
    ///
    /// # Errors
    /// What the system says.
    fn finish_directory(&mut self, path: &TargetPath, extras: &Extras) -> io::Result<()>;

    /// Whether the name of a file must be known before its content.
    fn needs_name_first(&self) -> bool;

    /// Begins a file of `size` bytes.
    ///
    /// # Errors
    /// What the system says.
    fn begin_file(&mut self, path: &TargetPath, size: u64, extras: &Extras) -> io::Result<Begun>;

    /// Writes a part of the file that was begun. Offsets ascend; what is left
    /// out is zeros.
    ///
    /// # Errors
    /// What the system says.
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;

    /// Ends the file, under this path.
    ///
    /// # Errors
    /// What the system says.
    fn end_file(&mut self, path: &TargetPath, extras: &Extras) -> io::Result<()>;

    /// Drops the file that was begun.
    fn drop_file(&mut self);

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// What the system says.
    fn symlink(&mut self, path: &TargetPath, text: &[u8], extras: &Extras) -> io::Result<Begun>;

    /// Makes a device, a pipe or a socket.
    ///
    /// # Errors
    /// What the system says.
    fn special(
        &mut self,
        path: &TargetPath,
        of: Special,
        extras: &Extras,
    ) -> io::Result<Result<Begun, LeftOut>>;

    /// Gives a file that was written another name.
    ///
    /// # Errors
    /// What the system says.
    fn link(&mut self, path: &TargetPath, old: &TargetPath) -> io::Result<Begun>;

    /// Extended attributes that were not taken since the last call, of files and
    /// directories that are there all the same.
    fn take_refused(&mut self) -> Vec<RefusedAttribute> {
        Vec::new()
    }

    /// Ends everything.
    ///
    /// # Errors
    /// What the system says.
    fn finish(&mut self) -> io::Result<()>;
}
