//! Volumes of every kind, written by ButterFS, judged, changed by the kernel,
//! read back and changed again; and the same with the roles exchanged.
//!
//! All of 4 checksums, 4 ways to compress, 3 node sizes, with and without a
//! block group tree, of one and of two copies, by the library. Over FUSE, a
//! selection in which every pair of choices occurs.

mod support;

use butterfs_testkit::judge::{
    Access, DataChecksums, KernelMount, Mode, btrfs_check, judge_image, mkfs_btrfs, scratch_dir,
};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::op::generate::Generator;
use butterfs_testkit::{Capability, FuseMount, Manifest, Op, Oracle, butterfs_program};
use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::{LibraryTree, apply_to_library, mkfs};

/// Sparse: only what is written takes memory.
const SIZE: u64 = 1 << 30;
/// Operations of each writer.
const OPERATIONS: usize = 300;

const CHECKSUMS: [&str; 4] = ["crc32c", "xxhash64", "sha256", "blake2b"];
const COMPRESSIONS: [&str; 4] = ["none", "zlib", "lzo", "zstd"];
const NODE_SIZES: [u32; 3] = [4096, 16384, 65536];
const GROUP_TREES: [&str; 2] = ["block-group-tree", "^block-group-tree"];
const PROFILES: [&str; 2] = ["single", "dup"];

/// A kind of volume: an index into each table above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind([usize; 5]);

const SIZES: [usize; 5] = [
    CHECKSUMS.len(),
    COMPRESSIONS.len(),
    NODE_SIZES.len(),
    GROUP_TREES.len(),
    PROFILES.len(),
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.choices(), self.options())?;
        write!(f, " nodes of {}", self.node_size())
    }
}

impl Kind {
    /// All of them.
    fn all() -> Vec<Self> {
        let mut all = vec![Self([0; 5])];
        for (place, size) in SIZES.into_iter().enumerate() {
            all = (0..size)
                .flat_map(|choice| {
                    all.iter().map(move |kind| {
                        let mut kind = *kind;
                        kind.0[place] = choice;
                        kind
                    })
                })
                .collect();
        }
        all
    }

    /// Pairs of choices that it holds.
    fn pairs(self) -> impl Iterator<Item = [usize; 4]> {
        (0..5).flat_map(move |a| (0..a).map(move |b| [a, self.0[a], b, self.0[b]]))
    }

    /// Some in which every pair of choices occurs.
    fn covering() -> Vec<Self> {
        let mut left: Vec<[usize; 4]> = Self::all().into_iter().flat_map(Self::pairs).collect();
        left.sort_unstable();
        left.dedup();
        let mut chosen = Vec::new();
        while !left.is_empty() {
            let new = |kind: &Self| kind.pairs().filter(|pair| left.contains(pair)).count();
            let best = Self::all().into_iter().max_by_key(new).expect("not none");
            left.retain(|pair| !best.pairs().any(|covered| covered == *pair));
            chosen.push(best);
        }
        chosen
    }

    fn node_size(self) -> u32 {
        NODE_SIZES[self.0[2]]
    }

    /// For the library's mkfs.
    fn choices(self) -> String {
        let profile = PROFILES[self.0[4]];
        format!(
            "csum={},{},data={profile},metadata={profile}",
            CHECKSUMS[self.0[0]], GROUP_TREES[self.0[3]]
        )
    }

    /// For mounts of both sides.
    fn options(self) -> String {
        match COMPRESSIONS[self.0[1]] {
            "none" => String::new(),
            name => format!("compress-force={name}"),
        }
    }

    fn seed(self) -> u64 {
        self.0
            .iter()
            .fold(1, |seed, choice| seed * 7 + *choice as u64)
    }

    fn make(self, image: &Path) {
        mkfs(image, SIZE, self.node_size(), &self.choices());
    }

    /// As users of the kernel make it; mkfs.btrfs 6.2 makes no block group
    /// tree.
    fn make_by_progs(self, image: &Path) {
        if self.0[3] == 0 {
            return self.make(image);
        }
        let checksum = ["crc32c", "xxhash", "sha256", "blake2"][self.0[0]];
        let profile = PROFILES[self.0[4]];
        let node_size = self.node_size().to_string();
        let args = [
            "--csum", checksum, "-n", &node_size, "-d", profile, "-m", profile,
        ];
        mkfs_btrfs(image, SIZE, &args);
    }
}

/// Who changes a volume.
#[derive(Clone, Copy)]
enum Writer<'p> {
    Library,
    Fuse(&'p Path),
    Kernel,
}

/// A volume under test, and the source of its operations.
struct Trial<'d> {
    kind: Kind,
    image: &'d Path,
    operations: Generator,
}

impl<'d> Trial<'d> {
    /// Takes the first seed from `seed` on whose operations leave more than ten
    /// paths.
    fn new(kind: Kind, image: &'d Path, seed: u64) -> Self {
        let grows = |seed: &u64| {
            let mut model = Oracle::new();
            for op in Generator::new(*seed).take(OPERATIONS) {
                let _ = model.apply(&op);
            }
            model.paths().len() > 10
        };
        let seed = (seed..).find(grows).expect("many seeds do");
        Self {
            kind,
            image,
            operations: Generator::new(seed),
        }
    }

    /// Lets `writer` verify what was left and change it. Returns what it
    /// leaves.
    fn change(&mut self, writer: Writer<'_>, before: &Manifest) -> Manifest {
        let options = self.kind.options();
        let kind = self.kind;
        let operations: Vec<Op> = self.operations.by_ref().take(OPERATIONS).collect();
        // Some operations fail on purpose.
        let apply = |root: &Path| {
            let tree = MountedTree::new(root);
            let found = Manifest::of(&tree).unwrap();
            found.assert_same(before, &format!("{kind}: as the next one finds it"));
            for op in &operations {
                let _ = apply_to_path(op, root);
            }
            Manifest::of(&tree).unwrap()
        };
        match writer {
            Writer::Library => {
                let tree = LibraryTree::mount(self.image, &options);
                let found = Manifest::of(&tree).unwrap();
                found.assert_same(before, &format!("{kind}: as the library finds it"));
                for op in &operations {
                    let _ = apply_to_library(op, &tree.0);
                }
                let after = Manifest::of(&tree).unwrap();
                tree.0.close().unwrap();
                after
            }
            Writer::Fuse(program) => {
                let mount = FuseMount::mount(program, self.image, &options).unwrap();
                let after = apply(mount.path());
                mount.unmount().unwrap();
                after
            }
            Writer::Kernel => {
                let mut mount =
                    KernelMount::mount(self.image, Access::ReadWrite, &options).unwrap();
                let after = apply(mount.path());
                mount.scrub().assert_clean(&format!("{kind}: scrub"));
                let complaints = mount.unmount().unwrap();
                assert_eq!(complaints, Vec::<String>::new(), "{kind}");
                after
            }
        }
    }

    fn judge(&self, expected: &Manifest) {
        judge(self.image, expected, &self.kind.to_string());
    }
}

/// All judges of a volume that holds `expected`.
fn judge(image: &Path, expected: &Manifest, context: &str) {
    judge_image(image, context);
    let mut mount = KernelMount::mount(image, Access::ReadOnly, "").unwrap();
    let found = Manifest::of(&MountedTree::new(mount.path())).unwrap();
    found.assert_same(expected, &format!("{context}: as the kernel reads it"));
    assert_eq!(mount.complaints(), Vec::<String>::new(), "{context}");
}

/// What mkfs leaves.
fn nothing() -> Manifest {
    let mut manifest = Manifest::of(&Oracle::new()).unwrap();
    for entry in manifest.entries.values_mut() {
        entry.stat.modified = None;
    }
    manifest
}

fn both_ways(kind: Kind, writer: Writer<'_>) {
    let dir = scratch_dir();
    let image = dir.path().join("ours.img");
    kind.make(&image);
    let mut trial = Trial::new(kind, &image, kind.seed());
    let ours = trial.change(writer, &nothing());
    assert!(ours.entries.len() > 5, "{kind}: a tree");
    trial.judge(&ours);
    let theirs = trial.change(Writer::Kernel, &ours);
    let ours = trial.change(writer, &theirs);
    trial.judge(&ours);
    drop(dir);

    let dir = scratch_dir();
    let image = dir.path().join("theirs.img");
    kind.make_by_progs(&image);
    let mut trial = Trial::new(kind, &image, kind.seed() + (1 << 32));
    let theirs = trial.change(Writer::Kernel, &nothing());
    let ours = trial.change(writer, &theirs);
    trial.judge(&ours);
    trial.change(Writer::Kernel, &ours);
}

fn library(checksum: usize) {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    clear_umask();
    let kinds = Kind::all().into_iter().filter(|kind| kind.0[0] == checksum);
    for kind in kinds {
        both_ways(kind, Writer::Library);
    }
}

#[test]
fn library_and_kernel_with_crc32c() {
    library(0);
}

#[test]
fn library_and_kernel_with_xxhash64() {
    library(1);
}

#[test]
fn library_and_kernel_with_sha256() {
    library(2);
}

#[test]
fn library_and_kernel_with_blake2b() {
    library(3);
}

#[test]
fn fuse_and_kernel() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let Some(program) = butterfs_program() else {
        return;
    };
    clear_umask();
    for kind in Kind::covering() {
        both_ways(kind, Writer::Fuse(&program));
    }
}

#[test]
fn the_tables_hold_all_kinds() {
    assert_eq!(Kind::all().len(), 192);
    let covering = Kind::covering();
    assert!((16..24).contains(&covering.len()), "{}", covering.len());
}

/// One bit of a file's data, in all its copies.
#[test]
fn every_judge_sees_a_flipped_bit() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    // Compressed data are the same to a checksum, but hard to find.
    let plain = |kind: &Kind| kind.0[1] == 0;
    for kind in Kind::covering().into_iter().filter(plain) {
        let dir = scratch_dir();
        let image = dir.path().join("canary.img");
        kind.make(&image);
        let tree = LibraryTree::mount(&image, "");
        let pattern = b"a bird that sings of bits. ".repeat(400);
        tree.0.write_file(b"/bird", &pattern).unwrap();
        let expected = Manifest::of(&tree).unwrap();
        tree.0.close().unwrap();
        drop(tree);
        judge(&image, &expected, "before");
        let bytes = std::fs::read(&image).unwrap();
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        let mut from = 0;
        while let Some(at) = find(&bytes[from..], &pattern[..4000]) {
            file.write_all_at(&[bytes[from + at] ^ 1], (from + at) as u64)
                .unwrap();
            from += at + 4096;
        }
        assert!(from > 0, "the data are on the image");
        for mode in Mode::ALL {
            let verdict = btrfs_check(&image, mode, DataChecksums::Verify);
            assert!(!verdict.clean, "{kind}: {}", verdict.output);
        }
        let mut mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
        assert!(!mount.scrub().clean, "{kind}");
        assert!(Manifest::of(&MountedTree::new(mount.path())).is_err());
        drop(mount);
        assert!(Manifest::of(&LibraryTree::mount(&image, "")).is_err());
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    // Data lie at sectors.
    let sectors = bytes.chunks_exact(4096);
    let at = sectors.into_iter().position(|s| s.starts_with(pattern))?;
    Some(at * 4096)
}
