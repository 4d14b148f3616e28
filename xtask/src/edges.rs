//! Which crate uses which.

use crate::source::{files, read, without_tests, words};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Each crate, and those of ours that it uses.
const EDGES: &[(&str, &[&str])] = &[
    ("format", &[]),
    ("device", &["format"]),
    ("kernel", &["format"]),
    ("volume", &["format", "device"]),
    ("tree", &["format"]),
    ("store", &["format", "device", "volume", "tree"]),
    ("check", &["format", "device", "volume", "tree"]),
    ("rescue", &["format", "device", "volume", "tree"]),
    ("repair", &["format", "device", "volume", "tree", "check"]),
    ("fs", &["format", "device", "tree", "store"]),
    ("admin", &["format", "device", "volume", "tree", "store"]),
    (
        "butterfs",
        &[
            "format", "device", "kernel", "tree", "store", "fs", "admin", "check", "repair",
        ],
    ),
    ("fuse", &[]),
    ("ext4", &[]),
    ("convert", &["format", "device", "volume", "tree", "ext4"]),
    (
        "server",
        &["butterfs", "fuse", "device", "format", "kernel"],
    ),
    ("supervisor", &["format", "kernel", "server"]),
    ("preload", &["supervisor"]),
    ("lab", &["butterfs", "device"]),
    ("testkit", &["format"]),
    (
        "cli",
        &[
            "butterfs",
            "fuse",
            "server",
            "supervisor",
            "admin",
            "check",
            "convert",
            "rescue",
            "repair",
            "device",
            "format",
            "kernel",
            "lab",
            "tree",
        ],
    ),
];

/// The short name of a crate of ours that a manifest calls `name`.
fn ours(name: &str) -> Option<&str> {
    match name {
        "butterfs" => Some("butterfs"),
        _ => name.strip_prefix("butterfs-"),
    }
}

/// The names in a section of a manifest.
fn names<'m>(manifest: &'m str, section: &str) -> Vec<&'m str> {
    let begin = format!("{section}]");
    let section = manifest.split("\n[").find(|text| text.starts_with(&begin));
    let lines = section.unwrap_or_default().lines().skip(1);
    lines
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
        .collect()
}

/// All names that files below a folder use, without or with their tests.
fn used(folder: &Path, part: fn(&str) -> &str) -> Result<BTreeSet<String>, String> {
    let mut all = BTreeSet::new();
    for path in files(folder) {
        all.extend(words(part(&read(&path)?)));
    }
    Ok(all)
}

/// Fails if a crate uses what it may not use, or names what it does not use.
pub fn check() -> Result<(), String> {
    let mut wrong = Vec::new();
    let entries = fs::read_dir("crates").map_err(|error| format!("crates: {error}"))?;
    let mut folders: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let manifest = read(&folder.join("Cargo.toml"))?;
        let Some((_, allowed)) = EDGES.iter().find(|(known, _)| *known == name) else {
            wrong.push(format!("{name} is not in the list of crates"));
            continue;
        };
        // Tests may use any crate: only [dependencies] count.
        let named = names(&manifest, "dependencies");
        let edges: Vec<&str> = named.iter().filter_map(|name| ours(name)).collect();
        for edge in edges.iter().filter(|edge| !allowed.contains(edge)) {
            wrong.push(format!("{name} must not use {edge}"));
        }
        for edge in allowed.iter().filter(|edge| !edges.contains(edge)) {
            wrong.push(format!("{name} may use {edge} and does not"));
        }
        let of_tests = names(&manifest, "dev-dependencies");
        let dependencies = [
            (named, used(&folder.join("src"), without_tests)?),
            (of_tests, used(&folder, |text| text)?),
        ];
        for (named, used) in dependencies {
            for dependency in named {
                if !used.contains(&dependency.replace('-', "_")) {
                    wrong.push(format!("{name} names {dependency} and uses it nowhere"));
                }
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(wrong.join("\n"))
}
