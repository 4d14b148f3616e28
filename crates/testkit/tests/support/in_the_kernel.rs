//! A crash state that goes on in the kernel.
//!
//! Owns loop devices over the state's devices, and which of them the kernel is
//! told about: all that have a first superblock, as if it looked at each device
//! that appears.

use super::several::check;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_testkit::judge::{self, DataChecksums, Loop, Mode, scratch_dir};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The kernel takes devices of one UUID for one volume, and states of one
/// workload have one UUID.
static ALONE: Mutex<()> = Mutex::new(());
/// A balance continues by itself. If it takes longer than this, it hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// A state, mounted by the kernel.
pub struct InTheKernel {
    loops: Vec<Loop>,
    images: Vec<PathBuf>,
    point: PathBuf,
    is_mounted: bool,
    context: String,
    /// The images are in it.
    _dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

fn superblock(device: &MemoryDevice) -> Option<Superblock> {
    let mut bytes = vec![0; SIZE];
    device.read_at(COPIES[0], &mut bytes).unwrap();
    Superblock::parse(&bytes, COPIES[0]).ok()
}

/// How many states go on in the kernel, of each kind.
pub fn kernel_states(usual: usize) -> usize {
    let given = std::env::var("BUTTERFS_KERNEL_STATES");
    given.map_or(usual, |text| text.parse().expect("a number"))
}

/// Whether the kernel sees what the crash left: it never looks at the second
/// superblock of a device of which the first one is torn.
pub fn is_seen_whole(devices: &[MemoryDevice]) -> bool {
    devices.iter().all(|device| {
        let at = |copy: &butterfs_format::DeviceOffset| {
            let mut bytes = vec![0; SIZE];
            device.read_at(*copy, &mut bytes).is_ok() && Superblock::parse(&bytes, *copy).is_ok()
        };
        at(&COPIES[0]) || !COPIES.iter().any(at)
    })
}

impl InTheKernel {
    /// Mounts what is in `devices`.
    pub fn mount(devices: &[MemoryDevice], options: &str, context: &str) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = scratch_dir();
        let images: Vec<PathBuf> = (0..devices.len())
            .map(|number| dir.path().join(format!("{number}.img")))
            .collect();
        for (device, image) in devices.iter().zip(&images) {
            device.save(image).unwrap();
        }
        let attach = |image: &PathBuf| Loop::attach(image, judge::Access::ReadWrite).unwrap();
        let loops: Vec<Loop> = images.iter().map(attach).collect();
        let point = dir.path().join("mnt");
        std::fs::create_dir(&point).unwrap();
        let mut state = Self {
            loops,
            images,
            point,
            is_mounted: false,
            context: format!("{context}, in the kernel"),
            _dir: dir,
            _alone: alone,
        };
        let found: Vec<Option<u64>> = devices
            .iter()
            .map(|device| superblock(device).map(|found| found.generation.get()))
            .collect();
        for (number, _) in found
            .iter()
            .enumerate()
            .filter(|(_, found)| found.is_some())
        {
            // The older one of two that are the same device is refused here.
            let path = state.loops[number].path().to_owned();
            let _ = Command::new("btrfs")
                .args(["device", "scan"])
                .arg(path)
                .output();
        }
        let newest = (0..found.len())
            .max_by_key(|number| found[*number])
            .unwrap();
        let first = state.loops[newest].path().to_str().unwrap().to_owned();
        let point = state.point.to_str().unwrap().to_owned();
        state.run("mount", &["-t", "btrfs", "-o", options, &first, &point]);
        state.is_mounted = true;
        state
    }

    fn run(&self, program: &str, words: &[&str]) -> String {
        let output = Command::new(program).args(words).output().unwrap();
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            output.status.success(),
            "{}: {program} {words:?}: {said}",
            self.context
        );
        said
    }

    /// Runs `btrfs` with words, of which `@` is the mount and `@N` the Nth
    /// device that was given.
    pub fn btrfs(&self, words: &str) -> String {
        let place = |word: &str| match word.strip_prefix('@') {
            None => word.to_owned(),
            Some("") => self.point.to_str().unwrap().to_owned(),
            Some(number) => {
                let number: usize = number.parse().unwrap();
                self.loops[number].path().to_str().unwrap().to_owned()
            }
        };
        let words: Vec<String> = words.split(' ').map(place).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.run("btrfs", &words)
    }

    /// Wipes a device that is none of the volume's: btrfs-progs does not add one
    /// that has a superblock of it.
    pub fn wipe(&self, number: usize) {
        let path = self.loops[number].path().to_str().unwrap().to_owned();
        self.run("wipefs", &["-a", &path]);
    }

    /// Scrubs it. What the crash left bad on one device is mended from another.
    pub fn scrub(&self) {
        let output = Command::new("btrfs")
            .args(["scrub", "start", "-B", "-R"])
            .arg(&self.point)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let none = "uncorrectable_errors: 0";
        assert!(said.contains(none), "{}: {said}", self.context);
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// Whether the volume has the device that was given as this one.
    pub fn has_device(&self, number: usize) -> bool {
        let shown = self.btrfs("filesystem show --raw @");
        let path = self.loops[number].path().to_str().unwrap();
        shown
            .lines()
            .any(|line| line.ends_with(&format!(" path {path}")))
    }

    /// Waits for the balance that the mount continues. Returns whether there
    /// was one.
    pub fn wait_for_balance(&self) -> bool {
        let began = Instant::now();
        let mut was_one = false;
        loop {
            let output = Command::new("btrfs")
                .args(["balance", "status"])
                .arg(&self.point)
                .output()
                .unwrap();
            if String::from_utf8_lossy(&output.stdout).contains("No balance found") {
                return was_one;
            }
            was_one = true;
            assert!(
                began.elapsed() < LIMIT,
                "{}: the balance hangs",
                self.context
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Unmounts, and has both checks look at the devices that the volume has
    /// then.
    pub fn end(mut self) {
        judge::unmount(&self.point).unwrap();
        self.is_mounted = false;
        let mut newest: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
        let mut generation = 0;
        for (number, image) in self.images.iter().enumerate() {
            let device = MemoryDevice::load(image).unwrap();
            let Some(found) = superblock(&device) else {
                continue;
            };
            let own = found.generation.get();
            generation = generation.max(own);
            let entry = newest.entry(found.device.id.get()).or_insert((own, number));
            *entry = (*entry).max((own, number));
        }
        let members: Vec<usize> = newest
            .into_values()
            .filter(|(own, _)| *own == generation)
            .map(|(_, number)| number)
            .collect();
        let images: Vec<PathBuf> = members.iter().map(|at| self.images[*at].clone()).collect();
        check(&images, &self.context);
        // btrfs check would count a device that the volume has forgotten, but
        // that still has a superblock after the crash.
        let all = std::mem::take(&mut self.loops).into_iter().enumerate();
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|(at, _)| members.contains(at));
        others.iter().for_each(|(_, other)| forget(other));
        drop(others);
        self.loops = own.into_iter().map(|(_, own)| own).collect();
        let checked = judge::btrfs_check(self.loops[0].path(), Mode::ALL[0], DataChecksums::Ignore);
        checked.assert_clean(&self.context);
    }
}

/// Makes the kernel forget a device, so that mounting the volume does not use
/// it.
fn forget(one: &Loop) {
    let _ = Command::new("btrfs")
        .args(["device", "scan", "--forget"])
        .arg(one.path())
        .output();
}

impl Drop for InTheKernel {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = judge::unmount(&self.point)
        {
            eprintln!("{}: {error}", self.point.display());
        }
        self.loops.iter().for_each(forget);
    }
}
