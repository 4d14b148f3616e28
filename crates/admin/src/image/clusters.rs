//! Clusters: how items lie in an image.
//!
//! A cluster is a table of [`TABLE`] bytes, then the items, then zeros up to the
//! next multiple of [`TABLE`]. The table has a magic number, its own offset, the
//! number of items, the compression, and for each item its address and stored
//! size. Numbers are little-endian. An item is the superblock or a run of
//! consecutive nodes. Each item is compressed on its own.

use super::{Fault, ImageError};
use butterfs_format::bytes::{Reader, Writer};
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use std::io::{self, Read, Write};

/// Bytes of a table. Clusters begin at multiples of it.
const TABLE: usize = 1024;
const MAGIC: u64 = 0xbd5c_25e2_7295_668b;
/// Bytes of a table before its items.
const HEADER: usize = 21;
/// Bytes of an item's entry.
const ENTRY: usize = 12;
/// The most items of a cluster.
const ITEMS_MAX: usize = (TABLE - HEADER) / ENTRY;
/// The most bytes of nodes in one item, as in btrfs-image.
pub const RUN_MAX: usize = 256 << 10;
/// The most bytes of an item that are accepted when an image is read, stored and
/// unpacked.
const ITEM_BYTES_MAX: usize = 4 << 20;
const NONE: u8 = 0;
const ZLIB: u8 = 1;

/// An item: bytes and where they lie in the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Logical address; for the superblock, its offset on the device.
    pub at: u64,
    /// The bytes, packed or unpacked.
    pub bytes: Vec<u8>,
}

/// Level of compression by zlib; 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level(pub u8);

impl Level {
    /// Returns the bytes in the form in which they are stored.
    pub fn pack(self, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        if self.0 == 0 {
            return Ok(bytes);
        }
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(self.0.into()));
        encoder.write_all(&bytes)?;
        encoder.finish()
    }
}

/// Writes clusters.
pub struct ClusterWriter<W> {
    out: W,
    level: Level,
    at: u64,
    waiting: Vec<Item>,
}

impl<W: Write> ClusterWriter<W> {
    /// Makes a writer. The items that it gets must be packed with `level`.
    pub const fn new(out: W, level: Level) -> Self {
        Self {
            out,
            level,
            at: 0,
            waiting: Vec::new(),
        }
    }

    /// Adds a packed item.
    pub fn add(&mut self, item: Item) -> io::Result<()> {
        self.waiting.push(item);
        match self.waiting.len() == ITEMS_MAX {
            true => self.write(),
            false => Ok(()),
        }
    }

    /// Writes the waiting items, and returns the output.
    pub fn finish(mut self) -> io::Result<W> {
        if !self.waiting.is_empty() {
            self.write()?;
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn write(&mut self) -> io::Result<()> {
        let items = std::mem::take(&mut self.waiting);
        let mut table = Writer::with_capacity(TABLE);
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        table
            .u64(MAGIC)
            .u64(self.at)
            .u32(number(items.len()))
            .u8(if self.level.0 == 0 { NONE } else { ZLIB });
        for item in &items {
            table.u64(item.at).u32(number(item.bytes.len()));
        }
        table.zeros(TABLE - table.len());
        self.out.write_all(&table.finish())?;
        let mut length = TABLE;
        for item in &items {
            self.out.write_all(&item.bytes)?;
            length += item.bytes.len();
        }
        let padding = length.next_multiple_of(TABLE) - length;
        self.out.write_all(&vec![0; padding])?;
        self.at += (length + padding) as u64;
        Ok(())
    }
}

/// Reads where an image begins.
///
/// # Errors
/// The input cannot be read, or is no image.
pub fn read_begin(input: &mut dyn Read) -> Result<Vec<u8>, ImageError> {
    let mut begin = vec![0; TABLE];
    let damaged = |what| Err(ImageError::Damaged { at: 0, what });
    if read_some(input, &mut begin)? < TABLE {
        return damaged(Fault::Cut);
    }
    match begin.starts_with(&MAGIC.to_le_bytes()) {
        true => Ok(begin),
        false => damaged(Fault::Magic),
    }
}

/// Calls `visit` with each unpacked item of an image and its offset there, in
/// order.
pub fn each_item(
    input: &mut dyn Read,
    visit: &mut dyn FnMut(u64, Item) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let mut at = 0_u64;
    loop {
        let mut table = [0; TABLE];
        let read = read_some(input, &mut table)?;
        let damaged = |what| ImageError::Damaged { at, what };
        if read == 0 && at > 0 {
            return Ok(());
        }
        if read < TABLE {
            return Err(damaged(Fault::Cut));
        }
        let mut r = Reader::new("cluster", &table);
        if r.u64()? != MAGIC {
            return Err(damaged(Fault::Magic));
        }
        if r.u64()? != at {
            return Err(damaged(Fault::Place));
        }
        let count = usize::try_from(r.u32()?).unwrap_or(usize::MAX);
        let compression = r.u8()?;
        if count == 0 || count > ITEMS_MAX {
            return Err(damaged(Fault::Items));
        }
        if compression > ZLIB {
            return Err(damaged(Fault::Compression));
        }
        let mut length = TABLE;
        for _ in 0..count {
            let here = at + length as u64;
            let damaged = |what| ImageError::Damaged { at: here, what };
            let address = r.u64()?;
            let size = usize::try_from(r.u32()?).unwrap_or(usize::MAX);
            if size == 0 || size > ITEM_BYTES_MAX {
                return Err(damaged(Fault::Size));
            }
            let mut stored = vec![0; size];
            if read_some(input, &mut stored)? < size {
                return Err(damaged(Fault::Cut));
            }
            length += size;
            let bytes = match compression {
                NONE => stored,
                _ => unpack(&stored).ok_or_else(|| damaged(Fault::Compressed))?,
            };
            visit(here, Item { at: address, bytes })?;
        }
        let padding = length.next_multiple_of(TABLE) - length;
        // The last cluster may lack its padding.
        read_some(input, &mut vec![0; padding])?;
        at += (length + padding) as u64;
    }
}

fn unpack(stored: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut limited = ZlibDecoder::new(stored).take(ITEM_BYTES_MAX as u64 + 1);
    limited.read_to_end(&mut bytes).ok()?;
    (!bytes.is_empty() && bytes.len() <= ITEM_BYTES_MAX).then_some(bytes)
}

/// Reads until `buffer` is full or the input ends.
fn read_some(input: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match input.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(level: Level) -> (Vec<Item>, Vec<u8>) {
        let items: Vec<Item> = (0..200_u64)
            .map(|number| Item {
                at: number << 20,
                bytes: vec![number as u8; 4096 + number as usize],
            })
            .collect();
        let mut writer = ClusterWriter::new(Vec::new(), level);
        for item in &items {
            let bytes = level.pack(item.bytes.clone()).unwrap();
            writer.add(Item { at: item.at, bytes }).unwrap();
        }
        (items, writer.finish().unwrap())
    }

    fn read(bytes: &[u8]) -> Result<Vec<Item>, ImageError> {
        let mut found = Vec::new();
        each_item(&mut &bytes[..], &mut |_, item| {
            found.push(item);
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn items_come_back() {
        for level in [Level(0), Level(1), Level(9)] {
            let (items, bytes) = image(level);
            assert!(bytes.len().is_multiple_of(TABLE));
            assert_eq!(read(&bytes).unwrap(), items);
        }
    }

    #[test]
    fn a_cut_or_changed_image_is_an_error() {
        for level in [Level(0), Level(3)] {
            let (items, bytes) = image(level);
            for length in [0, 1, TABLE - 1, TABLE, TABLE + 5000] {
                assert!(read(&bytes[..length]).is_err(), "{length} bytes");
            }
            for at in 0..TABLE {
                let mut changed = bytes.clone();
                changed[at] ^= 0x80;
                // Reading never panics. It cannot notice a changed address.
                if let Ok(found) = read(&changed) {
                    assert_eq!(found.len(), items.len(), "byte {at}");
                }
            }
        }
    }
}
