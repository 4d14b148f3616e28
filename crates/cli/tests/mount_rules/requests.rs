//! Requests to a server beside those on files: FITRIM, FS_IOC_SHUTDOWN,
//! searches of trees into the caller's memory. Mounts below odd names, in quick
//! succession, and under a limit on file sizes.

use super::support::{BINARY, Bench, Loop, Mounted, can_mount, is_root, said};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn run(program: &str, words: &[&str], at: &Path) -> Output {
    let output = Command::new(program).args(words).arg(at).output();
    output.unwrap_or_else(|error| panic!("{program} (scripts/packages test): {error}"))
}

/// Bytes that no compression and no hole makes smaller.
fn noise(length: usize, mut state: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn trimming_gives_back_what_is_free_and_nothing_else() {
    const SIZE: usize = 48 << 20;
    if !can_mount() || !is_root() {
        println!("skipped: fstrim needs root");
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let kept = noise(3 << 20, 7);
    std::fs::write(bench.path("mnt/gone"), noise(SIZE, 9)).expect("a file");
    std::fs::write(bench.path("mnt/kept"), &kept).expect("a file");
    let sync = || bench.run(&["filesystem", "sync", "mnt"]);
    sync();
    std::fs::remove_file(bench.path("mnt/gone")).expect("its removal");
    sync();
    let held = || {
        bench
            .path("volume")
            .metadata()
            .expect("attributes")
            .blocks()
            * 512
    };
    let before = held();
    // Others write meanwhile.
    let writer = std::thread::spawn({
        let path = bench.path("mnt/meanwhile");
        move || {
            for round in 0..40 {
                std::fs::write(&path, noise(1 << 20, round + 1)).expect("a write");
            }
        }
    });
    let trimmed = run("fstrim", &["-v"], &bench.path("mnt"));
    assert!(trimmed.status.success(), "{}", said(&trimmed));
    assert!(said(&trimmed).contains("trimmed"), "{}", said(&trimmed));
    writer.join().expect("the writer");
    // The kernel forgets a removed file when it likes. The file is deleted
    // then, and its space is free after a commit.
    let is_given_back = || {
        sync();
        let trimmed = run("fstrim", &["-v"], &bench.path("mnt"));
        assert!(trimmed.status.success(), "{}", said(&trimmed));
        held() + (SIZE as u64) / 2 < before
    };
    let given_back = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        is_given_back()
    });
    assert!(given_back, "{before} bytes, then {}", held());
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
    let mounted = bench.mount("ro");
    assert!(std::fs::read(bench.path("mnt/kept")).expect("a file") == kept);
    let last = std::fs::read(bench.path("mnt/meanwhile")).expect("a file");
    assert!(last == noise(1 << 20, 40));
    drop(mounted);
}

const SHUTDOWN: &str = "
import fcntl, os, struct, sys
root = os.open(sys.argv[2], os.O_RDONLY)
word = bytearray(struct.pack('I', int(sys.argv[1])))
fcntl.ioctl(root, 0x8004587d, word)
assert struct.unpack('I', word)[0] == int(sys.argv[1]), word
";

#[test]
fn a_volume_that_is_shut_down_keeps_what_the_mode_says() {
    if !can_mount() {
        return;
    }
    for (mode, keeps) in [("0", true), ("1", false), ("2", false)] {
        let bench = Bench::new();
        let mounted = bench.mount("commit=300");
        std::fs::write(bench.path("mnt/synced"), "synced").expect("a file");
        let synced = std::fs::File::open(bench.path("mnt/synced")).expect("the file");
        synced.sync_all().expect("fsync");
        std::fs::write(bench.path("mnt/waits"), "waits").expect("a file");
        let done = run("python3", &["-c", SHUTDOWN, mode], &bench.path("mnt"));
        assert!(done.status.success(), "{}", said(&done));
        for refused in [
            std::fs::write(bench.path("mnt/new"), "x"),
            std::fs::write(bench.path("mnt/synced"), "x"),
            std::fs::read_dir(bench.path("mnt"))
                .and_then(|mut list| list.next().transpose().map(drop)),
        ] {
            let error = refused.expect_err("it is shut down");
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "mode {mode}");
        }
        drop(synced);
        drop(mounted);
        let mounted = bench.mount("rw");
        let read = |name: &str| std::fs::read_to_string(bench.path("mnt").join(name)).ok();
        assert_eq!(read("synced").as_deref(), Some("synced"), "mode {mode}");
        let expected = keeps.then_some("waits");
        assert_eq!(
            read("waits").filter(|text| !text.is_empty()).as_deref(),
            expected,
            "mode {mode}"
        );
        bench.run(&["umount", "mnt"]);
        drop(mounted);
        bench.check();
    }
}

/// Prints the items of tree 1 by both versions of the search, the second in
/// parts that one item fits into.
const SEARCH: &str = r"
import ctypes, fcntl, os, struct, sys
root = os.open(sys.argv[1], os.O_RDONLY)
MAX = 2**64 - 1

def key(at, count):
    objectid, kind, offset = at
    return struct.pack('<7QIIIIQQQQ', 1, objectid, MAX, offset, MAX, 0, MAX, kind, 255, count, 0, 0, 0, 0, 0)

def items(data, count):
    at = 0
    for _ in range(count):
        _, objectid, offset, kind, length = struct.unpack_from('<QQQII', data, at)
        yield (objectid, kind, offset), bytes(data[at + 32:at + 32 + length])
        at += 32 + length

first = bytearray(key((0, 0, 0), 1000).ljust(4096, b'\0'))
fcntl.ioctl(root, 0xd0009411, first)
old = list(items(first[104:], struct.unpack_from('<I', first, 64)[0]))

new, at, size, grown = [], (0, 0, 0), 32, 0
while len(new) < len(old):
    memory = bytearray(key(at, 1000) + struct.pack('<Q', size) + bytes(size))
    buffer = (ctypes.c_char * len(memory)).from_buffer(memory)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.ioctl(root, ctypes.c_ulong(0xc0709411), buffer)
    if result < 0:
        assert ctypes.get_errno() == 75, ctypes.get_errno()
        wanted = struct.unpack_from('<Q', memory, 104)[0]
        assert wanted > size, (wanted, size)
        size, grown = wanted, grown + 1
        continue
    found = list(items(memory[112:], struct.unpack_from('<I', memory, 64)[0]))
    if not found:
        break
    new += found
    objectid, kind, offset = found[-1][0]
    at = (objectid, kind, offset + 1) if offset < MAX else (objectid, kind + 1, 0)
assert old and new[:len(old)] == old, (old, new)
assert grown > 0
";

#[test]
fn trees_are_searched_into_the_callers_memory() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let done = run("python3", &["-c", SEARCH], &bench.path("mnt"));
    assert!(done.status.success(), "{}", said(&done));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    // The kernel understands the same program.
    bench.with_kernel(|root| {
        let done = run("python3", &["-c", SEARCH], root);
        assert!(done.status.success(), "{}", said(&done));
    });
}

#[test]
fn a_mountpoint_with_a_space_has_snapshots_and_shares_data() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let point = bench.path("a mount\tpoint");
    std::fs::create_dir(&point).expect("a directory");
    bench.run(&["mount", "volume", "a mount\tpoint"]);
    let mounted = Mounted(point.clone());
    std::fs::write(point.join("file"), noise(1 << 20, 3)).expect("a file");
    bench.run(&["subvolume", "create", "a mount\tpoint/sub"]);
    bench.run(&[
        "subvolume",
        "snapshot",
        "a mount\tpoint/sub",
        "a mount\tpoint/shot",
    ]);
    bench.run(&["reflink", "a mount\tpoint/file", "a mount\tpoint/copy"]);
    bench.run(&["umount", "a mount\tpoint"]);
    drop(mounted);
    bench.check();
}

#[test]
fn a_mount_waits_for_a_server_that_is_ending() {
    if !can_mount() || !is_root() {
        println!("skipped: umount(8) needs root");
        return;
    }
    let bench = Bench::new();
    for round in 0..8 {
        let mounted = bench.mount("rw");
        std::fs::write(bench.path("mnt/file"), noise(8 << 20, round + 1)).expect("a file");
        // Returns before the server has written everything.
        let unmounted = run("umount", &[], &bench.path("mnt"));
        assert!(unmounted.status.success(), "{}", said(&unmounted));
        std::mem::forget(mounted);
    }
    let mounted = bench.mount("rw");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
}

#[test]
fn a_mount_of_a_block_device_waits_for_a_server_that_is_ending() {
    if !can_mount() || !is_root() {
        println!("skipped: loop devices need root");
        return;
    }
    let bench = Bench::new();
    let device = Loop::new(&bench.path("volume"));
    // Without it, the server cannot lock the file behind the device.
    std::fs::remove_file(bench.path("volume")).expect("the file's name goes");
    let mut old = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=exit_group"])
        .args(["-e", "inject=exit_group:delay_enter=2000000"])
        .args([BINARY, "mount", "-f", device.name()])
        .arg(bench.path("mnt"))
        .spawn()
        .expect("strace runs");
    let started = Instant::now();
    while run("mountpoint", &["-q"], &bench.path("mnt")).status.code() != Some(0) {
        assert!(started.elapsed() < Duration::from_secs(20), "no mount");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(bench.path("mnt/file"), "x").expect("a file");
    let unmounted = run("umount", &[], &bench.path("mnt"));
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    let mounted = bench.mount_source(device.name(), "rw", "mnt");
    // The process is gone; strace needs a moment to see it.
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        old.try_wait().expect("its state").is_some(),
        "the old server is there"
    );
    let content = std::fs::read_to_string(bench.path("mnt/file"));
    assert_eq!(content.expect("the file"), "x");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn a_limit_on_file_sizes_is_an_error_and_ends_no_server() {
    let bench = Bench::new();
    std::fs::write(bench.path("file"), noise(1 << 20, 5)).expect("a file");
    let limited = |words: &str| {
        let script = format!("ulimit -S -f 1024; exec \"$0\" {words}");
        let output = Command::new("sh")
            .args(["-c", &script, BINARY])
            .current_dir(bench.path(""))
            .output();
        output.expect("sh runs")
    };
    let refused = limited("copy file volume:/");
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(
        said(&refused).contains("File too large"),
        "{}",
        said(&refused)
    );
    bench.check();
    if !can_mount() {
        return;
    }
    // A soft limit is the shell's, not the volume's.
    let mounted = limited("mount volume mnt");
    assert!(mounted.status.success(), "{}", said(&mounted));
    let mounted = Mounted(bench.path("mnt"));
    std::fs::write(bench.path("mnt/file"), noise(4 << 20, 6)).expect("a file");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
}

/// Mounts a mount again, with the user ids from 0 on shown as those from 10000.
const IDMAP: &str = r"
import ctypes, os, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)

def call(*words):
    result = libc.syscall(*[ctypes.c_long(w) if isinstance(w, int) else w for w in words])
    if result < 0:
        sys.exit(f'system call {words[0]}: {os.strerror(ctypes.get_errno())}')
    return result

child = subprocess.Popen(['unshare', '-U', 'sleep', '60'])
own = os.readlink('/proc/self/ns/user')
while os.readlink(f'/proc/{child.pid}/ns/user') == own:
    time.sleep(0.01)
for name in 'uid_map', 'gid_map':
    with open(f'/proc/{child.pid}/{name}', 'w') as ids:
        ids.write('0 10000 1000')
ns = os.open(f'/proc/{child.pid}/ns/user', os.O_RDONLY)
tree = call(428, -100, sys.argv[1].encode(), 0x80001)
wanted = struct.pack('<QQQQ', 0x100000, 0, 0, ns)
call(442, tree, b'', 0x1000, wanted, len(wanted))
call(429, tree, b'', -100, sys.argv[2].encode(), 4)
child.kill()
";

#[test]
fn a_mount_can_be_mounted_with_other_user_ids() {
    if !can_mount() || !is_root() {
        println!("skipped: idmapped mounts need root");
        return;
    }
    let bench = Bench::new();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bench.path(""), open).expect("the folder's mode");
    std::fs::create_dir(bench.path("mapped")).expect("a directory");
    let mounted = bench.mount("idmap");
    std::fs::write(bench.path("mnt/roots"), "x").expect("a file");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(bench.path("mnt"), open).expect("the root's mode");
    let done = Command::new("python3")
        .args(["-c", IDMAP])
        .args([bench.path("mnt"), bench.path("mapped")])
        .output()
        .expect("python3 runs");
    assert!(done.status.success(), "{}", said(&done));
    let owner = |path: &str| {
        std::fs::metadata(bench.path(path))
            .expect("attributes")
            .uid()
    };
    assert_eq!((owner("mnt/roots"), owner("mapped/roots")), (0, 10000));
    let script = "echo x > made && chmod 600 made";
    let made = Command::new("setpriv")
        .args([
            "--reuid=10005",
            "--regid=10005",
            "--clear-groups",
            "sh",
            "-c",
            script,
        ])
        .current_dir(bench.path("mapped"))
        .output()
        .expect("setpriv runs");
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!((owner("mnt/made"), owner("mapped/made")), (5, 10005));
    // Requests that do not say who asks are still known to be root's, or a
    // user's.
    bench.run(&["subvolume", "create", "mnt/roots-subvolume"]);
    bench.run(&["filesystem", "label", "mnt", "mapped"]);
    let refused = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", BINARY])
        .args(["filesystem", "label", "mnt", "other"])
        .current_dir(bench.path(""))
        .output();
    assert!(!refused.expect("setpriv runs").status.success());
    let unmounted = run("umount", &[], &bench.path("mapped"));
    assert!(unmounted.status.success(), "{}", said(&unmounted));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
}

#[test]
fn what_small_writes_scatter_is_defragmented_in_the_background() {
    use std::os::unix::fs::FileExt;
    const SIZE: usize = 512 << 10;
    if !can_mount() {
        return;
    }
    let extents = |options: &str| {
        let bench = Bench::new();
        let mounted = bench.mount(options);
        let path = bench.path("mnt/file");
        std::fs::write(&path, noise(SIZE, 11)).expect("a file");
        let file = std::fs::File::options().read(true).write(true).open(&path);
        let file = file.expect("the file");
        file.sync_all().expect("fsync");
        let mut expected = noise(SIZE, 11);
        for at in (0..SIZE - 8192).step_by(12 << 10) {
            let part = noise(4096, at as u64 + 1);
            file.write_all_at(&part, at as u64).expect("a write");
            file.sync_data().expect("fdatasync");
            expected[at..at + 4096].copy_from_slice(&part);
        }
        std::thread::sleep(std::time::Duration::from_millis(2500));
        assert!(std::fs::read(&path).expect("the file") == expected);
        drop(file);
        bench.run(&["umount", "mnt"]);
        drop(mounted);
        bench.check();
        let shown = bench.run(&["inspect", "dump-tree", "-t", "5", "volume"]);
        shown.matches("EXTENT_DATA").count()
    };
    let (scattered, together) = (extents("commit=1"), extents("commit=1,autodefrag"));
    assert!(scattered > 50 && together < 10, "{scattered}, {together}");
}

#[test]
fn a_volume_is_mounted_several_times_each_with_its_subvolume_and_flags() {
    if !can_mount() || !is_root() {
        println!("skipped: only root mounts a volume again");
        return;
    }
    for block in [false, true] {
        let bench = Bench::new();
        let mut source = bench.path("volume").display().to_string();
        if block {
            let made = run("losetup", &["--find", "--show"], &bench.path("volume"));
            source = said(&made).trim().to_owned();
        }
        let mounted = bench.mount_source(&source, "rw", "mnt");
        bench.run(&["subvolume", "create", "mnt/@"]);
        bench.run(&["subvolume", "create", "mnt/@home"]);
        bench.run(&["umount", "mnt"]);
        drop(mounted);
        for name in ["home", "top", "third"] {
            std::fs::create_dir(bench.path(name)).expect("a directory");
        }
        // The usual fstab, and the top level.
        let root = bench.mount_source(&source, "subvol=@", "mnt");
        let home = bench.mount_source(&source, "subvol=@home,ro", "home");
        let top = bench.mount_source(&source, "subvolid=5,noexec", "top");
        let refused = bench.try_run(&["mount", "-o", "subvol=nosuch", &source, "third"]);
        assert!(!refused.status.success());
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the table");
        let line = |name: &str| {
            let point = bench.path(name).display().to_string();
            let mut lines = table.lines();
            let found = lines.find(|line| line.split(' ').nth(4) == Some(&point));
            found.expect("a mount").to_owned()
        };
        assert!(line("mnt").contains(" /@ "), "{}", line("mnt"));
        assert!(line("home").contains(" /@home "), "{}", line("home"));
        assert!(line("home").contains(" ro,"), "{}", line("home"));
        assert!(line("top").contains("noexec"), "{}", line("top"));
        // What one changes the others see at once.
        std::fs::write(bench.path("mnt/file"), "one").expect("a file");
        let seen = |path: &str| std::fs::read_to_string(bench.path(path));
        assert_eq!(seen("top/@/file").expect("the file"), "one");
        std::fs::write(bench.path("top/@/file"), "two").expect("a file");
        assert_eq!(seen("mnt/file").expect("the file"), "two");
        let refused = std::fs::write(bench.path("home/file"), "x").expect_err("read-only");
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        std::fs::write(bench.path("top/@home/file"), "home").expect("a file");
        assert_eq!(seen("home/file").expect("the file"), "home");
        // Commands by the path of any mount. What is mounted is not deleted.
        let listed = bench.run(&["subvolume", "show", "home"]);
        assert!(listed.contains("@home"), "{listed}");
        bench.run(&["subvolume", "snapshot", "mnt", "top/shot"]);
        assert_eq!(seen("top/shot/file").expect("the file"), "two");
        let refused = bench.try_run(&["subvolume", "delete", "top/@home"]);
        assert!(said(&refused).contains("mounted"), "{}", said(&refused));
        // Each ends by itself, the first one first.
        for (name, mount) in [("mnt", root), ("home", home)] {
            bench.run(&["umount", name]);
            drop(mount);
        }
        assert_eq!(seen("top/@home/file").expect("the file"), "home");
        bench.run(&["subvolume", "delete", "top/@home"]);
        bench.run(&["umount", "top"]);
        drop(top);
        bench.check();
        if block {
            let done = Command::new("losetup").args(["-d", &source]).status();
            assert!(done.expect("losetup runs").success());
        }
    }
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    if !can_mount() || !is_root() {
        println!("skipped: flags of mounts are root's");
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("commit=300");
    let write = |text: &str| std::fs::write(bench.path("mnt/file"), text);
    write("before").expect("a write");
    bench.run(&["mount", "-o", "remount,ro", "mnt"]);
    let refused = write("meanwhile").expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    bench.run(&[
        "mount",
        "-o",
        "rw,noexec,user_id=0,remount",
        "volume",
        "mnt",
    ]);
    write("after").expect("a write");
    let table = std::fs::read_to_string("/proc/mounts").expect("the table");
    let point = bench.path("mnt").display().to_string();
    let line = table.lines().find(|line| line.contains(&point));
    assert!(line.expect("the mount").contains("noexec"), "{table}");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let mounted = bench.mount("ro");
    let refused = bench.try_run(&["mount", "-o", "remount,rw", "mnt"]);
    assert!(
        said(&refused).contains("for reading only"),
        "{}",
        said(&refused)
    );
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
}

/// As in the kernel: 2^64-1 is no start, and no range goes beyond all addresses.
#[test]
fn ranges_to_trim_are_those_of_the_kernel() {
    if !can_mount() || !is_root() {
        println!("skipped: FITRIM needs root");
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let script = r"
import fcntl, os, struct, sys
most = 2**64 - 1
file = os.open(sys.argv[1], os.O_RDONLY)
def trim(start, length):
    try:
        fcntl.ioctl(file, 0xc0185879, struct.pack('QQQ', start, length, 0))
        return 0
    except OSError as error:
        return error.errno
for start, length, expected in [
    (most, most, 22), (most, 4096, 22), (most - 1, most, 0), (most - 1, 4096, 22),
    (2**63, 2**63, 22), (2**63, 2**63 - 1, 0), (2**40, 4096, 0), (0, 4095, 22), (0, most, 0),
]:
    found = trim(start, length)
    assert found == expected, (hex(start), hex(length), found)
";
    let output = run("python3", &["-c", script], &bench.path("mnt"));
    assert!(output.status.success(), "{}", said(&output));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

/// A program of 32 bits takes no greater position than 2^31-1.
#[test]
fn positions_in_directories_are_small() {
    const FILES: usize = 3000;
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    std::fs::create_dir(bench.path("mnt/dir")).expect("a directory");
    for file in 0..FILES {
        std::fs::write(bench.path(&format!("mnt/dir/file {file}")), b"").expect("a file");
    }
    let directory = std::fs::File::open(bench.path("mnt/dir")).expect("the directory");
    let listed = |from: u64| -> Vec<(Vec<u8>, u64)> {
        rustix::fs::seek(&directory, rustix::fs::SeekFrom::Start(from)).expect("a seek");
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 8192];
        let mut entries = rustix::fs::RawDir::new(&directory, &mut buffer);
        let mut all = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.expect("an entry");
            all.push((
                entry.file_name().to_bytes().to_vec(),
                entry.next_entry_cookie(),
            ));
        }
        all
    };
    let all = listed(0);
    assert_eq!(all.len(), FILES + 2);
    for (number, (name, next)) in all.iter().enumerate() {
        assert!(
            i32::try_from(*next).is_ok(),
            "{}: {next:#x}",
            name.escape_ascii()
        );
        if number % 500 == 0 {
            assert_eq!(listed(*next)[..], all[number + 1..], "after entry {number}");
        }
    }
    let names = |part: &[(Vec<u8>, u64)]| -> Vec<Vec<u8>> {
        part.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&listed(7)), names(&all[7..]), "from a small number");
    drop(directory);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

/// What is not committed yet counts everywhere or nowhere.
#[test]
fn usage_has_one_number_for_what_is_unallocated() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("commit=300,flushoncommit");
    std::fs::write(bench.path("mnt/data"), noise(200 << 20, 5)).expect("a file");
    let shown = bench.run(&["filesystem", "usage", "-b", "mnt"]);
    let (overall, devices) = shown.split_once("\nUnallocated:").expect("both parts");
    let last = |text: &str| -> u64 {
        let word = text.split_whitespace().last().expect("a number");
        word.parse().expect("a number")
    };
    let line = |line: &&str| line.contains("Device unallocated:");
    let line = overall.lines().find(line).expect("the sum");
    assert_eq!(last(line), last(devices), "{shown}");
    let none = bench.try_run(&["filesystem", "resize", "cancel", "mnt"]);
    assert!(said(&none).contains("no resize runs"), "{}", said(&none));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}
