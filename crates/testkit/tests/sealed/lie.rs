//! One number that is changed, with the checksum made anew.

use super::base::{Base, Place};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::Key;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, POINTER_SIZE, field};
use butterfs_format::superblock::{COPIES, SIZE};
use butterfs_testkit::Random;
use std::fmt;
use std::sync::Arc;

/// Bytes of a key.
const KEY: usize = 17;

/// What was changed.
#[derive(Clone, Debug)]
pub struct Lie {
    pub what: String,
    pub place: usize,
    pub width: usize,
    pub old: u64,
    pub new: u64,
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} +{}/{}: {:#x} -> {:#x}",
            self.what, self.place, self.width, self.old, self.new
        )
    }
}

/// Numbers around which things break.
fn other(random: &mut Random, old: u64, width: usize) -> u64 {
    let mask = u64::MAX >> (64 - 8 * width);
    loop {
        let new = match random.below(14) {
            0..=2 => 0,
            3 => 1,
            4 => u64::MAX,
            5 => old.wrapping_add(1),
            6 => old.wrapping_sub(1),
            7 => old ^ 1 << random.below(8 * width as u64),
            8 => old.wrapping_add(4096 << random.below(6)),
            9 => old.wrapping_sub(4096 << random.below(6)),
            10 => old / 2,
            11 => old.wrapping_mul(2),
            12 => old.wrapping_add(random.below(300)),
            _ => random.bits(),
        } & mask;
        if new != old {
            return new;
        }
    }
}

fn get(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut out = [0; 8];
    out[..width].copy_from_slice(&bytes[at..at + width]);
    u64::from_le_bytes(out)
}

fn put(bytes: &mut [u8], at: usize, width: usize, value: u64) {
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// Changes a field that begins in a range.
fn change(bytes: &mut [u8], start: usize, length: usize, random: &mut Random) -> Option<Lie> {
    let width = [8, 8, 8, 4, 4, 2, 1][random.below(7) as usize].min(length);
    let width = [8, 4, 2, 1].into_iter().find(|fits| *fits <= width)?;
    // Most fields lie at multiples of their width.
    let step = if random.below(4) == 0 { 1 } else { width };
    let place = random.below(((length - width) / step + 1) as u64) as usize * step;
    let old = get(bytes, start + place, width);
    let new = other(random, old, width);
    put(bytes, start + place, width, new);
    Some(Lie {
        what: String::new(),
        place,
        width,
        old,
        new,
    })
}

fn load(place: &Place, base: &Base) -> Vec<u8> {
    let mut bytes = vec![0; base.node_size];
    let at = place.copies[0];
    base.devices[at.device]
        .read_at(at.offset, &mut bytes)
        .expect("it lies on the device");
    bytes
}

fn store(place: &Place, base: &Base, devices: &[Arc<MemoryDevice>], bytes: &mut [u8]) {
    base.checksum.seal_block(bytes);
    for copy in &place.copies {
        devices[copy.device]
            .write_at(copy.offset, bytes)
            .expect("it fits");
    }
}

/// Changes one number of a copy of `base`.
pub fn tell(base: &Base, devices: &[Arc<MemoryDevice>], random: &mut Random) -> Lie {
    loop {
        let lie = match random.below(20) {
            0 => in_superblock(base, devices, random),
            1 => in_header(base, devices, random),
            2 => in_branch(base, devices, random),
            _ => in_item(base, devices, random),
        };
        if let Some(lie) = lie {
            return lie;
        }
    }
}

fn in_superblock(base: &Base, devices: &[Arc<MemoryDevice>], random: &mut Random) -> Option<Lie> {
    let which = random.below(devices.len() as u64) as usize;
    let mut bytes = vec![0; SIZE];
    devices[which].read_at(COPIES[0], &mut bytes).ok()?;
    // Numbers of the volume, of the device, system chunks, backups.
    let (start, length) = match random.below(6) {
        0..=2 => (0x40, 0x8b),
        3 => (0xc9, 98),
        4 => (0x32b, 200),
        _ => (0xb2b, 4 * 168),
    };
    let mut lie = change(&mut bytes, start, length, random)?;
    lie.what = format!("the superblock of device {}", which + 1);
    lie.place += start;
    store_superblock(base, &devices[which], &bytes);
    Some(lie)
}

/// Writes all copies of a superblock.
fn store_superblock(base: &Base, device: &MemoryDevice, bytes: &[u8]) {
    for copy in COPIES {
        if copy.get() + SIZE as u64 > device.size() {
            continue;
        }
        let mut own = bytes.to_vec();
        put(&mut own, 0x30, 8, copy.get());
        base.checksum.seal_block(&mut own);
        device.write_at(copy, &own).expect("it fits");
    }
}

/// Changes the superblock's sum of used bytes on all devices.
pub fn change_sum(base: &Base, devices: &[Arc<MemoryDevice>], by: u64) {
    for device in devices {
        let mut bytes = vec![0; SIZE];
        device.read_at(COPIES[0], &mut bytes).expect("it is there");
        let old = get(&bytes, 0x78, 8);
        put(&mut bytes, 0x78, 8, old.wrapping_add(by));
        store_superblock(base, device, &bytes);
    }
}

fn in_header(base: &Base, devices: &[Arc<MemoryDevice>], random: &mut Random) -> Option<Lie> {
    let place = &base.nodes[random.below(base.nodes.len() as u64) as usize];
    let mut bytes = load(place, base);
    let start = field::LOGICAL;
    let mut lie = change(&mut bytes, start, HEADER_SIZE - start, random)?;
    lie.what = format!("the header of a node of tree {}", place.tree);
    lie.place += start;
    store(place, base, devices, &mut bytes);
    Some(lie)
}

fn in_branch(base: &Base, devices: &[Arc<MemoryDevice>], random: &mut Random) -> Option<Lie> {
    let place = &base.nodes[random.below(base.nodes.len() as u64) as usize];
    let mut bytes = load(place, base);
    if bytes[field::LEVEL] == 0 {
        return None;
    }
    let count = get(&bytes, field::ITEM_COUNT, 4);
    let at = HEADER_SIZE + random.below(count) as usize * POINTER_SIZE;
    let mut lie = change(&mut bytes, at, POINTER_SIZE, random)?;
    lie.what = format!("a pointer of a branch of tree {}", place.tree);
    store(place, base, devices, &mut bytes);
    Some(lie)
}

fn in_item(base: &Base, devices: &[Arc<MemoryDevice>], random: &mut Random) -> Option<Lie> {
    let items = &base.types[random.below(base.types.len() as u64) as usize];
    let item = items[random.below(items.len() as u64) as usize];
    let place = &base.nodes[item.node];
    let mut bytes = load(place, base);
    let at = HEADER_SIZE + item.slot * ITEM_SIZE;
    let offset = get(&bytes, at + KEY, 4) as usize;
    let size = get(&bytes, at + KEY + 4, 4) as usize;
    let name = format!("tree {} {:?}", place.tree, item.key);
    let mut lie;
    if size == 0 || random.below(6) == 0 {
        // The objectid or the offset of its key, or where its data lie.
        let (start, length) =
            [(0, 8), (9, 8), (0, 8), (9, 8), (17, 8), (8, 1)][random.below(6) as usize];
        lie = change(&mut bytes, at + start, length, random)?;
        lie.what = format!("key of {name}");
        lie.place += start;
    } else {
        lie = change(&mut bytes, HEADER_SIZE + offset, size, random)?;
        lie.what = name;
    }
    store(place, base, devices, &mut bytes);
    Some(lie)
}

/// A part of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Objectid and offset of the key are at 0 and 9.
    Key,
    Data,
}

/// A number of some items, and how it is changed.
#[derive(Clone, Copy)]
pub struct Number {
    pub what: &'static str,
    /// The items.
    pub of: fn(Key, &[u8]) -> bool,
    pub part: Part,
    /// Where it lies in the part.
    pub place: usize,
    pub width: usize,
    pub change: fn(u64) -> u64,
}

/// Changes a number of all items that have it; gives how many there were.
pub fn change_all(base: &Base, devices: &[Arc<MemoryDevice>], number: &Number) -> usize {
    let mut changed = 0;
    for place in &base.nodes {
        let mut bytes = load(place, base);
        if bytes[field::LEVEL] != 0 {
            continue;
        }
        let before = changed;
        for slot in 0..get(&bytes, field::ITEM_COUNT, 4) as usize {
            let at = HEADER_SIZE + slot * ITEM_SIZE;
            let mut raw = [0; KEY];
            raw.copy_from_slice(&bytes[at..at + KEY]);
            let start = HEADER_SIZE + get(&bytes, at + KEY, 4) as usize;
            let size = get(&bytes, at + KEY + 4, 4) as usize;
            if !(number.of)(Key::from_bytes(&raw), &bytes[start..start + size]) {
                continue;
            }
            let at = match number.part {
                Part::Key => at + number.place,
                Part::Data => start + number.place,
            };
            let old = get(&bytes, at, number.width);
            put(&mut bytes, at, number.width, (number.change)(old));
            changed += 1;
        }
        if changed > before {
            store(place, base, devices, &mut bytes);
        }
    }
    changed
}
