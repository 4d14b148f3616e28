//! Changes of an image that checksums do not reveal.
//!
//! Each takes a few bytes of the input, which say what to change, where, and to
//! what value. The nodes that were touched are sealed again and written to all
//! their copies.

use crate::tape::Tape;
use crate::volume::{Base, Spot};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::DeviceOffset;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, POINTER_SIZE, field};
use butterfs_format::superblock::{COPIES, SIZE};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a key.
const KEY: usize = 17;
/// Greatest number of mutations of one input.
const MUTATIONS_MAX: usize = 24;

/// What was done to an image.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Copies differ, so that healing may write.
    pub copies_differ: bool,
}

/// An image in the making.
struct Image<'b> {
    base: &'b Base,
    devices: &'b [Arc<MemoryDevice>],
    nodes: BTreeMap<usize, Vec<u8>>,
    /// By device.
    superblocks: BTreeMap<usize, Vec<u8>>,
    done: Done,
}

/// Numbers around which things break.
pub(crate) fn interesting(tape: &mut Tape<'_>, old: u64) -> u64 {
    match tape.u8() % 12 {
        0 => 0,
        1 => u64::MAX - u64::from(tape.u8()),
        2 => old.wrapping_add(u64::from(tape.u8())),
        3 => old.wrapping_sub(u64::from(tape.u8())),
        4 => old ^ 1 << (tape.u8() & 63),
        5 => 1 << (tape.u8() & 63),
        6 => old.wrapping_add(u64::from(tape.u16()) << 12),
        7 => old.wrapping_sub(u64::from(tape.u16()) << 12),
        8 => u64::from(tape.u16()),
        9 => i64::MAX as u64 - u64::from(tape.u8()),
        10 => u64::from(tape.u32()),
        _ => tape.u64(),
    }
}

pub(crate) fn get(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut out = [0; 8];
    out[..width].copy_from_slice(&bytes[at..at + width]);
    u64::from_le_bytes(out)
}

pub(crate) fn put(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// Changes a field of 1, 2, 4 or 8 bytes somewhere in `range`.
fn change_field(bytes: &mut [u8], range: std::ops::Range<usize>, tape: &mut Tape<'_>) {
    let width = [1, 2, 4, 8, 8][tape.below(5)];
    let Some(room) = (range.len() + 1)
        .checked_sub(width)
        .filter(|room| *room > 0)
    else {
        return;
    };
    let at = range.start + tape.below(room);
    let old = get(bytes, at, width);
    let new = interesting(tape, old);
    put(bytes, at, width, new);
}

type Items = Vec<([u8; KEY], Vec<u8>)>;

/// The items of a leaf that is as it should be.
fn items_of(bytes: &[u8]) -> Option<Items> {
    if bytes[field::LEVEL] != 0 {
        return None;
    }
    let count = get(bytes, field::ITEM_COUNT, 4) as usize;
    (0..count)
        .map(|slot| {
            let at = HEADER_SIZE + slot * ITEM_SIZE;
            let head = bytes.get(at..at + ITEM_SIZE)?;
            let start = HEADER_SIZE + get(head, KEY, 4) as usize;
            let data = bytes.get(start..start + get(head, KEY + 4, 4) as usize)?;
            Some((*head.first_chunk()?, data.to_vec()))
        })
        .collect()
}

/// Writes items into a leaf; what does not fit is left out.
fn put_items(bytes: &mut [u8], items: &Items) {
    let mut end = bytes.len() - HEADER_SIZE;
    let mut count = 0;
    bytes[HEADER_SIZE..].fill(0);
    for (key, data) in items {
        if end < (count + 1) * ITEM_SIZE + data.len() {
            break;
        }
        end -= data.len();
        let at = HEADER_SIZE + count * ITEM_SIZE;
        bytes[at..at + KEY].copy_from_slice(key);
        put(bytes, at + KEY, 4, end as u64);
        put(bytes, at + KEY + 4, 4, data.len() as u64);
        bytes[HEADER_SIZE + end..HEADER_SIZE + end + data.len()].copy_from_slice(data);
        count += 1;
    }
    put(bytes, field::ITEM_COUNT, 4, count as u64);
}

impl Image<'_> {
    fn pick(&mut self, tape: &mut Tape<'_>) -> usize {
        tape.below(self.base.nodes.len())
    }

    fn node(&mut self, which: usize) -> &mut Vec<u8> {
        let (base, devices) = (self.base, self.devices);
        self.nodes.entry(which).or_insert_with(|| {
            let mut bytes = vec![0; base.node_size];
            let at = base.nodes[which].copies[0];
            devices[at.device]
                .read_at(at.offset, &mut bytes)
                .expect("it lies on the device");
            bytes
        })
    }

    /// A slot of a node, and where its descriptor and data lie.
    fn slot(&mut self, which: usize, tape: &mut Tape<'_>) -> Option<(usize, usize, usize)> {
        let bytes = self.node(which);
        let count = get(bytes, field::ITEM_COUNT, 4) as usize;
        let is_leaf = bytes[field::LEVEL] == 0;
        let stride = if is_leaf { ITEM_SIZE } else { POINTER_SIZE };
        let most = (bytes.len() - HEADER_SIZE) / stride;
        let slot = tape.below(count.clamp(1, most));
        let at = HEADER_SIZE + slot * stride;
        if !is_leaf {
            return Some((at, at + KEY, 16));
        }
        let offset = get(bytes, at + KEY, 4) as usize;
        let size = get(bytes, at + KEY + 4, 4) as usize;
        let start = HEADER_SIZE.checked_add(offset)?;
        let end = start.checked_add(size)?;
        (end <= bytes.len()).then_some((at, start, size))
    }

    fn step(&mut self, tape: &mut Tape<'_>) {
        match tape.u8() % 24 {
            // A field of an item, most of the time.
            0..=5 => {
                let which = self.pick(tape);
                if let Some((_, start, size)) = self.slot(which, tape) {
                    change_field(self.node(which), start..start + size, tape);
                }
            }
            6 => {
                let which = self.pick(tape);
                if let Some((at, ..)) = self.slot(which, tape) {
                    change_field(self.node(which), at..at + KEY, tape);
                }
            }
            7 => {
                let which = self.pick(tape);
                if let Some((at, ..)) = self.slot(which, tape) {
                    change_field(self.node(which), at + KEY..at + ITEM_SIZE, tape);
                }
            }
            8 => {
                let which = self.pick(tape);
                change_field(self.node(which), field::LOGICAL..HEADER_SIZE, tape);
            }
            9 => self.point_elsewhere(tape),
            10 => self.copy_node(tape),
            11 => self.remove_item(tape),
            12 => {
                let range = match tape.u8() & 3 {
                    0 => 0x20..SIZE,
                    1 => 0x32b..0x32b + 2048,
                    _ => 0x20..0x12b,
                };
                let which = match self.devices.len() {
                    1 => 0,
                    several => tape.below(several),
                };
                change_field(self.superblock(which), range, tape);
            }
            13 => self.change_one_copy(tape),
            14 => self.move_item(tape),
            15 | 16 => self.misdirect(tape),
            17 => self.change_header(tape),
            18 => self.exchange_items(tape),
            19..=22 => self.change_items(tape),
            _ => {
                let which = self.pick(tape);
                let size = self.base.node_size;
                change_field(self.node(which), 32..size, tape);
            }
        }
    }

    /// A pointer of a branch, or of a root item, names another node, with the
    /// generation, level and key that are found there.
    fn point_elsewhere(&mut self, tape: &mut Tape<'_>) {
        let which = self.pick(tape);
        let to = self.pick(tape);
        let target = self.base.nodes[to].node;
        let first = get(self.node(to), HEADER_SIZE, 8);
        let mut key = [0; KEY];
        key.copy_from_slice(&self.node(to)[HEADER_SIZE..HEADER_SIZE + KEY]);
        let _ = first;
        let Some((at, start, size)) = self.slot(which, tape) else {
            return;
        };
        let bytes = self.node(which);
        if bytes[field::LEVEL] > 0 {
            bytes[at..at + KEY].copy_from_slice(&key);
            put(bytes, start, 8, target.logical.get());
            put(bytes, start + 8, 8, target.generation.get());
        } else if size >= 239 {
            // A root item: generation, address and level.
            put(bytes, start + 160, 8, target.generation.get());
            put(bytes, start + 176, 8, target.logical.get());
            put(bytes, start + 238, 1, u64::from(target.level));
        }
    }

    /// A pointer of a branch names another node and keeps its key, so that only
    /// whoever follows it, or looks at both, can see it.
    fn misdirect(&mut self, tape: &mut Tape<'_>) {
        let base = self.base;
        let branches: Vec<_> = (0..base.nodes.len())
            .filter(|at| base.nodes[*at].node.level > 0)
            .collect();
        if branches.is_empty() {
            return;
        }
        let which = branches[tape.below(branches.len())];
        let to = match tape.u8() & 1 {
            0 => branches[tape.below(branches.len())],
            _ => self.pick(tape),
        };
        let target = base.nodes[to].node;
        let Some((_, start, _)) = self.slot(which, tape) else {
            return;
        };
        let bytes = self.node(which);
        if bytes[field::LEVEL] > 0 {
            put(bytes, start, 8, target.logical.get());
            if tape.u8() & 1 == 0 {
                put(bytes, start + 8, 8, target.generation.get());
            }
        }
    }

    /// The level, the owner or a flag in a node's header, to what other nodes
    /// have.
    fn change_header(&mut self, tape: &mut Tape<'_>) {
        let (which, other) = (self.pick(tape), self.pick(tape));
        let from = self.node(other).clone();
        let bytes = self.node(which);
        match tape.u8() % 4 {
            0 => bytes[field::LEVEL] = bytes[field::LEVEL].wrapping_add(1) % 9,
            1 => bytes[field::LEVEL] = from[field::LEVEL],
            2 => {
                let owner = get(&from, field::OWNER, 8);
                put(bytes, field::OWNER, 8, owner);
            }
            _ => {
                let flags = get(bytes, field::FLAGS, 8);
                put(bytes, field::FLAGS, 8, flags ^ 1 << (tape.u8() & 63));
            }
        }
    }

    /// Two items of a leaf, or pointers of a branch, exchange their data.
    fn exchange_items(&mut self, tape: &mut Tape<'_>) {
        let which = self.pick(tape);
        let (one, other) = (self.slot(which, tape), self.slot(which, tape));
        let (Some((_, one, size)), Some((_, other, other_size))) = (one, other) else {
            return;
        };
        let size = size.min(other_size);
        let bytes = self.node(which);
        let first = bytes[one..one + size].to_vec();
        bytes.copy_within(other..other + size, one);
        bytes[other..other + size].copy_from_slice(&first);
    }

    /// A leaf with other items: one is cut, longer, gone, or there again under
    /// another key.
    fn change_items(&mut self, tape: &mut Tape<'_>) {
        let which = self.pick(tape);
        let bytes = self.node(which);
        let Some(mut items) = items_of(bytes) else {
            return;
        };
        if items.is_empty() {
            return;
        }
        let at = tape.below(items.len());
        let (how, by) = (tape.u8() % 6, usize::from(tape.u8()));
        let (mut key, mut data) = items[at].clone();
        match how {
            0 => data.truncate(data.len().saturating_sub(1 + by % 40)),
            1 => data.truncate(by),
            2 => data.extend(vec![tape.u8(); 1 + by]),
            3 => data.clear(),
            4 => drop(items.remove(at)),
            _ => match tape.u8() % 4 {
                0 => {
                    let old = get(&key, 0, 8);
                    put(&mut key, 0, 8, interesting(tape, old));
                }
                1 => key[8] = items[tape.below(items.len())].0[8],
                2 => key[8] = tape.u8(),
                _ => {
                    let old = get(&key, 9, 8);
                    put(&mut key, 9, 8, interesting(tape, old));
                }
            },
        }
        match how {
            0..=3 => items[at].1 = data,
            4 => {}
            // In place of the old one, or beside it.
            _ => match by % 2 {
                0 => items[at].0 = key,
                _ => items.push((key, data)),
            },
        }
        items.sort_by_key(|(key, _)| (get(key, 0, 8), key[8], get(key, 9, 8)));
        items.dedup_by_key(|(key, _)| *key);
        put_items(bytes, &items);
    }

    /// One node with the content of another, at its own address.
    fn copy_node(&mut self, tape: &mut Tape<'_>) {
        let (from, to) = (self.pick(tape), self.pick(tape));
        let source = self.node(from).clone();
        let keep_level = tape.u8() & 1 != 0;
        let bytes = self.node(to);
        let logical = get(bytes, field::LOGICAL, 8);
        let generation = get(bytes, field::GENERATION, 8);
        let level = bytes[field::LEVEL];
        bytes.copy_from_slice(&source);
        put(bytes, field::LOGICAL, 8, logical);
        put(bytes, field::GENERATION, 8, generation);
        if keep_level {
            bytes[field::LEVEL] = level;
        }
    }

    /// Takes the last item, or the whole content, away.
    fn remove_item(&mut self, tape: &mut Tape<'_>) {
        let which = self.pick(tape);
        let all = tape.u8() & 1 != 0;
        let bytes = self.node(which);
        let count = get(bytes, field::ITEM_COUNT, 4);
        let left = if all { 0 } else { count.saturating_sub(1) };
        put(bytes, field::ITEM_COUNT, 4, left);
    }

    /// The key of one item is changed so that it stays between its neighbours.
    fn move_item(&mut self, tape: &mut Tape<'_>) {
        let which = self.pick(tape);
        if let Some((at, ..)) = self.slot(which, tape) {
            let bytes = self.node(which);
            let part = [0, 9][tape.below(2)];
            let old = get(bytes, at + part, 8);
            let new = if tape.u8() & 1 == 0 {
                old.wrapping_add(1 + u64::from(tape.u8()))
            } else {
                old.wrapping_sub(1 + u64::from(tape.u8()))
            };
            put(bytes, at + part, 8, new);
        }
    }

    fn superblock(&mut self, which: usize) -> &mut Vec<u8> {
        let device = &self.devices[which];
        self.superblocks.entry(which).or_insert_with(|| {
            let mut bytes = vec![0; SIZE];
            device.read_at(COPIES[0], &mut bytes).expect("it is there");
            bytes
        })
    }

    /// Bit rot in one copy or in data, which a checksum does reveal.
    fn change_one_copy(&mut self, tape: &mut Tape<'_>) {
        let place = if tape.u8() & 1 == 0 || self.base.data.is_empty() {
            let which = self.pick(tape);
            let copies = &self.base.nodes[which].copies;
            copies[tape.below(copies.len())]
        } else {
            let start = self.base.data[tape.below(self.base.data.len())];
            Spot {
                offset: DeviceOffset(start.offset.get() + (u64::from(tape.u8()) << 12)),
                ..start
            }
        };
        let at = DeviceOffset(place.offset.get() + u64::from(tape.u16() & 4095));
        let _ = self.devices[place.device].write_at(at, &[tape.u8()]);
        self.done.copies_differ = true;
    }

    fn finish(mut self) -> Done {
        for (which, bytes) in &mut self.nodes {
            self.base.checksum.seal_block(bytes);
            for copy in &self.base.nodes[*which].copies {
                let device = &self.devices[copy.device];
                device.write_at(copy.offset, bytes).expect("it fits");
            }
        }
        for (which, bytes) in &self.superblocks {
            let device = &self.devices[*which];
            for copy in COPIES
                .into_iter()
                .filter(|c| c.get() + 4096 <= device.size())
            {
                let mut own = bytes.clone();
                // If the address in it was not mutated, each copy gets its own.
                if get(&own, 0x30, 8) == COPIES[0].get() {
                    put(&mut own, 0x30, 8, copy.get());
                }
                self.base.checksum.seal_block(&mut own);
                device.write_at(copy, &own).expect("it fits");
            }
        }
        self.done
    }
}

/// Changes the image on `devices`, copies of `base`, as the tape says.
pub fn mutate(base: &Base, devices: &[Arc<MemoryDevice>], tape: &mut Tape<'_>) -> Done {
    let mut image = Image {
        base,
        devices,
        nodes: BTreeMap::new(),
        superblocks: BTreeMap::new(),
        done: Done::default(),
    };
    for _ in 0..MUTATIONS_MAX {
        if tape.is_empty() {
            break;
        }
        image.step(tape);
    }
    image.finish()
}
