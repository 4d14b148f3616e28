//! Files of volumes that are not mounted, by the verbs of the shell; judged by
//! the kernel's mount, tar and `btrfs check`.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use support::{BINARY, Bench, can_mount, said};

fn refused(bench: &Bench, words: &[&str], text: &str) {
    let output = bench.try_run(words);
    let all = said(&output);
    assert!(!output.status.success(), "{words:?} succeeded");
    assert!(all.contains(text), "{words:?}: no `{text}` in: {all}");
    assert!(!all.contains("panicked"), "{all}");
}

/// A directory of the host with all kinds of files.
fn sample(bench: &Bench) {
    let top = bench.path("sample");
    fs::create_dir_all(top.join("etc/deep/er")).expect("directories");
    fs::write(
        top.join("etc/passwd"),
        "ann:x:1000:100::/home/ann:/bin/sh\n",
    )
    .expect("a file");
    fs::write(top.join("etc/a.conf"), "a=1\n").expect("a file");
    fs::write(top.join("etc/deep/b.conf"), vec![b'b'; 10_000]).expect("a file");
    fs::hard_link(top.join("etc/a.conf"), top.join("etc/same.conf")).expect("a link");
    symlink("a.conf", top.join("etc/link")).expect("a link");
    let mode = fs::Permissions::from_mode(0o4755);
    fs::write(top.join("etc/prog"), "#!/bin/sh\n").expect("a file");
    fs::set_permissions(top.join("etc/prog"), mode).expect("its mode");
}

#[test]
fn a_copy_stays_below_its_destination_and_gives_nobody_rights() {
    let bench = Bench::new();
    sample(&bench);
    bench.run(&["cp", "-q", "-a", "sample/etc", "volume:/"]);
    // What an earlier copy may have made.
    fs::create_dir_all(bench.path("out")).expect("a directory");
    fs::create_dir(bench.path("victim")).expect("a directory");
    symlink(bench.path("victim"), bench.path("out/etc")).expect("a link");
    refused(&bench, &["cp", "-q", "volume:/", "out"], "no directory");
    let mut victim = fs::read_dir(bench.path("victim")).expect("it is there");
    assert!(victim.next().is_none());
    refused(&bench, &["cp", "-q", "volume:/etc/deep/..", "out"], "`..`");
    // A destination that is a link itself is the user's own.
    symlink("victim", bench.path("link")).expect("a link");
    bench.run(&["cp", "-q", "volume:/", "link"]);
    assert!(bench.path("victim/etc/passwd").is_file());
    let pipe = Command::new("mkfifo").arg(bench.path("pipe")).status();
    assert!(pipe.expect("mkfifo runs").success());
    refused(
        &bench,
        &["cp", "-q", "volume:/etc/passwd", "pipe"],
        "no file",
    );
    assert!(!bench.path("pipe").is_file());
    // A program of somebody else's does not run as whoever copies it.
    bench.run(&["chown", "4711", "volume:/etc/prog"]);
    bench.run(&["chmod", "6755", "volume:/etc/prog"]);
    bench.run(&["cp", "-q", "--no-owner", "volume:/etc/prog", "prog"]);
    let mode = fs::metadata(bench.path("prog"))
        .expect("it is there")
        .mode();
    assert_eq!(mode & 0o7777, 0o755);
}

/// Names of old archives, in another encoding.
#[test]
fn names_that_are_not_utf8_are_reached() {
    let bench = Bench::new();
    sample(&bench);
    let name = OsStr::from_bytes(b"sample/etc/caf\xe9");
    fs::write(bench.path("").join(name), "au lait\n").expect("a file");
    bench.run(&["cp", "-q", "sample/etc", "volume:/"]);
    let verb = |verb: &str| {
        let mut command = Command::new(BINARY);
        command.current_dir(bench.path("")).arg(verb);
        let output = command.arg(OsStr::from_bytes(b"volume:/etc/caf\xe9"));
        let output = output.output().expect("it starts");
        assert!(output.status.success(), "{verb}: {}", said(&output));
        output.stdout
    };
    assert_eq!(verb("cat"), b"au lait\n");
    verb("ls");
    verb("rm");
    refused(&bench, &["cat", "volume:/etc/caf"], "no such file");
}

#[test]
fn names_are_made_moved_and_removed() {
    let bench = Bench::new();
    sample(&bench);
    bench.run(&["cp", "-q", "-a", "sample/etc", "volume:/"]);
    bench.run(&["mkdir", "volume:/new", "volume:/other"]);
    bench.run(&[
        "mkdir",
        "-p",
        "-m",
        "700",
        "volume:/deep/down/under",
        "volume:/new",
    ]);
    refused(&bench, &["mkdir", "volume:/new"], "exists");
    refused(&bench, &["mkdir", "volume:/x/y"], "no such file");
    bench.run(&["mv", "volume:/etc/a.conf", "volume:/etc/renamed.conf"]);
    bench.run(&[
        "mv",
        "volume:/etc/renamed.conf",
        "volume:/etc/link",
        "volume:/new",
    ]);
    refused(
        &bench,
        &["mv", "-n", "volume:/etc/prog", "volume:/etc/passwd"],
        "exists",
    );
    refused(&bench, &["mv", "volume:/etc", "volume:/etc/deep"], "");
    refused(
        &bench,
        &["mv", "volume:/nosuch", "volume:/new"],
        "no such file",
    );
    bench.run(&["ln", "volume:/etc/prog", "volume:/new/again"]);
    bench.run(&["ln", "-s", "../etc/passwd", "volume:/new/people"]);
    refused(&bench, &["ln", "-s", "x", "volume:/new/people"], "exists");
    bench.run(&["ln", "-sf", "../etc/prog", "volume:/new/people"]);
    // In a directory the link is made, with -f too, as with ln(1).
    bench.run(&["ln", "-s", "-f", "x", "volume:/etc/deep"]);
    bench.run(&["ln", "-s", "-f", "x", "volume:/etc/deep"]);
    let listed = bench.run(&["ls", "-l", "volume:/etc/deep"]);
    assert!(
        listed.contains("x -> x") && listed.contains("b.conf"),
        "{listed}"
    );
    let directory = "is a directory";
    refused(
        &bench,
        &["ln", "-s", "-f", "deep", "volume:/etc"],
        directory,
    );
    let help = bench.run(&["ln", "--help"]);
    assert!(help.contains("A directory is never replaced"), "{help}");
    bench.run(&["rm", "volume:/etc/same.conf"]);
    refused(&bench, &["rm", "volume:/etc/deep"], "is a directory");
    refused(&bench, &["rm", "-r", "volume:/"], "root of the volume");
    refused(&bench, &["rm", "volume:/nosuch"], "no such file");
    bench.run(&["rm", "-f", "volume:/nosuch", "volume:/no/such"]);
    bench.run(&["rm", "-r", "volume:/etc/deep", "volume:/other"]);
    refused(&bench, &["mkdir", "mnt:/x"], "is a directory");

    // Across subvolumes files are copied and then removed; they share data.
    bench.run(&["subvolume", "create", "volume:/sub"]);
    refused(&bench, &["rm", "-r", "volume:/sub"], "subvolume delete");
    bench.run(&["mv", "volume:/new", "volume:/sub/"]);
    bench.run(&["cp", "volume:/sub/new", "volume:/copied"]);
    bench.check();
    bench.with_kernel(|mnt| {
        assert_eq!(
            fs::read(mnt.join("sub/new/renamed.conf")).expect("it"),
            b"a=1\n"
        );
        assert_eq!(
            fs::read(mnt.join("copied/renamed.conf")).expect("it"),
            b"a=1\n"
        );
        let link = |path: &str| fs::read_link(mnt.join(path)).expect("a link");
        assert_eq!(link("sub/new/people"), Path::new("../etc/prog"));
        assert_eq!(link("sub/new/link"), Path::new("a.conf"));
        assert!(!mnt.join("new").exists());
        assert!(!mnt.join("etc/deep").exists());
        let mode = |path: &str| fs::metadata(mnt.join(path)).expect("it").mode() & 0o7777;
        assert_eq!(mode("deep/down/under"), 0o700);
        assert_eq!(mode("deep/down"), 0o755);
        assert_eq!(mode("sub/new/again"), 0o4755);
    });
}

/// A slash at the end is for directories, as with cp(1) and mv(1).
#[test]
fn a_new_name_with_a_slash_is_none_for_a_file() {
    let bench = Bench::new();
    sample(&bench);
    bench.run(&["cp", "-q", "sample/etc", "volume:/"]);
    let before = bench.run(&["find", "volume:/"]);
    for words in [
        ["cp", "-q", "sample/etc/passwd", "volume:/new/"].as_slice(),
        &["cp", "-q", "sample/etc/link", "volume:/new/"],
        &["cp", "-q", "sample/etc/a.conf", "volume:/etc/passwd/"],
        &["cp", "-q", "volume:/etc/passwd", "volume:/new/"],
        &["cp", "-q", "volume:/etc/passwd", "new/"],
        &["mv", "volume:/etc/passwd", "volume:/new/"],
        &["mv", "volume:/etc/a.conf", "volume:/etc/passwd/"],
        &["ln", "volume:/etc/passwd", "volume:/new/"],
        &["ln", "-s", "passwd", "volume:/etc/new/"],
        &["ln", "-s", "-f", "passwd", "volume:/etc/a.conf/"],
        &["reflink", "volume:/etc/passwd", "volume:/new/"],
        &["reflink", "-f", "volume:/etc/a.conf", "volume:/etc/passwd/"],
    ] {
        refused(&bench, words, "ot a directory");
    }
    assert_eq!(bench.run(&["find", "volume:/"]), before);
    let kept = fs::read_to_string(bench.path("sample/etc/passwd")).expect("a file");
    assert_eq!(bench.run(&["cat", "volume:/etc/passwd"]), kept);
    assert!(!bench.path("new").exists());
    bench.run(&["cp", "-q", "sample/etc/deep", "volume:/one/"]);
    bench.run(&["cp", "-q", "volume:/one", "volume:/two/"]);
    bench.run(&["mv", "volume:/two", "volume:/three/"]);
    bench.run(&["reflink", "-r", "volume:/three", "volume:/four/"]);
    bench.run(&["cat", "volume:/one/b.conf", "volume:/four/b.conf"]);
    bench.check();
}

/// Paths of the host may have a `:/` in them, too.
#[test]
fn a_volume_ends_where_there_is_a_file() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("a:/b")).expect("directories");
    fs::write(bench.path("a:/note"), "of the host\n").expect("a file");
    fs::write(bench.path("inner"), "of the volume\n").expect("a file");
    fs::copy(bench.path("volume"), bench.path("a:/v:w.img")).expect("a copy");
    bench.run(&["ls", "a:/v:w.img"]);
    bench.run(&["ls", "./a:/v:w.img"]);
    bench.run(&["mkdir", "-p", "a:/v:w.img:/d:/e"]);
    bench.run(&["copy", "-q", "inner", "a:/v:w.img:/d:/e/"]);
    let shown = bench.run(&["cat", "a:/v:w.img:/d:/e/inner"]);
    assert_eq!(shown, "of the volume\n");
    bench.run(&["copy", "-q", "a:/note", "volume:/"]);
    bench.run(&["copy", "-q", "volume:/note", "a:/b"]);
    assert!(bench.path("a:/b/note").exists());
    bench.run(&["copy", "-q", "a:/v:w.img:/d:/e/inner", "a:/b/"]);
    bench.run(&["subvolume", "create", "a:/v:w.img:/sub"]);
    bench.run(&["filesystem", "df", "a:/v:w.img"]);
    bench.run(&["info", "a:/v:w.img"]);
    bench.run(&["filesystem", "du", "-s", "a:/v:w.img:/d:"]);
    // The first file is the volume.
    bench.run(&["mkdir", "volume:/v"]);
    fs::create_dir_all(bench.path("volume:")).expect("a directory");
    fs::write(bench.path("volume:/note"), "of the host\n").expect("a file");
    bench.run(&["copy", "-q", "inner", "volume:/note"]);
    assert_eq!(bench.run(&["cat", "volume:/note"]), "of the volume\n");
    // Where nothing is there, it ends at the first.
    refused(&bench, &["ls", "x:/y:/z"], "cannot open x: ");
    if can_mount() {
        fs::create_dir(bench.path("a:/mnt")).expect("a mountpoint");
        let mounted = bench.mount_source("a:/v:w.img", "rw", "a:/mnt");
        bench.run(&["info", "a:/mnt"]);
        bench.run(&["subvolume", "show", "a:/mnt:/sub"]);
        drop(mounted);
    }
}

/// Whoever forgets the `:/` keeps the volume.
#[test]
fn no_output_takes_the_place_of_a_volume() {
    let bench = Bench::new();
    sample(&bench);
    bench.run(&["cp", "-q", "sample/etc", "volume:/"]);
    bench.run(&[
        "subvolume",
        "snapshot",
        "-r",
        "volume:/",
        "volume:/snapshot",
    ]);
    fs::copy(bench.path("volume"), bench.path("other")).expect("a copy");
    symlink("other", bench.path("link")).expect("a link");
    for target in ["volume", "other", "link"] {
        for words in [
            ["image", "volume", target].as_slice(),
            &["cp", "-q", "volume:/etc/passwd", target],
            &["tar", "create", "-f", target, "volume:/etc"],
            &["send", "volume:/snapshot", "-f", target],
        ] {
            refused(&bench, words, "holds a Btrfs volume");
        }
    }
    if can_mount() {
        let mounted = bench.mount("rw");
        for words in [
            ["image", "other", "volume"].as_slice(),
            &["cp", "-q", "other:/etc/passwd", "volume"],
            &["send", "other:/snapshot", "-f", "volume"],
        ] {
            refused(&bench, words, "in use by the mount");
        }
        // As a file among others, too.
        bench.run(&["mkdir", "other:/images"]);
        fs::write(bench.path("small"), "no volume").expect("a file");
        bench.run(&["cp", "-q", "small", "other:/images/volume"]);
        fs::create_dir(bench.path("images")).expect("a directory");
        fs::hard_link(bench.path("volume"), bench.path("images/volume")).expect("a link");
        refused(&bench, &["cp", "-q", "other:/images", "."], "in use by");
        drop(mounted);
        bench.run(&["cp", "-q", "other:/images", "."]);
    }
    bench.run(&["cat", "volume:/etc/passwd"]);
    bench.check();
}

#[test]
fn subvolumes_are_not_removed_with_a_directory() {
    let bench = Bench::new();
    bench.run(&["mkdir", "volume:/dir", "volume:/dir/a"]);
    bench.run(&["subvolume", "create", "volume:/dir/sub"]);
    bench.run(&["mkdir", "volume:/dir/sub/in it"]);
    let words = ["rm", "-r", "volume:/dir"];
    refused(&bench, &words, "dir/sub: this is a subvolume");
    bench.run(&["ls", "volume:/dir/a"]);
    // What a snapshot has in the place of a subvolume is only a directory.
    bench.run(&["subvolume", "snapshot", "volume:/", "volume:/snapshot"]);
    bench.run(&["rm", "-r", "volume:/snapshot/dir"]);
    bench.run(&["subvolume", "delete", "volume:/dir/sub"]);
    bench.run(&words);
    bench.check();
}

#[test]
fn modes_and_owners() {
    let bench = Bench::new();
    sample(&bench);
    bench.run(&["cp", "-q", "--no-owner", "sample/etc", "volume:/"]);
    bench.run(&["chmod", "-R", "u=rwX,go=rX", "volume:/etc"]);
    bench.run(&["chmod", "600", "volume:/etc/passwd"]);
    bench.run(&["chmod", "u+s", "volume:/etc/prog"]);
    bench.run(&["chown", "ann:7", "volume:/etc/passwd"]);
    bench.run(&["chown", "-R", "5:6", "volume:/etc/deep"]);
    // Through a link, and a link itself.
    bench.run(&["chown", "8", "volume:/etc/link"]);
    bench.run(&["chown", "-h", "9", "volume:/etc/link"]);
    refused(
        &bench,
        &["chown", "bob", "volume:/etc"],
        "no user of the volume",
    );
    refused(&bench, &["chmod", "u+q", "volume:/etc"], "no mode");
    bench.check();
    bench.with_kernel(|mnt| {
        let of = |path: &str| fs::symlink_metadata(mnt.join(path)).expect("it");
        let mode = |path: &str| of(path).mode() & 0o7777;
        assert_eq!(mode("etc/passwd"), 0o600);
        assert_eq!((of("etc/passwd").uid(), of("etc/passwd").gid()), (1000, 7));
        assert_eq!(mode("etc/deep"), 0o755);
        assert_eq!(mode("etc/deep/b.conf"), 0o644);
        assert_eq!(mode("etc/prog"), 0o4755);
        assert_eq!(
            (of("etc/deep/er").uid(), of("etc/deep/b.conf").gid()),
            (5, 6)
        );
        assert_eq!(of("etc/a.conf").uid(), 8);
        assert_eq!(of("etc/link").uid(), 9);
    });
    // The new owner of a program does not get the rights of the old one.
    bench.run(&["chown", "3", "volume:/etc/prog"]);
    let long = bench.run(&["ls", "-l", "volume:/etc"]);
    assert!(long.contains("-rwxr-xr-x"), "{long}");
    assert!(!long.contains("rws"), "{long}");
}

#[test]
fn looking_around() {
    let bench = Bench::new();
    sample(&bench);
    bench.run(&["cp", "-q", "sample/etc", "volume:/"]);
    let long = bench.run(&["ls", "-lh", "volume:/etc/deep"]);
    assert!(long.contains("9.8K"), "{long}");
    let tree = bench.run(&["tree", "-L", "2", "volume"]);
    for text in [
        "└── etc",
        "    ├── deep",
        "link -> a.conf",
        "2 directories, 5 files",
    ] {
        assert!(tree.contains(text), "no `{text}` in {tree}");
    }
    assert!(!tree.contains("b.conf"), "{tree}");
    let found = |words: &[&str]| {
        let text = bench.run(&[&["find", "volume:/etc"], words].concat());
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let confs = ["/etc/a.conf", "/etc/deep/b.conf", "/etc/same.conf"];
    assert_eq!(found(&["-name", "*.conf", "-type", "f"]), confs);
    assert_eq!(found(&["--size", "+9k"]), ["/etc/deep/b.conf"]);
    assert_eq!(
        found(&["-type", "d", "-maxdepth", "1"]),
        ["/etc", "/etc/deep"]
    );
    assert_eq!(found(&["-iname", "PASS*"]), ["/etc/passwd"]);
    assert_eq!(found(&["-path", "*/deep/*", "-newer-than", "1"]).len(), 2);
    refused(&bench, &["find", "volume:/nosuch"], "no such file");
    // Two names of one file count once.
    let bytes = bench.run(&["du", "-s", "-b", "volume:/etc/a.conf"]);
    assert_eq!(bytes, "4\t/etc/a.conf\n");
    let all = bench.run(&["du", "-b", "-d", "1", "volume:/etc"]);
    let sum: u64 = all
        .lines()
        .next_back()
        .and_then(|line| line.split('\t').next()?.parse().ok())
        .expect("a sum");
    // Directories have the lengths of their names, twice.
    assert!((10_050..10_250).contains(&sum), "{all}");
    assert!(all.contains("\t/etc/deep\n"), "{all}");
}

/// Both directions, with tar itself on the other side.
#[test]
fn archives_in_and_out() {
    let bench = Bench::new();
    sample(&bench);
    let tar = |words: &[&str]| {
        let output = Command::new("tar")
            .args(words)
            .current_dir(bench.path(""))
            .output()
            .expect("tar runs");
        assert!(output.status.success(), "tar {words:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let long = format!("sample/etc/{}", "n".repeat(200));
    fs::write(bench.path(&long), "long\n").expect("a file");
    if support::is_root() {
        let given = std::os::unix::fs::chown(bench.path("sample/etc/passwd"), Some(12), Some(34));
        given.expect("an owner");
    }
    tar(&[
        "-C",
        "sample",
        "--posix",
        "--xattrs",
        "-czf",
        "in.tar.gz",
        ".",
    ]);
    bench.run(&["tar", "extract", "-f", "in.tar.gz", "volume:/"]);
    bench.check();
    bench.run(&["tar", "create", "-f", "out.tar", "volume:/"]);
    fs::create_dir(bench.path("back")).expect("a directory");
    tar(&["-C", "back", "--xattrs", "--same-owner", "-xpf", "out.tar"]);
    let same = Command::new("diff")
        .args(["-r", "--no-dereference", "sample", "back"])
        .current_dir(bench.path(""))
        .output()
        .expect("diff runs");
    assert!(same.status.success(), "{}", said(&same));
    for path in [
        "etc",
        "etc/passwd",
        "etc/prog",
        "etc/deep/b.conf",
        "etc/link",
    ] {
        let of = |top: &str| fs::symlink_metadata(bench.path(top).join(path)).expect("it");
        let facts = |of: fs::Metadata| (of.mode(), of.uid(), of.gid(), of.mtime(), of.mtime_nsec());
        assert_eq!(facts(of("sample")), facts(of("back")), "{path}");
    }
    let inode = |name: &str| {
        fs::metadata(bench.path("back/etc").join(name))
            .expect("it")
            .ino()
    };
    assert_eq!(inode("a.conf"), inode("same.conf"));

    // Again over what is there, through pipes, into a directory.
    bench.run(&["mkdir", "volume:/second"]);
    let mut create = Command::new(BINARY)
        .args(["tar", "create", "volume:/etc"])
        .current_dir(bench.path(""))
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let stream = create.stdout.take().expect("a pipe");
    bench.run(&["mkfs", "-q", "-b", "256m", "other"]);
    let extract = Command::new(BINARY)
        .args(["tar", "extract", "--no-owner", "other:/"])
        .current_dir(bench.path(""))
        .stdin(stream)
        .output()
        .expect("it starts");
    assert!(extract.status.success(), "{}", said(&extract));
    assert!(create.wait().expect("its status").success());
    assert_eq!(bench.run(&["cat", "other:/etc/a.conf"]), "a=1\n");
    bench.run(&["tar", "extract", "-f", "in.tar.gz", "volume:/second"]);
    bench.run(&["tar", "extract", "-f", "in.tar.gz", "volume:/second"]);
    bench.check();
}

/// What archives of tar have in pax records and in old headers, in and out.
#[test]
fn records_of_archives() {
    let bench = Bench::new();
    let run = |program: &str, words: &[&str]| {
        let output = Command::new(program)
            .args(words)
            .current_dir(bench.path(""))
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    fs::create_dir_all(bench.path("in/dir")).expect("a directory");
    let long = format!("in/dir/{}\nname", "n".repeat(150));
    for (name, content) in [("in/file", "file\n"), (&long, "long\n")] {
        fs::write(bench.path(name), content).expect("a file");
    }
    let lines = "a value\nof 3 lines\n12 user=x\n";
    for (name, value) in [
        ("user.lines", lines),
        ("user.a=b%c%3D", "equals"),
        ("user.last", "\n"),
    ] {
        run("setfattr", &["-n", name, "-v", value, "in/file"]);
        run("setfattr", &["-n", name, "-v", value, &long]);
    }
    run("setfacl", &["-m", "u:4711:r,g:4712:rw,m:rw", "in/file"]);
    run("setfacl", &["-d", "-m", "u:4711:rwx", "in/dir"]);
    run("touch", &["-d", "@-86400.5", "in/file"]);
    let packed = [
        "--xattrs",
        "--acls",
        "--numeric-owner",
        "-cf",
        "in.tar",
        "in",
    ];
    run("tar", &[&["--format=posix"], &packed[..]].concat());
    bench.run(&["tar", "extract", "-f", "in.tar", "volume:/"]);
    bench.run(&["tar", "create", "-f", "out.tar", "volume:/in"]);
    bench.run(&["mkdir", "volume:/again"]);
    bench.run(&["tar", "extract", "-f", "out.tar", "volume:/again"]);
    bench.check();
    bench.run(&["copy", "-q", "volume:/in", "back"]);
    bench.run(&["copy", "-q", "volume:/again/in", "back2"]);
    for back in ["back", "back2"] {
        let facts = |top: &str| {
            let long = long.replacen("in", top, 1);
            let file = format!("{top}/file");
            let seconds = fs::metadata(bench.path(&file)).expect("it").mtime();
            let dump = run(
                "getfattr",
                &["--absolute-names", "-dm", "user.", &file, &long],
            );
            let dir = format!("{top}/dir");
            let acl = run("getfacl", &["-n", "--omit-header", &file, &dir]);
            (
                seconds,
                dump.replace(&format!("file: {top}"), "file: TOP"),
                acl,
            )
        };
        assert_eq!(facts("in"), facts(back), "{back}");
        assert!(facts(back).2.contains("user:4711:r--"), "{}", facts(back).2);
    }
    // tar gets the lists by `--acls`, as it writes them.
    fs::create_dir(bench.path("by tar")).expect("a directory");
    run("tar", &["--acls", "-C", "by tar", "-xpf", "out.tar"]);
    let acl = |top: &str| {
        let [file, dir] = ["file", "dir"].map(|name| format!("{top}/{name}"));
        run("getfacl", &["-n", "--omit-header", &file, &dir])
    };
    assert_eq!(acl("by tar/in"), acl("in"));
    // GNU headers have times before 1970 in base 256.
    run("tar", &["--format=gnu", "-cf", "gnu.tar", "in/file"]);
    bench.run(&["mkdir", "volume:/gnu"]);
    bench.run(&["tar", "extract", "-f", "gnu.tar", "volume:/gnu"]);
    bench.run(&["copy", "-q", "volume:/gnu", "old"]);
    let seconds = |path: &str| fs::metadata(bench.path(path)).expect("it").mtime();
    assert_eq!(seconds("old/in/file"), seconds("in/file"));
}

/// What an archive lists last counts, and links of the volume stay.
#[test]
fn archives_over_what_is_there() {
    let bench = Bench::new();
    let tar = |words: &[&str]| {
        let output = Command::new("tar")
            .args(words)
            .current_dir(bench.path(""))
            .output();
        assert!(output.expect("tar runs").status.success(), "tar {words:?}");
    };
    let mode = |mode: u32| {
        let dir = bench.path("dir");
        fs::set_permissions(dir, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    fs::create_dir(bench.path("dir")).expect("a directory");
    mode(0o755);
    tar(&["--no-recursion", "-cf", "twice.tar", "dir"]);
    mode(0o700);
    tar(&["--no-recursion", "-rf", "twice.tar", "dir"]);
    bench.run(&["tar", "extract", "-f", "twice.tar", "volume:/"]);
    let listed = bench.run(&["ls", "-l", "volume:/"]);
    assert!(listed.contains("drwx------"), "{listed}");

    // The volume's own links, and a link of the archive behind one of them.
    fs::create_dir_all(bench.path("tree/usr/lib")).expect("a directory");
    symlink("usr/lib", bench.path("tree/lib")).expect("a link");
    symlink("usr/bin", bench.path("tree/bin")).expect("a link");
    bench.run(&["copy", "-q", "tree", "volume:/root"]);
    fs::create_dir_all(bench.path("over/lib/deep")).expect("a directory");
    fs::create_dir_all(bench.path("over/usr")).expect("a directory");
    fs::create_dir_all(bench.path("over/bin")).expect("a directory");
    fs::write(bench.path("over/lib/deep/new"), "new\n").expect("a file");
    fs::write(bench.path("over/bin/tool"), "tool\n").expect("a file");
    symlink("/dir", bench.path("over/usr/bin")).expect("a link");
    tar(&[
        "--no-recursion",
        "-C",
        "over",
        "-cf",
        "over.tar",
        "lib/deep/new",
        "usr/bin",
        "bin/tool",
    ]);
    bench.run(&["tar", "extract", "-f", "over.tar", "volume:/root"]);
    assert_eq!(
        bench.run(&["cat", "volume:/root/usr/lib/deep/new"]),
        "new\n"
    );
    assert_eq!(bench.run(&["cat", "volume:/root/bin/tool"]), "tool\n");
    let listed = bench.run(&["ls", "-l", "volume:/root"]);
    assert!(listed.contains("lib -> usr/lib"), "{listed}");
    refused(&bench, &["cat", "volume:/dir/tool"], "no such file");
    bench.check();
}

#[test]
fn archives_that_lie_are_refused() {
    let bench = Bench::new();
    let tar = |words: &[&str]| {
        let output = Command::new("tar")
            .args(words)
            .current_dir(bench.path(""))
            .output();
        assert!(output.expect("tar runs").status.success(), "tar {words:?}");
    };
    fs::write(bench.path("file"), "x\n").expect("a file");
    tar(&["-Pcf", "out.tar", "--transform", "s,^,../../,", "file"]);
    refused(
        &bench,
        &["tar", "extract", "-f", "out.tar", "volume:/"],
        "leads out of it",
    );
    tar(&["-cf", "good.tar", "file"]);
    let good = fs::read(bench.path("good.tar")).expect("the archive");
    fs::write(bench.path("cut.tar"), &good[..513]).expect("a file");
    refused(&bench, &["tar", "extract", "-f", "cut.tar", "volume:/"], "");
    fs::write(bench.path("noise.tar"), vec![0x5a; 4096]).expect("a file");
    refused(
        &bench,
        &["tar", "extract", "-f", "noise.tar", "volume:/"],
        "archive",
    );
    // A member cannot lead another one elsewhere by a link.
    fs::create_dir(bench.path("a")).expect("a directory");
    symlink("/", bench.path("a/link")).expect("a link");
    tar(&["-cf", "link.tar", "a"]);
    fs::remove_file(bench.path("a/link")).expect("it goes");
    fs::create_dir(bench.path("a/link")).expect("a directory");
    fs::write(bench.path("a/link/file"), "y\n").expect("a file");
    tar(&["-rf", "link.tar", "a/link/file"]);
    bench.run(&["tar", "extract", "-f", "link.tar", "volume:/"]);
    assert_eq!(bench.run(&["cat", "volume:/a/link/file"]), "y\n");
    refused(&bench, &["cat", "volume:/file"], "no such file");
    bench.check();
}
