//! One volume with hundreds of snapshots and reflinks between them, changed by
//! the library and the kernel in turns, with balances and deletions by both.
//! After each turn the content is that of the model, and the checks find
//! nothing.
//!
//! `BUTTERFS_SEEDS=first..last` runs other seeds, `BUTTERFS_TURNS` more turns.

#[path = "round_trips/fields.rs"]
mod fields;
#[path = "round_trips/record.rs"]
mod record;
#[path = "round_trips/root_bytes.rs"]
mod root_bytes;
#[path = "round_trips/space.rs"]
mod space;
mod support;

use butterfs_admin::balance;
use butterfs_check::{DataChecksums, NoProgress, Options, check};
use butterfs_device::FileDevice;
use butterfs_testkit::judge::{self, Access, KernelMount, Mode, btrfs_check, scratch_dir};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::op::{EndOfFile, OpPath, SnapshotAccess, Span};
use butterfs_testkit::{Capability, Manifest, Op, Oracle, Random, differential};
use rustix::io::Errno;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use support::{LibraryTree, apply_to_library, mkfs};

const SIZE: u64 = 3 << 29;
/// Snapshots that are made in a turn, and the most that there may be.
const PER_TURN: u64 = 40;
const ALIVE_MAX: usize = 170;
const FILES: u64 = 14;
const SECTOR: u64 = 4096;

fn path(text: String) -> OpPath {
    OpPath(text.into_bytes())
}

/// What happens to the volume.
struct Script {
    random: Random,
    alive: Vec<(OpPath, SnapshotAccess)>,
    made: u64,
}

impl Script {
    fn file(&mut self, below: &OpPath) -> OpPath {
        let mut text = below.0.clone();
        text.extend(format!("/d{}/f", self.random.below(3)).into_bytes());
        text.extend(self.random.below(FILES).to_string().into_bytes());
        OpPath(text)
    }

    /// A subvolume that can be changed: mostly the one from which all others
    /// come.
    fn target(&mut self) -> OpPath {
        let writable: Vec<_> = self
            .alive
            .iter()
            .filter(|(_, access)| *access == SnapshotAccess::Writable)
            .map(|(path, _)| path.clone())
            .collect();
        if writable.is_empty() || self.random.one_in(2) {
            return path("work".to_owned());
        }
        self.random.pick(&writable).clone()
    }

    fn span(&mut self) -> Span {
        Span {
            offset: self.random.below(10) * SECTOR,
            length: (1 + self.random.below(4)) * SECTOR,
        }
    }

    fn change(&mut self) -> Op {
        let target = self.target();
        let to = self.file(&target);
        let span = self.span();
        match self.random.below(12) {
            0 | 1 => Op::Create {
                path: to,
                mode: 0o644,
            },
            2 => Op::Unlink { path: to },
            3 => Op::Rename {
                from: to,
                to: self.file(&target),
                how: butterfs_testkit::op::RenameHow::Replace,
            },
            4 => Op::Link {
                from: to,
                to: self.file(&target),
            },
            5 => Op::Truncate {
                path: to,
                size: self.random.below(50_000),
            },
            6 => Op::Allocate {
                path: to,
                span,
                end: EndOfFile::Extend,
            },
            7 | 8 => {
                let mut from = target;
                if !self.alive.is_empty() {
                    from = self.random.pick(&self.alive).0.clone();
                }
                Op::Clone {
                    from: self.file(&from),
                    span,
                    to,
                    to_offset: self.random.below(10) * SECTOR,
                }
            }
            _ => Op::Write {
                path: to,
                span: Span {
                    length: span.length - self.random.below(SECTOR),
                    ..span
                },
                seed: self.random.bits(),
            },
        }
    }

    /// A turn of one side.
    fn turn(&mut self, apply: &mut dyn FnMut(&Op)) {
        for _ in 0..PER_TURN {
            for _ in 0..self.random.below(12) {
                apply(&self.change());
            }
            let to = path(format!("s{}", self.made));
            self.made += 1;
            let access = if self.random.one_in(4) {
                SnapshotAccess::Writable
            } else {
                SnapshotAccess::ReadOnly
            };
            let from = self.target();
            apply(&Op::Snapshot {
                from,
                to: to.clone(),
                access,
            });
            self.alive.push((to, access));
            while self.alive.len() > ALIVE_MAX || self.random.one_in(3) && self.alive.len() > 9 {
                let which = self.random.below(self.alive.len() as u64) as usize;
                let (path, _) = self.alive.swap_remove(which);
                apply(&Op::DeleteSubvolume { path });
            }
            if self.random.one_in(15) {
                apply(&Op::Sync);
            }
        }
    }
}

/// Does an operation on the model and on one side.
fn both(oracle: &mut Oracle, op: &Op, found: Result<(), Errno>, context: &str) {
    assert_eq!(found, oracle.apply(op), "{context}: {op:?}");
}

fn judge_volume(image: &Path, context: &str) {
    let report = report_of(image);
    assert!(report.is_exact(), "{context}: {:#?}", report.faults);
    btrfs_check(image, Mode::Original, judge::DataChecksums::Verify).assert_clean(context);
}

/// The same of a volume that the kernel wrote last. It leaves the number of nodes of
/// the extent tree one too small at times.
fn judge_theirs(image: &Path, context: &str) {
    let report = report_of(image);
    assert!(report.is_clean(), "{context}: {:#?}", report.faults);
    btrfs_check(image, Mode::Original, judge::DataChecksums::Verify).assert_clean(context);
}

fn report_of(image: &Path) -> butterfs_check::Report {
    let device = FileDevice::open(image, butterfs_device::Access::ReadOnly).expect("it opens");
    let options = Options {
        data: DataChecksums::Verify,
        threads: 2,
        ..Options::default()
    };
    check(vec![Arc::new(device)], &options, &NoProgress).expect("it can be checked")
}

fn balance(mount: &KernelMount) {
    let out = Command::new("btrfs")
        .args(["balance", "start", "--full-balance"])
        .arg(mount.path())
        .output()
        .expect("btrfs runs");
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
}

/// A full balance by the library.
fn balance_here(tree: &LibraryTree, context: &str) {
    let files = tree.files();
    files.clean_all().expect("deleted subvolumes are freed");
    let ended = balance::start(
        files.store(),
        &balance::Filters::all(),
        balance::Redundancy::Kept,
        &mut |_| None,
    );
    let (progress, _) = ended.unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(progress.without_space, 0, "{context}");
}

fn run(seed: u64, turns: u64) {
    let dir = scratch_dir();
    let image = dir.path().join("v.img");
    let features = ["", "^block-group-tree"][(seed % 2) as usize];
    let features = format!("csum=crc32c,{features}");
    mkfs(&image, SIZE, 4096, features.trim_end_matches(','));
    let mut oracle = Oracle::with_node_size(4096);
    let mut script = Script {
        random: Random::new(seed),
        alive: Vec::new(),
        made: 0,
    };
    for turn in 0..turns {
        let context = format!("seed {seed}, turn {turn}");
        if turn % 2 == 0 {
            let tree = LibraryTree::mount(&image, "");
            let mut apply =
                |op: &Op| both(&mut oracle, op, apply_to_library(op, &tree.0), &context);
            if turn == 0 {
                apply(&Op::Subvolume {
                    path: path("work".to_owned()),
                    mode: 0o755,
                });
                for number in 0..3 {
                    apply(&Op::Mkdir {
                        path: path(format!("work/d{number}")),
                        mode: 0o755,
                    });
                }
            }
            if turn % 4 == 2 {
                balance_here(&tree, &context);
            }
            script.turn(&mut apply);
            if turn % 4 == 0 {
                balance_here(&tree, &context);
            }
            let expected = Manifest::of(&oracle).unwrap();
            let found = Manifest::of(&tree).expect("a tree that can be walked");
            found.assert_same(&expected, &context);
            tree.0.close().expect("everything is on the device");
        } else {
            let mut mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
            let root = mount.path().to_owned();
            let expected = Manifest::of(&oracle).unwrap();
            let look = || Manifest::of(&MountedTree::new(&root)).unwrap();
            look().assert_same(&expected, &format!("{context}, what the library left"));
            if turn % 4 == 3 {
                balance(&mount);
            }
            let mut apply = |op: &Op| both(&mut oracle, op, apply_to_path(op, &root), &context);
            script.turn(&mut apply);
            if turn % 4 == 1 {
                balance(&mount);
            }
            let expected = Manifest::of(&oracle).unwrap();
            look().assert_same(&expected, &context);
            assert_eq!(mount.complaints(), Vec::<String>::new(), "{context}");
            mount.unmount().unwrap();
        }
        match turn % 2 {
            0 => judge_volume(&image, &context),
            _ => judge_theirs(&image, &context),
        }
    }
    println!(
        "seed {seed}: {} snapshots made, {} left",
        script.made,
        script.alive.len()
    );
    // The library deletes the last snapshots, and nothing is left of them.
    let tree = LibraryTree::mount(&image, "");
    for (path, _) in script.alive {
        let op = Op::DeleteSubvolume { path };
        both(&mut oracle, &op, apply_to_library(&op, &tree.0), "the end");
    }
    tree.files().clean_all().expect("they are freed");
    tree.0.close().expect("everything is on the device");
    drop(tree);
    judge_volume(&image, "the end");
    let mount = KernelMount::mount(&image, Access::ReadOnly, "").unwrap();
    let found = Manifest::of(&MountedTree::new(mount.path())).unwrap();
    found.assert_same(&Manifest::of(&oracle).unwrap(), "the end");
    mount.unmount().unwrap();
}

#[test]
fn turns_of_the_library_and_the_kernel() {
    let mut needed = Capability::KERNEL_MOUNT.to_vec();
    needed.push(Capability::Program("btrfs"));
    if !Capability::all_here(&needed) {
        return;
    }
    clear_umask();
    let turns = std::env::var("BUTTERFS_TURNS").map_or(8, |text| text.parse().expect("a number"));
    for seed in differential::seeds(1..2) {
        run(seed, turns);
    }
}

/// Linux must see read-only subvolumes as read-only: those made so, and
/// snapshots of subvolumes that ButterFS made.
#[test]
fn what_is_read_only_is_so_for_the_kernel() {
    let mut needed = Capability::KERNEL_MOUNT.to_vec();
    needed.push(Capability::Program("btrfs"));
    if !Capability::all_here(&needed) {
        return;
    }
    let dir = scratch_dir();
    let image = dir.path().join("v.img");
    mkfs(&image, SIZE, 4096, "csum=crc32c");
    let volume = butterfs::Volume::open(&image, butterfs::OpenOptions::default()).unwrap();
    let read_only = butterfs::SnapshotAccess::ReadOnly;
    for name in ["/own", "/other"] {
        volume.create_subvolume(name).unwrap();
        volume
            .write_file(&format!("{name}/file"), name.as_bytes())
            .unwrap();
    }
    volume.snapshot("/own", "/snapshot", read_only).unwrap();
    volume.snapshot("/snapshot", "/again", read_only).unwrap();
    volume
        .snapshot(
            "/snapshot",
            "/writable",
            butterfs::SnapshotAccess::ReadWrite,
        )
        .unwrap();
    volume.set_subvolume_access("/other", read_only).unwrap();
    volume.snapshot("/", "/top", read_only).unwrap();
    volume.close().unwrap();
    drop(volume);
    judge_volume(&image, "made");
    for _ in 0..2 {
        let mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
        for (name, writable) in [
            ("own", true),
            ("other", false),
            ("snapshot", false),
            ("again", false),
            ("writable", true),
            ("top", false),
        ] {
            let written = std::fs::write(mount.path().join(name).join("new"), name);
            assert_eq!(written.is_ok(), writable, "{name}: {written:?}");
        }
        mount.unmount().unwrap();
        judge_volume(&image, "written");
    }
}
