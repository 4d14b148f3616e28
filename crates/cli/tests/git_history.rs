//! The history of this project, one snapshot for each commit, sent step by
//! step: from the kernel to ButterFS, from there to the kernel and to another
//! ButterFS, and compared each time.
//!
//! BUTTERFS_GIT_COMMITS says how many commits (`make git-history`: 200).

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::{BINARY, Bench, is_root, said};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn good(output: &Output, what: &str) -> String {
    assert!(output.status.success(), "{what}: {}", said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn run(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    good(&output.expect("it runs"), &format!("{program} {words:?}"))
}

fn git(words: &[&str], work: Option<(&Path, &Path)>) -> String {
    let mut command = Command::new("git");
    command
        .args(["-c", "safe.directory=*", "-C", REPOSITORY])
        .args(words);
    if let Some((tree, index)) = work {
        command
            .env("GIT_WORK_TREE", tree)
            .env("GIT_INDEX_FILE", index);
    }
    let output = command.output().expect("git runs");
    good(&output, &format!("git {words:?}"))
}

/// Commits in order; fewer than were asked for in a shallow clone.
fn commits(wanted: usize) -> Vec<String> {
    let listed = git(&["rev-list", "--reverse", "--topo-order", "HEAD"], None);
    let all: Vec<String> = listed.lines().map(str::to_owned).collect();
    let skip = all.len().saturating_sub(wanted);
    all.into_iter().skip(skip).collect()
}

fn pipe(sender: (&str, &[&str]), receiver: (&str, &[&str])) {
    let mut sending = Command::new(sender.0)
        .args(sender.1)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the sender starts");
    let stream = sending.stdout.take().expect("piped");
    let received = Command::new(receiver.0)
        .args(receiver.1)
        .stdin(stream)
        .output();
    good(&received.expect("it runs"), &format!("{receiver:?}"));
    let status = sending.wait().expect("its status");
    assert!(status.success(), "{sender:?}");
}

/// Names, kinds, modes, owners, sizes, times and targets of what is below a
/// directory; contents apart. The directory itself is left out: a stream has no
/// time for the root of a snapshot that did not change, though making entries
/// under temporary names changes it (the kernel's own send and receive give the
/// same).
fn listing(directory: &Path) -> String {
    let format = "%P %y %m %U %G %s %T@ %l\n";
    let output = Command::new("find")
        .current_dir(directory)
        .args([".", "-mindepth", "1", "!", "-type", "d", "-printf", format])
        .args(["-o", "-printf", "%P %y %m %U %G %T@\n"])
        .output();
    let text = good(&output.expect("find runs"), "find");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

fn assert_same(one: &Path, other: &Path) {
    let (ours, theirs) = (listing(one), listing(other));
    let differing: Vec<_> = ours
        .lines()
        .zip(theirs.lines())
        .filter(|(a, b)| a != b)
        .take(5)
        .collect();
    assert!(
        ours == theirs,
        "{} {}: {differing:#?}",
        one.display(),
        other.display()
    );
    let words = ["-r", "--no-dereference"];
    let output = Command::new("diff").args(words).args([one, other]).output();
    good(&output.expect("diff runs"), "diff");
}

/// A volume that the kernel has mounted.
struct Kernel(PathBuf);

impl Kernel {
    fn mount(image: &Path, at: PathBuf, options: &str) -> Self {
        std::fs::create_dir_all(&at).expect("a mountpoint");
        let words = ["-o", options, text(image), text(&at)];
        run("mount", &words);
        Self(at)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn a_history_goes_from_volume_to_volume() {
    if !is_root() {
        println!("skipped: kernel mounts need root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return;
    }
    let wanted = std::env::var("BUTTERFS_GIT_COMMITS");
    let wanted: usize = wanted.map_or(30, |text| text.parse().expect("a number"));
    let commits = commits(wanted);
    if commits.len() < wanted {
        let shallow = git(&["rev-parse", "--is-shallow-repository"], None);
        println!(
            "only {} commits; shallow: {}",
            commits.len(),
            shallow.trim()
        );
    }
    if commits.len() < 2 {
        println!("skipped: no history in a shallow clone");
        return;
    }
    let bench = Bench::new();
    for name in ["source", "target", "second"] {
        bench.run(&["mkfs", "-q", "-b", "2g", name]);
    }
    let source = Kernel::mount(&bench.path("source"), bench.path("a"), "loop");
    let target = Kernel::mount(&bench.path("target"), bench.path("b"), "loop");
    let work = source.0.join("work");
    run("btrfs", &["subvolume", "create", text(&work)]);
    let index = bench.path("index");
    let volume = |name: &str| format!("{}:/{name}", text(&bench.path("volume")));
    let second = format!("{}:/", text(&bench.path("second")));
    let mut before: Option<String> = None;
    for (number, commit) in commits.iter().enumerate() {
        git(
            &["read-tree", "-u", "--reset", commit],
            Some((&work, &index)),
        );
        let name = format!("s{number}");
        let snapshot = source.0.join(&name);
        let words = ["subvolume", "snapshot", "-r", text(&work), text(&snapshot)];
        run("btrfs", &words);
        let earlier = before.as_ref().map(|name| source.0.join(name));
        let mut words = vec!["send", "-q"];
        if let Some(earlier) = &earlier {
            words.extend(["-p", text(earlier)]);
        }
        words.push(text(&snapshot));
        pipe(("btrfs", &words), (BINARY, &["receive", "-q", &volume("")]));
        let (ours, earlier) = (volume(&name), before.as_deref().map(&volume));
        let mut words = vec!["send", "-q"];
        if let Some(earlier) = &earlier {
            words.extend(["-p", earlier]);
        }
        words.push(&ours);
        pipe(
            (BINARY, &words),
            ("btrfs", &["receive", "-q", text(&target.0)]),
        );
        pipe((BINARY, &words), (BINARY, &["receive", "-q", &second]));
        assert_same(&snapshot, &target.0.join(&name));
        before = Some(name);
    }
    let ours = Kernel::mount(&bench.path("second"), bench.path("c"), "loop,ro");
    for number in 0..commits.len() {
        let name = format!("s{number}");
        assert_same(&source.0.join(&name), &ours.0.join(&name));
    }
    println!("{} commits", commits.len());
    drop((source, target, ours));
    bench.check();
    run(
        "btrfs",
        &["check", "--check-data-csum", text(&bench.path("second"))],
    );
}
