//! Copies of the superblock in which single numbers are wrong, and copies of which
//! another one names what is damaged: nothing hides a whole copy, and nothing newer
//! is written over.

use super::mirrors::{
    MIRROR, PRIMARY, commit, copy_at, generation, put_back, recorded, told, two_commits,
};
use crate::common::*;
use butterfs::{Access, BlockDevice, Error, MemoryDevice, StoreError, TreeId, Volume};
use butterfs_admin::mkfs::ProfileChoice::Single;
use butterfs_format::superblock::SIZE;
use butterfs_format::{DeviceOffset, Generation};
use butterfs_store::{OlderCopy, Roots};
use std::sync::Arc;

/// A number that somebody or rot put into a mirror, or a mirror that a crash of
/// the kernel left after its roots were set back: the primary copy is whole.
#[test]
fn a_wrong_number_in_a_mirror_does_not_hide_the_primary_copy() {
    let device = image(Single).copy();
    let mut mirror = copy_at(&device, MIRROR);
    mirror.generation = Generation(mirror.generation.get() + 2);
    device.write_at(MIRROR, &mirror.encode(MIRROR)).unwrap();
    let before = device.snapshot();

    let volume = open(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), 150);
    drop(volume);
    let options = butterfs_check::Options::default();
    let report = butterfs_check::check(
        vec![device.clone() as Arc<dyn BlockDevice>],
        &options,
        &butterfs_check::NoProgress,
    )
    .unwrap();
    let codes: Vec<_> = report.faults.iter().map(|fault| fault.code).collect();
    assert_eq!(
        codes,
        [butterfs_check::FaultCode::SuperblockCopyStale],
        "{:?}",
        report.faults
    );
    assert_eq!(device.first_difference(&before), None);

    let (events, volume) = recorded(&device, Access::ReadWrite);
    let volume = volume.unwrap();
    assert_eq!(told(&events.events()), ["flush", "mirror", "flush"]);
    assert_eq!(read_all(&volume).unwrap(), 150);
    drop(volume);

    // For writing, each node of the primary copy must be there.
    let place = image(Single)
        .nodes_of(TreeId::CSUM)
        .pop()
        .expect("it has nodes");
    rot(&device, place.copies[0]);
    let before = device.snapshot();
    let text = one_sentence(&open(&device, Access::ReadWrite).unwrap_err());
    assert!(text.contains("older than its mirror"), "{text}");
    assert_eq!(device.first_difference(&before), None);
}

/// What the newer mirror names was written: going on from the primary copy would
/// lose it.
#[test]
fn an_older_primary_copy_is_not_written_by_while_a_newer_commit_is_there() {
    let (device, before) = two_commits();
    commit(&device, "three");
    put_back(&device, &before, (PRIMARY, PRIMARY));
    let (old, new) = (generation(&device, PRIMARY), generation(&device, MIRROR));
    let volume = open(&device, Access::ReadOnly).unwrap();
    let places = all_nodes(&volume);
    drop(volume);
    let is_new = |place: &&Place| {
        place.tree == TreeId::FS && place.node.level == 0 && place.node.generation.get() == new
    };
    rot(&device, places.iter().find(is_new).unwrap().copies[0]);
    let damaged = device.snapshot();
    let text = one_sentence(&open(&device, Access::ReadWrite).unwrap_err());
    for part in [&old.to_string(), &new.to_string(), "older than its mirror"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(text.contains("usebackuproot"), "{text}");
    assert!(!text.contains("is damaged, and"), "{text}");
    assert_eq!(device.first_difference(&damaged), None);
    drop(open(&device, Access::ReadOnly).unwrap());
}

/// The kernel sets the roots of a volume back, and a crash comes between its next
/// primary copy and its mirrors.
#[test]
fn after_roots_were_set_back_the_primary_copy_counts() {
    let device = image(Single).copy();
    let mut mirror = copy_at(&device, MIRROR);
    let later = Generation(mirror.generation.get() + 2);
    mirror.generation = later;
    mirror.backup_roots[0].tree_root.generation = later;
    device.write_at(MIRROR, &mirror.encode(MIRROR)).unwrap();
    assert_eq!(
        read_all(&open(&device, Access::ReadOnly).unwrap()).unwrap(),
        150
    );
    // Whoever wrote it knew of later commits.
    let before = device.snapshot();
    let text = one_sentence(&open(&device, Access::ReadWrite).unwrap_err());
    assert!(text.contains("usebackuproot"), "{text}");
    assert_eq!(device.first_difference(&before), None);
    let mut options = options(Access::ReadWrite);
    options.store.roots = Roots::OrBackups;
    let given_up = Arc::new(device.snapshot());
    drop(Volume::open_device(given_up.clone(), options).unwrap());
    assert_eq!(
        generation(&given_up, PRIMARY),
        generation(&given_up, MIRROR)
    );
    // But the primary copy still names the commits that were given up.
    let mut primary = copy_at(&device, PRIMARY);
    primary.backup_roots[0].tree_root.generation = later;
    device.write_at(PRIMARY, &primary.encode(PRIMARY)).unwrap();
    let (events, volume) = recorded(&device, Access::ReadWrite);
    assert_eq!(read_all(&volume.unwrap()).unwrap(), 150);
    let told = told(&events.events());
    assert_eq!(told[..3], ["flush", "mirror", "flush"], "{told:?}");
}

/// Of a primary copy whose checksum is wrong, one number alone says nothing.
#[test]
fn a_rotted_generation_of_the_primary_copy_is_not_believed() {
    const GENERATION: u64 = 72;
    let image = image(Single);
    let flip = |device: &MemoryDevice, at: u64| {
        let at = DeviceOffset(PRIMARY.get() + at);
        let byte = read(device, at, 1)[0];
        device.write_at(at, &[byte ^ 0x55]).unwrap();
    };
    for at in GENERATION..GENERATION + 8 {
        let device = image.copy();
        flip(&device, at);
        let (events, volume) = recorded(&device, Access::ReadWrite);
        assert_eq!(read_all(&volume.unwrap()).unwrap(), 150);
        assert_eq!(told(&events.events())[..3], ["flush", "primary", "flush"]);
    }
    // But its backup roots say that the mirror is too old.
    let (device, before) = two_commits();
    commit(&device, "three");
    for at in [GENERATION, GENERATION + 7] {
        let old = Arc::new(before.snapshot());
        old.write_at(PRIMARY, &read(&device, PRIMARY, SIZE))
            .unwrap();
        flip(&old, at);
        let error = open(&old, Access::ReadWrite).unwrap_err();
        let Error::Store(StoreError::OlderCopy(OlderCopy::Behind { claimed, .. })) = &error else {
            panic!("{error}");
        };
        assert_eq!(claimed.get(), generation(&device, PRIMARY));
    }
}
