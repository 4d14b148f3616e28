//! Devices that are added to a volume, removed and replaced, with btrfs check,
//! kernel mounts and scrubs as judges.

use butterfs::{Access, Volume};
use butterfs_admin::devices::{self, Discard, Removal, ReplaceReads, Replaced};
use butterfs_admin::mkfs::ProfileChoice;
use butterfs_device::{BlockDevice, FileDevice};
use butterfs_format::item::state::DeviceReplace;
use butterfs_format::{DeviceId, ItemType, Key, TreeId};
use butterfs_store::Purpose;
use butterfs_testkit::judge::{self, KernelMount, scratch_dir};
use butterfs_testkit::{Capability, Manifest};
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

mod support;

use support::several::*;

/// If tests ran at the same time, the judges of one would find the devices of
/// another.
static ALONE: Mutex<()> = Mutex::new(());

fn device(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(path, Access::ReadWrite).unwrap())
}

fn new_image(dir: &Path, name: &str, mib: u64) -> PathBuf {
    let path = dir.join(name);
    File::create(&path).unwrap().set_len(mib * MIB).unwrap();
    path
}

fn add(volume: &Volume, path: &Path) -> DeviceId {
    devices::add(volume.files().store(), device(path), Discard::Whole).unwrap()
}

fn remove(volume: &Volume, id: u64) {
    let removed = devices::remove(volume.files().store(), DeviceId(id), &mut |_| {
        ControlFlow::Continue(())
    });
    let removed = removed.unwrap_or_else(|error| panic!("device {id}: {error}"));
    assert!(matches!(removed, Removal::Removed(gone) if gone.not_wiped.is_none()));
}

fn replace(volume: &Volume, id: u64, path: &Path, reads: ReplaceReads) {
    let replaced = devices::replace(
        volume.files().store(),
        DeviceId(id),
        device(path),
        (reads, Discard::Whole),
        &mut |_| ControlFlow::Continue(()),
    );
    let replaced = replaced.unwrap_or_else(|error| panic!("device {id}: {error}"));
    let Replaced::Done { progress, former } = replaced else {
        panic!("nobody asked for an end");
    };
    assert_eq!(progress.uncorrectable, 0);
    assert_eq!(progress.bytes_done, progress.bytes_expected);
    assert!(former.not_wiped.is_none());
}

/// All programs accept the volume and find the same in it.
fn judge_all(images: &[PathBuf], expected: &Manifest, context: &str) {
    manifest(images, "ro").assert_same(expected, context);
    check(images, context);
    btrfs_check(images, context);
    let mut mount = KernelMount::mount_all(images, judge::Access::ReadWrite, "").unwrap();
    mount.scrub().assert_clean(context);
    kernel_manifest(&mount).assert_same(expected, context);
    assert_eq!(mount.unmount().unwrap(), Vec::<String>::new(), "{context}");
}

/// No program takes it for a device of a volume.
fn is_wiped(image: &Path) -> bool {
    butterfs::scan(&[image.to_owned()]).is_empty()
}

fn close(volume: Volume) {
    volume.close().unwrap();
}

/// Profiles, each with its number of devices.
const LAYOUTS: [(ProfileChoice, ProfileChoice, usize); 10] = [
    (ProfileChoice::Single, ProfileChoice::Dup, 1),
    (ProfileChoice::Single, ProfileChoice::Raid1, 2),
    (ProfileChoice::Raid0, ProfileChoice::Raid0, 2),
    (ProfileChoice::Raid1, ProfileChoice::Raid1, 2),
    (ProfileChoice::Raid1, ProfileChoice::Raid1, 3),
    (ProfileChoice::Raid1c3, ProfileChoice::Raid1c3, 3),
    (ProfileChoice::Raid1c4, ProfileChoice::Raid1c4, 4),
    (ProfileChoice::Raid10, ProfileChoice::Raid10, 4),
    (ProfileChoice::Raid5, ProfileChoice::Raid5, 3),
    (ProfileChoice::Raid6, ProfileChoice::Raid6, 4),
];

#[test]
fn devices_are_added_and_removed() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (data, metadata, count) in LAYOUTS {
        let context = format!("{data} {metadata} {count}");
        let dir = scratch_dir();
        let mut images = images(dir.path(), &SIZES[..count]);
        make(&images, data, metadata);
        let volume = open(&images, "").unwrap();
        fill_ours(&volume, 1);
        let fifth = new_image(dir.path(), "new.img", 800);
        let id = add(&volume, &fifth);
        assert_eq!(id.get(), count as u64 + 1);
        images.push(fifth);
        fill_ours(&volume, 2);
        close(volume);
        let expected = manifest(&images, "ro");
        judge_all(&images, &expected, &format!("{context}, added"));
        let volume = open(&images, "").unwrap();
        remove(&volume, 1);
        let gone = images.remove(0);
        fill_ours(&volume, 3);
        close(volume);
        assert!(is_wiped(&gone));
        let expected = manifest(&images, "ro");
        judge_all(&images, &expected, &format!("{context}, removed"));
        // The kernel adds it again and removes another one; so do we.
        let mount = KernelMount::mount_all(&images, judge::Access::ReadWrite, "").unwrap();
        fill(mount.path(), 4);
        mount.unmount().unwrap();
        let volume = open(&images, "").unwrap();
        let back = add(&volume, &gone);
        remove(&volume, 2);
        images.retain(|image| *image != images_of(dir.path(), 1, count));
        images.push(gone);
        assert!(back.get() > 2, "{context}");
        close(volume);
        let expected = manifest(&images, "ro");
        judge_all(&images, &expected, &format!("{context}, exchanged"));
    }
}

/// The image of device 2. If the volume began with one device, it is the new
/// one.
fn images_of(dir: &Path, index: usize, count: usize) -> PathBuf {
    match count {
        1 => dir.join("new.img"),
        _ => dir.join(format!("{index}.img")),
    }
}

#[test]
fn devices_are_replaced() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (data, metadata, count) in LAYOUTS {
        for which in [0, count - 1] {
            let context = format!("{data} {metadata} {count}, device {which}");
            let dir = scratch_dir();
            let mut images = images(dir.path(), &SIZES[..count]);
            make(&images, data, metadata);
            let volume = open(&images, "").unwrap();
            fill_ours(&volume, 1);
            let target = new_image(dir.path(), "new.img", SIZES[which]);
            let reads = [ReplaceReads::Any, ReplaceReads::OthersFirst][which.min(1)];
            let uuid = volume.devices()[which].item.uuid;
            replace(&volume, which as u64 + 1, &target, reads);
            let now = &volume.devices()[which];
            assert_eq!(now.item.uuid, uuid, "{context}");
            assert!(now.name.as_ref().unwrap().ends_with("new.img"), "{context}");
            fill_ours(&volume, 2);
            close(volume);
            let former = std::mem::replace(&mut images[which], target);
            assert!(is_wiped(&former));
            let expected = manifest(&images, "ro");
            judge_all(&images, &expected, &context);
            // The target holds everything itself, and does not depend on other
            // copies.
            if data.tolerated() > 0 {
                for lost in losses(data, count) {
                    let left = without(&images, &lost);
                    let context = format!("{context} without {lost:?}");
                    manifest(&left, "ro,degraded").assert_same(&expected, &context);
                }
            }
        }
    }
}

/// The kernel can mount the volume after a change that stopped in the middle,
/// by request or as in a power cut.
#[test]
fn the_kernel_takes_what_was_not_ended() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (data, metadata, count) in LAYOUTS {
        for is_cut in [false, true] {
            let context = format!("{data} {metadata} {count}, cut {is_cut}");
            let dir = scratch_dir();
            let mut images = images(dir.path(), &SIZES[..count]);
            make(&images, data, metadata);
            let volume = open(&images, "").unwrap();
            fill_ours(&volume, 1);
            volume.sync().unwrap();
            let target = new_image(dir.path(), "new.img", 900);
            let mut steps = 0;
            let mut stop = |after: u32| {
                steps += 1;
                match steps > after {
                    true if is_cut => {
                        volume.shut_down();
                        ControlFlow::Continue(())
                    }
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            let how = (ReplaceReads::Any, Discard::Whole);
            let store = volume.files().store();
            let replaced =
                devices::replace(store, DeviceId(1), device(&target), how, &mut |_| stop(2));
            assert_eq!(matches!(replaced, Ok(Replaced::Stopped)), !is_cut);
            drop(volume);
            assert!(is_wiped(&target));
            let expected = manifest(&images, "ro");
            let mut mount = KernelMount::mount_all(&images, judge::Access::ReadWrite, "").unwrap();
            mount.scrub().assert_clean(&context);
            kernel_manifest(&mount).assert_same(&expected, &context);
            assert_eq!(mount.unmount().unwrap(), Vec::<String>::new(), "{context}");
            // The same with a removal.
            let volume = open(&images, "").unwrap();
            add(&volume, &target);
            images.push(target);
            let mut steps = 0;
            let removed = devices::remove(volume.files().store(), DeviceId(1), &mut |_| {
                steps += 1;
                match steps > 1 {
                    true if is_cut => {
                        volume.shut_down();
                        ControlFlow::Continue(())
                    }
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            assert_eq!(matches!(removed, Ok(Removal::Stopped)), !is_cut);
            drop(volume);
            judge_all(&images, &expected, &format!("{context}, removal"));
        }
    }
}

/// A volume that says that the kernel's replacement was interrupted. It can be
/// read, and is not written.
#[test]
fn what_the_kernel_replaces_is_left_alone() {
    const STARTED: u64 = 1;
    const CANCELLED: u64 = 3;
    const SUSPENDED: u64 = 4;
    let dir = scratch_dir();
    let images = images(dir.path(), &SIZES[..2]);
    make(&images, ProfileChoice::Raid1, ProfileChoice::Raid1);
    for (state, is_refused) in [(CANCELLED, false), (STARTED, true), (SUSPENDED, true)] {
        let volume = open(&images, "").unwrap();
        let mut change = volume.files().store().begin(16, Purpose::Grow).unwrap();
        let item = DeviceReplace {
            source: DeviceId(2),
            state,
            ..DeviceReplace::default()
        };
        let key = Key::new(0, ItemType::DEV_REPLACE, 0);
        butterfs_tree::replace(&mut *change, TreeId::DEVICE, &key, &item.encode()).unwrap();
        change.finish();
        close(volume);
        let opened = open(&images, "").map(drop);
        assert_eq!(opened.is_err(), is_refused);
        open(&images, "ro").unwrap();
        if let Err(error) = opened {
            let text = error.to_string();
            assert!(text.contains("butterfs replace cancel"), "{text}");
            // For the next state.
            let _ = std::fs::remove_file(&images[0]);
            let _ = std::fs::remove_file(&images[1]);
            let again = self::images(dir.path(), &SIZES[..2]);
            make(&again, ProfileChoice::Raid1, ProfileChoice::Raid1);
        }
    }
}

/// A device that is missing, or back with an old state, is replaced or removed.
#[test]
fn missing_and_stale_devices_are_mended() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (data, metadata, count) in LAYOUTS {
        if data.tolerated() == 0 {
            continue;
        }
        for (which, is_stale) in [(0, false), (0, true), (count - 1, false), (count - 1, true)] {
            let context = format!("{data} {count}, device {which}, stale {is_stale}");
            let dir = scratch_dir();
            let mut images = images(dir.path(), &SIZES.map(|mib| 2 * mib)[..count]);
            make(&images, data, metadata);
            let volume = open(&images, "").unwrap();
            fill_ours(&volume, 1);
            close(volume);
            let left = without(&images, &[which]);
            let volume = open(&left, "degraded").unwrap();
            fill_ours(&volume, 2);
            close(volume);
            let given = if is_stale { &images } else { &left };
            let volume = open(given, "degraded").unwrap();
            let target = new_image(dir.path(), "new.img", 2 * SIZES[which] + 100);
            replace(&volume, which as u64 + 1, &target, ReplaceReads::Any);
            fill_ours(&volume, 3);
            close(volume);
            let former = std::mem::replace(&mut images[which], target);
            assert_eq!(is_wiped(&former), is_stale, "wiped if it is there");
            let expected = manifest(&images, "ro");
            judge_all(&images, &expected, &context);
            for lost in losses(data, count) {
                let left = without(&images, &lost);
                let context = format!("{context} without {lost:?}");
                manifest(&left, "ro,degraded").assert_same(&expected, &context);
            }
            // It is removed if the profile allows that, and its data get new
            // places.
            let volume = open(&images, "").unwrap();
            add(&volume, &new_image(dir.path(), "more.img", 1800));
            close(volume);
            images.push(dir.path().join("more.img"));
            let gone = images.remove(which);
            let volume = open(&images, "degraded").unwrap();
            fill_ours(&volume, 4);
            close(volume);
            if is_stale {
                images.push(gone.clone());
            }
            let volume = open(&images, "degraded").unwrap();
            remove(&volume, which as u64 + 1);
            images.retain(|image| *image != gone);
            close(volume);
            let expected = manifest(&images, "ro");
            judge_all(&images, &expected, &format!("{context}, removed"));
        }
    }
}
