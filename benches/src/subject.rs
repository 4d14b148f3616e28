//! What is measured: a file system, on a volume that is made anew.

use super::medium::KernelFileSystem;
use super::run;
use super::volume::Volume;
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::{Access, FileDevice};
use butterfs_format::compression::{Algorithm, Level};
use butterfs_fs::options::{Compress, Options};
use butterfs_lab::wakeup::Wake;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;

/// How files are reached.
pub enum Kind {
    /// A file system of the kernel's.
    Kernel(KernelFileSystem),
    /// ButterFS in this process.
    Library,
    /// ButterFS over FUSE, with mount options.
    Fuse(String),
    /// A FUSE server that only remembers names.
    Null(Mutex<NullServer>),
}

/// A file system and its place.
pub struct Subject {
    pub name: String,
    pub kind: Kind,
    /// What idle processors do; `None` for their usual behaviour.
    pub wake: Option<Wake>,
    /// The file or block device that holds the volume.
    pub device: PathBuf,
    pub point: PathBuf,
    /// The tool that is measured.
    pub program: String,
}

/// The only compression that is measured.
pub const ZSTD: &str = "compress=zstd:3";

impl Subject {
    /// Makes the volume anew. The file keeps its memory, because memory that a
    /// machine gives out for the first time can be slow.
    pub fn fresh(&self) {
        match &self.kind {
            Kind::Null(server) => server.lock().unwrap().say("forget", "forgotten"),
            Kind::Kernel(system) => system.make(&self.device),
            Kind::Library | Kind::Fuse(_) => make_btrfs(&self.device),
        }
    }

    /// Opens or mounts it, with an option of mount or "".
    pub fn open(&self, option: &str) -> Volume {
        let device = self.device.to_str().unwrap();
        let point = self.point.to_str().unwrap();
        let options = |own: &str| {
            let all = ["nodiscard", own, option];
            let given: Vec<&str> = all.into_iter().filter(|one| !one.is_empty()).collect();
            given.join(",")
        };
        match &self.kind {
            Kind::Library => {
                let mut options = Options::default();
                if option == ZSTD {
                    options.compress = Compress::Try(Algorithm::Zstd, Level(3));
                }
                return Volume::open(&self.device, options);
            }
            Kind::Kernel(KernelFileSystem::Btrfs) => {
                let own = if self.device.is_file() { "loop" } else { "" };
                run("mount", &["-o", &options(own), device, point]);
            }
            Kind::Kernel(_) => run("mount", &[device, point]),
            Kind::Fuse(own) => {
                run(
                    &self.program,
                    &["mount", "-o", &options(own), device, point],
                );
            }
            Kind::Null(server) => server.lock().unwrap().say("mount", "mounted"),
        }
        Volume::Mounted(self.point.clone())
    }

    /// Closes or unmounts it. Everything is durable then, and nothing is in
    /// memory.
    pub fn close(&self, volume: Volume) {
        let point = self.point.to_str().unwrap();
        match &self.kind {
            Kind::Library => volume.sync(),
            Kind::Kernel(_) => run("umount", &[point]),
            Kind::Fuse(_) => run(&self.program, &["umount", point]),
            Kind::Null(server) => server.lock().unwrap().say("unmount", "unmounted"),
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null(_))
    }

    /// Programs can work on it.
    pub fn is_mounted(&self) -> bool {
        !matches!(self.kind, Kind::Library)
    }

    /// Greatest memory of its server, in MiB, since it was mounted.
    pub fn server_peak(&self) -> Option<f64> {
        let Kind::Fuse(_) = self.kind else {
            return None;
        };
        let wanted = self.device.to_str().unwrap();
        let found = fs::read_dir("/proc").unwrap().flatten().find(|process| {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("--ready") && line.contains(wanted)
        })?;
        Some(super::peak_memory_mib(found.file_name().to_str()?))
    }
}

/// Makes a Btrfs volume with the default options.
pub fn make_btrfs(device: &Path) {
    let device = FileDevice::open(device, Access::ReadWrite).unwrap();
    make(&device, &MkfsOptions::default()).unwrap();
}

/// The null server: `null --serve DIRECTORY`, which remembers its names while
/// it is unmounted.
pub struct NullServer {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl NullServer {
    /// Starts it; `None` if it was not built.
    pub fn start(point: &Path) -> Option<Self> {
        let own = std::env::current_exe().unwrap();
        let program = own.parent().unwrap().join("examples/null");
        let mut process = Command::new(program)
            .arg("--serve")
            .arg(point)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let answers = BufReader::new(process.stdout.take()?);
        Some(Self { process, answers })
    }

    fn say(&mut self, word: &str, expected: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{word}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim(), expected, "the null server's answer");
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
