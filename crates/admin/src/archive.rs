//! Tar archives, plain or compressed.
//!
//! Owns what a member of an archive is, and reading the members one after the
//! other. The crate `tar` owns the format. This module adds the fields of pax
//! headers (names, owner, times, extended attributes) and verifies paths.
//! Archives are hostile: a path that leads out of the archive is an error, and so
//! is what cannot be understood.

mod acl;
mod pax;
mod sparse;
mod start;

pub use acl::record as acl_record;
use butterfs_format::item::NAME_MAX;
use butterfs_format::item::inode::Timespec;
use pax::{BadRecords, Record, Seeing};
use sparse::Sparse;
pub use start::open;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use tar::{Archive, EntryType};

/// The unit in which archives are written.
const BLOCK: usize = 512;
/// The most bytes of a symbolic link's target, as in Linux.
const SYMLINK_MAX: usize = 4095;

/// The type of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// A directory.
    Directory,
    /// A file with content.
    File,
    /// A symbolic link to this text.
    Symlink(Vec<u8>),
    /// Another name (hard link) of the member with this path.
    HardLink(Vec<Vec<u8>>),
    /// A character device: `major << 20 | minor`.
    CharDevice(u64),
    /// A block device: `major << 20 | minor`.
    BlockDevice(u64),
    /// A FIFO.
    Fifo,
}

/// A member of an archive, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Names from the archive's root down; empty for the root itself.
    pub path: Vec<Vec<u8>>,
    /// Its type.
    pub kind: MemberKind,
    /// Permissions, without the type.
    pub permissions: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Timespec,
    /// Bytes of the file.
    pub size: u64,
    /// Where the content lies in a sparse file, whose other bytes are zeros. The
    /// content is these pieces one behind the other. `None` if it is the whole
    /// file.
    pub pieces: Option<Vec<Range<u64>>>,
    /// Extended attributes.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The archive cannot be read, or is damaged.
    #[error("the archive cannot be read: {}", printable(&.0.to_string()))]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("no archive: {0}; give one of tar, plain or compressed with gzip or zstd")]
    NoArchive(String),
    /// The archive is compressed by a program that is not supported.
    #[error("the archive is compressed with {0}; decompress it first, as in `{0} -dc FILE |`")]
    Compression(&'static str),
    /// A path leads out of the archive.
    #[error("the archive has the path {0}, which leads out of it; it is not taken")]
    Path(String),
    /// A member has a type that is not supported.
    #[error("{path}: a member of type {kind} is not supported")]
    Kind {
        /// The member's path.
        path: String,
        /// The byte for the type.
        kind: char,
    },
    /// A field of a member cannot be understood.
    #[error("{path}: its {field} cannot be understood")]
    Field {
        /// The member's path.
        path: String,
        /// The field.
        field: &'static str,
    },
}

/// Returns the plain bytes of an input that may be compressed with gzip or zstd.
///
/// # Errors
/// [`ArchiveError::Io`] if the input cannot be read, and
/// [`ArchiveError::NoArchive`] or [`ArchiveError::Compression`] if it is empty or
/// compressed in another way.
pub fn decompressed<'r>(input: impl Read + 'r) -> Result<Box<dyn Read + 'r>, ArchiveError> {
    let mut input = BufReader::with_capacity(1 << 20, input);
    let start = input.fill_buf()?;
    if start.is_empty() {
        return Err(ArchiveError::NoArchive("it is empty".to_owned()));
    }
    if start.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(input)));
    }
    if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return Ok(Box::new(zstd::stream::read::Decoder::with_buffer(input)?));
    }
    if start.starts_with(&[0xfd, b'7', b'z', b'X', b'Z']) {
        return Err(ArchiveError::Compression("xz"));
    }
    if start.starts_with(b"BZh") {
        return Err(ArchiveError::Compression("bzip2"));
    }
    Ok(Box::new(input))
}

/// A member, or why it cannot be taken.
pub type Found = Result<Member, ArchiveError>;

/// Calls `visit` with each member of an archive and its content. A member that
/// cannot be understood is an error there; the members behind it can be read all
/// the same.
///
/// # Errors
/// An [`ArchiveError`] if the archive cannot be read, and any error that `visit`
/// returns.
pub fn read<E: From<ArchiveError>>(
    input: impl Read,
    visit: &mut dyn FnMut(Found, &mut dyn Read) -> Result<(), E>,
) -> Result<(), E> {
    let Some(input) = start::begun(input)? else {
        return Ok(());
    };
    let (input, seen) = Seeing::new(input);
    let mut archive = Archive::new(input);
    let entries = archive.entries().map_err(ArchiveError::from)?;
    for entry in entries {
        let mut entry = entry.map_err(ArchiveError::from)?;
        let records = seen.borrow_mut().take_records();
        match member(&entry, records) {
            Ok(Some((member, None))) => visit(Ok(member), &mut entry)?,
            Ok(Some((member, Some(sparse)))) => {
                let member = with_pieces(member, sparse, &mut entry)?;
                visit(member, &mut entry)?;
            }
            Ok(None) => {}
            Err(error) => visit(Err(error), &mut io::empty())?,
        }
    }
    Ok(())
}

/// A sparse member, with its pieces.
///
/// # Errors
/// The archive cannot be read.
fn with_pieces(
    mut member: Member,
    sparse: Sparse,
    content: &mut tar::Entry<'_, impl Read>,
) -> Result<Found, ArchiveError> {
    let bytes = content.size();
    member.size = sparse.size;
    Ok(match sparse.pieces(content, bytes)? {
        Ok(pieces) => {
            member.pieces = Some(pieces);
            Ok(member)
        }
        Err(field) => Err(ArchiveError::Field {
            path: text_of(&member.path.join(&b'/')),
            field,
        }),
    })
}

/// Returns the member that an entry describes, and how it is sparse; `None` if
/// the entry is a header for other entries.
fn member<R: Read>(
    entry: &tar::Entry<'_, R>,
    records: Result<Vec<Record>, BadRecords>,
) -> Result<Option<(Member, Option<Sparse>)>, ArchiveError> {
    let kind = entry.header().entry_type();
    if matches!(kind, EntryType::XGlobalHeader | EntryType::XHeader) {
        return Ok(None);
    }
    let bad = |path: &[u8], field| ArchiveError::Field {
        path: text_of(path),
        field,
    };
    let records = records.map_err(|fault| {
        let field = match fault {
            BadRecords::Malformed => "pax header",
            BadRecords::TooLarge => "pax header (more than 16 MiB)",
        };
        bad(&entry.path_bytes(), field)
    })?;
    let record = |wanted: &[u8]| {
        let found = records.iter().rev().find(|(key, _)| key == wanted);
        found.map(|(_, value)| value.clone())
    };
    let raw_path = record(b"path").unwrap_or_else(|| entry.path_bytes().into_owned());
    let sparse = match kind {
        EntryType::Regular | EntryType::Continuous => sparse::of_records(&records),
        _ => Ok(None),
    };
    let sparse = sparse.map_err(|field| bad(&raw_path, field))?;
    // The path of such a header is not the file's.
    let name = sparse.as_ref().and_then(|sparse| sparse.name.clone());
    let raw_path = name.unwrap_or(raw_path);
    let of_header = || entry.link_name_bytes().map(std::borrow::Cow::into_owned);
    let link = record(b"linkpath").or_else(of_header);
    let text = text_of(&raw_path);
    // A size behind a record that the crate does not understand is unknown to
    // it, and the content would be cut.
    if pax::size_in(&records).is_some_and(|size| size != entry.size()) {
        return Err(bad(&raw_path, "size, in a pax header with line breaks"));
    }
    let field = |field| {
        let path = text.clone();
        move |_: io::Error| ArchiveError::Field { path, field }
    };
    let path = components(&raw_path)?;
    let header = entry.header();
    let device = || -> Result<u64, ArchiveError> {
        let number = "device number";
        let major = header.device_major().map_err(field(number))?;
        let minor = header.device_minor().map_err(field(number))?;
        Ok(u64::from(major.unwrap_or(0)) << 20 | u64::from(minor.unwrap_or(0)))
    };
    let kind = match kind {
        EntryType::Directory => MemberKind::Directory,
        // The oldest archives have no type for directories.
        EntryType::Regular if text.ends_with('/') => MemberKind::Directory,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => MemberKind::File,
        EntryType::Symlink => {
            let target = link.unwrap_or_default();
            if target.len() > SYMLINK_MAX || !is_text(&target) {
                return Err(ArchiveError::Field {
                    path: text,
                    field: "target (1 to 4095 bytes without NUL)",
                });
            }
            MemberKind::Symlink(target)
        }
        EntryType::Link => MemberKind::HardLink(components(&link.unwrap_or_default())?),
        EntryType::Char => MemberKind::CharDevice(device()?),
        EntryType::Block => MemberKind::BlockDevice(device()?),
        EntryType::Fifo => MemberKind::Fifo,
        other => {
            return Err(ArchiveError::Kind {
                path: text,
                kind: char::from(other.as_byte()),
            });
        }
    };
    let id = |number: u64, name| {
        u32::try_from(number).map_err(|_| ArchiveError::Field {
            path: text.clone(),
            field: name,
        })
    };
    let mtime = header.mtime().map_err(field("time"))?;
    let mut member = Member {
        path,
        kind,
        permissions: header.mode().map_err(field("mode"))? & 0o7777,
        uid: id(header.uid().map_err(field("user"))?, "user")?,
        gid: id(header.gid().map_err(field("group"))?, "group")?,
        mtime: Timespec {
            // GNU tar writes times before 1970 as negative numbers.
            seconds: mtime.cast_signed(),
            nanoseconds: 0,
        },
        size: entry.size(),
        pieces: None,
        attributes: Vec::new(),
    };
    for record in &records {
        add_record(record, &mut member).map_err(|field| bad(&raw_path, field))?;
    }
    Ok(Some((member, sparse)))
}

/// Changes a member by a pax record.
///
/// # Errors
/// The name of the field that cannot be understood.
fn add_record((key, value): &Record, member: &mut Member) -> Result<(), &'static str> {
    const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
    let number = || std::str::from_utf8(value).ok()?.parse().ok();
    match &key[..] {
        b"uid" => member.uid = number().ok_or("user")?,
        b"gid" => member.gid = number().ok_or("group")?,
        b"mtime" => member.mtime = moment(value).ok_or("time")?,
        b"SCHILY.acl.access" | b"SCHILY.acl.default" => {
            let list = acl::attribute(key.ends_with(b"default"), value);
            let list = list.map_err(|acl::NoList| {
                "access control list (it names users or groups that this machine does not have, or \
                 is malformed; tar --numeric-owner writes numbers)"
            })?;
            // An attribute with the same list has no names to be resolved.
            let is_new = |(name, _): &(Vec<u8>, Vec<u8>)| {
                !member.attributes.iter().any(|(known, _)| known == name)
            };
            member.attributes.extend(list.filter(is_new));
        }
        key => {
            if let Some(name) = key.strip_prefix(ATTRIBUTE) {
                let name = decoded(name);
                if name.len() > NAME_MAX || !is_text(&name) {
                    return Err("attribute name (1 to 255 bytes without NUL)");
                }
                member.attributes.retain(|(known, _)| *known != name);
                member.attributes.push((name, value.clone()));
            }
        }
    }
    Ok(())
}

/// The name of an attribute. A `=` would end the key of its record, so tar writes
/// `%3D` for it, and `%25` for `%`.
fn decoded(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, later)) = rest.split_first() {
        let (byte, later) = match rest.get(..3) {
            Some(b"%3D") => (b'=', &rest[3..]),
            Some(b"%25") => (b'%', &rest[3..]),
            _ => (*first, later),
        };
        plain.push(byte);
        rest = later;
    }
    plain
}

/// The name of an attribute as a key of a pax record has it.
#[must_use]
pub fn attribute_key(name: &str) -> String {
    let name = name.replace('%', "%25").replace('=', "%3D");
    format!("SCHILY.xattr.{name}")
}

/// Parses a time as pax writes it, such as `1700000000.123456789`.
fn moment(text: &[u8]) -> Option<Timespec> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_negative = whole.starts_with('-');
    let seconds: i64 = whole.parse().ok()?;
    if !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: String = part.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    // In the text, the fraction of a negative time counts away from zero.
    // Nanoseconds always count forward.
    if is_negative && nanoseconds > 0 {
        return Some(Timespec {
            seconds: seconds.checked_sub(1)?,
            nanoseconds: 1_000_000_000 - nanoseconds,
        });
    }
    Some(Timespec {
        seconds,
        nanoseconds,
    })
}

/// Bytes of an archive as text for a terminal.
fn text_of(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes))
}

/// A text without characters that control a terminal.
fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => safe.extend(letter.escape_default()),
            false => safe.push(letter),
        }
    }
    safe
}

/// True for bytes that can be a name or a target: not empty, and without NUL.
fn is_text(bytes: &[u8]) -> bool {
    !bytes.is_empty() && !bytes.contains(&0)
}

/// Returns the names of a path, without empty ones and `.`.
fn components(path: &[u8]) -> Result<Vec<Vec<u8>>, ArchiveError> {
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                return Err(ArchiveError::Path(text_of(path)));
            }
            name if name.len() > NAME_MAX || !is_text(name) => {
                return Err(ArchiveError::Field {
                    path: text_of(path),
                    field: "name (1 to 255 bytes without NUL)",
                });
            }
            name => names.push(name.to_vec()),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_pax_are_read() {
        let time = |text: &str| moment(text.as_bytes()).map(|t| (t.seconds, t.nanoseconds));
        assert_eq!(time("12"), Some((12, 0)));
        assert_eq!(time("12.5"), Some((12, 500_000_000)));
        assert_eq!(time("12.0000000019"), Some((12, 1)));
        assert_eq!(time("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time("-1"), Some((-1, 0)));
        for bad in ["", "x", "1.-2", "1.2.3"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_of_attributes_are_encoded() {
        for name in ["user.a", "user.a=b%c%3D", "user.%", "user.%2"] {
            let key = attribute_key(name);
            assert!(!key.contains('='), "{key}");
            let key = key.strip_prefix("SCHILY.xattr.").unwrap();
            assert_eq!(decoded(key.as_bytes()), name.as_bytes());
        }
        assert_eq!(decoded(b"user.50%-off"), b"user.50%-off");
    }

    #[test]
    fn errors_do_not_control_a_terminal() {
        let error = components(b"a/\x1b[2J/..").unwrap_err().to_string();
        assert!(error.contains("a/\\u{1b}[2J/.."), "{error}");
    }

    #[test]
    fn no_path_leads_out() {
        let names = |path: &[u8]| components(path).ok();
        assert_eq!(names(b"./a//b/"), Some(vec![b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(names(b"/"), Some(Vec::new()));
        assert_eq!(names(b"a/../b"), None);
    }
}
