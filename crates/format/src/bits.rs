//! Sets of bits that lie in items, as types of their own.

/// Declares a newtype over an integer whose bits are flags, with names.
#[macro_export]
macro_rules! bit_flags {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$bit_doc:meta])* $bit:ident = $value:expr, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$bit_doc])* pub const $bit: Self = Self($value);)*

            /// Every known bit with its name.
            pub const TABLE: &'static [(Self, &'static str)] = &[$((Self::$bit, $text)),*];

            /// All bits that have a name.
            #[must_use]
            pub fn known() -> Self {
                Self(Self::TABLE.iter().fold(0, |all, (bit, _)| all | bit.0))
            }

            /// True when all bits of `other` are set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// True when a bit of `other` is set.
            #[must_use]
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// True without bits.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Both sets.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits that are not in `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Names of the set bits; unknown ones as one hexadecimal number.
            #[must_use]
            pub fn names(self) -> Vec<String> {
                let mut names = Vec::new();
                let mut unknown = self;
                for (bit, name) in Self::TABLE {
                    if self.contains(*bit) && !bit.is_empty() {
                        names.push((*name).to_owned());
                        unknown = unknown.without(*bit);
                    }
                }
                if !unknown.is_empty() {
                    names.push(format!("unknown flag: {:#x}", unknown.0));
                }
                names
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl std::ops::BitAnd for $name {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }

        impl std::ops::Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                self.without(other)
            }
        }

        impl std::ops::SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = self.without(other);
            }
        }
    };
}
