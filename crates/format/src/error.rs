//! What can be wrong with bytes.

use thiserror::Error;

/// Why bytes could not be parsed. It says what is wrong, not where: whoever
/// read the bytes adds the place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// A structure is cut short.
    #[error("{what} is cut short: {need} more bytes expected, {have} found")]
    TooShort {
        /// The structure.
        what: &'static str,
        /// Bytes that the next field needs.
        need: usize,
        /// Bytes that are left.
        have: usize,
    },
    /// A structure has bytes after its end.
    #[error("{what} has {extra} bytes after its end")]
    TrailingBytes {
        /// The structure.
        what: &'static str,
        /// How many.
        extra: usize,
    },
    /// A magic number is not the expected one.
    #[error("{what} has no valid magic number")]
    BadMagic {
        /// The structure.
        what: &'static str,
    },
    /// A field has a value that the format does not allow.
    #[error("{what}: {field} has the impossible value {value}")]
    BadValue {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// What was found.
        value: u64,
    },
    /// Two fields that must be equal are not.
    #[error("{what}: {field} is not that of the volume")]
    Differs {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A checksum does not match the bytes that it covers.
    #[error("{what}: the checksum does not match")]
    BadChecksum {
        /// The structure.
        what: &'static str,
    },
    /// A structure says that it belongs elsewhere.
    #[error("{what} says that it lies at {found}, not at {expected}")]
    WrongAddress {
        /// The structure.
        what: &'static str,
        /// Where it was read.
        expected: u64,
        /// Where it says it is.
        found: u64,
    },
    /// Compressed bytes do not decompress.
    #[error("{algorithm} data does not decompress: {reason}")]
    BadCompression {
        /// zlib, lzo or zstd.
        algorithm: &'static str,
        /// What the codec said.
        reason: String,
    },
}
