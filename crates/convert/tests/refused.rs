//! What is not converted: refused before anything is written. Damaged images,
//! and images with too little space.

mod support;

use butterfs_convert::{ConvertError, Options, Unwatched, plan};
use butterfs_device::{Access, BlockDevice, MemoryDevice};
use butterfs_format::DeviceOffset;
use butterfs_testkit::Random;
use butterfs_testkit::differential::seeds;
use butterfs_testkit::judge::scratch_dir;
use butterfs_testkit::run_script;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use support::{
    MIB, assert_same_bytes, can_mount, convert, judge, judge_device, mke2fs, options, rollback, run,
};

/// Makes an image that mke2fs fills.
fn made(image: &Path, size: u64, script: &str, arguments: &[&str]) {
    let files = image.with_extension("files");
    fs::create_dir_all(&files).unwrap();
    run_script(&files, script);
    let all = [arguments, &["-d", files.to_str().unwrap()]].concat();
    mke2fs(image, size, &all);
    fs::remove_dir_all(files).unwrap();
}

fn memory(image: &Path) -> Arc<MemoryDevice> {
    let bytes = fs::read(image).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    for (number, chunk) in bytes.chunks(4096).enumerate() {
        if chunk.iter().any(|byte| *byte != 0) {
            device
                .write_at(DeviceOffset(number as u64 * 4096), chunk)
                .unwrap();
        }
    }
    Arc::new(device)
}

#[test]
fn refusals_say_what_to_do() {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    let image = directory.path().join("image");
    let name = image.to_str().unwrap();
    let debugfs = |request: &str| {
        run("debugfs", &["-w", "-R", request, name]);
    };
    let cases: [(&str, &str); 5] = [
        ("feature needs_recovery", "replayed"),
        ("ssv state 2", "errors"),
        ("ssv state 0", "not unmounted"),
        ("feature encrypt", "encrypted"),
        ("feature verity", "fs-verity"),
    ];
    for (request, word) in cases {
        mke2fs(&image, 32 * MIB, &["-t", "ext4"]);
        debugfs(request);
        let before = fs::read(&image).unwrap();
        let error = convert(&image, &options()).unwrap_err();
        assert!(
            matches!(error, ConvertError::Refused(_)),
            "{request}: {error}"
        );
        assert!(error.to_string().contains(word), "{request}: {error}");
        assert!(before == fs::read(&image).unwrap(), "{request}");
    }
    made(&image, 32 * MIB, "mkdir ext2_saved", &["-t", "ext4"]);
    let error = convert(&image, &options()).unwrap_err();
    assert!(error.to_string().contains("rename it"), "{error}");
    fs::write(&image, vec![7; 8 << 20]).unwrap();
    let error = convert(&image, &options()).unwrap_err();
    assert!(matches!(error, ConvertError::NotExt4), "{error}");
    assert!(rollback(&image).is_err());
    mke2fs(&image, 32 * MIB, &["-t", "ext4"]);
    convert(&image, &options()).unwrap();
    let error = convert(&image, &options()).unwrap_err();
    assert!(matches!(error, ConvertError::AlreadyBtrfs), "{error}");
}

/// Bitmaps that call free what the file system itself needs. The conversion
/// would write there while it still reads.
#[test]
fn what_is_used_but_called_free() {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    let image = directory.path().join("image");
    let name = image.to_str().unwrap();
    let script = "mkdir d; for i in $(seq 800); do : > d/$i$(printf %0200d 7); done; \
                  seq 1 99999 > f";
    for block in ["1024", "4096"] {
        let kind = &["-t", "ext4", "-b", block, "-J", "size=4", "-N", "16384"];
        made(&image, 64 * MIB, script, kind);
        let whole = fs::read(&image).unwrap();
        let in_cell = 65536 / block.parse::<u64>().unwrap();
        // The journal, a directory, a file, the inode table, and the place of
        // the new superblock.
        for what in ["<8>", "/d", "/f", "inodes", "superblock"] {
            fs::write(&image, &whole).unwrap();
            let blocks = match what {
                "inodes" => (16 * in_cell).to_string(),
                "superblock" => in_cell.to_string(),
                file => run("debugfs", &["-R", &format!("blocks {file}"), name]),
            };
            let numbers: Vec<u64> = blocks
                .split_whitespace()
                .filter_map(|one| one.parse().ok())
                .collect();
            let cells: BTreeSet<u64> = numbers.iter().map(|one| one / in_cell).collect();
            assert!(!cells.is_empty(), "{what}: {blocks}");
            for cell in cells {
                let request = format!("freeb {} {in_cell}", cell * in_cell);
                run("debugfs", &["-w", "-R", &request, name]);
            }
            let before = fs::read(&image).unwrap();
            assert!(before != whole, "{what}");
            let error = convert(&image, &options())
                .err()
                .unwrap_or_else(|| panic!("{block}, {what} ({numbers:?}): converted"));
            let is_told = matches!(error, ConvertError::Blocks { .. });
            assert!(is_told, "{block}, {what}: {error}");
            assert!(before == fs::read(&image).unwrap(), "{block}, {what}");
        }
    }
}

/// Sizes around the smallest that works: each is refused before a write, or
/// converted.
#[test]
fn full_file_systems() {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    let image = directory.path().join("image");
    let script = "head -c 12000000 /dev/urandom > large; \
                  for i in $(seq 300); do head -c $((i * 20)) /dev/urandom > f$i; done";
    for block in ["1024", "4096"] {
        let (mut converted, mut refused) = (0, 0);
        for step in 0..24 {
            let size = 15 * MIB + step * 128 * 1024;
            let files = image.with_extension("files");
            fs::create_dir_all(&files).unwrap();
            if step == 0 {
                run_script(&files, script);
            }
            let arguments = [
                "-q",
                "-F",
                "-t",
                "ext4",
                "-b",
                block,
                "-m",
                "0",
                "-O",
                "^has_journal",
                "-N",
                "400",
                "-d",
            ];
            fs::File::create(&image).unwrap().set_len(size).unwrap();
            let made = std::process::Command::new("mke2fs")
                .args(arguments)
                .args([&files, &image])
                .output()
                .unwrap();
            if !made.status.success() {
                continue;
            }
            let before = fs::read(&image).unwrap();
            let device = memory(&image);
            let shared: Arc<dyn BlockDevice> = device.clone();
            match butterfs_convert::convert(&shared, &options(), &Unwatched) {
                Ok(_) => {
                    converted += 1;
                    judge_device(shared.clone(), &format!("{block} {size}"));
                    butterfs_convert::rollback(&shared, &Unwatched).unwrap();
                }
                Err(ConvertError::NoSpace { missing, .. }) => {
                    assert!(missing > 0);
                    refused += 1;
                }
                Err(other) => panic!("{block} {size}: {other}"),
            }
            let mut after = vec![0; before.len()];
            device.read_at(DeviceOffset(0), &mut after).unwrap();
            assert_same_bytes(&before, &after, &format!("{block} {size}"));
        }
        assert!(
            converted > 0 && refused > 0,
            "{block}: {converted} {refused}"
        );
    }
}

/// Flipped bytes end with an error, or with a volume that is clean.
#[test]
fn damaged_images() {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    for (kind, arguments) in [
        ("checksums", &["-t", "ext4", "-N", "512"][..]),
        (
            "plain",
            &[
                "-t",
                "ext4",
                "-O",
                "^metadata_csum,inline_data",
                "-N",
                "512",
            ],
        ),
        ("ext2", &["-t", "ext2", "-b", "1024", "-N", "512"]),
    ] {
        let image = directory.path().join("image");
        let script = "mkdir -p a/b; for i in $(seq 90); do seq $i 999 > a/b/$i; done; \
                      ln -s x l; ln a/b/9 n; truncate -s 900000 hole; echo 9 >> hole";
        made(&image, 16 * MIB, script, arguments);
        let good = memory(&image);
        let whole = fs::read(&image).unwrap();
        let places: Vec<usize> = (0..whole.len() / 16)
            .filter(|at| whole[at * 16..at * 16 + 16].iter().any(|byte| *byte != 0))
            .filter(|at| at * 16 < (2 << 20) || at % 64 == 0)
            .collect();
        for seed in seeds(0..100) {
            let mut random = Random::new(seed);
            let damaged = Arc::new(good.snapshot());
            for _ in 0..=random.below(4) {
                let at = *random.pick(&places) * 16 + random.below(16) as usize;
                let byte = [random.bits() as u8];
                damaged.write_at(DeviceOffset(at as u64), &byte).unwrap();
            }
            let before = damaged.snapshot();
            let shared: Arc<dyn BlockDevice> = damaged.clone();
            match butterfs_convert::convert(&shared, &options(), &Unwatched) {
                Ok(_) => judge_device(shared, &format!("{kind}, seed {seed}")),
                Err(error) => {
                    let changed = damaged.first_difference(&before);
                    assert_eq!(changed, None, "{kind}, seed {seed}: {error}");
                }
            }
        }
    }
}

#[test]
fn a_plan_writes_nothing() {
    if !can_mount() {
        return;
    }
    let directory = scratch_dir();
    let image = directory.path().join("image");
    made(&image, 32 * MIB, "seq 1 9999 > f", &["-t", "ext4"]);
    let before = fs::read(&image).unwrap();
    let device = butterfs_device::FileDevice::open(&image, Access::ReadOnly).unwrap();
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let planned = plan(&device, &Options::default(), &Unwatched).unwrap();
    assert_eq!(planned.files, 3);
    drop(device);
    assert!(before == fs::read(&image).unwrap());
    let converted = convert(&image, &Options::default()).unwrap();
    assert_eq!(planned.metadata_bytes, converted.metadata_bytes);
    judge(&image, "planned");
}
