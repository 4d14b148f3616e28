//! Large reads, which several threads share. A bad sector heals if it has a
//! good copy; if not, the error names the first such sector, whichever thread
//! meets it. Every kind of extent is read to its right place.

mod common;

use butterfs_device::BlockDevice;
use butterfs_format::compression::Algorithm;
use butterfs_format::{DeviceOffset, FileOffset, Logical, TreeId};
use butterfs_fs::file::FallocateMode;
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::options::Compress;
use butterfs_fs::{Filesystem, FsError, Inode, Options};
use common::{Random, mkfs, open_with};
use std::sync::Arc;

const SECTOR: usize = 4096;
const MIB: usize = 1 << 20;

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..length).map(|_| random.below(256) as u8).collect()
}

fn options(compress: Compress) -> Options {
    Options {
        threads: 4,
        compress,
        ..Options::default()
    }
}

fn create(fs: &Filesystem, name: &str) -> Arc<Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    fs.create(fs.root(), name.as_bytes(), &new).unwrap()
}

fn reopen(fs: &Filesystem, name: &str) -> Arc<Inode> {
    let found = fs.lookup(fs.root(), name.as_bytes()).unwrap();
    fs.inode(found.inode).unwrap()
}

/// The device, and where it has a copy of the sector at a file offset.
fn place(
    fs: &Filesystem,
    inode: &Inode,
    at: usize,
    copy: usize,
) -> (Arc<dyn BlockDevice>, DeviceOffset) {
    let extents = fs.extent_map(inode, 0..u64::MAX, 100).unwrap();
    let at = at as u64;
    let extent = extents.iter().rfind(|extent| extent.offset <= at).unwrap();
    let logical = extent.logical.unwrap().get() + (at - extent.offset);
    let map = fs.store().space().map();
    let mapping = map.map(Logical(logical), 4096).unwrap();
    let (_, device) = fs.store().space().devices().next().unwrap();
    (device, mapping.copies[copy].offset)
}

/// One copy of the sector at a file offset, as it lies.
fn copy_of(fs: &Filesystem, inode: &Inode, at: usize, copy: usize) -> Vec<u8> {
    let (device, offset) = place(fs, inode, at, copy);
    let mut sector = vec![0; SECTOR];
    device.read_at(offset, &mut sector).unwrap();
    sector
}

/// Changes a byte of it.
fn damage(fs: &Filesystem, inode: &Inode, at: usize, copy: usize) {
    let mut sector = copy_of(fs, inode, at, copy);
    sector[77] ^= 4;
    let (device, offset) = place(fs, inode, at, copy);
    device.write_at(offset, &sector).unwrap();
}

#[test]
fn bad_sectors_of_shared_reads_heal() {
    let (_dir, image) = mkfs(512 << 20, &["-d", "dup", "-m", "dup"]);
    let data = noise(3, 4 * MIB);
    let bad = [0, 9, 31, 40, 255, 768].map(|number| number * SECTOR);
    let fs = open_with(&image, TreeId::FS, &options(Compress::Off));
    let inode = create(&fs, "file");
    fs.write(&inode, 0, &data).unwrap();
    fs.sync_all().unwrap();
    for at in bad {
        damage(&fs, &inode, at, 0);
        // Now no copy of the whole batch is good.
        damage(&fs, &inode, at + SECTOR, 1);
    }
    let mut found = vec![0; 4 * MIB];
    for _ in 0..3 {
        found.fill(0);
        assert_eq!(fs.read(&inode, 0, &mut found).unwrap(), data.len());
        assert!(found == data);
    }
    for at in bad {
        assert!(copy_of(&fs, &inode, at, 0) == data[at..at + SECTOR]);
    }
    // The first copy of this sector was good, so the second one was not healed.
    assert!(copy_of(&fs, &inode, SECTOR, 1) != data[SECTOR..2 * SECTOR]);
}

#[test]
fn the_first_sector_without_a_good_copy_is_the_error() {
    let (_dir, image) = mkfs(256 << 20, &["-d", "single"]);
    let data = noise(4, 4 * MIB);
    let fs = open_with(&image, TreeId::FS, &options(Compress::Off));
    let inode = create(&fs, "file");
    fs.write(&inode, 0, &data).unwrap();
    fs.sync_all().unwrap();
    let first = 700 << 10;
    for at in [3 * MIB, 2 * MIB, 900 << 10, first] {
        damage(&fs, &inode, at, 0);
    }
    let mut found = vec![0; 4 * MIB];
    for _ in 0..20 {
        match fs.read(&inode, 0, &mut found) {
            Err(FsError::Damaged { at, .. }) => assert_eq!(at, Some(FileOffset(first as u64))),
            other => panic!("{other:?}"),
        }
    }
    // The data before and behind the bad sectors can be read.
    assert_eq!(fs.read(&inode, 0, &mut found[..first]).unwrap(), first);
    assert!(found[..first] == data[..first]);
    let after = 904 << 10;
    let part = &mut found[..MIB];
    assert_eq!(fs.read(&inode, after as u64, part).unwrap(), MIB);
    assert!(part == &data[after..after + MIB]);
}

#[test]
fn holes_ends_and_every_kind_of_extent_are_read_where_they_belong() {
    let packed = Compress::Force(Algorithm::Zstd, Algorithm::Zstd.default_level());
    let (_dir, image) = mkfs(512 << 20, &[]);
    let mut expected = vec![0_u8; 5 * MIB + 4321];
    let end = expected.len();
    {
        let fs = open_with(&image, TreeId::FS, &options(packed));
        let inode = create(&fs, "file");
        let text: Vec<u8> = (0..MIB).map(|at| (at / 50) as u8).collect();
        expected[MIB..2 * MIB].copy_from_slice(&text);
        fs.write(&inode, MIB as u64, &text).unwrap();
        fs.sync_all().unwrap();
    }
    let fs = open_with(&image, TreeId::FS, &options(Compress::Off));
    let inode = reopen(&fs, "file");
    for (seed, range) in [
        (1, 0..300_000),
        (2, 2 * MIB + 5..3 * MIB),
        (3, 4 * MIB - 7..4 * MIB + 9),
        (4, 5 * MIB..end),
    ] {
        let data = noise(seed, range.len());
        fs.write(&inode, range.start as u64, &data).unwrap();
        expected[range].copy_from_slice(&data);
    }
    let at = (3 * MIB + MIB / 2) as u64;
    fs.fallocate(&inode, FallocateMode::Allocate, at, 100_000)
        .unwrap();
    fs.sync_all().unwrap();
    let mut found = vec![0; end + 10_000];
    let mut random = Random(9);
    for turn in 0..60 {
        let (from, length) = match turn {
            0 => (0, end + 10_000),
            _ => (
                random.below(end as u64) as usize,
                1 + random.below(4 * MIB as u64) as usize,
            ),
        };
        let part = &mut found[..length];
        part.fill(0xEE);
        let read = fs.read(&inode, from as u64, part).unwrap();
        assert_eq!(read, length.min(end - from));
        assert!(
            part[..read] == expected[from..from + read],
            "{from} {length}"
        );
        assert!(part[read..].iter().all(|byte| *byte == 0xEE));
        if turn == 30 {
            // What waits in memory lies over what was read.
            let data = noise(8, 600_000);
            fs.write(&inode, 1_234_567, &data).unwrap();
            expected[1_234_567..1_834_567].copy_from_slice(&data);
        }
    }
}

#[test]
fn several_readers_share_the_helpers() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let data = noise(5, 4 * MIB);
    let fs = open_with(&image, TreeId::FS, &options(Compress::Off));
    let inode = create(&fs, "file");
    fs.write(&inode, 0, &data).unwrap();
    fs.sync_all().unwrap();
    std::thread::scope(|scope| {
        for reader in 0..5_usize {
            let (fs, inode, data) = (&fs, &inode, &data);
            scope.spawn(move || {
                let mut found = vec![0; 2 * MIB];
                for turn in 0..20 {
                    let from = (reader * 77 + turn * 13) * SECTOR;
                    let read = fs.read(inode, from as u64, &mut found).unwrap();
                    assert!(found[..read] == data[from..from + read]);
                }
            });
        }
    });
}
