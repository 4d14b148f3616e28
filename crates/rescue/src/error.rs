//! Why nothing more can be found.

use butterfs_device::DeviceError;
use std::io;
use thiserror::Error;

/// Why a recovery ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RescueError {
    /// A device failed in a way that concerns all of it.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No device was given.
    #[error("no device was given")]
    NoDevice,
    /// No device has a superblock that names the trees.
    #[error(
        "no device has a good superblock, which names the trees; `butterfs restore` brings files out \
         without one"
    )]
    NoGoodSuperblock,
    /// There is no trace of a volume.
    #[error(
        "neither a superblock nor a tree node of Btrfs was found; give all devices of the volume, \
         or the whole disk if its partition table is lost"
    )]
    NothingFound,
    /// The devices have nodes of several volumes.
    #[error("the devices hold {0} volumes; name one of them with --fsid: {1}")]
    SeveralVolumes(usize, String),
    /// The volume that the caller named is not there.
    #[error("there is no trace of the volume with this UUID")]
    NoSuchVolume,
    /// The scan found more nodes than memory was allowed for.
    #[error(
        "the scan found {found} nodes, for which it needs more than {bytes} bytes of memory; allow more with --memory"
    )]
    TooManyNodes {
        /// Nodes so far.
        found: usize,
        /// Bytes that were allowed.
        bytes: u64,
    },
    /// The file of an index cannot be used.
    #[error("the index file: {0}")]
    Index(#[from] io::Error),
    /// The file is no index, or one of other devices.
    #[error("the index file {0}; name another file, or remove it and scan anew")]
    WrongIndex(&'static str),
    /// The output failed as a whole.
    #[error("{0}")]
    Output(io::Error),
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
    /// No root tree that the caller named.
    #[error("no tree of roots of generation {0} was found; `butterfs rescue survey` lists them")]
    NoGeneration(u64),
    /// No subvolume that the caller named.
    #[error("there is no subvolume {0}; `butterfs restore --list-roots` lists them")]
    NoSubvolume(u64),
    /// There is no node that the caller named.
    #[error("there is no readable tree node at logical {0}")]
    NoNode(u64),
}
