//! Commands on many files of a mount, which its server carries out: they do what
//! the system's own commands do on the same files, for whoever asks, and other
//! programs see what they did.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{BINARY, Bench, Mounted, can_mount, is_root, said};

const USER: u32 = 65534;

/// A directory of the host with all kinds of files.
fn sample(bench: &Bench) {
    let top = bench.path("sample");
    fs::create_dir_all(top.join("etc/deep/er")).expect("directories");
    fs::create_dir(top.join("empty")).expect("a directory");
    for number in 0..40 {
        let file = top.join(format!("etc/deep/file{number}.conf"));
        fs::write(file, vec![number as u8; 100 + 997 * number]).expect("a file");
    }
    fs::write(top.join("etc/big"), vec![7; 3 << 20]).expect("a file");
    let sparse = fs::File::create(top.join("etc/sparse")).expect("a file");
    sparse.set_len(5 << 20).expect("a hole");
    fs::hard_link(top.join("etc/big"), top.join("etc/deep/twin")).expect("a link");
    symlink("deep/file1.conf", top.join("etc/link")).expect("a link");
    symlink("nowhere", top.join("etc/lost")).expect("a link");
    let mode = fs::Permissions::from_mode;
    fs::write(top.join("etc/prog"), "#!/bin/sh\n").expect("a file");
    fs::set_permissions(top.join("etc/prog"), mode(0o4755)).expect("its mode");
    fs::set_permissions(top.join("etc/deep"), mode(0o2755)).expect("its mode");
    let made = Command::new("mkfifo").arg(top.join("pipe")).status();
    assert!(made.expect("mkfifo runs").success());
    let old = Command::new("touch")
        .args(["-h", "-d", "2001-02-03 04:05:06.789"])
        .args([
            top.join("etc/link"),
            top.join("etc/deep/file7.conf"),
            top.join("empty"),
        ])
        .status();
    assert!(old.expect("touch runs").success());
}

/// What lies below a directory, but for times of change: a line for each.
fn listed(top: &Path) -> Vec<String> {
    let listed = Command::new("find")
        .current_dir(top)
        .args([".", "-printf", "%P %y %m %U %G %n %s %TY-%Tm-%Td %TT %l\n"])
        .output()
        .expect("find runs");
    assert!(listed.status.success(), "{}", said(&listed));
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn sums(top: &Path) -> String {
    let script = "find . -type f | sort | xargs -d '\\n' -r sha256sum";
    let output = Command::new("sh")
        .args(["-c", script])
        .current_dir(top)
        .output();
    let output = output.expect("sh runs");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn system(bench: &Bench, words: &[&str]) -> String {
    let output = Command::new(words[0])
        .args(&words[1..])
        .current_dir(bench.path(""))
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A bench that others can enter, with the program in it.
fn open_bench() -> Bench {
    let bench = Bench::new();
    let everybody = fs::Permissions::from_mode(0o755);
    fs::set_permissions(bench.path(""), everybody).expect("permissions");
    fs::copy(BINARY, bench.path("butterfs")).expect("the program");
    bench
}

fn as_user(bench: &Bench, words: &[&str]) -> Output {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={USER}"), format!("--regid={USER}")]);
    command.args(["--clear-groups", "./butterfs"]).args(words);
    let output = command.current_dir(bench.path("")).output();
    output.expect("setpriv runs")
}

fn refused(output: &Output, texts: &[&str]) {
    let text = said(output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for wanted in texts {
        assert!(text.contains(wanted), "no `{wanted}` in: {text}");
    }
}

fn end(bench: &Bench, mounted: Mounted) {
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
}

fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn verbs_do_on_a_mount_what_the_systems_do() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    sample(&bench);
    let mounted = bench.mount("rw");
    for name in ["ours", "theirs"] {
        system(&bench, &["cp", "-a", "sample", &format!("mnt/{name}")]);
    }
    let same = || {
        let (ours, theirs) = (bench.path("mnt/ours"), bench.path("mnt/theirs"));
        let found = listed(&ours);
        assert_eq!(found, listed(&theirs));
        found
    };
    let before = same();
    assert_eq!(before.len(), 52, "{before:#?}");

    let found = bench.run(&["find", "mnt/ours", "-name", "*.conf", "-type", "f"]);
    let wanted = system(
        &bench,
        &["find", "mnt/ours", "-name", "*.conf", "-type", "f"],
    );
    assert_eq!(lines(&found).len(), 40);
    assert_eq!(lines(&found), lines(&wanted));
    let found = bench.run(&["find", "mnt/ours/etc", "--size", "+1m"]);
    assert_eq!(
        lines(&found),
        [
            "mnt/ours/etc/big",
            "mnt/ours/etc/deep/twin",
            "mnt/ours/etc/sparse"
        ]
    );
    let sum = bench.run(&["du", "-s", "mnt/ours"]);
    assert_eq!(sum, system(&bench, &["du", "-s", "mnt/ours"]));
    assert!(sum.trim_end().ends_with("mnt/ours"), "{sum}");
    let drawn = bench.run(&["tree", "mnt/ours"]);
    assert!(drawn.contains("link -> deep/file1.conf"), "{drawn}");
    assert!(drawn.contains("4 directories, 47 files"), "{drawn}");

    bench.run(&["chmod", "-R", "u=rwX,g=rX,o=", "mnt/ours"]);
    system(&bench, &["chmod", "-R", "u=rwX,g=rX,o=", "mnt/theirs"]);
    let changed = same();
    assert_ne!(changed, before);
    assert!(
        changed
            .iter()
            .any(|line| line.starts_with("etc/prog f 750 ")),
        "{changed:#?}"
    );
    if is_root() {
        let mode = fs::Permissions::from_mode(0o6755);
        for name in ["ours", "theirs"] {
            let program = bench.path(&format!("mnt/{name}/etc/prog"));
            fs::set_permissions(program, mode.clone()).expect("its mode");
        }
        bench.run(&["chown", "-R", "-h", "1234:nogroup", "mnt/ours"]);
        system(&bench, &["chown", "-R", "-h", "1234:nogroup", "mnt/theirs"]);
        let owned = same();
        assert!(
            owned
                .iter()
                .any(|line| line.starts_with("etc/prog f 755 1234 ")),
            "{owned:#?}"
        );
    }

    bench.run(&[
        "mv",
        "mnt/ours/etc/deep",
        "mnt/ours/etc/big",
        "mnt/ours/empty",
    ]);
    system(
        &bench,
        &[
            "mv",
            "mnt/theirs/etc/deep",
            "mnt/theirs/etc/big",
            "mnt/theirs/empty",
        ],
    );
    bench.run(&["mv", "mnt/ours/etc", "mnt/ours/moved"]);
    system(&bench, &["mv", "mnt/theirs/etc", "mnt/theirs/moved"]);
    assert!(bench.path("mnt/ours/empty/deep/twin").is_file());
    let times = |lines: Vec<String>| -> Vec<String> {
        lines
            .into_iter()
            .filter(|line| !line.contains(" d "))
            .collect()
    };
    assert_eq!(
        times(listed(&bench.path("mnt/ours"))),
        times(listed(&bench.path("mnt/theirs")))
    );

    bench.run(&["rm", "-r", "mnt/ours/empty", "mnt/ours/moved/prog"]);
    assert!(!bench.path("mnt/ours/empty").exists());
    assert!(bench.path("mnt/ours/moved/link").is_symlink());
    bench.run(&["rm", "-rf", "mnt/ours", "mnt/ours/absent", "mnt/gone/too"]);
    assert!(!bench.path("mnt/ours").exists());
    let missing = bench.try_run(&["rm", "mnt/ours", "mnt/theirs/pipe"]);
    refused(
        &missing,
        &["mnt/ours: no such file", "1 files or directories"],
    );
    assert!(!bench.path("mnt/theirs/pipe").exists());
    end(&bench, mounted);
}

#[test]
fn copies_and_archives_arrive_whole() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    sample(&bench);
    let labelled = Command::new("setfattr")
        .args(["-n", "user.note", "-v", "kept"])
        .arg(bench.path("sample/etc/prog"))
        .status();
    let mounted = bench.mount("rw");
    system(&bench, &["cp", "-a", "sample", "mnt/theirs"]);
    let copied = bench.run(&["copy", "sample", "mnt/ours"]);
    assert!(copied.starts_with("52 files, "), "{copied}");
    let (ours, theirs) = (bench.path("mnt/ours"), bench.path("mnt/theirs"));
    let found = listed(&ours);
    assert_eq!(found.len(), 52);
    assert_eq!(found, listed(&theirs));
    assert_eq!(sums(&ours), sums(&bench.path("sample")));
    let identity = |name: &str| fs::metadata(ours.join(name)).expect("it is there").ino();
    assert_eq!(identity("etc/big"), identity("etc/deep/twin"));
    let blocks = fs::metadata(ours.join("etc/sparse"))
        .expect("it is there")
        .blocks();
    assert_eq!(blocks, 0);
    if labelled.is_ok_and(|status| status.success()) {
        let value = system(
            &bench,
            &[
                "getfattr",
                "--only-values",
                "-n",
                "user.note",
                "mnt/ours/etc/prog",
            ],
        );
        assert_eq!(value, "kept");
    }
    // Into an existing directory, over what is there, and what is in one.
    bench.run(&["copy", "-q", "sample/etc", "sample/pipe", "mnt/ours"]);
    bench.run(&["copy", "-q", "sample/.", "mnt/ours"]);
    assert_eq!(sums(&ours), sums(&bench.path("sample")));
    assert_eq!(listed(&ours).len(), 52);
    refused(
        &bench.try_run(&["copy", "sample", "sample/etc", "mnt/absent"]),
        &["no directory"],
    );

    system(&bench, &["tar", "-cf", "archive.tar", "-C", "sample", "."]);
    for name in ["mnt/x", "mnt/y"] {
        fs::create_dir(bench.path(name)).expect("a directory");
    }
    bench.run(&["tar", "extract", "-f", "archive.tar", "mnt/x"]);
    system(&bench, &["tar", "-xpf", "archive.tar", "-C", "mnt/y"]);
    let extracted = listed(&bench.path("mnt/x"));
    assert_eq!(extracted.len(), 52);
    assert_eq!(extracted, listed(&bench.path("mnt/y")));
    assert_eq!(sums(&bench.path("mnt/x")), sums(&bench.path("sample")));
    fs::write(
        bench.path("half.tar"),
        &fs::read(bench.path("archive.tar")).unwrap()[..2 << 20],
    )
    .expect("a half");
    fs::create_dir(bench.path("mnt/half")).expect("a directory");
    let half = bench.try_run(&["tar", "extract", "-f", "half.tar", "mnt/half"]);
    refused(&half, &["each whole"]);
    end(&bench, mounted);
}

#[test]
fn links_of_the_destination_lead_nowhere_else() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    for name in ["inside", "inside/real", "outside"] {
        fs::create_dir(bench.path(&format!("mnt/{name}"))).expect("a directory");
    }
    for (target, link) in [("real", "near"), ("../outside", "far"), ("/", "top")] {
        symlink(target, bench.path(&format!("mnt/inside/{link}"))).expect("a link");
    }
    for name in ["near", "far", "top"] {
        fs::create_dir_all(bench.path(&format!("in/{name}"))).expect("a directory");
        fs::write(bench.path(&format!("in/{name}/file")), name).expect("a file");
    }
    system(
        &bench,
        &[
            "tar",
            "-cf",
            "a.tar",
            "-C",
            "in",
            "near/file",
            "far/file",
            "top/file",
        ],
    );
    let output = bench.try_run(&["tar", "extract", "-f", "a.tar", "mnt/inside"]);
    refused(
        &output,
        &[
            "leads out of the directory",
            "2 files or directories are left out",
        ],
    );
    let content = fs::read_to_string(bench.path("mnt/inside/real/file"));
    assert_eq!(content.expect("it is there"), "near");
    assert!(!bench.path("mnt/outside/file").exists());
    assert!(!bench.path("mnt/file").exists());
    end(&bench, mounted);
}

/// Files of root and of the user, which others may reach.
fn mixed(bench: &Bench) {
    for (name, owner, mode) in [
        ("theirs", USER, 0o755),
        ("theirs/own", USER, 0o755),
        ("theirs/roots", 0, 0o755),
        ("secret", 0, 0o700),
        ("sticky", 0, 0o1777),
        ("public", 0, 0o777),
    ] {
        let directory = bench.path(&format!("mnt/{name}"));
        fs::create_dir(&directory).expect("a directory");
        chown(&directory, Some(owner), Some(owner)).expect("an owner");
        fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).expect("a mode");
    }
    for (name, owner) in [
        ("theirs/own/a", USER),
        ("theirs/roots/b", 0),
        ("theirs/c", USER),
        ("secret/d", 0),
        ("sticky/roots", 0),
        ("sticky/theirs", USER),
        ("public/e", 0),
    ] {
        let file = bench.path(&format!("mnt/{name}"));
        fs::write(&file, name).expect("a file");
        chown(&file, Some(owner), Some(owner)).expect("an owner");
    }
}

#[test]
fn others_get_what_their_rights_allow() {
    if !can_mount() || !is_root() {
        println!("skipped: acting as another user needs root");
        return;
    }
    let bench = open_bench();
    let mounted = bench.mount("rw,allow_other");
    mixed(&bench);
    let run = |words: &[&str]| as_user(&bench, words);
    let denied = run(&["find", "mnt", "-type", "f"]);
    refused(
        &denied,
        &[
            "secret: permission denied",
            "mnt/theirs/own/a\n",
            "mnt/public/e\n",
        ],
    );
    assert!(!said(&denied).contains("secret/d"), "{}", said(&denied));
    refused(
        &run(&["du", "-s", "mnt/secret/d"]),
        &["mnt/secret/d: Permission denied"],
    );
    refused(&run(&["tree", "mnt/secret"]), &["permission denied"]);

    let output = run(&["chmod", "-R", "700", "mnt/theirs"]);
    refused(
        &output,
        &[
            "roots: operation not permitted",
            "2 files or directories are left out",
        ],
    );
    let mode = |name: &str| fs::metadata(bench.path(name)).expect("it is there").mode() & 0o7777;
    assert_eq!(
        (mode("mnt/theirs"), mode("mnt/theirs/own/a")),
        (0o700, 0o700)
    );
    assert_eq!(
        (mode("mnt/theirs/roots"), mode("mnt/theirs/roots/b")),
        (0o755, 0o644)
    );
    refused(
        &run(&["chmod", "777", "mnt/public/e"]),
        &["operation not permitted"],
    );
    // Neither owners of others nor groups of which they are no member.
    for owner in ["0", ":0", "1"] {
        let output = run(&["chown", owner, "mnt/theirs/c"]);
        refused(&output, &["operation not permitted"]);
    }
    assert!(
        run(&["chown", &format!("{USER}:{USER}"), "mnt/theirs/c"])
            .status
            .success()
    );
    let others = fs::metadata(bench.path("mnt/theirs/c")).expect("it is there");
    assert_eq!((others.uid(), others.gid()), (USER, USER));
    // A set-group bit of a group of which they are no member is lost.
    chown(bench.path("mnt/theirs/c"), Some(USER), Some(0)).expect("an owner");
    assert!(run(&["chmod", "2755", "mnt/theirs/c"]).status.success());
    assert_eq!(mode("mnt/theirs/c"), 0o755);

    let output = run(&["rm", "-r", "mnt/sticky/roots", "mnt/sticky/theirs"]);
    refused(
        &output,
        &[
            "mnt/sticky/roots: roots: operation not permitted",
            "1 files",
        ],
    );
    assert!(bench.path("mnt/sticky/roots").exists());
    assert!(!bench.path("mnt/sticky/theirs").exists());
    let output = run(&["rm", "-r", "mnt/secret"]);
    refused(&output, &["permission denied"]);
    let output = run(&["rm", "-r", "mnt/theirs"]);
    refused(&output, &["b: permission denied"]);
    assert!(bench.path("mnt/theirs/roots/b").exists());
    assert!(!bench.path("mnt/theirs/own").exists() && !bench.path("mnt/theirs/c").exists());
    refused(
        &run(&["mv", "mnt/sticky/roots", "mnt/public/f"]),
        &["operation not permitted"],
    );
    refused(
        &run(&["mv", "mnt/public/e", "mnt/e"]),
        &["permission denied"],
    );
    assert!(
        run(&["mv", "mnt/public/e", "mnt/sticky/e"])
            .status
            .success()
    );
    assert_eq!(
        fs::read_to_string(bench.path("mnt/sticky/e")).expect("moved"),
        "public/e"
    );
    end(&bench, mounted);
}

#[test]
fn others_copy_as_themselves() {
    if !can_mount() || !is_root() {
        println!("skipped: acting as another user needs root");
        return;
    }
    let bench = open_bench();
    sample(&bench);
    fs::set_permissions(
        bench.path("sample/etc/big"),
        fs::Permissions::from_mode(0o600),
    )
    .expect("a mode");
    let mounted = bench.mount("rw,allow_other");
    mixed(&bench);
    let run = |words: &[&str]| as_user(&bench, words);
    refused(
        &run(&["copy", "-q", "sample/empty", "mnt"]),
        &["permission denied"],
    );
    assert!(!bench.path("mnt/empty").exists());
    // The file that they cannot read is left out under both of its names.
    let output = run(&["copy", "sample", "mnt/public"]);
    refused(
        &output,
        &[
            "sample/etc/big: Permission denied",
            "2 files or directories",
        ],
    );
    let found = listed(&bench.path("mnt/public/sample"));
    assert_eq!(found.len(), 50, "{found:#?}");
    for line in &found {
        assert!(line.contains(&format!(" {USER} {USER} ")), "{line}");
    }
    let program = fs::metadata(bench.path("mnt/public/sample/etc/prog")).expect("it is there");
    assert_eq!(program.mode() & 0o7777, 0o755, "it lends nobody's rights");
    system(
        &bench,
        &[
            "tar",
            "-cf",
            "archive.tar",
            "-C",
            "sample",
            "empty",
            "etc/prog",
            "pipe",
        ],
    );
    let output = run(&["tar", "extract", "-f", "archive.tar", "mnt/theirs"]);
    assert!(output.status.success(), "{}", said(&output));
    let program = fs::metadata(bench.path("mnt/theirs/etc/prog")).expect("it is there");
    assert_eq!((program.mode() & 0o7777, program.uid()), (0o755, USER));
    refused(
        &run(&["tar", "extract", "-f", "archive.tar", "mnt/secret"]),
        &["permission denied"],
    );
    end(&bench, mounted);
}

#[test]
fn protected_files_and_mounts_stay_as_they_are() {
    if !can_mount() || !is_root() {
        println!("skipped: chattr +i needs root");
        return;
    }
    let bench = open_bench();
    let mounted = bench.mount("rw");
    fs::create_dir(bench.path("mnt/dir")).expect("a directory");
    for name in ["kept", "free"] {
        fs::write(bench.path(&format!("mnt/dir/{name}")), name).expect("a file");
    }
    system(&bench, &["chattr", "+i", "mnt/dir/kept"]);
    let output = bench.try_run(&["rm", "-r", "mnt/dir"]);
    refused(
        &output,
        &["kept: operation not permitted", "1 files or directories"],
    );
    assert!(bench.path("mnt/dir/kept").exists() && !bench.path("mnt/dir/free").exists());
    refused(
        &bench.try_run(&["chmod", "600", "mnt/dir/kept"]),
        &["operation not permitted"],
    );
    system(&bench, &["chattr", "-i", "mnt/dir/kept"]);
    bench.run(&["subvolume", "create", "mnt/dir/sub"]);
    fs::write(bench.path("mnt/dir/sub/file"), "x").expect("a file");
    refused(&bench.try_run(&["rm", "-r", "mnt/dir"]), &["subvolume"]);
    assert!(bench.path("mnt/dir/sub/file").exists());
    bench.run(&["property", "set", "mnt/dir/sub", "ro", "true"]);
    refused(&bench.try_run(&["rm", "mnt/dir/sub/file"]), &["read-only"]);
    // Programs see what is mounted there, and not what the volume has below.
    fs::create_dir(bench.path("mnt/dir/over")).expect("a directory");
    system(&bench, &["mount", "-t", "tmpfs", "none", "mnt/dir/over"]);
    let output = bench.try_run(&["chmod", "-R", "700", "mnt/dir"]);
    system(&bench, &["umount", "mnt/dir/over"]);
    refused(&output, &["something is mounted below"]);
    // A read-only way to a volume that is mounted for writing.
    fs::create_dir(bench.path("way")).expect("a directory");
    system(&bench, &["mount", "--bind", "mnt", "way"]);
    system(&bench, &["mount", "-o", "remount,bind,ro", "way"]);
    let output = bench.try_run(&["rm", "way/dir/kept"]);
    let found = bench.try_run(&["find", "way/dir", "-name", "kept"]);
    system(&bench, &["umount", "way"]);
    refused(&output, &["read-only"]);
    assert_eq!(said(&found), "way/dir/kept\n");
    end(&bench, mounted);
}

#[test]
fn programs_see_what_the_server_did() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let dir = bench.path("mnt/dir");
    fs::create_dir(&dir).expect("a directory");
    for number in 0..200 {
        fs::write(dir.join(format!("file{number}")), vec![5; 5000]).expect("a file");
    }
    let names = || -> usize { fs::read_dir(&dir).expect("a listing").count() };
    let open = fs::File::open(dir.join("file1")).expect("it opens");
    let links = |file: &fs::File| file.metadata().expect("attributes").nlink();
    // The kernel knows the listing, the attributes, and that names are free.
    assert_eq!((names(), names()), (200, 200));
    assert_eq!(links(&open), 1);
    for name in ["new", "moved"] {
        assert!(!dir.join(name).exists());
    }
    fs::write(bench.path("new"), "from the host").expect("a file");
    bench.run(&["copy", "-q", "new", "mnt/dir"]);
    assert_eq!(
        fs::read_to_string(dir.join("new")).expect("it is seen"),
        "from the host"
    );
    assert_eq!(names(), 201);
    bench.run(&["mv", "mnt/dir/file2", "mnt/dir/moved"]);
    assert!(dir.join("moved").exists() && !dir.join("file2").exists());
    bench.run(&["chmod", "-R", "u=rwX,go=", "mnt/dir"]);
    let mode = |name: &str| fs::metadata(dir.join(name)).expect("attributes").mode() & 0o7777;
    assert_eq!((mode("file3"), mode("")), (0o600, 0o700));
    // A file is replaced by another one.
    fs::write(bench.path("file4"), "other").expect("a file");
    bench.run(&["copy", "-q", "file4", "mnt/dir"]);
    assert_eq!(
        fs::read_to_string(dir.join("file4")).expect("it is seen"),
        "other"
    );
    bench.run(&["rm", "mnt/dir/file1", "mnt/dir/file5"]);
    assert!(!dir.join("file1").exists());
    assert_eq!(names(), 199);
    assert_eq!(links(&open), 0);
    let mut content = Vec::new();
    std::io::Read::read_to_end(&mut &open, &mut content).expect("it can be read");
    assert_eq!(content, vec![5; 5000]);
    bench.run(&["rm", "-r", "mnt/dir"]);
    assert!(!dir.exists());
    drop(open);
    // In the other direction: what programs did just before.
    fs::create_dir(&dir).expect("the name is free");
    fs::write(dir.join("late"), "x").expect("a file");
    assert_eq!(
        bench.run(&["find", "mnt/dir", "-type", "f"]),
        "mnt/dir/late\n"
    );
    end(&bench, mounted);
}

#[test]
fn an_interrupted_transfer_leaves_whole_files() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("many")).expect("a directory");
    for number in 0..300 {
        fs::write(bench.path(&format!("many/{number}")), vec![3; 20_000]).expect("a file");
    }
    system(&bench, &["tar", "-cf", "many.tar", "many"]);
    let archive = fs::read(bench.path("many.tar")).expect("an archive");
    let mounted = bench.mount("rw");
    let mut client = Command::new(BINARY)
        .args(["tar", "extract", "mnt"])
        .current_dir(bench.path(""))
        .stdin(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = client.stdin.take().expect("piped");
    input
        .write_all(&archive[..archive.len() / 2])
        .expect("a half");
    let count = || fs::read_dir(bench.path("mnt/many")).map_or(0, |names| names.count());
    let begun = Instant::now();
    while count() < 50 {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing arrives");
        std::thread::sleep(Duration::from_millis(10));
    }
    client.kill().expect("it is killed");
    client.wait().expect("its status");
    drop(input);
    std::thread::sleep(Duration::from_millis(500));
    let arrived = count();
    assert!((50..300).contains(&arrived), "{arrived}");
    for entry in fs::read_dir(bench.path("mnt/many")).expect("a listing") {
        let content = fs::read(entry.expect("an entry").path()).expect("a file");
        assert_eq!(content, vec![3; 20_000]);
    }
    assert_eq!(count(), arrived, "nothing goes on");
    bench.run(&["rm", "-r", "mnt/many"]);
    end(&bench, mounted);
}

#[test]
fn processes_with_rules_of_their_own_are_refused() {
    if !can_mount() || !is_root() {
        println!("skipped: acting as another user needs root");
        return;
    }
    let bench = open_bench();
    let mounted = bench.mount("rw,allow_other");
    let shared = bench.path("mnt/shared");
    fs::create_dir(&shared).expect("a directory");
    chown(&shared, Some(0), Some(12345)).expect("an owner");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o770)).expect("a mode");
    for name in ["one", "two"] {
        fs::write(shared.join(name), name).expect("a file");
    }
    let run = |before: &[&str], words: &[&str]| {
        let mut command = Command::new(before[0]);
        command.args(&before[1..]).arg("./butterfs").args(words);
        let output = command.current_dir(bench.path("")).output();
        output.expect("it runs")
    };
    let user = ["setpriv", "--reuid=65534", "--regid=65534"];
    let remove = ["rm", "mnt/shared/one"];
    let wanted = &["does not act for this process"];
    let caps = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"];
    for more in [
        &["--clear-groups", caps[0], caps[1]][..],
        &["--clear-groups", "--no-new-privs", "--groups=12345"][1..],
    ] {
        refused(&run(&[&user[..], more].concat(), &remove), wanted);
    }
    // Root of another user namespace is nobody special here.
    let output = run(&["unshare", "--user", "--map-root-user"], &remove);
    if !said(&output).contains("unshare") {
        refused(&output, wanted);
    }
    refused(
        &run(&[&user[..], &["--clear-groups"]].concat(), &remove),
        &["ermission denied"],
    );
    assert!(shared.join("one").exists());
    // Further groups count.
    let member = run(&[&user[..], &["--groups=7,12345"]].concat(), &remove);
    assert!(member.status.success(), "{}", said(&member));
    assert!(!shared.join("one").exists());
    // So do access control lists.
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o700)).expect("a mode");
    let set = Command::new("setfacl")
        .args(["-m", "u:65534:rwx"])
        .arg(&shared)
        .status();
    if set.is_ok_and(|status| status.success()) {
        let named = run(
            &[&user[..], &["--clear-groups"]].concat(),
            &["rm", "mnt/shared/two"],
        );
        assert!(named.status.success(), "{}", said(&named));
        assert!(!shared.join("two").exists());
    } else {
        println!("skipped: setfacl is not installed");
    }
    end(&bench, mounted);
}

/// Asks as no tool of ours does. Arguments: the mountpoint, a directory on it.
/// Prints an answer's text for each request.
const HOSTILE: &str = r#"
import array, json, os, socket, struct, sys
point, directory = sys.argv[1:3]
service = os.getxattr(point, "butterfs.service")

def ask(request, path, frames=b"", magic=b"FIL1"):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(1)
    one.connect(b"\0" + service)
    fds = array.array("i", [os.open(path, os.O_PATH)])
    try:
        one.sendmsg([magic], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        body = request if isinstance(request, bytes) else json.dumps(request).encode()
        one.sendall(struct.pack("<I", len(body)) + body + frames)
    except (BrokenPipeError, ConnectionResetError):
        pass
    answer = b""
    try:
        while True:
            try:
                part = one.recv(65536)
            except TimeoutError:
                # It waits for more.
                one.settimeout(20)
                one.shutdown(socket.SHUT_WR)
                continue
            if not part:
                break
            answer += part
    except ConnectionResetError:
        pass
    for fd in fds:
        os.close(fd)
    print(repr(answer))

def word(text):
    return {"Unix": list(text.encode())}

def verb(tag, command, begun):
    place = {"volume": word(""), "path": word("m")}
    command = {key: ([place] if value == "places" else place if value == "place" else value)
               for key, value in command.items()}
    return {tag: {"command": command, "given": [{"word": word("m"), "begun": begun}]}}

rm = {"recursive": True, "force": False, "places": "places"}
for begun in [{"Named": [0, list(b"..")]}, {"Named": [0, list(b".")]}, {"Named": [0, []]},
              {"Named": [0, list(b"a/b")]}, {"Named": [7, list(b"a")]}, {"At": 0},
              {"Named": [0, list(b"../victim")]}]:
    ask(verb("Rm", rm, begun), directory)
ask(verb("Rm", rm, {"Named": [0, list(b"victim")]}), "/tmp")
ask(b"{", directory)
ask(b"\xff" * 100, directory)
ask({"Nothing": 1}, directory)
ask(b"", directory, magic=b"FIL2")

def number(value):
    return struct.pack("<Q", value)

def text(value):
    return number(len(value)) + value

def entry(name, parent=0, mode=0o100644, attributes=b""):
    return (text(b"shown") + number(parent) + text(name) + number(mode) + number(1) + number(0)
            + number(0) + number(1) + number(1) + number(0) + number(5) + number(0) * 4
            + number(0) + number(0) * 2 + text(b"") + (attributes or number(0)))

def frame(kind, payload):
    return bytes([kind]) + struct.pack("<I", len(payload)) + payload

def copy(name):
    sources = [{"name": word(name), "is_content": False, "is_file": True}]
    return verb("Copy", {"sources": sources, "place": "place", "owner": None,
                         "is_quiet": True}, {"At": 0})

end = frame(2, b"")
for name in ["../evil", "..", "/evil", "a\0b", ""]:
    ask(copy(name), directory, frame(0, entry(b"x")) + end + frame(5, b""))
for frames in [frame(0, entry(b"x", parent=9)), frame(1, number(0) + b"data"), end,
               frame(0, entry(b"x"))[:-3], frame(0, b""), frame(77, b""),
               b"\0\xff\xff\xff\xff", frame(0, entry(b"x", attributes=number(2**63))),
               frame(0, entry(b"x")) + frame(1, number(2**63 - 2) + b"data") + end,
               frame(0, entry(b"x")) + frame(0, entry(b"x")), frame(0, text(b"x" * 5000)),
               frame(0, entry(b"x", mode=0o40755)) + frame(0, entry(b"../evil", parent=1)) + end
               + frame(0, entry(b"..", parent=1, mode=0o40755)) + frame(5, b"")]:
    ask(copy("fine"), directory, frames)
order = verb("Extract", {"place": "place", "owner": None}, {"At": 0})
names = number(2) + text(b"..") + text(b"evil")
member = lambda path: path + number(0) + number(0o644) + number(0) * 2 + number(0) * 2 + number(0) * 3
for frames in [frame(0, member(names)) + end, frame(0, names), frame(0, number(2**60)),
               frame(0, member(number(1) + text(b"a/../../evil"))) + end, frame(1, b"")]:
    ask(order, directory, frames)
"#;

#[test]
fn hostile_requests_are_errors() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    fs::create_dir_all(bench.path("mnt/dir/inner")).expect("a directory");
    fs::write(bench.path("mnt/victim"), "whole").expect("a file");
    let output = Command::new("python3")
        .args(["-c", HOSTILE])
        .args([bench.path("mnt"), bench.path("mnt/dir/inner")])
        .output()
        .expect("python3 runs");
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    let answers: Vec<&str> = text.lines().collect();
    assert_eq!(answers.len(), 34, "{text}");
    for answer in &answers {
        assert!(!answer.contains("panicked"), "{answer}");
        assert!(
            answer.contains("\\x04"),
            "an answer without an end: {answer}"
        );
    }
    assert!(
        answers[7].contains("not on a mount of this server"),
        "{}",
        answers[7]
    );
    assert!(answers[4].contains("nobody showed"), "{}", answers[4]);
    assert_eq!(
        fs::read_to_string(bench.path("mnt/victim")).expect("it is there"),
        "whole"
    );
    let found = bench.run(&["find", "mnt"]);
    assert!(!found.contains("evil"), "{found}");
    end(&bench, mounted);
}

#[test]
fn a_user_has_the_files_of_an_own_mount_and_root_is_told_so() {
    if !can_mount() || !is_root() {
        println!("skipped: acting as another user needs root");
        return;
    }
    let bench = open_bench();
    fs::remove_file(bench.path("volume")).expect("no volume");
    for name in ["", "mnt"] {
        chown(bench.path(name), Some(USER), Some(USER)).expect("an owner");
    }
    let run = |words: &[&str]| as_user(&bench, words);
    for words in [
        &["mkfs", "-q", "-b", "512m", "volume"][..],
        &["mount", "volume", "mnt"],
    ] {
        let output = run(words);
        if said(&output).contains("/dev/fuse may not be opened") {
            println!("skipped: users may not open /dev/fuse here");
            return;
        }
        assert!(output.status.success(), "{}", said(&output));
    }
    let mounted = Mounted(bench.path("mnt"));
    sample(&bench);
    for words in [
        &["copy", "-q", "sample/empty", "mnt/dir"][..],
        &["chmod", "-R", "755", "mnt/dir"],
        &["find", "mnt"],
    ] {
        let output = run(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
    }
    let found = run(&["find", "mnt"]);
    assert_eq!(said(&found), "mnt\nmnt/dir\n");
    let other = Command::new("setpriv")
        .args([
            "--reuid=65533",
            "--regid=65533",
            "--clear-groups",
            "./butterfs",
        ])
        .args(["find", "mnt"])
        .current_dir(bench.path(""))
        .output()
        .expect("setpriv runs");
    assert!(!other.status.success(), "{}", said(&other));
    assert!(!said(&other).contains("mnt/dir"), "{}", said(&other));
    let ended = run(&["umount", "mnt"]);
    assert!(ended.status.success(), "{}", said(&ended));
    drop(mounted);
    bench.check();
}
