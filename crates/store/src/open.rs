//! Opening a volume, and writing its superblocks.
//!
//! Reads the superblock, the chunks and the roots, and one item for each block
//! group; nothing that grows with the number of files.

use crate::Store;
use crate::allocation::Allocation;
use crate::chunks::excluded;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::forest::Forest;
use crate::open::space_fault::SpaceFault;
use crate::pending::Pending;
use crate::publication::Publication;
use crate::quota::groups::Quotas;
use crate::rescue::{NodesPassedOver, OnFault, Rescue};
use crate::rounds::Rounds;
use crate::space::block_group::{BlockGroup, Standing};
use crate::space::block_groups::BlockGroups;
use crate::space::free_space_tree;
use crate::space::ranges::RangeSet;
use crate::trees::TreeState;
use butterfs_device::{Access, BlockDevice};
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::root::RootItem;
use butterfs_format::superblock::{SuperFlags, Superblock};
use butterfs_format::{Generation, NodeRef, TreeId};
use butterfs_tree::{Headers, Node, NodeFault, NodeSource, NodeStamp, TreeError, VolumeIdentity};
use butterfs_volume::{ChunkMap, LogicalSpace, OnDamage, OnLoss, ReadAs, row_length};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

pub mod member_fault;
mod members;
pub mod older_copy;
mod one_history;
pub mod options;
mod renew;
pub mod space_fault;
mod sprout;
mod stripe_tree;
pub mod superblocks;
mod tree_bytes;
mod verify;

use members::Members;
use options::{FreeSpace, OnReplacement, OpenOptions, Roots, States};
use superblocks::Preferred;

/// Bytes of nodes that a view keeps.
const VIEW_CACHE: usize = 32 << 20;

impl Store {
    /// Opens the volume on `device`.
    ///
    /// # Errors
    /// As [`Store::open_all`].
    pub fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Result<Self, StoreError> {
        Self::open_all(vec![device], options)
    }

    /// Opens the volume on `devices`, in any order.
    ///
    /// # Errors
    /// [`StoreError::NoSuperblock`], [`StoreError::Unsupported`],
    /// [`StoreError::Members`] where they are not the devices of one volume;
    /// damage, reading.
    pub fn open_all(
        devices: Vec<Arc<dyn BlockDevice>>,
        options: &OpenOptions,
    ) -> Result<Self, StoreError> {
        let (mut members, mut engine) = load_members(&devices, options)?;
        if options.access == Access::ReadWrite {
            engine.verify_used()?;
        }
        // A tree that is not valid (the kernel was making it) is made anew too.
        if options.free_space == FreeSpace::Remade || engine.allocation.remakes_free_space {
            engine.begin_remake(options.access)?;
        }
        if options.access == Access::ReadWrite && !engine.allocation.remakes_free_space {
            // How much of the space can be given out is known only then.
            for start in engine.groups_with_rows() {
                engine.load_group_at(start)?;
            }
        }
        if options.access == Access::ReadWrite
            && let Err(error) = engine.find_orphan_free_space()
        {
            tracing::warn!(%error, "leftovers in the free-space tree are not looked for");
        }
        if options.access == Access::ReadWrite && !engine.allocation.remakes_free_space {
            engine.verify_device_bytes()?;
        }
        if options.access == Access::ReadWrite {
            engine.cancel_interrupted_replacement()?;
        }
        let mut store = store_of(engine, options);
        store.replacement_targets = members.take_targets();
        let behind = members.one_behind();
        if options.access == Access::ReadWrite && !behind.is_empty() {
            store.renew(&behind)?;
        }
        if options.access == Access::ReadWrite {
            // A log that turns out to lie leaves the devices as they are, and so
            // a copy that does not name it.
            let chosen = members.chosen_copies();
            match store.read().waiting_log() {
                None => store.make_copies_equal(&chosen)?,
                Some(_) => *store.unequal_copies.lock() = Some(chosen),
            }
        }
        Ok(store)
    }

    /// Commits what `clear_cache` changed in memory when the volume was opened.
    /// Nothing is written before this call, so a volume that cannot be used as
    /// asked stays as it is.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn commit_remade(&self) -> Result<(), StoreError> {
        if self.access == Access::ReadWrite && !self.read().is_clean() {
            self.commit()?;
        }
        Ok(())
    }
}

/// Reads the superblocks of `devices`, and loads the trees that they name.
fn load_members(
    devices: &[Arc<dyn BlockDevice>],
    options: &OpenOptions,
) -> Result<(Members, Engine), StoreError> {
    let mut members = Members::read(devices.to_vec(), options.states, Preferred::Primary)?;
    let error = match load_verified(&mut members, devices, options) {
        Ok(engine) => return Ok((members, engine)),
        Err(error) => error,
    };
    if !error.is_damage() || !members.has_newer_mirror() {
        return Err(error);
    }
    // The primary copy is older than a mirror, and what it names is gone.
    let mut newest = Members::read(devices.to_vec(), options.states, Preferred::Newest)?;
    match load_verified(&mut newest, devices, options) {
        Ok(engine) => Ok((newest, engine)),
        Err(_) => Err(error),
    }
}

/// Loads the trees. A mirror is verified first if the volume is to be changed.
fn load_verified(
    members: &mut Members,
    devices: &[Arc<dyn BlockDevice>],
    options: &OpenOptions,
) -> Result<Engine, StoreError> {
    let superblock = &members.superblock().clone();
    check_features(superblock, options)?;
    if options.access == Access::ReadWrite && members.speaks_by_mirror() {
        verify_mirror(members, devices.to_vec(), options)?;
    }
    load_engine(members, superblock, options)
        .map_err(|error| members.explain(cut_short(members, superblock, error)))
}

/// Errors unless every node is there that a mirror of the superblock names.
/// Nobody knows how old it is: a volume that went on after it has reused the
/// space of some.
fn verify_mirror(
    members: &Members,
    devices: Vec<Arc<dyn BlockDevice>>,
    options: &OpenOptions,
) -> Result<(), StoreError> {
    if options.roots == Roots::Last {
        members.verify_age_of_mirror()?;
    }
    tracing::warn!(
        "all nodes are read before the volume is changed, because a mirror of the superblock is used"
    );
    let reading = OpenOptions {
        access: Access::ReadOnly,
        ..options.clone()
    };
    let store = Store::open_all(devices, &reading)?;
    store
        .read_all_nodes(&mut |_| ControlFlow::Continue(()))
        .map_err(|error| members.explain(error))?;
    Ok(())
}

/// The volume whose trees an engine has.
fn store_of(engine: Engine, options: &OpenOptions) -> Store {
    let (space, identity) = (Arc::clone(&engine.space), engine.identity);
    Store {
        engine: crate::engine_lock::EngineLock::new(engine),
        identity,
        reads_outside: AtomicU64::new(0),
        addresses: crate::address_locks::Addresses::default(),
        fsyncs: crate::fsync_group::FsyncGroup::default(),
        committing: Mutex::new(()),
        writing_nodes: Mutex::new(()),
        commits_under_way: AtomicUsize::new(0),
        left_to_commit: options.left_to_commit,
        access: options.access,
        poisoned: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        reason: Mutex::new(None),
        falling_out: crate::falling_out::FallingOut::new(&space),
        space,
        barriers: options.barriers,
        discard: options.discard,
        exclusive: Mutex::new(None),
        replacement_targets: Vec::new(),
        unequal_copies: Mutex::new(None),
        nascent: AtomicBool::new(false),
    }
}

/// Names the end of the only device as the cause of an error, if the volume goes
/// on beyond it.
fn cut_short(members: &Members, superblock: &Superblock, error: StoreError) -> StoreError {
    // One of them alone may be wrong.
    let bytes = superblock.total_bytes.min(superblock.device.total_bytes);
    let is_told = matches!(
        error,
        StoreError::Inconsistent(SpaceFault::DeviceSize { .. })
    );
    match members.one() {
        Some(device)
            if bytes > device.size()
                && superblock.num_devices == 1
                && error.is_damage()
                && !is_told =>
        {
            StoreError::NoSuperblock {
                device: device.identity(),
                reason: format!(
                    "its volume has {bytes} bytes, but the device has only {}. It was cut short, \
                     and what is needed to open it is lost ({error}): get a complete copy; \
                     `butterfs check` says what is left of this one",
                    device.size()
                ),
            }
        }
        _ => error,
    }
}

fn damaged(tree: TreeId, error: StoreError) -> StoreError {
    if !error.is_damage() {
        return error;
    }
    // Reading needs no other tree than these without being told to do without.
    let read_only_possible = matches!(tree, TreeId::CSUM | TreeId::FREE_SPACE | TreeId::UUID);
    let next = match tree {
        TreeId::FREE_SPACE => "mount with -o clear_cache to make the tree anew",
        _ if read_only_possible => "run a check of the volume",
        _ => "run a check of the volume; `-o ro,rescue=all` reads what is left",
    };
    StoreError::Unsupported {
        what: format!("the root of tree {tree}: {error}; {next}"),
        read_only_possible,
    }
}

/// The engine of the last commit, or of an earlier one where the options allow
/// that and the last one's roots are damaged.
fn load_engine(
    members: &mut Members,
    superblock: &Superblock,
    options: &OpenOptions,
) -> Result<Engine, StoreError> {
    if let Roots::Of(generation) = options.roots {
        let older = of_generation(superblock, generation)?;
        return load_by_roots(members, &older, options);
    }
    let first = match load_by_roots(members, superblock, options) {
        Err(error) if options.roots == Roots::OrBackups && error.is_damage() => error,
        result => return result,
    };
    let mut backups: Vec<_> = superblock
        .backup_roots
        .iter()
        .filter(|backup| {
            let generation = backup.tree_root.generation;
            generation.get() > 0 && generation < superblock.generation
        })
        .collect();
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.tree_root.generation));
    for backup in backups {
        let older = superblock.with_roots_of(backup);
        if let Ok(engine) = load_by_roots(members, &older, options) {
            tracing::warn!(
                damage = %first,
                lost = superblock.generation.get() - older.generation.get(),
                "the roots of the last commit are damaged; those of an earlier one are used, and \
                 what was written since is lost"
            );
            return Ok(engine);
        }
    }
    Err(first)
}

/// The superblock with the roots of a generation that it keeps.
fn of_generation(
    superblock: &Superblock,
    generation: Generation,
) -> Result<Superblock, StoreError> {
    if superblock.generation == generation {
        return Ok(superblock.clone());
    }
    let backups = superblock.backup_roots.iter();
    let mut kept = backups.filter(|backup| backup.tree_root.generation.get() > 0);
    if let Some(backup) = kept
        .clone()
        .find(|backup| backup.tree_root.generation == generation)
    {
        return Ok(superblock.with_roots_of(backup));
    }
    let mut known: Vec<u64> = kept
        .by_ref()
        .map(|backup| backup.tree_root.generation.get())
        .chain([superblock.generation.get()])
        .collect();
    known.sort_unstable();
    known.dedup();
    let known: Vec<String> = known.iter().map(u64::to_string).collect();
    Err(StoreError::Unsupported {
        what: format!(
            "the superblock keeps the roots of the generations {} and not of {generation}; \
             `butterfs restore --generation {generation}` finds older ones by a scan",
            known.join(", ")
        ),
        read_only_possible: false,
    })
}

fn load_by_roots(
    members: &mut Members,
    superblock: &Superblock,
    options: &OpenOptions,
) -> Result<Engine, StoreError> {
    let mut map = ChunkMap::default();
    for (logical, chunk) in &superblock.sys_chunks {
        map.insert(*logical, chunk.clone())?;
    }
    members.choose_seeds();
    let space = space_over(members.devices(), map, options);
    let mut engine = blank_engine(superblock.clone(), space, options);
    if let Some(seeds) = members.seeds()? {
        engine.identity.headers = Headers::Seeded(seeds);
    }
    engine.load_roots()?;
    let mut items = engine.read_devices()?;
    members.add_new(&mut items);
    engine.publication.devices = Arc::new(items);
    engine.own_item()?;
    let has_others = members.leave_out_strangers(&engine.publication.devices)?;
    if let Some(seeds) = members.seeds()? {
        engine.identity.headers = Headers::Seeded(seeds);
    }
    let missing = members.missing(&engine.publication.devices, options)?;
    if has_others || !missing.is_empty() {
        let devices = members.devices().into_iter().chain(missing).collect();
        let map = (*engine.space.map()).clone();
        engine.space = space_over(devices, map, options);
    }
    if options.access == Access::ReadWrite && !engine.space.is_whole() {
        let generation = superblock.generation.get();
        engine.generation = Generation(generation.saturating_add(members::apart()));
    }
    engine.load_chunks(options)?;
    engine.load_trees(options.roots, options.access)?;
    // A change of all headers may be done on some devices only.
    if options.states == States::Usable
        && let Some(split) = members.split()
        && !engine.has_one_history()
    {
        return Err(split.into());
    }
    engine.load_stripe_extents()?;
    engine.load_groups()?;
    if options.access == Access::ReadWrite && options.on_replacement == OnReplacement::Refuse {
        engine.check_not_replacing()?;
    }
    let loaded = engine.load_device_stats();
    engine.go_without(
        loaded,
        "the error counters of devices cannot be read and begin at zero",
    )?;
    let loaded = engine.load_quotas();
    engine.go_without(
        loaded,
        "quotas are off, as on a kernel mount: the quota tree cannot be used, and nobody keeps its \
         numbers; `butterfs quota disable` and `quota enable` make it anew",
    )?;
    Ok(engine)
}

fn space_over(
    devices: Vec<butterfs_volume::VolumeDevice>,
    map: ChunkMap,
    options: &OpenOptions,
) -> Arc<LogicalSpace> {
    let on_damage = match options.access {
        Access::ReadWrite => OnDamage::Heal,
        Access::ReadOnly => OnDamage::Leave,
    };
    let on_loss = match options.states {
        States::Usable => OnLoss::GoOn,
        // A change of all devices stops at the first failure, and is continued
        // on all of them.
        States::Tuned => OnLoss::Fail,
    };
    Arc::new(LogicalSpace::over(devices, map, on_damage, on_loss))
}

fn check_features(superblock: &Superblock, options: &OpenOptions) -> Result<(), StoreError> {
    let refuse = |what: String, read_only_possible| {
        Err(StoreError::Unsupported {
            what,
            read_only_possible,
        })
    };
    let unknown = superblock.incompat - Incompat::SUPPORTED - Incompat::READ_ONLY;
    if !unknown.is_empty() {
        let names = unknown.names().join(", ");
        let mut what = format!("it needs features that ButterFS does not know ({names}); ");
        for needs in unknown.needs() {
            what.push_str(needs);
            what.push_str("; ");
        }
        what.push_str("mount it with the kernel's Btrfs");
        return refuse(what, false);
    }
    if options.rescue != Rescue::default() && options.access == Access::ReadWrite {
        return refuse(
            "the options that pass over damage (rescue=) are for reading what is left".to_owned(),
            true,
        );
    }
    if matches!(options.roots, Roots::Of(_)) && options.access == Access::ReadWrite {
        return refuse(
            "an older generation (rescue=generation=) is for reading".to_owned(),
            true,
        );
    }
    // In these cases, flags of a change that is half done are accepted.
    let is_tuned = options.states == States::Tuned || options.rescue.flags == OnFault::PassOver;
    let uuid = SuperFlags::CHANGING_FSID | SuperFlags::CHANGING_FSID_V2;
    if superblock.flags.intersects(uuid) && !is_tuned {
        let what = "its UUID is being changed; finish that first (`butterfs tune -u`)";
        return refuse(what.to_owned(), false);
    }
    if superblock.flags.contains(SuperFlags::CHANGING_META_CSUM) && !is_tuned {
        let name = superblock.checksum_type.name();
        let what = format!(
            "its checksums are being changed to {name}; finish that first (`butterfs tune --csum \
             {name}`)"
        );
        return refuse(what, false);
    }
    let unknown = superblock.flags - SuperFlags::SUPPORTED;
    let unknown = match (is_tuned, options.rescue.flags) {
        (_, OnFault::PassOver) => SuperFlags(0),
        (true, _) => unknown - SuperFlags::CHANGING,
        (false, _) => unknown,
    };
    if !unknown.is_empty() {
        let names = unknown.names().join(", ");
        let what = format!(
            "its superblock has flags that ButterFS does not know ({names}); use the program that set them"
        );
        return refuse(what, false);
    }
    if options.access == Access::ReadOnly {
        return Ok(());
    }
    if superblock
        .flags
        .intersects(SuperFlags::METADUMP | SuperFlags::METADUMP_V2)
    {
        return refuse(
            "it was restored from a metadata image and lacks the data of its files; change a copy of the \
             original volume instead".to_owned(),
            true,
        );
    }
    if superblock.flags.contains(SuperFlags::SEEDING) && !is_tuned {
        return refuse("it is a seed device, which must not change; `butterfs tune -S 0` makes it an ordinary volume".to_owned(), true);
    }
    let only_read = superblock.incompat - Incompat::SUPPORTED;
    if !only_read.is_empty() {
        let names = only_read.names().join(", ");
        return refuse(
            format!(
                "it uses {names}, which ButterFS can only read; change it with the kernel's Btrfs"
            ),
            true,
        );
    }
    let unknown = superblock.compat_ro - CompatRo::SUPPORTED;
    if !unknown.is_empty() {
        let names = unknown.names().join(", ");
        return refuse(
            format!(
                "it uses {names}, which ButterFS can only read; change it with the kernel's Btrfs"
            ),
            true,
        );
    }
    Ok(())
}

/// Errors unless a root node belongs to its tree.
fn verify_root(root: &Node, tree: TreeId) -> Result<(), StoreError> {
    if root.owner() == tree {
        return Ok(());
    }
    Err(TreeError::Corrupt {
        logical: root.logical(),
        fault: NodeFault::Owner,
    }
    .into())
}

fn blank_engine(superblock: Superblock, space: Arc<LogicalSpace>, options: &OpenOptions) -> Engine {
    let identity = VolumeIdentity {
        fsid: superblock.node_fsid(),
        node_size: superblock.node_size as usize,
        sector_size: superblock.sector_size.into(),
        checksum: superblock.checksum_type,
        headers: match superblock.flags.intersects(SuperFlags::CHANGING) {
            true => Headers::Changing,
            false => Headers::Agree,
        },
    };
    let remakes_free_space = options.access == Access::ReadWrite
        && superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
        && (options.free_space == FreeSpace::Remade || !superblock.has_valid_free_space_tree());
    let free_space_tree = !remakes_free_space && superblock.has_valid_free_space_tree();
    Engine {
        stamp: NodeStamp {
            fsid: identity.fsid,
            chunk_tree_uuid: [0; 16],
        },
        generation: Generation(superblock.generation.get() + 1),
        forest: Forest::new(options.cache_bytes, identity.node_size),
        allocation: Allocation {
            free_space_tree,
            remakes_free_space,
            ..Allocation::default()
        },
        pending: Pending::default(),
        publication: Publication::new(superblock),
        identity,
        rescue: options.rescue,
        nodes_passed_over: NodesPassedOver::default(),
        kept_trees: FxHashMap::default(),
        acknowledged: crate::acknowledged::Acknowledged::default(),
        quotas: None,
        rounds: Rounds::default(),
        generation_bytes: options.generation_bytes,
        edits: 0,
        edits_beside: CachePadded::default(),
        space,
    }
}

/// The last commit of `live`, for reading alone, with a cache of its own. The
/// caller must keep its nodes from being overwritten meanwhile.
pub(crate) fn view(live: &Engine) -> Result<Engine, StoreError> {
    let default = OpenOptions::default();
    let options = OpenOptions {
        cache_bytes: VIEW_CACHE.min(default.cache_bytes),
        rescue: live.rescue,
        ..default
    };
    let mut engine = blank_engine(
        live.publication.durable.clone(),
        Arc::clone(&live.space),
        &options,
    );
    engine.forest.read_as = ReadAs::Former;
    engine.publication.devices = Arc::clone(&live.publication.durable_devices);
    engine.load_roots()?;
    engine.allocation.chunks = live.allocation.chunks.clone();
    for group in live.allocation.groups.values() {
        engine.allocation.groups.insert(BlockGroup {
            start: group.start,
            length: group.length,
            flags: group.flags,
            used: group.used,
            promised: 0,
            pinned: 0,
            excluded: group.excluded.clone(),
            free: None,
            cursor: group.start.get(),
            dirty: false,
            standing: Standing::Committed,
            read_only: true,
            row: None,
            left_over: RangeSet::default(),
        });
    }
    engine.quotas = live.quotas().map(Quotas::copied);
    Ok(engine)
}

impl Engine {
    fn load_roots(&mut self) -> Result<(), StoreError> {
        let superblock = &self.publication.superblock;
        let chunk = NodeRef {
            logical: superblock.chunk_root,
            generation: superblock.chunk_root_generation,
            level: superblock.chunk_root_level,
        };
        let root = NodeRef {
            logical: superblock.root,
            generation: superblock.generation,
            level: superblock.root_level,
        };
        for (tree, root) in [(TreeId::CHUNK, chunk), (TreeId::ROOT, root)] {
            let state = TreeState {
                root,
                item_key: None,
                item: RootItem::default(),
                changed: false,
                only_moved: false,
            };
            self.forest.trees.insert(tree, state);
        }
        let bytes = self.node(chunk)?;
        verify_root(&bytes, TreeId::CHUNK)?;
        let header = butterfs_format::node::NodeHeader::parse(bytes.bytes())
            .map_err(|_| StoreError::Internal("a verified node has no header"))?;
        self.stamp.chunk_tree_uuid = header.chunk_tree_uuid;
        Ok(())
    }

    fn load_chunks(&mut self, options: &OpenOptions) -> Result<(), StoreError> {
        let found = self.read_chunks()?;
        self.allocation.chunks = found.chunks;
        self.space.set_map(found.map);
        self.verify_device_sizes(options)?;
        self.verify_volume_size(options.access)?;
        self.publication.superblock.device = self.own_item()?;
        self.publication.superblock.num_devices = self.publication.devices.len() as u64;
        self.publication.durable_devices = Arc::clone(&self.publication.devices);
        self.verify_stripes()?;
        if options.access == Access::ReadWrite {
            self.space.check_degraded()?;
        }
        Ok(())
    }

    fn load_trees(&mut self, roots: Roots, access: Access) -> Result<(), StoreError> {
        let root = self.node(self.root(TreeId::ROOT)?)?;
        verify_root(&root, TreeId::ROOT)?;
        let writes = access == Access::ReadWrite;
        let mut needed = vec![TreeId::EXTENT, TreeId::DEVICE, TreeId::FS, TreeId::CSUM];
        if writes && self.allocation.free_space_tree {
            needed.push(TreeId::FREE_SPACE);
        }
        if self.publication.superblock.has_block_group_tree() {
            needed.push(TreeId::BLOCK_GROUP);
        }
        for tree in needed {
            let found = self.tree_state(tree).map(|state| state.root);
            if tree == TreeId::FS || found.is_ok() {
                let root = found?;
                if roots == Roots::OrBackups {
                    self.node(root)?;
                } else if writes {
                    // Whoever changes the volume must learn of damage before.
                    self.node(root)
                        .map_err(|error| damaged(tree, error.into()))?;
                }
            } else {
                let missing = found.map(drop).map_err(|error| match tree {
                    TreeId::FREE_SPACE => damaged(tree, error),
                    _ => error,
                });
                self.pass_over(missing)?;
            }
        }
        self.pass_over(self.verify_device_extents())?;
        let uuids = match self.tree_state(TreeId::UUID) {
            Ok(state) if writes => self.node(state.root).map(drop).map_err(StoreError::from),
            Ok(_) | Err(StoreError::Tree(TreeError::NoSuchTree(_))) => Ok(()),
            Err(error) => Err(error),
        };
        match access {
            // Making and deleting subvolumes would fail in the middle.
            Access::ReadWrite => uuids.map_err(|error| damaged(TreeId::UUID, error)),
            Access::ReadOnly => self.go_without(uuids, "the UUID tree cannot be used"),
        }
    }

    /// Errors when the kernel's replacement of a device was interrupted. Only the
    /// kernel can go on with it.
    pub(crate) fn check_not_replacing(&self) -> Result<(), StoreError> {
        match self.replace_item()? {
            Some(item) if item.is_under_way() => Err(StoreError::Unsupported {
                what: format!(
                    "the kernel's replacement of device {} was interrupted; mount the volume with \
                     the kernel, which goes on with it, or end it: `butterfs replace cancel` on the \
                     volume",
                    item.source
                ),
                read_only_possible: true,
            }),
            _ => Ok(()),
        }
    }

    /// Notes for which gaps between block groups the free-space tree has items.
    fn find_orphan_free_space(&mut self) -> Result<(), StoreError> {
        if self.allocation.free_space_tree {
            let groups = self.allocation.groups.values();
            let spans = groups.map(|g| g.start.get()..g.start.get() + g.length);
            self.allocation.orphan_free_space = free_space_tree::find_orphans(self, spans)?;
        }
        Ok(())
    }

    fn load_groups(&mut self) -> Result<(), StoreError> {
        let mut groups = BlockGroups::default();
        for (logical, chunk) in &self.allocation.chunks {
            let used = match self.read_group(*logical, chunk) {
                Ok(Some(item)) => item.used,
                Ok(None) => {
                    tracing::warn!(%logical, "a chunk has no block group; its space is not used");
                    continue;
                }
                Err(error) => {
                    self.pass_over(Err(error))?;
                    chunk.length
                }
            };
            groups.insert(BlockGroup {
                start: *logical,
                length: chunk.length,
                flags: chunk.flags,
                used,
                promised: 0,
                pinned: 0,
                excluded: excluded(*logical, chunk),
                free: None,
                cursor: logical.get(),
                dirty: false,
                standing: Standing::Committed,
                read_only: self.lies_on_seed(chunk),
                row: row_length(chunk),
                left_over: RangeSet::default(),
            });
        }
        self.pass_over(self.verify_gaps())?;
        self.allocation.groups = groups;
        Ok(())
    }
}
