//! A thread that waits for a node which is not in memory delays nobody else,
//! and gets the node however small the memory for nodes is.

mod common;

use butterfs::{Access, BlockDevice, DeviceError, MemoryDevice, NewInode, Owner};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_format::{DeviceOffset, InodeId, TreeId};
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{OpenOptions, Store};
use butterfs_testkit::judge::{judge_image, scratch_dir};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
/// Nothing here takes this long, unless it waits for something that never
/// comes.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct GateState {
    /// The thread whose reads stop here.
    held: Option<ThreadId>,
    stopped: bool,
}

/// A device that can stop the reads of one thread.
#[derive(Debug)]
struct Gate {
    under: Arc<MemoryDevice>,
    state: Mutex<GateState>,
    changed: Condvar,
}

impl Gate {
    fn over(under: Arc<MemoryDevice>) -> Self {
        Self {
            under,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn hold_me(&self) {
        self.state.lock().unwrap().held = Some(thread::current().id());
    }

    fn wait_until_stopped(&self, what: &str) {
        let state = self.state.lock().unwrap();
        let wait = self
            .changed
            .wait_timeout_while(state, PATIENCE, |state| !state.stopped);
        assert!(!wait.unwrap().1.timed_out(), "{what} reads nothing");
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
        let me = thread::current().id();
        let mut state = self.state.lock().unwrap();
        while state.held == Some(me) {
            state.stopped = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
        drop(state);
        self.under.read_at(offset, buf)
    }
    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.under.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.under.flush()
    }
}

fn new_file(fs: &Filesystem, dir: InodeId, name: &str) -> InodeId {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    fs.create(dir, name.as_bytes(), &new).unwrap().id
}

fn new_directory(fs: &Filesystem, name: &str) -> InodeId {
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    fs.create(fs.root(), name.as_bytes(), &new).unwrap().id
}

fn open(device: Arc<dyn BlockDevice>, options: &OpenOptions) -> Filesystem {
    let store = Store::open(device, options).unwrap();
    Filesystem::new(Arc::new(store), TreeId::FS, Options::default())
}

/// A volume with `dirs` directories of `files` files each, closed.
fn filled(dirs: usize, files: usize) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(1 << 30));
    make(&*device, &MkfsOptions::default()).unwrap();
    let fs = open(device.clone(), &OpenOptions::default());
    for d in 0..dirs {
        let dir = new_directory(&fs, &format!("d{d}"));
        for f in 0..files {
            new_file(&fs, dir, &format!("f{f}"));
        }
    }
    fs.sync_all().unwrap();
    device
}

fn list(fs: &Filesystem, dir: InodeId) -> usize {
    let mut names = 0;
    let visit = &mut |_| {
        names += 1;
        true
    };
    fs.read_dir(dir, 0, visit).unwrap();
    names - 2
}

fn judge(device: &MemoryDevice) {
    let dir = scratch_dir();
    let image = dir.path().join("volume");
    let mut bytes = vec![0; usize::try_from(device.size()).unwrap()];
    device.read_at(DeviceOffset(0), &mut bytes).unwrap();
    std::fs::write(&image, bytes).unwrap();
    judge_image(&image, "cold reads");
}

#[test]
fn who_waits_for_a_node_holds_up_nobody() {
    let under = filled(20, 400);
    for what in ["lookup", "unlink", "list", "create"] {
        let gate = Arc::new(Gate::over(under.clone()));
        let fs = open(gate.clone(), &OpenOptions::default());
        let warm = new_directory(&fs, &format!("warm {what}"));
        new_file(&fs, warm, "file");
        let cold = fs.lookup(fs.root(), b"d11").unwrap().inode;
        let cold_inode = fs.inode(cold).unwrap();
        thread::scope(|scope| {
            let (fs, gate) = (&fs, &gate);
            let waiting = scope.spawn(move || {
                gate.hold_me();
                match what {
                    "lookup" => (0..300).for_each(|n| {
                        fs.lookup(cold, format!("f{n}").as_bytes()).unwrap();
                    }),
                    "unlink" => fs.unlink(cold, b"f308").unwrap(),
                    "create" => (0..50).for_each(|n| {
                        new_file(fs, cold, &format!("new{n}"));
                    }),
                    _ => assert!(list(fs, cold) >= 399),
                }
            });
            gate.wait_until_stopped(what);
            // Nothing that the other thread waits for is needed here.
            let (done, is_done) = mpsc::channel();
            scope.spawn(move || {
                fs.lookup(warm, b"file").unwrap();
                for n in 0..50 {
                    new_file(fs, warm, &format!("n{n}"));
                }
                fs.unlink(warm, b"file").unwrap();
                assert_eq!(list(fs, warm), 50);
                done.send(()).unwrap();
            });
            let waited = is_done.recv_timeout(PATIENCE);
            let was_waiting = !waiting.is_finished();
            gate.release();
            waiting.join().unwrap();
            assert!(was_waiting, "{what}: the read was over before");
            waited.unwrap_or_else(|_| panic!("{what} of what is not in memory holds up others"));
        });
        drop(cold_inode);
        fs.sync_all().unwrap();
        drop(fs);
    }
    judge(&under);
}

/// Eight threads change and read more than ever fits into the memory for nodes.
#[test]
fn a_tiny_cache_ends_every_operation() {
    const DIRS: usize = 16;
    let under = filled(DIRS, 300);
    let options = OpenOptions {
        cache_bytes: 0,
        ..OpenOptions::default()
    };
    let fs = open(under.clone(), &options);
    let (fs, done) = (&fs, &mpsc::channel().0);
    thread::scope(|scope| {
        for thread in 0..8 {
            let done = done.clone();
            scope.spawn(move || {
                let own = new_directory(fs, &format!("own{thread}"));
                for n in 0..120 {
                    let d = (n * 5 + thread) % DIRS;
                    let dir = fs.lookup(fs.root(), format!("d{d}").as_bytes()).unwrap();
                    let name = format!("f{}", (n * 37 + thread * 11) % 300);
                    // Another one may have removed it.
                    let found = fs.lookup(dir.inode, name.as_bytes());
                    if n % 3 == thread % 3 && found.is_ok() {
                        let _ = fs.unlink(dir.inode, name.as_bytes());
                    }
                    new_file(fs, own, &format!("n{n}"));
                    if n % 40 == 39 {
                        fs.store().commit().unwrap();
                        assert_eq!(list(fs, own), n + 1);
                    }
                }
                let _ = done.send(());
            });
        }
    });
    let waits = fs.store().lock_waits();
    assert!(waits.reads_outside > 0, "{waits:?}");
    fs.sync_all().unwrap();
    judge(&under);
}
