//! The order of a check: superblocks, chunks, roots, extents, subvolumes, and
//! then what all of them say about one another.

use crate::budget::{Taken, bytes_of};
use crate::code::FaultCode;
use crate::context::Context;
use crate::data;
use crate::devices::{self, ChunkTree};
use crate::error::{CheckError, DevicesFault, Unreadable};
use crate::extents::checksums::ChecksumScan;
use crate::extents::compare;
use crate::extents::diagnose::{self, Lost};
use crate::extents::free_space::{self, FreeRun, FreeScan};
use crate::extents::parents::{Knowledge, Parents};
use crate::extents::scan::{ExtentRun, ExtentScan, GROUP_BYTES, Group, parse_group};
use crate::extents::space_cache;
use crate::extents::tally::Tally;
use crate::inodes::prealloc::Suspects;
use crate::inodes::refs::ReferenceScan;
use crate::inodes::scan::FsScan;
use crate::inodes::subvolume;
use crate::paths;
use crate::progress::{Phase, Progress};
use crate::ranges::Ranges;
use crate::report::{Collector, Figures, Place, Report};
use crate::superblocks::{self, Given, METADUMP, Wanted};
use crate::trees::roots::{Root, Roots};
use crate::trees::{ItemList, Items, log, quotas, uuids};
use crate::visited::Visited;
use crate::walk::{Leaf, Outcome, Tree, Visitor, Walker};
use crate::{DataChecksums, Options};
use butterfs_device::BlockDevice;
use butterfs_format::features::CompatRo;
use butterfs_format::{ItemType, NodeRef, TreeId};
use butterfs_volume::{ChunkMap, LogicalSpace, OnDamage};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Checks the volume on `devices`.
///
/// # Errors
/// Fails if the volume could not be checked at all. Otherwise the report lists
/// what is wrong with it.
pub fn check(
    devices: Vec<Arc<dyn BlockDevice>>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, CheckError> {
    /// More only cost memory.
    const THREADS_MAX: usize = 256;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads.min(THREADS_MAX))
        .build()
        .map_err(|error| CheckError::Threads(Arc::new(error)))?;
    pool.install(|| {
        let wanted = options.superblock.map_or(Wanted::Newest, Wanted::Number);
        let report = match run(devices.clone(), (options, wanted), progress)? {
            Some(report) => Some(report),
            None => run(devices, (options, Wanted::Primary), progress)?,
        };
        report.ok_or(CheckError::Unreadable(Unreadable::ChunkTree))
    })
}

/// `None` if a copy of the superblock that is newer than a whole primary one
/// names no tree of roots that can be read.
fn run(
    devices: Vec<Arc<dyn BlockDevice>>,
    (options, wanted): (&Options, Wanted),
    progress: &dyn Progress,
) -> Result<Option<Report>, CheckError> {
    let faults = Arc::new(Collector::new(options.faults_max));
    let Given {
        passes_over_primary,
        members,
        seeds,
        stale,
    } = superblocks::open(devices, wanted, &faults)?;
    let Some(superblock) = members.first().map(|member| member.superblock.clone()) else {
        return Err(CheckError::Devices(DevicesFault::None));
    };
    let mut map = ChunkMap::default();
    for (logical, chunk) in &superblock.sys_chunks {
        if let Err(error) = map.insert(*logical, chunk.clone()) {
            faults.add(
                FaultCode::ChunkInvalid,
                Place::at(*logical),
                error.to_string(),
            );
        }
    }
    let items = members
        .iter()
        .map(|member| member.superblock.device.clone())
        .collect();
    let devices = members
        .into_iter()
        .map(|member| (member.superblock.device.id, member.device))
        .collect();
    let space = LogicalSpace::new(devices, map, OnDamage::Leave);
    let context = Context::new(superblock, space, Arc::clone(&faults), options, progress);
    let context = context.with_device_items(items).with_seeds(seeds);
    let context = context.with_stale(stale);
    let check = match Check::open(&context) {
        Err(CheckError::Unreadable(_)) if passes_over_primary => return Ok(None),
        opened => opened?,
    };
    if passes_over_primary && check.roots.get(TreeId::EXTENT).is_none() {
        return Ok(None);
    }
    let figures = check.run()?;
    let roots = check.roots.nodes();
    let view = check.context.quiet();
    drop((check, context));
    let Some(faults) = Arc::into_inner(faults) else {
        return Err(CheckError::Unreadable(Unreadable::ThreadLeft));
    };
    let mut report = faults.finish(figures);
    paths::add(&mut report, &view, &roots);
    Ok(Some(report))
}

/// A volume whose trees are known.
struct Check<'a> {
    context: Context<'a>,
    chunk_root: NodeRef,
    root_root: NodeRef,
    chunks: ChunkTree,
    roots: Roots,
    /// Memory of chunks and roots.
    _taken: Taken,
}

/// What [`Check::extents`] found.
struct Extents {
    run: ExtentRun,
    parents: Parents,
    covered: Ranges,
    checksums_complete: bool,
    free: Option<FreeRun>,
    groups: Vec<Group>,
    groups_complete: bool,
    device: Option<Items>,
    uuids: Option<Items>,
    quotas: Option<Items>,
    _taken: Taken,
}

impl Extents {
    /// What an fsync log is compared with.
    const fn used(&self) -> log::Used<'_> {
        log::Used {
            data: &self.run.data,
            nodes: &self.run.nodes,
            covered: &self.covered,
            checksums_complete: self.checksums_complete,
        }
    }
}

struct GroupScan<'s, 'a> {
    context: &'s Context<'a>,
    taken: &'s Taken,
}

impl Visitor for GroupScan<'_, '_> {
    type Summary = Vec<Group>;

    fn leaf(&self, leaf: &Leaf<'_>) -> Vec<Group> {
        let groups = leaf.items().filter_map(|(key, data)| {
            if key.item_type == ItemType::BLOCK_GROUP_ITEM {
                self.taken.add(GROUP_BYTES);
                return parse_group(self.context, leaf, key, data);
            }
            let text = "the block group tree holds no such items";
            self.context
                .fault(FaultCode::ItemUnexpected, leaf.item(key), text);
            None
        });
        groups.collect()
    }

    fn join(&self, mut left: Vec<Group>, right: Vec<Group>) -> Vec<Group> {
        left.extend(right);
        left
    }

    fn gap(&self) -> Vec<Group> {
        Vec::new()
    }
}

/// What one pass over all trees needs.
struct Pass<'p, 'a> {
    context: &'p Context<'a>,
    tally: &'p Tally,
    visited: &'p Visited,
    none: &'p Parents,
}

impl<'p, 'a> Pass<'p, 'a> {
    fn walker<'w>(&'w self, parents: &'w Parents) -> Walker<'w, 'a> {
        Walker {
            context: self.context,
            visited: self.visited,
            tally: Some(self.tally),
            parents,
        }
    }

    fn walk<V: Visitor>(&self, root: Option<&Root>, visitor: &V) -> Option<Outcome<V::Summary>> {
        root.map(|root| self.walker(self.none).walk(&root.tree(), visitor))
    }
}

impl<'a> Check<'a> {
    /// Reads chunks and roots.
    fn open(context: &Context<'a>) -> Result<Self, CheckError> {
        let superblock = &context.superblock;
        let chunk_root = NodeRef {
            logical: superblock.chunk_root,
            generation: superblock.chunk_root_generation,
            level: superblock.chunk_root_level,
        };
        let root_root = NodeRef {
            logical: superblock.root,
            generation: superblock.generation,
            level: superblock.root_level,
        };
        let taken = context.taken();
        let items = list(context, TreeId::CHUNK, chunk_root, &ItemList::all(&taken));
        context.budget.verify()?;
        let chunks = devices::parse(context, &items.summary);
        if chunks.chunks.is_empty() {
            return Err(CheckError::Unreadable(Unreadable::ChunkTree));
        }
        devices::choose_seeds(context, &chunks);
        let map = devices::map(context, &chunks);
        let context = context.with_map(map);
        devices::superblock(&context, &chunks);
        devices::missing(&context, &chunks);
        let wanted = ItemList {
            wanted: Roots::wanted,
            taken: &taken,
        };
        let items = list(&context, TreeId::ROOT, root_root, &wanted);
        context.budget.verify()?;
        if !items.complete {
            context
                .faults
                .unchecked("parts of the tree of roots cannot be read, and with them whole trees");
        }
        let roots = Roots::parse(&context, &items.summary);
        roots.check(&context);
        let context = match roots.get(TreeId::QUOTA) {
            Some(root) => {
                let wanted = ItemList {
                    wanted: |kind| kind == ItemType::QGROUP_STATUS,
                    taken: &taken,
                };
                let quiet = context.quiet();
                let items = list(&quiet, TreeId::QUOTA, root.node(), &wanted).summary;
                match quotas::charged_from(&items) {
                    Some(from) => context.with_charges(from),
                    None => context,
                }
            }
            None => context,
        };
        Ok(Self {
            context,
            chunk_root,
            root_root,
            chunks,
            roots,
            _taken: taken,
        })
    }

    fn run(&self) -> Result<Figures, CheckError> {
        let context = &self.context;
        let tally = Tally::summing(context.hash);
        let visited = context.visited();
        let none = Parents::default();
        let pass = Pass {
            context,
            tally: &tally,
            visited: &visited,
            none: &none,
        };
        let mut lost = Lost::default();
        context.begin(Phase::Extents, 0);
        let extents = self.extents(&pass, &mut lost);
        context.budget.verify()?;
        self.space(&extents, lost);
        let nodes = extents.run.nodes.bytes();
        context.begin(Phase::Subvolumes, nodes);
        let mut figures = self.subvolumes(&pass, &extents, &mut lost);
        let logged = log::check(context, &visited, &extents.used());
        if !lost.recorded {
            let data = extents.run.data.union(&logged.space);
            compare::checksums(context, &extents.covered, &data);
        }
        context.budget.verify()?;
        figures.bytes_used = extents.run.data.bytes().saturating_add(nodes);
        figures.extents = extents.run.extents;
        figures.nodes = nodes.checked_div(context.node_bytes()).unwrap_or(0);
        figures.checksummed_bytes = extents.covered.bytes();
        let quotas = extents.quotas.as_ref().filter(|_| !lost.found);
        if let Some(items) = quotas {
            context.begin(Phase::Quotas, nodes);
            quotas::check(context, &self.roots, items);
        }
        drop((visited, extents));
        if !tally.agrees() {
            self.differences(&tally, lost)?;
        }
        let has_data = !context.superblock.flags.intersects(METADUMP);
        if context.options.data == DataChecksums::Verify && !has_data {
            let text = "file data: the volume was restored from a metadump and has none";
            context.faults.unchecked(text);
        } else if context.options.data == DataChecksums::Verify {
            let bytes = logged.summed_bytes(context);
            let bytes = figures.checksummed_bytes.saturating_add(bytes);
            context.begin(Phase::Data, bytes);
            let root = self.roots.get(TreeId::CSUM);
            let read = root.map_or(0, |root| data::verify(context, root.node()));
            let of_log = data::verify_log(context, &logged.sums);
            figures.data_bytes_read = read.saturating_add(of_log);
        }
        context.budget.verify()?;
        Ok(figures)
    }

    /// Walks the trees of extents, checksums, block groups, free space, devices,
    /// UUIDs and quotas.
    fn extents(&self, pass: &Pass<'_, '_>, lost: &mut Lost) -> Extents {
        let context = pass.context;
        let root = |id| self.roots.get(id);
        let taken = context.taken();
        let scan = ExtentScan {
            context,
            tally: pass.tally,
            taken: &taken,
        };
        let sums = ChecksumScan {
            context,
            taken: &taken,
        };
        let (extent, sums) = rayon::join(
            || pass.walk(root(TreeId::EXTENT), &scan),
            || pass.walk(root(TreeId::CSUM), &sums),
        );
        lost.recorded |= extent.as_ref().is_none_or(|outcome| !outcome.complete);
        let run = extent.map(|outcome| outcome.summary).unwrap_or_default();
        let scan = GroupScan {
            context,
            taken: &taken,
        };
        let groups = pass.walk(root(TreeId::BLOCK_GROUP), &scan);
        let mut groups_complete = !lost.recorded;
        let groups = match groups {
            Some(outcome) => {
                groups_complete = outcome.complete;
                outcome.summary
            }
            None => {
                taken.add(bytes_of(run.groups.len(), GROUP_BYTES));
                run.groups.clone()
            }
        };
        let scan = FreeScan {
            context,
            groups: &groups,
            taken: &taken,
        };
        let free = pass.walk(root(TreeId::FREE_SPACE), &scan);
        let mut small = |id| {
            let outcome = pass.walk(root(id), &ItemList::all(&taken))?;
            lost.found |= !outcome.complete;
            outcome.complete.then_some(outcome.summary)
        };
        Extents {
            parents: Parents::new(
                &run.parents,
                &run.shared,
                &self.roots,
                if lost.recorded {
                    Knowledge::Part
                } else {
                    Knowledge::All
                },
            ),
            device: small(TreeId::DEVICE),
            uuids: small(TreeId::UUID),
            quotas: small(TreeId::QUOTA),
            checksums_complete: sums.as_ref().is_some_and(|outcome| outcome.complete),
            covered: sums
                .map(|outcome| outcome.summary.covered)
                .unwrap_or_default(),
            free: free
                .filter(|outcome| outcome.complete)
                .map(|outcome| outcome.summary),
            groups,
            groups_complete,
            run,
            _taken: taken,
        }
    }

    /// Compares what [`Self::extents`] found with one another, with chunks and
    /// subvolumes, and with the superblock.
    fn space(&self, extents: &Extents, lost: Lost) {
        let context = &self.context;
        let run = &extents.run;
        if let Some(items) = &extents.device {
            devices::extents(context, &self.chunks, items);
        }
        if let Some(items) = &extents.uuids {
            uuids::check(context, &self.roots, items);
        }
        if lost.recorded {
            context.faults.unchecked(
                "the extent tree cannot be read whole, so used and free space were not compared",
            );
            return;
        }
        if extents.groups_complete {
            let has_own = context.superblock.has_block_group_tree();
            let tree = if has_own {
                TreeId::BLOCK_GROUP
            } else {
                TreeId::EXTENT
            };
            compare::groups(context, &extents.groups, &run.data, &run.nodes, tree);
        }
        let used = run.data.bytes().saturating_add(run.nodes.bytes());
        if used != context.superblock.bytes_used {
            let counted = context.superblock.bytes_used;
            let text = format!("it counts {counted} used bytes; the extents have {used}");
            context.fault(FaultCode::SuperblockBytesUsed, Place::default(), text);
        }
        let compat = context.superblock.compat_ro;
        let has_tree = compat.contains(CompatRo::FREE_SPACE_TREE);
        if has_tree && !compat.contains(CompatRo::FREE_SPACE_TREE_VALID) {
            let text = "the superblock does not mark it as valid";
            let place = Place::tree(TreeId::FREE_SPACE);
            context.fault(FaultCode::FreeSpaceNotValid, place, text);
        }
        if let Some(free) = &extents.free
            && has_tree
        {
            free_space::compare(context, free, &extents.groups, [&run.data, &run.nodes]);
        }
        if space_cache::is_used(context) {
            let taken = context.taken();
            let wanted = ItemList {
                wanted: space_cache::wanted,
                taken: &taken,
            };
            let quiet = context.quiet();
            let items = list(&quiet, TreeId::ROOT, self.root_root, &wanted).summary;
            space_cache::check(context, &items, &extents.groups, [&run.data, &run.nodes]);
        }
    }

    /// Walks subvolumes and the other trees that refer to extents.
    fn subvolumes(&self, pass: &Pass<'_, '_>, extents: &Extents, lost: &mut Lost) -> Figures {
        let context = pass.context;
        let mut figures = Figures::default();
        let suspects = Suspects::new(context.taken());
        let mut scan = FsScan {
            context,
            tally: Some(pass.tally),
            covered: &extents.covered,
            suspects: &suspects,
            checksums: extents.checksums_complete,
            shared: extents.parents.shared(),
            kept: Mutex::new(FxHashMap::default()),
            tree: TreeId::FS,
            sink: None,
            taken: context.taken(),
        };
        let walker = pass.walker(&extents.parents);
        let relocation = self.roots.get(TreeId::DATA_RELOC);
        for root in self.roots.live().chain(relocation) {
            scan.tree = root.id;
            let outcome = walker.walk(&root.tree(), &scan);
            lost.found |= !outcome.complete;
            let run = subvolume::check(&scan, &root.tree(), outcome);
            if root.id.is_subvolume() {
                figures.subvolumes = figures.subvolumes.saturating_add(1);
                figures.inodes = figures.inodes.saturating_add(run.inodes);
                figures.directories = figures.directories.saturating_add(run.directories);
            }
        }
        drop(scan);
        let trees = self.roots.live().chain(relocation).map(Root::tree);
        suspects.report(context, &extents.covered, trees);
        let references = ReferenceScan {
            context,
            tally: pass.tally,
        };
        for root in self.roots.passing() {
            lost.found |= !walker.walk(&root.tree(), &references).complete;
        }
        let known = [
            TreeId::EXTENT,
            TreeId::DEVICE,
            TreeId::CSUM,
            TreeId::QUOTA,
            TreeId::UUID,
            TreeId::FREE_SPACE,
            TreeId::BLOCK_GROUP,
            TreeId::DATA_RELOC,
        ];
        let walker = pass.walker(pass.none);
        for root in self.roots.others(&known) {
            lost.found |= !walker.walk(&root.tree(), &references).complete;
        }
        // `open` walked these trees before and reported their damage.
        let quiet = context.quiet();
        let walker = Walker {
            context: &quiet,
            ..walker
        };
        let first = ReferenceScan {
            context: &quiet,
            tally: pass.tally,
        };
        for (id, root) in [
            (TreeId::CHUNK, self.chunk_root),
            (TreeId::ROOT, self.root_root),
        ] {
            lost.found |= !walker.walk(&Tree::whole(id, root), &first).complete;
        }
        figures
    }

    /// Walks everything again, collects the records that did not agree, and
    /// reports them.
    fn differences(&self, tally: &Tally, lost: Lost) -> Result<(), CheckError> {
        self.context.begin(Phase::Diagnosis, 0);
        let collecting = tally.collecting(Taken::new(&self.context.budget.spare()));
        let quiet = self.context.quiet();
        let visited = quiet.visited();
        let none = Parents::default();
        let pass = Pass {
            context: &quiet,
            tally: &collecting,
            visited: &visited,
            none: &none,
        };
        let extents = self.extents(&pass, &mut Lost::default());
        self.subvolumes(&pass, &extents, &mut Lost::default());
        self.context.budget.verify()?;
        drop((visited, extents));
        diagnose::report(&self.context, collecting.into_collected(), lost);
        Ok(())
    }
}

/// Returns the items of a tree without counting its references.
fn list(context: &Context<'_>, id: TreeId, root: NodeRef, list: &ItemList<'_>) -> Outcome<Items> {
    let visited = context.visited();
    let none = Parents::default();
    let walker = Walker {
        context,
        visited: &visited,
        tally: None,
        parents: &none,
    };
    walker.walk(&Tree::whole(id, root), list)
}
