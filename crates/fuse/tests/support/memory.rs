//! An in-memory file system that implements the whole trait, counts calls, and
//! misbehaves where a test wants it to. One long file: it is one trait, whole.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use butterfs_fuse::reply::{
    AttrReply, Created, DirectoryBuffer, DirectoryEntry, DirectoryPlusBuffer, Entry, FOREVER,
    FileType, IoctlResult, OpenFlags, Opened, Push, StatFs, StatxReply, ValueBuffer,
};
use butterfs_fuse::request::*;
use butterfs_fuse::{
    Context, Errno, FileHandle, FileSystem, Negotiated, NodeId, Notifier, RequestId,
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::tree::{Content, Directory, Node, PAGE, Pages, now};

pub const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
pub const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
pub const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
pub const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
/// `_IOWR('T', 1, [u8; 8])`: answers the bytes reversed and the result 5.
pub const REVERSE: u32 = 0xc008_5401;
/// A lookup of this name panics.
pub const PANIC: &[u8] = b"panic";

#[derive(Default)]
struct State {
    nodes: HashMap<u64, Node>,
    last: u64,
}

pub struct MemoryFs {
    state: Mutex<State>,
    calls: Mutex<BTreeMap<&'static str, usize>>,
    pub agreed: Mutex<Option<Negotiated>>,
    pub notifier: Mutex<Option<Notifier>>,
    pub destroyed: AtomicUsize,
    pub refuse_init: AtomicBool,
    /// Makes `create` answer ENOSYS.
    pub no_create: AtomicBool,
    /// How long what it answers stays cached.
    pub timeout: Mutex<Duration>,
    /// While true, fsync waits.
    held: Mutex<bool>,
    released: Condvar,
    pub groups: Mutex<Vec<u32>>,
}

impl Default for MemoryFs {
    fn default() -> Self {
        let root = Directory {
            parent: 1,
            ..Directory::default()
        };
        let root = Node::new(1, libc::S_IFDIR | 0o777, Content::Directory(root));
        Self {
            state: Mutex::new(State {
                nodes: HashMap::from([(1, root)]),
                last: 1,
            }),
            calls: Mutex::default(),
            agreed: Mutex::default(),
            notifier: Mutex::default(),
            destroyed: AtomicUsize::new(0),
            refuse_init: AtomicBool::new(false),
            no_create: AtomicBool::new(false),
            timeout: Mutex::new(FOREVER),
            held: Mutex::new(false),
            released: Condvar::new(),
            groups: Mutex::default(),
        }
    }
}

impl MemoryFs {
    pub fn calls(&self, name: &str) -> usize {
        self.calls.lock().get(name).copied().unwrap_or(0)
    }

    pub fn nodes(&self) -> usize {
        self.state.lock().nodes.len()
    }

    /// Makes fsync wait, or lets it go on.
    pub fn hold_fsync(&self) {
        *self.held.lock() = true;
    }

    pub fn release_fsync(&self) {
        *self.held.lock() = false;
        self.released.notify_all();
    }

    /// Changes a file behind the kernel's back.
    pub fn overwrite(&self, node: NodeId, data: &[u8]) {
        let mut state = self.state.lock();
        state.pages(node).unwrap().write(0, data);
    }

    /// Removes a name behind the kernel's back; answers its node.
    pub fn remove(&self, name: &[u8]) -> NodeId {
        let mut state = self.state.lock();
        NodeId(state.directory(NodeId::ROOT).unwrap().remove(name).unwrap())
    }

    pub fn find(&self, name: &[u8]) -> NodeId {
        let mut state = self.state.lock();
        NodeId(state.directory(NodeId::ROOT).unwrap().get(name).unwrap())
    }

    fn count(&self, name: &'static str) -> MutexGuard<'_, State> {
        *self.calls.lock().entry(name).or_default() += 1;
        self.state.lock()
    }

    fn attr_reply(&self, state: &mut State, node: NodeId) -> Result<AttrReply, Errno> {
        Ok(AttrReply {
            attr: state.node(node)?.attr,
            timeout: *self.timeout.lock(),
        })
    }

    /// An entry that counts as a lookup.
    fn entry(&self, state: &mut State, node: NodeId) -> Result<Entry, Errno> {
        let timeout = *self.timeout.lock();
        let found = state.node(node)?;
        found.lookups += 1;
        Ok(Entry {
            node,
            generation: 0,
            attr: found.attr,
            entry_timeout: timeout,
            attr_timeout: timeout,
        })
    }

    fn make(
        &self,
        state: &mut State,
        context: &Context<'_>,
        (parent, name): (NodeId, &[u8]),
        (mode, content): (u32, Content),
    ) -> Result<NodeId, Errno> {
        if state.directory(parent)?.get(name).is_some() {
            return Err(Errno::EEXIST);
        }
        *self.groups.lock() = context.groups.iter().collect();
        let node = state.add(context, mode, content);
        if mode & libc::S_IFMT == libc::S_IFDIR {
            state.node(parent)?.attr.nlink += 1;
        }
        state.directory(parent)?.insert(name, node.0);
        Ok(node)
    }
}

impl State {
    fn node(&mut self, node: NodeId) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&node.0).ok_or(Errno::ESTALE)
    }

    fn directory(&mut self, node: NodeId) -> Result<&mut Directory, Errno> {
        match &mut self.node(node)?.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn pages(&mut self, node: NodeId) -> Result<&mut Pages, Errno> {
        match &mut self.node(node)?.content {
            Content::File(pages) => Ok(pages),
            _ => Err(Errno::EINVAL),
        }
    }

    fn add(&mut self, context: &Context<'_>, mode: u32, content: Content) -> NodeId {
        self.last += 1;
        let ino = self.last;
        let mut node = Node::new(ino, mode, content);
        (node.attr.uid, node.attr.gid) = (context.uid, context.gid);
        self.nodes.insert(ino, node);
        NodeId(ino)
    }

    /// Takes a name away from a node.
    fn unlink(&mut self, node: NodeId) -> Result<(), Errno> {
        let found = self.node(node)?;
        found.attr.nlink = found.attr.nlink.saturating_sub(1);
        self.collect(node);
        Ok(())
    }

    fn collect(&mut self, node: NodeId) {
        let gone = self
            .nodes
            .get(&node.0)
            .is_some_and(|n| n.lookups == 0 && n.attr.nlink == 0);
        if gone {
            self.nodes.remove(&node.0);
        }
    }

    fn resize(&mut self, node: NodeId, size: u64) -> Result<(), Errno> {
        if size < self.node(node)?.attr.size {
            self.pages(node)?.truncate(size);
        }
        let blocks = self.pages(node)?.count() * (PAGE / 512);
        let attr = &mut self.node(node)?.attr;
        (attr.size, attr.blocks) = (size, blocks);
        Ok(())
    }

    fn written(&mut self, node: NodeId, end: u64) -> Result<(), Errno> {
        let size = self.node(node)?.attr.size.max(end);
        self.resize(node, size)?;
        self.node(node)?.attr.mtime = now();
        Ok(())
    }

    fn list(&mut self, node: NodeId, offset: u64) -> Result<Vec<(u64, Vec<u8>, u64)>, Errno> {
        let directory = self.directory(node)?;
        let dots = [
            (1, b".".to_vec(), node.0),
            (2, b"..".to_vec(), directory.parent),
        ];
        let rest = directory
            .by_position
            .iter()
            .map(|(at, (name, n))| (*at, name.clone(), *n));
        Ok(dots
            .into_iter()
            .chain(rest)
            .filter(|(at, ..)| *at > offset)
            .take(5000)
            .collect())
    }
}

impl FileSystem for MemoryFs {
    fn init(&self, agreed: &Negotiated, notifier: &Notifier) -> Result<(), Errno> {
        *self.agreed.lock() = Some(*agreed);
        *self.notifier.lock() = Some(notifier.clone());
        if self.refuse_init.load(Ordering::Relaxed) {
            Err(Errno::EUCLEAN)
        } else {
            Ok(())
        }
    }

    fn destroy(&self) {
        self.destroyed.fetch_add(1, Ordering::Relaxed);
    }

    fn lookup(&self, _: &Context<'_>, request: Lookup<'_>) -> Result<Entry, Errno> {
        let mut state = self.count("lookup");
        assert!(request.name != PANIC, "asked to panic");
        let found = state.directory(request.parent)?.get(request.name);
        match found {
            Some(node) => self.entry(&mut state, NodeId(node)),
            None => Err(Errno::ENOENT),
        }
    }

    fn forget(&self, request: Forget) {
        let mut state = self.count("forget");
        if let Ok(node) = state.node(request.node) {
            node.lookups -= request.lookups;
            state.collect(request.node);
        }
    }

    fn getattr(&self, _: &Context<'_>, request: GetAttr) -> Result<AttrReply, Errno> {
        let mut state = self.count("getattr");
        self.attr_reply(&mut state, request.node)
    }

    fn statx(&self, _: &Context<'_>, request: StatxRequest) -> Result<StatxReply, Errno> {
        let mut state = self.count("statx");
        let node = state.node(request.node)?;
        Ok(StatxReply {
            attr: node.attr,
            birth: Some(node.birth),
            attributes: 0,
            attributes_mask: 0,
            timeout: Duration::ZERO,
        })
    }

    fn setattr(&self, _: &Context<'_>, request: SetAttr) -> Result<AttrReply, Errno> {
        let mut state = self.count("setattr");
        if let Some(size) = request.size {
            state.resize(request.node, size)?;
        }
        let attr = &mut state.node(request.node)?.attr;
        if let Some(mode) = request.mode {
            attr.mode = attr.mode & libc::S_IFMT | mode & 0o7777;
        }
        attr.uid = request.uid.unwrap_or(attr.uid);
        attr.gid = request.gid.unwrap_or(attr.gid);
        if request.set_id == SetIdBits::Clear {
            attr.mode &= !libc::S_ISUID;
        }
        let time = |change| match change {
            TimeChange::Now => now(),
            TimeChange::At(time) => time,
        };
        attr.atime = request.atime.map_or(attr.atime, time);
        attr.mtime = request.mtime.map_or(attr.mtime, time);
        attr.ctime = now();
        self.attr_reply(&mut state, request.node)
    }

    fn readlink(
        &self,
        _: &Context<'_>,
        request: ReadLink,
        target: &mut ValueBuffer<'_>,
    ) -> Result<(), Errno> {
        let mut state = self.count("readlink");
        match &state.node(request.node)?.content {
            Content::Symlink(path) => target.push(path),
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    fn symlink(&self, context: &Context<'_>, request: Symlink<'_>) -> Result<Entry, Errno> {
        let mut state = self.count("symlink");
        let content = Content::Symlink(request.target.to_vec());
        let place = (request.parent, request.name);
        let node = self.make(&mut state, context, place, (libc::S_IFLNK | 0o777, content))?;
        state.node(node)?.attr.size = request.target.len() as u64;
        self.entry(&mut state, node)
    }

    fn mknod(&self, context: &Context<'_>, request: Mknod<'_>) -> Result<Entry, Errno> {
        let mut state = self.count("mknod");
        let content = if request.mode & libc::S_IFMT == libc::S_IFREG {
            Content::File(Pages::default())
        } else {
            Content::Special
        };
        let place = (request.parent, request.name);
        let node = self.make(&mut state, context, place, (request.mode, content))?;
        state.node(node)?.attr.rdev = request.rdev;
        self.entry(&mut state, node)
    }

    fn mkdir(&self, context: &Context<'_>, request: Mkdir<'_>) -> Result<Entry, Errno> {
        let mut state = self.count("mkdir");
        let directory = Directory {
            parent: request.parent.0,
            ..Directory::default()
        };
        let mode = libc::S_IFDIR | request.mode;
        let place = (request.parent, request.name);
        let node = self.make(
            &mut state,
            context,
            place,
            (mode, Content::Directory(directory)),
        )?;
        self.entry(&mut state, node)
    }

    fn unlink(&self, _: &Context<'_>, request: Unlink<'_>) -> Result<(), Errno> {
        let mut state = self.count("unlink");
        let node = state
            .directory(request.parent)?
            .remove(request.name)
            .ok_or(Errno::ENOENT)?;
        state.unlink(NodeId(node))
    }

    fn rmdir(&self, _: &Context<'_>, request: Rmdir<'_>) -> Result<(), Errno> {
        let mut state = self.count("rmdir");
        let node = state
            .directory(request.parent)?
            .get(request.name)
            .ok_or(Errno::ENOENT)?;
        if !state.directory(NodeId(node))?.by_name.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        state.directory(request.parent)?.remove(request.name);
        state.node(request.parent)?.attr.nlink -= 1;
        state.node(NodeId(node))?.attr.nlink = 1;
        state.unlink(NodeId(node))
    }

    fn rename(&self, _: &Context<'_>, request: Rename<'_>) -> Result<(), Errno> {
        let name = if request.flags.is_empty() {
            "rename"
        } else {
            "rename2"
        };
        let mut state = self.count(name);
        let node = state
            .directory(request.parent)?
            .get(request.name)
            .ok_or(Errno::ENOENT)?;
        let old = state.directory(request.new_parent)?.get(request.new_name);
        if request.flags == RenameFlags::EXCHANGE {
            let old = old.ok_or(Errno::ENOENT)?;
            state.directory(request.parent)?.insert(request.name, old);
        } else if request.flags.contains(RenameFlags::NOREPLACE) && old.is_some() {
            return Err(Errno::EEXIST);
        } else {
            state.directory(request.parent)?.remove(request.name);
            if let Some(old) = old {
                state.unlink(NodeId(old))?;
            }
        }
        state
            .directory(request.new_parent)?
            .insert(request.new_name, node);
        if let Ok(moved) = state.directory(NodeId(node)) {
            moved.parent = request.new_parent.0;
        }
        Ok(())
    }

    fn link(&self, _: &Context<'_>, request: Link<'_>) -> Result<Entry, Errno> {
        let mut state = self.count("link");
        state.node(request.node)?.attr.nlink += 1;
        state
            .directory(request.new_parent)?
            .insert(request.new_name, request.node.0);
        self.entry(&mut state, request.node)
    }

    fn open(&self, _: &Context<'_>, request: Open) -> Result<Opened, Errno> {
        let mut state = self.count("open");
        if request.flags.contains(OFlags::TRUNC) {
            state.resize(request.node, 0)?;
        }
        Ok(Opened {
            handle: FileHandle(7),
            flags: OpenFlags::KEEP_CACHE,
        })
    }

    fn create(&self, context: &Context<'_>, request: Create<'_>) -> Result<Created, Errno> {
        if self.no_create.load(Ordering::Relaxed) {
            return Err(Errno::ENOSYS);
        }
        let mut state = self.count("create");
        let place = (request.parent, request.name);
        let content = Content::File(Pages::default());
        let node = self.make(&mut state, context, place, (request.mode, content))?;
        let entry = self.entry(&mut state, node)?;
        Ok(Created {
            entry,
            opened: Opened {
                handle: FileHandle(7),
                flags: OpenFlags::NONE,
            },
        })
    }

    fn tmpfile(&self, context: &Context<'_>, request: Tmpfile) -> Result<Created, Errno> {
        let mut state = self.count("tmpfile");
        let node = state.add(context, request.mode, Content::File(Pages::default()));
        state.node(node)?.attr.nlink = 0;
        let entry = self.entry(&mut state, node)?;
        Ok(Created {
            entry,
            opened: Opened {
                handle: FileHandle(7),
                flags: OpenFlags::NONE,
            },
        })
    }

    fn read(&self, _: &Context<'_>, request: Read, data: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.count("read");
        assert_eq!(
            data.as_ptr().align_offset(4096),
            0,
            "reads go to aligned memory"
        );
        let size = state.node(request.node)?.attr.size;
        let len = size.saturating_sub(request.offset).min(data.len() as u64) as usize;
        state
            .pages(request.node)?
            .read(request.offset, &mut data[..len]);
        Ok(len)
    }

    fn write(&self, _: &Context<'_>, request: Write<'_>) -> Result<usize, Errno> {
        let mut state = self.count("write");
        assert_eq!(
            request.data.as_ptr().align_offset(4096),
            0,
            "writes come aligned"
        );
        state
            .pages(request.node)?
            .write(request.offset, request.data);
        state.written(request.node, request.offset + request.data.len() as u64)?;
        if request.write_flags.clear_set_id {
            state.node(request.node)?.attr.mode &= !libc::S_ISUID;
        }
        Ok(request.data.len())
    }

    fn flush(&self, _: &Context<'_>, _: Flush) -> Result<(), Errno> {
        drop(self.count("flush"));
        Ok(())
    }

    fn release(&self, _: &Context<'_>, _: Release) -> Result<(), Errno> {
        drop(self.count("release"));
        Ok(())
    }

    fn fsync(&self, _: &Context<'_>, request: Fsync) -> Result<(), Errno> {
        let name = if request.kind == FsyncKind::Full {
            "fsync"
        } else {
            "fdatasync"
        };
        drop(self.count(name));
        let mut held = self.held.lock();
        while *held {
            self.released.wait(&mut held);
        }
        Ok(())
    }

    fn opendir(&self, _: &Context<'_>, _: OpenDir) -> Result<Opened, Errno> {
        drop(self.count("opendir"));
        Ok(Opened::default())
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        request: ReadDir,
        listing: &mut DirectoryBuffer<'_>,
    ) -> Result<(), Errno> {
        let mut state = self.count("readdir");
        for (next, name, node) in state.list(request.node, request.offset)? {
            let kind = FileType::from_mode(state.node(NodeId(node))?.attr.mode);
            let entry = DirectoryEntry {
                ino: node,
                next,
                kind,
                name: &name,
            };
            if listing.push(&entry) == Push::Full {
                break;
            }
        }
        Ok(())
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        request: ReadDir,
        listing: &mut DirectoryPlusBuffer<'_>,
    ) -> Result<(), Errno> {
        let mut state = self.count("readdirplus");
        let timeout = *self.timeout.lock();
        for (next, name, node) in state.list(request.node, request.offset)? {
            let found = state.node(NodeId(node))?;
            let kind = FileType::from_mode(found.attr.mode);
            let dot = name == b"." || name == b"..";
            let plus = Entry {
                node: NodeId(if dot { 0 } else { node }),
                generation: 0,
                attr: found.attr,
                entry_timeout: timeout,
                attr_timeout: timeout,
            };
            let entry = DirectoryEntry {
                ino: node,
                next,
                kind,
                name: &name,
            };
            if listing.push(&entry, &plus) == Push::Full {
                break;
            }
            found.lookups += u64::from(!dot);
        }
        Ok(())
    }

    fn releasedir(&self, _: &Context<'_>, _: ReleaseDir) -> Result<(), Errno> {
        drop(self.count("releasedir"));
        Ok(())
    }

    fn fsyncdir(&self, _: &Context<'_>, _: FsyncDir) -> Result<(), Errno> {
        drop(self.count("fsyncdir"));
        Ok(())
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Result<StatFs, Errno> {
        drop(self.count("statfs"));
        Ok(StatFs {
            blocks: 1000,
            blocks_free: 600,
            blocks_available: 500,
            files: 77,
            files_free: 33,
            block_size: 4096,
            name_length_max: 255,
            fragment_size: 4096,
        })
    }

    fn syncfs(&self, _: &Context<'_>, _: NodeId) -> Result<(), Errno> {
        drop(self.count("syncfs"));
        Ok(())
    }

    fn setxattr(&self, _: &Context<'_>, request: SetXattr<'_>) -> Result<(), Errno> {
        let mut state = self.count("setxattr");
        let xattrs = &mut state.node(request.node)?.xattrs;
        let exists = xattrs.contains_key(request.name);
        if exists && request.flags.contains(XattrFlags::CREATE) {
            return Err(Errno::EEXIST);
        }
        if !exists && request.flags.contains(XattrFlags::REPLACE) {
            return Err(Errno::ENODATA);
        }
        xattrs.insert(request.name.to_vec(), request.value.to_vec());
        Ok(())
    }

    fn getxattr(
        &self,
        _: &Context<'_>,
        request: GetXattr<'_>,
        value: &mut ValueBuffer<'_>,
    ) -> Result<(), Errno> {
        let mut state = self.count("getxattr");
        value.push(
            state
                .node(request.node)?
                .xattrs
                .get(request.name)
                .ok_or(Errno::ENODATA)?,
        );
        Ok(())
    }

    fn listxattr(
        &self,
        _: &Context<'_>,
        request: ListXattr,
        names: &mut ValueBuffer<'_>,
    ) -> Result<(), Errno> {
        let mut state = self.count("listxattr");
        state
            .node(request.node)?
            .xattrs
            .keys()
            .for_each(|name| names.push_name(name));
        Ok(())
    }

    fn removexattr(&self, _: &Context<'_>, request: RemoveXattr<'_>) -> Result<(), Errno> {
        let mut state = self.count("removexattr");
        let removed = state.node(request.node)?.xattrs.remove(request.name);
        removed.map(|_| ()).ok_or(Errno::ENODATA)
    }

    fn access(&self, _: &Context<'_>, request: AccessCheck) -> Result<(), Errno> {
        drop(self.count("access"));
        if request.wanted.contains(Access::WRITE_OK) {
            Err(Errno::EACCES)
        } else {
            Ok(())
        }
    }

    fn fallocate(&self, _: &Context<'_>, request: Fallocate) -> Result<(), Errno> {
        let mut state = self.count("fallocate");
        let Fallocate {
            node,
            offset,
            length,
            mode,
            ..
        } = request;
        if mode.contains(FallocateFlags::PUNCH_HOLE) {
            state.pages(node)?.punch(offset, length);
            let size = state.node(node)?.attr.size;
            return state.resize(node, size);
        }
        if !(mode - FallocateFlags::KEEP_SIZE).is_empty() {
            return Err(Errno::EOPNOTSUPP);
        }
        for page in offset / PAGE..(offset + length).div_ceil(PAGE) {
            state.pages(node)?.allocate(page);
        }
        let end = if mode.is_empty() { offset + length } else { 0 };
        state.written(node, end)
    }

    fn lseek(&self, _: &Context<'_>, request: Lseek) -> Result<u64, Errno> {
        let mut state = self.count("lseek");
        let size = state.node(request.node)?.attr.size;
        if request.offset >= size {
            return Err(Errno::ENXIO);
        }
        let pages = state.pages(request.node)?;
        let wanted = request.target == SeekTarget::Data;
        let found = (request.offset / PAGE..size.div_ceil(PAGE))
            .find(|page| pages.has(*page) == wanted)
            .map(|page| (page * PAGE).max(request.offset));
        match (found, wanted) {
            (Some(offset), _) => Ok(offset),
            (None, true) => Err(Errno::ENXIO),
            (None, false) => Ok(size),
        }
    }

    fn copy_file_range(&self, _: &Context<'_>, request: CopyFileRange) -> Result<u64, Errno> {
        let mut state = self.count("copy_file_range");
        let size = state.node(request.node_in)?.attr.size;
        let length = size.saturating_sub(request.offset_in).min(request.length);
        let mut data = vec![0; length as usize];
        state
            .pages(request.node_in)?
            .read(request.offset_in, &mut data);
        state
            .pages(request.node_out)?
            .write(request.offset_out, &data);
        state.written(request.node_out, request.offset_out + length)?;
        Ok(length)
    }

    fn ioctl(
        &self,
        _: &Context<'_>,
        request: Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<IoctlResult, Errno> {
        let mut state = self.count("ioctl");
        let node = state.node(request.node)?;
        let word = |at: usize| {
            let bytes = request.data.get(at..at + 4).ok_or(Errno::EINVAL)?;
            Ok::<u32, Errno>(u32::from_ne_bytes(bytes.try_into().unwrap()))
        };
        let mut value = 0;
        match request.command {
            FS_IOC_GETFLAGS => output[..4].copy_from_slice(&node.inode_flags.to_ne_bytes()),
            FS_IOC_SETFLAGS => node.inode_flags = word(0)?,
            FS_IOC_FSGETXATTR => {
                output[12..16].copy_from_slice(&node.project.to_ne_bytes());
            }
            FS_IOC_FSSETXATTR => node.project = word(12)?,
            REVERSE => {
                assert_eq!(request.data.len(), output.len());
                output.copy_from_slice(request.data);
                output.reverse();
                value = 5;
            }
            _ => return Err(Errno::ENOTTY),
        }
        Ok(IoctlResult {
            value,
            filled: output.len(),
        })
    }

    fn bmap(&self, _: &Context<'_>, request: Bmap) -> Result<u64, Errno> {
        drop(self.count("bmap"));
        Ok(request.block + 100)
    }

    fn interrupt(&self, _: RequestId) -> Result<(), Errno> {
        drop(self.count("interrupt"));
        Ok(())
    }
}
