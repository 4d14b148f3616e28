//! Every kind of damage that the check knows, repaired.
//!
//! The volume is one of the kernel's, with snapshots, small and large files,
//! holes, preallocated space and quotas. After a repair our check and `btrfs
//! check` find nothing, what was readable and right is still so, and a second
//! repair does nothing. `BUTTERFS_DAMAGE=code` runs the damages of one code.

mod commands {
    /// What a command may change; a repair may change nothing of files.
    #[derive(Clone, Copy)]
    pub enum Touched {
        Files(&'static [&'static str]),
        #[allow(dead_code, reason = "the manifest knows both")]
        Names(&'static [&'static str]),
    }
}
#[path = "../../testkit/tests/sealed/manifest.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod manifest;
#[path = "../../check/tests/support/mod.rs"]
mod support;

#[path = "../../check/tests/damage/files.rs"]
mod files;
#[path = "../../check/tests/damage/nodes.rs"]
mod nodes;
#[path = "../../check/tests/damage/space.rs"]
mod space;

use butterfs::{
    BlockDevice, Cleaner, FallocateMode, MemoryDevice, NewInode, OpenOptions, Owner,
    SnapshotAccess, Volume,
};
use butterfs_admin::mkfs::{MkfsOptions, make_on};
use butterfs_check::{DataChecksums as Data, FaultCode, NoProgress};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::node::field;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_repair::{Options, Outcome, StepKind, repair};
use butterfs_testkit::differential::seeds;
use butterfs_testkit::judge::{DataChecksums, Mode, btrfs_check, scratch_dir};
use butterfs_testkit::random::Random;
use commands::Touched;
use manifest::Manifest;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::image::Image;
use support::volume;

/// A damage of a volume.
pub struct Damage {
    /// The kind of fault that the check must report.
    pub code: FaultCode,
    /// Makes the damage.
    pub make: fn(&mut Image),
}

/// Makes a [`Damage`].
pub const fn damage(code: FaultCode, make: fn(&mut Image)) -> Damage {
    Damage { code, make }
}

/// Kinds that a repair leaves: warnings about what every driver ignores, and
/// damage of what it would need to read.
const LEFT: &[FaultCode] = &[
    FaultCode::DataChecksum,
    FaultCode::InodeCache,
    FaultCode::QgroupVersion,
    FaultCode::RootFlags,
    // A change of the UUID that was cut short: `butterfs tune` ends it.
    FaultCode::SuperblockField,
];

fn options() -> Options {
    let mut options = Options::default();
    options.check.data = Data::Verify;
    options.check.threads = 2;
    options
}

fn read(device: &MemoryDevice) -> Manifest {
    let mut options = OpenOptions {
        commit_interval: Duration::from_secs(3600),
        cleaner: Cleaner::OnDemand,
        ..OpenOptions::default()
    };
    options.store.access = butterfs::Access::ReadOnly;
    let devices = vec![Arc::new(device.snapshot()) as Arc<dyn BlockDevice>];
    match Volume::open_devices(devices, options) {
        // A name whose inode is gone is no file that can be read.
        Ok(volume) => Manifest::of(&volume).readable(),
        Err(_) => Manifest::default(),
    }
}

fn repaired(device: &Arc<MemoryDevice>) -> Result<Outcome, String> {
    let devices = vec![device.clone() as Arc<dyn BlockDevice>];
    repair(devices, &options(), &NoProgress).map_err(|error| error.to_string())
}

/// What is wrong with the repair of a damaged image.
fn judge(path: &Path, truth: &Manifest) -> (Vec<String>, Option<Outcome>) {
    let mut wrong = Vec::new();
    let device = Arc::new(MemoryDevice::load(path).unwrap());
    let before = read(&device);
    let outcome = match repaired(&device) {
        Ok(outcome) => outcome,
        Err(error) => return (vec![format!("refused: {error}")], None),
    };
    let after = read(&device);
    for lost in after
        .lost(&before, truth, Touched::Files(&[]))
        .into_iter()
        .take(5)
    {
        wrong.push(format!("WORSE {lost}"));
    }
    for lost in after
        .lost(truth, truth, Touched::Files(&[]))
        .into_iter()
        .take(3)
    {
        println!("    not as it was: {lost}");
    }
    for fault in outcome.after.faults.iter().take(4) {
        wrong.push(format!("left: {fault}"));
    }
    for what in &outcome.after.unchecked {
        wrong.push(format!("unchecked: {what}"));
    }
    device.save(path).unwrap();
    for mode in [Mode::Original, Mode::Lowmem] {
        let theirs = btrfs_check(path, mode, DataChecksums::Verify);
        if !theirs.clean {
            let lines: Vec<&str> = theirs.output.lines().take(12).collect();
            wrong.push(format!("btrfs check {mode:?}: {}", lines.join(" | ")));
        }
    }
    let now = device.snapshot();
    match repaired(&device) {
        Ok(again) if again.is_changed || now.first_difference(&device).is_some() => {
            wrong.push(format!("a second repair: {:?}", again.steps));
        }
        Ok(_) => {}
        Err(error) => wrong.push(format!("a second repair: {error}")),
    }
    (wrong, Some(outcome))
}

/// A volume of the kernel's with a little of everything.
fn of_the_kernel(path: &Path) {
    volume::make(path, &["-m", "dup"], "", volume::MIXTURE);
    let script = "btrfs -q quota enable . ; btrfs -q quota rescan -w . ; btrfs -q qgroup create 1/1 . ; btrfs -q qgroup assign 0/256 1/1 . || true; btrfs -q quota rescan -w . || true; sync";
    volume::change(path, "", script);
}

/// A volume of ours with files, links, a subvolume and snapshots.
fn of_ours(path: &Path) {
    let device = Arc::new(MemoryDevice::new(volume::SIZE));
    let devices = vec![device.clone() as Arc<dyn BlockDevice>];
    make_on(&devices, &MkfsOptions::default()).unwrap();
    let volume = Volume::open_devices(devices, OpenOptions::default()).unwrap();
    let mut random = Random::new(7);
    let mut bytes = |count: usize| -> Vec<u8> { (0..count).map(|_| random.bits() as u8).collect() };
    volume.create_dir("d").unwrap();
    for number in 0..250 {
        let line = format!("line {number}\n");
        volume
            .write_file(format!("d/file-{number}"), line.as_bytes())
            .unwrap();
    }
    volume.write_file("big", &bytes(3_000_000)).unwrap();
    volume.write_file("changed", &bytes(200_000)).unwrap();
    volume.write_file("tiny", b"tiny\n").unwrap();
    volume.create_subvolume("sub").unwrap();
    for number in 0..60 {
        volume
            .write_file(format!("sub/file-{number}"), &bytes(5000))
            .unwrap();
    }
    volume.sync().unwrap();
    volume
        .snapshot("/", "snap", SnapshotAccess::ReadWrite)
        .unwrap();
    volume
        .snapshot("sub", "subsnap", SnapshotAccess::ReadOnly)
        .unwrap();
    for number in (0..250).step_by(7) {
        volume
            .write_file(format!("d/file-{number}"), &bytes(6000))
            .unwrap();
    }
    volume.remove_file("d/file-3").unwrap();
    volume.write_file("changed", &bytes(150_000)).unwrap();
    volume.close().unwrap();
    device.save(path).unwrap();
}

/// Overwrites a node in all copies.
fn destroy(image: &mut Image, random: &mut Random) {
    let trees = [2, 4, 5, 7, 9, 10, 256, 257].map(TreeId);
    let tree = *random.pick(&trees);
    if !image.has(tree) {
        return;
    }
    let nodes = image.nodes(tree);
    let at = nodes[random.below(nodes.len() as u64) as usize];
    let size = image.superblock.node_size as usize;
    image.write(at, &vec![0; size]);
}

/// Changes a byte of a node, which then has a right checksum.
fn lie(image: &mut Image, random: &mut Random) {
    let trees = [2, 4, 5, 7, 9, 10, 256].map(TreeId);
    let tree = *random.pick(&trees);
    if !image.has(tree) {
        return;
    }
    let nodes = image.nodes(tree);
    let at = nodes[random.below(nodes.len() as u64) as usize];
    let place = random.below(u64::from(image.superblock.node_size) - 101) as usize + 101;
    let bit = 1 << random.below(8);
    image.raw(at, |bytes| bytes[place] ^= bit);
}

/// Damages an image in several ways; says how.
fn damage_at_random(path: &Path, seed: u64) -> Vec<String> {
    let mut random = Random::new(seed);
    let mut all = nodes::all();
    all.extend(space::all());
    all.extend(files::all());
    let mut done = Vec::new();
    for _ in 0..1 + random.below(4) {
        // A damage that the earlier ones leave no place for is none.
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut image = Image::open(path);
            match random.below(4) {
                0 => {
                    destroy(&mut image, &mut random);
                    "a node is gone".to_owned()
                }
                1 => {
                    lie(&mut image, &mut random);
                    "a bit of a node".to_owned()
                }
                _ => {
                    let damage = random.pick(&all);
                    (damage.make)(&mut image);
                    damage.code.to_string()
                }
            }
        }));
        done.extend(made);
    }
    done
}

/// What btrfs-progs makes of a copy of a damaged image: whether its check is
/// clean then, and how much of the truth is lost.
fn theirs(path: &Path, truth: &Manifest) -> (bool, usize) {
    let copy = path.with_extension("theirs");
    volume::sparse_copy(path, &copy);
    // It may never end.
    let _ = std::process::Command::new("timeout")
        .args(["60", "btrfs", "check", "--repair", "--force"])
        .arg(&copy)
        .stdin(std::process::Stdio::null())
        .output();
    let clean = btrfs_check(&copy, Mode::Original, DataChecksums::Verify).clean;
    let after = read(&MemoryDevice::load(&copy).unwrap());
    std::fs::remove_file(&copy).unwrap();
    (clean, after.lost(truth, truth, Touched::Files(&[])).len())
}

/// Several damages at once: nothing gets worse, and the repair comes to an end.
/// `BUTTERFS_BESIDE=1` repairs a copy with btrfs-progs too.
#[test]
fn several_damages_make_nothing_worse() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = [dir.path().join("kernel.img"), dir.path().join("ours.img")];
    of_the_kernel(&sound[0]);
    of_ours(&sound[1]);
    let truths = [&sound[0], &sound[1]].map(|path| read(&MemoryDevice::load(path).unwrap()));
    let beside = std::env::var("BUTTERFS_BESIDE").is_ok();
    let (mut clean, mut all, mut failed) = (0, 0, Vec::new());
    for seed in seeds(0..20) {
        let which = seed as usize % 2;
        let path = dir.path().join("damaged.img");
        volume::sparse_copy(&sound[which], &path);
        let done = damage_at_random(&path, seed);
        println!("seed {seed}: {}", done.join(", "));
        let other = beside.then(|| theirs(&path, &truths[which]));
        let (wrong, outcome) = judge(&path, &truths[which]);
        all += 1;
        if wrong.is_empty() {
            clean += 1;
        }
        for text in &wrong {
            println!("    ! {text}");
        }
        let steps = outcome.iter().flat_map(|outcome| &outcome.steps);
        for step in steps.filter(|_| !wrong.is_empty()) {
            println!("    {step}");
        }
        let is_bad = |text: &&String| text.starts_with("WORSE") || text.starts_with("a second");
        let bad: Vec<String> = wrong.iter().filter(is_bad).cloned().collect();
        if let Some((is_clean, lost)) = other {
            let own = read(&MemoryDevice::load(&path).unwrap());
            let own = own
                .lost(&truths[which], &truths[which], Touched::Files(&[]))
                .len();
            let ours_is_clean = outcome.is_some() && wrong.is_empty();
            println!(
                "    lost of the truth: ours {own}, theirs {lost}; clean: ours {ours_is_clean}, theirs {is_clean}"
            );
            if lost < own || (is_clean && !ours_is_clean && lost <= own) {
                failed.push(format!("seed {seed}: btrfs check --repair ends better"));
            }
        }
        failed.extend(bad.into_iter().map(|text| format!("seed {seed}: {text}")));
    }
    println!("{clean} of {all} are clean");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The root of the chunk tree is gone in all copies; its chunks are known from
/// elsewhere.
#[test]
fn a_chunk_tree_is_made_from_chunks_that_were_found() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    volume::make(&path, &["-m", "dup"], "", "echo here > file; sync");
    let truth = read(&MemoryDevice::load(&path).unwrap());
    let image = Image::open(&path);
    let root = image.root(TreeId::CHUNK).logical;
    image.write(root, &vec![0; image.superblock.node_size as usize]);
    let device = Arc::new(MemoryDevice::load(&path).unwrap());
    assert!(repaired(&device).is_err());
    let mut with_chunks = options();
    with_chunks.begin.chunks = Some(image.map.clone());
    let devices = vec![device.clone() as Arc<dyn BlockDevice>];
    let outcome = repair(devices, &with_chunks, &NoProgress).unwrap();
    assert!(outcome.after.is_clean(), "{:?}", outcome.after.faults);
    let lost = read(&device).lost(&truth, &truth, Touched::Files(&[]));
    assert!(lost.is_empty(), "{lost:?}");
    device.save(&path).unwrap();
    btrfs_check(&path, Mode::Original, DataChecksums::Verify).assert_clean("with a new chunk tree");
}

/// Branches of files' trees and of the checksum tree, and roots among them, are
/// lost in all copies: one at a time, and all of a tree at once. The nodes below
/// them are found by the extent tree.
#[test]
fn lost_branches_cost_nothing() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = dir.path().join("sound.img");
    // More small files, so that small nodes make three levels.
    let more = "mkdir many; for i in $(seq 3000); do echo $i > many/$i; done; sync; \
                btrfs -q subvolume snapshot . late; for i in $(seq 1 9 3000); do rm many/$i; done; sync";
    let script = format!("{}\n{more}", volume::MIXTURE);
    volume::make(&sound, &["-m", "dup", "-n", "4096"], "", &script);
    let truth = read(&MemoryDevice::load(&sound).unwrap());
    assert!(truth.files() > 6000, "{}", truth.files());
    let image = Image::open(&sound);
    let mut cases: Vec<(String, Vec<Logical>)> = Vec::new();
    let (mut roots, mut inner) = (0, 0);
    for (tree, root) in image.roots.clone() {
        if !tree.is_subvolume() && tree != TreeId::CSUM {
            continue;
        }
        let level = |at: &Logical| image.read(*at)[field::LEVEL];
        let branches: Vec<Logical> = image
            .nodes(tree)
            .into_iter()
            .filter(|at| level(at) > 0)
            .collect();
        let is_root = |at: &&Logical| **at == root.logical;
        let own: Vec<Logical> = branches.iter().filter(is_root).copied().collect();
        let others: Vec<Logical> = branches.iter().filter(|at| !is_root(at)).copied().collect();
        roots += own.len();
        inner += others.len();
        cases.extend(own.iter().map(|at| (format!("root of {tree}"), vec![*at])));
        cases.extend(
            others
                .first()
                .map(|at| (format!("branch of {tree}"), vec![*at])),
        );
        cases.push((format!("all branches of {tree}"), branches));
    }
    assert!(
        roots > 4 && inner > 4,
        "{roots} roots, {inner} other branches"
    );
    for (what, nodes) in cases {
        let path = dir.path().join("damaged.img");
        volume::sparse_copy(&sound, &path);
        let damaged = Image::open(&path);
        let zeros = vec![0; damaged.superblock.node_size as usize];
        nodes.iter().for_each(|at| damaged.write(*at, &zeros));
        let (wrong, outcome) = judge(&path, &truth);
        let steps = outcome.map(|outcome| outcome.steps);
        assert!(wrong.is_empty(), "{what}: {wrong:?} {steps:?}");
        let after = read(&MemoryDevice::load(&path).unwrap());
        let lost = after.lost(&truth, &truth, Touched::Files(&[]));
        assert!(lost.is_empty(), "{what}: {lost:?} {steps:?}");
    }
}

/// A subvolume with its root as the only node loses it.
#[test]
fn a_subvolume_that_is_lost_becomes_an_empty_directory() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    let script = "btrfs -q subvolume create sub; echo lost > sub/file; echo here > file; sync";
    volume::make(&path, &["-m", "dup"], "", script);
    let truth = read(&MemoryDevice::load(&path).unwrap());
    let image = Image::open(&path);
    let zeros = vec![0; image.superblock.node_size as usize];
    image.write(image.root(TreeId(256)).logical, &zeros);
    let (wrong, outcome) = judge(&path, &truth);
    assert_eq!(wrong, Vec::<String>::new());
    let steps = outcome.unwrap().steps;
    let lost = steps.iter().filter_map(|step| step.lost.as_deref());
    assert!(
        lost.into_iter()
            .any(|lost| lost == "all files of subvolume 256")
    );
    let after = read(&MemoryDevice::load(&path).unwrap());
    let lost = after.lost(&truth, &truth, Touched::Files(&["/sub"]));
    assert_eq!(lost, Vec::<String>::new());
}

#[test]
fn every_damage_is_mended() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound_path = dir.path().join("sound.img");
    of_the_kernel(&sound_path);
    let truth = read(&MemoryDevice::load(&sound_path).unwrap());
    assert!(truth.files() > 700, "{}", truth.files());
    let only = std::env::var("BUTTERFS_DAMAGE").ok();
    let mut all = nodes::all();
    all.extend(space::all());
    all.extend(files::all());
    let mut failed = Vec::new();
    let (mut mended, mut number) = (0, 0);
    for damage in all {
        if only.as_ref().is_some_and(|only| only != damage.code.name()) {
            continue;
        }
        number += 1;
        let path = dir.path().join("damaged.img");
        volume::sparse_copy(&sound_path, &path);
        (damage.make)(&mut Image::open(&path));
        println!("{} (number {number})", damage.code);
        let (wrong, outcome) = judge(&path, &truth);
        for step in outcome.iter().flat_map(|outcome| &outcome.steps) {
            println!("    {step}");
        }
        if wrong.is_empty() {
            mended += 1;
            continue;
        }
        for text in &wrong {
            println!("    ! {text}");
        }
        if !LEFT.contains(&damage.code) || wrong.iter().any(|text| text.starts_with("WORSE")) {
            failed.push(format!("{}: {}", damage.code, wrong[0]));
        }
    }
    println!("{mended} of {number} mended");
    assert!(failed.is_empty(), "not mended:\n{}", failed.join("\n"));
}

/// All free space for metadata is recorded as in use, so the repair has to make
/// a block group for its own nodes. Where the device has no room for one, the
/// volume stays as it is.
#[test]
fn a_repair_without_free_space_makes_a_block_group() {
    let dir = scratch_dir();
    for has_room in [true, false] {
        let path = dir.path().join("v.img");
        of_ours(&path);
        let truth = read(&MemoryDevice::load(&path).unwrap());
        let mut image = Image::open(&path);
        for (free, _) in image.items(TreeId::FREE_SPACE) {
            let group = image.map.find(Logical(free.objectid)).unwrap().1;
            let is_for_nodes = group.flags.contains(BlockGroupFlags::METADATA);
            if free.item_type == ItemType::FREE_SPACE_EXTENT && is_for_nodes {
                let key = Key::new(free.objectid, ItemType::EXTENT_ITEM, free.offset);
                image.insert(TreeId::EXTENT, key, &space::extent_item(key, 5));
            }
        }
        if !has_room {
            let extents = image.items(TreeId::DEVICE).into_iter();
            let extents = extents.filter(|(key, _)| key.item_type == ItemType::DEV_EXTENT);
            let ends = extents.map(|(key, data)| {
                key.offset + u64::from_le_bytes(data[24..32].try_into().unwrap())
            });
            let end = ends.max().unwrap();
            image.superblock(|own| own.device.total_bytes = end);
            drop(image);
            let device = Arc::new(MemoryDevice::load(&path).unwrap());
            let error = repaired(&device).unwrap_err();
            assert!(error.contains("no room for another block group"), "{error}");
            let lost = read(&device).lost(&truth, &truth, Touched::Files(&[]));
            assert_eq!(lost, Vec::<String>::new());
            continue;
        }
        drop(image);
        let (wrong, outcome) = judge(&path, &truth);
        assert_eq!(wrong, Vec::<String>::new());
        let steps = outcome.unwrap().steps;
        let made = steps
            .iter()
            .any(|step| step.kind == StepKind::NewBlockGroup);
        assert!(made, "{steps:?}");
        let after = read(&MemoryDevice::load(&path).unwrap());
        let lost = after.lost(&truth, &truth, Touched::Files(&[]));
        assert_eq!(lost, Vec::<String>::new());
        kernel_writes(&path);
    }
}

/// More new nodes than are held in memory: an extent tree of hundreds of nodes is made
/// anew while one of them is held.
#[test]
fn a_large_tree_is_made_anew_in_little_memory() {
    let device = Arc::new(MemoryDevice::new(volume::SIZE));
    let devices = vec![device.clone() as Arc<dyn BlockDevice>];
    let small = MkfsOptions {
        node_size: 4096,
        ..MkfsOptions::default()
    };
    make_on(&devices, &small).unwrap();
    let volume = Volume::open_devices(devices.clone(), OpenOptions::default()).unwrap();
    let files = volume.files();
    let new = NewInode::new(0o100_644, Owner::default());
    let [one, two] = [b"one", b"two"].map(|name| files.create(files.root(), name, &new).unwrap());
    for number in 0..8000 {
        for file in [&one, &two] {
            let allocated = files.fallocate(file, FallocateMode::Allocate, number * 4096, 4096);
            allocated.unwrap();
        }
    }
    drop((one, two));
    volume.close().unwrap();
    let truth = read(&device);
    let mut options = options();
    options.anew.extents = true;
    options.cache_bytes = 0;
    let outcome = repair(devices, &options, &NoProgress).unwrap();
    assert!(outcome.after.is_clean(), "{:?}", outcome.after.faults);
    assert_eq!(
        read(&device).lost(&truth, &truth, Touched::Files(&[])),
        Vec::<String>::new()
    );
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    device.save(&path).unwrap();
    let nodes = Image::open(&path).nodes(TreeId::EXTENT).len();
    assert!(nodes > 200, "{nodes}");
    kernel_writes(&path);
}

/// The kernel mounts a repaired volume, writes to it, and its scrub finds nothing.
fn kernel_writes(path: &Path) {
    if !volume::can_make() {
        return;
    }
    let script = "head -c 300000 /dev/urandom >by-the-kernel; sync; btrfs scrub start -B . | grep -q 'no errors found'";
    volume::change(path, "", script);
    for mode in Mode::ALL {
        btrfs_check(path, mode, DataChecksums::Verify).assert_clean("after the kernel wrote");
    }
}
