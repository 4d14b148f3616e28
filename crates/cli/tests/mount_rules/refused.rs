//! What a mount shows after a request that could not be carried out, or only in
//! part: the file as it is.

use super::support::{BINARY, Bench, can_mount, is_root, said};
use std::path::Path;
use std::process::{Command, Output};

fn python(script: &str, bench: &Bench) -> Output {
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(bench.path(""));
    python.output().expect("python3 runs")
}

/// Unmounts a tmpfs when dropped.
struct Memory<'p>(&'p Path);

impl<'p> Memory<'p> {
    /// A host of this size at a new directory. `None`, and why, if this machine
    /// does not allow that.
    fn mounted(at: &'p Path, size: &str) -> Option<Self> {
        if !is_root() {
            println!("skipped: mounting a small tmpfs needs root");
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            return None;
        }
        std::fs::create_dir(at).expect("a directory");
        let options = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(at)
            .status();
        assert!(mounted.expect("mount runs").success());
        Some(Self(at))
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// Cuts a file while the device takes no data, then writes behind its end when
/// the device takes them again.
const CUT: &str = r"
import os, sys, time
os.chdir(sys.argv[1])
name = 'mnt/file'
file = os.open(name, os.O_CREAT | os.O_RDWR)
os.pwrite(file, b'o' * 65536, 0)
os.fsync(file)
filler = os.open('small/filler', os.O_CREAT | os.O_RDWR)
left = os.fstatvfs(filler)
os.posix_fallocate(filler, 0, left.f_bavail * left.f_frsize)
os.pwrite(file, b'n' * 65536, 0)
# From here on the kernel does not ask for attributes by itself.
os.fstat(file)
try:
    os.ftruncate(file, 32768)
    raise SystemExit('the device took data')
except OSError:
    pass
deadline = time.monotonic() + 20
while os.fstat(file).st_size != 32768 or os.pread(file, 10, 40000):
    assert time.monotonic() < deadline, 'the kernel shows what the file does not have'
    time.sleep(0.01)
os.unlink('small/filler')
os.close(filler)
os.pwrite(file, b'l' * 100, 40000)
expected = b'n' * 32768 + bytes(40000 - 32768) + b'l' * 100
assert os.pread(file, 65536, 0) == expected
os.fsync(file)
assert os.pread(file, 65536, 0) == expected
";

#[test]
fn a_cut_that_met_an_error_is_seen() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let small = bench.path("small");
    let Some(memory) = Memory::mounted(&small, "30m") else {
        return;
    };
    bench.run(&["mkfs", "-q", "-b", "512m", "small/volume"]);
    let mounted = bench.mount_source("small/volume", "commit=300", "mnt");
    let done = python(CUT, &bench);
    assert!(done.status.success(), "{}", said(&done));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let found = bench.run(&["cat", "small/volume:/file"]);
    let expected = ["n".repeat(32768), "\0".repeat(7232), "l".repeat(100)].concat();
    assert!(found == expected);
    drop(memory);
}

/// A volume that has filled the file system under it can be used again.
#[test]
fn what_a_full_host_refused_can_be_given_back() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let small = bench.path("small");
    let Some(memory) = Memory::mounted(&small, "40m") else {
        return;
    };
    let room = || {
        let host = rustix::fs::statvfs(&small).expect("the host");
        host.f_bavail * host.f_frsize
    };
    // With a fsync log, and without.
    for (volume, sync) in [("small/logged", true), ("small/plain", false)] {
        bench.run(&["mkfs", "-q", "-b", "1g", volume]);
        let mounted = bench.mount_source(volume, "commit=300", "mnt");
        std::fs::write(bench.path("mnt/kept"), [7; 100_000]).expect("a file");
        if sync {
            let kept = std::fs::File::open(bench.path("mnt/kept")).expect("a file");
            kept.sync_all().expect("synced");
        } else {
            bench.run(&["filesystem", "sync", "mnt"]);
        }
        let large = std::fs::write(bench.path("mnt/large"), vec![9; 60 << 20]);
        let _ = large.and_then(|()| std::fs::File::open(bench.path("mnt/large"))?.sync_all());
        let ended = bench.try_run(&["umount", "mnt"]);
        assert_eq!(ended.status.code(), Some(1), "{}", said(&ended));
        drop(mounted);
        assert!(room() < 2 << 20, "{} bytes are free", room());
        // What is not in the volume is given back.
        bench.run(&["filesystem", "trim", volume]);
        assert!(room() > 30 << 20, "{} bytes are free", room());
        let mounted = bench.mount_source(volume, "rw", "mnt");
        let kept = std::fs::read(bench.path("mnt/kept")).expect("a file");
        assert!(kept == [7; 100_000]);
        std::fs::write(bench.path("mnt/more"), [8; 1_000_000]).expect("a file");
        bench.run(&["umount", "mnt"]);
        drop(mounted);
        bench.run(&["check", "--check-data-csum", volume]);
        std::fs::remove_file(bench.path(volume)).expect("removed");
    }
    drop(memory);
}

/// Changes a file through a mapping, for half of which there is room. The
/// write-back buffer takes half of the request.
const PART: &str = r"
import errno, mmap, os, sys
os.chdir(sys.argv[1])
file = os.open('mnt/file', os.O_CREAT | os.O_RDWR)
os.ftruncate(file, 1 << 20)
pages = mmap.mmap(file, 1 << 20)
pages[:] = b'm' * (1 << 20)
try:
    pages.flush()
    raise SystemExit('msync reports that all is written')
except OSError as error:
    assert error.errno in (errno.EDQUOT, errno.EIO, errno.ENOSPC), error
";

#[test]
fn pages_that_are_written_in_part_are_not_reported_as_written() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    bench.run(&["quota", "enable", "volume"]);
    bench.run(&["qgroup", "limit", "800k", "0/5", "volume"]);
    let _mounted = bench.mount("rw,memory=4m");
    let done = python(PART, &bench);
    assert!(done.status.success(), "{}", said(&done));
}

/// Opens files of read-only subvolumes: a snapshot, and one that becomes
/// read-only while the kernel knows its files.
const OPENS: &str = r"
import errno, os, subprocess, sys
os.chdir(sys.argv[1])
def refused(name):
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_TRUNC):
        try:
            os.open(name, flags)
            raise SystemExit(f'{name} was opened for writing')
        except OSError as error:
            assert error.errno == errno.EROFS, error
    assert os.stat(name).st_size == 6 and open(name).read() == 'before'
refused('mnt/frozen/file')
name = 'mnt/work/file'
open(name, 'r+').write('before')
work = ['property', 'set', 'mnt/work', 'ro']
subprocess.run([sys.argv[2], *work, 'true'], check=True)
refused(name)
subprocess.run([sys.argv[2], *work, 'false'], check=True)
open(name, 'a').write(' and after')
assert open(name).read() == 'before and after'
refused('mnt/frozen/file')
";

#[test]
fn a_write_cache_takes_nothing_that_is_refused_later() {
    if !can_mount() {
        return;
    }
    if !is_root() {
        println!("skipped: the machine may forbid the server to see how files are opened");
        return;
    }
    let bench = Bench::new();
    let _mounted = bench.mount("writeback");
    bench.run(&["subvolume", "create", "mnt/work"]);
    std::fs::write(bench.path("mnt/work/file"), "before").expect("a file");
    bench.run(&["subvolume", "snapshot", "-r", "mnt/work", "mnt/frozen"]);
    let mut python = Command::new("python3");
    python.args(["-c", OPENS]).arg(bench.path("")).arg(BINARY);
    let done = python.output().expect("python3 runs");
    assert!(done.status.success(), "{}", said(&done));
}
