//! Why a volume cannot be given another form.

use butterfs_format::Logical;
use thiserror::Error;

/// Why a volume cannot be tuned as was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TuneFault {
    /// A node in a row with parity cannot be rewritten in place.
    #[error(
        "its metadata has parity (RAID5, RAID6), which cannot be rewritten in place safely; \
         change the UUID with -m or -M, or convert the metadata first (`butterfs balance start \
         -mconvert=raid1`)"
    )]
    Parity,
    /// A device is missing or failed.
    #[error("a device is missing or failed; all devices of the volume are needed")]
    NotWhole,
    /// Some nodes lie on devices that are never written.
    #[error(
        "the volume grew from a seed, whose nodes cannot be changed; remove the seed's devices \
         first (`butterfs device remove`), and what lies on them moves"
    )]
    Seeded,
    /// A tree uses a node that the extent tree does not have.
    #[error(
        "the extent tree does not list the tree node at logical {0}, which is in use, so not all \
         nodes can be found; nothing was changed. Run `butterfs check`, and mend the volume first \
         (`butterfs check --repair`)"
    )]
    Unlisted(Logical),
    /// The block group tree needs other features.
    #[error("a block group tree needs {0}, which the volume does not have; {1} comes first")]
    Needs(&'static str, &'static str),
    /// A sector of data differs from its checksum.
    #[error(
        "data at logical {0} do not match their checksum, so they get no new one; nothing was \
         changed. Find the file with `butterfs scrub`, and remove or restore it first"
    )]
    DamagedData(Logical),
    /// New checksums would take too much memory.
    #[error(
        "the new checksums take {needed} bytes of memory, and {available} may be used; do it on a \
         machine with more"
    )]
    Memory {
        /// Bytes of the new checksums.
        needed: u64,
        /// Bytes that may be used.
        available: u64,
    },
    /// Somebody asked to end.
    #[error("interrupted; nothing was changed")]
    Interrupted,
}
