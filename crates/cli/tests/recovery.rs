//! What a crash leaves: fsync logs that are shown, replayed or thrown away,
//! and damage that is healed and counted.

mod support;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;
use support::{Bench, Foreground, can_mount, said};

fn made_durable(path: &std::path::Path, content: &str) {
    let mut file = File::create(path).expect("a file");
    file.write_all(content.as_bytes()).expect("a write");
    file.sync_all().expect("fsync");
}

/// A volume whose server died after an fsync that went to the log.
fn crashed() -> Bench {
    let bench = Bench::new();
    let server = Foreground::start(&bench, "commit=300");
    std::fs::create_dir(bench.path("mnt/dir")).expect("a directory");
    made_durable(&bench.path("mnt/dir/first"), "committed\n");
    made_durable(&bench.path("mnt/dir/second"), "logged\n");
    server.kill();
    bench
}

#[test]
fn a_log_is_shown_replayed_or_thrown_away() {
    if !can_mount() {
        return;
    }
    let bench = crashed();
    let image = || std::fs::read(bench.path("volume")).expect("the image");
    let before = image();
    let preview = bench.run(&["rescue", "log-preview", "volume"]);
    assert!(preview.contains("+ dir/second"), "{preview}");
    assert!(
        bench
            .run(&["rescue", "log-preview", "--json", "volume"])
            .contains("name-added")
    );
    // Read-only: as a replay would make it, and nothing is written.
    assert_eq!(bench.run(&["cat", "volume:/dir/first"]), "committed\n");
    let mounted = bench.mount("ro");
    let second = std::fs::read_to_string(bench.path("mnt/dir/second"));
    assert_eq!(second.expect("the logged file"), "logged\n");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let mounted = bench.mount("ro,norecovery");
    assert!(!bench.path("mnt/dir/second").exists());
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    assert!(image() == before, "looking changed the volume");

    // What was fsynced is restored, too.
    bench.run(&["restore", "volume", "saved"]);
    let second = std::fs::read_to_string(bench.path("saved/dir/second"));
    assert_eq!(second.expect("the logged file"), "logged\n");
    assert!(image() == before, "a restore changed the volume");

    let kept = bench.path("kept");
    std::fs::copy(bench.path("volume"), &kept).expect("a copy");
    let mounted = bench.mount("rw");
    let second = std::fs::read_to_string(bench.path("mnt/dir/second"));
    assert_eq!(second.expect("the logged file"), "logged\n");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
    assert!(
        bench
            .run(&["rescue", "log-preview", "volume"])
            .contains("nothing to replay")
    );

    std::fs::copy(&kept, bench.path("volume")).expect("a copy");
    assert!(
        bench
            .run(&["rescue", "zero-log", "volume"])
            .contains("is gone")
    );
    assert!(
        bench
            .run(&["rescue", "zero-log", "volume"])
            .contains("no fsync log")
    );
    bench.check();
    assert_eq!(bench.run(&["ls", "volume:/dir"]), "first\n");
}

#[test]
fn damage_is_healed_and_counted_across_mounts() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    bench.run(&["mkfs", "-q", "-f", "-d", "dup", "volume"]);
    let mark: Vec<u8> = b"a mark that is nowhere else ".repeat(300);
    let mounted = bench.mount("rw");
    std::fs::write(bench.path("mnt/file"), &mark).expect("a file");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let image = std::fs::read(bench.path("volume")).expect("the image");
    let copies: Vec<usize> = (0..image.len() - mark.len())
        .step_by(4096)
        .filter(|at| image[*at..].starts_with(&mark))
        .collect();
    assert_eq!(copies.len(), 2, "the data are there twice");
    let file = File::options()
        .write(true)
        .open(bench.path("volume"))
        .expect("the image");
    // Which copy is read first is not promised, so both are damaged, each in
    // another sector.
    file.write_all_at(b"X", copies[0] as u64 + 10)
        .expect("damage");
    file.write_all_at(b"Y", copies[1] as u64 + 5000)
        .expect("damage");
    drop(file);

    let mounted = bench.mount("rw");
    let found = std::fs::read(bench.path("mnt/file")).expect("the file");
    assert!(found == mark, "wrong data");
    let stats = bench.run(&["device", "stats", "mnt"]);
    assert!(!stats.contains("corruption_errs  0"), "{stats}");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let stats = bench.run(&["device", "stats", "volume"]);
    assert!(!stats.contains("corruption_errs  0"), "{stats}");
    let code = bench.try_run(&["device", "stats", "--check", "volume"]);
    assert_eq!(code.status.code(), Some(64));
    bench.with_kernel(|root| {
        let output = Command::new("btrfs")
            .args(["device", "stats"])
            .arg(root)
            .output();
        let output = said(&output.expect("btrfs runs"));
        let line = output.lines().find(|line| line.contains("corruption_errs"));
        assert!(
            line.is_some_and(|line| !line.trim_end().ends_with(" 0")),
            "{output}"
        );
        // The copy that nobody read is left for the scrub to repair.
        let scrubbed = Command::new("btrfs")
            .args(["scrub", "start", "-B"])
            .arg(root)
            .output();
        let scrubbed = said(&scrubbed.expect("btrfs runs"));
        assert!(scrubbed.contains("Uncorrectable:  0"), "{scrubbed}");
    });
    bench.run(&["device", "stats", "-z", "volume"]);
    let code = bench.try_run(&["device", "stats", "--check", "volume"]);
    assert_eq!(code.status.code(), Some(0));
    bench.check();
}

fn cut(bench: &Bench, bytes: u64) {
    let file = File::options().write(true).open(bench.path("volume"));
    let file = file.expect("the volume");
    let length = file.metadata().expect("its length").len();
    file.set_len(length - bytes).expect("a shorter file");
}

/// Nothing lay in the part that is gone.
#[test]
fn a_volume_whose_file_became_a_little_shorter_is_read_and_mended() {
    let bench = Bench::new();
    std::fs::write(bench.path("hello"), vec![5; 3_000_000]).expect("a file");
    bench.run(&["copy", "hello", "volume:/hello"]);
    cut(&bench, (1 << 20) + 512);
    let refused = bench.try_run(&["copy", "hello", "volume:/more"]);
    assert!(!refused.status.success());
    assert!(
        said(&refused).contains("resize 1:max"),
        "{}",
        said(&refused)
    );
    for options in ["ro", "ro,rescue=all"] {
        bench.run(&["copy", "-o", options, "volume:/hello", options]);
        let copied = std::fs::read(bench.path(options)).expect("a copy");
        assert!(copied == vec![5; 3_000_000]);
    }
    let resized = bench.run(&["filesystem", "resize", "1:max", "volume"]);
    assert!(resized.contains("511.00MiB"), "{resized}");
    bench.check();
    bench.run(&["copy", "hello", "volume:/more"]);
    bench.check();
    bench.with_kernel(|mount| {
        std::fs::write(mount.join("kernel"), b"written").expect("a file");
        assert_eq!(
            std::fs::read(mount.join("more")).expect("a file").len(),
            3_000_000
        );
    });
    bench.check();
}

/// Data lay there: the other files are read, and mounted for reading.
#[test]
fn a_truncated_volume_gives_what_is_left() {
    let bench = Bench::new();
    bench.run(&["mkfs", "-f", "-q", "-b", "512m", "-m", "single", "volume"]);
    std::fs::create_dir(bench.path("many")).expect("a directory");
    for file in 0..20_u8 {
        std::fs::write(bench.path(&format!("many/{file}")), vec![file; 8 << 20]).expect("a file");
    }
    bench.run(&["copy", "-o", "compress=no", "many", "volume:/many"]);
    let length = bench.path("volume").metadata().expect("its length").len();
    // The last files lie behind the first 160 MiB of data.
    cut(&bench, length - (180 << 20));
    let refused = bench.try_run(&["filesystem", "resize", "1:max", "volume"]);
    assert!(!refused.status.success());
    assert!(
        said(&refused).contains("reach beyond its end"),
        "{}",
        said(&refused)
    );
    let mut left = 0;
    for file in 0..20_u8 {
        let read = bench.try_run(&["cat", &format!("volume:/many/{file}")]);
        if read.status.success() {
            assert!(read.stdout == vec![file; 8 << 20], "{file}");
            left += 1;
        }
    }
    assert!((10..20).contains(&left), "{left}");
    if can_mount() {
        let mounted = bench.mount("ro");
        assert_eq!(
            std::fs::read_dir(bench.path("mnt/many"))
                .expect("a directory")
                .count(),
            20
        );
        bench.run(&["umount", "mnt"]);
        drop(mounted);
    }
}
