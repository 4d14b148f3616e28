//! Images of each feature that mke2fs has, filled by the kernel: converted,
//! compared with what the kernel's ext4 showed, and given back.

mod support;

use butterfs_convert::{DataSums, Inline, Options};
use butterfs_testkit::judge::{DataChecksums, Mode, btrfs_check, scratch_dir};
use butterfs_testkit::run_script;
use std::fs;
use std::process::Command;
use support::{
    MIB, Mounted, assert_same, assert_same_bytes, can_mount, convert, device, fill, judge, mke2fs,
    options, rollback, round_trip, run, shown, shown_by_ext4,
};

/// A bit of everything.
const FILES: &str = r#"
mkdir -p a/b/c deep many
echo hello > a/small
head -c 3000 /dev/urandom > a/more
head -c 100000 /dev/urandom > a/b/middle
head -c 3000001 /dev/urandom > large
: > empty
truncate -s 5000000 sparse
printf x | dd of=sparse bs=1 seek=4500000 conv=notrunc status=none
truncate -s 1500 hole
ln -s small a/link
ln -s "$(printf 'x%.0s' $(seq 500))" a/long
ln large hard1; ln large a/hard2
mknod null c 1 3; mknod disk b 8 300; mkfifo fifo
python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind("socket")'
for i in $(seq 600); do echo $i > many/a-file-with-a-long-name-$i; done
for i in $(seq 60); do ln a/more a/b/c/another-name-of-the-same-file-$i; done
python3 - <<'END'
import os
os.setxattr("a/small", "user.note", b"value")
os.setxattr("a/small", "trusted.t", b"\x00\x01" * 40)
os.setxattr("large", "user.long", b"v" * 900)
acl = bytes.fromhex("02000000" "01000600ffffffff" "02000400e8030000" "04000400ffffffff"
                    "10000600ffffffff" "20000000ffffffff")
os.setxattr("large", "system.posix_acl_access", acl)
os.setxattr("a", "system.posix_acl_default", acl)
os.setxattr("a/link", "trusted.l", b"of the link", follow_symlinks=False)
os.utime("a/small", ns=(1, 5_000_000_000 * 10**9 + 123456789))
os.utime("a/more", ns=(-10**9 * 10, 987654321))
fd = os.open("prealloc", os.O_CREAT | os.O_RDWR)
os.posix_fallocate(fd, 0, 300000)
os.pwrite(fd, b"written", 100000)
os.close(fd)
END
: > beyond; fallocate -n -l 200000 beyond || true; printf some >> beyond
fallocate -p -o 8192 -l 50000 large || true
chown 1000:100 a/b/middle; chown 70000:80000 a/more; chmod 4711 a/more
chattr +i a/b/middle; chattr +a a/more; chattr +d hole; chattr +A large; chattr +S sparse
chattr +D many 2>/dev/null || true
"#;

fn feature(name: &str, size: u64, arguments: &[&str], options: &Options) {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    let image = directory.path().join("image");
    mke2fs(&image, size, arguments);
    fill(&image, FILES);
    round_trip(&image, options, name);
}

macro_rules! features {
    ($($name:ident: $size:expr, $arguments:expr;)*) => {
        $(#[test]
        fn $name() {
            feature(stringify!($name), $size, &$arguments, &options());
        })*
    };
}

features! {
    today: 128 * MIB, ["-t", "ext4"];
    ext2: 96 * MIB, ["-t", "ext2", "-b", "4096"];
    ext3_of_1k: 96 * MIB, ["-t", "ext3", "-b", "1024"];
    ext4_of_1k: 64 * MIB, ["-t", "ext4", "-b", "1024"];
    ext4_of_2k: 96 * MIB, ["-t", "ext4", "-b", "2048"];
    without_filetype: 64 * MIB, ["-t", "ext4", "-O", "^filetype", "-I", "128"];
    old_inodes: 64 * MIB, ["-t", "ext4", "-b", "4096", "-I", "128"];
    large_inodes: 96 * MIB, ["-t", "ext4", "-b", "4096", "-I", "1024"];
    bigalloc: 128 * MIB, ["-t", "ext4", "-O", "bigalloc", "-C", "65536"];
    meta_bg: 96 * MIB, ["-t", "ext4", "-O", "meta_bg,^resize_inode"];
    uninit_bg: 96 * MIB, ["-t", "ext4", "-O", "uninit_bg,^metadata_csum"];
    sparse_super2: 96 * MIB, ["-t", "ext4", "-O", "sparse_super2,^resize_inode"];
    plain_groups: 96 * MIB, ["-t", "ext4", "-O", "^flex_bg,^resize_inode,^64bit"];
    without_journal: 64 * MIB, ["-t", "ext4", "-O", "^has_journal"];
    inline_data: 64 * MIB, ["-t", "ext4", "-O", "inline_data"];
    ea_inode: 64 * MIB, ["-t", "ext4", "-O", "ea_inode"];
    large_dir: 64 * MIB, ["-t", "ext4", "-O", "large_dir,metadata_csum_seed"];
    stable_inodes: 64 * MIB, ["-t", "ext4", "-O", "stable_inodes,orphan_file"];
    odd_size: 77 * MIB + 5 * 1024, ["-t", "ext4", "-b", "1024"];
}

/// Features that not every kernel mounts: filled by mke2fs.
#[test]
fn without_the_kernel() {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    let files = directory.path().join("files");
    fs::create_dir(&files).unwrap();
    run_script(
        &files,
        "mkdir -p a/b; for i in $(seq 50); do seq $i $((i * i * 9)) > a/b/$i; done; ln -s b a/l",
    );
    let image = directory.path().join("image");
    for arguments in [
        &["-t", "ext4", "-O", "quota,project", "-I", "256"][..],
        &["-t", "ext4", "-O", "casefold"],
        // Blocks that are larger than a page.
        &["-t", "ext4", "-b", "16384"],
        &["-t", "ext4", "-b", "65536"],
        &[
            "-t", "ext4", "-b", "65536", "-O", "bigalloc", "-C", "262144",
        ],
    ] {
        let context = format!("{arguments:?}");
        let filled = [arguments, &["-d", files.to_str().unwrap()]].concat();
        mke2fs(&image, 256 * MIB, &filled);
        // mke2fs counts quotas wrongly.
        Command::new("e2fsck")
            .args(["-fy", image.to_str().unwrap()])
            .output()
            .unwrap();
        let before = fs::read(&image).unwrap();
        let converted = convert(&image, &options()).unwrap();
        let loses = context.contains("casefold") || context.contains("quota");
        assert_eq!(loses, !converted.lost.is_empty(), "{:?}", converted.lost);
        judge(&image, &context);
        {
            let mounted = Mounted::new(&image, "btrfs", "ro");
            let shown = shown(&mounted.point);
            for (path, source) in support::shown(&files) {
                let own = &shown[&path];
                assert_eq!(own.content, source.content, "{context}: {}", path.display());
                assert_eq!(own.mode, source.mode, "{context}: {}", path.display());
            }
        }
        rollback(&image).unwrap();
        run("e2fsck", &["-fn", image.to_str().unwrap()]);
        assert_same_bytes(&before, &fs::read(&image).unwrap(), &context);
    }
}

/// Names that need INODE_EXTREF items. btrfs check 6.2 in lowmem mode takes
/// those of the kernel's for faults, too.
#[test]
fn thousands_of_links() {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    let image = directory.path().join("image");
    mke2fs(&image, 128 * MIB, &["-t", "ext4"]);
    let links = match std::env::var_os("BUTTERFS_SEEDS") {
        Some(_) => 64_999,
        None => 3000,
    };
    let script = format!(
        "python3 -c 'import os
open(\"file\", \"w\").write(\"content\" * 1000)
for i in range({links}): os.link(\"file\", \"link-%d\" % i)'"
    );
    fill(&image, &script);
    let before = shown_by_ext4(&image);
    convert(&image, &options()).unwrap();
    support::judge_device(device(&image), "links");
    let verdict = btrfs_check(&image, Mode::Original, DataChecksums::Verify);
    verdict.assert_clean("links");
    let mounted = Mounted::new(&image, "btrfs", "ro,noatime");
    assert_same(&before, &shown(&mounted.point), "links");
}

#[test]
fn each_option() {
    let large = Options {
        node_size: 65536,
        data_sums: DataSums::LeftOut,
        ..options()
    };
    feature(
        "64k nodes, no checksums",
        160 * MIB,
        &["-t", "ext4"],
        &large,
    );
    let small = Options {
        node_size: 4096,
        inline: Inline::Never,
        checksum: butterfs_format::ChecksumType::Sha256,
        ..options()
    };
    feature(
        "4k nodes, nothing inline",
        96 * MIB,
        &["-t", "ext4"],
        &small,
    );
    let old = Options {
        compat_ro: butterfs_format::features::CompatRo::default(),
        checksum: butterfs_format::ChecksumType::Xxhash,
        ..options()
    };
    feature("no free-space tree", 96 * MIB, &["-t", "ext4"], &old);
}
