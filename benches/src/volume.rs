//! A volume to work on, through the library or where it is mounted: the same
//! calls, whatever serves them.

use super::run;
use butterfs_device::{Access, FileDevice};
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::file::FallocateMode;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::{Filesystem, Inode, Options};
use butterfs_store::{OpenOptions, Store};
use rustix::fs::{AtFlags, CWD, OFlags};
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A volume.
pub enum Volume {
    Library(Arc<Filesystem>),
    Mounted(PathBuf),
}

/// One file.
pub trait Handle: Send + Sync {
    fn write(&self, offset: u64, data: &[u8]);
    fn read(&self, offset: u64, data: &mut [u8]);
    fn fsync(&self);
}

/// One directory.
pub trait Directory: Send + Sync {
    fn create(&self, name: &str, data: &[u8]);
    fn stat(&self, name: &str);
    fn unlink(&self, name: &str);
    /// Reads all names with their attributes. Returns their number.
    fn list(&self) -> usize;
    /// Makes a file and has it.
    fn open_new(&self, name: &str) -> Arc<dyn Handle>;
    /// Gives the file `from` the name `to`, which another file may have.
    fn rename(&self, from: &str, to: &str);
    /// Names become durable.
    fn fsync(&self);
}

/// Whether the page cache of a mount is bypassed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    Cached,
    Direct,
}

impl Volume {
    /// Opens the volume in a file by the library.
    pub fn open(image: &Path, options: Options) -> Self {
        let device = FileDevice::open_durable(image, Access::ReadWrite).unwrap();
        let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
        Self::Library(Arc::new(Filesystem::new(
            Arc::new(store),
            TreeId::FS,
            options,
        )))
    }

    /// A directory of the root. It is made if it does not exist; "" is the
    /// root.
    pub fn directory(&self, name: &str) -> Arc<dyn Directory> {
        match self {
            Self::Mounted(root) => {
                let path = root.join(name);
                fs::create_dir_all(&path).unwrap();
                Arc::new(path)
            }
            Self::Library(fs) => {
                let id = if name.is_empty() {
                    fs.root()
                } else if let Ok(found) = fs.lookup(fs.root(), name.as_bytes()) {
                    found.inode
                } else {
                    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
                    fs.create(fs.root(), name.as_bytes(), &new).unwrap().id
                };
                Arc::new(DirectoryInLibrary {
                    fs: Arc::clone(fs),
                    id,
                })
            }
        }
    }

    /// Makes a file in the root.
    pub fn create(&self, name: &str, preallocated: u64) -> Arc<dyn Handle> {
        let handle = self.directory("").open_new(name);
        if preallocated > 0 {
            match self {
                Self::Library(fs) => {
                    let found = fs.lookup(fs.root(), name.as_bytes()).unwrap();
                    let inode = fs.inode(found.inode).unwrap();
                    let mode = FallocateMode::Allocate;
                    fs.fallocate(&inode, mode, 0, preallocated).unwrap();
                }
                Self::Mounted(root) => {
                    let (size, path) = (preallocated.to_string(), root.join(name));
                    run("fallocate", &["-l", &size, path.to_str().unwrap()]);
                }
            }
        }
        handle
    }

    /// A file of the root that is there.
    pub fn file(&self, name: &str, caching: Caching) -> Arc<dyn Handle> {
        match self {
            Self::Library(fs) => {
                let found = fs.lookup(fs.root(), name.as_bytes()).unwrap();
                Arc::new(InLibrary {
                    fs: Arc::clone(fs),
                    inode: fs.inode(found.inode).unwrap(),
                })
            }
            Self::Mounted(root) => {
                let mut options = File::options();
                options.read(true).write(true);
                if caching == Caching::Direct {
                    options.custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap());
                }
                Arc::new(options.open(root.join(name)).unwrap())
            }
        }
    }

    /// Removes a file of the root.
    pub fn remove(&self, name: &str) {
        self.directory("").unlink(name);
    }

    /// Everything becomes durable.
    pub fn sync(&self) {
        match self {
            Self::Library(fs) => fs.sync_all().unwrap(),
            Self::Mounted(root) => rustix::fs::syncfs(File::open(root).unwrap()).unwrap(),
        }
    }
}

impl Handle for File {
    fn write(&self, offset: u64, data: &[u8]) {
        self.write_all_at(data, offset).unwrap();
    }
    fn read(&self, offset: u64, data: &mut [u8]) {
        self.read_exact_at(data, offset).unwrap();
    }
    fn fsync(&self) {
        self.sync_all().unwrap();
    }
}

/// As `ls`, `find` and git ask: without the time of birth. FUSE has a request
/// of its own for that, and std::fs asks for it, too.
fn attributes(directory: BorrowedFd<'_>, name: &Path) {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

impl Directory for PathBuf {
    fn create(&self, name: &str, data: &[u8]) {
        let file = File::create_new(self.join(name)).unwrap();
        if !data.is_empty() {
            file.write_all_at(data, 0).unwrap();
        }
    }
    fn stat(&self, name: &str) {
        attributes(CWD, &self.join(name));
    }
    fn unlink(&self, name: &str) {
        fs::remove_file(self.join(name)).unwrap();
    }
    fn list(&self) -> usize {
        let (mut count, directory) = (0, File::open(self).unwrap());
        for entry in fs::read_dir(self).unwrap() {
            attributes(directory.as_fd(), Path::new(&entry.unwrap().file_name()));
            count += 1;
        }
        count
    }
    fn open_new(&self, name: &str) -> Arc<dyn Handle> {
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        Arc::new(options.open(self.join(name)).unwrap())
    }
    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.join(from), self.join(to)).unwrap();
    }
    fn fsync(&self) {
        File::open(self).unwrap().sync_all().unwrap();
    }
}

struct InLibrary {
    fs: Arc<Filesystem>,
    inode: Arc<Inode>,
}

impl Handle for InLibrary {
    fn write(&self, offset: u64, data: &[u8]) {
        let written = self.fs.write(&self.inode, offset, data).unwrap();
        assert_eq!(written, data.len());
    }
    fn read(&self, offset: u64, data: &mut [u8]) {
        assert_eq!(self.fs.read(&self.inode, offset, data).unwrap(), data.len());
    }
    fn fsync(&self) {
        self.fs.fsync(&self.inode).unwrap();
    }
}

struct DirectoryInLibrary {
    fs: Arc<Filesystem>,
    id: InodeId,
}

impl DirectoryInLibrary {
    fn new_file(&self, name: &str) -> Arc<Inode> {
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        self.fs.create(self.id, name.as_bytes(), &new).unwrap()
    }
}

impl Directory for DirectoryInLibrary {
    fn create(&self, name: &str, data: &[u8]) {
        let inode = self.new_file(name);
        if !data.is_empty() {
            assert_eq!(self.fs.write(&inode, 0, data).unwrap(), data.len());
        }
    }
    fn stat(&self, name: &str) {
        let found = self.fs.lookup(self.id, name.as_bytes()).unwrap();
        self.fs.attributes(found.inode).unwrap();
    }
    fn unlink(&self, name: &str) {
        self.fs.unlink(self.id, name.as_bytes()).unwrap();
    }
    fn list(&self) -> usize {
        let mut count = 0;
        let visited = self.fs.read_dir(self.id, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                self.fs.attributes(entry.target.inode).unwrap();
                count += 1;
            }
            true
        });
        visited.unwrap();
        count
    }
    fn open_new(&self, name: &str) -> Arc<dyn Handle> {
        Arc::new(InLibrary {
            fs: Arc::clone(&self.fs),
            inode: self.new_file(name),
        })
    }
    fn rename(&self, from: &str, to: &str) {
        let [from, to] = [from, to].map(|name| Place {
            dir: self.id,
            name: name.as_bytes(),
        });
        let mode = RenameMode::Replace;
        self.fs.rename(from, to, mode, OldName::Free).unwrap();
    }
    fn fsync(&self) {
        let directory = self.fs.inode(self.id).unwrap();
        self.fs.fsync_directory(&directory).unwrap();
    }
}
