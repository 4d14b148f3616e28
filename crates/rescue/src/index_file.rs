//! The file that keeps what a scan found.
//!
//! It is a log of entries of one size, each with a checksum. A scan that was
//! stopped, or killed, goes on behind the last mark of progress in it. Entries
//! behind that mark are found anew, so they are cut off.

use crate::bytes_of;
use crate::error::RescueError;
use crate::index::{Index, NodeRecord, Shape, Span, SuperblockPlace};
use butterfs_format::bytes::{Reader, Writer};
use butterfs_format::checksum::crc32c;
use butterfs_format::{ChecksumType, DeviceOffset, Generation, Key, Logical, ParseError, TreeId};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Bytes of an entry: kind, body, checksum.
pub(crate) const ENTRY: usize = 80;
const BODY: usize = ENTRY - 4;
/// The first bytes of an index.
const MAGIC: &[u8; 16] = b"butterfs index 1";
/// Entries that are written at once.
const WRITE_AT_ONCE: usize = 4096;

const KIND_DEVICE: u8 = 1;
const KIND_SPAN: u8 = 2;
const KIND_SHAPE: u8 = 3;
const KIND_SUPERBLOCK: u8 = 4;
const KIND_NODE: u8 = 5;
const KIND_DONE: u8 = 6;

/// How much of an index is in its file already.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    shapes: usize,
    superblocks: usize,
    nodes: usize,
}

/// The file of an index.
#[derive(Debug)]
pub(crate) struct IndexFile {
    file: File,
    kept: Kept,
}

fn entry(kind: u8, body: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut w = Writer::with_capacity(ENTRY);
    w.u8(kind);
    body(&mut w);
    w.zeros(BODY.saturating_sub(w.len()));
    let mut bytes = w.finish();
    let sum = crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn encode_node(node: &NodeRecord) -> Vec<u8> {
    entry(KIND_NODE, |w| {
        w.u8(node.level)
            .u16(node.device)
            .u16(node.shape)
            .u64(node.logical.get())
            .u64(node.offset.get())
            .u64(node.generation.get())
            .u64(node.owner.get())
            .bytes(&node.first.to_bytes())
            .bytes(&node.last.to_bytes());
    })
}

fn encode_shape(shape: &Shape) -> Vec<u8> {
    entry(KIND_SHAPE, |w| {
        w.bytes(&shape.fsid)
            .bytes(&shape.chunk_tree_uuid)
            .u32(shape.node_size)
            .u16(shape.checksum.number());
    })
}

impl IndexFile {
    /// Opens or makes the file at `path`, for devices of these sizes. Returns
    /// what it holds.
    ///
    /// # Errors
    /// Reading and writing it; it is no index, or one of other devices.
    pub(crate) fn open(path: &Path, sizes: &[u64]) -> Result<(Self, Index), RescueError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let mut own = Self {
            file,
            kept: Kept::default(),
        };
        if own.file.metadata()?.len() == 0 {
            let mut head = MAGIC.to_vec();
            for size in sizes {
                head.extend(entry(KIND_DEVICE, |w| {
                    w.u64(*size);
                }));
            }
            own.file.write_all(&head)?;
            return Ok((own, Index::default()));
        }
        let index = own.load(sizes)?;
        Ok((own, index))
    }

    fn load(&mut self, sizes: &[u64]) -> Result<Index, RescueError> {
        let mut input = BufReader::with_capacity(1 << 20, &self.file);
        let mut magic = [0; MAGIC.len()];
        let is_index = input.read_exact(&mut magic).is_ok() && magic == *MAGIC;
        if !is_index {
            return Err(RescueError::WrongIndex("was not made by a scan"));
        }
        let mut found_sizes = Vec::new();
        let mut index = Index::default();
        // What is certain: up to the last mark.
        let mut end = bytes_of(MAGIC.len());
        let mut at = end;
        let mut kept = Kept::default();
        let mut bytes = [0; ENTRY];
        while input.read_exact(&mut bytes).is_ok() {
            let Some((body, sum)) = bytes.split_at_checked(BODY) else {
                break;
            };
            if crc32c(body).to_le_bytes() != sum {
                break;
            }
            let kind = take(body, &mut index, &mut found_sizes);
            at = at.saturating_add(bytes_of(ENTRY));
            match kind {
                Ok(KIND_DONE | KIND_DEVICE | KIND_SPAN) => {
                    end = at;
                    kept = Kept {
                        shapes: index.shapes.len(),
                        superblocks: index.superblocks.len(),
                        nodes: index.nodes.len(),
                    };
                }
                Ok(_) => {}
                Err(_) => return Err(RescueError::WrongIndex("has an entry that is not known")),
            }
        }
        if found_sizes != sizes {
            return Err(RescueError::WrongIndex("was made for other devices"));
        }
        index.shapes.truncate(kept.shapes);
        index.superblocks.truncate(kept.superblocks);
        index.nodes.truncate(kept.nodes);
        self.kept = kept;
        self.file.set_len(end)?;
        self.file.seek(SeekFrom::End(0))?;
        Ok(index)
    }

    /// Empties the file, for a scan of other parts.
    pub(crate) fn begin(&mut self, sizes: &[u64], index: &Index) -> Result<(), RescueError> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.kept = Kept::default();
        let mut head = MAGIC.to_vec();
        for size in sizes {
            head.extend(entry(KIND_DEVICE, |w| {
                w.u64(*size);
            }));
        }
        for span in &index.spans {
            head.extend(entry(KIND_SPAN, |w| {
                w.u16(span.device).u64(span.start).u64(span.length);
            }));
        }
        self.file.write_all(&head)?;
        Ok(())
    }

    /// Adds what the index has more than the file, and a mark. The nodes must
    /// be in the order in which they were found.
    pub(crate) fn append(&mut self, index: &Index) -> Result<(), RescueError> {
        let shapes = index.shapes.get(self.kept.shapes..).unwrap_or_default();
        let places = index.superblocks.get(self.kept.superblocks..);
        let nodes = index.nodes.get(self.kept.nodes..).unwrap_or_default();
        let mut out: Vec<u8> = shapes.iter().flat_map(encode_shape).collect();
        for place in places.unwrap_or_default() {
            out.extend(entry(KIND_SUPERBLOCK, |w| {
                w.u16(place.device)
                    .u64(place.offset.get())
                    .u64(place.own_offset.get());
            }));
        }
        self.file.write_all(&out)?;
        for some in nodes.chunks(WRITE_AT_ONCE) {
            let bytes: Vec<u8> = some.iter().flat_map(encode_node).collect();
            self.file.write_all(&bytes)?;
        }
        let mark = entry(KIND_DONE, |w| {
            w.u64(index.segments_done).u64(index.unreadable);
        });
        self.file.write_all(&mark)?;
        self.kept = Kept {
            shapes: index.shapes.len(),
            superblocks: index.superblocks.len(),
            nodes: index.nodes.len(),
        };
        Ok(())
    }
}

/// Adds what an entry says to the index. Returns its kind.
fn take(body: &[u8], index: &mut Index, sizes: &mut Vec<u64>) -> Result<u8, ParseError> {
    const WHAT: &str = "index entry";
    let mut r = Reader::new(WHAT, body);
    let bad = |field, value| ParseError::BadValue {
        what: WHAT,
        field,
        value,
    };
    let kind = r.u8()?;
    match kind {
        KIND_DEVICE => sizes.push(r.u64()?),
        KIND_SPAN => index.spans.push(Span {
            device: r.u16()?,
            start: r.u64()?,
            length: r.u64()?,
        }),
        KIND_SHAPE => {
            let (fsid, chunk_tree_uuid, node_size) = (r.array()?, r.array()?, r.u32()?);
            let number = r.u16()?;
            let checksum = ChecksumType::from_number(number);
            index.shapes.push(Shape {
                fsid,
                chunk_tree_uuid,
                node_size,
                checksum: checksum.ok_or(bad("checksum", u64::from(number)))?,
            });
        }
        KIND_SUPERBLOCK => index.superblocks.push(SuperblockPlace {
            device: r.u16()?,
            offset: DeviceOffset(r.u64()?),
            own_offset: DeviceOffset(r.u64()?),
        }),
        KIND_NODE => {
            let (level, device, shape) = (r.u8()?, r.u16()?, r.u16()?);
            index.nodes.push(NodeRecord {
                logical: Logical(r.u64()?),
                offset: DeviceOffset(r.u64()?),
                generation: Generation(r.u64()?),
                owner: TreeId(r.u64()?),
                first: Key::from_bytes(&r.array()?),
                last: Key::from_bytes(&r.array()?),
                device,
                shape,
                level,
            });
        }
        KIND_DONE => {
            index.segments_done = r.u64()?;
            index.unreadable = r.u64()?;
        }
        other => return Err(bad("kind", u64::from(other))),
    }
    Ok(kind)
}
