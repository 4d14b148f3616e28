//! The binary from outside: make a volume, mount it, use it, unmount it, and
//! have `btrfs check` judge it. What the machine lacks is said in one line.

mod support;

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use support::{Bench, can_mount, said};

fn fill(directory: &Path) {
    std::fs::create_dir_all(directory.join("deep/er")).expect("directories");
    std::fs::write(directory.join("small"), "hello\n").expect("a small file");
    let big: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(directory.join("deep/big"), big).expect("a big file");
    std::fs::hard_link(directory.join("small"), directory.join("deep/same")).expect("a link");
    symlink("deep/er", directory.join("link")).expect("a symbolic link");
    let mode = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(directory.join("small"), mode).expect("permissions");
    let fifo = directory.join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success());
    let sparse = std::fs::File::create(directory.join("sparse")).expect("a sparse file");
    sparse.set_len(1 << 30).expect("its length");
}

fn compare(expected: &Path, found: &Path) {
    let big = |root: &Path| std::fs::read(root.join("deep/big")).expect("the big file");
    assert!(big(expected) == big(found), "the big file differs");
    let small = std::fs::read_to_string(found.join("deep/same"));
    assert_eq!(small.expect("the small file"), "hello\n");
    let link = std::fs::read_link(found.join("link")).expect("the symbolic link");
    assert_eq!(link, Path::new("deep/er"));
    for name in ["small", "deep/big", "sparse", "fifo", "deep", "link"] {
        let of = |root: &Path| std::fs::symlink_metadata(root.join(name)).expect("attributes");
        let (one, other) = (of(expected), of(found));
        assert_eq!(one.mode(), other.mode(), "mode of {name}");
        assert_eq!(one.uid(), other.uid(), "owner of {name}");
        assert_eq!(one.mtime(), other.mtime(), "time of {name}");
        assert_eq!(one.mtime_nsec(), other.mtime_nsec(), "time of {name}");
        if !one.is_dir() {
            assert_eq!(one.size(), other.size(), "size of {name}");
            assert_eq!(one.nlink(), other.nlink(), "links of {name}");
        }
    }
    let fifo = std::fs::symlink_metadata(found.join("fifo")).expect("the fifo");
    assert!(fifo.file_type().is_fifo());
    let sparse = std::fs::metadata(found.join("sparse")).expect("the sparse file");
    assert!(sparse.blocks() < 1024, "the hole was filled");
}

#[test]
fn a_volume_is_made_mounted_filled_and_found_again() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("compress=zstd");
    fill(&bench.path("mnt"));
    let gone = bench.path("mnt/gone");
    std::fs::write(&gone, "x").expect("a file");
    std::fs::remove_file(&gone).expect("its removal");
    std::fs::rename(bench.path("mnt/deep/er"), bench.path("mnt/moved")).expect("a rename");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();

    let again = bench.mount("ro");
    let small = std::fs::read_to_string(bench.path("mnt/small"));
    assert_eq!(small.expect("the small file"), "hello\n");
    assert!(bench.path("mnt/moved").is_dir() && !gone.exists());
    let refused = std::fs::write(bench.path("mnt/new"), "x").expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(30));
    bench.run(&["umount", "mnt"]);
    drop(again);
}

#[test]
fn copies_survive_the_way_in_and_out() {
    let bench = Bench::new();
    fill(&bench.path("source"));
    bench.run(&["copy", "-q", "-o", "compress=lzo", "source", "volume:/"]);
    bench.check();
    bench.run(&["copy", "-q", "volume:/source", "result"]);
    compare(&bench.path("source"), &bench.path("result"));
    assert_eq!(bench.run(&["cat", "volume:/source/small"]), "hello\n");
    let listed = bench.run(&["ls", "volume:/source"]);
    assert!(listed.lines().any(|line| line == "sparse"), "{listed}");
    let listed = bench.run(&["ls", "-R", "--json", "volume:/"]);
    assert!(listed.contains("\"source/deep/big\""), "{listed}");
    assert_eq!(bench.run(&["filesystem", "label", "volume"]), "trial\n");
    let usage = bench.run(&["filesystem", "usage", "volume"]);
    assert!(usage.contains("512.00MiB"), "{usage}");
}

#[test]
fn mistakes_are_refused_with_a_reason() {
    let bench = Bench::new();
    let refused = |words: &[&str], reason: &str| {
        let output = bench.try_run(words);
        assert!(!output.status.success(), "{words:?} succeeded");
        assert!(
            said(&output).contains(reason),
            "{words:?}: {}",
            said(&output)
        );
    };
    refused(&["mkfs", "volume"], "use -f");
    refused(&["mkfs", "-b", "1m", "tiny"], "too small");
    refused(
        &["mkfs", "-f", "-d", "raid1", "volume"],
        "not supported yet",
    );
    refused(
        &["mount", "-o", "compres", "volume", "mnt"],
        "did you mean `compress`",
    );
    refused(&["mount", "nosuch", "mnt"], "nosuch");
    refused(&["umount", "mnt"], "nothing is mounted");
    refused(&["ls", "volume:/nosuch"], "no such file");
    std::fs::write(bench.path("text"), vec![b'x'; 1 << 20]).expect("a file");
    refused(&["ls", "text:/"], "no Btrfs volume");
    if can_mount() {
        let _mounted = bench.mount("rw");
        refused(&["ls", "volume:/"], "in use");
    }
}
