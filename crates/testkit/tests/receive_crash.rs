//! Crashes while streams are received. Whatever is left opens, is clean, has no
//! incomplete subvolume that looks complete, and becomes complete by receiving
//! again.

mod support;

use butterfs::receive::{ReceiveOptions, Received, Start, StreamReader, VolumeTarget, receive};
use butterfs::send::{Beginning, SendOptions, SendRequest, StreamWriter};
use butterfs::{
    Access, BlockDevice, InodeId, InodeNumber, MemoryDevice, NewInode, OpenOptions, Owner,
    Subvolume, TreeId, Volume,
};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_check::{DataChecksums, NoProgress};
use butterfs_device::record::{Action, Crash, Event, Fate, Position, Recording};
use butterfs_format::item::root::RootFlags;
use butterfs_format::send_stream::Version;
use butterfs_testkit::differential::seeds;
use butterfs_testkit::op::generate::Generator;
use butterfs_testkit::{Manifest, Op, Random};
use std::sync::Arc;
use std::time::Duration;
use support::{LibraryTree, apply_to_library};

const TOP: InodeId = InodeId {
    tree: TreeId(5),
    number: InodeNumber(256),
};
/// States of one receive that are tried.
const STATES_MAX: usize = 40;

fn blank() -> MemoryDevice {
    let device = MemoryDevice::new(256 << 20);
    let options = MkfsOptions {
        node_size: 4096,
        ..MkfsOptions::default()
    };
    make(&device, &options).expect("mkfs");
    device
}

/// Opens one subvolume; nothing but the test commits.
fn open(device: &Arc<dyn BlockDevice>, subvolume: TreeId) -> Volume {
    let options = OpenOptions {
        subvolume: Subvolume::Id(subvolume.get()),
        commit_interval: Duration::from_secs(1 << 30),
        cleaner: butterfs::Cleaner::OnDemand,
        ..OpenOptions::default()
    };
    Volume::open_device(Arc::clone(device), options).expect("it opens")
}

fn check(device: &MemoryDevice, context: &str) {
    let options = butterfs_check::Options {
        threads: 1,
        data: DataChecksums::Verify,
        ..butterfs_check::Options::default()
    };
    let shared: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
    let report = butterfs_check::check(vec![shared], &options, &NoProgress).expect("a check");
    assert!(report.is_exact(), "{context}: {:?}", report.faults);
}

/// What two snapshots hold, and their streams.
struct Sent {
    manifests: [Manifest; 2],
    streams: [Vec<u8>; 2],
}

const NAMES: [&str; 2] = ["a", "b"];

fn sent(seed: u64) -> Sent {
    let device: Arc<dyn BlockDevice> = Arc::new(blank());
    let volume = open(&device, TOP.tree);
    let root = NewInode::new(0o040_755, Owner::default());
    let base = volume.files().create_subvolume(TOP, b"base", &root);
    let base = base.expect("a subvolume");
    volume.close().expect("closed");
    drop(volume);
    let volume = open(&device, base);
    let mut operations = Generator::new(seed);
    let mut trees = Vec::new();
    for (name, count) in NAMES.into_iter().zip([120, 40]) {
        for op in operations.by_ref().take(count) {
            if !matches!(op, Op::Remount | Op::Sync | Op::Fsync { .. }) {
                let _ = apply_to_library(&op, &volume);
            }
        }
        let made = volume
            .files()
            .snapshot(base, TOP, name.as_bytes(), Access::ReadOnly);
        trees.push(made.expect("a snapshot"));
    }
    let streams = [None, Some(trees[0])].map(|parent| {
        let number = usize::from(parent.is_some());
        let mut out = StreamWriter::new(Vec::new(), Version::One, Beginning::Header);
        let request = SendRequest {
            subvolume: trees[number],
            name: NAMES[number].as_bytes(),
            parent,
            clone_sources: &[],
        };
        let sent = volume
            .files()
            .send(&request, &SendOptions::default(), &mut out);
        sent.expect("sent");
        out.finish().expect("a stream")
    });
    volume.close().expect("closed");
    drop(volume);
    let manifests = [trees[0], trees[1]].map(|tree| manifest(&device, tree));
    Sent { manifests, streams }
}

fn manifest(device: &Arc<dyn BlockDevice>, tree: TreeId) -> Manifest {
    Manifest::of(&LibraryTree(open(device, tree))).expect("it can be read")
}

fn receive_into(volume: &Volume, stream: &[u8], start: Start, often: Duration) -> Received {
    let mut target = VolumeTarget::new(Arc::clone(volume.files()), TOP);
    let options = ReceiveOptions {
        start,
        checkpoint_interval: often,
        ..ReceiveOptions::default()
    };
    let mut reader = StreamReader::new(stream);
    receive(&mut reader, &mut target, options, &mut |_, _| {})
}

#[derive(Debug, Default)]
struct Tally {
    states: usize,
    absent: usize,
    whole: usize,
    resumed: usize,
    again: usize,
}

const NEVER: Duration = Duration::from_secs(1 << 30);

/// Goes on after a crash.
fn recover(device: MemoryDevice, sent: &Sent, number: usize, context: &str, tally: &mut Tally) {
    check(&device, context);
    let device = Arc::new(device);
    let shared: Arc<dyn BlockDevice> = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let volume = open(&shared, TOP.tree);
    let name = NAMES[number].as_bytes();
    let found = volume.files().lookup(TOP, name).ok();
    if let Some(found) = found {
        let item = volume.files().root_item(found.inode.tree).expect("an item");
        let known = item.received_uuid != [0; 16];
        let read_only = item.flags.contains(RootFlags::READONLY);
        assert!(known || !read_only, "{context}: half of it looks whole");
        if known {
            tally.whole += 1;
            let tree = found.inode.tree;
            drop(volume);
            manifest(&shared, tree).assert_same(&sent.manifests[number], context);
        }
    } else {
        tally.absent += 1;
    }
    let volume = open(&shared, TOP.tree);
    let stream = &sent.streams[number];
    let first = receive_into(&volume, stream, Start::Resume, NEVER);
    if first.failure.is_some() {
        let told = first.failure.map(|failure| failure.to_string());
        let told = told.unwrap_or_default();
        assert!(
            told.contains("remove it and receive again"),
            "{context}: {told}"
        );
        volume.files().delete_subvolume(TOP, name).expect("removed");
        let second = receive_into(&volume, stream, Start::New, NEVER);
        assert!(second.failure.is_none(), "{context}: {:?}", second.failure);
        tally.again += 1;
    } else if found.is_some() {
        tally.resumed += 1;
    }
    let tree = volume
        .files()
        .lookup(TOP, name)
        .expect("received")
        .inode
        .tree;
    volume.close().expect("closed");
    drop(volume);
    check(&device, context);
    manifest(&shared, tree).assert_same(&sent.manifests[number], context);
    tally.states += 1;
}

/// Crashes of one receive into the content of `base`.
fn crash(base: &MemoryDevice, sent: &Sent, number: usize, often: Duration, seed: u64) -> Tally {
    let recording = Recording::new();
    let device: Arc<dyn BlockDevice> = Arc::new(recording.wrap(Arc::new(base.snapshot())));
    let volume = open(&device, TOP.tree);
    let received = receive_into(&volume, &sent.streams[number], Start::New, often);
    assert!(received.failure.is_none(), "{:?}", received.failure);
    // The process dies: nothing is closed.
    let events = recording.events();
    std::mem::forget(volume);
    let mut random = Random::new(seed);
    let is_flush = |event: &Event| matches!(event.action, Action::Flush { .. });
    let flushes: Vec<usize> = (0..events.len())
        .filter(|n| is_flush(&events[*n]))
        .collect();
    let step = flushes.len().div_ceil(STATES_MAX).max(1);
    let mut tally = Tally::default();
    // The last flushes make the subvolume complete, so all of them are tried.
    let late = flushes.len().saturating_sub(6);
    let chosen = flushes.into_iter().enumerate();
    let chosen = chosen.filter(|(number, _)| number % step == 0 || *number >= late);
    for (_, at) in chosen {
        for (at, fate) in [
            (at, Some(Fate::Lost)),
            (at, None),
            (at + 1, Some(Fate::Lost)),
        ] {
            let context = format!("seed {seed}, stream {number}, event {at}, {fate:?}");
            let crash = Crash::new(&events, Position(at));
            let mut left = crash
                .replay(&[base.snapshot()], |_, _| match &fate {
                    Some(fate) => fate.clone(),
                    None if random.below(2) == 0 => Fate::Kept,
                    None => Fate::Lost,
                })
                .expect("replayed");
            recover(left.remove(0), sent, number, &context, &mut tally);
        }
    }
    tally
}

#[test]
fn a_crash_leaves_nothing_that_looks_whole_and_is_not() {
    let mut resumed = 0;
    for seed in seeds(1..4) {
        let sent = sent(seed);
        let base = blank();
        for often in [Duration::ZERO, NEVER] {
            let full = crash(&base, &sent, 0, often, seed);
            let base = Arc::new(base.snapshot());
            let shared: Arc<dyn BlockDevice> = Arc::clone(&base) as Arc<dyn BlockDevice>;
            let volume = open(&shared, TOP.tree);
            let received = receive_into(&volume, &sent.streams[0], Start::New, NEVER);
            assert!(received.failure.is_none(), "{:?}", received.failure);
            volume.close().expect("closed");
            drop(volume);
            let more = crash(&base, &sent, 1, often, seed);
            println!("seed {seed}, checkpoints after {often:?}: {full:?}, {more:?}");
            assert!(full.whole > 0 && full.absent > 0, "{full:?}");
            if often == Duration::ZERO {
                resumed += full.resumed + more.resumed;
                assert!(full.resumed > full.again, "{full:?}");
            }
        }
    }
    assert!(resumed > 0);
}
