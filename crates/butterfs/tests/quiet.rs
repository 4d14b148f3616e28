//! A volume without changes is committed, if that was asked for.

use butterfs::{MemoryDevice, OpenOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(20);

fn options(quiet: Option<Duration>) -> OpenOptions {
    OpenOptions {
        commit_interval: Duration::from_secs(3600),
        commit_when_quiet: quiet,
        ..OpenOptions::default()
    }
}

/// Whether the file would be there after a power failure now.
fn is_on_device(device: &MemoryDevice, path: &str) -> bool {
    let volume = Volume::open_device(Arc::new(device.snapshot()), OpenOptions::read_only());
    volume.unwrap().read_file(path.as_bytes()).is_ok()
}

fn new_volume(quiet: Option<Duration>) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    make(&*device, &MkfsOptions::default()).unwrap();
    let volume = Volume::open_device(device.clone(), options(quiet)).unwrap();
    (device, volume)
}

#[test]
fn what_was_written_is_durable_soon_after_the_last_change() {
    let quiet = Duration::from_millis(200);
    let (device, volume) = new_volume(Some(quiet));
    for name in ["/first", "/second"] {
        volume.write_file(name.as_bytes(), b"data").unwrap();
        let written = Instant::now();
        while !is_on_device(&device, name) {
            assert!(written.elapsed() < PATIENCE, "{name} is still in memory");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(written.elapsed() >= quiet);
    }
    // And then it is quiet indeed.
    std::thread::sleep(2 * quiet);
    let writes = device.snapshot();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(device.first_difference(&writes), None);
}

#[test]
fn nobody_who_did_not_ask_gets_a_commit() {
    let (device, volume) = new_volume(None);
    volume.write_file(b"/file", b"data").unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!is_on_device(&device, "/file"));
    volume.close().unwrap();
    assert!(is_on_device(&device, "/file"));
}
