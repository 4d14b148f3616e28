//! Sequences at the bounds of the format, which random ones seldom reach. The
//! model, the library, a FUSE mount and the kernel give the same answers and
//! the same tree.

mod support;

use butterfs_testkit::judge::{Access, DataChecksums, KernelMount, Mode, btrfs_check, scratch_dir};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::op::names::colliding;
use butterfs_testkit::op::{Bytes, OpPath, RenameHow, Span, XattrHow};
use butterfs_testkit::{Capability, FuseMount, Manifest, Op, Oracle, Random, butterfs_program};
use rustix::io::Errno;
use std::path::Path;
use support::{LibraryTree, apply_to_library, mkfs};

const SIZE: u64 = 1 << 30;

fn path(name: impl Into<Vec<u8>>) -> OpPath {
    OpPath(name.into())
}

fn create(name: impl Into<Vec<u8>>) -> Op {
    let path = path(name);
    Op::Create { path, mode: 0o644 }
}

fn mkdir(name: impl Into<Vec<u8>>) -> Op {
    let path = path(name);
    Op::Mkdir { path, mode: 0o755 }
}

fn rename(from: &[u8], to: &[u8], how: RenameHow) -> Op {
    let (from, to) = (path(from), path(to));
    Op::Rename { from, to, how }
}

/// Names of one file in one directory, until they overflow into items of their
/// own. Then half of them are removed.
fn links() -> Vec<Op> {
    let name = |at: usize| format!("links/{at:05}{}", "n".repeat(200)).into_bytes();
    let mut ops = vec![mkdir("links"), mkdir("other"), create("links/file")];
    for at in 0..600 {
        let (from, to) = (path("links/file"), path(name(at)));
        ops.push(Op::Link { from, to });
    }
    for at in (0..600).step_by(2) {
        ops.push(Op::Unlink {
            path: path(name(at)),
        });
    }
    for at in (1..600).step_by(40) {
        let moved = format!("other/{at}").into_bytes();
        ops.push(rename(&name(at), &moved, RenameHow::Replace));
    }
    ops.push(rename(&name(3), b"links/file", RenameHow::Exchange));
    ops.push(rename(&name(5), &name(7), RenameHow::Replace));
    ops.push(Op::Remount);
    ops.push(rename(&name(9), b"links/x", RenameHow::NoReplace));
    ops.push(rename(b"links/x", b"other/x", RenameHow::Whiteout));
    ops
}

/// Names with one hash, until their item is full. Then names at each place are
/// removed.
fn hashes() -> Vec<Op> {
    let mut random = Random::new(5);
    let names = colliding(&mut random, 16);
    let at = |name: &[u8]| [b"hashes/", name].concat();
    let mut ops = vec![mkdir("hashes")];
    ops.extend(names.iter().map(|name| create(at(name))));
    ops.push(Op::Remount);
    ops.extend([0, 7, 15].map(|which: usize| Op::Unlink {
        path: path(at(&names[which])),
    }));
    ops.push(create(at(&names[7])));
    ops.push(rename(&at(&names[1]), &at(&names[2]), RenameHow::Exchange));
    ops.push(rename(&at(&names[3]), &at(&names[4]), RenameHow::Replace));
    ops.push(rename(&at(&names[5]), &at(&names[3]), RenameHow::NoReplace));
    ops.push(rename(&at(&names[6]), &at(&names[0]), RenameHow::Whiteout));
    ops
}

fn lengths() -> Vec<Op> {
    let mut ops = vec![mkdir("lengths")];
    for length in [1, 254, 255, 256] {
        ops.push(create([b"lengths/", &vec![b'l'; length][..]].concat()));
    }
    for length in [0, 1, 2047, 2048, 2049, 3900, 3949, 3950, 4094, 4095, 4096] {
        ops.push(Op::Symlink {
            path: path(format!("lengths/to{length}")),
            target: Bytes(vec![b't'; length]),
        });
    }
    for length in [
        0, 3900, 3935, 3936, 16_200, 16_223, 16_224, 65_375, 65_376, 65_536,
    ] {
        let name = format!("lengths/with{length}");
        ops.push(create(name.clone()));
        ops.push(Op::SetXattr {
            path: path(name),
            name: Bytes(b"user.x".to_vec()),
            value: Bytes(vec![b'v'; length]),
            how: XattrHow::Create,
        });
    }
    ops
}

/// Sizes around inline files and sectors, and writes far away.
fn contents() -> Vec<Op> {
    let mut ops = vec![mkdir("contents")];
    let sizes = [
        0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 131_071, 131_072, 131_073,
    ];
    for (at, size) in sizes.into_iter().enumerate() {
        let name = path(format!("contents/{size}"));
        let file = || name.clone();
        ops.push(Op::Create {
            path: file(),
            mode: 0o600,
        });
        let span = Span {
            offset: 0,
            length: size,
        };
        ops.push(Op::Write {
            path: file(),
            span,
            seed: at as u64,
        });
        if at % 2 == 0 {
            ops.push(Op::Fsync { path: file() });
        }
        ops.push(Op::Append {
            path: file(),
            length: 100,
            seed: 3,
        });
        let far = (1 << 40) + size;
        ops.push(Op::Write {
            path: file(),
            span: Span {
                offset: far,
                length: 5,
            },
            seed: 9,
        });
        ops.push(Op::Truncate {
            path: file(),
            size: size + 50,
        });
        ops.push(Op::PunchHole {
            path: file(),
            span: Span {
                offset: size / 2,
                length: size / 4 + 1,
            },
        });
        ops.push(Op::Truncate {
            path: file(),
            size: size / 2 + 1,
        });
        ops.push(Op::Truncate {
            path: file(),
            size: size + 5000,
        });
    }
    ops.push(Op::Remount);
    ops
}

fn all() -> Vec<Op> {
    [links(), hashes(), lengths(), contents()].concat()
}

fn compare(who: &str, node_size: u32, mut apply: impl FnMut(&Op) -> Result<(), Errno>) -> Oracle {
    let mut oracle = Oracle::with_node_size(node_size);
    for op in all() {
        let expected = oracle.apply(&op);
        assert_eq!(apply(&op), expected, "{who}, nodes of {node_size}: {op:?}");
    }
    oracle
}

fn judge(image: &Path, oracle: &Oracle, who: &str) {
    // The other mode of btrfs-progs 6.2 condemns what the kernel itself leaves,
    // too.
    btrfs_check(image, Mode::Original, DataChecksums::Verify).assert_clean(who);
    let expected = Manifest::of(oracle).unwrap();
    let tree = LibraryTree::mount(image, "ro");
    Manifest::of(&tree).unwrap().assert_same(&expected, who);
    drop(tree);
    if Capability::all_here(&Capability::KERNEL_MOUNT) {
        let mount = KernelMount::mount(image, Access::ReadOnly, "").unwrap();
        let found = Manifest::of(&MountedTree::new(mount.path())).unwrap();
        found.assert_same(&expected, &format!("{who}, as the kernel reads it"));
    }
}

const NODE_SIZES: [u32; 3] = [4096, 16384, 65536];

#[test]
fn the_library_at_the_bounds() {
    for node_size in NODE_SIZES {
        let dir = scratch_dir();
        let image = dir.path().join("library.img");
        mkfs(&image, SIZE, node_size, "^block-group-tree");
        let mut tree = Some(LibraryTree::mount(&image, ""));
        let oracle = compare("the library", node_size, |op| {
            if *op == Op::Remount {
                tree.take().expect("open").0.close().unwrap();
                tree = Some(LibraryTree::mount(&image, ""));
            }
            apply_to_library(op, &tree.as_ref().expect("open").0)
        });
        tree.expect("open").0.close().unwrap();
        judge(&image, &oracle, "the library");
    }
}

#[test]
fn a_fuse_mount_at_the_bounds() {
    if !Capability::all_here(&[Capability::Root]) {
        return;
    }
    let Some(program) = butterfs_program() else {
        return;
    };
    clear_umask();
    for node_size in NODE_SIZES {
        let dir = scratch_dir();
        let image = dir.path().join("fuse.img");
        mkfs(&image, SIZE, node_size, "^block-group-tree");
        let mount = FuseMount::mount(&program, &image, "").unwrap();
        let oracle = compare("FUSE", node_size, |op| apply_to_path(op, mount.path()));
        mount.unmount().unwrap();
        judge(&image, &oracle, "FUSE");
    }
}

#[test]
fn the_kernel_at_the_bounds() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    clear_umask();
    for node_size in NODE_SIZES {
        let dir = scratch_dir();
        let image = dir.path().join("kernel.img");
        mkfs(&image, SIZE, node_size, "^block-group-tree");
        let mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
        let oracle = compare("the kernel", node_size, |op| {
            apply_to_path(op, mount.path())
        });
        mount.unmount().unwrap();
        judge(&image, &oracle, "the kernel");
    }
}
