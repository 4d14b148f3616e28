//! Volumes that were left in the middle of something: they can be read and
//! written. Images with only metadata can be read, and say why they cannot be
//! written.

use crate::common::*;
use butterfs::{Access, Error, FileDevice, OpenOptions, StoreError, TreeId, Volume, Walk};
use butterfs_admin::mkfs::ProfileChoice::Single;
use butterfs_format::superblock::COPIES;
use butterfs_store::Store;
use butterfs_testkit::Capability;
use butterfs_testkit::judge::{self, KernelMount, mkfs_btrfs, scratch_dir};
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

const FILES: usize = 6000;
const SNAPSHOTS: usize = 30;
/// Balances that are tried until one is caught in the act.
const BALANCES_MAX: usize = 20;

fn run(program: &str, words: &[&OsStr]) {
    let output = Command::new(program).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {said}");
}

/// Generation of the primary superblock.
fn generation(path: &Path) -> u64 {
    let mut bytes = [0; 8];
    let file = std::fs::File::open(path).unwrap();
    file.read_exact_at(&mut bytes, COPIES[0].get() + 72)
        .unwrap();
    u64::from_le_bytes(bytes)
}

/// Copies a volume that is in use, as a crash would leave it. Nothing of the
/// last commit is overwritten before the next one. False if a commit came
/// meanwhile.
fn copy_as_a_crash(path: &Path, copy: &Path) -> bool {
    let before = generation(path);
    let words = ["--sparse=always".as_ref(), path.as_os_str(), copy.as_ref()];
    run("cp", &words);
    generation(path) == before
}

fn is_relocating(path: &Path) -> bool {
    let device = FileDevice::open(path, Access::ReadOnly).unwrap();
    let options = butterfs_store::OpenOptions {
        access: Access::ReadOnly,
        ..butterfs_store::OpenOptions::default()
    };
    let store = Store::open(Arc::new(device), &options).unwrap();
    store.read().has_tree(TreeId::RELOC).unwrap()
}

/// Copies the volume at `path` to `copy` in the middle of a balance.
fn interrupt_a_balance(path: &Path, copy: &Path) {
    let mount = KernelMount::mount(path, judge::Access::ReadWrite, "").unwrap();
    let source = mount.path().join("source");
    let btrfs = |words: &[&OsStr]| run("btrfs", words);
    btrfs(&["subvolume".as_ref(), "create".as_ref(), source.as_ref()]);
    for file in 0..FILES {
        std::fs::write(source.join(format!("file {file}")), vec![b'x'; 600]).unwrap();
    }
    for number in 0..SNAPSHOTS {
        let snapshot = mount.path().join(format!("snapshot {number}"));
        let words = ["subvolume".as_ref(), "snapshot".as_ref()];
        btrfs(&[&words[..], &[source.as_ref(), snapshot.as_ref()]].concat());
        for file in (0..FILES).step_by(400) {
            std::fs::write(source.join(format!("file {file}")), number.to_string()).unwrap();
        }
    }
    let mut caught = false;
    for _ in 0..BALANCES_MAX {
        let mut balance = Command::new("btrfs")
            .args(["balance", "start", "-m", "--full-balance"])
            .arg(mount.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !caught && balance.try_wait().unwrap().is_none() {
            caught = copy_as_a_crash(path, copy) && is_relocating(copy);
        }
        balance.wait().unwrap();
        if caught {
            break;
        }
    }
    assert!(caught, "no copy fell into a balance");
}

#[test]
fn an_interrupted_balance_is_read_and_written() {
    let mut needed = Capability::KERNEL_MOUNT.to_vec();
    needed.push(Capability::Program("btrfs"));
    if !Capability::all_here(&needed) {
        return;
    }
    let dir = scratch_dir();
    let (path, copy) = (dir.path().join("volume.img"), dir.path().join("copy.img"));
    mkfs_btrfs(&path, 400 << 20, &["-m", "single", "-d", "single"]);
    interrupt_a_balance(&path, &copy);

    let read = |access| {
        let volume = Volume::open(&copy, options(access)).unwrap();
        let mut found = 0;
        volume
            .walk::<Error>(volume.files().root(), &mut |_| {
                found += 1;
                Ok(Walk::Enter)
            })
            .unwrap();
        assert!(found >= FILES * (SNAPSHOTS + 1), "{found}");
        let last = volume.read_file(b"snapshot 29/file 400").unwrap();
        assert_eq!(last, b"28");
        assert_eq!(volume.read_file(b"source/file 1").unwrap(), vec![b'x'; 600]);
    };
    read(Access::ReadOnly);
    // What the balance had not finished is undone, and the kernel continues
    // from there.
    read(Access::ReadWrite);
    assert!(!is_relocating(&copy));
    let mut mount = KernelMount::mount(&copy, judge::Access::ReadWrite, "").unwrap();
    mount.scrub().assert_clean("taken back");
    mount.unmount().unwrap();
    read(Access::ReadWrite);
}

#[test]
fn what_btrfs_image_restored_is_read() {
    if !Capability::all_here(&[Capability::Program("btrfs-image")]) {
        return;
    }
    let image = image(Single);
    let dir = scratch_dir();
    let [path, dump, restored] = ["volume", "dump", "restored"].map(|name| dir.path().join(name));
    image.device.save(&path).unwrap();
    run(
        "btrfs-image",
        &["-c9".as_ref(), path.as_ref(), dump.as_ref()],
    );
    let words = ["-r".as_ref(), dump.as_os_str(), restored.as_ref()];
    run("btrfs-image", &words);
    let error = Volume::open(&restored, OpenOptions::default()).unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Store(StoreError::Unsupported {
                read_only_possible: true,
                ..
            })
        ),
        "{error}"
    );
    let text = one_sentence(&error);
    assert!(
        text.contains("metadata image") && text.contains("-o ro"),
        "{text}"
    );
    let volume = Volume::open(&restored, options(Access::ReadOnly)).unwrap();
    for (name, data) in &image.files {
        let inode = volume.resolve(name.as_bytes()).unwrap();
        let size = volume.files().attributes(inode).unwrap().size;
        assert_eq!(size, data.len() as u64, "{name}");
    }
}
