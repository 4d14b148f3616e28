//! `butterfs subvolume delete` and `sync`.

use super::mounted::MountedRoots;
use super::site::{
    Site, open_directory, open_volume, open_volume_with, said, said_of, subvolume_at,
};
use crate::fail::{Context, Done, fail};
use crate::interrupt::Interrupt;
use crate::place::Place;
use butterfs::{Cleaner, Cleaning, TreeId, Volume};
use butterfs_kernel as btrfs;
use clap::Args;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Inode number of a subvolume's root. On a mount of ButterFS, the bits above
/// these name the subvolume.
const ROOT: u64 = 256;
const NUMBER: u64 = (1 << 40) - 1;

/// Delete subvolumes with all that is in them. The name is removed at once.
/// The space is freed in the background if the volume is mounted, otherwise
/// before the command ends.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs subvolume delete disk.img:/snapshots/monday
  butterfs subvolume delete --recursive mnt/old
  butterfs subvolume delete --subvolid 260 mnt")]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command")]
pub struct Delete {
    /// Commit once all are deleted.
    #[arg(short = 'c', long)]
    commit_after: bool,
    /// Commit after each.
    #[arg(short = 'C', long)]
    commit_each: bool,
    /// Delete the subvolumes in them too, the deepest first.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Delete the one with this id, of the volume or mount that is named.
    #[arg(short = 'i', long, value_name = "ID")]
    subvolid: Option<u64>,
    /// Leave the freeing of the space to the next mount.
    #[arg(long)]
    no_wait: bool,
    /// Say what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
    /// Accepted: what is deleted is always said.
    #[arg(short, long)]
    verbose: bool,
    /// The subvolumes: VOLUME:/path or a path on a mounted Btrfs.
    #[arg(required = true)]
    names: Vec<OsString>,
}

/// Wait until the space of deleted subvolumes is free.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs subvolume sync disk.img
  butterfs subvolume sync mnt")]
pub struct Sync {
    /// On a mount: seconds between two looks.
    #[arg(short, value_name = "SECONDS", default_value_t = 1)]
    seconds: u32,
    /// The volume, or a path on a mounted Btrfs.
    volume: PathBuf,
    /// Of a mount: only these, by their ids.
    ids: Vec<u64>,
}

impl Delete {
    /// Runs it.
    pub fn run(self) -> Done {
        if let (Some(id), [_, _, ..]) = (self.subvolid, &self.names[..]) {
            return fail(format!(
                "--subvolid {id} is for one volume or mount, and {} are named; nothing was deleted",
                self.names.len()
            ));
        }
        let mut failed = Vec::new();
        for (at, word) in self.names.iter().enumerate() {
            let is_last = at + 1 == self.names.len();
            let durable = match self.commit_each || (self.commit_after && is_last) {
                true => Durable::Now,
                false => Durable::Later,
            };
            let site = match self.subvolid {
                // The volume alone may be named.
                Some(_) if PathBuf::from(word).is_file() => Site::Unmounted(Place {
                    volume: word.into(),
                    path: "/".into(),
                }),
                _ => Site::parse(word),
            };
            let done = match &site {
                Site::Unmounted(place) => self.unmounted(place),
                Site::Mounted(path) => self.mounted(&site, path, durable),
            };
            if done.is_err() && crate::output::is_lost() {
                return done;
            }
            failed.extend(done.err());
        }
        // If one cannot be deleted, the others are deleted anyway.
        let last = failed.pop();
        for failure in &failed {
            note!("butterfs: {}", failure.0);
        }
        last.map_or(Ok(()), Err)
    }

    fn unmounted(&self, place: &Place) -> Done {
        let volume = match self.dry_run {
            true => place.open_read_only(Some(TreeId::FS.get()))?,
            false => open_volume_with(&place.volume, Cleaner::OnDemand)?,
        };
        match self.subvolid {
            Some(id) => {
                let at = format!("{}, subvolume {id}", place.volume.display());
                match self.dry_run {
                    true if volume.subvolumes()?.get(TreeId(id)).is_none() => {
                        return fail(format!("{at}: there is none"));
                    }
                    true => {}
                    false => volume
                        .files()
                        .delete_subvolume_by_id(TreeId(id))
                        .context(at)?,
                }
                say!("Delete subvolume {id} of '{}'", place.volume.display());
            }
            None => {
                let tree = subvolume_at(&volume, place)?;
                if tree == TreeId::FS {
                    return fail(format!(
                        "{place}: the top level of a volume cannot be deleted"
                    ));
                }
                self.delete_in(&volume, tree).map_err(|e| e.at(place))?;
                let lead = format!("Delete subvolume {tree} (commit): '");
                crate::output::line(&[lead.as_bytes(), &place.bytes(), b"'"])?;
            }
        }
        if self.dry_run {
            return Ok(());
        }
        volume.sync()?;
        if !self.no_wait {
            volume.files().clean_all()?;
        }
        Ok(volume.close()?)
    }

    fn delete_in(&self, volume: &Volume, tree: TreeId) -> Done {
        let files = volume.files();
        if self.dry_run {
            return Ok(());
        }
        if self.recursive {
            for (child, _) in files.subvolumes_in(tree, TreeId(0))? {
                self.delete_in(volume, child)?;
            }
        }
        files.delete_subvolume_by_id(tree)?;
        if self.commit_each {
            volume.sync()?;
        }
        Ok(())
    }

    fn mounted(&self, site: &Site, path: &Path, durable: Durable) -> Done {
        let mount = match self.subvolid {
            Some(_) if self.recursive => {
                return fail(format!(
                    "{site}: --recursive works on a path, or on a volume that is not mounted"
                ));
            }
            Some(id) => {
                let mount = open_directory(path)?;
                if self.dry_run {
                    let all = MountedRoots::open(path)?.all()?;
                    if !all.iter().any(|(at, item)| at.get() == id && item.refs > 0) {
                        return fail(format!("{site}: there is no subvolume {id}"));
                    }
                } else {
                    btrfs::delete_subvolume_by_id(mount.as_fd(), TreeId(id))
                        .map_err(|error| said_of(site, TreeId(id), error))?;
                }
                say!("Delete subvolume {id} of '{site}'");
                mount
            }
            None => {
                let (above, name) = site.split()?;
                let Site::Mounted(above) = above else {
                    return fail(format!("{site}: is on no mount"));
                };
                let directory = open_directory(&above)?;
                if self.recursive {
                    self.delete_below(path)?;
                }
                self.delete_name(&directory, &name, (&above, durable))?;
                directory
            }
        };
        if durable == Durable::Now && !self.dry_run {
            butterfs_kernel::sync_any(mount.as_fd())?;
        }
        Ok(())
    }
}

impl Delete {
    /// Deletes a subvolume of a directory, unless that is only to be said, and
    /// says so as btrfs-subvolume(8) does.
    fn delete_name(
        &self,
        directory: &File,
        name: &OsStr,
        (above, durable): (&Path, Durable),
    ) -> Done {
        let path = above.join(name);
        let at = |error| said(&path.display(), error);
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let root = File::options().read(true).custom_flags(flags).open(&path);
        if self.dry_run {
            let number = root
                .as_ref()
                .map(|root| root.metadata().map(|facts| facts.ino()));
            match number {
                Ok(Ok(number)) if number & NUMBER == ROOT => {}
                Err(error) if error.kind() != ErrorKind::NotADirectory => {
                    return fail(format!("{}: {error}", path.display()));
                }
                _ => return fail(format!("{}: is no subvolume", path.display())),
            }
        }
        // A user who may not look into it may still delete it.
        let info = root.ok().map(|root| btrfs::subvolume_info(root.as_fd()));
        let id = info
            .and_then(Result::ok)
            .map(|info| format!("{} ", info.id));
        if !self.dry_run {
            btrfs::delete_subvolume(directory.as_fd(), name.as_bytes()).map_err(at)?;
        }
        let how = match durable {
            Durable::Now => "commit",
            Durable::Later => "no-commit",
        };
        let above = above.canonicalize().unwrap_or_else(|_| above.to_owned());
        let lead = format!("Delete subvolume {}({how}): '", id.unwrap_or_default());
        let path = above.join(name).into_os_string();
        crate::output::line(&[lead.as_bytes(), path.as_bytes(), b"'"])
    }

    /// Deletes the subvolumes in the one at `path`, the deepest first.
    fn delete_below(&self, path: &Path) -> Done {
        // Each is met twice: before those in it, and after them.
        let mut waiting = vec![(path.to_owned(), Met::First)];
        while let Some((path, met)) = waiting.pop() {
            let above = path.parent().filter(|_| met == Met::Again);
            if let (Some(above), Some(name)) = (above, path.file_name()) {
                let directory = open_directory(above)?;
                let durable = match self.commit_each {
                    true => Durable::Now,
                    false => Durable::Later,
                };
                self.delete_name(&directory, name, (above, durable))?;
                if durable == Durable::Now && !self.dry_run {
                    butterfs_kernel::sync_any(directory.as_fd())?;
                }
                continue;
            }
            let root = open_directory(&path)?;
            let at = |error| said(&path.display(), error);
            let mut children = Vec::new();
            for (id, directory) in btrfs::subvolumes_in(root.as_fd()).map_err(at)? {
                let place = btrfs::subvolume_place(root.as_fd(), directory, id);
                let (mut below, name) = place.map_err(at)?;
                below.extend(name);
                children.push(path.join(OsStr::from_bytes(&below)));
            }
            for child in children {
                waiting.push((child.clone(), Met::Again));
                waiting.push((child, Met::First));
            }
        }
        Ok(())
    }
}

/// When a deletion is durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durable {
    /// Before the command goes on.
    Now,
    /// With a later commit.
    Later,
}

/// How often a subvolume was met.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Met {
    First,
    Again,
}

impl Sync {
    /// Runs it.
    pub fn run(self) -> Done {
        if self.volume.is_dir() {
            return self.mounted();
        }
        if !self.ids.is_empty() {
            return fail("ids are for mounts; here all deleted subvolumes are freed");
        }
        let volume = open_volume(&self.volume)?;
        loop {
            match volume.files().clean()? {
                Cleaning::Idle => break,
                Cleaning::Step(_) | Cleaning::Stuck(_) => {}
                Cleaning::Freed(tree) => say!("Subvolume id {tree} is gone"),
            }
        }
        // Errors when one cannot be freed.
        let freed = volume.files().clean_all();
        volume.close()?;
        Ok(freed?)
    }

    /// Waits until deleted subvolumes are gone from the tree of roots.
    fn mounted(&self) -> Done {
        let interrupt = Interrupt::watch()?;
        let roots = MountedRoots::open(&self.volume)?;
        // A deletion is in the tree of roots once it is committed.
        roots.commit()?;
        let mut waiting: Option<BTreeSet<TreeId>> = None;
        loop {
            let all = roots.all()?;
            let there: BTreeSet<TreeId> = all
                .iter()
                .filter(|(id, item)| item.refs == 0 || self.ids.contains(&id.get()))
                .map(|(id, _)| *id)
                .collect();
            let asked = self.ids.iter().map(|id| TreeId(*id));
            let before = waiting.take().unwrap_or_else(|| match self.ids.is_empty() {
                true => there.clone(),
                false => asked.collect(),
            });
            for id in before.difference(&there) {
                say!("Subvolume id {id} is gone");
            }
            let left: BTreeSet<TreeId> = before.intersection(&there).copied().collect();
            let alive = all
                .iter()
                .find(|(id, item)| left.contains(id) && item.refs > 0);
            if let Some((id, _)) = alive {
                return fail(format!("subvolume {id} is not deleted"));
            }
            if left.is_empty() {
                if !before.is_empty() {
                    // What they held can be used again after a commit.
                    roots.commit()?;
                }
                return Ok(());
            }
            waiting = Some(left);
            interrupt.check()?;
            std::thread::sleep(Duration::from_secs(self.seconds.into()));
        }
    }
}
