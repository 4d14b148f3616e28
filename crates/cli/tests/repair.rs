//! `butterfs check --repair` and `butterfs rescue` as programs: nothing is
//! written to the volume before its owner says so, and every byte comes back.

use butterfs::{BlockDevice, MemoryDevice, OpenOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make_on};
use butterfs_format::DeviceOffset;
use butterfs_testkit::judge::judge_image;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

fn butterfs(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_butterfs"))
        .args(words)
        .output()
        .expect("the program runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs a command that must end with this exit code.
fn run(words: &[&str], code: i32) -> String {
    let output = butterfs(words);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{words:?}: {}",
        text(&output)
    );
    text(&output)
}

/// A volume with a file. A copy of the superblock and the free-space tree, in
/// both copies, are damaged.
fn damaged(path: &Path) -> Vec<u8> {
    let image = path.to_str().expect("a path of characters");
    run(&["mkfs", "-q", "-b", "200m", image], 0);
    let file = path.with_extension("txt");
    fs::write(&file, "what it says\n".repeat(1000)).expect("it can be written");
    let to = format!("{image}:/file");
    run(
        &["copy", file.to_str().expect("a path of characters"), &to],
        0,
    );
    let bytes = fs::read(path).expect("it can be read");
    let open = fs::File::options().write(true).open(path);
    let disk = open.expect("the image opens");
    let fsid = &bytes[(64 << 10) + 32..(64 << 10) + 48];
    for (number, node) in bytes.chunks(4096).enumerate() {
        // The owner in the header of a node: the free-space tree is tree 10.
        if node[32..48] == *fsid && node[88..96] == 10_u64.to_le_bytes() {
            let at = number as u64 * 4096;
            disk.write_all_at(&[0; 4096], at)
                .expect("it can be written");
        }
    }
    disk.write_all_at(b"damage", (64 << 20) + 100)
        .expect("it can be written");
    fs::read(path).expect("it can be read")
}

#[test]
fn nothing_is_written_before_a_commit_and_every_byte_comes_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v.img");
    let before = damaged(&path);
    let image = path.to_str().expect("a path of characters");
    let overlay = format!("{image}.overlay");
    run(&["check", image], 1);

    let said = run(&["check", "--repair", image], 0);
    for words in [
        "superblock-copy-invalid",
        "step 1: ",
        "not any more: none",
        "no faults found",
        "butterfs rescue commit",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(
        fs::read(&path).expect("it can be read") == before,
        "the volume was written"
    );
    run(&["check", image], 1);
    run(&["check", "--overlay", &overlay, image], 0);

    run(&["rescue", "commit", &overlay], 0);
    run(&["check", "--check-data-csum", image], 0);
    let read = run(&["cat", &format!("{image}:/file")], 0);
    assert_eq!(read, "what it says\n".repeat(1000));
    let again = run(
        &[
            "check",
            "--repair",
            "--overlay",
            &format!("{image}.2"),
            image,
        ],
        0,
    );
    assert!(again.contains("nothing was changed"), "{again}");
    assert!(!Path::new(&format!("{image}.2")).exists());

    run(&["rescue", "undo", &overlay], 0);
    assert!(
        fs::read(&path).expect("it can be read") == before,
        "not every byte came back"
    );
    run(&["rescue", "commit", &overlay], 0);
    run(&["check", image], 0);
    // Somebody uses the volume.
    run(&["mkdir", &format!("{image}:/new")], 0);
    let refused = run(&["rescue", "undo", &overlay], 1);
    assert!(
        refused.contains("was changed by somebody else"),
        "{refused}"
    );
}

#[test]
fn a_commit_can_be_part_of_the_repair() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v.img");
    let before = damaged(&path);
    let image = path.to_str().expect("a path of characters");
    run(&["check", "--repair", "--in-place", image], 0);
    run(&["check", image], 0);
    run(&["rescue", "undo", &format!("{image}.overlay")], 0);
    assert!(fs::read(&path).expect("it can be read") == before);
}

#[test]
fn single_repairs_and_roots_to_begin_with() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v.img");
    let image = path.to_str().expect("a path of characters");
    run(&["mkfs", "-q", "-b", "200m", image], 0);
    let disk = fs::File::options()
        .write(true)
        .open(&path)
        .expect("the image opens");
    disk.write_all_at(&[0; 4096], 64 << 10)
        .expect("it can be written");
    run(&["rescue", "super-recover", "--commit", image], 0);
    run(&["check", image], 0);
    fs::remove_file(format!("{image}.overlay")).expect("it is there");
    fs::remove_file(format!("{image}.overlay.undo")).expect("it is there");
    for what in [
        "clear-uuid-tree",
        "clear-space-cache",
        "clear-ino-cache",
        "fix-data-checksum",
    ] {
        run(&["rescue", what, image], 0);
    }
    for words in [
        &["--init-extent-tree"][..],
        &["--init-csum-tree"],
        &["--clear-space-cache", "v2"],
        &["--repair", "-b"],
    ] {
        let overlay = dir.path().join("one.overlay");
        let overlay = overlay.to_str().expect("a path of characters");
        let all = [&["check"], words, &["--overlay", overlay, image]].concat();
        run(&all, 0);
        // What is as it should be needs no overlay.
        if words == ["--repair", "-b"] && !Path::new(overlay).exists() {
            continue;
        }
        run(&["check", "--overlay", overlay, image], 0);
        fs::remove_file(overlay).expect("it was made");
    }
    run(&["rescue", "create-control-device"], 0);
}

/// A volume after a power failure: `new` is in its fsync log alone. All copies
/// of the nodes of `trees` are zeroed.
fn with_log(path: &Path, trees: &[u64]) {
    let device = Arc::new(MemoryDevice::new(200 << 20));
    let devices = vec![device.clone() as Arc<dyn BlockDevice>];
    make_on(&devices, &MkfsOptions::default()).expect("a volume");
    let options = OpenOptions {
        commit_interval: Duration::from_secs(3600),
        ..OpenOptions::default()
    };
    let volume = Volume::open_devices(devices, options).expect("it opens");
    volume.write_file("old", b"committed").expect("a file");
    volume.sync().expect("a commit");
    let file = volume.create_file("new").expect("a file");
    file.write_at(&b"durable".repeat(20_000), 0).expect("data");
    file.sync_all().expect("an fsync");
    let device = device.snapshot();
    let mut fsid = [0; 16];
    let at = DeviceOffset((64 << 10) + 32);
    device.read_at(at, &mut fsid).expect("a superblock");
    let mut header = [0; 96];
    for at in (0..device.size()).step_by(4096).map(DeviceOffset) {
        device.read_at(at, &mut header).expect("it can be read");
        let owner = u64::from_le_bytes(header[88..96].try_into().expect("8 bytes"));
        if header[32..48] == fsid && trees.contains(&owner) {
            device.write_at(at, &[0; 4096]).expect("it can be written");
        }
    }
    device.save(path).expect("an image");
}

#[test]
fn what_fsync_made_durable_outlives_the_repair() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v.img");
    let image = path.to_str().expect("a path of characters");
    let (extents, chunks) = (2, 3);
    for (tree, words) in [
        (extents, &["check", "--repair", "--commit", image][..]),
        (chunks, &["rescue", "chunk-recover", "--commit", image]),
    ] {
        with_log(&path, &[tree]);
        let said = run(words, 0);
        assert!(said.contains("the fsync log was replayed"), "{said}");
        assert!(!said.contains("Throw the fsync log away"), "{said}");
        run(&["check", "--check-data-csum", image], 0);
        assert_eq!(run(&["cat", &format!("{image}:/old")], 0), "committed");
        let new = run(&["cat", &format!("{image}:/new")], 0);
        assert!(new == "durable".repeat(20_000), "{} bytes", new.len());
        judge_image(&path, "after the repair");
        for name in ["v.img", "v.img.overlay", "v.img.overlay.undo"] {
            fs::remove_file(dir.path().join(name)).expect("it is there");
        }
    }
}

/// A log of which nothing can be read is thrown away, and the repair says so.
#[test]
fn a_log_that_cannot_be_read_is_named_as_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v.img");
    let image = path.to_str().expect("a path of characters");
    let (extents, logs) = (2, (-6_i64).cast_unsigned());
    with_log(&path, &[extents, logs]);
    let said = run(&["check", "--repair", "--commit", image], 0);
    assert!(said.contains("Throw the fsync log away"), "{said}");
    assert!(said.contains("Lost: what fsync made durable"), "{said}");
    run(&["check", "--check-data-csum", image], 0);
    assert_eq!(run(&["cat", &format!("{image}:/old")], 0), "committed");
    judge_image(&path, "after the repair");
}
