//! Brings data from the buffer to the device.
//!
//! A flush cuts dirty runs into outputs (compressed units, plain extents, or
//! places to overwrite) and writes them. Then it brings their file extents into
//! the tree in one transaction. Until then nothing refers to what was written,
//! and the data stay in memory: in the buffer or, where nothing else changes with
//! them, beside it. Then others read and write the file meanwhile.

use super::budget::Promise;
use super::buffer::WriteBuffer;
use super::extents::{self, Body, Found, NewExtent, NewKind};
use super::outgoing::Sums;
use super::output::{Output, Segment, Target, plain, segments};
use super::read::with_scratch;
use crate::Filesystem;
use crate::compression_feature::note_compression;
use crate::error::FsError;
use crate::inode::{Inode, InodeState, store_item};
use crate::inode_state::FlushRight;
use crate::options::Compress;
use butterfs_device::each_by_a_thread;
use butterfs_format::compression::{Algorithm, Level, UNIT, heuristic};
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{InodeId, ItemType, Key, Logical};
use butterfs_store::{Engine, Purpose, StoreError, Transaction};
use butterfs_tree::Node;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Whether a small file may move into its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InlineRule {
    /// It may.
    Allowed,
    /// It may not: space is being preallocated.
    Never,
}

/// How new data of an inode are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    algorithm: Algorithm,
    level: Level,
    zeal: Zeal,
}

impl Plan {
    /// Compression of every unit.
    pub(super) const fn forced(algorithm: Algorithm, level: Level) -> Self {
        Self {
            algorithm,
            level,
            zeal: Zeal::Forced,
        }
    }
}

/// How hard compression is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zeal {
    /// If it looks promising. A file that does not compress is left alone.
    UntilItFails,
    /// Where it looks promising.
    EachTime,
    /// Always.
    Forced,
}

/// An inode whose buffer is read while the rest of the inode changes. Dropping
/// this gives the buffer back.
struct Aside<'s> {
    state: &'s mut InodeState,
    buffer: WriteBuffer,
}

impl<'s> Aside<'s> {
    fn take(state: &'s mut InodeState) -> Self {
        let buffer = std::mem::take(&mut state.buffer);
        Self { state, buffer }
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        self.state.buffer = std::mem::take(&mut self.buffer);
    }
}

/// Data that leave an inode's buffer. Dropping this puts them back, below what
/// was written meanwhile.
struct Leaving<'f> {
    files: &'f Filesystem,
    inode: &'f Inode,
    data: Arc<WriteBuffer>,
    /// They are in the tree.
    are_entered: bool,
    /// Dropped last, so that whoever waits for it finds the data in their place.
    _right: FlushRight<'f>,
}

impl<'f> Leaving<'f> {
    fn begin(
        files: &'f Filesystem,
        inode: &'f Inode,
        state: &mut InodeState,
        right: FlushRight<'f>,
    ) -> Self {
        let data = Arc::new(state.buffer.take());
        state.leaving = Some(Arc::clone(&data));
        Self {
            files,
            inode,
            data,
            are_entered: false,
            _right: right,
        }
    }

    /// The data are in the tree. `outside` is what the flush made of the state.
    fn entered(mut self, outside: InodeState, in_flight: Promise<'_>) -> Result<(), FsError> {
        self.are_entered = true;
        let (files, inode) = (self.files, self.inode);
        let mut state = inode.state.write_beside();
        state.leaving = None;
        state.disk_size = outside.disk_size;
        state.item.nbytes = outside.item.nbytes;
        state.item.transid = outside.item.transid;
        state.item.flags = outside.item.flags;
        drop(in_flight);
        own(&mut self.data).clear();
        if !state.buffer.is_empty() {
            return Ok(());
        }
        files.buffers.forget(inode.id, &mut state);
        files.settle_size(inode.id, &mut state)
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if self.are_entered {
            return;
        }
        let mut state = self.inode.state.write_beside();
        state.leaving = None;
        state.flush_failed = true;
        let newer = std::mem::take(&mut state.buffer);
        state.buffer = std::mem::take(own(&mut self.data));
        state.buffer.take_over(&newer, self.files.sector_size);
    }
}

/// Data that the state of their inode no longer has.
fn own(data: &mut Arc<WriteBuffer>) -> &mut WriteBuffer {
    // Others only look at what the state has, and while they have the state.
    Arc::get_mut(data).expect("nobody else has them")
}

impl Filesystem {
    /// Brings the inode's data to the device; they are durable after a commit.
    ///
    /// # Errors
    /// No space, writing; the data stay in the buffer then.
    pub fn flush_inode(&self, inode: &Inode) -> Result<(), FsError> {
        self.flush_from(inode, 0)
    }

    /// [`Filesystem::flush_inode`], unless less than `least` bytes wait when
    /// others have flushed.
    pub(super) fn flush_from(&self, inode: &Inode, least: u64) -> Result<(), FsError> {
        let right = inode.state.right_to_flush();
        let mut state = inode.state.write_beside();
        if state.buffer.bytes() < least {
            return Ok(());
        }
        if !self.may_leave(&state) {
            drop(right);
            return self.flush_locked(inode, &mut state, InlineRule::Allowed);
        }
        let ready = self.store.check_writable().map_err(FsError::from);
        if let Err(error) = ready.and_then(|()| self.leave_inline(inode, &mut state)) {
            state.flush_failed = true;
            return Err(error);
        }
        if state.buffer.bytes() > UNIT as u64 {
            butterfs_device::about_to_wait();
        }
        let _watch = self.store.fail_on_panic();
        let mut outside = state.without_data();
        let leaving = Leaving::begin(self, inode, &mut state, right);
        drop(state);
        let in_flight = self.flush_runs(inode.id, &mut outside, &leaving.data)?;
        leaving.entered(outside, in_flight)
    }

    /// Whether the file's data can be flushed while others read it and write to
    /// it: it is no file that may move into its tree or was cut to nothing, so
    /// only file extents change.
    fn may_leave(&self, state: &InodeState) -> bool {
        !state.deleted
            && !state.emptied
            && !state.flush_failed
            && !state.buffer.is_empty()
            && state.item.size > self.sector_size
    }

    pub(crate) fn flush_locked(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        inline: InlineRule,
    ) -> Result<(), FsError> {
        // More than one unit takes several threads, or a long time.
        if state.buffer.bytes() > UNIT as u64 {
            butterfs_device::about_to_wait();
        }
        let flushed = self.flush_waiting(inode, state, inline);
        state.flush_failed = flushed.is_err();
        flushed?;
        self.buffers.forget(inode.id, state);
        self.settle_size(inode.id, state)
    }

    fn flush_waiting(
        &self,
        inode: &Inode,
        state: &mut InodeState,
        inline: InlineRule,
    ) -> Result<(), FsError> {
        if state.deleted {
            state.emptied = false;
        } else {
            if state.emptied || !state.buffer.is_empty() {
                self.store.check_writable()?;
            }
            if state.emptied {
                self.thin_emptied(inode.id, state)?;
            }
            if !state.buffer.is_empty() {
                if inline == InlineRule::Never || !self.flush_inline(inode, state)? {
                    self.leave_inline(inode, state)?;
                    self.flush_extents(inode, state)?;
                }
            } else if state.emptied {
                self.drop_emptied(inode.id, state)?;
            }
        }
        state.buffer.clear();
        Ok(())
    }

    /// If nothing is left in the buffer, the size in the tree becomes the size
    /// that users see. The difference is a hole.
    pub(crate) fn settle_size(&self, id: InodeId, state: &mut InodeState) -> Result<(), FsError> {
        if state.deleted || state.disk_size == state.item.size {
            return Ok(());
        }
        let sector = self.sector_size;
        self.change_acknowledged(id, state, 40, |engine, state| {
            let size = state.item.size;
            let from = state.disk_size / sector * sector;
            extents::fill_holes(engine, id, state, from..size.next_multiple_of(sector))?;
            state.disk_size = size;
            store_item(engine, id, state)
        })
    }

    /// Puts the whole file into its tree if it is small enough; false if not.
    fn flush_inline(&self, inode: &Inode, state: &mut InodeState) -> Result<bool, FsError> {
        let size = state.item.size;
        let sector = self.sector_size;
        if size == 0 || size > self.inline_max() || !state.buffer.is_exactly(0..sector) {
            return Ok(false);
        }
        let (_, run) = state.buffer.runs().next().expect("one run");
        let plan = self.compression(state);
        let (data, algorithm) = self.pack_inline(plan, &run[..size as usize]);
        let id = inode.id;
        let others = {
            let engine = self.store.read();
            if engine.is_short_of_metadata() {
                return Ok(false);
            }
            let room = Node::item_data_max(engine.node_size());
            // Preallocated space stays, even if only this little is written.
            let stays =
                |extent: &Found| extent.end() > sector || matches!(extent.body, Body::Prealloc(_));
            data.len() + FileExtent::INLINE_HEADER > room
                || extents::counting(&engine, id, state, 0..u64::MAX, 2)?
                    .iter()
                    .any(stays)
        };
        if others {
            return Ok(false);
        }
        let data = data.into_owned();
        let nodes = 40 + Self::nodes_of_emptied(state);
        self.change_acknowledged(id, state, nodes, |engine, state| {
            extents::drop_emptied(engine, id, state)?;
            extents::drop_range(engine, id, state, 0..sector, usize::MAX)?;
            let item = FileExtent {
                generation: engine.generation(),
                ram_bytes: size,
                compression: algorithm,
                encryption: 0,
                other_encoding: 0,
                body: FileExtentBody::Inline(&data),
            };
            butterfs_tree::insert(engine, id.tree, &extents::key(id, 0), &item.encode())?;
            note_compression(engine, algorithm);
            engine.log().note_extents(id, 0..sector);
            state.item.nbytes += size;
            state.disk_size = size;
            store_item(engine, id, state)
        })?;
        Ok(true)
    }

    /// Bytes of a file that may move into its tree, at most.
    pub(super) fn inline_max(&self) -> u64 {
        u64::from(self.options.max_inline).min(self.sector_size - 1)
    }

    /// The content of an inline file, compressed where that makes it smaller.
    pub(super) fn pack_inline<'c>(
        &self,
        plan: Option<Plan>,
        content: &'c [u8],
    ) -> (Cow<'c, [u8]>, Option<Algorithm>) {
        let most = content.len().saturating_sub(1);
        let pack = |plan| Some((plan, pack(plan, content, most, self.sector_size)?));
        match plan.and_then(pack) {
            Some((plan, packed)) => (Cow::Owned(packed), Some(plan.algorithm)),
            None => (Cow::Borrowed(content), None),
        }
    }

    /// An inline file that can no longer be inline: its data go into the
    /// buffer.
    fn leave_inline(&self, inode: &Inode, state: &mut InodeState) -> Result<(), FsError> {
        if state.buffer.contains(0) {
            return Ok(());
        }
        let is_inline = {
            let engine = self.store.read();
            let first = extents::counting(&engine, inode.id, state, 0..1, 1)?;
            first
                .first()
                .is_some_and(|extent| matches!(extent.body, Body::Inline(_)))
        };
        if is_inline {
            self.load_acknowledged(inode, state, 0)?;
        }
        Ok(())
    }

    /// How the inode's new data are compressed, if at all.
    pub(super) fn compression(&self, state: &InodeState) -> Option<Plan> {
        let flags = state.item.flags;
        if flags.intersects(InodeFlags::NODATACOW | InodeFlags::NODATASUM) {
            return None;
        }
        let plan = |algorithm: Algorithm, level: Level, zeal| {
            Some(Plan {
                algorithm,
                level,
                zeal,
            })
        };
        if let Some(Some(algorithm)) = state.compression {
            return plan(algorithm, algorithm.default_level(), Zeal::EachTime);
        }
        match self.options.compress {
            Compress::Force(algorithm, level) => plan(algorithm, level, Zeal::Forced),
            _ if flags.contains(InodeFlags::NOCOMPRESS) || state.compression == Some(None) => None,
            Compress::Try(algorithm, level) => plan(algorithm, level, Zeal::UntilItFails),
            Compress::Off if flags.contains(InodeFlags::COMPRESS) => {
                let algorithm = Algorithm::Zlib;
                plan(algorithm, algorithm.default_level(), Zeal::UntilItFails)
            }
            Compress::Off => None,
        }
    }

    fn flush_extents(&self, inode: &Inode, state: &mut InodeState) -> Result<(), FsError> {
        // After a panic, no later flush may find an empty buffer and report
        // success.
        let _watch = self.store.fail_on_panic();
        let Aside { state, buffer } = &mut Aside::take(state);
        self.flush_runs(inode.id, state, buffer).map(drop)
    }

    /// Brings the data of `buffer` to new extents, or to where they lie. Until
    /// the promise is dropped, their space counts as taken, not as waited for.
    fn flush_runs(
        &self,
        id: InodeId,
        state: &mut InodeState,
        buffer: &WriteBuffer,
    ) -> Result<Promise<'_>, FsError> {
        let plan = self.compression(state);
        let _addresses = self.store.hold_addresses();
        // No snapshot comes between the decision to write in place and the end
        // of that write.
        let in_place = self.in_place.of(id.tree);
        let _no_snapshot = state.may_lie_in_place().then(|| in_place.read());
        let mut outputs = Vec::new();
        for segment in segments(buffer.runs()) {
            self.cut_segment(id, state, segment, plan, &mut outputs)?;
        }
        if let Some(plan) = plan
            && plan.zeal == Zeal::UntilItFails
            && outputs.iter().all(|output| output.compression.is_none())
            && outputs.iter().any(|output| output.length >= UNIT as u64)
            && (state.disk_size == 0 || state.emptied)
        {
            // As in the kernel: a file whose beginning does not compress is not
            // tried again.
            state.item.flags |= InodeFlags::NOCOMPRESS;
        }
        self.allocate(&mut outputs)?;
        let raw = outputs
            .iter()
            .filter(|o| matches!(o.target, Target::New(_)));
        let in_flight = self.buffers.in_flight(raw.map(|o| o.length).sum());
        let sums = Sums::wanted_unless(state.item.flags.contains(InodeFlags::NODATASUM));
        if let Err(error) = self.write_outputs(&mut outputs, sums) {
            // The space is not given back. The next flush takes other space,
            // and space that cannot be written to is left alone until the
            // volume is opened again.
            tracing::error!(%error, "data were not written; they wait in memory");
            return Err(error);
        }
        let result = self.enter(id, state, &outputs);
        if result.is_err() {
            self.give_back(&outputs);
        }
        result.map(|()| in_flight)
    }

    /// Cuts contiguous dirty data into outputs.
    fn cut_segment<'a>(
        &self,
        id: InodeId,
        state: &InodeState,
        segment: Segment<'a>,
        plan: Option<Plan>,
        outputs: &mut Vec<Output<'a>>,
    ) -> Result<(), FsError> {
        let mut at = segment.start;
        let end = segment.start + segment.length;
        for (range, target) in self.in_place(id, state, at..end)? {
            self.cut_new(&segment, at..range.start, plan, outputs);
            outputs.push(Output {
                start: range.start,
                length: range.end - range.start,
                compression: None,
                parts: segment.parts(&range),
                target,
                sums: Vec::new(),
            });
            at = range.end;
        }
        self.cut_new(&segment, at..end, plan, outputs);
        Ok(())
    }

    /// Cuts `data`, whole sectors from `start` on, into outputs to new space.
    pub(super) fn cut_whole<'a>(
        &self,
        start: u64,
        data: &'a [u8],
        plan: Option<Plan>,
    ) -> Vec<Output<'a>> {
        let length = data.len() as u64;
        let segment = Segment {
            start,
            length,
            runs: vec![data],
        };
        let mut outputs = Vec::new();
        self.cut_new(&segment, start..start + length, plan, &mut outputs);
        outputs
    }

    /// Cuts data that go to new space: into compressed units where that saves
    /// space.
    pub(super) fn cut_new<'a>(
        &self,
        segment: &Segment<'a>,
        range: Range<u64>,
        plan: Option<Plan>,
        outputs: &mut Vec<Output<'a>>,
    ) {
        if range.is_empty() {
            return;
        }
        let Some(plan) = plan.filter(|_| range.end - range.start > self.sector_size) else {
            outputs.extend(plain(segment, range));
            return;
        };
        let units: Vec<(Range<u64>, Cow<'a, [u8]>)> = (range.start..range.end)
            .step_by(UNIT)
            .map(|start| start..(start + UNIT as u64).min(range.end))
            .map(|unit| (unit.clone(), segment.slice(&unit)))
            .collect();
        let packed = self.pack_units(plan, &units);
        let mut raw: Option<Range<u64>> = None;
        for ((unit, _), packed) in units.iter().zip(packed) {
            match packed {
                None => match &mut raw {
                    Some(raw) => raw.end = unit.end,
                    None => raw = Some(unit.clone()),
                },
                Some(bytes) => {
                    outputs.extend(raw.take().into_iter().flat_map(|raw| plain(segment, raw)));
                    outputs.push(Output {
                        start: unit.start,
                        length: unit.end - unit.start,
                        compression: Some(plan.algorithm),
                        parts: vec![Cow::Owned(bytes)],
                        target: Target::New(None),
                        sums: Vec::new(),
                    });
                }
            }
        }
        outputs.extend(raw.into_iter().flat_map(|raw| plain(segment, raw)));
    }

    /// Compresses units on several threads.
    fn pack_units(
        &self,
        plan: Plan,
        units: &[(Range<u64>, Cow<'_, [u8]>)],
    ) -> Vec<Option<Vec<u8>>> {
        let sector = self.sector_size;
        let pack_one = |data: &[u8]| -> Option<Vec<u8>> {
            if plan.zeal != Zeal::Forced && !heuristic::is_compressible(data) {
                return None;
            }
            // It must save a sector.
            let most = (data.len() as u64).next_multiple_of(sector) - sector;
            let mut packed = pack(plan, data, usize::try_from(most).ok()?, sector)?;
            packed.resize(packed.len().next_multiple_of(sector as usize), 0);
            Some(packed)
        };
        let threads = self.options.threads.min(units.len());
        if threads < 2 {
            return units.iter().map(|(_, data)| pack_one(data)).collect();
        }
        let shares = units.chunks(units.len().div_ceil(threads));
        let pack = |share: &[(Range<u64>, Cow<'_, [u8]>)]| -> Vec<_> {
            share.iter().map(|(_, data)| pack_one(data)).collect()
        };
        each_by_a_thread(shares, pack)
            .into_iter()
            .flatten()
            .collect()
    }

    /// Parts of `range` that are overwritten in place: unshared data of inodes
    /// without copy-on-write, and preallocated space.
    fn in_place(
        &self,
        id: InodeId,
        state: &InodeState,
        range: Range<u64>,
    ) -> Result<Vec<(Range<u64>, Target)>, FsError> {
        if !state.may_lie_in_place() {
            return Ok(Vec::new());
        }
        let nocow = state.item.flags.contains(InodeFlags::NODATACOW);
        let engine = self.store.read();
        let last_snapshot = engine.tree_state(id.tree)?.item.last_snapshot;
        let mut parts = Vec::new();
        for extent in extents::counting(&engine, id, state, range.clone(), usize::MAX)? {
            if extent.compression.is_some() || extent.generation <= last_snapshot {
                continue;
            }
            let part = range.start.max(extent.start)..range.end.min(extent.end());
            let target =
                |place: &ExtentPlace| place.disk.get() + place.offset + (part.start - extent.start);
            let (place, target) = match &extent.body {
                Body::Regular(place) if nocow && place.disk.get() != 0 => {
                    (place, Target::Overwrite(target(place)))
                }
                Body::Prealloc(place) => (place, Target::Prealloc(target(place))),
                _ => continue,
            };
            if !engine.may_be_written(place.disk) {
                continue;
            }
            let by = extents::owner(id, extent.start, place);
            let key = Key::new(id.number.get(), ItemType::EXTENT_DATA, extent.start);
            if engine.is_referred_only_by(extents::extent_of(place), by)?
                && !engine.is_way_shared(id.tree, &key)?
            {
                parts.push((part, target));
            }
        }
        Ok(parts)
    }

    /// True when all of `range` (whole sectors) can be written without new
    /// space.
    pub(crate) fn has_space(
        &self,
        id: InodeId,
        state: &InodeState,
        range: Range<u64>,
    ) -> Result<bool, FsError> {
        let parts = self.in_place(id, state, range.clone())?;
        let bytes: u64 = parts.iter().map(|(part, _)| part.end - part.start).sum();
        Ok(bytes == range.end - range.start)
    }

    /// A transaction for data that were acknowledged. They may use the reserve,
    /// so that they are not lost.
    pub(super) fn begin_acknowledged(&self, nodes: usize) -> Result<Transaction<'_>, StoreError> {
        self.store.begin(nodes, Purpose::Shrink)
    }

    /// [`Filesystem::change`] for data that were acknowledged.
    fn change_acknowledged(
        &self,
        id: InodeId,
        state: &mut InodeState,
        nodes: usize,
        change: impl FnOnce(&mut Engine, &mut InodeState) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        self.change_own(state, id.tree, (nodes, Purpose::Shrink), change)
    }

    /// Finds space for all new outputs. Splits plain ones if there is no large
    /// piece.
    pub(super) fn allocate(&self, outputs: &mut Vec<Output<'_>>) -> Result<(), FsError> {
        let mut engine = self.begin_acknowledged(8)?;
        let sector = self.sector_size;
        let mut at = 0;
        while at < outputs.len() {
            if outputs[at].target != Target::New(None) {
                at += 1;
                continue;
            }
            let wanted = outputs[at].disk_length();
            let range = match engine.allocate_data(wanted) {
                Ok(range) => range,
                Err(error) => {
                    drop(engine);
                    self.give_back(outputs);
                    return Err(error.into());
                }
            };
            let got = range.end - range.start;
            if got < wanted && outputs[at].compression.is_some() {
                // A unit needs one piece; plain data can take any pieces.
                engine.give_back(Logical(range.start), got);
                match outputs[at].unpacked(sector) {
                    Ok(plain) => outputs[at] = plain,
                    Err(error) => {
                        drop(engine);
                        self.give_back(outputs);
                        return Err(error);
                    }
                }
                continue;
            }
            self.buffers.used(got);
            self.unpacked.forget(&range);
            if got < wanted {
                let rest = outputs[at].split_off(got);
                outputs.insert(at + 1, rest);
            }
            outputs[at].target = Target::New(Some(range.start));
            at += 1;
        }
        Ok(())
    }

    pub(super) fn give_back(&self, outputs: &[Output<'_>]) {
        let allocated = outputs.iter().filter_map(|output| match output.target {
            Target::New(Some(start)) => Some((Logical(start), output.disk_length())),
            _ => None,
        });
        self.store.give_back(allocated);
    }

    /// Brings the file extents of written outputs into the tree.
    pub(super) fn enter(
        &self,
        id: InodeId,
        state: &mut InodeState,
        outputs: &[Output<'_>],
    ) -> Result<(), FsError> {
        let sector = self.sector_size;
        let sectors: u64 = outputs.iter().map(|output| output.length / sector).sum();
        let nodes = 60
            + usize::try_from(sectors).unwrap_or(usize::MAX) / 20
            + outputs.len() / 8
            + Self::nodes_of_emptied(state);
        self.change_acknowledged(id, state, nodes, |engine, state| {
            // Damage is met before the first edit.
            look_over(engine, id, state, outputs)?;
            extents::drop_emptied(engine, id, state)?;
            let hole_from = state.disk_size / sector * sector;
            for output in outputs {
                let range = output.start..output.start + output.length;
                let new = NewExtent {
                    start: output.start,
                    ram_bytes: output.length,
                    compression: output.compression,
                    copied: None,
                    place: ExtentPlace {
                        disk: Logical(0),
                        disk_length: output.disk_length(),
                        offset: 0,
                        length: output.length,
                    },
                    kind: NewKind::Regular,
                };
                let logical = match output.target {
                    Target::New(None) => continue,
                    Target::New(Some(start)) => {
                        extents::drop_range(engine, id, state, range, usize::MAX)?;
                        let mut new = new;
                        new.place.disk = Logical(start);
                        extents::insert_allocated(engine, id, state, &new)?;
                        start
                    }
                    Target::Overwrite(start) => start,
                    Target::Prealloc(start) => {
                        extents::fill_prealloc(engine, id, state, range)?;
                        start
                    }
                };
                let in_place = matches!(output.target, Target::Overwrite(_));
                if !output.sums.is_empty() && !in_place {
                    engine
                        .ledger_mut()
                        .add_checksums(logical, output.sums.clone());
                }
            }
            let size = state.item.size;
            extents::fill_holes(engine, id, state, hole_from..size.next_multiple_of(sector))?;
            state.disk_size = size;
            store_item(engine, id, state)
        })
    }
}

/// Errors if a file extent is damaged that `outputs` replace, or that lies
/// where holes are filled.
fn look_over(
    engine: &Engine,
    id: InodeId,
    state: &InodeState,
    outputs: &[Output<'_>],
) -> Result<(), FsError> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for output in outputs {
        let end = output.start + output.length;
        match ranges.last_mut() {
            Some(last) if last.end == output.start => last.end = end,
            _ => ranges.push(output.start..end),
        }
    }
    if !engine.superblock().has_no_holes() && state.disk_size < state.item.size {
        ranges.push(state.disk_size..state.item.size);
    }
    for range in ranges {
        extents::overlapping(engine, id, range, usize::MAX)?;
    }
    Ok(())
}

/// Compresses `data` into at most `most` bytes.
fn pack(plan: Plan, data: &[u8], most: usize, sector: u64) -> Option<Vec<u8>> {
    let mut packed = vec![0; most];
    let length = with_scratch(|scratch| {
        let sector = sector as usize;
        scratch.compress(plan.algorithm, plan.level, data, &mut packed, sector)
    })?;
    packed.truncate(length);
    Some(packed)
}
