//! `butterfs mkfs --rootdir`: a new volume with the files of a directory.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use support::{BINARY, Bench, is_root, said};

/// What is told of a file: type and permissions, owner, time of the last change,
/// and content.
type Facts = (u32, u32, i64, Vec<u8>);

/// All below a directory, by path.
fn tree(directory: &Path) -> BTreeMap<String, Facts> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_path_buf()];
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(&path).expect("metadata");
        let mut content = Vec::new();
        if metadata.is_dir() {
            for entry in fs::read_dir(&path).expect("a directory") {
                waiting.push(entry.expect("an entry").path());
            }
        } else if metadata.is_symlink() {
            let target = fs::read_link(&path).expect("a target");
            content = target.into_os_string().into_encoded_bytes();
        } else if metadata.is_file() {
            content = fs::read(&path).expect("content");
        }
        let inner = path.strip_prefix(directory).expect("a path below");
        let facts = (metadata.mode(), metadata.uid(), metadata.mtime(), content);
        found.insert(inner.display().to_string(), facts);
    }
    found
}

/// A directory with files of all kinds that a normal user can make.
fn files(bench: &Bench) {
    let at = |name: &str| bench.path("files").join(name);
    for directory in ["db", "sub/inner", "empty"] {
        fs::create_dir_all(at(directory)).expect("a directory");
    }
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7 % 251) as u8).collect();
    fs::write(at("db/data"), &bytes).expect("a file");
    fs::write(at("sub/inner/small"), "small").expect("a file");
    fs::hard_link(at("db/data"), at("db/again")).expect("a name");
    fs::hard_link(at("db/data"), at("sub/inner/linked")).expect("a name");
    std::os::unix::fs::symlink("db/data", at("link")).expect("a link");
    let holes = fs::File::create(at("holes")).expect("a file");
    holes.set_len(40 << 20).expect("a size");
    let fifo = Command::new("mkfifo").arg(at("fifo")).status();
    assert!(fifo.expect("mkfifo runs").success());
    fs::set_permissions(at("sub"), fs::Permissions::from_mode(0o711)).expect("permissions");
    let touched = Command::new("touch")
        .args(["-d", "2001-02-03 04:05:06"])
        .args([at("sub"), at("db/data"), at("")])
        .status();
    assert!(touched.expect("touch runs").success());
}

/// The volume is clean, and holds what the directory holds.
fn holds_the_files(bench: &Bench, words: &[&str]) {
    bench.check();
    let out = bench.path("out");
    let source = "volume:/.";
    bench.run(&[&["copy", "-q", "--subvolid", "5"], words, &[source, "out"]].concat());
    let (expected, mut found) = (tree(&bench.path("files")), tree(&out));
    let inner = found.keys().any(|path| path == "files");
    assert!(!inner, "the directory itself is copied");
    if let (Some(root), Some(own)) = (found.get_mut(""), expected.get("")) {
        // As the other suites: the destination's own time is the copy's.
        root.2 = own.2;
    }
    assert!(
        expected == found,
        "{:?}\n{:?}",
        expected.keys(),
        found.keys()
    );
    let fifo = fs::symlink_metadata(out.join("fifo")).expect("metadata");
    assert!(fifo.file_type().is_fifo());
    fs::remove_dir_all(out).expect("it goes");
}

#[test]
fn a_new_volume_holds_the_files() {
    let bench = Bench::new();
    files(&bench);
    fs::remove_file(bench.path("volume")).expect("it goes");
    let said = bench.run(&["mkfs", "--rootdir", "files", "volume"]);
    assert!(said.contains("Rootdir from:       files"), "{said}");
    holds_the_files(&bench, &[]);

    // On another kind of volume, in a file that is too small at first.
    fs::write(bench.path("volume"), vec![0; 1 << 20]).expect("a file");
    let options = ["-n", "4k", "--csum", "xxhash", "-d", "dup", "-m", "single"];
    bench.run(&[&["mkfs", "-q", "-r", "files"], &options[..], &["volume"]].concat());
    holds_the_files(&bench, &[]);
}

#[test]
fn subvolumes_flags_compression_and_the_least_size() {
    let bench = Bench::new();
    files(&bench);
    let large = fs::metadata(bench.path("volume")).expect("metadata").len();
    let mut words = vec!["mkfs", "-q", "-f", "-r", "files", "--shrink"];
    words.extend(["--compress", "zstd:5", "--inode-flags", "nodatacow:db"]);
    words.extend(["--subvol", "ro:sub", "-u", "default:sub/inner", "volume"]);
    bench.run(&words);
    let small = fs::metadata(bench.path("volume")).expect("metadata");
    assert!(small.len() < large / 2, "{} bytes", small.len());
    holds_the_files(&bench, &[]);
    let listed = bench.run(&["subvolume", "list", "volume"]);
    assert!(listed.contains("path sub\n"), "{listed}");
    assert!(listed.contains("path sub/inner\n"), "{listed}");
    let default = bench.run(&["subvolume", "get-default", "volume"]);
    assert!(default.contains("path sub/inner"), "{default}");
    let property = bench.run(&["property", "get", "volume:/sub", "ro"]);
    assert_eq!(property.trim(), "ro=true");
    bench.with_kernel(|point| {
        let written = fs::write(point.join("new"), "what the kernel writes");
        written.expect("the kernel writes");
    });
    bench.check();
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let bench = Bench::new();
    files(&bench);
    let before = fs::read(bench.path("volume")).expect("a volume");
    let refused = |words: &[&str], part: &str| {
        let output = bench.try_run(&[&["mkfs", "-q", "-f"], words, &["volume"]].concat());
        assert!(!output.status.success(), "{words:?}");
        assert!(said(&output).contains(part), "{words:?}: {}", said(&output));
        let now = fs::read(bench.path("volume")).expect("a volume");
        assert!(now == before, "{words:?}: it was written");
    };
    refused(&["-r", "nothing"], "No such file");
    refused(&["-r", "files/link"], "is no directory");
    refused(
        &["-r", "files", "--subvol", "fifo"],
        "cannot become a subvolume",
    );
    refused(
        &["-r", "files", "--subvol", "../x"],
        "leads out of the volume",
    );
    refused(
        &["-r", "files", "--inode-flags", "nodatacow:none"],
        "No such file",
    );
    refused(
        &["-r", "files", "--inode-flags", "immutable:db"],
        "no flag immutable",
    );
    refused(&["-r", "files", "--compress", "gzip"], "zlib, lzo, zstd");
    refused(&["--shrink"], "--rootdir");
    refused(&["-r", "."], "copied into itself");
    let two = ["-r", "files", "-u", "default:db", "-u", "default:sub"];
    refused(&two, "one default subvolume");
}

#[test]
fn a_volume_that_is_too_small_is_said_and_a_new_file_goes() {
    let bench = Bench::new();
    let directory = bench.path("files");
    fs::create_dir(&directory).expect("a directory");
    let noise: Vec<u8> = (0..40_000_000_u64)
        .map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
        .collect();
    for number in 0..5 {
        fs::write(directory.join(number.to_string()), &noise).expect("a file");
    }
    let output = bench.try_run(&["mkfs", "-q", "-b", "128m", "-r", "files", "new.img"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("no space left"), "{}", said(&output));
    assert!(!bench.path("new.img").exists(), "a half volume is left");
    assert!(!said(&output).contains("unfinished"), "{}", said(&output));
    // A file that was there stays, and holds a part.
    let old = fs::File::create(bench.path("old.img")).expect("a file");
    old.set_len(128 << 20).expect("a size");
    let output = bench.try_run(&["mkfs", "-q", "-b", "128m", "-r", "files", "old.img"]);
    assert!(!output.status.success());
    let told = said(&output);
    assert!(
        told.contains("old.img holds an unfinished volume"),
        "{told}"
    );
    // Without -b it may grow, and then the files have room.
    bench.run(&["mkfs", "-q", "-f", "-r", "files", "old.img"]);
    bench.run(&["check", "old.img"]);
    let names = bench.run(&["ls", "old.img:/"]);
    // The host lists its directories in an order of its own.
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["0", "1", "2", "3", "4"]);
}

/// Without --keep-going a volume has all files, or is not made.
#[test]
fn what_cannot_be_read_is_left_out_only_when_asked_for() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("files/closed")).expect("a directory");
    for name in ["a", "secret", "z"] {
        fs::write(bench.path("files").join(name), name).expect("a file");
    }
    for (name, mode) in [("", 0o777), ("files/secret", 0), ("files/closed", 0)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(bench.path(name), mode).expect("a mode");
    }
    let mkfs = |words: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["mkfs", "-q", "-r", "files"]).args(words);
        if is_root() {
            command.uid(65534).gid(65534);
        }
        let output = command.current_dir(bench.path("")).arg("new").output();
        output.expect("it runs")
    };
    let refused = mkfs(&["-b", "200m"]);
    assert!(!refused.status.success());
    assert!(!bench.path("new").exists(), "a half volume is left");
    let most = mkfs(&["--keep-going"]);
    let told = said(&most);
    assert_eq!(most.status.code(), Some(1), "{told}");
    for name in ["secret", "closed"] {
        let named = format!("left out: files/{name}: Permission denied");
        assert!(told.contains(&named), "{told}");
    }
    assert_eq!(bench.run(&["ls", "new:/"]), "a\nz\n");
    bench.run(&["check", "new"]);
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(bench.path("files/closed"), mode).expect("a mode");
}

/// A file in which the files have room keeps its size.
#[test]
fn a_file_that_is_large_enough_is_not_enlarged() {
    let bench = Bench::new();
    files(&bench);
    for size in [150 << 20, 200 << 20] {
        let file = fs::File::create(bench.path("volume")).expect("a file");
        file.set_len(size).expect("a size");
        bench.run(&["mkfs", "-q", "-r", "files", "volume"]);
        let found = fs::metadata(bench.path("volume")).expect("metadata").len();
        assert_eq!(found, size);
        holds_the_files(&bench, &[]);
    }
}
