//! The volume of a scrub, as its record knows it.

use crate::facts;
use crate::fail::Failure;
use butterfs_format::superblock::{self, Superblock};
use butterfs_kernel::is_kernel_btrfs;
use butterfs_server::Facts;
use std::path::{Path, PathBuf};

/// A volume as records know it.
#[derive(Debug)]
pub struct Subject {
    /// UUID.
    pub uuid: String,
    /// Bytes that there are to scrub, about.
    pub bytes: u64,
    /// Where the kernel has it mounted, if the kernel has.
    pub of_kernel: Option<PathBuf>,
}

impl Subject {
    /// Of a volume that is open.
    pub fn open(facts: &Facts) -> Self {
        Self {
            uuid: facts.uuid.clone(),
            bytes: facts.device_used,
            of_kernel: None,
        }
    }

    /// The volume at a path, which another program may have open, for example a
    /// running scrub.
    pub fn of(path: &Path) -> Result<Self, Failure> {
        if path.is_dir() {
            return Ok(Self {
                of_kernel: is_kernel_btrfs(path).then(|| path.to_owned()),
                ..Self::open(&facts::at(path)?)
            });
        }
        let mut bytes = vec![0; superblock::SIZE];
        let device = butterfs::open_to_look(path)?;
        let at = superblock::COPIES[0];
        let read = device.read_at(at, &mut bytes);
        match read.ok().and_then(|()| Superblock::parse(&bytes, at).ok()) {
            Some(found) => Ok(Self {
                uuid: uuid::Uuid::from_bytes(found.fsid).to_string(),
                bytes: found.bytes_used,
                of_kernel: None,
            }),
            None => Ok(Self::open(&facts::at(path)?)),
        }
    }
}
