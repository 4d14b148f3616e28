//! `butterfs check` as a program: exit codes, text and JSON.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

fn butterfs(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_butterfs"))
        .args(words)
        .output()
        .expect("the program runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn flip(path: &Path, offset: u64) {
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("the image opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)
        .expect("it is that long");
    file.write_all_at(&[byte[0] ^ 1], offset)
        .expect("it can be written");
}

#[test]
fn exit_codes_and_reports() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("v.img");
    let image = path.to_str().expect("a path of characters");
    let made = butterfs(&["mkfs", "-q", "-b", "200m", image]);
    assert!(made.status.success(), "{}", text(&made));

    let clean = butterfs(&["check", "--progress", "--check-data-csum", image]);
    assert_eq!(clean.status.code(), Some(0), "{}", text(&clean));
    assert!(text(&clean).contains("no faults found"));

    // A mirror of the superblock.
    flip(&path, (64 << 20) + 1000);
    let damaged = butterfs(&["check", image]);
    assert_eq!(damaged.status.code(), Some(1), "{}", text(&damaged));
    assert!(text(&damaged).contains("superblock-copy-invalid"));
    let damaged = butterfs(&["fsck", "--json", image]);
    assert_eq!(damaged.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&damaged.stdout).expect("it is JSON");
    assert_eq!(json["clean"], false);
    assert_eq!(json["counts"]["superblock-copy-invalid"], 1);
    assert_eq!(json["faults"][0]["severity"], "fault");

    assert_eq!(
        butterfs(&["check", "--super", "9", image]).status.code(),
        Some(2)
    );
    assert_eq!(butterfs(&["check", "/nowhere"]).status.code(), Some(8));
    flip(&path, (64 << 10) + 1000);
    let hopeless = butterfs(&["check", image]);
    assert_eq!(hopeless.status.code(), Some(8), "{}", text(&hopeless));
    assert!(text(&butterfs(&["check", "--list-codes"])).contains("extent-overlap"));
}
