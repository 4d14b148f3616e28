//! Streams that ButterFS makes from snapshots of the kernel, received by the
//! kernel: equal by content, names and metadata.

mod common;

use butterfs_format::TreeId;
use butterfs_format::send_stream::Version;
use butterfs_fs::Filesystem;
use butterfs_fs::send::{Beginning, DataMode, SendOptions, SendRequest, StreamWriter};
use butterfs_testkit::differential::seeds;
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::op::generate::Generator;
use butterfs_testkit::{Manifest, Op};
use common::{KernelMount, mkfs, open_subvolume, run};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn snapshot(of: &Path, to: &Path) {
    run(
        "btrfs",
        &["subvolume", "snapshot", "-r", text(of), text(to)],
    );
}

fn subvolume_ids(mount: &Path) -> BTreeMap<String, TreeId> {
    let list = run("btrfs", &["subvolume", "list", text(mount)]);
    list.lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[8].to_owned(), TreeId(words[1].parse().unwrap()))
        })
        .collect()
}

/// Which parent, version and data a stream has.
struct How<'a> {
    parent: Option<TreeId>,
    sources: &'a [TreeId],
    version: Version,
    data: DataMode,
}

fn send(fs: &Filesystem, name: &str, tree: TreeId, how: &How<'_>, to: &Path) {
    let file = File::create(to).unwrap();
    let mut out = StreamWriter::new(file, how.version, Beginning::Header);
    let request = SendRequest {
        subvolume: tree,
        name: name.as_bytes(),
        parent: how.parent,
        clone_sources: how.sources,
    };
    let options = SendOptions {
        version: how.version,
        data: how.data,
        ..SendOptions::default()
    };
    fs.send(&request, &options, &mut out)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    out.finish().unwrap();
}

fn receive(stream: &Path, into: &Path) -> Result<(), String> {
    let out = std::process::Command::new("btrfs")
        .args(["receive", "-f", text(stream), text(into)])
        .output()
        .unwrap();
    if out.status.success() {
        return Ok(());
    }
    let dump = std::process::Command::new("btrfs")
        .args(["receive", "--dump", "-f", text(stream)])
        .output()
        .unwrap();
    let _ = std::fs::write("/tmp/butterfs-send-dump.txt", &dump.stdout);
    Err(String::from_utf8_lossy(&out.stderr).into_owned())
}

const WAYS: [(Version, DataMode); 3] = [
    (Version::One, DataMode::Plain),
    (Version::Two, DataMode::Plain),
    (Version::Two, DataMode::Encoded),
];

/// Two snapshots for each seed, with random operations before and between.
fn random_pairs(seeds: std::ops::Range<u64>, options: &str, mkfs_options: &[&str]) {
    let (dir, image) = mkfs(3 << 30, mkfs_options);
    let mount = KernelMount::new(&image, dir.path(), options);
    for seed in seeds.clone() {
        let base = mount.path().join(format!("base{seed}"));
        run("btrfs", &["subvolume", "create", text(&base)]);
        let apply = |op: Op| {
            if !matches!(op, Op::Remount | Op::Sync | Op::Fsync { .. }) {
                let _ = apply_to_path(&op, &base);
            }
        };
        let mut operations = Generator::new(seed);
        operations.by_ref().take(200).for_each(apply);
        snapshot(&base, &mount.path().join(format!("a{seed}")));
        let count = [5, 30, 200][(seed % 3) as usize];
        operations.take(count).for_each(apply);
        snapshot(&base, &mount.path().join(format!("b{seed}")));
    }
    let ids = subvolume_ids(mount.path());
    drop(mount);
    let fs = open_subvolume(&image, TreeId::FS);
    let streams = tempfile::tempdir_in(dir.path()).unwrap();
    for seed in seeds.clone() {
        let (version, data) = WAYS[(seed % 3) as usize];
        let (a, b) = (format!("a{seed}"), format!("b{seed}"));
        let full = How {
            parent: None,
            sources: &[],
            version,
            data,
        };
        send(&fs, &a, ids[&a], &full, &streams.path().join(&a));
        let how = How {
            parent: Some(ids[&a]),
            ..full
        };
        send(&fs, &b, ids[&b], &how, &streams.path().join(&b));
    }
    drop(fs);
    let (target_dir, target_image) = mkfs(3 << 30, &[]);
    let target = KernelMount::new(&target_image, target_dir.path(), "rw");
    let source = KernelMount::new(&image, dir.path(), "ro");
    for seed in seeds {
        for name in [format!("a{seed}"), format!("b{seed}")] {
            receive(&streams.path().join(&name), target.path())
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let expected = Manifest::of(&MountedTree::new(&source.path().join(&name))).unwrap();
            let found = Manifest::of(&MountedTree::new(&target.path().join(&name))).unwrap();
            found.assert_same(&expected, &format!("{name} {options}"));
        }
    }
}

#[test]
fn random_changes_are_received_by_the_kernel() {
    if !common::is_root() {
        return;
    }
    clear_umask();
    let all: Vec<u64> = seeds(0..60).collect();
    for (round, some) in all.chunks(20).enumerate() {
        let (first, last) = (some[0], some[some.len() - 1] + 1);
        match round % 3 {
            0 => random_pairs(first..last, "rw", &[]),
            1 => random_pairs(first..last, "compress-force=zstd", &["-n", "4096"]),
            _ => random_pairs(first..last, "compress-force=lzo", &["-O", "^no-holes"]),
        }
    }
}
