//! Quotas of the kernel. The check finds right numbers of simple quotas clean,
//! and finds wrong ones. The store does not trust numbers if the volume was
//! changed without them.

mod support;

use butterfs_check::FaultCode;
use butterfs_device::{Access, FileDevice};
use butterfs_format::{ItemType, Key, TreeId};
use butterfs_kernel::{QuotaSwitch, switch_quotas};
use butterfs_store::{OpenOptions, Store};
use butterfs_testkit::judge::scratch_dir;
use butterfs_testkit::run_script;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use support::image::Image;
use support::{assert_clean, report, volume};

/// Offset of the generation in QGROUP_STATUS.
const GENERATION: usize = 8;
/// Offset of the referenced bytes in QGROUP_INFO.
const REFERENCED: usize = 8;

fn codes(path: &Path) -> Vec<FaultCode> {
    report(path).counts.keys().copied().collect()
}

/// Runs `work` on a kernel mount with simple quotas; returns false if the kernel
/// does not know them.
fn with_simple_quotas(path: &Path, work: &str) -> bool {
    let dir = scratch_dir();
    let status = Command::new("mount")
        .args(["-o", "loop"])
        .args([path, dir.path()])
        .status();
    assert!(status.expect("mount runs").success());
    let mount = File::open(dir.path()).expect("a directory");
    let switched = switch_quotas(mount.as_fd(), QuotaSwitch::OnSimple);
    drop(mount);
    if switched.is_ok() {
        run_script(dir.path(), work);
    } else {
        println!("skipped: this kernel does not know simple quotas");
    }
    let status = Command::new("umount").arg(dir.path()).status();
    assert!(status.expect("umount runs").success());
    switched.is_ok()
}

#[test]
fn wrong_charges_are_found() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    volume::make(&path, &[], "", "btrfs -q subvolume create a; sync");
    let work = "for i in $(seq 60); do head -c $((i*999)) /dev/urandom > a/f$i; done
        btrfs -q qgroup create 1/1 . ; btrfs -q qgroup assign 0/256 1/1 .
        btrfs -q subvolume snapshot a s; rm a/f1*; sync; cp --reflink=always a/f60 clone
        btrfs -q subvolume create a/nested; echo x > a/nested/x; sync";
    if !with_simple_quotas(&path, work) {
        return;
    }
    assert_clean(&report(&path), "simple quotas of the kernel");
    let damaged = dir.path().join("damaged.img");
    for group in [256, 1 << 48 | 1] {
        volume::sparse_copy(&path, &damaged);
        let key = Key::new(0, ItemType::QGROUP_INFO, group);
        Image::open(&damaged).bump(TreeId::QUOTA, key, REFERENCED, 4096);
        assert!(codes(&damaged).contains(&FaultCode::QgroupNumbers));
    }
    volume::sparse_copy(&path, &damaged);
    let key = Key::new(0, ItemType::QGROUP_INFO, 257);
    Image::open(&damaged).remove(TreeId::QUOTA, key);
    assert!(codes(&damaged).contains(&FaultCode::QgroupMissing));
}

#[test]
fn numbers_of_another_generation_are_not_believed() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    let work = "btrfs -q quota enable . ; btrfs -q quota rescan -w . ; echo x > x; sync";
    volume::make(&path, &[], "", work);
    assert_clean(&report(&path), "quotas of the kernel");
    let key = Key::new(0, ItemType::QGROUP_STATUS, 0);
    Image::open(&path).update(TreeId::QUOTA, key, |status| {
        let generation = status[GENERATION];
        status[GENERATION] = generation - 1;
    });
    let device = FileDevice::open(&path, Access::ReadOnly).expect("opens");
    let options = OpenOptions {
        access: Access::ReadOnly,
        ..OpenOptions::default()
    };
    let store = Store::open(Arc::new(device), &options).expect("opens");
    let engine = store.read();
    let quotas = engine.quotas().expect("quotas are on");
    assert!(quotas.is_inconsistent());
    assert_eq!(quotas.reason(), Some("the volume was changed without them"));
}
