//! `butterfs copy` of trees with everything that files can be, by several
//! threads: what comes out of a volume is what went in.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::{BINARY, Bench, is_root, said};

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Names that differ only at their ends, and as long as names can be.
fn long_name(number: usize) -> String {
    format!("{}{number:05}", "n".repeat(250))
}

fn grow(tree: &Path) {
    for directory in ["long", "many/deep/er", "empty", "links"] {
        fs::create_dir_all(tree.join(directory)).expect("a directory");
    }
    for number in 0..400 {
        let size = [0, 1, 700, 3000, 4096, 10_000, 70_000][number % 7];
        let content = noise(size, number as u64 + 1);
        let name = long_name(number);
        fs::write(tree.join("long").join(name), &content).expect("a file");
        let at = ["many", "many/deep", "many/deep/er"][number % 3];
        let file = tree.join(at).join(format!("f{number}"));
        fs::write(&file, content).expect("a file");
        let mode = [0o644, 0o600, 0o755, 0o440][number % 4];
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("a mode");
        if number % 5 == 0 {
            let other = tree.join("links").join(format!("l{number}"));
            fs::hard_link(&file, other).expect("a link");
            symlink(
                format!("../{at}/f{number}"),
                tree.join("links").join(format!("s{number}")),
            )
            .expect("a symbolic link");
        }
    }
    fs::write(tree.join("large"), noise(5 << 20, 9)).expect("a file");
    let sparse = File::create(tree.join("sparse")).expect("a file");
    sparse
        .write_all_at(&noise(9000, 5), 3 << 20)
        .expect("written");
    sparse.set_len(9 << 20).expect("longer");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o640),
        0,
    )
    .expect("a fifo");
    // Where the host has attributes.
    let _ = rustix::fs::setxattr(
        tree.join("large"),
        "user.colour",
        b"blue",
        rustix::fs::XattrFlags::empty(),
    );
}

/// What a tree holds, by path: what tells files apart, and their content.
fn look(tree: &Path) -> BTreeMap<PathBuf, (Vec<u64>, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut first_names: BTreeMap<u64, u64> = BTreeMap::new();
    let mut waiting = vec![tree.to_path_buf()];
    while let Some(path) = waiting.pop() {
        let meta: Metadata = fs::symlink_metadata(&path).expect("it is there");
        let mut content = Vec::new();
        if meta.is_dir() {
            let entries = fs::read_dir(&path).expect("a directory");
            let mut paths: Vec<_> = entries.map(|entry| entry.expect("one").path()).collect();
            paths.sort();
            waiting.extend(paths);
        } else if meta.is_symlink() {
            let target = fs::read_link(&path).expect("a target");
            content = target.into_os_string().into_encoded_bytes();
        } else if meta.is_file() {
            content = fs::read(&path).expect("it is readable");
        }
        let length = first_names.len() as u64;
        let group = *first_names.entry(meta.ino()).or_insert(length);
        let mut facts = vec![
            u64::from(meta.mode()),
            u64::from(meta.uid()),
            meta.mtime() as u64,
            meta.mtime_nsec() as u64,
            group,
        ];
        if !meta.is_dir() {
            facts.extend([meta.nlink(), meta.len()]);
        }
        let below = path.strip_prefix(tree).expect("below").to_path_buf();
        found.insert(below, (facts, content));
    }
    found
}

#[test]
fn what_comes_out_is_what_went_in() {
    let bench = Bench::new();
    let tree = bench.path("tree");
    grow(&tree);
    bench.run(&["copy", "-q", "tree", "volume:/"]);
    bench.run(&["check", "--check-data-csum", "volume"]);
    bench.run(&["copy", "-q", "volume:/tree", "back"]);
    let (before, after) = (look(&tree), look(&bench.path("back")));
    let names = |all: &BTreeMap<PathBuf, _>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    for (path, facts) in &before {
        assert!(after[path] == *facts, "{}: {facts:?}", path.display());
    }
    let holes = fs::metadata(bench.path("back/sparse")).expect("a file");
    assert!(holes.blocks() * 512 < 1 << 20, "{} blocks", holes.blocks());
    // Once more over what is there.
    bench.run(&["copy", "-q", "tree", "volume:/"]);
    fs::remove_dir_all(bench.path("back")).expect("removed");
    bench.run(&["copy", "-q", "volume:/tree", "back"]);
    bench.run(&["check", "volume"]);
    let again = look(&bench.path("back"));
    for (path, (_, content)) in &before {
        assert!(again[path].1 == *content, "{}", path.display());
    }
}

#[test]
fn a_file_that_cannot_be_made_is_left_out() {
    let bench = Bench::new();
    grow(&bench.path("tree"));
    bench.run(&["copy", "-q", "tree", "volume:/"]);
    // A directory is in the way of a file.
    fs::create_dir_all(bench.path("back/tree/many/f0/x")).expect("a directory");
    let output = bench.try_run(&["copy", "-q", "volume:/tree", "back"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("left out: back/tree/many/f0: "),
        "{}",
        said(&output)
    );
    assert!(
        said(&output).contains("1 files or directories are left out; all else is copied"),
        "{}",
        said(&output)
    );
    // Everything else is there, whole.
    let (before, after) = (look(&bench.path("tree")), look(&bench.path("back/tree")));
    for path in before.keys() {
        assert!(after.contains_key(path), "{}", path.display());
    }
    for (path, (facts, content)) in &after {
        let is_file = facts[0] as u32 & libc::S_IFMT == libc::S_IFREG;
        if is_file && !path.starts_with("many/f0") {
            assert!(before[path].1 == *content, "{}", path.display());
        }
    }
}

/// An archive with members that few hosts can hold: device nodes, a path of more
/// than 4,095 bytes, and between them files.
fn odd_archive(path: &Path) {
    let mut archive = tar::Builder::new(File::create(path).expect("a file"));
    let mut add = |kind: tar::EntryType, name: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        header.set_device_major(1).expect("a number");
        header.set_device_minor(3).expect("a number");
        archive.append_data(&mut header, name, content).expect(name);
    };
    add(tar::EntryType::Regular, "odd/a", b"first\n");
    add(tar::EntryType::Char, "odd/dev/null", b"");
    let deep = ["d".repeat(250).as_str(); 18].join("/");
    add(
        tar::EntryType::Regular,
        &format!("odd/{deep}/file"),
        b"deep\n",
    );
    add(tar::EntryType::Block, "odd/dev/sda", b"");
    add(tar::EntryType::Regular, "odd/dev/text", b"beside\n");
    add(tar::EntryType::Regular, "odd/z", b"last\n");
    archive.finish().expect("an archive");
}

/// Runs a command as somebody who is not root.
fn as_user(bench: &Bench, words: &[&str]) -> std::process::Output {
    let mut command = Command::new(BINARY);
    command.current_dir(bench.path("")).args(words);
    if is_root() {
        command.uid(65534).gid(65534);
    }
    command.output().expect("it runs")
}

/// Lets everybody write to what a test uses.
fn open_to_all(bench: &Bench, names: &[&str]) {
    for name in names {
        let mode = fs::Permissions::from_mode(0o777);
        fs::set_permissions(bench.path(name), mode).expect("a mode");
    }
}

/// What the host refuses for one file stops nothing else, in both directions. A
/// volume takes device nodes from anybody: it is a file.
#[test]
fn what_the_host_cannot_hold_is_named_and_left_out() {
    let bench = Bench::new();
    odd_archive(&bench.path("odd.tar"));
    fs::create_dir(bench.path("out")).expect("a directory");
    open_to_all(&bench, &["", "volume", "out"]);
    let extracted = as_user(&bench, &["tar", "extract", "-f", "odd.tar", "volume:/"]);
    assert!(extracted.status.success(), "{}", said(&extracted));
    let copied = as_user(&bench, &["copy", "-q", "volume:/odd", "out"]);
    let told = said(&copied);
    assert_eq!(copied.status.code(), Some(1), "{told}");
    for name in ["dev/null", "dev/sda"] {
        let named = format!("left out: out/odd/{name}: Operation not permitted");
        assert!(told.contains(&named), "{told}");
    }
    assert!(told.contains("dddd: File name too long"), "{told}");
    assert!(
        told.contains("3 files or directories are left out; all else is copied"),
        "{told}"
    );
    for (name, text) in [("a", "first\n"), ("dev/text", "beside\n"), ("z", "last\n")] {
        let found = fs::read_to_string(bench.path("out/odd").join(name));
        assert_eq!(found.expect(name), text);
    }
    // The other way round: a tree of the host whose paths are too long.
    fs::create_dir(bench.path("deep")).expect("a directory");
    fs::write(bench.path("deep/a"), "a\n").expect("a file");
    let mut at = std::os::fd::OwnedFd::from(File::open(bench.path("deep")).expect("it opens"));
    for _ in 0..18 {
        let (name, mode) = ("e".repeat(250), rustix::fs::Mode::from_raw_mode(0o755));
        rustix::fs::mkdirat(&at, &name, mode).expect("a directory");
        let flags = rustix::fs::OFlags::DIRECTORY;
        at = rustix::fs::openat(&at, &name, flags, mode).expect("it opens");
    }
    fs::write(bench.path("deep/z"), "z\n").expect("a file");
    let copied = bench.try_run(&["copy", "-q", "deep", "volume:/"]);
    let told = said(&copied);
    assert_eq!(copied.status.code(), Some(1), "{told}");
    assert!(told.contains("eeee: File name too long"), "{told}");
    assert_eq!(bench.run(&["cat", "volume:/deep/z"]), "z\n");
    assert_eq!(bench.run(&["cat", "volume:/deep/a"]), "a\n");
    // A missing source, too.
    let copied = bench.try_run(&["copy", "-q", "nothing", "deep/a", "volume:/"]);
    let told = said(&copied);
    assert_eq!(copied.status.code(), Some(1), "{told}");
    assert!(told.contains("left out: nothing: No such file"), "{told}");
    assert_eq!(bench.run(&["cat", "volume:/a"]), "a\n");
    bench.check();
}

/// The other names of a file whose first name cannot be copied are copied.
#[test]
fn the_second_name_of_a_file_has_its_content() {
    let bench = Bench::new();
    for name in ["one/dir", "two"] {
        fs::create_dir_all(bench.path("tree").join(name)).expect("a directory");
    }
    for number in 0..20 {
        let first = bench.path("tree/one/dir").join(format!("f{number}"));
        fs::write(&first, noise(9000, number + 1)).expect("a file");
        fs::hard_link(&first, bench.path("tree/two").join(format!("g{number}"))).expect("a link");
        let third = bench.path("tree/two").join(format!("h{number}"));
        fs::hard_link(&first, third).expect("a link");
    }
    // In the volume, directories are in the way of some names.
    for number in [3, 4, 5] {
        let way = format!("volume:/tree/one/dir/f{number}/x");
        bench.run(&["mkdir", "-p", &way]);
        let way = format!("volume:/tree/two/h{number}/x");
        bench.run(&["mkdir", "-p", &way]);
    }
    let copied = bench.try_run(&["copy", "-q", "tree", "volume:/"]);
    let told = said(&copied);
    assert_eq!(copied.status.code(), Some(1), "{told}");
    assert!(
        told.contains("6 files or directories are left out"),
        "{told}"
    );
    bench.run(&["copy", "-q", "volume:/tree/two", "back"]);
    for number in 0..20 {
        let found = fs::read(bench.path("back").join(format!("g{number}"))).expect("a file");
        assert!(found == noise(9000, number + 1), "g{number}");
    }
    bench.check();
}

/// A mount of a new ext4; unmounts when dropped.
struct Ext4(PathBuf);

impl Ext4 {
    fn mount(bench: &Bench) -> Option<Self> {
        if !is_root() {
            println!("skipped: kernel mounts need root");
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            return None;
        }
        let file = File::create(bench.path("ext4.img")).expect("a file");
        file.set_len(64 << 20).expect("a size");
        fs::create_dir(bench.path("ext4")).expect("a directory");
        let made = Command::new("sh")
            .args([
                "-c",
                "mkfs.ext4 -q -F -b 4096 ext4.img && mount -o loop ext4.img ext4",
            ])
            .current_dir(bench.path(""))
            .status();
        assert!(made.expect("sh runs").success());
        Some(Self(bench.path("ext4")))
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// An attribute that the other side cannot hold is named, and the file is
/// copied without it.
#[test]
fn an_attribute_that_is_too_large_is_named() {
    let bench = Bench::new();
    bench.run(&["mkfs", "-q", "-f", "-n", "4k", "-b", "256m", "small"]);
    bench.run(&["mkfs", "-q", "-f", "-b", "256m", "large"]);
    let mut archive = tar::Builder::new(File::create(bench.path("a.tar")).expect("a file"));
    for (name, bytes) in [("fits", 3000), ("big", 8000)] {
        let value = vec![b'v'; bytes];
        let records = [("SCHILY.xattr.user.note", &value[..])];
        archive.append_pax_extensions(records).expect("records");
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(3);
        header.set_mtime(0);
        let added = archive.append_data(&mut header, name, &b"ok\n"[..]);
        added.expect("a member");
    }
    archive.into_inner().expect("an archive");
    bench.run(&["tar", "extract", "-f", "a.tar", "large:/"]);
    let named = |words: &[&str], part: &str| {
        let output = bench.try_run(words);
        let told = said(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {told}");
        assert!(told.contains(part), "{words:?}: {told}");
        assert!(!told.contains("no space left"), "{words:?}: {told}");
        assert!(!told.contains("fits"), "{words:?}: {told}");
    };
    let too_large = "left out: big: its attribute user.note: the attribute is too large";
    named(&["tar", "extract", "-f", "a.tar", "small:/"], too_large);
    assert_eq!(bench.run(&["cat", "small:/big"]), "ok\n");
    bench.run(&["check", "small"]);
    // By a stream.
    bench.run(&["subvolume", "snapshot", "-r", "large:/", "large:/snap"]);
    bench.run(&["send", "-q", "-f", "stream", "large:/snap"]);
    named(
        &["receive", "-q", "-f", "stream", "small:/"],
        "the attribute is too large",
    );
    let Some(ext4) = Ext4::mount(&bench) else {
        return;
    };
    named(
        &["copy", "-q", "large:/fits", "large:/big", "ext4"],
        "left out: ext4/big: its attribute user.note: No space left on device",
    );
    let found = fs::read_to_string(ext4.0.join("big"));
    assert_eq!(found.expect("a file"), "ok\n");
    // From ext4, which holds a little more than a node of 4 KiB.
    fs::remove_file(ext4.0.join("big")).expect("removed");
    fs::create_dir(ext4.0.join("tree")).expect("a directory");
    fs::write(ext4.0.join("tree/big"), "ok\n").expect("a file");
    let value = vec![b'v'; 3990];
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(ext4.0.join("tree/big"), "user.note", &value, flags).expect("room");
    named(
        &["copy", "-q", "ext4/tree", "small:/"],
        "left out: ext4/tree/big: its attribute user.note: the attribute is too large",
    );
    assert_eq!(bench.run(&["cat", "small:/tree/big"]), "ok\n");
    let mkfs = [
        "mkfs",
        "-q",
        "-f",
        "-n",
        "4k",
        "-b",
        "256m",
        "-r",
        "ext4/tree",
    ];
    let too_large = "tree/big: its attribute user.note: the attribute is too large";
    named(&[&mkfs[..], &["new"]].concat(), too_large);
    assert!(!bench.path("new").exists(), "a half volume is left");
    named(&[&mkfs[..], &["--keep-going", "new"]].concat(), too_large);
    assert_eq!(bench.run(&["cat", "new:/big"]), "ok\n");
}

/// What a command shows in a terminal.
fn shown_in_a_terminal(bench: &Bench, words: &str) -> String {
    let command = format!("{BINARY} {words}");
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .current_dir(bench.path(""))
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("script (of util-linux) starts");
    assert!(output.status.success(), "{words}: {}", said(&output));
    said(&output)
}

/// What commands on two large and this many small files did not show in a
/// terminal: how much of how much, and the time left. None: all did.
fn missing_progress(small: usize) -> Option<String> {
    let bench = Bench::new();
    bench.run(&["mkfs", "-q", "-b", "4G", "large"]);
    for directory in ["host", "out"] {
        fs::create_dir(bench.path(directory)).expect("a directory");
    }
    for name in ["one", "two"] {
        fs::write(bench.path("host").join(name), vec![7; 160 << 20]).expect("a file");
    }
    for number in 0..small {
        let file = bench.path("host").join(format!("small{number}"));
        fs::write(file, [7; 100]).expect("a file");
    }
    let of_files = format!("of {} files", small + 3);
    for (words, total) in [
        ("copy host large:/", of_files.as_str()),
        ("copy large:/host out", &of_files),
        ("tar create -f host.tar large:/host", &of_files),
        ("tar extract -f host.tar large:/again", " of 3"),
    ] {
        if words.ends_with("again") {
            bench.run(&["mkdir", "large:/again"]);
        }
        let shown = shown_in_a_terminal(&bench, words);
        if !shown.contains(total) || !shown.contains(" left)") {
            return Some(format!("{words}: {shown:?}"));
        }
    }
    // If nobody looks, nothing is shown.
    let quiet = bench.run(&["copy", "host/one", "large:/quiet"]);
    assert!(!quiet.contains("left"), "{quiet}");
    None
}

#[test]
fn progress_says_how_much_of_how_much() {
    // Work that ends before the second look of the bar shows no total: the
    // faster the machine, the more work.
    let mut missing = None;
    for small in [4_000, 20_000, 100_000] {
        missing = missing_progress(small);
        if missing.is_none() {
            break;
        }
    }
    assert_eq!(missing, None);
}

#[test]
fn what_may_not_be_read_is_named_and_left_out() {
    let bench = Bench::new();
    let tree = bench.path("tree");
    fs::create_dir_all(tree.join("closed/inner")).expect("a directory");
    fs::write(tree.join("closed/inner/file"), "hidden").expect("a file");
    for name in ["a", "secret", "z"] {
        fs::write(tree.join(name), name).expect("a file");
    }
    let close = |name: &str, mode| {
        let closed = fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode));
        closed.expect("a mode");
    };
    close("secret", 0);
    close("closed", 0);
    // Root reads everything: somebody else copies.
    for (path, mode) in [(bench.path(""), 0o755), (bench.path("volume"), 0o666)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    }
    let run = |words: &[&str]| as_user(&bench, words);
    let copied = run(&["copy", "tree", "volume:/"]);
    let told = said(&copied);
    assert_eq!(copied.status.code(), Some(1), "{told}");
    assert!(
        told.contains("left out: tree/secret: Permission denied"),
        "{told}"
    );
    assert!(
        told.contains("left out: tree/closed: Permission denied"),
        "{told}"
    );
    assert!(
        told.contains("2 files or directories are left out"),
        "{told}"
    );
    let names = bench.run(&["find", "volume:/tree"]);
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(bench.run(&["cat", "volume:/tree/z"]), "z");
    bench.check();
    // What is named itself must be readable.
    let refused = run(&["copy", "tree/secret", "volume:/"]);
    assert!(!refused.status.success());
    assert!(
        said(&refused).contains("tree/secret: Permission denied"),
        "{}",
        said(&refused)
    );
    close("closed", 0o755);
}

/// A volume is not copied into itself, under whatever name.
#[test]
fn the_file_of_the_volume_is_left_out() {
    let bench = Bench::new();
    bench.run(&["mkfs", "-q", "-b", "300m", "one", "two"]);
    fs::create_dir(bench.path("tree")).expect("a directory");
    fs::hard_link(bench.path("two"), bench.path("tree/again")).expect("a link");
    symlink("../one", bench.path("tree/link")).expect("a link");
    fs::write(bench.path("tree/note"), "kept").expect("a file");
    let output = bench.try_run(&["copy", "-q", ".", "one:/"]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    for name in ["./one", "./two", "./tree/again"] {
        assert!(
            told.contains(&format!("left out: {name}: it holds")),
            "{told}"
        );
    }
    assert!(
        told.contains("3 files or directories are left out"),
        "{told}"
    );
    let names = bench.run(&["find", "one:/"]);
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    let expected = ["/", "/mnt", "/tree", "/tree/link", "/tree/note", "/volume"];
    assert_eq!(names, expected);
    assert_eq!(bench.run(&["cat", "one:/tree/note"]), "kept");
    // What is named itself is refused, before anything is copied.
    let output = bench.try_run(&["copy", "-q", "tree/note", "tree/again", "one:/mnt"]);
    let told = said(&output);
    assert!(!output.status.success(), "{told}");
    assert!(told.contains("tree/again: it holds the volume"), "{told}");
    assert_eq!(bench.run(&["ls", "one:/mnt"]), "");
    bench.run(&["check", "--check-data-csum", "one"]);
}

/// What a damaged volume has lost is named, and all else is copied.
#[test]
fn what_cannot_be_read_is_left_out() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("tree/sub")).expect("directories");
    let content = |name: &str| format!("{name}: a line of its own\n").repeat(1000);
    let names = ["a", "rotten", "sub/b", "sub/rotten too", "z"];
    for name in names {
        fs::write(bench.path("tree").join(name), content(name)).expect("a file");
    }
    fs::hard_link(bench.path("tree/rotten"), bench.path("tree/sub/again")).expect("a link");
    bench.run(&["mkfs", "-q", "-b", "256m", "rotten volume"]);
    bench.run(&["copy", "-q", "tree/.", "rotten volume:/"]);
    let mut image = fs::read(bench.path("rotten volume")).expect("the image");
    for name in ["rotten", "sub/rotten too"] {
        let wanted = content(name).into_bytes();
        let at = image.windows(wanted.len()).position(|part| part == wanted);
        image[at.expect("it is there") + 5000] ^= 1;
    }
    fs::write(bench.path("rotten volume"), image).expect("the image");
    let output = Command::new(BINARY)
        .args(["copy", "-q", "rotten volume:/", "out"])
        .current_dir(bench.path(""))
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let said = said(&output);
    for told in ["out/rotten: ", "out/sub/again: ", "out/sub/rotten too: "] {
        assert!(said.contains(told), "{told}: {said}");
    }
    assert!(said.contains("3 files or directories"), "{said}");
    for name in names {
        let found = fs::read_to_string(bench.path("out").join(name)).ok();
        let expected = (!name.contains("rotten")).then(|| content(name));
        assert_eq!(found, expected, "{name}");
    }
}

/// With `rescue=all`, files with wrong bytes are copied, and each is named once
/// with its ranges.
#[test]
fn files_with_wrong_bytes_are_named_once() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("tree/sub")).expect("directories");
    for (name, bytes) in [
        ("a", 9000),
        ("large", 3 << 20),
        ("sub/packed", 0),
        ("z", 9000),
    ] {
        let content = match bytes {
            0 => b"text that is easily compressed\n".repeat(20_000),
            bytes => noise(bytes, bytes as u64),
        };
        fs::write(bench.path("tree").join(name), content).expect("a file");
    }
    fs::hard_link(bench.path("tree/large"), bench.path("tree/sub/again")).expect("a link");
    bench.run(&["mkfs", "-q", "-b", "256m", "rotten"]);
    bench.run(&["copy", "-q", "-o", "compress=zstd", "tree/.", "rotten:/"]);
    let mut image = fs::read(bench.path("rotten")).expect("the image");
    let large = noise(3 << 20, 3 << 20);
    let find = |image: &[u8], wanted: &[u8]| {
        let mut sectors = image.chunks(4096);
        sectors
            .position(|sector| sector == wanted)
            .expect("it is there")
            * 4096
    };
    // Every second sector from 64 KiB to 320 KiB, and one behind it.
    let sectors = (16..80).step_by(2).chain([200]);
    for sector in sectors {
        let at = find(&image, &large[sector * 4096..(sector + 1) * 4096]);
        image[at + 7] ^= 1;
    }
    // The end of a packed extent, which is zeros.
    let zstd = image
        .chunks(4096)
        .position(|sector| sector.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]));
    let at = zstd.expect("a packed extent") * 4096;
    image[at + 4095] ^= 1;
    fs::write(bench.path("rotten"), image).expect("the image");
    let output = bench.try_run(&["copy", "-q", "-o", "ro,rescue=all", "rotten:/", "out"]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert_eq!(
        told.matches("large: bytes").count() + told.matches("again: bytes").count(),
        1
    );
    assert!(told.contains("bytes 65536-69631, 73728-77823, "), "{told}");
    assert!(
        told.contains("and 25 more ranges (135168 bytes in 33) do not match their checksums"),
        "{told}"
    );
    assert!(
        told.contains("out/sub/packed: bytes 0-131071 do not match"),
        "{told}"
    );
    assert!(
        told.contains("2 files have bytes that may be wrong; all else is copied"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 3, "{told}");
    // A mount says it in few lines.
    let copied = fs::read(bench.path("out/large")).expect("it is copied");
    let differing = copied
        .iter()
        .zip(&large)
        .filter(|(one, other)| one != other);
    assert_eq!((copied.len(), differing.count()), (3 << 20, 33));
    for name in ["a", "z", "sub/packed"] {
        let (old, new) = (bench.path("tree").join(name), bench.path("out").join(name));
        assert!(fs::read(old).ok() == fs::read(new).ok(), "{name}");
    }
}

/// Archives, moves and removals follow the same rule.
#[test]
fn what_is_damaged_stops_no_command_on_many_files() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("tree")).expect("a directory");
    for (name, bytes) in [
        ("a", 9000),
        ("rotten", 2 << 20),
        ("small", 9001),
        ("z", 9000),
    ] {
        let content = noise(bytes, name.len() as u64);
        fs::write(bench.path("tree").join(name), content).expect("a file");
    }
    bench.run(&["copy", "-q", "tree", "volume:/"]);
    let mut image = fs::read(bench.path("volume")).expect("the image");
    for (name, sector) in [("rotten", 400), ("small", 1)] {
        let content = fs::read(bench.path("tree").join(name)).expect("a file");
        let wanted = &content[sector * 4096..][..4096];
        let at = image.chunks(4096).position(|found| found == wanted);
        image[at.expect("it is there") * 4096 + 9] ^= 1;
    }
    fs::write(bench.path("volume"), image).expect("the image");
    let output = bench.try_run(&["tar", "create", "-f", "tree.tar", "volume:/tree"]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("left out: tree/small: "), "{told}");
    assert!(
        told.contains("left out: tree/rotten: its bytes from "),
        "{told}"
    );
    assert!(
        told.contains("1 files or directories are left out, 1 files lack a part; all else"),
        "{told}"
    );
    let listed = Command::new("tar")
        .args(["-tf", "tree.tar"])
        .current_dir(bench.path(""))
        .output()
        .expect("tar runs");
    assert!(listed.status.success(), "{}", said(&listed));
    // The host lists its directories in an order of its own.
    let names = said(&listed);
    let mut names: Vec<&str> = names
        .lines()
        .map(|name| name.trim_end_matches('/'))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["tree", "tree/a", "tree/rotten", "tree/z"]);
    // A name that is not there.
    for words in [
        ["chmod", "600", "volume:/no", "volume:/tree/z"],
        ["chown", "7:8", "volume:/no", "volume:/tree/z"],
    ] {
        let output = bench.try_run(&words);
        let told = said(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("left out: volume:/no: "), "{told}");
    }
    let listed = bench.run(&["ls", "-l", "volume:/tree"]);
    assert!(listed.contains("-rw-------   1     7     8 "), "{listed}");
    let output = bench.try_run(&["mv", "volume:/no", "volume:/tree/a", "volume:/"]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("left out: volume:/no: "), "{told}");
    let output = bench.try_run(&["copy", "volume:/no", "volume:/tree/z", "volume:/"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let output = bench.try_run(&["rm", "-r", "volume:/no", "volume:/tree"]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("left out: volume:/no: "), "{told}");
    assert_eq!(bench.run(&["ls", "volume:/"]), "a\nz\n");
    bench.run(&["check", "volume"]);
}

/// With `rescue=all`, nodes with a wrong checksum make every name doubtful, and
/// the exit code says so.
#[test]
fn nodes_with_wrong_checksums_are_counted() {
    let bench = Bench::new();
    fs::write(bench.path("file"), "kept\n").expect("a file");
    bench.run(&["copy", "-q", "file", "volume:/"]);
    let mut image = fs::read(bench.path("volume")).expect("the image");
    let fsid = image[(64 << 10) + 32..][..16].to_vec();
    // Nodes of the top-level subvolume, whose number is 5, and all copies.
    for node in image.chunks_mut(16 << 10).skip(5) {
        let owner = u64::from_le_bytes(node[88..96].try_into().expect("8 bytes"));
        if node[32..48] == fsid && owner == 5 {
            node[0] ^= 1;
        }
    }
    fs::write(bench.path("volume"), image).expect("the image");
    let refused = bench.try_run(&["copy", "-q", "volume:/", "nothing"]);
    assert!(!refused.status.success(), "{}", said(&refused));
    let output = bench.try_run(&["copy", "-q", "-o", "ro,rescue=all", "volume:/", "out"]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.contains("1 nodes of the trees have wrong checksums"),
        "{told}"
    );
    let found = fs::read_to_string(bench.path("out/file"));
    assert_eq!(found.expect("it is copied"), "kept\n");
}
