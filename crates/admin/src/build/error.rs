//! Errors of building an image.

use crate::archive::ArchiveError;
use std::io;

/// Why an image cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A source cannot be read, or the image cannot be written.
    #[error("{what}: {error}")]
    Io {
        /// The file.
        what: String,
        /// The error of the system.
        error: io::Error,
    },
    /// An archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The archive of this name cannot be read.
    #[error("{archive}: {error}")]
    NamedArchive {
        /// Its file, or standard input.
        archive: String,
        /// Why not.
        error: ArchiveError,
    },
    /// An OCI layout does not follow its specification.
    #[error("{what} is no OCI layout that can be read: {reason}")]
    Layout {
        /// The directory.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// A blob does not have the digest in its name.
    #[error("{blob} does not have the digest that its name says; fetch the image again")]
    Digest {
        /// The blob's file.
        blob: String,
    },
    /// A path cannot be used in the image.
    #[error("{path}: {reason}")]
    Path {
        /// The path.
        path: String,
        /// The reason.
        reason: &'static str,
    },
    /// The map of owners has no entry for an owner.
    #[error("{path}: the map of owners has no place for {id}; give one with --uid-map")]
    Unmapped {
        /// The path.
        path: String,
        /// User or group.
        id: u32,
    },
    /// A file became shorter while it was read.
    #[error("{path} became shorter while it was read; build again when nothing changes it")]
    Changed {
        /// The file.
        path: String,
    },
    /// An extended attribute is too large for a node.
    #[error("{path}: the extended attribute {name} is too large for a node")]
    AttributeTooLarge {
        /// The path.
        path: String,
        /// The attribute's name.
        name: String,
    },
    /// A file has more names than a file can have.
    #[error(
        "{path}: this file has {names} names, and a file of a Btrfs volume has {most} at most; \
         make several files of it"
    )]
    TooManyLinks {
        /// The first of its names.
        path: String,
        /// How many there are.
        names: usize,
        /// How many there may be.
        most: u32,
    },
    /// The image would be larger than the wanted size.
    #[error("the files need an image of {needed} bytes, and {wanted} were asked for")]
    TooSmall {
        /// Bytes of the smallest possible image.
        needed: u64,
        /// The wanted size in bytes.
        wanted: u64,
    },
    /// The trees do not settle. That is a fault of this program.
    #[error("the trees of the image do not settle; please report this")]
    NotSettled,
}

impl BuildError {
    /// Says which archive cannot be read.
    pub(super) fn of_archive(self, archive: impl std::fmt::Display) -> Self {
        match self {
            Self::Archive(error) => Self::NamedArchive {
                archive: archive.to_string(),
                error,
            },
            other => other,
        }
    }

    /// Makes an error from one of the system about a file.
    pub(super) fn io(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        move |error| Self::Io { what, error }
    }
}
