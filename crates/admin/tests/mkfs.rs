//! Volumes that mkfs makes, judged by btrfs check, the kernel and ourselves.

use butterfs_admin::mkfs::{Layout, MkfsError, MkfsOptions, ProfileChoice, make};
use butterfs_device::{Access, FileDevice};
use butterfs_format::{ChecksumType, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{OpenOptions, Store};
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

fn is_root() -> bool {
    let root = run("id", &["-u"]).trim() == "0";
    if !root {
        assert!(std::env::var_os("CI").is_none(), "CI runs as root");
        eprintln!("skipped: kernel mounts need root");
    }
    root
}

/// btrfs check; Debian's 6.2 does not know the block group tree.
fn check(image: &str, options: &MkfsOptions) {
    let known = !options
        .features
        .compat_ro
        .contains(butterfs_format::features::CompatRo::BLOCK_GROUP_TREE);
    if !known {
        return;
    }
    for mode in ["original", "lowmem"] {
        let text = run(
            "btrfs",
            &["check", "--mode", mode, "--check-data-csum", image],
        );
        let clean = text.contains("no error found") && !text.to_lowercase().contains("warning");
        assert!(clean && !text.contains("mismatch"), "{options:?}: {text}");
    }
}

fn judge(size: u64, options: &MkfsOptions) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("v.img");
    let image = path.to_str().unwrap();
    let device = FileDevice::create(&path, size).unwrap();
    make(&device, options).unwrap();
    drop(device);
    check(image, options);
    write_by_library(&path);
    check(image, options);
    let mount = dir.path().join("mnt");
    std::fs::create_dir(&mount).unwrap();
    let point = mount.to_str().unwrap();
    for round in 0..2 {
        run("mount", &["-o", "loop", image, point]);
        assert_eq!(std::fs::read(mount.join("ours")).unwrap(), vec![3; 100_000]);
        std::fs::write(mount.join(format!("kernel{round}")), vec![7; 50_000]).unwrap();
        run("sync", &[]);
        let scrub = run("btrfs", &["scrub", "start", "-B", point]);
        assert!(scrub.contains("no errors found"), "{scrub}");
        run("umount", &[point]);
        check(image, options);
    }
}

fn write_by_library(path: &Path) {
    let device = FileDevice::open(path, Access::ReadWrite).unwrap();
    let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
    let fs = Filesystem::new(Arc::new(store), TreeId::FS, Options::default());
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let file = fs.create(fs.root(), b"ours", &new).unwrap();
    fs.write(&file, 0, &vec![3; 100_000]).unwrap();
    fs.sync_all().unwrap();
}

#[test]
fn matrix() {
    if !is_root() {
        return;
    }
    let default = MkfsOptions::default();
    judge(1 << 30, &default);
    judge(200 << 30, &default);
    let mut old = default.clone();
    old.features.change("^block-group-tree").unwrap();
    for (index, checksum) in ChecksumType::TABLE.iter().enumerate() {
        for (size_index, node_size) in [4096, 16384, 65536].into_iter().enumerate() {
            let dup = (index + size_index) % 2 == 0;
            let profile = |dup| {
                if dup {
                    ProfileChoice::Dup
                } else {
                    ProfileChoice::Single
                }
            };
            let mut options = MkfsOptions {
                node_size,
                checksum: checksum.0,
                metadata: Some(profile(!dup)),
                data: Some(profile(dup)),
                label: "a label".to_owned(),
                ..old.clone()
            };
            if index == 1 {
                options.features.change("^free-space-tree").unwrap();
            }
            if index == 2 {
                options
                    .features
                    .change("^skinny-metadata,^no-holes")
                    .unwrap();
            }
            if index == 3 {
                options.features = default.features;
            }
            judge((300 << 20) + (size_index as u64) * (171 << 20), &options);
        }
    }
    for data in [None, Some(ProfileChoice::Dup)] {
        let mixed = MkfsOptions {
            mixed: Layout::Mixed,
            node_size: 4096,
            data,
            ..old.clone()
        };
        judge(120 << 20, &mixed);
    }
}

#[test]
fn refuses_what_cannot_be() {
    let device = butterfs_device::MemoryDevice::new(20 << 20);
    let small = make(&device, &MkfsOptions::default());
    assert!(matches!(small, Err(MkfsError::TooSmall { .. })));
    for (node_size, sector_size) in [(1024, 4096), (12288, 4096), (131_072, 4096), (4096, 8192)] {
        let options = MkfsOptions {
            node_size,
            sector_size,
            ..MkfsOptions::default()
        };
        assert!(make(&device, &options).is_err());
    }
    let mut features = MkfsOptions::default().features;
    assert!(matches!(
        features.change("no-hole"),
        Err(MkfsError::UnknownFeature(name)) if name == "no-hole"
    ));
    assert!(matches!(
        features.change("zoned"),
        Err(MkfsError::NotYet(_))
    ));
}
