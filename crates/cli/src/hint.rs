//! What a person is told once.
//!
//! Owns the files that say that it was told, in the user's directory for state.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Programs that ask a mount for Btrfs and find FUSE.
const TOOLS: [&str; 8] = [
    "btrfs",
    "snapper",
    "btrbk",
    "timeshift",
    "compsize",
    "duperemove",
    "btdu",
    "beesd",
];

fn state_directory() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let usual = || Some(Path::new(&std::env::var_os("HOME")?).join(".local/state"));
    let state = named.filter(|path| path.is_absolute()).or_else(usual)?;
    Some(state.join("butterfs"))
}

/// The first of the tools in `path`, as PATH lists directories.
fn tool_in(path: &std::ffi::OsStr) -> Option<&'static str> {
    let directories: Vec<PathBuf> = std::env::split_paths(path).collect();
    let is_there = |tool: &&&str| directories.iter().any(|one| one.join(tool).is_file());
    TOOLS.iter().find(is_there).copied()
}

/// Tells a person at a terminal that `butterfs run` exists, if a tool for Btrfs
/// is installed and nobody has told it before.
pub fn tell_of_run() {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let (Some(state), Some(tool)) = (state_directory(), tool_in(&path)) else {
        return;
    };
    let told = state.join("told-of-run");
    if told.exists() {
        return;
    }
    let noted = fs::create_dir_all(&state).and_then(|()| fs::write(&told, ""));
    if noted.is_ok() {
        note!(
            "tools for Btrfs work on this mount with `butterfs run`, as in `butterfs run -- {tool}`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_in_the_path() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().as_os_str();
        assert_eq!(tool_in(path), None);
        fs::write(directory.path().join("compsize"), "").expect("a file");
        assert_eq!(tool_in(path), Some("compsize"));
    }
}
