//! One volume of four devices, changed by ButterFS and the kernel in turns:
//! balance, convert, add, remove, replace, resize and snapshot, while files
//! change. After each turn the other side finds the same, and no check finds a
//! fault.
//!
//! `BUTTERFS_SEEDS=first..last` runs other seeds, `BUTTERFS_ROUNDS=200` more
//! rounds.

mod support;

use butterfs::{Access, FileDevice, NewInode, Owner, Volume};
use butterfs_admin::balance::{self, End, Filter, Filters, Redundancy};
use butterfs_admin::devices::{self, Discard, Removal, ReplaceReads, Replaced};
use butterfs_admin::mkfs::ProfileChoice;
use butterfs_admin::resize::{self, Size};
use butterfs_format::DeviceId;
use butterfs_testkit::content::content;
use butterfs_testkit::differential::seeds;
use butterfs_testkit::judge::{self, DataChecksums, KernelMount, Loop, Mode, scratch_dir};
use butterfs_testkit::{Capability, Manifest, Random};
use std::fs::File;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::several::*;

/// MiB of each image.
const SIZE: u64 = 3000;
/// Files that change.
const FILES: u64 = 120;
const SNAPSHOTS_MAX: usize = 6;
const PROFILES: [ProfileChoice; 7] = [
    ProfileChoice::Raid1,
    ProfileChoice::Raid10,
    ProfileChoice::Raid0,
    ProfileChoice::Single,
    ProfileChoice::Raid5,
    ProfileChoice::Raid6,
    ProfileChoice::Raid1c3,
];

/// What a turn does to the volume.
#[derive(Clone, Debug)]
enum Turn {
    Balance,
    Convert(ProfileChoice),
    Add(PathBuf),
    Remove(u64),
    Replace(u64, PathBuf),
    /// Of a device, to this many MiB.
    Resize(u64, u64),
    Snapshot(u64),
    DeleteSnapshot(u64),
}

/// The volume and what is beside it.
struct Bench {
    random: Random,
    /// Its devices, with their numbers.
    members: Vec<(u64, PathBuf)>,
    spares: Vec<PathBuf>,
    /// Of its data.
    profile: ProfileChoice,
    snapshots: Vec<u64>,
    next: u64,
}

impl Bench {
    fn images(&self) -> Vec<PathBuf> {
        self.members.iter().map(|(_, path)| path.clone()).collect()
    }

    fn choose(&mut self) -> Turn {
        let random = &mut self.random;
        let count = self.members.len();
        let member = random.pick(&self.members).0;
        let least = self.profile.devices_min().max(2);
        match random.below(9) {
            0 => Turn::Balance,
            1 | 2 => {
                let fits: Vec<_> = PROFILES
                    .into_iter()
                    .filter(|profile| profile.devices_min() <= count)
                    .collect();
                Turn::Convert(*random.pick(&fits))
            }
            3 | 4 if count > least.max(3) => Turn::Remove(member),
            3 | 4 => Turn::Add(self.spares[0].clone()),
            5 | 6 => Turn::Replace(member, self.spares[0].clone()),
            7 => Turn::Resize(member, SIZE - random.below(500)),
            _ if self.snapshots.len() < SNAPSHOTS_MAX => {
                self.next += 1;
                Turn::Snapshot(self.next)
            }
            _ => Turn::DeleteSnapshot(*random.pick(&self.snapshots)),
        }
    }

    /// What the turn changed about the set of devices.
    fn note(&mut self, turn: &Turn, numbers: &[(u64, PathBuf)]) {
        match turn {
            Turn::Convert(profile) => self.profile = *profile,
            Turn::Add(path) => self.spares.retain(|spare| spare != path),
            Turn::Remove(id) => {
                let gone = self.members.iter().find(|(own, _)| own == id).unwrap();
                self.spares.push(gone.1.clone());
            }
            Turn::Replace(id, path) => {
                let gone = self.members.iter().find(|(own, _)| own == id).unwrap();
                self.spares.push(gone.1.clone());
                self.spares.retain(|spare| spare != path);
            }
            Turn::Snapshot(number) => self.snapshots.push(*number),
            Turn::DeleteSnapshot(number) => self.snapshots.retain(|other| other != number),
            Turn::Balance | Turn::Resize(..) => {}
        }
        self.members = numbers.to_vec();
    }
}

/// The kind of a change of a file, by its number.
fn change_of(number: u64) -> (String, Option<Vec<u8>>) {
    let file = number.wrapping_mul(0x9e37_79b9) % FILES;
    let length = [700, 9000, 130_000, 1_100_000, 40_000][number as usize % 5];
    let path = format!("work/{file}");
    (path, (number % 7 != 3).then(|| content(number, length)))
}

fn numbers_of(images: &[PathBuf]) -> Vec<(u64, PathBuf)> {
    let volumes = butterfs::scan(images);
    let [volume] = &volumes[..] else {
        panic!("{volumes:?}");
    };
    let devices = volume.devices.iter();
    devices
        .map(|device| (device.id.get(), device.path.clone()))
        .collect()
}

fn ours(bench: &mut Bench, turn: &Turn, first: u64, context: &str) {
    let volume = open(&bench.images(), "").unwrap_or_else(|error| panic!("{context}: {error}"));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = first;
            while !ended.load(Ordering::Acquire) || number < first + 30 {
                let (path, bytes) = change_of(number);
                let path = format!("/{path}");
                match bytes {
                    Some(bytes) => volume.write_file(path.as_bytes(), &bytes).unwrap(),
                    None => {
                        let work = volume.resolve(b"/work").unwrap();
                        let name = path.rsplit('/').next().unwrap();
                        let _ = volume.files().unlink(work, name.as_bytes());
                    }
                }
                if number.is_multiple_of(11) {
                    volume.sync().unwrap();
                }
                number += 1;
                if number > first + 400 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        });
        let done = turn_of_ours(&volume, turn);
        ended.store(true, Ordering::Release);
        done.unwrap_or_else(|error| panic!("{context}: {error}"));
        writer.join().unwrap();
    });
    volume.files().clean_all().unwrap();
    volume.close().unwrap();
}

fn turn_of_ours(volume: &Volume, turn: &Turn) -> Result<(), String> {
    let store = volume.files().store();
    let text = |error: butterfs::StoreError| error.to_string();
    let go = |_: &resize::Progress| ControlFlow::Continue(());
    match turn {
        Turn::Balance | Turn::Convert(_) => {
            let filters = match turn {
                Turn::Convert(profile) => {
                    let to = Filter::parse(&format!("convert={profile}")).unwrap();
                    Filters {
                        data: Some(to),
                        ..Filters::default()
                    }
                }
                _ => Filters::all(),
            };
            let (progress, end) =
                balance::start(store, &filters, Redundancy::MayShrink, &mut |_| None)
                    .map_err(|error| error.to_string())?;
            assert_eq!((progress.without_space, end), (0, End::Done));
            Ok(())
        }
        Turn::Add(path) => {
            let device = FileDevice::open(path, Access::ReadWrite).unwrap();
            devices::add(store, Arc::new(device), Discard::Whole)
                .map(drop)
                .map_err(text)
        }
        Turn::Remove(id) => {
            let removed = devices::remove(store, DeviceId(*id), &mut { go }).map_err(text)?;
            assert!(matches!(removed, Removal::Removed(gone) if gone.not_wiped.is_none()));
            Ok(())
        }
        Turn::Replace(id, path) => {
            let device = Arc::new(FileDevice::open(path, Access::ReadWrite).unwrap());
            let how = (ReplaceReads::Any, Discard::Whole);
            let replaced = devices::replace(store, DeviceId(*id), device, how, &mut |_| {
                ControlFlow::Continue(())
            });
            let Replaced::Done { progress, .. } = replaced.map_err(text)? else {
                panic!("nobody asked for an end");
            };
            assert_eq!(progress.uncorrectable, 0);
            Ok(())
        }
        Turn::Resize(id, mib) => {
            let size = Size::Exactly(mib * MIB);
            resize::resize(store, DeviceId(*id), size, &mut { go })
                .map(drop)
                .map_err(text)
        }
        Turn::Snapshot(number) => {
            let files = volume.files();
            let name = format!("snapshot {number}");
            let work = volume.resolve(b"/work").unwrap().tree;
            files
                .snapshot(work, files.root(), name.as_bytes(), Access::ReadOnly)
                .map(drop)
                .map_err(|error| error.to_string())
        }
        Turn::DeleteSnapshot(number) => {
            let name = format!("snapshot {number}");
            let files = volume.files();
            files
                .delete_subvolume(files.root(), name.as_bytes())
                .map(drop)
                .map_err(|error| error.to_string())
        }
    }
}

fn kernel(bench: &mut Bench, turn: &Turn, first: u64, context: &str) -> Manifest {
    let mut mount = KernelMount::mount_all(&bench.images(), judge::Access::ReadWrite, "")
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    let point = mount.path().to_owned();
    let ended = AtomicBool::new(false);
    // The image of a new device. It stays until the mount is gone.
    let new = match turn {
        Turn::Add(path) | Turn::Replace(_, path) => {
            Some(Loop::attach(path, judge::Access::ReadWrite).unwrap())
        }
        _ => None,
    };
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = first;
            while !ended.load(Ordering::Acquire) || number < first + 30 {
                let (path, bytes) = change_of(number);
                match bytes {
                    Some(bytes) => match std::fs::write(point.join(path), bytes) {
                        Ok(()) => {}
                        // While it converts, the kernel may report no space
                        // although there is much.
                        Err(error) if error.kind() == ErrorKind::StorageFull => {}
                        Err(error) => panic!("{context}: {error}"),
                    },
                    None => drop(std::fs::remove_file(point.join(path))),
                }
                number += 1;
                if number > first + 400 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
        });
        let words = words_of(turn, new.as_ref().map(Loop::path), &point);
        let done = turn_of_kernel(&words);
        ended.store(true, Ordering::Release);
        if let Err(text) = done {
            panic!("{context}: {words:?}: {text}");
        }
        writer.join().unwrap();
    });
    if matches!(turn, Turn::DeleteSnapshot(_)) {
        let synced = Command::new("btrfs")
            .args(["subvolume", "sync"])
            .arg(&point)
            .output();
        assert!(synced.unwrap().status.success(), "{context}");
    }
    // Data may be safer than metadata here; and see turn_of_kernel.
    let expected = [
        "lower redundancy",
        "failed setting block group ro: -28",
        ") failed -28",
    ];
    // The writer may get ENOSPC while the kernel converts, which it tells, too.
    let writer = ["cow_file_range failed", "failed to run delalloc range"];
    let is_of_writer = |text: &str| {
        let is_known = writer.iter().any(|known| text.contains(known));
        matches!(turn, Turn::Convert(..)) && text.ends_with(": -28") && is_known
    };
    let complaints = mount.complaints().into_iter();
    let complaints = complaints
        .filter(|text| !expected.iter().any(|known| text.contains(known)) && !is_of_writer(text));
    assert_eq!(
        complaints.collect::<Vec<_>>(),
        Vec::<String>::new(),
        "{context}"
    );
    mount.scrub().assert_clean(context);
    let found = kernel_manifest(&mount);
    assert_eq!(mount.unmount().unwrap(), Vec::<String>::new(), "{context}");
    drop(new);
    found
}

/// Linux 6.18 sometimes refuses, for lack of space, to replace a device while
/// files are written, with gigabytes free ("failed setting block group ro:
/// -28"; a volume whose block groups the kernel made itself shows the same).
/// Nothing has changed then, and the next attempt is not refused.
fn turn_of_kernel(words: &[String]) -> Result<(), String> {
    const ATTEMPTS: usize = 5;
    let mut text = String::new();
    for _ in 0..ATTEMPTS {
        let output = Command::new("btrfs").args(words).output().unwrap();
        if output.status.success() {
            return Ok(());
        }
        text = String::from_utf8_lossy(&output.stderr).into_owned();
        if words[0] != "replace" || !text.contains("No space left on device") {
            break;
        }
    }
    Err(text)
}

fn words_of(turn: &Turn, new: Option<&Path>, point: &Path) -> Vec<String> {
    let point = point.display().to_string();
    let new = new.map(|path| path.display().to_string());
    let new = new.unwrap_or_default();
    let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
    match turn {
        Turn::Balance => words(&["balance", "start", "--full-balance", &point]),
        Turn::Convert(profile) => {
            let convert = format!("-dconvert={profile}");
            words(&["balance", "start", "-f", &convert, &point])
        }
        Turn::Add(_) => words(&["device", "add", "-f", &new, &point]),
        Turn::Remove(id) => words(&["device", "remove", &id.to_string(), &point]),
        Turn::Replace(id, _) => words(&[
            "replace",
            "start",
            "-B",
            "-f",
            &id.to_string(),
            &new,
            &point,
        ]),
        Turn::Resize(id, mib) => {
            let size = format!("{id}:{mib}m");
            words(&["filesystem", "resize", &size, &point])
        }
        Turn::Snapshot(number) => {
            let name = format!("{point}/snapshot {number}");
            let work = format!("{point}/work");
            words(&["subvolume", "snapshot", "-r", &work, &name])
        }
        Turn::DeleteSnapshot(number) => {
            let name = format!("{point}/snapshot {number}");
            words(&["subvolume", "delete", &name])
        }
    }
}

/// Judges an unmounted volume. Linux 6.18 writes parities that do not all match
/// if files change while it converts (a volume that only the kernel wrote shows
/// the same), and btrfs check reads by parity, too. In that case it only looks
/// at metadata.
fn check_one_mode(images: &[PathBuf], (mode, profile): (Mode, ProfileChoice), context: &str) {
    check(images, context);
    let loops: Vec<Loop> = images
        .iter()
        .map(|image| Loop::attach(image, judge::Access::ReadOnly).unwrap())
        .collect();
    let data = match profile.parities() {
        0 => DataChecksums::Verify,
        _ => DataChecksums::Ignore,
    };
    judge::btrfs_check(loops[0].path(), mode, data).assert_clean(context);
}

fn run(seed: u64, rounds: u64) {
    let dir = scratch_dir();
    let mut all = Vec::new();
    for number in 0..7 {
        let path = dir.path().join(format!("{number}.img"));
        File::create(&path).unwrap().set_len(SIZE * MIB).unwrap();
        all.push(path);
    }
    let spares = all.split_off(4);
    make(&all, ProfileChoice::Raid1, ProfileChoice::Raid1);
    let volume = open(&all, "").unwrap();
    let files = volume.files();
    let new = NewInode::new(0o040_755, Owner::default());
    files.create_subvolume(files.root(), b"work", &new).unwrap();
    fill_ours(&volume, 1);
    volume.close().unwrap();
    drop(volume);
    let mut bench = Bench {
        random: Random::new(seed),
        members: numbers_of(&all),
        spares,
        profile: ProfileChoice::Raid1,
        snapshots: Vec::new(),
        next: 0,
    };
    let mut counts: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
    for round in 0..rounds {
        let turn = bench.choose();
        let name = format!("{turn:?}");
        let side = if round % 2 == 0 { "ButterFS" } else { "kernel" };
        let context = format!(
            "seed {seed}, round {round}, {side}: {name} of {:?}",
            bench.members
        );
        println!("{context}");
        let kind = name.split('(').next().unwrap_or_default().to_owned();
        *counts.entry(format!("{side} {kind}")).or_default() += 1;
        let first = round * 10_000;
        let mut images = bench.images();
        let expected = if round % 2 == 0 {
            ours(&mut bench, &turn, first, &context);
            None
        } else {
            Some(kernel(&mut bench, &turn, first, &context))
        };
        if let Turn::Add(path) | Turn::Replace(_, path) = &turn {
            images.push(path.clone());
        }
        let now = numbers_of(&images);
        bench.note(&turn, &now);
        bench.spares.sort();
        let images = bench.images();
        let found = manifest(&images, "ro");
        if let Some(expected) = &expected {
            found.assert_same(expected, &context);
        }
        let mode = Mode::ALL[(round / 2) as usize % 2];
        check_one_mode(&images, (mode, bench.profile), &context);
        if round % 2 == 0 {
            let mount = KernelMount::mount_all(&images, judge::Access::ReadOnly, "").unwrap();
            kernel_manifest(&mount).assert_same(&found, &context);
            mount.unmount().unwrap();
        }
    }
    println!("{counts:?}");
}

#[test]
fn both_sides_move_space_about_in_turns() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let rounds = std::env::var("BUTTERFS_ROUNDS");
    let rounds = rounds.ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    for seed in seeds(0..1) {
        run(seed, rounds);
    }
}
