//! A reply whose length the caller may ask for first.
//!
//! Owns the convention of getxattr and listxattr: with no room, only the length
//! is counted; with too little room, the answer is ERANGE.

use crate::Errno;

/// Takes a value, at once or in pieces.
#[derive(Debug)]
pub struct ValueBuffer<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl<'a> ValueBuffer<'a> {
    /// A buffer over the caller's room; empty to count only.
    pub(crate) fn new(room: &'a mut [u8]) -> Self {
        Self { room, len: 0 }
    }

    /// Appends bytes. What does not fit is counted, not kept.
    pub fn push(&mut self, bytes: &[u8]) {
        let end = self.len.saturating_add(bytes.len());
        if let Some(target) = self.room.get_mut(self.len..end) {
            target.copy_from_slice(bytes);
        }
        self.len = end;
    }

    /// Appends a name and the NUL that ends it, as listxattr wants.
    pub fn push_name(&mut self, name: &[u8]) {
        self.push(name);
        self.push(&[0]);
    }

    /// The value's length so far, kept or not.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The length, or ERANGE if not all of it fit.
    pub(crate) fn finish(self) -> Result<usize, Errno> {
        if self.len <= self.room.len() {
            Ok(self.len)
        } else {
            Err(Errno::ERANGE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_beyond_the_room() {
        let mut room = [0; 4];
        let mut value = ValueBuffer::new(&mut room);
        value.push(b"ab");
        value.push_name(b"cde");
        assert_eq!(value.len(), 6);
        assert_eq!(value.finish(), Err(Errno::ERANGE));
        let mut value = ValueBuffer::new(&mut room);
        value.push_name(b"abc");
        assert_eq!(value.finish(), Ok(4));
        assert_eq!(&room, b"abc\0");
    }
}
