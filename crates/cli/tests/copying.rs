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
fn a_file_that_cannot_be_made_ends_it() {
    let bench = Bench::new();
    grow(&bench.path("tree"));
    bench.run(&["copy", "-q", "tree", "volume:/"]);
    // A directory is in the way of a file.
    fs::create_dir_all(bench.path("back/tree/many/f0/x")).expect("a directory");
    let output = bench.try_run(&["copy", "-q", "volume:/tree", "back"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("many/f0"), "{}", said(&output));
    assert!(said(&output).contains("each whole"), "{}", said(&output));
    // What is there is whole.
    let (before, after) = (look(&bench.path("tree")), look(&bench.path("back/tree")));
    for (path, (facts, content)) in &after {
        let is_file = facts[0] as u32 & libc::S_IFMT == libc::S_IFREG;
        if is_file && !path.starts_with("many/f0") {
            assert!(before[path].1 == *content, "{}", path.display());
        }
    }
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
    let run = |words: &[&str]| {
        let mut command = Command::new(BINARY);
        command.current_dir(bench.path("")).args(words);
        if is_root() {
            command.uid(65534).gid(65534);
        }
        command.output().expect("it runs")
    };
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
