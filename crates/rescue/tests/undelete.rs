//! Deleted files and older versions come back with the confidence that they
//! deserve.

use butterfs::{BlockDevice, MemoryDevice, MountOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_rescue::{
    Confidence, Deleted, DirectoryTarget, Patient, PatientOptions, Silent, UndeleteOptions,
    Version, bring_back, undelete,
};
use butterfs_testkit::content::content;
use butterfs_testkit::judge::scratch_dir;
use std::collections::BTreeMap;
use std::sync::Arc;

const FILES: u64 = 60;

fn size(file: u64) -> usize {
    [700, 9000, 120_000][(file % 3) as usize]
}

fn path(file: u64) -> String {
    format!("docs/part-{}/file-{file}.txt", file % 4)
}

fn name_of(file: &Deleted) -> String {
    String::from_utf8(file.path.join(&b'/')).unwrap()
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let options = MountOptions::parse("rw").unwrap().open_options();
    Volume::open_device(device.clone(), options).unwrap()
}

/// Files of which every second was deleted and every tenth of the others
/// changed; then others were written.
fn made(later: u64) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let mkfs = MkfsOptions {
        node_size: 4096,
        ..MkfsOptions::default()
    };
    make(&*device, &mkfs).unwrap();
    let volume = open(&device);
    for part in 0..4 {
        volume.create_dir_all(format!("/docs/part-{part}")).unwrap();
    }
    for file in 0..FILES {
        let bytes = content(file, size(file));
        volume
            .write_file(format!("/{}", path(file)), &bytes)
            .unwrap();
    }
    volume.sync().unwrap();
    for file in (0..FILES).filter(|file| file % 2 == 1) {
        volume.remove_file(format!("/{}", path(file))).unwrap();
    }
    for file in (0..FILES).filter(|file| file % 10 == 0) {
        let bytes = content(file + 1000, size(file) + 10);
        volume
            .write_file(format!("/{}", path(file)), &bytes)
            .unwrap();
    }
    volume.sync().unwrap();
    for file in 0..later {
        let bytes = content(file + 5000, 1 << 20);
        volume.write_file(format!("/later-{file}"), &bytes).unwrap();
    }
    volume.close().unwrap();
    drop(volume);
    device.snapshot()
}

fn patient(device: &MemoryDevice) -> Patient {
    let given: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(device.snapshot())];
    Patient::open(given, PatientOptions::default()).unwrap()
}

fn found(device: &MemoryDevice, options: &UndeleteOptions<'_>) -> Vec<Deleted> {
    undelete(&mut patient(device), options, &Silent).unwrap()
}

#[test]
fn what_was_deleted_comes_back() {
    let device = made(0);
    let all = found(&device, &UndeleteOptions::default());
    let names: BTreeMap<String, &Deleted> = all.iter().map(|one| (name_of(one), one)).collect();
    let mut certain = 0;
    for file in (0..FILES).filter(|file| file % 2 == 1) {
        let one = names.get(&path(file));
        let one = one.unwrap_or_else(|| panic!("{} is not found: {names:?}", path(file)));
        assert_eq!(one.version, Version::Deleted);
        assert_eq!(one.size, size(file) as u64);
        certain += usize::from(one.confidence == Confidence::Certain);
    }
    assert!(certain > 20, "{certain}");
    for file in (0..FILES).filter(|file| file % 2 == 0) {
        assert!(!names.contains_key(&path(file)), "{} is there", path(file));
    }
    let folder = scratch_dir();
    let mut target = DirectoryTarget::new(folder.path()).unwrap();
    let mut opened = patient(&device);
    let again = undelete(&mut opened, &UndeleteOptions::default(), &Silent).unwrap();
    let written = bring_back(
        &mut opened,
        &again,
        &mut target,
        &Silent,
        &mut |one, error| {
            panic!("{one:?}: {error}");
        },
    );
    assert_eq!(written.unwrap(), again.len() as u64);
    for file in (0..FILES).filter(|file| file % 2 == 1) {
        if names[&path(file)].confidence < Confidence::Likely {
            continue;
        }
        let bytes = std::fs::read(folder.path().join(path(file))).unwrap();
        assert!(bytes == content(file, size(file)), "{}", path(file));
    }
}

#[test]
fn older_versions_are_found() {
    let device = made(0);
    let options = UndeleteOptions {
        versions: true,
        ..UndeleteOptions::default()
    };
    let all = found(&device, &options);
    for file in (0..FILES).filter(|file| file % 10 == 0) {
        let is_it = |one: &&Deleted| {
            one.version == Version::Older
                && name_of(one) == path(file)
                && one.size == size(file) as u64
        };
        assert!(all.iter().any(|one| is_it(&one)), "{}", path(file));
    }
}

/// What something newer lies on is not promised, and is never given out as
/// whole.
#[test]
fn what_is_overwritten_is_said() {
    let device = made(60);
    let all = found(&device, &UndeleteOptions::default());
    let folder = scratch_dir();
    let mut target = DirectoryTarget::new(folder.path()).unwrap();
    let mut opened = patient(&device);
    bring_back(&mut opened, &all, &mut target, &Silent, &mut |_, _| {}).unwrap();
    for one in &all {
        let name = name_of(one);
        let number = name
            .rsplit(['-', '.'])
            .nth(1)
            .and_then(|text| text.parse().ok());
        let Some(file) = number.filter(|_| name.starts_with("docs")) else {
            continue;
        };
        if let Ok(bytes) = std::fs::read(folder.path().join(&name)) {
            assert!(
                bytes == content(file, size(file)) || one.confidence == Confidence::Likely,
                "{name} is wrong: {one:?}"
            );
        }
    }
}

#[test]
fn a_filter_is_kept() {
    let device = made(0);
    let wanted = |path: &[u8]| path.ends_with(b"file-7.txt");
    let options = UndeleteOptions {
        wanted: Some(&wanted),
        ..UndeleteOptions::default()
    };
    let all = found(&device, &options);
    assert_eq!(all.len(), 1);
    let none = UndeleteOptions {
        size: (1 << 30, u64::MAX),
        ..UndeleteOptions::default()
    };
    assert!(found(&device, &none).is_empty());
}
