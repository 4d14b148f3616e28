//! `butterfs lab` as people run it: a whole run with ButterFS in it, a run that
//! is killed and resumed, mistakes, advice.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_butterfs");

fn can_run() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|meta| {
        use std::os::unix::fs::MetadataExt as _;
        meta.uid() == 0
    });
    let there = |path: &str| Path::new(path).exists();
    if root && there("/dev/fuse") && there("/dev/loop-control") {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "skipped in CI: it needs root, FUSE and loop devices"
    );
    eprintln!("skipped: it needs root, FUSE and loop devices");
    false
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.current_dir(self.0.path()).arg("lab").args(words);
        command
    }

    fn lab(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn good(&self, words: &[&str]) -> String {
        let output = self.lab(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        said(&output)
    }

    /// Loop devices and mounts of a run, and files but the results.
    fn left(&self) -> Vec<String> {
        let name = self.0.path().display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut found: Vec<String> = mounts
            .lines()
            .filter(|l| l.contains(&name))
            .map(str::to_owned)
            .collect();
        for entry in std::fs::read_dir("/sys/block").unwrap().flatten() {
            let file = std::fs::read_to_string(entry.path().join("loop/backing_file"));
            found.extend(file.ok().filter(|file| file.contains(&name)));
        }
        for entry in std::fs::read_dir(self.0.path()).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if name.starts_with("butterfs-lab-") || name.ends_with(".made") {
                found.push(name);
            }
        }
        found
    }
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

const MINE: &str = r#"
name = "mine"
repeats = 3
[scale.small]
device-size = "128M"
settle = 0.0
[[cells]]
file-system = ["ext4", "butterfs"]
workload = "tiny"
parameters = { files = 100, size = "16k" }
[[cells]]
file-system = "butterfs"
mount = "compress=zstd"
compressible = 100
workload = "tiny"
parameters = { files = 200, size = "64k" }
"#;

#[test]
fn a_run_with_butterfs_ends_in_a_report() {
    if !can_run() {
        return;
    }
    let folder = Folder::new();
    std::fs::write(folder.path("mine.toml"), MINE).unwrap();
    let plan = folder.good(&["plan", "mine.toml", "--directory", "."]);
    assert!(plan.contains("3 blocks; 12 passes"), "{plan}");
    let run = folder.good(&["run", "mine.toml", "--directory", "."]);
    assert!(run.contains("[12/12] block 3"), "{run}");
    assert!(!run.contains("void") && !run.contains("failed"), "{run}");
    assert_eq!(folder.left(), Vec::<String>::new());
    folder.good(&[
        "report",
        "--html",
        "r.html",
        "--json",
        "r.json.zst",
        "--csv",
        "r.csv",
    ]);
    let html = std::fs::read_to_string(folder.path("r.html")).unwrap();
    assert!(html.contains("butterfs -o compress=zstd"));
    let csv = std::fs::read_to_string(folder.path("r.csv")).unwrap();
    assert!(csv.contains("CPU of the server"), "{csv}");
    // The compressed cell was compressed, and says so.
    let json = folder.good(&["report", "--json"]);
    assert!(
        json.contains("\"name\":\"compression ratio\",\"requested\":\"above 1.1\""),
        "{json}"
    );
    let again = folder.good(&[
        "run",
        "mine.toml",
        "--directory",
        ".",
        "--quick",
        "--only",
        "ext4",
    ]);
    assert!(again.contains("run mine-2 is in lab.sqlite"), "{again}");
    let compared = folder.good(&["compare", "lab.sqlite:mine-2", "r.json.zst"]);
    assert!(compared.contains("create"), "{compared}");
}

const LIBRARY: &str = r#"
name = "mine"
repeats = 2
[scale.small]
device-size = "192M"
settle = 0.0
[[cells]]
file-system = ["butterfs", "butterfs-library"]
cache = "cold"
workload = "grid"
parameters = { size = "16m", record = "1m" }
headline = true
[[cells]]
file-system = "butterfs"
workload = "transactions"
parameters = { size = "16m", log = "4m", time = 1 }
[[cells]]
file-system = "butterfs-library"
workload = "tiny"
"#;

#[test]
fn the_library_is_measured_beside_its_mount() {
    if !can_run() {
        return;
    }
    let folder = Folder::new();
    std::fs::write(folder.path("mine.toml"), LIBRARY).unwrap();
    let run = ["run", "mine.toml", "--directory", ".", "--others", "1"];
    let run = folder.good(&run);
    // Two blocks of the main cells, one of the other; `tiny` has none.
    assert!(run.contains("[5/5] block 2"), "{run}");
    assert!(!run.contains("void") && !run.contains("failed"), "{run}");
    assert_eq!(folder.left(), Vec::<String>::new());
    let json = folder.good(&["report", "--json"]);
    assert!(json.contains("needs a mounted directory"), "{json}");
    // What its server keeps is not called direct.
    let kept = "\"effective\":\"kept in memory by the file system\"";
    assert!(json.contains(kept), "{json}");
}

#[test]
fn a_killed_run_is_resumed_and_leaves_nothing() {
    if !can_run() {
        return;
    }
    let folder = Folder::new();
    std::fs::write(
        folder.path("mine.toml"),
        MINE.replace("files = 100", "files = 600"),
    )
    .unwrap();
    let mut child = folder
        .command(&["run", "mine.toml", "--directory", "."])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Some passes are there, and ButterFS is mounted.
    let until = Instant::now() + Duration::from_secs(120);
    let mounted = || {
        let name = folder.0.path().display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts
            .lines()
            .any(|line| line.contains(&name) && line.contains(" - fuse"))
    };
    while !(folder.path("lab.sqlite").exists() && mounted()) {
        assert!(Instant::now() < until, "it never mounts");
        std::thread::sleep(Duration::from_millis(20));
    }
    // While it goes on, nobody else may work on its results.
    let second = folder.lab(&["resume"]);
    assert!(said(&second).contains("is under way"), "{}", said(&second));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(folder.left().len() > 2, "{:?}", folder.left());
    let resumed = folder.good(&["resume"]);
    assert!(
        resumed.contains("things that the stopped run left"),
        "{resumed}"
    );
    assert_eq!(folder.left(), Vec::<String>::new());
    let csv = folder.good(&["report", "--csv"]);
    let create = csv.lines().filter(|line| line.contains(",create,")).count();
    assert_eq!(create, 12, "{csv}");
}

#[test]
fn mistakes_are_told_in_a_sentence() {
    let folder = Folder::new();
    std::fs::write(folder.path("mine.toml"), MINE.replace("repeats", "repeat")).unwrap();
    let wrong = said(&folder.lab(&["run", "mine.toml"]));
    assert_eq!(
        wrong,
        "butterfs: mine.toml:3: an experiment has no key `repeat`; did you mean `repeats`?\n"
    );
    let wrong = said(&folder.lab(&["run", "bonny"]));
    assert!(
        wrong.contains("experiments that come with the program are bonnie-2012"),
        "{wrong}"
    );
    let wrong = said(&folder.lab(&["resume"]));
    assert_eq!(wrong, "butterfs: there is no lab.sqlite\n");
    std::fs::write(folder.path("empty"), "").unwrap();
    let wrong = said(&folder.lab(&["report", "--results", "empty"]));
    assert!(wrong.contains("empty is empty"), "{wrong}");
    let wrong = said(&folder.lab(&["compare", "empty", "empty"]));
    assert!(wrong.contains("empty is empty"), "{wrong}");
    assert_eq!(std::fs::metadata(folder.path("empty")).unwrap().len(), 0);
    let wrong = said(&folder.lab(&["choose", "--kind", "web", "--need", "nothing"]));
    assert!(wrong.contains("--content answers it"), "{wrong}");
    std::fs::write(folder.path("mine.toml"), MINE).unwrap();
    let wrong = folder.lab(&[
        "plan",
        "mine.toml",
        "--directory",
        ".",
        "--device-size",
        "900t",
    ]);
    assert!(!wrong.status.success());
    assert!(
        said(&wrong).contains("cannot be run: . has "),
        "{}",
        said(&wrong)
    );
    let list = folder.good(&["list"]);
    for word in ["dbench-2011", "tiny", "butterfs", "reiserfs"] {
        assert!(list.contains(word), "{list}");
    }
    let doctor = folder.good(&["doctor"]);
    assert!(doctor.contains("loop devices: "), "{doctor}");
}
