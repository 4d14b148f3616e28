//! A change happens as a whole or not at all: every call of the engine inside
//! every operation fails, and then panics. Afterwards the volume has failed,
//! with its last commit on the device, or it is as it was and goes on.

use crate::support::{LibraryTree, apply_to_library};
use butterfs::{BlockDevice, MemoryDevice, OpenOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_check::{DataChecksums, NoProgress};
use butterfs_store::inject::{Injected, arm, disarm};
use butterfs_testkit::op::{Bytes, EndOfFile, OpPath, RenameHow, SnapshotAccess, Span, XattrHow};
use butterfs_testkit::{Manifest, Op};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// An operation has fewer calls. A loop without end is a fault.
const CALLS_MAX: u64 = 20_000;

fn path(name: &str) -> OpPath {
    OpPath(name.into())
}

fn bytes(text: &str) -> Bytes {
    Bytes(text.into())
}

fn span(offset: u64, length: u64) -> Span {
    Span { offset, length }
}

fn create(name: &str) -> Op {
    Op::Create {
        path: path(name),
        mode: 0o644,
    }
}

fn write(name: &str, length: u64) -> Op {
    Op::Write {
        path: path(name),
        span: span(0, length),
        seed: length,
    }
}

fn rename(from: &str, to: &str, how: RenameHow) -> Op {
    Op::Rename {
        from: path(from),
        to: path(to),
        how,
    }
}

fn attribute(name: &str, value: &str) -> Op {
    Op::SetXattr {
        path: path(name),
        name: bytes("user.x"),
        value: bytes(value),
        how: XattrHow::Any,
    }
}

fn allocate(name: &str, range: Span, end: EndOfFile) -> Op {
    Op::Allocate {
        path: path(name),
        span: range,
        end,
    }
}

/// What exists before: trees of two levels, shared and unshared data.
fn before() -> Vec<Op> {
    let mut ops = Vec::new();
    for name in ["d", "d/empty", "other"] {
        ops.push(Op::Mkdir {
            path: path(name),
            mode: 0o755,
        });
    }
    for number in 0..40 {
        ops.push(create(&format!("d/file with a long name {number}")));
    }
    for (name, length) in [
        ("big", 90_000),
        ("inline", 700),
        ("shared", 40_000),
        ("old", 5000),
    ] {
        ops.push(create(name));
        ops.push(write(name, length));
    }
    ops.extend([
        create("clone"),
        Op::Clone {
            from: path("shared"),
            span: span(0, 40_000),
            to: path("clone"),
            to_offset: 0,
        },
        create("kept"),
        allocate("kept", span(0, 100_000), EndOfFile::Extend),
        attribute("big", "a value"),
        Op::Link {
            from: path("big"),
            to: path("other/second name"),
        },
        Op::Symlink {
            path: path("pointer"),
            target: bytes("big"),
        },
        Op::Subvolume {
            path: path("sub"),
            mode: 0o755,
        },
        create("sub/file"),
        write("sub/file", 20_000),
    ]);
    for number in 0..40 {
        ops.push(create(&format!("sub/file with a long name {number}")));
    }
    ops.extend([Op::Snapshot {
        from: path("sub"),
        to: path("snapshot"),
        access: SnapshotAccess::ReadOnly,
    }]);
    ops
}

/// Operations that are one change each. They follow others that prepare them
/// and stay in memory.
fn operations() -> Vec<(Vec<Op>, Op)> {
    let chmod = |name: &str| Op::Chmod {
        path: path(name),
        mode: 0o4711,
    };
    let alone = [
        create("d/new"),
        Op::Mkdir {
            path: path("d/new"),
            mode: 0o700,
        },
        Op::Symlink {
            path: path("d/new"),
            target: bytes("somewhere else"),
        },
        Op::Link {
            from: path("big"),
            to: path("d/new"),
        },
        Op::Unlink { path: path("big") },
        Op::Unlink {
            path: path("clone"),
        },
        Op::Rmdir {
            path: path("d/empty"),
        },
        rename("big", "d/moved", RenameHow::Replace),
        rename("d", "other/d", RenameHow::Replace),
        rename("big", "old", RenameHow::Replace),
        rename("big", "d", RenameHow::Exchange),
        rename("big", "d/moved", RenameHow::Whiteout),
        rename("sub", "other/sub", RenameHow::Replace),
        attribute("big", "another value"),
        attribute("old", "first"),
        Op::RemoveXattr {
            path: path("big"),
            name: bytes("user.x"),
        },
        chmod("big"),
        Op::Truncate {
            path: path("kept"),
            size: 0,
        },
        Op::PunchHole {
            path: path("shared"),
            span: span(8192, 8192),
        },
        allocate("old", span(8192, 50_000), EndOfFile::Keep),
        Op::Subvolume {
            path: path("d/new"),
            mode: 0o755,
        },
        Op::Snapshot {
            from: path("sub"),
            to: path("d/new"),
            access: SnapshotAccess::Writable,
        },
        Op::DeleteSubvolume {
            path: path("snapshot"),
        },
        Op::Fsync { path: path("d") },
    ];
    let mut all: Vec<_> = alone.into_iter().map(|op| (Vec::new(), op)).collect();
    let fsync = |name: &str| Op::Fsync { path: path(name) };
    all.extend([
        (vec![write("big", 30_000)], fsync("big")),
        (vec![write("inline", 900)], fsync("inline")),
        (vec![write("clone", 10_000)], fsync("clone")),
        (vec![write("kept", 12_000)], fsync("kept")),
        (vec![create("d/new"), write("d/new", 100)], fsync("d/new")),
        (vec![create("d/new"), chmod("inline")], Op::Sync),
        // Flushed together.
        (
            vec![
                create("d/new"),
                write("d/new", 5000),
                create("third"),
                write("third", 300),
                create("d/second"),
                write("d/second", 40_000),
            ],
            Op::Sync,
        ),
        // Frees it, in one step.
        (
            vec![create("sub/new"), Op::DeleteSubvolume { path: path("sub") }],
            Op::Sync,
        ),
    ]);
    all
}

fn open(device: &Arc<MemoryDevice>) -> LibraryTree {
    let options = OpenOptions {
        cleaner: butterfs::Cleaner::OnDemand,
        commit_interval: std::time::Duration::from_secs(3600),
        ..OpenOptions::default()
    };
    LibraryTree(Volume::open_device(device.clone(), options).expect("it opens"))
}

fn look(tree: &LibraryTree) -> Manifest {
    Manifest::of(tree).expect("a tree that can be walked")
}

fn assert_clean(device: &Arc<MemoryDevice>, context: &str) {
    let options = butterfs_check::Options {
        data: DataChecksums::Verify,
        threads: 1,
        ..butterfs_check::Options::default()
    };
    let device: Arc<dyn BlockDevice> = device.clone();
    let report = butterfs_check::check(vec![device], &options, &NoProgress).expect("a check");
    assert!(report.is_exact(), "{context}: {:#?}", report.faults);
}

/// What became of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// There were fewer calls.
    NotReached,
    /// The volume failed.
    Failed,
    /// The volume goes on.
    Unchanged,
}

/// What users see before and after an operation without a fault.
struct States {
    committed: Manifest,
    /// Without times: they are of another run.
    done: Manifest,
}

fn without_times(mut manifest: Manifest) -> Manifest {
    for entry in manifest.entries.values_mut() {
        entry.stat.modified = None;
    }
    manifest
}

/// Runs `op` on a copy of `base`, with the fault after `calls`.
fn attempt(
    base: &MemoryDevice,
    (prepare, op): &(Vec<Op>, Op),
    (calls, what): (u64, Injected),
    states: &States,
) -> Ended {
    let context = format!("{op:?}, {what:?} at call {calls}");
    let device = Arc::new(base.snapshot());
    let tree = open(&device);
    for op in prepare {
        apply_to_library(op, &tree.0).expect("without a fault");
    }
    let prepared = look(&tree);
    arm(calls, what);
    let result = catch_unwind(AssertUnwindSafe(|| apply_to_library(op, &tree.0)));
    if !disarm() {
        assert!(matches!(result, Ok(Ok(()))), "{context}: no fault came");
        return Ended::NotReached;
    }
    let went_well = matches!(result, Ok(Ok(())));
    if tree.0.failure().is_some() {
        assert!(tree.0.close().is_err(), "{context}: nothing is durable");
        drop(tree);
        let found = look(&open(&device));
        if found.differences(&states.committed, 1).is_empty() {
            assert_clean(&device, &context);
            return Ended::Failed;
        }
        // An operation that is a commit of its own may have happened before the
        // fault.
        found.assert_same(&states.done, &context);
        assert_clean(&device, &context);
        return Ended::Failed;
    }
    let here = look(&tree);
    let is_done = || here.differences(&states.done, 1).is_empty();
    // A panic after a change that is whole.
    let is_whole = went_well || (what == Injected::Panic && is_done());
    if !is_whole {
        here.assert_same(&prepared, &context);
    }
    tree.0
        .close()
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    drop(tree);
    look(&open(&device)).assert_same(&here, &format!("{context}, on the device"));
    assert_clean(&device, &context);
    Ended::Unchanged
}

#[test]
fn a_change_is_whole_or_the_volume_fails() {
    let base = Arc::new(MemoryDevice::new(128 << 20));
    let options = MkfsOptions {
        node_size: 4096,
        ..MkfsOptions::default()
    };
    make(&*base, &options).expect("a volume is made");
    let tree = open(&base);
    for op in before() {
        apply_to_library(&op, &tree.0).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
    tree.0.close().expect("a commit");
    drop(tree);
    let committed = look(&open(&base));
    let (mut failed, mut unchanged) = (0, 0);
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("a test asked for it") {
            others(panic);
        }
    }));
    for case in operations() {
        let tree = open(&Arc::new(base.snapshot()));
        for op in &case.0 {
            apply_to_library(op, &tree.0).expect("without a fault");
        }
        apply_to_library(&case.1, &tree.0).expect("without a fault");
        let states = States {
            committed: committed.clone(),
            done: without_times(look(&tree)),
        };
        drop(tree);
        for what in [Injected::Error, Injected::Panic] {
            let mut calls = 0;
            loop {
                assert!(calls < CALLS_MAX, "{:?} does not end", case.1);
                match attempt(&base, &case, (calls, what), &states) {
                    Ended::NotReached => break,
                    Ended::Failed => failed += 1,
                    Ended::Unchanged => unchanged += 1,
                }
                calls += 1;
            }
        }
    }
    println!("{failed} failed, {unchanged} unchanged");
    assert!(failed > 1000 && unchanged > 500, "{failed}, {unchanged}");
}
