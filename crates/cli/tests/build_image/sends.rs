//! Images of send streams.

use super::{build, built, check, run, sample};
use crate::support::{BINARY, Bench, said};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Extracts what an image has below a path into a directory.
fn extracted(bench: &Bench, place: &str, to: &str) {
    fs::create_dir(bench.path(to)).expect("a directory");
    bench.run(&["tar", "create", "-f", "extracted.tar", place]);
    run(
        "tar",
        &["-xpf", "extracted.tar", "--xattrs", "-C", to],
        &bench.path(""),
    );
}

#[test]
fn sends_become_an_image() {
    let bench = Bench::new();
    fs::create_dir(bench.path("sample")).expect("a directory");
    sample(&bench.path("sample"));
    bench.run(&["mkfs", "-q", "-b", "1G", "source"]);
    bench.run(&["subvolume", "create", "source:/root"]);
    run(
        "tar",
        &["-cf", "sample.tar", "--xattrs", "-C", "sample", "."],
        &bench.path(""),
    );
    bench.run(&["tar", "extract", "-f", "sample.tar", "source:/root"]);
    bench.run(&[
        "subvolume",
        "snapshot",
        "-r",
        "source:/root",
        "source:/monday",
    ]);
    bench.run(&["rm", "source:/root/noise131072"]);
    bench.run(&["mv", "source:/root/many", "source:/root/moved"]);
    bench.run(&["mkdir", "source:/root/new"]);
    fs::write(bench.path("text"), "changed\n".repeat(9000)).expect("a file");
    bench.run(&["copy", "-q", "text", "source:/root/new"]);
    bench.run(&[
        "subvolume",
        "snapshot",
        "-r",
        "source:/root",
        "source:/tuesday",
    ]);
    bench.run(&["send", "-q", "-f", "monday.stream", "source:/monday"]);
    bench.run(&[
        "send",
        "-q",
        "-f",
        "tuesday.stream",
        "-p",
        "source:/monday",
        "source:/tuesday",
    ]);
    extracted(&bench, "source:/monday", "volume-monday");
    extracted(&bench, "source:/tuesday", "volume-tuesday");
    let same = |one: &str, other: &str| {
        run(
            "diff",
            &["-r", "--no-dereference", "-x", "pipe", one, other],
            &bench.path(""),
        );
    };

    // Over a source; and the same bytes each time.
    fs::create_dir_all(bench.path("base/etc")).expect("directories");
    fs::write(bench.path("base/etc/base"), "below\n").expect("a file");
    fs::write(bench.path("base/text4096"), "hidden\n").expect("a file");
    let sends = ["--send", "monday.stream", "--send", "tuesday.stream"];
    let image = |name: &str, more: &[&str]| {
        let words = [&["-o", name, "--seed", "s"], &sends[..], more].concat();
        built(&bench, &words);
        check(&bench, name);
    };
    image("over", &["--from", "base"]);
    image("again", &["--from", "base", "--threads", "1"]);
    let bytes = |name: &str| fs::read(bench.path(name)).expect("an image");
    assert!(bytes("over") == bytes("again"), "the same bytes");
    assert_eq!(bench.run(&["cat", "over:/etc/base"]), "below\n");
    extracted(&bench, "over:/", "over.files");
    fs::remove_dir_all(bench.path("over.files/etc")).expect("the source's own");
    same("over.files", "volume-tuesday/tuesday");
    let one = fs::symlink_metadata(bench.path("over.files/home/ann/one")).expect("it");
    assert_eq!(one.nlink(), 301);
    let pipe = fs::symlink_metadata(bench.path("over.files/pipe")).expect("it");
    assert_eq!(pipe.mode() & 0o17_0000, 0o1_0000, "a pipe");

    // Each send is a snapshot, and what they have in common is stored once.
    image("one", &[]);
    image("layers", &["--layers", "/before"]);
    let list = bench.run(&["subvolume", "list", "-r", "layers"]);
    assert_eq!(list.lines().count(), 1, "{list}");
    extracted(&bench, "layers:/before/1", "layers.files");
    same("layers.files/1", "volume-monday/monday");
    assert_eq!(
        bench.run(&["cat", "layers:/new/text"]),
        "changed\n".repeat(9000)
    );
    let used = |name: &str| fs::metadata(bench.path(name)).expect("an image").len();
    // The removed file, and the nodes of another tree.
    assert!(used("layers") < used("one") + (4 << 20));

    // A stream on standard input.
    let stream = fs::File::open(bench.path("monday.stream")).expect("the stream");
    let piped = Command::new(BINARY)
        .args(["build", "-q", "-o", "piped", "--send", "-"])
        .current_dir(bench.path(""))
        .stdin(stream)
        .output()
        .expect("it starts");
    assert!(piped.status.success(), "{}", said(&piped));
    assert_eq!(bench.run(&["cat", "piped:/home/ann/one"]), "1\n");

    // What is missing or cut is reported, and nothing is made.
    let refused = |words: &[&str], why: &str| {
        let output = build(&bench, &[&["-o", "none"], words].concat());
        assert!(!output.status.success(), "{words:?}");
        assert!(said(&output).contains(why), "{}", said(&output));
        assert!(!bench.path("none").exists());
    };
    refused(&["--send", "tuesday.stream"], "tuesday.stream");
    let whole = fs::read(bench.path("monday.stream")).expect("the stream");
    fs::write(bench.path("cut.stream"), &whole[..whole.len() / 2]).expect("a part");
    refused(&["--send", "cut.stream"], "cut.stream");
    refused(&["--send", "sample.tar"], "no send stream");
    refused(&["--send", "-", "--from", "-"], "one source only");
}
