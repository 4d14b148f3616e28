//! The plan of a conversion, and carrying it out.
//!
//! Everything is counted before anything is written: so much free space is
//! needed, and it is there, or nothing happens.

use crate::decide::{self, Search, Side};
use crate::error::ConvertError;
use crate::extents::{Extents, Image};
use crate::files::{Files, Pass, SAVED_TREE};
use crate::ground::{CELL, Ground, Room, free_runs};
use crate::inode::GENERATION;
use crate::layout::{self, Group, Wanted, Zones};
use crate::loader::{Counter, Items as _, Loaded, Loader, NodeNote, Nodes, Reserved, Slots};
use crate::options::{DataSums, Label, Options, Watch};
use crate::refuse;
use crate::relocation::Relocations;
use crate::sorter::{Sorted, Sorter};
use crate::source::{DeviceSource, Old};
use crate::sums::{SumCounter, SumWriter};
use crate::trees::{self, Identities, Makings, copied_bytes, saved_tree};
use crate::volume;
use butterfs_device::BlockDevice;
use butterfs_format::features::CompatRo;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::node::NODE_SIZE_RANGE;
use butterfs_format::packed::{Item, NodeForm};
use butterfs_format::superblock::LABEL_SIZE;
use butterfs_format::{TreeId, UuidBytes};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The most rounds of counting. More mean a fault of this program.
const ROUNDS_MAX: usize = 16;

/// What was converted, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// UUID of the new volume.
    pub uuid: UuidBytes,
    /// Label of the new volume.
    pub label: Vec<u8>,
    /// Files, directories and the like.
    pub files: u64,
    /// Bytes of the volume.
    pub total_bytes: u64,
    /// Bytes of new nodes.
    pub metadata_bytes: u64,
    /// Bytes that were copied, because they lie where Btrfs has something or
    /// not on whole sectors.
    pub copied_bytes: u64,
    /// What the new volume does not have, one sentence each.
    pub lost: Vec<String>,
    /// Whether an earlier conversion was only ended.
    pub was_begun: bool,
}

/// A conversion that was counted.
struct Plan {
    old: Old,
    ground: Ground,
    names: Sorted,
    pieces: Sorted,
    relocations: Relocations,
    /// Where a note goes.
    note: u64,
    /// The room before copies of files took from it.
    room: Room,
    /// What all copies took.
    taken: Vec<Range<u64>>,
    zones: Zones,
    groups: Vec<Group>,
    inodes: u64,
    files: u64,
    saved_index: u64,
    lost: Vec<String>,
    label: Vec<u8>,
    ids: Identities,
    image_bytes: u64,
    sum_bytes: u64,
    metadata_nodes: u64,
}

/// What a conversion would do. Nothing is written.
///
/// # Errors
/// As [`convert`].
pub fn plan(
    device: &Arc<dyn BlockDevice>,
    options: &Options,
    watch: &dyn Watch,
) -> Result<Converted, ConvertError> {
    if let decide::State::New(_) = decide::state(device)? {
        return Err(ConvertError::AlreadyBtrfs);
    }
    let plan = Plan::make(device, options, watch)?;
    Ok(plan.converted(options))
}

/// Converts the file system on `device`. If an earlier conversion of it was cut
/// short after it had decided, ends that.
///
/// # Errors
/// [`ConvertError`]; unless it is one of the device, nothing but free blocks
/// was written.
pub fn convert(
    device: &Arc<dyn BlockDevice>,
    options: &Options,
    watch: &dyn Watch,
) -> Result<Converted, ConvertError> {
    decide::mend(device, Side::New, Search::Usual)?;
    if let decide::State::New(superblock) = decide::state(device)? {
        volume::finish(device, &superblock)?;
        return Ok(Converted {
            uuid: superblock.fsid,
            label: superblock.label.clone(),
            files: 0,
            total_bytes: superblock.total_bytes,
            metadata_bytes: 0,
            copied_bytes: 0,
            lost: Vec::new(),
            was_begun: true,
        });
    }
    let mut plan = match Plan::make(device, options, watch) {
        Ok(plan) => plan,
        // What contradicts itself may be what a torn write left.
        Err(
            error @ (ConvertError::Ext4(_)
            | ConvertError::Contradiction { .. }
            | ConvertError::Blocks { .. }),
        ) => {
            return match decide::mend(device, Side::New, Search::All)? {
                true => convert(device, options, watch),
                false => Err(error),
            };
        }
        Err(error) => return Err(error),
    };
    let superblock = plan.write(device, options, watch)?;
    decide::forward(device, &superblock, plan.note)?;
    Ok(plan.converted(options))
}

impl Plan {
    fn make(
        device: &Arc<dyn BlockDevice>,
        options: &Options,
        watch: &dyn Watch,
    ) -> Result<Self, ConvertError> {
        verify(options)?;
        let old = Old::open(DeviceSource::new(device))?;
        refuse::refuse(&old)?;
        let ground = Ground::of(&old)?;
        let label = match &options.label {
            Label::Empty => Vec::new(),
            Label::Copied => old.superblock().label.clone(),
            Label::Set(label) => label.clone(),
        };
        let random = || uuid::Uuid::new_v4().into_bytes();
        let ids = Identities {
            fsid: match (options.copies_uuid, options.uuid) {
                (true, _) => old.superblock().uuid,
                (false, Some(given)) => given,
                (false, None) => random(),
            },
            device: random(),
            chunk_tree: random(),
            top_level: random(),
            saved: random(),
        };
        let mut runs = free_runs(&old, &ground)?;
        let mut free = runs.clone();
        let note = take_note(&mut runs)?;
        let mut room = Room::new(runs);
        let mut relocations = Relocations::plan(&old, &ground, &mut room)?;
        free.extend(relocations.free(&ground));
        free.sort_by_key(|range| range.start);
        refuse::keep_out(&old, free)?;
        let (names, inodes) = crate::names::gather(&old, options.sort_memory, watch)?;
        let mut sorter = Sorter::new(options.sort_memory);
        let mut counter = Counter::new(options.node_size);
        let mut pass = Pass::new(&mut counter, &mut relocations, room.clone());
        pass.extents = Some(&mut sorter);
        let files = Files {
            old: &old,
            options,
            ground: &ground,
            names: &names,
            inodes,
        };
        files.make(&mut pass, watch)?;
        let (missing, left_out, after) = (pass.missing, pass.left_out, pass.room);
        let (count, saved_index) = (pass.files, pass.saved_index);
        if saved_index == 0 {
            return Err(ConvertError::Refused(
                "the file system has no root directory; let `e2fsck -f` mend it first",
            ));
        }
        if missing > 0 {
            let copied: u64 = after
                .taken
                .iter()
                .map(|range| range.end - range.start)
                .sum();
            return Err(ConvertError::NoSpace {
                needed: copied.saturating_add(missing),
                missing,
            });
        }
        let mut lost = refuse::lost(&old);
        if !left_out.is_empty() {
            let names: Vec<String> = left_out.into_iter().collect();
            lost.push(format!(
                "attributes that Btrfs has no place for: {}",
                names.join(", ")
            ));
        }
        let mut plan = Self {
            pieces: sorter.finish()?,
            old,
            ground,
            names,
            relocations,
            note,
            room,
            taken: after.taken.clone(),
            zones: Zones::default(),
            groups: Vec::new(),
            inodes,
            files: count,
            saved_index,
            lost,
            label,
            ids,
            image_bytes: 0,
            sum_bytes: 0,
            metadata_nodes: 0,
        };
        plan.count(options, counter.nodes(), &after.left())?;
        Ok(plan)
    }

    fn extents(&self) -> Extents<'_> {
        Extents {
            old: &self.old,
            ground: &self.ground,
            pieces: &self.pieces,
            relocations: &self.relocations,
        }
    }

    fn makings<'m>(&'m self, options: &'m Options) -> Makings<'m> {
        Makings {
            options,
            ids: &self.ids,
            ground: &self.ground,
            groups: &self.groups,
            label: &self.label,
            saved_index: self.saved_index,
        }
    }

    /// Counts all other trees, and chooses zones for the nodes.
    fn count(
        &mut self,
        options: &Options,
        of_files: u64,
        left: &[Range<u64>],
    ) -> Result<(), ConvertError> {
        let node_size = options.node_size;
        let node = u64::from(node_size);
        let mut sums = SumCounter::new(node_size, options.checksum);
        let mut image_bytes = copied_bytes(&self.relocations);
        // All items of the extent tree but those of nodes.
        let mut items = 0_u64;
        self.extents().each(&mut |extent| {
            if options.data_sums == DataSums::Made {
                sums.add(&extent.range);
            }
            if extent.image == Image::Same {
                image_bytes += extent.length();
            }
            let size = extent.item().1.len();
            items += u64::try_from(size).unwrap_or(0) + ITEM;
            Ok(())
        })?;
        self.image_bytes = image_bytes;
        self.sum_bytes = sums.bytes;
        let mut image = Counter::new(node_size);
        let extents = self.extents();
        saved_tree((options, &self.ground), (&extents, image_bytes), &mut image)?;
        let fixed = of_files + sums.finish() + image.nodes();
        let mut spares = [
            fixed / 2 + (8 << 20) / node,
            fixed / 4 + (1 << 20) / node,
            (512 << 10) / node,
        ]
        .into_iter();
        let mut spare = spares.next().unwrap_or(0);
        let (mut system, mut nodes) = (1, fixed + 8);
        for _ in 0..ROUNDS_MAX {
            let wanted = Wanted {
                node_size: node,
                system,
                nodes,
                spare,
            };
            self.zones = match Zones::choose(left, wanted) {
                Ok(zones) => zones,
                Err(missing) => match spares.next() {
                    Some(less) => {
                        spare = less;
                        continue;
                    }
                    None => {
                        return Err(ConvertError::NoSpace {
                            needed: (nodes + system * 2 + spare) * node,
                            missing,
                        });
                    }
                },
            };
            let place = (&self.old, &self.ground);
            self.groups = layout::data_groups(place, &self.taken, &self.zones)?;
            self.groups.extend(self.zones.groups());
            self.groups.sort_by_key(|group| group.range.start);
            let mut groups = std::mem::take(&mut self.groups);
            layout::tally(&mut groups, &self.extents())?;
            self.groups = groups;
            let makings = self.makings(options);
            let chunks = trees::count(node_size, makings.chunks());
            let others = self.count_others(&makings, node_size);
            let needed = fixed + others;
            let needed = needed + self.bound_of_extent_tree(items, needed, node_size);
            if chunks <= system && needed <= nodes {
                self.metadata_nodes = nodes + system;
                return Ok(());
            }
            system = system.max(chunks);
            nodes = nodes.max(needed);
        }
        Err(ConvertError::Fault("counting does not end"))
    }

    /// Nodes of the trees whose size depends on the groups alone.
    fn count_others(&self, makings: &Makings<'_>, node_size: u32) -> u64 {
        let roots = trees::count(node_size, makings.roots(&BTreeMap::new()));
        let devices = trees::count(node_size, makings.device_extents());
        let groups = match makings.has_group_tree() {
            true => trees::count(node_size, makings.block_groups()),
            false => 0,
        };
        let free = match makings.has_free_space_tree() {
            true => layout::count_free_space(&self.groups, node_size),
            false => 0,
        };
        // The UUID tree and that for relocation have one node each.
        roots + devices + groups + free + 2
    }

    /// No extent tree is larger than this: its items together, each node
    /// filled but for less than one item.
    fn bound_of_extent_tree(&self, items: u64, others: u64, node_size: u32) -> u64 {
        let room = u64::try_from(butterfs_format::packed::room(node_size)).unwrap_or(1);
        let groups = u64::try_from(self.groups.len()).unwrap_or(0) * (24 + ITEM);
        let filled = room.saturating_sub(EXTENT_ITEM_MAX).max(1);
        let mut own = 1;
        for _ in 0..64 {
            let bytes = items + groups + (others + own) * (33 + ITEM);
            let leaves = bytes.div_ceil(filled) + 1;
            // Branches have at least 100 children each.
            let next = leaves + leaves / 50 + 8;
            if next <= own {
                break;
            }
            own = next;
        }
        own
    }

    fn write(
        &mut self,
        device: &Arc<dyn BlockDevice>,
        options: &Options,
        watch: &dyn Watch,
    ) -> Result<butterfs_format::superblock::Superblock, ConvertError> {
        let form = NodeForm {
            node_size: options.node_size,
            checksum: options.checksum,
            fsid: self.ids.fsid,
            chunk_tree_uuid: self.ids.chunk_tree,
            generation: GENERATION,
        };
        self.relocations.write(device, &self.ground)?;
        let mut slots = Slots::new(device, options.node_size, self.zones.nodes.clone());
        let mut system = Slots::new(device, options.node_size, self.zones.system.clone());
        let mut loaded = BTreeMap::new();
        let files = Files {
            old: &self.old,
            options,
            ground: &self.ground,
            names: &self.names,
            inodes: self.inodes,
        };
        let mut loader = Loader::new(TreeId::FS, form, &mut slots);
        let mut pass = Pass::new(&mut loader, &mut self.relocations, self.room.clone());
        pass.device = Some(device);
        files.make(&mut pass, watch)?;
        if pass.room.taken != self.taken {
            return Err(ConvertError::Fault("the file system changed meanwhile"));
        }
        loaded.insert(TreeId::FS, loader.finish()?);
        let extents = self.extents();
        let mut loader = Loader::new(SAVED_TREE, form, &mut slots);
        saved_tree(
            (options, &self.ground),
            (&extents, self.image_bytes),
            &mut loader,
        )?;
        loaded.insert(SAVED_TREE, loader.finish()?);
        let mut loader = Loader::new(TreeId::CSUM, form, &mut slots);
        if options.data_sums == DataSums::Made {
            let node = (options.node_size, options.checksum);
            let mut sums = SumWriter::new(device, node, &mut loader, (watch, self.sum_bytes));
            extents.each(&mut |extent| sums.add(&extent.range))?;
            sums.finish()?;
        }
        loaded.insert(TreeId::CSUM, loader.finish()?);
        let mut groups = self.groups.clone();
        self.last_trees(
            options,
            form,
            (&mut slots, &mut system),
            (&mut loaded, &mut groups),
        )?;
        slots.finish()?;
        system.finish()?;
        device.flush()?;
        let mut makings = self.makings(options);
        makings.groups = &groups;
        Ok(makings.superblock(&loaded))
    }

    /// Writes the trees that say where everything lies.
    fn last_trees(
        &self,
        options: &Options,
        form: NodeForm,
        (slots, system): (&mut Slots<'_>, &mut Slots<'_>),
        (loaded, groups): (&mut BTreeMap<TreeId, Loaded>, &mut Vec<Group>),
    ) -> Result<(), ConvertError> {
        let makings = self.makings(options);
        let mut simple = |tree, items: Vec<Item>, nodes: &mut dyn Nodes| {
            load(tree, form, items, nodes).map(|done| loaded.insert(tree, done))
        };
        simple(TreeId::UUID, makings.uuids(), slots)?;
        simple(TreeId::DATA_RELOC, makings.data_reloc(), slots)?;
        simple(TreeId::DEVICE, makings.device_extents().collect(), slots)?;
        simple(TreeId::CHUNK, makings.chunks().collect(), system)?;
        // The others say where nodes lie, also their own. So all nodes get
        // their places before the content is made.
        let levels = |items: Vec<Item>| {
            let mut counter = Counter::new(form.node_size);
            items.iter().for_each(|item| counter.size(item.data.len()));
            counter.levels()
        };
        let of_roots = places_of(
            slots,
            TreeId::ROOT,
            &levels(makings.roots(&BTreeMap::new())),
        )?;
        let of_groups = match makings.has_group_tree() {
            true => {
                let levels = levels(makings.block_groups().collect());
                Some(places_of(slots, TreeId::BLOCK_GROUP, &levels)?)
            }
            false => None,
        };
        let of_free = match makings.has_free_space_tree() {
            true => {
                let mut counter = Counter::new(form.node_size);
                for group in groups.iter() {
                    counter.size(8);
                    (0..group.free).for_each(|_| counter.size(0));
                }
                Some(places_of(slots, TreeId::FREE_SPACE, &counter.levels())?)
            }
            false => None,
        };
        let extents = self.extents();
        let (of_extents, notes) =
            self.places_of_extent_tree(&makings, &extents, (slots, &system.notes))?;
        count_nodes(groups, &notes, form.node_size);
        let mut makings = self.makings(options);
        makings.groups = groups;
        let mut places = Reserved::new(slots, of_extents);
        let mut loader = Loader::new(TreeId::EXTENT, form, &mut places);
        makings.extent_tree(&extents, &notes, &mut loader)?;
        loaded.insert(TreeId::EXTENT, loader.finish()?);
        if let Some(of_free) = of_free {
            let mut places = Reserved::new(slots, of_free);
            let mut loader = Loader::new(TreeId::FREE_SPACE, form, &mut places);
            layout::free_space(groups, &extents, &mut loader)?;
            loaded.insert(TreeId::FREE_SPACE, loader.finish()?);
        }
        if let Some(of_groups) = of_groups {
            let mut places = Reserved::new(slots, of_groups);
            let items = makings.block_groups();
            loaded.insert(
                TreeId::BLOCK_GROUP,
                load(TreeId::BLOCK_GROUP, form, items, &mut places)?,
            );
        }
        let mut places = Reserved::new(slots, of_roots);
        let items = makings.roots(loaded);
        let roots = load(TreeId::ROOT, form, items, &mut places)?;
        loaded.insert(TreeId::ROOT, roots);
        Ok(())
    }

    /// Takes places for the extent tree, which has items of its own nodes: the
    /// fewest that hold them. More nodes never need fewer, so this ends.
    fn places_of_extent_tree(
        &self,
        makings: &Makings<'_>,
        extents: &Extents<'_>,
        (slots, system): (&mut Slots<'_>, &[NodeNote]),
    ) -> Result<(Vec<Vec<u64>>, Vec<NodeNote>), ConvertError> {
        let mut levels = vec![1];
        for _ in 0..ROUNDS_MAX {
            let mark = slots.mark();
            let places = places_of(slots, TreeId::EXTENT, &levels)?;
            let mut notes: Vec<NodeNote> = slots.notes.iter().chain(system).copied().collect();
            notes.sort_unstable();
            let mut counter = Counter::new(makings.options.node_size);
            makings.extent_tree(extents, &notes, &mut counter)?;
            if counter.levels() == levels {
                return Ok((places, notes));
            }
            levels = counter.levels();
            slots.back_to(mark);
        }
        Err(ConvertError::Fault("the extent tree does not settle"))
    }

    fn converted(&self, options: &Options) -> Converted {
        let copied = self.taken.iter().map(|range| range.end - range.start).sum();
        Converted {
            uuid: self.ids.fsid,
            label: self.label.clone(),
            files: self.files,
            total_bytes: self.ground.total,
            metadata_bytes: self.metadata_nodes * u64::from(options.node_size),
            copied_bytes: copied,
            lost: self.lost.clone(),
            was_begun: false,
        }
    }
}

/// Bytes of an item beside its data.
const ITEM: u64 = 25;
/// More bytes than an item of the extent tree has: a copy with 64 KiB has 17
/// references of 29 bytes.
const EXTENT_ITEM_MAX: u64 = 640;

fn load(
    tree: TreeId,
    form: NodeForm,
    items: impl IntoIterator<Item = Item>,
    nodes: &mut dyn Nodes,
) -> Result<Loaded, ConvertError> {
    let mut loader = Loader::new(tree, form, nodes);
    for Item { key, data } in items {
        loader.item(key, data)?;
    }
    loader.finish()
}

/// Takes places for the nodes of each level of a tree.
fn places_of(
    slots: &mut Slots<'_>,
    owner: TreeId,
    levels: &[u64],
) -> Result<Vec<Vec<u64>>, ConvertError> {
    let mut all = Vec::new();
    for (level, count) in (0_u8..).zip(levels) {
        let mut places = Vec::new();
        for _ in 0..*count {
            places.push(slots.place(owner, level)?.get());
        }
        all.push(places);
    }
    Ok(all)
}

/// Counts the nodes in each group of nodes. `groups` and `notes` ascend.
fn count_nodes(groups: &mut [Group], notes: &[NodeNote], node_size: u32) {
    for group in groups {
        if group.flags == BlockGroupFlags::DATA {
            continue;
        }
        let before = |at: u64| notes.partition_point(|note| note.at < at);
        let inside = before(group.range.end).saturating_sub(before(group.range.start));
        group.used = u64::try_from(inside).unwrap_or(0) * u64::from(node_size);
    }
}

/// Takes the last free cell for the note.
fn take_note(runs: &mut Vec<Range<u64>>) -> Result<u64, ConvertError> {
    let Some(last) = runs.last_mut() else {
        return Err(ConvertError::NoSpace {
            needed: CELL,
            missing: CELL,
        });
    };
    last.end -= CELL;
    let note = last.end;
    runs.retain(|run| !run.is_empty());
    Ok(note)
}

fn verify(options: &Options) -> Result<(), ConvertError> {
    let fail = |text: &str| Err(ConvertError::Option(text.to_owned()));
    let node = options.node_size;
    if !NODE_SIZE_RANGE.contains(&node) || !node.is_power_of_two() {
        return fail("a node has 4k, 8k, 16k, 32k or 64k bytes");
    }
    if let Label::Set(label) = &options.label
        && (label.len() >= LABEL_SIZE || label.iter().any(|byte| b"\0\n\r".contains(byte)))
    {
        return fail("a label has at most 255 bytes and no line end");
    }
    let groups = options.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE);
    if groups && !options.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
        return fail("block-group-tree needs free-space-tree");
    }
    Ok(())
}
