//! Identities that cross the kernel boundary as distinct types.
//!
//! Owns nothing behind the numbers: the file system decides what a node or a
//! handle is.

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

identity!(
    /// A node as the kernel knows it; the file system chose the number in the
    /// entry it returned. Never zero for a node that exists.
    NodeId
);
identity!(
    /// An open file or directory; the number the file system returned from
    /// open, or zero where opens are stateless.
    FileHandle
);
identity!(
    /// A request's number, unique while the request is unanswered.
    RequestId
);

impl NodeId {
    /// The root directory, which exists without having been looked up.
    pub const ROOT: Self = Self(1);
}
