//! File data through the kernel: reads, writes, allocation, copies, ioctls.

#![allow(unsafe_code, reason = "mmap and ioctl have no safe form")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};

use butterfs_fuse::{Config, Features};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use support::memory::{
    FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, REVERSE,
};
use support::{Mount, config, fuse_available, skip};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 4096) as u8).collect()
}

fn open(mount: &Mount, name: &str) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(mount.path(name))
        .unwrap()
}

#[test]
fn large_reads_and_writes_come_in_one_request() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    let agreed = mount.fs.agreed.lock().unwrap();
    assert_eq!(agreed.max_write, 1 << 20);
    assert!(agreed.minor >= 31);

    // O_DIRECT, from aligned memory: the page cache does not split requests.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DIRECT)
        .open(mount.path("f"))
        .unwrap();
    let mut storage = vec![0; (1 << 20) + 4096];
    let start = storage.as_ptr().align_offset(4096);
    let buffer = &mut storage[start..start + (1 << 20)];
    buffer.copy_from_slice(&pattern(1 << 20));
    file.write_all_at(buffer, 0).unwrap();
    assert_eq!(mount.fs.calls("write"), 1);
    buffer.fill(0);
    file.read_exact_at(buffer, 0).unwrap();
    assert_eq!(mount.fs.calls("read"), 1);
    assert!(buffer == pattern(1 << 20));

    // Through the page cache, at odd offsets.
    let data = pattern(3_000_001);
    fs::write(mount.path("g"), &data).unwrap();
    let cached = open(&mount, "g");
    cached.sync_all().unwrap();
    rustix::fs::fadvise(&cached, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let reads = mount.fs.calls("read");
    assert!(fs::read(mount.path("g")).unwrap() == data);
    assert!(mount.fs.calls("read") > reads, "out of the cache");
    let mut part = vec![0; 5000];
    open(&mount, "g").read_exact_at(&mut part, 4095).unwrap();
    assert!(part == data[4095..9095]);
}

#[test]
fn write_back_cache_writes_everything() {
    if !fuse_available() {
        return;
    }
    let features = Config::FEATURES | Features::WRITEBACK_CACHE;
    let mut mount = Mount::new(Config {
        features,
        ..config()
    });
    let data = pattern(500_000);
    {
        let mut file = File::create(mount.path("f")).unwrap();
        data.chunks(777)
            .for_each(|chunk| file.write_all(chunk).unwrap());
        file.sync_all().unwrap();
    }
    assert!(mount.fs.calls("write") < 200, "small writes are gathered");
    assert!(fs::read(mount.path("f")).unwrap() == data);
    mount.unmount();
}

#[test]
fn append_truncate_and_mmap() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    fs::write(mount.path("f"), "one ").unwrap();
    let mut file = OpenOptions::new()
        .append(true)
        .open(mount.path("f"))
        .unwrap();
    file.write_all(b"two").unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"one two");
    fs::write(mount.path("f"), "3").unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"3");

    let file = open(&mount, "m");
    file.set_len(8192).unwrap();
    // SAFETY: a shared mapping of a file that this test alone uses, inside its
    // size, unmapped before the file is read.
    unsafe {
        let flags = libc::MAP_SHARED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let memory = libc::mmap(
            std::ptr::null_mut(),
            8192,
            protection,
            flags,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(memory, libc::MAP_FAILED);
        memory.cast::<u8>().add(5000).write(42);
        assert_eq!(libc::msync(memory, 8192, libc::MS_SYNC), 0);
        libc::munmap(memory, 8192);
    }
    assert_eq!(mount.fs.calls("fsync") + mount.fs.calls("fdatasync"), 1);
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    assert_eq!(byte, [42]);
}

#[test]
fn allocation_holes_and_seeking() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    let mut file = open(&mount, "f");
    file.write_all_at(&pattern(4096), 3 * 4096).unwrap();
    file.set_len(10 * 4096).unwrap();
    let mut seek = |offset, whence| {
        let position = match whence {
            libc::SEEK_DATA => rustix::fs::SeekFrom::Data(offset),
            _ => rustix::fs::SeekFrom::Hole(offset),
        };
        rustix::fs::seek(&mut file, position)
    };
    assert_eq!(seek(0, libc::SEEK_DATA), Ok(3 * 4096));
    assert_eq!(seek(0, libc::SEEK_HOLE), Ok(0));
    assert_eq!(seek(3 * 4096 + 5, libc::SEEK_HOLE), Ok(4 * 4096));
    assert_eq!(
        seek(4 * 4096, libc::SEEK_DATA),
        Err(rustix::io::Errno::NXIO)
    );
    assert_eq!(file.seek(SeekFrom::End(-1)).unwrap(), 10 * 4096 - 1);

    fallocate(&file, FallocateFlags::empty(), 0, 12 * 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 12 * 4096);
    assert_eq!(file.metadata().unwrap().blocks(), 12 * 8);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 20 * 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 12 * 4096);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 3 * 4096, 4096).unwrap();
    let mut page = [1; 4096];
    file.read_exact_at(&mut page, 3 * 4096).unwrap();
    assert_eq!(page, [0; 4096]);
    let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(rustix::io::Errno::OPNOTSUPP));
    assert!(mount.fs.calls("lseek") >= 4 && mount.fs.calls("fallocate") >= 3);
}

#[test]
fn copies_inside_the_server() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    let data = pattern(300_000);
    fs::write(mount.path("a"), &data).unwrap();
    let (from, to) = (open(&mount, "a"), open(&mount, "b"));
    let (mut source, mut target) = (1000, 50);
    let copied =
        rustix::fs::copy_file_range(&from, Some(&mut source), &to, Some(&mut target), 1 << 30);
    assert_eq!(copied, Ok(299_000));
    assert_eq!(mount.fs.calls("copy_file_range"), 1);
    assert!(fs::read(mount.path("b")).unwrap()[50..] == data[1000..]);
}

#[test]
fn files_without_a_name() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = rustix::fs::open(mount.root(), flags, Mode::from_bits_retain(0o600)).unwrap();
    let mut file = File::from(file);
    file.write_all(b"nameless").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    rustix::fs::linkat(
        rustix::fs::CWD,
        source,
        rustix::fs::CWD,
        mount.path("named"),
        follow,
    )
    .unwrap();
    assert_eq!(fs::read(mount.path("named")).unwrap(), b"nameless");
    assert_eq!(mount.fs.calls("tmpfile"), 1);
}

/// Calls ioctl with a buffer of the size the command transfers.
fn ioctl<const N: usize>(file: &File, command: u32, data: &mut [u8; N]) -> i32 {
    // SAFETY: the buffer is at least what each command used here transfers:
    // the kernel copies the size in the command's number, at most N.
    unsafe { libc::ioctl(file.as_raw_fd(), command.into(), data.as_mut_ptr()) }
}

#[test]
fn ioctls_with_data_in_both_directions() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    let file = open(&mount, "f");
    let mut data = *b"12345678";
    assert_eq!(ioctl(&file, REVERSE, &mut data), 5);
    assert_eq!(&data, b"87654321");
    let directory = File::open(mount.root()).unwrap();
    assert_eq!(ioctl(&directory, REVERSE, &mut data), 5);
    assert_eq!(&data, b"12345678");

    // The kernel's own: no-dump through FS_IOC_SETFLAGS, a project id.
    let mut flags = 0x40u64.to_ne_bytes();
    assert_eq!(
        ioctl(&file, FS_IOC_SETFLAGS, &mut flags),
        0,
        "{}",
        std::io::Error::last_os_error()
    );
    flags = [0; 8];
    assert_eq!(ioctl(&file, FS_IOC_GETFLAGS, &mut flags), 0);
    assert_eq!(u32::from_ne_bytes(flags[..4].try_into().unwrap()), 0x40);
    let mut xattr = [0; 28];
    xattr[12..16].copy_from_slice(&9u32.to_ne_bytes());
    assert_eq!(ioctl(&file, FS_IOC_FSSETXATTR, &mut xattr), 0);
    xattr = [0; 28];
    assert_eq!(ioctl(&file, FS_IOC_FSGETXATTR, &mut xattr), 0);
    assert_eq!(xattr[12..16], 9u32.to_ne_bytes());

    assert_eq!(ioctl(&file, 0x5402, &mut [0; 64]), -1);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::ENOTTY)
    );
}

#[test]
fn writing_clears_set_id_bits() {
    if !fuse_available() {
        return;
    }
    let mut config = config();
    config.mount.allow = butterfs_fuse::mount::Allow::Everyone;
    let mount = Mount::new(config);
    let path = mount.path("f");
    fs::write(&path, "x").unwrap();
    let file = open(&mount, "f");
    (0..10).for_each(|_| file.write_all_at(b"x", 0).unwrap());
    assert!(
        mount.fs.calls("getxattr") <= 2,
        "KILLPRIV_V2 spares most questions"
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
    let status = std::process::Command::new("runuser")
        .args(["-u", "nobody", "--", "sh", "-c"])
        .arg("printf y >> \"$0\"")
        .arg(&path)
        .status();
    let Ok(status) = status else {
        skip("needs runuser");
        return;
    };
    assert!(status.success());
    // The mode changed in the server; ask it anew.
    let node = mount.fs.find(b"f");
    let range = butterfs_fuse::InvalidRange::AttributesOnly;
    mount
        .session
        .notifier()
        .invalidate_inode(node, range)
        .unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn fsync_kinds_flush_and_release() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    let mut file = open(&mount, "f");
    file.write_all(b"x").unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    drop(file);
    assert_eq!(
        (mount.fs.calls("fsync"), mount.fs.calls("fdatasync")),
        (1, 1)
    );
    assert_eq!(mount.fs.calls("flush"), 1);
    let mut text = String::new();
    open(&mount, "f").read_to_string(&mut text).unwrap();
    assert_eq!(text, "x");
    assert!(mount.fs.calls("open") >= 1 && mount.fs.calls("create") == 1);
}

#[test]
fn locks_stay_in_the_kernel() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    let (one, two) = (open(&mount, "f"), open(&mount, "f"));
    let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&one, exclusive).unwrap();
    assert_eq!(
        rustix::fs::flock(&two, exclusive),
        Err(rustix::io::Errno::AGAIN)
    );
}
