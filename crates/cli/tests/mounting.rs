//! The binary from outside: make a volume, mount it, use it, unmount it, and
//! let `btrfs check` judge it. If the machine lacks something, one line says
//! so.

mod support;

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};
use support::{BINARY, Bench, Mounted, can_mount, is_root, said};

fn fill(directory: &Path) {
    std::fs::create_dir_all(directory.join("deep/er")).expect("directories");
    std::fs::write(directory.join("small"), "hello\n").expect("a small file");
    let big: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(directory.join("deep/big"), big).expect("a big file");
    std::fs::hard_link(directory.join("small"), directory.join("deep/same")).expect("a link");
    symlink("deep/er", directory.join("link")).expect("a symbolic link");
    let mode = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(directory.join("small"), mode).expect("permissions");
    let fifo = directory.join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success());
    let sparse = std::fs::File::create(directory.join("sparse")).expect("a sparse file");
    sparse.set_len(1 << 30).expect("its length");
}

fn compare(expected: &Path, found: &Path) {
    let big = |root: &Path| std::fs::read(root.join("deep/big")).expect("the big file");
    assert!(big(expected) == big(found), "the big file differs");
    let small = std::fs::read_to_string(found.join("deep/same"));
    assert_eq!(small.expect("the small file"), "hello\n");
    let link = std::fs::read_link(found.join("link")).expect("the symbolic link");
    assert_eq!(link, Path::new("deep/er"));
    for name in ["small", "deep/big", "sparse", "fifo", "deep", "link"] {
        let of = |root: &Path| std::fs::symlink_metadata(root.join(name)).expect("attributes");
        let (one, other) = (of(expected), of(found));
        assert_eq!(one.mode(), other.mode(), "mode of {name}");
        assert_eq!(one.uid(), other.uid(), "owner of {name}");
        assert_eq!(one.mtime(), other.mtime(), "time of {name}");
        assert_eq!(one.mtime_nsec(), other.mtime_nsec(), "time of {name}");
        if !one.is_dir() {
            assert_eq!(one.size(), other.size(), "size of {name}");
            assert_eq!(one.nlink(), other.nlink(), "links of {name}");
        }
    }
    let fifo = std::fs::symlink_metadata(found.join("fifo")).expect("the fifo");
    assert!(fifo.file_type().is_fifo());
    let sparse = std::fs::metadata(found.join("sparse")).expect("the sparse file");
    assert!(sparse.blocks() < 1024, "the hole was filled");
}

/// Held exclusively by the test that makes a mount namespace. The namespace
/// also has the mounts of all other tests, which would wait for it.
static NAMESPACES: RwLock<()> = RwLock::new(());

/// What a test of this program holds while it has a mount; `None` where nothing
/// can be mounted.
fn mounts() -> Option<RwLockReadGuard<'static, ()>> {
    can_mount().then(|| NAMESPACES.read().unwrap_or_else(PoisonError::into_inner))
}

#[test]
fn a_volume_is_made_mounted_filled_and_found_again() {
    let Some(_mounts) = mounts() else {
        return;
    };
    let bench = Bench::new();
    let mounted = bench.mount("compress=zstd");
    fill(&bench.path("mnt"));
    let gone = bench.path("mnt/gone");
    std::fs::write(&gone, "x").expect("a file");
    std::fs::remove_file(&gone).expect("its removal");
    std::fs::rename(bench.path("mnt/deep/er"), bench.path("mnt/moved")).expect("a rename");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();

    let again = bench.mount("ro");
    let small = std::fs::read_to_string(bench.path("mnt/small"));
    assert_eq!(small.expect("the small file"), "hello\n");
    assert!(bench.path("mnt/moved").is_dir() && !gone.exists());
    let refused = std::fs::write(bench.path("mnt/new"), "x").expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(30));
    bench.run(&["umount", "mnt"]);
    drop(again);
}

#[test]
fn copies_survive_the_way_in_and_out() {
    let bench = Bench::new();
    fill(&bench.path("source"));
    bench.run(&["copy", "-q", "-o", "compress=lzo", "source", "volume:/"]);
    bench.check();
    bench.run(&["copy", "-q", "volume:/source", "result"]);
    compare(&bench.path("source"), &bench.path("result"));
    assert_eq!(bench.run(&["cat", "volume:/source/small"]), "hello\n");
    let listed = bench.run(&["ls", "volume:/source"]);
    assert!(listed.lines().any(|line| line == "sparse"), "{listed}");
    let listed = bench.run(&["ls", "-R", "--json", "volume:/"]);
    assert!(listed.contains("\"source/deep/big\""), "{listed}");
    assert_eq!(bench.run(&["filesystem", "label", "volume"]), "trial\n");
    let usage = bench.run(&["filesystem", "usage", "volume"]);
    assert!(usage.contains("512.00MiB"), "{usage}");
}

#[test]
fn mistakes_are_refused_with_a_reason() {
    let bench = Bench::new();
    let refused = |words: &[&str], reason: &str| {
        let output = bench.try_run(words);
        assert!(!output.status.success(), "{words:?} succeeded");
        assert!(
            said(&output).contains(reason),
            "{words:?}: {}",
            said(&output)
        );
    };
    refused(&["mkfs", "volume"], "use -f");
    refused(&["mkfs", "-b", "1m", "tiny"], "too small");
    refused(
        &["mkfs", "-f", "-d", "raid1", "volume"],
        "needs at least 2 devices",
    );
    refused(
        &["mount", "-o", "compres", "volume", "mnt"],
        "did you mean `compress`",
    );
    refused(&["mount", "nosuch", "mnt"], "nosuch");
    refused(&["umount", "mnt"], "nothing is mounted");
    refused(&["ls", "volume:/nosuch"], "no such file");
    std::fs::write(bench.path("text"), vec![b'x'; 1 << 20]).expect("a file");
    refused(&["ls", "text:/"], "no Btrfs volume");
    if let Some(_mounts) = mounts() {
        let _mounted = bench.mount("rw");
        refused(&["ls", "volume:/"], "in use");
        // Also by another name, and at once, because its server is not ending.
        std::fs::hard_link(bench.path("volume"), bench.path("other name")).expect("a link");
        std::fs::create_dir(bench.path("second")).expect("a mountpoint");
        let began = std::time::Instant::now();
        refused(&["mount", "other name", "second"], "in use");
        assert!(began.elapsed() < std::time::Duration::from_secs(20));
    }
}

/// Whether mounts of other file systems and namespaces can be made; says so
/// when they cannot.
fn can_arrange() -> bool {
    if !is_root() {
        println!("skipped: mounts and namespaces need root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
    }
    is_root() && can_mount()
}

/// A server still has the image open.
fn is_served(image: &Path) -> bool {
    let image = std::fs::File::open(image).expect("the image");
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&image, lock).is_err()
}

/// Unmounts a tmpfs when dropped.
struct Memory(std::path::PathBuf);

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn umount_says_what_was_lost() {
    let Some(_mounts) = mounts().filter(|_| can_arrange()) else {
        return;
    };
    let bench = Bench::new();
    let small = bench.path("small");
    std::fs::create_dir(&small).expect("a directory");
    let status = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=30m", "tmpfs"])
        .arg(&small)
        .status();
    assert!(status.expect("mount runs").success());
    let memory = Memory(small);
    bench.run(&["mkfs", "-q", "-b", "512m", "small/volume"]);
    bench.run(&["mount", "small/volume", "mnt"]);
    let data = vec![0x5a; 5 << 20];
    for number in 0..7 {
        // They wait in memory, which has room.
        std::fs::write(bench.path(&format!("mnt/file{number}")), &data).expect("a file");
    }
    let output = bench.try_run(&["umount", "mnt"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("lost"), "{}", said(&output));
    assert!(!is_served(&bench.path("small/volume")));
    drop(memory);
}

#[test]
fn umount_waits_for_an_image_that_was_renamed() {
    let Some(_mounts) = mounts() else {
        return;
    };
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let data = vec![0x5a; 20 << 20];
    std::fs::write(bench.path("mnt/file"), &data).expect("a file");
    std::fs::rename(bench.path("volume"), bench.path("moved")).expect("a rename");
    bench.run(&["umount", "mnt"]);
    assert!(!is_served(&bench.path("moved")), "umount did not wait");
    drop(mounted);
    std::fs::rename(bench.path("moved"), bench.path("volume")).expect("a rename");
    bench.check();
    assert_eq!(bench.run(&["ls", "volume:/"]).trim(), "file");
}

#[test]
fn umount_says_who_else_has_the_mount() {
    let _namespaces = NAMESPACES.write().unwrap_or_else(PoisonError::into_inner);
    if !can_arrange() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    std::fs::write(bench.path("mnt/file"), "x").expect("a file");
    let mut other = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sleep", "100"])
        .spawn()
        .expect("unshare runs");
    let comm = format!("/proc/{}/comm", other.id());
    let started = Instant::now();
    while std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() != "sleep") {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = bench.try_run(&["umount", "mnt"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("(sleep)") && text.contains("namespace"),
        "{text}"
    );
    assert!(is_served(&bench.path("volume")));
    other.kill().expect("it ends");
    other.wait().expect("its status");
    while is_served(&bench.path("volume")) {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(mounted);
    bench.check();
}

#[test]
fn attributes_follow_what_the_kernel_does_not_see() {
    let Some(_mounts) = mounts() else {
        return;
    };
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let file = bench.path("mnt/file");
    std::fs::write(&file, vec![1; 40_960]).expect("a file");
    let stat = || std::fs::metadata(&file).expect("attributes");
    let ctime = || (stat().ctime(), stat().ctime_nsec());
    let before = ctime();
    std::thread::sleep(Duration::from_millis(20));
    let changed = Command::new("chattr").arg("+d").arg(&file).status();
    assert!(changed.expect("chattr runs").success());
    assert!(ctime() > before, "chattr did not show");
    let fsync = || {
        let opened = std::fs::File::open(&file).expect("opened");
        opened.sync_all().expect("fsync");
    };
    fsync();
    assert_eq!(stat().blocks(), 80);
    std::fs::write(&file, vec![2; 40_960]).expect("other content");
    assert_eq!(stat().blocks(), 80);
    fsync();
    assert_eq!(stat().blocks(), 80);
    std::fs::write(bench.path("mnt/small"), "x").expect("a small file");
    let small = std::fs::metadata(bench.path("mnt/small"));
    assert_eq!(small.expect("attributes").blocks(), 8);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

/// Runs the binary's copy of a bench as an ordinary user.
fn as_user(bench: &Bench, user: u32, words: &[&str]) -> std::process::Output {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={user}"), format!("--regid={user}")]);
    command.args(["--clear-groups", "./butterfs"]).args(words);
    let output = command.current_dir(bench.path("")).output();
    output.expect("setpriv runs")
}

/// Gives a bench to a user.
fn give(bench: &Bench, user: u32) {
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bench.path(""), mode).expect("a mode");
    std::fs::copy(BINARY, bench.path("butterfs")).expect("a copy");
    std::fs::remove_file(bench.path("volume")).expect("no volume");
    for name in ["", "mnt"] {
        std::os::unix::fs::chown(bench.path(name), Some(user), Some(user)).expect("an owner");
    }
    let made = as_user(bench, user, &["mkfs", "-q", "-b", "512m", "volume"]);
    assert!(made.status.success(), "{}", said(&made));
}

#[test]
fn ordinary_users_are_told_who_has_a_mount() {
    const USER: u32 = 65534;
    const OTHER: u32 = 65533;
    let Some(_mounts) = mounts().filter(|_| is_root()) else {
        return;
    };
    let bench = Bench::new();
    give(&bench, USER);
    let run = |words: &[&str]| as_user(&bench, USER, words);
    let made = run(&["mount", "-o", "allow_other", "volume", "mnt"]);
    let with_others = made.status.success();
    if !with_others {
        println!("skipped: user_allow_other is not in /etc/fuse.conf");
        let made = run(&["mount", "volume", "mnt"]);
        assert!(made.status.success(), "{}", said(&made));
    }
    let mounted = Mounted(bench.path("mnt"));
    let refused = run(&["mount", "-o", "remount,ro", "mnt"]);
    assert!(
        said(&refused).contains("only root can remount"),
        "{}",
        said(&refused)
    );
    if with_others {
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(bench.path("mnt"), open).expect("a mode");
        let other = |words: &[&str]| as_user(&bench, OTHER, words);
        let made = other(&["subvolume", "create", "mnt/own"]);
        assert!(made.status.success(), "{}", said(&made));
        let refused = other(&["subvolume", "snapshot", "mnt/own", "mnt/snap"]);
        let words = said(&refused);
        assert!(
            words.contains("the server of this mount runs as user 65534"),
            "{words}"
        );
        let made = run(&["subvolume", "create", "mnt/theirs"]);
        assert!(made.status.success(), "{}", said(&made));
        let made = run(&["subvolume", "snapshot", "mnt/theirs", "mnt/snap"]);
        assert!(made.status.success(), "{}", said(&made));
        let refused = other(&["umount", "mnt"]);
        assert!(
            said(&refused).contains("mounted by another user"),
            "{}",
            said(&refused)
        );
    }
    let root = bench.path("mnt");
    let mut busy = Command::new("setpriv");
    busy.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "sleep",
        "100",
    ]);
    let mut busy = busy.current_dir(&root).spawn().expect("setpriv runs");
    let begun = std::time::Instant::now();
    while !std::fs::read_to_string(format!("/proc/{}/comm", busy.id()))
        .is_ok_and(|name| name.trim() == "sleep")
    {
        assert!(begun.elapsed().as_secs() < 20, "it does not start");
    }
    let refused = run(&["umount", "mnt"]);
    busy.kill().expect("it ends");
    busy.wait().expect("its status");
    assert!(said(&refused).contains("`fuser -vm"), "{}", said(&refused));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn a_mounted_volume_is_checked_by_force() {
    let Some(_mounts) = mounts() else {
        return;
    };
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let refused = bench.try_run(&["check", "volume"]);
    assert_eq!(refused.status.code(), Some(8), "{}", said(&refused));
    let checked = bench.run(&["check", "--force", "volume"]);
    assert!(checked.contains("no faults found"), "{checked}");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn a_mistake_in_the_options_of_a_mount_has_a_reason() {
    let Some(_mounts) = mounts() else {
        return;
    };
    let bench = Bench::new();
    for (options, reason) in [
        ("logfile=/nosuch/x", "/nosuch/x: No such file"),
        ("qqqqqqqqqqqq", "`butterfs mount -o help` lists them"),
    ] {
        let refused = bench.try_run(&["mount", "-o", options, "volume", "mnt"]);
        assert!(!refused.status.success());
        assert!(said(&refused).contains(reason), "{}", said(&refused));
    }
}

/// Nobody is told that the mount is live, if whoever asked for it was killed.
/// Then there is no mount.
#[test]
fn a_mount_that_nobody_waits_for_is_given_up() {
    let Some(_mounts) = mounts() else {
        return;
    };
    let bench = Bench::new();
    std::fs::create_dir_all(bench.path("point")).expect("a directory");
    let mut server = Command::new(BINARY)
        .args(["mount", "--foreground", "--ready", "volume", "point"])
        .current_dir(bench.path(""))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(server.stdout.take());
    let end = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = server.try_wait().expect("its status") {
            break status;
        }
        assert!(Instant::now() < end, "it goes on serving");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(!status.success());
    let table = std::fs::read_to_string("/proc/self/mounts").expect("the mounts");
    let point = bench.path("point");
    assert!(!table.contains(point.to_str().expect("a name")), "{table}");
    bench.check();
}

/// A server that gets too few descriptors for io_uring serves by /dev/fuse, or
/// not at all.
#[test]
fn a_mount_with_few_descriptors_does_not_hang() {
    let Some(_mounts) = mounts() else {
        return;
    };
    let bench = Bench::new();
    let _ = std::fs::create_dir(bench.path("mnt"));
    let mut served = 0;
    for limit in [9, 11, 12, 13, 14, 15, 16, 18, 20, 24, 32, 48, 64] {
        let words = format!("ulimit -n {limit}; exec timeout 20 {BINARY} mount volume mnt");
        let mut shell = Command::new("bash");
        let mounted = shell.args(["-c", &words]).current_dir(bench.path(""));
        let mounted = mounted.output().expect("bash runs");
        if mounted.status.success() {
            let mut look = Command::new("timeout");
            let look = look.args(["20", "ls"]).arg(bench.path("mnt"));
            let looked = look.output().expect("timeout runs");
            assert!(looked.status.success(), "{limit}: {}", said(&looked));
            // The server may end as soon as it lacks a descriptor.
            let unmounted = bench.try_run(&["umount", "mnt"]);
            served += usize::from(unmounted.status.success());
        } else {
            let code = mounted.status.code();
            assert_eq!(code, Some(32), "{limit}: {}", said(&mounted));
        }
    }
    assert!(served > 3, "{served}");
}

/// A server in the foreground, with its mount. Both end when it is dropped.
struct Server {
    process: std::process::Child,
    _mounted: Mounted,
}

impl Server {
    /// `None` if the process ended before anything was mounted.
    fn start(bench: &Bench, mut command: Command) -> Result<Self, std::process::Output> {
        let point = bench.path("mnt");
        command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped());
        let mut process = command.spawn().expect("the server starts");
        let outside = std::fs::metadata(bench.path("")).expect("attributes").dev();
        let started = Instant::now();
        // A mount that nobody serves any more has no attributes.
        while std::fs::metadata(&point).map_or(outside, |found| found.dev()) == outside {
            if process.try_wait().expect("its state").is_some() {
                return Err(process.wait_with_output().expect("its output"));
            }
            assert!(started.elapsed() < Duration::from_secs(30), "no mount");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self {
            process,
            _mounted: Mounted(point),
        })
    }

    fn signal(&self, name: &str) {
        let number = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &number]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// How it ended.
    fn end(&mut self) -> (Option<i32>, String) {
        let started = Instant::now();
        let status = loop {
            match self.process.try_wait().expect("its state") {
                Some(status) => break status,
                None => assert!(started.elapsed() < Duration::from_secs(20), "it goes on"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut words = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut words).expect("its words");
        }
        (status.code(), words)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether the kernel's table has a mount at a path.
fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the table");
    let path = path.to_str().expect("text");
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(path))
}

#[test]
fn a_server_with_few_descriptors_ends_when_asked_or_says_what_it_lacks() {
    let Some(_mounts) = mounts() else {
        return;
    };
    let bench = Bench::new();
    let (mut served, mut refused) = (0, 0);
    for limit in [10, 12, 13, 14, 15, 16, 18, 24, 32] {
        let words = format!("ulimit -n {limit}; exec {BINARY} mount -f volume mnt");
        let mut command = Command::new("bash");
        command.args(["-c", &words]).current_dir(bench.path(""));
        let (code, words) = match Server::start(&bench, command) {
            Ok(mut server) => {
                server.signal("TERM");
                server.end()
            }
            Err(output) => (output.status.code(), said(&output)),
        };
        assert!(!is_mounted(&bench.path("mnt")), "{limit}: {words}");
        match code {
            Some(0) => served += 1,
            Some(32) => {
                refused += 1;
                assert!(words.contains("ulimit -n"), "{limit}: {words}");
            }
            code => panic!("{limit}: {code:?} {words}"),
        }
    }
    assert!(served >= 2 && refused >= 2, "{served} {refused}");
    bench.check();
}

#[test]
fn commands_say_that_they_wait_for_a_server_that_is_stopped() {
    let Some(_mounts) = mounts() else {
        return;
    };
    let bench = Bench::new();
    let mut command = Command::new(BINARY);
    command
        .args(["mount", "-f"])
        .args([bench.path("volume"), bench.path("mnt")]);
    let mut server = Server::start(&bench, command).expect("a mount");
    let number = server.process.id();
    let while_stopped = |server: &Server, all: &[&[&str]]| {
        server.signal("STOP");
        let begun = all.iter().map(|words| {
            Command::new(BINARY)
                .args(*words)
                .current_dir(bench.path(""))
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .expect("the command starts")
        });
        let begun: Vec<_> = begun.collect();
        std::thread::sleep(Duration::from_millis(4500));
        server.signal("CONT");
        for (words, command) in all.iter().zip(begun) {
            let output = command.wait_with_output().expect("its end");
            let text = said(&output);
            assert!(output.status.success(), "{words:?}: {text}");
            let wanted = format!("process {number}, is stopped");
            assert!(text.contains(&wanted), "{words:?}: {text}");
        }
    };
    while_stopped(
        &server,
        &[
            &["filesystem", "usage", "mnt"],
            &["filesystem", "show"],
            &["subvolume", "list", "mnt"],
        ],
    );
    while_stopped(&server, &[&["umount", "mnt"]]);
    assert_eq!(server.end().0, Some(0));
    bench.check();
}

#[test]
fn root_learns_how_a_users_mount_ended() {
    const USER: u32 = 65534;
    let Some(_mounts) = mounts().filter(|_| is_root()) else {
        return;
    };
    let bench = Bench::new();
    give(&bench, USER);
    let made = as_user(&bench, USER, &["mount", "volume", "mnt"]);
    assert!(made.status.success(), "{}", said(&made));
    let mounted = Mounted(bench.path("mnt"));
    let mut write = Command::new("setpriv");
    write.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "dd",
        "bs=1M",
        "count=8",
    ]);
    write.args([
        "if=/dev/zero",
        &format!("of={}", bench.path("mnt/file").display()),
    ]);
    let wrote = write.output().expect("setpriv runs");
    assert!(wrote.status.success(), "{}", said(&wrote));
    bench.run(&["umount", "mnt"]);
    assert!(!is_served(&bench.path("volume")));
    drop(mounted);
    bench.check();
}

#[test]
fn a_server_keeps_its_mount_namespace_longer_than_its_connection() {
    let Some(_mounts) = mounts() else {
        return;
    };
    let bench = Bench::new();
    let device = is_root().then(|| support::Loop::new(&bench.path("volume")));
    let sources = [
        Some(bench.path("volume")),
        device.as_ref().map(|device| device.0.clone()),
    ];
    for source in sources.into_iter().flatten() {
        let mut command = Command::new(BINARY);
        command
            .args(["mount", "-f"])
            .args([source, bench.path("mnt")]);
        let server = Server::start(&bench, command).expect("a mount");
        // The kernel closes the greatest number first.
        let numbers = |is: fn(&str) -> bool| {
            let files = std::fs::read_dir(format!("/proc/{}/fd", server.process.id()));
            let files = files.expect("its descriptors").flatten();
            let of = |file: &std::fs::DirEntry| {
                let target = std::fs::read_link(file.path()).ok()?;
                is(target.to_str()?).then(|| file.file_name().to_str()?.parse::<i32>().ok())?
            };
            files.filter_map(|file| of(&file)).min()
        };
        let namespace = numbers(|target| target.starts_with("mnt:["));
        let connection = numbers(|target| target == "/dev/fuse");
        assert!(connection.is_some());
        assert!(
            namespace.is_some() && namespace < connection,
            "{namespace:?} {connection:?}"
        );
        bench.run(&["umount", "mnt"]);
    }
}
