//! The same history on the kernel's Btrfs and on ours, and then every field of
//! both volumes beside each other. What differs has a reason in [`ALLOWED`].

use super::record::{Parts, Record, record, superblock};
use super::support::{LibraryTree, apply_to_library};
use butterfs::du::Limits;
use butterfs::quota::QuotaMode;
use butterfs::{InodeFlags, Timespec, Volume};
use butterfs_admin::balance::{self, Filter, Filters, Redundancy};
use butterfs_admin::devices::{self, Discard};
use butterfs_admin::resize::{self, Size};
use butterfs_format::DeviceId;
use butterfs_format::item::root::RootItem;
use butterfs_format::{Generation, Logical};
use butterfs_testkit::judge::{Access, KernelMount, Loop, judge_image, mkfs_btrfs, scratch_dir};
use butterfs_testkit::op::apply::{apply_to_path, clear_umask};
use butterfs_testkit::op::{
    Bytes, EndOfFile, NodeKind, OpPath, RenameHow, SnapshotAccess, Span, XattrHow,
};
use butterfs_testkit::tree_view::Time;
use butterfs_testkit::{Capability, Op};
use std::collections::BTreeSet;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A field that may differ: what the item's name begins with, the field, why.
type Allowed = (&'static str, &'static str, &'static str);

const ALLOWED: &[Allowed] = &[
    (
        "",
        "sequence",
        "it grows with each change; how much is up to each (an inode of the kernel does not begin \
         with 0)",
    ),
    (
        "4 (0 PERSISTENT_ITEM 1)",
        "counters",
        "the kernel writes zeros at its first mount; without the item, all counters are zero",
    ),
    (
        "3 (1 DEV_ITEM 1)",
        "bytes_used",
        "the kernel's chunks of data are larger on a volume of this size",
    ),
    ("superblock.device", "bytes_used", "the same"),
    ("chunk of DATA", "length", "the same"),
    (
        "root 4",
        "generation",
        "the chunks were made in other parts of the history",
    ),
    ("superblock", "chunk_root_generation", "the same"),
    (
        "root 258",
        "generation",
        "the kernel also copies the root of the subvolume from which a snapshot is made; its \
         content and its ctransid stay",
    ),
    (
        "5 (262 EXTENT_DATA ",
        "*",
        "the kernel joins neighbouring parts of preallocated space that were written one after \
         the other; here each is a file extent",
    ),
    ("extent of 5 262 at 0", "refs", "the same"),
    ("extent of 5 262 at 0", "references", "the same"),
    (
        "extent of 5 268 ",
        "checksums",
        "the kernel's zstd compresses to other bytes of the same length",
    ),
    ("extent of 5 269 ", "checksums", "the same"),
    (
        "262 (256 DIR_INDEX ",
        "*",
        "btrfs receive makes an inode under another name and renames it, and so its entry has \
         another index; ButterFS makes it under its name",
    ),
    ("262 (257 INODE_REF ", "data", "the same"),
    (
        "262 ",
        "otime",
        "ButterFS sends times of birth, and sets them when it receives",
    ),
    (
        "superblock",
        "uuid_tree_generation is generation",
        "mkfs.btrfs does not vouch for the UUID tree; the kernel goes through it and vouches for \
         it, ButterFS leaves that to the kernel",
    ),
];

/// What no [`Op`] does.
enum Step {
    Do(Op),
    Label(&'static str),
    Default(&'static str),
    Access(&'static str, SnapshotAccess),
    NoCow(&'static str),
    Quotas,
}

fn path(text: &str) -> OpPath {
    OpPath(text.as_bytes().to_vec())
}

fn write(to: &str, offset: u64, length: u64) -> Step {
    Step::Do(Op::Write {
        path: path(to),
        span: Span { offset, length },
        seed: 7,
    })
}

fn create(at: &str) -> Step {
    Step::Do(Op::Create {
        path: path(at),
        mode: 0o640,
    })
}

fn mkdir(at: &str) -> Step {
    Step::Do(Op::Mkdir {
        path: path(at),
        mode: 0o755,
    })
}

fn rename(from: &str, to: &str, how: RenameHow) -> Step {
    Step::Do(Op::Rename {
        from: path(from),
        to: path(to),
        how,
    })
}

fn set_xattr(at: &str, name: &str, value: &[u8]) -> Step {
    Step::Do(Op::SetXattr {
        path: path(at),
        name: Bytes(name.as_bytes().to_vec()),
        value: Bytes(value.to_vec()),
        how: XattrHow::Any,
    })
}

fn snapshot(from: &str, to: &str, access: SnapshotAccess) -> Step {
    Step::Do(Op::Snapshot {
        from: path(from),
        to: path(to),
        access,
    })
}

fn subvolume(at: &str) -> Step {
    Step::Do(Op::Subvolume {
        path: path(at),
        mode: 0o755,
    })
}

/// The parts of the history. Between two of them the volume is mounted anew.
fn history() -> Vec<Vec<Step>> {
    use SnapshotAccess::{ReadOnly, Writable};
    let span = |offset, length| Span { offset, length };
    vec![
        vec![
            mkdir("d"),
            create("d/small"),
            write("d/small", 0, 100),
            create("d/large"),
            write("d/large", 0, 300_000),
            create("d/sparse"),
            write("d/sparse", 1 << 20, 5000),
            create("d/untouched"),
            create("d/allocated"),
            Step::Do(Op::Allocate {
                path: path("d/allocated"),
                span: span(0, 65_536),
                end: EndOfFile::Extend,
            }),
            create("d/nocow"),
            Step::NoCow("d/nocow"),
            write("d/nocow", 0, 20_000),
            Step::Do(Op::Symlink {
                path: path("d/link"),
                target: Bytes(b"large".to_vec()),
            }),
            Step::Do(Op::Link {
                from: path("d/large"),
                to: path("d/second"),
            }),
            Step::Do(Op::Mknod {
                path: path("d/fifo"),
                kind: NodeKind::Fifo,
                mode: 0o600,
            }),
            Step::Do(Op::Mknod {
                path: path("d/null"),
                kind: NodeKind::CharDevice(1, 3),
                mode: 0o600,
            }),
            set_xattr("d/small", "user.name", b"value"),
            subvolume("s"),
            create("s/file"),
            write("s/file", 0, 9000),
            subvolume("empty"),
        ],
        vec![
            write("d/small", 50, 100),
            write("d/large", 100_000, 4096),
            Step::Do(Op::Append {
                path: path("d/small"),
                length: 5000,
                seed: 3,
            }),
            Step::Do(Op::Truncate {
                path: path("d/sparse"),
                size: (1 << 20) + 100,
            }),
            Step::Do(Op::PunchHole {
                path: path("d/large"),
                span: span(8192, 8192),
            }),
            write("d/allocated", 4096, 4096),
            write("d/nocow", 4096, 4096),
            Step::Do(Op::Clone {
                from: path("d/large"),
                span: span(16_384, 16_384),
                to: path("d/untouched"),
                to_offset: 0,
            }),
            Step::Do(Op::Chmod {
                path: path("d/fifo"),
                mode: 0o644,
            }),
            Step::Do(Op::Chown {
                path: path("d/null"),
                uid: Some(5),
                gid: Some(6),
            }),
            Step::Do(Op::SetModified {
                path: path("d/second"),
                time: Time {
                    seconds: 1_000_000_000,
                    nanoseconds: 123,
                },
            }),
            snapshot("s", "ro", ReadOnly),
            snapshot("s", "rw", Writable),
            Step::Label("a label"),
        ],
        vec![
            write("s/file", 0, 100),
            write("rw/file", 4096, 100),
            create("rw/new"),
            rename("d/second", "d/third", RenameHow::Replace),
            rename("d/fifo", "d/null", RenameHow::Exchange),
            Step::Do(Op::Unlink {
                path: path("d/link"),
            }),
            Step::Do(Op::RemoveXattr {
                path: path("d/small"),
                name: Bytes(b"user.name".to_vec()),
            }),
            mkdir("compressed"),
            set_xattr("compressed", "btrfs.compression", b"zstd"),
            create("compressed/file"),
            Step::Do(Op::Write {
                path: path("compressed/file"),
                span: span(0, 200_000),
                // Compresses to nothing.
                seed: 11,
            }),
            create("compressed/random"),
            write("compressed/random", 0, 100_000),
            Step::Do(Op::LinkTmpfile {
                directory: path("d"),
                path: path("d/tmpfile"),
                mode: 0o600,
                length: 6000,
                seed: 5,
            }),
            Step::Do(Op::ZeroRange {
                path: path("d/sparse"),
                span: span(4096, 8192),
                end: EndOfFile::Keep,
            }),
            snapshot("rw", "again", ReadOnly),
            snapshot("ro", "back", Writable),
            Step::Access("rw", ReadOnly),
            Step::Default("rw"),
            Step::Do(Op::SendReceive {
                from: path("ro"),
                parent: None,
                into: path("received"),
            }),
            write("d/allocated", 8192, 4096),
            write("d/allocated", 20_000, 100),
        ],
        vec![
            Step::Do(Op::DeleteSubvolume {
                path: path("empty"),
            }),
            Step::Do(Op::DeleteSubvolume {
                path: path("again"),
            }),
            Step::Access("rw", Writable),
            Step::Quotas,
            write("d/large", 0, 10),
            rename("d/untouched", "compressed/untouched", RenameHow::Replace),
            Step::Do(Op::Unlink {
                path: path("d/nocow"),
            }),
        ],
    ]
}

fn btrfs(args: &[&str]) {
    let out = Command::new("btrfs").args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "btrfs {args:?}: {text}");
}

fn in_the_kernel(step: &Step, root: &Path) {
    let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
    match step {
        Step::Do(op) => apply_to_path(op, root).unwrap_or_else(|error| panic!("{op:?}: {error}")),
        Step::Label(label) => btrfs(&["filesystem", "label", &at(""), label]),
        Step::Default(name) => btrfs(&["subvolume", "set-default", &at(name)]),
        Step::Access(name, access) => {
            let value = (*access == SnapshotAccess::ReadOnly).to_string();
            btrfs(&["property", "set", &at(name), "ro", &value]);
        }
        Step::Quotas => {
            btrfs(&["quota", "enable", &at("")]);
            btrfs(&["quota", "rescan", "-w", &at("")]);
        }
        Step::NoCow(name) => {
            let out = Command::new("chattr").arg("+C").arg(at(name)).output();
            assert!(out.unwrap().status.success());
        }
    }
}

fn in_the_library(step: &Step, tree: &LibraryTree) {
    let volume = &tree.0;
    match step {
        Step::Do(op) => {
            apply_to_library(op, volume).unwrap_or_else(|error| panic!("{op:?}: {error}"));
        }
        Step::Label(label) => volume.set_label(label.as_bytes()).unwrap(),
        Step::Default(name) => volume.set_default_subvolume(*name).unwrap(),
        Step::Access(name, access) => {
            let access = match access {
                SnapshotAccess::ReadOnly => butterfs::SnapshotAccess::ReadOnly,
                SnapshotAccess::Writable => butterfs::SnapshotAccess::ReadWrite,
            };
            volume.set_subvolume_access(*name, access).unwrap();
        }
        Step::Quotas => {
            let go_on = &mut |_: &butterfs::du::Progress| ControlFlow::Continue(());
            let enabled = tree
                .files()
                .enable_quotas(QuotaMode::Full, &Limits::default(), go_on);
            enabled.unwrap();
        }
        Step::NoCow(name) => {
            let inode = tree.files().inode(volume.resolve(*name).unwrap()).unwrap();
            tree.files()
                .set_flags(&inode, InodeFlags::NODATACOW)
                .unwrap();
        }
    }
}

/// Notes when a part begins. The kernel's clock of times is up to 10 ms behind.
fn begin() -> Timespec {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    Timespec {
        seconds: since.as_secs() as i64,
        nanoseconds: since.subsec_nanos(),
    }
}

/// Does a history of `parts` and gives what the volume holds after it.
fn run(images: &[PathBuf], parts: usize, part: impl Fn(usize)) -> Record {
    let mut done = Parts::default();
    done.0.push((begin(), superblock(&images[0]).1.generation));
    for number in 0..parts {
        let begin = begin();
        part(number);
        done.0.push((begin, superblock(&images[0]).1.generation));
    }
    record(images, &done)
}

fn is_allowed(table: &[Allowed], item: &str, field: &str) -> Option<usize> {
    let allows =
        |(begin, name, _): &Allowed| item.starts_with(begin) && (*name == field || *name == "*");
    table.iter().position(allows)
}

/// Fails if something differs for which `table` has no reason, or if it has a
/// reason for what does not differ.
fn compare(kernel: &Record, ours: &Record, table: &[Allowed]) {
    let (mut differences, mut used) = (Vec::new(), BTreeSet::new());
    let keys: BTreeSet<_> = kernel.keys().chain(ours.keys()).collect();
    for key in keys {
        let (theirs, own) = (kernel.get(key), ours.get(key));
        if theirs == own {
            continue;
        }
        let (item, field) = key;
        match is_allowed(table, item, field) {
            Some(number) => {
                used.insert(number);
            }
            None => differences.push(format!("{item}: {field}: kernel {theirs:?}, ours {own:?}")),
        }
    }
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
    for (number, reason) in table.iter().enumerate() {
        // By chance both may have counted as much.
        let may_agree = reason.1 == "sequence";
        assert!(
            may_agree || used.contains(&number),
            "nothing differs any more: {reason:?}"
        );
    }
}

#[test]
fn every_field_is_what_the_kernel_writes() {
    let mut needed = Capability::KERNEL_MOUNT.to_vec();
    needed.extend(["btrfs", "chattr"].map(Capability::Program));
    if !Capability::all_here(&needed) {
        return;
    }
    clear_umask();
    let dir = scratch_dir();
    let [theirs, own] = ["kernel.img", "own.img"].map(|name| dir.path().join(name));
    mkfs_btrfs(&theirs, 512 << 20, &[]);
    std::fs::copy(&theirs, &own).unwrap();
    let history = history();
    let kernel = run(std::slice::from_ref(&theirs), history.len(), |part| {
        let mount = KernelMount::mount(&theirs, Access::ReadWrite, "subvolid=5,commit=1").unwrap();
        for step in &history[part] {
            in_the_kernel(step, mount.path());
        }
        let root = mount.path().to_str().unwrap();
        btrfs(&["subvolume", "sync", root]);
        assert_eq!(mount.unmount().unwrap(), Vec::<String>::new());
    });
    let ours = run(std::slice::from_ref(&own), history.len(), |part| {
        let tree = LibraryTree::mount(&own, "subvolid=5");
        for step in &history[part] {
            in_the_library(step, &tree);
        }
        tree.files().clean_all().unwrap();
        tree.0.close().unwrap();
    });
    judge_image(&own, "ours");
    for ((item, _), transid) in ours.iter().filter(|((_, field), _)| field == "transid") {
        let other = |field: &str| &ours[&(item.clone(), field.to_owned())];
        let changed = item.starts_with("5 ") && other("generation") != transid;
        assert!(!changed || other("sequence") != "0", "{item} changed");
    }
    compare(&kernel, &ours, ALLOWED);
}

/// Differences after a history of devices.
const ALLOWED_OF_DEVICES: &[Allowed] = &[
    (
        "3 (1 DEV_ITEM ",
        "bytes_used",
        "the kernel makes chunks of a tenth of the volume, rounded up to 16 MiB; here they are \
         not rounded up",
    ),
    ("superblock.device", "bytes_used", "the same"),
    ("chunk of DATA", "length", "the same"),
    ("chunk of METADATA", "length", "the same"),
    (
        "4 (0 PERSISTENT_ITEM ",
        "counters",
        "the kernel writes zeros at its first mount; without the item, all counters are zero",
    ),
    (
        "device extent",
        "chunk_tree_uuid",
        "as in mkfs.btrfs it is the chunk tree's; the kernel leaves it empty, and nobody reads it",
    ),
    (
        "root 4",
        "generation",
        "the kernel removes an empty chunk in the next part",
    ),
    (
        "root 5",
        "last_snapshot",
        "the kernel relocates a subvolume by a snapshot of it",
    ),
    ("", "sequence", "as after the other history"),
    (
        "superblock",
        "uuid_tree_generation is generation",
        "as after the other history",
    ),
];

const MIB: u64 = 1 << 20;

fn two_devices_in_the_kernel(part: usize, images: &[PathBuf]) {
    let mount = KernelMount::mount_all(&images[..part.max(1)], Access::ReadWrite, "").unwrap();
    let root = mount.path().to_str().unwrap();
    match part {
        0 => {
            let mut options = std::fs::OpenOptions::new();
            let options = options.write(true).create_new(true).mode(0o644);
            let mut file = options.open(mount.path().join("file")).unwrap();
            file.write_all(&vec![7; 3_000_000]).unwrap();
        }
        1 => {
            let added = Loop::attach(&images[1], Access::ReadWrite).unwrap();
            btrfs(&["device", "add", "-f", added.path().to_str().unwrap(), root]);
            let convert = ["-dconvert=raid1", "-mconvert=raid1"];
            btrfs(&["balance", "start", "--force", convert[0], convert[1], root]);
            mount.unmount().unwrap();
            // The kernel must not look for it there again.
            btrfs(&["device", "scan", "--forget"]);
            drop(added);
            return;
        }
        _ => btrfs(&["filesystem", "resize", "2:-32M", root]),
    }
    assert_eq!(mount.unmount().unwrap(), Vec::<String>::new());
}

fn two_devices_in_the_library(part: usize, images: &[PathBuf]) {
    let options = butterfs::MountOptions::default().open_options();
    let volume = Volume::open_all(&images[..part.max(1)], options).unwrap();
    let store = volume.files().store();
    match part {
        0 => volume.write_file("/file", &vec![7; 3_000_000]).unwrap(),
        1 => {
            let device = butterfs::FileDevice::open(&images[1], butterfs::Access::ReadWrite);
            devices::add(store, Arc::new(device.unwrap()), Discard::Nothing).unwrap();
            let to = || Some(Filter::parse("convert=raid1").unwrap());
            let filters = Filters {
                data: to(),
                metadata: to(),
                system: to(),
            };
            let started = balance::start(store, &filters, Redundancy::MayShrink, &mut |_| None);
            started.unwrap();
        }
        _ => {
            let go_on = &mut |_: &resize::Progress| ControlFlow::Continue(());
            resize::resize(store, DeviceId(2), Size::Minus(32 * MIB), go_on).unwrap();
        }
    }
    volume.close().unwrap();
}

#[test]
fn every_field_of_devices_is_what_the_kernel_writes() {
    let mut needed = Capability::KERNEL_MOUNT.to_vec();
    needed.push(Capability::Program("btrfs"));
    if !Capability::all_here(&needed) {
        return;
    }
    let dir = scratch_dir();
    let images = |side: &str| -> Vec<PathBuf> {
        let image = |number| dir.path().join(format!("{side}{number}.img"));
        [1, 2].map(image).to_vec()
    };
    let (theirs, own) = (images("kernel"), images("own"));
    mkfs_btrfs(&theirs[0], 512 * MIB, &[]);
    std::fs::copy(&theirs[0], &own[0]).unwrap();
    for images in [&theirs, &own] {
        let file = std::fs::File::create(&images[1]).unwrap();
        file.set_len(512 * MIB).unwrap();
    }
    let kernel = run(&theirs[..], 3, |part| {
        two_devices_in_the_kernel(part, &theirs)
    });
    let ours = run(&own[..], 3, |part| two_devices_in_the_library(part, &own));
    compare(&kernel, &ours, ALLOWED_OF_DEVICES);
}

/// Root items of the fsync log on `image`, without what follows from addresses.
fn log_roots(image: &Path) -> Vec<String> {
    let options = butterfs::MountOptions::parse("ro,norecovery").unwrap();
    let volume = Volume::open(image, options.open_options()).unwrap();
    let trees = volume.trees();
    let root = superblock(image).1.log_root;
    assert_ne!(root.get(), 0, "{}: there is no log", image.display());
    let roots = trees.node_at(root).unwrap();
    let items = (0..roots.len()).map(|slot| {
        let item = RootItem::parse(roots.data(slot)).unwrap();
        let (mut nodes, mut waiting) = (0, vec![item.logical]);
        while let Some(logical) = waiting.pop() {
            nodes += 1;
            let node = trees.node_at(logical).unwrap();
            if !node.is_leaf() {
                waiting.extend((0..node.len()).map(|slot| node.child(slot).logical));
            }
        }
        let size = u64::from(trees.superblock().node_size);
        // Neither counts the first node.
        assert_eq!(item.bytes_used, (nodes - 1) * size, "{}", image.display());
        assert!(nodes > 2, "the log has more than a root and a leaf");
        let rest = RootItem {
            logical: Logical(0),
            generation: Generation(0),
            generation_v2: Generation(0),
            bytes_used: 0,
            ..item
        };
        format!("{} {rest:?}", roots.key(slot))
    });
    items.collect()
}

#[test]
fn the_root_items_of_a_log_are_what_the_kernel_writes() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    clear_umask();
    let dir = scratch_dir();
    let [theirs, own, copy] =
        ["kernel.img", "own.img", "copy.img"].map(|name| dir.path().join(name));
    mkfs_btrfs(&theirs, 256 << 20, &["-m", "single"]);
    std::fs::copy(&theirs, &own).unwrap();
    // Many file extents, so that the log has several leaves.
    let logged = |apply: &dyn Fn(&Op)| {
        let at = path("file");
        apply(&Op::Create {
            path: at.clone(),
            mode: 0o644,
        });
        apply(&Op::Sync);
        for number in 0..400 {
            apply(&Op::Write {
                path: at.clone(),
                span: Span {
                    offset: number * 8192,
                    length: 4096,
                },
                seed: number,
            });
        }
        apply(&Op::Fsync { path: at });
    };
    let mount = KernelMount::mount(&theirs, Access::ReadWrite, "").unwrap();
    logged(&|op| apply_to_path(op, mount.path()).unwrap());
    std::fs::copy(&theirs, &copy).unwrap();
    mount.unmount().unwrap();
    let kernel = log_roots(&copy);
    let tree = LibraryTree::mount(&own, "");
    logged(&|op| apply_to_library(op, &tree.0).unwrap());
    std::fs::copy(&own, &copy).unwrap();
    tree.0.close().unwrap();
    assert_eq!(log_roots(&copy), kernel);
    // The kernel replays it.
    let mount = KernelMount::mount(&copy, Access::ReadWrite, "").unwrap();
    let file = std::fs::metadata(mount.path().join("file")).unwrap();
    assert_eq!(file.len(), 399 * 8192 + 4096);
    assert_eq!(mount.unmount().unwrap(), Vec::<String>::new());
    judge_image(&copy, "replayed");
}
