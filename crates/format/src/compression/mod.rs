//! Compression of data extents: algorithms, levels, framing.

/// Algorithm of a compressed extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// zlib, levels 1 to 9.
    Zlib,
    /// LZO1X, sector by sector.
    Lzo,
    /// zstd, levels -15 to 15.
    Zstd,
}

impl Algorithm {
    /// Its stored number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Zlib => 1,
            Self::Lzo => 2,
            Self::Zstd => 3,
        }
    }

    /// The algorithm stored as `number`.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Zlib),
            2 => Some(Self::Lzo),
            3 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Level of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level(pub i32);
