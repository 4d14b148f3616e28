//! The report in headless Chromium: charts, controls, phone, print, themes.

use crate::synthetic;
use std::path::Path;
use std::process::Command;

/// Browsers that scripts/lab-browser knows.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

#[test]
fn the_report_works_in_a_browser() {
    let there = |program: &&str| {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).exists()))
    };
    if !BROWSERS.iter().any(there) {
        let reason = "there is no chromium";
        assert!(std::env::var_os("CI").is_none(), "skipped in CI: {reason}");
        eprintln!("skipped: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.html");
    let page = butterfs_lab::report::html(&synthetic::run(3, 9));
    // 1.5 MB is what a phone opens without waiting.
    assert!(page.len() < 1_500_000, "{} bytes", page.len());
    std::fs::write(&report, page).unwrap();
    // Kept if somebody wants to look at them.
    let shots =
        std::env::var_os("LAB_SCREENSHOTS").map_or_else(|| folder.path().join("shots"), Into::into);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/lab-browser");
    let run = |report: &Path, shots: &Path| {
        let output = Command::new(&script)
            .arg(report)
            .arg(shots)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    let (good, said) = run(&report, &shots);
    assert!(good, "{said}");

    // The script finds what is wrong: an error on the console, a table
    // without a name, text nobody can read.
    let mut broken = std::fs::read_to_string(&report)
        .unwrap()
        .replacen(
            "\"use strict\";",
            "\"use strict\"; console.error('canary');",
            1,
        )
        .replacen("--soft: #555b66", "--soft: #bbbbbb", 1);
    let caption = broken.find("<caption>").unwrap()..broken.find("</caption>").unwrap();
    broken.replace_range(caption, "<caption>");
    let report = folder.path().join("broken.html");
    std::fs::write(&report, broken).unwrap();
    let (good, said) = run(&report, &folder.path().join("broken"));
    assert!(!good);
    for fault in ["canary", "table without caption", "contrast, light"] {
        assert!(said.contains(fault), "{fault} was not found:\n{said}");
    }
}
