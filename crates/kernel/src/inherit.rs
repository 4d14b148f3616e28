//! Quota groups that a new subvolume is put into.

use crate::argument::{NAMED, put};
use butterfs_format::item::qgroup::GroupId;

/// Flag: the request names quota groups.
const INHERIT: u64 = 1 << 2;

/// Quota groups that a new subvolume is put into, as requests point to them.
pub(crate) struct Inherit(Vec<u64>);

impl Inherit {
    /// Words before the groups: flags, three counts, five of limits.
    const HEADER: usize = 9;

    pub(crate) fn new(groups: &[GroupId]) -> Self {
        let mut words = vec![0; Self::HEADER];
        if let Some(count) = words.get_mut(1) {
            *count = u64::try_from(groups.len()).unwrap_or(u64::MAX);
        }
        words.extend(groups.iter().map(|group| group.0));
        Self(words)
    }

    /// Has `argument` point here.
    pub(crate) fn enter(&self, argument: &mut [u8; NAMED], flags: u64) {
        let is_wanted = self.0.len() > Self::HEADER;
        let flags = if is_wanted { flags | INHERIT } else { flags };
        put(argument, 16, &flags.to_le_bytes());
        if is_wanted {
            let size = size_of_val(self.0.as_slice());
            put(argument, 24, &size.to_le_bytes());
            let address = self.0.as_ptr().expose_provenance();
            put(argument, 32, &address.to_le_bytes());
        }
    }
}
