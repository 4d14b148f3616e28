//! Decodes encoded writes to plain data.

use super::error::TargetError;
use butterfs_format::compression::Scratch;
use butterfs_format::send_stream::{ENCODED_MAX, EncodedWrite};

/// The bytes of the file that an encoded write covers.
///
/// # Errors
/// The encoded bytes cannot be decoded.
pub fn decode(write: &EncodedWrite<'_>, scratch: &mut Scratch) -> Result<Vec<u8>, TargetError> {
    let bad = |reason: &str| TargetError::Other(format!("its encoded data cannot be: {reason}"));
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let (skip, count) = (size(write.skip), size(write.file_length));
    let mut whole = match write.compression {
        None => write.data.to_vec(),
        Some(encoding) => {
            if write.length > ENCODED_MAX {
                return Err(bad("they are more than 128 KiB"));
            }
            let mut whole = vec![0; size(write.length)];
            let sector = match encoding.sector_size {
                0 => 4096,
                sector => sector,
            };
            scratch
                .decompress(encoding.algorithm, write.data, &mut whole, sector)
                .map_err(|error| bad(&error.to_string()))?;
            whole
        }
    };
    let end = skip
        .checked_add(count)
        .filter(|end| *end <= whole.len())
        .ok_or_else(|| bad("they end early"))?;
    whole.truncate(end);
    Ok(whole.split_off(skip))
}
