//! Superblocks: layout, system chunks, backup roots, and the map that opening
//! makes of them.

use crate::meter::bounded;
use butterfs_format::DeviceOffset;
use butterfs_format::checksum::ChecksumType;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_volume::ChunkMap;

/// Any bytes as a superblock, as they are and with their checksum made right.
pub fn run(data: &[u8]) {
    bounded(16 << 20, || {
        let _ = Superblock::parse(data, COPIES[0]);
        let mut block = data.to_vec();
        block.resize(SIZE, 0);
        let Ok(unverified) = Superblock::parse_unverified(&block) else {
            return;
        };
        unverified.checksum_type.seal_block(&mut block);
        let sealed = Superblock::parse(&block, unverified.own_offset);
        for superblock in [Some(unverified), sealed.ok()].into_iter().flatten() {
            use_it(&superblock);
        }
    });
}

fn use_it(superblock: &Superblock) {
    let mut map = ChunkMap::default();
    for (logical, chunk) in &superblock.sys_chunks {
        let _ = map.insert(*logical, chunk.clone());
    }
    let _ = map.check_devices(|_| Some(superblock.total_bytes));
    let _ = superblock.node_fsid();
    let _ = (
        superblock.incompat.names(),
        superblock.compat_ro.names(),
        superblock.flags.names(),
    );
    // A superblock that was read and is written reads the same again.
    let place = DeviceOffset(COPIES[1].get());
    let bytes = superblock.encode(place);
    assert_eq!(bytes.len(), SIZE);
    let again = Superblock::parse_unverified(&bytes).expect("an encoding can be parsed");
    assert_eq!(again.encode(place), bytes);
    assert_eq!(again.sys_chunks, superblock.sys_chunks);
    assert_eq!(again.backup_roots, superblock.backup_roots);
    assert_eq!(again.device, superblock.device);
    assert!(ChecksumType::from_number(again.checksum_type.number()).is_some());
}
