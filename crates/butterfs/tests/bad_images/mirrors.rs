//! Copies of the superblock that differ: after a crash, after a kill, or because
//! somebody put an old one back. The right copy counts, and before anything else
//! is written, all copies are equal and durable.

use crate::common::*;
use butterfs::zero_log;
use butterfs::{Access, BlockDevice, Error, MemoryDevice, OpenOptions, StoreError, Volume};
use butterfs_admin::mkfs::ProfileChoice::Single;
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::RecordDevice;
use butterfs_device::record::{Action, Event};
use butterfs_format::features::Incompat;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{DeviceId, DeviceOffset};
use butterfs_store::{OlderCopy, Repair, Roots, read_superblock};
use butterfs_testkit::Capability;
use butterfs_testkit::judge::{self, KernelMount, scratch_dir};
use std::sync::Arc;
use std::time::Duration;

pub const PRIMARY: DeviceOffset = COPIES[0];
pub const MIRROR: DeviceOffset = COPIES[1];

/// Options with which only the test commits.
pub fn quiet(access: Access) -> OpenOptions {
    let mut options = options(access);
    options.commit_interval = Duration::from_secs(3600);
    options.cleaner = butterfs::Cleaner::OnDemand;
    options
}

pub fn copy_at(device: &MemoryDevice, at: DeviceOffset) -> Superblock {
    Superblock::parse(&read(device, at, SIZE), at).unwrap()
}

pub fn generation(device: &MemoryDevice, at: DeviceOffset) -> u64 {
    copy_at(device, at).generation.get()
}

/// Puts the copy at `from` of an older state to `to`.
pub fn put_back(
    device: &MemoryDevice,
    older: &MemoryDevice,
    (from, to): (DeviceOffset, DeviceOffset),
) {
    let old = copy_at(older, from);
    device.write_at(to, &old.encode(to)).unwrap();
}

pub fn commit(device: &Arc<MemoryDevice>, name: &str) {
    let volume = Volume::open_device(device.clone(), quiet(Access::ReadWrite)).unwrap();
    volume.write_file(name.as_bytes(), name.as_bytes()).unwrap();
    volume.close().unwrap();
}

/// A device with two copies, and as it was a commit before.
pub fn two_commits() -> (Arc<MemoryDevice>, MemoryDevice) {
    let device = image(Single).copy();
    commit(&device, "one");
    let before = device.snapshot();
    commit(&device, "two");
    assert_eq!(
        generation(&device, PRIMARY),
        generation(&before, PRIMARY) + 1
    );
    (device, before)
}

/// What events do: `flush`, or where they write.
pub fn told(events: &[Event]) -> Vec<String> {
    let tell = |event: &Event| match &event.action {
        Action::Flush { .. } => "flush".to_owned(),
        Action::Discard(_) => "discard".to_owned(),
        Action::Write { offset, .. } if *offset == PRIMARY => "primary".to_owned(),
        Action::Write { offset, .. } if *offset == MIRROR => "mirror".to_owned(),
        Action::Write { .. } => "other".to_owned(),
    };
    events.iter().map(tell).collect()
}

/// Opens a copy of the device, and what was done to it in between.
pub fn recorded(
    device: &MemoryDevice,
    access: Access,
) -> (Arc<RecordDevice>, Result<Volume, Error>) {
    let recorded = Arc::new(RecordDevice::new(Arc::new(device.snapshot())));
    let volume = Volume::open_device(recorded.clone(), quiet(access));
    (recorded, volume)
}

#[test]
fn all_copies_are_equal_and_durable_before_anything_else_is_written() {
    let (device, before) = two_commits();
    let (events, volume) = recorded(&device, Access::ReadWrite);
    drop(volume.unwrap());
    assert_eq!(
        told(&events.events())[0],
        "flush",
        "a killed writer's superblock"
    );

    // A crash left a mirror one commit behind, or tore it.
    for torn in [false, true] {
        let device = device.snapshot();
        put_back(&device, &before, (MIRROR, MIRROR));
        if torn {
            rot(&device, MIRROR);
        }
        let (events, volume) = recorded(&device, Access::ReadOnly);
        assert_eq!(read_all(&volume.unwrap()).unwrap(), 152);
        assert_eq!(told(&events.events()), [""; 0], "reading writes nothing");
        let (events, volume) = recorded(&device, Access::ReadWrite);
        assert_eq!(told(&events.events()), ["flush", "mirror", "flush"]);
        let Action::Write { data, .. } = &events.events()[1].action else {
            panic!("it is a write");
        };
        assert_eq!(data[..], copy_at(&device, PRIMARY).encode(MIRROR)[..]);
        drop(volume.unwrap());
    }

    // A crash tore the primary copy.
    rot(&device, PRIMARY);
    let (events, volume) = recorded(&device, Access::ReadWrite);
    assert_eq!(told(&events.events()), ["flush", "primary", "flush"]);
    drop(volume.unwrap());

    // The copy that counts is written last, if at all.
    put_back(&device, &before, (PRIMARY, PRIMARY));
    put_back(&device, &before, (MIRROR, MIRROR));
    let (events, volume) = recorded(&device, Access::ReadWrite);
    assert_eq!(told(&events.events()), ["flush"], "they agree");
    drop(volume.unwrap());
}

#[test]
fn commits_and_fsyncs_flush_twice_and_closing_flushes_the_mirrors() {
    let device = image(Single).copy();
    let (events, volume) = recorded(&device, Access::ReadWrite);
    let volume = volume.unwrap();
    let mut from = 0;
    let mut since = || {
        let told = told(&events.events()).split_off(from);
        from += told.len();
        told
    };
    since();
    let flushes = |told: &[String]| told.iter().filter(|what| *what == "flush").count();
    for number in 0..3 {
        let path = format!("new {number}");
        volume.write_file(path.as_bytes(), &[number; 9000]).unwrap();
        let inode = volume
            .files()
            .inode(volume.resolve(path.as_bytes()).unwrap());
        volume.files().fsync(&inode.unwrap()).unwrap();
        let fsync = since();
        assert_eq!(flushes(&fsync), 2, "{fsync:?}");
        volume.sync().unwrap();
        let commit = since();
        assert_eq!(flushes(&commit), 2, "{commit:?}");
        assert_eq!(commit.last().unwrap(), "mirror");
    }
    volume.close().unwrap();
    assert_eq!(since().last().unwrap(), "flush");
}

/// A device whose primary copy is damaged, and whose mirror is so old that some
/// of its nodes were overwritten.
fn outlived_mirror() -> (Arc<MemoryDevice>, MemoryDevice) {
    let device = image(Single).copy();
    let before = device.snapshot();
    for round in 0..12 {
        commit(&device, &format!("new {round}"));
    }
    put_back(&device, &before, (MIRROR, MIRROR));
    (device, before)
}

#[test]
fn a_mirror_that_is_too_old_is_not_believed() {
    let (device, before) = outlived_mirror();
    let old = generation(&before, PRIMARY);
    let now = generation(&device, PRIMARY);
    let untouched = device.snapshot();
    // What the damaged primary copy says of its generation is a hint.
    rot(&device, PRIMARY);
    let text = one_sentence(&open(&device, Access::ReadWrite).unwrap_err());
    let both = [&old.to_string(), &now.to_string(), "-o ro"];
    for part in both.into_iter().chain(["usebackuproot"]) {
        assert!(text.contains(part), "{text}");
    }
    // Whoever gives up the later commits learns that there is nothing to go to.
    let mut options = options(Access::ReadWrite);
    options.store.roots = Roots::OrBackups;
    let error = Volume::open_device(device.clone(), options).unwrap_err();
    let text = one_sentence(&error);
    for part in both.into_iter().chain(["overwritten", "rescue=all"]) {
        assert!(text.contains(part), "{text}");
    }
    // Without it, the nodes say it.
    device.write_at(PRIMARY, &[0; SIZE]).unwrap();
    let text = one_sentence(&open(&device, Access::ReadWrite).unwrap_err());
    assert!(
        text.contains("overwritten") && text.contains("rescue=all"),
        "{text}"
    );
    device
        .write_at(PRIMARY, &read(&untouched, PRIMARY, SIZE))
        .unwrap();
    assert_eq!(
        device.first_difference(&untouched),
        None,
        "nothing was written"
    );

    // Each node counts, also one that opening does not need.
    let image = image(Single);
    let mut refused = 0;
    for place in image.nodes.iter().step_by(7) {
        let device = image.copy();
        device.write_at(PRIMARY, &[0; SIZE]).unwrap();
        rot(&device, place.copies[0]);
        let before = device.snapshot();
        let error = open(&device, Access::ReadWrite).unwrap_err();
        let Error::Store(StoreError::OlderCopy(OlderCopy::Overwritten { .. })) = &error else {
            panic!("{error}");
        };
        assert_eq!(device.first_difference(&before), None);
        refused += 1;
        match open(&device, Access::ReadOnly) {
            Ok(volume) => drop(volume),
            Err(error) => assert!(one_sentence(&error).contains("rescue=all"), "{error}"),
        }
    }
    assert!(refused > 5, "{refused}");
}

#[test]
fn who_gives_up_the_later_commits_says_so() {
    let (device, before) = two_commits();
    commit(&device, "three");
    let changed = device.snapshot();
    // All nodes of the older commit are there, so only the hint speaks.
    let device = Arc::new(before.snapshot());
    let mut primary = read(&changed, PRIMARY, SIZE);
    primary[1000] ^= 1;
    device.write_at(PRIMARY, &primary).unwrap();
    let error = open(&device, Access::ReadWrite).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Store(StoreError::OlderCopy(OlderCopy::Behind { .. }))
        ),
        "{error}"
    );
    let volume = open(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), 151);
    drop(volume);
    let mut options = options(Access::ReadWrite);
    options.store.roots = Roots::OrBackups;
    let volume = Volume::open_device(device.clone(), options).unwrap();
    volume.write_file(b"on", b"from here").unwrap();
    volume.close().unwrap();
    assert_eq!(generation(&device, PRIMARY), generation(&device, MIRROR));
    assert_eq!(
        read_all(&open(&device, Access::ReadOnly).unwrap()).unwrap(),
        152
    );
}

#[test]
fn a_primary_copy_that_was_put_back_does_not_hide_newer_commits() {
    let (device, before) = outlived_mirror();
    put_back(&device, &device.snapshot(), (PRIMARY, MIRROR));
    let now = generation(&device, MIRROR);
    put_back(&device, &before, (PRIMARY, PRIMARY));
    let old = device.snapshot();
    assert_eq!(
        read_superblock(&*device)
            .unwrap()
            .superblock
            .generation
            .get(),
        now
    );
    let volume = open(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), 162);
    drop(volume);
    assert_eq!(device.first_difference(&old), None);
    let (events, volume) = recorded(&device, Access::ReadWrite);
    assert_eq!(told(&events.events()), ["flush", "primary", "flush"]);
    drop(volume.unwrap());
}

#[test]
fn a_mirror_that_is_one_commit_newer_counts_only_if_the_primary_copy_is_useless() {
    // A crash of the kernel can leave the mirror of a commit without its primary.
    let (device, before) = two_commits();
    put_back(&device, &before, (PRIMARY, PRIMARY));
    let (events, volume) = recorded(&device, Access::ReadWrite);
    assert_eq!(told(&events.events()), ["flush", "mirror", "flush"]);
    assert_eq!(read_all(&volume.unwrap()).unwrap(), 151);
    // But if its root is gone, later commits have been there.
    let root = copy_at(&before, PRIMARY).root;
    let volume = Volume::open_device(Arc::new(before.snapshot()), quiet(Access::ReadOnly)).unwrap();
    let place = all_nodes(&volume)
        .into_iter()
        .find(|place| place.node.logical == root)
        .unwrap();
    rot(&device, place.copies[0]);
    let volume = open(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), 152);
    drop(volume);
    let (events, volume) = recorded(&device, Access::ReadWrite);
    assert_eq!(told(&events.events()), ["flush", "primary", "flush"]);
    assert_eq!(read_all(&volume.unwrap()).unwrap(), 152);
}

/// The kernel reads the primary copy alone, and refuses it.
#[test]
fn a_primary_copy_with_an_unknown_feature_is_refused_with_word_of_a_newer_mirror() {
    for behind in [1, 2] {
        let (device, before) = two_commits();
        if behind == 2 {
            commit(&device, "three");
        }
        put_back(&device, &before, (PRIMARY, PRIMARY));
        let mut primary = copy_at(&device, PRIMARY);
        primary.incompat |= Incompat(1 << 40);
        device.write_at(PRIMARY, &primary.encode(PRIMARY)).unwrap();
        if behind == 2 {
            // A mirror that is newer by more than one commit counts in any case.
            assert_eq!(
                read_all(&open(&device, Access::ReadOnly).unwrap()).unwrap(),
                153
            );
            continue;
        }
        let text = assert_refused(&device);
        assert!(text.contains("ButterFS does not know"), "{text}");
        let newer = format!("generation {}", generation(&device, MIRROR));
        assert!(text.contains(&newer), "{text}");
    }
}

#[test]
fn a_mirror_does_not_bring_a_log_back_that_was_thrown_away() {
    let device = image(Single).copy();
    let volume = Volume::open_device(device.clone(), quiet(Access::ReadWrite)).unwrap();
    volume.write_file(b"logged", b"content").unwrap();
    let inode = volume.files().inode(volume.resolve(b"logged").unwrap());
    volume.files().fsync(&inode.unwrap()).unwrap();
    let logged = device.snapshot();
    volume.shut_down();
    drop(volume);
    let dir = scratch_dir();
    let path = dir.path().join("volume.img");
    logged.save(&path).unwrap();
    assert!(zero_log(&path).unwrap());
    let zeroed = Arc::new(MemoryDevice::load(&path).unwrap());
    assert_eq!(copy_at(&zeroed, MIRROR).log_root.get(), 0);
    // A crash came before the mirror.
    let with_log = copy_at(&logged, PRIMARY);
    assert_ne!(with_log.log_root.get(), 0);
    zeroed.write_at(MIRROR, &with_log.encode(MIRROR)).unwrap();
    let (events, volume) = recorded(&zeroed, Access::ReadWrite);
    assert_eq!(told(&events.events()), ["flush", "mirror", "flush"]);
    let Action::Write { data, .. } = &events.events()[1].action else {
        panic!("it is a write");
    };
    assert_eq!(data[..], copy_at(&zeroed, PRIMARY).encode(MIRROR)[..]);
    drop(volume.unwrap());
}

/// The kernel's fsync writes only the primary copy, and its commit all of them.
#[test]
fn what_the_kernel_left_is_made_equal() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let dir = scratch_dir();
    let (path, copy) = (dir.path().join("volume.img"), dir.path().join("crash.img"));
    let device = image(Single).copy();
    device.save(&path).unwrap();
    let mount = KernelMount::mount(&path, judge::Access::ReadWrite, "commit=300").unwrap();
    let file = std::fs::File::create(mount.path().join("logged")).unwrap();
    file.sync_all().unwrap();
    std::fs::write(mount.path().join("logged"), "content").unwrap();
    file.sync_all().unwrap();
    // As a crash would leave it.
    std::fs::copy(&path, &copy).unwrap();
    drop(file);
    mount.unmount().unwrap();

    let crashed = MemoryDevice::load(&copy).unwrap();
    assert_ne!(copy_at(&crashed, PRIMARY).log_root.get(), 0);
    assert_eq!(copy_at(&crashed, MIRROR).log_root.get(), 0);
    let (events, volume) = recorded(&crashed, Access::ReadWrite);
    assert_eq!(told(&events.events())[..3], ["flush", "mirror", "flush"]);
    assert_eq!(volume.unwrap().read_file(b"logged").unwrap(), b"content");
    let ended = MemoryDevice::load(&path).unwrap();
    let (events, volume) = recorded(&ended, Access::ReadWrite);
    assert_eq!(told(&events.events()), ["flush"]);
    assert_eq!(volume.unwrap().read_file(b"logged").unwrap(), b"content");
}

#[test]
fn a_size_that_changes_takes_care_of_the_mirrors() {
    let device = Arc::new(MemoryDevice::new(192 << 20));
    let mkfs = MkfsOptions {
        byte_count: Some(56 << 20),
        node_size: NODE as u32,
        data: Some(Single),
        metadata: Some(Single),
        ..MkfsOptions::default()
    };
    make(&*device, &mkfs).unwrap();
    // A larger volume left a copy here.
    let foreign = image(Single);
    put_back(&device, &foreign.device, (PRIMARY, MIRROR));
    let (events, volume) = recorded(&device, Access::ReadWrite);
    let volume = volume.unwrap();
    let opened = events.events().len();
    let store = volume.files().store();
    let last = store.read().superblock().generation;
    store.set_device_size(DeviceId(1), 192 << 20).unwrap();
    let grown = told(&events.events()).split_off(opened);
    let at = |what: &str| grown.iter().position(|one| one == what).unwrap();
    assert!(
        at("mirror") < at("flush") && at("flush") < at("primary"),
        "{grown:?}"
    );
    let first = &events.events()[opened + at("mirror")];
    let Action::Write { data, .. } = &first.action else {
        panic!("it is a write");
    };
    assert_eq!(Superblock::parse(data, MIRROR).unwrap().generation, last);
    let before = events.events().len();
    store.set_device_size(DeviceId(1), 48 << 20).unwrap();
    let all = events.events();
    let last = all
        .iter()
        .rev()
        .find(|event| matches!(&event.action, Action::Write { offset, .. } if *offset == MIRROR));
    assert!(
        matches!(&last.unwrap().action, Action::Write { data, .. } if data.iter().all(|byte| *byte == 0))
    );
    assert_eq!(told(&all[before..]).last().unwrap(), "flush");
}

#[test]
fn a_scrub_rewrites_bad_copies_at_once() {
    let image = image(Single);
    for (bad, steps) in [(PRIMARY, "primary"), (MIRROR, "mirror")] {
        let device = image.copy();
        let recorded = Arc::new(RecordDevice::new(device.clone()));
        let volume = Volume::open_device(recorded.clone(), quiet(Access::ReadWrite)).unwrap();
        let before = copy_at(&device, bad);
        rot(&device, bad);
        let from = recorded.events().len();
        let store = volume.files().store();
        let count = store
            .scrub_superblocks(DeviceId(1), Repair::Rewrite)
            .unwrap();
        assert_eq!(count, 1);
        assert_eq!(told(&recorded.events()[from..]), ["flush", steps, "flush"]);
        assert_eq!(copy_at(&device, bad), before);
    }
}
