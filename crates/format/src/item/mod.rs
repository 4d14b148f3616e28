//! Items of leaves, one file for each concept.
//!
//! A parser checks lengths and enumerations. What must hold between items is
//! the verifier's work.

pub mod balance;
pub mod block_group;
pub mod chunk;
pub mod csum;
pub mod device;
pub mod dir;
pub mod extent;
pub mod extent_ref;
pub mod file_extent;
pub mod free_space;
pub mod inode;
pub mod log;
pub mod qgroup;
pub mod raid_stripe;
pub mod root;
pub mod root_ref;
pub mod state;
pub mod uuid;

use crate::ParseError;
use crate::bytes::Reader;

/// Greatest length of a name in a directory.
pub const NAME_MAX: usize = 255;

/// Fails when bytes are left after the last field.
pub(crate) fn expect_end(what: &'static str, r: &Reader<'_>) -> Result<(), ParseError> {
    match r.remaining() {
        0 => Ok(()),
        extra => Err(ParseError::TrailingBytes { what, extra }),
    }
}

/// Takes a name of `length` bytes, which must be 1..=[`NAME_MAX`].
pub(crate) fn name<'a>(
    what: &'static str,
    r: &mut Reader<'a>,
    length: u16,
) -> Result<&'a [u8], ParseError> {
    if length == 0 || usize::from(length) > NAME_MAX {
        return Err(ParseError::BadValue {
            what,
            field: "name length",
            value: u64::from(length),
        });
    }
    r.bytes(usize::from(length))
}
