//! Loading the trees that a superblock names.
//!
//! Reads the chunks and the roots, and one item for each block group.

use super::members::{self, Members};
use super::options::{FreeSpace, OnReplacement, OpenOptions, Roots, States};
use crate::Store;
use crate::commit::Publisher;
use crate::commit::rounds::Rounds;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::fsync_log::{FsyncLog, Waiting};
use crate::nodes::NodeStore;
use crate::nodes::trees::TreeState;
use crate::quota::QuotaState;
use crate::refs::RefLedger;
use crate::rescue;
use crate::space::block_group::{BlockGroup, Standing};
use crate::space::block_groups::BlockGroups;
use crate::space::chunks::excluded;
use crate::space::ranges::RangeSet;
use crate::space::{FreeSpaceTree, SpaceMap};
use butterfs_device::Access;
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::root::RootItem;
use butterfs_format::superblock::{SuperFlags, Superblock};
use butterfs_format::{Generation, NodeRef, TreeId};
use butterfs_tree::{Headers, Node, NodeFault, NodeSource, TreeError, VolumeIdentity};
use butterfs_volume::{ChunkMap, LogicalSpace, OnDamage, OnLoss, row_length};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// The volume whose trees an engine has.
pub(super) fn store_of(engine: Engine, options: &OpenOptions) -> Store {
    let (space, identity) = (Arc::clone(&engine.space), *engine.nodes.identity());
    Store {
        engine: crate::transaction::engine_lock::EngineLock::new(engine),
        identity,
        reads_outside: AtomicU64::new(0),
        addresses: crate::address_locks::Addresses::default(),
        fsyncs: crate::fsync_log::group::FsyncGroup::default(),
        committing: Mutex::new(()),
        writing_nodes: Mutex::new(()),
        commits_under_way: AtomicUsize::new(0),
        left_to_commit: options.left_to_commit,
        access: options.access,
        poisoned: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        reason: Mutex::new(None),
        device_loss: crate::commit::device_loss::DeviceLoss::new(&space),
        space,
        barriers: options.barriers,
        discard: options.discard,
        exclusive: Mutex::new(None),
        replacement_targets: Vec::new(),
        unequal_copies: Mutex::new(None),
        nascent: AtomicBool::new(false),
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
pub(super) fn load_engine(
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

pub(super) fn load_by_roots(
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
        engine.nodes.set_headers(Headers::Seeded(seeds));
    }
    engine.load_roots()?;
    let mut items = engine.read_devices()?;
    members.add_new(&mut items);
    engine.publisher.set_devices(Arc::new(items));
    engine.publisher.own_item()?;
    let has_others = members.leave_out_strangers(engine.publisher.devices())?;
    if let Some(seeds) = members.seeds()? {
        engine.nodes.set_headers(Headers::Seeded(seeds));
    }
    let missing = members.missing(engine.publisher.devices(), options)?;
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
    rescue::go_without(
        loaded,
        "the error counters of devices cannot be read and begin at zero",
    )?;
    let loaded = engine.load_quotas();
    let keeps_simple = superblock.incompat.contains(Incompat::SIMPLE_QUOTA);
    if let (Err(error), Access::ReadWrite, true) = (&loaded, options.access, keeps_simple) {
        // Nothing in these numbers tells later that somebody wrote without
        // them.
        return Err(StoreError::Unsupported {
            what: format!(
                "it keeps simple quotas, whose numbers every program that writes has to keep, and \
                 the quota tree cannot be read ({error})"
            ),
            read_only_possible: true,
        });
    }
    rescue::go_without(
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

pub(super) fn blank_engine(
    superblock: Superblock,
    space: Arc<LogicalSpace>,
    options: &OpenOptions,
) -> Engine {
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
    let tree = match superblock.has_valid_free_space_tree() {
        _ if remakes_free_space => FreeSpaceTree::Remade,
        true => FreeSpaceTree::Kept,
        false => FreeSpaceTree::Ignored,
    };
    Engine {
        generation: Generation(superblock.generation.get() + 1),
        nodes: NodeStore::new(identity, options.cache_bytes, options.rescue.nodes),
        space_map: SpaceMap::new(tree),
        ledger: RefLedger::default(),
        log: FsyncLog::new(match superblock.log_root.get() {
            0 => Waiting::No,
            _ => Waiting::Yes,
        }),
        publisher: Publisher::new(superblock),
        rescue: options.rescue,
        kept_trees: FxHashMap::default(),
        acknowledged: crate::acknowledged::Acknowledged::default(),
        quotas: QuotaState::default(),
        rounds: Rounds::default(),
        generation_bytes: options.generation_bytes,
        edits: 0,
        space,
    }
}

impl Engine {
    pub(super) fn load_roots(&mut self) -> Result<(), StoreError> {
        let superblock = self.publisher.superblock();
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
            self.nodes.insert_tree(tree, state);
        }
        let bytes = self.node(chunk)?;
        verify_root(&bytes, TreeId::CHUNK)?;
        let header = butterfs_format::node::NodeHeader::parse(bytes.bytes())
            .map_err(|_| StoreError::Internal("a verified node has no header"))?;
        self.nodes.set_chunk_tree_uuid(header.chunk_tree_uuid);
        Ok(())
    }

    fn load_chunks(&mut self, options: &OpenOptions) -> Result<(), StoreError> {
        let found = self.read_chunks()?;
        self.space_map.set_chunks(found.chunks);
        self.space.set_map(found.map);
        self.verify_device_sizes(options)?;
        self.publisher.verify_volume_size(options.access)?;
        let own = self.publisher.own_item()?;
        self.publisher.adopt_devices(own);
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
        if writes && self.space_map.has_free_space_tree() {
            needed.push(TreeId::FREE_SPACE);
        }
        if self.publisher.superblock().has_block_group_tree() {
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
                self.rescue.pass_over(missing)?;
            }
        }
        self.rescue.pass_over(self.verify_device_extents())?;
        let uuids = match self.tree_state(TreeId::UUID) {
            Ok(state) if writes => self.node(state.root).map(drop).map_err(StoreError::from),
            Ok(_) | Err(StoreError::Tree(TreeError::NoSuchTree(_))) => Ok(()),
            Err(error) => Err(error),
        };
        match access {
            // Making and deleting subvolumes would fail in the middle.
            Access::ReadWrite => uuids.map_err(|error| damaged(TreeId::UUID, error)),
            Access::ReadOnly => rescue::go_without(uuids, "the UUID tree cannot be used"),
        }
    }

    /// Errors when the kernel's replacement of a device was interrupted. Only
    /// the kernel can go on with it.
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

    fn load_groups(&mut self) -> Result<(), StoreError> {
        let mut groups = BlockGroups::default();
        for (logical, chunk) in self.space_map.chunks() {
            let used = match self.read_group(*logical, chunk) {
                Ok(Some(item)) => item.used,
                Ok(None) => {
                    tracing::warn!(%logical, "a chunk has no block group; its space is not used");
                    continue;
                }
                Err(error) => {
                    self.rescue.pass_over(Err(error))?;
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
                read_only: self.publisher.lies_on_seed(chunk),
                row: row_length(chunk),
                left_over: RangeSet::default(),
            });
        }
        self.rescue.pass_over(self.verify_gaps())?;
        self.space_map.set_groups(groups);
        Ok(())
    }
}
