//! Images of archives.

use super::{build, built, noise, run};
use crate::support::{Bench, said};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Zeros mark the end of an archive, and images begin with zeros.
#[test]
fn what_is_no_archive_is_refused_and_replaces_nothing() {
    let bench = Bench::new();
    let file = |name: &str, bytes: &[u8]| fs::write(bench.path(name), bytes).expect("a file");
    file("note", b"kept\n");
    bench.run(&["copy", "-q", "note", "volume:/"]);
    fs::hard_link(bench.path("volume"), bench.path("again")).expect("a link");
    let mut extended = vec![0; 8192];
    extended[1024 + 0x38..][..2].copy_from_slice(&[0x53, 0xef]);
    file("ext.img", &extended);
    file("zeros", &[0; 1 << 20]);
    file("odd", &[0; 700]);
    file("empty", b"");
    let raw = b"\x1b[31m\0\x07".repeat(500);
    file("raw", &raw);
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(5);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    archive
        .append_data(&mut header, "note", &b"kept\n"[..])
        .expect("a member");
    let mut damaged = archive.into_inner().expect("an archive");
    damaged.truncate(1024);
    damaged.extend(&raw);
    file("damaged.tar", &damaged);
    for (name, reason) in [
        ("volume", "a file system (btrfs)"),
        ("ext.img", "a file system (ext"),
        ("zeros", "begins with zeros"),
        ("odd", "begins with zeros"),
        ("empty", "it is empty"),
        ("raw", "does not begin with the header"),
        ("damaged.tar", "cannot be read"),
    ] {
        for words in [
            ["build", "-q", "-o", "new.img", "--from", name].as_slice(),
            &["tar", "extract", "-f", name, "volume:/"],
        ] {
            let output = bench.try_run(words);
            let all = said(&output);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {all}");
            assert!(
                all.contains(reason) && all.contains(name),
                "{words:?}: {all}"
            );
            let is_plain = |letter: char| letter == '\n' || !letter.is_control();
            assert!(all.chars().all(is_plain), "{words:?}: {all:?}");
        }
        assert!(!bench.path("new.img").exists(), "{name}");
    }
    for name in ["volume", "again", "./volume"] {
        for from in ["--from", "--send"] {
            let output = build(&bench, &["-f", "-o", "volume", from, name]);
            let all = said(&output);
            assert!(!output.status.success(), "{name}: {all}");
            assert!(all.contains("is the image itself"), "{name}: {all}");
        }
    }
    for words in [
        ["build", "-q", "-o", "new.img", "--from", "-"].as_slice(),
        &["tar", "extract", "volume:/"],
    ] {
        let output = bench.try_run(words);
        let all = said(&output);
        assert!(!output.status.success(), "{words:?}: {all}");
        assert!(
            all.contains("standard input: no archive"),
            "{words:?}: {all}"
        );
    }
    // As tar writes an archive of nothing.
    for (name, length) in [("two.tar", 1024), ("filled.tar", 10_240)] {
        file(name, &vec![0; length]);
        built(&bench, &["-q", "-f", "-o", "new.img", "--from", name]);
        bench.run(&["tar", "extract", "-f", name, "volume:/"]);
    }
    assert_eq!(bench.run(&["cat", "volume:/note"]), "kept\n");
    bench.check();
}

/// An archive may say what no file system has. It is refused, and no image is
/// made.
#[test]
fn members_that_no_volume_can_have_are_refused() {
    let bench = Bench::new();
    let refused = |write: &dyn Fn(&mut tar::Builder<fs::File>, &mut tar::Header)| {
        let file = fs::File::create(bench.path("odd.tar")).expect("a file");
        let mut archive = tar::Builder::new(file);
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        write(&mut archive, &mut header);
        archive.finish().expect("an archive");
        drop(archive);
        let output = build(&bench, &["-q", "-o", "odd.img", "--from", "odd.tar"]);
        let all = said(&output);
        assert!(!output.status.success(), "{all}");
        assert!(all.contains("bytes without NUL"), "{all}");
        assert!(!bench.path("odd.img").exists());
    };
    let long = "n".repeat(256);
    let below = format!("{long}/file");
    for path in [&long, &below] {
        refused(&|archive, header| {
            let added = archive.append_data(header, path, std::io::empty());
            added.expect("a member");
        });
    }
    for target in ["t".repeat(4096), String::new()] {
        refused(&|archive, header| {
            header.set_entry_type(tar::EntryType::Symlink);
            match target.is_empty() {
                true => {
                    header.set_path("link").expect("a path");
                    header.set_cksum();
                    archive.append(header, std::io::empty()).expect("a member");
                }
                false => {
                    let added = archive.append_link(header, "link", &target);
                    added.expect("a member");
                }
            }
        });
    }
    for name in ["a".repeat(300), "user.n\0ul".to_owned()] {
        refused(&|archive, header| {
            let key = format!("SCHILY.xattr.{name}");
            let added = archive.append_pax_extensions([(&*key, b"x".as_slice())]);
            added.expect("a header");
            let added = archive.append_data(header, "file", std::io::empty());
            added.expect("a member");
        });
    }
}

/// Sparse members, as GNU tar and bsdtar write them.
#[test]
fn sparse_members_of_archives() {
    let bench = Bench::new();
    fs::create_dir(bench.path("holes")).expect("a directory");
    let size = 700 << 20;
    let pieces = [
        (0, 5000),
        (200 << 20, 70_000),
        (400 << 20, 4096),
        (size - 3, 3),
    ];
    let file = fs::File::create(bench.path("holes/sparse")).expect("a file");
    for (at, length) in pieces {
        file.write_all_at(&noise(length), at).expect("written");
    }
    let file = fs::File::create(bench.path("holes/empty")).expect("a file");
    file.set_len(90 << 20).expect("a size");
    fs::write(bench.path("holes/text"), "beside\n").expect("a file");
    let whole = |top: &str| {
        let file = fs::File::open(bench.path(top).join("sparse")).expect("a file");
        let meta = file.metadata().expect("metadata");
        assert_eq!(meta.len(), size, "{top}");
        assert!(
            meta.blocks() * 512 < 8 << 20,
            "{top}: {} blocks",
            meta.blocks()
        );
        for (at, length) in pieces {
            let mut found = vec![0; length];
            file.read_exact_at(&mut found, at).expect("it is there");
            assert!(found == noise(length), "{top}: at {at}");
        }
        let mut zeros = vec![1; 1 << 20];
        file.read_exact_at(&mut zeros, 300 << 20).expect("a hole");
        assert!(zeros.iter().all(|byte| *byte == 0), "{top}");
        let empty = fs::metadata(bench.path(top).join("empty")).expect("a file");
        assert_eq!(empty.len(), 90 << 20, "{top}");
        let text = fs::read_to_string(bench.path(top).join("text"));
        assert_eq!(text.expect("a file"), "beside\n");
    };
    whole("holes");
    let pax = |form| {
        [
            "tar",
            "-S",
            "--format=posix",
            "--sparse-version",
            form,
            "-cf",
        ]
    };
    let archives: [(&str, &[&str]); 6] = [
        ("old", &["tar", "-S", "--format=gnu", "-cf"]),
        ("p00", &pax("0.0")),
        ("p01", &pax("0.1")),
        ("p10", &pax("1.0")),
        ("xattrs", &["tar", "-S", "--xattrs", "-cf"]),
        ("bsd", &["bsdtar", "--format", "pax", "-cf"]),
    ];
    for (name, words) in archives {
        let archive = format!("{name}.tar");
        let (program, words) = (words[0], &words[1..]);
        let words = [words, &[&archive, "holes"]].concat();
        run(program, &words, &bench.path(""));
        let image = format!("{name}.img");
        built(&bench, &["-q", "-o", &image, "--from", &archive]);
        let bytes = fs::metadata(bench.path(&image)).expect("an image").len();
        assert!(bytes < 60 << 20, "{name}: {bytes}");
        bench.run(&["check", "--check-data-csum", &image]);
        // The old form says where its holes are in a way of its own.
        let into = if name == "old" { &image } else { "volume" };
        if into == "volume" {
            bench.run(&["tar", "extract", "-f", &archive, "volume:/"]);
        }
        for (from, to) in [(into, "extracted"), (&image, "built")] {
            bench.run(&["copy", "-q", &format!("{from}:/holes"), to]);
            whole(to);
            fs::remove_dir_all(bench.path(to)).expect("removed");
        }
        bench.run(&["rm", "-rf", "volume:/holes"]);
        fs::remove_file(bench.path(&archive)).expect("removed");
        fs::remove_file(bench.path(&image)).expect("removed");
    }
    bench.run(&["check", "volume"]);
}

/// A file has at most 65,535 names, as in the kernel.
#[test]
fn a_file_with_too_many_names() {
    let bench = Bench::new();
    let file = fs::File::create(bench.path("links.tar")).expect("a file");
    let mut archive = tar::Builder::new(std::io::BufWriter::new(file));
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header.set_mtime(0);
    let added = archive.append_data(&mut header, "first", std::io::empty());
    added.expect("a member");
    header.set_entry_type(tar::EntryType::Link);
    for number in 0..65_535 {
        let added = archive.append_link(&mut header, format!("l{number:05}"), "first");
        added.expect("a member");
    }
    archive.into_inner().expect("an archive");
    let words = [
        "-q",
        "-m",
        "single",
        "-o",
        "links.img",
        "--from",
        "links.tar",
    ];
    let refused = build(&bench, &words);
    assert!(!refused.status.success());
    let told = said(&refused);
    assert!(
        told.contains("65536 names") && told.contains("65535 at most"),
        "{told}"
    );
    assert!(!bench.path("links.img").exists());
    let most = build(&bench, &[&words[..], &["--keep-going"]].concat());
    let told = said(&most);
    assert_eq!(most.status.code(), Some(1), "{told}");
    assert!(told.contains("left out: /l65534: "), "{told}");
    assert!(
        told.contains("1 files or directories are left out; all else"),
        "{told}"
    );
    let checked = bench.run(&["check", "links.img"]);
    assert!(!checked.contains("inode-links-max"), "{checked}");
}
