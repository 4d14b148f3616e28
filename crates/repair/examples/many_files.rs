//! Makes a volume on which a repair needs as much memory as it ever does for so
//! many files: `many_files IMAGE [FILES]`. Each file has an extent of its own.
//!
//!     cargo run --release -p butterfs-repair --example many_files v.img 10000000
//!     /usr/bin/time -v butterfs check --repair --init-extent-tree --no-compare v.img
//!
//! The extents are preallocated, so the image takes some 600 bytes of disk for
//! each file.

use butterfs::{FallocateMode, FileDevice, NewInode, OpenOptions, Owner, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_volume::Profile;
use std::path::PathBuf;
use std::sync::Arc;

const SECTOR: u64 = 4096;
const PER_DIRECTORY: u64 = 10_000;

fn main() {
    let mut words = std::env::args().skip(1);
    let image = PathBuf::from(words.next().expect("the path of an image"));
    let count = words.next();
    let count: u64 = count.map_or(10_000_000, |word| word.parse().expect("a number"));
    let device = FileDevice::create(&image, count * (SECTOR + 1000) + (8 << 30)).expect("a file");
    let mut options = MkfsOptions {
        metadata: Some(Profile::Single),
        ..MkfsOptions::default()
    };
    // Debian's btrfs check does not know the block group tree.
    let plain = options.features.change("^block-group-tree");
    plain.and_then(|()| make(&device, &options)).expect("mkfs");
    let volume = Volume::open_device(Arc::new(device), OpenOptions::default()).expect("it opens");
    let files = volume.files();
    let owner = Owner::default();
    let mut directory = None;
    for number in 0..count {
        if number % PER_DIRECTORY == 0 {
            let name = format!("{}", number / PER_DIRECTORY);
            let new = NewInode::new(0o040_755, owner);
            let made = files.create(files.root(), name.as_bytes(), &new);
            directory = Some(made.expect("a directory"));
        }
        let parent = directory.as_ref().expect("it was made");
        let new = NewInode::new(0o100_644, owner);
        let name = format!("file-{number}");
        let file = files.create(parent.id, name.as_bytes(), &new);
        files
            .fallocate(&file.expect("a file"), FallocateMode::Allocate, 0, SECTOR)
            .expect("space");
    }
    volume.close().expect("all is written");
}
