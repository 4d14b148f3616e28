//! A tar archive, written from front to back.
//!
//! Pax headers carry what plain headers have no room for: long names, sizes
//! beyond 8 GiB, times finer than seconds, extended attributes.

use super::{Begun, Extras, LeftOut, Special, SpecialKind, Target, TargetPath};
use butterfs_format::item::inode::Timespec;
use std::io::{self, Write};
use tar::{EntryType, Header};

/// The unit of an archive.
const BLOCK: u64 = 512;
/// Zeros that are written at once.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Greatest number in a plain header's field of 11 octal digits.
const PLAIN_MAX: u64 = (1 << 33) - 1;

/// Writes files as a tar archive.
#[derive(Debug)]
pub struct TarTarget<W> {
    out: W,
    /// Bytes of the file at hand, and how many of them are written.
    file: Option<(u64, u64)>,
}

impl<W: Write> TarTarget<W> {
    /// Writes to `out`.
    pub const fn new(out: W) -> Self {
        Self { out, file: None }
    }

    /// Ends the archive's use and gives back where it was written.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn member(
        &mut self,
        path: &TargetPath,
        (kind, size): (EntryType, u64),
        text: &[u8],
        extras: &Extras,
    ) -> io::Result<()> {
        self.member_of(path, (kind, size, (0, 0)), text, extras)
    }

    /// A member with the numbers of a device.
    fn member_of(
        &mut self,
        path: &TargetPath,
        (kind, size, (major, minor)): (EntryType, u64, (u32, u32)),
        text: &[u8],
        extras: &Extras,
    ) -> io::Result<()> {
        let mut name = path.join(&b'/');
        if kind == EntryType::Directory {
            name.push(b'/');
        }
        let default = match kind {
            EntryType::Directory => 0o755,
            EntryType::Symlink => 0o777,
            _ => 0o644,
        };
        let attributes = extras.attributes;
        let time = attributes.map_or(Timespec::default(), |all| all.mtime);
        let records = records(&name, text, size, time, extras);
        if !records.is_empty() {
            let mut header = Header::new_ustar();
            header.set_entry_type(EntryType::XHeader);
            put(&mut header.as_old_mut().name, b"pax");
            header.set_size(crate::bytes_of(records.len()));
            header.set_mode(0o644);
            header.set_cksum();
            self.out.write_all(header.as_bytes())?;
            self.out.write_all(&records)?;
            self.pad(crate::bytes_of(records.len()))?;
        }
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        put(&mut header.as_old_mut().name, &name);
        put(&mut header.as_old_mut().linkname, text);
        header.set_size(size.min(PLAIN_MAX));
        header.set_mode(attributes.map_or(default, |all| all.permissions));
        header.set_uid(attributes.map_or(0, |all| u64::from(all.uid)));
        header.set_gid(attributes.map_or(0, |all| u64::from(all.gid)));
        header.set_mtime(u64::try_from(time.seconds).unwrap_or(0).min(PLAIN_MAX));
        header.set_device_major(major)?;
        header.set_device_minor(minor)?;
        header.set_cksum();
        self.out.write_all(header.as_bytes())
    }

    /// Fills the last block of `length` bytes.
    fn pad(&mut self, length: u64) -> io::Result<()> {
        let rest = length.checked_rem(BLOCK).unwrap_or(0);
        match rest {
            0 => Ok(()),
            _ => self.zeros(BLOCK.saturating_sub(rest)),
        }
    }

    fn zeros(&mut self, count: u64) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let now = ZEROS.get(..crate::memory_of(left)).unwrap_or(&ZEROS);
            self.out.write_all(now)?;
            left = left.saturating_sub(crate::bytes_of(now.len()));
        }
        Ok(())
    }
}

/// Copies as many bytes as fit.
fn put(field: &mut [u8], bytes: &[u8]) {
    for (to, from) in field.iter_mut().zip(bytes) {
        *to = *from;
    }
}

/// The records of a pax header.
fn records(name: &[u8], text: &[u8], size: u64, time: Timespec, extras: &Extras) -> Vec<u8> {
    let mut out = Vec::new();
    let is_plain = |bytes: &[u8]| bytes.len() <= 100 && bytes.is_ascii();
    if !is_plain(name) {
        record(&mut out, b"path", name);
    }
    if !is_plain(text) {
        record(&mut out, b"linkpath", text);
    }
    if size > PLAIN_MAX {
        record(&mut out, b"size", size.to_string().as_bytes());
    }
    if time.nanoseconds != 0 || time.seconds < 0 {
        let value = match time.seconds < 0 {
            true => time.seconds.to_string(),
            false => format!("{}.{:09}", time.seconds, time.nanoseconds),
        };
        record(&mut out, b"mtime", value.as_bytes());
    }
    for (key, value) in &extras.xattrs {
        let key = [b"SCHILY.xattr.", &key[..]].concat();
        record(&mut out, &key, value);
    }
    out
}

/// Adds `LENGTH KEY=VALUE\n`, where LENGTH counts itself.
fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len().saturating_add(value.len()).saturating_add(3);
    let mut length = rest;
    loop {
        let digits = length.to_string().len();
        let counted = rest.saturating_add(digits);
        if counted == length {
            break;
        }
        length = counted;
    }
    out.extend_from_slice(length.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

impl<W: Write> Target for TarTarget<W> {
    fn directory(&mut self, path: &TargetPath) -> io::Result<()> {
        let _ = path;
        Ok(())
    }

    fn finish_directory(&mut self, path: &TargetPath, extras: &Extras) -> io::Result<()> {
        if path.is_empty() {
            return Ok(());
        }
        self.member(path, (EntryType::Directory, 0), b"", extras)
    }

    fn needs_name_first(&self) -> bool {
        true
    }

    fn begin_file(&mut self, path: &TargetPath, size: u64, extras: &Extras) -> io::Result<Begun> {
        self.member(path, (EntryType::Regular, size), b"", extras)?;
        self.file = Some((size, 0));
        Ok(Begun::Writes)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let Some((size, done)) = self.file else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        self.zeros(offset.saturating_sub(done))?;
        self.out.write_all(data)?;
        let end = offset.saturating_add(crate::bytes_of(data.len()));
        self.file = Some((size, end));
        Ok(())
    }

    fn end_file(&mut self, _: &TargetPath, _: &Extras) -> io::Result<()> {
        let Some((size, done)) = self.file.take() else {
            return Ok(());
        };
        self.zeros(size.saturating_sub(done))?;
        self.pad(size)
    }

    fn drop_file(&mut self) {
        self.file = None;
    }

    fn symlink(&mut self, path: &TargetPath, text: &[u8], extras: &Extras) -> io::Result<Begun> {
        self.member(path, (EntryType::Symlink, 0), text, extras)?;
        Ok(Begun::Writes)
    }

    fn special(
        &mut self,
        path: &TargetPath,
        of: Special,
        extras: &Extras,
    ) -> io::Result<Result<Begun, LeftOut>> {
        let kind = match of.kind {
            SpecialKind::CharacterDevice => EntryType::Char,
            SpecialKind::BlockDevice => EntryType::Block,
            SpecialKind::Fifo => EntryType::Fifo,
            SpecialKind::Socket => {
                return Ok(Err(LeftOut("an archive cannot hold a socket")));
            }
        };
        let (major, minor) = of.numbers();
        // A field has seven octal digits.
        if major.max(minor) > 0o7_777_777 {
            return Ok(Err(LeftOut("an archive cannot hold its device number")));
        }
        self.member_of(path, (kind, 0, (major, minor)), b"", extras)?;
        Ok(Ok(Begun::Writes))
    }

    fn link(&mut self, path: &TargetPath, old: &TargetPath) -> io::Result<Begun> {
        let old = old.join(&b'/');
        self.member(path, (EntryType::Link, 0), &old, &Extras::default())?;
        Ok(Begun::Writes)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.zeros(BLOCK.saturating_mul(2))?;
        self.out.flush()
    }
}
