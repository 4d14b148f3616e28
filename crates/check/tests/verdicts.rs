//! Items of a kernel volume, changed at random in nodes that are sealed again:
//! where `btrfs check` reports a fault, ours does.
//!
//! `BUTTERFS_SEEDS=first..last` runs other seeds.

mod support;

use butterfs_check::{DataChecksums, NoProgress, Options, check};
use butterfs_device::{Access, FileDevice};
use butterfs_format::TreeId;
use butterfs_testkit::judge::{self, Mode, btrfs_check, scratch_dir};
use butterfs_testkit::{Random, differential};
use std::path::Path;
use std::sync::Arc;
use support::image::Image;
use support::volume;

const TREES: [TreeId; 9] = [
    TreeId(1),
    TreeId(2),
    TreeId(4),
    TreeId(5),
    TreeId(7),
    TreeId(8),
    TreeId(9),
    TreeId(10),
    TreeId(256),
];

/// A volume whose content does not change from run to run; what the kernel
/// puts where may, so a miss says what was damaged.
fn make_sound(path: &Path) {
    let numbers = "<(seq 1000000 9999999)";
    let script = volume::MIXTURE
        .replace("if=/dev/urandom", &format!("iflag=fullblock if={numbers}"))
        .replace("/dev/urandom", numbers);
    let uuid = "9c0fd3a8-51c3-4f9b-9a49-2f4f6d9c1e77";
    volume::make(path, &["-m", "single", "-U", uuid], "", &script);
    let script = "btrfs -q quota enable .; btrfs -q quota rescan -w .; \
        btrfs -q qgroup create 1/1 .; btrfs -q qgroup assign 0/256 1/1 . || true; \
        btrfs -q qgroup limit 1G 0/256 .; btrfs -q quota rescan -w . || true; sync";
    volume::change(path, "", script);
}

/// What is wrong, if anything is; an error is a fault too.
fn ours(path: &Path) -> Option<String> {
    let device = FileDevice::open(path, Access::ReadOnly).expect("the image opens");
    let options = Options {
        data: DataChecksums::Ignore,
        ..Options::default()
    };
    match check(vec![Arc::new(device)], &options, &NoProgress) {
        Ok(report) if report.is_clean() => None,
        Ok(report) => Some(format!("{:?}", report.counts)),
        Err(error) => Some(error.to_string()),
    }
}

/// Changes one field of a random item; gives what it did.
fn damage(image: &mut Image, random: &mut Random) -> String {
    let tree = *random.pick(&TREES);
    let items = image.items(tree);
    let (key, data) = loop {
        let item = random.pick(&items);
        if !item.1.is_empty() {
            break item.clone();
        }
    };
    let at = random.below(data.len() as u64) as usize;
    let kind = random.below(4);
    let other = random.below(256) as u8;
    image.update(tree, key, |data| match kind {
        0 => data[at] ^= 1 << (other % 8),
        1 => data[at] = other,
        2 => data[at] = data[at].wrapping_add(1),
        _ => data[at & !7..]
            .iter_mut()
            .take(8)
            .for_each(|byte| *byte = 0),
    });
    format!("tree {tree}, {key}, byte {at}")
}

#[test]
fn what_btrfs_check_reports_is_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = dir.path().join("sound.img");
    make_sound(&sound);
    let path = dir.path().join("damaged.img");
    let mut missed = Vec::new();
    let (mut theirs_alone, mut reported, mut ours_alone) = (0, 0, 0);
    for seed in differential::seeds(0..60) {
        volume::sparse_copy(&sound, &path);
        let mut random = Random::new(seed);
        let what = damage(&mut Image::open(&path), &mut random);
        let found = ours(&path);
        let theirs = btrfs_check(&path, Mode::Original, judge::DataChecksums::Ignore);
        match (found, theirs.clean) {
            (None, false) => {
                theirs_alone += 1;
                let line = theirs.output.lines().find(|line| !line.starts_with('['));
                missed.push(format!("seed {seed}, {what}: {line:?}\n{}", theirs.output));
            }
            (Some(_), false) => reported += 1,
            (Some(_), true) => ours_alone += 1,
            (None, true) => {}
        }
    }
    println!("{reported} reported by both, {ours_alone} by ours alone, {theirs_alone} missed");
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    assert!(reported > 0);
}
