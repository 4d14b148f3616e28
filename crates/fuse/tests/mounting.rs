//! Every way to mount and unmount, as root and as an ordinary user.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use butterfs_fuse::mount::{Allow, MountFlags, MountKind};
use butterfs_fuse::{
    Config, MountError, MountOptions, Session, SessionError, UnmountMode, mount::UnmountError,
    unmount_on_signals,
};
use support::{MemoryFs, Mount, config, fuse_available, patiently, skip, unmount};

const NOBODY: u32 = 65534;

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The line of /proc/mounts for a mountpoint.
fn mount_line(path: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let target = format!(" {} ", path.display());
    mounts
        .lines()
        .rfind(|line| line.contains(&target))
        .map(str::to_owned)
}

#[test]
fn options_reach_the_kernel() {
    if !fuse_available() {
        return;
    }
    let mut config = config();
    config.mount.allow = Allow::Everyone;
    config.mount.max_read = Some(65536);
    config.mount.flags |= MountFlags::RDONLY | MountFlags::NOATIME;
    let mount = Mount::new(config);
    let line = mount_line(mount.root()).unwrap();
    assert!(line.starts_with("memory,with\\134odd\\040name "), "{line}");
    for word in [
        "fuse.butterfs-test ro,nosuid,nodev,noatime",
        "allow_other",
        "max_read=65536",
    ] {
        assert!(line.contains(word), "{word} in {line}");
    }
    assert!(line.contains("default_permissions"), "{line}");
    let error = fs::write(mount.path("f"), "").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
}

#[test]
fn the_session_ends_with_the_mount_and_destroys_once() {
    if !fuse_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let fs = Arc::new(MemoryFs::default());
    let session = Session::mount(config(), directory.path(), fs.clone()).unwrap();
    assert!(session.agreed().max_write == 1 << 20);
    let unmounter = session.unmounter();
    let thread = std::thread::spawn(move || session.run());
    fs::write(directory.path().join("f"), "x").unwrap();
    assert_eq!(fs.destroyed.load(Ordering::Relaxed), 0);
    unmount(&unmounter);
    thread.join().unwrap().unwrap();
    assert_eq!(fs.destroyed.load(Ordering::Relaxed), 1);
    assert!(
        fs.notifier
            .lock()
            .as_ref()
            .unwrap()
            .store(butterfs_fuse::NodeId(2), 0, b"")
            .is_err()
    );
    unmounter.unmount(UnmountMode::Normal).unwrap();

    // Dropped sessions leave no mount.
    drop(Session::mount(config(), directory.path(), fs.clone()).unwrap());
    assert_eq!(fs.destroyed.load(Ordering::Relaxed), 2);
    assert_eq!(mount_line(directory.path()), None);
    drop(
        Session::mount(config(), directory.path(), fs.clone())
            .unwrap()
            .spawn()
            .unwrap(),
    );
    assert_eq!(fs.destroyed.load(Ordering::Relaxed), 3);
    assert_eq!(mount_line(directory.path()), None);
}

#[test]
fn a_busy_mount_stays_until_the_last_file_closes() {
    if !fuse_available() {
        return;
    }
    let mut mount = Mount::new(config());
    let file = File::create(mount.path("f")).unwrap();
    let error = mount.session.unmount(UnmountMode::Normal).unwrap_err();
    assert!(
        matches!(error, SessionError::Unmount(UnmountError::Busy(_))),
        "{error}"
    );
    assert!(mount.path("f").exists(), "it serves on");
    mount.unmounter().unmount(UnmountMode::Lazy).unwrap();
    assert!(!mount.path("f").exists());
    file.sync_all().unwrap();
    drop(file);
    mount.unmount();
    assert_eq!(mount.fs.destroyed.load(Ordering::Relaxed), 1);
}

#[test]
fn errors_tell_what_to_do() {
    if !fuse_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let fs = Arc::new(MemoryFs::default());
    let refused =
        |path: &Path, config: Config| Session::mount(config, path, fs.clone()).unwrap_err();
    let missing = refused(&directory.path().join("none"), config());
    assert!(matches!(
        missing,
        SessionError::Mount(MountError::MountpointMissing(_))
    ));
    assert!(
        missing.to_string().contains("create the directory"),
        "{missing}"
    );

    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let not_directory = refused(&file, config());
    assert!(matches!(
        not_directory,
        SessionError::Mount(MountError::NotADirectory(_))
    ));

    let mut guarded = config();
    guarded.mount.auto_unmount = true;
    let option = refused(directory.path(), guarded);
    assert!(option.to_string().contains("fusermount3"), "{option}");

    fs.refuse_init.store(true, Ordering::Relaxed);
    let refusal = refused(directory.path(), config());
    assert!(matches!(
        refusal,
        SessionError::Refused(butterfs_fuse::Errno::EUCLEAN)
    ));
    assert_eq!(mount_line(directory.path()), None);
    assert_eq!(fs.destroyed.load(Ordering::Relaxed), 0);

    let closed = refused(Path::new("/dev/fd/12345"), config());
    assert!(
        matches!(closed, SessionError::Mount(MountError::Device(_))),
        "{closed}"
    );
}

#[test]
fn a_descriptor_mounted_by_someone_else() {
    if !fuse_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .unwrap();
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0\0",
        device.as_raw_fd()
    );
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).unwrap();
    let flags = MountFlags::NODEV;
    rustix::mount::mount("outside", directory.path(), "fuse", flags, data).unwrap();
    let path = PathBuf::from(format!("/dev/fd/{}", device.into_raw_fd()));
    let fs = Arc::new(MemoryFs::default());
    let session = Session::mount(config(), &path, fs.clone())
        .unwrap()
        .spawn()
        .unwrap();
    fs::write(directory.path().join("f"), "x").unwrap();
    let unmounter = session.unmounter();
    assert!(matches!(
        unmounter.unmount(UnmountMode::Normal),
        Err(UnmountError::External)
    ));
    let nothing = rustix::mount::UnmountFlags::empty();
    rustix::mount::unmount(directory.path(), nothing).unwrap();
    session.join().unwrap();
    assert_eq!(fs.destroyed.load(Ordering::Relaxed), 1);
}

#[test]
fn block_mounts_wait_for_the_server() {
    if !fuse_available() {
        return;
    }
    let Some(device) = BlockDevice::new() else {
        return;
    };
    let mount = Mount::new(device.config());
    let line = mount_line(mount.root()).unwrap();
    assert!(line.starts_with(&format!("{} ", device.name)), "{line}");
    assert!(line.contains("fuseblk.butterfs-test"), "{line}");

    fs::write(mount.path("f"), "x").unwrap();
    let file = File::open(mount.path("f")).unwrap();
    rustix::fs::syncfs(&file).unwrap();
    assert_eq!(mount.fs.calls("syncfs"), 1);
    let output = Command::new("filefrag")
        .arg("-B")
        .arg(mount.path("f"))
        .output();
    if output.is_ok_and(|output| output.status.success()) {
        assert!(mount.fs.calls("bmap") > 0);
    }
    drop(file);
    // umount(2) returns after destroy did, though nobody joined yet.
    unmount(&mount.unmounter());
    assert_eq!(mount.fs.destroyed.load(Ordering::Relaxed), 1);
    let fs = mount.fs.clone();
    drop(mount);
    assert_eq!(fs.destroyed.load(Ordering::Relaxed), 1);
}

/// A loop device for a block mount; detached when dropped.
struct BlockDevice {
    name: String,
    _image: tempfile::NamedTempFile,
}

impl BlockDevice {
    /// `None`, said in a line, if this machine has none.
    fn new() -> Option<Self> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(16 << 20).unwrap();
        let output = Command::new("losetup")
            .args(["-f", "--show"])
            .arg(image.path())
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let name = String::from_utf8(output.stdout).unwrap().trim().to_owned();
                Some(Self {
                    name,
                    _image: image,
                })
            }
            _ => {
                skip("needs losetup and a free loop device");
                None
            }
        }
    }

    fn config(&self) -> Config {
        let mut config = config();
        config.mount.source.clone_from(&self.name);
        config.mount.kind = MountKind::Block { block_size: 4096 };
        config
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.name]).status();
    }
}

/// Unmounts what is on top at a path, as umount(8) does.
fn unmount_top(path: &Path) {
    patiently(|| {
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).map_err(|error| {
            match error {
                rustix::io::Errno::BUSY => UnmountError::Busy(path.into()),
                other => panic!("{other}"),
            }
        })
    });
}

#[test]
fn a_session_that_ends_leaves_the_next_mount_alone() {
    if !fuse_available() {
        return;
    }
    let device = BlockDevice::new();
    let configs = [Some(config()), device.as_ref().map(BlockDevice::config)];
    for config in configs.into_iter().flatten() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let serve = || {
            let fs = Arc::new(MemoryFs::default());
            Session::mount(config.clone(), root, fs)
                .unwrap()
                .spawn()
                .unwrap()
        };
        let old = serve();
        let unmounter = old.unmounter();
        unmount_top(root);
        // The kernel gives it the same device number, and maybe the same number
        // of a mount.
        let mut next = serve();
        fs::write(root.join("f"), "x").unwrap();
        old.join().unwrap();
        assert!(!unmounter.is_mounted());
        unmounter.unmount(UnmountMode::Normal).unwrap();
        unmounter.unmount(UnmountMode::Lazy).unwrap();
        assert_eq!(
            fs::read(root.join("f")).unwrap(),
            b"x",
            "{:?}",
            config.mount.kind
        );
        assert!(next.unmounter().is_mounted());
        patiently(|| match next.unmount(UnmountMode::Normal) {
            Err(SessionError::Unmount(error)) => Err(error),
            other => {
                other.unwrap();
                Ok(())
            }
        });
        assert_eq!(mount_line(root), None);
    }
}

#[test]
fn what_somebody_mounted_over_a_mount_stays() {
    if !fuse_available() {
        return;
    }
    let mut mount = Mount::new(config());
    fs::write(mount.path("f"), "x").unwrap();
    let over = rustix::mount::mount("over", mount.root(), "tmpfs", MountFlags::empty(), None);
    over.unwrap();
    fs::write(mount.path("own"), "of the other").unwrap();
    for mode in [UnmountMode::Normal, UnmountMode::Lazy] {
        let refused = mount.unmounter().unmount(mode).unwrap_err();
        assert!(matches!(refused, UnmountError::Covered(_)), "{refused}");
        assert!(mount.path("own").exists(), "the other mount is there");
    }
    assert!(
        !mount.unmounter().is_mounted(),
        "it is not what is seen there"
    );
    unmount_top(mount.root());
    assert!(mount.unmounter().is_mounted());
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"x");
    mount.unmount();
}

/// A server in a process of its own: this test binary, running `child_server`.
struct Server {
    child: Child,
    mountpoint: PathBuf,
    /// Kept open: a program whose output nobody takes fails.
    _output: Lines<BufReader<ChildStdout>>,
}

const MOUNTPOINT: &str = "BUTTERFS_FUSE_TEST_MOUNTPOINT";
const READY: &str = "serving and handling signals";
const GUARDED: &str = "BUTTERFS_FUSE_TEST_GUARDED";

impl Server {
    fn start(mountpoint: &Path, change: impl FnOnce(&mut Command)) -> Self {
        // Ordinary users may be unable to reach the build directory.
        let mut program = Command::new("/proc/self/fd/0");
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        program
            .args(["--exact", "child_server", "--ignored", "--nocapture"])
            .env(MOUNTPOINT, mountpoint)
            .current_dir("/")
            .stdin(own)
            .stdout(Stdio::piped());
        change(&mut program);
        let mut child = program.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains(READY)));
        assert!(
            ready && mount_line(mountpoint).is_some(),
            "the server mounts"
        );
        Self {
            child,
            mountpoint: mountpoint.to_owned(),
            _output: lines,
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn terminate(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
        assert_eq!(mount_line(&self.mountpoint), None);
    }
}

#[test]
#[ignore = "the server of other tests"]
fn child_server() {
    let mountpoint = PathBuf::from(std::env::var_os(MOUNTPOINT).unwrap());
    let guarded = std::env::var_os(GUARDED).is_some();
    let config = Config {
        mount: MountOptions {
            auto_unmount: guarded,
            allow: if guarded {
                Allow::Everyone
            } else {
                Allow::Owner
            },
            ..config().mount
        },
        ..config()
    };
    let fs = Arc::new(MemoryFs::default());
    let session = Session::mount(config, &mountpoint, fs.clone()).unwrap();
    let guard = unmount_on_signals(session.unmounter()).unwrap();
    assert!(unmount_on_signals(session.unmounter()).is_err());
    println!("{READY}");
    session.run().unwrap();
    drop(guard);
    assert_eq!(fs.destroyed.load(Ordering::Relaxed), 1);
}

/// Runs the program as an ordinary user.
fn as_nobody(command: &mut Command) {
    command.uid(NOBODY).gid(NOBODY);
}

/// A directory that an ordinary user may mount on.
fn directory_of_nobody() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    directory
}

#[test]
fn signals_unmount() {
    if !fuse_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), |_| {});
    fs::write(directory.path().join("f"), "x").unwrap();
    server.terminate();
}

#[test]
fn a_killed_server_leaves_enotconn_and_can_be_replaced() {
    if !fuse_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), |_| {});
    let file = File::create(directory.path().join("f")).unwrap();
    server.kill();
    // Queues of io_uring take a moment to end.
    let begun = Instant::now();
    loop {
        let error = fs::metadata(directory.path()).unwrap_err();
        match error.raw_os_error() {
            Some(libc::ENOTCONN) => break,
            Some(libc::ECANCELED | libc::ECONNABORTED)
                if begun.elapsed() < Duration::from_secs(10) => {}
            _ => panic!("{error}"),
        }
    }
    assert!(file.sync_all().is_err());

    let fs = Arc::new(MemoryFs::default());
    let stale = Session::mount(config(), directory.path(), fs.clone()).unwrap_err();
    assert!(
        matches!(stale, SessionError::Mount(MountError::Stale(_))),
        "{stale}"
    );
    assert!(stale.to_string().contains("umount -l"), "{stale}");
    assert!(
        Command::new("umount")
            .arg("-l")
            .arg(directory.path())
            .status()
            .unwrap()
            .success()
    );
    let session = Session::mount(config(), directory.path(), fs)
        .unwrap()
        .spawn()
        .unwrap();
    fs::write(directory.path().join("f"), "again").unwrap();
    assert_eq!(fs::read(directory.path().join("f")).unwrap(), b"again");
    drop(session);
}

/// Runs a shell script as nobody; the mount admits no one else.
fn shell_as_nobody(directory: &Path, script: &str) -> String {
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", script])
        .current_dir("/")
        .env("D", directory);
    as_nobody(&mut shell);
    let output = shell.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Whether an ordinary user can mount. If only root may open /dev/fuse, a mount
/// namespace helps: `unshare -m`, and a node of mode 666 bound over it.
fn users_can_mount() -> bool {
    let helper = Command::new("fusermount3")
        .arg("--version")
        .output()
        .is_ok();
    let mode = fs::metadata("/dev/fuse").map_or(0, |device| device.permissions().mode());
    let available = helper && mode & 0o006 == 0o006;
    if !available {
        skip("needs fusermount3 and a /dev/fuse that users may open");
    }
    available
}

#[test]
fn ordinary_users_mount_through_the_helper() {
    if !fuse_available() || !users_can_mount() {
        return;
    }
    let directory = directory_of_nobody();
    let server = Server::start(directory.path(), as_nobody);
    let line = mount_line(directory.path()).unwrap();
    assert!(line.starts_with("memory,with\\134odd\\040name "), "{line}");
    assert!(
        line.contains("fuse.butterfs-test rw,nosuid,nodev"),
        "{line}"
    );
    assert!(line.contains("user_id=65534"), "{line}");
    let listed = shell_as_nobody(
        directory.path(),
        "cd $D; mkdir d; echo hello > d/f; ln d/f g; cat g; ls d; stat -c %u g",
    );
    assert_eq!(listed, "hello\nf\n65534\n");
    // SIGTERM unmounts through the helper.
    server.terminate();
}

#[test]
fn the_helper_unmounts_when_the_server_dies() {
    if !fuse_available() || !users_can_mount() {
        return;
    }
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if !conf.lines().any(|line| line.trim() == "user_allow_other") {
        skip("needs user_allow_other in /etc/fuse.conf");
        return;
    }
    let directory = directory_of_nobody();
    let guard = |command: &mut Command| {
        as_nobody(command);
        command.env(GUARDED, "1");
    };
    let server = Server::start(directory.path(), guard);
    shell_as_nobody(directory.path(), "echo x > $D/f; cat $D/f");
    server.kill();
    eventually("the helper unmounts", || {
        mount_line(directory.path()).is_none()
    });

    // Ended in order, it goes too.
    Server::start(directory.path(), guard).terminate();
}

#[test]
fn a_missing_or_unwilling_helper_is_explained() {
    if !fuse_available() || !users_can_mount() {
        return;
    }
    let explain = |directory: &Path, path: Option<&str>| {
        let mut program = Command::new("/proc/self/fd/0");
        program
            .args(["--exact", "child_server", "--ignored", "--nocapture"])
            .env(MOUNTPOINT, directory)
            .current_dir("/")
            .stdin(File::open(std::env::current_exe().unwrap()).unwrap());
        if let Some(path) = path {
            program.env("PATH", path);
        }
        as_nobody(&mut program);
        let output = program.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout)
    };
    let missing = explain(directory_of_nobody().path(), Some("/nonexistent"));
    assert!(missing.contains("HelperMissing"), "{missing}");
    // A directory of root's: fusermount3 says that nobody may not write there.
    let foreign = tempfile::tempdir().unwrap();
    std::fs::set_permissions(
        foreign.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let unwilling = explain(foreign.path(), None);
    assert!(unwilling.contains("Helper(\""), "{unwilling}");
}
