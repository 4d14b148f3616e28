//! Volumes that are opened as mounts open them: block devices by direct I/O,
//! images with blocks allocated ahead. The device crate tests direct I/O itself.

use butterfs::{Caching, DirectIo, MkfsOptions, OpenOptions, Volume};
use std::io::Write as _;

const MIB: u64 = 1 << 20;

/// What was fsynced is in a copy of the image at that moment, and all of it is
/// there after closing, for a library that reads through the page cache.
#[test]
fn files_are_there_after_fsync_and_after_closing() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let copy = folder.path().join("copy");
    butterfs::make_volume(&image, 256 * MIB, &MkfsOptions::default()).unwrap();
    let options = OpenOptions {
        direct_io: DirectIo::Preferred,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&image, options).unwrap();
    let caching = volume.devices()[0].caching;
    assert!(
        matches!(caching, Some(Caching::PageCache(_))),
        "{caching:?}"
    );
    let content = |n: u32| -> Vec<u8> {
        let length = [100, 4096, 16384, 300_000, 3_000_000][n as usize % 5];
        (0..length)
            .map(|at: u32| (at.wrapping_mul(n + 3) >> 5) as u8)
            .collect()
    };
    for n in 0..40 {
        let mut file = volume.create_file(format!("/file-{n}")).unwrap();
        file.write_all(&content(n)).unwrap();
        file.sync_all().unwrap();
        if n % 10 == 9 {
            std::fs::copy(&image, &copy).unwrap();
            let crashed = Volume::open(&copy, OpenOptions::read_only()).unwrap();
            for n in 0..=n {
                let found = crashed.read_file(format!("/file-{n}")).unwrap();
                assert!(found == content(n), "file {n}");
            }
        }
    }
    for n in 0..40 {
        assert!(volume.read_file(format!("/file-{n}")).unwrap() == content(n));
    }
    volume.close().unwrap();
    let volume = Volume::open(&image, OpenOptions::read_only()).unwrap();
    for n in 0..40 {
        assert!(volume.read_file(format!("/file-{n}")).unwrap() == content(n));
    }
}
