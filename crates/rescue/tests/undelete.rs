//! Deleted files and older versions come back with the confidence that they
//! deserve.

use butterfs::{BlockDevice, MemoryDevice, MountOptions, SetAttributes, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_rescue::{
    BroughtBack, Confidence, Deleted, DeletedKind, DirectoryTarget, Patient, PatientOptions,
    Silent, UndeleteOptions, Version, bring_back, undelete,
};
use butterfs_testkit::content::content;
use butterfs_testkit::judge::scratch_dir;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
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
    let expected = BroughtBack {
        directories: 0,
        files: again.len() as u64,
    };
    assert_eq!(written.unwrap(), expected);
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

/// A tree of which everything but the top is removed, with what is no regular
/// file, and an empty directory.
#[test]
fn a_deleted_tree_comes_back_with_its_directories() {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    make(&*device, &MkfsOptions::default()).unwrap();
    let volume = open(&device);
    volume.create_dir_all("/home/project/src/deep").unwrap();
    volume.create_dir_all("/home/project/empty").unwrap();
    volume.create_dir_all("/home/other").unwrap();
    let bytes = content(1, 50_000);
    volume
        .write_file("/home/project/src/deep/main.rs", &bytes)
        .unwrap();
    volume
        .write_file("/home/other/file", &content(2, 9_000))
        .unwrap();
    volume
        .symlink("deep/main.rs", "/home/project/src/link")
        .unwrap();
    let permissions = SetAttributes {
        mode: Some(0o750),
        ..SetAttributes::default()
    };
    volume
        .set_attributes("/home/project/src", &permissions)
        .unwrap();
    volume
        .set_xattr("/home/project/src", "user.why", b"a tree")
        .unwrap();
    volume.sync().unwrap();
    volume.remove_dir_all("/home/project").unwrap();
    volume.remove_file("/home/other/file").unwrap();
    volume.sync().unwrap();
    volume.close().unwrap();
    drop(volume);

    let wanted = |path: &[u8]| path.ends_with(b"/project");
    let options = UndeleteOptions {
        wanted: Some(&wanted),
        ..UndeleteOptions::default()
    };
    let mut opened = patient(&device);
    let all = undelete(&mut opened, &options, &Silent).unwrap();
    let mut names: Vec<(String, DeletedKind)> =
        all.iter().map(|one| (name_of(one), one.kind)).collect();
    names.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [
        ("home/project", DeletedKind::Directory),
        ("home/project/empty", DeletedKind::Directory),
        ("home/project/src", DeletedKind::Directory),
        ("home/project/src/deep", DeletedKind::Directory),
        ("home/project/src/deep/main.rs", DeletedKind::File),
        ("home/project/src/link", DeletedKind::Symlink),
    ];
    let expected: Vec<_> = expected.map(|(name, kind)| (name.to_owned(), kind)).into();
    assert_eq!(names, expected);
    assert!(all.iter().all(|one| one.confidence == Confidence::Certain));

    let folder = scratch_dir();
    let mut target = DirectoryTarget::new(folder.path()).unwrap();
    let brought = bring_back(
        &mut opened,
        &all,
        &mut target,
        &Silent,
        &mut |one, error| {
            panic!("{one:?}: {error}");
        },
    );
    let expected = BroughtBack {
        directories: 4,
        files: 2,
    };
    assert_eq!(brought.unwrap(), expected);
    let project = folder.path().join("home/project");
    assert!(std::fs::read(project.join("src/deep/main.rs")).unwrap() == bytes);
    assert!(
        std::fs::read_dir(project.join("empty"))
            .unwrap()
            .next()
            .is_none()
    );
    let link = std::fs::read_link(project.join("src/link")).unwrap();
    assert_eq!(link.to_str(), Some("deep/main.rs"));
    let mode = std::fs::metadata(project.join("src"))
        .unwrap()
        .permissions();
    assert_eq!(mode.mode() & 0o7777, 0o750);

    let only_large = UndeleteOptions {
        size: (10_000, u64::MAX),
        ..UndeleteOptions::default()
    };
    let all = undelete(&mut patient(&device), &only_large, &Silent).unwrap();
    let names: Vec<String> = all.iter().map(name_of).collect();
    assert_eq!(names, ["home/project/src/deep/main.rs"]);
}
