//! Flags and the compression property: a FUSE mount and the kernel give the
//! same answers and show the same.

mod support;

use butterfs_testkit::judge::{Access, KernelMount, judge_image, scratch_dir};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::clear_umask;
use butterfs_testkit::{Capability, FuseMount, Manifest, Random, butterfs_program};
use rustix::fs::{IFlags, OFlags, XattrFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::mkfs;

const COMPRESSION: &str = "btrfs.compression";
/// FS_NOCOMP_FL
const NOCOMP: IFlags = IFlags::from_bits_retain(0x400);

fn flags_of(path: &Path) -> Result<IFlags, Errno> {
    let file = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    rustix::fs::ioctl_getflags(&file)
}

fn set_flags(path: &Path, flags: IFlags) -> Result<(), Errno> {
    let file = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    rustix::fs::ioctl_setflags(&file, flags)
}

/// One step of `random`, which is in the same state for both. Returns what the
/// step did, with the answer.
fn step(root: &Path, random: &mut Random, at: u64) -> String {
    let places = ["", "d/", "d/e/"];
    let names = ["a", "b", "c", "e", "link", "pipe"];
    let place = *random.pick(&places);
    let name = format!("{place}{}", random.pick(&names));
    let path = root.join(&name);
    let values: [&[u8]; 9] = [
        b"zlib", b"lzo", b"zstd", b"none", b"no", b"", b"gzip", b"zstd:5", b"lz",
    ];
    let sets = [
        IFlags::empty(),
        IFlags::COMPRESSED,
        NOCOMP,
        IFlags::NOCOW,
        IFlags::COMPRESSED | NOCOMP,
        IFlags::COMPRESSED | IFlags::NOCOW,
        IFlags::NOATIME | IFlags::NODUMP,
    ];
    let value = *random.pick(&values);
    let flags = *random.pick(&sets);
    let how = *random.pick(&[XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE]);
    let kind = random.below(10);
    let io = |result: std::io::Result<()>| {
        result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
    let (what, answer) = match kind {
        0 => (format!("mkdir {name}"), io(fs::create_dir(&path))),
        1 | 2 => {
            let new = fs::File::options().write(true).create_new(true).open(&path);
            (format!("create {name}"), io(new.map(drop)))
        }
        3 => {
            let data = vec![at as u8; 20_000];
            let file = fs::File::options().write(true).open(&path);
            (
                format!("write {name}"),
                io(file.and_then(|file| file.write_all_at(&data, 3))),
            )
        }
        4..=6 => (
            format!("set {name} {} {how:?}", value.escape_ascii()),
            rustix::fs::lsetxattr(&path, COMPRESSION, value, how),
        ),
        7 => (
            format!("remove {name}"),
            rustix::fs::lremovexattr(&path, COMPRESSION),
        ),
        8 if random.one_in(4) => (format!("unlink {name}"), io(fs::remove_file(&path))),
        _ => (format!("chattr {name} {flags:?}"), set_flags(&path, flags)),
    };
    format!("{what}: {answer:?} {:?}", flags_of(&path))
}

fn prepare(root: &Path) {
    fs::create_dir_all(root.join("d/e")).unwrap();
    for place in ["", "d/"] {
        std::os::unix::fs::symlink("a", root.join(place).join("link")).unwrap();
        let pipe = root.join(place).join("socket");
        drop(std::os::unix::net::UnixListener::bind(pipe).unwrap());
    }
}

#[test]
fn fuse_and_the_kernel_agree_on_properties() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let Some(program) = butterfs_program() else {
        return;
    };
    clear_umask();
    for (seed, options) in [
        (1, ""),
        (2, "compress=zstd"),
        (3, "nodatasum"),
        (4, "nodatacow"),
    ] {
        let dir = scratch_dir();
        let [ours, theirs] = ["ours.img", "theirs.img"].map(|name| dir.path().join(name));
        for image in [&ours, &theirs] {
            mkfs(image, 1 << 30, 16384, "^block-group-tree");
        }
        let fuse = FuseMount::mount(&program, &ours, options).unwrap();
        let kernel = KernelMount::mount(&theirs, Access::ReadWrite, options).unwrap();
        let (mut one, mut other) = (Random::new(seed), Random::new(seed));
        prepare(fuse.path());
        prepare(kernel.path());
        for at in 0..2000 {
            let found = step(fuse.path(), &mut one, at);
            let expected = step(kernel.path(), &mut other, at);
            assert_eq!(found, expected, "seed {seed}, {options}, step {at}");
        }
        let mut found = Manifest::of(&MountedTree::new(fuse.path())).unwrap();
        for entry in found.entries.values_mut() {
            entry.stat.modified = None;
        }
        let expected = Manifest::of(&MountedTree::new(kernel.path())).unwrap();
        found.assert_same(&expected, &format!("seed {seed}, {options}"));
        fuse.unmount().unwrap();
        kernel.unmount().unwrap();
        judge_image(&ours, options);
    }
}
