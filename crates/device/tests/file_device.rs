//! Files and loop devices: content, exclusive use, refusals.

use butterfs_device::holder::is_same_storage;
use butterfs_device::{Access, BlockDevice, DeviceError, DeviceRange, FileDevice, Holder};
use butterfs_format::DeviceOffset;
use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device that goes away with the value.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Option<Self> {
        let path = run("losetup", &["--find", "--show", file.to_str()?])?;
        Some(Self(path.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.0.to_str().unwrap()]);
    }
}

/// A mount that goes away with the value.
struct Mount(PathBuf);

impl Mount {
    fn at(device: &Path, point: &Path) -> Option<Self> {
        run("mount", &[device.to_str()?, point.to_str()?])?;
        Some(Self(point.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", &[self.0.to_str().unwrap()]);
    }
}

fn skipped(what: &str) {
    eprintln!("skipped: {what}");
}

fn exercise(device: &FileDevice) {
    let end = device.size();
    let parts = [&b"one"[..], b"", b"three", b"!"];
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    device
        .write_vectored_at(DeviceOffset(end - 9), &slices)
        .unwrap();
    device.write_at(DeviceOffset(MIB), &[7; 8192]).unwrap();
    device.flush().unwrap();
    let mut buf = [0; 9];
    device.read_at(DeviceOffset(end - 9), &mut buf).unwrap();
    assert_eq!(&buf, b"onethree!");
    let [mut first, mut none, mut rest] = [vec![0; 4], Vec::new(), vec![0; 5]];
    let mut parts = [&mut first, &mut none, &mut rest].map(|part| IoSliceMut::new(part));
    device
        .read_vectored_at(DeviceOffset(end - 9), &mut parts)
        .unwrap();
    assert_eq!((&first[..], &rest[..]), (&b"onet"[..], &b"hree!"[..]));
    let mut many = vec![[0; 1]; 3000];
    let mut parts: Vec<IoSliceMut<'_>> =
        many.iter_mut().map(|part| IoSliceMut::new(part)).collect();
    device
        .read_vectored_at(DeviceOffset(MIB), &mut parts)
        .unwrap();
    assert!(
        matches!(
            device.read_vectored_at(DeviceOffset(end - 2999), &mut parts),
            Err(DeviceError::OutOfRange { .. })
        ) && many.iter().all(|part| part == &[7])
    );
    device
        .discard(DeviceRange::new(DeviceOffset(MIB), 4096))
        .unwrap();
    let mut buf = [1; 8192];
    device.read_at(DeviceOffset(MIB), &mut buf).unwrap();
    assert_eq!(buf[4096..], [7; 4096]);
    assert!(buf[..4096] == [0; 4096] || buf[..4096] == [7; 4096]);
    assert!(matches!(
        device.write_vectored_at(DeviceOffset(end - 8), &slices),
        Err(DeviceError::OutOfRange { .. })
    ));
    assert!(matches!(
        device.read_at(DeviceOffset(end - 1), &mut buf),
        Err(DeviceError::OutOfRange { .. })
    ));
}

#[test]
fn a_regular_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let device = FileDevice::create(&path, 4 * MIB).unwrap();
    assert_eq!(device.size(), 4 * MIB);
    exercise(&device);
    assert!(matches!(
        FileDevice::create(&path, MIB),
        Err(DeviceError::Io { .. })
    ));
    drop(device);
    let device = FileDevice::open(&path, Access::ReadOnly).unwrap();
    assert!(matches!(
        device.write_at(DeviceOffset(0), b"x"),
        Err(DeviceError::ReadOnly { .. })
    ));
    assert!(matches!(
        device.discard(DeviceRange::new(DeviceOffset(0), 1)),
        Err(DeviceError::ReadOnly { .. })
    ));
    device.flush().unwrap();
}

#[test]
fn more_parts_than_one_call_takes() {
    let dir = tempfile::tempdir().unwrap();
    let device = FileDevice::create(&dir.path().join("image"), MIB).unwrap();
    let bytes: Vec<[u8; 3]> = (0..3000_u32)
        .map(|n| [n as u8, (n >> 8) as u8, 9])
        .collect();
    let slices: Vec<IoSlice<'_>> = bytes.iter().map(|part| IoSlice::new(part)).collect();
    device.write_vectored_at(DeviceOffset(5), &slices).unwrap();
    let mut buf = vec![0; 9000];
    device.read_at(DeviceOffset(5), &mut buf).unwrap();
    assert_eq!(buf, bytes.concat());
}

#[test]
fn one_writer_or_many_readers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let writer = FileDevice::create(&path, MIB).unwrap();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        match FileDevice::open(&path, access) {
            Err(DeviceError::Busy {
                holder: Holder::Process { pid, .. },
                ..
            }) => assert_eq!(pid, std::process::id()),
            other => panic!("{other:?}"),
        }
    }
    drop(writer);
    let first = FileDevice::open(&path, Access::ReadOnly).unwrap();
    let second = FileDevice::open(&path, Access::ReadOnly).unwrap();
    assert!(matches!(
        FileDevice::open(&path, Access::ReadWrite),
        Err(DeviceError::Busy { .. })
    ));
    drop((first, second));
    FileDevice::open(&path, Access::ReadWrite).unwrap();
}

#[test]
fn what_is_no_device_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        assert!(matches!(
            FileDevice::open(dir.path(), access),
            Err(DeviceError::NotADevice { .. })
        ));
        assert!(matches!(
            FileDevice::open(Path::new("/dev/null"), access),
            Err(DeviceError::NotADevice { .. })
        ));
    }
    let missing = FileDevice::open(&dir.path().join("missing"), Access::ReadOnly).unwrap_err();
    assert!(missing.to_string().ends_with("check the path"), "{missing}");
}

#[test]
fn a_loop_device_in_use_is_refused_by_both_names() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    drop(FileDevice::create(&image, 256 * MIB).unwrap());
    let Some(attached) = Loop::over(&image) else {
        return skipped("no loop devices here");
    };

    // Not in use: either name opens, but not both.
    let by_device = FileDevice::open(&attached.0, Access::ReadWrite).unwrap();
    assert_eq!(by_device.size(), 256 * MIB);
    assert!(by_device.is_block_device());
    exercise(&by_device);
    assert!(matches!(
        FileDevice::open(&attached.0, Access::ReadWrite),
        Err(DeviceError::Busy { .. })
    ));
    assert!(matches!(
        FileDevice::open(&image, Access::ReadWrite),
        Err(DeviceError::Busy { .. })
    ));
    drop(by_device);
    let by_file = FileDevice::open(&image, Access::ReadWrite).unwrap();
    for access in [Access::ReadWrite, Access::ReadOnly] {
        // A reader would see half of a writer's changes.
        assert!(matches!(
            FileDevice::open(&attached.0, access),
            Err(DeviceError::Busy { .. })
        ));
    }
    drop(by_file);
    let read_by_device = FileDevice::open(&attached.0, Access::ReadOnly).unwrap();
    drop(FileDevice::open(&image, Access::ReadOnly).unwrap());
    assert!(matches!(
        FileDevice::open(&image, Access::ReadWrite),
        Err(DeviceError::Busy { .. })
    ));
    drop(read_by_device);

    let link = dir.path().join("link");
    std::fs::hard_link(&image, &link).unwrap();
    for other in [&image, &link, &attached.0] {
        assert!(is_same_storage(other, &image) && is_same_storage(&link, other));
    }
    let another = dir.path().join("another");
    drop(FileDevice::create(&another, MIB).unwrap());
    for other in [&another, &dir.path().join("nothing")] {
        assert!(!is_same_storage(other, &image) && !is_same_storage(&attached.0, other));
    }

    for make in ["mkfs.ext4", "mkfs.btrfs"] {
        let force = if make == "mkfs.ext4" { "-F" } else { "-f" };
        let point = dir.path().join(format!("point of {make}"));
        std::fs::create_dir(&point).unwrap();
        if run(make, &["-q", force, attached.0.to_str().unwrap()]).is_none() {
            skipped(make);
            continue;
        }
        let Some(mounted) = Mount::at(&attached.0, &point) else {
            skipped("no right to mount");
            continue;
        };
        let error = FileDevice::open(&attached.0, Access::ReadWrite).unwrap_err();
        match &error {
            DeviceError::Busy {
                holder: Holder::Mount(at),
                ..
            } => assert_eq!(at, &point),
            other => panic!("{other:?}"),
        }
        let second = Loop::over(&image).expect("another loop device");
        let refused = |path: &Path| {
            let error = FileDevice::open(path, Access::ReadWrite).unwrap_err();
            match &error {
                DeviceError::Busy {
                    holder: Holder::Loop { device, holder },
                    ..
                } => {
                    assert_eq!(device, &attached.0);
                    assert_eq!(**holder, Holder::Mount(point.clone()));
                }
                other => panic!("{other:?}"),
            }
            assert!(error.to_string().ends_with("; unmount it first"), "{error}");
        };
        refused(&image);
        refused(&second.0);
        // The loop device only knows a name that is gone now.
        std::fs::remove_file(&image).unwrap();
        refused(&link);
        refused(&second.0);
        std::fs::hard_link(&link, &image).unwrap();
        drop(second);
        drop(mounted);
        drop(FileDevice::open(&image, Access::ReadWrite).unwrap());
    }
}

#[test]
fn a_released_device_is_free_for_others_and_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let first = FileDevice::create(&path, MIB).unwrap();
    first.write_at(DeviceOffset(0), b"before").unwrap();
    assert!(matches!(
        FileDevice::open(&path, Access::ReadWrite),
        Err(DeviceError::Busy { .. })
    ));
    first.let_go();
    let second = FileDevice::open(&path, Access::ReadWrite).unwrap();
    let all = DeviceRange::new(DeviceOffset(0), MIB);
    assert!(matches!(
        first.write_at(DeviceOffset(0), b"late"),
        Err(DeviceError::Released { .. })
    ));
    assert!(
        first
            .write_vectored_at(DeviceOffset(0), &[IoSlice::new(b"late")])
            .is_err()
    );
    assert!(first.discard(all).is_err());
    let mut found = [0; 6];
    second.read_at(DeviceOffset(0), &mut found).unwrap();
    assert_eq!(&found, b"before");
    // Giving up twice takes nothing from the next one.
    first.let_go();
    drop(first);
    assert!(FileDevice::open(&path, Access::ReadWrite).is_err());
    drop(second);
    FileDevice::open(&path, Access::ReadWrite).unwrap();
}

#[test]
fn a_file_that_was_cut_short_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let device = FileDevice::create(&path, MIB).unwrap();
    device.still_has(MIB).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(MIB / 2).unwrap();
    device.still_has(MIB / 2).unwrap();
    let error = device.still_has(MIB).unwrap_err();
    assert!(
        matches!(error, DeviceError::CutShort { now, size: MIB, .. } if now == MIB / 2),
        "{error}"
    );
    // A write does not make it longer again; what is left is written.
    let behind = DeviceOffset(MIB / 2 - 2);
    let one = device.write_at(behind, b"123");
    let several = device.write_vectored_at(behind, &[IoSlice::new(b"12"), IoSlice::new(b"3")]);
    for error in [one.unwrap_err(), several.unwrap_err()] {
        assert!(matches!(error, DeviceError::CutShort { .. }), "{error}");
    }
    device.write_at(behind, b"12").unwrap();
    assert_eq!(path.metadata().unwrap().len(), MIB / 2);
    file.set_len(2 * MIB).unwrap();
    device.still_has(MIB).unwrap();
}

/// Nobody gets the device while a write to it is under way.
#[test]
fn a_release_waits_for_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let first = FileDevice::create(&path, 64 * MIB).unwrap();
    std::thread::scope(|scope| {
        let first = &first;
        for writer in 0..4_u8 {
            scope.spawn(move || {
                let data = vec![writer + 1; 8 << 20];
                while first.write_at(DeviceOffset(0), &data).is_ok() {}
            });
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        first.let_go();
        let second = FileDevice::open(&path, Access::ReadWrite).unwrap();
        let mut before = vec![0; 8 << 20];
        second.read_at(DeviceOffset(0), &mut before).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mut after = vec![0; 8 << 20];
        second.read_at(DeviceOffset(0), &mut after).unwrap();
        assert!(before == after, "a late write");
    });
}

/// Nobody else can take a file while it gets a new size.
#[test]
fn a_file_is_enlarged_under_its_lock() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("target");
    let device = FileDevice::create(&path, 4096).expect("a file");
    device.enlarge(1 << 20).expect("it grows");
    assert_eq!(device.size(), 1 << 20);
    assert_eq!(std::fs::metadata(&path).expect("a file").len(), 1 << 20);
    let other = FileDevice::open(&path, Access::ReadWrite);
    assert!(matches!(other, Err(DeviceError::Busy { .. })), "{other:?}");
    // It never gets shorter.
    device.enlarge(4096).expect("it is long enough");
    assert_eq!(device.size(), 1 << 20);
    device
        .write_at(DeviceOffset((1 << 20) - 4), b"last")
        .expect("a write");
}
