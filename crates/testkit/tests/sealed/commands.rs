//! Commands that write, and which paths each of them may change.

use Touched::{Files, Names};
use butterfs::{
    CloneSpan, Defragment, FallocateMode, Inode, InodeFlags, OldName, OpenOptions, Place,
    RenameMode, SetAttributes, SetMode, Sharing, SnapshotAccess, Trim, Volume,
};
use butterfs_admin::balance::{self, Filter, Filters, Redundancy, Wish};
use butterfs_admin::devices::{self, Discard, Removal, ReplaceReads};
use butterfs_admin::resize::{self, Size};
use butterfs_admin::tune::{self, Change};
use butterfs_device::BlockDevice;
use butterfs_format::{ChecksumType, DeviceId};
use butterfs_store::Repair;
use butterfs_testkit::content::content;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The volume that a command works on.
pub struct World<'b> {
    /// Which of the volumes it was ([`super::base::name`]).
    pub way: usize,
    /// A stream of its snapshot.
    pub stream: &'b [u8],
    /// The devices that it is on; a command may change which.
    pub devices: Vec<Arc<dyn BlockDevice>>,
    /// Makes an empty device.
    pub spare: &'b dyn Fn() -> Arc<dyn BlockDevice>,
}

/// How a command works.
#[derive(Clone, Copy)]
pub enum Work {
    /// On an open volume.
    Open(fn(&Volume, &mut World<'_>) -> Outcome),
    /// On devices that nobody has open.
    Closed(fn(&mut World<'_>) -> Outcome),
    /// By opening with other options.
    Opening(fn(&mut OpenOptions)),
}

/// What a command may change, each with what is below.
#[derive(Clone, Copy)]
pub enum Touched {
    /// The inodes that these paths name, by whatever name.
    Files(&'static [&'static str]),
    /// These names, not the inodes behind them.
    Names(&'static [&'static str]),
}

/// A command that writes.
#[derive(Clone, Copy)]
pub struct Command {
    pub name: &'static str,
    /// What it may change.
    pub touched: Touched,
    pub work: Work,
}

const fn on(
    name: &'static str,
    touched: Touched,
    work: fn(&Volume, &mut World<'_>) -> Outcome,
) -> Command {
    Command {
        name,
        touched,
        work: Work::Open(work),
    }
}

const fn closed(name: &'static str, work: fn(&mut World<'_>) -> Outcome) -> Command {
    Command {
        name,
        touched: Names(&[]),
        work: Work::Closed(work),
    }
}

fn file(volume: &Volume, path: &str) -> Result<Arc<Inode>, Box<dyn std::error::Error>> {
    Ok(volume.files().inode(volume.resolve(path)?)?)
}

/// Relocation waits for subvolumes that are half freed. If a lie keeps them from
/// being freed, it is stopped after this long.
const WAIT: Duration = Duration::from_secs(5);

fn balance(volume: &Volume, filters: &Filters) -> Outcome {
    // It is reported by the balance, if it matters.
    let _ = volume.free_deleted();
    let begun = Instant::now();
    let mut watch = |_: &balance::Progress| (begun.elapsed() > WAIT).then_some(Wish::Pause);
    let redundancy = Redundancy::MayShrink;
    balance::start(volume.files().store(), filters, redundancy, &mut watch)?;
    Ok(())
}

/// Lets something go on for a while.
fn for_a_while<P>() -> impl FnMut(&P) -> ControlFlow<()> {
    let begun = Instant::now();
    move |_| match begun.elapsed() > WAIT {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

fn filter(text: &str) -> Option<Filter> {
    Some(Filter::parse(text).expect("a filter"))
}

fn resize_by(volume: &Volume, size: Size) -> Outcome {
    let _ = volume.free_deleted();
    let store = volume.files().store();
    resize::resize(store, DeviceId(1), size, &mut for_a_while())?;
    Ok(())
}

fn tune_by(world: &World<'_>, change: Change) -> Outcome {
    let go_on = &mut |_: &tune::Progress| ControlFlow::Continue(());
    tune::tune(&world.devices, change, go_on)?;
    Ok(())
}

/// All of them.
pub const ALL: &[Command] = &[
    on("nothing", Names(&[]), |_, _| Ok(())),
    on("write", Files(&["/sub/v/f5"]), |volume, _| {
        let inode = file(volume, "sub/v/f5")?;
        volume.write_at(&inode, 10_000, &content(77, 20_000))?;
        Ok(())
    }),
    on("append", Files(&["/sub/v/f4"]), |volume, _| {
        let inode = file(volume, "sub/v/f4")?;
        volume.files().append(&inode, &content(77, 30_000))?;
        Ok(())
    }),
    on(
        "write without copy-on-write",
        Files(&["/sub/v/nocow0", "/keep/nocow1"]),
        |volume, _| {
            for path in ["sub/v/nocow0", "keep/nocow1"] {
                let inode = file(volume, path)?;
                volume.write_at(&inode, 8192, &content(77, 40_000))?;
            }
            Ok(())
        },
    ),
    on(
        "write to preallocated space",
        Files(&["/sub/v/f8", "/keep/f8"]),
        |volume, _| {
            for path in ["sub/v/f8", "keep/f8"] {
                let inode = file(volume, path)?;
                volume.write_at(&inode, 100_000, &content(77, 60_000))?;
            }
            Ok(())
        },
    ),
    on("fsync", Files(&["/sub/v/f6", "/keep/f6"]), |volume, _| {
        for path in ["sub/v/f6", "keep/f6"] {
            let inode = file(volume, path)?;
            volume.write_at(&inode, 0, &content(77, 30_000))?;
            volume.files().fsync(&inode)?;
        }
        Ok(())
    }),
    on(
        "truncate",
        Files(&["/sub/v/f7", "/sub/v/f13"]),
        |volume, _| {
            volume
                .files()
                .truncate(&*file(volume, "sub/v/f7")?, 50_001)?;
            volume.files().truncate(&*file(volume, "sub/v/f13")?, 0)?;
            Ok(())
        },
    ),
    on("grow", Files(&["/sub/v/f3"]), |volume, _| {
        Ok(volume
            .files()
            .truncate(&*file(volume, "sub/v/f3")?, 3 << 20)?)
    }),
    on("punch", Files(&["/sub/v/f7"]), |volume, _| {
        let inode = file(volume, "sub/v/f7")?;
        let punch = FallocateMode::PunchHole;
        Ok(volume.files().fallocate(&inode, punch, 10_000, 100_000)?)
    }),
    on(
        "fallocate",
        Files(&["/sub/v/f3", "/sub/v/nocow1"]),
        |volume, _| {
            let inode = file(volume, "sub/v/f3")?;
            let mode = FallocateMode::Allocate;
            volume.files().fallocate(&inode, mode, 0, 2 << 20)?;
            let inode = file(volume, "sub/v/nocow1")?;
            let mode = FallocateMode::ZeroRange;
            Ok(volume.files().fallocate(&inode, mode, 8192, 50_000)?)
        },
    ),
    on(
        "rm",
        Names(&["/sub/v/f5", "/sub/v/f6", "/sub/v/nocow0"]),
        |volume, _| {
            for path in ["sub/v/f5", "sub/v/f6", "sub/v/nocow0"] {
                volume.remove_file(path)?;
            }
            Ok(())
        },
    ),
    on(
        "rm of one name",
        Names(&["/sub/v/f12", "/sub/v/f4", "/sub/v/f13"]),
        |volume, _| {
            // The other names are in another directory.
            for path in ["sub/v/f12", "sub/v/f4", "sub/v/f13"] {
                volume.remove_file(path)?;
            }
            Ok(())
        },
    ),
    on("rm -r", Names(&["/sub/v"]), |volume, _| {
        Ok(volume.remove_tree(volume.resolve("sub")?, b"v")?)
    }),
    on(
        "rm of everything",
        Names(&["/sub/v", "/sub/keep", "/doomed/d"]),
        |volume, _| {
            for (parent, name) in [("sub", "v"), ("sub", "keep"), ("doomed", "d")] {
                volume.remove_tree(volume.resolve(parent)?, name.as_bytes())?;
                volume.sync()?;
            }
            Ok(())
        },
    ),
    on("many files", Names(&[]), |volume, _| {
        let id = volume.create_dir("keep/new")?;
        for number in 0..300 {
            let name = format!("a new file {number}");
            volume.write_file(&format!("keep/new/{name}")[..], &content(number, 3000))?;
        }
        volume.list(id)?;
        Ok(())
    }),
    on("open and close", Names(&[]), |volume, _| {
        for directory in ["keep", "sub/v", "sub/keep"] {
            for child in volume.list(volume.resolve(directory)?)? {
                let inode = volume.files().inode(child.target.inode)?;
                volume.files().pin(&inode);
                volume.files().unpin(&inode, 1)?;
            }
        }
        Ok(())
    }),
    on("rename", Names(&["/sub/v/f5", "/sub/v/f6"]), |volume, _| {
        Ok(volume.rename("sub/v/f5", "sub/v/f6")?)
    }),
    on(
        "exchange",
        Names(&["/sub/v/f5", "/sub/v/many"]),
        |volume, _| {
            let dir = volume.resolve("sub/v")?;
            let place = |name| Place { dir, name };
            let files = volume.files();
            let exchange = RenameMode::Exchange;
            Ok(files.rename(place(b"f5"), place(b"many"), exchange, OldName::Free)?)
        },
    ),
    on("link", Names(&[]), |volume, _| {
        volume.hard_link("sub/v/f5", "sub/keep/new name")?;
        Ok(volume.symlink("somewhere", "sub/keep/new link")?)
    }),
    on(
        "chmod",
        Files(&["/sub/v/f5", "/sub/v/f12", "/sub/keep/hard0"]),
        |volume, _| {
            for path in ["sub/v/f5", "sub/v/f12"] {
                let set = SetAttributes {
                    mode: Some(0o600),
                    uid: Some(5),
                    ..SetAttributes::default()
                };
                volume.set_attributes(path, &set)?;
            }
            Ok(())
        },
    ),
    on("setfattr", Files(&["/sub/v/f9"]), |volume, _| {
        volume.set_xattr("sub/v/f9", "user.new", &content(5, 900))?;
        volume.remove_xattr("sub/v/f9", "user.large")?;
        Ok(())
    }),
    on("chattr", Files(&["/sub/v/f5"]), |volume, _| {
        let inode = file(volume, "sub/v/f5")?;
        volume.files().set_flags(&inode, InodeFlags::NODUMP)?;
        let set = SetMode::Any;
        let name = b"btrfs.compression";
        Ok(volume.files().set_xattr(&inode, name, b"zstd", set)?)
    }),
    on("subvolume create", Names(&[]), |volume, _| {
        volume.create_subvolume("new")?;
        volume.write_file("new/file", &content(5, 90_000))?;
        Ok(())
    }),
    on("snapshot and write", Names(&["/sub/v"]), |volume, _| {
        volume.snapshot("sub", "new", SnapshotAccess::ReadWrite)?;
        volume.remove_tree(volume.resolve("sub")?, b"v")?;
        volume.write_file("new/file", &content(5, 90_000))?;
        Ok(())
    }),
    on("subvolume delete", Names(&["/doomed"]), |volume, _| {
        volume.delete_subvolume("doomed")?;
        Ok(volume.free_deleted()?)
    }),
    on(
        "snapshot delete",
        Names(&["/snap", "/doomed-snap"]),
        |volume, _| {
            volume.delete_subvolume("snap")?;
            volume.delete_subvolume("doomed-snap")?;
            Ok(volume.free_deleted()?)
        },
    ),
    on(
        "delete of all snapshots",
        Names(&["/snap", "/writable", "/doomed-snap", "/doomed"]),
        |volume, _| {
            for name in ["snap", "writable", "doomed-snap", "doomed"] {
                volume.delete_subvolume(name)?;
                volume.free_deleted()?;
            }
            Ok(())
        },
    ),
    on("free deleted", Names(&[]), |volume, _| {
        Ok(volume.free_deleted()?)
    }),
    on("cp --reflink", Names(&[]), |volume, _| {
        volume.reflink("sub/v/f7", "keep/new copy")?;
        Ok(volume.reflink("sub/v", "sub/keep/new copy")?)
    }),
    on("clone into a file", Files(&["/sub/v/f7"]), |volume, _| {
        let (source, target) = (file(volume, "keep/f7")?, file(volume, "sub/v/f7")?);
        let span = CloneSpan {
            from: 4096,
            to: 65_536,
            length: 81_920,
        };
        Ok(volume
            .files()
            .clone_range(&source, &target, span)
            .map(drop)?)
    }),
    on("dedupe", Names(&[]), |volume, _| {
        let (source, target) = (file(volume, "sub/v/equal0")?, file(volume, "sub/v/equal1")?);
        for result in volume
            .files()
            .dedupe_range((&source, 0), 200_000, &[(target, 0)])
        {
            result?;
        }
        Ok(())
    }),
    on("defragment", Names(&[]), |volume, _| {
        for path in ["sub/v/fragmented", "sub/v/f6", "sub/v/f8", "keep/large1"] {
            let inode = file(volume, path)?;
            for sharing in [Sharing::Keep, Sharing::Break] {
                let wanted = Defragment {
                    sharing,
                    ..Defragment::default()
                };
                volume.files().defragment(&inode, &wanted)?;
            }
        }
        Ok(())
    }),
    on("balance", Names(&[]), |volume, _| {
        balance(volume, &Filters::all())
    }),
    on("balance -dusage", Names(&[]), |volume, _| {
        let filters = Filters {
            data: filter("usage=60"),
            ..Filters::default()
        };
        balance(volume, &filters)
    }),
    on("balance -m", Names(&[]), |volume, _| {
        let filters = Filters {
            metadata: Some(Filter::default()),
            ..Filters::default()
        };
        balance(volume, &filters)
    }),
    on("balance -dconvert", Names(&[]), |volume, _| {
        let filters = Filters {
            data: filter("convert=dup"),
            ..Filters::default()
        };
        balance(volume, &filters)
    }),
    on("shrink", Names(&[]), |volume, _| {
        resize_by(volume, Size::Exactly(270 << 20))
    }),
    on("shrink and grow", Names(&[]), |volume, _| {
        resize_by(volume, Size::Exactly(300 << 20))?;
        resize_by(volume, Size::Max)
    }),
    on("replace", Names(&[]), |volume, world| {
        let target = (world.spare)();
        let store = volume.files().store();
        let how = (ReplaceReads::Any, Discard::Nothing);
        let go_on = &mut |_: &devices::ReplaceProgress| ControlFlow::Continue(());
        devices::replace(store, DeviceId(1), target.clone(), how, go_on)?;
        world.devices[0] = target;
        Ok(())
    }),
    on("device add and remove", Names(&[]), |volume, world| {
        let store = volume.files().store();
        let new = (world.spare)();
        devices::add(store, new.clone(), Discard::Nothing)?;
        world.devices.push(new);
        let _ = volume.free_deleted();
        if let Removal::Removed(_) = devices::remove(store, DeviceId(1), &mut for_a_while())? {
            world.devices.remove(0);
        }
        Ok(())
    }),
    on("scrub", Names(&[]), |volume, _| {
        Ok(volume.scrub(Repair::Rewrite).map(drop)?)
    }),
    on("trim", Names(&[]), |volume, _| {
        Ok(volume.trim(&Trim::EVERYTHING).map(drop)?)
    }),
    on("quota rescan", Names(&[]), |volume, _| {
        let limits = butterfs::du::Limits::default();
        let go_on = &mut |_: &butterfs::du::Progress| ControlFlow::Continue(());
        Ok(volume.files().rescan_quotas(&limits, go_on)?)
    }),
    on("quota disable", Names(&[]), |volume, _| {
        Ok(volume.files().disable_quotas()?)
    }),
    on("receive", Names(&[]), |volume, world| {
        volume.create_dir("received")?;
        let stream = std::io::Cursor::new(world.stream.to_vec());
        volume.receive("received", stream)?;
        Ok(())
    }),
    on("label", Names(&[]), |volume, _| {
        Ok(volume.set_label(b"a label")?)
    }),
    on("set-default", Names(&[]), |volume, _| {
        Ok(volume.set_default_subvolume("sub")?)
    }),
    on("property set ro", Names(&[]), |volume, _| {
        Ok(volume.set_subvolume_access("sub", SnapshotAccess::ReadOnly)?)
    }),
    closed("tune -u", |world| tune_by(world, Change::Fsid(None))),
    closed("tune -m", |world| {
        tune_by(world, Change::MetadataUuid(None))
    }),
    closed("tune --csum", |world| {
        tune_by(world, Change::Checksum(ChecksumType::Xxhash))
    }),
    closed("tune of block groups", |world| {
        let change = match world.way {
            2 => Change::ToBlockGroupTree,
            _ => Change::FromBlockGroupTree,
        };
        if world.way == 2 {
            tune_by(world, Change::ToFreeSpaceTree)?;
        }
        tune_by(world, change)
    }),
    Command {
        name: "clear_cache",
        touched: Names(&[]),
        work: Work::Opening(|options| {
            options.store.free_space = butterfs_store::FreeSpace::Remade;
        }),
    },
];

/// What follows every command: free space is used and discarded, so that
/// whatever is wrongly thought free is lost at once.
pub fn use_free_space(volume: &Volume, seed: u64) {
    let _ = volume.sync();
    let _ = volume.free_deleted();
    let _ = volume.create_dir("churn");
    for number in 0..40 {
        let path = format!("churn/{number}");
        let length = if number % 8 == 0 { 200_000 } else { 4000 };
        let _ = volume.write_file(&path[..], &content(seed + number, length));
    }
    let _ = volume.sync();
    let _ = volume.trim(&Trim::EVERYTHING);
    let _ = volume.remove_tree(volume.files().root(), b"churn");
    let _ = volume.sync();
}
