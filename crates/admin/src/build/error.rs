//! Why an image cannot be built.

use crate::archive::ArchiveError;
use std::io;

/// Why an image cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A source cannot be read, or the image not be written.
    #[error("{what}: {error}")]
    Io {
        /// The file.
        what: String,
        /// What the system said.
        error: io::Error,
    },
    /// An archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// An OCI layout is not as its specification has it.
    #[error("{what} is no OCI layout that can be read: {reason}")]
    Layout {
        /// The directory.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// A blob is not what its name says.
    #[error("{blob} does not have the digest that its name says; fetch the image again")]
    Digest {
        /// The blob's file.
        blob: String,
    },
    /// A path in the image leads nowhere.
    #[error("{path}: {reason}")]
    Path {
        /// The path.
        path: String,
        /// Why.
        reason: &'static str,
    },
    /// An owner has no place in the map of owners.
    #[error("{path}: the map of owners has no place for {id}; give one with --uid-map")]
    Unmapped {
        /// The path.
        path: String,
        /// User or group.
        id: u32,
    },
    /// A file changed while it was read.
    #[error("{path} became shorter while it was read; build again when nothing changes it")]
    Changed {
        /// The file.
        path: String,
    },
    /// An extended attribute that no item can hold.
    #[error("{path}: the extended attribute {name} is too large for a node")]
    AttributeTooLarge {
        /// The path.
        path: String,
        /// Its name.
        name: String,
    },
    /// The image would be larger than asked for.
    #[error("the files need an image of {needed} bytes, and {wanted} were asked for")]
    TooSmall {
        /// Bytes that the smallest image has.
        needed: u64,
        /// Bytes that were asked for.
        wanted: u64,
    },
    /// The trees do not settle: a fault of this program.
    #[error("the trees of the image do not settle; please report this")]
    NotSettled,
}

impl BuildError {
    /// An error of the system about a file.
    pub(super) fn io(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        move |error| Self::Io { what, error }
    }
}
