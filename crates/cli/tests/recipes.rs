//! Commands of the documentation, run as written.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Bench, said};

const PAGE: &str = include_str!("../../../docs/backup.md");

#[test]
fn the_backup_recipes_work() {
    let bench = Bench::new();
    let lines: Vec<&str> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .collect();
    assert!(lines.len() > 20, "the page has its commands indented");
    // What the page takes for granted.
    fs::rename(bench.path("volume"), bench.path("disk.img")).unwrap();
    fs::write(bench.path("notes.txt"), "first notes\n".repeat(2000)).unwrap();
    fs::create_dir(bench.path("letters")).unwrap();
    fs::write(bench.path("letters/first.txt"), "dear\n".repeat(5000)).unwrap();
    bench.run(&["subvolume", "create", "disk.img:/home"]);
    bench.run(&["copy", "--quiet", "notes.txt", "disk.img:/home"]);
    // This machine is its own other machine.
    let programs = bench.path("bin");
    fs::create_dir(&programs).unwrap();
    let program = |name: &str, text: &str| {
        fs::write(programs.join(name), text).unwrap();
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(programs.join(name), mode).unwrap();
    };
    program("ssh", "#!/bin/sh\nshift\nexec sh -c \"$*\"\n");
    let binary = env!("CARGO_BIN_EXE_butterfs");
    program("butterfs", &format!("#!/bin/sh\nexec {binary} \"$@\"\n"));
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let script = format!("set -eux -o pipefail\n{}\n", lines.join("\n"));
    let out = Command::new("bash")
        .args(["-c", &script])
        .env("PATH", path)
        .current_dir(bench.path("."))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", support::said(&out));
    let restored = fs::read_to_string(bench.path("restored.txt")).unwrap();
    assert_eq!(restored, "first notes\n".repeat(2000));
    for volume in ["backup.img", "second.img", "remote.img"] {
        let place = format!("{volume}:/monday/notes.txt");
        assert_eq!(bench.run(&["cat", &place]), restored, "{volume}");
    }
    let letter = "dear\n".repeat(5000);
    let plain = fs::read_to_string(bench.path("plain/tuesday/letters/first.txt")).unwrap();
    assert_eq!(plain, letter);
    let place = "second.img:/tuesday/letters/first.txt";
    assert_eq!(bench.run(&["cat", place]), letter);
    let left = bench.run(&["subvolume", "list", "disk.img"]);
    assert!(left.contains("tuesday") && !left.contains("path snapshots/home/monday"));
}

const README: &str = include_str!("../../../README.md");
const TOUR: &str = include_str!("../../../docs/tour.md");
/// An ordinary user.
const NOBODY: u32 = 65534;

/// The commands of a page: the content of its shell blocks, each with its
/// heading.
fn commands(page: &str) -> Vec<(&str, &str)> {
    let (mut heading, mut inside) = ("", false);
    let mut all = Vec::new();
    for line in page.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if inside => all.push((heading, line)),
            _ => heading = line.strip_prefix("## ").unwrap_or(heading),
        }
    }
    all
}

/// A home for an ordinary user, with the program and some files.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory");
    let at = |name: &str| home.path().join(name);
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(home.path(), open).expect("permissions");
    fs::create_dir_all(at("Pictures/summer")).expect("a directory");
    fs::write(at("Pictures/list.txt"), "one\n".repeat(20_000)).expect("a file");
    fs::write(at("Pictures/summer/beach"), vec![7; 2_000_000]).expect("a file");
    fs::create_dir(at("bin")).expect("a directory");
    fs::copy(support::BINARY, at("bin/butterfs")).expect("the program");
    if support::is_root() {
        for name in [
            "",
            "Pictures",
            "Pictures/list.txt",
            "Pictures/summer",
            "Pictures/summer/beach",
        ] {
            std::os::unix::fs::chown(at(name), Some(NOBODY), Some(NOBODY)).expect("an owner");
        }
    }
    home
}

/// A shell of an ordinary user in `home`.
fn shell(home: &Path, script: &str) -> Command {
    let mut shell = Command::new("bash");
    if support::is_root() {
        shell = Command::new("setpriv");
        let id = NOBODY.to_string();
        shell.args(["--reuid", &id, "--regid", &id, "--clear-groups", "bash"]);
    }
    let path = std::env::var("PATH").expect("a path");
    shell
        .args(["-c", script])
        .env("HOME", home)
        .env("PATH", format!("{}/bin:{path}", home.display()))
        .current_dir(home);
    shell
}

/// All commands of README and of the tour, in this order, as an ordinary user
/// in a clean home.
#[test]
fn the_commands_of_readme_and_tour_work_for_an_ordinary_user() {
    if !support::can_mount() {
        return;
    }
    // These build, install and test the program: `make install` is run by
    // tests/install.rs, the others are run by CI.
    let (build, lines): (Vec<_>, Vec<_>) = commands(README)
        .into_iter()
        .chain(commands(TOUR))
        .partition(|(heading, _)| *heading == "Install");
    assert!(build.iter().all(|(_, line)| line.starts_with("make ")));
    let makefile = include_str!("../../../Makefile");
    for target in ["dist", "install", "demo", "test"] {
        assert!(makefile.contains(&format!("\n{target}:")), "{target}");
        assert!(build.iter().any(|(_, line)| line.contains(target)));
    }
    assert!(lines.len() > 40, "{lines:?}");
    let lines: Vec<&str> = lines.into_iter().map(|(_, line)| line).collect();
    let script = format!("set -eux -o pipefail\n{}\n", lines.join("\n"));
    let home = home();
    let out = shell(home.path(), &script).output();
    let _ = Command::new(support::BINARY)
        .args(["umount", "--lazy"])
        .arg(home.path().join("photos"))
        .output();
    let out = out.expect("the shell runs");
    assert!(out.status.success(), "{}", said(&out));
    // The user who made a volume owns what is in it, unless an option said
    // otherwise.
    let image = fs::metadata(home.path().join("photos.img")).expect("the volume");
    for (volume, owner, least) in [("photos.img", image.uid(), 12), ("root.img", 0, 2)] {
        let list = Command::new(support::BINARY)
            .args(["ls", "--json", "-R", &format!("{volume}:/")])
            .current_dir(home.path())
            .output()
            .expect("the program runs");
        let list: Vec<serde_json::Value> = serde_json::from_slice(&list.stdout).expect("JSON");
        assert!(list.len() >= least, "{list:?}");
        assert!(list.iter().all(|entry| entry["uid"] == owner), "{list:?}");
    }
    for volume in ["photos.img", "backup.img", "root.img", "box.img"] {
        let out = shell(home.path(), &format!("butterfs check {volume}")).output();
        let out = out.expect("the shell runs");
        assert!(out.status.success(), "{volume}: {}", said(&out));
    }
}

/// Pages of the documentation, and what they say.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths: Vec<PathBuf> = Vec::new();
    for folder in ["docs", "docs/design", "docs/evidence"] {
        let entries = fs::read_dir(root.join(folder)).expect("a directory");
        paths.extend(entries.flatten().map(|entry| entry.path()));
    }
    let crates = fs::read_dir(root.join("crates")).expect("a directory");
    let pages = crates
        .flatten()
        .map(|entry| entry.path().join("ARCHITECTURE.md"));
    paths.extend(pages.filter(|page| page.exists()));
    paths.retain(|path| path.extension().is_some_and(|end| end == "md"));
    for page in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        paths.push(root.join(page));
    }
    let read = |path: &PathBuf| fs::read_to_string(path).expect("a page");
    let name = |path: &PathBuf| path.display().to_string();
    paths.iter().map(|path| (name(path), read(path))).collect()
}

/// What a page links to is there.
#[test]
fn links_of_the_documentation_lead_somewhere() {
    let mut dead = Vec::new();
    for (page, text) in pages() {
        let folder = Path::new(&page).parent().expect("a folder");
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            let is_file = !target.is_empty() && !target.contains("://");
            if is_file && !folder.join(target).exists() {
                dead.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// The words that choose a command: those before its first argument.
fn chosen(said: &str) -> Vec<&str> {
    let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    said.split_whitespace()
        .take_while(|word| is_word(word) && !word.starts_with('-'))
        .collect()
}

/// What the documentation calls a command exists, and has the options with
/// which it is shown.
#[test]
fn commands_that_the_documentation_names_exist() {
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    let mut help = |words: &[&str]| -> Option<String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        if let Some(known) = helps.get(&words) {
            return Some(known.clone());
        }
        let out = Command::new(support::BINARY)
            .args(&words)
            .arg("--help")
            .output()
            .expect("the program runs");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        out.status.success().then(|| {
            helps.insert(words, text.clone());
            text
        })
    };
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (page, text) in pages() {
        let quoted = text.split('`').skip(1).step_by(2);
        let blocks = text.lines().map(str::trim_start);
        for said in quoted.chain(blocks) {
            let Some(said) = said.strip_prefix("butterfs ") else {
                continue;
            };
            // Of a pipe the first program alone.
            let said = said.split(['|', '#', ';']).next().unwrap_or_default();
            // Options of the program itself, and columns of a table.
            if said.starts_with(['-', ' ']) || said.contains("COMMAND") {
                continue;
            }
            count += 1;
            let words = chosen(said);
            // The longest sequence that is a command. Words after it are
            // arguments.
            let found = (1..=words.len().min(3))
                .rev()
                .find_map(|length| help(&words[..length]));
            let Some(found) = found else {
                wrong.push(format!("{page}: there is no `butterfs {said}`"));
                continue;
            };
            for option in said
                .split_whitespace()
                .filter(|word| word.starts_with("--"))
            {
                let option = option.split('=').next().unwrap_or(option);
                let option = option.trim_end_matches([',', '.', ')', ']']);
                if !found.contains(option) && option != "--help" {
                    wrong.push(format!("{page}: `butterfs {said}` has no {option}"));
                }
            }
        }
    }
    assert!(count > 100, "{count}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The picture in README is what the program prints today.
#[test]
fn the_picture_of_a_session_is_current() {
    if !support::can_mount() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/session");
    let out = Command::new(script)
        .args([support::BINARY, "--check"])
        .output()
        .expect("python3 is there");
    assert!(out.status.success(), "{}", said(&out));
}
