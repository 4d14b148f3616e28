//! Volumes that mkfs.btrfs and the kernel make.

use butterfs_testkit::capability::Capability;
use butterfs_testkit::judge::{Access, KernelMount, mkfs_btrfs};
use butterfs_testkit::run_script;
use std::path::Path;
use std::process::Command;

/// Size of an image, most of it a hole.
pub const SIZE: u64 = 600 << 20;

/// True where the kernel can make volumes; says otherwise why not.
pub fn can_make() -> bool {
    let mut needed = Capability::KERNEL_MOUNT.to_vec();
    needed.push(Capability::Program("btrfs"));
    Capability::all_here(&needed)
}

/// A volume of two nodes levels with a little of everything.
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
