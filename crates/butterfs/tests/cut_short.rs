//! A file that somebody cuts short while it is a volume in use.

use butterfs::{Access, DataCow, Degraded, FileDevice, OpenOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_admin::resize::{self, Size};
use butterfs_admin::scrub::Repair;
use butterfs_check::FaultCode;
use butterfs_device::BlockDevice;
use butterfs_format::DeviceId;
use std::fs::OpenOptions as FileOptions;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
