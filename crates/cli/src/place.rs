//! `VOLUME:/path` on the command line, and output that commands share.

use crate::fail::{Context, Done, Failure, fail};
use crate::host;
use crate::reading;
use butterfs::{OpenOptions, Part, Subvolume, Volume};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A path in a volume.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Place {
    /// File or device that holds the volume.
    #[serde(with = "any_bytes")]
    pub volume: PathBuf,
    /// Path in it.
    pub path: OsString,
}

/// Something below a place.
#[derive(Clone, Copy, Debug)]
pub struct Below<'a> {
    place: &'a Place,
    path: &'a [u8],
}

impl fmt::Display for Below<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_named = self.place.path.as_bytes().ends_with(b"/");
        let slash = if self.path.is_empty() || is_named {
            ""
        } else {
            "/"
        };
        write!(
            f,
            "{}{slash}{}",
            self.place,
            String::from_utf8_lossy(self.path)
        )
    }
}

impl Place {
    /// `VOLUME:/path`; `None` without `:/`, and for the path of something on the
    /// host. VOLUME may have a `:/` in it: it ends before the first one where it
    /// is a file or a device; if it is none anywhere, where it is a directory;
    /// if nothing is there, before the first one.
    pub fn parse(word: &OsString) -> Option<Self> {
        let bytes = word.as_bytes();
        let places = || {
            let pairs = bytes.windows(2).enumerate();
            let ends = pairs.filter(|(_, pair)| *pair == b":/");
            ends.map(|(at, _)| Self {
                volume: OsString::from_vec(bytes[..at].to_vec()).into(),
                path: OsString::from_vec(bytes[at + 1..].to_vec()),
            })
        };
        let first = places().next()?;
        // A server gets words of another process, which begin with the path of
        // its own mount. It must not wait for itself.
        if host::is_serving() {
            return Some(first);
        }
        let is_file = |place: &Self| place.volume.metadata().is_ok_and(|found| !found.is_dir());
        if let Some(place) = places().find(is_file) {
            return Some(place);
        }
        if Path::new(word).symlink_metadata().is_ok() {
            return None;
        }
        let there = places().find(|place| place.volume.exists());
        Some(there.unwrap_or(first))
    }

    /// What lies at `path` below it, for messages.
    pub const fn below<'a>(&'a self, path: &'a [u8]) -> Below<'a> {
        Below { place: self, path }
    }

    /// As a user writes it; it need not be UTF-8.
    pub fn bytes(&self) -> Vec<u8> {
        let volume = self.volume.as_os_str().as_bytes();
        [volume, b":", self.path.as_bytes()].concat()
    }

    /// Errors if there is nothing at the path. For commands about a whole volume,
    /// which do not follow it.
    pub fn verify_exists(&self, part: Part) -> Done {
        let path = self.path.as_bytes();
        let inner = path.iter().position(|byte| *byte != b'/');
        let Some(inner) = inner.map(|at| &path[at..]) else {
            return Ok(());
        };
        if self.volume.is_dir() {
            let below = self.volume.join(OsStr::from_bytes(inner));
            std::fs::symlink_metadata(below).context(self)?;
            return Ok(());
        }
        let found = self.open_part(None, part)?.resolve(path);
        found.context(self.volume.display()).map(drop)
    }

    /// Opens the volume so that nothing in it changes. A server that runs a
    /// command for another process already has it open.
    pub fn open_read_only(&self, subvolume: Option<u64>) -> Result<Volume, Failure> {
        self.open_part(subvolume, Part::Whole)
    }

    /// As [`Place::open_read_only`], if the volume is in a part of a device.
    pub fn open_part(&self, subvolume: Option<u64>, part: Part) -> Result<Volume, Failure> {
        self.open_with(OpenOptions::read_only(), subvolume, part)
    }

    /// Opens the volume to show what is on its devices, without what a waiting
    /// fsync log has.
    pub fn open_as_committed(&self) -> Result<Volume, Failure> {
        self.open_with(OpenOptions::as_committed(), None, Part::Whole)
    }

    /// Opens it for reading.
    pub fn open_with(
        &self,
        mut options: OpenOptions,
        subvolume: Option<u64>,
        part: Part,
    ) -> Result<Volume, Failure> {
        if let Some(volume) = host::volume() {
            if subvolume.is_some() {
                return fail("--subvolid is for volumes that are not mounted");
            }
            return Ok(volume);
        }
        options.part = part;
        if let Some(id) = subvolume {
            options.subvolume = Subvolume::Id(id);
        }
        reading::open_with_log(&self.volume, options)
    }
}

/// For command lines, whose words need not be UTF-8.
impl From<OsString> for Place {
    /// The root of a volume if no path is given.
    fn from(word: OsString) -> Self {
        Self::parse(&word).unwrap_or_else(|| Self {
            volume: word.into(),
            path: "/".into(),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // On a mount, it is the path that somebody wrote.
        match self.volume.as_os_str().is_empty() {
            true => write!(f, "{}", self.path.display()),
            false => write!(f, "{}:{}", self.volume.display(), self.path.display()),
        }
    }
}

/// Paths in requests to a server, for `serde(with)`. A path need not be UTF-8,
/// but serde writes a `PathBuf` only if it is.
pub mod any_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    /// Writes the path's bytes.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().serialize(serializer)
    }

    /// Reads them.
    ///
    /// # Errors
    /// Those of the deserializer.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(deserializer).map(PathBuf::from)
    }
}

/// Prints facts as JSON.
pub fn json(facts: &impl Serialize) -> Done {
    say!("{}", serde_json::to_string_pretty(facts)?);
    Ok(())
}
