//! Tells the program from which commit it is built.
//!
//! `BUTTERFS_COMMIT` names it if the source is no git checkout, or for a build
//! that must not depend on one.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=BUTTERFS_COMMIT");
    let given = std::env::var("BUTTERFS_COMMIT").ok();
    let commit = given.filter(|given| !given.is_empty()).or_else(of_git);
    let commit = commit.unwrap_or_else(|| "commit unknown".to_owned());
    println!("cargo:rustc-env=BUTTERFS_COMMIT={commit}");
}

/// The commit of the checkout that holds this crate.
fn of_git() -> Option<String> {
    // Grows with every commit and every change of branch.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=10", "HEAD"])
}

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let said = text.trim();
    (output.status.success() && !said.is_empty()).then(|| said.to_owned())
}
