//! Scrub of all profiles, judged by the kernel, and the kernel's scrub judged
//! by ours.

use super::*;
use butterfs_admin::scrub::{
    DeviceProgress, Options, Pace, Repair, ScrubCounts, ScrubFault, ScrubOutcome, ScrubbedKind,
    Start, scrub,
};
use butterfs_format::{DeviceId, DeviceOffset};
use butterfs_testkit::Manifest;
use butterfs_testkit::content::content;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Scrubs, and gives what was found, device by device.
fn scrubbed(volume: &Volume, repair: Repair) -> (Vec<DeviceProgress>, Vec<ScrubFault>) {
    let mut faults = Vec::new();
    let options = Options { repair, threads: 2 };
    let done = scrub(volume.files().store(), &options, &[], &mut |news| {
        faults.extend_from_slice(news.faults);
        ControlFlow::Continue(Pace::default())
    });
    let done = done.unwrap();
    assert!(done.iter().all(|device| device.is_finished));
    (done, faults)
}

fn errors(counts: &ScrubCounts) -> u64 {
    counts.read_errors + counts.csum_errors + counts.verify_errors + counts.super_errors
}

fn assert_clean(images: &[PathBuf], context: &str) {
    let volume = open(images, "ro").unwrap();
    let (done, faults) = scrubbed(&volume, Repair::ReportOnly);
    assert!(faults.is_empty(), "{context}: {faults:#?}");
    assert_eq!(done.len(), images.len());
    for device in &done {
        assert_eq!(errors(&device.counts), 0, "{context}: {device:?}");
        let counts = &device.counts;
        let bytes = counts.data_bytes + counts.tree_bytes;
        assert_eq!(counts.repairable_errors, 0);
        // The expected bytes of a device are exact only for whole chunks.
        let most = device.bytes_expected + device.bytes_expected / 2 + (1 << 20);
        assert!(bytes <= most, "{context}: {device:?}");
    }
}

fn made_by_the_kernel(images: &[PathBuf], profile: ProfileChoice, context: &str) -> Manifest {
    let made = Command::new("mkfs.btrfs")
        .args(["-q", "-f", "-d", profile.name(), "-m", profile.name()])
        .args(images)
        .output()
        .unwrap();
    assert!(made.status.success(), "{context}: {made:?}");
    let mount = KernelMount::mount_all(images, judge::Access::ReadWrite, "").unwrap();
    fill(mount.path(), 5);
    let expected = kernel_manifest(&mount);
    mount.unmount().unwrap();
    expected
}

fn copies(images: &[PathBuf], to: &Path) -> Vec<PathBuf> {
    let copy = |image: &PathBuf| {
        let copy = to.join(image.file_name().unwrap());
        copy_sparse(image, &copy);
        copy
    };
    images.iter().map(copy).collect()
}

/// Each set of devices that may be lost is damaged everywhere: data, nodes and
/// parities. Scrub repairs it so that the kernel finds nothing, and every other
/// set may then be lost.
#[test]
fn what_is_rotten_is_mended_in_all_profiles() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (profile, sizes) in layouts() {
        let dir = scratch_dir();
        let images = images(dir.path(), &sizes);
        let context = format!("{profile} {sizes:?}");
        let by_kernel = sizes.len() % 2 == 0;
        let expected = if by_kernel {
            made_by_the_kernel(&images, profile, &context)
        } else {
            make(&images, profile, profile);
            let volume = open(&images, "").unwrap();
            fill_ours(&volume, 5);
            volume.close().unwrap();
            drop(volume);
            manifest(&images, "ro")
        };
        assert_clean(&images, &context);
        for lost in losses(profile, images.len()) {
            let context = format!("{context}, {lost:?} rotten");
            let work = scratch_dir();
            let copies = copies(&images, work.path());
            for device in &lost {
                rot(&copies[*device]);
            }
            // Read-only, everything is found and nothing is written.
            let volume = open(&copies, "ro").unwrap();
            let (found, faults) = scrubbed(&volume, Repair::ReportOnly);
            drop(volume);
            let bad: BTreeSet<u64> = lost.iter().map(|index| *index as u64 + 1).collect();
            for device in &found {
                let counts = &device.counts;
                let is_bad = bad.contains(&device.device.get());
                assert!(errors(counts) > 0 || !is_bad, "{context}: {device:?}");
                assert_eq!(counts.repairable_errors, errors(counts), "{context}");
                assert_eq!(counts.corrected_errors, 0);
            }
            for fault in &faults {
                assert_eq!(
                    fault.outcome,
                    ScrubOutcome::Repairable,
                    "{context}: {fault:?}"
                );
            }
            let parities: BTreeSet<usize> = faults
                .iter()
                .filter_map(|fault| match fault.kind {
                    ScrubbedKind::Parity(which) => Some(which),
                    _ => None,
                })
                .collect();
            assert_eq!(parities.len(), profile.parities(), "{context}");
            // Then it is mended.
            let volume = open(&copies, "").unwrap();
            let (found, faults) = scrubbed(&volume, Repair::Rewrite);
            for fault in &faults {
                assert_eq!(
                    fault.outcome,
                    ScrubOutcome::Corrected,
                    "{context}: {fault:?}"
                );
            }
            for device in &found {
                assert_eq!(device.counts.uncorrectable_errors, 0, "{context}");
            }
            let (_, faults) = scrubbed(&volume, Repair::Rewrite);
            assert!(faults.is_empty(), "{context}: {faults:#?}");
            volume.close().unwrap();
            drop(volume);
            check(&copies, &context);
            let mut mount = KernelMount::mount_all(&copies, judge::Access::ReadWrite, "").unwrap();
            mount.scrub().assert_clean(&context);
            kernel_manifest(&mount).assert_same(&expected, &context);
            mount.unmount().unwrap();
            for other in losses(profile, images.len()) {
                let context = format!("{context}, mended, without {other:?}");
                let left = without(&copies, &other);
                manifest(&left, "ro,degraded").assert_same(&expected, &context);
            }
        }
    }
}

/// The same, repaired by the kernel: ours finds nothing afterwards.
#[test]
fn what_the_kernel_mended_is_clean_here() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (profile, sizes) in layouts() {
        if profile.tolerated() == 0 {
            continue;
        }
        let dir = scratch_dir();
        let images = images(dir.path(), &sizes);
        let context = format!("{profile} {sizes:?}");
        let expected = made_by_the_kernel(&images, profile, &context);
        for rotten in 0..images.len() {
            let context = format!("{context}, {rotten} rotten");
            let work = scratch_dir();
            let copies = copies(&images, work.path());
            rot(&copies[rotten]);
            let mut mount = KernelMount::mount_all(&copies, judge::Access::ReadWrite, "").unwrap();
            let _ = mount.scrub();
            mount.remount().unwrap();
            mount.scrub().assert_clean(&context);
            mount.unmount().unwrap();
            assert_clean(&copies, &context);
            manifest(&copies, "ro").assert_same(&expected, &context);
        }
    }
}

/// If no other copy is left, the damage is named with its device, nothing is
/// made up, and the rest is repaired.
#[test]
fn what_is_lost_is_named_in_striped_profiles() {
    for (profile, metadata, lost) in [
        (ProfileChoice::Raid0, ProfileChoice::Raid1, vec![1]),
        (ProfileChoice::Raid5, ProfileChoice::Raid1c3, vec![0, 2]),
        (ProfileChoice::Raid10, ProfileChoice::Raid1c3, vec![0, 2]),
    ] {
        let dir = scratch_dir();
        let images = images(dir.path(), &SIZES[..4]);
        make(&images, profile, metadata);
        let volume = open(&images, "").unwrap();
        let data = content(9, 9 << 20);
        volume.write_file(b"/nine", &data).unwrap();
        volume.close().unwrap();
        drop(volume);
        for device in &lost {
            rot(&images[*device]);
        }
        let volume = open(&images, "").unwrap();
        let (found, faults) = scrubbed(&volume, Repair::Rewrite);
        let lost_sectors: u64 = found
            .iter()
            .map(|device| device.counts.uncorrectable_errors)
            .sum();
        let gone: Vec<_> = faults
            .iter()
            .filter(|fault| fault.outcome == ScrubOutcome::Uncorrectable)
            .collect();
        assert!(!gone.is_empty(), "{profile}");
        assert_eq!(gone.len() as u64, lost_sectors);
        let mut bad = BTreeSet::new();
        for fault in gone {
            assert_eq!(fault.kind, ScrubbedKind::Data, "{profile}");
            assert!(lost.contains(&(fault.place.device.get() as usize - 1)));
            let store = volume.files().store();
            let holders = store.look(|engine| engine.holders_at(fault.logical, 8));
            let holders = holders.unwrap();
            assert_eq!(holders.len(), 1, "{profile}: {fault:?}");
            bad.insert(holders[0].offset);
        }
        let inode = volume.files().inode(volume.resolve(b"/nine").unwrap());
        let inode = inode.unwrap();
        // Everything else can be read; what was named cannot.
        for (index, sector) in data.chunks(4096).enumerate() {
            let at = index as u64 * 4096;
            let mut bytes = vec![0; sector.len()];
            let read = volume.files().read(&inode, at, &mut bytes);
            match bad.contains(&at) {
                true => assert!(read.is_err(), "{profile} {at}"),
                false => assert!(read.is_ok() && bytes == sector, "{profile} {at}"),
            }
        }
    }
}

/// A scrub continues where it, or btrfs-progs, stopped: each device by itself.
#[test]
fn a_scrub_of_stripes_goes_on_where_it_was() {
    let dir = scratch_dir();
    let images = images(dir.path(), &SIZES[..4]);
    make(&images, ProfileChoice::Raid6, ProfileChoice::Raid10);
    let volume = open(&images, "").unwrap();
    fill_ours(&volume, 3);
    volume.close().unwrap();
    let store = volume.files().store();
    let (whole, _) = scrubbed(&volume, Repair::ReportOnly);
    let options = Options {
        repair: Repair::ReportOnly,
        threads: 1,
    };
    let pace = Pace {
        bytes_per_second: Some(1 << 30),
    };
    let mut starts: Vec<(DeviceId, Start)> = Vec::new();
    let mut rounds = 0;
    let done = loop {
        rounds += 1;
        let mut told = 0;
        let done = scrub(store, &options, &starts, &mut |_| {
            told += 1;
            match told > 24 {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(pace),
            }
        });
        let done = done.unwrap();
        let is_done = done.iter().all(|device| device.is_finished);
        starts = done
            .iter()
            .map(|device| {
                let (counts, from) = (device.counts, device.last);
                (device.device, Start { counts, from })
            })
            .collect();
        if is_done {
            break done;
        }
        assert!(rounds < 100);
    };
    assert!(rounds > 1);
    for (once, parts) in whole.iter().zip(&done) {
        assert_eq!(once.counts, parts.counts, "of device {}", once.device);
        assert_eq!(once.last, parts.last);
        assert!(parts.last > DeviceOffset(0));
    }
}

/// Where a bad address is in the files that have it: at its own offset, or, as
/// nothing of a compressed extent can be read without it, in all that the file
/// has of the extent.
#[test]
fn holders_of_an_address_are_named_with_what_they_lose() {
    use butterfs::{BlockDevice, MemoryDevice, MountOptions};
    use butterfs_admin::scrub::HolderAt;
    use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
    use butterfs_format::{InodeNumber, ItemType, Key, TreeId};
    use std::sync::Arc;

    const UNIT: u64 = 128 << 10;
    for (options, is_compressed) in [("compress-force=zstd", true), ("compress=no", false)] {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(512 << 20));
        butterfs_admin::mkfs::make(&*device, &MkfsOptions::default()).unwrap();
        let options = MountOptions::parse(options).unwrap().open_options();
        let volume = Volume::open_device(device, options).unwrap();
        volume.write_file("f", &content(1, 400_000)).unwrap();
        volume.sync().unwrap();
        let files = volume.files();
        let make = |name: &str| {
            drop(volume.create_file(name).unwrap());
            files.inode(volume.resolve(name).unwrap()).unwrap()
        };
        let file = files.inode(volume.resolve("f").unwrap()).unwrap();
        // Of the second unit, one has the whole, one only the first half.
        let (whole, half) = (make("whole"), make("half"));
        files
            .copy_range((&file, UNIT), (&whole, 8192), UNIT)
            .unwrap();
        files
            .copy_range((&file, UNIT), (&half, UNIT), UNIT / 2)
            .unwrap();
        volume.sync().unwrap();
        let engine = files.store().read();
        let at = |number: InodeNumber, offset: u64| {
            let key = Key::new(number.get(), ItemType::EXTENT_DATA, offset);
            let (leaf, slot) = butterfs_tree::find(&*engine, TreeId::FS, &key).unwrap()?;
            let extent = FileExtent::parse(leaf.data(slot)).unwrap();
            match extent.body {
                FileExtentBody::Regular(place) => Some(place),
                _ => None,
            }
        };
        let place = at(whole.id.number, 8192).unwrap();
        let within = match is_compressed {
            true => 4096,
            false => UNIT / 2 + 4096,
        };
        let bad = place.disk.saturating_add(match is_compressed {
            true => within,
            false => place.offset + within,
        });
        let mut found = engine.holders_at(bad, 8).unwrap();
        found.sort_by_key(|holder| holder.inode);
        let holder = |inode: InodeNumber, offset: u64, unpacked: Option<u64>| HolderAt {
            tree: TreeId::FS,
            inode,
            offset,
            unpacked,
        };
        let expected = match is_compressed {
            true => vec![
                holder(file.id.number, UNIT, Some(UNIT)),
                holder(whole.id.number, 8192, Some(UNIT)),
                holder(half.id.number, UNIT, Some(UNIT / 2)),
            ],
            false => vec![
                holder(file.id.number, UNIT + within, None),
                holder(whole.id.number, 8192 + within, None),
            ],
        };
        assert_eq!(found, expected, "{is_compressed}");
    }
}
