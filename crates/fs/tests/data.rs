//! File data compared with a vector, over remounts, for every way to keep them.

use butterfs_device::{Access, FileDevice};
use butterfs_format::TreeId;
use butterfs_format::compression::Algorithm;
use butterfs_fs::file::{FallocateMode, SeekTarget};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::options::{Compress, DataCow};
use butterfs_fs::{Filesystem, Inode, Options};
use butterfs_store::{OpenOptions, Store};
use butterfs_testkit::judge::{judge_image, unmount};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {text}");
    text
}

fn open(path: &Path, options: &Options) -> Filesystem {
    let device = FileDevice::open(path, Access::ReadWrite).unwrap();
    let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
    Filesystem::new(Arc::new(store), TreeId::FS, options.clone())
}

fn check(path: &Path) {
    judge_image(path, "btrfs check");
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn data(&mut self, length: usize) -> Vec<u8> {
        let kind = self.below(3);
        (0..length)
            .map(|at| match kind {
                0 => self.below(256) as u8,
                1 => (at / 100) as u8,
                _ if at % 16 < 8 => self.below(256) as u8,
                _ => 7,
            })
            .collect()
    }
}

const FILES: usize = 4;

fn offset(random: &mut Random, size: usize) -> u64 {
    match random.below(4) {
        0 => random.below(64) * 4096,
        1 => size as u64,
        2 => random.below(5000),
        _ => random.below(400_000),
    }
}

fn length(random: &mut Random) -> usize {
    (match random.below(5) {
        0 => random.below(100),
        1 => random.below(5000),
        2 => 4096 * (1 + random.below(40)),
        3 => random.below(300_000),
        _ => 1 + random.below(2000),
    }) as usize
}

fn put(model: &mut Vec<u8>, at: usize, data: &[u8]) {
    if model.len() < at + data.len() {
        model.resize(at + data.len(), 0);
    }
    model[at..at + data.len()].copy_from_slice(data);
}

fn step(fs: &Filesystem, inodes: &[Arc<Inode>], models: &mut [Vec<u8>], random: &mut Random) {
    let index = random.below(FILES as u64) as usize;
    let inode = &inodes[index];
    let at = offset(random, models[index].len());
    let count = length(random);
    match random.below(14) {
        0..=4 => {
            let data = random.data(count);
            fs.write(inode, at, &data).unwrap();
            if !data.is_empty() {
                put(&mut models[index], at as usize, &data);
            }
        }
        5 => {
            let size = random.below(500_000) as usize;
            fs.truncate(inode, size as u64).unwrap();
            models[index].resize(size, 0);
        }
        6 => {
            let size = random.below(3000) as usize;
            fs.truncate(inode, size as u64).unwrap();
            models[index].resize(size, 0);
        }
        7 if count > 0 => {
            fs.fallocate(inode, FallocateMode::PunchHole, at, count as u64)
                .unwrap();
            let end = models[index].len().min(at as usize + count);
            if (at as usize) < end {
                models[index][at as usize..end].fill(0);
            }
        }
        8 if count > 0 => {
            let keep = random.below(2) == 0;
            let mode = if keep {
                FallocateMode::AllocateKeepSize
            } else {
                FallocateMode::Allocate
            };
            fs.fallocate(inode, mode, at, count as u64).unwrap();
            if !keep && models[index].len() < at as usize + count {
                models[index].resize(at as usize + count, 0);
            }
        }
        9 if count > 0 => {
            fs.fallocate(inode, FallocateMode::ZeroRange, at, count as u64)
                .unwrap();
            put(&mut models[index], at as usize, &vec![0; count]);
        }
        10 => {
            let other = random.below(FILES as u64) as usize;
            let from = random.below(40) * 4096;
            let to = at / 4096 * 4096;
            let wanted = (count as u64).next_multiple_of(4096);
            let have = (models[other].len() as u64)
                .saturating_sub(from)
                .min(wanted);
            let overlap = other == index && from < to + have && to < from + have;
            if !overlap {
                let done = fs
                    .copy_range((&inodes[other], from), (inode, to), wanted)
                    .unwrap();
                assert_eq!(done, have);
                if have > 0 {
                    let end = (from + have) as usize;
                    let data = models[other][from as usize..end].to_vec();
                    put(&mut models[index], to as usize, &data);
                }
            }
        }
        11 => fs.flush_inode(inode).unwrap(),
        12 => fs.sync_all().unwrap(),
        _ => {
            let mut buffer = vec![9; count + 1];
            let read = fs.read(inode, at, &mut buffer).unwrap();
            let model = models[index].get(at as usize..).unwrap_or_default();
            assert_eq!(read, model.len().min(count + 1));
            assert!(buffer[..read] == model[..read], "read at {at}");
            if let Ok(data) = fs.seek(inode, SeekTarget::Data, at) {
                let hole = &models[index][at as usize..data as usize];
                assert!(hole.iter().all(|byte| *byte == 0));
            }
        }
    }
}

fn compare(fs: &Filesystem, inodes: &[Arc<Inode>], models: &[Vec<u8>]) {
    for (inode, model) in inodes.iter().zip(models) {
        let mut buffer = vec![0; model.len() + 10];
        let read = fs.read(inode, 0, &mut buffer).unwrap();
        assert_eq!(read, model.len());
        if let Some(at) = (0..read).find(|at| buffer[*at] != model[*at]) {
            panic!("inode {:?} differs at {at}", inode.id);
        }
    }
}

fn exercise(seed: u64, mkfs: &[&str], options: &Options, steps: usize) {
    let mut dir = tempfile::tempdir_in("/dev/shm").unwrap();
    // To look at what a failure left: BUTTERFS_KEEP=1.
    dir.disable_cleanup(std::env::var_os("BUTTERFS_KEEP").is_some());
    let path = dir.path().join("v.img");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(600 << 20).unwrap();
    let image = path.to_str().unwrap();
    run("mkfs.btrfs", &[mkfs, &["-q", image]].concat());
    let mut random = Random(seed);
    let mut models = vec![Vec::new(); FILES];
    let mut fs = open(&path, options);
    let names: Vec<String> = (0..FILES).map(|n| format!("file{n}")).collect();
    for name in &names {
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        fs.create(fs.root(), name.as_bytes(), &new).unwrap();
    }
    for round in 0..4 {
        let inodes: Vec<_> = names
            .iter()
            .map(|name| fs.lookup(fs.root(), name.as_bytes()).unwrap().inode)
            .map(|id| fs.inode(id).unwrap())
            .collect();
        for _ in 0..steps {
            step(&fs, &inodes, &mut models, &mut random);
        }
        compare(&fs, &inodes, &models);
        fs.sync_all().unwrap();
        drop(inodes);
        drop(fs);
        check(&path);
        let mount = dir.path().join("mnt");
        std::fs::create_dir_all(&mount).unwrap();
        let mount = mount.to_str().unwrap();
        run("mount", &["-o", "loop,ro", image, mount]);
        let contents: Vec<_> = names
            .iter()
            .map(|name| std::fs::read(Path::new(mount).join(name)).unwrap())
            .collect();
        unmount(Path::new(mount)).unwrap();
        for ((name, model), content) in names.iter().zip(&models).zip(&contents) {
            assert_eq!(content.len(), model.len(), "round {round}: size of {name}");
            if let Some(at) = (0..model.len()).find(|at| content[*at] != model[*at]) {
                panic!("round {round}: the kernel reads {name} differently at {at}");
            }
        }
        fs = open(&path, options);
        let inodes: Vec<_> = names
            .iter()
            .map(|name| fs.lookup(fs.root(), name.as_bytes()).unwrap().inode)
            .map(|id| fs.inode(id).unwrap())
            .collect();
        compare(&fs, &inodes, &models);
    }
}

#[test]
fn all_ways_to_keep_data() {
    let level = |a: Algorithm| (a, a.default_level());
    let with = |compress, data_cow| Options {
        compress,
        data_cow,
        ..Options::default()
    };
    let force = |a: Algorithm| Compress::Force(level(a).0, level(a).1);
    let ways: [(&str, &[&str], Options); 8] = [
        ("plain", &[], Options::default()),
        ("zlib", &[], with(force(Algorithm::Zlib), DataCow::On)),
        (
            "lzo",
            &["--csum", "xxhash"],
            with(force(Algorithm::Lzo), DataCow::On),
        ),
        (
            "zstd",
            &["-n", "4096"],
            with(force(Algorithm::Zstd), DataCow::On),
        ),
        (
            "zstd, tried",
            &["--csum", "sha256", "-n", "65536"],
            with(
                Compress::Try(Algorithm::Zstd, level(Algorithm::Zstd).1),
                DataCow::On,
            ),
        ),
        ("nodatacow", &[], with(Compress::Off, DataCow::Off)),
        (
            "nodatasum",
            &["--csum", "blake2"],
            with(Compress::Off, DataCow::NoSum),
        ),
        (
            "holes",
            &["-O", "^no-holes", "-d", "dup"],
            Options::default(),
        ),
    ];
    // More rounds for a soak: BUTTERFS_SEEDS=first..last.
    let seeds = std::env::var("BUTTERFS_SEEDS").unwrap_or_else(|_| "0..1".into());
    let (first, last) = seeds.split_once("..").expect("first..last");
    let seeds = first.parse::<u64>().unwrap()..last.parse::<u64>().unwrap();
    for seed in seeds {
        for (index, (name, mkfs, options)) in ways.iter().enumerate() {
            let seed = seed * 100 + index as u64;
            eprintln!("{name}, seed {seed}");
            exercise(seed, mkfs, options, 150);
        }
    }
}
