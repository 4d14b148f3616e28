//! What `butterfs mkfs` refuses: it says why and what to do, and writes
//! nothing.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::{Bench, Kernel, Loop, said};

fn run(program: &str, words: &[&str], path: &Path) -> Output {
    let out = Command::new(program).args(words).arg(path).output();
    let out = out.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(out.status.success(), "{program}: {}", said(&out));
    out
}

/// Runs mkfs on `target`, which must be refused with all of `words`, and leave
/// `file` as it is.
fn refused(bench: &Bench, target: &Path, file: &Path, options: &[&str], words: &[&str]) {
    let before = fs::read(file).expect("the image");
    let target = target.to_str().expect("a path of characters");
    let output = bench.try_run(&[&["mkfs"], options, &[target]].concat());
    let text = said(&output);
    assert!(!output.status.success(), "{target} is overwritten: {text}");
    for word in words {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
    assert!(
        fs::read(file).expect("the image") == before,
        "it was written to: {text}"
    );
}

fn file(bench: &Bench, name: &str, mib: u64) -> PathBuf {
    let path = bench.path(name);
    let file = fs::File::create(&path).expect("a file");
    file.set_len(mib << 20).expect("its length");
    path
}

#[test]
fn what_holds_something_is_kept() {
    let bench = Bench::new();
    let volume = bench.path("volume");
    refused(&bench, &volume, &volume, &["-q"], &["btrfs", "-f"]);

    let ext4 = file(&bench, "ext4", 128);
    run("mkfs.ext4", &["-q", "-F"], &ext4);
    refused(&bench, &ext4, &ext4, &["-q"], &["ext4", "-f"]);
    let xfs = file(&bench, "xfs", 320);
    run("mkfs.xfs", &["-q", "-f"], &xfs);
    refused(&bench, &xfs, &xfs, &["-q"], &["xfs", "-f"]);

    // A partition table of the old kind: one partition, then the mark.
    let table = file(&bench, "table", 128);
    let mut sector = [0; 512];
    sector[446..462].copy_from_slice(&[0, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 2, 0]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let open = fs::File::options().write(true).open(&table);
    open.expect("a file")
        .write_all_at(&sector, 0)
        .expect("a table");
    refused(&bench, &table, &table, &["-q"], &["partition", "-f"]);

    bench.run(&["mkfs", "-q", "-f", "table"]);
    bench.run(&["ls", "table:/"]);
}

#[test]
fn what_cannot_be_made_leaves_all_as_it_is() {
    let bench = Bench::new();
    let volume = bench.path("volume");
    let force = |more: &'static [&'static str]| [&["-q", "-f"], more].concat();
    for (options, words) in [
        (
            force(&["-b", "4g"]),
            &["bytes", "leave the byte count out"][..],
        ),
        (force(&["-b", "1m"]), &["too small", "at least"]),
        (force(&["-n", "5000"]), &["node size", "power of two"]),
        (force(&["-s", "3000"]), &["sector size", "power of two"]),
        (force(&["-d", "raid1"]), &["raid1", "at least 2 devices"]),
        (force(&["-d", "raid7"]), &["raid7", "raid1c3"]),
        (force(&["-O", "warp-drive"]), &["warp-drive", "list-all"]),
        (force(&["--csum", "md5"]), &["md5"]),
        (force(&["-M", "-n", "16k"]), &["mixed"]),
    ] {
        refused(&bench, &volume, &volume, &options, words);
    }
    bench.check();
}

#[test]
fn what_is_in_use_is_kept() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        assert!(std::env::var_os("CI").is_none(), "CI has loop devices");
        println!("skipped: loop devices need root");
        return;
    }
    let bench = Bench::new();
    let ext4 = file(&bench, "ext4", 64);
    run("mkfs.ext4", &["-q", "-F"], &ext4);
    let device = Loop::new(&ext4);
    let point = bench.path("mnt");
    let words = ["-o", "ro", device.0.to_str().expect("a path")];
    run("mount", &words, &point);
    let mounted = Kernel(point.clone());
    for target in [&device.0, &ext4] {
        let words = ["in use", "in use by the mount"];
        refused(&bench, target, &ext4, &["-q", "-f"], &words);
    }
    drop(mounted);
}

#[test]
fn a_block_group_tree_goes_with_what_it_needs() {
    let bench = Bench::new();
    for change in ["^no-holes", "^free-space-tree"] {
        let made = bench.try_run(&["mkfs", "-f", "-b", "512m", "-O", change, "volume"]);
        let text = said(&made);
        assert!(made.status.success(), "{text}");
        assert!(text.contains("warning: block-group-tree"), "{text}");
        bench.check();
        // A user who asks for both is told that this is not possible.
        let both = format!("{change},block-group-tree");
        let made = bench.try_run(&["mkfs", "-f", "-b", "512m", "-O", &both, "volume"]);
        assert!(!made.status.success(), "{both}");
    }
    let made = bench.run(&["mkfs", "-f", "-b", "512m", "volume"]);
    assert!(made.contains("BLOCK_GROUP_TREE"), "{made}");
}

/// The names that the Btrfs tools have for them, too.
#[test]
fn features_have_shorter_names() {
    let bench = Bench::new();
    let made = bench.run(&["mkfs", "-f", "-b", "512m", "-O", "^bgt", "volume"]);
    assert!(!made.contains("BLOCK_GROUP_TREE"), "{made}");
    let made = bench.run(&["mkfs", "-f", "-b", "512m", "-O", "bgt,fst", "volume"]);
    assert!(made.contains("BLOCK_GROUP_TREE"), "{made}");
    let both = bench.try_run(&["mkfs", "-f", "-b", "512m", "-O", "^fst,bgt", "volume"]);
    assert!(!both.status.success(), "{}", said(&both));
    let list = bench.run(&["mkfs", "-O", "list-all"]);
    assert!(list.contains("(bgt)") && list.contains("(fst)"), "{list}");
}

#[test]
fn a_protected_device_is_called_protected() {
    if !support::is_root() {
        println!("skipped: loop devices need root");
        return;
    }
    let bench = Bench::new();
    let device = Loop::with(&["--read-only"], &bench.path("volume"));
    for words in [
        &["mkfs", "-f", device.name()][..],
        &["filesystem", "resize", "max", device.name()],
    ] {
        let failed = bench.try_run(words);
        let text = said(&failed);
        assert!(!failed.status.success(), "{words:?}");
        assert!(text.contains("write-protected"), "{words:?}: {text}");
        assert!(!text.contains("permissions"), "{words:?}: {text}");
    }
}

/// As with mkfs.btrfs, a new volume may have quotas.
#[test]
fn a_new_volume_may_have_quotas() {
    let bench = Bench::new();
    for (feature, mode) in [("quota", "qgroup"), ("squota", "squota")] {
        bench.run(&["mkfs", "-f", "-q", "-b", "512m", "-O", feature, "volume"]);
        let status = bench.run(&["quota", "status", "volume"]);
        assert!(status.contains(mode), "{feature}: {status}");
        let groups = bench.run(&["qgroup", "show", "volume"]);
        assert!(groups.contains("0/5"), "{groups}");
        if feature == "quota" {
            bench.check();
        }
    }
    bench.run(&[
        "mkfs",
        "-f",
        "-q",
        "-b",
        "512m",
        "-O",
        "quota,^quota",
        "volume",
    ]);
    let off = bench.try_run(&["quota", "status", "--is-enabled", "volume"]);
    assert!(!off.status.success(), "{}", said(&off));
}
