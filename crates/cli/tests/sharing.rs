//! `butterfs reflink`, `dedupe` and `filesystem defragment` on volumes, on
//! mounts of ButterFS and on the kernel's; and what cp and btrfs-progs do
//! there.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use support::{BINARY, Bench, can_mount, is_root, said};

const MIB: usize = 1 << 20;

/// Bytes that do not compress.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as u8
        })
        .collect()
}

/// Bytes of data that the volume, or the mount, holds.
fn used(bench: &Bench, volume: &str) -> usize {
    let text = bench.run(&["filesystem", "df", "--json", volume]);
    let kinds: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let data = kinds.as_array().expect("kinds").iter();
    let used = data.filter(|kind| kind["kind"] == "Data");
    let sum: u64 = used.map(|kind| kind["used"].as_u64().expect("bytes")).sum();
    usize::try_from(sum).expect("fits")
}

fn refused(bench: &Bench, words: &[&str], why: &str) {
    let output = bench.try_run(words);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{words:?}: {}",
        said(&output)
    );
    assert!(said(&output).contains(why), "{words:?}: {}", said(&output));
}

fn program(name: &str, words: &[&str], directory: &Path) -> Output {
    let output = Command::new(name)
        .args(words)
        .current_dir(directory)
        .output();
    output.expect("the program runs")
}

fn must(name: &str, words: &[&str], directory: &Path) {
    let output = program(name, words, directory);
    assert!(
        output.status.success(),
        "{name} {words:?}: {}",
        said(&output)
    );
}

#[test]
fn files_and_trees_are_shared_in_a_volume() {
    let bench = Bench::new();
    let tree = bench.path("tree");
    fs::create_dir_all(tree.join("deep/er")).expect("directories");
    fs::write(tree.join("big"), noise(1, 8 * MIB)).expect("a file");
    fs::write(tree.join("deep/small"), "inline").expect("a file");
    fs::write(tree.join("deep/er/odd"), noise(2, 700_001)).expect("a file");
    fs::hard_link(tree.join("big"), tree.join("deep/link")).expect("a link");
    std::os::unix::fs::symlink("../big", tree.join("deep/symbolic")).expect("a link");
    must("chmod", &["750", "deep"], &tree);
    must("touch", &["-d", "2001-02-03", "deep/er/odd", "deep"], &tree);
    bench.run(&["copy", "-q", "tree", "volume:/"]);
    let before = used(&bench, "volume");
    bench.run(&["subvolume", "create", "volume:/sub"]);
    refused(
        &bench,
        &["reflink", "volume:/tree", "volume:/copy"],
        "with -r",
    );
    refused(
        &bench,
        &["reflink", "-r", "volume:/tree", "volume:/tree/deep"],
        "into itself",
    );
    bench.run(&["reflink", "-r", "volume:/tree", "volume:/sub/copy"]);
    bench.run(&["reflink", "volume:/tree/big", "volume:/sub"]);
    refused(
        &bench,
        &["reflink", "volume:/tree/deep/er/odd", "volume:/sub/big"],
        "replace it with -f",
    );
    let words = [
        "reflink",
        "-f",
        "volume:/tree/deep/er/odd",
        "volume:/sub/big",
    ];
    bench.run(&words);
    assert_eq!(used(&bench, "volume"), before);
    // Ranges into a file that is there.
    bench.run(&[
        "reflink",
        "--range",
        "64k:1m:0",
        "volume:/tree/big",
        "volume:/sub/big",
    ]);
    refused(
        &bench,
        &[
            "reflink",
            "--range",
            "1:1m:0",
            "volume:/tree/big",
            "volume:/sub/big",
        ],
        "begin with a sector",
    );
    assert_eq!(used(&bench, "volume"), before);
    bench.check();
    bench.run(&["copy", "-q", "volume:/sub", "back"]);
    must(
        "diff",
        &["-r", "--no-dereference", "tree", "back/copy"],
        &bench.path(""),
    );
    let big = fs::read(bench.path("back/big")).expect("a file");
    assert!(big[..MIB] == noise(1, 8 * MIB)[64 << 10..(64 << 10) + MIB]);
    let facts = |path: &str| {
        let format = "%a %h %Y %U %F";
        program("stat", &["-c", format, path], &bench.path("")).stdout
    };
    for name in ["deep", "deep/er/odd", "big"] {
        let (ours, theirs) = (format!("back/copy/{name}"), format!("tree/{name}"));
        assert_eq!(facts(&ours), facts(&theirs), "{name}");
    }
}

#[test]
fn equal_ranges_of_a_volume_are_shared_and_others_left() {
    let bench = Bench::new();
    let bytes = noise(3, 20 * MIB);
    fs::write(bench.path("a"), &bytes).expect("a file");
    fs::write(bench.path("b"), &bytes).expect("a file");
    let mut other = bytes.clone();
    other[18 * MIB] ^= 1;
    fs::write(bench.path("c"), &other).expect("a file");
    bench.run(&["copy", "-q", "a", "b", "c", "volume:/"]);
    assert!(used(&bench, "volume") >= 60 * MIB);
    let text = bench.run(&["dedupe", "--json", "volume:/a", "volume:/b", "volume:/c"]);
    let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(all[0]["deduped"], 20 * MIB);
    assert_eq!(all[0]["differs_at"], serde_json::Value::Null);
    assert_eq!(all[1]["deduped"], 16 * MIB);
    assert_eq!(all[1]["differs_at"], 16 * MIB);
    assert!(
        used(&bench, "volume") <= 45 * MIB,
        "{}",
        used(&bench, "volume")
    );
    refused(
        &bench,
        &["dedupe", "--range", "0:40m:0", "volume:/a", "volume:/b"],
        "ends behind",
    );
    bench.run(&["dedupe", "--range", "1m:1m:1m", "volume:/a", "volume:/c"]);
    bench.check();
    for (name, content) in [("a", &bytes), ("b", &bytes), ("c", &other)] {
        let output = bench.try_run(&["cat", &format!("volume:/{name}")]);
        assert!(output.stdout == *content, "{name}");
    }
}

/// A program that another test is about to start holds this test's open files
/// until its exec.
fn unmount(bench: &Bench) {
    for _ in 0..100 {
        let output = bench.try_run(&["umount", "mnt"]);
        if !said(&output).contains("in use") {
            assert!(output.status.success(), "{}", said(&output));
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    bench.run(&["umount", "mnt"]);
}

/// A file in many pieces.
fn scatter(path: &Path, other: &Path) {
    use std::os::unix::fs::FileExt;
    let (file, filler) = (fs::File::create(path), fs::File::create(other));
    let (file, filler) = (file.expect("a file"), filler.expect("a file"));
    for at in 0..100 {
        for file in [&file, &filler] {
            file.write_all_at(&[at as u8; 4096], at * 4096)
                .expect("written");
            file.sync_all().expect("synced");
        }
    }
}

#[test]
fn a_volume_is_defragmented_and_sharing_told() {
    let bench = Bench::new();
    if !can_mount() {
        return;
    }
    let mount = bench.mount("rw");
    fs::create_dir(bench.path("mnt/dir")).expect("a directory");
    scatter(&bench.path("mnt/dir/file"), &bench.path("mnt/filler"));
    // A file with two names is one file.
    fs::hard_link(bench.path("mnt/dir/file"), bench.path("mnt/dir/again")).expect("a link");
    bench.run(&["subvolume", "snapshot", "-r", "mnt", "mnt/snapshot"]);
    let planned = bench.run(&["fi", "defrag", "-n", "--unshare", "-r", "mnt/dir"]);
    assert!(
        planned.contains("to rewrite: 400.00KiB in 100 extents of 1 files"),
        "{planned}"
    );
    unmount(&bench);
    drop(mount);
    refused(&bench, &["filesystem", "defragment", "volume:/"], "take -r");
    let kept = bench.run(&["filesystem", "defragment", "-r", "volume:/dir"]);
    assert!(kept.contains("to rewrite: 0.00B"), "{kept}");
    assert!(kept.contains("shared: 400.00KiB more"), "{kept}");
    let planned = bench.run(&["fi", "defrag", "-n", "--unshare", "-r", "volume:/dir"]);
    assert!(
        planned.contains("to rewrite: 400.00KiB in 100 extents of 1 files"),
        "{planned}"
    );
    assert!(planned.contains("get a copy of their own"), "{planned}");
    let before = used(&bench, "volume");
    let words = [
        "fi",
        "defrag",
        "--unshare",
        "--json",
        "-c",
        "zstd:9",
        "volume:/dir/file",
    ];
    let done: serde_json::Value = serde_json::from_str(&bench.run(&words)).expect("JSON");
    assert_eq!(done["done"]["rewritten_bytes"], 409_600);
    assert!(used(&bench, "volume") > before);
    let again = bench.run(&["fi", "defrag", "volume:/dir/file"]);
    assert!(again.contains("to rewrite: 0.00B"), "{again}");
    bench.check();
    refused(
        &bench,
        &["fi", "defrag", "volume:/snapshot/filler", "--unshare"],
        "read-only",
    );
}

#[test]
fn cp_shares_on_a_mount_and_so_do_our_words() {
    let bench = Bench::new();
    if !can_mount() {
        return;
    }
    let mount = bench.mount("rw");
    let at = bench.path("mnt");
    let bytes = noise(4, 8 * MIB + 1000);
    fs::write(at.join("a"), &bytes).expect("a file");
    must("sync", &["a"], &at);
    bench.run(&["filesystem", "usage", "mnt"]);
    must("cp", &["--reflink=auto", "a", "auto"], &at);
    must("cp", &["a", "plain"], &at);
    let always = program("cp", &["--reflink=always", "a", "always"], &at);
    assert!(!always.status.success());
    assert!(
        said(&always).contains("Operation not supported"),
        "{}",
        said(&always)
    );
    bench.run(&["subvolume", "create", "mnt/sub"]);
    bench.run(&["reflink", "mnt/a", "mnt/sub/b"]);
    fs::create_dir(at.join("dir")).expect("a directory");
    fs::write(at.join("dir/small"), "inline").expect("a file");
    must("cp", &["a", "dir/a"], &at);
    bench.run(&["reflink", "-r", "mnt/dir", "mnt/sub/dir"]);
    bench.run(&["reflink", "--range", "1m:1m:0", "mnt/a", "mnt/dir/a"]);
    refused(
        &bench,
        &["reflink", "--range", "1m:1000:0", "mnt/a", "mnt/dir/a"],
        "a range begins with a sector",
    );
    assert!(fs::read(at.join("sub/b")).expect("a file") == bytes);
    assert_eq!(
        fs::read(at.join("sub/dir/small")).expect("a file"),
        b"inline"
    );
    let changed = fs::read(at.join("dir/a")).expect("a file");
    assert!(changed[..MIB] == bytes[MIB..2 * MIB] && changed[MIB..] == bytes[MIB..]);
    // Data without checksums cannot be shared with data that have them.
    fs::write(at.join("nocow"), "").expect("a file");
    must("chattr", &["+C", "nocow"], &at);
    refused(
        &bench,
        &["reflink", "--range", "0:1m:0", "mnt/a", "mnt/nocow"],
        "or none (chattr +C)",
    );
    // Copied, then shared again.
    must("dd", &["if=a", "of=copied", "bs=1M", "status=none"], &at);
    fs::write(at.join("differs"), noise(9, 8 * MIB)).expect("a file");
    let text = bench.run(&["dedupe", "--json", "mnt/a", "mnt/copied", "mnt/differs"]);
    let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(all[0]["deduped"], 8 * MIB + 1000);
    assert_eq!(all[1]["differs_at"], 0);
    fs::remove_file(at.join("differs")).expect("removed");
    unmount(&bench);
    drop(mount);
    assert!(
        used(&bench, "volume") < 9 * MIB,
        "{}",
        used(&bench, "volume")
    );
    bench.check();
}

#[test]
fn btrfs_progs_and_ours_defragment_on_a_mount() {
    let bench = Bench::new();
    if !can_mount() {
        return;
    }
    let mount = bench.mount("rw");
    let at = bench.path("mnt");
    scatter(&at.join("file"), &at.join("filler"));
    let before = fs::read(at.join("file")).expect("a file");
    bench.run(&["subvolume", "snapshot", "mnt", "mnt/snapshot"]);
    let plan = bench.run(&["fi", "defrag", "-n", "-r", "mnt"]);
    assert!(plan.contains("shared: 800.00KiB more"), "{plan}");
    must(
        "btrfs",
        &["filesystem", "defragment", "-r", "-czstd", "file"],
        &at,
    );
    must("btrfs", &["filesystem", "defragment", "filler"], &at);
    assert!(fs::read(at.join("file")).expect("a file") == before);
    let words = ["fi", "defrag", "--json", "mnt/snapshot/file"];
    let done: serde_json::Value = serde_json::from_str(&bench.run(&words)).expect("JSON");
    assert_eq!(
        done["done"]["rewritten_bytes"], 409_600,
        "nobody else has it now"
    );
    unmount(&bench);
    drop(mount);
    bench.check();
    let plan = bench.run(&["fi", "defrag", "-n", "--unshare", "-r", "volume:/"]);
    assert!(plan.contains("to rewrite: 0.00B"), "{plan}");
}

#[test]
fn others_may_not_defragment_a_mount_nor_share_what_they_cannot_write() {
    if !can_mount() || !is_root() {
        return;
    }
    let bench = Bench::new();
    let mount = bench.mount("allow_other");
    let at = bench.path("mnt");
    must("chmod", &["755", "."], &bench.path(""));
    for name in ["a", "b"] {
        fs::write(at.join(name), noise(1, MIB)).expect("a file");
    }
    must("chmod", &["755", "."], &at);
    let own = fs::copy(BINARY, bench.path("butterfs")).map(|_| bench.path("butterfs"));
    let own = own.expect("a copy");
    let as_other = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        let output = command
            .arg(&own)
            .args(words)
            .current_dir(bench.path(""))
            .output();
        output.expect("setpriv runs")
    };
    let output = as_other(&["fi", "defrag", "mnt/a"]);
    assert!(
        said(&output).contains("only its owner"),
        "{}",
        said(&output)
    );
    let output = as_other(&["dedupe", "mnt/a", "mnt/b"]);
    assert!(
        said(&output).contains("Permission denied"),
        "{}",
        said(&output)
    );
    unmount(&bench);
    drop(mount);
}

#[test]
fn the_kernel_is_asked_on_its_mounts() {
    let bench = Bench::new();
    let done = bench.with_kernel(|mount| {
        let path = |name: &str| mount.join(name).display().to_string();
        let bytes = noise(5, 4 * MIB + 5);
        fs::write(mount.join("a"), &bytes).expect("a file");
        fs::write(mount.join("b"), &bytes).expect("a file");
        must("sync", &["."], mount);
        bench.run(&["reflink", &path("a"), &path("c")]);
        fs::create_dir(mount.join("dir")).expect("a directory");
        must("cp", &["--reflink=never", "a", "dir/a"], mount);
        bench.run(&["reflink", "-r", &path("dir"), &path("dir2")]);
        bench.run(&["dedupe", &path("a"), &path("b"), &path("dir/a")]);
        assert!(fs::read(mount.join("dir2/a")).expect("a file") == bytes);
        // What is shared is left alone, and the command says so.
        let left = said(&bench.try_run(&["fi", "defrag", &path("a")]));
        assert!(left.contains("--unshare"), "{left}");
        bench.run(&["fi", "defrag", "--unshare", "-c", "lzo", &path("c")]);
        assert!(fs::read(mount.join("c")).expect("a file") == bytes);
    });
    if done {
        // The data of a, shared with b and dir/a; those of dir2/a, unchanged;
        // those of c, rewritten.
        assert!(
            used(&bench, "volume") < 13 * MIB,
            "{}",
            used(&bench, "volume")
        );
        bench.check();
    }
}

#[test]
fn subvolumes_in_one_another_are_deleted_on_a_mount() {
    let bench = Bench::new();
    if !can_mount() {
        return;
    }
    let mount = bench.mount("rw");
    bench.run(&["subvolume", "create", "mnt/top"]);
    fs::create_dir_all(bench.path("mnt/top/dir/er")).expect("directories");
    for name in [
        "top/one",
        "top/dir/er/two",
        "top/dir/er/two/three",
        "top/one/four",
    ] {
        bench.run(&["subvolume", "create", &format!("mnt/{name}")]);
        fs::write(bench.path("mnt").join(name).join("file"), noise(1, 5000)).expect("a file");
    }
    // More than one answer holds.
    for number in 0..300 {
        fs::create_dir_all(bench.path("mnt/top/many")).expect("a directory");
        bench.run(&["subvolume", "create", &format!("mnt/top/many/{number}")]);
    }
    refused(
        &bench,
        &["subvolume", "delete", "mnt/top"],
        "other subvolumes are in it",
    );
    let told = bench.run(&["subvolume", "delete", "--recursive", "mnt/top"]);
    assert_eq!(told.lines().count(), 305, "{told}");
    assert!(!bench.path("mnt/top").exists());
    unmount(&bench);
    drop(mount);
    assert_eq!(bench.run(&["subvolume", "list", "volume"]), "");
    bench.check();
}

#[test]
fn deleted_subvolumes_are_listed_until_they_are_cleaned() {
    let bench = Bench::new();
    bench.run(&["subvolume", "create", "volume:/gone"]);
    fs::write(bench.path("file"), noise(1, MIB)).expect("a file");
    bench.run(&["copy", "-q", "file", "volume:/gone/"]);
    assert_eq!(bench.run(&["subvolume", "list", "-d", "volume"]), "");
    bench.run(&["subvolume", "delete", "--no-wait", "volume:/gone"]);
    let listed = bench.run(&["subvolume", "list", "-d", "volume"]);
    assert!(listed.contains("path DELETED"), "{listed}");
    assert_eq!(bench.run(&["subvolume", "list", "volume"]), "");
    bench.run(&["subvolume", "sync", "volume"]);
    assert_eq!(bench.run(&["subvolume", "list", "-d", "volume"]), "");
    bench.check();
}

#[test]
fn what_is_mounted_is_busy() {
    let bench = Bench::new();
    if !can_mount() {
        return;
    }
    let text = bench.run(&["subvolume", "create", "volume:/home"]);
    assert!(text.contains("home"), "{text}");
    let mount = bench.mount("subvol=home");
    refused(
        &bench,
        &["subvolume", "delete", "-i", "256", "mnt"],
        "it is mounted; unmount it first",
    );
    unmount(&bench);
    drop(mount);
}
