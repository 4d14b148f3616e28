//! Finds the names of a subvolume that do not agree.

use super::name_sink::{NameSink, OwnedName, ROWS};
use super::names::Side;
use super::run::RESERVED;
use super::scan::FsScan;
use crate::budget::Taken;
use crate::code::FaultCode;
use crate::extents::parents::Parents;
use crate::report::Place;
use crate::walk::{Tree, Walker};
use butterfs_format::{ItemType, Key};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Walks a subvolume whose names do not agree again, and reports the faults.
pub(crate) fn names(scan: &FsScan<'_, '_>, tree: &Tree) {
    let quiet = scan.context.quiet();
    let none = FxHashSet::default();
    let parents = Parents::default();
    let walk = |sink: &NameSink| {
        let visited = quiet.visited();
        let again = FsScan {
            context: &quiet,
            tally: None,
            covered: scan.covered,
            suspects: scan.suspects,
            checksums: false,
            shared: &none,
            kept: parking_lot::Mutex::default(),
            tree: tree.id,
            sink: Some(sink),
            taken: quiet.taken(),
        };
        let walker = Walker {
            context: &quiet,
            visited: &visited,
            tally: None,
            parents: &parents,
        };
        walker.walk(tree, &again);
    };
    let rows = NameSink::new(vec![false; ROWS].into(), quiet.taken());
    walk(&rows);
    let differ = |sum: &AtomicU64| sum.load(Ordering::Relaxed) != 0;
    let spare = Taken::new(&quiet.budget.spare());
    let full = NameSink::new(rows.sums.iter().map(differ).collect(), spare);
    walk(&full);
    let found = full.into_collected();
    let kinds: FxHashMap<u64, u8> = found.inodes.into_iter().collect();
    let before = scan.context.faults.total();
    if found.overflowed {
        scan.context.faults.unchecked(format!(
            "the names of tree {} are too many to be compared one by one within the memory given",
            tree.id
        ));
    }
    compare(scan, tree, &found.names, &kinds);
    if scan.context.faults.total() == before {
        let text = "names do not agree with one another; which ones could not be found";
        let place = Place::tree(tree.id);
        scan.context
            .fault(FaultCode::NameReferenceMissing, place, text);
    }
}

type NameKey<'n> = (u64, &'n [u8], u64, bool);

fn compare(scan: &FsScan<'_, '_>, tree: &Tree, found: &[OwnedName], kinds: &FxHashMap<u64, u8>) {
    let fault = |code, key, text: String| {
        scan.context.fault(code, Place::item(tree.id, key), text);
    };
    let mut all: BTreeMap<NameKey<'_>, Vec<&OwnedName>> = BTreeMap::new();
    for name in found {
        let key = (name.directory, &*name.name, name.target, name.is_subvolume);
        all.entry(key).or_default().push(name);
    }
    for ((directory, name, target, is_subvolume), sides) in all {
        let text = String::from_utf8_lossy(name);
        let of = |side| sides.iter().filter(move |name| name.side == side);
        let (hashed, indexed, own) = (
            of(Side::Hashed).count(),
            of(Side::Indexed).count(),
            of(Side::Own).count(),
        );
        let dir_key = Key::new(
            directory,
            ItemType::DIR_INDEX,
            of(Side::Indexed).next().map_or(0, |n| n.index),
        );
        let inode_key = Key::new(target, ItemType::INODE_REF, directory);
        if indexed == 0 && (hashed > 0 || own > 0) {
            let text = format!("the name {text:?} of inode {target} has no index entry");
            fault(FaultCode::NameIndexMissing, dir_key, text);
        } else if hashed < indexed {
            let text = format!("the name {text:?} of inode {target} has no hashed entry");
            fault(FaultCode::NameItemMissing, dir_key, text);
        }
        if indexed > 1 || hashed > 1 {
            let text = format!(
                "the name {text:?} of inode {target} is there {} times",
                indexed.max(hashed)
            );
            fault(FaultCode::NameDuplicate, dir_key, text);
        }
        if is_subvolume || target >= RESERVED {
            continue;
        }
        if hashed == 0 && indexed == 0 {
            continue;
        }
        let knows = |entry: &&&OwnedName| of(Side::Own).any(|own| own.index == entry.index);
        if own == 0 || of(Side::Indexed).any(|entry| !knows(&entry)) {
            let text = format!(
                "inode {target} does not know its name {text:?} in directory {directory} at this index"
            );
            fault(FaultCode::NameReferenceMissing, inode_key, text);
        }
        let kind = kinds.get(&target);
        for entry in of(Side::Indexed).chain(of(Side::Hashed)) {
            if kind.is_some_and(|kind| *kind != entry.kind) {
                let text = format!(
                    "the name {text:?} says type {} of inode {target}, which has another",
                    entry.kind
                );
                fault(FaultCode::NameKind, dir_key, text);
                break;
            }
        }
    }
}
