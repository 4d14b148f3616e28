//! Changes of a volume's own form: its features, UUIDs, checksums, and the trees
//! that it keeps.
//!
//! Owns the steps that admin's `tune` is made of. A step is one commit, or a pass
//! over all nodes that rewrites their headers where they lie. The header of a node
//! is in its first 512 bytes, which a device writes as a whole or not at all, and
//! the rest of the node stays. So at every moment each copy of a node has the old
//! header or the new one, both right. While a pass is not complete the superblock
//! says so, and nobody takes the volume for a usable one ([`States::Tuned`]).
//!
//! [`States::Tuned`]: crate::States::Tuned

use crate::engine::Engine;
use crate::error::{StoreError, bad_item, corrupt_item};
use crate::item_fault::ItemFault;
use crate::refs::checksums::item_bytes_max;
use crate::refs::data::DataExtent;
use crate::refs::lost_refs::DataOwner;
use crate::refs::pending::Backref;
use crate::refs::record::ExtentRecord;
use crate::space::Remake;
use crate::space::kind::SpaceKind;
use crate::tune_fault::TuneFault;
use crate::{Access, Store};
use butterfs_format::bytes::Reader;
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::root::RootItem;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, field};
use butterfs_format::superblock::{SuperFlags, Superblock};
use butterfs_format::{
    ChecksumType, DeviceId, InodeNumber, ItemType, Key, Logical, NodeRef, TreeId, UuidBytes, object,
};
use butterfs_tree::{Cursor, Editor, Expected, Headers, Node, NodeSource, Sweep};
use butterfs_volume::{VolumeError, row_length};
use std::ops::{ControlFlow, Range};

/// Nodes that a change of the superblock alone touches.
const FEW_NODES: usize = 16;
/// Nodes that one step of a pass reads and rewrites.
const NODES_AT_ONCE: usize = 256;
/// Extent items that one step of [`Store::remove_extent_owners`] changes.
const ITEMS_AT_ONCE: usize = 2000;
/// Bytes of data that are read at once.
const DATA_AT_ONCE: u64 = 4 << 20;
/// New checksums may take this part of the machine's memory.
const MEMORY_SHARE: u64 = 3;

/// What the headers of all nodes get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHeaders {
    /// UUID of the volume.
    pub fsid: UuidBytes,
    /// Checksum.
    pub checksum: ChecksumType,
}

/// How a pass over all nodes ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassEnd {
    /// It came to the last node.
    Complete,
    /// The caller asked to end it.
    Stopped,
}

/// Items with their bytes.
type Items = Vec<(Key, Vec<u8>)>;
/// Works on nodes with their addresses.
type Work<'w> = &'w mut dyn FnMut(&mut [(Logical, Vec<u8>)]) -> Result<(), StoreError>;

/// Gets how many bytes of a pass are done, and may end the pass.
pub type Watch<'w> = &'w mut dyn FnMut(u64) -> ControlFlow<()>;

impl Store {
    /// Changes the superblock and commits. What nodes carry (UUID, checksum) stays
    /// as it was when the volume was opened.
    ///
    /// # Errors
    /// Not writable; writing, which poisons the volume.
    pub fn change_superblock(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), StoreError> {
        self.commit_with(FEW_NODES, |engine| {
            engine.note_edit();
            change(engine.publisher.superblock_mut());
            Ok(())
        })
    }

    /// Gives the volume and its device items another UUID, marks it as being
    /// changed, and commits. Nodes keep the old one until [`Store::rewrite_nodes`].
    ///
    /// # Errors
    /// As [`Store::change_superblock`].
    pub fn begin_fsid(&self, fsid: UuidBytes) -> Result<(), StoreError> {
        self.commit_with(FEW_NODES, |engine| {
            engine.note_edit();
            let ids: Vec<DeviceId> = engine.publisher.devices().keys().copied().collect();
            for id in ids {
                if let Some(item) = engine.publisher.devices_mut().get_mut(&id) {
                    item.fsid = fsid;
                }
                engine.write_device_item(id)?;
            }
            let superblock = engine.publisher.superblock_mut();
            superblock.fsid = fsid;
            superblock.metadata_uuid = [0; 16];
            superblock.incompat -= Incompat::METADATA_UUID;
            superblock.flags |= SuperFlags::CHANGING_FSID;
            Ok(())
        })
    }

    /// Makes durable everything that was written, also copies of the
    /// superblock.
    ///
    /// # Errors
    /// Of devices.
    pub fn flush_devices(&self) -> Result<(), StoreError> {
        self.flush()?;
        self.check_whole()
    }

    /// Errors unless all devices are there and none has failed.
    ///
    /// # Errors
    /// [`TuneFault::NotWhole`]
    pub fn check_whole(&self) -> Result<(), StoreError> {
        match self.space.is_whole() && self.space.losses() == 0 {
            true => Ok(()),
            false => Err(TuneFault::NotWhole.into()),
        }
    }

    /// Errors if headers of nodes cannot be rewritten in place.
    ///
    /// # Errors
    /// [`TuneFault`]
    pub fn check_rewritable(&self) -> Result<(), StoreError> {
        self.check_whole()?;
        if let Headers::Seeded(_) = self.identity.headers {
            return Err(TuneFault::Seeded.into());
        }
        let engine = self.read();
        let nodes = SpaceKind::Metadata.flag() | SpaceKind::System.flag();
        let mut chunks = engine.space_map.chunks().values();
        let has_parity =
            chunks.any(|chunk| row_length(chunk).is_some() && chunk.flags.intersects(nodes));
        match has_parity {
            true => Err(TuneFault::Parity.into()),
            false => Ok(()),
        }
    }

    /// Bytes of all nodes, about.
    pub fn node_bytes(&self) -> u64 {
        let engine = self.read();
        engine.used(SpaceKind::Metadata) + engine.used(SpaceKind::System)
    }

    /// Reads all nodes that the extent tree has.
    ///
    /// # Errors
    /// The first node of which no copy can be read.
    pub fn read_all_nodes(&self, watch: Watch<'_>) -> Result<PassEnd, StoreError> {
        self.each_node(watch, &mut |_| Ok(()))
    }

    /// Reads all nodes that the extent tree has, and errors if a tree uses one
    /// that is not among them: [`Store::rewrite_nodes`] would pass it over.
    /// Subvolumes whose deletion was begun are left out, because some of their
    /// nodes are gone.
    ///
    /// Memory: 8 bytes for each node.
    ///
    /// # Errors
    /// The first node of which no copy can be read; [`TuneFault::Unlisted`].
    pub fn verify_all_nodes(&self, watch: Watch<'_>) -> Result<PassEnd, StoreError> {
        if !self.read().is_clean() {
            self.commit()?;
        }
        // In the order of the extent tree, which is that of addresses.
        let mut listed: Vec<Logical> = Vec::new();
        let end = self.each_node(watch, &mut |nodes| {
            listed.extend(nodes.iter().map(|(at, _)| *at));
            Ok(())
        })?;
        if end == PassEnd::Complete {
            self.read().verify_listed(&listed)?;
        }
        Ok(end)
    }

    /// Rewrites the headers of all nodes in place. The store must be open only
    /// for reading, because nothing else may write; its devices must be open
    /// for writing.
    ///
    /// # Errors
    /// Reading or writing failed. What was rewritten stays so, and the pass may
    /// be begun again.
    pub fn rewrite_nodes(&self, to: &NodeHeaders, watch: Watch<'_>) -> Result<PassEnd, StoreError> {
        if self.access != Access::ReadOnly {
            return Err(StoreError::Internal("nodes are rewritten beside a writer"));
        }
        self.check_rewritable()?;
        // No copy of the superblock may remain that does not know of the pass.
        self.flush_devices()?;
        let sector = usize::try_from(self.identity.sector_size).unwrap_or(usize::MAX);
        let end = self.each_node(watch, &mut |nodes| {
            for (_, bytes) in nodes.iter_mut() {
                bytes[field::FSID..field::FSID + 16].copy_from_slice(&to.fsid);
                to.checksum.seal_block(bytes);
            }
            let heads = nodes.iter().map(|(at, bytes)| (*at, &bytes[..sector]));
            self.space.write_many(&heads.collect::<Vec<_>>())?;
            self.check_whole()
        })?;
        self.flush_devices()?;
        Ok(end)
    }

    /// Hands all nodes that the extent tree lists to `work`, in pieces.
    fn each_node(&self, watch: Watch<'_>, work: Work<'_>) -> Result<PassEnd, StoreError> {
        let mut next = Key::MIN;
        let mut done = 0;
        loop {
            let (found, after) = {
                let engine = self.read();
                engine.nodes_from(next)?
            };
            let mut nodes = Vec::with_capacity(found.len());
            for node in found {
                nodes.push((node.logical, self.read_raw_node(node)?));
            }
            done += (nodes.len() * self.identity.node_size) as u64;
            work(&mut nodes)?;
            if watch(done).is_break() {
                return Ok(PassEnd::Stopped);
            }
            match after {
                Some(key) => next = key,
                None => return Ok(PassEnd::Complete),
            }
        }
    }

    fn read_raw_node(&self, node: NodeRef) -> Result<Vec<u8>, StoreError> {
        let mut buffer = vec![0; self.identity.node_size];
        let verify =
            &mut |bytes: &[u8]| Node::check(bytes, &self.identity, Expected::from(node)).is_ok();
        self.space
            .read_verified(node.logical, &mut buffer, verify)?;
        Ok(buffer)
    }

    /// Moves the items of block groups into a tree of their own, or back into the
    /// extent tree, and commits.
    ///
    /// # Errors
    /// [`TuneFault::Needs`]; no space; reading, writing.
    pub fn move_group_items(&self, to: TreeId) -> Result<(), StoreError> {
        let groups = self.read().groups().count();
        // Each item may be in a leaf of its own.
        let nodes = FEW_NODES + 2 * groups;
        self.commit_with(nodes, |engine| match to {
            TreeId::BLOCK_GROUP => engine.make_group_tree(),
            _ => engine.remove_group_tree(),
        })
    }

    /// Makes the free-space tree, removes caches of the old kind, and commits.
    ///
    /// # Errors
    /// No space; damage of the extent tree; reading, writing.
    pub fn make_free_space_tree(&self) -> Result<(), StoreError> {
        self.commit_with(FEW_NODES, |engine: &mut Engine| {
            engine.space_map.set_remake(Remake::Due);
            engine
                .remake_free_space()
                .inspect_err(|_| engine.space_map.set_remake(Remake::No))?;
            engine.publisher.superblock_mut().compat_ro |=
                CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
            engine.publisher.superblock_mut().cache_generation = 0;
            engine.remove_old_caches()
        })
    }

    /// Makes the checksum tree anew with another algorithm, marks the volume as
    /// being changed to it, and commits. Nodes keep the old one until
    /// [`Store::rewrite_nodes`].
    ///
    /// # Errors
    /// [`TuneFault`]; no space; reading, writing.
    pub fn begin_checksum(&self, to: ChecksumType, watch: Watch<'_>) -> Result<(), StoreError> {
        let items = self.compute_checksums(to, watch)?;
        let bytes: usize = items.iter().map(|(_, sums)| sums.len() + ITEM_SIZE).sum();
        let room = self.identity.node_size - HEADER_SIZE;
        let old = self.read().nodes_of(TreeId::CSUM)?;
        // Large items leave some room unused.
        let new = 2 * bytes / room + 8;
        self.commit_with(FEW_NODES + new + new / 16 + old.len(), |engine| {
            engine.restart_tree(TreeId::CSUM)?;
            let mut editor = Editor::new(engine, TreeId::CSUM);
            for (key, sums) in &items {
                editor.insert(key, sums)?;
            }
            for node in old {
                engine.drop_node_ref(node, Backref::Tree(TreeId::CSUM));
            }
            engine.publisher.superblock_mut().checksum_type = to;
            engine.publisher.superblock_mut().flags |= SuperFlags::CHANGING_META_CSUM;
            Ok(())
        })
    }

    /// Checksums of all data that have one, by another algorithm.
    fn compute_checksums(&self, to: ChecksumType, watch: Watch<'_>) -> Result<Items, StoreError> {
        let old = self.identity.checksum.size() as u64;
        let runs = self.read().checksum_runs()?;
        let sectors: u64 = runs.iter().map(|(_, bytes)| bytes / old).sum();
        // They are held twice: as they are computed, and in nodes.
        let needed = 2 * sectors * to.size() as u64;
        let memory = butterfs_device::memory_of_process().unwrap_or(u64::MAX);
        let available = memory / MEMORY_SHARE;
        if needed > available {
            return Err(TuneFault::Memory { needed, available }.into());
        }
        let item_max = item_bytes_max(self.identity.node_size, to.size());
        let mut items = Items::new();
        let mut done = 0;
        let sector = self.identity.sector_size;
        for (start, bytes) in runs {
            let end = start + bytes / old * sector;
            let mut at = start;
            while at < end {
                let next = end.min(at + DATA_AT_ONCE);
                let sums = self.checksums_by(to, at..next)?;
                append(
                    &mut items,
                    at,
                    &sums,
                    Form {
                        size: to.size(),
                        sector,
                        item_max,
                    },
                );
                done += next - at;
                at = next;
                if watch(done).is_break() {
                    return Err(TuneFault::Interrupted.into());
                }
            }
        }
        Ok(items)
    }

    /// Bytes of data that have checksums.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn data_with_checksums(&self) -> Result<u64, StoreError> {
        let runs = self.read().checksum_runs()?;
        let size = self.identity.checksum.size() as u64;
        let sectors = runs.iter().map(|(_, bytes)| bytes / size);
        Ok(sectors.sum::<u64>() * self.identity.sector_size)
    }

    /// Verifies data by their checksums and computes others.
    fn checksums_by(&self, to: ChecksumType, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let known = self.read().data_checksums(range.clone())?;
        let sector = self.identity.sector_size;
        let from = self.identity.checksum;
        let mut data = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
        let bytes = u32::try_from(sector).unwrap_or(u32::MAX);
        let verify = &mut |index: usize, data: &[u8]| match known.get(index) {
            Some(sum) => from.compute(data)[..from.size()] == *sum,
            None => false,
        };
        let read = self
            .space
            .read_verified_sectors(Logical(range.start), &mut data, bytes, verify);
        match read {
            Ok(_) => {}
            Err(VolumeError::NoGoodCopy { logical, .. }) => {
                return Err(TuneFault::DamagedData(logical).into());
            }
            Err(error) => return Err(error.into()),
        }
        let sectors = data.chunks_exact(bytes as usize);
        Ok(sectors
            .flat_map(|data| to.compute(data)[..to.size()].to_vec())
            .collect())
    }

    /// Removes the owners that simple quotas wrote from all extent items, in
    /// several commits, and then the feature. Quotas must be off.
    ///
    /// # Errors
    /// No space; the extent tree is damaged; reading or writing failed. What
    /// was removed stays removed, and the volume is as good as before.
    pub fn remove_extent_owners(&self, watch: Watch<'_>) -> Result<PassEnd, StoreError> {
        let mut next = Key::MIN;
        let mut done = 0;
        loop {
            let (owned, after) = self.read().owned_extents_from(next)?;
            done += owned.len() as u64;
            if !owned.is_empty() {
                self.commit_with(FEW_NODES + owned.len(), |engine| {
                    let mut editor = Editor::new(engine, TreeId::EXTENT);
                    for (key, data) in &owned {
                        editor.replace(key, data)?;
                    }
                    Ok::<(), StoreError>(())
                })?;
            }
            let Some(key) = after else {
                break;
            };
            next = key;
            if watch(done).is_break() {
                return Ok(PassEnd::Stopped);
            }
        }
        self.change_superblock(|superblock| {
            superblock.incompat -= Incompat::SIMPLE_QUOTA;
        })?;
        Ok(PassEnd::Complete)
    }
}

/// How checksums lie in items.
#[derive(Clone, Copy)]
struct Form {
    /// Bytes of one.
    size: usize,
    /// Bytes of data that it is for.
    sector: u64,
    /// Bytes of the greatest item.
    item_max: usize,
}

/// Adds the checksums of data at `at`: to the last item if it ends there, as
/// far as they fit, and otherwise to new items.
fn append(items: &mut Items, mut at: u64, mut sums: &[u8], form: Form) {
    while !sums.is_empty() {
        let room = items.last_mut().and_then(|(key, last)| {
            let end = key.offset + (last.len() / form.size) as u64 * form.sector;
            (end == at && last.len() < form.item_max).then_some(last)
        });
        let taken = match room {
            Some(last) => {
                let taken = sums.len().min(form.item_max - last.len());
                last.extend_from_slice(&sums[..taken]);
                taken
            }
            None => {
                let taken = sums.len().min(form.item_max);
                let key = Key::new(object::EXTENT_CSUM, ItemType::EXTENT_CSUM, at);
                items.push((key, sums[..taken].to_vec()));
                taken
            }
        };
        at += (taken / form.size) as u64 * form.sector;
        sums = &sums[taken..];
    }
}

impl Engine {
    /// The roots of all trees, without those whose deletion was begun.
    fn whole_roots(&self) -> Result<Vec<NodeRef>, StoreError> {
        let mut roots = vec![self.root(TreeId::ROOT)?, self.root(TreeId::CHUNK)?];
        let mut cursor = Cursor::seek_in(self, TreeId::ROOT, &Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            if key.item_type == ItemType::ROOT_ITEM {
                let item =
                    RootItem::parse(data).map_err(|error| bad_item(TreeId::ROOT, key, &error))?;
                if item.drop_progress.is_none() {
                    roots.push(item.root());
                }
            }
            cursor.next()?;
        }
        Ok(roots)
    }

    /// Errors if a tree uses a node that is not `listed`, by address.
    fn verify_listed(&self, listed: &[Logical]) -> Result<(), StoreError> {
        let mut sweep = Sweep::new(self);
        let mut join = |(), ()| ();
        for root in self.whole_roots()? {
            sweep.add_root(root, (), &mut join)?;
        }
        while let Some(stop) = sweep.next() {
            if listed.binary_search(&stop.node.logical).is_err() {
                return Err(TuneFault::Unlisted(stop.node.logical).into());
            }
            if stop.node.level > 0 {
                let node = sweep.load(&stop)?;
                sweep.descend(&stop, &node, 0..node.len(), &mut join)?;
            }
        }
        Ok(())
    }

    /// Nodes that the extent tree has from `first` on, and where to continue.
    fn nodes_from(&self, first: Key) -> Result<(Vec<NodeRef>, Option<Key>), StoreError> {
        let mut nodes = Vec::new();
        let mut cursor = Cursor::seek_in(self, TreeId::EXTENT, &first)?;
        while let Some((key, data)) = cursor.item() {
            if nodes.len() == NODES_AT_ONCE {
                return Ok((nodes, Some(key)));
            }
            if matches!(
                key.item_type,
                ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM
            ) {
                let record = ExtentRecord::parse(key, data)
                    .map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
                nodes.extend(record.node());
            }
            cursor.next()?;
        }
        Ok((nodes, None))
    }

    /// Extent items from `first` on that name an owner, in their form without
    /// the owner, and where to continue.
    fn owned_extents_from(&self, first: Key) -> Result<(Items, Option<Key>), StoreError> {
        let mut owned = Vec::new();
        let mut cursor = Cursor::seek_in(self, TreeId::EXTENT, &first)?;
        while let Some((key, data)) = cursor.item() {
            if owned.len() == ITEMS_AT_ONCE {
                return Ok((owned, Some(key)));
            }
            if matches!(
                key.item_type,
                ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM
            ) {
                let mut record = ExtentRecord::parse(key, data)
                    .map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
                if record.owner.take().is_some() {
                    owned.push((key, record.encode()));
                }
            }
            cursor.next()?;
        }
        Ok((owned, None))
    }

    /// Where data have checksums, and how many bytes these take.
    fn checksum_runs(&self) -> Result<Vec<(u64, u64)>, StoreError> {
        let size = self.sum_size();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let first = Key::new(object::EXTENT_CSUM, ItemType::EXTENT_CSUM, 0);
        let mut cursor = Cursor::seek_in(self, TreeId::CSUM, &first)?;
        while let Some((key, sums)) = cursor.item() {
            if key.objectid != object::EXTENT_CSUM || key.item_type != ItemType::EXTENT_CSUM {
                break;
            }
            if sums.len() % size != 0 || key.offset % self.sector_size() != 0 {
                return Err(corrupt_item(TreeId::CSUM, key, ItemFault::Size));
            }
            runs.push((key.offset, sums.len() as u64));
            cursor.next()?;
        }
        Ok(runs)
    }

    /// All nodes of a tree that shares none of them.
    fn nodes_of(&self, tree: TreeId) -> Result<Vec<NodeRef>, StoreError> {
        let mut nodes = Vec::new();
        let mut waiting = vec![self.root(tree)?];
        while let Some(reference) = waiting.pop() {
            nodes.push(reference);
            // Leaves need not be read.
            if reference.level > 0 {
                let node = self.node(reference)?;
                waiting.extend((0..node.len()).map(|slot| node.child(slot)));
            }
        }
        Ok(nodes)
    }

    /// Removes a tree that shares no nodes, if it is there.
    pub(crate) fn remove_plain_tree(&mut self, tree: TreeId) -> Result<(), StoreError> {
        if !self.has_tree(tree)? {
            return Ok(());
        }
        for node in self.nodes_of(tree)? {
            self.nodes.remove(node.logical);
            self.drop_node_ref(node, Backref::Tree(tree));
        }
        let state = self.nodes.remove_tree(tree);
        if let Some(key) = state.and_then(|state| state.item_key) {
            butterfs_tree::remove(self, TreeId::ROOT, &key)?;
        }
        Ok(())
    }

    fn group_items(&self) -> Items {
        let known = self.groups().filter(|group| !group.is_new());
        known
            .map(|group| (group.item_key(), group.item().encode()))
            .collect()
    }

    fn make_group_tree(&mut self) -> Result<(), StoreError> {
        if !self.publisher.superblock().has_valid_free_space_tree() {
            let fault = TuneFault::Needs("a free-space tree", "--convert-to-free-space-tree");
            return Err(fault.into());
        }
        if !self.publisher.superblock().has_no_holes() {
            return Err(TuneFault::Needs("no-holes", "-n").into());
        }
        let items = self.group_items();
        let root = RootItem {
            refs: 1,
            bytes_used: u64::try_from(self.node_size()).unwrap_or(u64::MAX),
            ..RootItem::default()
        };
        self.create_tree(TreeId::BLOCK_GROUP, root)?;
        for (key, data) in items {
            butterfs_tree::insert(self, TreeId::BLOCK_GROUP, &key, &data)?;
            butterfs_tree::remove(self, TreeId::EXTENT, &key)?;
        }
        self.publisher.superblock_mut().compat_ro |= CompatRo::BLOCK_GROUP_TREE;
        Ok(())
    }

    fn remove_group_tree(&mut self) -> Result<(), StoreError> {
        for (key, data) in self.group_items() {
            butterfs_tree::insert(self, TreeId::EXTENT, &key, &data)?;
        }
        self.remove_plain_tree(TreeId::BLOCK_GROUP)?;
        self.publisher.superblock_mut().compat_ro -= CompatRo::BLOCK_GROUP_TREE;
        Ok(())
    }

    /// Removes the caches of free space of the old kind: files in the tree of
    /// roots that no directory names.
    fn remove_old_caches(&mut self) -> Result<(), StoreError> {
        let mut caches = Vec::new();
        let first = Key::new(object::FREE_SPACE, ItemType::MIN, 0);
        let mut cursor = Cursor::seek_in(self, TreeId::ROOT, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != object::FREE_SPACE || key.item_type != ItemType::MIN {
                break;
            }
            let mut reader = Reader::new("space cache", data);
            let file =
                Key::parse(&mut reader).map_err(|error| bad_item(TreeId::ROOT, key, &error))?;
            caches.push((key, InodeNumber(file.objectid)));
            cursor.next()?;
        }
        drop(cursor);
        for (key, inode) in caches {
            self.drop_cache_data(inode)?;
            let last = Key::new(inode.get(), ItemType(u8::MAX), u64::MAX);
            let items = Key::new(inode.get(), ItemType::MIN, 0)..=last;
            Editor::new(self, TreeId::ROOT).remove_range(items)?;
            butterfs_tree::remove(self, TreeId::ROOT, &key)?;
        }
        Ok(())
    }

    fn drop_cache_data(&mut self, inode: InodeNumber) -> Result<(), StoreError> {
        let mut extents = Vec::new();
        let first = Key::new(inode.get(), ItemType::EXTENT_DATA, 0);
        let mut cursor = Cursor::seek_in(self, TreeId::ROOT, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != inode.get() || key.item_type != ItemType::EXTENT_DATA {
                break;
            }
            let found =
                FileExtent::parse(data).map_err(|error| bad_item(TreeId::ROOT, key, &error))?;
            if let FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) = found.body
                && place.disk.get() != 0
            {
                let extent = DataExtent {
                    logical: place.disk,
                    length: place.disk_length,
                };
                extents.push((extent, key.offset.wrapping_sub(place.offset)));
            }
            cursor.next()?;
        }
        drop(cursor);
        for (extent, offset) in extents {
            let owner = DataOwner {
                tree: TreeId::ROOT,
                inode,
                offset,
            };
            self.drop_data_ref(extent, owner);
        }
        Ok(())
    }
}
