//! The checks of a subvolume after all of it was read.

use super::diagnose;
use super::run::FsRun;
use super::scan::FsScan;
use crate::code::FaultCode;
use crate::walk::{Outcome, Tree};
use butterfs_format::{InodeNumber, ItemType, Key};
use rustc_hash::FxHashSet;

/// Ends the walk of a subvolume: checks its last inodes, orphans, root directory
/// and the balance of its names.
pub(crate) fn check(scan: &FsScan<'_, '_>, tree: &Tree, outcome: Outcome<FsRun>) -> FsRun {
    let rules = scan.rules(tree.id);
    let mut run = outcome.summary;
    // The lists of the summary are dropped with it.
    scan.taken.give(run.list_bytes());
    run.close(&rules);
    let orphans: FxHashSet<u64> = run.orphans.iter().copied().collect();
    if !outcome.complete {
        scan.context.faults.unchecked(format!(
            "parts of tree {} cannot be read, so its names were not compared",
            tree.id
        ));
        return run;
    }
    for number in run
        .unlinked
        .iter()
        .filter(|number| !orphans.contains(number))
    {
        let key = Key::new(*number, ItemType::INODE_ITEM, 0);
        let text = "it has no names and no mark for its deletion";
        rules.fault(FaultCode::InodeOrphanMissing, key, text);
    }
    if !run.has_root {
        let key = Key::new(InodeNumber::ROOT.get(), ItemType::INODE_ITEM, 0);
        rules.fault(
            FaultCode::InodeRootMissing,
            key,
            "there is no root directory",
        );
    }
    if run.balance != 0 && scan.tally.is_some() {
        diagnose::names(scan, tree);
    }
    run
}
