//! Nodes of the in-memory file system: directories with stable positions,
//! files made of pages so that holes exist.

use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use butterfs_fuse::reply::{Attr, Timestamp};

pub const PAGE: u64 = 4096;

#[derive(Default)]
pub struct Directory {
    pub by_name: HashMap<Vec<u8>, u64>,
    pub by_position: BTreeMap<u64, (Vec<u8>, u64)>,
    pub parent: u64,
    pub last: u64,
}

impl Directory {
    pub fn get(&self, name: &[u8]) -> Option<u64> {
        let position = self.by_name.get(name)?;
        self.by_position.get(position).map(|(_, node)| *node)
    }

    pub fn insert(&mut self, name: &[u8], node: u64) {
        self.remove(name);
        // 1 and 2 are the positions after "." and "..".
        self.last = self.last.max(2) + 1;
        self.by_name.insert(name.to_vec(), self.last);
        self.by_position.insert(self.last, (name.to_vec(), node));
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let position = self.by_name.remove(name)?;
        self.by_position.remove(&position).map(|(_, node)| node)
    }
}

#[derive(Default)]
pub struct Pages(BTreeMap<u64, Vec<u8>>);

impl Pages {
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in chunks(offset, data.len()) {
            let target = &mut data[byte.clone()];
            match self.0.get(&(at / PAGE)) {
                Some(page) => {
                    let from = (at % PAGE) as usize;
                    target.copy_from_slice(&page[from..from + target.len()]);
                }
                None => target.fill(0),
            }
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, bytes) in chunks(offset, data.len()) {
            let from = (at % PAGE) as usize;
            let source = &data[bytes];
            self.allocate(at / PAGE)[from..from + source.len()].copy_from_slice(source);
        }
    }

    pub fn allocate(&mut self, page: u64) -> &mut Vec<u8> {
        self.0.entry(page).or_insert_with(|| vec![0; PAGE as usize])
    }

    pub fn punch(&mut self, offset: u64, length: u64) {
        for (at, bytes) in chunks(offset, length as usize) {
            if bytes.len() == PAGE as usize {
                self.0.remove(&(at / PAGE));
            } else if let Some(page) = self.0.get_mut(&(at / PAGE)) {
                let from = (at % PAGE) as usize;
                page[from..from + bytes.len()].fill(0);
            }
        }
    }

    pub fn truncate(&mut self, size: u64) {
        let _ = self.0.split_off(&size.div_ceil(PAGE));
        let end = size.next_multiple_of(PAGE);
        self.punch(size, end - size);
    }

    pub fn has(&self, page: u64) -> bool {
        self.0.contains_key(&page)
    }

    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }
}

/// Pieces of a range that lie in one page each: offset, range of the buffer.
fn chunks(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let size = ((PAGE - at % PAGE) as usize).min(len - done);
        let range = done..done + size;
        done += size;
        Some((at, range))
    })
}

pub enum Content {
    Directory(Directory),
    File(Pages),
    Symlink(Vec<u8>),
    Special,
}

pub struct Node {
    pub attr: Attr,
    pub birth: Timestamp,
    pub content: Content,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub lookups: u64,
    pub inode_flags: u32,
    pub project: u32,
}

impl Node {
    pub fn new(ino: u64, mode: u32, content: Content) -> Self {
        let now = now();
        let nlink = if matches!(content, Content::Directory(_)) {
            2
        } else {
            1
        };
        let attr = Attr {
            ino,
            mode,
            nlink,
            blksize: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            ..Attr::default()
        };
        Self {
            attr,
            birth: now,
            content,
            xattrs: BTreeMap::new(),
            lookups: 0,
            inode_flags: 0,
            project: 0,
        }
    }
}

pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp {
        seconds: since.as_secs() as i64,
        nanoseconds: since.subsec_nanos(),
    }
}
