//! A mount of the in-memory file system for one test.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod memory;
mod tree;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use butterfs_fuse::mount::UnmountError;
use butterfs_fuse::{
    Config, MountOptions, RunningSession, Session, SessionError, Transports, UnmountMode,
    Unmounter, Wake,
};

pub use memory::MemoryFs;

/// Says why a test does nothing. Writes past the test harness, which hides the
/// output of tests that pass.
pub fn skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}

/// Whether tests that need FUSE can run; says once per test why not.
pub fn fuse_available() -> bool {
    let available = rustix::process::geteuid().is_root()
        && std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .is_ok();
    if !available {
        skip("needs root and /dev/fuse");
    }
    available
}

/// Whether the kernel offers FUSE over io_uring now. `make test-long` runs these
/// tests with its parameter on, then off.
pub fn uring_is_offered() -> bool {
    std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
        .is_ok_and(|value| value.trim() == "Y")
}

/// Options that tests share.
pub fn config() -> Config {
    Config {
        threads: 2,
        transports: Transports::UringToo,
        wake: Wake::Poll,
        mount: MountOptions {
            source: "memory,with\\odd name".into(),
            subtype: Some("butterfs-test".into()),
            ..MountOptions::default()
        },
        ..Config::default()
    }
}

/// A mounted in-memory file system.
pub struct Mount {
    pub session: RunningSession,
    pub fs: Arc<MemoryFs>,
    directory: tempfile::TempDir,
}

impl Mount {
    pub fn new(config: Config) -> Self {
        Self::with(config, Arc::new(MemoryFs::default()))
    }

    pub fn with(config: Config, fs: Arc<MemoryFs>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let session = Session::mount(config, directory.path(), fs.clone()).unwrap();
        Self {
            session: session.spawn().unwrap(),
            fs,
            directory,
        }
    }

    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }

    /// Unmounts, and ends the session.
    pub fn unmount(&mut self) {
        patiently(|| match self.session.unmount(UnmountMode::Normal) {
            Err(SessionError::Unmount(error)) => Err(error),
            other => {
                other.unwrap();
                Ok(())
            }
        });
    }
}

/// Unmounts a mount whose session others have. See [`patiently`].
#[allow(dead_code, reason = "not every test program unmounts so")]
pub fn unmount(unmounter: &Unmounter) {
    patiently(|| unmounter.unmount(UnmountMode::Normal));
}

/// Tries again while a mount is busy. A process that another test starts holds
/// a copy of every open file until its exec, so "busy" may pass.
pub fn patiently(mut unmount: impl FnMut() -> Result<(), UnmountError>) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match unmount() {
            Err(UnmountError::Busy(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other.unwrap(),
        }
    }
}
