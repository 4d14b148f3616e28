//! The rules of cloning, deduping and defragmenting: compared with the kernel
//! where it has the same, and checked where sharing is broken or kept.

#[path = "sharing_rules/collisions.rs"]
mod collisions;
mod common;
#[path = "sharing_rules/freed_meanwhile.rs"]
mod freed_meanwhile;

use butterfs_device::Access;
use butterfs_format::compression::Algorithm;
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::file::{
    CloneSpan, Deduped, Defragment, Defragmented, FallocateMode, Recompress, Sharing,
};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::options::DataCow;
use butterfs_fs::{Filesystem, FsError, Inode, Options};
use butterfs_kernel::{self as kernel, CloneRequest, DedupeRequest};
use common::{KernelMount, Random, check, is_root, mkfs, open_subvolume, open_with, run};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

const SECTOR: u64 = 4096;

fn create(fs: &Filesystem, name: &str, content: &[u8]) -> Arc<Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = fs.create(fs.root(), name.as_bytes(), &new).unwrap();
    fs.write(&inode, 0, content).unwrap();
    inode
}

fn find(fs: &Filesystem, name: &str) -> Arc<Inode> {
    let found = fs.lookup(fs.root(), name.as_bytes()).unwrap();
    fs.inode(found.inode).unwrap()
}

fn content(fs: &Filesystem, inode: &Inode) -> Vec<u8> {
    let size = fs.attributes_of(inode).unwrap().size as usize;
    let mut data = vec![0; size];
    assert_eq!(fs.read(inode, 0, &mut data).unwrap(), size);
    data
}

fn data(seed: u64, length: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..length).map(|_| random.below(256) as u8).collect()
}

/// Addresses of a file's extents.
fn extents(fs: &Filesystem, inode: &Inode) -> Vec<u64> {
    let map = fs.extent_map(inode, 0..u64::MAX, 10_000).unwrap();
    map.iter()
        .filter_map(|extent| extent.logical)
        .map(|at| at.get())
        .collect()
}

/// Sizes of files: empty, inline, whole sectors, a cut one at the end.
const SIZES: [u64; 6] = [0, 100, SECTOR, 3 * SECTOR, 3 * SECTOR + 77, 10 * SECTOR];

/// Ranges that are asked for: whole, cut, behind the end, overlapping.
fn spans() -> Vec<CloneSpan> {
    let mut spans = Vec::new();
    for from in [0, SECTOR, 100, 3 * SECTOR, 20 * SECTOR] {
        for to in [0, SECTOR, 77, 12 * SECTOR] {
            for length in [0, 100, SECTOR, 2 * SECTOR, 3 * SECTOR + 77, 5000] {
                spans.push(CloneSpan { from, to, length });
            }
        }
    }
    spans
}

fn number(error: &FsError) -> i32 {
    error.errno()
}

/// The result of one side for all cases: an errno, or the target's content.
type Outcomes = Vec<Result<Vec<u8>, i32>>;

fn ours(fs: &Filesystem, dedupe: bool) -> Outcomes {
    let mut outcomes = Vec::new();
    for (at, (one, other)) in pairs().into_iter().enumerate() {
        for span in spans() {
            let source = create(fs, "source", &data(1, SIZES[one]));
            let target = match one == other && at % 2 == 0 {
                true => Arc::clone(&source),
                false => create(
                    fs,
                    "target",
                    &data(if dedupe { 1 } else { 2 }, SIZES[other]),
                ),
            };
            let done = if dedupe {
                let targets = [(Arc::clone(&target), span.to)];
                let mut results = fs.dedupe_range((&source, span.from), span.length, &targets);
                results
                    .pop()
                    .unwrap()
                    .map(|found| found == Deduped::Differs)
            } else {
                fs.clone_range(&source, &target, span).map(|_| false)
            };
            outcomes.push(match done {
                Err(error) => Err(number(&error)),
                Ok(differs) if dedupe => Ok(vec![u8::from(differs)]),
                Ok(_) => Ok(content(fs, &target)),
            });
            fs.unlink(fs.root(), b"source").unwrap();
            let _ = fs.unlink(fs.root(), b"target");
        }
    }
    outcomes
}

fn theirs(mount: &std::path::Path, dedupe: bool) -> Outcomes {
    let mut outcomes = Vec::new();
    let open = |name: &str, content: &[u8]| -> File {
        let path = mount.join(name);
        std::fs::write(&path, content).unwrap();
        File::options().read(true).write(true).open(path).unwrap()
    };
    for (at, (one, other)) in pairs().into_iter().enumerate() {
        for span in spans() {
            let source = open("source", &data(1, SIZES[one]));
            let (target, name) = match one == other && at % 2 == 0 {
                true => (source.try_clone().unwrap(), "source"),
                false => {
                    let content = data(if dedupe { 1 } else { 2 }, SIZES[other]);
                    (open("target", &content), "target")
                }
            };
            let done = if dedupe {
                kernel::dedupe_range(DedupeRequest {
                    source: source.as_fd(),
                    source_offset: span.from,
                    length: span.length,
                    target: target.as_fd(),
                    target_offset: span.to,
                })
                .map(|found| found == kernel::Deduped::Differs)
            } else {
                let request = CloneRequest {
                    source: source.as_fd(),
                    source_offset: span.from,
                    length: span.length,
                    offset: span.to,
                };
                kernel::clone_range(target.as_fd(), request).map(|()| false)
            };
            outcomes.push(match done {
                Err(error) => Err(error.raw_os_error()),
                Ok(differs) if dedupe => Ok(vec![u8::from(differs)]),
                Ok(_) => Ok(std::fs::read(mount.join(name)).unwrap()),
            });
            drop((source, target));
            std::fs::remove_file(mount.join("source")).unwrap();
            let _ = std::fs::remove_file(mount.join("target"));
        }
    }
    outcomes
}

/// Sizes of source and target, by index.
fn pairs() -> Vec<(usize, usize)> {
    let all = || 0..SIZES.len();
    all()
        .flat_map(|one| all().map(move |other| (one, other)))
        .chain(all().map(|one| (one, one)))
        .collect()
}

#[test]
fn ranges_are_accepted_and_refused_as_by_the_kernel() {
    if !is_root() {
        return;
    }
    for dedupe in [false, true] {
        let (dir, image) = mkfs(600 << 20, &[]);
        let fs = open_subvolume(&image, TreeId::FS);
        let ours = ours(&fs, dedupe);
        fs.sync_all().unwrap();
        drop(fs);
        check(&image);
        let mount = KernelMount::new(&image, dir.path(), "rw");
        let theirs = theirs(mount.path(), dedupe);
        assert_eq!(ours.len(), theirs.len());
        let mut cases = pairs()
            .into_iter()
            .flat_map(|pair| spans().into_iter().map(move |span| (pair, span)));
        let mut accepted = 0;
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let ((one, other), span) = cases.next().unwrap();
            let case = (SIZES[one], SIZES[other], span);
            accepted += usize::from(ours.is_ok());
            let brief = |outcome: &Result<Vec<u8>, i32>| match outcome {
                Ok(bytes) if dedupe => Ok(usize::from(bytes[0])),
                Ok(bytes) => Ok(bytes.len()),
                Err(error) => Err(*error),
            };
            assert_eq!(brief(ours), brief(theirs), "dedupe {dedupe}, {case:?}");
            assert!(ours == theirs, "dedupe {dedupe}, {case:?}: content");
        }
        assert!(accepted > 100 && accepted < ours.len());
    }
}

#[test]
fn checksums_and_none_do_not_mix() {
    let (_dir, image) = mkfs(600 << 20, &[]);
    let bytes = data(5, 10 * SECTOR);
    let summed = open_subvolume(&image, TreeId::FS);
    create(&summed, "summed", &bytes);
    summed.sync_all().unwrap();
    drop(summed);
    let options = Options {
        data_cow: DataCow::Off,
        ..Options::default()
    };
    let fs = open_with(&image, TreeId::FS, &options);
    let summed = find(&fs, "summed");
    let plain = create(&fs, "plain", &bytes);
    let other = create(&fs, "other", &bytes);
    let whole = CloneSpan::default();
    for (from, to) in [(&summed, &plain), (&plain, &summed)] {
        let refused = fs.clone_range(from, to, whole).unwrap_err();
        assert_eq!(refused.errno(), 22, "{refused}");
        let mut refused = fs.dedupe_range((from, 0), 10 * SECTOR, &[(Arc::clone(to), 0)]);
        assert_eq!(refused.pop().unwrap().unwrap_err().errno(), 22);
    }
    // Two files without checksums can share data. A write to one must not
    // change the other.
    assert_eq!(fs.clone_range(&plain, &other, whole).unwrap(), 10 * SECTOR);
    assert_eq!(extents(&fs, &plain), extents(&fs, &other));
    fs.write(&plain, SECTOR, &[9; 100]).unwrap();
    fs.flush_inode(&plain).unwrap();
    assert_eq!(content(&fs, &other), bytes);
    // A copy is kept as its source is, whatever the options say.
    let copy = fs.clone_inode(&summed, fs.root(), b"copy").unwrap();
    assert_eq!(extents(&fs, &copy), extents(&fs, &summed));
    assert_eq!(content(&fs, &copy), bytes);
    // Defragmentation keeps the file without checksums.
    let wanted = Defragment {
        compress: Recompress::With(Algorithm::Zstd, Algorithm::Zstd.default_level()),
        sharing: Sharing::Break,
        ..Defragment::default()
    };
    let done = fs.defragment(&plain, &wanted).unwrap();
    assert!(done.rewritten > 0 && done.new_extents == 1, "{done:?}");
    assert_eq!(content(&fs, &other), bytes);
    fs.sync_all().unwrap();
    drop((summed, plain, other, copy, fs));
    check(&image);
}

#[test]
fn across_subvolumes_and_into_read_only_ones() {
    let (_dir, image) = mkfs(600 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let bytes = data(6, 300_000);
    let source = create(&fs, "source", &bytes);
    let directory = NewInode::new(0o040_755, Owner::default());
    let tree = fs.create_subvolume(fs.root(), b"sub", &directory).unwrap();
    let root: InodeId = Filesystem::root_of(tree);
    let copy = fs.clone_inode(&source, root, b"copy").unwrap();
    assert_eq!(extents(&fs, &copy), extents(&fs, &source));
    fs.snapshot(tree, fs.root(), b"frozen", Access::ReadOnly)
        .unwrap();
    let frozen = fs.lookup(fs.root(), b"frozen").unwrap().inode;
    let inside = fs.lookup(frozen, b"copy").unwrap().inode;
    let inside = fs.inode(inside).unwrap();
    let refused = fs
        .clone_range(&source, &inside, CloneSpan::default())
        .unwrap_err();
    assert_eq!(refused.errno(), 30);
    let mut refused = fs.dedupe_range((&source, 0), 4096, &[(Arc::clone(&inside), 0)]);
    assert_eq!(refused.pop().unwrap().unwrap_err().errno(), 30);
    assert_eq!(
        fs.defragment(&inside, &Defragment::default())
            .unwrap_err()
            .errno(),
        30
    );
    // A file of a read-only subvolume can be the source.
    let back = create(&fs, "back", b"");
    fs.clone_range(&inside, &back, CloneSpan::default())
        .unwrap();
    assert_eq!(extents(&fs, &back), extents(&fs, &source));
    let root = fs.inode(fs.root()).unwrap();
    let refused = fs
        .clone_range(&root, &back, CloneSpan::default())
        .unwrap_err();
    assert_eq!(refused.errno(), 21);
    fs.unlink(fs.root(), b"source").unwrap();
    fs.delete_subvolume(fs.root(), b"sub").unwrap();
    fs.clean_all().unwrap();
    assert_eq!(content(&fs, &back), bytes);
    assert_eq!(content(&fs, &inside), bytes);
    fs.sync_all().unwrap();
    drop((source, copy, inside, back, root, fs));
    check(&image);
}

/// The kernel leaves a first sector in the tree when it clones something behind
/// the end of a small file.
#[test]
fn what_lies_behind_a_first_sector_in_the_tree_is_shared() {
    if !is_root() {
        return;
    }
    let (dir, image) = mkfs(600 << 20, &[]);
    let mount = KernelMount::new(&image, dir.path(), "rw");
    let large = data(1, 10 * SECTOR);
    std::fs::write(mount.path().join("large"), &large).unwrap();
    std::fs::write(mount.path().join("small"), &large[..29]).unwrap();
    let open = |name: &str| {
        File::options()
            .write(true)
            .read(true)
            .open(mount.path().join(name))
    };
    let (from, to) = (open("large").unwrap(), open("small").unwrap());
    from.sync_all().unwrap();
    to.sync_all().unwrap();
    let request = CloneRequest {
        source: from.as_fd(),
        source_offset: 0,
        length: 7 * SECTOR,
        offset: 10 * SECTOR,
    };
    kernel::clone_range(to.as_fd(), request).unwrap();
    drop((from, to));
    drop(mount);

    let fs = open_subvolume(&image, TreeId::FS);
    let small = find(&fs, "small");
    let bytes = content(&fs, &small);
    assert_eq!(bytes.len() as u64, 17 * SECTOR);
    let shared = extents(&fs, &small);
    assert!(!shared.is_empty());
    // By cloning, by copying a range, and by deduping.
    let cloned = create(&fs, "cloned", b"");
    let done = fs.clone_range(&small, &cloned, CloneSpan::default());
    assert_eq!(done.unwrap(), 17 * SECTOR);
    let copied = create(&fs, "copied", b"");
    let done = fs.copy_range((&small, 0), (&copied, 0), 17 * SECTOR);
    assert_eq!(done.unwrap(), 17 * SECTOR);
    let equal = create(&fs, "equal", &bytes);
    let mut done = fs.dedupe_range((&small, 0), 17 * SECTOR, &[(Arc::clone(&equal), 0)]);
    let done = done.pop().unwrap().unwrap();
    assert_eq!(done, Deduped::Shared(17 * SECTOR));
    for (name, file) in [("cloned", &cloned), ("copied", &copied), ("equal", &equal)] {
        assert_eq!(content(&fs, file), bytes, "{name}");
        fs.fsync(file).unwrap();
        let places = extents(&fs, file);
        assert!(shared.iter().all(|at| places.contains(at)), "{name}");
    }
    // To another place, where the first sector is an extent.
    let moved = create(&fs, "moved", &data(9, 3 * SECTOR));
    let span = CloneSpan {
        from: 0,
        to: 2 * SECTOR,
        length: 0,
    };
    assert_eq!(fs.clone_range(&small, &moved, span).unwrap(), 17 * SECTOR);
    assert_eq!(content(&fs, &moved)[2 * SECTOR as usize..], bytes);
    fs.sync_all().unwrap();
    drop((small, cloned, copied, equal, moved, fs));
    check(&image);
}

/// A file in many small extents.
fn scattered(fs: &Filesystem, name: &str, sectors: u64) -> Arc<Inode> {
    let file = create(fs, name, &data(7, sectors * SECTOR));
    fs.flush_inode(&file).unwrap();
    let filler = create(fs, "filler", b"");
    for sector in (0..sectors).step_by(2) {
        fs.write(&file, sector * SECTOR, &data(sector, SECTOR))
            .unwrap();
        fs.flush_inode(&file).unwrap();
        fs.write(&filler, sector * SECTOR, &[1; 4096]).unwrap();
        fs.flush_inode(&filler).unwrap();
    }
    fs.sync_all().unwrap();
    file
}

#[test]
fn sharing_is_told_and_kept_unless_asked() {
    let (_dir, image) = mkfs(600 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let file = scattered(&fs, "file", 64);
    let before = content(&fs, &file);
    let keep = Defragment::default();
    let unshare = Defragment {
        sharing: Sharing::Break,
        ..Defragment::default()
    };
    let planned = fs.plan_defragment(&file, &keep).unwrap();
    assert_eq!((planned.rewritten, planned.shared), (64 * SECTOR, 0));
    assert!(planned.extents >= 60, "{planned:?}");
    // A snapshot, and a reflink of a part that nobody else shares.
    let tree = fs
        .snapshot(TreeId::FS, fs.root(), b"snapshot", Access::ReadOnly)
        .unwrap();
    let shared = fs.plan_defragment(&file, &keep).unwrap();
    assert_eq!((shared.rewritten, shared.shared), (0, 64 * SECTOR));
    assert_eq!(fs.defragment(&file, &keep).unwrap().rewritten, 0);
    fs.delete_subvolume(fs.root(), b"snapshot").unwrap();
    assert!(tree.is_subvolume());
    fs.clean_all().unwrap();
    fs.sync_all().unwrap();
    let part = create(&fs, "part", b"");
    let span = CloneSpan {
        from: 0,
        to: 0,
        length: 16 * SECTOR,
    };
    fs.clone_range(&file, &part, span).unwrap();
    fs.sync_all().unwrap();
    let shared = fs.plan_defragment(&file, &keep).unwrap();
    // An extent counts as shared even if others have another part of it than
    // this file. All odd sectors are of one extent, and rewriting only the
    // sectors between them gains nothing.
    assert_eq!((shared.rewritten, shared.shared), (0, 40 * SECTOR));
    let done = fs.defragment(&file, &unshare).unwrap();
    assert_eq!((done.rewritten, done.new_extents), (64 * SECTOR, 1));
    assert_eq!(extents(&fs, &file).len(), 1);
    assert_eq!(content(&fs, &file), before);
    assert_eq!(content(&fs, &part), before[..16 * 4096]);
    assert_eq!(fs.defragment(&file, &unshare).unwrap().rewritten, 0);
    fs.sync_all().unwrap();
    drop((file, part, fs));
    check(&image);
}

#[test]
fn holes_and_promised_space_stay() {
    let (_dir, image) = mkfs(600 << 20, &["-O", "^no-holes"]);
    let fs = open_subvolume(&image, TreeId::FS);
    let file = scattered(&fs, "file", 40);
    fs.fallocate(&file, FallocateMode::PunchHole, 10 * SECTOR, 5 * SECTOR)
        .unwrap();
    fs.fallocate(
        &file,
        FallocateMode::AllocateKeepSize,
        60 * SECTOR,
        9 * SECTOR,
    )
    .unwrap();
    fs.truncate(&file, 39 * SECTOR + 5).unwrap();
    let before = (
        content(&fs, &file),
        fs.attributes_of(&file).unwrap().allocated,
    );
    let done = fs.defragment(&file, &Defragment::default()).unwrap();
    assert!(done.rewritten > 0);
    let after = (
        content(&fs, &file),
        fs.attributes_of(&file).unwrap().allocated,
    );
    assert!(before == after);
    fs.sync_all().unwrap();
    drop((file, fs));
    check(&image);
}

#[test]
fn a_full_volume_loses_nothing() {
    let (_dir, image) = mkfs(200 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let file = scattered(&fs, "file", 1000);
    let before = content(&fs, &file);
    let filler = find(&fs, "filler");
    let mut at = 1 << 30;
    while let Ok(written) = fs.write(&filler, at, &data(at, 1 << 20)) {
        at += written as u64;
    }
    fs.sync_all().unwrap();
    let wanted = Defragment {
        sharing: Sharing::Break,
        ..Defragment::default()
    };
    let done: Result<Defragmented, FsError> = fs.defragment(&file, &wanted);
    match done {
        Ok(done) => assert!(done.rewritten == 0 || done.new_extents > 0),
        Err(error) => assert_eq!(error.errno(), 28, "{error}"),
    }
    assert_eq!(content(&fs, &file), before);
    fs.sync_all().unwrap();
    drop((file, filler, fs));
    check(&image);
    let fs = open_subvolume(&image, TreeId::FS);
    assert_eq!(content(&fs, &find(&fs, "file")), before);
}

#[test]
fn compression_changes_in_both_directions() {
    let (dir, image) = mkfs(600 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let text: Vec<u8> = (0..1_000_001_u64).map(|at| (at / 1000) as u8).collect();
    let file = create(&fs, "file", &text);
    fs.sync_all().unwrap();
    for algorithm in Algorithm::ALL {
        let wanted = Defragment {
            compress: Recompress::With(algorithm, algorithm.default_level()),
            ..Defragment::default()
        };
        let done = fs.defragment(&file, &wanted).unwrap();
        assert_eq!(done.rewritten, 1_003_520);
        let map = fs.extent_map(&file, 0..u64::MAX, 1000).unwrap();
        assert!(
            map.iter()
                .all(|extent| extent.compression == Some(algorithm))
        );
        assert_eq!(content(&fs, &file), text);
    }
    let plain = Defragment {
        compress: Recompress::Plain,
        ..Defragment::default()
    };
    assert_eq!(fs.defragment(&file, &plain).unwrap().new_extents, 1);
    assert_eq!(fs.defragment(&file, &plain).unwrap().rewritten, 0);
    fs.sync_all().unwrap();
    drop((file, fs));
    check(&image);
    if is_root() {
        let mount = KernelMount::new(&image, dir.path(), "ro");
        assert!(std::fs::read(mount.path().join("file")).unwrap() == text);
        run("true", &[]);
    }
}

#[test]
fn orphans_go_when_a_subvolume_is_looked_into() {
    let (_dir, image) = mkfs(600 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let directory = NewInode::new(0o040_755, Owner::default());
    let tree = fs.create_subvolume(fs.root(), b"sub", &directory).unwrap();
    let root = Filesystem::root_of(tree);
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let file = fs.create(root, b"file", &new).unwrap();
    let id = file.id;
    fs.write(&file, 0, &data(1, 100_000)).unwrap();
    fs.pin(&file);
    fs.unlink(root, b"file").unwrap();
    fs.sync_all().unwrap();
    // As after a crash.
    drop((file, fs));
    let fs = open_subvolume(&image, TreeId::FS);
    assert!(fs.lookup(fs.root(), b"sub").is_ok());
    fs.inode(root).unwrap();
    assert!(matches!(fs.inode(id), Err(FsError::NotFound)));
    // An unnamed file that is in use stays.
    let unnamed = fs.create_unnamed(root, &new).unwrap();
    fs.pin(&unnamed);
    fs.write(&unnamed, 0, b"in use").unwrap();
    assert_eq!(content(&fs, &unnamed), b"in use");
    fs.unpin(&unnamed, 1).unwrap();
    fs.sync_all().unwrap();
    drop((unnamed, fs));
    check(&image);
}
