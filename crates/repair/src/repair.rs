//! The order of a repair.
//!
//! Checks the volume, mends in rounds what the check finds, and checks again. A
//! round reads everything that the trees reach, changes trees in free space, and
//! ends with one superblock.

use crate::error::RepairError;
use crate::extents::{self, Unknown};
use crate::patient::{Begin, Patient};
use crate::ranges::Ranges;
use crate::settle::{Count, Settled, Superblocks, settle};
use crate::step::{Step, StepKind};
use crate::walk::{self, Found, Heal, Recorded, is_derived};
use crate::writer::{TreeRoot, Writer};
use crate::{checksums, devices, fsync_log, inodes, prune, regrow, room, roots};
use butterfs_check::{FaultCode, Report, Severity};
use butterfs_device::BlockDevice;
use butterfs_format::item::root::RootItem;
use butterfs_format::node::LEVEL_MAX;
use butterfs_format::{ItemType, Key, TreeId};
use butterfs_tree::{Cursor, NodeSink, NodeSource};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Rounds after which the check must find no more than before.
const ROUNDS_MAX: usize = 6;

/// What is to be made anew although it may be right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anew {
    /// The extent tree.
    pub extents: bool,
    /// The checksum tree, from the data as they are.
    pub checksums: bool,
    /// The free-space tree.
    pub free_space: bool,
    /// The UUID tree.
    pub uuids: bool,
    /// Checksums that the data do not match, from the data as they are.
    pub data_checksums: bool,
    /// The inode cache of old kernels is removed.
    pub inode_cache: bool,
    /// The superblocks are written in any case.
    pub superblocks: bool,
}

/// What becomes of an fsync log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsyncLog {
    /// It stays for a replay after the repair, if it can be read.
    #[default]
    Keep,
    /// It is thrown away, and what fsync made durable after the last commit.
    Drop,
}

/// How a volume is repaired.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which state of it.
    pub begin: Begin,
    /// What is made anew.
    pub anew: Anew,
    /// What becomes of an fsync log.
    pub log: FsyncLog,
    /// The most bytes of memory for what trees refer to.
    pub memory_max: u64,
    /// Bytes of nodes that wait to be written, and as many of nodes that were
    /// read; at least one node each.
    pub cache_bytes: usize,
    /// How it is checked before and after.
    pub check: butterfs_check::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            begin: Begin::default(),
            anew: Anew::default(),
            log: FsyncLog::default(),
            memory_max: 1 << 30,
            cache_bytes: 64 << 20,
            check: butterfs_check::Options::default(),
        }
    }
}

/// What came of a repair.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the check found before. `None` if the volume could not be checked.
    pub before: Option<Report>,
    /// What the check finds now.
    pub after: Report,
    /// What was done.
    pub steps: Vec<Step>,
    /// Whether anything was written.
    pub is_changed: bool,
}

/// Beginnings of the codes of faults that only a look at all inodes mends.
const FILE_CODES: [&str; 7] = [
    "inode-",
    "name-",
    "file-extent-",
    "item-",
    "root-",
    "node-",
    "checksum-",
];

/// Whether the check found a code that fits. Without a report, it may have.
fn has(report: Option<&Report>, fits: impl Fn(&str) -> bool) -> bool {
    report.is_none_or(|report| report.counts.keys().any(|code| fits(code.name())))
}

/// Warnings that a repair mends too.
fn is_mended(code: FaultCode) -> bool {
    code.severity() == Severity::Fault
        || matches!(
            code,
            FaultCode::FreeSpaceOrphan
                | FaultCode::FreeSpaceNotValid
                | FaultCode::SuperblockCopyStale
                | FaultCode::RootBytes
        )
}

fn needs_repair(report: &Report) -> bool {
    report.counts.keys().any(|code| is_mended(*code))
}

/// Repairs the volume on `devices`, which are written to: give overlays.
///
/// # Errors
/// The volume cannot be read far enough, or has what repair does not know; then
/// nothing was changed that the superblock names.
pub fn repair(
    devices: Vec<Arc<dyn BlockDevice>>,
    options: &Options,
    progress: &dyn butterfs_check::Progress,
) -> Result<Outcome, RepairError> {
    let check =
        |how: &butterfs_check::Options| butterfs_check::check(devices.clone(), how, progress);
    let first = check(&options.check);
    let asked = options.anew != Anew::default() || !options.begin.is_plain();
    if let Ok(report) = &first
        && !needs_repair(report)
        && !asked
    {
        return Ok(Outcome {
            after: report.clone(),
            before: first.ok(),
            steps: Vec::new(),
            is_changed: false,
        });
    }
    let mut begin = options.begin.clone();
    begin.superblock = begin.superblock.or(options.check.superblock);
    let mut anew = options.anew;
    let mut report = first.clone().ok();
    let mut steps = Vec::new();
    let mut is_changed = false;
    for _ in 0..ROUNDS_MAX {
        let mut round = with_room(&devices, &begin, options, |round| {
            round.run(report.as_ref(), anew)
        })?;
        is_changed |= round.is_changed;
        steps.append(&mut round.steps);
        // The next round begins with what this one wrote.
        begin = Begin::default();
        anew = Anew::default();
        let how = butterfs_check::Options {
            superblock: None,
            ..options.check.clone()
        };
        let now = check(&how)?;
        let is_better = report
            .as_ref()
            .is_none_or(|before| before.counts != now.counts);
        let is_done = !needs_repair(&now) || !is_better || !round.is_changed;
        report = Some(now);
        if is_done {
            break;
        }
    }
    let after = match report {
        Some(report) => report,
        None => check(&options.check)?,
    };
    Ok(Outcome {
        before: first.ok(),
        after,
        steps,
        is_changed,
    })
}

/// Opens a round and runs it. If it ends for lack of space, it is begun again
/// with new block groups, as long as the devices have room for them; what it
/// wrote lies where nothing refers to.
fn with_room<'o>(
    devices: &[Arc<dyn BlockDevice>],
    begin: &Begin,
    options: &'o Options,
    run: impl Fn(&mut Round<'o>) -> Result<(), RepairError>,
) -> Result<Round<'o>, RepairError> {
    let mut groups = 0_usize;
    loop {
        let mut round = Round::open(devices.to_vec(), begin, options)?;
        for _ in 0..groups {
            room::add(&mut round.writer, &mut round.steps)?;
        }
        match run(&mut round) {
            Err(error) if error.is_no_space() => groups = groups.saturating_mul(2).max(1),
            outcome => return outcome.map(|()| round),
        }
    }
}

/// One round.
struct Round<'o> {
    options: &'o Options,
    writer: Writer,
    recorded: Recorded,
    found: Found,
    steps: Vec<Step>,
    is_changed: bool,
}

/// The roots that the tree of roots names.
fn read_roots(patient: &Patient) -> Result<BTreeMap<TreeId, TreeRoot>, RepairError> {
    let mut roots = BTreeMap::new();
    let own = [
        (TreeId::CHUNK, patient.chunk_root),
        (TreeId::ROOT, patient.tree_root),
    ];
    for (id, node) in own {
        roots.insert(id, TreeRoot { node, key: None });
    }
    let source = crate::patient::Plain(patient);
    let damaged = |_| RepairError::Unreadable("its tree of roots is damaged");
    let mut cursor = Cursor::at_root(&source, patient.tree_root);
    cursor.seek(&Key::MIN).map_err(damaged)?;
    while let Some((key, data)) = cursor.item() {
        let id = TreeId(key.objectid);
        if key.item_type == ItemType::ROOT_ITEM
            && id != TreeId::RELOC
            && let Ok(item) = RootItem::parse(data)
        {
            let node = item.root();
            let key = Some(key);
            roots.entry(id).or_insert(TreeRoot { node, key });
        }
        cursor.next().map_err(damaged)?;
    }
    Ok(roots)
}

/// Space of everything that was found.
fn space_of(found: &Found, node: u64) -> Ranges {
    let mut space = Ranges::default();
    for one in &found.nodes {
        space.add(one.logical..one.logical.saturating_add(node));
    }
    for one in &found.data {
        space.add(one.extent..one.extent.saturating_add(one.length));
    }
    space
}

impl<'o> Round<'o> {
    /// Opens the volume and reads everything.
    fn open(
        devices: Vec<Arc<dyn BlockDevice>>,
        begin: &Begin,
        options: &'o Options,
    ) -> Result<Self, RepairError> {
        let patient = Patient::open(devices, begin)?;
        let roots = read_roots(&patient)?;
        let mut writer = Writer::new(patient, roots, Ranges::default(), options.cache_bytes);
        let (recorded, space) = extents::recorded(&writer);
        let trees = walk::trees(&writer)?;
        let found = walk::walk(&writer, &trees, &recorded, Heal::Yes, options.memory_max)?;
        let node = writer.patient.node_bytes();
        writer.is_careful = found.lacks_files() && !recorded.is_whole;
        writer.avoid(&space);
        writer.avoid(&space_of(&found, node));
        let is_newest = writer.generation == writer.patient.superblock.generation.saturating_add(1);
        if options.log == FsyncLog::Keep
            && begin.is_at_superblock()
            && is_newest
            && let Some(space) = fsync_log::space(&writer.patient)
        {
            writer.keep_log(&space);
        }
        Ok(Self {
            options,
            writer,
            recorded,
            found,
            steps: Vec::new(),
            is_changed: false,
        })
    }

    /// Mends everything.
    fn run(&mut self, report: Option<&Report>, anew: Anew) -> Result<(), RepairError> {
        self.note_healed();
        for tree in self.found.strange_roots.clone() {
            let root = self.writer.root(tree)?;
            let new = self.writer.make_writable(tree, root)?;
            self.writer.set_root(tree, new)?;
            let text = format!("The root of tree {tree} names another owner.");
            self.steps.push(Step::new(StepKind::Nodes, text));
        }
        self.regrow()?;
        prune::prune(&mut self.writer, &self.found, &mut self.steps)?;
        if self.writer.patient.lacks_chunk_tree {
            self.writer.empty(TreeId::CHUNK)?;
            let map = self.writer.patient.space.map();
            self.writer.patient.corrected =
                map.iter().map(|(at, chunk)| (at, chunk.clone())).collect();
            let text = "The chunk tree, from the chunks that were found.";
            self.steps.push(Step::new(StepKind::TreeAnew, text));
        }
        self.derived(anew)?;
        let superblocks = devices::mend(&mut self.writer, &mut self.steps)?;
        roots::mend(&mut self.writer, &mut self.steps)?;
        if anew.inode_cache {
            self.inode_cache()?;
        }
        if has(report, |name| {
            FILE_CODES.iter().any(|prefix| name.starts_with(prefix))
        }) {
            self.subvolumes()?;
        }
        roots::uuids(&mut self.writer, &mut self.steps)?;
        let sums = has(report, |name| name.starts_with("checksum-"));
        if sums || anew.checksums || self.found.lost.iter().any(|lost| lost.tree == TreeId::CSUM) {
            checksums::mend(&mut self.writer, &self.found, &mut self.steps)?;
        }
        if anew.data_checksums {
            checksums::accept_data(&mut self.writer, &mut self.steps)?;
        }
        if has(report, |name| {
            name.starts_with("qgroup-n") || name == "qgroup-missing"
        }) {
            roots::quotas(&mut self.writer, report, &mut self.steps)?;
        }
        let superblocks = match superblocks
            || anew.superblocks
            || has(report, |name| {
                // The used bytes are compared when all extents are known.
                name.starts_with("superblock-") && name != "superblock-bytes-used"
            }) {
            true => Superblocks::Wrong,
            false => Superblocks::Right,
        };
        let count = match has(report, |name| name == "root-bytes") {
            true => Count::All,
            false => Count::Changed,
        };
        self.end(superblocks, count)
    }

    /// Says what was corrected in place while everything was read.
    fn note_healed(&mut self) {
        if self.found.healed > 0 {
            self.is_changed = true;
            let text = format!("{} copies.", self.found.healed);
            self.steps.push(Step::new(StepKind::NodeCopies, text));
        }
        if self.found.corrected > 0 {
            self.is_changed = true;
            let text = format!("Headers or pointers of {} nodes.", self.found.corrected);
            self.steps.push(Step::new(StepKind::Nodes, text));
        }
    }

    /// Makes lost branches again, from the top down, and reads what lies below.
    fn regrow(&mut self) -> Result<(), RepairError> {
        for _ in 0..LEVEL_MAX {
            let trees = walk::trees(&self.writer)?;
            let memory = self.options.memory_max;
            let (found, rest) = (&self.found, (memory, &mut self.steps));
            if !regrow::regrow(&mut self.writer, &trees, found, &self.recorded, rest)? {
                break;
            }
            let trees = walk::trees(&self.writer)?;
            self.found = walk::walk(&self.writer, &trees, &self.recorded, Heal::Yes, memory)?;
            let node = self.writer.patient.node_bytes();
            self.writer.avoid(&space_of(&self.found, node));
            self.note_healed();
        }
        Ok(())
    }

    /// Removes the inode caches of subvolumes.
    fn inode_cache(&mut self) -> Result<(), RepairError> {
        let trees: Vec<TreeId> = self.writer.roots.keys().copied().collect();
        for tree in trees.into_iter().filter(|tree| tree.is_subvolume()) {
            inodes::remove_cache(&mut self.writer, tree, &mut self.steps)?;
        }
        Ok(())
    }

    /// Mends every subvolume that can be read.
    fn subvolumes(&mut self) -> Result<(), RepairError> {
        let trees: Vec<TreeId> = self.writer.roots.keys().copied().collect();
        let live = walk::trees(&self.writer)?;
        // The tree of data relocation has the form of a subvolume.
        let has_files = |tree: &TreeId| tree.is_subvolume() || *tree == TreeId::DATA_RELOC;
        for tree in trees.into_iter().filter(has_files) {
            let root = live.iter().find(|one| one.id == tree);
            let is_live = root.is_some_and(|root| !root.is_passing);
            let is_readable = self
                .writer
                .root(tree)
                .is_ok_and(|root| self.writer.look(root).is_ok());
            if is_live && is_readable {
                inodes::mend(&mut self.writer, tree, &mut self.steps)?;
            }
        }
        Ok(())
    }

    /// Empties trees that follow from others and cannot be read.
    fn derived(&mut self, anew: Anew) -> Result<(), RepairError> {
        let lost = self.found.lost.iter();
        // A part of the checksum tree is better than none.
        let lost = lost.filter(|lost| lost.parent.is_none() || prune::is_made_anew(lost.tree));
        let lost = lost.map(|lost| lost.tree);
        let mut trees: BTreeSet<TreeId> = lost.filter(|tree| is_derived(*tree)).collect();
        let superblock = &self.writer.patient.superblock;
        let wanted = [
            (anew.extents || !self.recorded.is_whole, TreeId::EXTENT),
            (anew.free_space, TreeId::FREE_SPACE),
            (anew.uuids, TreeId::UUID),
            (anew.checksums, TreeId::CSUM),
        ];
        trees.extend(wanted.iter().filter(|(is, _)| *is).map(|(_, tree)| *tree));
        let compat = superblock.compat_ro;
        let needed = [
            (true, TreeId::EXTENT),
            (true, TreeId::CSUM),
            (true, TreeId::DEVICE),
            (
                compat.contains(butterfs_format::features::CompatRo::FREE_SPACE_TREE),
                TreeId::FREE_SPACE,
            ),
            (superblock.has_block_group_tree(), TreeId::BLOCK_GROUP),
        ];
        for (is_needed, tree) in needed {
            if is_needed && self.writer.root(tree).is_err() {
                trees.insert(tree);
            }
        }
        for tree in trees {
            self.writer.empty(tree)?;
            let text = format!("Tree {tree}.");
            self.steps.push(Step::new(StepKind::TreeAnew, text));
        }
        Ok(())
    }

    /// Brings the accounts to rest and publishes.
    fn end(&mut self, superblocks: Superblocks, count: Count) -> Result<(), RepairError> {
        let drops_log =
            self.writer.patient.superblock.log_root.get() != 0 && !self.writer.keeps_log;
        let trees = walk::trees(&self.writer)?;
        let memory = self.options.memory_max;
        let found = walk::walk(&self.writer, &trees, &self.recorded, Heal::No, memory)?;
        let unknown = match found.lacks_files() {
            true => Unknown::Keep,
            false => Unknown::Remove,
        };
        let settled = settle(&mut self.writer, &found, unknown, (superblocks, count))?;
        self.note(&settled);
        if settled.is_published {
            self.is_changed = true;
            if drops_log {
                let step = Step::new(StepKind::Log, "The superblock names none any more.");
                let lost = "what fsync made durable after the last commit";
                self.steps.push(step.losing(lost));
            }
        }
        Ok(())
    }

    fn note(&mut self, settled: &Settled) {
        let mut add = |is: bool, kind, text: String| {
            if is {
                self.steps.push(Step::new(kind, text));
            }
        };
        let extents = &settled.extents;
        add(
            extents.corrected > 0 || extents.removed > 0,
            StepKind::Extents,
            format!(
                "{} extents corrected, {} without references removed.",
                extents.corrected, extents.removed
            ),
        );
        add(
            settled.groups > 0,
            StepKind::BlockGroups,
            format!("{} block groups.", settled.groups),
        );
        add(
            settled.free_space > 0 || !settled.is_valid_before,
            StepKind::FreeSpace,
            format!("{} items.", settled.free_space),
        );
        if let Some(was) = settled.bytes_used_was {
            let now = self.writer.patient.superblock.bytes_used;
            add(true, StepKind::Sums, format!("{was} bytes become {now}."));
        }
        add(
            settled.is_published,
            StepKind::Superblocks,
            format!("Generation {}.", self.writer.generation),
        );
    }
}
