//! Streams that ButterFS makes from snapshots of the kernel, received by the
//! kernel: equal by content, names and metadata.

mod common;

use butterfs_format::TreeId;
use butterfs_format::send_stream::{CommandHeader, CommandKind, Version};
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

/// Two snapshots for each seed, with random operations before the first and
/// between the two.
fn random_pairs(
    seeds: std::ops::Range<u64>,
    options: &str,
    mkfs_options: &[&str],
) -> BTreeMap<CommandKind, usize> {
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
        // A branch beside it gives the same inode numbers to other files, in
        // the same generations.
        let branch = mount.path().join(format!("branch{seed}"));
        run(
            "btrfs",
            &["subvolume", "snapshot", text(&base), text(&branch)],
        );
        let mut others = Generator::new(seed + 1_000_000);
        for op in operations.take(count) {
            apply(op);
            if let Some(op) = others.next()
                && !matches!(op, Op::Remount | Op::Sync | Op::Fsync { .. })
            {
                let _ = apply_to_path(&op, &branch);
            }
        }
        snapshot(&base, &mount.path().join(format!("b{seed}")));
        snapshot(&branch, &mount.path().join(format!("c{seed}")));
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
        let c = format!("c{seed}");
        let sources = [ids[&a]];
        let how = How {
            parent: Some(ids[&b]),
            sources: &sources,
            ..full
        };
        send(&fs, &c, ids[&c], &how, &streams.path().join(&c));
        // The parent has another origin.
        if seed + 1 < seeds.end {
            let other = format!("a{}", seed + 1);
            let file = streams.path().join(format!("x{seed}"));
            let how = How {
                sources: &[],
                ..how
            };
            send(&fs, &format!("x{seed}"), ids[&other], &how, &file);
        }
    }
    drop(fs);
    let mut kinds = BTreeMap::new();
    let (target_dir, target_image) = mkfs(3 << 30, &[]);
    let target = KernelMount::new(&target_image, target_dir.path(), "rw");
    let source = KernelMount::new(&image, dir.path(), "ro");
    let last = seeds.end;
    for seed in seeds {
        let next = seed + 1;
        let mut names = ["a", "b", "c"]
            .map(|kind| [format!("{kind}{seed}"), format!("{kind}{seed}")])
            .to_vec();
        if next < last {
            names.push([format!("x{seed}"), format!("a{next}")]);
        }
        for [name, same] in names {
            count_commands(&streams.path().join(&name), &mut kinds);
            receive(&streams.path().join(&name), target.path())
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let expected = Manifest::of(&MountedTree::new(&source.path().join(&same))).unwrap();
            let found = Manifest::of(&MountedTree::new(&target.path().join(&name))).unwrap();
            if std::env::var_os("BUTTERFS_KEEP").is_some()
                && !found.differences(&expected, 1).is_empty()
            {
                let kept = Path::new("/tmp/butterfs-send-kept");
                let _ = std::fs::create_dir_all(kept);
                for name in [&name, &same, &format!("b{seed}")] {
                    let _ = std::fs::copy(streams.path().join(name), kept.join(name));
                }
                let _ = std::fs::copy(&image, kept.join("source.img"));
            }
            found.assert_same(&expected, &format!("{name} {options}"));
            if name.starts_with('x') {
                run(
                    "btrfs",
                    &["subvolume", "delete", text(&target.path().join(&name))],
                );
            }
        }
    }
    kinds
}

/// Counts the commands of a stream by kind, temporary renames into the root
/// among them.
fn count_commands(stream: &Path, kinds: &mut BTreeMap<CommandKind, usize>) {
    let bytes = std::fs::read(stream).unwrap();
    let (header, mut rest) = bytes.split_first_chunk().unwrap();
    let version = Version::parse_header(header).unwrap();
    while let Some((header, after)) = rest.split_first_chunk() {
        let header = CommandHeader::parse(header, version).unwrap();
        let (body, after) = after.split_at(header.length);
        let command = header.command(body).unwrap();
        *kinds.entry(command.kind()).or_default() += 1;
        rest = after;
    }
}

#[test]
fn random_changes_are_received_by_the_kernel() {
    if !common::is_root() {
        return;
    }
    clear_umask();
    let all: Vec<u64> = seeds(0..60).collect();
    let mut kinds = BTreeMap::new();
    for (round, some) in all.chunks(20).enumerate() {
        let (first, last) = (some[0], some[some.len() - 1] + 1);
        let found = match round % 3 {
            0 => random_pairs(first..last, "rw", &[]),
            1 => random_pairs(first..last, "compress-force=zstd", &["-n", "4096"]),
            _ => random_pairs(first..last, "compress-force=lzo", &["-O", "^no-holes"]),
        };
        for (kind, count) in found {
            *kinds.entry(kind).or_default() += count;
        }
    }
    // Every command that we use came, and came often.
    for (kind, _, name) in CommandKind::TABLE {
        let count: usize = kinds.get(kind).copied().unwrap_or_default();
        let unused = matches!(
            kind,
            CommandKind::UpdateExtent | CommandKind::FileFlags | CommandKind::EnableVerity
        );
        eprintln!("{name}: {count}");
        assert!(
            unused || all.len() < 60 || count > 10,
            "{name} came {count} times"
        );
    }
}
