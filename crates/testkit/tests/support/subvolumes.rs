//! Operations on subvolumes of an open volume.

use super::{Answer, Caller, S_IFDIR, Said, refuse};
use butterfs::receive::{ReceiveOptions, StreamReader, VolumeTarget, receive};
use butterfs::send::{Beginning, DataMode, SendOptions, SendRequest, StreamWriter};
use butterfs::{Access, InodeId, NewInode, Owner};
use butterfs_format::send_stream::Version;
use butterfs_format::{InodeNumber, TreeId};
use butterfs_testkit::Op;
use butterfs_testkit::op::{OpPath, SnapshotAccess};
use rustix::io::Errno;
use std::sync::Arc;

/// Does an operation on subvolumes.
pub(super) fn apply(caller: &Caller<'_>, op: &Op) -> Answer<()> {
    let files = caller.files;
    match op {
        Op::Subvolume { path, mode } => {
            let (parent, name) = caller.free_place(path)?;
            let new = NewInode::new(S_IFDIR | mode, Owner::default());
            Ok(files.create_subvolume(parent, name, &new).map(drop)?)
        }
        Op::Snapshot { from, to, access } => {
            let (parent, name) = caller.free_place(to)?;
            let access = match access {
                SnapshotAccess::Writable => Access::ReadWrite,
                SnapshotAccess::ReadOnly => Access::ReadOnly,
            };
            let source = subvolume(caller, from)?;
            Ok(files.snapshot(source, parent, name, access).map(drop)?)
        }
        Op::DeleteSubvolume { path } => {
            let (parent, name) = caller.place(path)?;
            Ok(files.delete_subvolume(parent, name).map(drop)?)
        }
        Op::SendReceive { from, parent, into } => {
            let source = subvolume(caller, from)?;
            let parent = parent.as_ref().map(|path| subvolume(caller, path));
            let parent = parent.transpose()?;
            caller.make(into, S_IFDIR | 0o777, 0)?;
            let into = caller.volume.resolve(&into.0)?;
            // One seed has streams of both versions.
            let version = match into.number.get() % 2 {
                0 => Version::One,
                _ => Version::Two,
            };
            let name = from.0.rsplit(|byte| *byte == b'/').next();
            let request = SendRequest {
                subvolume: source,
                name: name.unwrap_or_default(),
                parent,
                clone_sources: &[],
            };
            transfer(caller, &request, version, into)
        }
        _ => refuse(Errno::INVAL),
    }
}

fn subvolume(caller: &Caller<'_>, path: &OpPath) -> Answer<TreeId> {
    let id = caller.volume.resolve(&path.0)?;
    if id.number != InodeNumber::ROOT {
        return refuse(Errno::INVAL);
    }
    Ok(id.tree)
}

fn transfer(
    caller: &Caller<'_>,
    request: &SendRequest<'_>,
    version: Version,
    into: InodeId,
) -> Answer<()> {
    let mut out = StreamWriter::new(Vec::new(), version, Beginning::Header);
    let options = SendOptions {
        version,
        data: DataMode::Plain,
        ..SendOptions::default()
    };
    let sent = caller.files.send(request, &options, &mut out);
    sent.map_err(|error| wrong("send", &error))?;
    let stream = out.finish().map_err(|error| wrong("send", &error))?;
    let mut target = VolumeTarget::new(Arc::clone(caller.volume.files()), into);
    let mut reader = StreamReader::new(&stream[..]);
    let options = ReceiveOptions::default();
    let received = receive(&mut reader, &mut target, options, &mut |_, _| {});
    match received.failure {
        None => Ok(()),
        Some(failure) => Err(wrong("receive", &failure)),
    }
}

fn wrong(what: &str, error: &dyn std::fmt::Debug) -> Said {
    eprintln!("{what}: {error:?}");
    Said(Errno::IO)
}
