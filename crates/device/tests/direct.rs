//! Direct I/O: content, what others see, and what is refused.

use butterfs_device::{
    Access, BlockDevice, Caching, DeviceError, DeviceRange, FileDevice, NotDirect, WriteRequest,
};
use butterfs_format::DeviceOffset;
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device over a file that goes away with the value.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path, options: &[&str]) -> Option<Self> {
        let mut arguments = vec!["--find", "--show"];
        arguments.extend(options);
        arguments.push(file.to_str()?);
        Some(Self(run("losetup", &arguments)?.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.0.to_str().unwrap()]);
    }
}

/// A file of `size` bytes where the file system has direct I/O.
fn image(folder: &Path, size: u64) -> Option<FileDevice> {
    let path = folder.join("image");
    drop(FileDevice::create(&path, size).unwrap());
    let device = FileDevice::open_direct(&path, Access::ReadWrite).unwrap();
    match device.caching() {
        Some(Caching::Direct) => Some(device),
        other => {
            eprintln!("skipped: {other:?}");
            None
        }
    }
}

/// Numbers that look random.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % below
    }
}

fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut next = numbers(seed);
    (0..length).map(|_| next(256) as u8).collect()
}

/// Requests of any size at any place, from memory at any address.
fn behaves_as_an_array(device: &FileDevice, length: usize, rounds: u64) {
    let mut array = vec![0; length];
    device.read_at(DeviceOffset(0), &mut array).unwrap();
    let mut next = numbers(length as u64);
    for round in 0..rounds {
        let unit = [1, 512, 4096][next(3) as usize];
        let start = next(length as u64 / unit) * unit;
        let most = (length as u64 - start).min(40 << 10) / unit;
        let size = (next(most + 1) * unit) as usize;
        let at = start as usize;
        let shift = next(3) as usize * 8;
        match next(6) {
            0 | 1 => {
                let data = bytes(size + shift, round);
                let (one, two) = data[shift..].split_at(size / 3);
                let parts = [IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(two)];
                device
                    .write_vectored_at(DeviceOffset(start), &parts)
                    .unwrap();
                array[at..at + size].copy_from_slice(&data[shift..]);
            }
            2 => {
                let data = bytes(size + shift, round);
                device
                    .write_durably_at(DeviceOffset(start), &data[shift..])
                    .unwrap();
                array[at..at + size].copy_from_slice(&data[shift..]);
            }
            3 => {
                let data = bytes(size + shift, round);
                let (one, two) = data[shift..].split_at(size / 8192 * 4096);
                let parts = [[IoSlice::new(one)], [IoSlice::new(two)]];
                let request = |offset: u64, parts| WriteRequest {
                    offset: DeviceOffset(offset),
                    parts,
                };
                let second = start + one.len() as u64;
                let requests = [request(start, &parts[0][..]), request(second, &parts[1])];
                device.write_behind_at(&requests).unwrap();
                array[at..at + size].copy_from_slice(&data[shift..]);
            }
            4 => {
                let mut first = vec![0; size / 2 + shift];
                let mut second = vec![0; size - size / 2];
                let parts = &mut [
                    IoSliceMut::new(&mut first[shift..]),
                    IoSliceMut::new(&mut second),
                ];
                device.read_vectored_at(DeviceOffset(start), parts).unwrap();
                let found = [&first[shift..], &second].concat();
                assert!(found == array[at..at + size], "round {round}");
            }
            _ => device.flush().unwrap(),
        }
    }
    let mut found = vec![0; length];
    device.read_at(DeviceOffset(0), &mut found).unwrap();
    assert!(found == array);
}

#[test]
fn a_file_behaves_as_an_array() {
    let folder = tempfile::tempdir().unwrap();
    if let Some(device) = image(folder.path(), 4 * MIB) {
        behaves_as_an_array(&device, 3_000_000, 300);
        let end = DeviceOffset(4 * MIB - 3);
        device.write_at(end, b"end").unwrap();
        assert!(matches!(
            device.write_at(end, b"over"),
            Err(DeviceError::OutOfRange { .. })
        ));
        let range = DeviceRange::new(DeviceOffset(0), MIB);
        device.discard(range).unwrap();
        let mut found = vec![1; 8192];
        device
            .read_at(DeviceOffset(MIB - 4096), &mut found)
            .unwrap();
        assert_eq!(found[..4096], [0; 4096]);
    }
}

#[test]
fn loop_devices_behave_as_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    drop(FileDevice::create(&path, 4 * MIB).unwrap());
    for options in [&["--direct-io=on"][..], &[], &["--sector-size=4096"]] {
        let Some(attached) = Loop::over(&path, options) else {
            eprintln!("skipped: no loop device with {options:?}");
            continue;
        };
        let device = FileDevice::open_direct(&attached.0, Access::ReadWrite).unwrap();
        assert_eq!(device.caching(), Some(Caching::Direct));
        behaves_as_an_array(&device, 3_000_000, 200);
        drop(device);
        // What was written is there for those who read through the page cache.
        let after = std::fs::read(&attached.0).unwrap();
        assert!(after == std::fs::read(&path).unwrap());
    }
}

/// Bytes that a file takes on its disk.
fn on_disk(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    path.metadata().unwrap().blocks() * 512
}

/// Whether a hole begins in a range.
fn has_hole(path: &Path, range: std::ops::Range<u64>) -> bool {
    let file = File::open(path).unwrap();
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(range.start)).unwrap();
    hole < range.end
}

#[test]
fn images_are_allocated_around_small_writes_that_are_flushed() {
    for open in [FileDevice::open_direct, FileDevice::open_durable] {
        allocates_ahead(open);
    }
}

fn allocates_ahead(open: fn(&Path, Access) -> Result<FileDevice, DeviceError>) {
    let folder = tempfile::tempdir().unwrap();
    let kind = rustix::fs::statfs(folder.path()).unwrap().f_type;
    if kind != 0xef53 {
        return eprintln!("skipped: no ext4 here");
    }
    let path = folder.path().join("image");
    drop(FileDevice::create(&path, 64 * MIB).unwrap());
    let device = open(&path, Access::ReadWrite).unwrap();
    // Much at a time takes the space that it needs.
    device.write_at(DeviceOffset(0), &vec![1; 2 << 20]).unwrap();
    device.flush().unwrap();
    assert_eq!(on_disk(&path), 2 * MIB);
    let before = bytes(8192, 1);
    device.write_at(DeviceOffset(9 * MIB), &before).unwrap();
    assert!(!has_hole(&path, 8 * MIB..12 * MIB) && has_hole(&path, 12 * MIB..13 * MIB));
    device.flush().unwrap();
    let parts = [IoSlice::new(&before)];
    for n in 0..16 {
        let request = WriteRequest {
            offset: DeviceOffset(10 * MIB + n * 8192),
            parts: &parts,
        };
        device.write_behind_at(&[request]).unwrap();
        device.flush().unwrap();
    }
    assert_eq!(on_disk(&path), 6 * MIB);
    let mut found = vec![0; 4 << 20];
    device.read_at(DeviceOffset(8 * MIB), &mut found).unwrap();
    let mut expected = vec![0; 4 << 20];
    expected[1 << 20..][..8192].copy_from_slice(&before);
    for n in 0..16 {
        expected[(2 << 20) + n * 8192..][..8192].copy_from_slice(&before);
    }
    assert!(found == expected);
    // The region at the beginning has its data, and its hole is filled.
    device.write_at(DeviceOffset(3 * MIB), &before).unwrap();
    assert!(!has_hole(&path, 0..4 * MIB));
    device.read_at(DeviceOffset(0), &mut found).unwrap();
    assert!(found[..2 << 20] == vec![1; 2 << 20] && found[3 << 20..][..8192] == before);
    assert!(found[(3 << 20) + 8192..].iter().all(|byte| *byte == 0));
    // What is discarded is a hole again, and is filled again.
    device
        .discard(DeviceRange::new(DeviceOffset(8 * MIB), 4 * MIB))
        .unwrap();
    assert_eq!(on_disk(&path), 4 * MIB);
    device.flush().unwrap();
    device.write_at(DeviceOffset(9 * MIB), &before).unwrap();
    device.flush().unwrap();
    assert_eq!(on_disk(&path), 8 * MIB);
    assert_eq!(path.metadata().unwrap().len(), 64 * MIB);
}

#[test]
fn many_requests_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = image(folder.path(), 16 * MIB) else {
        return;
    };
    // More than a ring takes, and more bytes than a buffer has.
    let data: Vec<Vec<u8>> = (0..100)
        .map(|n| bytes(4096 * (1 + n % 30), n as u64))
        .collect();
    let mut next = 0;
    let placed: Vec<(u64, [IoSlice<'_>; 2])> = data
        .iter()
        .map(|data| {
            let at = next;
            next += data.len() as u64 + 4096;
            let (one, two) = data.split_at(1000);
            (at, [IoSlice::new(one), IoSlice::new(two)])
        })
        .collect();
    let requests: Vec<WriteRequest<'_>> = placed
        .iter()
        .map(|(at, parts)| WriteRequest {
            offset: DeviceOffset(*at),
            parts,
        })
        .collect();
    device.write_all_at(&requests).unwrap();
    for ((at, _), data) in placed.iter().zip(&data) {
        let mut found = vec![0; data.len() + 4096];
        device.read_at(DeviceOffset(*at), &mut found).unwrap();
        assert!(found[..data.len()] == data[..]);
        assert_eq!(found[data.len()..], [0; 4096]);
    }
    let outside = [IoSlice::new(&[1; 4096])];
    let request = |offset| WriteRequest {
        offset: DeviceOffset(offset),
        parts: &outside,
    };
    assert!(
        device
            .write_all_at(&[request(0), request(16 * MIB)])
            .is_err()
    );
    device.write_all_at(&[]).unwrap();
}

/// A mount that goes away with the value.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &[self.0.to_str().unwrap()]);
    }
}

#[test]
fn a_write_that_fails_behind_is_told_once_or_fails_each_flush() {
    let folder = tempfile::tempdir().unwrap();
    let point = folder.path().to_str().unwrap();
    if run("mount", &["-t", "tmpfs", "-o", "size=4m", "tmpfs", point]).is_none() {
        return eprintln!("skipped: no right to mount");
    }
    let _mount = Mount(folder.path().to_owned());
    let path = folder.path().join("image");
    drop(FileDevice::create(&path, 16 * MIB).unwrap());
    let Some(attached) = Loop::over(&path, &["--direct-io=on"]) else {
        return eprintln!("skipped: no loop devices");
    };
    let device = FileDevice::open_direct(&attached.0, Access::ReadWrite).unwrap();
    let data = vec![7; 1 << 20];
    let parts = [IoSlice::new(&data)];
    let write = |mib: u64| {
        let offset = DeviceOffset(mib * MIB);
        let parts = &parts;
        device.write_behind_at(&[WriteRequest { offset, parts }])
    };
    write(0).unwrap();
    device.flush().unwrap();
    for mib in 1..12 {
        // The file system has no room for all of them.
        write(mib).unwrap();
    }
    for _ in 0..3 {
        let error = device.flush().unwrap_err();
        assert!(matches!(error, DeviceError::Io { .. }), "{error}");
    }
    // Whoever waits for the writes is told, and then no flush fails.
    let range = |mib: u64| DeviceRange::new(DeviceOffset(mib * MIB), MIB);
    let failed = (1..12).filter(|mib| device.finish_at(&[range(*mib)]).is_err());
    assert!(failed.count() >= 7);
    device.finish_at(&[range(0), range(11)]).unwrap();
    device.flush().unwrap();
    let mut found = vec![0; 1 << 20];
    device.read_at(DeviceOffset(0), &mut found).unwrap();
    assert!(found == data);
}

#[test]
fn threads_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    if let Some(device) = image(folder.path(), 40 * MIB) {
        threads_share(&device);
    }
}

#[test]
fn threads_share_a_loop_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    drop(FileDevice::create(&path, 40 * MIB).unwrap());
    match Loop::over(&path, &[]) {
        Some(attached) => {
            threads_share(&FileDevice::open_direct(&attached.0, Access::ReadWrite).unwrap());
        }
        None => eprintln!("skipped: no loop devices"),
    }
}

fn threads_share(device: &FileDevice) {
    std::thread::scope(|scope| {
        for thread in 0..24_u64 {
            scope.spawn(move || {
                let data = bytes(64 << 10, thread);
                let mut found = vec![0; data.len()];
                for round in 0..8 {
                    let at = DeviceOffset((round * 24 + thread) * (64 << 10));
                    let parts = [IoSlice::new(&data)];
                    let parts = &parts;
                    let request = WriteRequest { offset: at, parts };
                    device.write_behind_at(&[request]).unwrap();
                    device.read_at(at, &mut found).unwrap();
                    assert!(found == data);
                    // Bytes of one block, from several threads.
                    let byte = DeviceOffset(31 * MIB + thread);
                    device.write_at(byte, &[thread as u8]).unwrap();
                }
                device.flush().unwrap();
            });
        }
    });
    let mut found = [0; 24];
    device.read_at(DeviceOffset(31 * MIB), &mut found).unwrap();
    assert!(found.iter().zip(0..).all(|(byte, thread)| *byte == thread));
}

#[test]
fn what_others_wrote_before_is_read_and_what_is_written_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = image(folder.path(), MIB) else {
        return;
    };
    let path = folder.path().join("image");
    drop(device);
    let other = File::options().read(true).write(true).open(&path).unwrap();
    // It is in the page cache, and not on the disk.
    other.write_all_at(&[3; 8192], 4096).unwrap();
    let device = FileDevice::open_direct(&path, Access::ReadWrite).unwrap();
    let mut found = [0; 8192];
    device.read_at(DeviceOffset(4096), &mut found).unwrap();
    assert_eq!(found, [3; 8192]);
    for byte in 4..8 {
        device.write_at(DeviceOffset(4096), &[byte; 4096]).unwrap();
        other.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!((found[0], found[4095], found[4096]), (byte, byte, 3));
        device
            .write_durably_at(DeviceOffset(8192), &[byte; 4096])
            .unwrap();
        other.read_exact_at(&mut found, 4096).unwrap();
        assert_eq!((found[0], found[4096], found[8191]), (byte, byte, byte));
        device.write_at(DeviceOffset(8192), &[3; 4096]).unwrap();
    }
}

/// True if reading this byte waits for no device.
fn is_cached(file: &File, offset: u64) -> bool {
    let mut byte = [0];
    let parts = &mut [IoSliceMut::new(&mut byte)];
    rustix::io::preadv2(file, parts, offset, ReadWriteFlags::NOWAIT) != Err(Errno::AGAIN)
}

#[test]
fn nothing_is_left_in_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = image(folder.path(), 8 * MIB) else {
        return;
    };
    let other = File::open(folder.path().join("image")).unwrap();
    let data = bytes(2 << 20, 1);
    device.write_at(DeviceOffset(MIB), &data).unwrap();
    device.write_at(DeviceOffset(4 * MIB + 1), &data).unwrap();
    device.flush().unwrap();
    let mut found = vec![0; 8 << 20];
    device.read_at(DeviceOffset(0), &mut found).unwrap();
    for at in [MIB, 2 * MIB, 4 * MIB, 5 * MIB] {
        assert!(!is_cached(&other, at), "{at}");
    }
    other.read_exact_at(&mut found, 0).unwrap();
    assert!(is_cached(&other, MIB));
}

#[test]
fn what_direct_io_does_not_take_goes_through_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd");
    drop(FileDevice::create(&path, MIB + 100).unwrap());
    let device = FileDevice::open_direct(&path, Access::ReadWrite).unwrap();
    let why = match device.caching() {
        Some(Caching::PageCache(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(
        matches!(why, NotDirect::OddSize(_) | NotDirect::NotOffered),
        "{why}"
    );
    device.write_at(DeviceOffset(MIB), &[1; 100]).unwrap();
    device.write_durably_at(DeviceOffset(0), b"first").unwrap();
    let found = std::fs::read(&path).unwrap();
    assert_eq!((&found[..5], found[MIB as usize + 99]), (&b"first"[..], 1));
    drop(device);
    let device = FileDevice::open(&path, Access::ReadWrite).unwrap();
    let not_asked = Caching::PageCache(NotDirect::NotAsked);
    assert_eq!(device.caching(), Some(not_asked));
}

#[test]
fn a_device_that_is_let_go_or_cut_short_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = image(folder.path(), MIB) else {
        return;
    };
    let path = folder.path().join("image");
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(MIB / 2).unwrap();
    for length in [4096, 10] {
        let data = vec![1; length];
        let behind = DeviceOffset(MIB / 2);
        let error = device.write_at(behind, &data).unwrap_err();
        assert!(matches!(error, DeviceError::CutShort { .. }), "{error}");
        let error = device.write_durably_at(behind, &data).unwrap_err();
        assert!(matches!(error, DeviceError::CutShort { .. }), "{error}");
    }
    assert_eq!(path.metadata().unwrap().len(), MIB / 2);
    let mut found = [0; 4096];
    assert!(device.read_at(DeviceOffset(MIB / 2), &mut found).is_err());
    device.let_go();
    for length in [4096, 10] {
        let error = device.write_at(DeviceOffset(0), &vec![1; length]);
        assert!(matches!(error, Err(DeviceError::Released { .. })));
    }
}
