//! Threads that write, truncate, clone, dedupe, delete, fsync and receive at
//! once, over a device with random delays, beside snapshots that are hashed
//! twice.

use super::common::{Random, check, check_ours, mkfs, open_subvolume};
use super::{create, files_of, open_paused};
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::send_stream::Version;
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::file::{Deduped, FallocateMode};
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::receive::{ReceiveOptions, StreamReader, VolumeTarget, receive};
use butterfs_fs::send::{Beginning, DataMode, SendOptions, SendRequest, StreamWriter};
use butterfs_fs::{Filesystem, FsError, Inode};
use butterfs_store::Access;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SECTOR: usize = 4096;
/// Flags of the two files of each thread.
const FLAGS: [InodeFlags; 2] = [InodeFlags::NODATACOW, InodeFlags(0)];
/// Threads that change files of their own.
const CHURNS: u64 = 3;

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn churned(thread: u64, at: usize) -> String {
    format!("t{thread}f{at}")
}

/// Writes, truncates, clones, deletes and fsyncs two files until it is told to
/// stop.
fn churn(fs: &Filesystem, thread: u64, seed: u64, stop: &AtomicBool) {
    let mut random = Random(seed);
    let mut files = [0, 1].map(|at| create(fs, &churned(thread, at), FLAGS[at]));
    for file in &files {
        fs.fallocate(file, FallocateMode::Allocate, 0, 128 << 10)
            .unwrap();
    }
    while !stop.load(Ordering::Acquire) {
        let at = random.below(2) as usize;
        let file = Arc::clone(&files[at]);
        match random.below(12) {
            0..=5 => {
                let length = 1 + random.below(40_000) as usize;
                let data = vec![random.below(256) as u8; length];
                fs.write(&file, random.below(100_000), &data).unwrap();
            }
            6 => {
                fs.truncate(&file, 0).unwrap();
                fs.write(&file, 0, &random.data(5000)).unwrap();
            }
            7 => {
                let length = fs.attributes_of(&file).unwrap().size / 4096 * 4096;
                let copy = create(fs, &format!("t{thread}copy"), FLAGS[at]);
                fs.copy_range((&file, 0), (&copy, 0), length).unwrap();
                fs.unlink(fs.root(), format!("t{thread}copy").as_bytes())
                    .unwrap();
            }
            8 => {
                fs.unlink(fs.root(), churned(thread, at).as_bytes())
                    .unwrap();
                files[at] = create(fs, &churned(thread, at), FLAGS[at]);
            }
            9 => drop(fs.store().commit().unwrap()),
            _ => fs.fsync(&file).unwrap(),
        }
    }
}

/// What a deduper did.
#[derive(Debug, Default)]
struct Dedupes {
    shared: usize,
    differed: usize,
    refused: usize,
}

/// A file of a deduper, and its content, which never changes.
struct Kept {
    file: Arc<Inode>,
    content: Vec<u8>,
}

impl Kept {
    fn assert_same(&self, fs: &Filesystem, when: &str) {
        let mut found = vec![0; self.content.len() + 1];
        let length = fs.read(&self.file, 0, &mut found).unwrap();
        assert!(found[..length] == self.content, "{when}: a file changed");
    }

    /// Makes a part of this file equal to a part of another one that is changed
    /// all the time, or the other way round, and dedupes the target.
    fn dedupe(
        &mut self,
        fs: &Filesystem,
        other: &Arc<Inode>,
        random: &mut Random,
    ) -> Result<Deduped, FsError> {
        let length = SECTOR * (1 + random.below(8) as usize);
        let here = SECTOR * random.below((self.content.len() - length) as u64 / 4096) as usize;
        let there = 4096 * random.below(16);
        let mut results = if random.below(2) == 0 {
            let mut data = vec![0; length];
            let count = fs.read(other, there, &mut data)? / SECTOR * SECTOR;
            fs.write(&self.file, here as u64, &data[..count]).unwrap();
            self.content[here..here + count].copy_from_slice(&data[..count]);
            let target = (Arc::clone(&self.file), here as u64);
            fs.dedupe_range((other, there), count as u64, &[target])
        } else {
            fs.write(other, there, &self.content[here..here + length])?;
            let target = (Arc::clone(other), there);
            fs.dedupe_range((&self.file, here as u64), length as u64, &[target])
        };
        results.remove(0)
    }
}

/// Dedupes parts of files that others change with files that keep their
/// content.
fn dedupe(fs: &Filesystem, seed: u64, stop: &AtomicBool) -> Dedupes {
    let mut random = Random(seed);
    let mut done = Dedupes::default();
    let mut own = [0, 1].map(|at| {
        let file = create(fs, &format!("own{at}"), FLAGS[at]);
        let content = random.data(256 << 10);
        fs.write(&file, 0, &content).unwrap();
        Kept { file, content }
    });
    while !stop.load(Ordering::Acquire) {
        let at = random.below(2) as usize;
        let name = churned(random.below(CHURNS), at);
        // Its owner deletes it now and then.
        let found = fs.lookup(fs.root(), name.as_bytes());
        let Ok(other) = found.and_then(|found| fs.inode(found.inode)) else {
            continue;
        };
        match own[at].dedupe(fs, &other, &mut random) {
            Ok(Deduped::Shared(0)) => {}
            Ok(Deduped::Shared(_)) => done.shared += 1,
            Ok(Deduped::Differs) => done.differed += 1,
            // Deleted or cut meanwhile.
            Err(FsError::NotFound | FsError::Invalid(_)) => done.refused += 1,
            Err(error) => panic!("{name}: {error}"),
        }
        own[at].assert_same(fs, "after a dedupe");
        if random.below(8) == 0 {
            fs.fsync(&own[at].file).unwrap();
        }
    }
    done
}

/// Streams of a snapshot and of the changes to a second one, and what both
/// contain.
struct Sent {
    streams: [Vec<u8>; 2],
    contents: [Contents; 2],
}

/// A file with data that is in the first snapshot and in the second.
const WHOLE: (&str, usize) = ("whole", 40_000);

fn directory() -> NewInode<'static> {
    NewInode::new(S_IFDIR | 0o755, Owner::default())
}

fn file_in(fs: &Filesystem, dir: InodeId, name: &str, data: &[u8]) -> Arc<Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let inode = fs.create(dir, name.as_bytes(), &new).unwrap();
    fs.write(&inode, 0, data).unwrap();
    inode
}

fn sent(seed: u64) -> Sent {
    let mut random = Random(seed + 1000);
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let origin = fs
        .create_subvolume(fs.root(), b"origin", &directory())
        .unwrap();
    let top = Filesystem::root_of(origin);
    let below = fs.create(top, b"directory", &directory()).unwrap().id;
    file_in(&fs, top, WHOLE.0, &random.data(WHOLE.1));
    for number in 0..10 {
        let dir = if number % 2 == 0 { top } else { below };
        let length = 1 + random.below(60_000) as usize;
        file_in(&fs, dir, &format!("f{number}"), &random.data(length));
    }
    let snapshot = |name: &[u8]| {
        fs.snapshot(origin, fs.root(), name, Access::ReadOnly)
            .unwrap()
    };
    let first = snapshot(b"first");
    for number in 0..4 {
        let name = format!("f{}", number * 2);
        let id = fs.lookup(top, name.as_bytes()).unwrap().inode;
        let inode = fs.inode(id).unwrap();
        match number {
            0 => fs.unlink(top, name.as_bytes()).unwrap(),
            1 => {
                let copy = file_in(&fs, below, "copy", b"");
                fs.copy_range((&inode, 0), (&copy, 0), 1 << 20).unwrap();
            }
            _ => {
                let data = random.data(9000);
                fs.write(&inode, random.below(50_000), &data).unwrap();
            }
        }
    }
    let second = snapshot(b"second");
    let contents = [first, second].map(|tree| files_of(&fs, tree));
    let (version, data) = match seed % 2 {
        0 => (Version::One, DataMode::Plain),
        _ => (Version::Two, DataMode::Encoded),
    };
    let send = |tree: TreeId, name: &[u8], parent: Option<TreeId>| {
        let mut out = StreamWriter::new(Vec::new(), version, Beginning::Header);
        let request = SendRequest {
            subvolume: tree,
            name,
            parent,
            clone_sources: &[],
        };
        let options = SendOptions {
            version,
            data,
            ..SendOptions::default()
        };
        fs.send(&request, &options, &mut out).unwrap();
        out.finish().unwrap()
    };
    let streams = [
        send(first, b"first", None),
        send(second, b"second", Some(first)),
    ];
    Sent { streams, contents }
}

/// A directory that both streams were received into.
struct Pair {
    name: String,
    dir: InodeId,
    trees: [TreeId; 2],
}

impl Pair {
    fn receive(fs: &Arc<Filesystem>, name: String, sent: &Sent, random: &mut Random) -> Self {
        let dir = fs.create(fs.root(), name.as_bytes(), &directory()).unwrap();
        let trees = sent.streams.each_ref().map(|stream| {
            let mut target = VolumeTarget::new(Arc::clone(fs), dir.id);
            let mut options = ReceiveOptions::default();
            if random.below(2) == 0 {
                options.checkpoint_interval = Duration::from_millis(random.below(20));
            }
            let mut reader = StreamReader::new(&stream[..]);
            let done = receive(&mut reader, &mut target, options, &mut |_, _| {});
            if let Some(error) = done.failure {
                panic!("{name} is not received: {error}");
            }
            assert!(done.errors.is_empty(), "{:?}", done.errors);
            let [new] = &done.subvolumes[..] else {
                panic!("{:?}", done.subvolumes);
            };
            fs.lookup(dir.id, &new.name).unwrap().inode.tree
        });
        let pair = Self {
            name,
            dir: dir.id,
            trees,
        };
        pair.assert_same(fs, sent, "received");
        pair
    }

    fn assert_same(&self, fs: &Filesystem, sent: &Sent, when: &str) {
        for (tree, content) in self.trees.iter().zip(&sent.contents) {
            let found = files_of(fs, *tree);
            assert!(found == *content, "{}, {when}: {tree} is other", self.name);
        }
    }

    /// Makes a new file share what lies in the second snapshot, which is then
    /// deleted.
    fn share_and_delete(&self, fs: &Filesystem, sent: &Sent) {
        let id = Filesystem::root_of(self.trees[1]);
        let id = fs.lookup(id, WHOLE.0.as_bytes()).unwrap().inode;
        let source = fs.inode(id).unwrap();
        let content = &sent.contents[1][WHOLE.0.as_bytes()];
        let file = file_in(fs, fs.root(), &format!("of {}", self.name), content);
        let target = (Arc::clone(&file), 0);
        let shared = fs.dedupe_range((&source, 0), content.len() as u64, &[target]);
        let length = content.len() as u64;
        assert_eq!(shared[0].as_ref().unwrap(), &Deduped::Shared(length));
        self.assert_same(fs, sent, "after a dedupe");
        drop(source);
        self.delete(fs);
        let kept = Kept {
            file,
            content: content.clone(),
        };
        kept.assert_same(fs, "after its snapshot is gone");
    }

    fn delete(&self, fs: &Filesystem) {
        for name in [b"first".as_slice(), b"second"] {
            fs.delete_subvolume(self.dir, name).unwrap();
        }
        fs.rmdir(fs.root(), self.name.as_bytes()).unwrap();
        fs.clean().unwrap();
    }
}

/// Receives both streams again and again. Returns how often, and the last ones.
fn receive_again(
    fs: &Arc<Filesystem>,
    sent: &Sent,
    seed: u64,
    stop: &AtomicBool,
) -> (usize, Vec<Pair>) {
    let mut random = Random(seed);
    let mut pairs = Vec::new();
    let mut count = 0;
    while count == 0 || !stop.load(Ordering::Acquire) {
        pairs.push(Pair::receive(fs, format!("r{count}"), sent, &mut random));
        count += 1;
        if pairs.len() > 3 {
            let at = random.below(pairs.len() as u64) as usize;
            let pair = pairs.swap_remove(at);
            pair.assert_same(fs, sent, "before it goes");
            pair.share_and_delete(fs, sent);
        }
    }
    (count, pairs)
}

/// What a storm did beside its snapshots.
#[derive(Debug, Default)]
struct Weather {
    dedupes: Dedupes,
    received: usize,
}

/// Makes, hashes and deletes snapshots beside threads that change everything.
fn storm(seed: u64) -> Weather {
    let sent = sent(seed);
    let (_dir, image) = mkfs(512 << 20, &[]);
    let (device, fs) = open_paused(&image);
    let fs = Arc::new(fs);
    device.linger(seed);
    let stop = AtomicBool::new(false);
    let mut random = Random(seed);
    let mut kept: BTreeMap<String, (TreeId, Contents)> = BTreeMap::new();
    let assert_same = |fs: &Filesystem, name: &str, (tree, first): &(TreeId, Contents)| {
        assert!(
            files_of(fs, *tree) == *first,
            "seed {seed}: {name} is other than it was"
        );
    };
    let (weather, pairs) = thread::scope(|scope| {
        let (fs, stop, sent) = (&fs, &stop, &sent);
        for thread in 0..CHURNS {
            scope.spawn(move || churn(fs, thread, seed * 10 + thread, stop));
        }
        let deduper = scope.spawn(move || dedupe(fs, seed * 10 + 7, stop));
        let receiver = scope.spawn(move || receive_again(fs, sent, seed * 10 + 8, stop));
        let end = StopAtEnd(stop);
        for number in 0..25 {
            thread::sleep(Duration::from_millis(random.below(30)));
            let name = format!("s{number}");
            let tree = fs
                .snapshot(TreeId::FS, fs.root(), name.as_bytes(), Access::ReadOnly)
                .unwrap();
            kept.insert(name, (tree, files_of(fs, tree)));
            if random.below(3) == 0 {
                let at = random.below(kept.len() as u64) as usize;
                let name = kept.keys().nth(at).unwrap().clone();
                assert_same(fs, &name, &kept[&name]);
                fs.delete_subvolume(fs.root(), name.as_bytes()).unwrap();
                kept.remove(&name);
                fs.clean().unwrap();
            }
        }
        drop(end);
        let dedupes = deduper.join().unwrap();
        let (received, pairs) = receiver.join().unwrap();
        (Weather { dedupes, received }, pairs)
    });
    for (name, snapshot) in &kept {
        assert_same(&fs, name, snapshot);
    }
    for pair in &pairs {
        pair.assert_same(&fs, &sent, "at the end");
    }
    fs.sync_all().unwrap();
    drop((fs, device));
    let fs = open_subvolume(&image, TreeId::FS);
    for (name, snapshot) in &kept {
        assert_same(&fs, name, snapshot);
    }
    for pair in &pairs {
        pair.assert_same(&fs, &sent, "on the device");
    }
    drop(fs);
    check(&image);
    check_ours(&image);
    weather
}

/// Ends other threads when this one fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// `BUTTERFS_STORMS=100` runs more of them.
#[test]
fn snapshots_never_change_in_a_storm() {
    let storms = std::env::var("BUTTERFS_STORMS").map_or(2, |text| text.parse().unwrap());
    for seed in 1..=storms {
        let weather = storm(seed);
        println!("storm {seed}: {weather:?}");
        assert!(weather.dedupes.shared > 0 && weather.received > 0);
    }
}
