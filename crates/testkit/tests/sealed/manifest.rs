//! What can be read of a volume, and what of it was lost.

use super::commands::Touched;
use butterfs::{FileType, InodeId, Volume};
use std::collections::{BTreeMap, BTreeSet};

/// Entries that are looked at.
const ENTRIES_MAX: usize = 20_000;
/// Bytes that are judged together.
const BLOCK: usize = 4096;
/// Bytes read at a time.
const STEP: usize = 128 << 10;
/// Bytes of a file that are read.
const BYTES_MAX: u64 = 8 << 20;

/// What one path has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub inode: InodeId,
    kind: FileType,
    /// A sum of each block; `None` where it cannot be read.
    blocks: Vec<Option<u64>>,
    /// Size, permissions and owner.
    attributes: Option<(u64, u32, u32, u32)>,
    /// Attributes and the target of a symbolic link.
    texts: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

/// All paths.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    pub entries: BTreeMap<String, Entry>,
}

fn sum(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for word in bytes.chunks(8) {
        let mut full = [0; 8];
        full[..word.len()].copy_from_slice(word);
        hash = (hash ^ u64::from_le_bytes(full)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    hash ^ bytes.len() as u64
}

fn read_blocks(volume: &Volume, id: InodeId, size: u64) -> Vec<Option<u64>> {
    let mut blocks = Vec::new();
    let Ok(inode) = volume.files().inode(id) else {
        return blocks;
    };
    let size = size.min(BYTES_MAX);
    let mut buffer = vec![0; STEP];
    let mut at = 0;
    while at < size {
        let wanted = (size - at).min(STEP as u64) as usize;
        let read = volume.files().read(&inode, at, &mut buffer[..wanted]);
        if read.is_ok_and(|count| count == wanted) {
            blocks.extend(buffer[..wanted].chunks(BLOCK).map(|block| Some(sum(block))));
        } else {
            for start in (0..wanted).step_by(BLOCK) {
                let length = BLOCK.min(wanted - start);
                let part = &mut buffer[..length];
                let read = volume.files().read(&inode, at + start as u64, part);
                let is_whole = read.is_ok_and(|count| count == length);
                blocks.push(is_whole.then(|| sum(&buffer[..length])));
            }
        }
        at += wanted as u64;
    }
    blocks
}

impl Manifest {
    /// Reads all that can be read.
    pub fn of(volume: &Volume) -> Self {
        let mut manifest = Self::default();
        let mut waiting = vec![(String::new(), volume.files().root())];
        let mut above = BTreeSet::new();
        while let Some((path, directory)) = waiting.pop() {
            // A lie may lead into a circle.
            if !above.insert(directory) {
                continue;
            }
            for child in volume.list(directory).unwrap_or_default() {
                if manifest.entries.len() >= ENTRIES_MAX {
                    return manifest;
                }
                // A name that is listed and cannot be found is not there.
                let Ok(target) = volume.files().lookup(directory, &child.name) else {
                    continue;
                };
                let path = format!("{path}/{}", String::from_utf8_lossy(&child.name));
                if target.kind == FileType::Directory {
                    waiting.push((path.clone(), target.inode));
                }
                let entry = Entry::of(volume, target.inode, target.kind);
                manifest.entries.insert(path, entry);
            }
        }
        manifest
    }

    /// The same without names of which nothing else can be read.
    #[allow(dead_code, reason = "the tests of repair use it")]
    pub fn readable(mut self) -> Self {
        self.entries.retain(|_, entry| entry.attributes.is_some());
        self
    }

    pub fn files(&self) -> usize {
        self.entries.len()
    }

    /// What of `before` was right, by `truth`, and is lost now, except for what
    /// the command may change.
    pub fn lost(&self, before: &Self, truth: &Self, touched: Touched) -> Vec<String> {
        let (Touched::Files(tops) | Touched::Names(tops)) = touched;
        let is_below = |path: &str| {
            tops.iter().any(|top| {
                path.strip_prefix(top)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        // A lie may have given these inodes other names.
        let changed: BTreeSet<InodeId> = match touched {
            Touched::Names(_) => BTreeSet::new(),
            Touched::Files(_) => {
                // A path may be missing in a listing, and can be opened.
                let entries = before.entries.iter().chain(&truth.entries);
                let found = entries.filter(|(path, _)| is_below(path));
                found.map(|(_, entry)| entry.inode).collect()
            }
        };
        let mut lost = Vec::new();
        for (path, old) in &before.entries {
            let Some(right) = truth.entries.get(path) else {
                continue;
            };
            if is_below(path) || changed.contains(&old.inode) {
                continue;
            }
            match self.entries.get(path) {
                None => lost.push(format!("{path} is gone")),
                Some(new) => old.compare(new, right, path, &mut lost),
            }
        }
        lost
    }
}

impl Entry {
    fn of(volume: &Volume, id: InodeId, kind: FileType) -> Self {
        let files = volume.files();
        let attributes = files.attributes(id).ok();
        let size = attributes.as_ref().map_or(0, |found| found.size);
        let mut texts = BTreeMap::new();
        for name in files.list_xattrs(id).unwrap_or_default() {
            let value = files.get_xattr(id, &name).ok();
            texts.insert(name, value);
        }
        if kind == FileType::Symlink {
            texts.insert(Vec::new(), files.read_link(id).ok());
        }
        Self {
            inode: id,
            kind,
            blocks: match kind {
                FileType::Regular => read_blocks(volume, id, size),
                _ => Vec::new(),
            },
            attributes: attributes.map(|found| {
                let size = if kind == FileType::Regular {
                    found.size
                } else {
                    0
                };
                (size, found.mode, found.uid, found.gid)
            }),
            texts,
        }
    }

    fn compare(&self, new: &Self, right: &Self, path: &str, lost: &mut Vec<String>) {
        if self.kind == right.kind && new.kind != self.kind {
            lost.push(format!("{path} has another kind"));
        }
        if self.attributes == right.attributes && new.attributes != self.attributes {
            lost.push(format!(
                "{path} has other attributes: {:?}, not {:?}",
                new.attributes, self.attributes
            ));
        }
        for (name, value) in &self.texts {
            let is_right = value.is_some() && right.texts.get(name) == Some(value);
            if is_right && new.texts.get(name) != Some(value) {
                let name = String::from_utf8_lossy(name);
                lost.push(format!("{path} has another text {name:?}"));
            }
        }
        let wrong = |at: &usize| {
            let old = self.blocks[*at];
            old.is_some()
                && right.blocks.get(*at) == Some(&old)
                && new.blocks.get(*at) != Some(&old)
        };
        let blocks: Vec<usize> = (0..self.blocks.len()).filter(wrong).collect();
        if let Some(first) = blocks.first() {
            let now = match new.blocks.get(*first) {
                None => "behind the end",
                Some(None) => "unreadable",
                Some(Some(_)) => "other bytes",
            };
            lost.push(format!(
                "{path}: {} of {} blocks, from block {first} ({now})",
                blocks.len(),
                self.blocks.len()
            ));
        }
    }
}
