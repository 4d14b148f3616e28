//! What can be a path in a volume.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A path in a volume: anything that is a path of the host (`str`, `String`,
/// `Path`, `PathBuf`, `OsStr`, `OsString`), and bytes, because a name in Btrfs
/// may have any bytes but NUL and slash.
///
/// A path begins at the root of the subvolume that was opened, with or without
/// a slash. Symbolic links are followed in the middle of a path, and before a
/// slash at its end. Each call says whether it follows a link at the end.
pub trait VolumePath {
    /// Its bytes.
    fn path_bytes(&self) -> &[u8];
}

impl VolumePath for [u8] {
    fn path_bytes(&self) -> &[u8] {
        self
    }
}

impl<const N: usize> VolumePath for [u8; N] {
    fn path_bytes(&self) -> &[u8] {
        self
    }
}

impl VolumePath for Vec<u8> {
    fn path_bytes(&self) -> &[u8] {
        self
    }
}

impl VolumePath for str {
    fn path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl VolumePath for String {
    fn path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl VolumePath for OsStr {
    fn path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl VolumePath for OsString {
    fn path_bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl VolumePath for Path {
    fn path_bytes(&self) -> &[u8] {
        self.as_os_str().as_bytes()
    }
}

impl VolumePath for PathBuf {
    fn path_bytes(&self) -> &[u8] {
        self.as_os_str().as_bytes()
    }
}

impl<P: VolumePath + ?Sized> VolumePath for &P {
    fn path_bytes(&self) -> &[u8] {
        (**self).path_bytes()
    }
}
