//! Notes of what was received, where subvolumes cannot say it themselves, and
//! of how far an interrupted receive came.
//!
//! Each name has one small text file in the folder `.butterfs-receive` of the
//! target, which people can read. A change replaces the whole file.

use butterfs_fs::receive::{Note, TargetError};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folder in the target.
pub(super) const FOLDER: &str = ".butterfs-receive";

#[derive(Debug)]
pub(super) struct Notes {
    folder: PathBuf,
}

impl Notes {
    pub fn new(target: &Path) -> Self {
        Self {
            folder: target.join(FOLDER),
        }
    }

    fn path(&self, name: &[u8]) -> PathBuf {
        self.folder.join(OsStr::from_bytes(name))
    }

    pub fn read(&self, name: &[u8]) -> Result<Option<Note>, TargetError> {
        let text = match std::fs::read_to_string(self.path(name)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let note = Note::parse(name, &text);
        match note {
            Some(note) => Ok(Some(note)),
            None => Err(TargetError::Other(format!(
                "{} cannot be understood",
                self.path(name).display()
            ))),
        }
    }

    pub fn write(&self, name: &[u8], note: &Note) -> Result<(), TargetError> {
        std::fs::create_dir_all(&self.folder)?;
        let mut new = tempfile_in(&self.folder, name)?;
        new.1.write_all(note.to_string().as_bytes())?;
        new.1.sync_all()?;
        std::fs::rename(&new.0, self.path(name))?;
        std::fs::File::open(&self.folder)?.sync_all()?;
        Ok(())
    }

    pub fn remove(&self, name: &[u8]) -> Result<(), TargetError> {
        match std::fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// A new file beside the one for `name`. It keeps only the beginning of `name`,
/// so that its own name does not become too long.
fn tempfile_in(folder: &Path, name: &[u8]) -> io::Result<(PathBuf, std::fs::File)> {
    let kept = &name[..name.len().min(200)];
    let path = folder.join(OsStr::from_bytes(&[b".new-", kept].concat()));
    let file = std::fs::File::create(&path)?;
    Ok((path, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::Generation;
    use butterfs_format::send_stream::SourceStamp;
    use butterfs_fs::receive::{NewSubvolume, Position};

    #[test]
    fn notes_are_read_as_written() {
        let dir = std::env::temp_dir().join(format!("butterfs-notes-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let notes = Notes::new(&dir);
        assert_eq!(notes.read(b"a").unwrap(), None);
        let stamp = SourceStamp {
            uuid: *b"0123456789abcdef",
            ctransid: Generation(u64::MAX),
        };
        let partly = Note::Partly {
            of: NewSubvolume {
                name: b"a".to_vec(),
                stamp,
                parent: Some(stamp),
            },
            at: Position {
                offset: 7,
                digest: u32::MAX,
            },
        };
        for note in [Note::Whole(stamp), partly] {
            notes.write(b"a", &note).unwrap();
            assert_eq!(notes.read(b"a").unwrap(), Some(note));
        }
        notes.remove(b"a").unwrap();
        notes.remove(b"a").unwrap();
        assert_eq!(notes.read(b"a").unwrap(), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
