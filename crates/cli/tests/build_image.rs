//! `butterfs build`, judged by the kernel, `btrfs check` and itself: the same
//! files give the same bytes.

#[path = "build_image/archives.rs"]
mod archives;
#[path = "build_image/oci.rs"]
mod oci;
#[path = "build_image/sends.rs"]
mod sends;
mod support;

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::{BINARY, Bench, said};

/// Runs `butterfs build` with a fixed SOURCE_DATE_EPOCH.
fn build(bench: &Bench, words: &[&str]) -> Output {
    Command::new(BINARY)
        .arg("build")
        .args(words)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .current_dir(bench.path(""))
        .output()
        .expect("it starts")
}

fn built(bench: &Bench, words: &[&str]) -> String {
    let output = build(bench, words);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    said(&output)
}

fn check(bench: &Bench, image: &str) {
    bench.run(&["check", "--check-data-csum", image]);
    for mode in ["--mode=original", "--mode=lowmem"] {
        let checked = Command::new("btrfs")
            .args(["check", mode, "--check-data-csum"])
            .arg(bench.path(image))
            .output();
        match checked {
            Ok(output) => assert!(output.status.success(), "{mode}: {}", said(&output)),
            Err(_) => println!("skipped: btrfs check is not installed"),
        }
    }
}

/// A kernel mount of an image; unmounts when dropped.
struct Kernel(PathBuf);

impl Kernel {
    fn mount(bench: &Bench, image: &str, options: &str) -> Option<Self> {
        if !support::is_root() {
            println!("skipped: kernel mounts need root");
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            return None;
        }
        let point = bench.path("kernel");
        fs::create_dir_all(&point).expect("a mountpoint");
        let output = Command::new("mount")
            .args(["-o", &format!("loop,{options}")])
            .args([bench.path(image), point.clone()])
            .output()
            .expect("mount runs");
        assert!(output.status.success(), "{}", said(&output));
        Some(Self(point))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn run(program: &str, words: &[&str], directory: &Path) -> String {
    let output = Command::new(program)
        .args(words)
        .current_dir(directory)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {words:?}: {}",
        said(&output)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Bytes that do not compress, and are the same each time.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Files of all kinds and sizes around every border.
fn sample(top: &Path) {
    for directory in ["empty", "many", "home/ann", "var/log"] {
        fs::create_dir_all(top.join(directory)).expect("a directory");
    }
    for length in [
        0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 131_071, 131_072, 131_073, 400_000,
    ] {
        fs::write(
            top.join(format!("text{length}")),
            &"text ".repeat(length).as_bytes()[..length],
        )
        .expect("a file");
        fs::write(top.join(format!("noise{length}")), noise(length)).expect("a file");
    }
    // More names than a leaf holds, some with one hash value's neighbours.
    for number in 0..1500 {
        fs::write(top.join(format!("many/{number}")), format!("{number}\n")).expect("a file");
    }
    fs::write(top.join("home/ann/one"), "1\n").expect("a file");
    for number in 0..300 {
        let name = format!("home/ann/{}{number}", "x".repeat(100));
        fs::hard_link(top.join("home/ann/one"), top.join(name)).expect("a link");
    }
    symlink("home/ann/one", top.join("link")).expect("a link");
    let hole = fs::File::create(top.join("hole")).expect("a file");
    hole.set_len(3 << 20).expect("its length");
    std::os::unix::fs::FileExt::write_all_at(&hole, b"end", (3 << 20) - 3).expect("data");
    fs::set_permissions(top.join("text1"), fs::Permissions::from_mode(0o4711)).expect("a mode");
    run("mkfifo", &["pipe"], top);
    run("setfattr", &["-n", "user.note", "-v", "kept", "link"], top);
}

#[test]
fn the_same_files_give_the_same_bytes() {
    let bench = Bench::new();
    let top = bench.path("sample");
    fs::create_dir(&top).expect("a directory");
    sample(&top);
    // More names of attributes than are asked for at first.
    for number in 0..20 {
        let name = format!("user.{}{number}", "n".repeat(30));
        run("setfattr", &["-n", &name, "-v", "x", "text4096"], &top);
    }
    // Another order, no holes, other access times: the files are the same.
    let words = [
        "-cf",
        "sample.tar",
        "--sort=name",
        "--xattrs",
        "--posix",
        "-C",
        "sample",
        ".",
    ];
    run("tar", &words, &bench.path(""));
    fs::create_dir(bench.path("copy")).expect("a directory");
    run(
        "tar",
        &["-xpf", "sample.tar", "--xattrs", "-C", "copy"],
        &bench.path(""),
    );
    run("gzip", &["-k", "sample.tar"], &bench.path(""));
    for compress in [None, Some("zstd:3"), Some("lzo"), Some("zlib")] {
        let mut common = vec![
            "--seed",
            "s",
            "-q",
            "-f",
            "--subvolume",
            "home",
            "--subvolume",
            "var:ro",
        ];
        common.extend(compress.iter().flat_map(|method| ["--compress", method]));
        let image = |from: &str, more: &[&str]| {
            built(
                &bench,
                &[&["-o", "image", "--from", from], &common[..], more].concat(),
            );
            fs::read(bench.path("image")).expect("the image")
        };
        let first = image("sample", &["--threads", "1"]);
        assert!(
            first == image("sample", &["--threads", "2"]),
            "threads, {compress:?}"
        );
        assert!(first == image("copy", &[]), "a copy, {compress:?}");
        assert!(
            first == image("sample.tar", &[]),
            "an archive, {compress:?}"
        );
        assert!(
            first == image("sample.tar.gz", &[]),
            "a compressed one, {compress:?}"
        );
        check(&bench, "image");
        if let Some(mounted) = Kernel::mount(&bench, "image", "ro") {
            let here = mounted.0.to_str().expect("a path");
            run(
                "diff",
                &["-r", "--no-dereference", "-x", "pipe", "sample", here],
                &bench.path(""),
            );
            let of = |top: &Path, path: &str| fs::symlink_metadata(top.join(path)).expect("it");
            for path in ["text1", "hole", "link", "home/ann/one", "pipe", "var"] {
                let facts = |of: fs::Metadata| (of.mode(), of.uid(), of.gid(), of.size());
                let (ours, theirs) = (of(&mounted.0, path), of(&top, path));
                let is_directory = theirs.is_dir();
                let (ours, theirs) = (facts(ours), facts(theirs));
                assert_eq!(
                    (ours.0, ours.1, ours.2),
                    (theirs.0, theirs.1, theirs.2),
                    "{path}"
                );
                assert!(is_directory || ours.3 == theirs.3, "{path}");
            }
            let of_one = of(&mounted.0, "home/ann/one");
            assert_eq!(of_one.nlink(), 301);
            assert_eq!(
                of(&mounted.0, "text1").mtime(),
                1_700_000_000,
                "a time that is later"
            );
            assert!(of(&mounted.0, "hole").blocks() < 16, "a hole is none");
            let note = run(
                "getfattr",
                &["--only-values", "-n", "user.note", "link"],
                &mounted.0,
            );
            assert_eq!(note, "kept");
            let readonly = run("btrfs", &["property", "get", "-ts", "var"], &mounted.0);
            assert_eq!(readonly, "ro=true");
        }
    }
}

#[test]
fn the_kernel_writes_to_an_image_and_enlarges_it() {
    let bench = Bench::new();
    let top = bench.path("sample");
    fs::create_dir(&top).expect("a directory");
    sample(&top);
    built(
        &bench,
        &[
            "-o",
            "image",
            "--from",
            "sample",
            "--compress",
            "zstd",
            "-L",
            "root",
        ],
    );
    let least = fs::metadata(bench.path("image")).expect("it").len();
    assert!(least < 40 << 20, "{least} bytes");
    if let Some(mounted) = Kernel::mount(&bench, "image", "rw") {
        fs::remove_file(mounted.0.join("noise400000")).expect("it goes");
        fs::remove_dir_all(mounted.0.join("many")).expect("they go");
    }
    check(&bench, "image");
    let file = fs::File::options().write(true).open(bench.path("image"));
    file.expect("the image")
        .set_len(512 << 20)
        .expect("its length");
    if let Some(mounted) = Kernel::mount(&bench, "image", "rw") {
        let here = mounted.0.to_str().expect("a path");
        run(
            "btrfs",
            &["filesystem", "resize", "max", here],
            &bench.path(""),
        );
        fs::write(mounted.0.join("new"), noise(20 << 20)).expect("there is room");
        run("sync", &["-f", here], &bench.path(""));
        run("btrfs", &["scrub", "start", "-B", here], &bench.path(""));
    }
    check(&bench, "image");
    bench.run(&["copy", "-q", "sample/text4097", "image:/again"]);
    check(&bench, "image");
    // A size that was asked for.
    built(
        &bench,
        &[
            "-o", "large", "--from", "sample", "--size", "1g", "-m", "single",
        ],
    );
    assert_eq!(
        fs::metadata(bench.path("large")).expect("it").len(),
        1 << 30
    );
    bench.run(&["copy", "-q", "sample/text4097", "large:/again"]);
    check(&bench, "large");
    let small = build(&bench, &["-o", "small", "--from", "sample", "--size", "1m"]);
    assert!(!small.status.success());
    assert!(said(&small).contains("were asked for"), "{}", said(&small));
    assert!(!bench.path("small").exists(), "half of an image is left");
}

/// Names with one hash are one item, which a node has to hold.
#[test]
fn names_of_one_hash() {
    let bench = Bench::new();
    // XORed into a name at any place, it keeps the CRC-32C: the polynomial.
    let neutral = ((0x82f6_3b78_u64 << 1) | 1).to_le_bytes();
    let name = |bits: usize| {
        let mut name = [b'm'; 240];
        for place in (0..7).filter(|place| bits >> place & 1 == 1) {
            let there = name[place * 6..].iter_mut();
            there
                .zip(&neutral[..5])
                .for_each(|(byte, bit)| *byte ^= bit);
        }
        name.to_vec()
    };
    fs::create_dir(bench.path("tree")).expect("a directory");
    let make = |bits: usize| {
        let name = std::ffi::OsString::from_vec(name(bits));
        fs::write(bench.path("tree").join(name), "content").expect("a file");
    };
    (0..60).for_each(make);
    built(&bench, &["-o", "fits", "--from", "tree"]);
    check(&bench, "fits");
    (60..61).for_each(make);
    let refused = build(&bench, &["-o", "large", "--from", "tree"]);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("same hash"), "{}", said(&refused));
    assert!(!bench.path("large").exists());
}

#[test]
fn owners_sources_and_the_manifest() {
    let bench = Bench::new();
    fs::create_dir(bench.path("base")).expect("a directory");
    fs::write(bench.path("base/file"), "base\n").expect("a file");
    fs::write(bench.path("base/both"), "base\n").expect("a file");
    fs::create_dir(bench.path("over")).expect("a directory");
    fs::write(bench.path("over/both"), "over\n").expect("a file");
    let own = fs::metadata(bench.path("base/file")).expect("it");
    let map = format!("{}:7:1", own.uid());
    let words = [
        "-o",
        "image",
        "--from",
        "base",
        "--from",
        "over",
        "--manifest",
        "list.json",
    ];
    let mapped = [
        &words[..],
        &["--uid-map", &map, "--subvolume", "new/sub:ro:default"],
    ]
    .concat();
    if own.uid() == own.gid() {
        built(&bench, &mapped);
        let long = bench.run(&["ls", "-l", "--subvolid", "5", "image:/both"]);
        assert!(long.contains("    7     7 "), "{long}");
        assert_eq!(
            bench.run(&["cat", "--subvolid", "5", "image:/both"]),
            "over\n"
        );
        let info = bench.run(&["info", "image"]);
        assert!(info.contains("a mount shows new/sub (256)"), "{info}");
        let list = fs::read_to_string(bench.path("list.json")).expect("the manifest");
        assert!(list.contains("\"path\": \"/both\""), "{list}");
        check(&bench, "image");
    }
    let refused = |words: &[&str], text: &str| {
        let output = build(&bench, words);
        assert!(!output.status.success(), "{words:?}");
        assert!(said(&output).contains(text), "{words:?}: {}", said(&output));
    };
    refused(
        &["-o", "x", "--from", "base", "--uid-map", "4000000:0:1"],
        "--uid-map",
    );
    refused(&["-o", "x", "--from", "nosuch"], "nosuch");
    refused(&["-o", "volume", "--from", "base"], "-f replaces it");
    refused(&["-o", "mnt", "--from", "base"], "no regular file");
    refused(
        &["-o", "x", "--from", "base", "--compress", "gzip"],
        "no compression gzip",
    );
    // A program that uses the old file would keep writing into a file without a
    // name.
    let old = fs::File::open(bench.path("volume")).expect("it");
    rustix::fs::flock(&old, rustix::fs::FlockOperation::LockShared).expect("a lock");
    refused(&["-f", "-o", "volume", "--from", "base"], "is in use");
    drop(old);
    built(&bench, &["-f", "-o", "volume", "--from", "base"]);
    assert_eq!(bench.run(&["cat", "volume:/file"]), "base\n");
    assert!(!bench.path("x").exists());
}

/// With --keep-going, what cannot be read is named, and the image has all else.
#[test]
fn what_cannot_be_read_is_left_out_of_an_image() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("tree/closed")).expect("a directory");
    fs::write(bench.path("tree/closed/inner"), "inner\n").expect("a file");
    for name in ["a", "secret", "z"] {
        fs::write(bench.path("tree").join(name), noise(5000)).expect("a file");
    }
    for (name, mode) in [("", 0o777), ("tree/secret", 0), ("tree/closed", 0)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(bench.path(name), mode).expect("a mode");
    }
    let as_user = |words: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("build").args(words).current_dir(bench.path(""));
        if support::is_root() {
            command.uid(65534).gid(65534);
        }
        command.output().expect("it starts")
    };
    let words = ["-q", "-o", "part.img", "--from", "tree"];
    let refused = as_user(&words);
    assert!(!refused.status.success());
    assert!(!bench.path("part.img").exists());
    let most = as_user(&[&words[..], &["--keep-going"]].concat());
    let told = said(&most);
    assert_eq!(most.status.code(), Some(1), "{told}");
    for name in ["secret", "closed"] {
        let named = format!("left out: tree/{name}: Permission denied");
        assert!(told.contains(&named), "{told}");
    }
    assert!(
        told.contains("2 files or directories are left out; all else is in the image"),
        "{told}"
    );
    check(&bench, "part.img");
    assert_eq!(bench.run(&["ls", "part.img:/"]), "a\nclosed\nz\n");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(bench.path("tree/closed"), mode).expect("a mode");
}
