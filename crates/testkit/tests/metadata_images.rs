//! Images of metadata: what btrfs-image makes of the same volume, restored to
//! the same trees. Damage is reported, and a hostile image is at most an error.

mod support;

use butterfs::{BlockDevice, MemoryDevice, OpenOptions, Volume};
use butterfs_admin::image::{ImageError, ImageOptions, Names, Walk, make, restore};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_check::{NoProgress, Options, check};
use butterfs_format::DeviceOffset;
use butterfs_testkit::judge::scratch_dir;
use butterfs_testkit::op::{OpPath, SnapshotAccess, Span};
use butterfs_testkit::{Capability, Op, Random};
use std::io::Cursor;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use support::apply_to_library;

const SIZE: u64 = 160 << 20;
type Devices = Vec<Arc<MemoryDevice>>;

fn shared(devices: &Devices) -> Vec<Arc<dyn BlockDevice>> {
    devices.iter().map(|one| Arc::clone(one) as _).collect()
}

fn fresh(count: usize) -> Devices {
    let device = || Arc::new(MemoryDevice::new(SIZE));
    (0..count).map(|_| device()).collect()
}

/// A volume whose names have at least five bytes.
fn volume(count: usize, node_size: u32) -> Devices {
    let devices = fresh(count);
    let options = MkfsOptions {
        node_size,
        metadata: Some(match count {
            1 => ProfileChoice::Single,
            _ => ProfileChoice::Raid1,
        }),
        ..MkfsOptions::default()
    };
    make_on(&shared(&devices), &options).unwrap();
    let volume = Volume::open_devices(shared(&devices), OpenOptions::default()).unwrap();
    let path = |text: String| OpPath(text.into_bytes());
    let apply = |op: Op| apply_to_library(&op, &volume).unwrap();
    apply(Op::Subvolume {
        path: path("secret place".to_owned()),
        mode: 0o755,
    });
    let mut random = Random::new(7);
    for file in 0..400 {
        let name = format!("secret place/letter {file}");
        apply(Op::Create {
            path: path(name.clone()),
            mode: 0o644,
        });
        apply(Op::Write {
            path: path(name),
            span: Span {
                offset: 0,
                length: 1 + random.below(6000),
            },
            seed: random.bits(),
        });
    }
    apply(Op::Snapshot {
        from: path("secret place".to_owned()),
        to: path("secret copy".to_owned()),
        access: SnapshotAccess::ReadOnly,
    });
    volume.close().unwrap();
    devices
}

fn image_of(devices: &Devices, options: &ImageOptions) -> Vec<u8> {
    let (made, image) = make(&shared(devices), options, Vec::new()).unwrap();
    assert!(made.nodes > 20, "{made:?}");
    assert!(made.unreadable.is_empty(), "{made:?}");
    image
}

fn restored(image: &[u8], count: usize) -> Result<Devices, ImageError> {
    let devices = fresh(count);
    restore(&mut Cursor::new(image), &mut |_| Ok(shared(&devices)))?;
    Ok(devices)
}

fn assert_clean(devices: &Devices) {
    let report = check(shared(devices), &Options::default(), &NoProgress).unwrap();
    assert!(report.is_clean(), "{:#?}", report.faults);
}

fn has(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

#[test]
fn what_was_imaged_comes_back() {
    for (count, node_size) in [(1, 16384), (1, 4096), (2, 16384)] {
        let devices = volume(count, node_size);
        for level in [0, 6] {
            for walk in [Walk::ExtentTree, Walk::Trees] {
                let options = ImageOptions {
                    level,
                    walk,
                    names: Names::Kept,
                };
                let image = image_of(&devices, &options);
                let back = restored(&image, count).unwrap();
                assert_clean(&back);
                // The same nodes: the same image, but for the mark of a dump.
                let again = image_of(
                    &back,
                    &ImageOptions {
                        level: 0,
                        ..options
                    },
                );
                let plain = image_of(
                    &devices,
                    &ImageOptions {
                        level: 0,
                        ..options
                    },
                );
                assert!(again[1024 + 4096..] == plain[1024 + 4096..]);
            }
        }
    }
}

#[test]
fn names_go_and_hashes_stay() {
    let devices = volume(1, 4096);
    let with = |names| {
        let options = ImageOptions {
            names,
            ..ImageOptions::default()
        };
        image_of(&devices, &options)
    };
    let kept = with(Names::Kept);
    assert!(has(&kept, b"letter 17") && has(&kept, b"secret copy"));
    for names in [Names::Garbage, Names::Colliding] {
        let image = with(names);
        assert!(
            !has(&image, b"letter") && !has(&image, b"secret"),
            "{names:?}"
        );
        let back = restored(&image, 1).unwrap();
        match names {
            Names::Colliding => assert_clean(&back),
            _ => {
                let report = check(shared(&back), &Options::default(), &NoProgress).unwrap();
                assert!(!report.is_clean(), "hashes of garbage fit by chance");
            }
        }
    }
}

#[test]
fn damage_is_said_and_left_out() {
    let devices = volume(1, 4096);
    let whole = image_of(&devices, &ImageOptions::default());
    let mut random = Random::new(3);
    let mut unreadable = 0;
    for _ in 0..20 {
        let patient: Devices = devices.iter().map(|one| Arc::new(one.snapshot())).collect();
        // Beyond the superblock: every tenth node.
        let first = (1 << 20) + random.below(10) * 4096;
        for at in (first..SIZE - 4096).step_by(10 * 4096) {
            patient[0].write_at(DeviceOffset(at), &[0xa5; 64]).unwrap();
        }
        for walk in [Walk::ExtentTree, Walk::Trees] {
            let options = ImageOptions {
                walk,
                ..ImageOptions::default()
            };
            let (made, image) = make(&shared(&patient), &options, Vec::new()).unwrap();
            unreadable += made.unreadable.len();
            assert!(made.unreadable.is_empty() || image.len() < whole.len());
            match restored(&image, 1) {
                Ok(_) | Err(ImageError::NoChunks(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(unreadable > 0, "nothing was damaged");
}

#[test]
fn a_hostile_image_is_an_error() {
    let devices = volume(1, 4096);
    for level in [0, 3] {
        let image = image_of(
            &devices,
            &ImageOptions {
                level,
                ..ImageOptions::default()
            },
        );
        let mut random = Random::new(u64::from(level));
        for _ in 0..300 {
            let mut hostile = image.clone();
            for _ in 0..1 + random.below(4) {
                let place = match random.one_in(2) {
                    true => random.below(6000),
                    false => random.below(hostile.len() as u64),
                };
                hostile[place as usize] = random.bits() as u8;
            }
            if random.one_in(3) {
                hostile.truncate(random.below(hostile.len() as u64) as usize);
            }
            if let Ok(back) = restored(&hostile, 1) {
                let _ = check(shared(&back), &Options::default(), &NoProgress);
            }
        }
        let refused = restored(&image, 2).map(drop);
        assert!(matches!(refused, Err(ImageError::Devices { .. })));
    }
}

fn run(program: &str, words: &[&dyn AsRef<std::ffi::OsStr>]) -> String {
    let out = Command::new(program).args(words).output().expect("it runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{program}: {text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

/// What dump-tree prints about all trees, without what a flag of the superblock
/// says.
fn trees(image: &Path) -> String {
    run("btrfs", &[&"inspect-internal", &"dump-tree", &image])
}

#[test]
fn the_tools_read_ours_and_we_read_theirs() {
    let needed = [
        Capability::Program("btrfs"),
        Capability::Program("btrfs-image"),
    ];
    if !Capability::all_here(&needed) {
        return;
    }
    let dir = scratch_dir();
    let at = |name: &str| dir.path().join(name);
    for level in [0_u8, 9] {
        let devices = volume(1, 16384);
        devices[0].save(&at("v.img")).unwrap();
        let options = ImageOptions {
            level,
            ..ImageOptions::default()
        };
        let ours = image_of(&devices, &options);
        std::fs::write(at("ours"), &ours).unwrap();
        let text = level.to_string();
        run("btrfs-image", &[&"-c", &text, &at("v.img"), &at("theirs")]);
        let theirs = std::fs::read(at("theirs")).unwrap();
        if level == 0 {
            assert!(ours == theirs, "the images differ");
        }
        std::fs::write(at("by-them"), b"").unwrap();
        // With several threads, btrfs-image sometimes writes another count of
        // substripes into chunk items.
        let words: [&dyn AsRef<std::ffi::OsStr>; 5] =
            [&"-r", &"-t", &"1", &at("ours"), &at("by-them")];
        run("btrfs-image", &words);
        restored(&theirs, 1).unwrap()[0].save(&at("by-us")).unwrap();
        let (of_theirs, of_ours) = (trees(&at("by-them")), trees(&at("by-us")));
        let difference = of_theirs.lines().zip(of_ours.lines()).find(|(a, b)| a != b);
        assert!(
            of_theirs == of_ours,
            "the trees differ, first here: {difference:?}"
        );
        run("btrfs", &[&"check", &at("by-us")]);
        run("btrfs", &[&"check", &at("by-them")]);
    }
}
