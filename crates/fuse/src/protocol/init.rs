//! The agreement between kernel and server at INIT.
//!
//! Owns the choice of version, features and sizes as a pure function of what
//! the kernel offers and what the configuration wants.

use super::layout::{InitIn, InitInExt, InitOut};
use super::parse::{Dialect, SetxattrShape};
use super::wire::Malformed;
use super::{Body, Features};
use crate::config::{Config, Handles, Transports};

/// The protocol's major version.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version understood here.
const MINOR_MAX: u32 = 45;
/// The oldest minor version understood here.
pub(crate) const MINOR_MIN: u32 = 31;
/// Pages of a request where MAX_PAGES is not agreed.
const PAGES_WITHOUT_AGREEMENT: u32 = 32;
/// The least a request buffer may hold besides data.
pub(crate) const BUFFER_MIN: usize = 8192;

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The kernel's minor version, 7.minor, or the newest known here if lower.
    pub minor: u32,
    /// The features in force.
    pub features: Features,
    /// Bytes of the largest write.
    pub max_write: u32,
    /// Bytes the kernel reads ahead at most.
    pub max_readahead: u32,
    /// Bytes of the largest reply's data.
    pub max_reply: u32,
    /// Whether files are opened without asking the file system.
    pub open: Handles,
    /// Whether directories are opened without asking the file system.
    pub opendir: Handles,
}

impl Negotiated {
    pub(crate) fn dialect(&self) -> Dialect {
        Dialect {
            setxattr: if self.features.contains(Features::SETXATTR_EXT) {
                SetxattrShape::Extended
            } else {
                SetxattrShape::Short
            },
        }
    }
}

/// What the kernel offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    max_readahead: u32,
    features: Features,
}

impl Offer {
    pub(crate) fn parse(body: Body<'_>) -> Result<Self, Malformed> {
        let (fixed, mut rest) = body.split::<InitIn>()?;
        let mut features = u64::from(fixed.flags);
        if Features::from_bits(features).contains(Features::INIT_EXT) {
            let ext: InitInExt = rest.load()?;
            features |= u64::from(ext.flags2) << 32;
        }
        Ok(Self {
            major: fixed.major,
            minor: fixed.minor,
            max_readahead: fixed.max_readahead,
            features: Features::from_bits(features),
        })
    }
}

/// Settles on what the kernel offers and `config` wants.
pub(crate) fn negotiate(offer: &Offer, config: &Config) -> Negotiated {
    let page = page_size();
    let mut wanted = config.features | Features::INIT_EXT;
    wanted = match config.open {
        Handles::Kept => wanted.without(Features::NO_OPEN_SUPPORT),
        Handles::Stateless => wanted
            .with(Features::NO_OPEN_SUPPORT)
            .without(Features::ATOMIC_O_TRUNC),
    };
    wanted = match config.opendir {
        Handles::Kept => wanted.without(Features::NO_OPENDIR_SUPPORT),
        Handles::Stateless => wanted.with(Features::NO_OPENDIR_SUPPORT),
    };
    wanted = match config.transports {
        Transports::Device => wanted.without(Features::OVER_IO_URING),
        Transports::UringToo => wanted.with(Features::OVER_IO_URING),
    };
    let features = wanted & offer.features;
    let pages = if features.contains(Features::MAX_PAGES) {
        config
            .max_write
            .div_ceil(page)
            .clamp(1, u32::from(u16::MAX))
    } else {
        PAGES_WITHOUT_AGREEMENT
    };
    let agreed = |mode: Handles, feature: Features| {
        if features.contains(feature) {
            mode
        } else {
            Handles::Kept
        }
    };
    Negotiated {
        minor: offer.minor.min(MINOR_MAX),
        features,
        max_write: config.max_write.clamp(page, pages.saturating_mul(page)),
        max_readahead: config.max_readahead.min(offer.max_readahead),
        max_reply: pages.saturating_mul(page),
        open: agreed(config.open, Features::NO_OPEN_SUPPORT),
        opendir: agreed(config.opendir, Features::NO_OPENDIR_SUPPORT),
    }
}

/// The answer to INIT.
pub(crate) fn answer(agreed: &Negotiated, config: &Config) -> InitOut {
    let bits = agreed.features.bits();
    let pages = agreed.max_reply / page_size();
    InitOut {
        major: MAJOR,
        minor: MINOR_MAX,
        max_readahead: agreed.max_readahead,
        // The two halves of the set travel apart.
        flags: (bits & u64::from(u32::MAX)) as u32,
        flags2: (bits >> 32) as u32,
        max_background: config.max_background,
        congestion_threshold: config.congestion_threshold,
        max_write: agreed.max_write,
        time_gran: 1,
        max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
        ..InitOut::default()
    }
}

/// Bytes of a page of this machine.
pub(crate) fn page_size() -> u32 {
    u32::try_from(rustix::param::page_size()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::wire::{Wire, encode};

    fn offer(minor: u32, features: Features) -> Offer {
        Offer {
            major: MAJOR,
            minor,
            max_readahead: 128 << 10,
            features,
        }
    }

    #[test]
    fn agrees_only_on_what_is_offered() {
        let agreed = negotiate(&offer(31, Features::ASYNC_READ), &Config::default());
        assert_eq!(agreed.features, Features::ASYNC_READ);
        assert_eq!(agreed.max_write, 32 * page_size());
        assert_eq!(agreed.minor, 31);
        assert_eq!(agreed.open, Handles::Kept);
    }

    #[test]
    fn stateless_opens_drop_atomic_truncation() {
        let config = Config {
            open: Handles::Stateless,
            features: Features::ATOMIC_O_TRUNC,
            ..Config::default()
        };
        let all = Features::from_bits(u64::MAX);
        let agreed = negotiate(&offer(45, all), &config);
        assert_eq!(
            agreed.features,
            Features::NO_OPEN_SUPPORT | Features::INIT_EXT
        );
        assert_eq!(agreed.open, Handles::Stateless);
    }

    #[test]
    fn offers_are_parsed_with_and_without_extension() {
        let mut bytes = vec![0; 64];
        let flags = (Features::INIT_EXT.bits() & u64::from(u32::MAX)) as u32;
        encode(
            &InitIn {
                major: 7,
                minor: 40,
                max_readahead: 1,
                flags,
            },
            &mut bytes,
        );
        bytes[16..20].copy_from_slice(&(1u32 << 3).to_ne_bytes());
        let offer = Offer::parse(Body::whole(&bytes)).unwrap();
        assert!(offer.features.contains(Features::HAS_EXPIRE_ONLY));
        for end in 0..64 {
            assert!(Offer::parse(Body::whole(&bytes[..end])).is_err());
        }
        bytes[12..16].fill(0);
        assert!(Offer::parse(Body::whole(&bytes[..InitIn::SIZE])).is_ok());
    }
}
