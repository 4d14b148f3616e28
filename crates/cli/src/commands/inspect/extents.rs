//! Extent items as text: references and who holds them.

use super::tree::object_name;
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

/// Prints an extent item; `None` if it is cut short or unknown.
pub fn print(key: Key, data: &[u8]) -> Option<()> {
    let mut rest = Rest(data);
    let (refs, generation, flags) = (rest.u64()?, rest.u64()?, rest.u64()?);
    let is_node = flags & TREE_BLOCK != 0;
    let mut kind = if is_node { "TREE_BLOCK" } else { "DATA" }.to_owned();
    if flags & (1 << 8) != 0 {
        kind.push_str("|FULL_BACKREF");
    }
    say!("\t\trefs {refs} gen {generation} flags {kind}");
    if is_node && key.item_type == ItemType::EXTENT_ITEM {
        let (first, level) = (rest.key()?, rest.u8()?);
        say!("\t\ttree block key {first} level {level}");
    } else if is_node {
        say!("\t\ttree block skinny level {}", key.offset);
    }
    while !rest.0.is_empty() {
        match rest.u8()? {
            176 => say!("\t\ttree block backref root {}", object_name(rest.u64()?)),
            178 => say!(
                "\t\textent data backref root {} objectid {} offset {} count {}",
                object_name(rest.u64()?),
                rest.u64()?,
                rest.u64()?,
                rest.u32()?
            ),
            182 => say!("\t\tshared block backref parent {}", rest.u64()?),
            184 => say!(
                "\t\tshared data backref parent {} count {}",
                rest.u64()?,
                rest.u32()?
            ),
            _ => return None,
        }
    }
    Some(())
}
