//! Brings many small files to the device at once.
//!
//! Owns groups: files of one subvolume whose tree has no data of them yet, and
//! whose whole content waits in memory. A group gets its space in one piece if
//! there is one. It is written in one write of neighbours. One transaction
//! enters its items in the order of their keys. Any other file, and each file
//! of a group that fails, is flushed alone ([`super::flush`]), so that each
//! file gets its own error.
//!
//! Locks: the files of a group are locked together, and the flush waits for
//! none of them. A file that another thread has locked is flushed alone
//! afterwards, when no other is locked.
//!
//! Invariants, as for one file: no tree names data that were not written, and
//! data stay in the buffers until the tree has them.

use super::buffer::WriteBuffer;
use super::extents;
use super::flush::Plan;
use super::outgoing::Sums;
use super::output::{Output, Target, segments};
use crate::Filesystem;
use crate::change::Locked;
use crate::compression_feature::note_compression;
use crate::error::FsError;
use crate::inode::{Inode, InodeState, item_key};
use crate::names::{S_IFMT, S_IFREG};
use butterfs_device::each_by_a_thread;
use butterfs_format::compression::{Algorithm, UNIT};
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{ChecksumType, ItemType, Key, Logical, TreeId};
use butterfs_store::{DataExtent, DataOwner, Engine, Purpose, StoreError};
use butterfs_tree::{Cursor, Editor, Node, NodeSource};
use std::borrow::Cow;
use std::sync::Arc;

/// Takes the result of flushing a file.
type Ended<'e> = &'e mut dyn FnMut(&Arc<Inode>, Result<(), FsError>);

/// The most files of a group. It is small because the locks of all files, and
/// the engine's lock, are held for the whole group.
const FILES_MAX: usize = 128;
/// Bytes of a group, which its last file may exceed.
const BYTES_MAX: u64 = 2 << 20;
/// Compressing this many bytes, or computing slow checksums of them, is worth a
/// thread of its own.
const SHARE: u64 = 256 << 10;

/// Files that may become one group, and files that were looked at and may not.
#[derive(Default)]
struct Gathered<'i> {
    members: Vec<&'i Arc<Inode>>,
    locked: Locked<'i>,
    alone: Vec<&'i Arc<Inode>>,
    /// How many were looked at.
    seen: usize,
}

/// What the trees allow a group.
struct Ground {
    /// Nodes that its transaction touches at most.
    nodes: usize,
    /// Bytes of an item at most.
    item_max: usize,
}

/// A file of a group, as its data are made ready.
struct Job<'b> {
    size: usize,
    plan: Option<Plan>,
    has_sums: bool,
    buffer: &'b WriteBuffer,
}

/// What the tree will have of a file.
enum Content<'b> {
    /// Its data.
    Inline {
        data: Cow<'b, [u8]>,
        compression: Option<Algorithm>,
    },
    /// File extents, from its beginning to its end.
    Extents(Vec<Output<'b>>),
}

/// The same, with the outputs of all files in one list.
enum Kept<'b> {
    Inline {
        data: Cow<'b, [u8]>,
        compression: Option<Algorithm>,
    },
    /// The number of outputs, which follow those of earlier files.
    Extents(usize),
}

/// Files whose buffers are read while the rest of them changes. Dropping this
/// gives the buffers back.
struct Aside<'l, 'i> {
    files: &'l mut Locked<'i>,
    buffers: Vec<WriteBuffer>,
}

impl<'l, 'i> Aside<'l, 'i> {
    fn take(files: &'l mut Locked<'i>) -> Self {
        let taken = files.iter_mut();
        let buffers = taken
            .map(|(_, state)| std::mem::take(&mut state.buffer))
            .collect();
        Self { files, buffers }
    }
}

impl Drop for Aside<'_, '_> {
    fn drop(&mut self) {
        for ((_, state), buffer) in self.files.iter_mut().zip(&mut self.buffers) {
            state.buffer = std::mem::take(buffer);
        }
    }
}

impl Filesystem {
    /// Brings the data of files to the device, small new ones together. They
    /// are durable after a commit. It is fastest if `inodes` ascend. The caller
    /// may have no inode locked. `ended` gets the result of each file.
    pub(crate) fn flush_together(&self, inodes: &[Arc<Inode>], ended: Ended<'_>) {
        let mut rest = inodes;
        while let Some(first) = rest.first() {
            let tree = first.id.tree;
            let Gathered {
                members,
                mut locked,
                alone,
                seen,
            } = gather(rest, tree, self.sector_size);
            let flushed = members.len() > 1 && self.flush_group(tree, &mut locked);
            drop(locked);
            for inode in members {
                let result = match flushed {
                    true => Ok(()),
                    false => self.flush_inode(inode),
                };
                ended(inode, result);
            }
            for inode in alone {
                ended(inode, self.flush_inode(inode));
            }
            rest = &rest[seen..];
        }
    }

    /// Flushes a group; false if each of its files is to be flushed alone.
    fn flush_group(&self, tree: TreeId, files: &mut Locked<'_>) -> bool {
        butterfs_device::about_to_wait();
        self.try_group(tree, files).unwrap_or_else(|error| {
            tracing::debug!(%error, %tree, files = files.len(), "files are flushed one by one");
            false
        })
    }

    fn try_group(&self, tree: TreeId, files: &mut Locked<'_>) -> Result<bool, FsError> {
        self.store.check_writable()?;
        // What it finds stays true, because whoever changes file extents has
        // the file locked.
        let ground = self.store.look(|engine| look_at(engine, tree, files))?;
        let Some(ground) = ground else {
            return Ok(false);
        };
        // After a panic, no later flush may find an empty buffer and report
        // success.
        let _watch = self.store.fail_on_panic();
        if !self.bring_group(tree, &mut Aside::take(files), &ground)? {
            return Ok(false);
        }
        for (id, state) in files.iter_mut() {
            state.buffer.clear();
            state.flush_failed = false;
            self.buffers.forget(*id, state);
        }
        Ok(true)
    }

    fn bring_group(
        &self,
        tree: TreeId,
        Aside { files, buffers }: &mut Aside<'_, '_>,
        ground: &Ground,
    ) -> Result<bool, FsError> {
        let mut outputs = Vec::new();
        let mut kept = Vec::with_capacity(files.len());
        for content in self.contents(files, buffers, ground) {
            kept.push(match content {
                Content::Inline { data, compression } => Kept::Inline { data, compression },
                Content::Extents(own) => {
                    let count = own.len();
                    outputs.extend(own);
                    Kept::Extents(count)
                }
            });
        }
        if !outputs.is_empty() && !self.allocate_together(&mut outputs)? {
            return Ok(false);
        }
        let _in_flight = self
            .buffers
            .in_flight(outputs.iter().map(|output| output.length).sum());
        // If the write fails, the space is left alone, and the files take other
        // space one by one.
        self.write_outputs(&mut outputs, Sums::None)?;
        let room = (ground.nodes, Purpose::Shrink);
        let entered = self.change_own(&mut **files, tree, room, |engine, files| {
            enter_group(engine, tree, files, &kept, &outputs)
        });
        if entered.is_err() {
            self.give_back(&outputs);
        }
        entered.map(|()| true)
    }

    /// Prepares the data of files, on several threads if that pays.
    fn contents<'b>(
        &self,
        files: &Locked<'_>,
        buffers: &'b [WriteBuffer],
        ground: &Ground,
    ) -> Vec<Content<'b>> {
        let jobs: Vec<Job<'b>> = files
            .iter()
            .zip(buffers)
            .map(|((_, state), buffer)| Job {
                size: usize::try_from(state.item.size).unwrap_or(usize::MAX),
                plan: self.compression(state),
                has_sums: !state.item.flags.contains(InodeFlags::NODATASUM),
                buffer,
            })
            .collect();
        let slow_sums = matches!(self.checksum, ChecksumType::Sha256 | ChecksumType::Blake2);
        let work = |job: &Job<'_>| match job.plan.is_some() || (slow_sums && job.has_sums) {
            true => job.buffer.bytes(),
            false => 0,
        };
        let heavy: u64 = jobs.iter().map(work).sum();
        let threads = usize::try_from(heavy / SHARE).unwrap_or(usize::MAX);
        let threads = threads.min(self.options.threads);
        if threads < 2 {
            return jobs.iter().map(|job| self.content(job, ground)).collect();
        }
        let shares = jobs.chunks(jobs.len().div_ceil(threads));
        let make = |share: &[Job<'b>]| -> Vec<Content<'b>> {
            share.iter().map(|job| self.content(job, ground)).collect()
        };
        each_by_a_thread(shares, make)
            .into_iter()
            .flatten()
            .collect()
    }

    fn content<'b>(&self, job: &Job<'b>, ground: &Ground) -> Content<'b> {
        if job.size as u64 <= self.inline_max()
            && let Some(data) = job
                .buffer
                .runs()
                .next()
                .and_then(|(_, run)| run.get(..job.size))
        {
            let (data, compression) = self.pack_inline(job.plan, data);
            if data.len() + FileExtent::INLINE_HEADER <= ground.item_max {
                return Content::Inline { data, compression };
            }
        }
        let mut outputs = Vec::with_capacity(1);
        for segment in segments(job.buffer.runs()) {
            let range = segment.start..segment.start + segment.length;
            self.cut_new(&segment, range, job.plan, &mut outputs);
        }
        if job.has_sums {
            self.checksum(&mut outputs);
        }
        Content::Extents(outputs)
    }

    /// Finds space for all outputs side by side, or in as few pieces as
    /// possible. False if an output would have to be cut.
    fn allocate_together(&self, outputs: &mut [Output<'_>]) -> Result<bool, FsError> {
        let mut engine = self.begin_acknowledged(8)?;
        let mut left: u64 = outputs.iter().map(Output::disk_length).sum();
        let mut piece = 0..0;
        let mut result = Ok(true);
        for output in outputs.iter_mut() {
            let wanted = output.disk_length();
            if piece.end - piece.start < wanted {
                engine.give_back(Logical(piece.start), piece.end - piece.start);
                piece = match engine.allocate_data(left) {
                    Ok(range) => range,
                    Err(error) => {
                        (piece, result) = (0..0, Err(error.into()));
                        break;
                    }
                };
                if piece.end - piece.start < wanted {
                    result = Ok(false);
                    break;
                }
            }
            let range = piece.start..piece.start + wanted;
            self.buffers.used(wanted);
            self.unpacked.forget(&range);
            output.target = Target::New(Some(range.start));
            piece.start = range.end;
            left -= wanted;
        }
        engine.give_back(Logical(piece.start), piece.end - piece.start);
        drop(engine);
        if !matches!(result, Ok(true)) {
            self.give_back(outputs);
        }
        result
    }
}

/// Locks the next files that may be one group.
fn gather(inodes: &[Arc<Inode>], tree: TreeId, sector: u64) -> Gathered<'_> {
    let mut gathered = Gathered::default();
    let mut bytes = 0;
    for inode in inodes {
        let full = gathered.seen >= 2 * FILES_MAX
            || gathered.members.len() >= FILES_MAX
            || bytes >= BYTES_MAX;
        if full || inode.id.tree != tree {
            break;
        }
        gathered.seen += 1;
        match inode.state.try_write() {
            Some(state) if is_whole(&state, sector) => {
                bytes += state.buffer.bytes();
                gathered.members.push(inode);
                gathered.locked.push((inode.id, state));
            }
            _ => gathered.alone.push(inode),
        }
    }
    gathered
}

/// True of a small file all of whose content waits, and of which the tree has
/// nothing.
fn is_whole(state: &InodeState, sector: u64) -> bool {
    let size = state.item.size;
    let all = size.next_multiple_of(sector);
    let waits_all = state.buffer.bytes() == all
        && state
            .buffer
            .runs()
            .last()
            .is_some_and(|(start, run)| start + run.len() as u64 == all);
    size > 0
        && all < UNIT as u64
        && waits_all
        && !state.deleted
        && !state.emptied
        && !state.flush_failed
        && state.disk_size == 0
        && state.item.nbytes == 0
        && state.item.mode & S_IFMT == S_IFREG
        && !state.may_lie_in_place()
}

/// Nodes that this many files change in a tree whose root is of `level`. Each
/// file may lie below branches of its own, all of which split, in a leaf that
/// becomes three leaves. The tree may also grow.
fn nodes_of(files: usize, level: u8) -> usize {
    const GROWTH: usize = 2;
    files * (2 * (usize::from(level) + 1) + 1) + GROWTH
}

/// Checks whether a group can be entered: there must be space for what it may
/// change, and its files must have no file extent. `None` if it cannot.
fn look_at(engine: &Engine, tree: TreeId, files: &Locked<'_>) -> Result<Option<Ground>, FsError> {
    let root = engine.root(tree)?;
    let nodes = nodes_of(files.len(), root.level);
    if engine.is_short_of_metadata() || !engine.has_room_for(nodes) {
        return Ok(None);
    }
    let mut cursor = Cursor::at_root(engine, root);
    for (id, _) in files {
        let first = extents::key(*id, 0);
        // Neighbouring files are mostly in one leaf.
        let here = cursor.leaf().and_then(|(leaf, _)| {
            let inside = leaf.first_key()? <= first && first < leaf.last_key()?;
            let slot = || leaf.search(&first).unwrap_or_else(|slot| slot);
            inside.then(|| leaf.key(slot()))
        });
        let found = match here {
            Some(key) => Some(key),
            None => {
                cursor.seek(&first)?;
                cursor.key()
            }
        };
        let is_own =
            |key: Key| key.objectid == id.number.get() && key.item_type == ItemType::EXTENT_DATA;
        if found.is_some_and(is_own) {
            return Ok(None);
        }
    }
    Ok(Some(Ground {
        nodes,
        item_max: Node::item_data_max(engine.node_size()),
    }))
}

/// Brings a group into the tree, within a transaction.
fn enter_group(
    engine: &mut Engine,
    tree: TreeId,
    files: &mut Locked<'_>,
    kept: &[Kept<'_>],
    outputs: &[Output<'_>],
) -> Result<(), FsError> {
    let generation = engine.generation();
    let sector = engine.sector_size();
    let extent = |ram_bytes, compression, body| FileExtent {
        generation,
        ram_bytes,
        compression,
        encryption: 0,
        other_encoding: 0,
        body,
    };
    let mut editor = Editor::new(engine, tree);
    let mut rest = outputs;
    for ((id, state), kept) in files.iter_mut().zip(kept) {
        let size = state.item.size;
        let own = match kept {
            Kept::Inline { .. } => 0,
            Kept::Extents(count) => *count,
        };
        let (own, others) = rest.split_at(own);
        rest = others;
        state.disk_size = size;
        state.item.transid = generation;
        state.item.nbytes = match kept {
            Kept::Inline { .. } => size,
            Kept::Extents(_) => own.iter().map(|output| output.length).sum(),
        };
        editor.replace(&item_key(*id), &state.item.encode())?;
        if let Kept::Inline { data, compression } = kept {
            let item = extent(size, *compression, FileExtentBody::Inline(data));
            editor.insert(&extents::key(*id, 0), &item.encode())?;
        }
        for output in own {
            let body = FileExtentBody::Regular(place_of(output)?);
            let item = extent(output.length, output.compression, body);
            editor.insert(&extents::key(*id, output.start), &item.encode())?;
        }
    }
    let mut rest = outputs;
    for ((id, _), kept) in files.iter().zip(kept) {
        engine.log().note_inode(*id);
        let count = match kept {
            Kept::Inline { compression, .. } => {
                note_compression(engine, *compression);
                engine.log().note_extents(*id, 0..sector);
                continue;
            }
            Kept::Extents(count) => count,
        };
        let (own, others) = rest.split_at(*count);
        rest = others;
        for output in own {
            let place = place_of(output)?;
            note_compression(engine, output.compression);
            engine
                .log()
                .note_extents(*id, output.start..output.start + output.length);
            let extent = DataExtent {
                logical: place.disk,
                length: place.disk_length,
            };
            let owner = DataOwner {
                tree,
                inode: id.number,
                offset: output.start,
            };
            engine.add_data_extent(extent, owner)?;
            // Each extent takes its own space, so that the extents can be freed
            // one by one.
            if !output.sums.is_empty() {
                engine
                    .ledger_mut()
                    .add_checksums(place.disk.get(), output.sums.clone());
            }
        }
    }
    Ok(())
}

/// The place of an output. Its file uses all of it.
fn place_of(output: &Output<'_>) -> Result<ExtentPlace, FsError> {
    let Target::New(Some(start)) = output.target else {
        return Err(StoreError::Internal("data of a group have no space").into());
    };
    Ok(ExtentPlace {
        disk: Logical(start),
        disk_length: output.disk_length(),
        offset: 0,
        length: output.length,
    })
}
