//! Space that is freed while another operation still uses it: by a subvolume
//! that is deleted, by a replay, below a view.

use super::common::{check, check_ours, mkfs, open_subvolume, open_with};
use super::{SECTOR, content, create, data};
use butterfs_device::{Access, BlockDevice, DeviceError, FileDevice};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::{DeviceOffset, InodeNumber, TreeId};
use butterfs_fs::file::CloneSpan;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::options::DataCow;
use butterfs_fs::subvolume::Cleaning;
use butterfs_fs::{Filesystem, FsError, Inode, Options};
use butterfs_store::{DataExtent, DataOwner, OpenOptions, SpaceKind, Store};
use butterfs_tree::NodeSource;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// A file in a subvolume of its own.
fn file_beside(fs: &Filesystem, subvolume: &str) -> Arc<Inode> {
    let directory = NewInode::new(S_IFDIR | 0o755, Owner::default());
    let tree = fs
        .create_subvolume(fs.root(), subvolume.as_bytes(), &directory)
        .unwrap();
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    fs.create(Filesystem::root_of(tree), b"file", &new).unwrap()
}

fn judge(image: &Path) {
    check_ours(image);
    check(image);
}

/// A thread clones a file while its subvolume is deleted and freed. The volume
/// stays whole, and nothing is shared that is free.
#[test]
fn a_clone_survives_the_deletion_of_its_source() {
    const PIECES: u64 = 12_000;
    let (_dir, image) = mkfs(512 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let source = file_beside(&fs, "gone");
    // Extents of the running generation, which are free at once.
    for at in 0..PIECES {
        fs.write(&source, at * 2 * SECTOR, &[at as u8; SECTOR as usize])
            .unwrap();
    }
    fs.flush_inode(&source).unwrap();
    let target = create(&fs, "target", b"");
    let nodes = || {
        let engine = fs.store().read();
        engine.dirty_bytes() / engine.node_size()
    };
    let before = nodes();
    let cloned = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cloner = scope.spawn(|| {
            let result = fs.clone_range(&source, &target, CloneSpan::default());
            cloned.store(true, Ordering::SeqCst);
            result
        });
        // The cleaner of a mount.
        scope.spawn(|| {
            while !cloned.load(Ordering::SeqCst) || fs.has_dead_subvolumes().unwrap() {
                if fs.clean().unwrap() == Cleaning::Idle {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        while nodes() < before + 3 && !cloned.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        fs.delete_subvolume(fs.root(), b"gone").unwrap();
        match cloner.join().unwrap() {
            Ok(length) => assert_eq!(length, (2 * PIECES - 1) * SECTOR),
            Err(error) => assert!(matches!(error, FsError::NotFound), "{error}"),
        }
    });
    // What was freed meanwhile belongs to others.
    create(&fs, "other", &data(3, 8 << 20));
    fs.sync_all().unwrap();
    let found = content(&fs, &target);
    for (at, sectors) in found.chunks(2 * SECTOR as usize).enumerate() {
        assert!(
            sectors[..SECTOR as usize]
                .iter()
                .all(|byte| *byte == at as u8)
        );
    }
    drop((source, target, fs));
    judge(&image);
}

/// A device on which one thread's reads wait.
#[derive(Debug)]
struct Gate {
    under: FileDevice,
    held: Mutex<Option<ThreadId>>,
    stopped: AtomicBool,
}

impl BlockDevice for Gate {
    fn size(&self) -> u64 {
        self.under.size()
    }

    fn identity(&self) -> String {
        self.under.identity()
    }

    fn access(&self) -> Access {
        self.under.access()
    }

    fn read_at(&self, offset: DeviceOffset, buffer: &mut [u8]) -> Result<(), DeviceError> {
        while *self.held.lock().unwrap() == Some(std::thread::current().id()) {
            self.stopped.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        self.under.read_at(offset, buffer)
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.under.write_at(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.under.flush()
    }
}

fn wait_until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A thread reads a file while its subvolume is deleted: the space stays until
/// the read is done.
#[test]
fn nothing_is_freed_under_a_reader() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let gate = Arc::new(Gate {
        under: FileDevice::open(&image, Access::ReadWrite).unwrap(),
        held: Mutex::new(None),
        stopped: AtomicBool::new(false),
    });
    let device: Arc<dyn BlockDevice> = gate.clone();
    let store = Store::open(device, &OpenOptions::default()).unwrap();
    let fs = Filesystem::new(Arc::new(store), TreeId::FS, Options::default());
    let written = data(1, 16 * SECTOR);
    let file = file_beside(&fs, "gone");
    fs.write(&file, 0, &written).unwrap();
    fs.sync_all().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            *gate.held.lock().unwrap() = Some(std::thread::current().id());
            content(&fs, &file)
        });
        wait_until(|| gate.stopped.load(Ordering::SeqCst));
        let deletion = scope.spawn(|| fs.delete_subvolume(fs.root(), b"gone").unwrap());
        wait_until(|| fs.has_dead_subvolumes().unwrap());
        let cleaned = fs.clean().unwrap();
        *gate.held.lock().unwrap() = None;
        assert_eq!(cleaned, Cleaning::Idle);
        assert!(reader.join().unwrap() == written);
        deletion.join().unwrap();
    });
    assert!(matches!(fs.clean().unwrap(), Cleaning::Freed(_)));
    let mut byte = [0];
    assert!(matches!(
        fs.read(&file, 0, &mut byte),
        Err(FsError::NotFound)
    ));
    fs.sync_all().unwrap();
    drop((file, fs, gate));
    judge(&image);
}

/// Without copy-on-write: as long as a deletion is not committed, a crash may
/// bring back what the deleted subvolume shares. So it is not overwritten.
#[test]
fn a_deletion_that_is_not_committed_keeps_what_it_shares() {
    let options = Options {
        data_cow: DataCow::Off,
        ..Options::default()
    };
    let (dir, image) = mkfs(256 << 20, &[]);
    let fs = open_with(&image, TreeId::FS, &options);
    let old = data(1, 4 * SECTOR);
    let file = create(&fs, "file", &old);
    let beside = file_beside(&fs, "gone");
    fs.clone_range(&file, &beside, CloneSpan::default())
        .unwrap();
    fs.sync_all().unwrap();
    fs.delete_subvolume(fs.root(), b"gone").unwrap();
    fs.clean_all().unwrap();
    fs.write(&file, 0, &data(2, 4 * SECTOR)).unwrap();
    fs.flush_inode(&file).unwrap();
    let crashed = dir.path().join("crashed.img");
    std::fs::copy(&image, &crashed).unwrap();
    let after = open_with(&crashed, TreeId::FS, &options);
    let gone = after.lookup(after.root(), b"gone").unwrap().inode;
    let there = after.lookup(gone, b"file").unwrap().inode;
    assert!(content(&after, &after.inode(there).unwrap()) == old);
    drop(after);
    // After the commit nobody else has it.
    fs.sync_all().unwrap();
    fs.write(&file, 0, &data(3, 4 * SECTOR)).unwrap();
    fs.sync_all().unwrap();
    let extents = super::extents(&fs, &file);
    fs.write(&file, 0, &data(4, 4 * SECTOR)).unwrap();
    fs.sync_all().unwrap();
    assert_eq!(super::extents(&fs, &file), extents, "in place again");
    drop((file, beside, fs));
    judge(&image);
}

/// What a replay takes over in a block group that is not yet loaded is not free
/// when the group is loaded.
#[test]
fn what_a_replay_took_over_is_not_given_out() {
    let (_dir, image) = mkfs(64 << 20, &["--mixed"]);
    let device = FileDevice::open(&image, Access::ReadWrite).unwrap();
    let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
    let mut engine = store.begin_replay().unwrap();
    let mut groups = engine.groups();
    let group =
        groups.find(|group| group.flags.contains(BlockGroupFlags::DATA) && group.free.is_none());
    let group = group.unwrap();
    drop(groups);
    let range = group.end() - (1 << 20)..group.end() - (1 << 19);
    let extent = DataExtent {
        logical: butterfs_format::Logical(range.start),
        length: range.end - range.start,
    };
    engine.space_map_mut().pin_for_replay(&range).unwrap();
    engine.space_map_mut().adopt_for_replay(extent).unwrap();
    let owner = DataOwner {
        tree: TreeId::FS,
        inode: InodeNumber(257),
        offset: 0,
    };
    engine.add_data_extent(extent, owner).unwrap();
    let before = engine.available(SpaceKind::Data);
    let mut given = 0;
    while let Ok(found) = engine.allocate_data(1 << 20) {
        assert!(
            found.end <= range.start || range.end <= found.start,
            "{found:x?} was given out, the log's is {range:x?}"
        );
        given += found.end - found.start;
    }
    assert!(given <= before && given > before / 2);
}

/// A view may be read after its nodes were freed. A copy that differs may be
/// another node by now, so it is left alone.
#[test]
fn a_view_heals_nothing() {
    let (_dir, image) = mkfs(256 << 20, &["-m", "dup"]);
    let fs = open_subvolume(&image, TreeId::FS);
    create(&fs, "file", &data(1, 4 * SECTOR));
    fs.sync_all().unwrap();
    let view = fs.store().steady().unwrap();
    let root = view.root(TreeId::FS).unwrap();
    let copies = {
        let space = fs.store().space();
        space.map().map(root.logical, SECTOR).unwrap().copies
    };
    assert_eq!(copies.len(), 2);
    // As if the first copy of another node were written, and the second not
    // yet.
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&image)
        .unwrap();
    let newer = vec![0x5a; SECTOR as usize];
    let at = copies[0].offset.get();
    file.write_all_at(&newer, at).unwrap();
    assert_eq!(view.node(root).unwrap().reference(), root);
    let mut found = vec![0; SECTOR as usize];
    file.read_exact_at(&mut found, at).unwrap();
    assert!(found == newer, "old content was written over newer");
    let errors: u64 = fs
        .store()
        .space()
        .devices()
        .map(|(id, _)| {
            let stats = fs.store().space().stats(id).unwrap();
            stats.values().iter().map(|(_, value)| value).sum::<u64>()
        })
        .sum();
    assert_eq!(errors, 0, "no device is to blame");
}

/// The work for one extent's references grows with their number, not with its
/// square. `BUTTERFS_REFERENCES=200000` gives the figures.
#[test]
fn very_many_references_to_one_extent() {
    let count = std::env::var("BUTTERFS_REFERENCES").map_or(12_000, |text| text.parse().unwrap());
    let (_dir, image) = mkfs(2 << 30, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let piece = create(&fs, "piece", &data(1, SECTOR));
    let source = create(&fs, "source", b"");
    let share = |from: &Arc<Inode>, target: &Arc<Inode>, to: u64, length: u64| {
        let span = CloneSpan {
            from: 0,
            to,
            length,
        };
        fs.clone_range(from, target, span).unwrap();
    };
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let begin = Instant::now();
        work();
        println!("{what}: {:?}", begin.elapsed());
    };
    // Doubled, so that few calls make many.
    share(&piece, &source, 0, SECTOR);
    timed("references made", &mut || {
        let mut have: u64 = 1;
        while have < count {
            let more = have.min(count - have);
            let (source, end) = (&source, have * SECTOR);
            let span = CloneSpan {
                from: 0,
                to: end,
                length: more * SECTOR,
            };
            fs.clone_range(source, source, span).unwrap();
            have += more;
        }
    });
    timed("committed", &mut || fs.sync_all().unwrap());
    let target = create(&fs, "target", b"");
    timed("cloned", &mut || share(&source, &target, 0, 0));
    timed("committed", &mut || fs.sync_all().unwrap());
    timed("truncated", &mut || fs.truncate(&source, 0).unwrap());
    timed("committed", &mut || fs.sync_all().unwrap());
    assert_eq!(content(&fs, &target).len() as u64, count * SECTOR);
    drop((piece, source, target, fs));
    // `btrfs check` takes minutes for 200,000 references.
    check_ours(&image);
}
