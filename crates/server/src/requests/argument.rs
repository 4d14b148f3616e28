//! Arguments and answers of ioctls, field by field.

use butterfs::Timespec;
use butterfs_fuse::Errno;

/// The bytes of an argument.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn u64(&self, at: usize) -> Result<u64, Errno> {
        let bytes = self.0.get(at..at + 8).and_then(|b| b.try_into().ok());
        Ok(u64::from_ne_bytes(bytes.ok_or(Errno::EINVAL)?))
    }

    pub(super) fn u32(&self, at: usize) -> Result<u32, Errno> {
        let bytes = self.0.get(at..at + 4).and_then(|b| b.try_into().ok());
        Ok(u32::from_ne_bytes(bytes.ok_or(Errno::EINVAL)?))
    }

    /// A name up to its NUL.
    pub(super) fn name(&self, at: usize) -> Result<&'a [u8], Errno> {
        let rest = self.0.get(at..).ok_or(Errno::EINVAL)?;
        let end = rest.iter().position(|byte| *byte == 0);
        Ok(&rest[..end.ok_or(Errno::EINVAL)?])
    }

    pub(super) fn time(&self, at: usize) -> Result<Timespec, Errno> {
        Ok(Timespec {
            seconds: self.u64(at)?.cast_signed(),
            nanoseconds: self.u32(at + 8)?,
        })
    }
}

/// Writes an answer field by field.
pub(super) struct Fields<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) at: usize,
}

impl Fields<'_> {
    pub(super) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        if let Some(room) = self.bytes.get_mut(self.at..self.at + bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.at += bytes.len();
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_ne_bytes())
    }

    /// Seconds, nanoseconds and padding.
    pub(super) fn time(&mut self, time: Timespec) -> &mut Self {
        self.u64(time.seconds.cast_unsigned())
            .put(&time.nanoseconds.to_ne_bytes())
            .put(&[0; 4])
    }
}
