//! The bytes that root items name: the kernel subtracts from them, and sizes
//! its reserve of metadata space by them.

use super::support::{LibraryTree, mkfs};
use super::{balance, judge_volume};
use butterfs::{Access, FileDevice, StoreError, Volume};
use butterfs_check::{FaultCode, NoProgress, Options, Report, check};
use butterfs_device::BlockDevice;
use butterfs_format::TreeId;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_testkit::judge::{KernelMount, Mode, scratch_dir};
use butterfs_testkit::{Capability, judge};
use std::path::Path;
use std::sync::Arc;

const NODE: u64 = 4096;

fn report(image: &Path) -> Report {
    let device = FileDevice::open(image, Access::ReadOnly).expect("it opens");
    let options = Options {
        threads: 2,
        ..Options::default()
    };
    check(vec![Arc::new(device)], &options, &NoProgress).expect("it can be checked")
}

/// Many small files in three directories.
fn fill(volume: &Volume, files: usize) {
    for directory in 0..3 {
        volume.create_dir(&format!("/d{directory}")).unwrap();
        for file in 0..files {
            let content = vec![file as u8; 3000 + file * 7 % 6000];
            volume
                .write_file(&format!("/d{directory}/file{file}"), &content)
                .unwrap();
        }
    }
}

/// The kernel's reserve of metadata space.
fn reserve(image: &Path) -> u64 {
    let device = FileDevice::open(image, Access::ReadOnly).unwrap();
    let mut bytes = vec![0; SIZE];
    device.read_at(COPIES[0], &mut bytes).unwrap();
    let fsid = Superblock::parse(&bytes, COPIES[0]).unwrap().fsid;
    let fsid = uuid_text(&fsid);
    let path = format!("/sys/fs/btrfs/{fsid}/allocation/global_rsv_size");
    let text = std::fs::read_to_string(path).expect("the kernel shows its reserve");
    text.trim().parse().expect("a number")
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (index, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// A volume that the library filled is emptied by the kernel, balanced and
/// filled again.
#[test]
fn the_kernel_empties_what_the_library_filled() {
    let mut needed = Capability::KERNEL_MOUNT.to_vec();
    needed.push(Capability::Program("btrfs"));
    if !Capability::all_here(&needed) {
        return;
    }
    let dir = scratch_dir();
    let image = dir.path().join("v.img");
    mkfs(&image, 1 << 30, NODE as u32, "csum=crc32c");
    let tree = LibraryTree::mount(&image, "");
    fill(&tree.0, 700);
    tree.0.close().unwrap();
    drop(tree);
    judge_volume(&image, "filled");
    let mut mount = KernelMount::mount(&image, judge::Access::ReadWrite, "").unwrap();
    let largest = 64 << 20;
    assert!(reserve(&image) < largest, "filled: {}", reserve(&image));
    std::fs::remove_dir_all(mount.path().join("d0")).unwrap();
    std::fs::remove_dir_all(mount.path().join("d1")).unwrap();
    balance(&mount);
    std::fs::remove_dir_all(mount.path().join("d2")).unwrap();
    mount.remount().unwrap();
    assert!(reserve(&image) < largest, "emptied: {}", reserve(&image));
    for number in 0..300 {
        let path = mount.path().join(format!("new{number}"));
        std::fs::write(path, vec![1; 300_000]).expect("an empty volume has room");
    }
    assert_eq!(mount.complaints(), Vec::<String>::new());
    mount.unmount().unwrap();
    judge_volume(&image, "filled again");
    judge::btrfs_check(&image, Mode::Lowmem, judge::DataChecksums::Ignore).assert_clean("lowmem");
}

/// A wrong number in place of the right one.
type Wrong = fn(u64) -> u64;

/// Sets the bytes of trees.
fn falsify(image: &Path, trees: &[TreeId], wrong: Wrong) {
    let tree = LibraryTree::mount(image, "");
    let store = tree.files().store();
    let set = store.commit_with(64, |engine| {
        for tree in trees {
            engine.change_root_item(*tree, |item| item.bytes_used = wrong(item.bytes_used))?;
        }
        Ok::<_, StoreError>(())
    });
    set.unwrap();
    tree.0.close().unwrap();
}

fn warnings(image: &Path) -> u64 {
    let report = report(image);
    assert!(report.is_clean(), "{:?}", report.faults);
    report
        .counts
        .get(&FaultCode::RootBytes)
        .copied()
        .unwrap_or(0)
}

/// Opening for reading leaves wrong numbers, opening for writing mends them.
#[test]
fn wrong_bytes_of_roots_are_mended() {
    const SNAPSHOT: TreeId = TreeId(257);
    let dir = scratch_dir();
    let image = dir.path().join("v.img");
    mkfs(&image, 256 << 20, NODE as u32, "csum=crc32c");
    let tree = LibraryTree::mount(&image, "");
    tree.0.create_subvolume("/sub").unwrap();
    fill(&tree.0, 100);
    tree.0.close().unwrap();
    drop(tree);
    assert_eq!(warnings(&image), 0);
    let kinds: [(&[TreeId], Wrong); 4] = [
        // As if nobody ever counted.
        (&[TreeId::EXTENT, TreeId::FS], |_| NODE),
        // A kernel subtracted too much.
        (&[TreeId::EXTENT], |_| 0_u64.wrapping_sub(5 * NODE)),
        // The sum of all numbers is wrong, and no number is impossible.
        (&[TreeId::FS], |right| right + NODE),
        (&[TreeId::EXTENT], |right| right - NODE),
    ];
    let options = || butterfs::MountOptions::parse("ro").unwrap().open_options();
    for has_snapshot in [false, true] {
        if has_snapshot {
            let tree = LibraryTree::mount(&image, "");
            let access = butterfs::SnapshotAccess::ReadWrite;
            tree.0.snapshot("/", "/snapshot", access).unwrap();
            tree.0.write_file("/snapshot/d0/more", &[3; 9000]).unwrap();
            tree.0.close().unwrap();
            drop(tree);
            assert_eq!(warnings(&image), 0, "the snapshot shares nodes");
        }
        for (number, (trees, wrong)) in kinds.iter().enumerate() {
            if has_snapshot && number == 2 {
                // Shared nodes hide it, and no kernel uses the number.
                continue;
            }
            falsify(&image, trees, *wrong);
            assert_eq!(warnings(&image), trees.len() as u64, "kind {number}");
            let before = std::fs::read(&image).unwrap();
            Volume::open(&image, options()).unwrap().close().unwrap();
            assert!(before == std::fs::read(&image).unwrap(), "kind {number}");
            drop(LibraryTree::mount(&image, ""));
            assert_eq!(warnings(&image), 0, "kind {number}");
        }
    }
    // Numbers of subvolumes are counted when another number is wrong.
    falsify(&image, &[SNAPSHOT, TreeId::EXTENT], |_| NODE);
    assert_eq!(warnings(&image), 2);
    LibraryTree::mount(&image, "").0.close().unwrap();
    assert_eq!(warnings(&image), 0);
    // What is right stays as it is.
    let before = std::fs::read(&image).unwrap();
    LibraryTree::mount(&image, "").0.close().unwrap();
    assert!(before == std::fs::read(&image).unwrap());
}
