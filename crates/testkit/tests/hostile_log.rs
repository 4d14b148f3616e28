//! Fsync logs that lie. A replay may end with an error, and then nothing was
//! written. Or it gives a volume that our check and `btrfs check` find clean
//! and that can be read and emptied. It never ends with a panic, a loop or
//! damage.
//!
//! `BUTTERFS_SEEDS=a..b` runs other random changes than the usual ones.

#[path = "hostile_log/lies.rs"]
mod lies;
#[path = "hostile_log/log_image.rs"]
mod log_image;

use butterfs::{BlockDevice, MemoryDevice, OpenOptions, Volume};
use butterfs_check::{DataChecksums, NoProgress};
use butterfs_device::RecordDevice;
use butterfs_device::record::Action;
use butterfs_testkit::judge::{Mode, btrfs_check, scratch_dir};
use butterfs_testkit::{Capability, Random, differential};
use log_image::LogImage;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far above what any of these volumes takes.
const TIME_MAX: Duration = Duration::from_secs(60);

fn options() -> OpenOptions {
    OpenOptions {
        commit_interval: Duration::from_secs(3600),
        ..OpenOptions::default()
    }
}

fn check(device: &MemoryDevice) -> Result<(), String> {
    let options = butterfs_check::Options {
        threads: 1,
        data: DataChecksums::Ignore,
        ..butterfs_check::Options::default()
    };
    let shared: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
    let report = butterfs_check::check(vec![shared], &options, &NoProgress);
    let report = report.map_err(|error| error.to_string())?;
    if report.is_exact() {
        return Ok(());
    }
    Err(format!("{:?}", report.faults))
}

fn their_check(device: &MemoryDevice) -> Result<(), String> {
    let dir = scratch_dir();
    let image = dir.path().join("volume.img");
    device.save(&image).map_err(|error| error.to_string())?;
    let verdict = btrfs_check(
        &image,
        Mode::Original,
        butterfs_testkit::judge::DataChecksums::Ignore,
    );
    if verdict.clean {
        return Ok(());
    }
    Err(verdict.output)
}

/// Reads everything and removes it. Data without a matching checksum, because
/// the log lies about them, do not matter.
fn use_up(volume: &Volume) -> Result<(), String> {
    let files = volume.files();
    let mut waiting = vec![(files.root(), 0)];
    while let Some((dir, depth)) = waiting.pop() {
        if depth > 64 {
            return Err("directories without end".to_owned());
        }
        let entries = volume.list(dir).map_err(|error| error.to_string())?;
        for entry in entries {
            let id = entry.target.inode;
            let found = files.attributes(id).map_err(|error| error.to_string())?;
            if found.is_directory() {
                waiting.push((id, depth + 1));
                continue;
            }
            let inode = files.inode(id).map_err(|error| error.to_string())?;
            let mut buffer = vec![0; 1 << 16];
            let ends = [0, found.size.saturating_sub(1 << 16)];
            for at in ends {
                let _ = files.read(&inode, at, &mut buffer);
            }
        }
    }
    empty(volume, files.root())?;
    volume.sync().map_err(|error| error.to_string())
}

fn empty(volume: &Volume, dir: butterfs::InodeId) -> Result<(), String> {
    let files = volume.files();
    for entry in volume.list(dir).map_err(|error| error.to_string())? {
        let said =
            |error: butterfs::FsError| format!("{}: {error}", String::from_utf8_lossy(&entry.name));
        if entry.target.subvolume {
            files.delete_subvolume(dir, &entry.name).map_err(said)?;
            continue;
        }
        let is_directory = files.attributes(entry.target.inode).map_err(said)?;
        if is_directory.is_directory() {
            empty(volume, entry.target.inode)?;
            files.rmdir(dir, &entry.name).map_err(said)?;
        } else {
            files.unlink(dir, &entry.name).map_err(said)?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Refused,
    Replayed,
}

/// Opens a volume whose log was changed.
fn replay(device: MemoryDevice, theirs: bool) -> Result<End, String> {
    let begin = Instant::now();
    let base = device.snapshot();
    let recorded = Arc::new(RecordDevice::new(Arc::new(device)));
    let shared: Arc<dyn BlockDevice> = recorded.clone();
    let opened = Volume::open_device(shared, options());
    let end = match opened {
        Err(_) => {
            if !recorded.events().is_empty() {
                return Err("it was refused, and yet something was written".to_owned());
            }
            End::Refused
        }
        Ok(volume) => {
            volume.sync().map_err(|error| error.to_string())?;
            let replayed = after(&base, &recorded);
            check(&replayed).map_err(|error| format!("after the replay: {error}"))?;
            if theirs {
                their_check(&replayed).map_err(|error| format!("btrfs check: {error}"))?;
            }
            use_up(&volume).map_err(|error| format!("using it: {error}"))?;
            volume.close().map_err(|error| error.to_string())?;
            check(&after(&base, &recorded)).map_err(|error| format!("emptied: {error}"))?;
            End::Replayed
        }
    };
    if begin.elapsed() > TIME_MAX {
        return Err(format!("it took {:?}", begin.elapsed()));
    }
    Ok(end)
}

/// A device, with what was written to its copy since.
fn after(base: &MemoryDevice, device: &RecordDevice) -> MemoryDevice {
    let copy = base.snapshot();
    for event in device.events() {
        if let Action::Write { offset, data } = &event.action {
            copy.write_at(*offset, data).expect("memory");
        }
    }
    copy
}

/// Turns a panic into an error.
fn catch(replay: impl FnOnce() -> Result<End, String>) -> Result<End, String> {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(replay));
    caught.unwrap_or_else(|_| Err("it panicked".to_owned()))
}

#[test]
fn lies_are_refused_or_come_to_nothing() {
    let theirs = Capability::Program("btrfs").is_here();
    let mut failed = Vec::new();
    for node_size in [4096, 16384] {
        let image = LogImage::new(node_size);
        assert_eq!(
            replay(image.device(), theirs),
            Ok(End::Replayed),
            "an honest log"
        );
        for (name, lie) in lies::ALL {
            let mut changed = image.clone();
            lie(&mut changed);
            let end = catch(|| replay(changed.device(), theirs));
            println!("{node_size} {name}: {end:?}");
            if let Err(reason) = end {
                failed.push(format!("{name}, nodes of {node_size}: {reason}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// What a read of the whole logged file gives, in our hands and in the kernel's.
const READS: [(&str, bool); 3] = [("d/file", false), ("other", true), ("S/second", true)];

/// The kernel enters such data without a look at them, and reading them fails.
/// So does a replay here, which says so first; a check and a preview name them.
#[test]
fn data_of_a_log_that_match_no_checksum_are_said() {
    let mut image = LogImage::new(4096);
    let file = image.numbers.file;
    image
        .top()
        .change(butterfs_format::ItemType::EXTENT_CSUM, |_, sums| {
            sums[0] ^= 1
        });
    let device = image.device();
    let options = butterfs_check::Options {
        threads: 1,
        data: DataChecksums::Verify,
        ..butterfs_check::Options::default()
    };
    let shared: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
    let report = butterfs_check::check(vec![shared], &options, &NoProgress).unwrap();
    let code = butterfs_check::FaultCode::LogDataChecksum;
    assert!(report.has(code), "{:?}", report.counts);

    let dir = scratch_dir();
    let path = dir.path().join("volume.img");
    device.save(&path).unwrap();
    let preview = butterfs::preview_log(&path).unwrap();
    let unreadable = preview.iter().find_map(|change| match change.change {
        butterfs::Change::Unreadable { inode, start, end } => Some((inode.get(), start, end)),
        _ => None,
    });
    let (inode, start, end) = unreadable.expect("it is foreseen");
    assert_eq!((inode, end - start), (file, 4096));

    let volume = Volume::open_device(Arc::new(device), self::options()).unwrap();
    for (name, is_good) in READS {
        let read = volume.read_file(name);
        assert_eq!(read.is_ok(), is_good, "{name}: {:?}", read.err());
    }
    let files = volume.files();
    let inode = files.inode(volume.resolve("d/file").unwrap()).unwrap();
    let mut byte = [0];
    for (at, is_good) in [(start, false), (end - 1, false), (end, true)] {
        assert_eq!(
            files.read(&inode, at, &mut byte).is_ok(),
            is_good,
            "at {at}"
        );
    }
    volume.close().unwrap();
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    // Nothing but a checksum of data is wrong.
    let access = butterfs_testkit::judge::Access::ReadWrite;
    let mount = butterfs_testkit::judge::KernelMount::mount(&path, access, "").unwrap();
    for (name, is_good) in READS {
        let read = std::fs::read(mount.path().join(name));
        assert_eq!(
            read.is_ok(),
            is_good,
            "the kernel, {name}: {:?}",
            read.err()
        );
    }
}

#[test]
fn random_changes_of_logs_never_make_damage() {
    let image = [LogImage::new(4096), LogImage::new(16384)];
    let mut failed = Vec::new();
    let (mut refused, mut replayed) = (0, 0);
    for seed in differential::seeds(0..600) {
        let mut random = Random::new(seed);
        let mut changed = image[(seed % 2) as usize].clone();
        changed.mutate(&mut random);
        let result = catch(|| replay(changed.device(), seed % 20 == 0));
        match result {
            Ok(End::Refused) => refused += 1,
            Ok(End::Replayed) => replayed += 1,
            Err(reason) => failed.push(format!("seed {seed}: {reason}")),
        }
    }
    println!(
        "{refused} refused, {replayed} replayed, {} failed",
        failed.len()
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(refused > 0 && replayed > 0);
}
