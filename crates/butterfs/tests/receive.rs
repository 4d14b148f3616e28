//! Streams of the kernel and of ButterFS, received into directories: on Btrfs
//! and on another file system, whole, cut, damaged and continued.

use butterfs::receive::{ReceiveOptions, Received, Start, StreamReader, VolumeTarget, receive};
use butterfs::send::{Beginning, DataMode, SendOptions, SendRequest, StreamWriter};
use butterfs::{DirectoryTarget, OpenOptions, Subvolume, TreeId, Volume};
use butterfs_format::send_stream::Version;
use butterfs_testkit::differential::seeds;
use butterfs_testkit::judge::{
    Access, DataChecksums, KernelMount, Mode, btrfs_check, mkfs_btrfs, scratch_dir,
};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::op::generate::Generator;
use butterfs_testkit::tree_view::FileKind;
use butterfs_testkit::{Capability, Manifest, Op, Random};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn btrfs(words: &[&str]) -> Vec<u8> {
    let out = Command::new("btrfs").args(words).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "btrfs {words:?}: {text}");
    out.stdout
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn snapshot(of: &Path, to: &Path) {
    btrfs(&["subvolume", "snapshot", "-r", text(of), text(to)]);
}

fn tree_of(path: &Path) -> TreeId {
    let shown = String::from_utf8(btrfs(&["subvolume", "show", text(path)])).unwrap();
    let line = shown
        .lines()
        .find(|line| line.contains("Subvolume ID:"))
        .unwrap();
    TreeId(line.split_whitespace().last().unwrap().parse().unwrap())
}

/// What is there; sizes and link counts of directories are each file system's
/// own.
fn manifest(path: &Path) -> Manifest {
    let mut manifest = Manifest::of(&MountedTree::new(path)).unwrap();
    for entry in manifest.entries.values_mut() {
        if entry.stat.kind == FileKind::Directory {
            (entry.stat.size, entry.stat.links) = (0, 1);
        }
    }
    manifest
}

/// Two snapshots that differ, and their streams.
struct Sent {
    first: Manifest,
    second: Manifest,
    streams: [Vec<u8>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Kernel,
    Ours,
}

fn send_ours(
    image: &Path,
    (tree, name): (TreeId, &str),
    parent: Option<TreeId>,
    way: Way,
) -> Vec<u8> {
    let mut options = OpenOptions::read_only();
    options.subvolume = Subvolume::Id(5);
    let volume = Volume::open(image, options).unwrap();
    let mut out = StreamWriter::new(Vec::new(), way.0, Beginning::Header);
    let request = SendRequest {
        subvolume: tree,
        name: name.as_bytes(),
        parent,
        clone_sources: &[],
    };
    let options = SendOptions {
        version: way.0,
        data: way.1,
        ..SendOptions::default()
    };
    volume.files().send(&request, &options, &mut out).unwrap();
    out.finish().unwrap()
}

type Way = (Version, DataMode);
const WAYS: [Way; 3] = [
    (Version::One, DataMode::Plain),
    (Version::Two, DataMode::Encoded),
    (Version::Two, DataMode::Plain),
];

fn sent(seed: u64, sender: Sender) -> Sent {
    let dir = scratch_dir();
    let image = dir.path().join("source.img");
    mkfs_btrfs(&image, 1 << 30, &[]);
    let way = WAYS[(seed % 3) as usize];
    let options = ["", "compress-force=zstd", "compress-force=lzo"][(seed / 3 % 3) as usize];
    let mount = KernelMount::mount(&image, Access::ReadWrite, options).unwrap();
    let base = mount.path().join("base");
    btrfs(&["subvolume", "create", text(&base)]);
    let apply = |op: Op| {
        if !matches!(op, Op::Remount | Op::Sync | Op::Fsync { .. }) {
            let _ = apply_to_path(&op, &base);
        }
    };
    let mut operations = Generator::new(seed);
    operations.by_ref().take(250).for_each(apply);
    let (a, b) = (mount.path().join("a"), mount.path().join("b"));
    snapshot(&base, &a);
    operations.take(100).for_each(apply);
    snapshot(&base, &b);
    let (first, second) = (manifest(&a), manifest(&b));
    if sender == Sender::Kernel {
        let proto = way.0.number().to_string();
        let mut words = vec!["send", "-q", "--proto", &proto];
        if way.1 == DataMode::Encoded {
            words.push("--compressed-data");
        }
        let full = btrfs(&[&words[..], &[text(&a)]].concat());
        let more = btrfs(&[&words[..], &["-p", text(&a), text(&b)]].concat());
        return Sent {
            first,
            second,
            streams: [full, more],
        };
    }
    let trees = [tree_of(&a), tree_of(&b)];
    drop(mount);
    let full = send_ours(&image, (trees[0], "a"), None, way);
    let more = send_ours(&image, (trees[1], "b"), Some(trees[0]), way);
    Sent {
        first,
        second,
        streams: [full, more],
    }
}

fn receive_into(directory: &Path, stream: &[u8], start: Start) -> Result<Received, String> {
    let mut target = DirectoryTarget::open(directory).unwrap();
    let options = ReceiveOptions {
        start,
        ..ReceiveOptions::default()
    };
    let mut reader = StreamReader::new(stream);
    outcome(receive(&mut reader, &mut target, options, &mut |_, _| {}))
}

fn outcome(received: Received) -> Result<Received, String> {
    match received.failure {
        Some(failure) => Err(failure.to_string()),
        None => Ok(received),
    }
}

fn ready() -> bool {
    clear_umask();
    Capability::all_here(&Capability::KERNEL_MOUNT)
}

/// A new Btrfs, mounted.
fn new_btrfs(dir: &Path) -> KernelMount {
    let image = dir.join("target.img");
    mkfs_btrfs(&image, 1 << 30, &[]);
    KernelMount::mount(&image, Access::ReadWrite, "").unwrap()
}

#[test]
fn streams_become_what_was_sent() {
    if !ready() {
        return;
    }
    for seed in seeds(0..12) {
        for sender in [Sender::Kernel, Sender::Ours] {
            let sent = sent(seed, sender);
            let dir = scratch_dir();
            let mount = new_btrfs(dir.path());
            let plain = dir.path().join("plain");
            std::fs::create_dir(&plain).unwrap();
            for target in [mount.path(), &plain] {
                for stream in &sent.streams {
                    receive_into(target, stream, Start::New)
                        .unwrap_or_else(|error| panic!("seed {seed} {sender:?}: {error}"));
                }
                let context = format!("seed {seed} {sender:?} {}", target.display());
                manifest(&target.join("a")).assert_same(&sent.first, &context);
                manifest(&target.join("b")).assert_same(&sent.second, &context);
            }
            let shown = btrfs(&["subvolume", "show", text(&mount.path().join("b"))]);
            assert!(String::from_utf8_lossy(&shown).contains("readonly"));
        }
    }
}

/// The parent lies in a nested subvolume, not beside the target.
#[test]
fn a_parent_is_found_anywhere_in_the_volume() {
    if !ready() {
        return;
    }
    let sent = sent(1, Sender::Kernel);
    let dir = scratch_dir();
    let mount = new_btrfs(dir.path());
    let [outer, other] = ["outer", "other"].map(|name| mount.path().join(name));
    let inner = outer.join("a directory/inner");
    btrfs(&["subvolume", "create", text(&outer)]);
    std::fs::create_dir_all(inner.parent().unwrap()).unwrap();
    btrfs(&["subvolume", "create", text(&inner)]);
    std::fs::create_dir_all(other.join("deep")).unwrap();
    let deep = other.join("deep");
    let unknown = receive_into(&deep, &sent.streams[1], Start::New).unwrap_err();
    assert!(unknown.contains("is not in the volume"), "{unknown}");
    receive_into(&inner, &sent.streams[0], Start::New).unwrap();
    receive_into(&deep, &sent.streams[1], Start::New).unwrap();
    manifest(&deep.join("b")).assert_same(&sent.second, "found elsewhere");
}

#[test]
fn what_was_cut_is_not_whole_and_can_be_gone_on_with() {
    if !ready() {
        return;
    }
    for seed in seeds(100..106) {
        let sent = sent(seed, Sender::Ours);
        let dir = scratch_dir();
        let mount = new_btrfs(dir.path());
        let plain = dir.path().join("plain");
        std::fs::create_dir(&plain).unwrap();
        let mut random = Random::new(seed);
        for target in [mount.path(), &plain] {
            for (stream, name) in sent.streams.iter().zip(["a", "b"]) {
                let mut start = Start::New;
                for _ in 0..4 {
                    let cut = random.below(stream.len() as u64) as usize;
                    let result = receive_into(target, &stream[..cut], start);
                    let error = result.err().unwrap_or_else(|| panic!("cut at {cut}"));
                    assert!(error.contains("cut at offset"), "{error}");
                    let place = target.join(name);
                    if place.exists() {
                        // It is still writable, so nobody takes it for a
                        // complete copy.
                        let root = std::fs::File::open(&place).unwrap();
                        let modified = root.metadata().unwrap().modified().unwrap();
                        std::fs::write(place.join("probe"), b"").unwrap();
                        std::fs::remove_file(place.join("probe")).unwrap();
                        root.set_modified(modified).unwrap();
                        start = Start::Resume;
                        let again = receive_into(target, stream, Start::New);
                        assert!(again.unwrap_err().contains("is there already"));
                    }
                }
                receive_into(target, stream, start)
                    .unwrap_or_else(|error| panic!("seed {seed} {name}: {error}"));
                receive_into(target, stream, Start::Resume).unwrap();
            }
            let context = format!("seed {seed} {}", target.display());
            manifest(&target.join("a")).assert_same(&sent.first, &context);
            manifest(&target.join("b")).assert_same(&sent.second, &context);
        }
    }
}

#[test]
fn damage_is_an_error_and_never_whole() {
    if !ready() {
        return;
    }
    let sent = sent(7, Sender::Ours);
    let stream = &sent.streams[0];
    let mut random = Random::new(7);
    for round in 0..150 {
        let dir = scratch_dir();
        let mut bad = stream.clone();
        match round % 3 {
            0 => {
                let at = random.below(bad.len() as u64) as usize;
                bad[at] ^= 1 << random.below(8);
            }
            1 => {
                let at = random.below(bad.len() as u64) as usize;
                let end = (at + 1 + random.below(300) as usize).min(bad.len());
                bad.drain(at..end);
            }
            _ => {
                let at = random.below(bad.len() as u64) as usize;
                let extra: Vec<u8> = (0..1 + random.below(50))
                    .map(|_| random.bits() as u8)
                    .collect();
                bad.splice(at..at, extra);
            }
        }
        let error = receive_into(dir.path(), &bad, Start::New).expect_err("damaged");
        assert!(error.contains("offset"), "{error}");
        let note = dir.path().join(".butterfs-receive/a");
        let note = std::fs::read_to_string(note).unwrap_or_default();
        assert!(!note.starts_with("received"), "round {round}: {error}");
    }
}

#[test]
fn links_lead_nowhere() {
    use butterfs_format::Generation;
    use butterfs_format::send_stream::{Command, Encoder, SourceStamp};
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), b"mine").unwrap();
    let target = dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let stamp = SourceStamp {
        uuid: [1; 16],
        ctransid: Generation(1),
    };
    let outside_bytes = outside.as_os_str().as_encoded_bytes();
    let attacks = [
        Command::Write {
            path: b"link/file",
            offset: butterfs_format::FileOffset(0),
            data: b"x",
        },
        Command::Unlink { path: b"link/file" },
        Command::Chmod {
            path: b"link/file",
            mode: 0,
        },
        Command::Rename {
            path: b"link/file",
            to: b"stolen",
        },
        Command::Link {
            path: b"stolen",
            existing: b"link/file",
        },
        Command::Chmod {
            path: b"link",
            mode: 0,
        },
    ];
    for (index, attack) in attacks.into_iter().enumerate() {
        let name = format!("s{index}");
        let mut stream = Version::One.header().to_vec();
        let commands = [
            Command::Subvolume {
                path: name.as_bytes(),
                stamp,
            },
            Command::Symlink {
                path: b"link",
                inode: None,
                target: outside_bytes,
            },
            attack,
            Command::End,
        ];
        for command in &commands {
            Encoder::new(Version::One)
                .encode(command, &mut stream)
                .unwrap();
        }
        let error = receive_into(&target, &stream, Start::New).expect_err("through a link");
        assert!(error.contains("at offset"), "{error}");
        assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"mine");
    }
    let left = std::fs::metadata(&outside).unwrap().permissions();
    assert!(!left.readonly());
}

/// A file shorter than its parent's, and compressed data behind its new end.
#[test]
fn what_was_cut_does_not_come_back_before_compressed_data() {
    use butterfs::receive::{NewSubvolume, Target as _};
    use butterfs::{Algorithm, BlockDevice, MemoryDevice, MkfsOptions};
    use butterfs_format::compression::Scratch;
    use butterfs_format::send_stream::{Command, EncodedWrite, Encoding, SourceStamp};
    use butterfs_format::{FileOffset, Generation};
    const BLOCK: usize = 8192;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(256 << 20));
    butterfs::mkfs::make_on(std::slice::from_ref(&device), &MkfsOptions::default()).unwrap();
    let volume = Volume::open_devices(vec![device], OpenOptions::default()).unwrap();
    let root = volume.files().root();
    let mut target = VolumeTarget::new(volume.files().clone(), root);
    let stamp = |number: u8| SourceStamp {
        uuid: [number; 16],
        ctransid: Generation(1),
    };
    let path = b"file";
    let file = Command::MakeFile { path, inode: None };
    let old = Command::Write {
        path,
        offset: FileOffset(0),
        data: &[b'o'; BLOCK],
    };
    let cut = Command::Truncate { path, size: 5000 };
    let mut packed = vec![0; 4096];
    let mut scratch = Scratch::default();
    let level = Algorithm::Zstd.default_level();
    let new = scratch.compress(Algorithm::Zstd, level, &[b'n'; BLOCK], &mut packed, 4096);
    assert!(new.is_some());
    let new = Command::EncodedWrite(EncodedWrite {
        path,
        offset: FileOffset(BLOCK as u64),
        file_length: BLOCK as u64,
        length: BLOCK as u64,
        skip: 0,
        compression: Encoding::of(Algorithm::Zstd, 0),
        data: &packed,
    });
    for (name, number, commands) in [("first", 1, [file, old]), ("second", 2, [cut, new])] {
        let new = NewSubvolume {
            name: name.into(),
            stamp: stamp(number),
            parent: (number > 1).then(|| stamp(number - 1)),
        };
        target.begin(&new, Start::New).unwrap();
        for command in &commands {
            target.apply(command).unwrap();
        }
        target.finish().unwrap();
    }
    let found = volume.read_file(b"/second/file").unwrap();
    let expected = [vec![b'o'; 5000], vec![0; BLOCK - 5000], vec![b'n'; BLOCK]].concat();
    assert!(found == expected);
}

fn receive_unmounted(image: &Path, stream: &[u8], start: Start) -> Result<Received, String> {
    let options = OpenOptions {
        subvolume: Subvolume::Id(5),
        ..OpenOptions::default()
    };
    let volume = Volume::open(image, options).unwrap();
    let root = volume.files().root();
    let mut target = VolumeTarget::new(volume.files().clone(), root);
    let options = ReceiveOptions {
        start,
        ..ReceiveOptions::default()
    };
    let mut reader = StreamReader::new(stream);
    let result = outcome(receive(&mut reader, &mut target, options, &mut |_, _| {}));
    volume.close().unwrap();
    result
}

#[test]
fn streams_become_what_was_sent_in_an_unmounted_volume() {
    if !ready() {
        return;
    }
    for seed in seeds(200..209) {
        let sender = [Sender::Kernel, Sender::Ours][(seed % 2) as usize];
        let sent = sent(seed, sender);
        let dir = scratch_dir();
        let image = dir.path().join("target.img");
        mkfs_btrfs(&image, 1 << 30, &[]);
        let context = format!("seed {seed} {sender:?}");
        let mut random = Random::new(seed);
        for stream in &sent.streams {
            let mut start = Start::New;
            // The stream is cut twice. Each time the next receive continues.
            for _ in 0..2 {
                let cut = random.below(stream.len() as u64) as usize;
                let error = receive_unmounted(&image, &stream[..cut], start).expect_err("cut");
                assert!(error.contains("cut at offset"), "{context}: {error}");
                if cut > 200 {
                    start = Start::Resume;
                }
            }
            receive_unmounted(&image, stream, start)
                .unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        for mode in Mode::ALL {
            btrfs_check(&image, mode, DataChecksums::Verify).assert_clean(&context);
        }
        let mount = KernelMount::mount(&image, Access::ReadOnly, "").unwrap();
        manifest(&mount.path().join("a")).assert_same(&sent.first, &context);
        manifest(&mount.path().join("b")).assert_same(&sent.second, &context);
        let shown = btrfs(&["subvolume", "show", text(&mount.path().join("b"))]);
        assert!(String::from_utf8_lossy(&shown).contains("readonly"));
        // The kernel goes on from it.
        drop(mount);
        let mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
        btrfs(&["subvolume", "delete", text(&mount.path().join("b"))]);
        let file = dir.path().join("stream");
        std::fs::write(&file, &sent.streams[1]).unwrap();
        btrfs(&["receive", "-f", text(&file), text(mount.path())]);
        manifest(&mount.path().join("b")).assert_same(&sent.second, &context);
    }
}
