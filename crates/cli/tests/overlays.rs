//! An overlay stands for its volume: commands read the repaired state, writes go
//! to the overlay alone, and the devices stay as they are.

mod support;

use butterfs_format::ChecksumType;
use butterfs_testkit::content::content;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use support::{Mounted, can_mount, said};

struct Volume {
    directory: tempfile::TempDir,
}

impl Volume {
    /// A volume on two devices with a repair in an overlay, which makes the lost
    /// chunk tree anew.
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = Self { directory };
        for name in ["one.img", "two.img"] {
            let file = fs::File::create(volume.path(name)).expect("an image");
            file.set_len(300 << 20).expect("an image");
        }
        let mkfs = ["mkfs", "-q", "-f", "-d", "raid1", "-m", "raid1"];
        volume.run(&[&mkfs[..], &["one.img", "two.img"]].concat(), 0);
        fs::create_dir(volume.path("many")).expect("a directory");
        for number in 0..20_u64 {
            let path = volume.path(&format!("many/{number}"));
            fs::write(path, content(number, 50_000)).expect("a file");
        }
        volume.run(&["copy", "many", "one.img:/many"], 0);
        for name in ["one.img", "two.img"] {
            let path = volume.path(name);
            let bytes = fs::read(&path).expect("an image");
            let fsid = &bytes[(64 << 10) + 32..(64 << 10) + 48];
            let file = fs::File::options().write(true).open(&path);
            let file = file.expect("an image");
            for (number, node) in bytes.chunks(4096).enumerate() {
                if node[32..48] == *fsid && node[88..96] == 3_u64.to_le_bytes() {
                    let at = number as u64 * 4096;
                    file.write_all_at(&[0; 16384], at).expect("a write");
                }
            }
        }
        volume.run(&["rescue", "chunk-recover", "one.img", "two.img"], 0);
        volume
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, words: &[&str], code: i32) -> String {
        let mut command = Command::new(support::BINARY);
        let output = command.current_dir(self.directory.path()).args(words);
        let output = output.output().expect("the program runs");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        said
    }

    fn digests(&self) -> Vec<[u8; 32]> {
        let digest = |name| {
            let bytes = fs::read(self.path(name)).expect("an image");
            ChecksumType::Sha256.compute(&bytes)
        };
        ["one.img", "two.img"].map(digest).to_vec()
    }

    fn assert_files(&self, directory: &str) {
        for number in 0..20_u64 {
            let path = self.path(&format!("{directory}/{number}"));
            assert!(fs::read(path).expect("a file") == content(number, 50_000));
        }
    }
}

#[test]
fn every_command_takes_an_overlay_and_leaves_the_devices_alone() {
    let volume = Volume::new();
    let before = volume.digests();
    let overlay = "one.img.overlay";
    volume.run(&["ls", "one.img:/"], 1);
    let names = volume.run(&["ls", &format!("{overlay}:/many")], 0);
    assert_eq!(names.lines().count(), 20);
    volume.run(&["check", "--check-data-csum", overlay], 0);
    volume.run(&["copy", &format!("{overlay}:/many"), "copied"], 0);
    volume.assert_files("copied");
    let survey = volume.run(&["rescue", "survey", overlay], 0);
    assert!(survey.contains("chunk tree"), "{survey}");
    volume.run(&["restore", "--all", overlay, "restored"], 0);
    volume.assert_files("restored/many");
    for words in [
        &["info", overlay][..],
        &["filesystem", "usage", overlay],
        &["filesystem", "df", overlay],
        &["device", "usage", overlay],
        &["subvolume", "list", overlay],
        &["inspect", "dump-super", overlay],
        &["inspect", "dump-tree", overlay],
        &["undelete", overlay],
        &["rescue", "guide", overlay],
        &["scrub", "start", "-B", overlay],
    ] {
        volume.run(words, 0);
    }
    // What writes.
    volume.run(&["mkdir", &format!("{overlay}:/new")], 0);
    volume.run(&["copy", "many/7", &format!("{overlay}:/new/seven")], 0);
    volume.run(&["rm", &format!("{overlay}:/many/3")], 0);
    volume.run(&["balance", "start", "--full-balance", overlay], 0);
    volume.run(&["subvolume", "create", &format!("{overlay}:/sub")], 0);
    volume.run(&["filesystem", "label", overlay, "named"], 0);
    volume.run(&["check", "--check-data-csum", overlay], 0);
    let again = volume.run(&["check", "--repair", overlay], 0);
    assert!(again.contains("no faults found"), "{again}");
    let again = volume.run(&["rescue", "chunk-recover", overlay], 0);
    assert!(again.contains("is whole; nothing was changed"), "{again}");
    // What is refused.
    let refused = volume.run(&["check", "--overlay", "other", "--repair", overlay], 8);
    assert!(refused.contains("leave out --overlay"), "{refused}");
    fs::write(volume.path("three.img"), []).expect("an image");
    let file = fs::File::options()
        .write(true)
        .open(volume.path("three.img"));
    file.expect("an image")
        .set_len(300 << 20)
        .expect("an image");
    let refused = volume.run(&["device", "add", "three.img", overlay], 1);
    assert!(refused.contains("rescue commit"), "{refused}");
    let refused = volume.run(&["rescue", "survey", overlay, "two.img"], 1);
    assert!(refused.contains("overlay"), "{refused}");
    assert!(volume.digests() == before, "the devices were written");

    volume.run(&["rescue", "commit", overlay], 0);
    volume.run(&["check", "--check-data-csum", "one.img"], 0);
    let names = volume.run(&["ls", "one.img:/"], 0);
    assert_eq!(
        names.split_whitespace().collect::<Vec<_>>(),
        ["many", "new", "sub"]
    );
    let names = volume.run(&["ls", "one.img:/many"], 0);
    assert_eq!(names.lines().count(), 19);
    // It belongs to the devices as they were, and the undo file is no volume.
    let refused = volume.run(&["ls", &format!("{overlay}:/")], 1);
    assert!(refused.contains("was not made over"), "{refused}");
    let refused = volume.run(&["ls", &format!("{overlay}.undo:/")], 1);
    assert!(refused.contains("undo file"), "{refused}");
}

#[test]
fn an_overlay_is_mounted() {
    if !can_mount() {
        return;
    }
    let volume = Volume::new();
    let before = volume.digests();
    let overlay = "one.img.overlay";
    fs::create_dir(volume.path("mnt")).expect("a directory");
    volume.run(&["mount", overlay, "mnt"], 0);
    let mounted = Mounted(volume.path("mnt"));
    volume.assert_files("mnt/many");
    fs::write(volume.path("mnt/written"), b"in the overlay").expect("a file");
    volume.run(&["umount", "mnt"], 0);
    drop(mounted);
    assert!(volume.digests() == before, "the devices were written");
    let read = volume.run(&["cat", &format!("{overlay}:/written")], 0);
    assert_eq!(read, "in the overlay");
    volume.run(&["check", overlay], 0);
}
