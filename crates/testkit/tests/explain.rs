//! What is said about a volume's space is what happens: for volumes that run
//! full, and for balances that were predicted.

use butterfs::{Access, MountOptions, Volume};
use butterfs_admin::balance::{self, End, Filter, Filters, Redundancy};
use butterfs_admin::explain::{Obstacle, Remedy, explain};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_testkit::content::content;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// What a write may get beyond the prediction: metadata space that data did not
/// need.
const SLACK: u64 = 40 * MIB;

fn devices(sizes: &[u64]) -> Vec<Arc<dyn BlockDevice>> {
    let device = |size: &u64| Arc::new(MemoryDevice::new(size * MIB)) as Arc<dyn BlockDevice>;
    sizes.iter().map(device).collect()
}

fn open(devices: &[Arc<dyn BlockDevice>]) -> Volume {
    let options = MountOptions::parse("").unwrap().open_options();
    assert_eq!(options.store.access, Access::ReadWrite);
    Volume::open_devices(devices.to_vec(), options).unwrap()
}

fn make(devices: &[Arc<dyn BlockDevice>], data: ProfileChoice, metadata: ProfileChoice) -> Volume {
    let options = MkfsOptions {
        data: Some(data),
        metadata: Some(metadata),
        ..MkfsOptions::default()
    };
    make_on(devices, &options).unwrap();
    open(devices)
}

/// Writes files until there is no space, and gives their bytes.
fn fill(volume: &Volume, name: &str, length: usize) -> u64 {
    let mut written = 0;
    for number in 0_u64.. {
        let path = format!("/{name}{number}");
        let bytes = content(number, length);
        match volume.write_file(path.as_bytes(), &bytes) {
            Ok(()) => written += length as u64,
            Err(error) => {
                assert!(error.to_string().contains("space"), "{error}");
                let _ = volume
                    .files()
                    .unlink(volume.files().root(), &path.as_bytes()[1..]);
                break;
            }
        }
        if number.is_multiple_of(16) {
            volume.sync().unwrap();
        }
    }
    volume.sync().unwrap();
    written
}

/// In each profile, on devices of unequal sizes: the predicted amount can be
/// written, and not much more.
#[test]
fn what_can_be_written_is_what_was_said() {
    use ProfileChoice as P;
    let cases: [(P, P, &[u64]); 9] = [
        (P::Single, P::Dup, &[400]),
        (P::Dup, P::Dup, &[500]),
        (P::Raid0, P::Raid1, &[300, 300]),
        (P::Raid1, P::Raid1, &[600, 300, 200]),
        (P::Raid1, P::Raid1, &[900, 300]),
        (P::Raid1c3, P::Raid1c3, &[500, 300, 300, 200]),
        (P::Raid10, P::Raid10, &[400, 300, 300, 300]),
        (P::Raid5, P::Raid1, &[300, 300, 500]),
        (P::Raid6, P::Raid1c3, &[300, 300, 300, 600]),
    ];
    for (data, metadata, sizes) in cases {
        let context = format!("{data} {metadata} {sizes:?}");
        let devices = devices(sizes);
        let volume = make(&devices, data, metadata);
        let said = explain(volume.files().store()).unwrap();
        let written = fill(&volume, "f", MIB as usize);
        eprintln!(
            "{context}: {} MiB said, {} written",
            said.writable / MIB,
            written / MIB
        );
        let least = said.writable - said.writable / 100 - MIB;
        assert!(written >= least, "{context}");
        assert!(
            written <= said.writable + SLACK,
            "{context}: {written} {said:?}"
        );
        let stranded: u64 = said
            .obstacles
            .iter()
            .map(|obstacle| match obstacle {
                Obstacle::Stranded { bytes, .. } => *bytes,
                _ => 0,
            })
            .sum();
        // The volume is full, so only the reason is left to say.
        let said = explain(volume.files().store()).unwrap();
        assert!(said.writable < SLACK, "{context}: {said:?}");
        assert!(!said.obstacles.is_empty(), "{context}: {said:?}");
        let left: u64 = said.standing.devices.iter().map(|d| d.unallocated()).sum();
        let (low, high) = (stranded.saturating_sub(SLACK), stranded + SLACK);
        assert!(
            (low..=high).contains(&left),
            "{context}: {stranded} said, {left} left"
        );
        volume.close().unwrap();
        // The same without a mount.
        let again = open(&devices);
        let later = explain(again.files().store()).unwrap();
        assert!(later.writable < SLACK, "{context}: {later:?}");
    }
}

/// The proposed balance frees what was predicted, to the byte.
#[test]
fn a_balance_frees_what_was_said() {
    use ProfileChoice as P;
    let cases: [(P, P, &[u64]); 4] = [
        (P::Single, P::Dup, &[800]),
        (P::Raid1, P::Raid1, &[800, 800]),
        (P::Raid0, P::Raid1, &[600, 600]),
        (P::Raid5, P::Raid1, &[500, 500, 500]),
    ];
    for (data, metadata, sizes) in cases {
        for kept in [3, 5, 9] {
            let context = format!("{data} {sizes:?}, one of {kept} kept");
            let devices = devices(sizes);
            let volume = make(&devices, data, metadata);
            fill(&volume, "f", 700_000);
            for number in 0.. {
                let name = format!("f{number}");
                if volume.resolve(format!("/{name}").as_bytes()).is_err() {
                    break;
                }
                if number % kept != 0 {
                    let root = volume.files().root();
                    volume.files().unlink(root, name.as_bytes()).unwrap();
                }
            }
            volume.close().unwrap();
            drop(volume);
            let volume = open(&devices);
            let store = volume.files().store();
            let said = explain(store).unwrap();
            let Some(Remedy::Balance {
                usage,
                groups,
                frees,
                data_after,
                ..
            }) = said
                .remedies
                .iter()
                .find(|r| matches!(r, Remedy::Balance { .. }))
            else {
                panic!("{context}: no balance is proposed: {said:?}");
            };
            let before = said.devices().1;
            let filters = Filters {
                data: Some(Filter::parse(&format!("usage={usage},limit={groups}")).unwrap()),
                ..Filters::default()
            };
            let (progress, end) =
                balance::start(store, &filters, Redundancy::Kept, &mut |_| None).unwrap();
            assert_eq!(end, End::Done);
            assert_eq!(progress.completed, *groups, "{context}: usage={usage}");
            let after = explain(store).unwrap();
            assert_eq!(
                after.devices().1 - before,
                *frees,
                "{context}: usage={usage}"
            );
            assert_eq!(after.standing.data.further, *data_after, "{context}");
            // Nothing more can be gained in the same way.
            let more = after.remedies.iter().find_map(|remedy| match remedy {
                Remedy::Balance { frees, .. } => Some(*frees),
                _ => None,
            });
            eprintln!(
                "{context}: usage={usage} freed {} MiB, then {more:?}",
                frees / MIB
            );
        }
    }
}

/// Small files fill metadata while data have space.
#[test]
fn full_metadata_are_named() {
    let devices = devices(&[400]);
    let volume = make(&devices, ProfileChoice::Single, ProfileChoice::Dup);
    fill(&volume, "f", MIB as usize);
    // Data chunks have space, but all space is in chunks.
    for number in 0..40 {
        let root = volume.files().root();
        volume
            .files()
            .unlink(root, format!("f{number}").as_bytes())
            .unwrap();
    }
    volume.sync().unwrap();
    fill(&volume, "small", 1500);
    let said = explain(volume.files().store()).unwrap();
    let full = |obstacle: &Obstacle| matches!(obstacle, Obstacle::MetadataFull { .. });
    assert!(said.obstacles.iter().any(full), "{said:?}");
    // The file that did not fit is gone again, and may have left a few nodes.
    assert!(said.writable < MIB, "{said:?}");
    assert!(said.standing.data.free > 10 * MIB, "{said:?}");
    assert!(
        volume
            .write_file(b"/more", &content(1, MIB as usize))
            .is_err()
    );
}
