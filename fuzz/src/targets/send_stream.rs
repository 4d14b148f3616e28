//! Streams, received into a volume in memory.

use crate::meter::bounded;
use crate::volume::{empty, options};
use butterfs::Volume;
use butterfs::receive::{ReceiveOptions, StreamReader, VolumeTarget, receive};
use butterfs_check::{NoProgress, Options, check};
use butterfs_device::MemoryDevice;
use butterfs_format::checksum::crc32c_raw;
use std::sync::{Arc, OnceLock};

/// Bytes before the first command, and of a command's header.
const STREAM_HEADER: usize = 17;
const COMMAND_HEADER: usize = 10;

/// Makes the checksums right, so that what is in the commands is looked at.
fn seal(stream: &mut [u8]) {
    let mut at = STREAM_HEADER;
    while let Some(header) = stream.get(at..at + COMMAND_HEADER) {
        let length = header.first_chunk::<4>().expect("four bytes");
        let end = at + COMMAND_HEADER + u32::from_le_bytes(*length) as usize;
        let Some(command) = stream.get_mut(at..end) else {
            return;
        };
        command[6..COMMAND_HEADER].fill(0);
        let sum = crc32c_raw(0, command);
        command[6..COMMAND_HEADER].copy_from_slice(&sum.to_le_bytes());
        at = end;
    }
}

/// A stream whose checksums are made right, unless its first byte is odd.
pub fn run(data: &[u8]) {
    static EMPTY: OnceLock<Arc<MemoryDevice>> = OnceLock::new();
    let Some((way, stream)) = data.split_first() else {
        return;
    };
    let mut stream = stream.to_vec();
    if way % 2 == 0 {
        seal(&mut stream);
    }
    let base = EMPTY.get_or_init(|| empty(0, 1 << 30));
    let device = Arc::new(base.snapshot());
    bounded(512 << 20, || {
        let volume = Volume::open_device(device.clone(), options(2)).expect("it opens");
        let files = volume.files();
        let mut target = VolumeTarget::new(Arc::clone(files), files.root());
        let mut reader = StreamReader::new(&stream[..]);
        let options = ReceiveOptions {
            errors_max: 0,
            ..ReceiveOptions::default()
        };
        let _ = receive(&mut reader, &mut target, options, &mut |_, _| {});
        volume.close().expect("it closes");
        drop((target, volume));
        let options = Options {
            threads: 1,
            ..Options::default()
        };
        let report = check(vec![device.clone()], &options, &NoProgress).expect("it is checked");
        assert!(report.is_clean(), "{:#?}", report.faults);
    });
}
