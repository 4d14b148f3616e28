//! Tables of commands and attributes with their numbers.

use std::fmt;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them with their stored number and name.
            pub const TABLE: &'static [(Self, u16, &'static str)] =
                &[$((Self::$variant, $number, $text)),*];

            /// Its stored number.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self {
                    $(Self::$variant => $number,)*
                }
            }

            /// The one stored as `number`, if it is known.
            #[must_use]
            pub const fn from_number(number: u16) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Its name, as `btrfs receive --dump` has it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

numbered!(
    /// Kind of a command.
    CommandKind {
        /// Begins a full stream.
        Subvolume = 1, "subvol";
        /// Begins an incremental stream.
        Snapshot = 2, "snapshot";
        /// New regular file.
        MakeFile = 3, "mkfile";
        /// New directory.
        MakeDirectory = 4, "mkdir";
        /// New device.
        MakeNode = 5, "mknod";
        /// New named pipe.
        MakeFifo = 6, "mkfifo";
        /// New socket.
        MakeSocket = 7, "mksock";
        /// New symbolic link.
        Symlink = 8, "symlink";
        /// Another name.
        Rename = 9, "rename";
        /// One more name.
        Link = 10, "link";
        /// One name less.
        Unlink = 11, "unlink";
        /// Removal of a directory.
        RemoveDirectory = 12, "rmdir";
        /// Extended attribute.
        SetXattr = 13, "set_xattr";
        /// Removal of an extended attribute.
        RemoveXattr = 14, "remove_xattr";
        /// Data.
        Write = 15, "write";
        /// Data that the receiver has.
        Clone = 16, "clone";
        /// Size.
        Truncate = 17, "truncate";
        /// Permissions.
        Chmod = 18, "chmod";
        /// Owner and group.
        Chown = 19, "chown";
        /// Times.
        Times = 20, "utimes";
        /// End of the stream.
        End = 21, "end";
        /// A range that changed, in a stream without data.
        UpdateExtent = 22, "update_extent";
        /// Allocates or frees the space of a range.
        Allocate = 23, "fallocate";
        /// Flags of an inode.
        FileFlags = 24, "fileattr";
        /// Compressed data.
        EncodedWrite = 25, "encoded_write";
        /// fs-verity.
        EnableVerity = 26, "enable_verity";
    }
);

numbered!(
    /// Kind of an attribute of a command.
    AttributeKind {
        /// UUID of what is sent.
        Uuid = 1, "uuid";
        /// Generation of its last change.
        Ctransid = 2, "ctransid";
        /// Inode at the sender.
        Inode = 3, "inode";
        /// Bytes.
        Size = 4, "size";
        /// Permissions; for mknod, also the type.
        Mode = 5, "mode";
        /// Owner.
        Uid = 6, "uid";
        /// Group.
        Gid = 7, "gid";
        /// Device number.
        Rdev = 8, "rdev";
        /// Time of the last change of anything.
        Ctime = 9, "ctime";
        /// Time of the last change of content.
        Mtime = 10, "mtime";
        /// Time of the last access.
        Atime = 11, "atime";
        /// Time of birth.
        Otime = 12, "otime";
        /// Name of an extended attribute.
        XattrName = 13, "xattr name";
        /// Value of an extended attribute.
        XattrData = 14, "xattr data";
        /// Path below the subvolume.
        Path = 15, "path";
        /// New path.
        PathTo = 16, "new path";
        /// Existing path or target.
        PathLink = 17, "link path";
        /// File offset.
        FileOffset = 18, "file offset";
        /// Data.
        Data = 19, "data";
        /// UUID of what is cloned from.
        CloneUuid = 20, "clone uuid";
        /// Generation of what is cloned from.
        CloneCtransid = 21, "clone ctransid";
        /// File that is cloned from.
        ClonePath = 22, "clone path";
        /// Offset in it.
        CloneOffset = 23, "clone offset";
        /// Bytes.
        CloneLength = 24, "clone length";
        /// As fallocate(2) has it.
        AllocateMode = 25, "fallocate mode";
        /// Flags.
        FileFlags = 26, "file flags";
        /// Bytes of the file that an encoded write covers.
        UnencodedFileLength = 27, "unencoded file length";
        /// Bytes of the whole extent, decoded.
        UnencodedLength = 28, "unencoded length";
        /// Where the file's bytes begin in them.
        UnencodedOffset = 29, "unencoded offset";
        /// Compression.
        Compression = 30, "compression";
        /// Encryption; 0.
        Encryption = 31, "encryption";
        /// Hash algorithm of fs-verity.
        VerityAlgorithm = 32, "verity algorithm";
        /// Block size of fs-verity.
        VerityBlockSize = 33, "verity block size";
        /// Salt of fs-verity.
        VeritySalt = 34, "verity salt";
        /// Signature of fs-verity.
        VeritySignature = 35, "verity signature";
    }
);
