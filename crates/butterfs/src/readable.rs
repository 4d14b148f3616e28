//! What could be read of a volume before a change of it and cannot be after.

use crate::{Error, Volume};
use butterfs_format::InodeId;
use butterfs_format::item::dir::FileType;
use std::collections::BTreeSet;

/// Bytes that are compared at a time.
const STEP: usize = 128 << 10;

/// What a comparison found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Files, links and directories that could be read before.
    pub entries: u64,
    /// Those of them that cannot be read any more, or have other content.
    pub lost: u64,
}

/// Two states of a volume.
struct Pair<'v> {
    before: &'v Volume,
    after: &'v Volume,
    buffers: [Vec<u8>; 2],
}

/// Walks the files of `before` and reads each of them in both states. Calls
/// `lost` with the path of each that could be read, and is missing in `after`
/// or has other content there. What cannot be read in `before` does not count.
///
/// # Errors
/// The root of `before` cannot be read.
pub fn compare_readable(
    before: &Volume,
    after: &Volume,
    lost: &mut dyn FnMut(&[u8]),
) -> Result<Compared, Error> {
    let mut pair = Pair {
        before,
        after,
        buffers: [vec![0; STEP], vec![0; STEP]],
    };
    let mut compared = Compared::default();
    let roots = (before.files().root(), Some(after.files().root()));
    let mut waiting = vec![(Vec::new(), roots)];
    let mut entered = BTreeSet::new();
    while let Some((path, (old, new))) = waiting.pop() {
        // Damage may lead in a circle.
        if !entered.insert(old) {
            continue;
        }
        let children = match before.list(old) {
            Ok(children) => children,
            Err(error) if path.is_empty() => return Err(error.into()),
            Err(_) => continue,
        };
        for child in children {
            let Ok(target) = before.files().lookup(old, &child.name) else {
                continue;
            };
            let now = new.and_then(|new| after.files().lookup(new, &child.name).ok());
            let now = now
                .filter(|now| now.kind == target.kind)
                .map(|now| now.inode);
            let path = [&path[..], b"/", &child.name].concat();
            let is_same = match pair.is_same(target.kind, target.inode, now) {
                Some(is_same) => is_same,
                None => continue,
            };
            compared.entries += 1;
            if !is_same {
                compared.lost += 1;
                lost(&path);
            }
            if target.kind == FileType::Directory {
                waiting.push((path, (target.inode, now)));
            }
        }
    }
    Ok(compared)
}

impl Pair<'_> {
    /// Whether an entry is the same in both states; `None` if it could not be
    /// read before.
    fn is_same(&mut self, kind: FileType, old: InodeId, new: Option<InodeId>) -> Option<bool> {
        let facts = self.before.files().attributes(old).ok()?;
        let Some(new) = new else {
            return Some(false);
        };
        match kind {
            FileType::Regular => self.has_same_bytes(old, new, facts.size),
            FileType::Symlink => {
                let target = self.before.files().read_link(old).ok()?;
                let now = self.after.files().read_link(new);
                Some(now.is_ok_and(|now| now == target))
            }
            _ => Some(self.after.files().attributes(new).is_ok()),
        }
    }

    /// Compares the parts that could be read before.
    fn has_same_bytes(&mut self, old: InodeId, new: InodeId, size: u64) -> Option<bool> {
        let old = self.before.files().inode(old).ok()?;
        let Ok(new) = self.after.files().inode(new) else {
            return Some(false);
        };
        let mut at = 0;
        while at < size {
            let wanted = usize::try_from(size - at).map_or(STEP, |left| left.min(STEP));
            let [first, second] = &mut self.buffers;
            let (first, second) = (&mut first[..wanted], &mut second[..wanted]);
            if self.before.files().read(&old, at, first).ok() == Some(wanted) {
                let now = self.after.files().read(&new, at, second).ok();
                if now != Some(wanted) || first != second {
                    return Some(false);
                }
            }
            at += wanted as u64;
        }
        Some(true)
    }
}
