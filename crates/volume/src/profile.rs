//! Profiles: how a chunk replicates and stripes its content.

use butterfs_format::item::chunk::BlockGroupFlags;
use std::fmt;

/// How a chunk replicates and stripes its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Profile {
    /// One copy.
    Single,
    /// Two copies on one device.
    Dup,
    /// Striped.
    Raid0,
    /// Two copies on two devices.
    Raid1,
    /// Three copies on three devices.
    Raid1c3,
    /// Four copies on four devices.
    Raid1c4,
    /// Striped over pairs of devices.
    Raid10,
    /// Striped with one rotating parity.
    Raid5,
    /// Striped with two rotating parities.
    Raid6,
}

/// What a profile demands.
struct Traits {
    flag: BlockGroupFlags,
    name: &'static str,
    copies: usize,
    parities: usize,
    stripes_min: usize,
    /// `None`: as many as there are devices.
    stripes_max: Option<usize>,
}

impl Profile {
    /// Every profile.
    pub const ALL: [Self; 9] = [
        Self::Single,
        Self::Dup,
        Self::Raid0,
        Self::Raid1,
        Self::Raid1c3,
        Self::Raid1c4,
        Self::Raid10,
        Self::Raid5,
        Self::Raid6,
    ];

    const fn traits(self) -> Traits {
        const fn mirrored(flag: BlockGroupFlags, name: &'static str, copies: usize) -> Traits {
            Traits {
                flag,
                name,
                copies,
                parities: 0,
                stripes_min: copies,
                stripes_max: Some(copies),
            }
        }
        const fn parity(flag: BlockGroupFlags, name: &'static str, parities: usize) -> Traits {
            Traits {
                parities,
                stripes_min: parities.saturating_add(1),
                stripes_max: None,
                ..mirrored(flag, name, 1)
            }
        }
        const fn striped(flag: BlockGroupFlags, name: &'static str, copies: usize) -> Traits {
            Traits {
                stripes_max: None,
                ..mirrored(flag, name, copies)
            }
        }
        match self {
            Self::Single => mirrored(BlockGroupFlags(0), "single", 1),
            Self::Dup => mirrored(BlockGroupFlags::DUP, "dup", 2),
            Self::Raid0 => striped(BlockGroupFlags::RAID0, "raid0", 1),
            Self::Raid1 => mirrored(BlockGroupFlags::RAID1, "raid1", 2),
            Self::Raid1c3 => mirrored(BlockGroupFlags::RAID1C3, "raid1c3", 3),
            Self::Raid1c4 => mirrored(BlockGroupFlags::RAID1C4, "raid1c4", 4),
            Self::Raid10 => striped(BlockGroupFlags::RAID10, "raid10", 2),
            Self::Raid5 => parity(BlockGroupFlags::RAID5, "raid5", 1),
            Self::Raid6 => parity(BlockGroupFlags::RAID6, "raid6", 2),
        }
    }

    /// The profile that `flags` name; `None` when they name several.
    #[must_use]
    pub fn from_flags(flags: BlockGroupFlags) -> Option<Self> {
        let wanted = flags.profile();
        Self::ALL
            .into_iter()
            .find(|profile| profile.flag() == wanted)
    }

    /// The flag that names it; none for single.
    #[must_use]
    pub const fn flag(self) -> BlockGroupFlags {
        self.traits().flag
    }

    /// Its name as users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.traits().name
    }

    /// Number of places that hold each byte itself, parity aside.
    #[must_use]
    pub const fn copies(self) -> usize {
        self.traits().copies
    }

    /// Stripes of each row that hold parity.
    #[must_use]
    pub const fn parities(self) -> usize {
        self.traits().parities
    }

    /// True when a chunk of this profile may have `count` stripes.
    #[must_use]
    pub fn allows_stripes(self, count: usize) -> bool {
        let line = self.traits();
        count >= line.stripes_min
            && line.stripes_max.is_none_or(|most| count <= most)
            && count.is_multiple_of(line.copies)
    }

    /// Stripes whose lengths add up to the chunk's, out of `count`.
    #[must_use]
    pub fn data_stripes(self, count: usize) -> usize {
        let line = self.traits();
        let data = count.saturating_sub(line.parities);
        data.checked_div(line.copies).unwrap_or(data)
    }

    /// Least number of devices that a new chunk of this profile needs.
    #[must_use]
    pub const fn devices_min(self) -> usize {
        match self {
            Self::Dup => 1,
            _ => self.traits().stripes_min,
        }
    }

    /// Greatest number of devices that a chunk of this profile uses; `None`:
    /// all there are.
    #[must_use]
    pub const fn devices_max(self) -> Option<usize> {
        match self {
            Self::Dup => Some(1),
            _ => self.traits().stripes_max,
        }
    }

    /// Stripes on each device that a chunk of this profile uses.
    #[must_use]
    pub const fn stripes_per_device(self) -> usize {
        match self {
            Self::Dup => 2,
            _ => 1,
        }
    }

    /// Stripes of a chunk that may be lost without losing content.
    #[must_use]
    pub const fn tolerated(self) -> usize {
        match self {
            // Both copies are on one device.
            Self::Single | Self::Dup | Self::Raid0 => 0,
            Self::Raid1 | Self::Raid10 | Self::Raid5 => 1,
            Self::Raid1c3 | Self::Raid6 => 2,
            Self::Raid1c4 => 3,
        }
    }

    /// The field `sub_stripes` of chunks of this profile: for RAID10, the
    /// mirrors of each element.
    #[must_use]
    pub const fn sub_stripes(self) -> u16 {
        match self {
            Self::Raid10 => 2,
            _ => 1,
        }
    }

    /// The profile of this name, as users write it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let is_it = |profile: &Self| profile.name().eq_ignore_ascii_case(name);
        Self::ALL.into_iter().find(is_it)
    }

    /// True when consecutive 64 KiB of a chunk lie in different stripes.
    #[must_use]
    pub const fn is_striped(self) -> bool {
        matches!(self, Self::Raid0 | Self::Raid10 | Self::Raid5 | Self::Raid6)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_profiles_agree() {
        for profile in Profile::ALL {
            let flags = profile.flag() | BlockGroupFlags::DATA;
            assert_eq!(Profile::from_flags(flags), Some(profile));
            assert!(profile.name().eq_ignore_ascii_case(flags.profile_name()));
        }
        let two = BlockGroupFlags::RAID1 | BlockGroupFlags::DUP;
        assert_eq!(Profile::from_flags(two), None);
    }

    #[test]
    fn devices_and_losses() {
        for profile in Profile::ALL {
            assert_eq!(Profile::from_name(profile.name()), Some(profile));
            let least = profile.devices_min() * profile.stripes_per_device();
            assert!(profile.allows_stripes(least), "{profile}");
            assert!(profile.tolerated() < least, "{profile}");
        }
        assert_eq!(Profile::from_name("RAID1C3"), Some(Profile::Raid1c3));
        assert_eq!(Profile::from_name("raid7"), None);
        assert_eq!(Profile::Raid10.devices_min(), 2);
        assert_eq!(Profile::Raid1.devices_max(), Some(2));
        assert_eq!(Profile::Raid6.devices_min(), 3);
    }

    #[test]
    fn stripes() {
        let allowed = |profile: Profile| -> Vec<usize> {
            (0..7).filter(|n| profile.allows_stripes(*n)).collect()
        };
        assert_eq!(allowed(Profile::Single), [1]);
        assert_eq!(allowed(Profile::Dup), [2]);
        assert_eq!(allowed(Profile::Raid1c4), [4]);
        assert_eq!(allowed(Profile::Raid0), [1, 2, 3, 4, 5, 6]);
        assert_eq!(allowed(Profile::Raid10), [2, 4, 6]);
        assert_eq!(allowed(Profile::Raid5), [2, 3, 4, 5, 6]);
        assert_eq!(allowed(Profile::Raid6), [3, 4, 5, 6]);
        assert_eq!(Profile::Raid10.data_stripes(6), 3);
        assert_eq!(Profile::Raid6.data_stripes(6), 4);
        assert_eq!(Profile::Raid1c3.data_stripes(3), 1);
    }
}
