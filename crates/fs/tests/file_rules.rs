//! Rules of file data that a random walk seldom meets: budgets, full volumes,
//! damage, concurrent users.

use butterfs_device::{Access, FileDevice};
use butterfs_format::compression::Algorithm;
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{ItemType, Key, TreeId};
use butterfs_fs::attr::SetAttributes;
use butterfs_fs::file::{CloneSpan, Defragment, FallocateMode};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::options::Compress;
use butterfs_fs::xattr::SetMode;
use butterfs_fs::{Filesystem, FsError, Inode, Options};
use butterfs_store::{OpenOptions, Store, StoreError};
use butterfs_testkit::judge::judge_image;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {text}");
    text
}

struct Volume {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Volume {
    fn new(mebibytes: u64, mkfs: &[&str]) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("v.img");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(mebibytes << 20).unwrap();
        run(
            "mkfs.btrfs",
            &[mkfs, &["-q", path.to_str().unwrap()]].concat(),
        );
        Self { _dir: dir, path }
    }

    fn open(&self, options: Options) -> Filesystem {
        let device = FileDevice::open(&self.path, Access::ReadWrite).unwrap();
        let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
        Filesystem::new(Arc::new(store), TreeId::FS, options)
    }

    fn check(&self) {
        check(&self.path);
    }
}

fn check(path: &Path) {
    judge_image(path, "btrfs check");
}

fn create(fs: &Filesystem, name: &str) -> Arc<Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    fs.create(fs.root(), name.as_bytes(), &new).unwrap()
}

fn reopen(fs: &Filesystem, name: &str) -> Arc<Inode> {
    let found = fs.lookup(fs.root(), name.as_bytes()).unwrap();
    fs.inode(found.inode).unwrap()
}

fn content(fs: &Filesystem, inode: &Inode) -> Vec<u8> {
    let size = fs.attributes_of(inode).unwrap().size;
    let mut bytes = vec![0xee; usize::try_from(size).unwrap() + 1];
    let read = fs.read(inode, 0, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_769) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

fn is_no_space(error: &FsError) -> bool {
    matches!(error, FsError::Store(StoreError::NoSpace))
}

#[test]
fn deleted_files_leave_the_budget() {
    let volume = Volume::new(300, &[]);
    let fs = volume.open(Options::default());
    let data = noise(1, 1 << 20);
    // Ten times what the volume holds, none of it ever flushed.
    for round in 0..3000 {
        let inode = create(&fs, "short-lived");
        fs.write(&inode, 0, &data)
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        fs.unlink(fs.root(), b"short-lived").unwrap();
    }
    assert_eq!(fs.dirty_bytes(), 0);
    fs.sync_all().unwrap();
    drop(fs);
    volume.check();
}

#[test]
fn preallocated_space_can_be_written_on_a_full_volume() {
    let volume = Volume::new(200, &[]);
    let fs = volume.open(Options::default());
    let reserved = create(&fs, "reserved");
    fs.fallocate(&reserved, FallocateMode::Allocate, 0, 8 << 20)
        .unwrap();
    let filler = create(&fs, "filler");
    let block = noise(2, 1 << 20);
    let mut at = 0;
    let error = loop {
        match fs.write(&filler, at, &block) {
            Ok(count) => at += count as u64,
            Err(error) => break error,
        }
        assert!(at < 300 << 20, "the volume never filled up");
    };
    assert!(is_no_space(&error), "{error}");
    let small = noise(3, 4096);
    while let Ok(count) = fs.write(&filler, at, &small) {
        at += count as u64;
    }
    fs.sync_all().unwrap();
    let data = noise(4, 8 << 20);
    // Whole sectors: the second half of one would be copied on write.
    for (index, part) in data.chunks(303_104).enumerate() {
        fs.write(&reserved, index as u64 * 303_104, part).unwrap();
    }
    fs.sync_all().unwrap();
    assert!(content(&fs, &reserved) == data);
    drop((reserved, filler, fs));
    volume.check();
    let fs = volume.open(Options::default());
    assert!(content(&fs, &reopen(&fs, "reserved")) == data);
    // Deleting still works, and gives the space back.
    fs.unlink(fs.root(), b"filler").unwrap();
    fs.sync_all().unwrap();
    let again = create(&fs, "again");
    for at in 0..20 {
        fs.write(&again, at << 20, &block).unwrap();
    }
    fs.sync_all().unwrap();
    drop((again, fs));
    volume.check();
}

#[test]
fn no_acknowledged_byte_is_lost_to_a_full_volume() {
    for compress in [
        Compress::Off,
        Compress::Try(Algorithm::Zstd, Algorithm::Zstd.default_level()),
    ] {
        let volume = Volume::new(220, &[]);
        let options = Options {
            compress,
            ..Options::default()
        };
        let fs = volume.open(options.clone());
        let inodes: Vec<_> = (0..4).map(|n| create(&fs, &format!("f{n}"))).collect();
        // Writers that race for the last space.
        let lengths: Vec<usize> = std::thread::scope(|scope| {
            let workers: Vec<_> = inodes
                .iter()
                .enumerate()
                .map(|(index, inode)| {
                    let fs = &fs;
                    scope.spawn(move || {
                        let mut length = 0;
                        loop {
                            let block = noise((index * 100_000 + length) as u64, 50_000);
                            match fs.write(inode, length as u64, &block) {
                                Ok(count) => length += count,
                                Err(error) => {
                                    assert!(is_no_space(&error), "{error}");
                                    return length;
                                }
                            }
                            assert!(length < 250 << 20);
                        }
                    })
                })
                .collect();
            workers.into_iter().map(|w| w.join().unwrap()).collect()
        });
        fs.sync_all().unwrap();
        drop((inodes, fs));
        volume.check();
        let fs = volume.open(options);
        for (index, length) in lengths.iter().enumerate() {
            let found = content(&fs, &reopen(&fs, &format!("f{index}")));
            assert_eq!(found.len(), *length);
            let mut at = 0;
            while at < *length {
                let block = noise((index * 100_000 + at) as u64, 50_000);
                let end = (at + block.len()).min(*length);
                assert!(found[at..end] == block[..end - at], "file {index} at {at}");
                at = end;
            }
        }
    }
}

#[test]
fn the_budget_holds_with_many_writers() {
    let volume = Volume::new(600, &[]);
    let limit = 4 << 20;
    let fs = volume.open(Options {
        buffer_bytes: limit,
        ..Options::default()
    });
    let inodes: Vec<_> = (0..4).map(|n| create(&fs, &format!("f{n}"))).collect();
    let most = std::thread::scope(|scope| {
        let workers: Vec<_> = inodes
            .iter()
            .enumerate()
            .map(|(index, inode)| {
                let fs = &fs;
                scope.spawn(move || {
                    let mut most = 0;
                    let data = noise(index as u64, 1_500_000);
                    for at in 0..20 {
                        let written = fs.write(inode, at * 1_500_000, &data).unwrap();
                        assert_eq!(written, data.len());
                        most = most.max(fs.dirty_bytes());
                    }
                    most
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().unwrap()).max()
    });
    assert!(most.unwrap() <= limit as u64, "{most:?}");
    for (index, inode) in inodes.iter().enumerate() {
        let data = noise(index as u64, 1_500_000);
        assert!(
            content(&fs, inode)
                .chunks(1_500_000)
                .all(|part| part == data)
        );
    }
    fs.sync_all().unwrap();
    assert_eq!(fs.dirty_bytes(), 0);
    drop((inodes, fs));
    volume.check();
}

#[test]
fn damaged_data_are_an_error_and_name_both_checksums() {
    for (compress, mkfs) in [
        (Compress::Off, &["-d", "single"][..]),
        (
            Compress::Force(Algorithm::Zstd, Algorithm::Zstd.default_level()),
            &["-d", "single", "--csum", "xxhash"],
        ),
    ] {
        let volume = Volume::new(300, mkfs);
        let options = Options {
            compress,
            ..Options::default()
        };
        let fs = volume.open(options.clone());
        let inode = create(&fs, "file");
        let mut data = noise(9, 60_000);
        data.resize(131_072, 5);
        fs.write(&inode, 0, &data).unwrap();
        fs.sync_all().unwrap();
        let extents = fs.extent_map(&inode, 0..u64::MAX, 10).unwrap();
        let logical = extents[0].logical.unwrap();
        let map = fs.store().space().map();
        let physical = map.map(logical, 4096).unwrap().copies[0];
        let (id, device) = fs.store().space().devices().next().unwrap();
        assert_eq!(id, physical.device);
        let mut sector = vec![0; 4096];
        device.read_at(physical.offset, &mut sector).unwrap();
        sector[100] ^= 1;
        device.write_at(physical.offset, &sector).unwrap();
        drop((inode, fs, device));
        let fs = volume.open(options);
        let inode = reopen(&fs, "file");
        let mut bytes = vec![0; 4096];
        let error = fs.read(&inode, 0, &mut bytes).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, FsError::Damaged { .. }), "{text}");
        for needed in ["expected", "found", &format!("{logical}")] {
            assert!(text.contains(needed), "{needed} is missing in: {text}");
        }
    }
}

#[test]
fn cached_extents_are_never_stale() {
    let volume = Volume::new(300, &[]);
    let fs = volume.open(Options {
        compress: Compress::Force(Algorithm::Lzo, Algorithm::Lzo.default_level()),
        ..Options::default()
    });
    let inode = create(&fs, "file");
    fs.write(&inode, 0, b"x").unwrap();
    fs.sync_all().unwrap();
    // Almost all space is taken. So the space of an extent that was allocated
    // and freed in one generation is given out again at once.
    let filler = create(&fs, "filler");
    let spare = create(&fs, "spare");
    fs.fallocate(&spare, FallocateMode::Allocate, 0, 280 << 10)
        .unwrap();
    let mut at = 0;
    for step in [4 << 20, 256 << 10, 4096] {
        while fs
            .fallocate(&filler, FallocateMode::AllocateKeepSize, at, step)
            .is_ok()
        {
            at += step;
        }
    }
    drop(spare);
    fs.unlink(fs.root(), b"spare").unwrap();
    fs.sync_all().unwrap();
    let mut places = std::collections::HashSet::new();
    for round in 0..60_u64 {
        let mut data = noise(round, 60_000);
        data.resize(131_072, round as u8);
        fs.write(&inode, 0, &data).unwrap();
        fs.flush_inode(&inode).unwrap();
        let mut part = vec![0; 4096];
        for at in (0..131_072).step_by(4096) {
            assert_eq!(fs.read(&inode, at, &mut part).unwrap(), 4096);
            assert!(
                part == data[at as usize..at as usize + 4096],
                "round {round}"
            );
        }
        let map = fs.extent_map(&inode, 0..u64::MAX, 9).unwrap();
        assert!(map.iter().all(|extent| extent.compression.is_some()));
        places.insert(map[0].logical);
    }
    assert!(places.len() < 16, "no space was given out again");
}

#[test]
fn small_preallocated_files_keep_their_space() {
    let volume = Volume::new(200, &[]);
    let fs = volume.open(Options::default());
    let inode = create(&fs, "file");
    fs.fallocate(&inode, FallocateMode::AllocateKeepSize, 0, 65_536)
        .unwrap();
    fs.write(&inode, 0, b"few bytes").unwrap();
    fs.sync_all().unwrap();
    assert_eq!(fs.attributes_of(&inode).unwrap().allocated, 65_536);
    assert_eq!(content(&fs, &inode), b"few bytes");
    drop((inode, fs));
    volume.check();
}

#[test]
fn appends_never_overlap() {
    let volume = Volume::new(300, &[]);
    let fs = volume.open(Options::default());
    let inode = create(&fs, "log");
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let (fs, inode) = (&fs, &inode);
            scope.spawn(move || {
                for _ in 0..500 {
                    fs.append(inode, &[b'a' + writer; 100]).unwrap();
                }
            });
        }
    });
    let bytes = content(&fs, &inode);
    assert_eq!(bytes.len(), 4 * 500 * 100);
    for record in bytes.chunks(100) {
        assert!(record.iter().all(|byte| *byte == record[0]));
    }
}

#[test]
fn readers_see_every_acknowledged_write() {
    let volume = Volume::new(400, &[]);
    let fs = volume.open(Options {
        buffer_bytes: 8 << 20,
        ..Options::default()
    });
    let inode = create(&fs, "file");
    let done = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (fs, inode, done) = (&fs, &inode, &done);
        let writer = scope.spawn(move || {
            for index in 0..3000_u64 {
                let block = vec![(index % 250 + 1) as u8; 10_000];
                fs.write(inode, index * 10_000, &block).unwrap();
                done.store(index + 1, std::sync::atomic::Ordering::Release);
                if index % 700 == 0 {
                    fs.sync_all().unwrap();
                }
            }
        });
        for reader in 0..2_u64 {
            scope.spawn(move || {
                let mut block = vec![0; 10_000];
                let mut seed = reader + 7;
                loop {
                    let count = done.load(std::sync::atomic::Ordering::Acquire);
                    if count == 3000 {
                        return;
                    }
                    if count == 0 {
                        std::thread::yield_now();
                        continue;
                    }
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let index = if seed & 1 == 0 {
                        count - 1
                    } else {
                        (seed >> 33) % count
                    };
                    assert_eq!(fs.read(inode, index * 10_000, &mut block).unwrap(), 10_000);
                    let expected = (index % 250 + 1) as u8;
                    assert!(block.iter().all(|byte| *byte == expected), "block {index}");
                }
            });
        }
        writer.join().unwrap();
    });
}

/// A copy of the image: what a crash now would leave.
fn crash(volume: &Volume) -> Volume {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("v.img");
    let (from, to) = (volume.path.to_str().unwrap(), path.to_str().unwrap());
    run("cp", &["--sparse=always", from, to]);
    Volume { _dir: dir, path }
}

#[test]
fn a_small_file_survives_a_crash_amid_its_truncation() {
    let volume = Volume::new(200, &[]);
    let fs = volume.open(Options::default());
    let inode = create(&fs, "file");
    fs.write(&inode, 0, &[7; 1500]).unwrap();
    fs.sync_all().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, stop) = (&fs, &stop);
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Acquire) {
                fs.truncate(&inode, 1400).unwrap();
                fs.truncate(&inode, 700).unwrap();
                fs.write(&inode, 700, &[7; 800]).unwrap();
                fs.flush_inode(&inode).unwrap();
            }
        });
        // Inline files reach the device only by commits, which are all listed
        // here. Between them the image does not change.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..150 {
                fs.store().commit().unwrap();
                let left = crash(&volume);
                let found = left.open(Options::default());
                let bytes = content(&found, &reopen(&found, "file"));
                assert!(bytes.len() >= 700, "{} bytes are left", bytes.len());
                assert!(bytes.iter().all(|byte| *byte == 7));
            }
        }));
        stop.store(true, std::sync::atomic::Ordering::Release);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    drop((inode, fs));
    volume.check();
}

#[test]
fn a_file_of_many_pieces_is_shared_and_cut_in_steps() {
    let volume = Volume::new(400, &["-n", "4096"]);
    let fs = volume.open(Options::default());
    let source = create(&fs, "source");
    let target = create(&fs, "target");
    let mut model = vec![0; 2 * 1500 * 4096];
    for index in 0..1500 {
        let at = index * 2 * 4096;
        let data = noise(index as u64, 4096);
        fs.write(&source, at as u64, &data).unwrap();
        model[at..at + 4096].copy_from_slice(&data);
        fs.write(&target, at as u64 + 4096, &[3; 4096]).unwrap();
    }
    model.truncate(model.len() - 4096);
    fs.sync_all().unwrap();
    assert_eq!(
        fs.extent_map(&source, 0..u64::MAX, 9999).unwrap().len(),
        1500
    );
    assert_eq!(fs.extent_map(&source, 0..u64::MAX, 7).unwrap().len(), 7);
    let length = model.len() as u64;
    let used = |fs: &Filesystem| fs.store().read().used(butterfs_store::SpaceKind::Data);
    let before = used(&fs);
    let shared = fs.copy_range((&source, 0), (&target, 0), length).unwrap();
    assert_eq!(shared, length);
    assert!(content(&fs, &target)[..model.len()] == model[..]);
    fs.sync_all().unwrap();
    assert!(used(&fs) < before, "the target's own data are freed");
    fs.truncate(&source, 100_000).unwrap();
    assert!(content(&fs, &source) == model[..100_000]);
    fs.sync_all().unwrap();
    // What was cut away does not come back.
    fs.truncate(&source, 9 << 20).unwrap();
    assert!(
        content(&fs, &source)[100_000..]
            .iter()
            .all(|byte| *byte == 0)
    );
    fs.sync_all().unwrap();
    drop((source, target, fs));
    volume.check();
    let fs = volume.open(Options::default());
    assert!(content(&fs, &reopen(&fs, "target"))[..model.len()] == model[..]);
}

#[test]
fn units_without_a_piece_of_space_go_out_plain() {
    let volume = Volume::new(200, &[]);
    let zstd = Algorithm::Zstd;
    let options = Options {
        compress: Compress::Force(zstd, zstd.default_level()),
        ..Options::default()
    };
    let fs = volume.open(options.clone());
    let file = create(&fs, "file");
    let filler = create(&fs, "filler");
    let pieces = [create(&fs, "kept"), create(&fs, "freed")];
    for index in 0..400_u64 {
        let mode = FallocateMode::AllocateKeepSize;
        fs.fallocate(&pieces[(index % 2) as usize], mode, index * 8192, 8192)
            .unwrap();
    }
    let mut at = 0;
    for step in [4 << 20, 256 << 10, 4096] {
        while fs
            .fallocate(&filler, FallocateMode::AllocateKeepSize, at, step)
            .is_ok()
        {
            at += step;
        }
    }
    drop(pieces);
    fs.unlink(fs.root(), b"freed").unwrap();
    fs.sync_all().unwrap();
    let mut data = noise(5, 60_000);
    data.resize(131_072, 1);
    let whole = data.repeat(4);
    fs.write(&file, 0, &whole).unwrap();
    fs.sync_all().unwrap();
    let map = fs.extent_map(&file, 0..u64::MAX, 999).unwrap();
    assert!(map.len() > 30, "the space is in small pieces");
    assert!(map.iter().all(|extent| extent.compression.is_none()));
    assert!(content(&fs, &file) == whole);
    drop((file, filler, fs));
    volume.check();
    let fs = volume.open(options);
    assert!(content(&fs, &reopen(&fs, "file")) == whole);
}

/// If the volume wants explicit holes, a file that is smaller than a sector has
/// one as well.
#[test]
fn punching_all_of_a_small_file_leaves_a_hole() {
    let volume = Volume::new(300, &["-O", "^no-holes"]);
    let fs = volume.open(Options::default());
    for (name, length) in [("inline", 1000), ("was great", 5000)] {
        let inode = create(&fs, name);
        fs.write(&inode, 0, &vec![7; length]).unwrap();
        fs.sync_all().unwrap();
        fs.truncate(&inode, 1000).unwrap();
        fs.fallocate(&inode, FallocateMode::PunchHole, 0, 8192)
            .unwrap();
        assert_eq!(content(&fs, &inode), vec![0; 1000]);
        fs.sync_all().unwrap();
        volume.check();
        fs.write(&inode, 10, b"again").unwrap();
        fs.sync_all().unwrap();
    }
    drop(fs);
    volume.check();
}

/// Makes an ext4 file system and converts it.
fn converted() -> Volume {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("v.img");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(256 << 20).unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), noise(1, 1 << 20)).unwrap();
    let (source, image) = (source.to_str().unwrap(), path.to_str().unwrap());
    run(
        "mkfs.ext4",
        &["-q", "-F", "-b", "4096", "-d", source, image],
    );
    run("btrfs-convert", &["--no-progress", image]);
    Volume { _dir: dir, path }
}

#[test]
fn what_a_conversion_saved_cannot_be_overwritten() {
    let volume = converted();
    let fs = volume.open(Options::default());
    let saved = fs.lookup(fs.root(), b"ext2_saved").unwrap().inode;
    let image = fs.inode(fs.lookup(saved, b"image").unwrap().inode).unwrap();
    let other = create(&fs, "other");
    fs.write(&other, 0, &noise(2, 1 << 20)).unwrap();
    fs.sync_all().unwrap();

    let span = CloneSpan {
        from: 0,
        to: 0,
        length: 65536,
    };
    let mut results = vec![
        ("write", fs.write(&image, 0, b"x").map(drop)),
        ("append", fs.append(&image, b"x").map(drop)),
        ("truncate", fs.truncate(&image, 5)),
        ("extend", fs.truncate(&image, 1 << 30)),
        ("clone", fs.clone_range(&other, &image, span).map(drop)),
        (
            "copy",
            fs.copy_range((&other, 0), (&image, 0), 65536).map(drop),
        ),
        (
            "defragment",
            fs.defragment(&image, &Defragment::default()).map(drop),
        ),
        (
            "attribute",
            fs.set_xattr(&image, b"user.a", b"1", SetMode::Any),
        ),
        (
            "property",
            fs.set_xattr(&image, b"btrfs.compression", b"zstd", SetMode::Any),
        ),
        ("removal", fs.remove_xattr(&image, b"user.a")),
    ];
    for mode in [
        FallocateMode::Allocate,
        FallocateMode::AllocateKeepSize,
        FallocateMode::PunchHole,
        FallocateMode::ZeroRange,
        FallocateMode::ZeroRangeKeepSize,
    ] {
        results.push(("fallocate", fs.fallocate(&image, mode, 0, 4096)));
    }
    let mut deduped = fs.dedupe_range((&other, 0), 65536, &[(Arc::clone(&image), 0)]);
    results.push(("dedupe", deduped.remove(0).map(drop)));
    for (what, result) in results {
        assert!(
            matches!(result, Err(FsError::AccessDenied)),
            "{what}: {result:?}"
        );
    }

    // As in the kernel: its names, its owner and attributes of the system are
    // not its content.
    let mode = SetAttributes {
        mode: Some(0o600),
        ..SetAttributes::default()
    };
    fs.set_attributes(&image, &mode).unwrap();
    fs.set_xattr(&image, b"trusted.a", b"1", SetMode::Any)
        .unwrap();
    fs.link(image.id, saved, b"second").unwrap();
    fs.unlink(saved, b"second").unwrap();
    fs.sync_all().unwrap();
    drop((image, other, fs));
    volume.check();

    // The way back is still there.
    let path = volume.path.to_str().unwrap();
    run("btrfs-convert", &["-r", path]);
    run("e2fsck", &["-f", "-n", path]);
}

/// Changes the file extent of `inode` at `offset` behind its back.
fn spoil(fs: &Filesystem, inode: &Inode, offset: u64, change: impl Fn(&mut [u8])) {
    let key = Key::new(inode.id.number.get(), ItemType::EXTENT_DATA, offset);
    let mut item = {
        let engine = fs.store().read();
        let (leaf, slot) = butterfs_tree::find(&*engine, inode.id.tree, &key)
            .unwrap()
            .unwrap();
        leaf.data(slot).to_vec()
    };
    change(&mut item);
    let replaced = fs.store().commit_with(20, |engine| {
        butterfs_tree::replace(engine, inode.id.tree, &key, &item).map_err(FsError::from)
    });
    replaced.unwrap();
}

/// Offset of the disk address in a file extent's item. A change of its lowest
/// bit moves it off the sector.
const ADDRESS: usize = 21;

#[test]
fn a_file_that_cannot_be_flushed_stops_nothing_else() {
    let volume = Volume::new(300, &[]);
    let fs = volume.open(Options {
        buffer_bytes: 1 << 20,
        ..Options::default()
    });
    let bad = create(&fs, "bad");
    fs.write(&bad, 0, &[1; 8192]).unwrap();
    fs.sync_all().unwrap();
    spoil(&fs, &bad, 0, |item| item[ADDRESS] ^= 1);
    fs.write(&bad, 4096, &[2; 4096]).unwrap();
    let good = create(&fs, "good");
    fs.write(&good, 0, b"good").unwrap();

    let error = fs.sync_all().unwrap_err();
    assert_eq!(error.errno(), 5);
    let FsError::NotFlushed {
        inode,
        files: 1,
        bytes: 4096,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!(inode, bad.id);
    let left = crash(&volume);
    let found = left.open(Options::default());
    assert_eq!(content(&found, &reopen(&found, "good")), b"good");
    drop(found);

    // Only the bad file gets the error, and it takes no more data.
    fs.fsync(&good).unwrap();
    fs.store().commit().unwrap();
    assert_eq!(fs.fsync(&bad).unwrap_err().errno(), 5);
    assert_eq!(fs.write(&bad, 0, &[3; 4096]).unwrap_err().errno(), 5);
    // Others write more than the budget holds.
    let data = noise(5, 3 << 20);
    fs.write(&good, 0, &data).unwrap();
    assert_eq!(fs.dirty_bytes() % 4096, 0);

    // The data of the bad file waited.
    spoil(&fs, &bad, 0, |item| item[ADDRESS] ^= 1);
    fs.sync_all().unwrap();
    drop((bad, good, fs));
    let fs = volume.open(Options::default());
    let bad = content(&fs, &reopen(&fs, "bad"));
    assert!(bad[..4096] == [1; 4096] && bad[4096..] == [2; 4096]);
    assert!(content(&fs, &reopen(&fs, "good")) == data);
    drop(fs);
    volume.check();
}

#[test]
fn writers_do_not_wait_for_ever_for_files_that_cannot_be_flushed() {
    let volume = Volume::new(300, &[]);
    let fs = volume.open(Options {
        buffer_bytes: 1 << 20,
        ..Options::default()
    });
    let mut bad = Vec::new();
    for number in 0..16 {
        let inode = create(&fs, &format!("bad{number}"));
        fs.write(&inode, 0, &[1; 128 << 10]).unwrap();
        bad.push(inode);
    }
    fs.sync_all().unwrap();
    for inode in &bad {
        spoil(&fs, inode, 0, |item| item[ADDRESS] ^= 1);
    }
    let mut last = Ok(0);
    for inode in &bad {
        last = fs.write(inode, 0, &[2; 128 << 10]);
    }
    // Their data fill all memory. They get an error, and no data are forgotten.
    assert_eq!(last.unwrap_err().errno(), 5);
    let good = create(&fs, "good");
    let _ = fs.write(&good, 0, &[3; 256 << 10]);
    fs.store().commit().unwrap();
    for inode in &bad {
        spoil(&fs, inode, 0, |item| item[ADDRESS] ^= 1);
    }
    fs.write(&good, 0, &[4; 1 << 20]).unwrap();
    fs.sync_all().unwrap();
    assert_eq!(content(&fs, &bad[0])[..], [2; 128 << 10]);
    drop((bad, good, fs));
    volume.check();
}

/// What is left of a file after a crash that follows a commit which did not
/// flush it.
fn after_commit(fs: &Filesystem, volume: &Volume, name: &str) -> Vec<u8> {
    fs.store().commit().unwrap();
    let left = crash(volume);
    let found = left.open(Options::default());
    content(&found, &reopen(&found, name))
}

#[test]
fn content_is_replaced_in_one_piece() {
    let volume = Volume::new(400, &[]);
    // Every second sector: more pieces than one transaction drops.
    let pieces = |fs: &Filesystem, inode: &Arc<Inode>| {
        for at in 0..500 {
            fs.write(inode, at * 8192, &[b'o'; 4096]).unwrap();
        }
    };
    let fs = volume.open(Options::default());
    let small = create(&fs, "small");
    let large = create(&fs, "large");
    let many = create(&fs, "many");
    let in_place = create(&fs, "in place");
    fs.set_flags(&in_place, InodeFlags::NODATACOW).unwrap();
    fs.write(&small, 0, b"old").unwrap();
    for inode in [&large, &in_place] {
        fs.write(inode, 0, &vec![b'o'; 300_000]).unwrap();
    }
    pieces(&fs, &many);
    fs.sync_all().unwrap();
    let old = content(&fs, &many);
    for (inode, name) in [
        (&small, "small"),
        (&large, "large"),
        (&many, "many"),
        (&in_place, "in place"),
    ] {
        let before = content(&fs, inode);
        fs.truncate(inode, 0).unwrap();
        let attributes = fs.attributes_of(inode).unwrap();
        assert_eq!((attributes.size, attributes.allocated), (0, 0), "{name}");
        assert!(content(&fs, inode).is_empty());
        // Behind the end, so that old content would show.
        fs.write(inode, 10, b"new").unwrap();
        assert_eq!(content(&fs, inode), b"\0\0\0\0\0\0\0\0\0\0new", "{name}");
        assert_eq!(fs.attributes_of(inode).unwrap().allocated, 4096);
        assert!(after_commit(&fs, &volume, name) == before, "{name}");
        fs.flush_inode(inode).unwrap();
        let after = after_commit(&fs, &volume, name);
        assert_eq!(after, b"\0\0\0\0\0\0\0\0\0\0new", "{name}");
        assert_eq!(fs.attributes_of(inode).unwrap().allocated, 4096);
    }
    // Nothing replaces the content that was cut, and a sync publishes that.
    pieces(&fs, &many);
    fs.sync_all().unwrap();
    let before = content(&fs, &many);
    assert!(before[4096..] == old[4096..]);
    fs.truncate(&many, 0).unwrap();
    fs.truncate(&many, 5000).unwrap();
    assert!(content(&fs, &many) == [0; 5000]);
    fs.truncate(&many, 0).unwrap();
    fs.sync_all().unwrap();
    drop((small, large, many, in_place, fs));
    volume.check();
    let fs = volume.open(Options::default());
    assert!(content(&fs, &reopen(&fs, "many")).is_empty());
}

#[test]
fn waiting_data_take_no_space_twice() {
    let volume = Volume::new(200, &[]);
    let fs = volume.open(Options::default());
    let allocated = |inode: &Inode| fs.attributes_of(inode).unwrap().allocated;
    let inode = create(&fs, "file");
    fs.write(&inode, 0, &[1; 20_000]).unwrap();
    assert_eq!(allocated(&inode), 20_480);
    fs.sync_all().unwrap();
    assert_eq!(allocated(&inode), 20_480);
    // Over two sectors that are there, and two that are not.
    fs.write(&inode, 4096 * 3, &[2; 4096 * 4]).unwrap();
    assert_eq!(allocated(&inode), 4096 * 7);
    fs.sync_all().unwrap();
    assert_eq!(allocated(&inode), 4096 * 7);
    let inode = create(&fs, "small");
    for text in ["small", "other", "yet another"] {
        fs.write(&inode, 0, text.as_bytes()).unwrap();
        assert_eq!(allocated(&inode), 4096);
        fs.sync_all().unwrap();
        assert_eq!(allocated(&inode), 4096);
    }
    let inode = create(&fs, "reserved");
    fs.fallocate(&inode, FallocateMode::AllocateKeepSize, 0, 1 << 20)
        .unwrap();
    fs.write(&inode, 0, &[1; 8192]).unwrap();
    assert_eq!(allocated(&inode), 1 << 20);
}
