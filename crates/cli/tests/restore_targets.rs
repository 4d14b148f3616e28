//! `butterfs restore` into a directory, an archive and another volume, with
//! devices, pipes, sockets, links and extended attributes of all that has them.

mod support;

use butterfs::{FileType, NewInode, OpenOptions, Owner, SetAttributes, SetMode, SetTime, Volume};
use butterfs_format::item::inode::Timespec;
use butterfs_testkit::content::content;
use butterfs_testkit::judge::{Access, KernelMount, judge_image};
use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::{BINARY, is_root, said};

const NOBODY: u32 = 65534;
const TIME: i64 = 1_600_000_000;

struct Folder(tempfile::TempDir);

impl Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.current_dir(self.0.path()).args(words);
        command
    }

    fn run(&self, words: &[&str], code: i32) -> String {
        let output: Output = self.command(words).output().expect("the program runs");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        said
    }
}

fn device(major: u64, minor: u64) -> u64 {
    (major << 20) | minor
}

/// A volume with one of everything, whose superblocks are gone.
fn folder() -> Folder {
    let folder = Folder(tempfile::tempdir().expect("a directory"));
    folder.run(&["mkfs", "-q", "-b", "256m", "disk.img"], 0);
    let image = folder.path("disk.img");
    let volume = Volume::open(&image, OpenOptions::default()).expect("a volume");
    let files = volume.files();
    let owner = Owner {
        uid: 1000,
        gid: 1001,
    };
    let directory = volume.create_dir("/dir").expect("a directory");
    let kinds = [
        ("character", libc::S_IFCHR, device(1, 3)),
        ("block", libc::S_IFBLK, device(259, 70_000)),
        ("fifo", libc::S_IFIFO, 0),
        ("socket", libc::S_IFSOCK, 0),
    ];
    for (name, kind, rdev) in kinds {
        let mut new = NewInode::new(kind | 0o640, owner);
        new.rdev = rdev;
        let made = files.create(directory, name.as_bytes(), &new);
        let made = made.expect("a special file");
        let set = SetAttributes {
            mtime: Some(SetTime::At(time())),
            ..SetAttributes::default()
        };
        files.set_attributes(&made, &set).expect("a time");
    }
    volume
        .write_file("/dir/file", &content(1, 300_000))
        .expect("a file");
    volume.hard_link("/dir/file", "/dir/again").expect("a link");
    volume.symlink("file", "/dir/link").expect("a link");
    let inode = files.inode(directory).expect("the directory");
    let set = |inode: &butterfs::Inode, name: &[u8]| {
        files.set_xattr(inode, name, b"of a directory", SetMode::Any)
    };
    set(&inode, b"user.note").expect("an attribute");
    set(&inode, b"trusted.note").expect("an attribute");
    let set = SetAttributes {
        mode: Some(0o750),
        mtime: Some(SetTime::At(time())),
        ..SetAttributes::default()
    };
    files.set_attributes(&inode, &set).expect("a mode");
    volume.close().expect("it ends");
    drop(volume);
    let file = fs::File::options()
        .write(true)
        .open(&image)
        .expect("the image");
    for at in [64 << 10, 64 << 20] {
        file.write_all_at(&[0; 4096], at).expect("a write");
    }
    folder
}

fn time() -> Timespec {
    Timespec {
        seconds: TIME,
        nanoseconds: 5,
    }
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 100];
    let length = rustix::fs::getxattr(path, name, &mut value).ok()?;
    value.truncate(length);
    Some(value)
}

/// Everything is below `root` as it was made.
fn assert_all(root: &Path) {
    let facts = |name: &str| fs::symlink_metadata(root.join("dir").join(name)).expect(name);
    let kinds = [
        ("character", device(1, 3)),
        ("block", device(259, 70_000)),
        ("fifo", 0),
        ("socket", 0),
    ];
    for (name, rdev) in kinds {
        let found = facts(name);
        let kind = found.file_type();
        let is_right = match name {
            "character" => kind.is_char_device(),
            "block" => kind.is_block_device(),
            "fifo" => kind.is_fifo(),
            _ => kind.is_socket(),
        };
        assert!(is_right, "{name}");
        let numbers = (
            rustix::fs::major(found.rdev()),
            rustix::fs::minor(found.rdev()),
        );
        assert_eq!(device(numbers.0.into(), numbers.1.into()), rdev, "{name}");
        assert_eq!(found.mode() & 0o7777, 0o640, "{name}");
        assert_eq!((found.uid(), found.gid()), (1000, 1001), "{name}");
        assert_eq!((found.mtime(), found.mtime_nsec()), (TIME, 5), "{name}");
    }
    assert!(fs::read(root.join("dir/file")).expect("a file") == content(1, 300_000));
    assert_eq!(facts("file").ino(), facts("again").ino());
    let link = fs::read_link(root.join("dir/link")).expect("a link");
    assert_eq!(link, Path::new("file"));
    let directory = root.join("dir");
    let found = fs::metadata(&directory).expect("a directory");
    assert_eq!(found.mode() & 0o7777, 0o750);
    assert_eq!((found.mtime(), found.mtime_nsec()), (TIME, 5));
    for name in ["user.note", "trusted.note"] {
        assert_eq!(
            xattr(&directory, name).as_deref(),
            Some(&b"of a directory"[..]),
            "{name}"
        );
    }
}

#[test]
fn into_a_directory() {
    if !is_root() {
        println!("skipped: devices need root");
        return;
    }
    let folder = folder();
    folder.run(&["restore", "--all", "disk.img", "saved"], 0);
    assert_all(&folder.path("saved"));
    // Files alone, as btrfs restore does.
    folder.run(&["restore", "disk.img", "plain"], 0);
    let names = fs::read_dir(folder.path("plain/dir")).expect("a directory");
    assert_eq!(names.count(), 2);
}

#[test]
fn an_ordinary_user_gets_all_but_devices_which_are_named() {
    if !is_root() {
        println!("skipped: another user needs root");
        return;
    }
    let folder = folder();
    for (name, mode) in [("", 0o777), ("disk.img", 0o644)] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(folder.path(name), mode).expect("permissions");
    }
    // The binary may lie where others may not look.
    let own = folder.path("butterfs");
    fs::copy(BINARY, &own).expect("a copy");
    let mut command = Command::new(own);
    command.current_dir(folder.0.path());
    command.args(["restore", "--all", "disk.img", "saved"]);
    // This drops the groups of root, too.
    command.uid(NOBODY).gid(NOBODY);
    let output = command.output().expect("the program runs");
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for name in ["character", "block"] {
        let line = format!("left out: dir/{name}: only root can make devices");
        assert!(said.contains(&line), "{said}");
        assert!(!folder.path(&format!("saved/dir/{name}")).exists());
    }
    assert!(said.contains(", 2 left out"), "{said}");
    let kind = |name: &str| {
        let found = fs::symlink_metadata(folder.path(&format!("saved/dir/{name}")));
        found.expect(name).file_type()
    };
    assert!(kind("fifo").is_fifo() && kind("socket").is_socket());
    let read = fs::read(folder.path("saved/dir/file")).expect("a file");
    assert!(read == content(1, 300_000));
}

#[test]
fn into_another_volume() {
    let folder = folder();
    folder.run(&["mkfs", "-q", "-b", "256m", "other.img"], 0);
    folder.run(&["mkdir", "other.img:/kept"], 0);
    let to = "other.img:/kept/saved/here";
    folder.run(&["restore", "--all", "disk.img", to], 0);
    // What is there is left alone, and with -o replaced.
    let again = folder.run(&["restore", "--all", "disk.img", to], 0);
    assert!(again.contains("there already"), "{again}");
    folder.run(&["restore", "--all", "-o", "disk.img", to], 0);
    folder.run(&["check", "--check-data-csum", "other.img"], 0);
    judge_image(&folder.path("other.img"), "other.img");
    let volume = Volume::open(folder.path("other.img"), OpenOptions::read_only());
    let volume = volume.expect("a volume");
    let root = "/kept/saved/here/dir";
    let read = volume.read_file(format!("{root}/file")).expect("a file");
    assert!(read == content(1, 300_000));
    let block = volume
        .attributes(format!("{root}/block"))
        .expect("a device");
    assert_eq!(block.rdev, device(259, 70_000));
    let id = volume.resolve(root).expect("a directory");
    let listed = volume.list(id).expect("names");
    let socket = listed.iter().find(|entry| entry.name == b"socket");
    assert_eq!(
        socket.map(|entry| entry.target.kind),
        Some(FileType::Socket)
    );
    drop(volume);
    if is_root() {
        let mount = KernelMount::mount(&folder.path("other.img"), Access::ReadOnly, "");
        let mount = mount.expect("a mount");
        assert_all(&mount.path().join("kept/saved/here"));
        let complaints = mount.unmount().expect("it ends");
        assert_eq!(complaints, Vec::<String>::new());
    }
    // Into itself, and into what is no volume.
    let refused = folder.run(&["restore", "--all", "disk.img", "disk.img:/saved"], 1);
    assert!(!refused.is_empty());
    fs::write(folder.path("text"), "no volume").expect("a file");
    let refused = folder.run(&["restore", "--all", "disk.img", "text:/saved"], 1);
    assert!(refused.contains("text"), "{refused}");
}

#[test]
fn into_an_archive() {
    let folder = folder();
    let said = folder.run(&["restore", "--all", "--tar", "saved.tar", "disk.img"], 1);
    assert!(
        said.contains("left out: dir/socket: an archive cannot hold a socket"),
        "{said}"
    );
    let listed = Command::new("tar")
        .args(["--numeric-owner", "-tvf"])
        .arg(folder.path("saved.tar"))
        .output()
        .expect("tar runs");
    let listed = support::said(&listed);
    for (kind, rest) in [
        ("crw-r-----", "1,3"),
        ("brw-r-----", "259,70000"),
        ("prw-r-----", "dir/fifo"),
        ("drwxr-x---", "dir/"),
    ] {
        let line = listed
            .lines()
            .find(|line| line.starts_with(kind) && line.contains(rest));
        assert!(line.is_some(), "{kind} {rest}: {listed}");
    }
}

/// An attribute that fits into a node of the lost volume, and not into one of
/// the new volume.
#[test]
fn an_attribute_that_the_target_does_not_take_is_named() {
    let folder = Folder(tempfile::tempdir().expect("a directory"));
    folder.run(&["mkfs", "-q", "-b", "256m", "disk.img"], 0);
    folder.run(&["mkfs", "-q", "-b", "256m", "-n", "4096", "new.img"], 0);
    let volume = Volume::open(folder.path("disk.img"), OpenOptions::default()).expect("a volume");
    for name in ["/one", "/two"] {
        volume
            .write_file(name, &content(1, 70_000))
            .expect("a file");
        volume
            .set_xattr(name, "user.small", b"x")
            .expect("an attribute");
    }
    volume
        .set_xattr("/one", "user.big", &content(2, 9_000))
        .expect("an attribute");
    volume.close().expect("it ends");
    drop(volume);

    let said = folder.run(&["restore", "-x", "disk.img", "new.img:/"], 1);
    assert!(
        said.contains("left out: one: its attribute user.big: "),
        "{said}"
    );
    assert!(said.contains("1 attributes left out"), "{said}");
    let volume = Volume::open(folder.path("new.img"), OpenOptions::default()).expect("a volume");
    for name in ["/one", "/two"] {
        assert!(volume.read_file(name).expect("a file") == content(1, 70_000));
        let small = volume.xattr(name, "user.small").expect("an attribute");
        assert_eq!(small.as_deref(), Some(&b"x"[..]), "{name}");
    }
    volume.close().expect("it ends");
}

/// The set-user-id bit is only for the owner that the file had.
#[test]
fn a_program_does_not_run_as_somebody_else() {
    if !is_root() {
        println!("skipped: another user needs root");
        return;
    }
    let folder = Folder(tempfile::tempdir().expect("a directory"));
    folder.run(&["mkfs", "-q", "-b", "256m", "disk.img"], 0);
    let volume = Volume::open(folder.path("disk.img"), OpenOptions::default()).expect("a volume");
    volume.write_file("/program", b"#!/bin/sh").expect("a file");
    let set = SetAttributes {
        mode: Some(0o4755),
        ..SetAttributes::default()
    };
    volume.set_attributes("/program", &set).expect("a mode");
    volume.close().expect("it ends");
    drop(volume);
    for (name, mode) in [("", 0o777), ("disk.img", 0o644)] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(folder.path(name), mode).expect("permissions");
    }
    let own = folder.path("butterfs");
    fs::copy(BINARY, &own).expect("a copy");
    for (user, expected) in [(0, 0o4755), (NOBODY, 0o755)] {
        let saved = format!("saved-{user}");
        let mut command = Command::new(&own);
        command.current_dir(folder.0.path());
        command.args(["restore", "-m", "disk.img", &saved]);
        let output = command.uid(user).gid(user).output();
        let output = output.expect("the program runs");
        assert!(output.status.success(), "{}", support::said(&output));
        let found = fs::metadata(folder.path(&saved).join("program")).expect("a file");
        assert_eq!(found.mode() & 0o7777, expected, "{user}");
    }
}
