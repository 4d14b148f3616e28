//! Files of a volume as members of an archive.

use crate::fail::{Context, Done, Failure};
use butterfs::{Attributes, Inode, InodeId, Timespec, Volume, Walk};
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
/// for each step, and may end the work by a failure.
pub fn add<W: Write>(
    archive: &mut Builder<W>,
    volume: &Volume,
    (start, top): (InodeId, &[u8]),
    left: &mut Left,
    watch: &dyn Fn(Step) -> Done,
) -> Done {
    let mut work = Work {
        volume,
        archive,
        linked: HashMap::new(),
        left,
        watch,
    };
    volume.walk::<Failure>(start, &mut |entry| {
        watch(Step::File)?;
        let slash: &[u8] = match top.is_empty() || entry.path.is_empty() {
            true => b"",
            false => b"/",
        };
        let path = [top, slash, &entry.path].concat();
        let shown = String::from_utf8_lossy(&path);
        work.one(&path, &entry.attributes)
            .map_err(|failure| failure.at(&shown))?;
        Ok(Walk::Enter)
    })
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
    watch: &'a dyn Fn(Step) -> Done,
}

impl<W: Write> Work<'_, W> {
    fn one(&mut self, path: &[u8], of: &Attributes) -> Done {
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
            return Ok(self.archive.append_link(&mut header, name, first)?);
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
        self.records(of)?;
        header.set_entry_type(kind);
        match kind {
            EntryType::Regular => {
                header.set_size(of.size);
                let inode = self.volume.files().inode(of.id)?;
                let content = Content {
                    volume: self.volume,
                    inode: &inode,
                    at: 0,
                    size: of.size,
                    watch: self.watch,
                };
                self.archive.append_data(&mut header, name, content)?;
            }
            EntryType::Symlink => {
                let target = self.volume.files().read_link(of.id)?;
                let target = Path::new(OsStr::from_bytes(&target));
                self.archive.append_link(&mut header, name, target)?;
            }
            EntryType::Char | EntryType::Block => {
                header.set_device_major(u32::try_from(of.rdev >> 20)?)?;
                header.set_device_minor(u32::try_from(of.rdev & 0xf_ffff)?)?;
                self.archive.append_data(&mut header, name, io::empty())?;
            }
            _ => self.archive.append_data(&mut header, name, io::empty())?,
        }
        if of.nlink > 1 && !of.is_directory() {
            self.linked.insert(of.id, path.to_vec());
        }
        Ok(())
    }

    /// What the plain header has no room for: nanoseconds, times before 1970,
    /// extended attributes.
    fn records(&mut self, of: &Attributes) -> Done {
        let mut records: Vec<(String, Vec<u8>)> = Vec::new();
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
        let records = records.iter().map(|(key, value)| (&key[..], &value[..]));
        self.archive
            .append_pax_extensions(records)
            .context("its attributes")
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

/// The content of a file.
struct Content<'a> {
    volume: &'a Volume,
    inode: &'a Inode,
    at: u64,
    size: u64,
    watch: &'a dyn Fn(Step) -> Done,
}

impl Read for Content<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size - self.at).unwrap_or(usize::MAX);
        let room = left.min(buf.len());
        let read = self
            .volume
            .files()
            .read(self.inode, self.at, &mut buf[..room]);
        let count = read.map_err(io::Error::other)?;
        self.at += count as u64;
        (self.watch)(Step::Data(count as u64)).map_err(|failure| io::Error::other(failure.0))?;
        Ok(count)
    }
}
