//! Operations on a whole volume.

use std::fmt;

/// Something that moves a volume's space about. Only one is under way at a
/// time, as in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExclusiveKind {
    /// Block groups are balanced.
    Balance,
    /// A device is resized.
    Resize,
    /// A device is added.
    Add,
    /// A device is removed.
    Remove,
    /// A device is replaced.
    Replace,
}

impl fmt::Display for ExclusiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Balance => "a balance",
            Self::Resize => "a resize",
            Self::Add => "the addition of a device",
            Self::Remove => "the removal of a device",
            Self::Replace => "the replacement of a device",
        })
    }
}
