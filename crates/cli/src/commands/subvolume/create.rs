//! `butterfs subvolume create` and `snapshot`.

use super::site::{Site, directory_in, open_directory, open_volume, said, subvolume_at, unseen};
use crate::fail::{Context, Done, Failure, fail};
use crate::output;
use crate::place::Place;
use butterfs::quota::GroupId;
use butterfs::{Access, NewInode, Owner, Volume};
use butterfs_kernel::allow_reading;
use butterfs_kernel::{self as btrfs, Changes};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Create empty subvolumes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs subvolume create disk.img:/home
  butterfs subvolume create -p mnt/home/ann/mail")]
pub struct Create {
    /// Make the directories above that are missing.
    #[arg(short = 'p', long)]
    parents: bool,
    /// Add to a qgroup; may be given several times.
    #[arg(short = 'i', value_name = "QGROUP")]
    qgroups: Vec<GroupId>,
    /// The new subvolumes: VOLUME:/path or a path on a mounted Btrfs.
    #[arg(required = true)]
    names: Vec<OsString>,
}

/// Take a snapshot of a subvolume. All that was written before is in it; it
/// takes no space of its own until one of them changes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs subvolume snapshot -r disk.img:/home disk.img:/snapshots/monday
  butterfs subvolume snapshot mnt/home mnt/try")]
pub struct Snapshot {
    /// The snapshot cannot be changed.
    #[arg(short, long)]
    read_only: bool,
    /// Add to a qgroup; may be given several times.
    #[arg(short = 'i', value_name = "QGROUP")]
    qgroups: Vec<GroupId>,
    /// The subvolume: VOLUME:/path or a path on a mounted Btrfs.
    source: OsString,
    /// Path of the snapshot, or a directory in which it gets the subvolume's
    /// name.
    target: OsString,
}

fn own() -> Owner {
    Owner {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

fn make_directories(volume: &Volume, path: &OsStr) -> Done {
    let mut at = Vec::new();
    for part in path.as_bytes().split(|byte| *byte == b'/') {
        if part.is_empty() {
            continue;
        }
        at.push(b'/');
        at.extend_from_slice(part);
        if volume.attributes(&at).is_err() {
            let (above, name) = volume.resolve_parent(&at)?;
            let new = NewInode::new(0o040_755, own());
            volume.files().create(above, name, &new)?;
        }
    }
    Ok(())
}

impl Create {
    /// Runs it.
    pub fn run(self) -> Done {
        let mut failed = None;
        for word in &self.names {
            let site = Site::parse(word);
            if let Err(error) = self.create(&site).map_err(|error| error.at(&site)) {
                if crate::output::is_lost() {
                    return Err(error);
                }
                // The others are made all the same.
                if let Some(Failure(earlier)) = failed.replace(error) {
                    note!("butterfs: {earlier}");
                }
                continue;
            }
            match site.split()? {
                (Site::Mounted(above), name) => {
                    let made = above.join(name).into_os_string();
                    output::line(&[b"Create subvolume '", made.as_bytes(), b"'"])?;
                }
                _ => output::line(&[b"Create subvolume '", &site.bytes(), b"'"])?,
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn create(&self, site: &Site) -> Done {
        let (above, name) = site.split()?;
        match &above {
            Site::Mounted(path) => {
                if self.parents {
                    std::fs::create_dir_all(path)?;
                }
                let directory = open_directory(path)?;
                allow_reading();
                btrfs::create_subvolume(directory.as_fd(), name.as_bytes(), &self.qgroups)
                    .map_err(|error| said(&path.display(), error))
            }
            Site::Unmounted(place) => {
                let volume = open_volume(&place.volume)?;
                if self.parents {
                    make_directories(&volume, &place.path)?;
                }
                let directory = directory_in(&volume, &place.path)?;
                let new = NewInode::new(0o040_755, own());
                let groups = self.qgroups.iter().copied().collect();
                volume.files().create_subvolume_in_groups(
                    directory,
                    name.as_bytes(),
                    &new,
                    &groups,
                )?;
                Ok(volume.close()?)
            }
        }
    }
}

impl Snapshot {
    /// Runs it.
    pub fn run(self) -> Done {
        let (source, target) = (Site::parse(&self.source), Site::parse(&self.target));
        let kind = if self.read_only {
            "readonly snapshot"
        } else {
            "snapshot"
        };
        let made = match (&source, &target) {
            (Site::Unmounted(from), Site::Unmounted(to)) => {
                let real = |place: &Place| {
                    let found = place.volume.canonicalize();
                    found.context(place.volume.display())
                };
                let same = real(from)? == real(to)?;
                if !same {
                    return fail(format!(
                        "{source} and {target} are on two volumes; send and receive copy between them"
                    ));
                }
                let volume = open_volume(&from.volume)?;
                let (above, name) = place_of_new(&source, &target, Some(&volume))?;
                let Site::Unmounted(place) = above else {
                    return fail("the snapshot is in no volume");
                };
                let tree = subvolume_at(&volume, from)?;
                let directory = directory_in(&volume, &place.path)?;
                let access = if self.read_only {
                    Access::ReadOnly
                } else {
                    Access::ReadWrite
                };
                let groups = self.qgroups.iter().copied().collect();
                volume
                    .files()
                    .snapshot_in_groups(tree, (directory, name.as_bytes()), access, &groups)
                    .context(&target)?;
                volume.close()?;
                let mut made = place.bytes();
                while made.ends_with(b"/") {
                    made.pop();
                }
                [&made, &b"/"[..], name.as_bytes()].concat()
            }
            (Site::Mounted(from), Site::Mounted(_)) => {
                let (above, name) = place_of_new(&source, &target, None)?;
                let Site::Mounted(path) = above else {
                    return fail("the snapshot is in no directory");
                };
                let (source, directory) = (open_directory(from)?, open_directory(&path)?);
                let changes = if self.read_only {
                    Changes::Refused
                } else {
                    Changes::Allowed
                };
                allow_reading();
                let how = (changes, &*self.qgroups);
                btrfs::snapshot(directory.as_fd(), source.as_fd(), name.as_bytes(), how).map_err(
                    |error| match unseen(from, error) {
                        Some(why) => Failure(why).at(from.display()),
                        None => said(&from.display(), error),
                    },
                )?;
                path.join(&name).into_os_string().into_vec()
            }
            _ => {
                return fail(format!(
                    "{source} and {target}: both are in one volume, or both below one mountpoint"
                ));
            }
        };
        let lead = format!("Create a {kind} of '");
        output::line(&[lead.as_bytes(), &source.bytes(), b"' in '", &made, b"'"])
    }
}

/// Where the snapshot goes: into an existing directory, under the name of its
/// source, or to a new name.
fn place_of_new(
    source: &Site,
    target: &Site,
    volume: Option<&Volume>,
) -> Result<(Site, OsString), Failure> {
    if target.is_directory(volume) {
        let (_, name) = source.split()?;
        return Ok((target.clone(), name));
    }
    target.split()
}
