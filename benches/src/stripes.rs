//! Sequential writes and reads over several devices of a declared rate: what
//! stripes and mirrors gain over one device.

use super::noise;
use super::small::median;
use butterfs_admin::mkfs::{MkfsOptions, make_on};
use butterfs_device::{Access, BlockDevice, DeviceError, DeviceRange, MemoryDevice};
use butterfs_format::{DeviceOffset, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::{Filesystem, Inode, Options};
use butterfs_store::{OpenOptions, Store};
use butterfs_volume::Profile;
use std::io::{IoSlice, IoSliceMut};
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

/// Measures everything and prints it.
pub fn measure() {
    let subjects = [
        ("single, 1 device", 1, Profile::Single),
        ("raid0, 2 devices", 2, Profile::Raid0),
        ("raid0, 4 devices", 4, Profile::Raid0),
        ("raid1, 2 devices", 2, Profile::Raid1),
        ("raid10, 4 devices", 4, Profile::Raid10),
        ("raid5, 4 devices", 4, Profile::Raid5),
        ("raid6, 4 devices", 4, Profile::Raid6),
    ];
    let mib = RATE / f64::from(1 << 20);
    println!("Each device moves {mib:.0} MiB/s. MiB/s, and the ratio to one device:\n");
    println!("| profile | write, durable | read, 1 reader | read, {READERS} readers |");
    println!("|---|---|---|---|");
    let mut one = [0.0; 3];
    for (name, devices, profile) in subjects {
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
