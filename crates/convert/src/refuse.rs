//! What no conversion takes over, and what it loses.

use crate::error::ConvertError;
use crate::source::Old;
use butterfs_ext4::{Incompatible, ReadOnlyCompatible};
use std::ops::Range;

/// Refuses a file system that cannot be converted as it is.
///
/// # Errors
/// [`ConvertError::Refused`] says what to do.
pub(crate) fn refuse(old: &Old) -> Result<(), ConvertError> {
    let superblock = old.superblock();
    let (incompatible, others) = (superblock.incompatible, superblock.read_only_compatible);
    let refusals = [
        (
            incompatible.has(Incompatible::ENCRYPT),
            "the file system may have encrypted files, which Btrfs cannot hold; copy them \
             elsewhere, and switch the feature off with `debugfs -w -R 'feature -encrypt'`",
        ),
        (
            others.has(ReadOnlyCompatible::VERITY),
            "the file system may have files with fs-verity, whose trees would be lost; copy the \
             files elsewhere first, to a file system without that feature",
        ),
        (
            others.has(ReadOnlyCompatible::SHARED_BLOCKS),
            "the file system shares blocks and is read-only; unshare them with `e2fsck -E \
             unshare_blocks` first",
        ),
        (
            others.unknown() != 0,
            "the file system has features that are not known here; a newer version may know them",
        ),
        (
            old.needs_replay(),
            "the journal must be replayed first: mount the file system and unmount it, or run \
             e2fsck",
        ),
        (
            superblock.has_errors(),
            "a driver found errors in the file system; let `e2fsck -f` mend them first",
        ),
        (
            !superblock.is_clean(),
            "the file system was not unmounted; mount it and unmount it, or run e2fsck",
        ),
        (
            old.has_orphans(),
            "files were deleted and their space was not freed yet; run `e2fsck -f` first",
        ),
        (
            superblock
                .compatible
                .has(butterfs_ext4::Compatible::HAS_JOURNAL)
                && superblock.journal.0 == 0,
            "the journal is on another device; give the file system one of its own first: \
             `tune2fs -O ^has_journal`, then `tune2fs -j`",
        ),
    ];
    match refusals.into_iter().find(|(applies, _)| *applies) {
        Some((_, why)) => Err(ConvertError::Refused(why)),
        None => Ok(()),
    }
}

/// Refuses a file system that has something of its own in `free`, which
/// ascends: what it calls free and the conversion may write to. From now on,
/// reading there is refused, too.
///
/// # Errors
/// [`ConvertError::Blocks`]; reading.
pub(crate) fn keep_out(old: &Old, free: Vec<Range<u64>>) -> Result<(), ConvertError> {
    let source = old.source();
    source.set_free(free);
    let superblock = old.superblock();
    let size = superblock.block_size();
    let verify = |start: u64, blocks: u64| {
        let start = start.saturating_mul(size);
        source.verify_used(&(start..start.saturating_add(blocks.saturating_mul(size))))
    };
    for range in old.metadata() {
        verify(range.start, range.end.saturating_sub(range.start))?;
    }
    let own = [superblock.journal, superblock.orphan_file];
    for number in own.into_iter().chain(superblock.quota_files) {
        if number.0 != 0 {
            old.mappings(&old.inode(number)?, &mut |mapping| {
                Ok::<_, ConvertError>(verify(mapping.block, mapping.blocks)?)
            })?;
        }
    }
    Ok(())
}

/// What the new volume will not have, one sentence each.
pub(crate) fn lost(old: &Old) -> Vec<String> {
    let superblock = old.superblock();
    let has = |feature| superblock.read_only_compatible.has(feature);
    let mut lost = Vec::new();
    if superblock.incompatible.has(Incompatible::CASEFOLD) {
        lost.push("directories no longer ignore the case of names; the names stay".to_owned());
    }
    if has(ReadOnlyCompatible::PROJECT) {
        lost.push("project ids of files are lost; Btrfs has none".to_owned());
    }
    if has(ReadOnlyCompatible::QUOTA) {
        lost.push(
            "quotas are lost; Btrfs has them for subvolumes (`butterfs quota enable`)".to_owned(),
        );
    }
    lost
}
