//! `butterfs send` and `butterfs receive` on volumes that are not mounted and
//! into directories. The snapshots are the kernel's.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use support::{BINARY, Bench, is_root, said};

fn btrfs(words: &[&str]) {
    let output = Command::new("btrfs").args(words).output().expect("it runs");
    assert!(output.status.success(), "{words:?}: {}", said(&output));
}

/// Two snapshots in the volume; false where this machine cannot make them.
fn with_snapshots(bench: &Bench) -> bool {
    bench.with_kernel(|mount: &Path| {
        let text = |name: &str| mount.join(name).to_str().expect("text").to_owned();
        btrfs(&["subvolume", "create", &text("base")]);
        std::fs::write(mount.join("base/file"), vec![7; 100_000]).expect("a file");
        std::fs::create_dir(mount.join("base/old")).expect("a directory");
        btrfs(&["subvolume", "snapshot", "-r", &text("base"), &text("one")]);
        std::fs::rename(mount.join("base/old"), mount.join("base/new")).expect("a name");
        std::fs::write(mount.join("base/new/more"), b"more").expect("a file");
        btrfs(&["subvolume", "snapshot", "-r", &text("base"), &text("two")]);
    })
}

#[test]
fn snapshots_go_from_volume_to_volume_and_to_directories() {
    let bench = Bench::new();
    if !with_snapshots(&bench) {
        return;
    }
    bench.run(&["send", "-f", "one.stream", "volume:/one"]);
    bench.run(&["send", "-f", "two.stream", "-p", "/one", "volume:/two"]);
    bench.run(&[
        "send",
        "-e",
        "-f",
        "both.stream",
        "volume:/one",
        "volume:/two",
    ]);
    bench.run(&["mkfs", "-q", "-b", "512m", "copy"]);
    let said = bench.run(&["receive", "--json", "-f", "one.stream", "copy:/"]);
    assert!(said.contains("\"name\": \"one\""), "{said}");
    bench.run(&["receive", "-f", "two.stream", "copy:/"]);
    assert_eq!(bench.run(&["cat", "copy:/two/new/more"]), "more");
    let listed = bench.run(&["ls", "-R", "copy:/two"]);
    assert!(!listed.contains("old"), "{listed}");
    std::fs::create_dir(bench.path("plain")).expect("a directory");
    bench.run(&["receive", "-f", "both.stream", "plain"]);
    let more = std::fs::read(bench.path("plain/two/new/more")).expect("received");
    assert_eq!(more, b"more");
    let dump = bench.run(&["receive", "--dump", "-f", "two.stream"]);
    let rename = "rename          ./two/old                       dest=./two/new";
    assert!(dump.lines().any(|line| line == rename), "{dump}");
    let facts = bench.run(&["receive", "--dump", "--json", "-f", "two.stream"]);
    assert!(facts.contains("\"command\":\"rename\""), "{facts}");
}

#[test]
fn what_was_cut_says_so_and_is_gone_on_with() {
    let bench = Bench::new();
    if !with_snapshots(&bench) {
        return;
    }
    bench.run(&["send", "-f", "one.stream", "volume:/one"]);
    bench.run(&["mkfs", "-q", "-b", "512m", "copy"]);
    let stream = std::fs::read(bench.path("one.stream")).expect("a stream");
    std::fs::write(bench.path("cut.stream"), &stream[..stream.len() / 2]).expect("a file");
    let failed = bench.try_run(&["receive", "-f", "cut.stream", "copy:/"]);
    assert_eq!(failed.status.code(), Some(1));
    let text = said(&failed);
    assert!(
        text.contains("cut at offset") && text.contains("--resume"),
        "{text}"
    );
    let again = bench.try_run(&["receive", "-f", "one.stream", "copy:/"]);
    assert!(
        said(&again).contains("is there already"),
        "{}",
        said(&again)
    );
    bench.run(&["receive", "--resume", "-f", "one.stream", "copy:/"]);
    assert_eq!(bench.run(&["cat", "copy:/one/file"]).len(), 100_000);
}

#[test]
fn mistakes_are_told() {
    let bench = Bench::new();
    let tell = |words: &[&str], expected: &str| {
        let failed = bench.try_run(words);
        assert!(!failed.status.success());
        let text = said(&failed);
        assert!(text.contains(expected), "{words:?}: {text}");
    };
    tell(&["send", "volume:/"], "not read-only");
    tell(&["send", "-f", "s", "volume:/nothing"], "no such file");
    tell(
        &["send", "-f", "s", "mnt"],
        "in no volume that ButterFS has mounted",
    );
    tell(
        &[
            "send",
            "--proto",
            "1",
            "--compressed-data",
            "-f",
            "s",
            "volume:/",
        ],
        "--proto 2",
    );
    tell(&["receive", "-f", "volume", "mnt"], "no send stream");
    std::fs::write(bench.path("empty"), b"").expect("a file");
    tell(&["receive", "-f", "empty", "mnt"], "cut at offset 0");
    tell(
        &["receive", "-f", "empty", "volume:/nowhere"],
        "no such file",
    );
}

/// A chain of snapshots that begins here continues in the kernel. What was
/// received here is read-only there, and has the UUIDs by which the next send
/// finds it.
#[test]
fn the_kernel_sends_on_what_was_made_and_received_here() {
    let bench = Bench::new();
    let file = bench.path("host");
    std::fs::write(&file, "first").expect("a file");
    bench.run(&["mkfs", "-q", "-b", "512m", "source"]);
    bench.run(&["subvolume", "create", "source:/base"]);
    bench.run(&["copy", "-q", "host", "source:/base/"]);
    bench.run(&["subvolume", "snapshot", "-r", "source:/base", "source:/one"]);
    bench.run(&["mkdir", "source:/base/new"]);
    bench.run(&["mv", "source:/base/host", "source:/base/new/"]);
    bench.run(&["subvolume", "snapshot", "-r", "source:/base", "source:/two"]);
    bench.run(&["send", "-q", "-f", "one.stream", "source:/one"]);
    bench.run(&[
        "send",
        "-q",
        "-f",
        "two.stream",
        "-p",
        "/one",
        "source:/two",
    ]);
    bench.run(&["receive", "-q", "-f", "one.stream", "volume:/"]);
    bench.run(&["receive", "-q", "-f", "two.stream", "volume:/"]);
    let text = |path: std::path::PathBuf| path.to_str().expect("text").to_owned();
    let streams = ["full", "changed", "next"].map(|name| text(bench.path(name)));
    let done = bench.with_kernel(|mount| {
        let [one, two, own, next] =
            ["one", "two", "own", "next"].map(|name| text(mount.join(name)));
        btrfs(&["send", "-q", "-f", &streams[0], &one]);
        btrfs(&["send", "-q", "-f", &streams[1], "-p", &one, &two]);
        btrfs(&["subvolume", "snapshot", &two, &own]);
        std::fs::write(mount.join("own/last"), "last").expect("a file");
        btrfs(&["subvolume", "snapshot", "-r", &own, &next]);
        btrfs(&["send", "-q", "-f", &streams[2], "-p", &two, &next]);
    });
    if !done {
        return;
    }
    bench.check();
    bench.run(&["mkfs", "-q", "-b", "512m", "other"]);
    for stream in &streams {
        bench.run(&["receive", "-q", "-f", stream, "other:/"]);
    }
    assert_eq!(bench.run(&["cat", "other:/next/new/host"]), "first");
    assert_eq!(bench.run(&["cat", "other:/next/last"]), "last");
}

/// Nobody can receive a stream without data, however often it is sent.
#[test]
fn a_stream_without_data_is_not_to_be_resumed() {
    let bench = Bench::new();
    if !with_snapshots(&bench) {
        return;
    }
    bench.run(&["send", "--no-data", "-f", "bare.stream", "volume:/one"]);
    bench.run(&["mkfs", "-q", "-b", "512m", "copy"]);
    std::fs::create_dir(bench.path("directory")).expect("a directory");
    for target in ["copy:/", "directory"] {
        let failed = bench.try_run(&["receive", "-f", "bare.stream", target]);
        let text = said(&failed);
        assert_eq!(failed.status.code(), Some(1), "{text}");
        assert!(text.contains("send --no-data"), "{text}");
        assert!(text.trim_end().ends_with("remove it"), "{text}");
    }
}

/// What is done to a received beginning, and whether the receive goes on.
type Act<'a> = (&'a dyn Fn(&Bench), bool);

/// Reading through a mount notes access times, and a balance moves the nodes.
/// Neither changes what was received.
#[test]
fn a_receive_goes_on_after_a_look_and_a_balance() {
    let bench = Bench::new();
    if !with_snapshots(&bench) || !support::can_mount() {
        return;
    }
    bench.run(&["send", "-f", "one.stream", "volume:/one"]);
    let stream = std::fs::read(bench.path("one.stream")).expect("a stream");
    std::fs::write(bench.path("cut.stream"), &stream[..stream.len() / 2]).expect("a file");
    let look = |_: &Bench| {
        let seen = std::fs::read_dir(bench.path("mnt/one")).expect("a directory");
        assert!(seen.count() > 0);
        std::fs::read(bench.path("mnt/one/file")).expect("the file");
    };
    let change = |_: &Bench| std::fs::write(bench.path("mnt/one/new"), b"x").expect("a file");
    let chmod = |_: &Bench| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(bench.path("mnt/one"), mode).expect("a mode");
    };
    let mounted: [Act<'_>; 4] = [
        (&look, true),
        (&change, false),
        (&chmod, false),
        (&|_| {}, true),
    ];
    for (number, (act, goes_on)) in mounted.into_iter().enumerate() {
        bench.run(&["mkfs", "-f", "-q", "-b", "512m", "copy"]);
        let failed = bench.try_run(&["receive", "-f", "cut.stream", "copy:/"]);
        assert_eq!(failed.status.code(), Some(1), "{}", said(&failed));
        let point = bench.mount_source("copy", "strictatime", "mnt");
        act(&bench);
        bench.run(&["umount", "mnt"]);
        drop(point);
        if number == 3 {
            bench.run(&["balance", "start", "--full-balance", "copy"]);
        }
        let resumed = bench.try_run(&["receive", "--resume", "-f", "one.stream", "copy:/"]);
        assert_eq!(
            resumed.status.success(),
            goes_on,
            "{number}: {}",
            said(&resumed)
        );
        if goes_on {
            assert!(bench.try_run(&["cat", "copy:/one/file"]).stdout == vec![7; 100_000]);
        } else {
            assert!(
                said(&resumed).contains("was changed after"),
                "{}",
                said(&resumed)
            );
        }
    }
}

/// A directory that cannot hold a device node gets all else of the stream, and
/// is not taken for a whole copy.
#[test]
fn what_a_directory_cannot_hold_is_named_and_the_rest_received() {
    let bench = Bench::new();
    let mut archive = tar::Builder::new(Vec::new());
    for (kind, name, content) in [
        (tar::EntryType::Regular, "top/a", "first\n"),
        (tar::EntryType::Char, "top/dev/null", ""),
        (tar::EntryType::Regular, "top/dev/text", "beside\n"),
        (tar::EntryType::Regular, "top/z", "last\n"),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_uid(65534);
        header.set_gid(65534);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        header.set_device_major(1).expect("a number");
        header.set_device_minor(3).expect("a number");
        let added = archive.append_data(&mut header, name, content.as_bytes());
        added.expect("a member");
    }
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Link);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_mode(0o644);
    header.set_size(0);
    let linked = archive.append_link(&mut header, "top/dev/zero", "top/dev/null");
    linked.expect("a link");
    let archive = archive.into_inner().expect("an archive");
    std::fs::write(bench.path("top.tar"), archive).expect("a file");
    bench.run(&["subvolume", "create", "volume:/sub"]);
    bench.run(&["tar", "extract", "-f", "top.tar", "volume:/sub"]);
    bench.run(&["subvolume", "snapshot", "-r", "volume:/sub", "volume:/one"]);
    bench.run(&["rm", "volume:/sub/top/dev/null"]);
    bench.run(&["subvolume", "snapshot", "-r", "volume:/sub", "volume:/two"]);
    bench.run(&["send", "-q", "-f", "one", "volume:/one"]);
    bench.run(&["send", "-q", "-f", "two", "-p", "/one", "volume:/two"]);
    std::fs::create_dir(bench.path("plain")).expect("a directory");
    for name in ["", "plain", "one", "two"] {
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(bench.path(name), mode).expect("a mode");
    }
    let receive = |stream: &str| {
        let mut command = Command::new(BINARY);
        command.args(["receive", "-f", stream, "plain"]);
        command.current_dir(bench.path(""));
        if is_root() {
            command.uid(65534).gid(65534);
        }
        command.output().expect("it runs")
    };
    let received = receive("one");
    let told = said(&received);
    assert_eq!(received.status.code(), Some(1), "{told}");
    assert!(told.contains("left out: mknod of "), "{told}");
    assert!(
        told.contains("1 files or directories are left out; all else is received"),
        "{told}"
    );
    assert!(told.contains("takes no increment"), "{told}");
    for (name, text) in [("a", "first\n"), ("dev/text", "beside\n"), ("z", "last\n")] {
        let found = std::fs::read_to_string(bench.path("plain/one/top").join(name));
        assert_eq!(found.expect(name), text);
    }
    assert!(!bench.path("plain/one/top/dev/null").exists());
    assert!(!bench.path("plain/one/top/dev/zero").exists());
    let refused = receive("two");
    assert!(!refused.status.success(), "{}", said(&refused));
}

/// An archive of four files, of which the first and third have an attribute of
/// 5,000 bytes.
const ARCHIVE: &str = r#"
import io, sys, tarfile
with tarfile.open(sys.argv[1], "w", format=tarfile.PAX_FORMAT) as archive:
    for number in (1, 2, 3, 4):
        member = tarfile.TarInfo(f"file{number}")
        member.size = 5
        if number in (1, 3):
            member.pax_headers["SCHILY.xattr.user.large"] = "x" * 5000
        archive.addfile(member, io.BytesIO(b"text" + str(number).encode()))
"#;

/// Nodes of 4 KiB have no room for what nodes of 16 KiB hold.
#[test]
fn a_receive_goes_on_after_as_many_failures_as_it_may() {
    let bench = Bench::new();
    let archive = bench.path("files.tar");
    let made = Command::new("python3")
        .args(["-c", ARCHIVE])
        .arg(&archive)
        .output();
    let made = made.expect("python3 runs");
    assert!(made.status.success(), "{}", said(&made));
    bench.run(&[
        "build",
        "-o",
        "large",
        "--size",
        "256m",
        "--from",
        "files.tar",
    ]);
    bench.run(&["subvolume", "snapshot", "-r", "large:/", "large:/shot"]);
    bench.run(&["send", "-f", "stream", "large:/shot"]);
    let try_with = |options: &[&str]| {
        std::fs::remove_file(bench.path("small")).ok();
        bench.run(&["mkfs", "-q", "-n", "4096", "-b", "256m", "small"]);
        let words = [&["receive", "-f", "stream"], options, &["small:/"]].concat();
        let output = bench.try_run(&words);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{words:?}: {}",
            said(&output)
        );
        bench.run(&["check", "small"]);
        let shown = bench.run(&["subvolume", "show", "small:/shot"]);
        let is_marked = |line: &str| line.contains("Received UUID") && !line.ends_with('-');
        assert!(!shown.lines().any(is_marked), "{shown}");
        said(&output)
    };
    let has = |number: u8| {
        let output = bench.try_run(&["cat", &format!("small:/shot/file{number}")]);
        output.status.success() && output.stdout == format!("text{number}").as_bytes()
    };
    let first = try_with(&[]);
    assert!(first.contains("file1 at offset"), "{first}");
    assert!(!has(4));
    let two = try_with(&["-E", "2"]);
    assert!(
        two.contains("file1 at offset") && two.contains("file3 at offset"),
        "{two}"
    );
    assert!(has(2) && !has(4));
    let all = try_with(&["-E", "0"]);
    assert!(
        all.contains("file1 at offset") && all.contains("file3 at offset"),
        "{all}"
    );
    assert!(all.contains("2 commands failed"), "{all}");
    assert!((1..=4).all(has));
}
