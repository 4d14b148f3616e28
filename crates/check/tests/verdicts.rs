//! Changes nodes at random in volumes of several makers, and seals them again.
//! Some volumes are in the middle of a balance or a deletion. If `btrfs check`
//! reports a fault, our check must report one too.
//!
//! `BUTTERFS_SEEDS=first..last` runs other seeds, `BUTTERFS_BTRFS_CHECK` names
//! another version of `btrfs check`. At the end, the test prints the table of
//! docs/evidence/check.md.

mod support;

use butterfs_check::{DataChecksums, FaultCode, NoProgress, Options, Report, check};
use butterfs_device::{Access, FileDevice};
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, field};
use butterfs_format::{Logical, TreeId};
use butterfs_testkit::capability::Capability;
use butterfs_testkit::judge::{self, Mode, btrfs_check, scratch_dir};
use butterfs_testkit::{Random, differential, run_script};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use support::image::Image;
use support::volume;

/// The trees whose nodes and items are changed, if the volume has them.
const TREES: [TreeId; 13] = [
    TreeId::ROOT,
    TreeId::EXTENT,
    TreeId::CHUNK,
    TreeId::DEVICE,
    TreeId::FS,
    TreeId::CSUM,
    TreeId::QUOTA,
    TreeId::UUID,
    TreeId::FREE_SPACE,
    TreeId::BLOCK_GROUP,
    TreeId::FIRST_SUBVOLUME,
    TreeId::LOG,
    TreeId::RELOC,
];

/// Faults that only `btrfs check` may report: words of its output, and the reason
/// why our check does not report them.
const THEIRS_ALONE: &[(&str, &str)] = &[];

/// Replaces random content by content that is the same in each run. The kernel
/// may still place it elsewhere, so a message about a miss says what was damaged.
fn script(text: &str) -> String {
    let numbers = "<(seq 1000000 9999999)";
    text.replace("if=/dev/urandom", &format!("iflag=fullblock if={numbers}"))
        .replace("/dev/urandom", numbers)
}

const UUID: &str = "9c0fd3a8-51c3-4f9b-9a49-2f4f6d9c1e77";

/// A detached device may stay for a moment, and mkfs.btrfs makes no volume with
/// the UUID of a device that it sees. So these volumes have other UUIDs.
const UUID_BALANCE: &str = "0b6b7a43-6a57-4ad5-8a3c-5f0d2c1f9e11";
const UUID_DELETION: &str = "5b1f2d0e-7c1d-4e53-8f0a-3d9a4f6b2c22";

/// Makes a volume by the kernel, with snapshots and quotas.
fn kernel(path: &Path) {
    let mixture = script(volume::MIXTURE);
    volume::make(path, &["-m", "single", "-U", UUID], "", &mixture);
    let script = "btrfs -q quota enable .; btrfs -q quota rescan -w .; \
        btrfs -q qgroup create 1/1 .; btrfs -q qgroup assign 0/256 1/1 . || true; \
        btrfs -q qgroup limit 1G 0/256 .; btrfs -q quota rescan -w . || true; sync";
    volume::change(path, "", script);
}

/// Makes a directory of files that a tool copies to a volume.
fn source(path: &Path) -> PathBuf {
    let source = path.with_extension("source");
    std::fs::create_dir_all(&source).expect("a directory");
    let text = "mkdir -p d/e; ln -sf /some/target link; ln -sf x d/e/y; echo hi > d/f; \
        head -c 300000 /dev/urandom > big; ln -f big d/big; \
        for i in $(seq 150); do echo line $i > d/e/file-$i; done";
    run_script(&source, &script(text));
    source
}

/// Runs a tool without output.
fn tool(words: &str) {
    run_script(Path::new("/dev/shm"), &format!("{words} > /dev/null 2>&1"));
}

/// Makes a volume by mkfs.btrfs from a directory.
fn rootdir(path: &Path) {
    let (source, path) = (source(path), path.display());
    tool(&format!("truncate -s 300M {path}"));
    let source = source.display();
    tool(&format!(
        "mkfs.btrfs -q -f -U {UUID} --rootdir {source} {path}"
    ));
}

/// Makes a volume by btrfs-convert from ext4.
fn converted(path: &Path) {
    let (source, path) = (source(path), path.display());
    tool(&format!("truncate -s 300M {path}"));
    tool(&format!(
        "mkfs.ext4 -q -F -b 4096 -d {} {path}",
        source.display()
    ));
    tool(&format!("btrfs-convert {path}"));
}

/// Makes a volume by btrfs-image: the metadata of another one without its data.
fn metadump(path: &Path) {
    let full = path.with_extension("full");
    volume::make(&full, &["-U", UUID], "", &script(volume::MIXTURE));
    let (dump, path) = (path.with_extension("dump"), path.display());
    tool(&format!(
        "btrfs-image {} {}",
        full.display(),
        dump.display()
    ));
    tool(&format!("truncate -s {} {path}", volume::SIZE));
    tool(&format!("btrfs-image -r {} {path}", dump.display()));
}

/// Makes a volume by the kernel, with an fsync log.
fn logged(path: &Path) {
    let whole = path.with_extension("whole");
    volume::make(
        &whole,
        &["-U", UUID],
        "commit=300",
        &script(volume::MIXTURE),
    );
    let text = "head -c 50000 /dev/urandom > logged; sync logged; echo more >> d/file-5; \
        sync d/file-5; ln logged d/again; sync logged; \
        dd if=/dev/urandom of=prealloc bs=4096 count=3 seek=90 conv=notrunc,fsync status=none";
    volume::crash(&whole, "commit=300", &script(text), path);
}

/// Makes a volume in the middle of a balance.
fn balancing(path: &Path) {
    volume::balancing(path, &["-n", "4096", "-m", "single", "-U", UUID_BALANCE]);
}

/// Makes a volume in the middle of the deletion of a subvolume that shares nodes
/// with others.
fn deleting(path: &Path) {
    volume::deleting(path, &["-n", "4096", "-m", "single", "-U", UUID_DELETION]);
}

/// A maker of volumes: its name, its function, and the programs that it needs.
type Maker = (&'static str, fn(&Path), &'static [&'static str]);

const MAKERS: &[Maker] = &[
    ("kernel", kernel, &[]),
    ("mkfs --rootdir", rootdir, &[]),
    ("convert", converted, &["btrfs-convert", "mkfs.ext4"]),
    ("btrfs-image", metadump, &["btrfs-image"]),
    ("fsync log", logged, &[]),
];

/// These are not in `MAKERS`, so that each seed there keeps its meaning.
const CAUGHT: &[Maker] = &[("balance", balancing, &[]), ("deletion", deleting, &[])];

/// Returns the codes of the faults and warnings that our check reports. An error
/// counts as a fault.
fn ours(path: &Path) -> BTreeSet<String> {
    let device = FileDevice::open(path, Access::ReadOnly).expect("the image opens");
    let options = Options {
        data: DataChecksums::Ignore,
        ..Options::default()
    };
    let codes = |report: Report| {
        let codes = report.counts.into_keys();
        codes
            .map(|code: FaultCode| code.name().to_owned())
            .collect()
    };
    match check(vec![Arc::new(device)], &options, &NoProgress) {
        Ok(report) => codes(report),
        Err(error) => BTreeSet::from([format!("error: {error}")]),
    }
}

/// Changes a volume and returns a text that says what it changed.
type Damage = fn(&mut Image, TreeId, &mut Random) -> String;

const DAMAGES: [(&str, Damage); 4] = [
    ("item", item),
    ("item", item),
    ("header", header),
    ("descriptor", descriptor),
];

fn change(bytes: &mut [u8], at: usize, random: &mut Random) {
    let other = random.below(256) as u8;
    match random.below(4) {
        0 => bytes[at] ^= 1 << (other % 8),
        1 => bytes[at] = other,
        2 => bytes[at] = bytes[at].wrapping_add(1),
        _ => bytes[at & !7..].iter_mut().take(8).for_each(|b| *b = 0),
    }
}

/// Changes the data of a random item.
fn item(image: &mut Image, tree: TreeId, random: &mut Random) -> String {
    let items = image.items(tree);
    let full: Vec<_> = items.iter().filter(|(_, data)| !data.is_empty()).collect();
    if full.is_empty() {
        return header(image, tree, random);
    }
    let (key, data) = *random.pick(&full);
    let at = random.below(data.len() as u64) as usize;
    image.update(tree, *key, |data| change(data, at, random));
    format!("item {key}, byte {at}")
}

fn node(image: &Image, tree: TreeId, random: &mut Random) -> Logical {
    let nodes = image.nodes(tree);
    *random.pick(&nodes)
}

/// Changes a byte of the header of a random node.
fn header(image: &mut Image, tree: TreeId, random: &mut Random) -> String {
    let node = node(image, tree, random);
    let at = field::FSID + random.below((HEADER_SIZE - field::FSID) as u64) as usize;
    image.raw(node, |bytes| change(&mut bytes[..HEADER_SIZE], at, random));
    format!("header of node {node}, byte {at}")
}

/// Changes a byte of a key, of the place of an item's data, or of a pointer.
fn descriptor(image: &mut Image, tree: TreeId, random: &mut Random) -> String {
    let node = node(image, tree, random);
    let mut what = String::new();
    image.raw(node, |bytes| {
        let count = u64::from(u16::from_le_bytes([bytes[96], bytes[97]])).max(1);
        let within = random.below(count * ITEM_SIZE as u64) as usize;
        let at = HEADER_SIZE + within;
        what = format!("node {node}, byte {at}");
        change(bytes, at, random);
    });
    what
}

#[derive(Default)]
struct Sums {
    both: u64,
    ours_alone: u64,
    theirs_alone: u64,
    neither: u64,
}

#[test]
fn what_btrfs_check_reports_is_reported() {
    compare(MAKERS, 0..60);
}

#[test]
fn what_btrfs_check_reports_half_way_is_reported() {
    compare(CAUGHT, 0..40);
}

/// Lets only one test run at a time, because mkfs.btrfs looks at all devices.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs both checks on volumes by `makers`. Each seed makes another damage.
fn compare(makers: &[Maker], usual: Range<u64>) {
    if !volume::can_make() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = scratch_dir();
    let mut sound = Vec::new();
    for (name, make, programs) in makers {
        let needed: Vec<_> = programs.iter().map(|p| Capability::Program(p)).collect();
        if !Capability::all_here(&needed) {
            continue;
        }
        let path = dir.path().join(format!("{}.img", sound.len()));
        make(&path);
        let theirs = btrfs_check(&path, Mode::Original, judge::DataChecksums::Ignore);
        theirs.assert_clean(name);
        let known = ours(&path);
        let faults: Vec<_> = known
            .iter()
            .filter(|code| *code != "free-space-orphan")
            .collect();
        assert!(faults.is_empty(), "{name}: {faults:?}");
        let image = Image::open(&path);
        let trees: Vec<TreeId> = TREES.into_iter().filter(|t| image.has(*t)).collect();
        sound.push((name, path, known, trees));
    }
    let path = dir.path().join("damaged.img");
    let mut missed = Vec::new();
    let mut sums: BTreeMap<(&str, &str), Sums> = BTreeMap::new();
    let mut ours_alone: BTreeMap<String, u64> = BTreeMap::new();
    let mut excused: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in differential::seeds(usual) {
        let mut random = Random::new(seed);
        let (name, from, known, trees) = random.pick(&sound);
        let (tree, (kind, damage)) = (*random.pick(trees), *random.pick(&DAMAGES));
        volume::sparse_copy(from, &path);
        let what = damage(&mut Image::open(&path), tree, &mut random);
        let found: BTreeSet<String> = ours(&path).difference(known).cloned().collect();
        let theirs = btrfs_check(&path, Mode::Original, judge::DataChecksums::Ignore);
        let sum = sums.entry((name, kind)).or_default();
        match (found.is_empty(), theirs.clean) {
            (true, true) => sum.neither += 1,
            (false, false) => sum.both += 1,
            (false, true) => {
                sum.ours_alone += 1;
                let codes: Vec<_> = found.into_iter().collect();
                *ours_alone.entry(codes.join(" ")).or_default() += 1;
            }
            (true, false) => {
                sum.theirs_alone += 1;
                let reason = THEIRS_ALONE.iter().find(|(w, _)| theirs.output.contains(w));
                if let Some((_, reason)) = reason {
                    *excused.entry(reason).or_default() += 1;
                    continue;
                }
                missed.push(format!(
                    "seed {seed}, {name}, tree {tree}, {kind}: {what}\n{}",
                    theirs.output
                ));
            }
        }
    }
    println!("| volume | change | both | ours alone | btrfs check alone | neither |");
    for ((name, kind), sum) in &sums {
        let (both, ours) = (sum.both, sum.ours_alone);
        let (theirs, neither) = (sum.theirs_alone, sum.neither);
        println!("| {name} | {kind} | {both} | {ours} | {theirs} | {neither} |");
    }
    for (codes, count) in &ours_alone {
        println!("ours alone, {count}: {codes}");
    }
    for (reason, count) in &excused {
        println!("btrfs check alone, {count}: {reason}");
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    assert!(sums.values().any(|sum| sum.both > 0));
}
