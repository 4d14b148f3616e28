//! Reading trees over ioctls, as btrfs-progs do.
//!
//! Owns the layout of searches, and their bound: what one answer holds. Trees
//! are seen in their current state, with changes that are not yet in a commit.
//!
//! Source: the kernel's interface header linux/btrfs.h.

use super::answered::Answered;
use super::argument::{Bytes, Fields};
use super::callers_memory::write_caller;
use super::ioctl::{LOOKUP_SIZE, SEARCH_HEADER, SEARCH_INTO_SIZE, SEARCH_ITEMS, SEARCH_SIZE};
use super::nodes::inode_shown_as;
use super::server::Server;
use butterfs::{InodeId, InodeNumber, TreeId, TreeItem, is_absent_subvolume};
use butterfs_format::{ItemType, Key};
use butterfs_fuse::reply::IoctlResult;
use butterfs_fuse::request::Ioctl;
use butterfs_fuse::{Context, Errno};
use std::ops::ControlFlow;

/// Where an answer says how many items it has.
const COUNT: usize = 64;

fn kind(number: u32) -> Result<ItemType, Errno> {
    u8::try_from(number)
        .map(ItemType)
        .map_err(|_| Errno::EINVAL)
}

/// Greatest answer in the caller's memory.
const ITEMS_MAX: u64 = 16 << 20;

/// What a search came to.
enum Found {
    /// The number of items, and the bytes that they take.
    Items { count: u32, bytes: usize },
    /// The first item needs more bytes than there are.
    TooLong(usize),
}

/// Which items of a tree are asked for.
struct Search {
    tree: TreeId,
    first: Key,
    last: Key,
    generations: std::ops::RangeInclusive<u64>,
    count_max: u32,
}

impl Search {
    fn parse(data: &[u8], own: TreeId) -> Result<Self, Errno> {
        let bytes = Bytes(data);
        Ok(Self {
            tree: match bytes.u64(0)? {
                0 => own,
                id => TreeId(id),
            },
            first: Key::new(bytes.u64(8)?, kind(bytes.u32(56)?)?, bytes.u64(24)?),
            last: Key::new(
                bytes.u64(16)?,
                // Callers may mean all types by a number greater than any type.
                kind(bytes.u32(60)?.min(255))?,
                bytes.u64(32)?,
            ),
            generations: bytes.u64(40)?..=bytes.u64(48)?,
            count_max: bytes.u32(COUNT)?,
        })
    }
}

impl Server {
    /// Items of a tree, as many as fit.
    pub(super) fn search_tree(
        &self,
        at: InodeId,
        data: &[u8],
        output: &mut [u8],
    ) -> Result<usize, Errno> {
        let search = Search::parse(data, at.tree)?;
        let answer = output.get_mut(..SEARCH_SIZE).ok_or(Errno::EINVAL)?;
        answer.fill(0);
        let (head, items) = answer.split_at_mut(SEARCH_ITEMS);
        head.copy_from_slice(data.get(..SEARCH_ITEMS).ok_or(Errno::EINVAL)?);
        let Found::Items { count, .. } = self.find_items(&search, items)? else {
            return Err(Errno(libc::EOVERFLOW));
        };
        head[COUNT..COUNT + 4].copy_from_slice(&count.to_ne_bytes());
        Ok(SEARCH_SIZE)
    }

    /// Items of a tree, as many as fit, in the caller's memory behind the
    /// request. If the first item does not fit, the caller learns how much
    /// space it takes.
    pub(super) fn search_tree_into(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<IoctlResult, Errno> {
        let at = self.id(request.node);
        let search = Search::parse(request.data, at.tree)?;
        let size = Bytes(request.data).u64(SEARCH_ITEMS)?;
        let too_small = size < SEARCH_HEADER as u64;
        let room = usize::try_from(size.min(ITEMS_MAX)).map_err(|_| Errno::EINVAL)?;
        let answer = output.get_mut(..SEARCH_INTO_SIZE).ok_or(Errno::EINVAL)?;
        answer.copy_from_slice(request.data.get(..SEARCH_INTO_SIZE).ok_or(Errno::EINVAL)?);
        let mut items = vec![0; room];
        let found = match too_small {
            true => Found::TooLong(SEARCH_HEADER),
            false => self.find_items(&search, &mut items)?,
        };
        let value = match found {
            Found::Items { count, bytes } => {
                let behind = request.argument.saturating_add(SEARCH_INTO_SIZE as u64);
                write_caller(context, behind, &items[..bytes])?;
                answer[COUNT..COUNT + 4].copy_from_slice(&count.to_ne_bytes());
                0
            }
            Found::TooLong(needed) => {
                let needed = needed as u64;
                answer[SEARCH_ITEMS..SEARCH_INTO_SIZE].copy_from_slice(&needed.to_ne_bytes());
                -libc::EOVERFLOW
            }
        };
        Ok(IoctlResult {
            value,
            filled: SEARCH_INTO_SIZE,
        })
    }

    fn find_items(&self, search: &Search, items: &mut [u8]) -> Result<Found, Errno> {
        let mut count = 0;
        let mut needed = None;
        let room = items.len();
        let mut fields = Fields {
            bytes: items,
            at: 0,
        };
        let mut visit = |item: TreeItem<'_>| {
            let TreeItem {
                generation,
                key,
                data,
            } = item;
            if key > search.last || count == search.count_max {
                return ControlFlow::Break(());
            }
            let generation = generation.get();
            if search.generations.contains(&generation) {
                if SEARCH_HEADER + data.len() > room - fields.at {
                    needed = Some(SEARCH_HEADER + data.len());
                    return ControlFlow::Break(());
                }
                let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
                fields
                    .u64(generation)
                    .u64(key.objectid)
                    .u64(key.offset)
                    .put(&u32::from(key.item_type.0).to_ne_bytes())
                    .put(&length.to_ne_bytes())
                    .put(data);
                count += 1;
            }
            ControlFlow::Continue(())
        };
        let trees = self.volume.trees();
        trees
            .items_from(search.tree, &search.first, &mut visit)
            .answered()?;
        Ok(match needed {
            Some(needed) if count == 0 => Found::TooLong(needed),
            _ => Found::Items {
                count,
                bytes: fields.at,
            },
        })
    }

    /// Path of a directory in its subvolume, with a slash at its end. Callers
    /// without privileges learn in which subvolume their own file is.
    pub(super) fn directory_path(
        &self,
        context: &Context<'_>,
        at: InodeId,
        data: &[u8],
        output: &mut [u8],
    ) -> Result<usize, Errno> {
        let bytes = Bytes(data);
        let tree = match bytes.u64(0)? {
            0 => at.tree,
            id => TreeId(id),
        };
        // The number may be the one that programs see.
        let directory = match inode_shown_as(bytes.u64(8)?, tree) {
            shown if shown.tree == tree && !is_absent_subvolume(shown) => shown.number,
            _ => InodeNumber(bytes.u64(8)?),
        };
        let answer = output.get_mut(..LOOKUP_SIZE).ok_or(Errno::EINVAL)?;
        answer.fill(0);
        let mut fields = Fields {
            bytes: answer,
            at: 0,
        };
        fields.u64(tree.get()).u64(directory.get());
        if directory == InodeNumber::ROOT && tree == at.tree {
            return Ok(LOOKUP_SIZE);
        }
        self.check_privileged(context)?;
        let path = self.volume.trees().directory_path(tree, directory);
        let mut path = path.answered()?;
        if !path.is_empty() {
            path.push(b'/');
        }
        if path.len() + 17 > LOOKUP_SIZE {
            return Err(Errno(libc::ENAMETOOLONG));
        }
        fields.put(&path);
        Ok(LOOKUP_SIZE)
    }
}
