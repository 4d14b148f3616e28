//! Sequential writes and reads over several devices of a declared rate: what
//! stripes and mirrors gain over one device, in the library and, where the
//! machine can hold back loop devices, in the kernel and on a mount.

use super::small::median;
use super::{noise, program, run};
use butterfs_admin::mkfs::{MkfsOptions, make_on};
use butterfs_device::{Access, BlockDevice, DeviceError, DeviceRange, MemoryDevice};
use butterfs_format::{DeviceOffset, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::{Filesystem, Inode, Options};
use butterfs_store::{OpenOptions, Store};
use butterfs_volume::Profile;
use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes per second of each device: a slow disk, so that the processor's time
/// does not matter.
const RATE: f64 = 200.0 * 1024.0 * 1024.0;
const DEVICE: u64 = 1 << 30;
const FILE: u64 = 256 << 20;
const REQUEST: usize = 1 << 20;
const RUNS: usize = 3;
/// Readers of mirrors, each with its own part of the file.
const READERS: u64 = 4;

/// A device in memory that moves [`RATE`] bytes per second, one request after
/// the other.
#[derive(Debug)]
struct Paced {
    memory: MemoryDevice,
    free_at: Mutex<Instant>,
}

impl Paced {
    fn new() -> Self {
        Self {
            memory: MemoryDevice::new(DEVICE),
            free_at: Mutex::new(Instant::now()),
        }
    }

    fn pass(&self, bytes: usize) {
        let takes = Duration::from_secs_f64(bytes as f64 / RATE);
        let until = {
            let mut free_at = self.free_at.lock().unwrap();
            *free_at = (*free_at).max(Instant::now()) + takes;
            *free_at
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

impl BlockDevice for Paced {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.pass(buf.len());
        self.memory.read_at(offset, buf)
    }
    fn read_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<(), DeviceError> {
        self.pass(parts.iter().map(|part| part.len()).sum());
        self.memory.read_vectored_at(offset, parts)
    }
    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.pass(data.len());
        self.memory.write_at(offset, data)
    }
    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        self.pass(parts.iter().map(|part| part.len()).sum());
        self.memory.write_vectored_at(offset, parts)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.memory.flush()
    }
    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        self.memory.discard(range)
    }
    fn identity(&self) -> String {
        "paced".to_owned()
    }
    fn access(&self) -> Access {
        Access::ReadWrite
    }
}

fn open(devices: &[Arc<dyn BlockDevice>]) -> Filesystem {
    let store = Store::open_all(devices.to_vec(), &OpenOptions::default()).unwrap();
    Filesystem::new(Arc::new(store), TreeId::FS, Options::default())
}

fn read_part(fs: &Filesystem, inode: &Inode, from: u64, to: u64) {
    let mut buffer = vec![0; REQUEST];
    for at in (from..to).step_by(REQUEST) {
        assert_eq!(fs.read(inode, at, &mut buffer).unwrap(), REQUEST);
    }
}

/// MiB/s of a sequential write until it is durable, of one reader, and of
/// several.
fn rates(devices: usize, profile: Profile) -> [f64; 3] {
    let devices: Vec<Arc<dyn BlockDevice>> = (0..devices)
        .map(|_| Arc::new(Paced::new()) as Arc<dyn BlockDevice>)
        .collect();
    let options = MkfsOptions {
        data: Some(profile),
        ..MkfsOptions::default()
    };
    make_on(&devices, &options).unwrap();
    let noise = noise();
    let rate = |began: Instant| FILE as f64 / (1 << 20) as f64 / began.elapsed().as_secs_f64();
    let fs = open(&devices);
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = fs.create(fs.root(), b"file", &new).unwrap();
    let began = Instant::now();
    for at in (0..FILE).step_by(REQUEST) {
        assert_eq!(fs.write(&inode, at, &noise).unwrap(), REQUEST);
    }
    fs.sync_all().unwrap();
    let write = rate(began);
    drop((inode, fs));
    let fs = open(&devices);
    let inode = fs.lookup(fs.root(), b"file").unwrap().inode;
    let inode = fs.inode(inode).unwrap();
    let began = Instant::now();
    read_part(&fs, &inode, 0, FILE);
    let read = rate(began);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (fs, inode, part) = (&fs, &inode, FILE / READERS);
            scope.spawn(move || read_part(fs, inode, reader * part, (reader + 1) * part));
        }
    });
    [write, read, rate(began)]
}

/// Where the limits of block devices are set for all processes.
const LIMITS: &str = "/sys/fs/cgroup/blkio";

/// A loop device over a file in memory that moves [`RATE`] bytes per second.
struct Slow {
    image: PathBuf,
    device: String,
    number: String,
}

impl Slow {
    fn new(image: PathBuf) -> Self {
        File::create(&image).unwrap().set_len(DEVICE).unwrap();
        let mut losetup = Command::new("losetup");
        let output = losetup.args(["-f", "--show"]).arg(&image).output().unwrap();
        assert!(output.status.success(), "losetup");
        let device = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let name = device.trim_start_matches("/dev/");
        let number = fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap();
        let slow = Self {
            image,
            device,
            number: number.trim().to_owned(),
        };
        slow.limit(RATE as u64);
        slow
    }

    /// 0 is no limit.
    fn limit(&self, bytes: u64) {
        for what in ["read", "write"] {
            let file = format!("{LIMITS}/blkio.throttle.{what}_bps_device");
            fs::write(file, format!("{} {bytes}", self.number)).unwrap();
        }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.limit(0);
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
        let _ = fs::remove_file(&self.image);
    }
}

/// Who has the volume mounted.
#[derive(Clone, Copy)]
enum Server {
    Kernel,
    Fuse,
}

/// A mount of slow devices; nothing is in memory when it begins.
struct Mounted<'m> {
    server: Server,
    devices: &'m [Slow],
    point: &'m Path,
}

impl<'m> Mounted<'m> {
    fn new(server: Server, devices: &'m [Slow], point: &'m Path) -> Self {
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        let all: Vec<String> = devices
            .iter()
            .map(|slow| format!("device={}", slow.device))
            .collect();
        let options = format!("noatime,nodiscard,{}", all.join(","));
        let (first, at) = (devices[0].device.as_str(), point.to_str().unwrap());
        match server {
            Server::Kernel => run("mount", &["-t", "btrfs", "-o", &options, first, at]),
            Server::Fuse => run(&program(), &["mount", "-o", &options, first, at]),
        }
        Self {
            server,
            devices,
            point,
        }
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let at = self.point.to_str().unwrap();
        match self.server {
            Server::Kernel => run("umount", &[at]),
            Server::Fuse => run(&program(), &["umount", at]),
        }
        for slow in self.devices {
            let forget = ["device", "scan", "--forget", &slow.device];
            let _ = Command::new("btrfs").args(forget).output();
        }
    }
}

fn read_file(path: &Path, from: u64, to: u64) {
    let file = File::open(path).unwrap();
    let mut buffer = vec![0; REQUEST];
    for at in (from..to).step_by(REQUEST) {
        file.read_exact_at(&mut buffer, at).unwrap();
    }
}

/// As [`rates`], of a mount.
fn rates_mounted(server: Server, work: &Path, devices: usize, profile: &str) -> [f64; 3] {
    let point = work.join("mnt");
    let slow: Vec<Slow> = (0..devices)
        .map(|number| Slow::new(work.join(number.to_string())))
        .collect();
    let mut mkfs = vec!["mkfs", "-q", "-f", "-d", profile];
    mkfs.extend(slow.iter().map(|slow| slow.device.as_str()));
    run(&program(), &mkfs);
    let noise = noise();
    let rate = |began: Instant| FILE as f64 / (1 << 20) as f64 / began.elapsed().as_secs_f64();
    let path = point.join("file");
    let write = {
        let _mounted = Mounted::new(server, &slow, &point);
        let mut file = File::create(&path).unwrap();
        let began = Instant::now();
        for _ in (0..FILE).step_by(REQUEST) {
            file.write_all(&noise).unwrap();
        }
        file.sync_all().unwrap();
        let write = rate(began);
        drop(file);
        write
    };
    let read = {
        let _mounted = Mounted::new(server, &slow, &point);
        let began = Instant::now();
        read_file(&path, 0, FILE);
        rate(began)
    };
    let _mounted = Mounted::new(server, &slow, &point);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (path, part) = (&path, FILE / READERS);
            scope.spawn(move || read_file(path, reader * part, (reader + 1) * part));
        }
    });
    [write, read, rate(began)]
}

const SUBJECTS: [(&str, usize, Profile); 7] = [
    ("single, 1 device", 1, Profile::Single),
    ("raid0, 2 devices", 2, Profile::Raid0),
    ("raid0, 4 devices", 4, Profile::Raid0),
    ("raid1, 2 devices", 2, Profile::Raid1),
    ("raid10, 4 devices", 4, Profile::Raid10),
    ("raid5, 4 devices", 4, Profile::Raid5),
    ("raid6, 4 devices", 4, Profile::Raid6),
];

/// Prints a table of what `rates` gives for each subject.
fn table(rates: impl Fn(usize, Profile) -> [f64; 3]) {
    println!("| profile | write, durable | read, 1 reader | read, {READERS} readers |");
    println!("|---|---|---|---|");
    let mut one = [0.0; 3];
    for (name, devices, profile) in SUBJECTS {
        let runs: Vec<[f64; 3]> = (0..RUNS).map(|_| rates(devices, profile)).collect();
        let rates = [0, 1, 2].map(|column| median(runs.iter().map(|run| run[column]).collect()));
        if devices == 1 {
            one = rates;
        }
        let cell = |column: usize| {
            let ratio = rates[column] / one[column];
            format!("{:.0} ({ratio:.2})", rates[column])
        };
        println!("| {name} | {} | {} | {} |", cell(0), cell(1), cell(2));
    }
}

/// Measures everything and prints it.
pub fn measure(base: &Path) {
    let mib = RATE / f64::from(1 << 20);
    println!("Each device moves {mib:.0} MiB/s. MiB/s, and the ratio to one device.\n");
    println!("The library, devices in its memory:\n");
    table(rates);
    let limits = Path::new(LIMITS).join("blkio.throttle.read_bps_device");
    if !rustix::process::geteuid().is_root() || !limits.exists() {
        println!("\nNot measured, for want of root or of {LIMITS}: the kernel and a mount.");
        return;
    }
    let work = base.join(format!("butterfs-stripes-{}", std::process::id()));
    fs::create_dir_all(work.join("mnt")).unwrap();
    for (name, server) in [
        (
            "Kernel Btrfs, loop devices that are held back",
            Server::Kernel,
        ),
        ("A mount of ButterFS, the same", Server::Fuse),
    ] {
        println!("\n{name}:\n");
        table(|devices, profile| rates_mounted(server, &work, devices, profile.name()));
    }
    fs::remove_dir_all(&work).unwrap();
}
