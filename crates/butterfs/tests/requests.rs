//! Devices that answer slowly: what readers ask for is under way at the same
//! time, and nobody else waits for it.

use butterfs::{Access, BlockDevice, DeviceError, MemoryDevice, OpenOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_device::DeviceRange;
use butterfs_format::DeviceOffset;
use butterfs_testkit::content::content;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Reads larger than a node are held back.
const NODE: usize = 16 << 10;
/// After this long without what is waited for, a test has failed.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct State {
    is_shut: bool,
    under_way: usize,
}

/// Holds reads of data back while it is shut.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.state.lock().unwrap().is_shut = is_shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.under_way += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |s| s.is_shut).unwrap();
        state.under_way -= 1;
    }

    /// Waits until at least `count` requests are held back. Returns how many
    /// there are then.
    fn wait_for(&self, count: usize) -> usize {
        let state = self.state.lock().unwrap();
        let waiting = |state: &mut State| state.under_way < count;
        let waited = self.changed.wait_timeout_while(state, LIMIT, waiting);
        waited.unwrap().0.under_way
    }
}

#[derive(Debug)]
struct Gated {
    inner: MemoryDevice,
    gate: Arc<Gate>,
}

impl BlockDevice for Gated {
    fn size(&self) -> u64 {
        self.inner.size()
    }
    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        if buf.len() > NODE {
            self.gate.pass();
        }
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        self.inner.discard(range)
    }
    fn identity(&self) -> String {
        self.inner.identity()
    }
    fn access(&self) -> Access {
        self.inner.access()
    }
}

/// A volume with these files, none of which is in memory.
fn volume(data: ProfileChoice, count: usize, files: &[Vec<u8>]) -> (Arc<Gate>, Volume) {
    let gate = Arc::new(Gate::default());
    let gated = |_| {
        Arc::new(Gated {
            inner: MemoryDevice::new(400 * MIB),
            gate: Arc::clone(&gate),
        }) as Arc<dyn BlockDevice>
    };
    let devices: Vec<_> = (0..count).map(gated).collect();
    let mkfs = MkfsOptions {
        data: Some(data),
        ..MkfsOptions::default()
    };
    make_on(&devices, &mkfs).unwrap();
    let volume = Volume::open_devices(devices.clone(), OpenOptions::default()).unwrap();
    for (number, content) in files.iter().enumerate() {
        let path = format!("/{number}");
        volume.write_file(path.as_bytes(), content).unwrap();
    }
    volume.close().unwrap();
    drop(volume);
    let volume = Volume::open_devices(devices, OpenOptions::default()).unwrap();
    (gate, volume)
}

#[test]
fn readers_have_a_request_each_under_way_and_hold_up_nobody() {
    const READERS: usize = 64;
    let files: Vec<_> = (0..READERS as u64).map(|n| content(n, 128 << 10)).collect();
    let (gate, volume) = volume(ProfileChoice::Single, 1, &files);
    gate.set(true);
    std::thread::scope(|scope| {
        for (number, content) in files.iter().enumerate() {
            let volume = &volume;
            scope.spawn(move || {
                let found = volume.read_file(format!("/{number}").as_bytes());
                assert!(found.unwrap() == *content, "{number}");
            });
        }
        let under_way = gate.wait_for(READERS);
        // While all of them wait, others look up, write and commit.
        let (tell, told) = std::sync::mpsc::channel();
        let other = &volume;
        scope.spawn(move || {
            other.resolve(b"/7").unwrap();
            other.write_file(b"/new", b"new").unwrap();
            other.sync().unwrap();
            tell.send(other.read_file(b"/new").unwrap()).unwrap();
        });
        let answer = told.recv_timeout(LIMIT);
        gate.set(false);
        assert_eq!(under_way, READERS);
        assert_eq!(answer.as_deref(), Ok(&b"new"[..]));
    });
}

#[test]
fn one_read_has_a_request_under_way_at_each_device() {
    const DEVICES: usize = 4;
    let files = [content(1, 8 << 20)];
    let (gate, volume) = volume(ProfileChoice::Raid0, DEVICES, &files);
    gate.set(true);
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(volume.read_file(b"/0").unwrap() == files[0]));
        let under_way = gate.wait_for(DEVICES);
        gate.set(false);
        assert!(under_way >= DEVICES, "{under_way}");
    });
}
