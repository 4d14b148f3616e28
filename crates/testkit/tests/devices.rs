//! Volumes of several devices, in both directions with the kernel.

use butterfs::{Access, Degraded, OpenOptions, Volume};
use butterfs_admin::balance::{self, End, Filter, Filters, Redundancy};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice};
use butterfs_device::FileDevice;
use butterfs_format::TreeId;
use butterfs_testkit::Capability;
use butterfs_testkit::judge::{self, KernelMount, scratch_dir};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

#[path = "devices/degraded_check.rs"]
mod degraded_check;
#[path = "devices/scrub.rs"]
mod scrub;
mod support;

use support::several::*;

/// If tests ran at the same time, the judges of one would find the devices of
/// another.
static ALONE: Mutex<()> = Mutex::new(());

/// Each profile on its least number of devices and on more, of unequal sizes.
fn layouts() -> Vec<(ProfileChoice, Vec<u64>)> {
    let mut all = Vec::new();
    for profile in ProfileChoice::ALL {
        let least = profile.devices_min().max(2);
        for count in [least, least + 1] {
            all.push((profile, SIZES[..count].to_vec()));
        }
    }
    all
}

#[test]
fn the_kernel_takes_what_we_make_and_write() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (profile, sizes) in layouts() {
        let context = format!("{profile} {sizes:?}");
        let dir = scratch_dir();
        let images = images(dir.path(), &sizes);
        make(&images, profile, profile);
        check(&images, &context);
        btrfs_check(&images, &context);
        let volume = open(&images, "").unwrap();
        fill_ours(&volume, 1);
        volume.close().unwrap();
        drop(volume);
        check(&images, &context);
        btrfs_check(&images, &context);
        let mut mount = KernelMount::mount_all(&images, judge::Access::ReadWrite, "").unwrap();
        fill(mount.path(), 2);
        mount.scrub().assert_clean(&context);
        let expected = kernel_manifest(&mount);
        assert_eq!(mount.unmount().unwrap(), Vec::<String>::new(), "{context}");
        manifest(&images, "ro").assert_same(&expected, &context);
        check(&images, &context);
        // Then again by us, over what the kernel made.
        let volume = open(&images, "compress=zstd").unwrap();
        volume.remove_tree(volume.files().root(), b"dir 2").unwrap();
        fill_ours(&volume, 3);
        volume.close().unwrap();
        drop(volume);
        check(&images, &context);
        btrfs_check(&images, &context);
        let expected = manifest(&images, "ro");
        let mut mount = KernelMount::mount_all(&images, judge::Access::ReadWrite, "").unwrap();
        mount.scrub().assert_clean(&context);
        kernel_manifest(&mount).assert_same(&expected, &context);
        assert_eq!(mount.unmount().unwrap(), Vec::<String>::new(), "{context}");
    }
}

/// The kernel makes and fills the volumes. Each set of devices that the profile
/// can lose is first removed, then damaged.
#[test]
fn kernel_volumes_are_read_whole_whatever_is_lost() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (profile, sizes) in layouts() {
        let context = format!("{profile} {sizes:?}");
        let dir = scratch_dir();
        let images = images(dir.path(), &sizes);
        let made = Command::new("mkfs.btrfs")
            .args(["-q", "-f", "-d", profile.name(), "-m", profile.name()])
            .args(&images)
            .output()
            .unwrap();
        assert!(made.status.success(), "{context}: {made:?}");
        let mount = KernelMount::mount_all(&images, judge::Access::ReadWrite, "").unwrap();
        fill(mount.path(), 5);
        let expected = kernel_manifest(&mount);
        mount.unmount().unwrap();
        manifest(&images, "ro").assert_same(&expected, &context);
        check(&images, &context);
        for lost in losses(profile, images.len()) {
            let context = format!("{context} without {lost:?}");
            let left = without(&images, &lost);
            let refused = open(&left, "ro").map(drop).unwrap_err().to_string();
            assert!(refused.contains("missing"), "{context}: {refused}");
            manifest(&left, "ro,degraded").assert_same(&expected, &context);
            let rotten = scratch_dir();
            let copies: Vec<PathBuf> = images
                .iter()
                .map(|image| {
                    let copy = rotten.path().join(image.file_name().unwrap());
                    copy_sparse(image, &copy);
                    copy
                })
                .collect();
            for device in &lost {
                rot(&copies[*device]);
            }
            manifest(&copies, "ro").assert_same(&expected, &format!("{context}, rotten"));
        }
    }
}

/// Damages everything that was ever written behind the first mebibyte, except
/// the copy of the superblock.
fn rot(image: &Path) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let size = file.metadata().unwrap().len();
    let mut block = vec![0; 65536];
    let mut at = MIB;
    while at < size {
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at));
        let Ok(data) = data else { break };
        at = (data - data % 65536).max(at);
        let length = (size - at).min(65536) as usize;
        file.read_exact_at(&mut block[..length], at).unwrap();
        if at != 64 * MIB {
            for sector in block[..length].chunks_mut(4096) {
                sector[17] ^= 0x40;
            }
            file.write_all_at(&block[..length], at).unwrap();
        }
        at += 65536;
    }
}

/// ButterFS writes without a device. The kernel writes the rest and, when the
/// device is back, repairs it with its scrub.
#[test]
fn what_is_written_degraded_is_taken_by_the_kernel() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (profile, count) in [
        (ProfileChoice::Raid1, 2),
        (ProfileChoice::Raid1, 3),
        (ProfileChoice::Raid10, 4),
        (ProfileChoice::Raid1c3, 3),
        (ProfileChoice::Raid5, 3),
        (ProfileChoice::Raid6, 4),
    ] {
        for lost in 0..count {
            let context = format!("{profile} {count} without {lost}");
            let dir = scratch_dir();
            let images = images(dir.path(), &SIZES[..count]);
            make(&images, profile, profile);
            let volume = open(&images, "").unwrap();
            fill_ours(&volume, 1);
            volume.close().unwrap();
            drop(volume);
            let left = without(&images, &[lost]);
            let volume = open(&left, "degraded").unwrap();
            fill_ours(&volume, 2);
            volume.close().unwrap();
            drop(volume);
            let expected = manifest(&left, "ro,degraded");
            let stale = open(&images, "ro").map(drop).unwrap_err().to_string();
            assert!(stale.contains("has an old state"), "{context}: {stale}");
            manifest(&images, "ro,degraded").assert_same(&expected, &context);
            if profile.parities() > 0 {
                // Linux 6.18 cannot write all partly used rows of a degraded
                // volume, not even of its own (EIO), so it is not asked to.
                let mount =
                    KernelMount::mount_all(&left, judge::Access::ReadOnly, "degraded").unwrap();
                kernel_manifest(&mount).assert_same(&expected, &context);
                continue;
            }
            let mount =
                KernelMount::mount_all(&left, judge::Access::ReadWrite, "degraded").unwrap();
            kernel_manifest(&mount).assert_same(&expected, &context);
            fill(mount.path(), 3);
            let expected = kernel_manifest(&mount);
            mount.unmount().unwrap();
            manifest(&left, "ro,degraded").assert_same(&expected, &context);
            // The kernel accepts the device that is back, and repairs it.
            let mut mount = KernelMount::mount_all(&images, judge::Access::ReadWrite, "").unwrap();
            let _ = mount.scrub();
            mount.remount().unwrap();
            mount.scrub().assert_clean(&context);
            mount.unmount().unwrap();
            manifest(&images, "ro").assert_same(&expected, &context);
            check(&images, &context);
        }
    }
}

/// A device whose first superblock is damaged is found by another copy, unless
/// all devices are found without it, or something else was made on it.
#[test]
fn a_device_with_a_damaged_superblock_is_found() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = scratch_dir();
    let images = images(dir.path(), &[200, 200, 200]);
    make(&images, ProfileChoice::Raid0, ProfileChoice::Raid1);
    let first = butterfs_format::superblock::COPIES[0];
    let file = File::options().write(true).open(&images[1]).unwrap();
    file.write_all_at(&[0xaa; 4096], first.get()).unwrap();
    for image in &images {
        let mut found = butterfs::find_members(image);
        assert_eq!(&found[0], image);
        found.sort();
        assert_eq!(found, images);
        Volume::open(image, OpenOptions::read_only()).unwrap();
    }
    let volumes = butterfs::scan(&[dir.path().to_owned()]);
    let [volume] = &volumes[..] else {
        panic!("{volumes:?}");
    };
    assert!(volume.is_whole());
    let damaged: Vec<bool> = volume.devices.iter().map(|d| d.is_first_damaged).collect();
    assert_eq!(damaged, [false, true, false]);
    // Writing repairs all copies, for the kernel too.
    let volume = Volume::open(&images[0], OpenOptions::default()).unwrap();
    volume.write_file(b"/new", b"new").unwrap();
    volume.close().unwrap();
    drop(volume);
    check(&images, "mended");
    // Remains of a device that is there are left out.
    let remains = dir.path().join("remains.img");
    std::fs::copy(&images[1], &remains).unwrap();
    let file = File::options().write(true).open(&remains).unwrap();
    file.write_all_at(&[0; 4096], first.get()).unwrap();
    let mut found = butterfs::find_members(&images[0]);
    found.sort();
    assert_eq!(found, images);
    assert_eq!(butterfs::scan(&[dir.path().to_owned()])[0].devices.len(), 3);
    // A device that holds another file system now is left out, too.
    std::fs::remove_file(&images[1]).unwrap();
    file.write_all_at(&[0x53, 0xef], 1024 + 56).unwrap();
    file.write_all_at(&1_u32.to_le_bytes(), 1024 + 76).unwrap();
    let found = butterfs::find_members(&images[0]);
    assert_eq!(found, [images[0].clone(), images[2].clone()]);
}

/// The devices of a volume are found beside the one that is named.
#[test]
fn devices_are_found_in_a_directory() {
    let dir = scratch_dir();
    let images = images(dir.path(), &[200, 200, 200]);
    make(&images, ProfileChoice::Raid0, ProfileChoice::Raid1);
    std::fs::write(dir.path().join("notes.txt"), "no volume").unwrap();
    let other = dir.path().join("other.img");
    File::create(&other).unwrap().set_len(200 * MIB).unwrap();
    butterfs_admin::mkfs::make(
        &FileDevice::open(&other, Access::ReadWrite).unwrap(),
        &MkfsOptions::default(),
    )
    .unwrap();
    for image in &images {
        let mut found = butterfs::find_members(image);
        assert_eq!(&found[0], image);
        found.sort();
        assert_eq!(found, images);
        Volume::open(image, OpenOptions::read_only()).unwrap();
    }
    assert_eq!(butterfs::find_members(&other), std::slice::from_ref(&other));
    let volumes = butterfs::scan(&[dir.path().to_owned()]);
    assert_eq!(volumes.len(), 2);
    let ours = volumes.iter().find(|volume| volume.total == 3).unwrap();
    assert!(ours.is_whole());
    assert_eq!(ours.devices.len(), 3);
    // A copy of the named device is not taken for another device. A copy of
    // another device is an error that names both.
    std::fs::copy(&images[0], dir.path().join("copy.img")).unwrap();
    Volume::open(&images[0], OpenOptions::read_only()).unwrap();
    let twice = Volume::open(&images[1], OpenOptions::read_only());
    let twice = twice.map(drop).unwrap_err().to_string();
    assert!(
        twice.contains("0.img") && twice.contains("copy.img"),
        "{twice}"
    );
    Volume::open_all(&images, OpenOptions::read_only()).unwrap();
    // An older copy is left out, and cannot be named while the newer one is there.
    let volume = Volume::open_all(&images, OpenOptions::default()).unwrap();
    volume.write_file(b"/new", b"new").unwrap();
    volume.close().unwrap();
    drop(volume);
    Volume::open(&images[1], OpenOptions::read_only()).unwrap();
    let older = Volume::open(dir.path().join("copy.img"), OpenOptions::default());
    let older = older.map(drop).unwrap_err().to_string();
    assert!(
        older.contains("copy.img is an older copy of") && older.contains("0.img"),
        "{older}"
    );
    std::fs::remove_file(&images[2]).unwrap();
    let mut degraded = OpenOptions::read_only();
    let missing = Volume::open_all(&images[..2], degraded.clone());
    assert!(
        missing
            .map(drop)
            .unwrap_err()
            .to_string()
            .contains("device 3")
    );
    degraded.store.degraded = Degraded::Allowed;
    Volume::open_all(&images[..2], degraded).unwrap();
}

/// Each profile is converted into the next, beside a snapshot that shares data.
#[test]
fn profiles_are_converted_into_one_another() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = scratch_dir();
    let images = images(dir.path(), &[600, 700, 600, 900]);
    make(&images, ProfileChoice::Single, ProfileChoice::Raid1);
    let volume = open(&images, "").unwrap();
    fill_ours(&volume, 1);
    let files = volume.files();
    let snapshot = files.snapshot(TreeId::FS, files.root(), b"snapshot", Access::ReadOnly);
    snapshot.unwrap();
    volume.close().unwrap();
    drop(volume);
    let expected = manifest(&images, "ro");
    let shuffled = [
        "raid1", "raid10", "raid5", "raid1c4", "raid6", "raid0", "raid1c3", "single",
    ];
    for profile in shuffled {
        let to = Filter::parse(&format!("convert={profile}")).unwrap();
        let filters = Filters {
            data: Some(to),
            metadata: Some(to),
            system: Some(to),
        };
        let volume = open(&images, "").unwrap();
        let store = volume.files().store();
        let (progress, end) =
            balance::start(store, &filters, Redundancy::MayShrink, &mut |_| None).unwrap();
        assert_eq!(end, End::Done, "{profile}");
        assert_eq!(progress.without_space, 0, "{profile}");
        let usage = volume.usage();
        for kind in &usage.kinds {
            let now = kind.flags.profile_name().to_lowercase();
            assert_eq!(now, profile, "{usage:?}");
        }
        volume.close().unwrap();
        drop(volume);
        manifest(&images, "ro").assert_same(&expected, profile);
        check(&images, profile);
        btrfs_check(&images, profile);
        let mut mount = KernelMount::mount_all(&images, judge::Access::ReadWrite, "").unwrap();
        mount.scrub().assert_clean(profile);
        kernel_manifest(&mount).assert_same(&expected, profile);
        assert_eq!(mount.unmount().unwrap(), Vec::<String>::new(), "{profile}");
    }
    // There are too few devices.
    let to = Filter::parse("convert=raid1c4").unwrap();
    let few = &images[..1];
    make(few, ProfileChoice::Single, ProfileChoice::Dup);
    let volume = open(few, "").unwrap();
    let filters = Filters {
        data: Some(to),
        ..Filters::default()
    };
    let refused = balance::start(
        volume.files().store(),
        &filters,
        Redundancy::Kept,
        &mut |_| None,
    );
    assert!(matches!(refused, Err(balance::BalanceError::Profile(_))));
}
