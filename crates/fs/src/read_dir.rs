//! Listing directories.

use crate::Filesystem;
use crate::dir::{FIRST_INDEX, ListedEntry, index_key, target};
use crate::error::FsError;
use crate::inode::check_alive;
use crate::inode_fault::InodeFault;
use crate::listing::{AT_END, FAR, Listing, ListingEnd, Position};
use butterfs_format::item::dir::DirEntries;
use butterfs_format::{InodeId, ItemType};
use butterfs_store::Engine;
use butterfs_tree::Cursor;

impl Filesystem {
    /// Lists `dir` from position `from` (0 is the start; then
    /// [`ListedEntry::next`]) until `visit` returns `false`. "." and ".." come
    /// first. Each entry that exists during the whole listing is given exactly
    /// once. Names that were made after the listing began are not listed, as long
    /// as the directory is remembered.
    ///
    /// # Errors
    /// [`FsError::NotADirectory`], damage, reading.
    pub fn read_dir(
        &self,
        dir: InodeId,
        from: u64,
        visit: &mut dyn FnMut(ListedEntry) -> bool,
    ) -> Result<(), FsError> {
        let (index, known) = match Position::decode(from) {
            Position::AtEnd => return Ok(()),
            Position::Index(index @ 0..=FIRST_INDEX) => (index, None),
            Position::Index(index) => (index, self.listings.far(dir)),
            Position::Numbered { index, end } => (index, self.listings.numbered(dir, end)),
        };
        let listing = match known {
            Some(listing) => listing,
            None => self.listings.begun(dir, self.listing_end(dir)?),
        };
        self.list(dir, index, listing, visit)
    }

    /// Where a listing of `dir` ends that begins now.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn listing_end(&self, dir: InodeId) -> Result<ListingEnd, FsError> {
        self.store.look(|engine| {
            check_alive(engine, dir.tree)?;
            let greatest = index_key(dir, u64::MAX);
            let mut cursor = Cursor::seek_in(engine, dir.tree, &greatest)?;
            if cursor.key() != Some(greatest) && !cursor.prev()? {
                return Ok(ListingEnd(0));
            }
            let last = cursor.key().filter(|key| {
                key.objectid == dir.number.get() && key.item_type == ItemType::DIR_INDEX
            });
            Ok(ListingEnd(last.map_or(0, |key| key.offset)))
        })
    }

    /// As [`Self::read_dir`], for a caller that keeps the end of its listing.
    ///
    /// # Errors
    /// As [`Self::read_dir`].
    pub fn read_dir_to(
        &self,
        dir: InodeId,
        from: u64,
        end: ListingEnd,
        visit: &mut dyn FnMut(ListedEntry) -> bool,
    ) -> Result<(), FsError> {
        let (Position::Index(index) | Position::Numbered { index, .. }) = Position::decode(from)
        else {
            return Ok(());
        };
        let number = None;
        self.list(dir, index, Listing { end, number }, visit)
    }

    fn list(
        &self,
        dir: InodeId,
        from: u64,
        listing: Listing,
        visit: &mut dyn FnMut(ListedEntry) -> bool,
    ) -> Result<(), FsError> {
        let is_empty = listing.end.0 < FIRST_INDEX;
        let after = match is_empty {
            true => AT_END,
            false => FIRST_INDEX,
        };
        let dots: [(u64, &[u8], u64); 2] = [(0, b".", 1), (1, b"..", after)];
        for (index, name, next) in dots {
            if from > index {
                continue;
            }
            let entry = ListedEntry {
                name: name.to_vec(),
                target: self.lookup(dir, name)?,
                next,
            };
            if !visit(entry) {
                return Ok(());
            }
        }
        let mut index = from.max(FIRST_INDEX);
        while index <= listing.end.0 {
            // In batches, so that `visit` runs without the engine's lock.
            let (batch, next) = self.store.look(|engine| {
                check_alive(engine, dir.tree)?;
                batch_from(engine, dir, index, listing)
            })?;
            for entry in batch {
                if !visit(entry) {
                    return Ok(());
                }
            }
            let Some(next) = next else { break };
            index = next;
        }
        Ok(())
    }
}

/// Some entries of `dir` from an index on, and the index after them; `None` at
/// the listing's end.
fn batch_from(
    engine: &Engine,
    dir: InodeId,
    from: u64,
    listing: Listing,
) -> Result<(Vec<ListedEntry>, Option<u64>), FsError> {
    const BATCH: usize = 256;
    let mut batch: Vec<ListedEntry> = Vec::new();
    let mut cursor = Cursor::seek_in(engine, dir.tree, &index_key(dir, from))?;
    while let Some((key, data)) = cursor.item() {
        let inside = key.objectid == dir.number.get() && key.item_type == ItemType::DIR_INDEX;
        if !inside || key.offset > listing.end.0 {
            break;
        }
        if batch.len() >= BATCH {
            return Ok((batch, Some(key.offset)));
        }
        let next = key.offset.saturating_add(1);
        if next >= FAR {
            return Err(FsError::Damaged {
                inode: dir,
                at: None,
                fault: Box::new(InodeFault::IndexPosition),
            });
        }
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|error| FsError::bad_item(dir, "directory index", &error))?;
            batch.push(ListedEntry {
                name: entry.name.to_vec(),
                target: target(engine, (dir, entry.name), entry.location, entry.kind)?,
                next: listing.at(next),
            });
        }
        cursor.next()?;
    }
    // Whoever goes on from here meets nothing that was made meanwhile.
    if let Some(last) = batch.last_mut() {
        last.next = AT_END;
    }
    Ok((batch, None))
}
