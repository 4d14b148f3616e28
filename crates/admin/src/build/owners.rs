//! Maps the owners of the sources to those of an image.

use super::BuildError;
use super::model::{Metadata, shown};
use std::str::FromStr;

/// A range of users and groups, and the range to which it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerRange {
    /// First number in the sources.
    pub from: u32,
    /// First number in the image.
    pub to: u32,
    /// How many numbers.
    pub count: u32,
}

impl FromStr for OwnerRange {
    type Err = String;

    /// Parses `FROM:TO:COUNT`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no map of owners; write FROM:TO:COUNT");
        let numbers: Vec<u32> = text
            .split(':')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map_err(|_| bad())?;
        match numbers[..] {
            [from, to, count] if from.checked_add(count).is_some() => {
                // Both ranges end before the greatest number, which means no
                // owner.
                let last = to.checked_add(count).filter(|_| count > 0);
                last.map(|_| Self { from, to, count }).ok_or_else(bad)
            }
            _ => Err(bad()),
        }
    }
}

/// A map of owners. If it is empty, owners stay.
#[derive(Clone, Debug, Default)]
pub struct OwnerMap(Vec<OwnerRange>);

impl OwnerMap {
    /// Makes a map. The first range that contains a number maps it.
    #[must_use]
    pub const fn new(ranges: Vec<OwnerRange>) -> Self {
        Self(ranges)
    }

    fn map(&self, id: u32) -> Option<u32> {
        if self.0.is_empty() {
            return Some(id);
        }
        let has = |range: &&OwnerRange| id >= range.from && id - range.from < range.count;
        let range = self.0.iter().find(has)?;
        Some(range.to + (id - range.from))
    }

    /// Changes the owners of a file, including those in its access control lists
    /// and capabilities.
    pub(super) fn apply(
        &self,
        metadata: &mut Metadata,
        path: &[Vec<u8>],
    ) -> Result<(), BuildError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let map = |id| {
            self.map(id).ok_or_else(|| BuildError::Unmapped {
                path: shown(path),
                id,
            })
        };
        metadata.uid = map(metadata.uid)?;
        metadata.gid = map(metadata.gid)?;
        for (name, value) in &mut metadata.attributes {
            if name.starts_with(b"system.posix_acl_") {
                map_acl(value, &map)?;
            }
            if name == b"security.capability" {
                map_capabilities(value, &map)?;
            }
        }
        Ok(())
    }
}

/// Changes the users and groups in an access control list. The list is a version
/// and entries of tag, permissions and number.
fn map_acl(
    value: &mut [u8],
    map: &dyn Fn(u32) -> Result<u32, BuildError>,
) -> Result<(), BuildError> {
    const VERSION: usize = 4;
    const ENTRY: usize = 8;
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x08;
    let entries = value.get_mut(VERSION..).unwrap_or_default();
    for entry in entries.chunks_exact_mut(ENTRY) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        if matches!(tag, USER | GROUP) {
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            entry[4..].copy_from_slice(&map(id)?.to_le_bytes());
        }
    }
    Ok(())
}

/// Changes the user in file capabilities: version 3 has the number of the user
/// namespace's root at its end (capabilities(7)).
fn map_capabilities(
    value: &mut [u8],
    map: &dyn Fn(u32) -> Result<u32, BuildError>,
) -> Result<(), BuildError> {
    const VERSION_3: u8 = 3;
    let Some((rest, root)) = value.split_last_chunk_mut::<4>() else {
        return Ok(());
    };
    if rest.len() == 20 && rest[3] == VERSION_3 {
        *root = map(u32::from_le_bytes(*root))?.to_le_bytes();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_map_files_and_their_lists() {
        let ranges = ["1000:0:1", "100000:1:65535"].map(|text| text.parse().unwrap());
        let map = OwnerMap::new(ranges.to_vec());
        let mut acl = vec![2, 0, 0, 0];
        // Owner, user 100032, mask.
        acl.extend([1, 0, 7, 0, 255, 255, 255, 255]);
        acl.extend([2, 0, 4, 0]);
        acl.extend(100_032_u32.to_le_bytes());
        acl.extend([16, 0, 7, 0, 255, 255, 255, 255]);
        let mut metadata = Metadata {
            uid: 1000,
            gid: 100_999,
            ..Metadata::default()
        };
        let name = b"system.posix_acl_access".to_vec();
        metadata.attributes.insert(name.clone(), acl.clone());
        map.apply(&mut metadata, &[]).unwrap();
        assert_eq!((metadata.uid, metadata.gid), (0, 1000));
        acl[16..20].copy_from_slice(&33_u32.to_le_bytes());
        assert_eq!(metadata.attributes[&name], acl);
        let capabilities = |version: u8, root: u32| {
            let mut value = vec![1, 0, 0, version];
            value.extend([0x0a; 16]);
            if version == 3 {
                value.extend(root.to_le_bytes());
            }
            value
        };
        let name = b"security.capability".to_vec();
        for (before, after) in [
            (capabilities(3, 1000), capabilities(3, 0)),
            (capabilities(2, 0), capabilities(2, 0)),
        ] {
            (metadata.uid, metadata.gid) = (1000, 1000);
            metadata.attributes = [(name.clone(), before)].into();
            map.apply(&mut metadata, &[]).unwrap();
            assert_eq!(metadata.attributes[&name], after);
        }
        metadata.uid = 1001;
        assert!(map.apply(&mut metadata, &[]).is_err());
        for bad in ["", "1:2", "1:2:x", "1:2:0", "4294967295:0:2"] {
            assert!(bad.parse::<OwnerRange>().is_err(), "{bad}");
        }
    }
}
