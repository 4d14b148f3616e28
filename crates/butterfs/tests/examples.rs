//! The programs in `examples/`, built and run.

use std::path::Path;
use std::process::Command;

/// What an example prints; it must end well.
fn run(example: &str, arguments: &[&Path]) -> String {
    // scripts/test-programs has just built them beside this test.
    let own = std::env::current_exe().expect("a path");
    let built = own.ancestors().nth(2).expect("target/debug");
    let built = built.join("examples").join(example);
    let mut command = if std::env::var_os("BUTTERFS_BUILT").is_some() && built.exists() {
        Command::new(built)
    } else {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["run", "--quiet", "--package", "butterfs", "--example"]);
        cargo.args([example, "--"]);
        cargo
    };
    let output = command
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example}: {said}{wrong}");
    said
}

#[test]
fn the_examples_do_what_they_say() {
    let folder = tempfile::tempdir().expect("a directory");
    let at = |name: &str| folder.path().join(name);
    let (disk, backup) = (at("disk.img"), at("backup.img"));

    let said = run("first", &[&disk]);
    assert!(
        said.contains("/2026/may/note.txt: the second of May"),
        "{said}"
    );
    assert!(said.contains("/monday/2026/may/note.txt: the first of May"));

    let tree = at("tree");
    std::fs::create_dir_all(tree.join("below")).expect("a directory");
    std::fs::write(tree.join("below/one"), "1".repeat(5000)).expect("a file");
    std::os::unix::fs::symlink("below/one", tree.join("link")).expect("a link");
    assert_eq!(run("copy_in", &[&disk, &tree]), "1 files, 5000 bytes\n");

    let made = butterfs::make_volume(&backup, 256 << 20, &butterfs::MkfsOptions::default());
    made.expect("a volume");
    let whole = run("backup", &[&disk, &backup, Path::new("one")]);
    let changed = run("backup", &[&disk, &backup, Path::new("two")]);
    let bytes = |said: &str| -> u64 {
        let number = said.split(' ').rev().nth(1);
        number.and_then(|word| word.parse().ok()).expect("bytes")
    };
    assert!(bytes(&changed) < bytes(&whole), "{whole}{changed}");

    let said = run("overview", &[&backup]);
    assert!(said.contains("/one (subvolume)") && said.contains("/two (subvolume)"));
    for volume in [&disk, &backup] {
        let said = run("verify", &[volume]);
        assert!(said.contains("0 bad sectors mended, 0 not"), "{said}");
    }
    assert_eq!(run("threads", &[]), "1000 files\n");
}
