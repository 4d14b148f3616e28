//! Files of a volume as members of an archive.

use crate::fail::{Done, Failure};
use crate::left_out::{LeftOut, Undone};
use butterfs::{Attributes, FsError, Inode, InodeId, Timespec, Volume, Walk};
use butterfs_admin::archive::{acl_record, attribute_key};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// What could not be kept.
#[derive(Debug, Default)]
pub struct Left {
    sockets: u64,
    attributes: u64,
}

impl Left {
    /// Prints it in a line, if there is something.
    pub fn say(&self) {
        if self.sockets > 0 || self.attributes > 0 {
            note!(
                "butterfs: left out, since archives cannot hold them: {} sockets, {} attributes",
                self.sockets,
                self.attributes
            );
        }
    }
}

/// Adds what is at `start`, and everything below it, to an archive under the
/// name `top`. With an empty name, only its content is added. `watch` is called
/// for each step, and may end the work by a failure. What cannot be read goes to
/// `left_out`.
pub fn add<W: Write>(
    archive: &mut Builder<W>,
    volume: &Volume,
    (start, top): (InodeId, &[u8]),
    (left, left_out): (&mut Left, &LeftOut),
    watch: &dyn Fn(Step) -> Done,
) -> Done {
    let mut work = Work {
        volume,
        archive,
        linked: HashMap::new(),
        left,
        left_out,
        watch,
    };
    volume.walk_readable::<Failure>(
        start,
        &mut |entry| {
            watch(Step::File)?;
            let slash: &[u8] = match top.is_empty() || entry.path.is_empty() {
                true => b"",
                false => b"/",
            };
            let path = [top, slash, &entry.path].concat();
            let tried = work.one(&path, &entry.attributes);
            left_out.entry(String::from_utf8_lossy(&path), tried)?;
            Ok(Walk::Enter)
        },
        &mut |error| {
            let top = String::from_utf8_lossy(top).into_owned();
            left_out.undone(Undone::from(error).at(top))
        },
    )
}

/// What was just done.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Another file began.
    File,
    /// This many bytes of its content were added.
    Data(u64),
}

struct Work<'a, W: Write> {
    volume: &'a Volume,
    archive: &'a mut Builder<W>,
    /// Files with several names, by the path of the first name.
    linked: HashMap<InodeId, Vec<u8>>,
    left: &'a mut Left,
    left_out: &'a LeftOut,
    watch: &'a dyn Fn(Step) -> Done,
}

/// Records of a pax header.
type Records = Vec<(String, Vec<u8>)>;

/// An archive that cannot be written takes no other member either.
fn unwritable(error: io::Error) -> Undone {
    Undone::All(error.into())
}

impl<W: Write> Work<'_, W> {
    /// Adds a member. Everything of it that may fail to be read is read before
    /// anything is written, except the rest of large content.
    fn one(&mut self, path: &[u8], of: &Attributes) -> Result<(), Undone> {
        let path = if path.is_empty() { b"." } else { path };
        let mut header = Header::new_gnu();
        header.set_mode(of.mode & 0o7777);
        header.set_uid(of.uid.into());
        header.set_gid(of.gid.into());
        header.set_mtime(u64::try_from(of.mtime.seconds).unwrap_or(0));
        header.set_size(0);
        let name = Path::new(OsStr::from_bytes(path));
        if let Some(first) = self.linked.get(&of.id) {
            header.set_entry_type(EntryType::Link);
            let first = Path::new(OsStr::from_bytes(first));
            let added = self.archive.append_link(&mut header, name, first);
            return added.map_err(unwritable);
        }
        let kind = match of.mode & libc::S_IFMT {
            libc::S_IFDIR => EntryType::Directory,
            libc::S_IFREG => EntryType::Regular,
            libc::S_IFLNK => EntryType::Symlink,
            libc::S_IFCHR => EntryType::Char,
            libc::S_IFBLK => EntryType::Block,
            libc::S_IFIFO => EntryType::Fifo,
            _ => {
                self.left.sockets += 1;
                return Ok(());
            }
        };
        let records = self.records(of)?;
        header.set_entry_type(kind);
        match kind {
            EntryType::Regular => {
                header.set_size(of.size);
                let inode = self.volume.files().inode(of.id)?;
                let content = Content::begin(self.volume, &inode, of.size, self.watch)?;
                self.regular((&mut header, name), records, content)?;
            }
            EntryType::Symlink => {
                let target = self.volume.files().read_link(of.id)?;
                let target = Path::new(OsStr::from_bytes(&target));
                self.begin(records)?;
                let added = self.archive.append_link(&mut header, name, target);
                added.map_err(unwritable)?;
            }
            _ => {
                if matches!(kind, EntryType::Char | EntryType::Block) {
                    let number = |part: u64| u32::try_from(part).unwrap_or(u32::MAX);
                    header.set_device_major(number(of.rdev >> 20))?;
                    header.set_device_minor(number(of.rdev & 0xf_ffff))?;
                }
                self.begin(records)?;
                let added = self.archive.append_data(&mut header, name, io::empty());
                added.map_err(unwritable)?;
            }
        }
        if of.nlink > 1 && !of.is_directory() {
            self.linked.insert(of.id, path.to_vec());
        }
        Ok(())
    }

    /// Adds a regular file.
    fn regular(
        &mut self,
        (header, name): (&mut Header, &Path),
        records: Records,
        mut content: Content<'_>,
    ) -> Result<(), Undone> {
        self.begin(records)?;
        let added = self.archive.append_data(header, name, &mut content);
        added.map_err(unwritable)?;
        if let Some((at, error)) = content.failed {
            let text = format!("its bytes from {at} on, which are zeros in the archive: {error}");
            let undone = Undone::Entry(Failure(text).at(name.display()));
            self.left_out.in_part(undone)?;
        }
        Ok(())
    }

    /// Writes the records of the member that comes next.
    fn begin(&mut self, records: Records) -> Result<(), Undone> {
        let records = records.iter().map(|(key, value)| (&key[..], &value[..]));
        let written = self.archive.append_pax_extensions(records);
        written.map_err(unwritable)
    }

    /// What the plain header has no room for: nanoseconds, times before 1970,
    /// extended attributes.
    fn records(&mut self, of: &Attributes) -> Result<Records, Undone> {
        let mut records = Records::new();
        if of.mtime.nanoseconds > 0 || of.mtime.seconds < 0 {
            records.push(("mtime".to_owned(), moment(of.mtime).into_bytes()));
        }
        let files = self.volume.files();
        for name in files.list_xattrs(of.id)? {
            match String::from_utf8(name) {
                Ok(name) => {
                    let value = files.get_xattr(of.id, name.as_bytes())?;
                    // Of the attribute, tar takes no notice.
                    if let Some((key, text)) = acl_record(name.as_bytes(), &value) {
                        records.push((key.to_owned(), text.into_bytes()));
                    }
                    records.push((attribute_key(&name), value));
                }
                Err(_) => self.left.attributes += 1,
            }
        }
        Ok(records)
    }
}

/// As pax writes times: the fraction counts away from zero.
fn moment(time: Timespec) -> String {
    if time.seconds < 0 && time.nanoseconds > 0 {
        let (seconds, part) = (time.seconds + 1, 1_000_000_000 - time.nanoseconds);
        let sign = if seconds == 0 { "-" } else { "" };
        return format!("{sign}{seconds}.{part:09}");
    }
    format!("{}.{:09}", time.seconds, time.nanoseconds)
}

/// Bytes of content that are read before its member is begun.
const FIRST: u64 = 1 << 20;

/// The content of a file. The header before it has its size. So where reading
/// fails, zeros follow, and `failed` says so.
struct Content<'a> {
    volume: &'a Volume,
    inode: &'a Inode,
    /// What was read before.
    first: Vec<u8>,
    at: u64,
    size: u64,
    failed: Option<(u64, FsError)>,
    watch: &'a dyn Fn(Step) -> Done,
}

impl<'a> Content<'a> {
    /// Reads the beginning.
    fn begin(
        volume: &'a Volume,
        inode: &'a Inode,
        size: u64,
        watch: &'a dyn Fn(Step) -> Done,
    ) -> Result<Self, FsError> {
        let mut first = vec![0; size.min(FIRST) as usize];
        let count = volume.files().read(inode, 0, &mut first)?;
        first.truncate(count);
        Ok(Self {
            volume,
            inode,
            first,
            at: 0,
            size,
            failed: None,
            watch,
        })
    }
}

impl Read for Content<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
        let room = left.min(buf.len());
        let buf = &mut buf[..room];
        let begun = usize::try_from(self.at).ok();
        let begun = begun.and_then(|at| self.first.get(at..));
        let count = match begun.filter(|begun| !begun.is_empty()) {
            Some(begun) => {
                let count = begun.len().min(room);
                buf[..count].copy_from_slice(&begun[..count]);
                count
            }
            None if self.failed.is_some() => {
                buf.fill(0);
                room
            }
            None => match self.volume.files().read(self.inode, self.at, buf) {
                Ok(count) => count,
                Err(error) if error.is_of_volume() => return Err(io::Error::other(error)),
                Err(error) => {
                    self.failed = Some((self.at, error));
                    buf.fill(0);
                    room
                }
            },
        };
        self.at += count as u64;
        (self.watch)(Step::Data(count as u64)).map_err(|failure| io::Error::other(failure.0))?;
        Ok(count)
    }
}
