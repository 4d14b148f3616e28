//! Changes that are hard to express as a stream, one by one, received by the
//! kernel.

mod common;

use butterfs_format::TreeId;
use butterfs_format::send_stream::Version;
use butterfs_fs::send::{Beginning, DataMode, SendOptions, SendRequest, StreamWriter};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::{Manifest, run_script};
use common::{KernelMount, mkfs, open_subvolume, run};
use std::path::Path;

/// A name, the state of the tree before, and the change.
type Case = (&'static str, &'static str, &'static str);

const CASES: &[Case] = &[
    (
        "two directories change places",
        "mkdir a b; echo 1 > a/x; echo 2 > b/y",
        "mv a t; mv b a; mv t b",
    ),
    (
        "a directory goes below its own child",
        "mkdir -p a/b/c; echo 1 > a/f; echo 2 > a/b/g",
        "mv a/b t; mv a t/c/a; mv t b",
    ),
    (
        "a chain turns round",
        "mkdir -p 1/2/3/4/5; for n in 1 1/2 1/2/3; do echo $n > $n/f; done",
        "mv 1/2/3/4/5 t5; mv 1/2/3/4 t5/4; mv 1/2/3 t5/4/3; mv 1/2 t5/4/3/2; mv 1 t5/4/3/2/1; mv t5 5",
    ),
    (
        "each name goes on to the next",
        "for n in 1 2 3 4 5 6; do echo $n > f$n; mkdir d$n; echo $n > d$n/x; done",
        "mv f6 t; for n in 5 4 3 2 1; do mv f$n f$((n+1)); done; mv t f1; \
         mv d6 t; for n in 5 4 3 2 1; do mv d$n d$((n+1)); done; mv t d1",
    ),
    (
        "a file takes the name of a directory, and the other way round",
        "mkdir a; echo 1 > a/x; echo 2 > b",
        "mv a t; mv b a; mv t b",
    ),
    (
        "children leave a directory that goes",
        "mkdir -p a/b/c a/d; echo 1 > a/b/c/f; echo 2 > a/b/g; echo 3 > a/d/h",
        "mv a/b/c/f f; mv a/d d; mv a/b/c e; rm -r a",
    ),
    (
        "a new directory takes the name of one that goes, with its children",
        "mkdir -p a/b; echo 1 > a/f; echo 2 > a/b/g",
        "mv a t; mkdir a; mv t/f a/f; mv t/b a/b; rm -r t",
    ),
    (
        "children come before their parents by number",
        "mkdir a; echo 1 > a/f; echo 2 > g",
        "mkdir -p n/m/o; mv g n/m/o/g; mv a n/m/a; mkdir n/m/o/p; mv n/m/a/f n/m/o/p/f",
    ),
    (
        "hard links come and go",
        "mkdir a b; echo 1 > a/f; ln a/f b/f; ln a/f g; for n in $(seq 40); do ln a/f a/l$n; done",
        "rm a/f g; ln b/f a/h; mv b/f b/g; rm a/l1*; mkdir c; mv a/l2 c/f; ln c/f c/g; rm -r b",
    ),
    (
        "all links change their names in a circle",
        "echo 1 > a; echo 2 > b; echo 3 > c; ln a a2; ln b b2; ln c c2",
        "mv a t; mv b a; mv c b; mv t c; mv a2 t; mv c2 a2; mv b2 c2; mv t b2",
    ),
    (
        "names of passing files are taken",
        "mkdir a b; for n in $(seq 256 300); do for g in $(seq 5 12); do : > o$n-$g-0; done; done",
        "mv a t; mv b a; mv t b; mv o257-7-0 t; mv o258-7-0 o257-7-0; mv t o258-7-0",
    ),
    (
        "what directories hand down",
        "mkdir a b; setfacl -d -m u:5:rwx a; setfattr -n btrfs.compression -v zstd b; echo 1 > a/old",
        "echo 1 > a/new; mkdir a/d; echo 2 > a/d/x; echo 3 > b/new; echo 4 > plain; mv plain a/plain; \
         echo 5 > b/none; setfattr -n btrfs.compression -v '' b/none; mkdir c; setfacl -d -m u:6:r c; \
         touch c/f; setfacl -b c/f; mkdir c/e; setfacl -k c/e",
    ),
    (
        "what directories handed down is taken back",
        "mkdir a; setfacl -d -m u:5:rwx a; setfacl -m u:7:rx a; echo 1 > a/f",
        "echo 2 > a/g; setfacl -k a; echo 3 > a/h; setfacl -x u:7 a",
    ),
    (
        "the root hands down",
        "setfacl -d -m u:5:rwx .; setfattr -n btrfs.compression -v lzo .; echo 1 > f",
        "echo 2 > g; mkdir d; setfacl -b -k d; echo 3 > d/x; setfacl -b g; setfacl -k .",
    ),
    (
        "capabilities outlive owners and content",
        "for n in 1 2 3 4; do cp /bin/true f$n; done; setcap cap_net_raw+ep f1 cap_net_raw+ep f2; \
         setcap cap_net_raw+ep f3",
        "chown 5:6 f1; setcap cap_net_raw+ep f1; echo more >> f2; setcap cap_net_raw+ep f2; \
         setcap -r f3; chown 7 f4; setcap cap_chown+ep f4; cp /bin/true f5; chown 9:9 f5; \
         chmod 6755 f5; cp /bin/true f6; chmod 4711 f6; chown 3 f6; chmod 4711 f6",
    ),
    (
        "holes, space and ends",
        "head -c 300000 /dev/urandom > a; head -c 300000 /dev/urandom > b; \
         head -c 300000 /dev/urandom > c; head -c 100 /dev/urandom > d; fallocate -l 1M e; \
         head -c 9000 /dev/urandom > f; truncate -s 5M g; head -c 2000 /dev/urandom > h",
        "fallocate -p -o 4096 -l 65536 a; fallocate -p -o 100 -l 50 a; truncate -s 12345 b; \
         truncate -s 200000 b; fallocate -n -l 2M c; truncate -s 5000 d; \
         dd if=/dev/urandom of=e bs=4k count=3 seek=20 conv=notrunc status=none; \
         truncate -s 4097 f; dd if=/dev/urandom of=g bs=1k count=5 seek=3000 conv=notrunc status=none; \
         head -c 8000 /dev/urandom >> h; fallocate -z -o 0 -l 8192 h; fallocate -l 3M i; \
         : > j; fallocate -n -l 3M j; echo x > j",
    ),
    (
        "clones, of parts of sectors too",
        "head -c 200001 /dev/urandom > a; head -c 5000 /dev/urandom > b; sync",
        "cp --reflink=always a a2; cp --reflink=always b b2; echo x >> b2; \
         head -c 200001 a > c; sync; xfs_io -c 'reflink a 4096 8192 65536' c 2>/dev/null; \
         cp --reflink=always a a3; truncate -s 100000 a3; truncate -s 150000 a3; rm a; mkdir d; \
         mv b d/b; cp --reflink=always d/b d/b3; chattr +C d; cp --reflink=auto a2 d/a4",
    ),
    (
        "links, pipes and devices",
        "ln -s x l1; ln -s y l2; mkfifo p; mknod n c 1 3; mknod m b 7 300",
        "rm l1; ln -s z l1; mv l2 l3; rm p; mknod p c 1 5; mv n n2; mkfifo q; rm m; echo 1 > m; \
         ln -s $(head -c 3000 /dev/zero | tr '\\0' a) long; chown -h 5:5 l3; ln l3 l4",
    ),
    (
        "subvolumes within are left out",
        "mkdir d; echo 1 > d/f; btrfs -q subvolume create d/s; echo 2 > d/s/g",
        "echo 3 > d/h; btrfs -q subvolume create n; mv d e",
    ),
    (
        "names of all bytes, and long ones",
        "mkdir \"$(printf 'a\\nb\\377')\"; echo 1 > \"$(printf 'x\\ty')\"; \
         echo 2 > $(head -c 255 /dev/zero | tr '\\0' n)",
        "mv \"$(printf 'x\\ty')\" \"$(printf 'a\\nb\\377')\"/$(head -c 255 /dev/zero | tr '\\0' m); \
         p=.; for n in $(seq 14); do p=$p/$(head -c 250 /dev/zero | tr '\\0' d); done; mkdir -p $p; \
         echo 3 > $p/f",
    ),
];

fn stream(
    image: &Path,
    trees: (Option<TreeId>, TreeId),
    name: &str,
    way: (Version, DataMode),
) -> Vec<u8> {
    let fs = open_subvolume(image, TreeId::FS);
    let mut out = StreamWriter::new(Vec::new(), way.0, Beginning::Header);
    let request = SendRequest {
        subvolume: trees.1,
        name: name.as_bytes(),
        parent: trees.0,
        clone_sources: &[],
    };
    let options = SendOptions {
        version: way.0,
        data: way.1,
        ..SendOptions::default()
    };
    fs.send(&request, &options, &mut out).unwrap();
    out.finish().unwrap()
}

fn tree_of(path: &Path) -> TreeId {
    let shown = run(
        "btrfs",
        &["inspect-internal", "rootid", path.to_str().unwrap()],
    );
    TreeId(shown.trim().parse().unwrap())
}

#[test]
fn hard_cases_are_received_by_the_kernel() {
    if !common::is_root() {
        return;
    }
    let (dir, image) = mkfs(2 << 30, &[]);
    let mount = KernelMount::new(&image, dir.path(), "compress=zstd");
    let mut trees = Vec::new();
    for (index, (_, before, change)) in CASES.iter().enumerate() {
        let at = |name: &str| mount.path().join(format!("{name}{index}"));
        let [base, a, b] = ["base", "a", "b"].map(at);
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        run("btrfs", &["subvolume", "create", &text(&base)]);
        run_script(&base, before);
        run(
            "btrfs",
            &["subvolume", "snapshot", "-r", &text(&base), &text(&a)],
        );
        run_script(&base, change);
        run(
            "btrfs",
            &["subvolume", "snapshot", "-r", &text(&base), &text(&b)],
        );
        trees.push((tree_of(&a), tree_of(&b)));
    }
    drop(mount);
    let ways = [
        (Version::One, DataMode::Plain),
        (Version::Two, DataMode::Encoded),
    ];
    for way in ways {
        let mut streams = Vec::new();
        for (index, (a, b)) in trees.iter().enumerate() {
            let names = [
                format!("a{index}"),
                format!("b{index}"),
                format!("r{index}"),
            ];
            streams.push((stream(&image, (None, *a), &names[0], way), names[0].clone()));
            streams.push((
                stream(&image, (Some(*a), *b), &names[1], way),
                names[1].clone(),
            ));
            // Back again.
            streams.push((
                stream(&image, (Some(*b), *a), &names[2], way),
                names[2].clone(),
            ));
        }
        let (target_dir, target_image) = mkfs(2 << 30, &[]);
        let target = KernelMount::new(&target_image, target_dir.path(), "rw");
        let source = KernelMount::new(&image, dir.path(), "ro");
        let file = target_dir.path().join("stream");
        for (index, (stream, name)) in streams.iter().enumerate() {
            let case = CASES[index / 3].0;
            std::fs::write(&file, stream).unwrap();
            let paths = [file.to_str().unwrap(), target.path().to_str().unwrap()];
            let out = std::process::Command::new("btrfs")
                .args(["receive", "-f", paths[0], paths[1]])
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.success(), "{case} ({name}, {way:?}): {text}");
            let same = name.replace('r', "a");
            let expected = Manifest::of(&MountedTree::new(&source.path().join(same))).unwrap();
            let found = Manifest::of(&MountedTree::new(&target.path().join(name))).unwrap();
            let context = format!("{case} ({name}, {way:?})");
            without_subvolumes(found).assert_same(&without_subvolumes(expected), &context);
        }
    }
}

/// Without the empty directories that stand for subvolumes within, which a
/// stream does not have; they count in the size of the directory they are in.
fn without_subvolumes(mut manifest: Manifest) -> Manifest {
    for path in [&b"d/s"[..], b"n", b"e/s"] {
        if manifest
            .entries
            .get(path)
            .is_some_and(|entry| entry.stat.inode & 0xff_ffff_ffff == 2)
        {
            manifest.entries.remove(path);
            let parent = path.split(|byte| *byte == b'/').next().unwrap();
            let parent = if parent == path { b"" } else { parent };
            if let Some(entry) = manifest.entries.get_mut(parent) {
                entry.stat.size = 0;
            }
        }
    }
    for path in [&b""[..], b"d", b"e"] {
        if let Some(entry) = manifest.entries.get_mut(path)
            && entry.stat.kind == butterfs_testkit::tree_view::FileKind::Directory
        {
            entry.stat.size = 0;
        }
    }
    manifest
}
