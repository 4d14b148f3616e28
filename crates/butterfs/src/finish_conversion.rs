//! The end of a conversion from ext4: the saved image of the old file system
//! goes, and the files may be compressed.

use crate::volume::Volume;
use crate::{Error, Walk};
use butterfs_format::InodeId;
use butterfs_format::compression::Method;
use butterfs_fs::FsError;
use butterfs_fs::file::{Defragment, Recompress, Sharing};
use butterfs_fs::names::{S_IFMT, S_IFREG};
use butterfs_fs::subvolume::Cleaning;
use std::collections::HashSet;

/// Where a conversion keeps the old file system.
const SAVED: &str = "/ext2_saved";

impl Volume {
    /// Deletes the saved image of the old file system and waits until its space
    /// is free. There is no way back then. With `compression`, all files of the
    /// top-level subvolume are rewritten, compressed where that makes them
    /// smaller. `unchanged` is given the paths of files that are immutable or
    /// append-only, which stay as they are.
    ///
    /// If the power fails meanwhile, the image is there or on its way out, and
    /// some files may be compressed; all are whole.
    ///
    /// # Errors
    /// [`Error::NoSubvolume`] if there is no saved image; a lack of space;
    /// damage, with the path of the file.
    pub fn finish_conversion(
        &self,
        compression: Option<Method>,
        unchanged: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        let saved = self.attributes(SAVED);
        if !saved.is_ok_and(|found| found.is_directory()) {
            return Err(Error::NoSubvolume(SAVED[1..].to_owned()));
        }
        self.delete_subvolume(SAVED)?;
        self.sync()?;
        // What is stuck is damaged and stays; the log names it.
        while self.files().clean()? != Cleaning::Idle {}
        if let Some(method) = compression {
            self.compress_all(method, unchanged)?;
        }
        self.sync()
    }

    fn compress_all(&self, method: Method, unchanged: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let wanted = Defragment {
            compress: Recompress::With(method.algorithm, method.level),
            sharing: Sharing::Keep,
            ..Defragment::default()
        };
        let mut linked: HashSet<InodeId> = HashSet::new();
        let root = self.resolve(b"/")?;
        self.walk::<Error>(root, &mut |entry| {
            let attributes = &entry.attributes;
            let is_seen = attributes.nlink > 1 && !linked.insert(attributes.id);
            if attributes.mode & S_IFMT != S_IFREG || is_seen {
                return Ok(Walk::Enter);
            }
            let rewritten = self
                .files()
                .inode(attributes.id)
                .and_then(|inode| self.files().defragment(&inode, &wanted));
            match rewritten {
                Ok(_) => {}
                Err(FsError::NotPermitted(_)) => unchanged(&entry.path),
                Err(error) => return Err(Error::at(&entry.path, error)),
            }
            Ok(Walk::Enter)
        })
    }
}
