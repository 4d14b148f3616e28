//! Small new files, which are flushed together: whatever they hold, however
//! they are kept, and whatever goes wrong.

mod common;

use butterfs_device::fault::{Fault, When};
use butterfs_device::{Access, BlockDevice, DeviceError, FaultDevice, FileDevice, Operation};
use butterfs_format::compression::{Algorithm, Level};
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{DeviceOffset, TreeId};
use butterfs_fs::file::FallocateMode;
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::options::Compress;
use butterfs_fs::{Filesystem, FsError, Inode, Options};
use butterfs_store::{OpenOptions, Store, StoreError};
use butterfs_testkit::Random;
use common::{check, mkfs, open_with};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Around inline files, sectors, and the greatest file of a group.
const SIZES: [usize; 16] = [
    1, 100, 2047, 2048, 2049, 4095, 4096, 4097, 5120, 20_000, 65_536, 126_976, 126_977, 131_071,
    131_072, 300_000,
];

/// Counts the writes that reach a device.
#[derive(Debug)]
struct Counted {
    inner: Arc<dyn BlockDevice>,
    writes: Arc<AtomicU64>,
}

impl BlockDevice for Counted {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.write_at(offset, data)
    }
    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.write_vectored_at(offset, parts)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn identity(&self) -> String {
        self.inner.identity()
    }
    fn access(&self) -> Access {
        self.inner.access()
    }
}

fn open_device(device: Arc<dyn BlockDevice>) -> Filesystem {
    let store = Store::open(device, &OpenOptions::default()).unwrap();
    Filesystem::new(Arc::new(store), TreeId::FS, Options::default())
}

fn file_device(image: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(image, Access::ReadWrite).unwrap())
}

fn create(fs: &Filesystem, name: &str) -> Arc<Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    fs.create(fs.root(), name.as_bytes(), &new).unwrap()
}

fn content(fs: &Filesystem, name: &str) -> Vec<u8> {
    let found = fs.lookup(fs.root(), name.as_bytes()).unwrap();
    let inode = fs.inode(found.inode).unwrap();
    let size = fs.attributes_of(&inode).unwrap().size;
    let mut bytes = vec![0xee; usize::try_from(size).unwrap() + 1];
    let read = fs.read(&inode, 0, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

/// Bytes that compress, or do not.
fn bytes(random: &mut Random, length: usize) -> Vec<u8> {
    let noise = random.below(2) == 0;
    (0..length)
        .map(|at| match noise || at % 64 == 0 {
            true => random.below(256) as u8,
            false => (at / 512) as u8,
        })
        .collect()
}

/// Files of all sizes, written in all ways. Returns what they hold.
fn fill(fs: &Filesystem, seed: u64) -> BTreeMap<String, Vec<u8>> {
    let mut random = Random::new(seed);
    let mut files = BTreeMap::new();
    for count in 0..480 {
        let name = format!("f{count}");
        let inode = create(fs, &name);
        let size = SIZES[count % SIZES.len()];
        let mut data = bytes(&mut random, size);
        match random.below(8) {
            // The end first.
            0 if size > 4096 => {
                fs.write(&inode, 4096, &data[4096..]).unwrap();
                fs.write(&inode, 0, &data[..4096]).unwrap();
            }
            // A hole at the beginning.
            1 if size > 4096 => {
                data[..4096].fill(0);
                fs.write(&inode, 4096, &data[4096..]).unwrap();
            }
            // And at the end.
            2 => {
                fs.write(&inode, 0, &data).unwrap();
                data.resize(size + 10_000, 0);
                fs.truncate(&inode, data.len() as u64).unwrap();
            }
            3 => {
                fs.set_flags(&inode, InodeFlags::NODATACOW).unwrap();
                fs.write(&inode, 0, &data).unwrap();
            }
            4 => {
                let mode = FallocateMode::AllocateKeepSize;
                fs.fallocate(&inode, mode, 0, 16_384).unwrap();
                fs.write(&inode, 0, &data).unwrap();
            }
            // It was there before.
            5 => {
                fs.write(&inode, 0, &[7; 9000]).unwrap();
                fs.flush_inode(&inode).unwrap();
                fs.truncate(&inode, 0).unwrap();
                fs.write(&inode, 0, &data).unwrap();
            }
            _ => {
                for (number, part) in data.chunks(3000).enumerate() {
                    fs.write(&inode, number as u64 * 3000, part).unwrap();
                }
            }
        }
        files.insert(name, data);
        if random.below(100) == 0 {
            fs.sync_all().unwrap();
        }
    }
    files
}

#[test]
fn small_files_are_whole() {
    let compressions = [
        Compress::Off,
        Compress::Try(Algorithm::Lzo, Level(0)),
        Compress::Force(Algorithm::Zstd, Level(3)),
    ];
    let volumes: [&[&str]; 4] = [
        &[],
        &["-n", "4096"],
        &["-O", "^no-holes"],
        &["--csum", "sha256"],
    ];
    for (number, volume) in volumes.iter().enumerate() {
        for compress in compressions {
            let (_dir, image) = mkfs(600 << 20, volume);
            let options = Options {
                compress,
                ..Options::default()
            };
            let fs = open_with(&image, TreeId::FS, &options);
            let files = fill(&fs, number as u64);
            fs.sync_all().unwrap();
            assert_eq!(fs.dirty_bytes(), 0);
            let verify = |fs: &Filesystem| {
                for (name, data) in &files {
                    assert!(
                        content(fs, name) == *data,
                        "{name}, {volume:?}, {compress:?}"
                    );
                }
            };
            verify(&fs);
            drop(fs);
            check(&image);
            verify(&open_with(&image, TreeId::FS, &options));
        }
    }
}

#[test]
fn neighbours_go_in_few_requests() {
    let (_dir, image) = mkfs(400 << 20, &[]);
    let writes = Arc::new(AtomicU64::new(0));
    let fs = open_device(Arc::new(Counted {
        inner: file_device(&image),
        writes: Arc::clone(&writes),
    }));
    for number in 0..1000 {
        let inode = create(&fs, &format!("f{number}"));
        fs.write(&inode, 0, &[number as u8; 4096]).unwrap();
    }
    writes.store(0, Ordering::Relaxed);
    fs.flush_all().unwrap();
    let count = writes.load(Ordering::Relaxed);
    assert!(count <= 16, "{count} writes for 1000 files");
    assert_eq!(fs.dirty_bytes(), 0);
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
}

#[test]
fn a_file_that_is_busy_is_flushed_too() {
    let (_dir, image) = mkfs(400 << 20, &[]);
    let fs = open_device(file_device(&image));
    let inodes: Vec<_> = (0..50)
        .map(|number| {
            let inode = create(&fs, &format!("f{number}"));
            fs.write(&inode, 0, &[number as u8; 5000]).unwrap();
            inode
        })
        .collect();
    let busy = inodes[20].state.write();
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| fs.flush_all());
        std::thread::sleep(Duration::from_millis(100));
        // The others did not wait.
        assert_eq!(fs.dirty_bytes(), busy.buffer.bytes());
        drop(busy);
        flush.join().unwrap().unwrap();
    });
    assert_eq!(fs.dirty_bytes(), 0);
    fs.sync_all().unwrap();
    drop((inodes, fs));
    check(&image);
}

#[test]
fn data_that_are_not_written_wait() {
    let (_dir, image) = mkfs(400 << 20, &[]);
    let device = Arc::new(FaultDevice::new(file_device(&image), 1));
    let fs = open_device(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let fill = |round: u64| {
        for number in 0..60 {
            let inode = create(&fs, &format!("{round}-{number}"));
            fs.write(&inode, 0, &[number as u8; 6000]).unwrap();
        }
    };
    // One request fails: the files go elsewhere, one by one.
    fill(0);
    device.inject(Fault::Fail(Operation::Write, When::After(0)));
    fs.flush_all().unwrap();
    assert!(device.pending().is_empty());
    // All requests fail: each file gets an error, and its data wait.
    fill(1);
    let waits = fs.dirty_bytes();
    device.inject(Fault::Fail(Operation::Write, When::Always));
    match fs.flush_all() {
        Err(FsError::NotFlushed { files: 60, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(fs.dirty_bytes(), waits);
    device.clear();
    fs.flush_all().unwrap();
    assert_eq!(fs.dirty_bytes(), 0);
    fs.sync_all().unwrap();
    for round in 0..2 {
        for number in 0..60 {
            let found = content(&fs, &format!("{round}-{number}"));
            assert!(found == [number as u8; 6000]);
        }
    }
    drop(fs);
    drop(device);
    check(&image);
}

#[test]
fn free_space_in_pieces_is_used() {
    let (_dir, image) = mkfs(200 << 20, &[]);
    let fs = open_device(file_device(&image));
    let is_full = |error: &FsError| matches!(error, FsError::Store(StoreError::NoSpace));
    // Until the volume is full; gives how many were written.
    let fill = |prefix: &str, size: usize| {
        for number in 0.. {
            let new = NewInode::new(S_IFREG | 0o644, Owner::default());
            let name = format!("{prefix}{number}");
            let made = fs.create(fs.root(), name.as_bytes(), &new);
            let written = made.and_then(|inode| fs.write(&inode, 0, &vec![number as u8; size]));
            match written {
                Ok(count) => assert_eq!(count, size),
                Err(error) if is_full(&error) => return number,
                Err(error) => panic!("{error}"),
            }
        }
        0
    };
    let first = fill("a", 8192);
    assert!(first > 2000, "{first} files");
    for number in (0..first).step_by(2) {
        fs.unlink(fs.root(), format!("a{number}").as_bytes())
            .unwrap();
    }
    fs.sync_all().unwrap();
    let second = fill("b", 10_000);
    assert!(second > 100, "{second} files");
    fs.sync_all().unwrap();
    assert_eq!(fs.dirty_bytes(), 0);
    let whole = |fs: &Filesystem| {
        for number in (1..first).step_by(2) {
            assert!(content(fs, &format!("a{number}")) == [number as u8; 8192]);
        }
        for number in 0..second {
            assert!(content(fs, &format!("b{number}")) == [number as u8; 10_000]);
        }
    };
    whole(&fs);
    drop(fs);
    check(&image);
    whole(&open_device(file_device(&image)));
}
