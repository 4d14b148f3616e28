//! Random images: features, block sizes, files, fragmentation and fullness
//! come from a seed. `BUTTERFS_SEEDS=a..b` runs others.

mod support;

use butterfs_convert::{ConvertError, Inline, Options, Unwatched, plan};
use butterfs_format::ChecksumType;
use butterfs_testkit::Random;
use butterfs_testkit::differential::seeds;
use butterfs_testkit::judge::scratch_dir;
use std::fs;
use std::process::Command;
use support::{MIB, Mounted, can_mount, mke2fs, options, round_trip};

const FEATURES: [&str; 14] = [
    "^64bit",
    "^flex_bg",
    "^resize_inode",
    "^metadata_csum",
    "inline_data",
    "ea_inode",
    "large_dir",
    "^has_journal",
    "^dir_index",
    "^huge_file",
    "sparse_super2",
    "orphan_file",
    "^extra_isize",
    "metadata_csum_seed",
];

fn arguments(random: &mut Random) -> Vec<String> {
    let block = *random.pick(&["1024", "2048", "4096", "4096", "4096"]);
    let mut features: Vec<&str> = FEATURES.into_iter().filter(|_| random.one_in(5)).collect();
    // These exclude each other.
    if features.contains(&"sparse_super2") && !features.contains(&"^resize_inode") {
        features.push("^resize_inode");
    }
    if features.contains(&"^metadata_csum") {
        features.retain(|one| *one != "metadata_csum_seed");
        if random.one_in(2) {
            features.push("uninit_bg");
        }
    }
    if features.contains(&"^has_journal") {
        features.retain(|one| *one != "orphan_file");
    }
    if random.one_in(6) {
        features.retain(|one| *one != "^64bit");
        features.extend(["bigalloc", "64bit"]);
    } else if random.one_in(6) {
        features.extend(["meta_bg", "^resize_inode"]);
    }
    if random.one_in(8) {
        features = vec!["^extents", "^64bit", "^flex_bg"];
    }
    let inode = *random.pick(&["128", "256", "256", "512"]);
    let inode = if features.contains(&"inline_data") {
        "256"
    } else {
        inode
    };
    let mut all: Vec<String> = ["-t", "ext4", "-b", block, "-I", inode, "-m", "0"]
        .map(str::to_owned)
        .to_vec();
    if !features.is_empty() {
        all.extend(["-O".to_owned(), features.join(",")]);
    }
    all
}

/// Files that take about `percent` of the room: some are deleted again, so that
/// free space and later files are in pieces.
fn script(seed: u64, percent: u64) -> String {
    format!(
        r#"
import os, random
r = random.Random({seed})
s = os.statvfs(".")
room = s.f_bavail * s.f_frsize
limit = room * {percent} // 100
paths, used, number = [], 0, 0
dirs = ["."]
while used < limit and number < 3000:
    number += 1
    if r.random() < 0.1:
        path = os.path.join(r.choice(dirs), "d%d-%s" % (number, "x" * r.randrange(60)))
        os.mkdir(path); dirs.append(path); continue
    path = os.path.join(r.choice(dirs), "f%d-%s" % (number, "y" * r.randrange(120)))
    size = int(r.choice([0, 10, 100, 2048, 2049, 4096, 5000, 40000, 200000, 2000000]) * r.random() * 2)
    size = min(size, max(limit - used, 0))
    try:
        with open(path, "wb") as f:
            kind = r.random()
            if kind < 0.15:
                f.truncate(size); f.seek(int(size * r.random())); f.write(b"in the middle")
            elif kind < 0.3:
                if size: os.posix_fallocate(f.fileno(), 0, size)
                f.seek(int(size * r.random())); f.write(os.urandom(min(size, 30000)))
            else:
                f.write(os.urandom(size))
        os.utime(path, ns=(r.randrange(2**34) * 10**9 + r.randrange(10**9), r.randrange(-2**31, 2**33) * 10**9 + 5))
        if r.random() < 0.2: os.setxattr(path, "user.x%d" % number, b"v" * r.randrange(200))
        if r.random() < 0.1: os.link(path, path[:200] + ".link")
        if r.random() < 0.1: os.symlink("z" * (1 + r.randrange(200)), path[:200] + ".symlink")
        os.chmod(path, r.randrange(0o10000)); os.chown(path, r.randrange(100000), r.randrange(70000))
    except OSError: break
    used += size
    paths.append(path)
    if r.random() < 0.4 and paths:
        victim = paths.pop(r.randrange(len(paths)))
        try: used -= os.path.getsize(victim); os.unlink(victim)
        except OSError: pass
"#
    )
}

#[test]
fn random_images() {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    let image = directory.path().join("image");
    let (mut converted, mut refused) = (0, 0);
    for seed in seeds(0..8) {
        let mut random = Random::new(seed);
        let arguments = arguments(&mut random);
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let size = 20 * MIB + random.below(120) * MIB + random.below(1024) * 1024;
        let percent = *random.pick(&[5, 30, 60, 80, 90, 97, 99]);
        let context = format!("seed {seed}, {words:?}, {size} bytes, {percent} % full");
        mke2fs(&image, size, &words);
        {
            let mounted = Mounted::new(&image, "ext4", "noatime");
            let out = Command::new("python3")
                .args(["-c", &script(seed, percent)])
                .current_dir(&mounted.point)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.success(), "{context}: {said}");
        }
        zero_free_blocks(&image);
        let options = Options {
            node_size: *random.pick(&[4096, 16384, 16384, 65536]),
            checksum: *random.pick(&[ChecksumType::Crc32c, ChecksumType::Xxhash]),
            inline: *random.pick(&[Inline::Small, Inline::Never]),
            ..options()
        };
        let planned = plan(&support::device(&image), &options, &Unwatched);
        match planned {
            Ok(_) => {
                converted += 1;
                round_trip(&image, &options, &context);
            }
            Err(ConvertError::NoSpace { .. }) => refused += 1,
            Err(other) => panic!("{context}: {other}"),
        }
    }
    println!("{converted} converted, {refused} refused for lack of space");
}

/// So that the whole device can be compared after the way back: blocks that are
/// free hold nothing.
fn zero_free_blocks(image: &std::path::Path) {
    let bytes = support::used(image);
    let mut whole = fs::read(image).unwrap();
    let length = bytes.len().min(whole.len());
    whole[..length].copy_from_slice(&bytes[..length]);
    fs::write(image, whole).unwrap();
}
