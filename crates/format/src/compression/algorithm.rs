//! The algorithms, their levels and how options name them.

use std::fmt;
use std::ops::RangeInclusive;

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

/// Level of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level(pub i32);

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Zlib, Self::Lzo, Self::Zstd];

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

    /// Its name in options and properties.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Lzo => "lzo",
            Self::Zstd => "zstd",
        }
    }

    /// The algorithm of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    /// The levels that can be asked for; LZO has none.
    #[must_use]
    pub const fn levels(self) -> Option<RangeInclusive<i32>> {
        match self {
            Self::Zlib => Some(1..=9),
            Self::Lzo => None,
            Self::Zstd => Some(-15..=15),
        }
    }

    /// The level used when none is asked for.
    #[must_use]
    pub const fn default_level(self) -> Level {
        match self {
            Self::Lzo => Level(0),
            Self::Zlib | Self::Zstd => Level(3),
        }
    }

    /// `level` within what the algorithm has; 0 stands for the default.
    #[must_use]
    pub fn clamp_level(self, level: i32) -> Level {
        match self.levels() {
            Some(levels) if level != 0 => Level(level.clamp(*levels.start(), *levels.end())),
            _ => self.default_level(),
        }
    }
}

/// An algorithm with its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Method {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Level, one that the algorithm has.
    pub level: Level,
}

impl Method {
    /// Parses the value of `compress=`: a name, or a name, a colon and a level
    /// (`zstd:-5`). Levels out of range are brought into it, and LZO takes a
    /// level without using it, as in the kernel. `Some(None)` for `no` and
    /// `none`; `None` for anything else.
    #[must_use]
    pub fn parse(value: &str) -> Option<Option<Self>> {
        if matches!(value, "no" | "none") {
            return Some(None);
        }
        let (name, level) = match value.split_once(':') {
            Some((name, level)) => (name, level.parse().ok()?),
            None => (value, 0),
        };
        let algorithm = Algorithm::from_name(name)?;
        Some(Some(Self {
            algorithm,
            level: algorithm.clamp_level(level),
        }))
    }
}

/// As `/proc/mounts` shows it.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.algorithm.levels() {
            Some(_) => write!(f, "{}:{}", self.algorithm.name(), self.level.0),
            None => f.write_str(self.algorithm.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux 6.18 shows in /proc/mounts for each value; `ERR` where it
    /// refuses to mount.
    #[test]
    fn options_as_the_kernel_takes_them() {
        for line in [
            "zlib zlib:3",
            "zlib:3 zlib:3",
            "zlib:0 zlib:3",
            "zlib:9 zlib:9",
            "zlib:99 zlib:9",
            "zlib:-1 zlib:1",
            "zlib: ERR",
            "zlib:x ERR",
            "zlib9 ERR",
            "lzo lzo",
            "lzo:1 lzo",
            "lzo:9 lzo",
            "lzo:x ERR",
            "lzox ERR",
            "zstd zstd:3",
            "zstd:0 zstd:3",
            "zstd:1 zstd:1",
            "zstd:15 zstd:15",
            "zstd:16 zstd:15",
            "zstd:-5 zstd:-5",
            "zstd:-15 zstd:-15",
            "zstd:-99 zstd:-15",
            "zstd:99999999999 ERR",
            "zstd:+3 zstd:3",
            "zstd:3x ERR",
            "zstd3 ERR",
            "no none",
            "none none",
            "no:3 ERR",
            "nox ERR",
            "none: ERR",
            "ZSTD ERR",
            " ERR",
        ] {
            let (value, expected) = line.split_once(' ').unwrap();
            let shown = match Method::parse(value) {
                None => "ERR".to_owned(),
                Some(None) => "none".to_owned(),
                Some(Some(method)) => method.to_string(),
            };
            assert_eq!(shown, expected, "{value}");
        }
    }

    #[test]
    fn numbers_and_names_round_trip() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_number(algorithm.number()), Some(algorithm));
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
        }
        assert_eq!(Algorithm::from_number(0), None);
        assert_eq!(Algorithm::from_number(4), None);
    }
}
