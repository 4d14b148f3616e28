//! What the mode of an inode says: its kind, and bits of its permissions.

use crate::error::FsError;
use butterfs_format::item::dir::FileType;

/// File type bits of a mode.
pub const S_IFMT: u32 = 0o170_000;
/// Directory.
pub const S_IFDIR: u32 = 0o040_000;
/// Regular file.
pub const S_IFREG: u32 = 0o100_000;
/// Symbolic link.
pub const S_IFLNK: u32 = 0o120_000;
/// Character device.
pub const S_IFCHR: u32 = 0o020_000;
/// Block device.
pub const S_IFBLK: u32 = 0o060_000;
/// Fifo.
pub const S_IFIFO: u32 = 0o010_000;
/// Socket.
pub const S_IFSOCK: u32 = 0o140_000;
/// Set group on execution; on directories, children inherit the group.
pub const S_ISGID: u32 = 0o2_000;
/// Set user on execution.
pub const S_ISUID: u32 = 0o4_000;

/// Kind of a directory entry by an inode's mode.
pub(crate) fn kind_of(mode: u32) -> Result<FileType, FsError> {
    Ok(match mode & S_IFMT {
        S_IFREG => FileType::Regular,
        S_IFDIR => FileType::Directory,
        S_IFLNK => FileType::Symlink,
        S_IFCHR => FileType::CharDevice,
        S_IFBLK => FileType::BlockDevice,
        S_IFIFO => FileType::Fifo,
        S_IFSOCK => FileType::Socket,
        _ => return Err(FsError::Invalid("this type of file does not exist")),
    })
}
