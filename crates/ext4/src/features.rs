//! Features of a file system, by the word that they are in.

use std::fmt;

macro_rules! features {
    ($(#[$doc:meta])* $type:ident { $($(#[$own:meta])* $name:ident = $bit:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $type(pub u32);

        impl $type {
            $($(#[$own])* pub const $name: Self = Self($bit);)*

            const NAMES: &'static [(Self, &'static str)] = &[$((Self::$name, $text)),*];

            /// Whether all features of `other` are there.
            #[must_use]
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Bits without a name here.
            #[must_use]
            pub fn unknown(self) -> u32 {
                Self::NAMES.iter().fold(self.0, |left, (one, _)| left & !one.0)
            }

            /// The names of what is there, as mke2fs calls them.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                let own = Self::NAMES.iter();
                own.filter(move |(one, _)| self.has(*one)).map(|(_, name)| *name)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for (number, name) in self.names().enumerate() {
                    if number > 0 {
                        f.write_str(" ")?;
                    }
                    f.write_str(name)?;
                }
                Ok(())
            }
        }
    };
}

features! {
    /// What a driver that does not know it may ignore.
    Compatible {
        /// Directories are preallocated.
        DIR_PREALLOC = 0x1, "dir_prealloc";
        /// Inodes of AFS.
        IMAGIC_INODES = 0x2, "imagic_inodes";
        /// A journal.
        HAS_JOURNAL = 0x4, "has_journal";
        /// Extended attributes.
        EXT_ATTR = 0x8, "ext_attr";
        /// Space for more group descriptors, kept by inode 7.
        RESIZE_INODE = 0x10, "resize_inode";
        /// Directories with a hash tree.
        DIR_INDEX = 0x20, "dir_index";
        /// Copies of the superblock in at most two groups.
        SPARSE_SUPER2 = 0x200, "sparse_super2";
        /// Short commits of the journal.
        FAST_COMMIT = 0x400, "fast_commit";
        /// Inode numbers and UUID never change.
        STABLE_INODES = 0x800, "stable_inodes";
        /// Orphans are listed in a file.
        ORPHAN_FILE = 0x1000, "orphan_file";
    }
}

features! {
    /// What a driver must know to read.
    Incompatible {
        /// Files are compressed; no kernel has it.
        COMPRESSION = 0x1, "compression";
        /// Directory entries name the kind of file.
        FILETYPE = 0x2, "filetype";
        /// The journal must be replayed.
        RECOVER = 0x4, "needs_recovery";
        /// The device is an external journal.
        JOURNAL_DEV = 0x8, "journal_dev";
        /// Group descriptors lie in their groups.
        META_BG = 0x10, "meta_bg";
        /// Files have extents.
        EXTENTS = 0x40, "extent";
        /// Block numbers have 64 bits.
        BITS_64 = 0x80, "64bit";
        /// Protection against mounting twice.
        MMP = 0x100, "mmp";
        /// Bitmaps and inode tables of several groups lie together.
        FLEX_BG = 0x200, "flex_bg";
        /// Large attributes lie in inodes of their own.
        EA_INODE = 0x400, "ea_inode";
        /// Data in directory entries; no kernel has it.
        DIRDATA = 0x1000, "dirdata";
        /// The seed of checksums is in the superblock.
        CSUM_SEED = 0x2000, "metadata_csum_seed";
        /// Directories above 2 GiB, or with hash trees of three levels.
        LARGEDIR = 0x4000, "large_dir";
        /// Small files lie in their inode.
        INLINE_DATA = 0x8000, "inline_data";
        /// Files are encrypted.
        ENCRYPT = 0x1_0000, "encrypt";
        /// Directories that ignore the case of names.
        CASEFOLD = 0x2_0000, "casefold";
    }
}

features! {
    /// What a driver must know to write.
    ReadOnlyCompatible {
        /// Copies of the superblock in few groups.
        SPARSE_SUPER = 0x1, "sparse_super";
        /// Files of more than 2 GiB.
        LARGE_FILE = 0x2, "large_file";
        /// Never used.
        BTREE_DIR = 0x4, "btree_dir";
        /// Sizes of files may count blocks.
        HUGE_FILE = 0x8, "huge_file";
        /// Group descriptors have a CRC-16.
        GDT_CSUM = 0x10, "uninit_bg";
        /// Directories with more than 65,000 subdirectories.
        DIR_NLINK = 0x20, "dir_nlink";
        /// Inodes above 128 bytes.
        EXTRA_ISIZE = 0x40, "extra_isize";
        /// Quota files belong to the file system.
        QUOTA = 0x100, "quota";
        /// Space is allocated in clusters of several blocks.
        BIGALLOC = 0x200, "bigalloc";
        /// Metadata have checksums.
        METADATA_CSUM = 0x400, "metadata_csum";
        /// Never used.
        REPLICA = 0x800, "replica";
        /// Never to be written.
        READONLY = 0x1000, "read-only";
        /// Inodes have a project id.
        PROJECT = 0x2000, "project";
        /// Blocks are shared; the file system is read-only.
        SHARED_BLOCKS = 0x4000, "shared_blocks";
        /// Files with fs-verity.
        VERITY = 0x8000, "verity";
        /// The orphan file has entries.
        ORPHAN_PRESENT = 0x1_0000, "orphan_present";
    }
}
