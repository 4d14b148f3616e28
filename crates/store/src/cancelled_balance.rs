//! What a balance of the kernel leaves when it is cut off in the middle: trees
//! of relocation. Each is a second version of a subvolume, and some of its
//! nodes are copies at other addresses.
//!
//! Such a tree is a snapshot that nobody sees. At every commit of the kernel
//! its references are counted as those of any tree, also while nodes of the
//! subvolume change places with those of the copy. So the tree is dropped, as
//! the kernel drops the trees of a balance that it cancels. The subvolume keeps
//! the nodes that it has, and a balance that goes on moves what is left.
//!
//! Source: the documentation of back references; volumes of balances that were
//! cut off and cancelled.

use crate::Store;
use crate::drop_tree::{DropProgress, Dropped, Top};
use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::refs::share::Keyed;
use crate::space::reserve::Purpose;
use butterfs_format::item::root::RootItem;
use butterfs_format::{Generation, ItemType, Key, TreeId};
use butterfs_tree::Cursor;

/// Nodes that one step frees, about.
const STEP: usize = 400;
/// Nodes that a step may touch beside those that it frees.
const NODES: usize = 64;
/// Steps between two commits.
const STEPS_PER_COMMIT: usize = 16;

impl Engine {
    /// The first tree of a relocation that was cut off.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn cancelled_balance(&self) -> Result<Option<(Key, RootItem)>, StoreError> {
        let first = Key::new(TreeId::RELOC.get(), ItemType::ROOT_ITEM, 0);
        let cursor = Cursor::seek_in(self, TreeId::ROOT, &first)?;
        let Some((key, data)) = cursor.item() else {
            return Ok(None);
        };
        if key.objectid != TreeId::RELOC.get() || key.item_type != ItemType::ROOT_ITEM {
            return Ok(None);
        }
        let item = RootItem::parse(data).map_err(|error| bad_item(TreeId::ROOT, key, &error))?;
        Ok(Some((key, item)))
    }

    /// Frees about `nodes` nodes of the first such tree.
    fn drop_relocation_step(&mut self, nodes: usize) -> Result<DropProgress, StoreError> {
        let Some((key, mut item)) = self.cancelled_balance()? else {
            return Ok(DropProgress::Done);
        };
        // In a relocation tree that is not deleted yet, this position says how
        // far its nodes changed places.
        let begin = item.drop_progress.filter(|_| item.refs == 0);
        let begin = begin.map(|key| (key, item.drop_level));
        let root = item.root();
        let top = Top {
            tree: TreeId::RELOC,
            root,
            by: Keyed::ByParent(root.logical),
            born: Generation(0),
        };
        let place = match self.drop_from(top, begin, nodes) {
            Dropped::Nothing(progress) => return Ok(progress),
            Dropped::All => {
                butterfs_tree::remove(self, TreeId::ROOT, &key)?;
                return Ok(DropProgress::More);
            }
            Dropped::UpTo(place) => place,
        };
        item.refs = 0;
        item.drop_progress = Some(place.key);
        item.drop_level = place.level;
        butterfs_tree::replace(self, TreeId::ROOT, &key, &item.encode())?;
        Ok(match place.fault {
            Some(error) => DropProgress::Stopped(error),
            None => DropProgress::More,
        })
    }
}

impl Store {
    /// Drops, durably, what an interrupted balance left. True if there was
    /// something.
    ///
    /// # Errors
    /// The volume is not writable; no space; damage; reading or writing failed.
    pub fn drop_cancelled_balance(&self) -> Result<bool, StoreError> {
        if self.look(Engine::cancelled_balance)?.is_none() {
            return Ok(false);
        }
        tracing::info!("a balance was cut off; what it had not ended is taken back");
        let mut steps = 0;
        loop {
            let mut transaction = self.begin(STEP / 4 + NODES, Purpose::Shrink)?;
            transaction.quotas.distrust("a balance that was cut off");
            let result = transaction.drop_relocation_step(STEP);
            match transaction.end(result)? {
                DropProgress::Done => break,
                DropProgress::Stopped(error) => return Err(error),
                DropProgress::More => steps += 1,
            }
            if steps % STEPS_PER_COMMIT == 0 {
                self.commit()?;
            }
        }
        self.commit()?;
        Ok(true)
    }
}
