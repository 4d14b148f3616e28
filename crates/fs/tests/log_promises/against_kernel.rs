//! The same short sequence on the kernel's Btrfs and on ButterFS, with a crash
//! right after the fsync that ends it. What the kernel keeps, ButterFS keeps,
//! and each replays the other's log like its own.

use super::common::{KernelMount, check, is_root, mkfs, open_subvolume, run};
use super::promises::Found;
use super::sequence::{
    ATTRIBUTES, BASE, Content, FileNumber, Handle, Name, PATHS, Sequence, State, Step, base,
};
use butterfs_format::{InodeId, InodeNumber, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::xattr::SetMode;
use butterfs_fs::{Filesystem, FsError, Inode};
use rustix::fs::{CWD, RenameFlags, XattrFlags, fremovexattr, fsetxattr, renameat_with};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Who runs a sequence.
trait Side {
    fn run(&mut self, step: Step);
    /// Inode numbers, by file.
    fn inodes(&self) -> Vec<u64>;
}

struct Kernel {
    root: PathBuf,
    files: Vec<(u64, Option<File>)>,
    names: BTreeMap<Name, FileNumber>,
}

impl Kernel {
    fn open(root: &Path, inodes: &[u64]) -> Self {
        let mut kernel = Self {
            root: root.to_owned(),
            files: inodes.iter().map(|inode| (*inode, None)).collect(),
            names: base().names,
        };
        if inodes.is_empty() {
            kernel.names.clear();
        }
        for (name, file) in kernel.names.clone() {
            kernel.files[file].1 = Some(open_file(&kernel.path(name)));
        }
        kernel
    }

    fn path(&self, name: Name) -> PathBuf {
        self.root.join(PATHS[name])
    }

    fn file(&self, file: FileNumber) -> &File {
        self.files[file].1.as_ref().unwrap()
    }

    fn close(&mut self, name: Name, handle: Handle) {
        if let Some(file) = self.names.remove(&name)
            && handle == Handle::Closed
        {
            self.files[file].1 = None;
        }
    }
}

fn open_file(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

impl Side for Kernel {
    fn run(&mut self, step: Step) {
        match step {
            Step::Create(name) => {
                let path = self.path(name);
                let file = File::options()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .open(&path)
                    .unwrap();
                self.names.insert(name, self.files.len());
                self.files
                    .push((file.metadata().unwrap().ino(), Some(file)));
            }
            Step::Link(file, name) => {
                let known = self.names.iter().find(|(_, f)| **f == file).unwrap();
                fs::hard_link(self.path(*known.0), self.path(name)).unwrap();
                self.names.insert(name, file);
            }
            Step::Unlink(name, handle) => {
                self.close(name, handle);
                fs::remove_file(self.path(name)).unwrap();
            }
            Step::Rename(from, to, handle) => {
                self.close(to, handle);
                fs::rename(self.path(from), self.path(to)).unwrap();
                let file = self.names.remove(&from).unwrap();
                self.names.insert(to, file);
            }
            Step::Exchange(one, two) => {
                let (first, second) = (self.path(one), self.path(two));
                let exchange = RenameFlags::EXCHANGE;
                renameat_with(CWD, first, CWD, second, exchange).unwrap();
                let (first, second) = (self.names[&one], self.names[&two]);
                self.names.insert(one, second);
                self.names.insert(two, first);
            }
            Step::Write(file, byte) => {
                let data = Content::of(byte).bytes();
                self.file(file).set_len(0).unwrap();
                self.file(file).write_all_at(&data, 0).unwrap();
            }
            Step::SetAttribute(file, at, byte) => {
                let either = XattrFlags::empty();
                fsetxattr(self.file(file), ATTRIBUTES[at], &[byte], either).unwrap();
            }
            Step::RemoveAttribute(file, at) => {
                fremovexattr(self.file(file), ATTRIBUTES[at]).unwrap();
            }
            Step::Fsync(file) => self.file(file).sync_all().unwrap(),
        }
    }

    fn inodes(&self) -> Vec<u64> {
        self.files.iter().map(|(inode, _)| *inode).collect()
    }
}

struct Ours<'f> {
    fs: &'f Filesystem,
    files: Vec<(u64, Option<Arc<Inode>>)>,
    names: BTreeMap<Name, FileNumber>,
}

impl<'f> Ours<'f> {
    fn open(fs: &'f Filesystem, inodes: &[u64]) -> Self {
        let tree = TreeId::FS;
        let files = inodes.iter().map(|number| {
            let number = InodeNumber(*number);
            let inode = fs.inode(InodeId { tree, number }).unwrap();
            fs.pin(&inode);
            (number.get(), Some(inode))
        });
        Self {
            fs,
            files: files.collect(),
            names: base().names,
        }
    }

    fn dir(&self, name: Name) -> (InodeId, &'static [u8]) {
        place(self.fs, name)
    }

    fn close(&mut self, name: Name, handle: Handle) {
        if let Some(file) = self.names.remove(&name)
            && handle == Handle::Closed
        {
            let inode = self.files[file].1.take().unwrap();
            self.fs.unpin(&inode, 1).unwrap();
        }
    }

    fn file(&self, file: FileNumber) -> &Arc<Inode> {
        self.files[file].1.as_ref().unwrap()
    }

    fn rename(&self, from: Name, to: Name, mode: RenameMode) {
        let [from, to] = [from, to].map(|name| {
            let (dir, name) = self.dir(name);
            Place { dir, name }
        });
        self.fs.rename(from, to, mode, OldName::Free).unwrap();
    }
}

fn place(fs: &Filesystem, name: Name) -> (InodeId, &'static [u8]) {
    let (dir, name) = PATHS[name].split_once('/').unwrap();
    let dir = fs.lookup(fs.root(), dir.as_bytes()).unwrap().inode;
    (dir, name.as_bytes())
}

impl Side for Ours<'_> {
    fn run(&mut self, step: Step) {
        match step {
            Step::Create(name) => {
                let (dir, text) = self.dir(name);
                let new = NewInode::new(S_IFREG | 0o644, Owner::default());
                let inode = self.fs.create(dir, text, &new).unwrap();
                self.fs.pin(&inode);
                self.names.insert(name, self.files.len());
                self.files.push((inode.id.number.get(), Some(inode)));
            }
            Step::Link(file, name) => {
                let (dir, text) = self.dir(name);
                self.fs.link(self.file(file).id, dir, text).unwrap();
                self.names.insert(name, file);
            }
            Step::Unlink(name, handle) => {
                self.close(name, handle);
                let (dir, text) = self.dir(name);
                self.fs.unlink(dir, text).unwrap();
            }
            Step::Rename(from, to, handle) => {
                self.close(to, handle);
                self.rename(from, to, RenameMode::Replace);
                let file = self.names.remove(&from).unwrap();
                self.names.insert(to, file);
            }
            Step::Exchange(one, two) => {
                self.rename(one, two, RenameMode::Exchange);
                let (first, second) = (self.names[&one], self.names[&two]);
                self.names.insert(one, second);
                self.names.insert(two, first);
            }
            Step::Write(file, byte) => {
                self.fs.truncate(self.file(file), 0).unwrap();
                let data = Content::of(byte).bytes();
                self.fs.write(self.file(file), 0, &data).unwrap();
            }
            Step::SetAttribute(file, at, byte) => {
                let (inode, name) = (self.file(file), ATTRIBUTES[at].as_bytes());
                let set = self.fs.set_xattr(inode, name, &[byte], SetMode::Any);
                set.unwrap();
            }
            Step::RemoveAttribute(file, at) => {
                let (inode, name) = (self.file(file), ATTRIBUTES[at].as_bytes());
                self.fs.remove_xattr(inode, name).unwrap();
            }
            Step::Fsync(file) => self.fs.fsync(self.file(file)).unwrap(),
        }
    }

    fn inodes(&self) -> Vec<u64> {
        self.files.iter().map(|(inode, _)| *inode).collect()
    }
}

/// What a volume shows, by the library, after its log was replayed.
fn look(fs: &Filesystem, inodes: &[u64]) -> State {
    let mut state = State::default();
    for (name, path) in PATHS.iter().enumerate() {
        let (dir, text) = place(fs, name);
        let found = match fs.lookup(dir, text) {
            Ok(found) => found.inode,
            Err(FsError::NotFound) => continue,
            Err(error) => panic!("{error}"),
        };
        let file = inodes.iter().position(|inode| *inode == found.number.get());
        let file = file.unwrap_or_else(|| panic!("{path}: an unknown inode"));
        state.names.insert(name, file);
        let inode = fs.inode(found).unwrap();
        let mut data = vec![0; 16384];
        let length = fs.read(&inode, 0, &mut data).unwrap();
        state.data.insert(file, Content::read(&data[..length]));
        for (at, attribute) in ATTRIBUTES.iter().enumerate() {
            match fs.get_xattr(found, attribute.as_bytes()) {
                Ok(value) => drop(state.attributes.insert((file, at), value)),
                Err(FsError::NoAttribute) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    state
}

/// A volume with the base, and the inode numbers of its files.
struct Base {
    dir: tempfile::TempDir,
    image: PathBuf,
    inodes: Vec<u64>,
}

impl Base {
    fn new() -> Self {
        let (dir, image) = mkfs(128 << 20, &[]);
        let inodes = {
            let mount = KernelMount::new(&image, dir.path(), "rw");
            for name in ["d1", "d2"] {
                fs::create_dir(mount.path().join(name)).unwrap();
            }
            let mut kernel = Kernel::open(mount.path(), &[]);
            for step in BASE {
                kernel.run(step);
            }
            // It has the greatest number, so that no number is given out twice.
            File::create(mount.path().join("last")).unwrap();
            kernel.inodes()
        };
        Self { dir, image, inodes }
    }

    fn copy(&self, from: &Path, to: &str) -> PathBuf {
        let to = self.dir.path().join(to);
        let paths = [from.to_str().unwrap(), to.to_str().unwrap()];
        run("cp", &["--sparse=always", paths[0], paths[1]]);
        to
    }

    /// The crash that the kernel leaves, and the files' inodes. It commits
    /// after the steps at `commits`.
    fn kernel(&self, steps: &[Step], commits: &[usize]) -> (PathBuf, Vec<u64>) {
        let image = self.copy(&self.image, "kernel.img");
        let mount = KernelMount::new(&image, self.dir.path(), "rw,commit=300");
        let mut side = Kernel::open(mount.path(), &self.inodes);
        for (at, step) in steps.iter().enumerate() {
            side.run(*step);
            if commits.contains(&at) {
                run("sync", &["-f", mount.path().to_str().unwrap()]);
            }
        }
        let crash = self.copy(&image, "kernel-crash.img");
        (crash, side.inodes())
    }

    /// The crash that ButterFS leaves, the files' inodes, and the steps at
    /// which it committed.
    fn ours(&self, steps: &[Step]) -> (PathBuf, Vec<u64>, Vec<usize>) {
        let image = self.copy(&self.image, "ours.img");
        let fs = open_subvolume(&image, TreeId::FS);
        let generation = || fs.store().read().generation();
        let mut side = Ours::open(&fs, &self.inodes);
        let mut commits = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            let before = generation();
            side.run(*step);
            if generation() != before {
                assert!(matches!(step, Step::Fsync(_)), "{step:?} committed");
                commits.push(at);
            }
        }
        let crash = self.copy(&image, "ours-crash.img");
        (crash, side.inodes(), commits)
    }

    /// What both replays make of a crash: the kernel's, and ours.
    fn replayed(&self, crash: &Path, inodes: &[u64]) -> [State; 2] {
        let kernel = self.copy(crash, "replay-kernel.img");
        drop(KernelMount::new(&kernel, self.dir.path(), "rw"));
        let ours = self.copy(crash, "replay-ours.img");
        {
            let fs = open_subvolume(&ours, TreeId::FS);
            fs.delete_orphans(TreeId::FS).unwrap();
            fs.sync_all().unwrap();
        }
        [kernel, ours].map(|image| {
            check(&image);
            look(&open_subvolume(&image, TreeId::FS), inodes)
        })
    }

    fn judge(&self, sequence: &Sequence) -> Result<(), String> {
        let (crash, inodes) = self.kernel(&sequence.steps, &[]);
        let [kernel, ours_of_kernel] = self.replayed(&crash, &inodes);
        if kernel != ours_of_kernel {
            return Err(format!(
                "the kernel's log: it makes {kernel:?}, ButterFS {ours_of_kernel:?}"
            ));
        }
        let (crash, inodes, commits) = self.ours(&sequence.steps);
        let [kernel_of_ours, ours] = self.replayed(&crash, &inodes);
        if ours != kernel_of_ours {
            return Err(format!(
                "ButterFS' log: it makes {ours:?}, the kernel {kernel_of_ours:?}"
            ));
        }
        let found = Found {
            sequence,
            commits: &commits,
            state: &ours,
        };
        found.keeps_promises()?;
        found.keeps_what_the_kernel_keeps(&kernel)?;
        if found.commits_before_last().is_empty() {
            return Ok(());
        }
        let (crash, inodes) = self.kernel(&sequence.steps, found.commits_before_last());
        let [kernel, _] = self.replayed(&crash, &inodes);
        found.keeps_names_of_the_committing_kernel(&kernel)
    }
}

fn judge_all(sequences: impl Iterator<Item = (String, Sequence)>) {
    let base = Base::new();
    let mut failed = 0;
    for (name, sequence) in sequences {
        if let Err(why) = base.judge(&sequence) {
            eprintln!("{name}: {:?}\n  {why}", sequence.steps);
            failed += 1;
        }
    }
    assert_eq!(failed, 0, "sequences failed");
}

#[test]
fn what_the_kernel_keeps_is_kept() {
    if !is_root() {
        return;
    }
    use Step::*;
    let cases: [(&str, &[Step]); 11] = [
        ("unlinked while open", &[Unlink(0, Handle::Kept), Fsync(0)]),
        (
            "a new file unlinked while open",
            &[
                Create(2),
                Write(3, 1),
                Fsync(3),
                Unlink(2, Handle::Kept),
                Fsync(3),
            ],
        ),
        (
            "a name removed from a file in the log",
            &[
                Create(2),
                Fsync(3),
                Unlink(2, Handle::Closed),
                Write(0, 9),
                Fsync(0),
            ],
        ),
        (
            "a second name removed from a file in the log",
            &[
                Link(0, 2),
                Fsync(0),
                Unlink(2, Handle::Kept),
                Write(1, 9),
                Fsync(1),
            ],
        ),
        (
            "an attribute removed from a file in the log",
            &[Write(0, 9), Fsync(0), RemoveAttribute(0, 0), Fsync(0)],
        ),
        ("links of two files", &[Link(0, 2), Link(1, 5), Fsync(0)]),
        (
            "links of two files, the other way",
            &[Link(0, 2), Link(1, 5), Fsync(1)],
        ),
        (
            "links of two files in the log",
            &[Write(0, 1), Fsync(0), Link(0, 2), Link(1, 5), Fsync(0)],
        ),
        (
            "a link and a removal",
            &[Link(0, 2), Unlink(1, Handle::Kept), Fsync(0)],
        ),
        // The kernel, without a commit, gives the deleted file its old name
        // again. ButterFS, which commits, gives it its new one.
        (
            "a name unlinked after a commit",
            &[
                Link(0, 5),
                Write(1, 19),
                Rename(4, 1, Handle::Kept),
                Fsync(0),
                Unlink(0, Handle::Kept),
                Unlink(1, Handle::Kept),
                Fsync(1),
            ],
        ),
        (
            "a rename of a file in the log",
            &[
                Create(2),
                Fsync(3),
                Rename(2, 0, Handle::Kept),
                Write(1, 9),
                Fsync(1),
            ],
        ),
    ];
    judge_all(
        cases
            .iter()
            .map(|(name, steps)| ((*name).to_owned(), Sequence::of(steps))),
    );
}

#[test]
fn random_sequences_keep_what_the_kernel_keeps() {
    if !is_root() {
        return;
    }
    let wanted = std::env::var("BUTTERFS_FSYNC_SEEDS").unwrap_or_else(|_| "1..13".into());
    let (first, last) = wanted.split_once("..").unwrap();
    let seeds = first.parse().unwrap()..last.parse().unwrap();
    judge_all(seeds.map(|seed: u64| (format!("seed {seed}"), Sequence::random(seed))));
}
