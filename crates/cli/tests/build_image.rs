//! `butterfs build`, judged by the kernel, `btrfs check` and itself: the same
//! files give the same bytes.

mod support;

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
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

/// Blobs by the digests of their bytes.
fn blob(layout: &Path, bytes: &[u8]) -> String {
    let path = layout.join("blobs/sha256/new");
    fs::write(&path, bytes).expect("a blob");
    let sum = run("sha256sum", &["new"], &layout.join("blobs/sha256"));
    let digest = sum.split(' ').next().expect("a digest").to_owned();
    fs::rename(&path, layout.join("blobs/sha256").join(&digest)).expect("its name");
    format!("\"digest\": \"sha256:{digest}\", \"size\": {}", bytes.len())
}

/// An OCI layout of layers that are directories here.
fn layout(bench: &Bench, name: &str, layers: &[&str]) -> PathBuf {
    let layout = bench.path(name);
    fs::create_dir_all(layout.join("blobs/sha256")).expect("directories");
    fs::write(
        layout.join("oci-layout"),
        "{\"imageLayoutVersion\": \"1.0.0\"}",
    )
    .expect("a file");
    let mut described = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let tar = bench.path("layer.tar");
        run(
            "tar",
            &["-cf", "layer.tar", "--sort=name", "-C", layer, "."],
            &bench.path(""),
        );
        let (program, kind) = if number % 2 == 0 {
            ("gzip", "gzip")
        } else {
            ("cat", "")
        };
        let packed = Command::new(program).arg("-c").arg(&tar).output();
        let packed = match program {
            "cat" => fs::read(&tar).expect("the layer"),
            _ => packed.expect("it runs").stdout,
        };
        let media = format!("application/vnd.oci.image.layer.v1.tar+{kind}");
        let blob = blob(&layout, &packed);
        described.push(format!("{{\"mediaType\": \"{media}\", {blob}}}"));
    }
    let manifest = format!(
        "{{\"schemaVersion\": 2, \"layers\": [{}]}}",
        described.join(",")
    );
    let manifest = blob(&layout, manifest.as_bytes());
    let index = format!("{{\"schemaVersion\": 2, \"manifests\": [{{{manifest}}}]}}");
    fs::write(layout.join("index.json"), index).expect("a file");
    layout
}

#[test]
fn layers_of_an_oci_image() {
    let bench = Bench::new();
    let write = |path: &str, content: &str| {
        let path = bench.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, content).expect("a file");
    };
    let large = "large ".repeat(100_000);
    write("one/usr/lib/a", "one\n");
    write("one/usr/lib/large", &large);
    write("one/etc/gone", "one\n");
    write("one/etc/kept", "one\n");
    write("one/opaque/old", "one\n");
    write("one/opaque/sub/old", "one\n");
    symlink("usr/lib", bench.path("one/lib")).expect("a link");
    write("two/lib/b", "two\n");
    write("two/etc/.wh.gone", "");
    write("two/opaque/.wh..wh..opq", "");
    write("two/opaque/sub/new", "two\n");
    write("three/etc/gone", "three\n");
    write("three/.wh.opaque", "");
    let layout = layout(&bench, "oci", &["one", "two", "three"]);
    built(
        &bench,
        &[
            "-o", "image", "--from", "oci", "--layers", "/layers", "--seed", "x",
        ],
    );
    check(&bench, "image");
    let list = bench.run(&["subvolume", "list", "-r", "image"]);
    assert_eq!(list.lines().count(), 2, "{list}");
    let tree = |path: &str| {
        let text = bench.run(&["find", &format!("image:{path}"), "-type", "f"]);
        let mut lines: Vec<String> = text
            .lines()
            .map(|line| {
                line.trim_start_matches(path)
                    .trim_start_matches('/')
                    .to_owned()
            })
            .collect();
        lines.sort();
        lines
    };
    // A directory of a layer takes the place of a link, here `lib`.
    let first = [
        "etc/gone",
        "etc/kept",
        "opaque/old",
        "opaque/sub/old",
        "usr/lib/a",
        "usr/lib/large",
    ];
    assert_eq!(tree("/layers/1"), first);
    let second = [
        "etc/kept",
        "lib/b",
        "opaque/sub/new",
        "usr/lib/a",
        "usr/lib/large",
    ];
    assert_eq!(tree("/layers/2"), second);
    let top = bench.run(&["find", "image:/", "-type", "f"]);
    assert!(top.contains("/etc/gone\n"), "{top}");
    assert!(!top.contains("\n/opaque"), "{top}");
    assert_eq!(bench.run(&["cat", "image:/etc/gone"]), "three\n");
    assert_eq!(bench.run(&["cat", "image:/layers/1/usr/lib/large"]), large);
    // What the layers have in common is stored once.
    let size = fs::metadata(bench.path("image")).expect("it").len();
    assert!(size < (600 << 10) * 2 + (16 << 20), "{size} bytes");

    let blobs = fs::read_dir(layout.join("blobs/sha256")).expect("blobs");
    let largest = blobs
        .map(|blob| blob.expect("a blob").path())
        .max_by_key(|path| fs::metadata(path).expect("attributes").len());
    let largest = largest.expect("a blob");
    let mut bytes = fs::read(&largest).expect("a layer");
    // Behind the end of the archive, or of what it is compressed from.
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(&largest, &bytes).expect("a damaged layer");
    let refused = build(&bench, &["-o", "image2", "--from", "oci"]);
    assert!(!refused.status.success(), "{}", said(&refused));
    assert!(!bench.path("image2").exists());
}

/// A layer that makes a directory of what was a symbolic link removes nothing
/// where the link led.
#[test]
fn whiteouts_of_an_oci_image_and_links() {
    let bench = Bench::new();
    let write = |path: &str| {
        let path = bench.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, "content\n").expect("a file");
    };
    for name in ["data/kept", "data/sub/kept"] {
        write(&format!("low/{name}"));
    }
    for (link, target) in [("link", "data"), ("deep", "data")] {
        symlink(target, bench.path(&format!("low/{link}"))).expect("a link");
    }
    write("high/link/.wh..wh..opq");
    write("high/link/new");
    write("high/deep/sub/.wh.kept");
    layout(&bench, "oci", &["low", "high"]);
    built(&bench, &["-o", "image", "--from", "oci"]);
    check(&bench, "image");
    let files = bench.run(&["find", "image:/", "-type", "f"]);
    let mut files: Vec<&str> = files.lines().collect();
    files.sort_unstable();
    assert_eq!(files, ["/data/kept", "/data/sub/kept", "/link/new"]);
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

/// Extracts what an image has below a path into a directory.
fn extracted(bench: &Bench, place: &str, to: &str) {
    fs::create_dir(bench.path(to)).expect("a directory");
    bench.run(&["tar", "create", "-f", "extracted.tar", place]);
    run(
        "tar",
        &["-xpf", "extracted.tar", "--xattrs", "-C", to],
        &bench.path(""),
    );
}

#[test]
fn sends_become_an_image() {
    let bench = Bench::new();
    fs::create_dir(bench.path("sample")).expect("a directory");
    sample(&bench.path("sample"));
    bench.run(&["mkfs", "-q", "-b", "1G", "source"]);
    bench.run(&["subvolume", "create", "source:/root"]);
    run(
        "tar",
        &["-cf", "sample.tar", "--xattrs", "-C", "sample", "."],
        &bench.path(""),
    );
    bench.run(&["tar", "extract", "-f", "sample.tar", "source:/root"]);
    bench.run(&[
        "subvolume",
        "snapshot",
        "-r",
        "source:/root",
        "source:/monday",
    ]);
    bench.run(&["rm", "source:/root/noise131072"]);
    bench.run(&["mv", "source:/root/many", "source:/root/moved"]);
    bench.run(&["mkdir", "source:/root/new"]);
    fs::write(bench.path("text"), "changed\n".repeat(9000)).expect("a file");
    bench.run(&["copy", "-q", "text", "source:/root/new"]);
    bench.run(&[
        "subvolume",
        "snapshot",
        "-r",
        "source:/root",
        "source:/tuesday",
    ]);
    bench.run(&["send", "-q", "-f", "monday.stream", "source:/monday"]);
    bench.run(&[
        "send",
        "-q",
        "-f",
        "tuesday.stream",
        "-p",
        "source:/monday",
        "source:/tuesday",
    ]);
    extracted(&bench, "source:/monday", "volume-monday");
    extracted(&bench, "source:/tuesday", "volume-tuesday");
    let same = |one: &str, other: &str| {
        run(
            "diff",
            &["-r", "--no-dereference", "-x", "pipe", one, other],
            &bench.path(""),
        );
    };

    // Over a source; and the same bytes each time.
    fs::create_dir_all(bench.path("base/etc")).expect("directories");
    fs::write(bench.path("base/etc/base"), "below\n").expect("a file");
    fs::write(bench.path("base/text4096"), "hidden\n").expect("a file");
    let sends = ["--send", "monday.stream", "--send", "tuesday.stream"];
    let image = |name: &str, more: &[&str]| {
        let words = [&["-o", name, "--seed", "s"], &sends[..], more].concat();
        built(&bench, &words);
        check(&bench, name);
    };
    image("over", &["--from", "base"]);
    image("again", &["--from", "base", "--threads", "1"]);
    let bytes = |name: &str| fs::read(bench.path(name)).expect("an image");
    assert!(bytes("over") == bytes("again"), "the same bytes");
    assert_eq!(bench.run(&["cat", "over:/etc/base"]), "below\n");
    extracted(&bench, "over:/", "over.files");
    fs::remove_dir_all(bench.path("over.files/etc")).expect("the source's own");
    same("over.files", "volume-tuesday/tuesday");
    let one = fs::symlink_metadata(bench.path("over.files/home/ann/one")).expect("it");
    assert_eq!(one.nlink(), 301);
    let pipe = fs::symlink_metadata(bench.path("over.files/pipe")).expect("it");
    assert_eq!(pipe.mode() & 0o17_0000, 0o1_0000, "a pipe");

    // Each send is a snapshot, and what they have in common is stored once.
    image("one", &[]);
    image("layers", &["--layers", "/before"]);
    let list = bench.run(&["subvolume", "list", "-r", "layers"]);
    assert_eq!(list.lines().count(), 1, "{list}");
    extracted(&bench, "layers:/before/1", "layers.files");
    same("layers.files/1", "volume-monday/monday");
    assert_eq!(
        bench.run(&["cat", "layers:/new/text"]),
        "changed\n".repeat(9000)
    );
    let used = |name: &str| fs::metadata(bench.path(name)).expect("an image").len();
    // The removed file, and the nodes of another tree.
    assert!(used("layers") < used("one") + (4 << 20));

    // A stream on standard input.
    let stream = fs::File::open(bench.path("monday.stream")).expect("the stream");
    let piped = Command::new(BINARY)
        .args(["build", "-q", "-o", "piped", "--send", "-"])
        .current_dir(bench.path(""))
        .stdin(stream)
        .output()
        .expect("it starts");
    assert!(piped.status.success(), "{}", said(&piped));
    assert_eq!(bench.run(&["cat", "piped:/home/ann/one"]), "1\n");

    // What is missing or cut is reported, and nothing is made.
    let refused = |words: &[&str], why: &str| {
        let output = build(&bench, &[&["-o", "none"], words].concat());
        assert!(!output.status.success(), "{words:?}");
        assert!(said(&output).contains(why), "{}", said(&output));
        assert!(!bench.path("none").exists());
    };
    refused(&["--send", "tuesday.stream"], "tuesday.stream");
    let whole = fs::read(bench.path("monday.stream")).expect("the stream");
    fs::write(bench.path("cut.stream"), &whole[..whole.len() / 2]).expect("a part");
    refused(&["--send", "cut.stream"], "cut.stream");
    refused(&["--send", "sample.tar"], "no send stream");
    refused(&["--send", "-", "--from", "-"], "one source only");
}

/// Zeros mark the end of an archive, and images begin with zeros.
#[test]
fn what_is_no_archive_is_refused_and_replaces_nothing() {
    let bench = Bench::new();
    let file = |name: &str, bytes: &[u8]| fs::write(bench.path(name), bytes).expect("a file");
    file("note", b"kept\n");
    bench.run(&["copy", "-q", "note", "volume:/"]);
    fs::hard_link(bench.path("volume"), bench.path("again")).expect("a link");
    let mut extended = vec![0; 8192];
    extended[1024 + 0x38..][..2].copy_from_slice(&[0x53, 0xef]);
    file("ext.img", &extended);
    file("zeros", &[0; 1 << 20]);
    file("odd", &[0; 700]);
    file("empty", b"");
    let raw = b"\x1b[31m\0\x07".repeat(500);
    file("raw", &raw);
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(5);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    archive
        .append_data(&mut header, "note", &b"kept\n"[..])
        .expect("a member");
    let mut damaged = archive.into_inner().expect("an archive");
    damaged.truncate(1024);
    damaged.extend(&raw);
    file("damaged.tar", &damaged);
    for (name, reason) in [
        ("volume", "a file system (btrfs)"),
        ("ext.img", "a file system (ext"),
        ("zeros", "begins with zeros"),
        ("odd", "begins with zeros"),
        ("empty", "it is empty"),
        ("raw", "does not begin with the header"),
        ("damaged.tar", "cannot be read"),
    ] {
        for words in [
            ["build", "-q", "-o", "new.img", "--from", name].as_slice(),
            &["tar", "extract", "-f", name, "volume:/"],
        ] {
            let output = bench.try_run(words);
            let all = said(&output);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {all}");
            assert!(
                all.contains(reason) && all.contains(name),
                "{words:?}: {all}"
            );
            let is_plain = |letter: char| letter == '\n' || !letter.is_control();
            assert!(all.chars().all(is_plain), "{words:?}: {all:?}");
        }
        assert!(!bench.path("new.img").exists(), "{name}");
    }
    for name in ["volume", "again", "./volume"] {
        for from in ["--from", "--send"] {
            let output = build(&bench, &["-f", "-o", "volume", from, name]);
            let all = said(&output);
            assert!(!output.status.success(), "{name}: {all}");
            assert!(all.contains("is the image itself"), "{name}: {all}");
        }
    }
    for words in [
        ["build", "-q", "-o", "new.img", "--from", "-"].as_slice(),
        &["tar", "extract", "volume:/"],
    ] {
        let output = bench.try_run(words);
        let all = said(&output);
        assert!(!output.status.success(), "{words:?}: {all}");
        assert!(
            all.contains("standard input: no archive"),
            "{words:?}: {all}"
        );
    }
    // As tar writes an archive of nothing.
    for (name, length) in [("two.tar", 1024), ("filled.tar", 10_240)] {
        file(name, &vec![0; length]);
        built(&bench, &["-q", "-f", "-o", "new.img", "--from", name]);
        bench.run(&["tar", "extract", "-f", name, "volume:/"]);
    }
    assert_eq!(bench.run(&["cat", "volume:/note"]), "kept\n");
    bench.check();
}

/// An archive may say what no file system has. It is refused, and no image is
/// made.
#[test]
fn members_that_no_volume_can_have_are_refused() {
    let bench = Bench::new();
    let refused = |write: &dyn Fn(&mut tar::Builder<fs::File>, &mut tar::Header)| {
        let file = fs::File::create(bench.path("odd.tar")).expect("a file");
        let mut archive = tar::Builder::new(file);
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        write(&mut archive, &mut header);
        archive.finish().expect("an archive");
        drop(archive);
        let output = build(&bench, &["-q", "-o", "odd.img", "--from", "odd.tar"]);
        let all = said(&output);
        assert!(!output.status.success(), "{all}");
        assert!(all.contains("bytes without NUL"), "{all}");
        assert!(!bench.path("odd.img").exists());
    };
    let long = "n".repeat(256);
    let below = format!("{long}/file");
    for path in [&long, &below] {
        refused(&|archive, header| {
            let added = archive.append_data(header, path, std::io::empty());
            added.expect("a member");
        });
    }
    for target in ["t".repeat(4096), String::new()] {
        refused(&|archive, header| {
            header.set_entry_type(tar::EntryType::Symlink);
            match target.is_empty() {
                true => {
                    header.set_path("link").expect("a path");
                    header.set_cksum();
                    archive.append(header, std::io::empty()).expect("a member");
                }
                false => {
                    let added = archive.append_link(header, "link", &target);
                    added.expect("a member");
                }
            }
        });
    }
    for name in ["a".repeat(300), "user.n\0ul".to_owned()] {
        refused(&|archive, header| {
            let key = format!("SCHILY.xattr.{name}");
            let added = archive.append_pax_extensions([(&*key, b"x".as_slice())]);
            added.expect("a header");
            let added = archive.append_data(header, "file", std::io::empty());
            added.expect("a member");
        });
    }
}

/// Sparse members, as GNU tar and bsdtar write them.
#[test]
fn sparse_members_of_archives() {
    let bench = Bench::new();
    fs::create_dir(bench.path("holes")).expect("a directory");
    let size = 700 << 20;
    let pieces = [
        (0, 5000),
        (200 << 20, 70_000),
        (400 << 20, 4096),
        (size - 3, 3),
    ];
    let file = fs::File::create(bench.path("holes/sparse")).expect("a file");
    for (at, length) in pieces {
        file.write_all_at(&noise(length), at).expect("written");
    }
    let file = fs::File::create(bench.path("holes/empty")).expect("a file");
    file.set_len(90 << 20).expect("a size");
    fs::write(bench.path("holes/text"), "beside\n").expect("a file");
    let whole = |top: &str| {
        let file = fs::File::open(bench.path(top).join("sparse")).expect("a file");
        let meta = file.metadata().expect("metadata");
        assert_eq!(meta.len(), size, "{top}");
        assert!(
            meta.blocks() * 512 < 8 << 20,
            "{top}: {} blocks",
            meta.blocks()
        );
        for (at, length) in pieces {
            let mut found = vec![0; length];
            file.read_exact_at(&mut found, at).expect("it is there");
            assert!(found == noise(length), "{top}: at {at}");
        }
        let mut zeros = vec![1; 1 << 20];
        file.read_exact_at(&mut zeros, 300 << 20).expect("a hole");
        assert!(zeros.iter().all(|byte| *byte == 0), "{top}");
        let empty = fs::metadata(bench.path(top).join("empty")).expect("a file");
        assert_eq!(empty.len(), 90 << 20, "{top}");
        let text = fs::read_to_string(bench.path(top).join("text"));
        assert_eq!(text.expect("a file"), "beside\n");
    };
    whole("holes");
    let pax = |form| {
        [
            "tar",
            "-S",
            "--format=posix",
            "--sparse-version",
            form,
            "-cf",
        ]
    };
    let archives: [(&str, &[&str]); 6] = [
        ("old", &["tar", "-S", "--format=gnu", "-cf"]),
        ("p00", &pax("0.0")),
        ("p01", &pax("0.1")),
        ("p10", &pax("1.0")),
        ("xattrs", &["tar", "-S", "--xattrs", "-cf"]),
        ("bsd", &["bsdtar", "--format", "pax", "-cf"]),
    ];
    for (name, words) in archives {
        let archive = format!("{name}.tar");
        let (program, words) = (words[0], &words[1..]);
        let words = [words, &[&archive, "holes"]].concat();
        run(program, &words, &bench.path(""));
        let image = format!("{name}.img");
        built(&bench, &["-q", "-o", &image, "--from", &archive]);
        let bytes = fs::metadata(bench.path(&image)).expect("an image").len();
        assert!(bytes < 60 << 20, "{name}: {bytes}");
        bench.run(&["check", "--check-data-csum", &image]);
        // The old form says where its holes are in a way of its own.
        let into = if name == "old" { &image } else { "volume" };
        if into == "volume" {
            bench.run(&["tar", "extract", "-f", &archive, "volume:/"]);
        }
        for (from, to) in [(into, "extracted"), (&image, "built")] {
            bench.run(&["copy", "-q", &format!("{from}:/holes"), to]);
            whole(to);
            fs::remove_dir_all(bench.path(to)).expect("removed");
        }
        bench.run(&["rm", "-rf", "volume:/holes"]);
        fs::remove_file(bench.path(&archive)).expect("removed");
        fs::remove_file(bench.path(&image)).expect("removed");
    }
    bench.run(&["check", "volume"]);
}

/// A file has at most 65,535 names, as in the kernel.
#[test]
fn a_file_with_too_many_names() {
    let bench = Bench::new();
    let file = fs::File::create(bench.path("links.tar")).expect("a file");
    let mut archive = tar::Builder::new(std::io::BufWriter::new(file));
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header.set_mtime(0);
    let added = archive.append_data(&mut header, "first", std::io::empty());
    added.expect("a member");
    header.set_entry_type(tar::EntryType::Link);
    for number in 0..65_535 {
        let added = archive.append_link(&mut header, format!("l{number:05}"), "first");
        added.expect("a member");
    }
    archive.into_inner().expect("an archive");
    let words = [
        "-q",
        "-m",
        "single",
        "-o",
        "links.img",
        "--from",
        "links.tar",
    ];
    let refused = build(&bench, &words);
    assert!(!refused.status.success());
    let told = said(&refused);
    assert!(
        told.contains("65536 names") && told.contains("65535 at most"),
        "{told}"
    );
    assert!(!bench.path("links.img").exists());
    let most = build(&bench, &[&words[..], &["--keep-going"]].concat());
    let told = said(&most);
    assert_eq!(most.status.code(), Some(1), "{told}");
    assert!(told.contains("left out: /l65534: "), "{told}");
    assert!(
        told.contains("1 files or directories are left out; all else"),
        "{told}"
    );
    let checked = bench.run(&["check", "links.img"]);
    assert!(!checked.contains("inode-links-max"), "{checked}");
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
