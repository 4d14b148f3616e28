//! The items of a quota tree, gathered into groups.

use crate::quota::groups::QuotaGroup;
use butterfs_format::item::qgroup::{GroupId, QgroupInfo, QgroupLimit, QgroupStatus};
use butterfs_format::{ItemType, Key, ParseError};
use std::collections::BTreeMap;

/// What a quota tree says, gathered from its items in any order.
#[derive(Clone, Debug, Default)]
pub struct QuotaItems {
    /// State of quotas; `None` when the item is missing.
    pub status: Option<QgroupStatus>,
    /// Groups with their use, limits and relations.
    pub groups: BTreeMap<GroupId, QuotaGroup>,
}

impl QuotaItems {
    /// Takes in one item; those of unknown types are skipped.
    ///
    /// # Errors
    /// The item is damaged.
    pub fn add(&mut self, key: Key, data: &[u8]) -> Result<(), ParseError> {
        let id = GroupId(key.offset);
        match key.item_type {
            ItemType::QGROUP_STATUS => self.status = Some(QgroupStatus::parse(data)?),
            ItemType::QGROUP_INFO => {
                self.groups.entry(id).or_default().info = QgroupInfo::parse(data)?;
            }
            ItemType::QGROUP_LIMIT => {
                self.groups.entry(id).or_default().limit = QgroupLimit::parse(data)?;
            }
            ItemType::QGROUP_RELATION => {
                let of = GroupId(key.objectid);
                let group = self.groups.entry(of).or_default();
                if id.level() > of.level() {
                    group.parents.insert(id);
                } else {
                    group.children.insert(id);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
