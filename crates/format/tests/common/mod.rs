//! Leaves from files, cut into items.

use butterfs_format::bytes::Reader;
use butterfs_format::node::{HEADER_SIZE, ItemDescriptor, NodeHeader};
use butterfs_format::{ChecksumType, Key};
use std::path::Path;

/// A leaf of a real volume.
pub struct Leaf {
    /// Name of its file without the ending.
    pub name: String,
    /// Checksum of its volume.
    pub checksum: ChecksumType,
    /// All of it.
    pub bytes: Vec<u8>,
}

/// An item with a body of its own.
pub struct Item {
    /// Key.
    pub key: Key,
    /// Body.
    pub data: Vec<u8>,
}

/// All leaves, by name.
pub fn leaves() -> Vec<Leaf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/leaves");
    let mut leaves: Vec<Leaf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let checksum = name.split('-').next().and_then(ChecksumType::from_name);
            Leaf {
                checksum: checksum.expect("the name begins with a checksum"),
                bytes: std::fs::read(path).unwrap(),
                name,
            }
        })
        .collect();
    leaves.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(!leaves.is_empty());
    leaves
}

/// Items of a leaf.
pub fn items(leaf: &[u8]) -> Vec<Item> {
    let header = NodeHeader::parse(leaf).unwrap();
    assert_eq!(header.level, 0);
    let mut r = Reader::new("leaf", &leaf[HEADER_SIZE..]);
    (0..header.item_count)
        .map(|_| {
            let found = ItemDescriptor::parse(&mut r).unwrap();
            let start = HEADER_SIZE + found.data_offset as usize;
            Item {
                key: found.key,
                data: leaf[start..start + found.data_size as usize].to_vec(),
            }
        })
        .collect()
}
