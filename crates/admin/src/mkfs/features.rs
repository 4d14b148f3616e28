//! The features that a new volume can have.
//!
//! Owns the table of features. Options, help and the superblock's bits come from
//! it.

use super::MkfsError;
use butterfs_format::features::{CompatRo, Incompat};

/// A feature that can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name in options.
    pub name: &'static str,
    /// A shorter name, if it has one.
    pub short: Option<&'static str>,
    /// What it is.
    pub description: &'static str,
    /// The bit in the superblock.
    pub bit: FeatureBit,
    /// Whether it is on unless an option says otherwise.
    pub default: DefaultState,
}

impl Feature {
    /// Whether this is its name, or its shorter name.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.short == Some(name)
    }
}

/// Whether a feature is on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultState {
    /// It is on.
    On,
    /// It is off.
    Off,
}

/// The bit of a feature in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureBit {
    /// Readers must know it.
    Incompat(Incompat),
    /// Writers must know it.
    CompatRo(CompatRo),
    /// ButterFS does not support the feature yet.
    NotYet,
}

/// All features by name.
pub const FEATURES: &[Feature] = &[
    Feature {
        name: "mixed-bg",
        short: None,
        description: "mixed data and metadata block groups",
        bit: FeatureBit::Incompat(Incompat::MIXED_GROUPS),
        default: DefaultState::Off,
    },
    Feature {
        name: "extref",
        short: None,
        description: "increased hardlink limit per file to 65536",
        bit: FeatureBit::Incompat(Incompat::EXTENDED_IREF),
        default: DefaultState::On,
    },
    Feature {
        name: "skinny-metadata",
        short: None,
        description: "reduced-size metadata extent refs",
        bit: FeatureBit::Incompat(Incompat::SKINNY_METADATA),
        default: DefaultState::On,
    },
    Feature {
        name: "no-holes",
        short: None,
        description: "no explicit hole extents for files",
        bit: FeatureBit::Incompat(Incompat::NO_HOLES),
        default: DefaultState::On,
    },
    Feature {
        name: "free-space-tree",
        short: Some("fst"),
        description: "free space tree (space_cache=v2)",
        bit: FeatureBit::CompatRo(CompatRo::FREE_SPACE_TREE),
        default: DefaultState::On,
    },
    Feature {
        name: "block-group-tree",
        short: Some("bgt"),
        description: "block group tree, more efficient block group tracking",
        bit: FeatureBit::CompatRo(CompatRo::BLOCK_GROUP_TREE),
        default: DefaultState::On,
    },
    Feature {
        name: "raid56",
        short: None,
        description: "raid56 extended format",
        bit: FeatureBit::Incompat(Incompat::RAID56),
        default: DefaultState::Off,
    },
    Feature {
        name: "raid1c34",
        short: None,
        description: "RAID1 with 3 or 4 copies",
        bit: FeatureBit::Incompat(Incompat::RAID1C34),
        default: DefaultState::Off,
    },
    Feature {
        name: "zoned",
        short: None,
        description: "support zoned devices",
        bit: FeatureBit::NotYet,
        default: DefaultState::Off,
    },
    Feature {
        name: "quota",
        short: None,
        description: "hierarchical quota groups",
        bit: FeatureBit::NotYet,
        default: DefaultState::Off,
    },
    Feature {
        name: "squota",
        short: None,
        description: "squota (simple accounting qgroups)",
        bit: FeatureBit::NotYet,
        default: DefaultState::Off,
    },
];

/// The features of a volume to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureSet {
    /// Readers must know these.
    pub incompat: Incompat,
    /// Writers must know these.
    pub compat_ro: CompatRo,
}

impl Default for FeatureSet {
    fn default() -> Self {
        let mut set = Self {
            incompat: Incompat::default(),
            compat_ro: CompatRo::default(),
        };
        for feature in FEATURES {
            if feature.default == DefaultState::On {
                set.apply(feature.bit, DefaultState::On);
            }
        }
        set
    }
}

impl FeatureSet {
    fn apply(&mut self, bit: FeatureBit, state: DefaultState) {
        match (bit, state) {
            (FeatureBit::Incompat(bit), DefaultState::On) => self.incompat |= bit,
            (FeatureBit::Incompat(bit), DefaultState::Off) => self.incompat -= bit,
            (FeatureBit::CompatRo(bit), DefaultState::On) => self.compat_ro |= bit,
            (FeatureBit::CompatRo(bit), DefaultState::Off) => self.compat_ro -= bit,
            (FeatureBit::NotYet, _) => {}
        }
    }

    /// Switches features on, or off with `^`, by a list such as
    /// `no-holes,^free-space-tree`.
    ///
    /// # Errors
    /// [`MkfsError::UnknownFeature`] if there is no such feature, and
    /// [`MkfsError::NotYet`] if ButterFS does not support it yet.
    pub fn change(&mut self, list: &str) -> Result<(), MkfsError> {
        for word in list.split(',').filter(|word| !word.is_empty()) {
            let (name, state) = match word.strip_prefix('^') {
                Some(name) => (name, DefaultState::Off),
                None => (word, DefaultState::On),
            };
            let feature = FEATURES
                .iter()
                .find(|feature| feature.is_called(name))
                .ok_or_else(|| MkfsError::UnknownFeature(name.to_owned()))?;
            if feature.bit == FeatureBit::NotYet && state == DefaultState::On {
                let needs = match feature.name {
                    "zoned" => Incompat::ZONED.needs().next().unwrap_or_default(),
                    _ => "`butterfs quota enable` turns quotas on afterwards",
                };
                return Err(MkfsError::NotYet {
                    feature: name.to_owned(),
                    needs,
                });
            }
            self.apply(feature.bit, state);
        }
        Ok(())
    }

    /// Switches off the block group tree if it is on by default but features that
    /// it needs are off. Returns true if it did. If `lists` ask for a block group
    /// tree, it stays on, and making the volume fails.
    pub fn settle<'l>(&mut self, mut lists: impl Iterator<Item = &'l str>) -> bool {
        let is_it = |word: &str| ["block-group-tree", "bgt"].contains(&word);
        let asked = lists.any(|list| list.split(',').any(is_it));
        if asked || !self.has_block_group_tree() || self.can_have_block_group_tree() {
            return false;
        }
        self.compat_ro -= CompatRo::BLOCK_GROUP_TREE;
        true
    }

    /// Whether the features that a block group tree needs are on.
    pub(super) const fn can_have_block_group_tree(&self) -> bool {
        self.has_free_space_tree() && self.incompat.contains(Incompat::NO_HOLES)
    }

    pub(super) const fn has_free_space_tree(&self) -> bool {
        self.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
    }

    pub(super) const fn has_block_group_tree(&self) -> bool {
        self.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE)
    }

    pub(super) const fn has_skinny_metadata(&self) -> bool {
        self.incompat.contains(Incompat::SKINNY_METADATA)
    }
}
