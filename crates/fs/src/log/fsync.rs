//! fsync of a file.
//!
//! The log has the file if it can express what happened to it, alone or together
//! with all that happened to the names in its directory. Otherwise a commit is
//! made.

use super::record::Logged;
use crate::Filesystem;
use crate::error::FsError;
use crate::inode::Inode;
use butterfs_format::InodeId;
use butterfs_store::LogTicket;

/// Other threads that fsync may wait until this many bytes are flushed, because
/// that takes about as long as writing the log.
const SOON_FLUSHED: u64 = 1 << 20;

impl Filesystem {
    /// Makes one file durable: through the fsync log, or by a commit if the log
    /// cannot express what happened.
    ///
    /// # Errors
    /// Errors of flushing, logging or the commit. A later success hides
    /// nothing: data that were not written wait in memory until a flush writes
    /// them, and after a failed flush or commit the volume is read-only.
    pub fn fsync(&self, inode: &Inode) -> Result<(), FsError> {
        let ticket = {
            let arrive = || self.store.arrive_at_log();
            let is_soon_flushed = inode.state.read_beside().buffer.bytes() <= SOON_FLUSHED;
            let arrival = is_soon_flushed.then(arrive);
            self.flush_inode(inode)?;
            let _arrival = arrival.unwrap_or_else(arrive);
            self.log_inode(inode.id)?
        };
        match ticket {
            Some(ticket) => self.store.sync_log(ticket)?,
            None => {
                self.store.commit()?;
            }
        }
        Ok(())
    }

    /// Puts a file into the log; `None` if a commit is needed.
    fn log_inode(&self, id: InodeId) -> Result<Option<LogTicket>, FsError> {
        let dir = match self.try_to_log(id)? {
            Logged::Yes(ticket) => return Ok(Some(ticket)),
            Logged::No => return Ok(None),
            Logged::AfterNames(dir) => dir,
        };
        // A commit may have the file's name for another one, which was renamed
        // since: programs use the same name again for each new version of a
        // file. A commit now would have it for this file, and the next fsync
        // would need a commit again.
        if self.log_directory(dir)?.is_none() {
            return Ok(None);
        }
        Ok(match self.try_to_log(id)? {
            Logged::Yes(ticket) => Some(ticket),
            Logged::No | Logged::AfterNames(_) => None,
        })
    }
}
