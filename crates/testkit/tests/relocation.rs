//! Relocation, balance and resize: whatever moves, files stay the same, what
//! was shared stays shared, and the checks and the kernel find nothing.

#[path = "crash/states.rs"]
mod states;
mod support;

use butterfs::{
    BlockDevice, Generation, MemoryDevice, MountOptions, OpenOptions, Timespec, TreeId, Volume,
};
use butterfs_admin::balance::{self, End, Filter, Filters, Progress, Redundancy, Wish};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice};
use butterfs_admin::resize::{self, Size};
use butterfs_check::{DataChecksums, NoProgress, Options, check};
use butterfs_device::{FileDevice, RecordDevice};
use butterfs_format::DeviceId;
use butterfs_testkit::judge::{self, Access, KernelMount, scratch_dir};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::{EndOfFile, OpPath, SnapshotAccess, Span};
use butterfs_testkit::{Capability, Manifest, Op, Random};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use support::{LibraryTree, apply_to_library, mkfs};

const SIZE: u64 = 1 << 30;
const SECTOR: u64 = 4096;

fn path(text: &str) -> OpPath {
    OpPath(text.as_bytes().to_vec())
}

fn span(offset: u64, length: u64) -> Span {
    Span { offset, length }
}

/// Files of every kind, shared in every way.
fn fill(volume: &Volume, random: &mut Random, turns: u64) {
    let apply = |op: Op| {
        let _ = apply_to_library(&op, volume);
    };
    apply(Op::Subvolume {
        path: path("work"),
        mode: 0o755,
    });
    for turn in 0..turns {
        for _ in 0..30 {
            let file = path(&format!("work/f{}", random.below(12)));
            let place = span(
                random.below(40) * SECTOR,
                (1 + random.below(60)) * SECTOR - random.below(SECTOR),
            );
            match random.below(8) {
                0 => apply(Op::Create {
                    path: file,
                    mode: 0o644,
                }),
                1 => apply(Op::Allocate {
                    path: file,
                    span: span(place.offset, place.length.next_multiple_of(SECTOR)),
                    end: EndOfFile::Extend,
                }),
                2 => apply(Op::Clone {
                    from: path(&format!("work/f{}", random.below(12))),
                    span: span(random.below(9) * SECTOR, 4 * SECTOR),
                    to: file,
                    to_offset: random.below(30) * SECTOR,
                }),
                3 => apply(Op::Unlink { path: file }),
                _ => apply(Op::Write {
                    path: file,
                    span: place,
                    seed: random.bits(),
                }),
            }
        }
        let access = match random.one_in(3) {
            true => SnapshotAccess::Writable,
            false => SnapshotAccess::ReadOnly,
        };
        apply(Op::Snapshot {
            from: path("work"),
            to: path(&format!("s{turn}")),
            access,
        });
        if turn > 5 && random.one_in(3) {
            let old = path(&format!("s{}", random.below(turn)));
            apply(Op::DeleteSubvolume { path: old });
        }
    }
    volume.files().clean_all().unwrap();
    volume.sync().unwrap();
}

fn own_check(device: Arc<dyn BlockDevice>) -> Result<(), String> {
    let options = Options {
        data: DataChecksums::Verify,
        threads: 1,
        ..Options::default()
    };
    let report = check(vec![device], &options, &NoProgress).map_err(|e| e.to_string())?;
    match report.is_exact() {
        true => Ok(()),
        false => Err(format!("{:#?}", report.faults)),
    }
}

fn judge_image(image: &Path, context: &str) {
    let device = FileDevice::open(image, butterfs_device::Access::ReadOnly).unwrap();
    own_check(Arc::new(device)).unwrap_or_else(|faults| panic!("{context}: {faults}"));
    judge::judge_image(image, context);
}

/// The kernel mounts it, reads everything and finds the same files.
fn judge_by_kernel(image: &Path, expected: &Manifest, context: &str) {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let mut mount = KernelMount::mount(image, Access::ReadWrite, "").unwrap();
    let found = Manifest::of(&MountedTree::new(mount.path())).unwrap();
    found.assert_same(expected, context);
    mount.scrub().assert_clean(context);
    assert_eq!(mount.unmount().unwrap(), Vec::<String>::new(), "{context}");
}

fn nobody(_: &Progress) -> Option<Wish> {
    None
}

fn used(volume: &Volume) -> u64 {
    volume.usage().used()
}

fn flags_of(volume: &Volume) -> Vec<String> {
    let kinds = volume.usage().kinds.into_iter();
    kinds.map(|kind| kind.flags.describe()).collect()
}

/// Everything moves, twice, and nothing is shared less than before.
/// What streams name of each subvolume: its last change.
fn last_changes(volume: &Volume) -> Vec<(TreeId, Generation, Timespec)> {
    let all = volume.subvolumes().unwrap();
    all.iter()
        .map(|it| (it.id, it.item.ctransid, it.item.ctime))
        .collect()
}

fn balance_all(name: &str, node_size: u32, features: &str, options: &str, seed: u64) {
    let dir = scratch_dir();
    let image = dir.path().join("v.img");
    mkfs(&image, SIZE, node_size, features);
    let tree = LibraryTree::mount(&image, options);
    fill(&tree.0, &mut Random::new(seed), 14);
    let before = Manifest::of(&tree).unwrap();
    let used_before = used(&tree.0);
    assert!(
        used_before > 4 << 20,
        "{used_before} bytes are little to move"
    );
    let changes_before = last_changes(&tree.0);
    assert!(changes_before.len() > 4, "{changes_before:?}");
    let store = tree.files().store();
    for round in 0..2 {
        let context = format!("{name}, seed {seed}, round {round}");
        let (progress, end) =
            balance::start(store, &Filters::all(), Redundancy::Kept, &mut nobody).unwrap();
        assert_eq!(end, End::Done, "{context}");
        assert_eq!(progress.without_space, 0, "{context}");
        assert_eq!(progress.completed, progress.expected, "{context}");
        assert!(progress.nodes > 0, "{context}");
        let after = Manifest::of(&tree).unwrap();
        after.assert_same(&before, &context);
        assert_eq!(last_changes(&tree.0), changes_before, "{context}");
        let grown = used(&tree.0).saturating_sub(used_before);
        // Backrefs take a little more space if they name parent nodes.
        assert!(
            grown <= used_before / 10 + (1 << 20),
            "{context}: {grown} bytes more"
        );
    }
    tree.0.close().unwrap();
    drop(tree);
    judge_image(&image, name);
    judge_by_kernel(&image, &before, name);
    // What was moved can be changed as before, by both.
    let tree = LibraryTree::mount(&image, options);
    fill(&tree.0, &mut Random::new(seed + 1), 6);
    let changed = Manifest::of(&tree).unwrap();
    tree.0.close().unwrap();
    drop(tree);
    judge_image(&image, name);
    judge_by_kernel(&image, &changed, name);
    // What the kernel made for itself (caches of free space) moves too.
    let tree = LibraryTree::mount(&image, options);
    let store = tree.files().store();
    balance::start(store, &Filters::all(), Redundancy::Kept, &mut nobody).unwrap();
    tree.0.close().unwrap();
    drop(tree);
    judge_image(&image, name);
    judge_by_kernel(&image, &changed, name);
}

#[test]
fn everything_moves_and_stays_shared() {
    balance_all("small nodes", 4096, "csum=crc32c", "", 1);
    balance_all("plain", 16384, "csum=xxhash", "", 2);
    balance_all("compressed", 4096, "csum=sha256", "compress=zstd", 3);
    balance_all("in place", 4096, "^block-group-tree", "nodatacow", 4);
    balance_all("dup data", 16384, "data=dup,metadata=single", "", 5);
    balance_all(
        "full references",
        4096,
        "^block-group-tree,^free-space-tree,^skinny-metadata,^no-holes",
        "",
        6,
    );
}

#[test]
fn profiles_are_converted_there_and_back() {
    let dir = scratch_dir();
    let image = dir.path().join("v.img");
    mkfs(&image, SIZE, 16384, "csum=crc32c");
    let tree = LibraryTree::mount(&image, "");
    fill(&tree.0, &mut Random::new(7), 8);
    let before = Manifest::of(&tree).unwrap();
    let store = tree.files().store();
    let to = |data: &str, metadata: &str| Filters {
        data: Some(Filter::parse(data).unwrap()),
        metadata: Some(Filter::parse(metadata).unwrap()),
        system: Some(Filter::parse(metadata).unwrap()),
    };
    let refused = balance::start(
        store,
        &to("convert=dup", "convert=single"),
        Redundancy::Kept,
        &mut nobody,
    );
    assert!(matches!(
        refused,
        Err(balance::BalanceError::LessRedundancy { .. })
    ));
    let convert = |data, metadata| {
        let (progress, end) = balance::start(
            store,
            &to(data, metadata),
            Redundancy::MayShrink,
            &mut nobody,
        )
        .unwrap();
        assert_eq!((progress.without_space, end), (0, End::Done));
        Manifest::of(&tree)
            .unwrap()
            .assert_same(&before, "converted");
        let mut kinds = flags_of(&tree.0);
        kinds.sort();
        kinds
    };
    let there = convert("convert=dup", "convert=single");
    assert_eq!(there, ["DATA|DUP", "METADATA|single", "SYSTEM|single"]);
    // Block groups that already have the profile stay.
    let (progress, _) = balance::start(
        store,
        &to("convert=dup,soft", "convert=single,soft"),
        Redundancy::MayShrink,
        &mut nobody,
    )
    .unwrap();
    assert_eq!(progress.expected, 0);
    tree.0.sync().unwrap();
    let back = convert("convert=single", "convert=dup");
    assert_eq!(back, ["DATA|single", "METADATA|DUP", "SYSTEM|DUP"]);
    tree.0.close().unwrap();
    drop(tree);
    judge_image(&image, "converted");
    judge_by_kernel(&image, &before, "converted");
}

/// A balance that is stopped after each step continues.
#[test]
fn a_balance_stops_at_any_step_and_goes_on() {
    let dir = scratch_dir();
    let image = dir.path().join("v.img");
    mkfs(&image, SIZE, 4096, "csum=crc32c");
    let tree = LibraryTree::mount(&image, "");
    fill(&tree.0, &mut Random::new(11), 10);
    let before = Manifest::of(&tree).unwrap();
    tree.0.close().unwrap();
    drop(tree);
    let mut stops = 0;
    let mut calls = 1;
    loop {
        let tree = LibraryTree::mount(&image, "");
        let store = tree.files().store();
        let mut left = calls;
        let mut stop = |_: &Progress| {
            left -= 1;
            (left == 0).then_some(Wish::Pause)
        };
        let (_, end) = match stops {
            0 => balance::start(store, &Filters::all(), Redundancy::Kept, &mut stop),
            _ => balance::resume(store, &mut stop),
        }
        .unwrap();
        Manifest::of(&tree).unwrap().assert_same(&before, "stopped");
        let waits = balance::waiting(store).unwrap().is_some();
        assert_eq!(waits, end == End::Stopped(Wish::Pause));
        tree.0.close().unwrap();
        drop(tree);
        if stops % 3 == 0 {
            judge_image(&image, &format!("stopped {stops} times"));
        }
        stops += 1;
        calls += 2;
        if end == End::Done {
            break;
        }
        assert!(stops < 50, "it never ends");
    }
    assert!(stops > 2, "it was never stopped");
    judge_by_kernel(&image, &before, "at the end");
}

/// What one side began, the other side ends.
#[test]
fn a_balance_changes_sides() {
    let mut needed = Capability::KERNEL_MOUNT.to_vec();
    needed.push(Capability::Program("btrfs"));
    if !Capability::all_here(&needed) {
        return;
    }
    let dir = scratch_dir();
    let image = dir.path().join("v.img");
    mkfs(&image, SIZE, 16384, "csum=crc32c");
    let tree = LibraryTree::mount(&image, "");
    fill(&tree.0, &mut Random::new(13), 6);
    let before = Manifest::of(&tree).unwrap();
    let store = tree.files().store();
    let filters = Filters {
        data: Some(Filter::parse("convert=dup").unwrap()),
        ..Filters::default()
    };
    let mut at_once = |_: &Progress| Some(Wish::Pause);
    let (_, end) = balance::start(store, &filters, Redundancy::Kept, &mut at_once).unwrap();
    assert_eq!(end, End::Stopped(Wish::Pause));
    tree.0.close().unwrap();
    drop(tree);
    judge_image(&image, "ours, stopped");
    // The kernel goes on by itself.
    let mut mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
    let status = |mount: &KernelMount| {
        let out = Command::new("btrfs")
            .args(["balance", "status"])
            .arg(mount.path())
            .output()
            .unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    for _ in 0..200 {
        if status(&mount).contains("No balance") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(status(&mount).contains("No balance"));
    let kinds = Command::new("btrfs")
        .args(["filesystem", "df"])
        .arg(mount.path())
        .output()
        .unwrap();
    let kinds = String::from_utf8_lossy(&kinds.stdout).into_owned();
    assert!(kinds.contains("Data, DUP"), "{kinds}");
    let _ = mount.complaints();
    mount.unmount().unwrap();
    judge_image(&image, "ours, ended by the kernel");
    let tree = LibraryTree::mount(&image, "");
    Manifest::of(&tree).unwrap().assert_same(&before, "ended");
    tree.0.close().unwrap();
}

#[test]
fn devices_shrink_and_grow() {
    let dir = scratch_dir();
    let image = dir.path().join("v.img");
    mkfs(&image, SIZE, 16384, "csum=crc32c");
    let tree = LibraryTree::mount(&image, "");
    fill(&tree.0, &mut Random::new(17), 12);
    let before = Manifest::of(&tree).unwrap();
    let store = tree.files().store();
    let device = DeviceId(1);
    let nobody = &mut |_: &resize::Progress| ControlFlow::Continue(());
    let bytes = || store.device_bytes(device).unwrap();
    for size in [
        Size::Minus(300 << 20),
        Size::Exactly(400 << 20),
        Size::Plus(100 << 20),
        Size::Exactly((300 << 20) + 1000),
        Size::Max,
    ] {
        let context = format!("{size:?}");
        let wanted = resize::wanted(store, device, size).unwrap();
        resize::resize(store, device, size, nobody).unwrap();
        assert_eq!(bytes(), wanted, "{context}");
        Manifest::of(&tree).unwrap().assert_same(&before, &context);
        tree.0.sync().unwrap();
        judge::judge_image(&image, &context);
    }
    assert_eq!(bytes(), SIZE);
    for impossible in [
        Size::Exactly(100 << 20),
        Size::Exactly(2 * SIZE),
        Size::Minus(SIZE),
    ] {
        assert!(resize::resize(store, device, impossible, nobody).is_err());
    }
    // A user who stops it leaves the old size.
    let stop = &mut |_: &resize::Progress| ControlFlow::Break(());
    let end = resize::resize(store, device, Size::Exactly(300 << 20), stop).unwrap();
    let stopped = end == resize::End::Stopped;
    assert_eq!(bytes(), if stopped { SIZE } else { 300 << 20 });
    resize::resize(store, device, Size::Exactly(300 << 20), nobody).unwrap();
    tree.0.close().unwrap();
    drop(tree);
    judge_by_kernel(&image, &before, "shrunk");
    // The file can be cut to the volume's size.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.set_len(300 << 20).unwrap();
    judge_image(&image, "cut");
    judge_by_kernel(&image, &before, "cut");
}

/// A volume that is too full to move anything says so, and stays as it was.
#[test]
fn without_space_everything_stays() {
    let dir = scratch_dir();
    let image = dir.path().join("v.img");
    mkfs(&image, 256 << 20, 16384, "csum=crc32c");
    let tree = LibraryTree::mount(&image, "");
    let mut number = 0;
    while tree
        .0
        .write_file(format!("/f{number}").as_bytes(), &vec![7; 4 << 20])
        .and_then(|()| tree.0.sync())
        .is_ok()
    {
        number += 1;
    }
    let before = Manifest::of(&tree).unwrap();
    let store = tree.files().store();
    let data = Filters {
        data: Some(Filter::default()),
        ..Filters::default()
    };
    let (progress, _) = balance::start(store, &data, Redundancy::Kept, &mut nobody).unwrap();
    assert!(progress.without_space > 0, "{progress:?}");
    assert!(balance::waiting(store).unwrap().is_none());
    Manifest::of(&tree).unwrap().assert_same(&before, "full");
    tree.0.close().unwrap();
    drop(tree);
    judge_image(&image, "full");
}

fn seed_range() -> std::ops::Range<u64> {
    butterfs_testkit::differential::seeds(1..3)
}

/// The power fails at any flush of a balance and of a device that shrinks.
#[test]
fn a_crash_at_any_step_loses_nothing() {
    let states = std::env::var("BUTTERFS_CRASH_STATES");
    let states: usize = states.map_or(300, |text| text.parse().expect("a number"));
    for seed in seed_range() {
        let device = Arc::new(MemoryDevice::new(300 << 20));
        let mkfs = butterfs_admin::mkfs::MkfsOptions {
            node_size: 4096,
            ..Default::default()
        };
        butterfs_admin::mkfs::make(&*device, &mkfs).unwrap();
        let options = || MountOptions::parse("").unwrap().open_options();
        let volume = Volume::open_device(Arc::clone(&device) as _, options()).unwrap();
        fill(&volume, &mut Random::new(seed), 8);
        let tree = LibraryTree(volume);
        let expected = Manifest::of(&tree).unwrap();
        tree.0.close().unwrap();
        drop(tree);
        let base = device.snapshot();
        let recorded = Arc::new(RecordDevice::new(device));
        let volume = Volume::open_device(Arc::clone(&recorded) as _, options()).unwrap();
        let store = volume.files().store();
        balance::start(store, &Filters::all(), Redundancy::Kept, &mut nobody).unwrap();
        let less = Size::Exactly(260 << 20);
        let watch = &mut |_: &resize::Progress| ControlFlow::Continue(());
        resize::resize(store, DeviceId(1), less, watch).unwrap();
        volume.close().unwrap();
        drop(volume);
        let events = recorded.events();
        let mut random = Random::new(seed);
        let mut number = 0;
        let visited = states::visit(&base, &events, &mut random, states, &mut |state| {
            number += 1;
            let device = Arc::new(state.device);
            let context = format!("seed {seed}, time {}, {}", state.time, state.what);
            let volume = Volume::open_device(Arc::clone(&device) as _, options())
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let tree = LibraryTree(volume);
            if number % 8 == 0 {
                Manifest::of(&tree)
                    .unwrap()
                    .assert_same(&expected, &context);
            }
            tree.0.close().unwrap();
            drop(tree);
            own_check(Arc::clone(&device) as _).unwrap_or_else(|e| panic!("{context}: {e}"));
            if number % 20 == 0 {
                // It goes on from there.
                let volume = Volume::open_device(Arc::clone(&device) as _, options()).unwrap();
                let store = volume.files().store();
                match balance::waiting(store).unwrap() {
                    Some(_) => drop(balance::resume(store, &mut nobody).unwrap()),
                    None => {
                        let all = Filters::all();
                        balance::start(store, &all, Redundancy::Kept, &mut nobody).unwrap();
                    }
                }
                let tree = LibraryTree(volume);
                Manifest::of(&tree)
                    .unwrap()
                    .assert_same(&expected, &context);
                tree.0.close().unwrap();
                own_check(device as _).unwrap_or_else(|e| panic!("{context}, then: {e}"));
            }
        });
        println!(
            "seed {seed}: {number} states, {} distinct",
            visited.distinct
        );
    }
}

/// Quota groups count what they counted before.
#[test]
fn quotas_stay_right() {
    use butterfs::quota::QuotaMode;
    for mode in [QuotaMode::Full, QuotaMode::Simple] {
        let dir = scratch_dir();
        let image = dir.path().join("v.img");
        mkfs(&image, SIZE, 4096, "csum=crc32c");
        let tree = LibraryTree::mount(&image, "");
        let files = tree.files();
        let limits = butterfs::du::Limits::default();
        let watch = &mut |_: &butterfs::du::Progress| ControlFlow::Continue(());
        files.enable_quotas(mode, &limits, watch).unwrap();
        fill(&tree.0, &mut Random::new(23), 8);
        let numbers = || {
            let state = tree.0.quota_state().unwrap();
            assert!(state.reason.is_none(), "{:?}", state.reason);
            let groups = state.groups.iter();
            let numbers = groups.map(|(id, group)| {
                let info = &group.info;
                (*id, info.referenced, info.exclusive)
            });
            numbers.collect::<Vec<_>>()
        };
        let before = numbers();
        balance::start(
            files.store(),
            &Filters::all(),
            Redundancy::Kept,
            &mut nobody,
        )
        .unwrap();
        assert_eq!(numbers(), before, "{mode:?}");
        tree.0.close().unwrap();
        drop(tree);
        let device = FileDevice::open(&image, butterfs_device::Access::ReadOnly).unwrap();
        own_check(Arc::new(device)).unwrap_or_else(|faults| panic!("{mode:?}: {faults}"));
        if mode == QuotaMode::Full {
            judge::judge_image(&image, "quotas");
        }
    }
}

/// Files change, are read, cloned and fsynced while everything moves.
#[test]
fn files_are_used_while_everything_moves() {
    use std::sync::atomic::{AtomicBool, Ordering};
    for options in ["", "nodatacow", "compress=zstd"] {
        let dir = scratch_dir();
        let image = dir.path().join("v.img");
        mkfs(&image, SIZE, 4096, "csum=crc32c");
        let tree = LibraryTree::mount(&image, options);
        fill(&tree.0, &mut Random::new(29), 6);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let end = AtEnd(&ended);
            let workers: Vec<_> = (0..3_u64)
                .map(|worker| {
                    let (volume, ended) = (&tree.0, &ended);
                    scope.spawn(move || use_files(volume, worker, ended))
                })
                .collect();
            for _ in 0..10 {
                let store = tree.files().store();
                let all = Filters::all();
                let (progress, _) =
                    balance::start(store, &all, Redundancy::Kept, &mut nobody).unwrap();
                assert_eq!(progress.without_space, 0);
            }
            drop(end);
            let rounds = workers.into_iter().map(|worker| worker.join().unwrap());
            println!("{options}: {} rounds of use", rounds.sum::<u64>());
        });
        let found = Manifest::of(&tree).unwrap();
        tree.0.close().unwrap();
        drop(tree);
        judge_image(&image, options);
        judge_by_kernel(&image, &found, options);
    }

    /// Ends the other threads, even if this one panics.
    struct AtEnd<'e>(&'e AtomicBool);

    impl Drop for AtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// Writes, clones, reads back. What is read is what was written.
    fn use_files(volume: &Volume, worker: u64, ended: &AtomicBool) -> u64 {
        let mut random = Random::new(worker);
        let name = |kind: &str| format!("/{kind}{worker}").into_bytes();
        let mut content = vec![0; 400_000];
        volume.write_file(&name("own"), &content).unwrap();
        let files = volume.files();
        let open = |name: &[u8]| files.inode(volume.resolve(name).unwrap()).unwrap();
        let own = open(&name("own"));
        let mut rounds = 0;
        while !ended.load(Ordering::Acquire) {
            rounds += 1;
            let at = random.below(content.len() as u64 - 20_000);
            let bytes = butterfs_testkit::content::content(random.bits(), 20_000);
            content[at as usize..][..bytes.len()].copy_from_slice(&bytes);
            volume.write_at(&own, at, &bytes).unwrap();
            match rounds % 4 {
                0 => files.fsync(&own).unwrap(),
                1 => {
                    let _ = files.unlink(files.root(), &name("twin")[1..]);
                    volume.write_file(&name("twin"), b"").unwrap();
                    let twin = open(&name("twin"));
                    let span = butterfs::CloneSpan {
                        from: 0,
                        to: 0,
                        length: 0,
                    };
                    files.clone_range(&own, &twin, span).unwrap();
                    assert!(volume.read_file(&name("twin")).unwrap() == content);
                }
                2 => files.flush_inode(&own).unwrap(),
                _ => {}
            }
            assert!(volume.read_file(&name("own")).unwrap() == content);
        }
        rounds
    }
}

/// The engine fails, or panics, at any call within a balance.
#[test]
fn a_fault_at_any_call_loses_nothing() {
    use butterfs_store::inject::{Injected, arm, disarm};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let device = Arc::new(MemoryDevice::new(200 << 20));
    let mkfs = butterfs_admin::mkfs::MkfsOptions {
        node_size: 4096,
        ..Default::default()
    };
    butterfs_admin::mkfs::make(&*device, &mkfs).unwrap();
    let open = |device: &Arc<MemoryDevice>| {
        let options = MountOptions::parse("").unwrap().open_options();
        LibraryTree(Volume::open_device(Arc::clone(device) as _, options).unwrap())
    };
    let tree = open(&device);
    fill(&tree.0, &mut Random::new(31), 2);
    let expected = Manifest::of(&tree).unwrap();
    tree.0.close().unwrap();
    drop(tree);
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("a test asked for it") {
            others(panic);
        }
    }));
    let (mut calls, mut tried) = (0, 0);
    loop {
        let what = match tried % 2 {
            0 => Injected::Error,
            _ => Injected::Panic,
        };
        let device = Arc::new(device.snapshot());
        let tree = open(&device);
        arm(calls, what);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let all = Filters::all();
            balance::start(tree.files().store(), &all, Redundancy::Kept, &mut nobody)
        }));
        if !disarm() {
            assert!(matches!(outcome, Ok(Ok(_))));
            break;
        }
        drop(tree);
        let context = format!("{what:?} at call {calls}");
        let tree = open(&device);
        Manifest::of(&tree)
            .unwrap()
            .assert_same(&expected, &context);
        tree.0.close().unwrap();
        own_check(device as _).unwrap_or_else(|faults| panic!("{context}: {faults}"));
        calls += 1 + calls / 24;
        tried += 1;
    }
    println!("{tried} of {calls} calls failed");
    assert!(tried > 50);
}

/// Free space in so many pieces that its tree fills leaves to the end: what a
/// commit writes then must not change without end what it writes about itself.
#[test]
fn every_commit_of_a_balance_comes_to_an_end() {
    const FILES: u64 = 815;
    for round in 0..6 {
        let memory = Arc::new(MemoryDevice::new(SIZE));
        let device: Arc<dyn BlockDevice> = Arc::clone(&memory) as _;
        let made = MkfsOptions {
            node_size: 4096,
            metadata: Some(ProfileChoice::Single),
            ..MkfsOptions::default()
        };
        butterfs_admin::mkfs::make(&*device, &made).unwrap();
        let mut options = OpenOptions::default();
        options.files.max_inline = 0;
        let volume = Volume::open_device(Arc::clone(&device), options).unwrap();
        for number in 1..=FILES + round {
            volume.write_file(format!("/{number}"), &[1; 4096]).unwrap();
        }
        volume.sync().unwrap();
        let metadata = Filters {
            metadata: Some(Filter::default()),
            ..Filters::default()
        };
        for number in (2..=FILES).step_by(2) {
            volume.remove_file(format!("/{number}")).unwrap();
            volume.sync().unwrap();
            let store = volume.files().store();
            let done = balance::start(store, &metadata, Redundancy::Kept, &mut nobody);
            let (_, end) = done.unwrap_or_else(|error| panic!("{round}, {number}: {error}"));
            assert_eq!(end, End::Done);
        }
        let tree = LibraryTree(volume);
        let expected = Manifest::of(&tree).unwrap();
        tree.0.close().unwrap();
        let dir = scratch_dir();
        let image = dir.path().join("v.img");
        memory.save(&image).unwrap();
        judge_image(&image, "free space in many pieces");
        judge_by_kernel(&image, &expected, "free space in many pieces");
    }
}
