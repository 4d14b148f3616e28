//! What `butterfs --version` says.

use butterfs_format::ChecksumType;
use butterfs_format::compression::Algorithm;
use butterfs_format::features::{CompatRo, Incompat};

/// Version and commit.
pub const SHORT: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("BUTTERFS_COMMIT"),
    ")"
);

/// Version, commit, and which features of volumes it knows.
pub fn long() -> String {
    let compression = Algorithm::ALL.map(Algorithm::name).join(", ");
    let checksums = ChecksumType::TABLE.map(|(_, _, name)| name).join(", ");
    format!(
        "{SHORT}\n\
         compression: {compression}\n\
         checksums: {checksums}\n\
         features it reads and writes: {}\n\
         features it keeps when it writes: {}\n\
         mounts: /dev/fuse, FUSE over io_uring",
        spelled(&Incompat::SUPPORTED.names()),
        spelled(&CompatRo::SUPPORTED.names()),
    )
}

/// As `mkfs -O` spells features.
fn spelled(names: &[String]) -> String {
    names.join(", ").to_lowercase().replace('_', "-")
}
