//! Reading devices for nodes and superblocks.
//!
//! Every offset that is a multiple of 512 is looked at. Where a header may
//! begin, eight bytes decide nearly always: flags and reference revision of a
//! node, or the magic number of a superblock. Then the checksum decides. So the
//! node size, the checksum type and the UUID need not be known.
//!
//! Bounds: a buffer for each thread; the nodes found, by the memory allowed;
//! attempts with other node sizes and checksum types than those known.

use crate::error::RescueError;
use crate::index::{Index, NodeRecord, Shape, Span, SuperblockPlace};
use crate::index_file::IndexFile;
use crate::watch::{Step, Watch};
use crate::{bytes_of, memory_of};
use butterfs_device::BlockDevice;
use butterfs_format::node::{
    BACKREF_REVISION_MIXED, BACKREF_REVISION_SHIFT, FLAG_RELOC, FLAG_WRITTEN, HEADER_SIZE,
    ITEM_SIZE, LEVEL_MAX, NODE_SIZE_RANGE, NodeHeader, POINTER_SIZE, field,
};
use butterfs_format::superblock::{MAGIC, SIZE as SUPERBLOCK_SIZE, Superblock};
use butterfs_format::{ChecksumType, DeviceOffset, Generation, Key};
use butterfs_tree::{Expected, Headers, Node, VolumeIdentity};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one thread reads at once.
const SEGMENT: u64 = 4 << 20;
/// Segments between two marks in the index file.
const ROUND: u64 = 256;
/// Where headers can begin: sectors of partitions.
const STEP: usize = 512;
/// Offset of a superblock's magic number.
const MAGIC_AT: usize = 0x40;
/// Bytes that are read again one by one where a segment cannot be read.
const RETRY: usize = 4096;
/// Shapes of nodes that are told apart.
const SHAPES_MAX: usize = 64;
/// Places that are tried with every node size and checksum type.
const GUESSES_MAX: u64 = 20_000;
/// Superblocks that are noted.
const SUPERBLOCKS_MAX: usize = 4096;
/// Greatest generation that is taken for one.
const GENERATION_MAX: u64 = 1 << 62;

/// How a scan is done.
#[derive(Clone, Debug)]
pub(crate) struct ScanOptions {
    /// Number of threads; 0 means one for each core.
    pub(crate) threads: usize,
    /// Bytes that the index may take.
    pub(crate) memory_max: u64,
    /// The shapes to look for, as superblocks say. Empty: any.
    pub(crate) shapes: Vec<Shape>,
}

/// What threads that scan share.
struct Shared<'s> {
    devices: &'s [Arc<dyn BlockDevice>],
    spans: &'s [Span],
    shapes: RwLock<Vec<Shape>>,
    /// Whether other shapes count too.
    is_open: bool,
    guesses: AtomicU64,
    next: AtomicU64,
    unreadable: AtomicU64,
}

/// What a thread found.
#[derive(Default)]
struct Found {
    nodes: Vec<NodeRecord>,
    superblocks: Vec<SuperblockPlace>,
}

/// Segments of all spans.
fn segments(spans: &[Span]) -> u64 {
    let counts = spans.iter().map(|span| span.length.div_ceil(SEGMENT));
    counts.fold(0, u64::saturating_add)
}

/// The segment with a number, as part of its device.
fn segment(spans: &[Span], number: u64) -> Option<Span> {
    let mut number = number;
    for span in spans {
        let count = span.length.div_ceil(SEGMENT);
        if number < count {
            let within = number.saturating_mul(SEGMENT);
            return Some(Span {
                device: span.device,
                start: span.start.saturating_add(within),
                length: span.length.saturating_sub(within).min(SEGMENT),
            });
        }
        number = number.saturating_sub(count);
    }
    None
}

/// Scans what `index.spans` says, behind the segments that are done already.
/// The index is put in order at the end, also if the scan is stopped.
///
/// # Errors
/// [`RescueError::Stopped`], [`RescueError::TooManyNodes`], writing `file`.
pub(crate) fn scan(
    devices: &[Arc<dyn BlockDevice>],
    index: &mut Index,
    mut file: Option<&mut IndexFile>,
    options: &ScanOptions,
    watch: &dyn Watch,
) -> Result<(), RescueError> {
    let spans = index.spans.clone();
    let all = segments(&spans);
    if index.shapes.is_empty() {
        index.shapes.clone_from(&options.shapes);
    }
    let shared = Shared {
        devices,
        spans: &spans,
        shapes: RwLock::new(index.shapes.clone()),
        is_open: options.shapes.is_empty(),
        guesses: AtomicU64::new(0),
        next: AtomicU64::new(index.segments_done),
        unreadable: AtomicU64::new(index.unreadable),
    };
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count.min(256),
    };
    let nodes_max = memory_of(options.memory_max)
        .checked_div(Index::NODE_BYTES)
        .unwrap_or(0)
        .min(memory_of(u64::from(u32::MAX)));
    let mut result = Ok(());
    while index.segments_done < all && result.is_ok() {
        let end = index.segments_done.saturating_add(ROUND).min(all);
        let found = Mutex::new(Found::default());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut own = Found::default();
                    work(&shared, end, &mut own, (all, watch));
                    let mut found = found.lock();
                    found.nodes.append(&mut own.nodes);
                    found.superblocks.append(&mut own.superblocks);
                });
            }
        });
        // The threads go beyond the end by one number each.
        let next = shared.next.load(Ordering::Relaxed).min(end);
        shared.next.store(next, Ordering::Relaxed);
        index.segments_done = next;
        let mut found = found.into_inner();
        index.nodes.append(&mut found.nodes);
        let room = SUPERBLOCKS_MAX.saturating_sub(index.superblocks.len());
        let superblocks = found.superblocks.into_iter().take(room);
        index.superblocks.extend(superblocks);
        index.shapes.clone_from(&shared.shapes.read());
        index.unreadable = shared.unreadable.load(Ordering::Relaxed);
        if let Some(file) = &mut file {
            file.append(index)?;
        }
        if index.nodes.len() > nodes_max {
            result = Err(RescueError::TooManyNodes {
                found: index.nodes.len(),
                bytes: options.memory_max,
            });
        } else if watch.is_stopped() && index.segments_done < all {
            result = Err(RescueError::Stopped);
        }
    }
    index.sort();
    result
}

/// Scans segments until `end` is reached or somebody asks to stop.
fn work(shared: &Shared<'_>, end: u64, found: &mut Found, (all, watch): (u64, &dyn Watch)) {
    let lookahead = memory_of(u64::from(*NODE_SIZE_RANGE.end()));
    let mut buffer = vec![0; memory_of(SEGMENT).saturating_add(lookahead)];
    while !watch.is_stopped() {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        if number >= end {
            return;
        }
        let Some(part) = segment(shared.spans, number) else {
            return;
        };
        let Some(device) = shared.devices.get(usize::from(part.device)) else {
            continue;
        };
        let readable = device.size().saturating_sub(part.start);
        let length = part
            .length
            .saturating_add(bytes_of(lookahead))
            .min(readable);
        let Some(bytes) = buffer.get_mut(..memory_of(length)) else {
            continue;
        };
        read(shared, &**device, part.start, bytes);
        search(shared, part, bytes, found);
        let done = number.saturating_add(1).saturating_mul(SEGMENT);
        watch.progress(Step::Scan, done, all.saturating_mul(SEGMENT));
    }
}

/// Reads all that can be read. The rest is zeros.
fn read(shared: &Shared<'_>, device: &dyn BlockDevice, start: u64, bytes: &mut [u8]) {
    if device.read_at(DeviceOffset(start), bytes).is_ok() {
        return;
    }
    let mut at = start;
    for piece in bytes.chunks_mut(RETRY) {
        let length = bytes_of(piece.len());
        if device.read_at(DeviceOffset(at), piece).is_err() {
            piece.fill(0);
            shared.unreadable.fetch_add(length, Ordering::Relaxed);
        }
        at = at.saturating_add(length);
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let end = at.saturating_add(8);
    let word = bytes.get(at..end).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

/// Looks for nodes and superblocks that begin in a segment.
fn search(shared: &Shared<'_>, part: Span, bytes: &[u8], found: &mut Found) {
    const PLAIN: u64 = FLAG_WRITTEN | (BACKREF_REVISION_MIXED << BACKREF_REVISION_SHIFT);
    let magic = u64::from_le_bytes(MAGIC);
    let end = memory_of(part.length).min(bytes.len());
    let mut at = 0_usize;
    while at < end {
        let flags = word(bytes, at.saturating_add(field::FLAGS));
        let mut step = STEP;
        if flags & !FLAG_RELOC == PLAIN {
            let here = bytes.get(at..).unwrap_or_default();
            let place = part.start.saturating_add(bytes_of(at));
            if let Some((node, size)) = recognize(shared, here, part.device, place) {
                found.nodes.push(node);
                step = size;
            }
        } else if word(bytes, at.saturating_add(MAGIC_AT)) == magic {
            let block = bytes.get(at..at.saturating_add(SUPERBLOCK_SIZE));
            let place = part.start.saturating_add(bytes_of(at));
            let superblock = block.and_then(superblock_in);
            if let Some(own_offset) = superblock
                && own_offset.get() <= place
                && found.superblocks.len() < SUPERBLOCKS_MAX
            {
                found.superblocks.push(SuperblockPlace {
                    device: part.device,
                    offset: DeviceOffset(place),
                    own_offset,
                });
            }
        }
        at = at.saturating_add(step);
    }
}

/// Where a superblock says that it lies in its volume; `None` if it is none.
fn superblock_in(block: &[u8]) -> Option<DeviceOffset> {
    let own = Superblock::parse_unverified(block).ok()?.own_offset;
    Superblock::parse(block, own)
        .ok()
        .map(|found| found.own_offset)
}

/// The node at the beginning of `bytes`, and its size.
fn recognize(
    shared: &Shared<'_>,
    bytes: &[u8],
    device: u16,
    place: u64,
) -> Option<(NodeRecord, usize)> {
    let header = NodeHeader::parse(bytes).ok()?;
    let stride = match header.level {
        0 => ITEM_SIZE,
        1..=LEVEL_MAX => POINTER_SIZE,
        _ => return None,
    };
    let generation = header.generation.get();
    let is_possible = header.logical.get() != 0
        && header.logical.get().is_multiple_of(bytes_of(STEP))
        && (1..=GENERATION_MAX).contains(&generation);
    if !is_possible {
        return None;
    }
    let known = {
        let shapes = shared.shapes.read();
        let mut all = shapes.iter().enumerate();
        let found =
            all.find(|(_, shape)| shape.fsid == header.fsid && is_node(shape, bytes, &header));
        found.map(|(number, shape)| (number, *shape))
    };
    let (number, shape) = match known {
        Some(known) => known,
        None => guess(shared, bytes, &header)?,
    };
    let size = memory_of(u64::from(shape.node_size));
    let count = memory_of(u64::from(header.item_count));
    let key = |slot: usize| {
        let at = slot.checked_mul(stride)?.checked_add(HEADER_SIZE)?;
        let end = at.checked_add(Key::SIZE)?;
        Some(Key::from_bytes(bytes.get(at..end)?.try_into().ok()?))
    };
    let first = if count == 0 { None } else { key(0) };
    let last = count.checked_sub(1).and_then(key);
    let node = NodeRecord {
        logical: header.logical,
        offset: DeviceOffset(place),
        generation: Generation(generation),
        owner: header.owner,
        first: first.unwrap_or(Key::MAX),
        last: last.unwrap_or(Key::MIN),
        device,
        shape: u16::try_from(number).ok()?,
        level: header.level,
    };
    Some((node, size))
}

fn is_node(shape: &Shape, bytes: &[u8], header: &NodeHeader) -> bool {
    let size = memory_of(u64::from(shape.node_size));
    let identity = VolumeIdentity {
        fsid: shape.fsid,
        node_size: size,
        sector_size: bytes_of(STEP),
        checksum: shape.checksum,
        headers: Headers::Agree,
    };
    let expected = Expected {
        logical: header.logical,
        generation: Some(header.generation),
        level: Some(header.level),
    };
    let node = bytes.get(..size);
    node.is_some_and(|node| Node::check(node, &identity, expected).is_ok())
}

/// Tries all node sizes and checksum types. What fits becomes a known shape.
fn guess(shared: &Shared<'_>, bytes: &[u8], header: &NodeHeader) -> Option<(usize, Shape)> {
    if !shared.is_open || shared.guesses.load(Ordering::Relaxed) >= GUESSES_MAX {
        return None;
    }
    for node_size in [16384, 4096, 8192, 32768, 65536] {
        for (checksum, _, _) in ChecksumType::TABLE {
            let shape = Shape {
                fsid: header.fsid,
                chunk_tree_uuid: header.chunk_tree_uuid,
                node_size,
                checksum,
            };
            if !is_node(&shape, bytes, header) {
                continue;
            }
            let mut shapes = shared.shapes.write();
            let alike = |known: &Shape| {
                (known.fsid, known.node_size, known.checksum) == (shape.fsid, node_size, checksum)
            };
            if let Some(number) = shapes.iter().position(alike) {
                return Some((number, shape));
            }
            if shapes.len() >= SHAPES_MAX {
                return None;
            }
            shapes.push(shape);
            return Some((shapes.len().saturating_sub(1), shape));
        }
    }
    shared.guesses.fetch_add(1, Ordering::Relaxed);
    None
}
