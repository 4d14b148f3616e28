//! Items of the quota tree.
//!
//! Owns status, use and limit of quota groups. A group's number is its level in
//! the upper 16 bits and a tree (level 0) or a free number below. Keys are (0,
//! type, group); a QGROUP_RELATION has the two groups as object and offset, no
//! body, and exists in both directions.

use crate::bytes::{Reader, Writer};
use crate::item::expect_end;
use crate::{Generation, ItemType, Key, ParseError, TreeId, bit_flags};
use std::fmt;
use std::str::FromStr;

bit_flags!(
    /// State of quotas.
    QgroupStatusFlags: u64 {
        /// Quotas are on.
        ON = 1 << 0, "ON";
        /// A scan is running.
        RESCAN = 1 << 1, "RESCAN";
        /// The numbers are wrong; a scan is needed.
        INCONSISTENT = 1 << 2, "INCONSISTENT";
        /// Simple quotas.
        SIMPLE_MODE = 1 << 3, "SIMPLE_MODE";
    }
);

/// QGROUP_STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QgroupStatus {
    /// 1.
    pub version: u64,
    /// Generation of the numbers; another one than the volume's means that
    /// they are stale.
    pub generation: Generation,
    /// State.
    pub flags: QgroupStatusFlags,
    /// Where the scan continues (an address in the extent tree).
    pub rescan: u64,
    /// Generation that switched simple quotas on; only with SIMPLE_MODE.
    pub enable_generation: Option<Generation>,
}

impl QgroupStatus {
    /// The only version.
    pub const VERSION: u64 = 1;
    /// Where it is.
    pub const KEY: Key = Key::new(0, ItemType::QGROUP_STATUS, 0);
    /// `rescan` without a scan.
    pub const NO_RESCAN: u64 = u64::MAX;

    /// Reads an item; the last field is missing on older kernels.
    ///
    /// # Errors
    /// A wrong size; [`ParseError::BadValue`] for another version.
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "quota status";
        let mut r = Reader::new(WHAT, data);
        let version = r.u64()?;
        if version != Self::VERSION {
            return Err(ParseError::BadValue {
                what: WHAT,
                field: "version",
                value: version,
            });
        }
        let generation = Generation(r.u64()?);
        let flags = QgroupStatusFlags(r.u64()?);
        let rescan = r.u64()?;
        let enable_generation = match r.remaining() {
            0 => None,
            _ => Some(Generation(r.u64()?)),
        };
        expect_end(WHAT, &r)?;
        Ok(Self {
            version,
            generation,
            flags,
            rescan,
            enable_generation,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(40);
        w.u64(self.version)
            .u64(self.generation.get())
            .u64(self.flags.0)
            .u64(self.rescan);
        if let Some(generation) = self.enable_generation {
            w.u64(generation.get());
        }
        w.finish()
    }
}

/// QGROUP_INFO: what a group uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QgroupInfo {
    /// Generation of the last change.
    pub generation: Generation,
    /// Reachable from the group.
    pub referenced: u64,
    /// The same; meant for compressed bytes.
    pub referenced_compressed: u64,
    /// Reachable from the group alone.
    pub exclusive: u64,
    /// The same; meant for compressed bytes.
    pub exclusive_compressed: u64,
}

impl QgroupInfo {
    /// Reads an item.
    ///
    /// # Errors
    /// A wrong size.
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "quota use";
        let mut r = Reader::new(WHAT, data);
        let item = Self {
            generation: Generation(r.u64()?),
            referenced: r.u64()?,
            referenced_compressed: r.u64()?,
            exclusive: r.u64()?,
            exclusive_compressed: r.u64()?,
        };
        expect_end(WHAT, &r)?;
        Ok(item)
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(40);
        w.u64(self.generation.get())
            .u64(self.referenced)
            .u64(self.referenced_compressed)
            .u64(self.exclusive)
            .u64(self.exclusive_compressed);
        w.finish()
    }
}

bit_flags!(
    /// Which limits hold.
    QgroupLimitFlags: u64 {
        /// `referenced_max`.
        MAX_REFERENCED = 1 << 0, "MAX_RFER";
        /// `exclusive_max`.
        MAX_EXCLUSIVE = 1 << 1, "MAX_EXCL";
        /// `reserved_referenced`.
        RESERVED_REFERENCED = 1 << 2, "RSV_RFER";
        /// `reserved_exclusive`.
        RESERVED_EXCLUSIVE = 1 << 3, "RSV_EXCL";
        /// Limits are of compressed bytes.
        REFERENCED_COMPRESSED = 1 << 4, "RFER_CMPR";
        /// Limits are of compressed bytes.
        EXCLUSIVE_COMPRESSED = 1 << 5, "EXCL_CMPR";
    }
);

/// QGROUP_LIMIT: what a group may use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QgroupLimit {
    /// Which of the limits hold.
    pub flags: QgroupLimitFlags,
    /// Of referenced bytes.
    pub referenced_max: u64,
    /// Of exclusive bytes.
    pub exclusive_max: u64,
    /// Unused.
    pub reserved_referenced: u64,
    /// Unused.
    pub reserved_exclusive: u64,
}

impl QgroupLimit {
    /// Reads an item.
    ///
    /// # Errors
    /// A wrong size.
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "quota limit";
        let mut r = Reader::new(WHAT, data);
        let item = Self {
            flags: QgroupLimitFlags(r.u64()?),
            referenced_max: r.u64()?,
            exclusive_max: r.u64()?,
            reserved_referenced: r.u64()?,
            reserved_exclusive: r.u64()?,
        };
        expect_end(WHAT, &r)?;
        Ok(item)
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(40);
        w.u64(self.flags.0)
            .u64(self.referenced_max)
            .u64(self.exclusive_max)
            .u64(self.reserved_referenced)
            .u64(self.reserved_exclusive);
        w.finish()
    }
}

/// Identity of a quota group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

impl GroupId {
    /// Bits of the number below the level.
    const NUMBER_BITS: u32 = 48;
    const NUMBER_MASK: u64 = u64::MAX >> 16;

    /// The group of one subvolume.
    #[must_use]
    pub const fn of_tree(tree: TreeId) -> Self {
        Self(tree.0)
    }

    /// A group by level and number; `None` for a number of more than 48 bits.
    #[must_use]
    pub fn new(level: u16, number: u64) -> Option<Self> {
        let high = u64::from(level).checked_shl(Self::NUMBER_BITS)?;
        (number <= Self::NUMBER_MASK).then_some(Self(high | number))
    }

    /// 0 for the group of one subvolume, more for groups of groups.
    #[must_use]
    pub const fn level(self) -> u16 {
        let [high, low, ..] = self.0.to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    /// Number within its level.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 & Self::NUMBER_MASK
    }

    /// The subvolume that a group of level 0 counts.
    #[must_use]
    pub fn tree(self) -> Option<TreeId> {
        (self.level() == 0).then_some(TreeId(self.0))
    }

    /// Where its use is.
    #[must_use]
    pub const fn info_key(self) -> Key {
        Key::new(0, ItemType::QGROUP_INFO, self.0)
    }

    /// Where its limits are.
    #[must_use]
    pub const fn limit_key(self) -> Key {
        Key::new(0, ItemType::QGROUP_LIMIT, self.0)
    }

    /// Key of the item that says that it belongs to `other`, or that `other`
    /// belongs to it.
    #[must_use]
    pub const fn relation_key(self, other: Self) -> Key {
        Key::new(self.0, ItemType::QGROUP_RELATION, other.0)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level(), self.number())
    }
}

impl FromStr for GroupId {
    type Err = &'static str;

    /// `LEVEL/NUMBER`, or the number of a subvolume alone.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "a group is LEVEL/NUMBER, like 1/100, or the id of a subvolume";
        let (level, number) = text.split_once('/').unwrap_or(("0", text));
        let level = level.parse().map_err(|_| WRONG)?;
        let number = number.parse().map_err(|_| WRONG)?;
        Self::new(level, number).ok_or("the number of a group has at most 48 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_by_level_and_number() {
        let group: GroupId = "1/100".parse().unwrap();
        assert_eq!((group.level(), group.number()), (1, 100));
        assert_eq!(group.0, (1 << 48) | 100);
        assert_eq!(group.to_string(), "1/100");
        assert_eq!("256".parse(), Ok(GroupId::of_tree(TreeId(256))));
        assert_eq!(group.tree(), None);
        for wrong in [
            "",
            "/",
            "1/",
            "x/1",
            "65536/1",
            "1/281474976710656",
            "1/2/3",
        ] {
            assert!(wrong.parse::<GroupId>().is_err(), "{wrong}");
        }
    }
}
