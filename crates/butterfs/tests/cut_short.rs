//! A file that somebody cuts short, while it is a volume in use and before.

use butterfs::{
    Access, Cleaner, DataCow, Degraded, FileDevice, OnShortDevice, OpenOptions, Rescue, Volume,
};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_admin::resize::{self, Size};
use butterfs_admin::scrub::Repair;
use butterfs_check::FaultCode;
use butterfs_device::BlockDevice;
use butterfs_format::DeviceId;
use std::fs::OpenOptions as FileOptions;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 256 << 20;

/// A volume on new files, opened.
fn volume(folder: &Path, count: usize, profile: ProfileChoice) -> (Vec<PathBuf>, Volume) {
    let paths: Vec<PathBuf> = (0..count)
        .map(|n| folder.join(format!("disk {n}")))
        .collect();
    let create = |path: &PathBuf| Arc::new(FileDevice::create(path, SIZE).unwrap()) as _;
    let devices: Vec<Arc<dyn BlockDevice>> = paths.iter().map(create).collect();
    let mkfs = MkfsOptions {
        data: Some(profile),
        metadata: Some(profile),
        ..MkfsOptions::default()
    };
    make_on(&devices, &mkfs).unwrap();
    let volume = Volume::open_devices(devices, OpenOptions::default()).unwrap();
    volume.write_file(b"before", &[1; 100_000]).unwrap();
    volume.sync().unwrap();
    (paths, volume)
}

fn set_length(path: &Path, length: u64) {
    let file = FileOptions::new().write(true).open(path).unwrap();
    file.set_len(length).unwrap();
}

#[test]
fn the_only_device_is_not_made_longer_again() {
    let folder = tempfile::tempdir().unwrap();
    let (paths, volume) = volume(folder.path(), 1, ProfileChoice::Single);
    set_length(&paths[0], SIZE - 4096);
    volume.write_file(b"after", &[2; 100_000]).unwrap();
    let error = volume.sync().unwrap_err().to_string();
    let told = format!(
        "was cut short while it was in use: it has {} bytes left of {SIZE}",
        SIZE - 4096
    );
    assert!(error.contains(&told), "{error}");
    assert!(volume.write_file(b"later", b"x").is_err());
    drop(volume);
    assert_eq!(paths[0].metadata().unwrap().len(), SIZE - 4096);
    // The last commit is still there, and nothing of what failed.
    set_length(&paths[0], SIZE);
    let volume = Volume::open(&paths[0], OpenOptions::read_only()).unwrap();
    assert_eq!(volume.read_file(b"before").unwrap(), [1; 100_000]);
    assert!(volume.read_file(b"after").is_err());
}

#[test]
fn a_mirror_goes_on_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let (paths, volume) = volume(folder.path(), 2, ProfileChoice::Raid1);
    set_length(&paths[1], SIZE / 2);
    volume.write_file(b"after", &[2; 100_000]).unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.read_file(b"before").unwrap(), [1; 100_000]);
    volume.close().unwrap();
    let mut options = OpenOptions::read_only();
    options.store.degraded = Degraded::Allowed;
    let volume = Volume::open(&paths[0], options).unwrap();
    assert_eq!(volume.read_file(b"after").unwrap(), [2; 100_000]);
}

/// Data without checksums: only the good copy may be read, also after writes to
/// the one that is shorter.
#[test]
fn data_without_checksums_come_from_the_whole_mirror() {
    const LENGTH: usize = 64 << 20;
    let folder = tempfile::tempdir().unwrap();
    let (paths, volume) = volume(folder.path(), 2, ProfileChoice::Raid1);
    volume.close().unwrap();
    let mut options = OpenOptions::default();
    options.store.degraded = Degraded::Allowed;
    options.files.data_cow = DataCow::Off;
    let volume = Volume::open(&paths[0], options).unwrap();
    volume.write_file(b"bare", &vec![1; LENGTH]).unwrap();
    volume.sync().unwrap();
    set_length(&paths[1], SIZE / 8);
    for round in 2..6 {
        let name = format!("more {round}");
        volume
            .write_file(name.as_bytes(), &vec![round; 1 << 20])
            .unwrap();
        // Written out, and not yet committed.
        let file = volume.resolve(name.as_bytes()).unwrap();
        let file = volume.files().inode(file).unwrap();
        volume.files().flush_inode(&file).unwrap();
        for _ in 0..4 {
            let read = volume.read_file(b"bare").unwrap();
            assert!(read.iter().all(|byte| *byte == 1), "round {round}");
        }
    }
    assert_eq!(paths[1].metadata().unwrap().len(), SIZE / 8);
}

/// A block that the other device still has is not called a fault.
#[test]
fn a_check_of_a_mirror_names_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let (paths, volume) = volume(folder.path(), 2, ProfileChoice::Raid1);
    volume.close().unwrap();
    drop(volume);
    set_length(&paths[1], SIZE / 8);
    let device = |path: &PathBuf| -> Arc<dyn BlockDevice> {
        Arc::new(FileDevice::open(path, Access::ReadOnly).unwrap())
    };
    let devices = paths.iter().map(device).collect();
    let options = butterfs_check::Options::default();
    let report = butterfs_check::check(devices, &options, &butterfs_check::NoProgress).unwrap();
    let is_one = |code| {
        report
            .faults
            .iter()
            .filter(|fault| fault.code == code)
            .count()
            == 1
    };
    assert!(is_one(FaultCode::DeviceSize), "{:?}", report.faults);
    let outside = [FaultCode::ChunkInvalid, FaultCode::ExtentOutsideBlockGroup];
    let any = report
        .faults
        .iter()
        .find(|fault| outside.contains(&fault.code));
    assert!(any.is_none(), "{:?}", report.faults);
}

/// Copies of the superblock lie within what the volume has of the file, so the
/// rest can be cut off.
#[test]
fn what_a_volume_gave_back_may_be_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    // It has room for the third copy, at 256 GiB.
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::create(&path, 300 << 30).unwrap());
    make_on(&[Arc::clone(&device)], &MkfsOptions::default()).unwrap();
    let volume = Volume::open_device(device, OpenOptions::default()).unwrap();
    volume.write_file(b"before", &[1; 100_000]).unwrap();
    let store = volume.files().store();
    let go = &mut |_: &resize::Progress| ControlFlow::Continue(());
    resize::resize(store, DeviceId(1), Size::Exactly(8 << 30), go).unwrap();
    set_length(&path, 8 << 30);
    for name in ["after", "again"] {
        volume.write_file(name.as_bytes(), &[2; 100_000]).unwrap();
        volume.sync().unwrap();
    }
    let whole = store.scrub_superblocks(DeviceId(1), Repair::ReportOnly);
    assert_eq!(whole.unwrap(), 0);
    volume.close().unwrap();
    assert_eq!(path.metadata().unwrap().len(), 8 << 30);
    let volume = Volume::open(&path, OpenOptions::read_only()).unwrap();
    assert_eq!(volume.read_file(b"again").unwrap(), [2; 100_000]);
}

/// Opens a volume whose device may be shorter than its item says.
fn open_to_mend(path: &Path) -> Result<Volume, butterfs::Error> {
    let mut options = OpenOptions::default();
    options.store.on_short_device = OnShortDevice::EndThere;
    Volume::open(path, options)
}

/// Nothing lies where the device is too short: a resize ends the volume there,
/// and nobody else changes it before.
#[test]
fn a_resize_ends_a_volume_whose_unused_tail_is_gone() {
    for left in [SIZE - 4096, SIZE - (1 << 20) - 512, SIZE - (20 << 20)] {
        let folder = tempfile::tempdir().unwrap();
        let (paths, volume) = volume(folder.path(), 1, ProfileChoice::Single);
        assert!(volume.files().store().allocated_end(DeviceId(1)) <= left);
        volume.close().unwrap();
        set_length(&paths[0], left);
        let error = Volume::open(&paths[0], OpenOptions::default()).unwrap_err();
        assert!(error.to_string().contains("resize 1:max"), "{error}");
        let read = Volume::open(&paths[0], OpenOptions::read_only()).unwrap();
        assert_eq!(read.read_file(b"before").unwrap(), [1; 100_000]);
        read.close().unwrap();
        let volume = open_to_mend(&paths[0]).unwrap();
        let store = volume.files().store();
        let resized = resize::resize(store, DeviceId(1), Size::Max, &mut |_| {
            ControlFlow::Continue(())
        });
        let to = left - left % 4096;
        assert_eq!(resized.unwrap(), resize::End::Resized { from: SIZE, to });
        volume.close().unwrap();
        let volume = Volume::open(&paths[0], OpenOptions::default()).unwrap();
        assert_eq!(volume.read_file(b"before").unwrap(), [1; 100_000]);
        volume.write_file(b"after", &[2; 100_000]).unwrap();
        volume.close().unwrap();
        let devices: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(
            FileDevice::open(&paths[0], Access::ReadOnly).unwrap(),
        )];
        let options = butterfs_check::Options::default();
        let report = butterfs_check::check(devices, &options, &butterfs_check::NoProgress).unwrap();
        assert!(report.is_clean(), "{:?}", report.faults);
    }
}

/// A volume of 120 MiB, with a mirror of its superblock at 64 MiB.
fn with_mirror(path: &Path) -> Volume {
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::create(path, 120 << 20).unwrap());
    let mkfs = MkfsOptions {
        data: Some(ProfileChoice::Single),
        metadata: Some(ProfileChoice::Single),
        ..MkfsOptions::default()
    };
    make_on(&[Arc::clone(&device)], &mkfs).unwrap();
    let options = OpenOptions {
        commit_interval: Duration::from_secs(3600),
        cleaner: Cleaner::OnDemand,
        ..OpenOptions::default()
    };
    let volume = Volume::open_device(device, options).unwrap();
    volume.write_file(b"before", &[1; 100_000]).unwrap();
    volume.sync().unwrap();
    assert!(volume.files().store().allocated_end(DeviceId(1)) <= 60 << 20);
    volume
}

/// Ends a volume where its device ends, and checks it.
fn mend(path: &Path, to: u64) {
    let volume = open_to_mend(path).unwrap();
    let store = volume.files().store();
    let resized = resize::resize(store, DeviceId(1), Size::Max, &mut |_| {
        ControlFlow::Continue(())
    });
    let from = 120 << 20;
    assert_eq!(resized.unwrap(), resize::End::Resized { from, to });
    volume.close().unwrap();
    assert_eq!(path.metadata().unwrap().len(), to);
    let volume = Volume::open(path, OpenOptions::default()).unwrap();
    assert_eq!(volume.read_file(b"before").unwrap(), [1; 100_000]);
    volume.close().unwrap();
    let device = Arc::new(FileDevice::open(path, Access::ReadOnly).unwrap()) as _;
    let options = butterfs_check::Options::default();
    let report =
        butterfs_check::check(vec![device], &options, &butterfs_check::NoProgress).unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
}

#[test]
fn a_resize_of_a_short_device_needs_no_mirror_beyond_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    for left in [60 << 20, (64 << 20) + 512] {
        with_mirror(&path).close().unwrap();
        set_length(&path, left);
        let volume = open_to_mend(&path).unwrap();
        let resized = resize::resize(volume.files().store(), DeviceId(1), Size::Max, &mut |_| {
            ControlFlow::Continue(())
        });
        assert!(resized.is_ok(), "{left}: {resized:?}");
        drop(volume);
        std::fs::remove_file(&path).unwrap();
    }
    with_mirror(&path).close().unwrap();
    set_length(&path, 60 << 20);
    mend(&path, 60 << 20);
}

/// As after a crash: opening makes them equal first.
#[test]
fn a_short_device_whose_superblocks_differ_is_resized() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    with_mirror(&path).close().unwrap();
    let file = FileOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 4096], 64 << 20).unwrap();
    drop(file);
    set_length(&path, 68 << 20);
    mend(&path, 68 << 20);
}

/// The replay commits before the resize does.
#[test]
fn a_short_device_with_a_fsync_log_is_read_and_resized() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let volume = with_mirror(&path);
    volume.write_file(b"logged", b"content").unwrap();
    let inode = volume.files().inode(volume.resolve(b"logged").unwrap());
    volume.files().fsync(&inode.unwrap()).unwrap();
    let copy = folder.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    volume.close().unwrap();
    set_length(&copy, 68 << 20);
    let volume = Volume::open(&copy, OpenOptions::read_only()).unwrap();
    assert_eq!(volume.read_file(b"logged").unwrap(), b"content");
    drop(volume);
    mend(&copy, 68 << 20);
    let volume = Volume::open(&copy, OpenOptions::read_only()).unwrap();
    assert_eq!(volume.read_file(b"logged").unwrap(), b"content");
}

/// Data lay where the device is too short: the others are read, and nothing
/// opens the volume for writing.
#[test]
fn what_is_left_of_a_truncated_volume_is_read() {
    const FILES: usize = 20;
    const LENGTH: usize = 4 << 20;
    let folder = tempfile::tempdir().unwrap();
    let (paths, volume) = volume(folder.path(), 1, ProfileChoice::Single);
    let content = |file: usize| vec![file as u8; LENGTH];
    for file in 0..FILES {
        volume
            .write_file(format!("{file}").as_bytes(), &content(file))
            .unwrap();
        volume.sync().unwrap();
    }
    let store = Arc::clone(volume.files().store());
    volume.close().unwrap();
    // In the middle of the file that lies last.
    let end = {
        let engine = store.read();
        let is_data = |flags: butterfs_format::item::chunk::BlockGroupFlags| {
            flags.contains(butterfs_format::item::chunk::BlockGroupFlags::DATA)
        };
        let data = engine.chunks().filter(|(_, chunk)| is_data(chunk.flags));
        let last = data
            .max_by_key(|(_, chunk)| chunk.stripes[0].offset)
            .unwrap();
        let others = engine.chunks().filter(|(_, chunk)| !is_data(chunk.flags));
        let ends = others.map(|(_, chunk)| chunk.stripes[0].offset.get() + chunk.length);
        let used = engine
            .groups()
            .find(|group| group.start == last.0)
            .unwrap()
            .used;
        let end = last.1.stripes[0].offset.get() + used - used.min(10 << 20);
        assert!(ends.max().unwrap() < end, "all nodes lie before the cut");
        end
    };
    drop((store, volume));
    set_length(&paths[0], end);
    for open in [open_to_mend, |path: &Path| {
        Volume::open(path, OpenOptions::default())
    }] {
        let error = open(&paths[0]).unwrap_err().to_string();
        assert!(
            error.contains("reach beyond its end") && error.contains("-o ro"),
            "{error}"
        );
    }
    assert_eq!(paths[0].metadata().unwrap().len(), end);
    let mut rescue = OpenOptions::read_only();
    rescue.store.rescue = Rescue::ALL;
    for options in [OpenOptions::read_only(), rescue] {
        let volume = Volume::open(&paths[0], options).unwrap();
        let mut lost = 0;
        for file in 0..FILES {
            match volume.read_file(format!("{file}").as_bytes()) {
                Ok(read) => assert!(read == content(file), "{file}"),
                Err(_) => lost += 1,
            }
        }
        assert!((1..=4).contains(&lost), "{lost} are lost");
    }
}
