//! `butterfs reflink`: copies that share their data.
//!
//! Owns the arguments and what source and destination mean in a volume that is
//! not mounted. `host` handles mounts, of ButterFS and of the kernel.

mod host;
mod how;

use super::dedupe::same_file;
use super::subvolume::site::{Site, open_volume};
use crate::changes::verify_is_name_of_file;
use crate::fail::{Context, Done, fail};
use crate::place::Place;
use butterfs::{CloneSpan, FsError, InodeId, OldName, RenameMode, Volume};
use clap::Args;
use how::{How, working_name};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Copies a file so that the copy shares its data: at once, whatever its size,
/// and without taking space until one of the two changes. Never copies data
/// instead: where they cannot be shared it fails.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs reflink disk.img:/vm disk.img:/snapshots/vm
  butterfs reflink -r mnt/project mnt/project.before
  butterfs reflink --range 1m:64k:0 mnt/a mnt/b

Mode, owner, times, attributes, ACLs, hard links and holes are kept. On a mount
of ButterFS, cp --reflink=auto shares data as well; cp --reflink=always fails
there, because its request never reaches a FUSE server, but not under butterfs run.")]
pub struct Reflink {
    #[command(flatten)]
    how: How,
    /// VOLUME:/path, or a path on a mounted Btrfs.
    source: OsString,
    /// The new name, or a directory to put it into; on the same volume.
    destination: OsString,
}

impl Reflink {
    /// Runs it.
    pub fn run(self) -> Done {
        match (Site::parse(&self.source), Site::parse(&self.destination)) {
            (Site::Unmounted(source), Site::Unmounted(to))
                if same_file(&source.volume, &to.volume) =>
            {
                let volume = open_volume(&source.volume)?;
                let done = self.in_volume(&volume, &source, &to);
                volume.close().context(source.volume.display())?;
                done
            }
            (Site::Mounted(source), Site::Mounted(to)) => host::reflink(&self.how, &source, &to),
            _ => fail(format!(
                "{} and {} are on different volumes; data are shared within one: use butterfs copy",
                self.source.display(),
                self.destination.display()
            )),
        }
    }

    fn in_volume(&self, volume: &Volume, source: &Place, to: &Place) -> Done {
        let from = volume.resolve(source.path.as_bytes()).context(source)?;
        if self.how.range.is_empty() {
            return self.whole(volume, (from, source), to);
        }
        let files = volume.files();
        let target = volume.resolve(to.path.as_bytes()).context(to)?;
        let (from, target) = (files.inode(from)?, files.inode(target)?);
        for range in &self.how.range {
            let span = CloneSpan {
                from: range.from,
                to: range.to,
                length: range.length,
            };
            let bytes = files.clone_range(&from, &target, span).context(to)?;
            say!("{to}: {bytes} bytes shared");
        }
        Ok(())
    }

    fn whole(&self, volume: &Volume, (from, source): (InodeId, &Place), to: &Place) -> Done {
        let files = volume.files();
        let attributes = files.attributes(from).context(source)?;
        if attributes.is_directory() && !self.how.recursive {
            return fail(format!("{source}: is a directory; copy it with -r"));
        }
        let path = to.path.as_bytes();
        // A slash makes a link to a directory be followed.
        let directory = volume.resolve(&[path, b"/"].concat());
        let (parent, name) = match directory {
            Ok(directory) if files.attributes(directory)?.is_directory() => {
                let own = source.path.as_bytes().split(|byte| *byte == b'/');
                match own.rev().find(|part| !part.is_empty()) {
                    Some(name) => (directory, name),
                    None => return fail(format!("{source}: has no name; name the copy")),
                }
            }
            _ => {
                if !attributes.is_directory() {
                    verify_is_name_of_file(to)?;
                }
                volume.resolve_parent(path)?
            }
        };
        match files.lookup(parent, name) {
            Err(FsError::NotFound) => {}
            Err(error) => return Err(error).context(to),
            Ok(found) if found.inode == from => {
                return fail(format!("{to}: is the source itself"));
            }
            Ok(found) if found.subvolume || files.attributes(found.inode)?.is_directory() => {
                return fail(format!("{to}: has a directory of that name already"));
            }
            Ok(_) if !self.how.force => {
                return fail(format!("{to}: exists already; replace it with -f"));
            }
            Ok(_) => {}
        }
        let working = working_name(name);
        let done = match volume.clone_tree(from, parent, &working, &mut |_| {}) {
            Ok(done) => done,
            Err(error) => {
                if let Err(left) = volume.remove_tree(parent, &working) {
                    note!("butterfs: a part of the copy stays: {left}");
                }
                return Err(error).context(to);
            }
        };
        let place = |name| butterfs::Place { dir: parent, name };
        files
            .rename(
                place(&working),
                place(name),
                RenameMode::Replace,
                OldName::Free,
            )
            .context(to)?;
        say!("{} files, {} bytes shared", done.files, done.bytes);
        Ok(())
    }
}
