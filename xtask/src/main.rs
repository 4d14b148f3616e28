//! Checks of the source tree. `cargo run -p xtask -- edges` fails when a crate
//! uses another that ARCHITECTURE.md does not allow.

use std::fs;
use std::process::ExitCode;

/// Each crate and those of ours that it may use.
const EDGES: &[(&str, &[&str])] = &[
    ("format", &[]),
    ("device", &["format"]),
    ("kernel", &["format"]),
    ("volume", &["format", "device"]),
    ("tree", &["format"]),
    ("store", &["format", "device", "volume", "tree"]),
    ("check", &["format", "device", "volume", "tree"]),
    ("fs", &["format", "device", "volume", "tree", "store"]),
    (
        "admin",
        &["format", "device", "volume", "tree", "store", "fs"],
    ),
    (
        "butterfs",
        &[
            "format", "device", "kernel", "volume", "tree", "store", "fs", "admin",
        ],
    ),
    ("fuse", &[]),
    (
        "lab",
        &["butterfs", "admin", "check", "device", "format", "fs"],
    ),
    ("testkit", &["format", "device"]),
    (
        "server",
        &["butterfs", "fuse", "device", "format", "kernel", "tree"],
    ),
    (
        "cli",
        &[
            "butterfs", "fuse", "server", "admin", "check", "device", "format", "kernel", "lab",
            "tree",
        ],
    ),
];

fn name_of(dependency: &str) -> Option<&str> {
    let name = dependency.split(['.', ' ', '=']).next()?.trim();
    match name {
        "butterfs" => Some("butterfs"),
        _ => name.strip_prefix("butterfs-"),
    }
}

fn edges() -> Result<(), String> {
    let mut wrong = Vec::new();
    let entries = fs::read_dir("crates").map_err(|error| format!("crates: {error}"))?;
    for entry in entries.flatten() {
        let folder = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path().join("Cargo.toml");
        let manifest =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == folder) else {
            wrong.push(format!("{folder} is not in the list of crates"));
            continue;
        };
        // Tests may use any crate: only [dependencies] count.
        let section = manifest
            .split("\n[")
            .find(|s| s.starts_with("dependencies]"));
        for line in section.unwrap_or_default().lines() {
            if let Some(used) = name_of(line)
                && !allowed.contains(&used)
            {
                wrong.push(format!("{folder} must not use {used}"));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(wrong.join("\n"))
}

fn main() -> ExitCode {
    let result = match std::env::args().nth(1).as_deref() {
        Some("edges") => edges(),
        _ => Err("usage: xtask edges".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}
