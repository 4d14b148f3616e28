//! Whole images: opened, walked, read, checked and changed after their metadata
//! were made to lie. Some volumes have several devices. One of these may be
//! left out, given twice, or cut short.

use crate::meter::bounded;
use crate::mutation::mutate;
use crate::tape::Tape;
use crate::volume::{WAYS, base, options};
use butterfs::{
    Access, BlockDevice, Degraded, Error, FallocateMode, FileType, FsError, InodeId, NewInode,
    OldName, OpenOptions, Owner, Place, RenameMode, SeekTarget, SetMode, Volume, Walk,
};
use butterfs_check::{DataChecksums, NoProgress, Options, check};
use butterfs_device::{DeviceRange, MemoryDevice, WindowDevice};
use butterfs_format::DeviceOffset;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Inodes that are looked at.
const INODES_MAX: usize = 300;

/// A volume's devices as they are given to a program.
struct Given {
    devices: Vec<Arc<dyn BlockDevice>>,
    degraded: Degraded,
}

impl Given {
    /// Gives all devices, or all but one, or one of them twice, or one cut
    /// short, or all in another order.
    fn new(devices: &[Arc<MemoryDevice>], (how, which): (u8, usize)) -> Self {
        let mut given: Vec<Arc<dyn BlockDevice>> =
            devices.iter().map(|one| one.clone() as _).collect();
        match how % 8 {
            0..=3 => {}
            4 => drop(given.remove(which)),
            5 => given.push(Arc::new(devices[which].snapshot())),
            6 => {
                let length = (u64::from(how / 8) + 1) << 22;
                let range = DeviceRange {
                    start: DeviceOffset(0),
                    length,
                };
                let cut = WindowDevice::new(given[which].clone(), range);
                given[which] = Arc::new(cut.expect("it is shorter"));
            }
            _ => given.reverse(),
        }
        Self {
            devices: given,
            degraded: match how % 2 {
                0 => Degraded::Allowed,
                _ => Degraded::Refused,
            },
        }
    }

    fn open(&self, options: &OpenOptions) -> Result<Volume, Error> {
        let mut options = options.clone();
        options.store.degraded = self.degraded;
        Volume::open_devices(self.devices.clone(), options)
    }
}

/// Which volume, which of its devices are given, then the mutations.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let way = usize::from(tape.u8()) % WAYS;
    let base = base(way);
    let how = match base.devices.len() {
        1 => (0, 0),
        several => (tape.u8(), tape.below(several)),
    };
    bounded(192 << 20, || {
        let devices: Vec<_> = base
            .devices
            .iter()
            .map(|device| Arc::new(device.snapshot()))
            .collect();
        let done = mutate(base, &devices, &mut tape);
        let pristine: Vec<_> = devices.iter().map(|device| device.snapshot()).collect();
        let mut options = options(way);
        options.store.access = Access::ReadOnly;
        let given = Given::new(&devices, how);
        if let Ok(volume) = given.open(&options) {
            look(&volume);
        }
        assert_same(&devices, &pristine, "reading");
        verify(&given.devices);
        assert_same(&devices, &pristine, "checking");
        options.store.access = Access::ReadWrite;
        match given.open(&options) {
            Ok(volume) => {
                look(&volume);
                change(&volume);
                let closed = volume.close();
                drop(volume);
                if closed.is_ok() {
                    options.store.access = Access::ReadOnly;
                    if let Ok(volume) = given.open(&options) {
                        look(&volume);
                    }
                }
            }
            Err(error) => {
                assert_one_sentence(&error);
                // Opening heals bad copies, even if it is refused later.
                if !done.copies_differ {
                    assert_same(&devices, &pristine, "an opening that was refused");
                }
            }
        }
    });
}

fn assert_same(devices: &[Arc<MemoryDevice>], pristine: &[MemoryDevice], what: &str) {
    for (device, pristine) in devices.iter().zip(pristine) {
        let difference = device.first_difference(pristine);
        assert!(difference.is_none(), "{what} wrote at {difference:?}");
    }
}

fn assert_one_sentence(error: &Error) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
    assert!(!text.contains("internal error"), "{text}");
}

fn verify(devices: &[Arc<dyn BlockDevice>]) {
    let options = Options {
        threads: 1,
        data: DataChecksums::Verify,
        memory_max: 64 << 20,
        ..Options::default()
    };
    if let Ok(report) = check(devices.to_vec(), &options, &NoProgress) {
        for fault in &report.faults {
            assert!(!fault.to_string().is_empty());
        }
    }
}

/// Reads all that can be asked for.
fn look(volume: &Volume) {
    let mut entries = 0;
    let walked = volume.walk::<Error>(volume.files().root(), &mut |_| {
        entries += 1;
        Ok(if entries < INODES_MAX {
            Walk::Enter
        } else {
            Walk::Stop
        })
    });
    if let Err(error) = walked {
        assert_one_sentence(&error);
    }
    let _ = volume.files().store().read().groups().count();
    let mut seen = BTreeSet::new();
    let mut waiting = vec![volume.files().root()];
    while let Some(id) = waiting.pop() {
        if seen.len() >= INODES_MAX || !seen.insert(id) {
            continue;
        }
        if let Ok(children) = volume.list(id) {
            for child in &children {
                let _ = volume.files().lookup(id, &child.name);
            }
            waiting.extend(children.iter().map(|child| child.target.inode));
        }
        look_at(volume, id);
    }
}

fn look_at(volume: &Volume, id: InodeId) {
    let files = volume.files();
    let _ = (files.attributes(id), files.parent(id), files.read_link(id));
    for name in files.list_xattrs(id).unwrap_or_default() {
        let _ = files.get_xattr(id, &name);
    }
    let Ok(inode) = files.inode(id) else {
        return;
    };
    let size = files
        .attributes_of(&inode)
        .map_or(0, |attributes| attributes.size);
    let mut buffer = vec![0; 20_000];
    let middle = size / 2;
    for offset in [0, middle, size.saturating_sub(5000), u64::MAX - 10] {
        if let Ok(count) = files.read(&inode, offset, &mut buffer) {
            assert!(count <= buffer.len());
        }
    }
    for target in [SeekTarget::Data, SeekTarget::Hole] {
        for offset in [0, middle, size] {
            let _ = files.seek(&inode, target, offset);
        }
    }
    let _ = files.extent_map(&inode, 0..u64::MAX, 1000);
}

/// Changes a bit of everything; whatever fails, the rest is tried.
fn change(volume: &Volume) {
    let files = volume.files();
    let root = files.root();
    let _ = volume.write_file(b"new", &[7; 20_000]);
    let _ = volume.write_file(b"small", b"inline");
    let _ = volume.create_dir(b"directory");
    let _ = volume.sync();
    for directory in [&b"d0"[..], b"d1", b"d2", b"d3", b""] {
        let Ok(id) = volume.resolve(directory) else {
            continue;
        };
        for (turn, child) in volume
            .list(id)
            .unwrap_or_default()
            .iter()
            .take(80)
            .enumerate()
        {
            let place = (id, &child.name[..]);
            let changed = change_one(volume, turn, place, child.target.inode, child.target.kind);
            assert_known(changed);
        }
    }
    let _ = volume.sync();
    let place = |name| Place { dir: root, name };
    let _ = files.rename(
        place(b"d1"),
        place(b"moved"),
        RenameMode::Replace,
        OldName::Free,
    );
    let _ = files.rename(
        place(b"d2"),
        place(b"d3"),
        RenameMode::Exchange,
        OldName::Free,
    );
    let mut left = Vec::new();
    for child in volume.list(root).unwrap_or_default().into_iter().take(20) {
        left.push((child.target.inode, child.name));
    }
    for (id, name) in left {
        for child in volume.list(id).unwrap_or_default().into_iter().take(30) {
            let _ = files.unlink(id, &child.name);
        }
        let _ = files.rmdir(root, &name);
        let _ = files.unlink(root, &name);
    }
    let _ = volume.write_file(b"after", &[9; 5000]);
}

fn assert_known(result: Result<(), FsError>) {
    if let Err(error) = result {
        let text = error.to_string();
        assert!(!text.contains("internal error"), "{text}");
    }
}

fn change_one(
    volume: &Volume,
    turn: usize,
    (parent, name): (InodeId, &[u8]),
    id: InodeId,
    kind: FileType,
) -> Result<(), FsError> {
    let files = volume.files();
    if kind != FileType::Regular {
        return match turn % 3 {
            0 => files.rmdir(parent, name),
            1 => files.unlink(parent, name),
            _ => files.link(id, files.root(), b"another name"),
        };
    }
    let inode = files.inode(id)?;
    match turn % 10 {
        0 => files.truncate(&inode, 3000),
        1 => volume.write_at(&inode, 2000, &[3; 10_000]),
        2 => files.unlink(parent, name),
        3 => files.fallocate(&inode, FallocateMode::PunchHole, 4096, 50_000),
        4 => files.fallocate(&inode, FallocateMode::Allocate, 0, 200_000),
        5 => {
            let new = NewInode::new(0o100_600, Owner::default());
            let target = files.create(files.root(), name, &new)?;
            files
                .copy_range((&inode, 0), (&target, 0), 100_000)
                .map(drop)
        }
        6 => files.set_xattr(&inode, b"user.small", b"other", SetMode::Any),
        7 => files.remove_xattr(&inode, b"user.large"),
        8 => files.truncate(&inode, 1 << 20),
        _ => {
            volume.write_at(&inode, 0, b"synced")?;
            files.fsync(&inode)
        }
    }
}
