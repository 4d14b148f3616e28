//! Subvolumes over ioctls, with the kernel's numbers and structures.
//!
//! The kernel checks no permission for an ioctl on FUSE; `rights` does. The
//! user who runs the server may do what root may do on a kernel mount.
//!
//! Source: the kernel's interface header linux/btrfs.h.

use super::answered::Answered;
use super::argument::{Bytes, Fields};
use super::caller::Caller;
use super::intent;
use super::ioctl::{
    BY_ID, Command, INFO_SIZE, INHERIT, NAME_V1, NAME_V2, PLACE_NAME, PLACE_PATH, PLACE_SIZE,
    READ_ONLY, RECEIVED_SIZE, ROOT_REFS_MAX,
};
use super::server::Server;
use super::telling::NAME_PATIENCE;
use crate::mounts::Mount;
use crate::place::path_from_top;
use butterfs::access::Wanted;
use butterfs::quota::GroupId;
use butterfs::{Access, InodeId, InodeNumber, NewInode, Owner, Received, Subvolume, TreeId};
use butterfs_format::Generation;
use butterfs_format::item::root::RootItem;
use butterfs_fuse::reply::IoctlResult;
use butterfs_fuse::request::Ioctl;
use butterfs_fuse::{Context, EntryChange, Errno, InvalidRange, NodeId};
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;

const S_IFDIR: u32 = 0o040_000;

/// Errors if `btrfs_ioctl_vol_args_v2` asks for something that the command does
/// not know.
fn check_flags(data: &Bytes<'_>, known: u64) -> Result<(), Errno> {
    match data.u64(16)? & !known {
        0 => Ok(()),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

impl Server {
    /// Serves an ioctl on subvolumes; `None` when it is none.
    pub(super) fn control_subvolume(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Option<Result<IoctlResult, Errno>> {
        let command = Command::of(request.command)?;
        if command == Command::RootRefs {
            let from = Bytes(request.data).u64(0);
            return Some(from.and_then(|from| {
                let at = self.id(request.node);
                self.root_refs(at.tree, TreeId(from), output)
            }));
        }
        let done = self.run_subvolume_command(command, context, request, output);
        Some(done.map(|filled| IoctlResult { value: 0, filled }))
    }

    fn run_subvolume_command(
        &self,
        command: Command,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<usize, Errno> {
        let at = self.id(request.node);
        let data = Bytes(request.data);
        if command.changes() {
            Self::check_mount(context)?;
        }
        match command {
            Command::Create => {
                let name = data.name(NAME_V1)?;
                self.create(context, request.node, name, &BTreeSet::new())?;
            }
            Command::CreateV2 => {
                check_flags(&data, READ_ONLY | INHERIT)?;
                let name = data.name(NAME_V2)?;
                let groups = self.inherited_groups(context, &data)?;
                self.create(context, request.node, name, &groups)?;
            }
            Command::Snapshot => {
                let source = (data.u64(0)?, Access::ReadWrite);
                let name = data.name(NAME_V1)?;
                self.snapshot(context, (request.node, name), source, &BTreeSet::new())?;
            }
            Command::SnapshotV2 => {
                check_flags(&data, READ_ONLY | INHERIT)?;
                let access = match data.u64(16)? & READ_ONLY {
                    0 => Access::ReadWrite,
                    _ => Access::ReadOnly,
                };
                let source = (data.u64(0)?, access);
                let name = data.name(NAME_V2)?;
                let groups = self.inherited_groups(context, &data)?;
                self.snapshot(context, (request.node, name), source, &groups)?;
            }
            Command::Delete => self.delete(context, at, data.name(NAME_V1)?)?,
            Command::DeleteV2 => {
                check_flags(&data, BY_ID)?;
                match data.u64(16)? & BY_ID {
                    0 => self.delete(context, at, data.name(NAME_V2)?)?,
                    _ => self.delete_by_id(context, TreeId(data.u64(NAME_V2)?))?,
                }
            }
            Command::GetFlags => {
                Self::subvolume_root(at)?;
                let access = self.files().subvolume_access(at.tree).answered()?;
                let flags = match access {
                    Access::ReadOnly => READ_ONLY,
                    Access::ReadWrite => 0,
                };
                Fields {
                    bytes: output,
                    at: 0,
                }
                .u64(flags);
                return Ok(8);
            }
            Command::SetFlags => {
                self.check_owner(context, at)?;
                Self::subvolume_root(at)?;
                let access = match data.u64(0)? {
                    0 => Access::ReadWrite,
                    READ_ONLY => Access::ReadOnly,
                    _ => return Err(Errno::EOPNOTSUPP),
                };
                if access == Access::ReadOnly {
                    self.write_back_mounts(context)?;
                }
                self.files()
                    .set_subvolume_access(at.tree, access)
                    .answered()?;
                self.forget_attributes(context, at.tree);
                // Durable at once, as in the kernel.
                self.volume.commit().answered()?;
            }
            Command::SetDefault => {
                self.check_privileged(context)?;
                // As in the kernel, 0 stands for the top level.
                let tree = match data.u64(0)? {
                    0 => TreeId::FS,
                    id => TreeId(id),
                };
                self.files().set_default_subvolume(tree).answered()?;
            }
            Command::SetReceived => return self.set_received(context, at, request.data, output),
            Command::Info => return self.subvolume_info(at.tree, output),
            Command::RootRefs => return Err(Errno::EINVAL),
            Command::Place => {
                let place = (InodeNumber(data.u64(0)?), TreeId(data.u64(8)?));
                return self.place(context, at, place, output);
            }
            Command::Defragment | Command::DefragmentRange => {
                self.defragment_as_kernel(context, request)?;
            }
            Command::Sync => self.sync_with_pages(context)?,
            Command::StartSync => {
                self.sync_with_pages(context)?;
                let generation = self.volume.superblock().generation;
                Fields {
                    bytes: output,
                    at: 0,
                }
                .u64(generation.get());
                return Ok(8);
            }
            Command::WaitSync => {}
        }
        Ok(0)
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        groups: &BTreeSet<GroupId>,
    ) -> Result<(), Errno> {
        let dir = self.id(parent);
        self.check_new_directory(context, dir, name)?;
        let owner = Owner {
            uid: context.uid,
            gid: context.gid,
        };
        let new = NewInode::new(S_IFDIR | 0o777 & !Caller::of(context).umask(), owner);
        self.files()
            .create_subvolume_in_groups(dir, name, &new, groups)
            .answered()?;
        self.forget_name(context, parent, name);
        Ok(())
    }

    fn snapshot(
        &self,
        context: &Context<'_>,
        (parent, name): (NodeId, &[u8]),
        (descriptor, access): (u64, Access),
        groups: &BTreeSet<GroupId>,
    ) -> Result<(), Errno> {
        let dir = self.id(parent);
        self.check_tree(dir.tree)?;
        let source = self.caller_file(context, descriptor)?;
        self.check_owner(context, source)?;
        let source = Self::subvolume_root(source)?;
        self.check_new_directory(context, dir, name)?;
        self.write_back_mounts(context)?;
        self.files()
            .snapshot_in_groups(source.tree, (dir, name), access, groups)
            .answered()?;
        self.forget_name(context, parent, name);
        Ok(())
    }

    fn delete(&self, context: &Context<'_>, parent: InodeId, name: &[u8]) -> Result<(), Errno> {
        let caller = Caller::of(context);
        self.check_access(&caller, parent, Wanted::EXECUTE)?;
        let target = self.files().lookup(parent, name).answered()?;
        if !target.subvolume {
            return Err(Errno::EINVAL);
        }
        self.check_removable(&caller, parent, target.inode)?;
        if self.is_mounted(target.inode.tree) {
            return Err(Errno(libc::EBUSY));
        }
        // Somebody may have given the name to another subvolume meanwhile.
        self.files()
            .delete_this_subvolume(parent, name, target)
            .answered()?;
        if let (Ok(parent), Ok(child)) =
            (self.nodes.node_of(parent), self.nodes.node_of(target.inode))
        {
            let name = name.to_vec();
            self.tell(context, NAME_PATIENCE, move |notifier| {
                // A kernel that does not know it has nothing to forget.
                let _ = notifier.deleted(parent, child, &name);
                let _ = notifier.invalidate_inode(parent, InvalidRange::AttributesOnly);
            });
        }
        Ok(())
    }

    /// Whether a mount shows a subvolume, as far as this process sees.
    fn is_mounted(&self, tree: TreeId) -> bool {
        let mounts = Mount::seen_by("self").into_iter();
        let mut ours = mounts.filter(|mount| Some(&mount.device) == self.device_number.get());
        ours.any(|mount| {
            let root = self.volume.resolve(mount.root.as_os_str().as_bytes());
            root.is_ok_and(|root| root.tree == tree && root.number == InodeNumber::ROOT)
        })
    }

    /// The path from the top level of the subvolume with an id, or the default
    /// one.
    pub(super) fn place_from_top(&self, which: &[u8]) -> Result<Vec<u8>, Errno> {
        const NONE: Errno = Errno(libc::ENODATA);
        if self.files().root().tree != TreeId::FS {
            return Err(NONE);
        }
        let wanted = match std::str::from_utf8(which) {
            Ok("default") => Subvolume::Default,
            Ok(number) => Subvolume::Id(number.parse().map_err(|_| NONE)?),
            Err(_) => return Err(NONE),
        };
        let tree = self.volume.find_subvolume(&wanted).map_err(|_| NONE)?;
        let path = path_from_top(self.files(), tree).answered()?;
        Ok(path.into_os_string().into_encoded_bytes())
    }

    fn delete_by_id(&self, context: &Context<'_>, tree: TreeId) -> Result<(), Errno> {
        let (parent, name) = self.files().subvolume_place(tree).answered()?;
        self.delete(context, parent, &name)
    }

    fn set_received(
        &self,
        context: &Context<'_>,
        at: InodeId,
        data: &[u8],
        output: &mut [u8],
    ) -> Result<usize, Errno> {
        self.check_owner(context, at)?;
        Self::subvolume_root(at)?;
        let bytes = Bytes(data);
        let uuid = data.first_chunk::<16>().ok_or(Errno::EINVAL)?;
        let received = Received {
            uuid: *uuid,
            sent_generation: Generation(bytes.u64(16)?),
            sent_time: bytes.time(32)?,
        };
        let (generation, time) = self.files().set_received(at.tree, &received).answered()?;
        // Durable at once, as in the kernel.
        self.volume.commit().answered()?;
        let room = output.get_mut(..RECEIVED_SIZE).ok_or(Errno::EINVAL)?;
        room.copy_from_slice(data.get(..RECEIVED_SIZE).ok_or(Errno::EINVAL)?);
        Fields {
            bytes: room,
            at: 24,
        }
        .u64(generation.get());
        Fields {
            bytes: room,
            at: 48,
        }
        .time(time);
        Ok(RECEIVED_SIZE)
    }

    fn subvolume_info(&self, tree: TreeId, output: &mut [u8]) -> Result<usize, Errno> {
        let item: RootItem = self.files().root_item(tree).answered()?;
        let place = self.files().subvolume_place(tree).ok();
        let mut fields = Fields {
            bytes: output.get_mut(..INFO_SIZE).ok_or(Errno::EINVAL)?,
            at: 0,
        };
        fields.u64(tree.get());
        let mut name = [0; 256];
        let (parent, directory) = match &place {
            Some((dir, text)) => {
                name[..text.len()].copy_from_slice(text);
                (dir.tree.get(), dir.number.get())
            }
            None => (0, 0),
        };
        let flags = item.flags.0;
        fields
            .put(&name)
            .u64(parent)
            .u64(directory)
            .u64(item.generation.get())
            .u64(flags)
            .put(&item.uuid)
            .put(&item.parent_uuid)
            .put(&item.received_uuid)
            .u64(item.ctransid.get())
            .u64(item.otransid.get())
            .u64(item.stransid.get())
            .u64(item.rtransid.get())
            .time(item.ctime)
            .time(item.otime)
            .time(item.stime)
            .time(item.rtime);
        Ok(INFO_SIZE)
    }

    /// Subvolumes in `tree` with an id of at least `from`. If they do not all
    /// fit, EOVERFLOW comes along with the answer, and the caller asks again
    /// from there on.
    fn root_refs(
        &self,
        tree: TreeId,
        from: TreeId,
        output: &mut [u8],
    ) -> Result<IoctlResult, Errno> {
        let found = self.files().subvolumes_in(tree, from).answered()?;
        let count = found.len().min(ROOT_REFS_MAX);
        let next = found.get(count).map(|(child, _)| *child);
        let filled = output.len();
        let mut fields = Fields {
            bytes: output,
            at: 0,
        };
        fields.u64(next.unwrap_or(from).get());
        for (child, directory) in &found[..count] {
            fields.u64(child.get()).u64(directory.get());
        }
        fields.at = 8 + ROOT_REFS_MAX * 16;
        fields.put(&[u8::try_from(count).unwrap_or(u8::MAX)]);
        let value = match next {
            Some(_) => -libc::EOVERFLOW,
            None => 0,
        };
        Ok(IoctlResult { value, filled })
    }

    /// The place of a subvolume below a directory: the path of the directory
    /// that holds it, with a slash at its end, and its name.
    fn place(
        &self,
        context: &Context<'_>,
        root: InodeId,
        (directory, child): (InodeNumber, TreeId),
        output: &mut [u8],
    ) -> Result<usize, Errno> {
        let (parent, name) = self.files().subvolume_place(child).answered()?;
        if parent.tree != root.tree || parent.number != directory {
            return Err(Errno::ENOENT);
        }
        let path_of = |id: InodeId| -> Result<Vec<u8>, Errno> {
            let path = self.files().path_of(id).answered()?;
            let path = path.ok_or(Errno::ENOENT)?;
            Ok(if path.is_empty() {
                path
            } else {
                [&path[..], b"/"].concat()
            })
        };
        let path = path_of(parent)?;
        let path = path.get(path_of(root)?.len()..).ok_or(Errno::ENOENT)?;
        let caller = Caller::of(context);
        // This ends: a directory that has a path is in no circle.
        let mut at = parent;
        while at != root {
            if at.number == InodeNumber::ROOT {
                return Err(Errno::ENOENT);
            }
            self.check_access(&caller, at, Wanted::SEE_NAMES)?;
            at = self.files().parent(at).answered()?;
        }
        let room = output.get_mut(..PLACE_SIZE).ok_or(Errno::EINVAL)?;
        // Each ends with a NUL.
        if PLACE_PATH + path.len() >= PLACE_SIZE || PLACE_NAME + name.len() >= PLACE_PATH {
            return Err(Errno::ENAMETOOLONG);
        }
        room.fill(0);
        room[..8].copy_from_slice(&directory.get().to_ne_bytes());
        room[8..16].copy_from_slice(&child.get().to_ne_bytes());
        room[PLACE_NAME..PLACE_NAME + name.len()].copy_from_slice(&name);
        room[PLACE_PATH..PLACE_PATH + path.len()].copy_from_slice(path);
        Ok(PLACE_SIZE)
    }

    fn subvolume_root(id: InodeId) -> Result<InodeId, Errno> {
        if id.number == InodeNumber::ROOT {
            Ok(id)
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// The file of this mount that the caller has open as `descriptor`. /proc
    /// tells it, so that no request comes back to this server.
    fn caller_file(&self, context: &Context<'_>, descriptor: u64) -> Result<InodeId, Errno> {
        match self.caller_open(context, descriptor)? {
            (_, flags) if flags & libc::O_PATH != 0 => Err(Errno::EINVAL),
            (id, _) => Ok(id),
        }
    }

    /// [`Server::caller_file`], with the flags with which it was opened: what
    /// the kernel allowed the caller to do with it.
    pub(super) fn caller_open(
        &self,
        context: &Context<'_>,
        descriptor: u64,
    ) -> Result<(InodeId, i32), Errno> {
        let (mount, inode, flags) = Self::opened(context, descriptor)?;
        let theirs = mount.map(|mount| mount.device);
        if theirs.is_none() || theirs.as_ref() != self.device_number.get() {
            return Err(Errno(libc::EXDEV));
        }
        let id = self.id(match inode {
            // The root has its inode number where it is shown.
            number if number == InodeNumber::ROOT.get() => NodeId::ROOT,
            number => NodeId(number),
        });
        Ok((id, flags))
    }

    /// What the caller has open as `descriptor`: the mount by which it was
    /// opened, if it is there, the number of the inode, and the flags. EACCES if
    /// the server may not look at the caller, EBADF if the caller has no such
    /// descriptor.
    fn opened(context: &Context<'_>, descriptor: u64) -> Result<(Option<Mount>, u64, i32), Errno> {
        let process = context.pid.to_string();
        let all = format!("/proc/{process}/fdinfo");
        let facts = std::fs::read_to_string(format!("{all}/{descriptor}")).map_err(|_| {
            // The server of an ordinary user may not look at other users'
            // processes.
            Errno(match std::fs::read_dir(all) {
                Ok(_) => libc::EBADF,
                Err(_) => libc::EACCES,
            })
        })?;
        let text = |name: &str| {
            let line = facts.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim)
        };
        let field = |name: &str| text(name).and_then(|text| text.parse::<u64>().ok());
        let flags = text("flags:").and_then(|text| i32::from_str_radix(text, 8).ok());
        let (Some(mount), Some(inode), Some(flags)) = (field("mnt_id:"), field("ino:"), flags)
        else {
            return Err(Errno(libc::EBADF));
        };
        let mounts = Mount::seen_by(&process);
        let theirs = mounts.into_iter().find(|theirs| theirs.id == mount);
        Ok((theirs, inode, flags))
    }

    /// Errors if the caller's ioctl, which changes something, came through a
    /// mount that is read-only. The kernel does not check that for FUSE. A
    /// caller whose system call cannot be seen may go on.
    pub(super) fn check_mount(context: &Context<'_>) -> Result<(), Errno> {
        let Some(descriptor) = intent::descriptor_of_ioctl(context.pid) else {
            return Ok(());
        };
        match Self::opened(context, descriptor) {
            Ok((Some(mount), ..)) if mount.is_read_only => Err(Errno::EROFS),
            _ => Ok(()),
        }
    }

    /// Makes the kernel forget a name, also if it remembers that the name is
    /// free.
    fn forget_name(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) {
        let name = name.to_vec();
        self.tell(context, NAME_PATIENCE, move |notifier| {
            let _ = notifier.invalidate_entry(parent, &name, EntryChange::Drop);
            let _ = notifier.invalidate_inode(parent, InvalidRange::AttributesOnly);
        });
    }
}
