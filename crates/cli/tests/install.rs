//! What `make install` and `make deb` put on a machine. It is judged by man,
//! the shells and dpkg, and gone after removal.

mod support;

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{BINARY, said};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether the machine has a program; says so if it does not.
fn has(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: {program} is not installed");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
    }
    found
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All files, links and directories below `root`.
fn tree(root: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("its type").is_dir() {
                waiting.push(entry.path());
            }
            all.insert(entry.path().strip_prefix(root).expect("below").to_owned());
        }
    }
    all
}

fn make(target: &str, root: &Path) -> String {
    run(Command::new("make")
        .arg(target)
        .arg(format!("DESTDIR={}", root.display()))
        .args(["PREFIX=/usr", &format!("BINARY={BINARY}")])
        .current_dir(repository()))
}

#[test]
fn installed_and_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    // What was there before stays.
    std::fs::create_dir_all(root.join("usr/share/man/man1")).expect("a directory");
    std::fs::write(root.join("usr/share/man/man1/other.1"), "").expect("a file");
    let before = tree(root);
    make("install", root);

    for name in [
        "mkfs.butterfs",
        "fsck.butterfs",
        "mount.butterfs",
        "mount.fuse.butterfs",
        "butterfstune",
    ] {
        let link = root.join("usr/sbin").join(name);
        let target = std::fs::read_link(&link).expect("a link");
        assert_eq!(target, Path::new("../bin/butterfs"), "{name}");
    }
    let image = root.join("image");
    run(Command::new(root.join("usr/sbin/mkfs.butterfs"))
        .args(["-q", "-b", "256m"])
        .arg(&image));
    let fsck = root.join("usr/sbin/fsck.butterfs");
    run(Command::new(&fsck).arg("-a").arg(&image));
    run(Command::new(&fsck).args(["-f", "-y"]).arg(&image));
    let code = |words: &[&str]| {
        Command::new(&fsck)
            .args(words)
            .output()
            .expect("fsck")
            .status
            .code()
    };
    assert_eq!(code(&["-a", "/nosuch"]), Some(8));
    assert_eq!(code(&["-x", "/nosuch"]), Some(16));
    // The head of a node in use is overwritten, so faults are left.
    let bytes = std::fs::read(&image).expect("the image");
    let nodes = bytes.len().min(64 << 20);
    let mut damaged = bytes;
    damaged[(1 << 20)..nodes].fill(0xaa);
    std::fs::write(&image, &damaged).expect("the image");
    assert!(matches!(
        code(&[image.to_str().expect("a path")]),
        Some(4 | 8)
    ));
    std::fs::remove_file(&image).expect("the image goes");

    if has("man") {
        let pages = std::fs::read_dir(root.join("usr/share/man/man1")).expect("pages");
        let pages: Vec<PathBuf> = pages.map(|page| page.expect("a page").path()).collect();
        assert!(pages.len() > 40, "{} pages", pages.len());
        for page in pages.iter().filter(|page| !page.ends_with("other.1")) {
            let text = run(Command::new("man")
                .args(["--warnings", "-E", "UTF-8", "-l"])
                .arg(page)
                .env("MANWIDTH", "80"));
            assert!(text.contains("NAME"), "{}: {text}", page.display());
        }
        let found = run(Command::new("man")
            .arg("-M")
            .arg(root.join("usr/share/man"))
            .args(["8", "mkfs.butterfs"]));
        assert!(found.contains("--root-owner"), "{found}");
    }

    let words = "COMP_WORDS=(butterfs subvolume sn); COMP_CWORD=2; _butterfs butterfs sn subvolume; \
                 echo \"${COMPREPLY[@]}\"";
    let bash = root.join("usr/share/bash-completion/completions/butterfs");
    let offered = run(Command::new("bash")
        .arg("-c")
        .arg(format!("source {}; {words}", bash.display())));
    assert_eq!(offered.trim(), "snapshot");
    if has("fish") {
        let fish = root.join("usr/share/fish/vendor_completions.d/butterfs.fish");
        let offered = run(Command::new("fish")
            .arg("--no-config")
            .arg("-c")
            .arg(format!(
                "source {}; complete --do-complete 'butterfs subvolume sn'",
                fish.display()
            )));
        assert!(offered.starts_with("snapshot"), "{offered}");
    }
    if has("zsh") {
        run(Command::new("zsh")
            .arg("-n")
            .arg(root.join("usr/share/zsh/site-functions/_butterfs")));
    }

    make("uninstall", root);
    assert_eq!(tree(root), before);
}

#[test]
fn a_debian_package_comes_and_goes() {
    if !has("dpkg-shlibdeps") || !support::is_root() {
        println!("skipped: packages are installed by root, on Debian");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let packages = directory.path().join("packages");
    let stripped = directory.path().join("butterfs");
    run(Command::new(repository().join("scripts/strip"))
        .arg(BINARY)
        .arg(&stripped));
    let length = |path: &Path| std::fs::metadata(path).expect("attributes").len();
    assert!(length(&stripped) < length(Path::new(BINARY)) / 2);
    run(Command::new(repository().join("scripts/deb"))
        .arg(&packages)
        .env("BINARY", &stripped)
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none"));
    let made: Vec<PathBuf> = std::fs::read_dir(&packages)
        .expect("packages")
        .map(|package| package.expect("an entry").path())
        .collect();
    let named = |start: &str| {
        let name = |path: &&PathBuf| {
            let name = path.file_name().expect("a name").to_string_lossy();
            name.starts_with(start)
        };
        made.iter().find(name).expect("the package").clone()
    };
    let (package, symbols) = (named("butterfs_"), named("butterfs-dbgsym_"));
    let listed = run(Command::new("dpkg-deb").arg("--contents").arg(&symbols));
    assert!(
        listed.contains("/usr/lib/debug/usr/bin/butterfs.debug"),
        "{listed}"
    );
    let fields = run(Command::new("dpkg-deb").arg("--field").arg(&package));
    assert!(fields.contains("Depends: libc6"), "{fields}");

    let root = directory.path().join("root");
    std::fs::create_dir_all(root.join("var/lib/dpkg/updates")).expect("a directory");
    std::fs::create_dir_all(root.join("var/lib/dpkg/info")).expect("a directory");
    std::fs::create_dir_all(root.join("usr/sbin")).expect("a directory");
    // An empty directory would be removed with the package.
    std::fs::write(root.join("usr/sbin/other"), "").expect("a file");
    symlink("usr/sbin", root.join("sbin")).expect("a link");
    std::fs::write(root.join("var/lib/dpkg/status"), "").expect("a file");
    let before = tree(&root.join("usr"));
    let dpkg = |words: &[&str]| {
        run(Command::new("dpkg")
            .arg(format!("--root={}", root.display()))
            .args(["--force-depends", "--log=/dev/null"])
            .args(words))
    };
    dpkg(&["--install", package.to_str().expect("a path")]);
    let version = run(Command::new(root.join("usr/bin/butterfs")).arg("--version"));
    assert!(version.starts_with("butterfs 0."), "{version}");
    assert!(
        root.join("usr/share/man/man1/butterfs-subvolume-list.1.gz")
            .exists()
    );
    assert!(root.join("sbin/mount.butterfs").exists());
    run(Command::new("dpkg")
        .arg(format!("--root={}", root.display()))
        .args(["--verify", "butterfs"]));
    dpkg(&["--purge", "butterfs"]);
    assert_eq!(tree(&root.join("usr")), before);
}

#[test]
fn help_and_manual_say_what_is_there() {
    let butterfs = || Command::new(BINARY);
    let help = run(butterfs().arg("--help"));
    assert!(help.contains("\n  completions"), "{help}");
    assert!(help.contains("\n  manual"), "{help}");
    let page = run(butterfs().args(["manual", "subvolume", "list"]));
    assert!(page.contains("butterfs\\-subvolume\\-list"), "{page}");
    let refused = butterfs().args(["manual", "subvolume", "lits"]).output();
    let refused = refused.expect("it starts");
    assert_eq!(refused.status.code(), Some(1));
    assert!(said(&refused).contains("no command subvolume lits"));
    let version = run(butterfs().arg("--version"));
    for word in ["zstd", "xxhash", "block-group-tree", "io_uring"] {
        assert!(version.contains(word), "no {word} in {version}");
    }
    assert!(run(butterfs().arg("-V")).lines().count() == 1);
}

/// A user who reads only a part of it must not see a panic.
#[test]
fn a_closed_pipe_is_no_panic() {
    let commands: &[&[&str]] = &[
        &["--help"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["manual"],
        &["manual", "mkfs"],
        &["mount", "-o", "help"],
        &["mkfs", "-O", "list-all"],
        &["check", "--list-codes"],
        &["lab", "list"],
    ];
    for words in commands {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = Command::new(BINARY).args(*words).stdout(writer).output();
        let output = output.expect("it starts");
        assert_eq!(said(&output), "", "{words:?}");
        assert_eq!(output.status.code(), Some(141), "{words:?}");
    }
}
