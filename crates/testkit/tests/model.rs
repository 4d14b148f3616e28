//! Random operations on the library and over FUSE, with remounts between them,
//! compared with the model. `btrfs check` judges what is left, and the kernel's
//! view of it is walked.
//!
//! Fixed seeds find faults that were found before. Fresh seeds find new ones.
//! Both print how to reproduce a failure.

mod support;

use butterfs_check::NoProgress;
use butterfs_device::FileDevice;
use butterfs_testkit::judge::{Access, KernelMount, judge_image, scratch_dir};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::op::generate::Generator;
use butterfs_testkit::{
    Capability, FuseMount, Manifest, Op, Oracle, butterfs_program, differential,
};
use rustix::io::Errno;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use support::{LibraryTree, apply_to_library, mkfs};

/// Operations of one seed. `BUTTERFS_OPERATIONS` sets another number, to find
/// the first operation that fails.
fn operations() -> usize {
    std::env::var("BUTTERFS_OPERATIONS").map_or(12_000, |text| text.parse().expect("a number"))
}

const SIZE: u64 = 3 << 30;
const SIZE_SUBVOLUMES: u64 = 2 << 30;
/// Rounds of a run with subvolumes, and operations in each.
const ROUNDS: usize = 3;
const PER_ROUND: usize = 900;

/// How a volume is made and opened.
struct Way {
    node_size: u32,
    mkfs: &'static str,
    options: &'static str,
}

const WAYS: [Way; 6] = [
    Way {
        node_size: 16384,
        mkfs: "csum=crc32c,^block-group-tree",
        options: "",
    },
    Way {
        node_size: 4096,
        mkfs: "csum=xxhash64,^block-group-tree",
        options: "compress-force=zstd",
    },
    Way {
        node_size: 65536,
        mkfs: "csum=sha256,^block-group-tree,data=dup",
        options: "compress=lzo",
    },
    Way {
        node_size: 16384,
        mkfs: "csum=blake2b",
        options: "compress-force=zlib:1,max_inline=0",
    },
    Way {
        node_size: 16384,
        mkfs: "csum=crc32c,^no-holes,^block-group-tree",
        options: "nodatasum",
    },
    Way {
        node_size: 4096,
        mkfs: "csum=crc32c,^free-space-tree,^block-group-tree,^skinny-metadata",
        options: "",
    },
];

/// A volume that is opened again at every remount.
struct Volume {
    image: PathBuf,
    options: &'static str,
    open: Option<LibraryTree>,
}

impl Volume {
    fn new(image: &Path, options: &'static str) -> Self {
        Self {
            image: image.to_owned(),
            options,
            open: Some(LibraryTree::mount(image, options)),
        }
    }

    fn tree(&self) -> &LibraryTree {
        self.open.as_ref().expect("open between remounts")
    }

    fn remount(&mut self) {
        self.tree().0.close().expect("everything is on the device");
        self.open = None;
        self.open = Some(LibraryTree::mount(&self.image, self.options));
    }

    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        if *op == Op::Remount {
            self.remount();
            return Ok(());
        }
        apply_to_library(op, &self.tree().0)
    }
}

fn run_seed(seed: u64) {
    let way = &WAYS[(seed % WAYS.len() as u64) as usize];
    let dir = scratch_dir();
    let image = dir.path().join("library.img");
    mkfs(&image, SIZE, way.node_size, way.mkfs);
    let volume = RefCell::new(Volume::new(&image, way.options));
    let apply = |op: &Op| volume.borrow_mut().apply(op);
    let look = || Manifest::of(volume.borrow().tree()).expect("a tree that can be walked");
    let oracle = Oracle::with_node_size(way.node_size);
    let operations = Generator::new(seed).take(operations());
    if std::env::var_os("BUTTERFS_BISECT").is_some() {
        differential::bisect(oracle, operations, 20, apply, look).unwrap();
        return;
    }
    let oracle = match differential::run_on(oracle, seed, operations, apply) {
        Ok(oracle) => oracle,
        Err(divergence) => panic!("{divergence}"),
    };
    let expected = Manifest::of(&oracle).unwrap();
    look().assert_same(&expected, &format!("seed {seed}, as it is in memory"));
    volume.borrow_mut().remount();
    look().assert_same(&expected, &format!("seed {seed}, opened again"));
    drop(volume);
    judge(&image, &expected, seed);
}

fn judge(image: &Path, expected: &Manifest, seed: u64) {
    judge_image(image, &format!("seed {seed}"));
    if Capability::all_here(&Capability::KERNEL_MOUNT) {
        let mount = KernelMount::mount(image, Access::ReadOnly, "").unwrap();
        let found = Manifest::of(&MountedTree::new(mount.path())).unwrap();
        found.assert_same(expected, &format!("seed {seed}, as the kernel reads it"));
        assert_eq!(mount.unmount().unwrap(), Vec::<String>::new());
    }
}

/// As [`run_seed`], with operations on subvolumes among the others and all
/// judges after each round.
fn run_subvolumes(seed: u64) {
    let way = &WAYS[(seed % WAYS.len() as u64) as usize];
    let dir = scratch_dir();
    let image = dir.path().join("library.img");
    mkfs(&image, SIZE_SUBVOLUMES, way.node_size, way.mkfs);
    let mut volume = Volume::new(&image, way.options);
    let mut oracle = Oracle::with_node_size(way.node_size);
    let mut generator = Generator::with_subvolumes(seed);
    for round in 0..ROUNDS {
        let operations = generator.by_ref().take(PER_ROUND);
        let apply = |op: &Op| volume.apply(op);
        oracle = match differential::run_on(oracle, seed, operations, apply) {
            Ok(oracle) => oracle,
            Err(divergence) => panic!("round {round}: {divergence}"),
        };
        let context = format!("seed {seed}, round {round}");
        let expected = Manifest::of(&oracle).unwrap();
        let found = Manifest::of(volume.tree()).expect("a tree that can be walked");
        found.assert_same(&expected, &format!("{context}, in memory"));
        volume.remount();
        let found = Manifest::of(volume.tree()).expect("a tree that can be walked");
        found.assert_same(&expected, &format!("{context}, opened again"));
        volume
            .tree()
            .0
            .close()
            .expect("everything is on the device");
        volume.open = None;
        assert_sound(&image, &context);
        judge(&image, &expected, seed);
        volume.open = Some(LibraryTree::mount(&image, way.options));
    }
}

fn assert_sound(image: &Path, context: &str) {
    let device = FileDevice::open(image, butterfs_device::Access::ReadOnly).expect("it opens");
    let options = butterfs_check::Options {
        data: butterfs_check::DataChecksums::Verify,
        threads: 2,
        ..butterfs_check::Options::default()
    };
    let report = butterfs_check::check(vec![Arc::new(device)], &options, &NoProgress);
    let report = report.expect("it can be checked");
    assert!(report.is_exact(), "{context}: {:#?}", report.faults);
}

/// As [`run_seed`], on a mount of the program.
fn run_seed_over_fuse(program: &Path, seed: u64, count: usize) {
    let way = &WAYS[(seed % WAYS.len() as u64) as usize];
    let dir = scratch_dir();
    let image = dir.path().join("fuse.img");
    mkfs(&image, SIZE, way.node_size, way.mkfs);
    // With `dev`, opening a device node fails only because it has no driver.
    let options = &format!("dev,{}", way.options);
    let mount = || FuseMount::mount(program, &image, options).expect("a mount");
    let mounted = RefCell::new(Some(mount()));
    let remount = || {
        let old = mounted.borrow_mut().take().expect("mounted");
        old.unmount().expect("nothing is open");
        *mounted.borrow_mut() = Some(mount());
    };
    let root = || {
        mounted
            .borrow()
            .as_ref()
            .expect("mounted")
            .path()
            .to_owned()
    };
    let apply = |op: &Op| {
        if *op == Op::Remount {
            remount();
            return Ok(());
        }
        apply_to_path(op, &root())
    };
    let look = || Manifest::of(&MountedTree::new(&root())).expect("a tree that can be walked");
    let oracle = Oracle::with_node_size(way.node_size);
    // FICLONE does not reach a FUSE server; copies do, and share extents. A
    // chown that changes no owner, but removes privileges, does not reach it
    // either.
    let reaches = |op: &Op| match op {
        Op::Clone { .. } => false,
        Op::Chown { uid, gid, .. } => uid.is_some() || gid.is_some(),
        _ => true,
    };
    let operations = Generator::new(seed).filter(reaches).take(count);
    if std::env::var_os("BUTTERFS_BISECT").is_some() {
        differential::bisect(oracle, operations, 20, apply, look).unwrap();
        return;
    }
    let oracle = match differential::run_on(oracle, seed, operations, apply) {
        Ok(oracle) => oracle,
        Err(divergence) => panic!("over FUSE: {divergence}"),
    };
    let expected = Manifest::of(&oracle).unwrap();
    look().assert_same(&expected, &format!("seed {seed}, mounted"));
    remount();
    look().assert_same(&expected, &format!("seed {seed}, mounted again"));
    let last = mounted.borrow_mut().take();
    last.expect("mounted").unmount().unwrap();
    judge(&image, &expected, seed);
}

#[test]
fn a_fuse_mount_answers_as_the_model_does() {
    if !Capability::all_here(&[Capability::Root]) {
        return;
    }
    let Some(program) = butterfs_program() else {
        return;
    };
    clear_umask();
    for seed in differential::seeds(0..6) {
        run_seed_over_fuse(&program, seed, 5000);
    }
}

#[test]
fn the_library_answers_as_the_model_does_with_subvolumes() {
    // Seed 0 sends a received copy with its original as the parent.
    for seed in std::iter::once(0).chain(differential::seeds(100..106)) {
        run_subvolumes(seed);
    }
}

#[test]
fn the_library_answers_as_the_model_does() {
    for seed in differential::seeds(0..12) {
        run_seed(seed);
    }
}

#[test]
fn the_library_answers_as_the_model_does_for_fresh_seeds() {
    if std::env::var_os("BUTTERFS_SEEDS").is_some() {
        return;
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let first = since.unwrap().as_millis() as u64;
    for seed in first..first + 8 {
        eprintln!("BUTTERFS_SEEDS={seed}..{} shows this one again", seed + 1);
        run_seed(seed);
    }
}
