//! Little-endian reading and writing of on-disk structures.
//!
//! Owns the two cursors that every parser and encoder uses, so that bounds are
//! checked in one place.

use crate::error::ParseError;

/// Reads little-endian fields from a slice, front to back.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts reading `bytes` as a `what` (the name used in errors).
    #[must_use]
    pub const fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes }
    }

    /// Takes the next `len` bytes.
    ///
    /// # Errors
    /// [`ParseError::TooShort`] when fewer are left.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], ParseError> {
        match self.bytes.split_at_checked(len) {
            Some((head, rest)) => {
                self.bytes = rest;
                Ok(head)
            }
            None => Err(ParseError::TooShort {
                what: self.what,
                need: len,
                have: self.bytes.len(),
            }),
        }
    }

    /// Takes the next `N` bytes as an array.
    ///
    /// # Errors
    /// [`ParseError::TooShort`] when fewer are left.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// Next byte.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]
    pub fn u8(&mut self) -> Result<u8, ParseError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Next two bytes.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]
    pub fn u16(&mut self) -> Result<u16, ParseError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Next four bytes.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]
    pub fn u32(&mut self) -> Result<u32, ParseError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Next eight bytes.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]
    pub fn u64(&mut self) -> Result<u64, ParseError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// All that is left.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bytes left.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.bytes.len()
    }
}

/// Appends little-endian fields to a vector.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer that will not reallocate below `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity),
        }
    }

    /// Appends raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends `len` zero bytes.
    pub fn zeros(&mut self, len: usize) -> &mut Self {
        self.bytes.resize(self.bytes.len().saturating_add(len), 0);
        self
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True before the first byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Ends writing.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
