//! Our own check of volumes without some of their devices.

use super::*;
use butterfs_check::{DataChecksums as CheckData, FaultCode, Options as CheckOptions, Report};
use butterfs_device::BlockDevice;
use butterfs_format::Generation;
use std::sync::Arc;

fn report(images: &[PathBuf]) -> Report {
    let devices = images.iter().map(|image| {
        let device = FileDevice::open(image, Access::ReadOnly).unwrap();
        Arc::new(device) as Arc<dyn BlockDevice>
    });
    let options = CheckOptions {
        data: CheckData::Verify,
        ..CheckOptions::default()
    };
    butterfs_check::check(devices.collect(), &options, &butterfs_check::NoProgress).unwrap()
}

/// Everything that may be lost is reported as missing, and nothing else is
/// wrong. If one device more is gone, the chunks that are lost with it are
/// named.
#[test]
fn what_is_missing_is_said_and_nothing_else() {
    for (profile, sizes) in layouts() {
        let dir = scratch_dir();
        let images = images(dir.path(), &sizes);
        make(&images, profile, profile);
        let volume = open(&images, "").unwrap();
        fill_ours(&volume, 1);
        volume.close().unwrap();
        drop(volume);
        for lost in losses(profile, images.len()) {
            let context = format!("{profile} {sizes:?} without {lost:?}");
            let found = report(&without(&images, &lost));
            assert!(found.is_clean(), "{context}: {:#?}", found.faults);
            let missing = found.counts.get(&FaultCode::DeviceMissing);
            assert_eq!(missing, Some(&(lost.len() as u64)), "{context}");
            assert!(found.unchecked.is_empty(), "{context}");
            // Damage of what is left is still found.
            let work = scratch_dir();
            let left = without(&images, &lost);
            let copies: Vec<PathBuf> = left
                .iter()
                .map(|image| {
                    let copy = work.path().join(image.file_name().unwrap());
                    copy_sparse(image, &copy);
                    copy
                })
                .collect();
            copies.iter().for_each(|copy| rot(copy));
            let found = butterfs_check::check(
                copies
                    .iter()
                    .map(|copy| {
                        let device = FileDevice::open(copy, Access::ReadOnly).unwrap();
                        Arc::new(device) as Arc<dyn BlockDevice>
                    })
                    .collect(),
                &CheckOptions::default(),
                &butterfs_check::NoProgress,
            );
            assert!(
                found.is_err() || !found.unwrap().is_clean(),
                "{context}, rotten"
            );
        }
    }
    // Data of the missing device are lost; metadata are not.
    let dir = scratch_dir();
    let images = images(dir.path(), &SIZES[..3]);
    make(&images, ProfileChoice::Raid0, ProfileChoice::Raid1c3);
    let volume = open(&images, "").unwrap();
    fill_ours(&volume, 1);
    volume.close().unwrap();
    drop(volume);
    let found = report(&without(&images, &[1]));
    let wrong: Vec<_> = found.faults.iter().map(|fault| fault.code).collect();
    let known = [
        FaultCode::ChunkLost,
        FaultCode::DataUnreadable,
        FaultCode::DeviceMissing,
    ];
    assert!(wrong.iter().all(|code| known.contains(code)), "{wrong:?}");
    for code in known {
        assert!(wrong.contains(&code), "{code}");
    }
}

fn generation(image: &Path) -> Generation {
    let device = FileDevice::open(image, Access::ReadOnly).unwrap();
    let found = butterfs_store::read_superblock(&device).unwrap();
    found.superblock.generation
}

/// A mirrored volume of two devices with some files.
fn mirrored(dir: &Path) -> Vec<PathBuf> {
    let images = images(dir, &SIZES[..2]);
    make(&images, ProfileChoice::Raid1, ProfileChoice::Raid1);
    let volume = open(&images, "").unwrap();
    fill_ours(&volume, 1);
    volume.close().unwrap();
    images
}

/// Both halves of a mirrored volume are changed, each without the other.
#[test]
fn the_older_one_of_two_halves_is_stale() {
    let dir = scratch_dir();
    let images = mirrored(dir.path());
    for (image, seed) in images.iter().zip([2, 3]) {
        let volume = open(std::slice::from_ref(image), "degraded").unwrap();
        fill_ours(&volume, seed);
        volume.close().unwrap();
    }
    assert_ne!(generation(&images[0]), generation(&images[1]));
    let stale = open(&images, "").unwrap_err().to_string();
    assert!(stale.contains("has an old state"), "{stale}");
}

/// The kernel leaves no generation out, so both halves may have the same one.
#[test]
fn halves_of_the_same_generation_are_not_one_volume() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = scratch_dir();
    let images = mirrored(dir.path());
    for (image, content) in images.iter().zip(["one", "two"]) {
        let half = std::slice::from_ref(image);
        let mount = KernelMount::mount_all(half, judge::Access::ReadWrite, "degraded").unwrap();
        std::fs::write(mount.path().join("which"), content).unwrap();
        let said = mount.unmount().unwrap();
        assert!(
            said.iter().all(|line| line.contains("is missing")),
            "{said:?}"
        );
    }
    assert_eq!(generation(&images[0]), generation(&images[1]));
    for options in ["", "ro", "degraded"] {
        let split = open(&images, options).unwrap_err().to_string();
        assert!(split.contains("while the other was away"), "{split}");
    }
    let found = report(&images);
    let differ = |code| found.counts.contains_key(&code);
    assert!(
        differ(FaultCode::SuperblocksDiffer) || differ(FaultCode::NodeCopiesDiffer),
        "{:#?}",
        found.faults
    );
    // One half alone is a volume.
    for (image, content) in images.iter().zip(["one", "two"]) {
        let volume = open(std::slice::from_ref(image), "degraded").unwrap();
        assert_eq!(volume.read_file("/which").unwrap(), content.as_bytes());
        volume.close().unwrap();
    }
}
