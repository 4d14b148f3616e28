//! Why a volume does not go on from an older copy of its superblock.

use butterfs_format::Generation;
use thiserror::Error;

/// Why an older copy of the superblock is not believed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OlderCopy {
    /// Nodes of its commit are gone.
    #[error(
        "the primary superblock of {device}{} is damaged, and of its newest whole copy, generation \
         {generation}, nodes are damaged or overwritten by later commits ({damage}); the volume \
         is not changed: keep a copy of the device, and copy what is left (`butterfs copy -o \
         ro,rescue=all`)",
        claim(*claimed)
    )]
    Overwritten {
        /// Device.
        device: String,
        /// Generation of the copy.
        generation: Generation,
        /// That of the damaged primary copy, if it can be read.
        claimed: Option<Generation>,
        /// What is wrong with the first node that cannot be read.
        damage: String,
    },
    /// The primary copy is whole and older than a mirror of which nodes are gone.
    #[error(
        "the primary superblock of {device}, of generation {generation}, is older than its mirror, \
         of generation {newer}, and nodes that the mirror names are damaged or were never written \
         ({damage}); going on from the older one could lose what was written later, so the volume \
         is not changed: -o ro or `butterfs copy -o ro,rescue=all` reads what is left; -o \
         usebackuproot gives up the newer commits if all nodes of the older one are there"
    )]
    OlderPrimary {
        /// Device.
        device: String,
        /// Generation of the primary copy.
        generation: Generation,
        /// That of the mirror.
        newer: Generation,
        /// What is wrong with the first node that cannot be read.
        damage: String,
    },
    /// Commits are missing.
    #[error(
        "the primary superblock of {device} is damaged; by its backup roots it was of generation \
         {claimed}, and its newest whole copy is of generation {generation}: later commits may have \
         overwritten what that one has; read it with -o ro and copy what you need; -o \
         usebackuproot gives up the later commits and goes on from there"
    )]
    Behind {
        /// Device.
        device: String,
        /// Generation of the copy.
        generation: Generation,
        /// That of the damaged primary copy.
        claimed: Generation,
    },
}

fn claim(claimed: Option<Generation>) -> String {
    claimed.map_or_else(String::new, |it| format!(", of generation {it},"))
}
