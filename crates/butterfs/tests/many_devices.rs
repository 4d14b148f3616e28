//! Volumes of 32 devices, the most that mkfs takes: everything on them can
//! move.

use butterfs::{BlockDevice, MemoryDevice, OpenOptions, Volume};
use butterfs_admin::balance::{self, End, Filters, Redundancy};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_check::{NoProgress, Options as CheckOptions};
use std::sync::Arc;

/// The system chunk moves only if the superblock lists a second one beside it.
#[test]
fn everything_moves_on_32_devices() {
    for profile in [
        ProfileChoice::Raid0,
        ProfileChoice::Raid10,
        ProfileChoice::Raid6,
    ] {
        let devices: Vec<Arc<dyn BlockDevice>> = (0..32)
            .map(|_| Arc::new(MemoryDevice::new(100 << 20)) as Arc<dyn BlockDevice>)
            .collect();
        let options = MkfsOptions {
            data: Some(profile),
            metadata: Some(profile),
            ..MkfsOptions::default()
        };
        make_on(&devices, &options).unwrap();
        let open = || Volume::open_devices(devices.clone(), OpenOptions::default()).unwrap();
        let volume = open();
        volume.write_file(b"/file", &[7; 3 << 20]).unwrap();
        let store = volume.files().store();
        let all = Filters::all();
        for _ in 0..2 {
            let (progress, end) = balance::start(store, &all, Redundancy::MayShrink, &mut |_| None)
                .unwrap_or_else(|error| panic!("{profile}: {error}"));
            assert_eq!(end, End::Done, "{profile}");
            assert_eq!(progress.without_space, 0, "{profile}: {progress:?}");
        }
        volume.close().unwrap();
        drop(volume);
        let report = butterfs_check::check(devices.clone(), &CheckOptions::default(), &NoProgress);
        let faults = report.unwrap().faults;
        assert!(faults.is_empty(), "{profile}: {faults:#?}");
        assert_eq!(open().read_file(b"/file").unwrap(), [7; 3 << 20]);
    }
}
