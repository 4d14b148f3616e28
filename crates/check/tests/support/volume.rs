//! Volumes that mkfs.btrfs and the kernel make.

use super::image::Image;
use butterfs_format::item::root::RootItem;
use butterfs_format::{ItemType, Key, TreeId};
use butterfs_testkit::capability::Capability;
use butterfs_testkit::judge::{Access, KernelMount, mkfs_btrfs};
use butterfs_testkit::run_script;
use std::path::Path;
use std::process::{Command, Stdio};

/// Size of an image in bytes. Most of it is a hole.
pub const SIZE: u64 = 600 << 20;

/// Whether the kernel can make volumes here; prints the reason if not.
pub fn can_make() -> bool {
    let mut needed = Capability::KERNEL_MOUNT.to_vec();
    needed.push(Capability::Program("btrfs"));
    Capability::all_here(&needed)
}

/// Makes a tree of two levels with a little of everything.
pub const MIXTURE: &str = r#"
mkdir d; for i in $(seq 250); do echo "line $i" > "d/file-$i"; done
ln d/file-1 d/another-name; mkdir d/deep; ln d/file-1 d/deep/third
head -c 3000000 /dev/urandom > big
cp --reflink=always big clone
head -c 200000 /dev/urandom > changed; sync
dd if=/dev/urandom of=clone bs=4096 count=10 seek=100 conv=notrunc status=none
fallocate -l 3M prealloc
dd if=/dev/urandom of=prealloc bs=4096 count=3 seek=50 conv=notrunc status=none
touch beyond; fallocate -n -l 1M beyond; truncate -s 10M sparse; echo x >> sparse
fallocate -p -o 8192 -l 100000 big
touch nocow small-nocow; chattr +C nocow small-nocow; head -c 200000 /dev/urandom > nocow
head -c 8192 /dev/urandom > small-nocow
ln -s /some/target symlink; mkfifo fifo; mknod null c 1 3; echo tiny > tiny
setfattr -n user.attribute -v value tiny
head -c 300000 /dev/zero > zeros; sync
btrfs -q subvolume create sub; cp d/file-1* sub/
btrfs -q subvolume create sub/nested; echo nested > sub/nested/file
sync; btrfs -q subvolume snapshot . snap; btrfs -q subvolume snapshot -r sub subsnap
head -c 150000 /dev/urandom > alone; echo changed > d/file-2; rm d/file-3*; echo new > snap/new; rm -r snap/d/file-4*
sync
"#;

/// Makes a volume and runs `script` in it.
pub fn make(path: &Path, mkfs: &[&str], options: &str, script: &str) {
    mkfs_btrfs(path, SIZE, mkfs);
    change(path, options, script);
}

/// Mounts a volume and runs `script` in it.
pub fn change(path: &Path, options: &str, script: &str) {
    let mount = KernelMount::mount(path, Access::ReadWrite, options).expect("the kernel mounts it");
    run_script(mount.path(), script);
    mount.unmount().expect("it can be unmounted");
}

/// Mounts a volume, runs `script` in it and copies the image while it is
/// mounted, as a crash would leave it.
pub fn crash(path: &Path, options: &str, script: &str, copy: &Path) {
    let mount = KernelMount::mount(path, Access::ReadWrite, options).expect("the kernel mounts it");
    run_script(mount.path(), script);
    sparse_copy(path, copy);
    mount.unmount().expect("it can be unmounted");
}

/// Copies an image with its holes.
pub fn sparse_copy(from: &Path, to: &Path) {
    let words = ["--sparse=always".as_ref(), from.as_os_str(), to.as_os_str()];
    let done = Command::new("cp").args(words).status().expect("cp runs");
    assert!(done.success());
}

/// Makes files and several snapshots, and changes files in all of them.
const SHARED: &str = r#"
btrfs -q subvolume create source
for i in $(seq 900); do echo "line $i of a file with some text in it" > source/file-$i; done
seq 100000 250000 > source/big; sync
for s in 1 2 3 4; do
  btrfs -q subvolume snapshot source snap$s
  for i in $(seq $s 60 900); do echo $s > source/file-$i; done
  for i in $(seq $s 70 900); do echo $s > snap$s/file-$i; done; sync
done
"#;

/// Makes a volume in the middle of a balance. Its relocation trees are neither
/// merged nor deleted yet.
pub fn balancing(path: &Path, mkfs: &[&str]) {
    let act = "btrfs -q balance start --full-balance .";
    caught(path, mkfs, act, |roots| {
        let is_relocation = |(key, _): &&(Key, _)| key.objectid == TreeId::RELOC.get();
        let mut trees = roots.iter().filter(is_relocation).peekable();
        let is_whole = |item: &RootItem| item.refs > 0 && item.drop_progress.is_none();
        trees.peek().is_some() && trees.all(|(_, item)| is_whole(item) && item.level > 0)
    });
}

/// Makes a volume in the middle of the deletion of a subvolume that shares nodes
/// with others.
pub fn deleting(path: &Path, mkfs: &[&str]) {
    let act = "btrfs -q subvolume snapshot source doomed; sync -f .; \
        for i in $(seq 1 3 900); do echo more > doomed/file-$i; done; sync -f .; \
        btrfs -q subvolume delete -C doomed; btrfs -q subvolume sync .";
    caught(path, mkfs, act, |roots| {
        roots.iter().any(|(_, item)| item.refs == 0)
    });
}

fn roots(image: &Image) -> Vec<(Key, RootItem)> {
    let items = image.items(TreeId::ROOT).into_iter();
    items
        .filter(|(key, _)| key.item_type == ItemType::ROOT_ITEM)
        .map(|(key, data)| (key, RootItem::parse(&data).expect("a root item")))
        .collect()
}

/// How often `act` runs until a copy fits.
const TRIES_MAX: usize = 40;

/// Copies a volume while `act` runs in it, as a crash would leave it, at a moment
/// when its roots fit. The image lies on another volume, where the kernel copies
/// it at one moment by a reflink.
fn caught(path: &Path, mkfs: &[&str], act: &str, fits: impl Fn(&[(Key, RootItem)]) -> bool) {
    let below = path.with_extension("below");
    mkfs_btrfs(&below, 4 << 30, &["-m", "single"]);
    let below_mount = KernelMount::mount(&below, Access::ReadWrite, "").expect("it can be mounted");
    let image = below_mount.path().join("image");
    let copy = below_mount.path().join("copy");
    make(&image, mkfs, "", SHARED);
    let mount = KernelMount::mount(&image, Access::ReadWrite, "").expect("it can be mounted");
    let mut caught = false;
    for _ in 0..TRIES_MAX {
        let mut act = Command::new("bash")
            .args(["-c", act])
            .current_dir(mount.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("bash runs");
        while !caught && act.try_wait().expect("it can be waited for").is_none() {
            let words = [
                "--reflink=always".as_ref(),
                image.as_os_str(),
                copy.as_ref(),
            ];
            let done = Command::new("cp").args(words).status().expect("cp runs");
            assert!(done.success());
            caught = fits(&roots(&Image::open(&copy)));
        }
        act.wait().expect("it can be waited for");
        if caught {
            break;
        }
    }
    assert!(caught, "no copy caught it in the act: {act}");
    sparse_copy(&copy, path);
    mount.unmount().expect("it can be unmounted");
    below_mount.unmount().expect("it can be unmounted");
    std::fs::remove_file(&below).expect("it can be removed");
}
