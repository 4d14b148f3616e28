//! Requests on data, directory listings with attributes, and ioctls.

use super::answered::Answered;
use super::autodefrag::Spot;
use super::caller::Caller;
use super::convert;
use super::guard::FromCache;
use super::intent;
use super::protected::KEPT;
use super::server::Server;
use butterfs::access::{Capability, Credentials};
use butterfs::{
    FallocateMode, FsError, Inode, InodeFlags, ListedEntry, Privileges, SeekTarget, WriteCache,
};
use butterfs_format::superblock::LABEL_SIZE;
use butterfs_fuse::reply::{
    DirectoryEntry, DirectoryPlusBuffer, Entry, FOREVER, IoctlResult, Push,
};
use butterfs_fuse::request::{
    self, CopyFileRange, Fallocate, FallocateFlags, Ioctl, Lseek, OFlags, Write,
};
use butterfs_fuse::{Context, Errno, InvalidRange, NodeId};
use std::ops::Range;
use std::sync::Arc;

const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
const GETVERSION: u32 = 0x8008_7601;
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;
const GETLABEL: u32 = 0x8100_9431;
const SETLABEL: u32 = 0x4100_9432;
const S_ISUID: u32 = 0o4_000;
const S_ISGID: u32 = 0o2_000;
const S_IXGRP: u32 = 0o010;
/// Bytes of `struct fsxattr`.
const FSXATTR: usize = 28;

impl Server {
    /// Runs `sync` unless nothing can have changed.
    pub(super) fn unless_read_only(
        &self,
        sync: impl FnOnce() -> Result<(), FsError>,
    ) -> Result<(), Errno> {
        if self.volume.access() == butterfs::Access::ReadOnly {
            return Ok(());
        }
        sync().answered()
    }

    /// Makes everything durable, also what programs changed through shared
    /// mappings.
    pub(super) fn sync_with_pages(&self, context: &Context<'_>) -> Result<(), Errno> {
        if self.volume.access() == butterfs::Access::ReadOnly {
            return Ok(());
        }
        self.write_back_mounts(context)?;
        self.files().sync_all().answered()
    }

    pub(super) fn push_plus(
        &self,
        entry: &ListedEntry,
        listing: &mut DirectoryPlusBuffer<'_>,
    ) -> Result<Push, Errno> {
        let files = self.files();
        let dots = matches!(&entry.name[..], b"." | b"..");
        let node = if dots {
            Entry::absent(FOREVER)
        } else {
            match files.inode(entry.target.inode) {
                Ok(inode) => self.entry(&inode)?,
                // Damage of one inode must not hide its neighbours.
                Err(error) => {
                    tracing::error!(%error, "an entry is listed without attributes");
                    Entry::absent(FOREVER)
                }
            }
        };
        let ino = match node.node {
            NodeId(0) => self.nodes.node_of(entry.target.inode).answered()?.0,
            known => known.0,
        };
        let push = listing.push(
            &DirectoryEntry {
                ino,
                next: entry.next,
                kind: convert::kind(entry.target.kind),
                name: &entry.name,
            },
            &node,
        );
        if push == Push::Full && node.node.0 != 0 {
            self.nodes.forget(files, node.node, 1).answered()?;
        }
        Ok(push)
    }

    pub(super) fn write_data(
        &self,
        context: &Context<'_>,
        request: &Write<'_>,
    ) -> Result<usize, Errno> {
        let _arriving = request.write_flags.from_cache.then(|| self.pages.arrive());
        let inode = self.inode(request.node)?;
        let mut already = 0;
        if request.write_flags.from_cache {
            match self.check_cached_write(&inode, request) {
                Ok(FromCache::All) => {}
                Ok(FromCache::After(offset)) => {
                    already = usize::try_from(offset - request.offset).unwrap_or(0);
                }
                Err(error) => {
                    self.drop_pages(request.node);
                    return Err(error);
                }
            }
        } else {
            self.check_write(&inode, request.offset)?;
        }
        let at = request.offset + already as u64;
        let spot = self.autodefrag.get().map(|_| Spot {
            offset: at,
            length: (request.data.len() - already) as u64,
            size: inode.state.read_beside().item.size,
        });
        let written = if request.write_flags.from_cache {
            let written = self.write_all(&inode, at, &request.data[already..]);
            // Readers would see pages that the file does not get.
            self.or_drop_pages(request.node, written)?;
            request.data.len()
        } else {
            self.files().write(&inode, at, request.data).answered()?
        };
        if let (Some(autodefrag), Some(spot)) = (self.autodefrag.get(), spot) {
            autodefrag.note(inode.id, spot);
        }
        let finished = self.finish_write(context, &inode, request);
        self.or_drop_pages(request.node, finished)?;
        Ok(written)
    }

    /// The kernel takes pages for written if the first of them are. With its
    /// write-back cache it tells the times of writes by itself.
    fn write_all(&self, inode: &Arc<Inode>, at: u64, data: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            let (files, at, rest) = (self.files(), at + done as u64, &data[done..]);
            let written = match self.mount.write_cache {
                WriteCache::Kernel => files.write_kept(inode, at, rest),
                WriteCache::Server => files.write(inode, at, rest),
            };
            match written.answered()? {
                0 => return Err(Errno::EIO),
                written => done += written,
            }
        }
        Ok(())
    }

    /// What a write asks for beyond the data.
    fn finish_write(
        &self,
        context: &Context<'_>,
        inode: &Inode,
        request: &Write<'_>,
    ) -> Result<(), Errno> {
        if request.write_flags.clear_set_id {
            self.drop_privileges(context, inode, request.node)?;
        }
        let flags = Self::flags(inode);
        if flags.contains(InodeFlags::SYNC) {
            self.files().fsync(inode).answered()?;
        } else if request.flags.contains(OFlags::DIRECT) && flags.contains(InodeFlags::NODATACOW) {
            // Databases rely on this: when a direct write over data in place is
            // finished, the device has it, though perhaps not durably.
            self.files().flush_inode(inode).answered()?;
        }
        Ok(())
    }

    /// After an error, a part of a change may be done. The kernel believes that
    /// nothing is, so it drops what it knows of the file.
    pub(super) fn or_drop_pages<T>(
        &self,
        node: NodeId,
        result: Result<T, Errno>,
    ) -> Result<T, Errno> {
        if result.is_err() {
            self.drop_pages(node);
        }
        result
    }

    /// Which privileges a file loses if the caller may not keep all of them.
    /// Without the execute bit, the set-group bit stays if the caller is in the
    /// group.
    pub(super) fn dropped_by(&self, context: &Context<'_>, inode: &Inode) -> Privileges {
        let (mode, owner) = {
            let item = &inode.state.read_beside().item;
            (item.mode, self.shown_owner(item.uid, item.gid))
        };
        let caller = Caller::of(context);
        let stays = mode & S_ISGID == 0
            || caller.is_member(owner.gid)
            || caller.has_over(Capability::KeepSetId, owner);
        if stays {
            Privileges::Drop
        } else {
            Privileges::DropAll
        }
    }

    /// What a request for nothing removes. It is a chown(2) to nobody else, which
    /// removes what any chown does, or announces a write, which removes it by
    /// itself.
    pub(super) fn dropped_by_empty(
        &self,
        context: &Context<'_>,
        inode: &Inode,
    ) -> Result<Privileges, Errno> {
        let attributes = self.files().attributes_of(inode).answered()?;
        let has_any = !attributes.is_directory() && attributes.mode & (S_ISUID | S_ISGID) != 0;
        if !has_any || !intent::changes_owner(context.pid) {
            return Ok(Privileges::Keep);
        }
        let dropped = self.dropped_by(context, inode);
        let keeps_all = attributes.mode & (S_ISUID | S_IXGRP) == 0 && dropped == Privileges::Drop;
        let guarded = self.guarded_by(&attributes);
        if !keeps_all && !guarded.is_owned_by(&Caller::of(context)) {
            return Err(Errno::EPERM);
        }
        Ok(dropped)
    }

    /// Removes set-id bits and capabilities from a file that was written to.
    /// Makes the kernel ask for the file's mode again, which it does not do by
    /// itself.
    fn drop_privileges(
        &self,
        context: &Context<'_>,
        inode: &Inode,
        node: NodeId,
    ) -> Result<(), Errno> {
        let before = inode.state.read_beside().item.mode;
        let privileges = self.dropped_by(context, inode);
        self.files().drop_privileges(inode, privileges).answered()?;
        if inode.state.read_beside().item.mode != before {
            self.attributes_changed(node);
        }
        Ok(())
    }

    /// Makes the kernel ask for the attributes of a node again, after a change
    /// that does not report them to it.
    fn attributes_changed(&self, node: NodeId) {
        if let Some(notifier) = self.notifier.get() {
            // Only a hint: a kernel that forgot the node asks anyway.
            let _ = notifier.invalidate_inode(node, InvalidRange::AttributesOnly);
        }
    }

    /// As the kernel does for a file whose content changes: a caller without
    /// all rights removes the file's privileges. The requests that arrive here
    /// do not say whether the caller may keep them, so the caller is looked at.
    fn modified_by(&self, context: &Context<'_>, inode: &Inode, node: NodeId) -> Result<(), Errno> {
        let mode = inode.state.read_beside().item.mode;
        if mode & (S_ISUID | S_ISGID) != 0 && Caller::of(context).has(Capability::KeepSetId) {
            return Ok(());
        }
        self.drop_privileges(context, inode, node)
    }

    pub(super) fn allocate(&self, context: &Context<'_>, request: &Fallocate) -> Result<(), Errno> {
        const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;
        let mode = if request.mode.is_empty() {
            FallocateMode::Allocate
        } else if request.mode == KEEP {
            FallocateMode::AllocateKeepSize
        } else if request.mode == FallocateFlags::PUNCH_HOLE | KEEP {
            FallocateMode::PunchHole
        } else if request.mode == FallocateFlags::ZERO_RANGE {
            FallocateMode::ZeroRange
        } else if request.mode == FallocateFlags::ZERO_RANGE | KEEP {
            FallocateMode::ZeroRangeKeepSize
        } else {
            return Err(Errno::EOPNOTSUPP);
        };
        let inode = self.inode(request.node)?;
        match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                self.check_write(&inode, u64::MAX)?;
            }
            _ => self.check_change(&inode)?,
        }
        let done = self
            .files()
            .fallocate(&inode, mode, request.offset, request.length);
        let done = done.answered();
        let finished = done.and_then(|()| self.modified_by(context, &inode, request.node));
        self.or_drop_pages(request.node, finished)
    }

    /// Finds data or a hole. Where the file has a hole, the kernel may have data
    /// that it has not written back: of a mapping or, with its write-back cache,
    /// of any write. So it writes back what it has in the hole before the answer
    /// is given.
    pub(super) fn seek(&self, context: &Context<'_>, request: &Lseek) -> Result<u64, Errno> {
        let target = match request.target {
            request::SeekTarget::Data => SeekTarget::Data,
            request::SeekTarget::Hole => SeekTarget::Hole,
        };
        let inode = self.inode(request.node)?;
        let mut written_back = None;
        loop {
            let found = self.files().seek(&inode, target, request.offset);
            let hole = self.hole_in_answer(&inode, (target, request.offset), &found);
            let Some(hole) = hole.filter(|hole| written_back != Some(hole.start)) else {
                return found.answered();
            };
            let size = inode.state.read_beside().item.size;
            let told = self.write_back_range(context, request.node, &hole);
            if told.is_err() && request.offset < size {
                // What may be data counts as data.
                return Ok(match target {
                    SeekTarget::Data => request.offset,
                    SeekTarget::Hole => size,
                });
            }
            written_back = Some(hole.start);
        }
    }

    /// The hole that an answer of [`Server::seek`] tells of.
    fn hole_in_answer(
        &self,
        inode: &Inode,
        (target, offset): (SeekTarget, u64),
        found: &Result<u64, FsError>,
    ) -> Option<Range<u64>> {
        /// The largest offset in a file.
        const END: u64 = i64::MAX as u64;
        let size = inode.state.read_beside().item.size;
        // With its write-back cache the kernel may know of a larger size.
        let is_cached = self.mount.write_cache == WriteCache::Kernel;
        match (target, found) {
            (SeekTarget::Data, Ok(data)) => Some(offset..*data),
            (SeekTarget::Data, Err(FsError::NoMoreData)) if offset < size || is_cached => {
                Some(offset..END)
            }
            (SeekTarget::Hole, Ok(hole)) if *hole < size => {
                let data = self.files().seek(inode, SeekTarget::Data, *hole);
                Some(*hole..data.unwrap_or(END))
            }
            (SeekTarget::Hole, Ok(hole)) if is_cached => Some(*hole..END),
            _ => None,
        }
        .filter(|hole| !hole.is_empty())
    }

    pub(super) fn copy(
        &self,
        context: &Context<'_>,
        request: &CopyFileRange,
    ) -> Result<u64, Errno> {
        let from = self.inode(request.node_in)?;
        let to = self.inode(request.node_out)?;
        self.check_write(&to, request.offset_out)?;
        let copied = self.copy_to(context, (&from, &to), request);
        self.or_drop_pages(request.node_out, copied)
    }

    fn copy_to(
        &self,
        context: &Context<'_>,
        (from, to): (&Arc<Inode>, &Arc<Inode>),
        request: &CopyFileRange,
    ) -> Result<u64, Errno> {
        let copied = self
            .files()
            .copy_range(
                (from, request.offset_in),
                (to, request.offset_out),
                request.length,
            )
            .answered()?;
        self.modified_by(context, to, request.node_out)?;
        // For writes, the kernel asks for this itself.
        let is_durable = Self::flags(to).contains(InodeFlags::SYNC)
            || self.mount.sync_data
            || intent::copies_durably(context.pid);
        if is_durable {
            self.files().fsync(to).answered()?;
        }
        Ok(copied)
    }

    pub(super) fn set_label(&self, context: &Context<'_>, label: &[u8]) -> Result<(), Errno> {
        self.check_privileged(context)?;
        match self.volume.set_label(label) {
            // As in the kernel, it is on the device at once.
            Ok(()) => self.volume.commit().map(drop),
            Err(butterfs::Error::Store(error)) => Err(error.into()),
            Err(_) => return Err(Errno::EIO),
        }
        .answered()
    }

    pub(super) fn reset_stats(&self, context: &Context<'_>) -> Result<(), Errno> {
        self.check_privileged(context)?;
        self.volume.reset_device_stats().map_err(|_| Errno::EROFS)
    }

    pub(super) fn control(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<IoctlResult, Errno> {
        if let Some(done) = self.control_subvolume(context, request, output) {
            return done;
        }
        if let Some(done) = self.control_quota(context, request, output) {
            return done;
        }
        if let Some(done) = self.control_facts(context, request, output) {
            return done;
        }
        if let Some(done) = self.control_whole(context, request, output) {
            return done;
        }
        if let Some(done) = self.control_sharing(context, request, output) {
            return done;
        }
        if let Some(done) = self.control_send(context, request) {
            return done;
        }
        if let Some(done) = self.control_operation(context, request, output) {
            return done;
        }
        let inode = self.inode(request.node)?;
        let old = self.files().attributes_of(&inode).answered()?;
        let word = |at: usize| -> Result<u32, Errno> {
            let bytes = request.data.get(at..at + 4).and_then(|b| b.try_into().ok());
            Ok(u32::from_ne_bytes(bytes.ok_or(Errno::EINVAL)?))
        };
        let mut filled = 0;
        match request.command {
            GETLABEL => {
                let room = output.get_mut(..LABEL_SIZE).ok_or(Errno::EINVAL)?;
                room.fill(0);
                let label = self.volume.superblock().label;
                room[..label.len()].copy_from_slice(&label);
                filled = LABEL_SIZE;
            }
            SETLABEL => {
                Self::check_mount(context)?;
                let label = request.data.split(|byte| *byte == 0).next();
                self.set_label(context, label.unwrap_or_default())?;
            }
            GETFLAGS => {
                let room = output.first_chunk_mut().ok_or(Errno::EINVAL)?;
                *room = convert::fs_flags(old.flags).to_ne_bytes();
                filled = 4;
            }
            // The same number that file handles have.
            GETVERSION => {
                let room = output.first_chunk_mut().ok_or(Errno::EINVAL)?;
                let generation = inode.state.read_beside().item.generation.get();
                *room = (generation as u32).to_ne_bytes();
                filled = 4;
            }
            FSGETXATTR => {
                let room = output.get_mut(..FSXATTR).ok_or(Errno::EINVAL)?;
                room.fill(0);
                room[..4].copy_from_slice(&convert::xflags(old.flags).to_ne_bytes());
                filled = FSXATTR;
            }
            SETFLAGS | FSSETXATTR => {
                let caller = Caller::of(context);
                self.check_tree(inode.id.tree)?;
                if !self.guarded_by(&old).is_owned_by(&caller) {
                    return Err(Errno::EPERM);
                }
                // As in the kernel, neither extent sizes nor project ids.
                let others = request.data.get(4..).unwrap_or_default();
                let asked = |range| {
                    others
                        .get(range)
                        .is_some_and(|b: &[u8]| b.iter().any(|b| *b != 0))
                };
                if request.command == FSSETXATTR && (asked(0..4) || asked(8..16)) {
                    return Err(Errno::EOPNOTSUPP);
                }
                let mut wanted = if request.command == SETFLAGS {
                    convert::from_fs_flags(word(0)?)?
                } else {
                    convert::from_xflags(old.flags, word(0)?)?
                };
                if !old.is_directory() {
                    // It has no meaning there, and lsattr would show it.
                    wanted = wanted.without(InodeFlags::DIRSYNC);
                }
                let protects = (wanted & KEPT) != (old.flags & KEPT);
                if protects && !caller.has(Capability::Immutable) {
                    return Err(Errno::EPERM);
                }
                if protects {
                    self.write_back(context, request.node)?;
                }
                let set = match request.command {
                    SETFLAGS => self.files().set_flags(&inode, wanted),
                    _ => self.files().set_other_flags(&inode, wanted),
                };
                set.answered()?;
                self.attributes_changed(request.node);
            }
            _ => return Err(Errno::ENOTTY),
        }
        Ok(IoctlResult { value: 0, filled })
    }
}
