//! Changes nodes of volumes at random and seals them again. The check must end
//! with a report or an error, never with a panic, and must notice most of the
//! changes.

mod support;

use butterfs_check::{CheckError, DataChecksums, NoProgress, Options, check};
use butterfs_device::{Access, FileDevice};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::{ItemType, Logical, TreeId};
use butterfs_testkit::Random;
use butterfs_testkit::judge::scratch_dir;
use std::path::Path;
use std::sync::Arc;
use support::image::Image;
use support::volume;

/// The seeds, one for each volume; `BUTTERFS_SEEDS=first..last` sets others.
const SEEDS: std::ops::Range<u64> = 0..150;

fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("BUTTERFS_SEEDS").ok().and_then(|word| {
        let (first, last) = word.split_once("..")?;
        Some(first.parse().ok()?..last.parse().ok()?)
    });
    given.unwrap_or(SEEDS)
}

fn nodes(image: &Image) -> Vec<Logical> {
    let is_node = |item_type| item_type == ItemType::METADATA_ITEM;
    let all = image.items(TreeId::EXTENT).into_iter();
    all.filter(|(key, _)| is_node(key.item_type))
        .map(|(key, _)| Logical(key.objectid))
        .collect()
}

fn run(path: &Path) -> Option<bool> {
    let device = FileDevice::open(path, Access::ReadOnly).expect("the image opens");
    let options = Options {
        data: DataChecksums::Ignore,
        threads: 2,
        ..Options::default()
    };
    let report = check(vec![Arc::new(device)], &options, &NoProgress).ok()?;
    Some(report.is_clean())
}

/// A chunk that claims most of the address space takes no memory, and a check
/// takes no more than the limit.
#[test]
fn memory_is_bounded() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    volume::make(&path, &["-n", "4096", "-m", "single"], "", volume::MIXTURE);
    let sound = dir.path().join("sound.img");
    volume::sparse_copy(&path, &sound);
    let mut image = Image::open(&path);
    // The file is sparse and as large as the chunk.
    image.file.set_len(1 << 62).expect("a sparse file");
    let (key, _) = image.find(TreeId::CHUNK, |key, data| {
        key.item_type == ItemType::CHUNK_ITEM && data[24] == 4
    });
    let huge = (1_u64 << 61).to_le_bytes();
    image.update(TreeId::CHUNK, key, |data| {
        data[..8].copy_from_slice(&huge);
    });
    image.superblock(|superblock| superblock.sys_chunks[0].1.length = 1 << 61);
    assert_eq!(run(&path), Some(false));
    let device = Arc::new(FileDevice::open(&sound, Access::ReadOnly).expect("the image opens"));
    let check = |memory_max| {
        let options = Options {
            memory_max,
            ..Options::default()
        };
        check(vec![device.clone()], &options, &NoProgress)
    };
    for memory_max in [0, 1000, 5000, 20_000] {
        let outcome = check(memory_max);
        assert!(
            matches!(outcome, Err(CheckError::Memory { .. })),
            "{memory_max}"
        );
    }
    assert!(check(1 << 20).is_ok_and(|report| report.is_clean()));
}

#[test]
fn random_changes_never_stop_a_check() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = dir.path().join("sound.img");
    volume::make(&sound, &["-n", "4096", "-m", "single"], "", volume::MIXTURE);
    let path = dir.path().join("v.img");
    let mut noticed = 0;
    for seed in seeds() {
        volume::sparse_copy(&sound, &path);
        let mut random = Random::new(seed);
        let mut image = Image::open(&path);
        let nodes = nodes(&image);
        for _ in 0..=random.below(3) {
            let node = nodes[random.below(nodes.len() as u64) as usize];
            assert!(image.map.find(node).is_some_and(|(_, chunk)| {
                chunk
                    .flags
                    .intersects(BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM)
            }));
            image.raw(node, |bytes| {
                for _ in 0..=random.below(4) {
                    // Half of the changes are in headers and item descriptors.
                    let end = if random.below(2) == 0 {
                        700
                    } else {
                        bytes.len() as u64
                    };
                    let at = 32 + random.below(end - 32) as usize;
                    bytes[at] = match random.below(3) {
                        0 => 0xff,
                        1 => 0,
                        _ => random.below(256) as u8,
                    };
                }
            });
        }
        println!("seed {seed}");
        if run(&path) != Some(true) {
            noticed += 1;
        }
    }
    // The check cannot notice all changes: times, for example, may have any
    // value.
    let all = seeds().count();
    assert!(noticed * 2 > all, "{noticed} of {all} were noticed");
}
