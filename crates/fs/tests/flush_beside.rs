//! A file is read and written while its data are on their way to the device.

mod common;

use butterfs_device::fault::{Fault, When};
use butterfs_device::{Access, BlockDevice, FaultDevice, FileDevice, Operation};
use butterfs_format::compression::Algorithm;
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::file::FallocateMode;
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::options::Compress;
use butterfs_fs::{Filesystem, Inode, Options};
use butterfs_store::{Degraded, OpenOptions, Store};
use common::paused::PausedDevice;
use common::{Random, check, check_ours, mkfs, open_subvolume, run};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

const KIB: u64 = 1024;
/// What waits for a flush is seen to wait for this long.
const A_WHILE: Duration = Duration::from_millis(100);

/// How the file is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    InPlace,
    Preallocated,
    Compressed,
}

const KINDS: [Kind; 4] = [
    Kind::Plain,
    Kind::InPlace,
    Kind::Preallocated,
    Kind::Compressed,
];

struct Bench {
    paused: Arc<PausedDevice>,
    faults: Arc<FaultDevice>,
    fs: Filesystem,
}

fn open(image: &Path, kind: Kind) -> Bench {
    let file = Arc::new(FileDevice::open(image, Access::ReadWrite).unwrap());
    let faults = Arc::new(FaultDevice::new(file, 1));
    let paused = Arc::new(PausedDevice::new(Arc::clone(&faults) as _));
    let store = Store::open(Arc::clone(&paused) as _, &OpenOptions::default()).unwrap();
    let options = Options {
        compress: match kind {
            Kind::Compressed => Compress::Force(Algorithm::Zstd, Algorithm::Zstd.default_level()),
            _ => Compress::Off,
        },
        ..Options::default()
    };
    let fs = Filesystem::new(Arc::new(store), TreeId::FS, options);
    Bench { paused, faults, fs }
}

fn create(fs: &Filesystem, kind: Kind) -> Arc<Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = fs.create(fs.root(), b"file", &new).unwrap();
    match kind {
        Kind::InPlace => fs.set_flags(&inode, InodeFlags::NODATACOW).unwrap(),
        Kind::Preallocated => fs
            .fallocate(&inode, FallocateMode::AllocateKeepSize, 0, 256 * KIB)
            .unwrap(),
        Kind::Plain | Kind::Compressed => {}
    }
    inode
}

fn read(fs: &Filesystem, inode: &Inode, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; length as usize];
    let count = fs.read(inode, offset, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

fn blocks(parts: &[(u8, u64)]) -> Vec<u8> {
    let part = |(byte, kib): &(u8, u64)| vec![*byte; (kib * KIB) as usize];
    parts.iter().flat_map(part).collect()
}

/// A synced file of 64 KiB of `a`, and 16 KiB to 48 KiB of `b` over it, whose
/// flush stops in the middle while `meanwhile` runs.
fn while_data_leave(bench: &Bench, kind: Kind, meanwhile: impl FnOnce(&Arc<Inode>)) -> Arc<Inode> {
    let fs = &bench.fs;
    let inode = create(fs, kind);
    fs.write(&inode, 0, &blocks(&[(b'a', 64)])).unwrap();
    fs.sync_all().unwrap();
    fs.write(&inode, 16 * KIB, &blocks(&[(b'b', 32)])).unwrap();
    while_flush_stops(bench, &inode, || meanwhile(&inode));
    inode
}

fn while_flush_stops(bench: &Bench, inode: &Inode, meanwhile: impl FnOnce()) {
    let Bench { paused, fs, .. } = bench;
    thread::scope(|scope| {
        let (name, started) = channel();
        scope.spawn(move || {
            name.send(paused.hold_me()).unwrap();
            fs.flush_inode(inode)
        });
        let flusher = started.recv().unwrap();
        paused.wait_until_stopped(&flusher);
        let _release = Release(paused, flusher);
        meanwhile();
    });
}

/// Lets the thread of this name go on, also after a failed test.
struct Release<'p>(&'p PausedDevice, String);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.release(&self.1);
    }
}

fn verify(bench: Bench, image: &Path, inode: Arc<Inode>, expected: &[u8]) {
    let length = expected.len() as u64 + 10;
    assert!(read(&bench.fs, &inode, 0, length) == expected);
    bench.fs.sync_all().unwrap();
    assert!(read(&bench.fs, &inode, 0, length) == expected);
    let id = inode.id;
    drop((inode, bench));
    check(image);
    check_ours(image);
    let fs = open_subvolume(image, TreeId::FS);
    let again = |id: InodeId| read(&fs, &fs.inode(id).unwrap(), 0, length);
    assert!(again(id) == expected, "as it was");
}

#[test]
fn reads_and_plain_writes_go_on() {
    for kind in KINDS {
        let (_folder, image) = mkfs(256 << 20, &[]);
        let bench = open(&image, kind);
        let fs = &bench.fs;
        let inode = while_data_leave(&bench, kind, |inode| {
            assert!(read(fs, inode, 16 * KIB, 32 * KIB) == blocks(&[(b'b', 32)]));
            assert!(read(fs, inode, 0, 16 * KIB) == blocks(&[(b'a', 16)]));
            assert!(read(fs, inode, 50 * KIB, 64 * KIB) == blocks(&[(b'a', 14)]));
            fs.write(inode, 20 * KIB, &blocks(&[(b'c', 4)])).unwrap();
            let mixed = [(b'b', 4), (b'c', 4), (b'b', 8)];
            assert!(read(fs, inode, 16 * KIB, 16 * KIB) == blocks(&mixed));
            // Before the data, behind them, and longer than the file.
            fs.write(inode, 12 * KIB, &blocks(&[(b'd', 4)])).unwrap();
            fs.write(inode, 60 * KIB, &blocks(&[(b'e', 8)])).unwrap();
            assert_eq!(fs.append(inode, b"end").unwrap(), (68 * KIB, 3));
            assert_eq!(read(fs, inode, 68 * KIB, 100), b"end");
            let attributes = fs.attributes_of(inode).unwrap();
            assert_eq!(attributes.size, 68 * KIB + 3);
            let allocated = match kind {
                Kind::Preallocated => 256 * KIB,
                _ => 72 * KIB,
            };
            assert_eq!(attributes.allocated, allocated, "{kind:?}");
        });
        let synced = || {
            fs.sync_all().unwrap();
            fs.attributes_of(&inode).unwrap().allocated
        };
        let waiting = fs.attributes_of(&inode).unwrap().allocated;
        assert_eq!(waiting, synced(), "{kind:?}");
        let parts = [
            (b'a', 12),
            (b'd', 4),
            (b'b', 4),
            (b'c', 4),
            (b'b', 24),
            (b'a', 12),
            (b'e', 8),
        ];
        let expected = [blocks(&parts), b"end".to_vec()].concat();
        verify(bench, &image, inode, &expected);
    }
}

/// Of a file that has nothing on the device yet.
#[test]
fn space_is_told_while_the_first_data_leave() {
    for kind in [Kind::Plain, Kind::InPlace, Kind::Compressed] {
        let (_folder, image) = mkfs(256 << 20, &[]);
        let bench = open(&image, kind);
        let fs = &bench.fs;
        let inode = create(fs, kind);
        fs.write(&inode, 0, &blocks(&[(b'a', 64)])).unwrap();
        let allocated = || fs.attributes_of(&inode).unwrap().allocated;
        while_flush_stops(&bench, &inode, || {
            assert_eq!(allocated(), 64 * KIB, "{kind:?}");
            fs.write(&inode, 60 * KIB, &blocks(&[(b'c', 8)])).unwrap();
            assert_eq!(allocated(), 68 * KIB, "{kind:?}");
        });
        assert_eq!(allocated(), 68 * KIB, "{kind:?}");
        fs.sync_all().unwrap();
        assert_eq!(allocated(), 68 * KIB, "{kind:?}");
    }
}

#[test]
fn all_else_waits_for_the_end() {
    type Change = fn(&Filesystem, &Arc<Inode>);
    let changes: [(&str, Change, Vec<u8>); 8] = [
        (
            "cut",
            |fs, inode| fs.truncate(inode, 20 * KIB).unwrap(),
            blocks(&[(b'a', 16), (b'b', 4)]),
        ),
        (
            "a hole",
            |fs, inode| {
                let punch = FallocateMode::PunchHole;
                fs.fallocate(inode, punch, 20 * KIB, 8 * KIB).unwrap();
            },
            blocks(&[(b'a', 16), (b'b', 4), (0, 8), (b'b', 20), (b'a', 16)]),
        ),
        (
            "part of a sector",
            |fs, inode| {
                fs.write(inode, 21 * KIB, &blocks(&[(b'c', 2)])).unwrap();
            },
            blocks(&[(b'a', 16), (b'b', 5), (b'c', 2), (b'b', 25), (b'a', 16)]),
        ),
        (
            "the end of a sector",
            |fs, inode| {
                fs.write(inode, 21 * KIB, &blocks(&[(b'c', 3)])).unwrap();
            },
            blocks(&[(b'a', 16), (b'b', 5), (b'c', 3), (b'b', 24), (b'a', 16)]),
        ),
        (
            "the beginning of a sector",
            |fs, inode| {
                fs.write(inode, 20 * KIB, &blocks(&[(b'c', 3)])).unwrap();
            },
            blocks(&[(b'a', 16), (b'b', 4), (b'c', 3), (b'b', 25), (b'a', 16)]),
        ),
        (
            "behind the end",
            |fs, inode| {
                fs.write(inode, 68 * KIB, &blocks(&[(b'c', 4)])).unwrap();
            },
            blocks(&[(b'a', 16), (b'b', 32), (b'a', 16), (0, 4), (b'c', 4)]),
        ),
        (
            "both kinds of data",
            |fs, inode| {
                let expected = blocks(&[(b'a', 4), (b'b', 4)]);
                assert!(read(fs, inode, 12 * KIB, 8 * KIB) == expected);
            },
            blocks(&[(b'a', 16), (b'b', 32), (b'a', 16)]),
        ),
        (
            "another flush",
            |fs, inode| {
                fs.write(inode, 20 * KIB, &blocks(&[(b'c', 4)])).unwrap();
                fs.fsync(inode).unwrap();
            },
            blocks(&[(b'a', 16), (b'b', 4), (b'c', 4), (b'b', 24), (b'a', 16)]),
        ),
    ];
    for (what, change, expected) in changes {
        let (_folder, image) = mkfs(256 << 20, &[]);
        let bench = open(&image, Kind::Plain);
        let fs = &bench.fs;
        let (done, waits) = channel();
        let inode = thread::scope(|scope| {
            while_data_leave(&bench, Kind::Plain, |inode| {
                let inode = Arc::clone(inode);
                scope.spawn(move || {
                    change(fs, &inode);
                    done.send(()).unwrap();
                });
                let early = waits.recv_timeout(A_WHILE);
                assert_eq!(early, Err(RecvTimeoutError::Timeout), "{what}");
            })
        });
        waits.recv().unwrap();
        verify(bench, &image, inode, &expected);
    }
}

/// What could not be written goes back below what came later.
#[test]
fn nothing_is_lost_if_the_device_fails() {
    for kind in KINDS {
        let (_folder, image) = mkfs(256 << 20, &[]);
        let bench = open(&image, kind);
        let fs = &bench.fs;
        let inode = while_data_leave(&bench, kind, |inode| {
            fs.write(inode, 20 * KIB, &blocks(&[(b'c', 4)])).unwrap();
            fs.write(inode, 64 * KIB, &blocks(&[(b'd', 4)])).unwrap();
            let failure = Fault::Fail(Operation::Write, When::After(0));
            bench.faults.inject(failure);
        });
        let parts = [(b'b', 4), (b'c', 4), (b'b', 24), (b'a', 16), (b'd', 4)];
        assert!(read(fs, &inode, 16 * KIB, 64 * KIB) == blocks(&parts));
        assert_eq!(fs.dirty_bytes(), 36 * KIB, "{kind:?}");
        fs.flush_inode(&inode).unwrap();
        assert_eq!(fs.dirty_bytes(), 0, "{kind:?}");
        let expected = [blocks(&[(b'a', 16)]), blocks(&parts)].concat();
        verify(bench, &image, inode, &expected);
    }
}

/// Data that come while the others are flushed cannot be written.
#[test]
fn a_subvolume_is_not_read_only_while_data_wait() {
    let (_folder, image) = mkfs(256 << 20, &[]);
    let bench = open(&image, Kind::Plain);
    let Bench { paused, faults, fs } = &bench;
    let inode = create(fs, Kind::Plain);
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let later = fs.create(fs.root(), b"later", &new).unwrap();
    fs.write(&inode, 0, &blocks(&[(b'a', 64)])).unwrap();
    let done = thread::scope(|scope| {
        let (name, started) = channel();
        let setter = scope.spawn(move || {
            name.send(paused.hold_me()).unwrap();
            fs.set_subvolume_access(TreeId::FS, Access::ReadOnly)
        });
        let setter_name = started.recv().unwrap();
        paused.wait_until_stopped(&setter_name);
        fs.write(&later, 0, &blocks(&[(b'b', 64)])).unwrap();
        faults.inject(Fault::Fail(Operation::Write, When::After(1)));
        paused.release(&setter_name);
        setter.join().unwrap()
    });
    done.unwrap_err();
    assert_eq!(
        fs.subvolume_access(TreeId::FS).unwrap(),
        Access::ReadWrite,
        "its content still changes"
    );
    fs.set_subvolume_access(TreeId::FS, Access::ReadOnly)
        .unwrap();
    assert_eq!(fs.dirty_bytes(), 0);
    verify(bench, &image, later, &blocks(&[(b'b', 64)]));
}

/// While a row is overwritten, its data and its parity do not match, so nothing
/// may be rebuilt from it.
#[test]
fn nothing_is_rebuilt_from_a_row_that_is_overwritten() {
    const ELEMENT: u64 = 64 * KIB;
    let old = blocks(&[(b'a', 64), (b'b', 64)]);
    let mut stopped = 0;
    for missing in 0..3 {
        for slow in (0..3).filter(|slow| *slow != missing) {
            let folder = tempfile::tempdir().unwrap();
            let names = ["one", "two", "three"].map(|name| folder.path().join(name));
            let mut words = vec!["-q", "-d", "raid5", "-m", "raid1"];
            for name in &names {
                let file = std::fs::File::create(name).unwrap();
                file.set_len(300 << 20).unwrap();
                words.push(name.to_str().unwrap());
            }
            run("mkfs.btrfs", &words);
            let device = |name: &Path| -> Arc<dyn BlockDevice> {
                Arc::new(FileDevice::open(name, Access::ReadWrite).unwrap())
            };
            let mut devices: Vec<_> = names.iter().map(|name| device(name)).collect();
            let open = |devices: Vec<Arc<dyn BlockDevice>>| {
                let options = OpenOptions {
                    degraded: Degraded::Allowed,
                    ..OpenOptions::default()
                };
                let store = Store::open_all(devices, &options).unwrap();
                Filesystem::new(Arc::new(store), TreeId::FS, Options::default())
            };
            let fs = open(devices.clone());
            let inode = create(&fs, Kind::InPlace);
            fs.write(&inode, 0, &old).unwrap();
            fs.sync_all().unwrap();
            drop((inode, fs));
            let paused = Arc::new(PausedDevice::new(Arc::clone(&devices[slow])));
            devices[slow] = Arc::clone(&paused) as _;
            devices.remove(missing);
            let fs = open(devices);
            let id = fs.lookup(fs.root(), b"file").unwrap().inode;
            let inode = fs.inode(id).unwrap();
            for written in [0, ELEMENT] {
                fs.write(&inode, written, &blocks(&[(b'c', 4)])).unwrap();
                thread::scope(|scope| {
                    let (name, started) = channel();
                    let (fs, inode, paused) = (&fs, &inode, &paused);
                    scope.spawn(move || {
                        name.send(paused.hold_me()).unwrap();
                        fs.flush_inode(inode).unwrap();
                    });
                    let flusher = started.recv().unwrap();
                    stopped += u32::from(paused.stops_within(&flusher, A_WHILE));
                    let _release = Release(paused, flusher);
                    let (done, waits) = channel();
                    let other = ELEMENT - written;
                    scope.spawn(move || done.send(read(fs, inode, other, ELEMENT)));
                    if let Ok(found) = waits.recv_timeout(A_WHILE) {
                        let expected = match other {
                            0 => blocks(&[(b'c', 4), (b'a', 60)]),
                            _ => blocks(&[(b'b', 64)]),
                        };
                        assert!(found == expected, "{missing}, {slow}, {written}");
                    }
                });
            }
        }
    }
    assert!(stopped >= 6, "{stopped}");
}

/// Threads that each know what their part of one file holds. The parts meet in
/// the middle of sectors.
#[test]
fn threads_change_parts_of_one_file() {
    const THREADS: u64 = 4;
    const PART: u64 = 50_001;
    for (number, kind) in (1..).zip(KINDS) {
        let (_folder, image) = mkfs(256 << 20, &[]);
        let bench = open(&image, kind);
        let inode = create(&bench.fs, kind);
        let fs = &bench.fs;
        fs.write(&inode, 0, &vec![0; (THREADS * PART) as usize])
            .unwrap();
        fs.sync_all().unwrap();
        bench.paused.linger(number);
        let parts: Vec<Vec<u8>> = thread::scope(|scope| {
            let change = |thread: u64| {
                let inode = &inode;
                move || {
                    let mut random = Random(number * 100 + thread);
                    let start = thread * PART;
                    let mut model = vec![0; PART as usize];
                    for _ in 0..400 {
                        let from = random.below(PART);
                        // Often whole sectors.
                        let from = match random.below(2) {
                            0 => (start + from).next_multiple_of(4096) - start,
                            _ => from,
                        };
                        let from = from.min(PART - 1);
                        let length = [4096, 1 + random.below(20_000)][random.below(2) as usize];
                        let end = match random.below(2) {
                            0 => (start + from + length).next_multiple_of(4096) - start,
                            _ => from + length,
                        };
                        let range = from as usize..end.min(PART) as usize;
                        match random.below(8) {
                            0 => fs.fsync(inode).unwrap(),
                            1 => fs.flush_inode(inode).unwrap(),
                            2..5 => {
                                let length = (range.end - range.start) as u64;
                                let found = read(fs, inode, start + from, length);
                                assert!(found == model[range], "{kind:?}");
                            }
                            _ => {
                                let data = random.data(range.end - range.start);
                                fs.write(inode, start + from, &data).unwrap();
                                model[range].copy_from_slice(&data);
                            }
                        }
                    }
                    model
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(change(n))).collect();
            threads.into_iter().map(|one| one.join().unwrap()).collect()
        });
        verify(bench, &image, inode, &parts.concat());
    }
}
