//! Whether a file or an input is an archive.
//!
//! Zeros mark the end of an archive, so the crate `tar` takes whatever begins
//! with zeros, such as the image of a volume, for an archive of nothing.

use super::{ArchiveError, BLOCK};
use butterfs_device::probe::{self, Found};
use butterfs_device::{BlockDevice, FileDevice};
use butterfs_format::DeviceOffset;
use std::fs::File;
use std::io::{Cursor, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use tar::Header;

/// The most bytes of an archive without members, as GNU tar fills it up.
const NOTHING_MAX: u64 = 10_240;
/// Where a header has its checksum, which counts as spaces in its sum.
const SUM: std::ops::Range<usize> = 148..156;

/// Opens an archive of the host, plain or compressed.
///
/// # Errors
/// [`ArchiveError::Io`], and [`ArchiveError::NoArchive`] if the file is known to
/// hold something else.
pub fn open(path: &Path) -> Result<File, ArchiveError> {
    let file = File::open(path)?;
    let kind = file.metadata()?.file_type();
    if (kind.is_file() || kind.is_block_device())
        && let Ok(device) = FileDevice::open_unlocked(path)
        && let Some(other) = other_content(&device)
    {
        return Err(ArchiveError::NoArchive(format!("it holds {other}")));
    }
    Ok(file)
}

/// What a device holds, if that is known and no archive.
fn other_content(device: &FileDevice) -> Option<Found> {
    let mut first = [0; BLOCK];
    // Files in an archive may have any signature.
    if device.read_at(DeviceOffset(0), &mut first).is_ok() && is_header(&first) {
        return None;
    }
    let found = probe::contents(device).ok()?;
    let is_compressed = found
        .iter()
        .any(|found| matches!(found, Found::Compressed(_)));
    match is_compressed {
        true => None,
        false => found.first().copied(),
    }
}

/// The whole plain archive; `None` if it has no members.
///
/// # Errors
/// [`ArchiveError::NoArchive`] if it does not begin as an archive does.
pub(super) fn begun<R: Read>(mut input: R) -> Result<Option<impl Read>, ArchiveError> {
    let no_archive = |reason: &str| Err(ArchiveError::NoArchive(reason.to_owned()));
    let mut first = Vec::with_capacity(BLOCK);
    (&mut input).take(BLOCK as u64).read_to_end(&mut first)?;
    if is_header(&first) {
        return Ok(Some(Cursor::new(first).chain(input)));
    }
    if first.is_empty() {
        return no_archive("it is empty");
    }
    if !is_zero(&first) {
        return no_archive("it does not begin with the header of a file");
    }
    let rest = NOTHING_MAX - first.len() as u64;
    input.take(rest + 1).read_to_end(&mut first)?;
    let is_nothing = first.len() as u64 <= NOTHING_MAX && first.len().is_multiple_of(BLOCK);
    if !is_nothing || !is_zero(&first) {
        return no_archive("it begins with zeros, which mark the end of an archive");
    }
    Ok(None)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Whether a block has the right checksum for the header of a member.
fn is_header(block: &[u8]) -> bool {
    if block.len() != BLOCK || is_zero(block) {
        return false;
    }
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    let spaces = u32::from(b' ') * 8;
    let expected = sum(&block[..SUM.start]) + spaces + sum(&block[SUM.end..]);
    Header::from_byte_slice(block).cksum().ok() == Some(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_an_archive_of_nothing_or_none() {
        let is_nothing = |bytes: &[u8]| matches!(begun(bytes), Ok(None));
        assert!(is_nothing(&[0; 512]) && is_nothing(&[0; 1024]) && is_nothing(&[0; 10_240]));
        for bytes in [&[][..], &[0; 511], &[0; 1000], &[0; 10_752], &[1; 512]] {
            assert!(begun(bytes).is_err(), "{} bytes", bytes.len());
        }
        let mut volume = vec![0; 2048];
        volume[1080] = 0x53;
        assert!(begun(&volume[..]).is_err());
    }

    #[test]
    fn an_archive_is_given_whole() {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        header.set_size(2);
        archive
            .append_data(&mut header, "a", &b"ok"[..])
            .expect("a member");
        let archive = archive.into_inner().expect("an archive");
        let mut given = Vec::new();
        let mut input = begun(&archive[..]).expect("an archive").expect("a member");
        input.read_to_end(&mut given).expect("bytes");
        assert_eq!(given, archive);
    }
}
