//! A directory with a volume and a mountpoint, and the binary.
#![allow(dead_code, reason = "each test uses a part")]

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

pub const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

pub struct Bench {
    directory: tempfile::TempDir,
}

/// Unmounts when a test fails half way.
pub struct Mounted(pub PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new(BINARY)
            .args(["umount", "--lazy"])
            .arg(&self.0)
            .output();
    }
}

/// For scripts of a shell: `sync` without a name means the file system of the
/// script's directory. Other file systems of this machine may be stuck, and do
/// not matter to a test.
pub const SYNC_HERE: &str =
    "sync() { if [ $# = 0 ]; then command sync -f .; else command sync \"$@\"; fi; }\n";

pub fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

impl Bench {
    /// A directory with a new volume of 512 MiB and a mountpoint.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("mnt")).expect("a mountpoint");
        let bench = Self { directory };
        bench.run(&["mkfs", "-q", "-b", "512m", "-L", "trial", "volume"]);
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn try_run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(BINARY);
        command.current_dir(self.directory.path()).args(words);
        command.env("TZ", "UTC");
        command.output().expect("the binary runs")
    }

    /// Runs what must succeed. A process that another test starts holds copies
    /// of this one's open files until its exec, so a mount may be in use for
    /// that long.
    pub fn run(&self, words: &[&str]) -> String {
        let begun = Instant::now();
        let mut output = self.try_run(words);
        while words.first() == Some(&"umount")
            && said(&output).contains(" is in use")
            && begun.elapsed() < Duration::from_secs(10)
        {
            std::thread::sleep(Duration::from_millis(50));
            output = self.try_run(words);
        }
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn mount(&self, options: &str) -> Mounted {
        self.run(&["mount", "-o", options, "volume", "mnt"]);
        Mounted(self.path("mnt"))
    }

    /// Mounts another source, or at another place.
    pub fn mount_source(&self, source: &str, options: &str, point: &str) -> Mounted {
        self.run(&["mount", "-o", options, source, point]);
        Mounted(self.path(point))
    }

    pub fn check(&self) {
        let checked = Command::new("btrfs")
            .args(["check", "--check-data-csum"])
            .arg(self.path("volume"))
            .output();
        match checked {
            Ok(output) => assert!(output.status.success(), "{}", said(&output)),
            Err(_) => println!("skipped: btrfs check is not installed"),
        }
    }
}

/// Whether this machine can mount; says so if it cannot.
pub fn can_mount() -> bool {
    let device = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    if device.is_err() {
        println!("skipped: /dev/fuse cannot be opened");
    }
    device.is_ok()
}

impl Bench {
    /// The volume as the kernel mounts it, while `work` runs; false if this
    /// machine cannot.
    pub fn with_kernel(&self, work: impl FnOnce(&Path)) -> bool {
        if !is_root() {
            println!("skipped: kernel mounts need root");
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            return false;
        }
        let directory = self.path("kernel");
        std::fs::create_dir_all(&directory).expect("a mountpoint");
        let status = Command::new("mount")
            .args(["-o", "loop"])
            .args([self.path("volume"), directory.clone()])
            .status();
        assert!(status.expect("mount runs").success());
        let mounted = Kernel(directory);
        work(&mounted.0);
        true
    }
}

/// A loop device; detached when dropped. For root.
pub struct Loop(pub PathBuf);

impl Loop {
    pub fn new(file: &Path) -> Self {
        Self::with(&[], file)
    }

    /// With more options of losetup(8).
    pub fn with(options: &[&str], file: &Path) -> Self {
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .args(options)
            .arg(file)
            .output();
        let made = made.expect("losetup runs");
        assert!(made.status.success(), "{}", said(&made));
        Self(String::from_utf8_lossy(&made.stdout).trim().into())
    }

    pub fn name(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .output();
    }
}

/// A kernel mount; unmounts when dropped.
pub struct Kernel(pub PathBuf);

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A server in the foreground that a test can kill.
pub struct Foreground {
    child: Child,
    mountpoint: PathBuf,
}

impl Foreground {
    pub fn start(bench: &Bench, options: &str) -> Self {
        let mountpoint = bench.path("mnt");
        let child = Command::new(BINARY)
            .args(["mount", "-f", "-o", options])
            .args([bench.path("volume"), mountpoint.clone()])
            .spawn()
            .expect("the server starts");
        let outside = std::fs::metadata(bench.path("")).expect("attributes").dev();
        let started = Instant::now();
        while std::fs::metadata(&mountpoint).map_or(outside, |m| m.dev()) == outside {
            assert!(started.elapsed() < Duration::from_secs(20), "no mount");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { child, mountpoint }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(mut self) {
        self.child.kill().expect("the server dies");
        self.child.wait().expect("its status");
        // The kernel still shows what it has cached.
        let gone = std::fs::write(self.mountpoint.join("new"), "").expect_err("nobody serves");
        // Over io_uring the request itself may be what is cancelled.
        let gone = gone.raw_os_error();
        let codes = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];
        assert!(gone.is_some_and(|code| codes.contains(&code)), "{gone:?}");
        // Mounting over a dead mount is refused, and says what to do.
        let refused = Command::new(BINARY)
            .args(["mount", "/nosuch"])
            .arg(&self.mountpoint)
            .output();
        assert!(!refused.expect("runs").status.success());
        let status = Command::new("umount")
            .arg("-l")
            .arg(&self.mountpoint)
            .status();
        if !status.expect("umount runs").success() {
            let status = Command::new("fusermount3")
                .arg("-uz")
                .arg(&self.mountpoint)
                .status();
            assert!(status.expect("fusermount3 runs").success());
        }
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = Command::new(BINARY)
            .args(["umount", "--lazy"])
            .arg(&self.mountpoint)
            .output();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
