//! Extent items as text: references and who holds them.

use super::names::object_name;
use butterfs_format::{ItemType, Key};

/// Flag of an extent that is a node.
const TREE_BLOCK: u64 = 2;

/// Takes bytes from the front.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*first))
    }

    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    fn key(&mut self) -> Option<Key> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(Key::from_bytes(first))
    }
}

/// Describes an extent item in lines; `None` if it is cut short or unknown.
pub fn describe(key: Key, data: &[u8], lines: &mut Vec<String>) -> Option<()> {
    let mut rest = Rest(data);
    let (refs, generation, flags) = (rest.u64()?, rest.u64()?, rest.u64()?);
    let is_node = flags & TREE_BLOCK != 0;
    let mut kind = if is_node { "TREE_BLOCK" } else { "DATA" }.to_owned();
    if flags & (1 << 8) != 0 {
        kind.push_str("|FULL_BACKREF");
    }
    lines.push(format!("refs {refs} gen {generation} flags {kind}"));
    if is_node && key.item_type == ItemType::EXTENT_ITEM {
        let (first, level) = (rest.key()?, rest.u8()?);
        lines.push(format!("tree block key {first} level {level}"));
    } else if is_node {
        lines.push(format!("tree block skinny level {}", key.offset));
    }
    while !rest.0.is_empty() {
        match rest.u8()? {
            176 => lines.push(format!(
                "tree block backref root {}",
                object_name(rest.u64()?)
            )),
            178 => {
                lines.push(data_reference(ItemType::EXTENT_DATA_REF, rest.0)?);
                rest.0 = rest.0.get(28..)?;
            }
            182 => lines.push(format!("shared block backref parent {}", rest.u64()?)),
            184 => lines.push(format!(
                "shared data backref parent {} count {}",
                rest.u64()?,
                rest.u32()?
            )),
            _ => return None,
        }
    }
    Some(())
}

/// Describes an item that is a reference to data; `None` if it is cut short.
pub fn data_reference(kind: ItemType, data: &[u8]) -> Option<String> {
    let mut rest = Rest(data);
    if kind == ItemType::SHARED_DATA_REF {
        return Some(format!("shared data backref count {}", rest.u32()?));
    }
    Some(format!(
        "extent data backref root {} objectid {} offset {} count {}",
        object_name(rest.u64()?),
        rest.u64()?,
        rest.u64()?,
        rest.u32()?
    ))
}
