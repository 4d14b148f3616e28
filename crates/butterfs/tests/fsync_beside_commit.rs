//! An fsync does not wait for the bulk write-out of a commit that is under way,
//! and no commit follows a write-out that failed.

mod common;

use butterfs::{Access, BlockDevice, DeviceError, InodeId, MemoryDevice, NewInode, Owner, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::{DeviceRange, Operation};
use butterfs_format::DeviceOffset;
use butterfs_testkit::judge::{judge_image, scratch_dir};
use std::io;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

const S_IFREG: u32 = 0o100_000;
/// Files of the big commit.
const FILES: usize = 6000;
/// Nothing here takes this long, unless it waits for something that never
/// comes.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a thread did to the device, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Wrote(usize),
    Flushed,
}

#[derive(Debug, Default)]
struct GateState {
    /// The thread whose writes stop here.
    held: Option<ThreadId>,
    stopped: bool,
    /// The write that stopped fails when it goes on.
    fails: bool,
    watched: Option<ThreadId>,
    events: Vec<Event>,
}

/// A device that can stop the writes of one thread.
#[derive(Debug)]
struct Gate {
    under: Arc<MemoryDevice>,
    state: Mutex<GateState>,
    changed: Condvar,
}

impl Gate {
    fn new(size: u64) -> Self {
        Self {
            under: Arc::new(MemoryDevice::new(size)),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn note(&self, event: Event) {
        let mut state = self.state.lock().unwrap();
        if state.watched == Some(thread::current().id()) {
            state.events.push(event);
        }
    }

    /// From now on the writes of the calling thread stop.
    fn hold_me(&self) {
        let mut state = self.state.lock().unwrap();
        state.held = Some(thread::current().id());
        state.watched = state.held;
    }

    fn wait_until_stopped(&self) {
        let state = self.state.lock().unwrap();
        let wait = self
            .changed
            .wait_timeout_while(state, PATIENCE, |state| !state.stopped);
        assert!(!wait.unwrap().1.timed_out(), "the commit writes nothing");
    }

    fn release(&self) {
        self.state.lock().unwrap().held = None;
        self.changed.notify_all();
    }
}

impl BlockDevice for Gate {
    fn size(&self) -> u64 {
        self.under.size()
    }

    fn identity(&self) -> String {
        self.under.identity()
    }

    fn access(&self) -> Access {
        self.under.access()
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.under.read_at(offset, buf)
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let me = thread::current().id();
        let mut state = self.state.lock().unwrap();
        while state.held == Some(me) {
            state.stopped = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
        let fails = state.stopped && std::mem::take(&mut state.fails);
        drop(state);
        if fails {
            return Err(DeviceError::Io {
                operation: Operation::Write,
                device: self.identity(),
                range: Some(DeviceRange::of_buffer(offset, data.len())),
                source: io::Error::from_raw_os_error(5).into(),
            });
        }
        self.note(Event::Wrote(data.len()));
        self.under.write_at(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.note(Event::Flushed);
        self.under.flush()
    }
}

fn create(volume: &Volume, name: &str) -> Arc<butterfs::Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let files = volume.files();
    files.create(files.root(), name.as_bytes(), &new).unwrap()
}

fn root(volume: &Volume) -> InodeId {
    volume.files().root()
}

/// Changes a file and fsyncs it in a thread of its own, which must come back.
fn fsync_must_return(volume: &Arc<Volume>, file: &Arc<butterfs::Inode>, data: &[u8]) {
    let (done, finished) = mpsc::channel();
    let (volume, file, data) = (Arc::clone(volume), Arc::clone(file), data.to_vec());
    thread::spawn(move || {
        volume.files().write(&file, 0, &data).unwrap();
        volume.files().fsync(&file).unwrap();
        done.send(()).unwrap();
    });
    let result = finished.recv_timeout(PATIENCE);
    assert!(result.is_ok(), "the fsync waits for the commit's writes");
}

/// A volume on `gate`, a file that is committed, and many that are not.
fn prepare(gate: &Arc<Gate>) -> (Arc<Volume>, Arc<butterfs::Inode>) {
    let mut mkfs = MkfsOptions::default();
    // Debian's btrfs check does not know it.
    mkfs.features.change("^block-group-tree").unwrap();
    make(&*gate.under, &mkfs).unwrap();
    let device: Arc<dyn BlockDevice> = gate.clone();
    let mut options = common::options(Access::ReadWrite);
    options.commit_interval = Duration::from_secs(3600);
    let volume = Arc::new(Volume::open_device(device, options).unwrap());
    let precious = create(&volume, "precious");
    volume.files().write(&precious, 0, &[1; 8192]).unwrap();
    volume.files().sync_all().unwrap();
    for number in 0..FILES {
        let file = create(&volume, &format!("a file with a rather long name {number}"));
        volume.files().write(&file, 0, &[7; 1500]).unwrap();
    }
    volume.files().flush_all().unwrap();
    (volume, precious)
}

/// What `precious` has after a crash that left `device`; the volume is sound.
fn after_a_crash(device: &Arc<MemoryDevice>, what: &str) -> [u8; 8192] {
    let volume = common::open(device, Access::ReadWrite).unwrap();
    let found = volume.files().lookup(root(&volume), b"precious").unwrap();
    let file = volume.files().inode(found.inode).unwrap();
    let mut content = [0; 8192];
    volume.files().read(&file, 0, &mut content).unwrap();
    volume.close().unwrap();
    let dir = scratch_dir();
    let image = dir.path().join("crashed.img");
    device.save(&image).unwrap();
    judge_image(&image, what);
    content
}

#[test]
fn no_commit_follows_a_write_out_that_failed() {
    let gate = Arc::new(Gate::new(1 << 30));
    let (volume, precious) = prepare(&gate);
    let committer = {
        let (gate, volume) = (Arc::clone(&gate), Arc::clone(&volume));
        thread::spawn(move || {
            gate.hold_me();
            volume.files().sync_all()
        })
    };
    gate.wait_until_stopped();
    fsync_must_return(&volume, &precious, &[2; 8192]);
    // Others want a commit too, and wait.
    let others: Vec<_> = (0..4)
        .map(|_| {
            let volume = Arc::clone(&volume);
            thread::spawn(move || volume.commit())
        })
        .collect();
    thread::sleep(Duration::from_millis(50));
    gate.state.lock().unwrap().fails = true;
    gate.release();
    assert!(committer.join().unwrap().is_err());
    for other in others {
        let result = other.join().unwrap();
        assert!(result.is_err(), "a commit succeeded: {result:?}");
    }
    assert!(volume.failure().is_some());
    drop(volume);
    let left = Arc::new(gate.under.snapshot());
    assert_eq!(after_a_crash(&left, "after a write that failed"), [2; 8192]);
}

#[test]
fn an_fsync_goes_on_while_a_commit_writes_its_nodes() {
    let gate = Arc::new(Gate::new(1 << 30));
    let (volume, precious) = prepare(&gate);
    let committer = {
        let (gate, volume) = (Arc::clone(&gate), Arc::clone(&volume));
        thread::spawn(move || {
            gate.hold_me();
            volume.files().sync_all().unwrap();
        })
    };
    gate.wait_until_stopped();

    fsync_must_return(&volume, &precious, &[2; 8192]);
    // Nodes whose write is under way are changed and freed.
    for number in 0..FILES / 2 {
        let name = format!("a file with a rather long name {number}");
        volume
            .files()
            .unlink(root(&volume), name.as_bytes())
            .unwrap();
    }
    fsync_must_return(&volume, &precious, &[3; 8192]);
    let crashed = Arc::new(gate.under.snapshot());

    gate.release();
    committer.join().unwrap();
    let events = std::mem::take(&mut gate.state.lock().unwrap().events);
    drop(volume);

    // All but the end was written before the commit made anybody wait.
    let flushes: Vec<usize> = (0..events.len())
        .filter(|at| events[*at] == Event::Flushed)
        .collect();
    let bytes = |events: &[Event]| -> usize {
        let sizes = events.iter().map(|event| match event {
            Event::Wrote(size) => *size,
            Event::Flushed => 0,
        });
        sizes.sum()
    };
    assert!(flushes.len() >= 3, "{flushes:?}");
    let early = bytes(&events[..flushes[0]]);
    let waited = bytes(&events[flushes[0]..]);
    assert!(early > 8 << 20, "{early} bytes are no bulk");
    assert!(waited < 6 << 20, "{waited} bytes while others waited");

    let dir = scratch_dir();
    let image = dir.path().join("whole.img");
    gate.under.save(&image).unwrap();
    judge_image(&image, "after the commit");

    let found = after_a_crash(&crashed, "after a crash in the middle");
    assert_eq!(found, [3; 8192]);
}
