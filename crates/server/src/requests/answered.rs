//! Answers for errors of the library.

use butterfs::{Error, FsError};
use butterfs_fuse::Errno;

/// The answer for an error of the library. Damage and failing devices are
/// logged, because the caller learns no more than EIO.
pub(super) fn errno(error: &FsError) -> Errno {
    let number = error.errno();
    if number == libc::EIO {
        tracing::error!(%error, "answered EIO");
    }
    Errno(number)
}

/// Turns errors of the library into answers.
pub(super) trait Answered<T> {
    fn answered(self) -> Result<T, Errno>;
}

impl<T> Answered<T> for Result<T, FsError> {
    fn answered(self) -> Result<T, Errno> {
        self.map_err(|error| errno(&error))
    }
}

impl<T> Answered<T> for Result<T, Error> {
    fn answered(self) -> Result<T, Errno> {
        self.map_err(|error| match error {
            Error::Fs(error) | Error::At { error, .. } => errno(&error),
            Error::Store(error) => errno(&error.into()),
            other => {
                tracing::error!(error = %other, "answered EIO");
                Errno::EIO
            }
        })
    }
}
