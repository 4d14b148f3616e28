//! The operations of the protocol by number.
//!
//! Owns the numbers and which operations may wait long; what they mean is in
//! `request`.

macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// An operation the kernel can ask for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "named after the protocol's own constants")]
        #[repr(u32)]
        pub enum Opcode { $($name = $number),* }

        impl Opcode {
            /// Every operation known here.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The operation of that number, if it is known here.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes!(
    Lookup = 1,
    Forget = 2,
    Getattr = 3,
    Setattr = 4,
    Readlink = 5,
    Symlink = 6,
    Mknod = 8,
    Mkdir = 9,
    Unlink = 10,
    Rmdir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    Statfs = 17,
    Release = 18,
    Fsync = 20,
    Setxattr = 21,
    Getxattr = 22,
    Listxattr = 23,
    Removexattr = 24,
    Flush = 25,
    Init = 26,
    Opendir = 27,
    Readdir = 28,
    Releasedir = 29,
    Fsyncdir = 30,
    Getlk = 31,
    Setlk = 32,
    Setlkw = 33,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    Bmap = 37,
    Destroy = 38,
    Ioctl = 39,
    Poll = 40,
    NotifyReply = 41,
    BatchForget = 42,
    Fallocate = 43,
    Readdirplus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    Syncfs = 50,
    Tmpfile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
);

impl Opcode {
    /// Whether it matters who asks. It does not for operations that are
    /// frequent and open to everybody whom the kernel let through.
    #[must_use]
    pub const fn asks_who(self) -> bool {
        !matches!(
            self,
            Self::Lookup
                | Self::Forget
                | Self::BatchForget
                | Self::Getattr
                | Self::Statx
                | Self::Readlink
                | Self::Open
                | Self::Opendir
                | Self::Read
                | Self::Write
                | Self::Readdir
                | Self::Readdirplus
                | Self::Flush
                | Self::Release
                | Self::Releasedir
                | Self::Lseek
                | Self::Interrupt
        )
    }

    /// Whether only regular files get this request.
    pub(crate) const fn is_of_a_file(self) -> bool {
        matches!(
            self,
            Self::Read | Self::Write | Self::Fsync | Self::Fallocate
        )
    }

    /// Whether serving it usually waits for a device, so that another thread
    /// should take over the queue meanwhile.
    #[must_use]
    pub const fn waits(self) -> bool {
        matches!(
            self,
            Self::Fsync | Self::Fsyncdir | Self::Syncfs | Self::Ioctl | Self::Destroy
        )
    }
}
