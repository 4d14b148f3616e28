//! Subvolumes and snapshots by the tool, on a volume that is not mounted and
//! on a mounted one.

mod support;

use std::fs;
use std::path::Path;
use support::{Bench, can_mount, said};

/// The same words on both sides: `prefix` is "volume:/" or "mnt/".
fn life_of_a_subvolume(bench: &Bench, prefix: &str, write: impl Fn(&Bench, &str, &str)) {
    let at = |path: &str| format!("{prefix}{path}");
    bench.run(&["subvolume", "create", &at("home")]);
    bench.run(&["subvolume", "create", "-p", &at("deep/down/sub")]);
    write(bench, "home/notes", "first\n");
    bench.run(&["subvolume", "snapshot", "-r", &at("home"), &at("monday")]);
    write(bench, "home/notes", "second\n");
    // If the target is a directory, it goes into it under its own name.
    bench.run(&["subvolume", "snapshot", &at("home"), &at("deep")]);
    let text = bench.run(&["property", "get", &at("monday"), "ro"]);
    assert_eq!(text, "ro=true\n");
    // A subvolume that holds another one is not deleted, and neither is what is
    // not a subvolume.
    let refused = |words: &[&str], reason: &str| {
        let out = bench.try_run(words);
        assert!(!out.status.success(), "{words:?}");
        assert!(said(&out).contains(reason), "{words:?}: {}", said(&out));
    };
    bench.run(&["subvolume", "create", &at("home/inner")]);
    refused(&["subvolume", "delete", &at("home")], "");
    refused(&["subvolume", "create", &at("home")], "exists");
    refused(&["subvolume", "delete", &at("deep")], "subvolume");
    bench.run(&["subvolume", "delete", &at("home/inner")]);
    bench.run(&["property", "set", &at("monday"), "ro", "false"]);
    bench.run(&["property", "set", &at("monday"), "ro", "true"]);
    bench.run(&["subvolume", "delete", &at("deep/home")]);
}

#[test]
fn on_a_volume_that_is_not_mounted() {
    let bench = Bench::new();
    life_of_a_subvolume(&bench, "volume:/", |bench, path, content| {
        fs::write(bench.path("source"), content).unwrap();
        bench.run(&["copy", "source", &format!("volume:/{path}")]);
    });
    assert_eq!(bench.run(&["cat", "volume:/monday/notes"]), "first\n");
    assert_eq!(bench.run(&["cat", "volume:/home/notes"]), "second\n");
    bench.run(&["subvolume", "set-default", "volume:/home"]);
    let text = bench.run(&["subvolume", "get-default", "volume"]);
    assert!(text.ends_with("path home\n"), "{text}");
    let out = bench.try_run(&["subvolume", "delete", "volume:/home"]);
    assert!(said(&out).contains("default"), "{}", said(&out));
    bench.run(&["subvolume", "set-default", "5", "volume"]);
    bench.run(&["subvolume", "delete", "-R", "--no-wait", "volume:/home"]);
    bench.run(&["subvolume", "sync", "volume"]);
    bench.check();
    bench.with_kernel(|mount: &Path| {
        assert_eq!(fs::read(mount.join("monday/notes")).unwrap(), b"first\n");
        assert!(!mount.join("home").exists());
    });
}

#[test]
fn on_a_mounted_volume() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    life_of_a_subvolume(&bench, "mnt/", |bench, path, content| {
        fs::write(bench.path("mnt").join(path), content).unwrap();
    });
    let read = |path: &str| fs::read_to_string(bench.path("mnt").join(path)).unwrap();
    assert_eq!(read("monday/notes"), "first\n");
    assert_eq!(read("home/notes"), "second\n");
    let error = fs::write(bench.path("mnt/monday/notes"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{error}");
    let error = fs::hard_link(bench.path("mnt/home/notes"), bench.path("mnt/notes")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EXDEV), "{error}");
    // rmdir takes an empty subvolume, mv renames one.
    fs::rename(bench.path("mnt/deep/down/sub"), bench.path("mnt/home/sub")).unwrap();
    fs::remove_dir(bench.path("mnt/home/sub")).unwrap();
    // A name that was looked for before is found once it exists.
    assert!(!bench.path("mnt/later").exists());
    bench.run(&["subvolume", "snapshot", "mnt/monday", "mnt/later"]);
    assert_eq!(read("later/notes"), "first\n");
    // Open files are deleted with their subvolume.
    let open = fs::File::open(bench.path("mnt/later/notes")).unwrap();
    bench.run(&["subvolume", "delete", "mnt/later"]);
    assert!(!bench.path("mnt/later").exists());
    drop(open);
    fs::create_dir(bench.path("mnt/later")).unwrap();
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
    bench.with_kernel(|mount: &Path| {
        assert_eq!(fs::read(mount.join("monday/notes")).unwrap(), b"first\n");
        assert!(mount.join("later").is_dir());
    });
}

#[test]
fn of_several_subvolumes_those_that_can_be_made_are() {
    let bench = Bench::new();
    let words = [
        "create",
        "volume:/a",
        "volume:/a",
        "volume:/none/b",
        "volume:/c",
    ];
    let done = bench.try_run(&[&["subvolume"][..], &words].concat());
    assert_eq!(done.status.code(), Some(1), "{}", said(&done));
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        errors.contains("volume:/a") && errors.contains("volume:/none/b"),
        "{errors}"
    );
    assert_eq!(bench.run(&["ls", "volume:/"]), "a\nc\n");
}

/// A path that no receiver accepts is an error of the sender, not of whoever
/// needs the stream later.
#[test]
fn a_path_that_is_too_long_is_not_sent() {
    let bench = Bench::new();
    bench.run(&["subvolume", "create", "volume:/s"]);
    let name = "x".repeat(250);
    let path = vec![&name[..]; 17].join("/");
    bench.run(&["mkdir", "-p", &format!("volume:/s/{path}")]);
    bench.run(&["subvolume", "snapshot", "-r", "volume:/s", "volume:/shot"]);
    let done = bench.try_run(&["send", "-q", "-f", "stream", "volume:/shot"]);
    assert_eq!(done.status.code(), Some(1), "{}", said(&done));
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(errors.contains("4,095"), "{errors}");
    assert!(!bench.path("stream").exists());
}
