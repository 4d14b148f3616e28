//! Volumes that were used after their conversion: the way back that is still
//! there, and what is in its way.

mod support;

use butterfs_convert::{ConvertError, InTheWay, Unwatched, verify_rollback};
use butterfs_testkit::judge::scratch_dir;
use butterfs_testkit::run_script;
use std::fs;
use std::path::PathBuf;
use support::{
    MIB, Mounted, assert_same_bytes, can_mount, convert, device, fill, judge, mke2fs, options,
    rollback, run, used,
};

const FILES: &str = "mkdir d; for i in $(seq 40); do seq $i 20000 > d/$i; done; \
                     head -c 9000000 /dev/urandom > large; fallocate -l 1000000 space";

/// A converted image, and what ext4 used of it before.
fn converted(directory: &tempfile::TempDir) -> (PathBuf, Vec<u8>) {
    let image = directory.path().join("image");
    mke2fs(&image, 256 * MIB, &["-t", "ext4"]);
    fill(&image, FILES);
    let old = used(&image);
    convert(&image, &options()).unwrap();
    (image, old)
}

#[test]
fn changes_do_not_reach_the_image() {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    let (image, old) = converted(&directory);
    {
        let mounted = Mounted::new(&image, "btrfs", "noatime");
        run_script(
            &mounted.point,
            "rm -r d; for i in $(seq 300); do seq $i 3000 > new$i; done; \
             dd if=/dev/zero of=large bs=64k count=20 conv=notrunc status=none; \
             dd if=/dev/urandom of=space bs=64k count=9 conv=notrunc status=none; \
             sync; rm new1*; btrfs subvolume snapshot . snap; truncate -s 100 large; sync",
        );
    }
    judge(&image, "changed");
    rollback(&image).unwrap();
    run("e2fsck", &["-fn", image.to_str().unwrap()]);
    assert_same_bytes(&old, &used(&image), "changed");
    // And once more.
    convert(&image, &options()).unwrap();
    judge(&image, "again");
    rollback(&image).unwrap();
    assert_same_bytes(&old, &used(&image), "again");
}

fn in_the_way(script: &str) -> InTheWay {
    let directory = scratch_dir();
    let (image, _) = converted(&directory);
    {
        let mounted = Mounted::new(&image, "btrfs", "noatime");
        run_script(&mounted.point, script);
    }
    let before = fs::read(&image).unwrap();
    let error = verify_rollback(&device(&image), &Unwatched).unwrap_err();
    let again = rollback(&image).unwrap_err();
    assert_eq!(error.to_string(), again.to_string());
    assert!(before == fs::read(&image).unwrap(), "nothing was written");
    judge(&image, script);
    match error {
        ConvertError::NoWayBack(why) => why,
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_in_the_way_is_told() {
    if !can_mount() {
        return;
    }
    let why = in_the_way("btrfs balance start --full-balance . > /dev/null");
    assert!(matches!(why, InTheWay::Moved { .. }), "{why}");
    let why = in_the_way("btrfs subvolume delete -c ext2_saved > /dev/null; sync");
    assert_eq!(why, InTheWay::NoSubvolume);
    let why = in_the_way("mv ext2_saved/image ext2_saved/other; sync");
    assert_eq!(why, InTheWay::NoImage);
}

#[test]
fn an_overwritten_image_is_noticed() {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    let (image, old) = converted(&directory);
    let at = (2 * MIB as usize..old.len())
        .step_by(4096)
        .find(|at| old[*at] != 0)
        .unwrap();
    device(&image)
        .write_at(butterfs_format::DeviceOffset(at as u64 + 7), b"\xff\xfe")
        .unwrap();
    let error = rollback(&image).unwrap_err();
    let expected = InTheWay::Overwritten {
        at: at as u64 / 4096 * 4096,
    };
    assert!(
        matches!(&error, ConvertError::NoWayBack(why) if *why == expected),
        "{error}"
    );
}
