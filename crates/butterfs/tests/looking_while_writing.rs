//! A thread that looks at a volume for a long time delays nobody, and sees one
//! state of it.

mod common;

use butterfs::diff::{Compared, Difference};
use butterfs::du::Limits;
use butterfs::send::{Beginning, SendOptions, SendRequest, StreamWriter};
use butterfs::{Access, FsError, Generation, MemoryDevice, TreeId, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_format::send_stream::Version;
use butterfs_testkit::judge::{judge_image, scratch_dir};
use std::cell::Cell;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;

const FILES: usize = 400;

fn fresh(mib: u64) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(mib << 20));
    let mkfs = MkfsOptions {
        node_size: common::NODE as u32,
        ..MkfsOptions::default()
    };
    make(&*device, &mkfs).unwrap();
    let volume = common::open(&device, Access::ReadWrite).unwrap();
    (device, volume)
}

/// Changes every file and commits, `round` after round.
fn write(volume: &Volume, round: usize) {
    for number in 0..FILES {
        let content = format!("{round} {number}").repeat(40);
        let path = format!("file-{number}");
        volume
            .write_file(path.as_bytes(), content.as_bytes())
            .unwrap();
    }
    volume.sync().unwrap();
}

fn paths(
    volume: &Volume,
    old: TreeId,
    beside: &mut dyn FnMut(usize),
) -> Result<Vec<Vec<u8>>, FsError> {
    let mut found = Vec::new();
    let compared = Compared {
        old,
        new: TreeId::FS,
    };
    volume.diff::<FsError>(compared, &mut |difference| {
        beside(found.len());
        if let Difference::File(file) = difference {
            found.extend(file.paths.iter().cloned());
        }
        Ok(())
    })?;
    found.sort();
    Ok(found)
}

#[test]
fn writers_go_on_while_others_look() {
    let (device, volume) = fresh(256);
    write(&volume, 0);
    let root = volume.files().root();
    let old = volume
        .files()
        .snapshot(TreeId::FS, root, b"old", Access::ReadOnly)
        .unwrap();
    write(&volume, 1);
    let expected = paths(&volume, old, &mut |_| ()).unwrap();
    assert!(expected.len() >= FILES);

    let mut round = 2;
    let found = paths(&volume, old, &mut |count| {
        if count.is_multiple_of(100) {
            volume
                .write_file(format!("late-{round}").as_bytes(), b"not seen")
                .unwrap();
            write(&volume, round);
            round += 1;
        }
    });
    assert_eq!(found.unwrap(), expected, "the state in which it began");
    assert!(round > 4, "others wrote meanwhile");

    let mut extents = 0;
    let visit = &mut |_: &butterfs::find_new::NewExtent| {
        if extents == 0 {
            write(&volume, 99);
        }
        extents += 1;
        Ok::<_, FsError>(())
    };
    volume.find_new(TreeId::FS, Generation(0), visit).unwrap();
    assert!(extents >= FILES);

    let mut looked = false;
    let sharing = volume.space_sharing(&Limits::default(), &mut |_| {
        if !std::mem::replace(&mut looked, true) {
            write(&volume, 100);
        }
        ControlFlow::Continue(())
    });
    assert!(looked && !sharing.unwrap().subvolumes().is_empty());
    volume.close().unwrap();
    let dir = scratch_dir();
    let image = dir.path().join("volume.img");
    device.save(&image).unwrap();
    judge_image(&image, "after all");
}

/// The space that is kept for such a thread is bounded. A small volume takes it
/// back, and the thread gets an error.
#[test]
fn a_view_yields_where_space_is_short() {
    let (_device, volume) = fresh(128);
    write(&volume, 0);
    let old = volume
        .files()
        .snapshot(TreeId::FS, volume.files().root(), b"old", Access::ReadOnly)
        .unwrap();
    write(&volume, 1);
    let mut round = 2;
    let found = paths(&volume, old, &mut |_| {
        if round < 300 {
            write(&volume, round);
            round += 1;
        }
    });
    match found {
        Err(FsError::Busy(reason)) => assert!(reason.contains("try again"), "{reason}"),
        other => panic!("{other:?} after {round} rounds"),
    }
    volume
        .write_file(b"after", b"it can still be written")
        .unwrap();
    volume.close().unwrap();
}

/// Tries to delete what is being sent, at every write of the stream.
struct Spoiler<'v> {
    volume: &'v Volume,
    sent: TreeId,
    is_sending: &'v Cell<bool>,
    tries: usize,
}

impl Write for Spoiler<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_sending.get() {
            return Ok(bytes.len());
        }
        let files = self.volume.files();
        let refused = |result: Result<(), FsError>| match result {
            Err(FsError::NotPermitted(reason)) => assert_eq!(reason, "it is being sent"),
            other => panic!("{other:?}"),
        };
        refused(files.delete_subvolume_by_id(self.sent));
        refused(files.set_subvolume_access(self.sent, Access::ReadWrite));
        self.tries += 1;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_is_sent_stays() {
    let (_device, volume) = fresh(128);
    // More than the stream writer buffers.
    volume.write_file(b"large", &vec![7; 8 << 20]).unwrap();
    let files = volume.files();
    let sent = files
        .snapshot(TreeId::FS, files.root(), b"sent", Access::ReadOnly)
        .unwrap();
    let is_sending = Cell::new(true);
    let spoiler = Spoiler {
        volume: &volume,
        sent,
        is_sending: &is_sending,
        tries: 0,
    };
    let mut out = StreamWriter::new(spoiler, Version::One, Beginning::Header);
    let request = SendRequest {
        subvolume: sent,
        name: b"sent",
        parent: None,
        clone_sources: &[],
    };
    files
        .send(&request, &SendOptions::default(), &mut out)
        .unwrap();
    // The volume is no longer read when the end of the stream is written.
    is_sending.set(false);
    assert!(out.finish().unwrap().tries > 0);
    files.set_subvolume_access(sent, Access::ReadWrite).unwrap();
    files.delete_subvolume_by_id(sent).unwrap();
    volume.close().unwrap();
}
