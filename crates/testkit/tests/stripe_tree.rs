//! Volumes whose data lie where the RAID stripe tree says. No program here
//! writes such volumes, so they are made of ordinary ones.

use butterfs::{Access, Error, StoreError};
use butterfs_admin::mkfs::ProfileChoice;
use butterfs_admin::scrub::{Options, Repair, scrub};
use butterfs_device::{BlockDevice, FileDevice};
use butterfs_format::features::Incompat;
use butterfs_format::item::raid_stripe::{RaidStripe, is_in_tree};
use butterfs_format::item::root::RootItem;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{ItemType, Logical, Physical, TreeId};
use butterfs_store::Purpose;
use butterfs_testkit::judge::scratch_dir;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

mod support;

use support::several::*;

/// Files of the filled volume.
const FILES: u64 = 60;
/// Bytes of a stripe element.
const ELEMENT: u64 = 64 << 10;

/// The form of the tree's items.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Current,
    /// That of Linux 6.7.
    Encoded,
    /// There are none.
    Absent,
    /// As now, but some are cut, and others are of a type that nobody knows.
    Damaged,
}

fn device(path: &Path) -> FileDevice {
    FileDevice::open(path, Access::ReadWrite).unwrap()
}

/// True for a place that a copy of the superblock touches.
fn hits_superblock(place: &Physical) -> bool {
    let start = place.offset.get();
    let touches = |copy: u64| start < copy + ELEMENT && copy < start + ELEMENT;
    COPIES.iter().any(|copy| touches(copy.get()))
}

/// Swaps pairs of data elements on the devices, and records in a RAID stripe
/// tree where they lie now. Returns how many moved.
fn move_data(images: &[PathBuf], form: Form) -> usize {
    let volume = open(images, "").unwrap();
    let store = volume.files().store();
    let map = store.space().map();
    let mut pairs = Vec::new();
    for (start, chunk) in map.iter().filter(|(_, chunk)| is_in_tree(chunk.flags)) {
        for first in (0..chunk.length / ELEMENT / 2).map(|pair| 2 * pair * ELEMENT) {
            let at = |within| Logical(start.get() + first + within);
            let places = |logical| map.map(logical, ELEMENT).unwrap().copies;
            let (one, other) = (at(0), at(ELEMENT));
            let (mut of_one, mut of_other) = (places(one), places(other));
            if !of_one.iter().chain(&of_other).any(hits_superblock) {
                std::mem::swap(&mut of_one, &mut of_other);
            }
            pairs.push([(one, of_one), (other, of_other)]);
        }
    }
    let item = RootItem {
        refs: 1,
        bytes_used: 16384,
        ..RootItem::default()
    };
    let mut change = store.begin(16, Purpose::Grow).unwrap();
    change.create_tree(TreeId::RAID_STRIPE, item).unwrap();
    change.finish();
    let mut number = 0;
    for pairs in pairs.chunks(200) {
        let mut change = store.begin(100, Purpose::Grow).unwrap();
        for (logical, copies) in pairs.iter().flatten() {
            let mut data = match form {
                Form::Current | Form::Damaged => Vec::new(),
                Form::Encoded => vec![1, 0, 0, 0, 0, 0, 0, 0],
                Form::Absent => continue,
            };
            let copies = copies.clone();
            data.extend(RaidStripe { copies }.encode());
            let mut key = RaidStripe::key(*logical, ELEMENT);
            number += 1;
            match (form, number % 50) {
                (Form::Damaged, 7) => data.truncate(data.len() - 5),
                (Form::Damaged, 9) => key.item_type = ItemType(231),
                _ => {}
            }
            butterfs_tree::insert(&mut *change, TreeId::RAID_STRIPE, &key, &data).unwrap();
        }
        change.finish();
    }
    if form == Form::Absent {
        pairs.clear();
    }
    volume.close().unwrap();
    // By the number of the device.
    let devices: Vec<FileDevice> = images.iter().map(|image| device(image)).collect();
    let on = |place: &Physical| &devices[usize::try_from(place.device.get()).unwrap() - 1];
    let read = |place: &Physical| {
        let mut bytes = vec![0; ELEMENT as usize];
        on(place).read_at(place.offset, &mut bytes).unwrap();
        bytes
    };
    let mut moved = 0;
    for [(one, of_one), (other, of_other)] in &pairs {
        let before = |logical| map.map(logical, ELEMENT).unwrap().copies;
        if of_one == &before(*one) {
            continue;
        }
        let contents = [read(&before(*one)[0]), read(&before(*other)[0])];
        for (places, content) in [of_one, of_other].into_iter().zip(&contents) {
            for place in places {
                on(place).write_at(place.offset, content).unwrap();
            }
        }
        moved += usize::from(contents[0] != contents[1]);
    }
    for device in &devices {
        let mut bytes = vec![0; SIZE];
        device.read_at(COPIES[0], &mut bytes).unwrap();
        let mut superblock = Superblock::parse(&bytes, COPIES[0]).unwrap();
        superblock.incompat |= Incompat::RAID_STRIPE_TREE;
        for copy in COPIES {
            if copy.get() + SIZE as u64 <= device.size() {
                device.write_at(copy, &superblock.encode(copy)).unwrap();
            }
        }
        device.flush().unwrap();
    }
    moved
}

#[test]
fn data_are_read_from_where_the_stripe_tree_says() {
    use ProfileChoice as P;
    for (data, metadata, count, form) in [
        (P::Dup, P::Dup, 1, Form::Current),
        (P::Raid0, P::Raid1, 2, Form::Current),
        (P::Raid0, P::Raid1, 3, Form::Encoded),
        (P::Raid1, P::Raid1, 3, Form::Current),
        (P::Raid1c3, P::Raid1, 3, Form::Encoded),
        (P::Raid10, P::Raid10, 4, Form::Current),
        (P::Single, P::Raid1, 2, Form::Current),
    ] {
        let context = format!("{data} {count}");
        let dir = scratch_dir();
        let images = images(dir.path(), &SIZES[..count]);
        make(&images, data, metadata);
        let volume = open(&images, "").unwrap();
        fill_ours(&volume, 1);
        volume.close().unwrap();
        let expected = manifest(&images, "ro");
        let moved = move_data(&images, form);
        // Some 40 MB of data. The tree says nothing of single data.
        let is_moved = moved > 200;
        assert_eq!(is_moved, data != P::Single, "{context}: {moved} moved");
        manifest(&images, "ro").assert_same(&expected, &context);

        let refused = open(&images, "").map(drop);
        let Err(Error::Store(StoreError::Unsupported {
            what,
            read_only_possible: true,
        })) = refused
        else {
            panic!("{context}: {refused:?}");
        };
        assert!(what.contains("RAID_STRIPE_TREE"), "{what}");
        let volume = open(&images, "ro").unwrap();
        let scrubbed = scrub(
            volume.files().store(),
            &Options {
                repair: Repair::ReportOnly,
                threads: 1,
            },
            &[],
            &mut |_| ControlFlow::Break(()),
        );
        assert!(
            matches!(scrubbed, Err(StoreError::Unsupported { .. })),
            "{context}"
        );
    }
}

/// Data that no item covers cannot be read; nothing takes their place.
#[test]
fn data_without_an_item_are_an_error() {
    let dir = scratch_dir();
    let images = images(dir.path(), &SIZES[..2]);
    make(&images, ProfileChoice::Raid1, ProfileChoice::Raid1);
    let volume = open(&images, "").unwrap();
    fill_ours(&volume, 1);
    volume.close().unwrap();
    move_data(&images, Form::Absent);
    let volume = open(&images, "ro").unwrap();
    let inline = volume.read_file(b"/ours 1/0").unwrap();
    assert_eq!(inline.len(), 10);
    assert!(volume.read_file(b"/ours 1/4").is_err());
}

/// Items that cannot be used cost the data that they locate, and nothing else.
#[test]
fn damaged_items_cost_only_their_own_data() {
    let dir = scratch_dir();
    let images = images(dir.path(), &SIZES[..2]);
    make(&images, ProfileChoice::Raid1, ProfileChoice::Raid1);
    let volume = open(&images, "").unwrap();
    fill_ours(&volume, 1);
    let files = || (0..FILES).map(|file| format!("/ours 1/{file}"));
    let expected: Vec<_> = files()
        .map(|name| volume.read_file(&name).unwrap())
        .collect();
    volume.close().unwrap();
    drop(volume);
    move_data(&images, Form::Damaged);
    let volume = open(&images, "ro").unwrap();
    let (mut good, mut lost) = (0, 0);
    for (name, expected) in files().zip(expected) {
        match volume.read_file(&name) {
            Ok(found) => {
                assert!(found == expected, "{name}");
                good += 1;
            }
            Err(_) => lost += 1,
        }
    }
    assert!(good > 3 && lost > 0, "{good} good, {lost} lost");
}
