//! The library and the kernel read what the other wrote.

mod support;
#[path = "library/whole.rs"]
mod whole;

use butterfs::{Access as DeviceAccess, Compress, NewInode, Options, Owner};
use butterfs_format::compression::{Algorithm, UNIT};

use butterfs_testkit::content::content;
use butterfs_testkit::judge::{
    Access, DataChecksums, KernelMount, Mode, btrfs_check, mkfs_btrfs, scratch_dir,
};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::op::generate::Generator;
use butterfs_testkit::{Capability, Manifest, Op, differential};
use support::LibraryTree;

/// The library reads what the kernel made of thousands of operations: the same,
/// to the nanosecond.
#[test]
fn the_library_reads_what_the_kernel_wrote() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    clear_umask();
    let ways: [(&[&str], &str); 4] = [
        (&[], "compress=zstd"),
        (&["-n", "4096", "--csum", "xxhash"], "compress-force=lzo"),
        (&["-O", "^no-holes"], "max_inline=0"),
        (&["-n", "65536", "--csum", "blake2"], "compress-force=zlib"),
    ];
    for seed in differential::seeds(100..104) {
        let (mkfs, options) = ways[(seed % 4) as usize];
        let dir = scratch_dir();
        let image = dir.path().join("kernel.img");
        mkfs_btrfs(&image, 2 << 30, mkfs);
        let mut mount = KernelMount::mount(&image, Access::ReadWrite, options).unwrap();
        for op in Generator::new(seed).take(3000) {
            if op == Op::Remount {
                mount.remount().unwrap();
            }
            // Some operations fail on purpose.
            let _ = apply_to_path(&op, mount.path());
        }
        let expected = Manifest::of(&MountedTree::new(mount.path())).unwrap();
        assert!(expected.entries.len() > 40, "seed {seed}: a tree");
        mount.unmount().unwrap();
        let view = LibraryTree::open(&image, DeviceAccess::ReadOnly, Options::default());
        let found = Manifest::of(&view).unwrap();
        found.assert_same(&expected, &format!("seed {seed}, {options}"));
    }
}

/// Every level of every algorithm, in units and inline.
#[test]
fn the_kernel_reads_all_levels_of_compression() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let dir = scratch_dir();
    let image = dir.path().join("levels.img");
    mkfs_btrfs(&image, 1 << 30, &[]);
    let mut expected = Vec::new();
    for algorithm in Algorithm::ALL {
        for level in algorithm.levels().unwrap_or(0..=0) {
            let options = Options {
                compress: Compress::Force(algorithm, algorithm.clamp_level(level)),
                ..Options::default()
            };
            let view = LibraryTree::open(&image, DeviceAccess::ReadWrite, options);
            let fs = view.files();
            for (seed, length) in [
                (1, 3 * UNIT + 777),
                (2, UNIT),
                (5, 70_001),
                (2, 1800),
                (9, 2000),
            ] {
                let name = format!("{}{level}-{seed}-{length}", algorithm.name());
                let new = NewInode::new(0o100_644, Owner::default());
                let inode = fs.create(fs.root(), name.as_bytes(), &new).unwrap();
                let data = content(seed, length);
                fs.write(&inode, 0, &data).unwrap();
                expected.push((name, data));
            }
            fs.sync_all().unwrap();
        }
    }
    for mode in Mode::ALL {
        btrfs_check(&image, mode, DataChecksums::Verify).assert_clean("check");
    }
    let mut mount = KernelMount::mount(&image, Access::ReadOnly, "").unwrap();
    for (name, data) in &expected {
        let read = std::fs::read(mount.path().join(name)).unwrap();
        assert!(read == *data, "the kernel reads {name} differently");
    }
    assert_eq!(mount.complaints(), Vec::<String>::new());
}
