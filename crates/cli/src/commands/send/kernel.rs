//! Snapshots that the kernel has mounted. The kernel sends them.

use super::arguments::Send;
use super::relatives::{Named, Relations, nearest};
use crate::fail::{Context, Done, Failure, fail};
use crate::output;
use butterfs::TreeId;
use butterfs::send::DataMode;
use butterfs_kernel::{
    self as btrfs, SEND_COMPRESSED, SEND_NO_DATA, SEND_NO_END, SEND_NO_HEADER, SendCommand,
};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Greatest number of clone sources that the kernel takes.
const SOURCES_MAX: usize = 1000;

fn named(word: &OsString) -> Result<(File, Named), Failure> {
    let path = Path::new(word);
    let file = File::open(path).context(path.display())?;
    let info = btrfs::subvolume_info(file.as_fd()).context(path.display())?;
    let named = Named {
        tree: info.id,
        relations: Relations {
            uuid: info.own.uuid,
            parent_uuid: info.parent_uuid,
            made: info.made,
        },
        name: path.as_os_str().as_bytes().to_vec(),
    };
    Ok((file, named))
}

/// Sends.
pub(super) fn send(send: Send) -> Done {
    let options = send.options()?;
    let output = send.output()?;
    let parent = send.parent.as_ref().map(named).transpose()?;
    let mut sources = Vec::new();
    for word in &send.clone_source {
        sources.push(named(word)?.1);
    }
    let data = match options.data {
        DataMode::Omit => SEND_NO_DATA,
        DataMode::Encoded => SEND_COMPRESSED,
        DataMode::Plain => 0,
    };
    let last = send.snapshots.len().saturating_sub(1);
    for (index, word) in send.snapshots.iter().enumerate() {
        let (file, snapshot) = named(word)?;
        let base = match &parent {
            Some((_, parent)) => Some(parent),
            None => nearest(&snapshot, &sources),
        };
        if base.is_none() && !sources.is_empty() && index == 0 {
            return fail(format!(
                "{}: none of the clone sources is a relative of it; name a parent with -p",
                word.display()
            ));
        }
        if send.verbose {
            let from = base.map_or("nothing".into(), |base| {
                String::from_utf8_lossy(&base.name).into_owned()
            });
            note!("{} from {from}", word.display());
        }
        let mut clones: Vec<TreeId> = sources.iter().map(|source| source.tree).collect();
        clones.extend(base.map(|base| base.tree));
        clones.sort_unstable();
        clones.dedup();
        clones.truncate(SOURCES_MAX);
        let mut flags = data;
        if send.one_stream && index > 0 {
            flags |= SEND_NO_HEADER;
        }
        if send.one_stream && index < last {
            flags |= SEND_NO_END;
        }
        let command = SendCommand {
            output: output.as_fd(),
            parent: base.map(|base| base.tree),
            clone_sources: &clones,
            flags,
            version: options.version.number(),
        };
        btrfs::send(file.as_fd(), &command).map_err(|error| {
            let reason = match error {
                rustix::io::Errno::PERM => {
                    "the kernel sends for root alone, and read-only snapshots alone".to_owned()
                }
                other => {
                    if other == rustix::io::Errno::PIPE && send.file.is_none() {
                        output::reader_is_gone();
                    }
                    std::io::Error::from(other).to_string()
                }
            };
            Failure(format!("{}: {reason}", word.display()))
        })?;
        // The receiver has it from now on.
        sources.push(snapshot);
    }
    output.finish()
}
