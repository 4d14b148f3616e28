//! Compares the UUID tree with the subvolumes.

use super::Items;
use super::roots::Roots;
use crate::code::FaultCode;
use crate::context::Context;
use crate::report::Place;
use butterfs_format::{ItemType, Key, TreeId, UuidBytes};

fn key_of(item_type: ItemType, uuid: UuidBytes) -> Key {
    let [
        a0,
        a1,
        a2,
        a3,
        a4,
        a5,
        a6,
        a7,
        b0,
        b1,
        b2,
        b3,
        b4,
        b5,
        b6,
        b7,
    ] = uuid;
    Key::new(
        u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
        item_type,
        u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
    )
}

/// Checks that each entry fits a subvolume, and that each subvolume has its
/// entries. Skips a tree that is outdated by the superblock, because the next
/// mount rebuilds it.
pub(crate) fn check(context: &Context<'_>, roots: &Roots, items: &Items) {
    if context.superblock.uuid_tree_generation != context.superblock.generation {
        return;
    }
    let mut entries: std::collections::BTreeSet<(Key, u64)> = std::collections::BTreeSet::new();
    for (key, data) in items {
        let place = Place::item(TreeId::UUID, *key);
        let wrong = |text: String| context.fault(FaultCode::UuidWrong, place, text);
        let top = |text: String| context.fault(FaultCode::UuidTopLevel, place, text);
        let known =
            [ItemType::UUID_SUBVOL, ItemType::UUID_RECEIVED_SUBVOL].contains(&key.item_type);
        let (ids, rest) = data.as_chunks::<8>();
        if !known || ids.is_empty() || !rest.is_empty() {
            wrong(format!("{} bytes are no list of subvolumes", data.len()));
            continue;
        }
        for id in ids {
            let id = u64::from_le_bytes(*id);
            entries.insert((*key, id));
            let root = roots.subvolume(TreeId(id));
            let fits = root.is_some_and(|root| {
                let uuid = if key.item_type == ItemType::UUID_SUBVOL {
                    root.item.uuid
                } else {
                    root.item.received_uuid
                };
                key_of(key.item_type, uuid) == *key
            });
            if !fits && id == TreeId::FS.get() {
                top("the top-level subvolume does not have this UUID".to_owned());
            } else if !fits {
                wrong(format!("subvolume {id} does not have this UUID"));
            }
        }
    }
    for root in roots.live() {
        let both = [
            (ItemType::UUID_SUBVOL, root.item.uuid),
            (ItemType::UUID_RECEIVED_SUBVOL, root.item.received_uuid),
        ];
        for (item_type, uuid) in both {
            let key = key_of(item_type, uuid);
            if uuid != [0; 16] && !entries.contains(&(key, root.id.get())) {
                let text = format!("subvolume {} is not found under {key}", root.id);
                let code = if root.id == TreeId::FS {
                    FaultCode::UuidTopLevel
                } else {
                    FaultCode::UuidMissing
                };
                context.fault(code, Place::tree(root.id), text);
            }
        }
    }
}
