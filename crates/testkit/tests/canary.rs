//! Every judge condemns what is wrong. A judge that cannot do so proves
//! nothing.

use butterfs_testkit::judge::{
    Access, DataChecksums, KernelMount, Mode, btrfs_check, mkfs_btrfs, scratch_dir,
};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::{Capability, Manifest, Op, Oracle, capability, differential};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A pattern that lies in the image only as content of the file `data`.
const PATTERN: &[u8] = b"the canary's data sector sings. ";

fn volume() -> Option<(TempDir, PathBuf)> {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return None;
    }
    let dir = scratch_dir();
    let image = dir.path().join("canary.img");
    mkfs_btrfs(&image, 256 << 20, &["-m", "single", "-d", "single"]);
    let mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
    fs::write(mount.path().join("data"), PATTERN.repeat(4096)).unwrap();
    fs::write(mount.path().join("small"), b"a small file").unwrap();
    assert!(mount.unmount().unwrap().is_empty());
    Some((dir, image))
}

/// Flips one bit at the first place where `pattern` lies from `from` on.
fn damage(image: &Path, pattern: &[u8], from: usize) {
    let bytes = fs::read(image).unwrap();
    let at = bytes[from..]
        .windows(pattern.len())
        .position(|window| window == pattern)
        .expect("the pattern is in the image");
    let at = from + at;
    let file = fs::File::options().write(true).open(image).unwrap();
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
}

#[test]
fn a_sound_volume_is_clean() {
    let Some((_dir, image)) = volume() else {
        return;
    };
    for mode in Mode::ALL {
        btrfs_check(&image, mode, DataChecksums::Verify).assert_clean("a sound volume");
    }
    let mut mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
    mount.scrub().assert_clean("a sound volume");
}

#[test]
fn check_and_scrub_condemn_damaged_data() {
    let Some((_dir, image)) = volume() else {
        return;
    };
    damage(&image, PATTERN, 1 << 20);
    for mode in Mode::ALL {
        let verdict = btrfs_check(&image, mode, DataChecksums::Verify);
        assert!(!verdict.clean, "{mode:?}:\n{}", verdict.output);
        btrfs_check(&image, mode, DataChecksums::Ignore).assert_clean("metadata are sound");
    }
    let mut mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
    assert!(fs::read(mount.path().join("data")).is_err());
    assert!(!mount.complaints().is_empty(), "the kernel complains");
    assert!(!mount.scrub().clean);
}

#[test]
fn check_and_the_kernel_condemn_damaged_metadata() {
    let Some((_dir, image)) = volume() else {
        return;
    };
    // The inline file's content lies in a leaf; every copy of it is damaged,
    // the newest among them.
    let bytes = fs::read(&image).unwrap();
    let pattern = b"a small file";
    let mut from = 1 << 20;
    while bytes[from..]
        .windows(pattern.len())
        .any(|window| window == pattern)
    {
        let next = bytes[from..]
            .windows(pattern.len())
            .position(|w| w == pattern);
        damage(&image, pattern, from);
        from += next.unwrap() + 1;
    }
    for mode in Mode::ALL {
        let verdict = btrfs_check(&image, mode, DataChecksums::Ignore);
        assert!(!verdict.clean, "{mode:?}:\n{}", verdict.output);
    }
    // Either it does not mount, or the file is missing.
    if let Ok(mount) = KernelMount::mount(&image, Access::ReadOnly, "") {
        assert!(fs::read(mount.path().join("small")).is_err());
    }
}

#[test]
fn manifests_of_different_trees_differ() {
    let Some((_dir, image)) = volume() else {
        return;
    };
    let mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
    let before = Manifest::of(&MountedTree::new(mount.path())).unwrap();
    let file = fs::File::options()
        .write(true)
        .open(mount.path().join("data"))
        .unwrap();
    let times = fs::FileTimes::new().set_modified(file.metadata().unwrap().modified().unwrap());
    file.write_all_at(b"T", 100_000).unwrap();
    file.set_times(times).unwrap();
    let after = Manifest::of(&MountedTree::new(mount.path())).unwrap();
    let differences = after.differences(&before, 10);
    assert_eq!(differences.len(), 1, "{differences:?}");
    assert!(differences[0].starts_with("/data: hash"), "{differences:?}");
}

/// A file system with a fault is distinguished from the model: by its answer,
/// or by what it holds.
#[test]
fn the_model_condemns_wrong_answers_and_wrong_content() {
    clear_umask();
    let mut other = Oracle::new();
    let mut count = 0;
    let divergence = differential::run(1, 5000, |op| {
        count += 1;
        // This claims success and does nothing.
        match op {
            Op::Mkdir { .. } if count > 1000 => Ok(()),
            op => other.apply(op),
        }
    });
    let divergence = divergence.expect_err("later operations miss the directory");
    assert!(
        divergence.step > 1000 && divergence.seed == 1,
        "{divergence}"
    );

    let mut other = Oracle::new();
    let model = differential::run(2, 3000, |op| match op {
        Op::Write { path, span, seed } => {
            let (path, span, seed) = (path.clone(), *span, *seed ^ 1);
            other.apply(&Op::Write { path, span, seed })
        }
        op => other.apply(op),
    });
    let model = Manifest::of(&model.expect("all answers are right")).unwrap();
    let wrong = Manifest::of(&other).unwrap();
    assert!(!wrong.differences(&model, 10).is_empty());
}

/// The runner's answers are those of the system: a directory that cannot be
/// written to gives EROFS, which the model never does.
#[test]
fn a_read_only_mount_diverges() {
    let Some((_dir, image)) = volume() else {
        return;
    };
    let mount = KernelMount::mount(&image, Access::ReadOnly, "").unwrap();
    let divergence = differential::run(3, 100, |op| apply_to_path(op, mount.path()));
    assert_eq!(
        divergence.expect_err("nothing can be made").found,
        Err(Errno::ROFS)
    );
}

#[test]
#[ignore = "fails on purpose; run by the test below"]
fn skip_in_ci() {
    capability::skip("on purpose");
}

#[test]
fn nothing_is_skipped_in_ci() {
    let run = |ci: Option<&str>| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "skip_in_ci", "--ignored"]);
        match ci {
            Some(value) => command.env("CI", value),
            None => command.env_remove("CI"),
        };
        command.output().unwrap().status.success()
    };
    assert!(run(None));
    assert!(!run(Some("true")));
}
