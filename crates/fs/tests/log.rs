//! The fsync log, both ways: what ButterFS logs is replayed by the kernel and
//! by ButterFS to the same files, and so is what the kernel logs.

mod common;

use butterfs_device::{Access, FileDevice};
use butterfs_format::TreeId;
use butterfs_fs::file::FallocateMode;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::xattr::SetMode;
use butterfs_fs::{Filesystem, Inode, Options};
use butterfs_store::{OpenOptions, Store};
use common::{KernelMount, Random, check, is_root, mkfs, open_subvolume, open_with, run};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// What must be found after a crash: content of files by path, where it was
/// made durable and not changed since.
#[derive(Default)]
struct Promised(BTreeMap<String, Vec<u8>>);

struct Files<'a> {
    fs: &'a Filesystem,
    random: Random,
    open: BTreeMap<String, (Arc<Inode>, Vec<u8>)>,
    promised: Promised,
    next: usize,
}

impl Files<'_> {
    fn create(&mut self) {
        let name = format!("f{}", self.next);
        self.next += 1;
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let dir = self.fs.lookup(self.fs.root(), b"dir").unwrap().inode;
        let inode = self.fs.create(dir, name.as_bytes(), &new).unwrap();
        self.open.insert(format!("dir/{name}"), (inode, Vec::new()));
    }

    fn change(&mut self) {
        let at = self.random.below(self.open.len() as u64) as usize;
        let path = self.open.keys().nth(at).unwrap().clone();
        let (inode, data) = self.open.get_mut(&path).unwrap();
        let random = &mut self.random;
        self.promised.0.remove(&path);
        let sector = 4096;
        match random.below(9) {
            0..=3 => {
                let offset = random.below(400_000) as usize;
                let length = 1 + random.below(60_000) as usize;
                let new = random.data(length);
                self.fs.write(inode, offset as u64, &new).unwrap();
                data.resize(data.len().max(offset + new.len()), 0);
                data[offset..offset + new.len()].copy_from_slice(&new);
            }
            4 => {
                let size = random.below(500_000) as usize;
                self.fs.truncate(inode, size as u64).unwrap();
                data.resize(size, 0);
            }
            5 => {
                let start = random.below(400_000);
                let length = 1 + random.below(100_000);
                let mode = FallocateMode::PunchHole;
                self.fs.fallocate(inode, mode, start, length).unwrap();
                let size = data.len();
                let range = (start as usize).min(size)..((start + length) as usize).min(size);
                data[range].fill(0);
            }
            6 => {
                let start = random.below(100) * sector;
                let mode = FallocateMode::AllocateKeepSize;
                self.fs.fallocate(inode, mode, start, 40 * sector).unwrap();
            }
            7 => {
                let value = random.data(50);
                self.fs
                    .set_xattr(inode, b"user.test", &value, SetMode::Any)
                    .unwrap();
            }
            _ => {
                // Small files are inline.
                self.fs.truncate(inode, 0).unwrap();
                let new = random.data(1 + (data.len() % 1500));
                self.fs.write(inode, 0, &new).unwrap();
                *data = new;
            }
        }
    }

    fn fsync(&mut self) {
        let at = self.random.below(self.open.len() as u64) as usize;
        let (path, (inode, data)) = self.open.iter().nth(at).unwrap();
        self.fs.fsync(inode).unwrap();
        self.promised.0.insert(path.clone(), data.clone());
    }
}

fn compare(mount: &Path, promised: &Promised, who: &str) {
    for (path, data) in &promised.0 {
        let found = fs::read(mount.join(path));
        let found = found.unwrap_or_else(|error| panic!("{who}: {path}: {error}"));
        if found != *data {
            let at = found.iter().zip(data).position(|(a, b)| a != b);
            panic!(
                "{who}: {path}: {} bytes instead of {}, first difference at {at:?}",
                found.len(),
                data.len()
            );
        }
    }
}

/// Everything that a walk shows.
fn manifest(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let data = if meta.is_file() {
                fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            let sum = data
                .iter()
                .fold(7_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
            let attributes = run(
                "getfattr",
                &["-dm-", "--absolute-names", path.to_str().unwrap()],
            );
            let attributes = attributes.replace(root.to_str().unwrap(), "");
            let size = if meta.is_dir() { 0 } else { meta.size() };
            all.push(format!(
                "{name} {:o} {size} {} {} {}.{} {sum:x} {attributes}",
                meta.mode(),
                meta.nlink(),
                meta.blocks(),
                meta.mtime(),
                meta.mtime_nsec(),
            ));
            if meta.is_dir() {
                waiting.push(path);
            }
        }
    }
    all.sort();
    all
}

fn has_log(image: &Path) -> bool {
    let text = run(
        "btrfs",
        &["inspect-internal", "dump-super", image.to_str().unwrap()],
    );
    let line = text
        .lines()
        .find(|line| line.starts_with("log_root\t"))
        .unwrap();
    !line.ends_with("\t0")
}

/// Replays copies of `image` by the kernel and by ButterFS, compares both with
/// what was promised and with each other.
fn judge(image: &Path, dir: &Path, promised: &Promised) {
    let crashed = dir.join("crashed.img");
    fs::copy(image, &crashed).unwrap();
    let by_kernel = dir.join("kernel.img");
    fs::copy(&crashed, &by_kernel).unwrap();
    let kernel = {
        let mount = KernelMount::new(&by_kernel, dir, "rw");
        compare(mount.path(), promised, "the kernel's replay");
        manifest(mount.path())
    };
    check(&by_kernel);
    let ours = crashed;
    let fs = open_subvolume(&ours, TreeId::FS);
    fs.delete_orphans(TreeId::FS).unwrap();
    fs.sync_all().unwrap();
    drop(fs);
    check(&ours);
    let own = {
        let mount = KernelMount::new(&ours, dir, "rw");
        compare(mount.path(), promised, "ButterFS' replay");
        manifest(mount.path())
    };
    for (a, b) in kernel.iter().zip(&own) {
        assert_eq!(a, b, "the kernel's and ButterFS' replays differ");
    }
    assert_eq!(kernel.len(), own.len());
}

fn round(seed: u64, mkfs_options: &[&str], options: &Options) -> bool {
    println!("seed {seed} {mkfs_options:?} {options:?}");
    let (dir, image) = mkfs(256 << 20, mkfs_options);
    let fs = open_with(&image, TreeId::FS, options);
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    fs.create(fs.root(), b"dir", &new).unwrap();
    let mut files = Files {
        fs: &fs,
        random: Random(seed),
        open: BTreeMap::new(),
        promised: Promised::default(),
        next: 0,
    };
    for _ in 0..4 {
        files.create();
    }
    for _ in 0..10 {
        files.change();
    }
    fs.sync_all().unwrap();
    let mut logged = false;
    for step in 0..120 {
        match files.random.below(10) {
            0 => files.create(),
            1..=6 => files.change(),
            _ => files.fsync(),
        }
        if step % 40 == 39 {
            files.fsync();
            logged |= has_log(&image);
            judge(&image, dir.path(), &files.promised);
        }
        if step == 60 {
            fs.sync_all().unwrap();
            for (path, (_, data)) in &files.open {
                files.promised.0.insert(path.clone(), data.clone());
            }
        }
    }
    logged
}

#[test]
fn logged_files_are_replayed_alike_by_the_kernel() {
    if !is_root() {
        return;
    }
    let fresh = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let seeds: Vec<u64> = match std::env::var("BUTTERFS_SEEDS") {
        Ok(range) => {
            let (first, last) = range.split_once("..").unwrap();
            (first.parse().unwrap()..last.parse().unwrap()).collect()
        }
        Err(_) => vec![1, 2, 3, fresh],
    };
    for seed in seeds {
        let compressed = Options {
            compress: butterfs_fs::options::Compress::Force(
                butterfs_format::compression::Algorithm::Zstd,
                butterfs_format::compression::Algorithm::Zstd.default_level(),
            ),
            ..Options::default()
        };
        let nocow = Options {
            data_cow: butterfs_fs::options::DataCow::Off,
            ..Options::default()
        };
        for (mkfs_options, options) in [
            (&["-n", "4096"][..], Options::default()),
            (&["--csum", "xxhash"][..], compressed),
            (&["-O", "^no-holes"][..], Options::default()),
            (&["-m", "single"][..], nocow),
            (&["-M"][..], Options::default()),
        ] {
            assert!(round(seed, mkfs_options, &options), "nothing was logged");
        }
    }
}

/// A directory whose files are replaced, removed and made, with an fsync of it
/// after each few changes. Returns the number of those that needed no commit.
fn directory_round(seed: u64, mkfs_options: &[&str]) -> usize {
    let (dir, image) = mkfs(256 << 20, mkfs_options);
    let fs = open_subvolume(&image, TreeId::FS);
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    let place = fs.create(fs.root(), b"dir", &new).unwrap();
    let mut random = Random(seed);
    let mut promised = Promised::default();
    let mut next = 0;
    let mut make = |random: &mut Random| {
        next += 1;
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let name = format!("f{next}");
        let inode = fs.create(place.id, name.as_bytes(), &new).unwrap();
        let length = random.below(20_000) as usize;
        let data = random.data(length);
        fs.write(&inode, 0, &data).unwrap();
        fs.fsync(&inode).unwrap();
        (name, data)
    };
    for _ in 0..60 {
        let (name, data) = make(&mut random);
        promised.0.insert(format!("dir/{name}"), data);
    }
    fs.sync_all().unwrap();
    let mut logged = 0;
    for step in 1..=40 {
        for _ in 0..=random.below(3) {
            let paths: Vec<String> = promised.0.keys().cloned().collect();
            let path = &paths[random.below(paths.len() as u64) as usize];
            let name = path.strip_prefix("dir/").unwrap().as_bytes();
            match random.below(5) {
                0 => {
                    let (name, data) = make(&mut random);
                    promised.0.insert(format!("dir/{name}"), data);
                }
                2 => {
                    let to = format!("moved{}", random.below(1 << 40));
                    let [from, to] = [name, to.as_bytes()].map(|name| Place {
                        dir: place.id,
                        name,
                    });
                    let moved = fs.rename(from, to, RenameMode::Replace, OldName::Free);
                    moved.unwrap();
                    let data = promised.0.remove(path).unwrap();
                    let to = String::from_utf8_lossy(to.name).into_owned();
                    promised.0.insert(format!("dir/{to}"), data);
                }
                1 => {
                    fs.unlink(place.id, name).unwrap();
                    promised.0.remove(path);
                }
                _ => {
                    let (from, data) = make(&mut random);
                    let [from, to] = [from.as_bytes(), name].map(|name| Place {
                        dir: place.id,
                        name,
                    });
                    let over = fs.rename(from, to, RenameMode::Replace, OldName::Free);
                    over.unwrap();
                    promised.0.insert(path.clone(), data);
                }
            }
        }
        let generation = || fs.store().read().generation();
        let before = generation();
        fs.fsync_directory(&place).unwrap();
        logged += usize::from(generation() == before);
        if step % 8 == 0 {
            judge(&image, dir.path(), &promised);
            // No other names are there.
            let crashed = open_subvolume(&dir.path().join("crashed.img"), TreeId::FS);
            let mut names = 0;
            let dir = crashed.lookup(crashed.root(), b"dir").unwrap().inode;
            let count = &mut |_| {
                names += 1;
                true
            };
            crashed.read_dir(dir, 0, count).unwrap();
            assert_eq!(names, promised.0.len() + 2);
        }
    }
    logged
}

#[test]
fn logged_directories_are_replayed_alike_by_the_kernel() {
    if !is_root() {
        return;
    }
    for seed in 1..4 {
        for mkfs_options in [&["-n", "4096"][..], &["-O", "^no-holes"], &["-M"]] {
            let logged = directory_round(seed, mkfs_options);
            assert!(logged > 30, "{logged} of 40 needed no commit");
        }
    }
}

/// Changes a directory through the kernel, with fsyncs of files and
/// directories in between.
fn kernel_workload(root: &Path, random: &mut Random, steps: usize) {
    let mut files: Vec<std::path::PathBuf> = Vec::new();
    let mut dirs = vec![root.to_owned()];
    let sync = |path: &Path| fs::File::open(path).unwrap().sync_all().unwrap();
    for step in 0..steps {
        let dir = dirs[random.below(dirs.len() as u64) as usize].clone();
        let fresh = dir.join(format!("n{step}"));
        let pick = |random: &mut Random| -> Option<usize> {
            (!files.is_empty()).then(|| random.below(files.len() as u64) as usize)
        };
        match random.below(14) {
            0 | 1 => {
                let length = random.below(40_000) as usize;
                fs::write(&fresh, random.data(length)).unwrap();
                files.push(fresh);
            }
            2 => {
                fs::create_dir(&fresh).unwrap();
                dirs.push(fresh);
            }
            3 => {
                if let Some(at) = pick(random) {
                    fs::rename(&files[at], &fresh).unwrap();
                    files[at] = fresh;
                }
            }
            4 => {
                if let (Some(from), Some(over)) = (pick(random), pick(random))
                    && from != over
                {
                    fs::rename(&files[from], &files[over]).unwrap();
                    files.remove(from);
                }
            }
            5 => {
                if let Some(at) = pick(random) {
                    fs::hard_link(&files[at], &fresh).unwrap();
                    files.push(fresh);
                }
            }
            6 => {
                if let Some(at) = pick(random) {
                    fs::remove_file(files.swap_remove(at)).unwrap();
                }
            }
            7 => {
                if let Some(at) = pick(random) {
                    let path = files[at].to_str().unwrap();
                    let name = format!("user.a{}", random.below(3));
                    if random.below(2) == 0 {
                        run("setfattr", &["-n", &name, "-v", &format!("v{step}"), path]);
                    } else {
                        let _ = std::process::Command::new("setfattr")
                            .args(["-x", &name, path])
                            .output();
                    }
                }
            }
            8 => {
                if let Some(at) = pick(random) {
                    let path = files[at].to_str().unwrap();
                    let start = random.below(40) * 1000;
                    let words: &[&str] = match random.below(4) {
                        0 => &["-p"],
                        1 => &["-n"],
                        2 => &["-z"],
                        _ => &[],
                    };
                    let range = ["-o", &start.to_string(), "-l", "9000", path].map(str::to_owned);
                    let range: Vec<&str> = range.iter().map(String::as_str).collect();
                    run("fallocate", &[words, &range].concat());
                }
            }
            9 => {
                if let Some(at) = pick(random) {
                    let file = fs::File::options().write(true).open(&files[at]).unwrap();
                    file.set_len(random.below(60_000)).unwrap();
                }
            }
            10 => {
                if let Some(at) = pick(random) {
                    use std::os::unix::fs::FileExt;
                    let file = fs::File::options().write(true).open(&files[at]).unwrap();
                    let data = random.data(5000);
                    file.write_all_at(&data, random.below(100_000)).unwrap();
                }
            }
            11 => sync(&dir),
            _ => {
                if let Some(at) = pick(random) {
                    sync(&files[at]);
                }
            }
        }
    }
    if let Some(last) = files.last() {
        fs::write(last, "the last change").unwrap();
        sync(last);
    }
}

#[test]
fn the_kernels_logs_are_replayed_as_it_does() {
    if !is_root() {
        return;
    }
    let mut logs = 0;
    let fresh = std::process::id().into();
    let seeds = match std::env::var("BUTTERFS_SEEDS") {
        Ok(range) => {
            let (first, last) = range.split_once("..").unwrap();
            (first.parse().unwrap()..last.parse().unwrap()).collect()
        }
        Err(_) => vec![1_u64, 2, 3, 4, 5, fresh],
    };
    for seed in seeds {
        println!("seed {seed}");
        let options: &[&str] = match seed % 3 {
            0 => &["-n", "4096"],
            1 => &["-O", "^no-holes"],
            _ => &[],
        };
        let (dir, image) = mkfs(256 << 20, options);
        let crashed = dir.path().join("left.img");
        {
            let mount = KernelMount::new(&image, dir.path(), "commit=300");
            let mut random = Random(seed);
            let (one, two) = (mount.path().join("one"), mount.path().join("two"));
            for subvolume in [&one, &two] {
                run(
                    "btrfs",
                    &["subvolume", "create", subvolume.to_str().unwrap()],
                );
            }
            kernel_workload(&one, &mut random, 60);
            run("sync", &["-f", one.to_str().unwrap()]);
            for subvolume in [&one, &two] {
                let again = subvolume.join("again");
                fs::create_dir(&again).unwrap();
                fs::File::open(&again).unwrap().sync_all().unwrap();
                kernel_workload(&again, &mut random, 60);
            }
            fs::copy(&image, &crashed).unwrap();
        }
        if has_log(&crashed) {
            logs += 1;
            judge(&crashed, dir.path(), &Promised::default());
        }
    }
    println!("{logs} logs");
    assert!(logs > 0, "the kernel left no log");
}

/// Opens a volume with this `left_to_commit`. With 0, a commit always has much
/// to write.
fn open_with_left(image: &Path, left_to_commit: usize) -> Filesystem {
    let device = FileDevice::open(image, Access::ReadWrite).unwrap();
    let options = OpenOptions {
        left_to_commit,
        ..OpenOptions::default()
    };
    let store = Store::open(Arc::new(device), &options).unwrap();
    butterfs_fs::log::replay(&store).unwrap();
    Filesystem::new(Arc::new(store), TreeId::FS, Options::default())
}

#[test]
fn a_log_that_has_grown_gives_way_to_a_commit() {
    const APPENDS: usize = 1500;
    let default = OpenOptions::default().left_to_commit;
    for (left_to_commit, threads) in [(default, 1), (default, 3), (0, 1), (0, 3)] {
        let (dir, image) = mkfs(512 << 20, &[]);
        let fs = open_with_left(&image, left_to_commit);
        let data = Random(5).data(16 << 10);
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let names: Vec<String> = (0..threads).map(|n| format!("file-{n}")).collect();
        let inodes = names
            .iter()
            .map(|name| fs.create(fs.root(), name.as_bytes(), &new).unwrap());
        let inodes: Vec<_> = inodes.collect();
        fs.sync_all().unwrap();
        let generation = || fs.store().read().generation().get();
        let before = generation();
        std::thread::scope(|scope| {
            for inode in &inodes {
                let (fs, data) = (&fs, &data);
                scope.spawn(move || {
                    for at in 0..APPENDS / threads {
                        fs.write(inode, (at * data.len()) as u64, data).unwrap();
                        fs.fsync(inode).unwrap();
                    }
                });
            }
        });
        let commits = generation() - before;
        assert!((2..=30).contains(&commits), "{commits} commits");
        drop((inodes, fs));
        // As after a crash.
        let compare = |who: &str, found: &[u8], name: &str| {
            assert_eq!(found.len(), APPENDS / threads * data.len(), "{who}, {name}");
            assert!(
                found.chunks(data.len()).all(|part| part == data),
                "{who}, {name}"
            );
        };
        if is_root() {
            let copy = dir.path().join("copy.img");
            fs::copy(&image, &copy).unwrap();
            let mount = KernelMount::new(&copy, dir.path(), "rw");
            for name in &names {
                compare("kernel", &fs::read(mount.path().join(name)).unwrap(), name);
            }
        }
        let fs = open_with_left(&image, left_to_commit);
        for name in &names {
            let found = fs.lookup(fs.root(), name.as_bytes()).unwrap();
            let inode = fs.inode(found.inode).unwrap();
            let mut bytes = vec![0; APPENDS / threads * data.len() + 1];
            let read = fs.read(&inode, 0, &mut bytes).unwrap();
            compare("ButterFS", &bytes[..read], name);
        }
        fs.sync_all().unwrap();
        drop(fs);
        check(&image);
    }
}

/// Programs that save a file write a new one and rename it over the old one,
/// again and again; some fsync the directory then.
#[test]
fn files_that_replace_each_other_need_no_commit() {
    for with_directory in [false, true] {
        let (_dir, image) = mkfs(256 << 20, &[]);
        let fs = open_subvolume(&image, TreeId::FS);
        let root = fs.inode(fs.root()).unwrap();
        let save = |number: u8| {
            let new = NewInode::new(S_IFREG | 0o644, Owner::default());
            let inode = fs.create(fs.root(), b"new", &new).unwrap();
            fs.write(&inode, 0, &[number; 5000]).unwrap();
            fs.fsync(&inode).unwrap();
            let place = |name: &'static [u8]| Place {
                dir: fs.root(),
                name,
            };
            let (from, to) = (place(b"new"), place(b"saved"));
            fs.rename(from, to, RenameMode::Replace, OldName::Free)
                .unwrap();
            if with_directory {
                fs.fsync_directory(&root).unwrap();
            }
        };
        save(0);
        fs.sync_all().unwrap();
        let generation = || fs.store().read().generation();
        let before = generation();
        (1..=20).for_each(save);
        assert_eq!(generation(), before, "a commit came");
    }
}
