//! The kernel's Btrfs judges the model. Before that the model may judge
//! nothing.

use butterfs_testkit::judge::{
    Access, DataChecksums, KernelMount, Mode, btrfs_check, mkfs_btrfs, scratch_dir,
};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::op::generate::Generator;
use butterfs_testkit::{Capability, Manifest, Op, Oracle, differential};
use rustix::io::Errno;
use std::cell::RefCell;

fn run_seed(seed: u64, count: usize, options: &str, make: fn(u64) -> Generator) {
    let dir = scratch_dir();
    let image = dir.path().join("kernel.img");
    mkfs_btrfs(&image, 2 << 30, &["-m", "single"]);
    let mount = KernelMount::mount(&image, Access::ReadWrite, options).unwrap();
    let mount = RefCell::new(mount);
    let apply = |op: &Op| {
        if *op == Op::Remount {
            return mount.borrow_mut().remount().map_err(|error| {
                eprintln!("remount: {error}");
                Errno::IO
            });
        }
        let root = mount.borrow().path().to_owned();
        apply_to_path(op, &root)
    };
    let look = || Manifest::of(&MountedTree::new(mount.borrow().path())).unwrap();
    if std::env::var_os("BUTTERFS_BISECT").is_some() {
        differential::bisect(Oracle::new(), make(seed).take(count), 50, apply, look).unwrap();
        return;
    }
    let operations = make(seed).take(count);
    let oracle = match differential::run_on(Oracle::new(), seed, operations, apply) {
        Ok(oracle) => oracle,
        Err(divergence) => panic!("{divergence}"),
    };
    let expected = Manifest::of(&oracle).unwrap();
    look().assert_same(&expected, &format!("seed {seed}, mounted"));
    mount.borrow_mut().remount().unwrap();
    look().assert_same(&expected, &format!("seed {seed}, mounted again"));
    mount.borrow_mut().scrub().assert_clean("scrub");
    assert_eq!(
        mount.into_inner().unmount().unwrap(),
        Vec::<String>::new(),
        "the kernel complained"
    );
    for mode in Mode::ALL {
        btrfs_check(&image, mode, DataChecksums::Verify).assert_clean("check");
    }
}

#[test]
fn the_model_answers_as_the_kernel_does() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    clear_umask();
    for seed in differential::seeds(1..5) {
        let options = [
            "",
            "compress=zstd",
            "compress-force=lzo",
            "max_inline=0,autodefrag",
        ];
        run_seed(seed, 5000, options[(seed % 4) as usize], Generator::new);
    }
}

#[test]
fn the_model_answers_as_the_kernel_does_with_subvolumes() {
    let mut needed = Capability::KERNEL_MOUNT.to_vec();
    needed.push(Capability::Program("btrfs"));
    if !Capability::all_here(&needed) {
        return;
    }
    clear_umask();
    for seed in differential::seeds(100..103) {
        let options = ["", "compress=zstd"][(seed % 2) as usize];
        run_seed(seed, 2500, options, Generator::with_subvolumes);
    }
}
