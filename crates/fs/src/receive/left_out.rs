//! Entries of a stream that a target could not make.
//!
//! Owns which later commands are about them. Streams make entries under
//! temporary names and rename them, so their paths are followed.

use butterfs_format::send_stream::Command;
use std::collections::BTreeSet;

/// The paths of entries that are left out, as the stream has them now. What is
/// below one is left out with it.
#[derive(Debug, Default)]
pub(super) struct LeftOutPaths(BTreeSet<Vec<u8>>);

impl LeftOutPaths {
    /// Leaves out the entry that a command should have made.
    pub fn add(&mut self, path: &[u8]) {
        self.0.insert(path.to_vec());
    }

    /// Follows a command. True if it is about an entry that is left out, and so
    /// cannot be carried out.
    pub fn follow(&mut self, command: &Command<'_>) -> bool {
        if self.0.is_empty() {
            return false;
        }
        match *command {
            Command::Rename { path, to } => {
                let is_left_out = self.covers(path);
                self.rename(path, to);
                is_left_out
            }
            Command::Link { path, existing } if self.covers(existing) => {
                self.add(path);
                true
            }
            Command::Unlink { path } | Command::RemoveDirectory { path } => {
                let is_left_out = self.covers(path);
                self.0.remove(path);
                is_left_out
            }
            _ => command.path().is_some_and(|path| self.covers(path)),
        }
    }

    /// Whether the entry at `path`, or a directory above it, is left out.
    fn covers(&self, path: &[u8]) -> bool {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let above = slashes.map(|(at, _)| &path[..at]);
        above.chain([path]).any(|path| self.0.contains(path))
    }

    /// `path` is called `to` now, with all below it.
    fn rename(&mut self, path: &[u8], to: &[u8]) {
        let below = |known: &[u8]| {
            let rest = known.strip_prefix(path)?;
            (rest.is_empty() || rest[0] == b'/').then(|| [to, rest].concat())
        };
        let moved: Vec<_> = self
            .0
            .range(path.to_vec()..)
            .take_while(|known| known.starts_with(path))
            .filter_map(|known| Some((known.clone(), below(known)?)))
            .collect();
        for (old, new) in moved {
            self.0.remove(&old);
            self.0.insert(new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_followed() {
        let mut paths = LeftOutPaths::default();
        let times = |path: &'static [u8]| Command::Chmod { path, mode: 0o644 };
        assert!(!paths.follow(&times(b"o1")));
        paths.add(b"o1");
        assert!(paths.follow(&times(b"o1")) && !paths.follow(&times(b"o11")));
        let rename = |path: &'static [u8], to: &'static [u8]| Command::Rename { path, to };
        assert!(paths.follow(&rename(b"o1", b"dev/null")));
        assert!(!paths.follow(&times(b"o1")) && paths.follow(&times(b"dev/null")));
        // A directory above it moves.
        assert!(!paths.follow(&rename(b"dev", b"old")));
        assert!(paths.follow(&times(b"old/null")) && !paths.follow(&times(b"dev/null")));
        let link = Command::Link {
            path: b"again",
            existing: b"old/null",
        };
        assert!(paths.follow(&link));
        assert!(paths.follow(&Command::Unlink { path: b"old/null" }));
        assert!(!paths.follow(&times(b"old/null")) && paths.follow(&times(b"again/below")));
    }
}
