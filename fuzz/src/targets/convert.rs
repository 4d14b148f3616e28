//! Conversions of ext2, ext3 and ext4 whose metadata were made to lie: refused
//! with nothing written, or a clean volume from which the way back leads to the
//! same bytes.

use crate::meter::bounded;
use crate::mutation::{get, interesting, put};
use crate::tape::Tape;
use butterfs_check::{DataChecksums, NoProgress, check};
use butterfs_convert::{Options, Unwatched, convert, plan, rollback};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::DeviceOffset;
use butterfs_testkit::judge::scratch_dir;
use butterfs_testkit::run_script;
use std::fs::{self, File};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// Arguments of mke2fs. Without checksums of metadata, mutations get further.
pub const KINDS: [&[&str]; 4] = [
    &["-t", "ext4", "-O", "^metadata_csum,inline_data"],
    &[
        "-t",
        "ext4",
        "-O",
        "^metadata_csum,bigalloc,ea_inode",
        "-C",
        "16384",
    ],
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext4"],
];
const SIZE: u64 = 16 << 20;
const SCRIPT: &str = "mkdir -p a/b; for i in $(seq 90); do seq $i 999 > a/b/$i; done; \
                      ln -s x l; ln -s $(printf %090d 7) long; ln a/b/9 n; mkfifo p; \
                      truncate -s 900000 hole; echo 9 >> hole; setfattr -n user.a -v 7 a/b/8";
/// Changed bytes lie in pieces of this size that are not all zeros.
const PIECE: usize = 16;
/// Greatest number of changes of one input.
const CHANGES_MAX: usize = 24;

/// An image, and where its bytes lie.
struct Base {
    device: MemoryDevice,
    places: Vec<u64>,
}

fn made(kind: &[&str]) -> Base {
    let directory = scratch_dir();
    let (files, image) = (
        directory.path().join("files"),
        directory.path().join("image"),
    );
    fs::create_dir(&files).expect("a scratch directory");
    run_script(&files, SCRIPT);
    let file = File::create(&image).expect("a scratch directory");
    file.set_len(SIZE).expect("a sparse file");
    let made = Command::new("mke2fs")
        .args([
            "-q",
            "-F",
            "-N",
            "512",
            "-E",
            "lazy_itable_init=0,nodiscard",
            "-d",
        ])
        .args([&files])
        .args(kind)
        .arg(&image)
        .output()
        .expect("mke2fs");
    assert!(made.status.success(), "{made:?}");
    let bytes = fs::read(&image).expect("the image");
    let device = MemoryDevice::new(SIZE);
    for (at, block) in (0..).step_by(4096).zip(bytes.chunks(4096)) {
        if block.iter().any(|byte| *byte != 0) {
            device.write_at(DeviceOffset(at), block).expect("memory");
        }
    }
    let pieces = (0..).step_by(PIECE).zip(bytes.chunks(PIECE));
    let places = pieces.filter(|(_, piece)| piece.iter().any(|byte| *byte != 0));
    Base {
        device,
        places: places.map(|(at, _)| at).collect(),
    }
}

fn base(number: usize) -> &'static Base {
    static BASES: [OnceLock<Base>; KINDS.len()] = [const { OnceLock::new() }; KINDS.len()];
    BASES[number].get_or_init(|| made(KINDS[number]))
}

/// Changes one number of the image.
fn change(base: &Base, device: &MemoryDevice, tape: &mut Tape<'_>) {
    let piece = match tape.u8() {
        // The superblock and the first descriptors.
        near @ 0..128 => 1024 + u64::from(near) * PIECE as u64,
        _ => base.places[tape.below(base.places.len())],
    };
    let width = 1 << (tape.u8() % 4);
    let inside = usize::from(tape.u8()) % (PIECE / width) * width;
    let mut bytes = [0; PIECE];
    device
        .read_at(DeviceOffset(piece), &mut bytes)
        .expect("memory");
    let new = interesting(tape, get(&bytes, inside, width));
    put(&mut bytes, inside, width, new);
    device
        .write_at(DeviceOffset(piece), &bytes)
        .expect("memory");
}

/// Which image, then the changes.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let base = base(usize::from(tape.u8()) % KINDS.len());
    let device = Arc::new(base.device.snapshot());
    for _ in 0..CHANGES_MAX {
        if tape.is_empty() {
            break;
        }
        change(base, &device, &mut tape);
    }
    let before = device.snapshot();
    let shared: Arc<dyn BlockDevice> = device.clone();
    let options = Options {
        sort_memory: 100_000,
        ..Options::default()
    };
    bounded(64 << 20, || {
        let planned = plan(&shared, &options, &Unwatched);
        assert_eq!(device.first_difference(&before), None, "a plan wrote");
        if let Err(error) = convert(&shared, &options, &Unwatched) {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
            assert_eq!(device.first_difference(&before), None, "{error}");
            return;
        }
        planned.expect("what can be converted can be planned");
        let mut asked = butterfs_check::Options {
            data: DataChecksums::Verify,
            threads: 1,
            ..butterfs_check::Options::default()
        };
        asked.memory_max = 32 << 20;
        let report = check(vec![shared.clone()], &asked, &NoProgress).expect("it opens");
        assert!(report.faults.is_empty(), "{:#?}", report.faults);
        rollback(&shared, &Unwatched).expect("nothing changed since then");
        assert_eq!(device.first_difference(&before), None, "after the way back");
    });
}
