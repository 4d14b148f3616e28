//! Nodes of a volume with snapshots, changed at random and sealed again.
//! Looking into subvolumes gives an answer or an error, never a panic and never
//! an endless loop.

mod common;

use butterfs_format::{ChecksumType, Generation, InodeId, InodeNumber, TreeId};
use butterfs_fs::FsError;
use butterfs_fs::subvolume::diff::{Compared, diff};
use butterfs_fs::subvolume::du::{Limits, SpaceSharing};
use butterfs_fs::subvolume::find_new::find_new;
use butterfs_fs::subvolume::history::{Subject, history};
use butterfs_fs::subvolume::list::Subvolumes;
use butterfs_store::{Engine, LogPolicy, OpenOptions, Store};
use common::{KernelMount, Random, mkfs, run};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODE: usize = 4096;

fn open(image: &Path) -> Option<Store> {
    let device =
        butterfs_device::FileDevice::open(image, butterfs_device::Access::ReadOnly).unwrap();
    let options = OpenOptions {
        access: butterfs_device::Access::ReadOnly,
        log: LogPolicy::Ignore,
        ..OpenOptions::default()
    };
    Store::open(Arc::new(device), &options).ok()
}

/// Everything that can be asked. Returns how many questions had an answer.
fn ask(engine: &Engine) -> u32 {
    let mut answers = 0;
    if let Ok(all) = Subvolumes::load(engine) {
        answers += 1;
        for info in all.iter() {
            assert!(all.snapshots(info).len() <= all.len());
            assert!(all.family(info).len() <= all.len());
        }
    }
    for limits in [
        Limits::default(),
        Limits {
            extents: 3,
            runs: 2000,
        },
    ] {
        let sharing = SpaceSharing::compute(engine, &limits, &mut |_| ControlFlow::Continue(()));
        if let Ok(sharing) = sharing {
            answers += 1;
            let total = sharing.total().sum();
            let set = BTreeSet::from([TreeId(257), TreeId(258)]);
            let freed = sharing.freed_by(&set).unwrap_or_default();
            assert!(freed.sum() <= total && sharing.being_freed().sum() <= total);
            for row in sharing.subvolumes() {
                assert!(row.exclusive.sum() <= row.total.sum() && row.total.sum() <= total);
            }
        }
    }
    for (old, new) in [(256, 257), (257, 259), (258, 256), (5, 256), (256, 256)] {
        let compared = Compared {
            old: TreeId(old),
            new: TreeId(new),
        };
        answers += u32::from(diff::<FsError>(engine, compared, &mut |_| Ok(())).is_ok());
    }
    for tree in [5, 256, 258] {
        let found = find_new::<FsError>(engine, TreeId(tree), Generation(8), &mut |_| Ok(()));
        answers += u32::from(found.is_ok());
        for inode in [256, 257, 300] {
            let subject = Subject {
                inode: InodeId {
                    tree: TreeId(tree),
                    number: InodeNumber(inode),
                },
                path: b"d/f7",
            };
            answers += u32::from(history(engine, subject).is_ok());
        }
    }
    answers
}

fn fill(mount: &Path, random: &mut Random) {
    let base = mount.join("base");
    run("btrfs", &["subvolume", "create", base.to_str().unwrap()]);
    fs::create_dir(base.join("d")).unwrap();
    for at in 0..120 {
        let size = random.below(9000) as usize;
        fs::write(base.join(format!("d/f{at}")), random.data(size)).unwrap();
        if at % 10 == 0 {
            let from = base.join(format!("d/f{at}"));
            fs::hard_link(&from, base.join(format!("link{at}"))).unwrap();
        }
    }
    for at in 0..4 {
        let target = mount.join(format!("s{at}"));
        let paths = [base.to_str().unwrap(), target.to_str().unwrap()];
        run("btrfs", &["subvolume", "snapshot", paths[0], paths[1]]);
        for _ in 0..10 {
            let path = base.join(format!("d/f{}", random.below(120)));
            fs::write(path, random.data(6000)).unwrap();
        }
    }
}

/// Where the nodes lie: blocks with the volume's identity in a header.
fn nodes(bytes: &[u8], fsid: &[u8]) -> Vec<usize> {
    (0x20000..bytes.len() - NODE)
        .step_by(NODE)
        .filter(|at| bytes[at + 32..at + 48] == *fsid && bytes[at + 64..at + 72] != *b"_BHRfS_M")
        .collect()
}

#[test]
fn damage_is_an_error_and_no_more() {
    if !common::is_root() {
        return;
    }
    let mut random = Random(11);
    let (dir, image) = mkfs(128 << 20, &["-n", "4096", "-m", "single"]);
    let mount = KernelMount::new(&image, dir.path(), "noatime");
    fill(mount.path(), &mut random);
    drop(mount);
    let bytes = fs::read(&image).unwrap();
    let fsid = &bytes[0x10020..0x10030];
    let nodes = nodes(&bytes, fsid);
    assert!(nodes.len() > 50);
    let sound = open(&image).map(|store| ask(&store.read())).unwrap();
    assert!(sound >= 15, "{sound}");
    let file = File::options().write(true).open(&image).unwrap();
    let seeds = std::env::var("BUTTERFS_SEEDS").map_or(1500, |text| text.parse().unwrap());
    let mut refused = 0;
    for seed in 0..seeds {
        let mut random = Random(seed);
        let at = nodes[random.below(nodes.len() as u64) as usize];
        let mut node = bytes[at..at + NODE].to_vec();
        for _ in 0..=random.below(4) {
            // Headers and keys are at the front, items at the back.
            let place = match random.below(3) {
                0 => 32 + random.below(80),
                1 => 101 + random.below(700),
                _ => 101 + random.below(NODE as u64 - 101),
            } as usize;
            node[place] = match random.below(4) {
                0 => 0,
                1 => 0xff,
                2 => node[place].wrapping_add(1),
                _ => random.below(256) as u8,
            };
        }
        ChecksumType::Crc32c.seal_block(&mut node);
        file.write_all_at(&node, at as u64).unwrap();
        let begun = Instant::now();
        let answers = open(&image).map_or(0, |store| ask(&store.read()));
        refused += u32::from(answers < sound);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(10), "seed {seed}: {took:?}");
        file.write_all_at(&bytes[at..at + NODE], at as u64).unwrap();
    }
    println!("{refused} of {seeds} volumes had questions without an answer");
    assert!(refused > 0, "no damage was ever noticed");
}
