//! Commands that work on a whole volume, on one whose trees may say anything.
//!
//! Each may succeed or end with an error. None panics or says that ButterFS
//! itself is at fault.

use butterfs::diff::Compared;
use butterfs::du::Limits;
use butterfs::files_at::ExtentPart;
use butterfs::quota::QuotaMode;
use butterfs::{Defragment, Error, FsError, Logical, NewInode, OpenOptions, Owner, Trim, Volume};
use butterfs_admin::balance::{self, Filter, Filters, Redundancy};
use butterfs_admin::devices::{self, Discard, ReplaceReads};
use butterfs_admin::resize::{self, Size};
use butterfs_admin::scrub::{self, Pace, Repair};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::DeviceId;
use std::cell::Cell;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A command on an open volume. Its number, modulo 4, varies it.
type Command = fn(&Volume, usize);

/// All commands, with their names.
pub const ALL: &[(&str, Command)] = &[
    ("balance", balance_all),
    ("convert", convert),
    ("scrub", scrub_all),
    ("replace", replace),
    ("resize", shrink_and_grow),
    ("remove", add_and_remove),
    ("send", send),
    ("delete", delete),
    ("rewrite", rewrite),
    ("quota", quota),
    ("look", look_at_sharing),
];

thread_local! {
    /// Errors of the command that runs.
    static ERRORS: Cell<usize> = const { Cell::new(0) };
}

/// An error is one line that does not blame ButterFS.
fn said<T, E: Display>(result: Result<T, E>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
            assert!(!text.contains("internal error"), "{text}");
            ERRORS.set(ERRORS.get() + 1);
            None
        }
    }
}

/// Opens the volume on `devices`, runs the command and closes the volume. Gives
/// the number of errors.
pub fn run(which: usize, devices: &[Arc<MemoryDevice>], options: &OpenOptions) -> usize {
    ERRORS.set(0);
    let given = devices.iter().map(|one| one.clone() as _).collect();
    if let Some(volume) = said(Volume::open_devices(given, options.clone())) {
        let (_, command) = ALL[which % ALL.len()];
        command(&volume, which / ALL.len());
        said(volume.sync());
        said(volume.close());
    }
    ERRORS.get()
}

fn balance_all(volume: &Volume, _: usize) {
    let store = volume.files().store();
    let filters = Filters::all();
    said(balance::start(
        store,
        &filters,
        Redundancy::MayShrink,
        &mut |_| None,
    ));
}

/// Each kind gets another profile.
fn convert(volume: &Volume, turn: usize) {
    let filter = Filter::parse(["convert=dup", "convert=single", "convert=raid1"][turn % 3]);
    let filter = filter.expect("a filter");
    let filters = Filters {
        data: (turn % 2 == 1).then_some(filter),
        metadata: Some(filter),
        system: Some(filter),
    };
    let store = volume.files().store();
    said(balance::start(
        store,
        &filters,
        Redundancy::MayShrink,
        &mut |_| None,
    ));
}

fn scrub_all(volume: &Volume, turn: usize) {
    let options = scrub::Options {
        repair: [Repair::Rewrite, Repair::ReportOnly][turn % 2],
        threads: 1,
    };
    let store = volume.files().store();
    let watch = &mut |news: &scrub::News<'_>| {
        for fault in news.faults {
            said(store.read().holders_at(fault.logical, 10));
        }
        ControlFlow::Continue(Pace::default())
    };
    said(scrub::scrub(store, &options, &[], watch));
}

fn replace(volume: &Volume, turn: usize) {
    let target = Arc::new(MemoryDevice::new(200 << 20));
    let how = (
        [ReplaceReads::Any, ReplaceReads::OthersFirst][turn % 2],
        Discard::Whole,
    );
    let store = volume.files().store();
    said(devices::replace(
        store,
        DeviceId(1),
        target,
        how,
        &mut |_| ControlFlow::Continue(()),
    ));
}

/// A device is cut to its content and grows again; a large one is added, gets
/// its part of everything, and shrinks.
fn shrink_and_grow(volume: &Volume, _: usize) {
    let store = volume.files().store();
    let go = &mut |_: &resize::Progress| ControlFlow::Continue(());
    said(resize::end_at_content(store));
    said(resize::resize(store, DeviceId(1), Size::Max, go));
    let new: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(900 << 20));
    let Some(id) = said(devices::add(store, new, Discard::Whole)) else {
        return;
    };
    balance_all(volume, 0);
    said(resize::resize(
        store,
        id,
        Size::Exactly(resize::SIZE_MIN),
        go,
    ));
}

fn add_and_remove(volume: &Volume, _: usize) {
    let store = volume.files().store();
    let new: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(300 << 20));
    let Some(id) = said(devices::add(store, new, Discard::Whole)) else {
        return;
    };
    let go = &mut |_: &resize::Progress| ControlFlow::Continue(());
    said(resize::resize(store, id, Size::Minus(20 << 20), go));
    said(devices::remove(store, DeviceId(1), go));
}

fn send(volume: &Volume, _: usize) {
    let mut stream = Vec::new();
    said(volume.send("s1", &mut stream));
    let mut changes = Vec::new();
    said(volume.send_changes("s1", "s2", &mut changes));
    said(volume.send("s2", std::io::sink()));
    said(volume.create_dir("received"));
    said(volume.receive("received", std::io::Cursor::new(stream)));
    said(volume.receive("received", std::io::Cursor::new(changes)));
}

fn delete(volume: &Volume, turn: usize) {
    for path in [["s1", "work", "s2"], ["s2", "s1", "work"]][turn % 2] {
        said(volume.delete_subvolume(path));
        said(volume.free_deleted());
    }
}

/// Defragments, shares and copies files.
fn rewrite(volume: &Volume, _: usize) {
    let files = volume.files();
    let mut last = None;
    for directory in ["d0", "work"] {
        let Some(id) = said(volume.resolve(directory)) else {
            continue;
        };
        for child in said(volume.list(id)).unwrap_or_default().iter().take(20) {
            let Some(inode) = said(files.inode(child.target.inode)) else {
                continue;
            };
            said(files.defragment(&inode, &Defragment::default()));
            let new = NewInode::new(0o100_600, Owner::default());
            if let Some(target) = said(files.create(files.root(), &child.name, &new)) {
                said(files.copy_range((&inode, 0), (&target, 0), 100_000));
            }
            if let Some(last) = last.replace(inode.clone()) {
                for deduped in files.dedupe_range((&last, 0), 4096, &[(inode, 0)]) {
                    said(deduped);
                }
            }
        }
    }
    said(volume.trim(&Trim::EVERYTHING));
}

fn quota(volume: &Volume, turn: usize) {
    let files = volume.files();
    let mut go = |_: &butterfs::du::Progress| ControlFlow::Continue(());
    let limits = Limits::default();
    let mode = [QuotaMode::Full, QuotaMode::Simple][turn % 2];
    said(files.enable_quotas(mode, &limits, &mut go));
    said(files.rescan_quotas(&limits, &mut go));
    said(volume.write_file("work/counted", &[3; 9000]));
    said(volume.sync());
    said(files.disable_quotas());
}

/// What only reads, but follows references and shared nodes.
fn look_at_sharing(volume: &Volume, _: usize) {
    let mut go = |_: &butterfs::du::Progress| ControlFlow::Continue(());
    said(volume.space_sharing(&Limits::default(), &mut go));
    said(volume.subvolumes());
    let _ = volume.usage();
    if let (Some(old), Some(new)) = (
        said(volume.subvolume_at("s1")),
        said(volume.subvolume_at("s2")),
    ) {
        said(volume.diff(Compared { old, new }, &mut |_| Ok::<_, FsError>(())));
        let since = butterfs::Generation(3);
        said(volume.find_new(new, since, &mut |_| Ok::<_, FsError>(())));
    }
    said::<_, Error>(volume.history("s2/shared"));
    let groups: Vec<_> = {
        let engine = volume.files().store().read();
        engine.groups().map(|group| group.start.get()).collect()
    };
    for start in groups {
        for at in (0..12).map(|step| start + (step << 13)) {
            said(volume.files_at(Logical(at), ExtentPart::Address));
            said(volume.files_at(Logical(at), ExtentPart::Extent));
        }
    }
}
