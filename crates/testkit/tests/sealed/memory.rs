//! The same with little memory: the command runs in a process of its own, in a
//! control group, on devices in files.

use super::base::{SIZE, options};
use super::commands::World;
use super::{End, Judged, Told, given, losses, named, read, tell, work};
use butterfs::{Access, FileDevice, OpenOptions};
use butterfs_device::BlockDevice;
use butterfs_testkit::MemoryGroup;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many lies the usual run tells.
const SEEDS: std::ops::Range<u64> = 0..24;
/// MiB of the control groups, by turns.
const GROUPS: [u64; 3] = [48, 64, 128];
/// The folder of the process that works.
const FOLDER: &str = "BUTTERFS_LITTLE_MEMORY";

const ENDS: [End; 4] = [End::Unreadable, End::NotOpened, End::Refused, End::Done];

/// Each device has the name of its number.
fn names(count: usize) -> String {
    let names: Vec<String> = (0..count)
        .map(|number| format!("device-{number}"))
        .collect();
    names.join(" ")
}

fn open(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(path, Access::ReadWrite).expect("a device in a file"))
}

/// Budgets of memory are those of every volume, which follow the group.
fn usual_memory() -> OpenOptions {
    let usual = OpenOptions::default();
    let mut options = options();
    options.files.buffer_bytes = usual.files.buffer_bytes;
    options.store.cache_bytes = usual.store.cache_bytes;
    options
}

/// What the process in the group does; nothing in any other process.
#[test]
fn works_in_a_group() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let job = fs::read_to_string(folder.join("job")).expect("a job");
    let [seed, way, devices, command] = &job.lines().collect::<Vec<_>>()[..] else {
        panic!("a job has four lines: {job}");
    };
    let stream = fs::read(folder.join("stream")).expect("a stream");
    let mut paths: Vec<PathBuf> = devices.split(' ').map(|name| folder.join(name)).collect();
    let next = AtomicUsize::new(paths.len());
    let spare = || {
        let path = folder.join(format!("device-{}", next.fetch_add(1, Ordering::Relaxed)));
        let file = File::create(&path).expect("a file");
        file.set_len(SIZE).expect("an empty device");
        open(&path)
    };
    let mut world = World {
        way: way.parse().expect("a number"),
        stream: &stream,
        devices: paths.iter().map(|path| open(path)).collect(),
        spare: &spare,
    };
    let seed = seed.parse().expect("a number");
    let (end, why) = work(named(command), &mut world, seed, usual_memory());
    // A device tells its path.
    paths = world
        .devices
        .iter()
        .map(|device| PathBuf::from(device.identity()))
        .collect();
    let left: Vec<_> = paths
        .iter()
        .map(|path| path.file_name().expect("a name").to_string_lossy())
        .collect();
    let end = ENDS.iter().position(|one| *one == end).expect("an end");
    let result = format!("{end}\n{}\n{}", left.join(" "), why.replace('\n', " "));
    fs::write(folder.join("result"), result).expect("a result");
}

/// Runs the command of a lie in a group.
fn judge(told: &Told, seed: u64, group: &MemoryGroup, folder: &Path) -> Judged {
    let Ok(before) = read(&given(&told.devices)) else {
        return Judged::unreadable();
    };
    for (number, device) in told.devices.iter().enumerate() {
        let path = folder.join(format!("device-{number}"));
        device.save(&path).expect("a device in a file");
    }
    let devices = names(told.devices.len());
    let job = format!(
        "{seed}\n{}\n{devices}\n{}",
        told.base.way, told.command.name
    );
    fs::write(folder.join("job"), job).expect("a job");
    fs::write(folder.join("stream"), &told.base.stream).expect("a stream");
    let _ = fs::remove_file(folder.join("result"));
    let ended = group
        .command(std::env::current_exe().expect("this program"))
        .args(["--exact", "memory::works_in_a_group", "--nocapture"])
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let mut lost = Vec::new();
    let result = fs::read_to_string(folder.join("result")).unwrap_or_default();
    let mut lines = result.lines();
    let end = lines.next().and_then(|end| end.parse::<usize>().ok());
    let devices = lines.next().map_or(devices, ToOwned::to_owned);
    if !ended.status.success() {
        let output = [ended.stdout, ended.stderr].concat();
        lost.push(match ended.status.signal() {
            Some(signal) => format!("the process was ended by signal {signal}"),
            None => format!("the process failed: {}", String::from_utf8_lossy(&output)),
        });
    }
    let devices: Vec<_> = devices
        .split(' ')
        .map(|name| open(&folder.join(name)))
        .collect();
    lost.extend(losses(told.base, &before, &devices, told.command));
    Judged {
        end: end.map_or(End::Refused, |end| ENDS[end]),
        why: lines.next().unwrap_or_default().to_owned(),
        lost,
    }
}

/// `BUTTERFS_SEEDS=a..b` tells other lies.
#[test]
fn a_lie_with_little_memory() {
    let only = std::env::var("BUTTERFS_COMMAND").ok();
    // On a disk: what lies on tmpfs counts as memory of the group.
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let groups = GROUPS.map(|mib| MemoryGroup::new(mib << 20));
    let mut ends: BTreeMap<End, u64> = BTreeMap::new();
    let mut bad = Vec::new();
    let seeds = super::seeds_or(SEEDS);
    for seed in seeds.clone() {
        let at = seed as usize % GROUPS.len();
        let Some(group) = &groups[at] else {
            println!("skipped: no control group that limits memory can be made");
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            return;
        };
        let told = tell(seed, only.as_deref());
        let judged = judge(&told, seed, group, folder.path());
        *ends.entry(judged.end).or_default() += 1;
        if !judged.lost.is_empty() {
            let lost = &judged.lost[..judged.lost.len().min(5)];
            let text = format!(
                "seed {seed} in {} MiB: {} on {}: {}: {:?} {}: {lost:#?}",
                GROUPS[at],
                told.command.name,
                super::base::name(told.base.way),
                told.lie,
                judged.end,
                judged.why
            );
            println!("{text}");
            bad.push(text);
        }
    }
    println!(
        "{} lies with little memory: {ends:?}, {} with a loss",
        seeds.count(),
        bad.len()
    );
    assert!(bad.is_empty(), "{bad:#?}");
}

/// A process that takes more than its group may have is ended: otherwise these
/// tests could not fail.
#[test]
fn a_group_ends_who_takes_too_much() {
    let Some(group) = MemoryGroup::new(GROUPS[0] << 20) else {
        return;
    };
    let mut greedy: Process = group.command("sh");
    let ended = greedy
        .args(["-c", "head -c 100000000 /dev/zero | tail -n 1 | wc -c"])
        .stderr(Stdio::null())
        .output()
        .expect("it runs");
    let counted = String::from_utf8_lossy(&ended.stdout);
    assert_ne!(counted.trim(), "100000000");
}
