//! The error number a file system answers with.
//!
//! Owns the number and its conversions. The file system decides what an error
//! means.

use std::fmt;

/// A positive Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        #[allow(missing_docs, reason = "named after errno(3)")]
        impl Errno {
            $(pub const $name: Self = Self(libc::$name);)*

            fn name(self) -> Option<&'static str> {
                match self.0 {
                    $(libc::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos!(
    EPERM,
    ENOENT,
    EINTR,
    EIO,
    ENXIO,
    E2BIG,
    EBADF,
    EAGAIN,
    ENOMEM,
    EACCES,
    EFAULT,
    EBUSY,
    EEXIST,
    EXDEV,
    ENODEV,
    ENOTDIR,
    EISDIR,
    EINVAL,
    ENFILE,
    EMFILE,
    ENOTTY,
    ETXTBSY,
    EFBIG,
    ENOSPC,
    ESPIPE,
    EROFS,
    EMLINK,
    EPIPE,
    ERANGE,
    EDEADLK,
    ENAMETOOLONG,
    ENOSYS,
    ENOTEMPTY,
    ELOOP,
    ENODATA,
    EPROTO,
    EOVERFLOW,
    EUCLEAN,
    EOPNOTSUPP,
    ESTALE,
    EDQUOT,
    ENOTCONN,
    ETIMEDOUT,
    ECANCELED,
);

impl Errno {
    /// The answer for an extended attribute that does not exist.
    pub const ENOATTR: Self = Self::ENODATA;
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f)
    }
}

impl std::error::Error for Errno {}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

impl From<std::io::Error> for Errno {
    /// Errors without a number become EIO.
    fn from(error: std::io::Error) -> Self {
        error.raw_os_error().map_or(Self::EIO, Self)
    }
}
