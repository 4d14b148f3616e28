//! What an operation costs as a volume grows: the same steps on volumes that
//! differ by a factor of ten in one respect.
//!
//! The steps run in bursts of a fixed size with a commit at the end of each, so
//! that the work of a commit counts too. The best burst counts.

use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::{Access, FileDevice};
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::file::FallocateMode;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::{Filesystem, Inode, Options};
use butterfs_store::{self as store, OpenOptions, Store};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Operations of a burst.
const BURST: usize = 2000;
/// Bursts of a step; the best counts.
const BURSTS: usize = 5;
/// Files of a directory, if it is not the directories that grow.
const PER_DIR: usize = 1000;
const SECTOR: u64 = 4096;

/// Microseconds of an operation, by the names of the steps.
type Costs = Vec<(&'static str, f64)>;

/// A volume that grows.
struct Ground {
    image: PathBuf,
    fs: Option<Filesystem>,
    /// Bursts so far: each has names of its own.
    bursts: usize,
    /// State of the random numbers that choose files.
    random: u64,
}

impl Ground {
    fn new(base: &Path, size: u64) -> io::Result<Self> {
        let image = base.join(format!("butterfs-scale-{}.img", std::process::id()));
        let _ = fs::remove_file(&image);
        let device = FileDevice::create(&image, size).map_err(io::Error::other)?;
        make(&device, &MkfsOptions::default()).map_err(io::Error::other)?;
        Ok(Self {
            image,
            fs: None,
            bursts: 0,
            random: 11,
        })
    }

    fn fs(&mut self) -> &Filesystem {
        let image = &self.image;
        self.fs.get_or_insert_with(|| {
            let device = FileDevice::open(image, Access::ReadWrite).unwrap();
            let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
            Filesystem::new(Arc::new(store), TreeId::FS, Options::default())
        })
    }

    /// Forgets everything that is in memory.
    fn reopen(&mut self) {
        if let Some(fs) = self.fs.take() {
            fs.sync_all().unwrap();
        }
    }

    fn chance(&mut self, below: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) as usize % below
    }

    /// Microseconds of an operation in the best of some bursts. Each burst
    /// includes the commit that follows.
    fn step(&mut self, count: usize, mut burst: impl FnMut(&mut Self, usize)) -> f64 {
        let mut best = f64::INFINITY;
        for _ in 0..BURSTS {
            self.bursts += 1;
            let number = self.bursts;
            let start = Instant::now();
            burst(self, number);
            self.fs().sync_all().unwrap();
            best = best.min(start.elapsed().as_secs_f64() * 1e6 / count as f64);
        }
        best
    }

    /// What users do most, in a directory of its own. `files` finds a file that
    /// was there before, by its number below `old`.
    fn common(&mut self, old: usize, file: impl Fn(usize) -> (String, String)) -> Costs {
        self.reopen();
        self.fs().sync_all().unwrap();
        let make = |ground: &mut Self, number: usize, data: &[u8]| {
            let dir = directory(ground.fs(), &format!("burst{number}"));
            for n in 0..BURST {
                new_file(ground.fs(), dir, &format!("f{n}"), data);
            }
        };
        let mut costs = Costs::new();
        costs.push(("create", self.step(BURST, |g, n| make(g, n, &[]))));
        let first = self.bursts + 1;
        let data = vec![7; SECTOR as usize];
        costs.push(("create + 4 KiB", self.step(BURST, |g, n| make(g, n, &data))));
        let see = |fs: &Filesystem, n: usize| {
            let (dir, name) = file(n);
            let dir = match dir.is_empty() {
                true => fs.root(),
                false => fs.lookup(fs.root(), dir.as_bytes()).unwrap().inode,
            };
            let found = fs.lookup(dir, name.as_bytes()).unwrap().inode;
            fs.attributes(found).unwrap();
        };
        // How fast leaves are read the first time is not measured.
        (0..old).for_each(|n| see(self.fs(), n));
        let look = self.step(BURST, |ground, _| {
            for _ in 0..BURST {
                let n = ground.chance(old);
                see(ground.fs(), n);
            }
        });
        costs.push(("lookup + stat of any", look));
        let mut dir = first;
        let unlink = self.step(BURST, |ground, _| {
            let fs = ground.fs();
            let id = directory(fs, &format!("burst{dir}"));
            for n in 0..BURST {
                fs.unlink(id, format!("f{n}").as_bytes()).unwrap();
            }
            dir += 1;
        });
        costs.push(("unlink", unlink));
        costs
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.take() {
            fs.store().abandon();
        }
        let _ = fs::remove_file(&self.image);
    }
}

fn directory(fs: &Filesystem, name: &str) -> InodeId {
    match fs.lookup(fs.root(), name.as_bytes()) {
        Ok(found) => found.inode,
        Err(_) => {
            let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
            fs.create(fs.root(), name.as_bytes(), &new).unwrap().id
        }
    }
}

fn new_file(fs: &Filesystem, dir: InodeId, name: &str, data: &[u8]) -> Arc<Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = fs.create(dir, name.as_bytes(), &new).unwrap();
    if !data.is_empty() {
        assert_eq!(fs.write(&inode, 0, data).unwrap(), data.len());
    }
    inode
}

/// Files in directories of [`PER_DIR`].
fn files(ground: &mut Ground, made: usize, goal: usize) -> Costs {
    for n in made..goal {
        let fs = ground.fs();
        let dir = directory(fs, &format!("d{}", n / PER_DIR));
        new_file(fs, dir, &format!("old{n}"), &[]);
    }
    ground.common(goal, |n| (format!("d{}", n / PER_DIR), format!("old{n}")))
}

/// Names in one directory.
fn names(ground: &mut Ground, made: usize, goal: usize) -> Costs {
    let fs = ground.fs();
    let dir = directory(fs, "large");
    for n in made..goal {
        new_file(fs, dir, &format!("old{n}"), &[]);
    }
    ground.reopen();
    let mut costs = Costs::new();
    let inside = |ground: &mut Ground, number: usize| {
        let fs = ground.fs();
        let dir = directory(fs, "large");
        for n in 0..BURST {
            new_file(fs, dir, &format!("new{number}-{n}"), &[]);
        }
    };
    let first = ground.bursts + 1;
    costs.push(("create in it", ground.step(BURST, inside)));
    let see = |fs: &Filesystem, n: usize| {
        let name = format!("old{n}");
        let found = fs.lookup(directory(fs, "large"), name.as_bytes()).unwrap();
        fs.attributes(found.inode).unwrap();
    };
    (0..goal).for_each(|n| see(ground.fs(), n));
    let look = ground.step(BURST, |ground, _| {
        for _ in 0..BURST {
            let n = ground.chance(goal);
            see(ground.fs(), n);
        }
    });
    costs.push(("lookup + stat in it", look));
    let list = ground.step(goal, |ground, _| {
        let fs = ground.fs();
        let dir = directory(fs, "large");
        let mut seen = 0;
        let visit = &mut |_| {
            seen += 1;
            true
        };
        fs.read_dir(dir, 0, visit).unwrap();
        assert!(seen >= goal);
    });
    costs.push(("list an entry of it", list));
    let mut burst = first;
    let unlink = ground.step(BURST, |ground, _| {
        let fs = ground.fs();
        let dir = directory(fs, "large");
        for n in 0..BURST {
            fs.unlink(dir, format!("new{burst}-{n}").as_bytes())
                .unwrap();
        }
        burst += 1;
    });
    costs.push(("unlink in it", unlink));
    costs
}

/// Snapshots of a subvolume that changes between them.
fn snapshots(ground: &mut Ground, made: usize, goal: usize) -> Costs {
    const FILES: usize = 20_000;
    let old = |n: usize| (format!("d{}", n / PER_DIR), format!("old{n}"));
    let change = |ground: &mut Ground, count: usize| {
        for _ in 0..count {
            let (dir, name) = old(ground.chance(FILES));
            let fs = ground.fs();
            let dir = fs.lookup(fs.root(), dir.as_bytes()).unwrap().inode;
            let found = fs.lookup(dir, name.as_bytes()).unwrap().inode;
            let inode = fs.inode(found).unwrap();
            fs.write(&inode, 0, &[9; SECTOR as usize]).unwrap();
        }
    };
    if made == 0 {
        for n in 0..FILES {
            let (dir, name) = old(n);
            let fs = ground.fs();
            let dir = directory(fs, &dir);
            new_file(fs, dir, &name, &[1; SECTOR as usize]);
        }
    }
    let snapshot = |ground: &mut Ground, name: String| {
        let fs = ground.fs();
        let dir = directory(fs, "snapshots");
        fs.snapshot(TreeId::FS, dir, name.as_bytes(), store::Access::ReadOnly)
            .unwrap()
    };
    for n in made..goal {
        snapshot(ground, format!("s{n}"));
        change(ground, 20);
    }
    let mut costs = Costs::new();
    let rewrite = ground.step(BURST, |ground, number| {
        // Changes after a snapshot copy what the snapshot shares.
        snapshot(ground, format!("burst{number}"));
        change(ground, BURST);
    });
    costs.push(("snapshot, rewrite 4 KiB of any", rewrite));
    let mut last = ground.bursts;
    let delete = ground.step(1, |ground, _| {
        let fs = ground.fs();
        let dir = directory(fs, "snapshots");
        fs.delete_subvolume(dir, format!("burst{last}").as_bytes())
            .unwrap();
        fs.clean_all().unwrap();
        last -= 1;
    });
    costs.push(("delete a snapshot", delete));
    costs.extend(ground.common(FILES, old));
    costs
}

/// File extents of one file.
fn extents(ground: &mut Ground, made: usize, goal: usize) -> Costs {
    let fs = ground.fs();
    let inode = match fs.lookup(fs.root(), b"extents") {
        Ok(found) => fs.inode(found.inode).unwrap(),
        Err(_) => new_file(fs, fs.root(), "extents", &[]),
    };
    let data = [3; SECTOR as usize];
    // Every second sector, so that none of them joins another.
    for n in made..goal {
        fs.write(&inode, n as u64 * 2 * SECTOR, &data).unwrap();
    }
    drop(inode);
    ground.reopen();
    let open = |ground: &mut Ground| {
        let fs = ground.fs();
        let found = fs.lookup(fs.root(), b"extents").unwrap().inode;
        fs.inode(found).unwrap()
    };
    let mut costs = Costs::new();
    let rewrite = ground.step(BURST, |ground, _| {
        let inode = open(ground);
        for _ in 0..BURST {
            let at = ground.chance(goal) as u64 * 2 * SECTOR;
            ground.fs().write(&inode, at, &data).unwrap();
        }
    });
    costs.push(("rewrite 4 KiB of it", rewrite));
    let read = ground.step(BURST, |ground, _| {
        let inode = open(ground);
        let mut buffer = [0; SECTOR as usize];
        for _ in 0..BURST {
            let at = ground.chance(goal) as u64 * 2 * SECTOR;
            ground.fs().read(&inode, at, &mut buffer).unwrap();
        }
    });
    costs.push(("read 4 KiB of it", read));
    const SYNCS: usize = 100;
    let fsync = ground.step(SYNCS, |ground, _| {
        let inode = open(ground);
        for _ in 0..SYNCS {
            let at = ground.chance(goal) as u64 * 2 * SECTOR;
            ground.fs().write(&inode, at, &data).unwrap();
            ground.fs().fsync(&inode).unwrap();
        }
    });
    costs.push(("rewrite 4 KiB of it + fsync", fsync));
    costs
}

/// Block groups, made by preallocated space to which nobody writes.
fn block_groups(ground: &mut Ground, made: usize, goal: usize) -> Costs {
    const GROUP: u64 = 1 << 30;
    const PER_FILE: usize = 100;
    for n in made / PER_FILE..goal / PER_FILE {
        let fs = ground.fs();
        let inode = new_file(fs, fs.root(), &format!("space{n}"), &[]);
        let mode = FallocateMode::Allocate;
        fs.fallocate(&inode, mode, 0, PER_FILE as u64 * GROUP)
            .unwrap();
    }
    let files = goal / PER_FILE;
    let mut costs = Costs::new();
    ground.reopen();
    let start = Instant::now();
    ground.fs();
    let opened = start.elapsed().as_secs_f64() * 1e6;
    costs.push(("open (for each block group)", opened / goal as f64));
    costs.extend(ground.common(files, |n| (String::new(), format!("space{n}"))));
    costs
}

/// Free space: 95 % of a volume that was full of small files, of which every
/// twentieth was removed. `made` is 0 for the same files on a volume with much
/// space.
fn fragmented(base: &Path, files: usize, room: u64) -> io::Result<Costs> {
    let mut ground = Ground::new(base, room)?;
    let data = vec![5; 4 * SECTOR as usize];
    for n in 0..files {
        let fs = ground.fs();
        let dir = directory(fs, &format!("d{}", n / PER_DIR));
        new_file(fs, dir, &format!("old{n}"), &data);
    }
    ground.fs().sync_all().unwrap();
    for n in (0..files).step_by(20) {
        let fs = ground.fs();
        let dir = directory(fs, &format!("d{}", n / PER_DIR));
        fs.unlink(dir, format!("old{n}").as_bytes()).unwrap();
    }
    ground.reopen();
    let kept = |n: usize| n / 20 * 20 + 1;
    let place = |n: usize| (format!("d{}", kept(n) / PER_DIR), format!("old{}", kept(n)));
    let mut costs = ground.common(files - 20, place);
    const MIB: usize = 16;
    let large = vec![1; 1 << 20];
    let write = ground.step(MIB, |ground, number| {
        let fs = ground.fs();
        let inode = new_file(fs, fs.root(), &format!("large{number}"), &[]);
        for n in 0..MIB {
            fs.write(&inode, (n as u64) << 20, &large).unwrap();
        }
        let name = format!("large{number}");
        drop(inode);
        fs.sync_all().unwrap();
        fs.unlink(fs.root(), name.as_bytes()).unwrap();
    });
    costs.push(("write 1 MiB, remove it", write));
    Ok(costs)
}

fn print(what: &str, sizes: &[String], all: &[Costs]) {
    let head: String = sizes.iter().map(|size| format!(" {size} |")).collect();
    println!("\n| {what}: µs of an operation |{head} ratio |");
    println!("|---|{}---|", "---|".repeat(sizes.len()));
    for (row, (name, first)) in all[0].iter().enumerate() {
        let cells: String = all
            .iter()
            .map(|costs| format!(" {:.2} |", costs[row].1))
            .collect();
        let last = all[all.len() - 1][row].1;
        println!("| {name} |{cells} {:.2} |", last / first);
    }
}

/// One way to grow.
struct Growth {
    name: &'static str,
    what: &'static str,
    sizes: [usize; 2],
    room: u64,
    measure: fn(&mut Ground, usize, usize) -> Costs,
}

const GROWTHS: [Growth; 5] = [
    Growth {
        name: "files",
        what: "files of the volume",
        sizes: [100_000, 1_000_000],
        room: 1 << 40,
        measure: files,
    },
    Growth {
        name: "names",
        what: "names in one directory",
        sizes: [200_000, 2_000_000],
        room: 1 << 40,
        measure: names,
    },
    Growth {
        name: "snapshots",
        what: "snapshots",
        sizes: [100, 1000],
        room: 1 << 40,
        measure: snapshots,
    },
    Growth {
        name: "extents",
        what: "file extents of one file",
        sizes: [100_000, 1_000_000],
        room: 1 << 40,
        measure: extents,
    },
    Growth {
        name: "groups",
        what: "block groups",
        sizes: [1000, 10_000],
        room: 11 << 40,
        measure: block_groups,
    },
];

/// Measures everything that `only` names, or everything. `full` adds ten
/// million files.
pub fn measure(base: &Path, words: &[String]) -> io::Result<()> {
    let wanted = |name: &str| {
        let names: Vec<&String> = words.iter().filter(|word| *word != "full").collect();
        names.is_empty() || names.iter().any(|word| *word == name)
    };
    let full = words.iter().any(|word| word == "full");
    for growth in GROWTHS.iter().filter(|growth| wanted(growth.name)) {
        let mut sizes = growth.sizes.to_vec();
        if full && growth.name == "files" {
            sizes.push(10_000_000);
        }
        let mut ground = Ground::new(base, growth.room)?;
        let mut made = 0;
        let mut all = Vec::new();
        for goal in &sizes {
            all.push((growth.measure)(&mut ground, made, *goal));
            made = *goal;
        }
        let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
        print(growth.what, &sizes, &all);
    }
    if wanted("fragmented") {
        const FILES: usize = 100_000;
        // Room for the files and 2 % more; the other volume is mostly empty.
        let data = FILES as u64 * 4 * SECTOR;
        let all = [
            fragmented(base, FILES, 1 << 40)?,
            fragmented(base, FILES, data + data / 4)?,
        ];
        let sizes = ["much".to_owned(), "in pieces of 16 KiB".to_owned()];
        print("free space", &sizes, &all);
    }
    Ok(())
}
