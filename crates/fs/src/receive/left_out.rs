//! Entries of a stream that a target could not make.
//!
//! Owns which later commands are about them. Streams make entries under
//! temporary names and rename them, so their paths are followed.

use butterfs_format::send_stream::Command;
use std::collections::BTreeSet;

/// Bytes of paths that are remembered, as long as a stream may be.
const BYTES_MAX: usize = 64 << 20;
/// What a path takes beside its own bytes, about.
const BYTES_OF_ENTRY: usize = 64;

/// The paths of entries that are left out are more than [`BYTES_MAX`].
#[derive(Debug)]
pub(super) struct TooMany;

/// The paths of entries that are left out, as the stream has them now. What is
/// below one is left out with it.
#[derive(Debug, Default)]
pub(super) struct LeftOutPaths {
    paths: BTreeSet<Vec<u8>>,
    bytes: usize,
}

impl LeftOutPaths {
    /// Leaves out the entry that a command should have made.
    ///
    /// # Errors
    /// [`TooMany`]
    pub fn add(&mut self, path: &[u8]) -> Result<(), TooMany> {
        self.insert(path.to_vec())
    }

    fn insert(&mut self, path: Vec<u8>) -> Result<(), TooMany> {
        let bytes = path.len().saturating_add(BYTES_OF_ENTRY);
        if self.paths.insert(path) {
            self.bytes = self.bytes.saturating_add(bytes);
        }
        match self.bytes > BYTES_MAX {
            true => Err(TooMany),
            false => Ok(()),
        }
    }

    fn remove(&mut self, path: &[u8]) {
        if self.paths.remove(path) {
            let bytes = path.len().saturating_add(BYTES_OF_ENTRY);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }

    /// Follows a command. True if it is about an entry that is left out, and so
    /// cannot be carried out.
    ///
    /// # Errors
    /// [`TooMany`]
    pub fn follow(&mut self, command: &Command<'_>) -> Result<bool, TooMany> {
        if self.paths.is_empty() {
            return Ok(false);
        }
        Ok(match *command {
            Command::Rename { path, to } => {
                let is_left_out = self.covers(path);
                self.rename(path, to)?;
                is_left_out
            }
            Command::Link { path, existing } if self.covers(existing) => {
                self.add(path)?;
                true
            }
            Command::Unlink { path } | Command::RemoveDirectory { path } => {
                let is_left_out = self.covers(path);
                self.remove(path);
                is_left_out
            }
            _ => command.path().is_some_and(|path| self.covers(path)),
        })
    }

    /// Whether the entry at `path`, or a directory above it, is left out.
    fn covers(&self, path: &[u8]) -> bool {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let above = slashes.map(|(at, _)| &path[..at]);
        above.chain([path]).any(|path| self.paths.contains(path))
    }

    /// `path` is called `to` now, with all below it.
    fn rename(&mut self, path: &[u8], to: &[u8]) -> Result<(), TooMany> {
        let below = |known: &[u8]| {
            let rest = known.strip_prefix(path)?;
            (rest.is_empty() || rest[0] == b'/').then(|| [to, rest].concat())
        };
        let moved: Vec<_> = self
            .paths
            .range(path.to_vec()..)
            .take_while(|known| known.starts_with(path))
            .filter_map(|known| Some((known.clone(), below(known)?)))
            .collect();
        for (old, new) in moved {
            self.remove(&old);
            self.insert(new)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_followed() {
        let mut paths = LeftOutPaths::default();
        let times = |path: &'static [u8]| Command::Chmod { path, mode: 0o644 };
        assert!(!paths.follow(&times(b"o1")).unwrap());
        paths.add(b"o1").unwrap();
        assert!(paths.follow(&times(b"o1")).unwrap() && !paths.follow(&times(b"o11")).unwrap());
        let rename = |path: &'static [u8], to: &'static [u8]| Command::Rename { path, to };
        assert!(paths.follow(&rename(b"o1", b"dev/null")).unwrap());
        assert!(
            !paths.follow(&times(b"o1")).unwrap() && paths.follow(&times(b"dev/null")).unwrap()
        );
        // A directory above it moves.
        assert!(!paths.follow(&rename(b"dev", b"old")).unwrap());
        assert!(
            paths.follow(&times(b"old/null")).unwrap()
                && !paths.follow(&times(b"dev/null")).unwrap()
        );
        let link = Command::Link {
            path: b"again",
            existing: b"old/null",
        };
        assert!(paths.follow(&link).unwrap());
        assert!(
            paths
                .follow(&Command::Unlink { path: b"old/null" })
                .unwrap()
        );
        assert!(
            !paths.follow(&times(b"old/null")).unwrap()
                && paths.follow(&times(b"again/below")).unwrap()
        );
    }
    /// Hard links and renames to longer names count, too.
    #[test]
    fn memory_is_bounded() {
        let mut paths = LeftOutPaths::default();
        let long = vec![b'x'; 4000];
        paths.add(b"first").unwrap();
        let mut links = 0;
        loop {
            let path = [&long[..], format!("{links}").as_bytes()].concat();
            let link = Command::Link {
                path: &path,
                existing: b"first",
            };
            match paths.follow(&link) {
                Ok(is_left_out) => assert!(is_left_out),
                Err(TooMany) => break,
            }
            links += 1;
        }
        let expected = BYTES_MAX / (long.len() + BYTES_OF_ENTRY);
        assert!((expected - 100..=expected).contains(&links), "{links}");

        let mut paths = LeftOutPaths::default();
        for number in 0..10_000 {
            paths.add(format!("d/{number}").as_bytes()).unwrap();
        }
        let before = paths.bytes;
        let there = Command::Rename {
            path: b"d",
            to: b"a longer name",
        };
        paths.follow(&there).unwrap();
        assert!(paths.bytes > before);
        let back = Command::Rename {
            path: b"a longer name",
            to: b"d",
        };
        paths.follow(&back).unwrap();
        assert_eq!(paths.bytes, before);
        let long = Command::Rename {
            path: b"d",
            to: &vec![b'x'; 8000],
        };
        assert!(paths.follow(&long).is_err());
    }
}
