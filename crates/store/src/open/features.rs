//! Which features and flags of a superblock can be read, and which written.

use super::options::{OpenOptions, Roots, States};
use crate::error::StoreError;
use crate::rescue::{OnFault, Rescue};
use butterfs_device::Access;
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::superblock::{SuperFlags, Superblock};

/// Errors if the volume needs something that cannot be done as asked.
pub(super) fn check_features(
    superblock: &Superblock,
    options: &OpenOptions,
) -> Result<(), StoreError> {
    let refuse = |what: String, read_only_possible| {
        Err(StoreError::Unsupported {
            what,
            read_only_possible,
        })
    };
    let unknown = superblock.incompat - Incompat::SUPPORTED - Incompat::READ_ONLY;
    if !unknown.is_empty() {
        let names = unknown.names().join(", ");
        let mut what = format!("it needs features that ButterFS does not know ({names}); ");
        for needs in unknown.needs() {
            what.push_str(needs);
            what.push_str("; ");
        }
        what.push_str("mount it with the kernel's Btrfs");
        return refuse(what, false);
    }
    if options.rescue != Rescue::default() && options.access == Access::ReadWrite {
        return refuse(
            "the options that pass over damage (rescue=) are for reading what is left".to_owned(),
            true,
        );
    }
    if matches!(options.roots, Roots::Of(_)) && options.access == Access::ReadWrite {
        return refuse(
            "an older generation (rescue=generation=) is for reading".to_owned(),
            true,
        );
    }
    // In these cases, flags of a change that is half done are accepted.
    let is_tuned = options.states == States::Tuned || options.rescue.flags == OnFault::PassOver;
    let uuid = SuperFlags::CHANGING_FSID | SuperFlags::CHANGING_FSID_V2;
    if superblock.flags.intersects(uuid) && !is_tuned {
        let what = "its UUID is being changed; finish that first (`butterfs tune -u`)";
        return refuse(what.to_owned(), false);
    }
    if superblock.flags.contains(SuperFlags::CHANGING_META_CSUM) && !is_tuned {
        let name = superblock.checksum_type.name();
        let what = format!(
            "its checksums are being changed to {name}; finish that first (`butterfs tune --csum \
             {name}`)"
        );
        return refuse(what, false);
    }
    let unknown = superblock.flags - SuperFlags::SUPPORTED;
    let unknown = match (is_tuned, options.rescue.flags) {
        (_, OnFault::PassOver) => SuperFlags(0),
        (true, _) => unknown - SuperFlags::CHANGING,
        (false, _) => unknown,
    };
    if !unknown.is_empty() {
        let names = unknown.names().join(", ");
        let what = format!(
            "its superblock has flags that ButterFS does not know ({names}); use the program that set them"
        );
        return refuse(what, false);
    }
    if options.access == Access::ReadOnly {
        return Ok(());
    }
    if superblock
        .flags
        .intersects(SuperFlags::METADUMP | SuperFlags::METADUMP_V2)
    {
        return refuse(
            "it was restored from a metadata image and lacks the data of its files; change a copy of the \
             original volume instead".to_owned(),
            true,
        );
    }
    if superblock.flags.contains(SuperFlags::SEEDING) && !is_tuned {
        return refuse("it is a seed device, which must not change; `butterfs tune -S 0` makes it an ordinary volume".to_owned(), true);
    }
    let only_read = superblock.incompat - Incompat::SUPPORTED;
    if !only_read.is_empty() {
        let names = only_read.names().join(", ");
        return refuse(
            format!(
                "it uses {names}, which ButterFS can only read; change it with the kernel's Btrfs"
            ),
            true,
        );
    }
    let unknown = superblock.compat_ro - CompatRo::SUPPORTED;
    if !unknown.is_empty() {
        let names = unknown.names().join(", ");
        return refuse(
            format!(
                "it uses {names}, which ButterFS can only read; change it with the kernel's Btrfs"
            ),
            true,
        );
    }
    Ok(())
}
