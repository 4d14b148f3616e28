//! What fsync promises, case by case. Each case is a sequence that a log could
//! get wrong. It is judged after a replay by the kernel and after one by
//! ButterFS.

#[path = "log_promises/against_kernel.rs"]
mod against_kernel;
mod common;
#[path = "log_promises/promises.rs"]
mod promises;
#[path = "log_promises/sequence.rs"]
mod sequence;

use butterfs_format::{InodeId, TreeId};
use butterfs_fs::file::FallocateMode;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::options::DataCow;
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::{Filesystem, Inode, Options};
use common::{KernelMount, check, is_root, mkfs, open_subvolume, open_with, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const KIB: u64 = 1024;

/// A volume with the directories `d1` and `d2`.
struct Case {
    dir: TempDir,
    image: PathBuf,
    fs: Filesystem,
}

impl Case {
    fn new(mkfs_options: &[&str], options: &Options) -> Self {
        let (dir, image) = mkfs(256 << 20, mkfs_options);
        let fs = open_with(&image, TreeId::FS, options);
        for name in [b"d1", b"d2"] {
            let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
            fs.create(fs.root(), name, &new).unwrap();
        }
        fs.sync_all().unwrap();
        Self { dir, image, fs }
    }

    fn dir(&self, name: &str) -> InodeId {
        let found = self.fs.lookup(self.fs.root(), name.as_bytes());
        found.unwrap().inode
    }

    fn create(&self, dir: &str, name: &str) -> Arc<Inode> {
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let dir = self.dir(dir);
        self.fs.create(dir, name.as_bytes(), &new).unwrap()
    }

    fn rename(&self, from: (&str, &str), to: (&str, &str)) {
        let (from_dir, to_dir) = (self.dir(from.0), self.dir(to.0));
        let place = |dir, name: &'static str| Place {
            dir,
            name: name.as_bytes(),
        };
        let leak = |name: &str| -> &'static str { name.to_owned().leak() };
        let (from, to) = (place(from_dir, leak(from.1)), place(to_dir, leak(to.1)));
        let (mode, old) = (RenameMode::Replace, OldName::Free);
        self.fs.rename(from, to, mode, old).unwrap();
    }

    /// Crashes a copy of the volume, and looks at what both replays make of it.
    fn judge(&self, look: impl Fn(&Path, &str)) {
        judge(&self.image, &self.dir, look);
    }
}

fn judge(image: &Path, dir: &TempDir, look: impl Fn(&Path, &str)) {
    let dir = dir.path();
    let copies = ["kernel.img", "ours.img"].map(|name| dir.join(name));
    for copy in &copies {
        fs::copy(image, copy).unwrap();
    }
    {
        let mount = KernelMount::new(&copies[0], dir, "rw");
        look(mount.path(), "the kernel's replay");
    }
    check(&copies[0]);
    {
        let fs = open_subvolume(&copies[1], TreeId::FS);
        fs.delete_orphans(TreeId::FS).unwrap();
        fs.sync_all().unwrap();
    }
    check(&copies[1]);
    let mount = KernelMount::new(&copies[1], dir, "ro");
    look(mount.path(), "ButterFS' replay");
}

fn expect(path: &Path, data: &[u8], who: &str) {
    let found = fs::read(path).unwrap_or_else(|error| panic!("{who}: {path:?}: {error}"));
    let at = found.iter().zip(data).position(|(a, b)| a != b);
    let lengths = (found.len(), data.len());
    assert!(found == data, "{who}: {path:?}: {at:?} of {lengths:?}");
}

fn filled(byte: u8, length: u64) -> Vec<u8> {
    vec![byte; length as usize]
}

#[test]
fn what_was_cut_off_does_not_return_when_the_file_grows() {
    if !is_root() {
        return;
    }
    for mkfs_options in [&[][..], &["-O", "^no-holes"]] {
        let case = Case::new(mkfs_options, &Options::default());
        let cut = case.create("d1", "cut");
        let written = case.create("d1", "written");
        for file in [&cut, &written] {
            case.fs.write(file, 0, &filled(7, 1024 * KIB)).unwrap();
        }
        case.fs.sync_all().unwrap();
        for file in [&cut, &written] {
            case.fs.truncate(file, 100 * KIB).unwrap();
            case.fs.fsync(file).unwrap();
        }
        case.fs.truncate(&cut, 1024 * KIB).unwrap();
        case.fs.write(&written, 800 * KIB, b"end").unwrap();
        for file in [&cut, &written] {
            case.fs.fsync(file).unwrap();
        }
        let mut first = filled(7, 100 * KIB);
        first.resize((1024 * KIB) as usize, 0);
        let mut second = first.clone();
        second.resize((800 * KIB) as usize, 0);
        second.extend_from_slice(b"end");
        case.judge(|root, who| {
            expect(&root.join("d1/cut"), &first, who);
            expect(&root.join("d1/written"), &second, who);
        });
    }
}

#[test]
fn holes_that_grow_together_do_not_overlap_in_the_log() {
    if !is_root() {
        return;
    }
    let case = Case::new(&[], &Options::default());
    let file = case.create("d1", "file");
    case.fs.truncate(&file, 1024 * KIB).unwrap();
    case.fs.write(&file, 0, &filled(1, 64 * KIB)).unwrap();
    case.fs.fsync(&file).unwrap();
    for start in [60 * KIB, 100 * KIB] {
        for mode in [FallocateMode::ZeroRangeKeepSize, FallocateMode::PunchHole] {
            case.fs.fallocate(&file, mode, start, 8 * KIB).unwrap();
        }
    }
    case.fs.fsync(&file).unwrap();
    let mut data = filled(1, 60 * KIB);
    data.resize((1024 * KIB) as usize, 0);
    case.judge(|root, who| expect(&root.join("d1/file"), &data, who));
}

#[test]
fn a_new_file_that_moved_has_one_name() {
    if !is_root() {
        return;
    }
    let case = Case::new(&[], &Options::default());
    let file = case.create("d1", "old");
    case.fs.write(&file, 0, b"content").unwrap();
    case.fs.fsync(&file).unwrap();
    case.rename(("d1", "old"), ("d2", "new"));
    case.fs.fsync(&file).unwrap();
    // The old name is free for others, in the log too.
    case.judge(|root, who| {
        expect(&root.join("d2/new"), b"content", who);
        assert!(
            !root.join("d1/old").exists(),
            "{who}: the old name is there"
        );
    });
    let other = case.create("d1", "old");
    case.fs.write(&other, 0, b"other").unwrap();
    case.fs.fsync(&other).unwrap();
    case.judge(|root, who| {
        expect(&root.join("d2/new"), b"content", who);
        expect(&root.join("d1/old"), b"other", who);
    });
}

/// An extent was logged for one file, then belonged to another one, and its
/// space is used again in the same generation.
#[test]
fn space_used_again_has_its_own_checksums() {
    if !is_root() {
        return;
    }
    let case = Case::new(&[], &Options::default());
    let fs = &case.fs;
    let one = case.create("d1", "one");
    let two = case.create("d1", "two");
    let random: Vec<u8> = (0..64 * KIB).map(|at| (at * 7 % 251) as u8).collect();
    fs.write(&one, 0, &random).unwrap();
    fs.fsync(&one).unwrap();
    fs.copy_range((&one, 0), (&two, 0), 64 * KIB).unwrap();
    fs.write(&one, 0, &filled(1, 64 * KIB)).unwrap();
    fs.fsync(&one).unwrap();
    fs.truncate(&two, 0).unwrap();
    // The group has room for 128 of these, so the last one gets what was freed.
    let many: Vec<_> = (0..127)
        .map(|n| {
            let file = case.create("d2", &format!("n{n}"));
            fs.write(&file, 0, &filled(n, 64 * KIB)).unwrap();
            fs.fsync(&file).unwrap();
            (n, file)
        })
        .collect();
    case.judge(|root, who| {
        expect(&root.join("d1/one"), &filled(1, 64 * KIB), who);
        for (n, _) in &many {
            expect(&root.join(format!("d2/n{n}")), &filled(*n, 64 * KIB), who);
        }
    });
}

#[test]
fn logs_of_two_subvolumes_each_have_the_checksums() {
    if !is_root() {
        return;
    }
    let (dir, image) = mkfs(256 << 20, &[]);
    let ids = {
        let mount = KernelMount::new(&image, dir.path(), "rw");
        ["s1", "s2"].map(|name| {
            let path = mount.path().join(name);
            let path = path.to_str().unwrap();
            run("btrfs", &["subvolume", "create", path]);
            let text = run("btrfs", &["inspect-internal", "rootid", path]);
            TreeId(text.trim().parse().unwrap())
        })
    };
    let fs = open_subvolume(&image, TreeId::FS);
    let [one, two] = ids.map(|tree| {
        let number = butterfs_format::InodeNumber::ROOT;
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        fs.create(InodeId { tree, number }, b"file", &new).unwrap()
    });
    let random: Vec<u8> = (0..64 * KIB).map(|at| (at * 7 % 251) as u8).collect();
    fs.write(&one, 0, &random).unwrap();
    fs.sync_all().unwrap();
    fs.write(&one, 0, &random).unwrap();
    fs.fsync(&one).unwrap();
    let shared = fs.copy_range((&one, 0), (&two, 0), 64 * KIB).unwrap();
    assert_eq!(shared, 64 * KIB);
    fs.fsync(&two).unwrap();
    fs.write(&one, 0, &filled(1, 64 * KIB)).unwrap();
    fs.fsync(&one).unwrap();
    judge(&image, &dir, |root, who| {
        expect(&root.join("s1/file"), &filled(1, 64 * KIB), who);
        expect(&root.join("s2/file"), &random, who);
    });
}

/// A file without copy-on-write must not write into an extent that another file
/// has in the last commit or in the log, although that file has given it up
/// since.
#[test]
fn data_in_place_spare_what_others_had_when_it_was_durable() {
    if !is_root() {
        return;
    }
    let options = Options {
        data_cow: DataCow::Off,
        ..Options::default()
    };
    let case = Case::new(&[], &options);
    let fs = &case.fs;
    let old = filled(1, 64 * KIB);
    let one = case.create("d1", "one");
    fs.write(&one, 0, &old).unwrap();
    let committed = case.create("d1", "committed");
    fs.copy_range((&one, 0), (&committed, 0), 64 * KIB).unwrap();
    fs.sync_all().unwrap();
    fs.truncate(&committed, 0).unwrap();
    fs.write(&one, 0, &filled(2, 64 * KIB)).unwrap();
    fs.fsync(&one).unwrap();
    case.judge(|root, who| {
        expect(&root.join("d1/one"), &filled(2, 64 * KIB), who);
        expect(&root.join("d1/committed"), &old, who);
    });
    fs.sync_all().unwrap();
    let logged = case.create("d1", "logged");
    let new = case.create("d1", "new");
    fs.write(&new, 0, &old).unwrap();
    fs.copy_range((&new, 0), (&logged, 0), 64 * KIB).unwrap();
    fs.fsync(&logged).unwrap();
    fs.truncate(&logged, 0).unwrap();
    fs.write(&new, 0, &filled(2, 64 * KIB)).unwrap();
    fs.fsync(&new).unwrap();
    case.judge(|root, who| {
        expect(&root.join("d1/new"), &filled(2, 64 * KIB), who);
        expect(&root.join("d1/logged"), &old, who);
    });
}

/// Git gives an object its name, and then a branch its new commit.
#[test]
fn a_file_is_replaced_after_what_was_named_before() {
    if !is_root() {
        return;
    }
    type Ask = fn(&Case, &Inode, &Inode);
    let asks: [Ask; 3] = [
        |case, new, _| case.fs.fsync(new).unwrap(),
        |case, _, other| case.fs.fsync(other).unwrap(),
        |case, _, _| {
            let dir = case.fs.inode(case.dir("d2")).unwrap();
            case.fs.fsync_directory(&dir).unwrap();
        },
    ];
    for ask in asks {
        let case = Case::new(&[], &Options::default());
        let object = case.create("d1", "temporary");
        case.fs.write(&object, 0, b"object").unwrap();
        case.fs
            .write(&case.create("d2", "branch"), 0, b"old")
            .unwrap();
        let other = case.create("d2", "other");
        case.fs.sync_all().unwrap();
        case.rename(("d1", "temporary"), ("d1", "object"));
        let new = case.create("d2", "lock");
        case.fs.write(&new, 0, b"new").unwrap();
        case.fs.fsync(&new).unwrap();
        case.rename(("d2", "lock"), ("d2", "branch"));
        case.fs.write(&other, 0, b"other").unwrap();
        ask(&case, &new, &other);
        case.judge(|root, who| {
            if fs::read(root.join("d2/branch")).unwrap() == b"new" {
                expect(&root.join("d1/object"), b"object", who);
            }
        });
    }
}

/// An fsync of another file removes the file that lost a name from the log. The
/// file that got the name must be durable then.
/// Programs that want the old content or the new write a new file, fsync it and
/// rename it over the old one, and some fsync the directory too. A commit that
/// has the new file's first name costs no further commits, though that name is
/// used again.
#[test]
fn files_replaced_again_and_again_need_no_commit() {
    const REPLACED: u64 = 300;
    const NAMES: u64 = 50;
    for also_directory in [true, false] {
        let case = Case::new(&[], &Options::default());
        let directory = case.fs.inode(case.dir("d1")).unwrap();
        let generation = || case.fs.store().read().generation().get();
        for round in 0..3 {
            let before = generation();
            let content = |number: u64| filled((round + number) as u8, 4 * KIB);
            for number in 0..REPLACED {
                let new = case.create("d1", "new");
                case.fs.write(&new, 0, &content(number)).unwrap();
                case.fs.fsync(&new).unwrap();
                if number == 10 {
                    case.fs.sync_all().unwrap();
                }
                let name = format!("file-{}", number % NAMES);
                case.rename(("d1", "new"), ("d1", &name));
                if also_directory {
                    case.fs.fsync_directory(&directory).unwrap();
                }
            }
            let commits = generation() - before;
            assert!(
                commits <= 30,
                "{also_directory}, round {round}: {commits} commits"
            );
            case.judge(|mnt, who| {
                // Without the directory's fsync, the last one may not be durable.
                let durable = REPLACED - u64::from(!also_directory);
                for number in durable - NAMES + 1..durable {
                    let file = mnt.join(format!("d1/file-{}", number % NAMES));
                    expect(&file, &content(number), who);
                }
                let names = fs::read_dir(mnt.join("d1")).unwrap().count() as u64;
                let more = u64::from(!also_directory);
                assert!((NAMES..=NAMES + more).contains(&names), "{names}, {who}");
            });
        }
    }
}

#[test]
fn a_name_has_the_old_content_or_the_new_after_a_rename_over_it() {
    if !is_root() {
        return;
    }
    for is_committed in [false, true] {
        let case = Case::new(&[], &Options::default());
        let other = case.create("d1", "other");
        if is_committed {
            let new = case.create("d1", "new");
            case.fs.write(&new, 0, &filled(2, 60 * KIB)).unwrap();
        }
        case.fs.sync_all().unwrap();
        let old = case.create("d1", "name");
        case.fs.write(&old, 0, &filled(1, 50 * KIB)).unwrap();
        case.fs.fsync(&old).unwrap();
        if !is_committed {
            let new = case.create("d1", "new");
            case.fs.write(&new, 0, &filled(2, 60 * KIB)).unwrap();
        }
        case.rename(("d1", "new"), ("d1", "name"));
        case.fs.write(&other, 0, b"other").unwrap();
        case.fs.fsync(&other).unwrap();
        case.judge(|root, who| {
            let found = fs::read(root.join("d1/name"));
            let found = found.unwrap_or_else(|error| panic!("{who}: {error}"));
            let whole = [filled(1, 50 * KIB), filled(2, 60 * KIB)];
            assert!(whole.contains(&found), "{who}: {} bytes", found.len());
            expect(&root.join("d1/other"), b"other", who);
        });
    }
}
