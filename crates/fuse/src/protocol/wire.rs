//! Reading and writing the kernel's structures as bytes.
//!
//! Owns the cursor over a request, the cursor over a reply, and the macro that
//! declares a structure once for both. Everything is native-endian: the kernel
//! is on this machine. A short input is an error, never a panic.

/// The request ended before the structure did, or a name is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request from the kernel is malformed: {0}")]
pub struct Malformed(pub &'static str);

/// A value with a fixed layout in the protocol.
pub(crate) trait Wire: Sized {
    /// Bytes it takes.
    const SIZE: usize;

    /// Reads it.
    fn load(reader: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// Writes it.
    fn store(&self, writer: &mut Writer<'_>);
}

/// A cursor over received bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes not yet consumed.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self
            .0
            .split_at_checked(count)
            .ok_or(Malformed("it is too short"))?;
        self.0 = tail;
        Ok(head)
    }

    #[inline]
    pub(crate) fn load<T: Wire>(&mut self) -> Result<T, Malformed> {
        T::load(self)
    }

    /// The bytes up to the next NUL, which is consumed too.
    pub(crate) fn c_string(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self
            .0
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(Malformed("a string has no end"))?;
        let string = self.take(end)?;
        self.take(1)?;
        Ok(string)
    }

    /// One path component: not empty, without a slash.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.c_string()?;
        if name.is_empty() || name.contains(&b'/') {
            return Err(Malformed("a name is empty or contains a slash"));
        }
        Ok(name)
    }
}

/// A cursor over a reply under construction.
///
/// Invariant: reply buffers can hold every fixed structure (they have at least
/// 8 KiB). So `store` panics only on a fault of this crate. What a file system
/// adds is checked before.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, at: 0 }
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> usize {
        self.at
    }

    #[inline]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.buffer[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    #[inline]
    pub(crate) fn store<T: Wire>(&mut self, value: &T) {
        value.store(self);
    }
}

/// Encodes `value` at the start of `buffer`; returns its size.
#[inline]
pub(crate) fn encode<T: Wire>(value: &T, buffer: &mut [u8]) -> usize {
    let mut writer = Writer::new(buffer);
    value.store(&mut writer);
    writer.len()
}

macro_rules! wire_integer {
    ($($kind:ty),*) => {
        $(impl Wire for $kind {
            const SIZE: usize = size_of::<$kind>();

            #[inline]
            fn load(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
                let bytes = reader.take(Self::SIZE)?;
                let bytes = bytes.try_into().map_err(|_| Malformed("it is too short"))?;
                Ok(Self::from_ne_bytes(bytes))
            }

            #[inline]
            fn store(&self, writer: &mut Writer<'_>) {
                writer.bytes(&self.to_ne_bytes());
            }
        })*
    };
}
wire_integer!(u8, u16, u32, u64, i32, i64);

impl<const N: usize> Wire for [u32; N] {
    const SIZE: usize = 4 * N;

    fn load(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut words = [0; N];
        for word in &mut words {
            *word = reader.load()?;
        }
        Ok(words)
    }

    fn store(&self, writer: &mut Writer<'_>) {
        for word in self {
            writer.store(word);
        }
    }
}

/// Declares structures of the protocol: fields in the kernel's order, padding
/// spelled out.
macro_rules! wire {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[allow(dead_code, reason = "padding and fields the kernel merely reserves")]
            pub(crate) struct $name { $(pub(crate) $field: $kind),* }

            impl $crate::protocol::wire::Wire for $name {
                const SIZE: usize =
                    0 $(+ <$kind as $crate::protocol::wire::Wire>::SIZE)*;

                #[inline]
                fn load(
                    reader: &mut $crate::protocol::wire::Reader<'_>,
                ) -> Result<Self, $crate::protocol::wire::Malformed> {
                    Ok(Self { $($field: reader.load()?),* })
                }

                #[inline]
                fn store(&self, writer: &mut $crate::protocol::wire::Writer<'_>) {
                    $(writer.store(&self.$field);)*
                }
            }
        )*
    };
}
pub(crate) use wire;
