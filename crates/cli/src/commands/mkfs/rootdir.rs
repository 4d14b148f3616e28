//! `butterfs mkfs --rootdir`: a new volume that holds the files of a directory.
//!
//! Owns the options that belong to it, how large the volume must be, and the
//! order of steps: subvolumes and flags come before the files; what makes
//! subvolumes read-only comes after them.

use crate::commands::copy::{Filled as FilledRoot, Tally};
use crate::fail::{Context, Done, Failure, fail};
use crate::left_out::OnUndone;
use butterfs::{Access, FileDevice, InodeFlags, MountOptions, SnapshotAccess, Volume};
use butterfs_admin::mkfs::ProfileChoice;
use butterfs_admin::resize;
use clap::Args;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Bytes of a volume beside what holds files: chunks that are not full, and room
/// for the trees.
const ROOM: u64 = 300 << 20;
/// Bytes of the trees for a name and its inode, both copies.
const INODE_BYTES: u64 = 4 << 10;

/// What the new volume holds.
#[derive(Args, Debug)]
pub struct RootDir {
    /// Copy the files of this directory into the volume. A file for it that is not
    /// there, or too small, gets the size that is needed.
    #[arg(short = 'r', long = "rootdir", value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// With --rootdir: compress what is copied, by zlib, lzo or zstd, with a level;
    /// or no.
    #[arg(long, value_name = "ALGORITHM[:LEVEL]", requires = "directory")]
    compress: Option<String>,
    /// With --rootdir: make this directory a subvolume; ro: read-only, default: the
    /// one that a mount shows. May be repeated.
    #[arg(short = 'u', long, value_name = "[rw|ro|default|default-ro:]PATH",
          requires = "directory", value_parser = subvolume)]
    subvol: Vec<Subvolume>,
    /// With --rootdir: nodatacow for this file, or for all files below this
    /// directory. May be repeated.
    #[arg(long, value_name = "nodatacow:PATH", requires = "directory", value_parser = flagged)]
    inode_flags: Vec<PathBuf>,
    /// With --rootdir: shrink the volume, and its file, to what is allocated.
    #[arg(long, requires = "directory")]
    pub shrink: bool,
    /// With --rootdir: leave out and name what cannot be read; the exit code is
    /// then 1, and the volume is made.
    #[arg(long, requires = "directory")]
    keep_going: bool,
}

/// What was copied into the volume.
pub struct Filled {
    pub files: u64,
    /// What is said in the end of the files that were left out.
    pub left_out: Done,
}

/// Why files could not be copied into the volume.
pub struct Unfilled {
    pub failure: Failure,
    /// There was not enough room.
    pub is_full: bool,
}

impl From<Failure> for Unfilled {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            is_full: false,
        }
    }
}

/// A directory that becomes a subvolume.
#[derive(Clone, Debug)]
struct Subvolume {
    path: PathBuf,
    is_read_only: bool,
    is_default: bool,
}

/// A path in the volume. A path that leads out of it is an error.
fn inner(path: &str) -> Result<PathBuf, String> {
    let mut inner = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => inner.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(format!("{path} leads out of the volume"));
            }
        }
    }
    match inner.as_os_str().is_empty() {
        true => Err("it names nothing below the directory".to_owned()),
        false => Ok(inner),
    }
}

fn subvolume(word: &str) -> Result<Subvolume, String> {
    let kinds = [
        ("rw:", false, false),
        ("ro:", true, false),
        ("default:", false, true),
        ("default-ro:", true, true),
    ];
    let kind = kinds.iter().find(|(name, ..)| word.starts_with(name));
    let (name, is_read_only, is_default) = *kind.unwrap_or(&("", false, false));
    Ok(Subvolume {
        path: inner(&word[name.len()..])?,
        is_read_only,
        is_default,
    })
}

fn flagged(word: &str) -> Result<PathBuf, String> {
    let Some((flags, path)) = word.split_once(':') else {
        return Err("write FLAG:PATH, as in nodatacow:var/lib/database".to_owned());
    };
    for flag in flags.split(',') {
        match flag {
            // Files that are not copied on write have no checksums anyway.
            "nodatacow" => {}
            "nodatasum" if flags.split(',').any(|other| other == "nodatacow") => {}
            "nodatasum" => {
                return Err("files have checksums unless they are nodatacow".to_owned());
            }
            other => {
                return Err(format!(
                    "there is no flag {other} for this; nodatacow is one"
                ));
            }
        }
    }
    inner(path)
}

impl RootDir {
    /// Refuses impossible options before anything is written.
    pub fn verify(&self, devices: &[PathBuf]) -> Done {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let at = directory.display();
        if !std::fs::metadata(directory).context(&at)?.is_dir() {
            return fail(format!("{at} is no directory"));
        }
        let own = std::fs::canonicalize(directory).context(&at)?;
        for device in devices {
            let absolute = std::path::absolute(device).context(device.display())?;
            let folder = absolute.parent().map(std::fs::canonicalize);
            if let Some(Ok(folder)) = folder
                && folder.starts_with(&own)
            {
                return fail(format!(
                    "{} lies in {at}, and would be copied into itself",
                    device.display()
                ));
            }
        }
        for path in self.subvol.iter().map(|subvolume| &subvolume.path) {
            let inside = directory.join(path);
            let found = std::fs::symlink_metadata(&inside).context(inside.display())?;
            if !found.is_dir() {
                return fail(format!(
                    "{} is no directory, so it cannot become a subvolume",
                    inside.display()
                ));
            }
        }
        let defaults = self.subvol.iter().filter(|subvolume| subvolume.is_default);
        if defaults.count() > 1 {
            return fail("a volume has one default subvolume; name one only");
        }
        for path in &self.inode_flags {
            let inside = directory.join(path);
            std::fs::symlink_metadata(&inside).context(inside.display())?;
        }
        self.mount_options().map(drop)
    }

    fn mount_options(&self) -> Result<MountOptions, Failure> {
        let mut options = MountOptions::default();
        match self.compress.as_deref() {
            None | Some("no" | "none") => {}
            Some(method) => options.apply(&format!("compress={method}"))?,
        }
        Ok(options)
    }

    /// Bytes of a device that surely holds the files of `directory`, with `copies`
    /// of their content. What is left out needs no room.
    pub fn size(&self, directory: &Path, copies: u64) -> Result<u64, Failure> {
        let (mut content, mut inodes) = (0_u64, 0_u64);
        let mut seen = HashSet::new();
        let mut waiting = vec![directory.to_path_buf()];
        while let Some(path) = waiting.pop() {
            let metadata = match std::fs::symlink_metadata(&path) {
                Err(_) if self.keep_going => continue,
                found => found.context(path.display())?,
            };
            inodes += 1;
            if metadata.is_dir() {
                let entries = match std::fs::read_dir(&path) {
                    Err(_) if self.keep_going => continue,
                    listed => listed.context(path.display())?,
                };
                for entry in entries {
                    waiting.push(entry.context(path.display())?.path());
                }
            } else if metadata.is_file() {
                let again = metadata.nlink() > 1;
                if !again || seen.insert((metadata.dev(), metadata.ino())) {
                    // Holes take nothing.
                    content += metadata.len().min(metadata.blocks() * 512) + (4 << 10);
                }
            }
        }
        let content = content.saturating_mul(copies.max(1));
        // Checksums, and the ends of block groups in which nothing fits.
        let content = content.saturating_add(content / 8);
        let metadata = inodes.saturating_mul(INODE_BYTES);
        let size = content.saturating_add(metadata).saturating_add(ROOM);
        Ok(size.next_multiple_of(1 << 20))
    }

    /// Copies of content that a profile keeps on one device.
    pub fn copies(data: Option<ProfileChoice>) -> u64 {
        match data {
            Some(ProfileChoice::Dup) => 2,
            _ => 1,
        }
    }

    /// What happens to a file that cannot be copied.
    const fn rule(&self) -> OnUndone {
        match self.keep_going {
            true => OnUndone::GoesOn,
            false => OnUndone::Ends,
        }
    }

    /// Copies the files into the volume on `devices`.
    pub fn fill(
        &self,
        directory: &Path,
        devices: &[PathBuf],
        is_quiet: bool,
    ) -> Result<Filled, Unfilled> {
        let mut tally = Tally::new(is_quiet, self.rule())?;
        let filled = self.fill_volume(directory, devices, &mut tally);
        tally.bar.end();
        filled.map_err(|failure| Unfilled {
            failure,
            is_full: tally.left_out.is_full(),
        })?;
        if tally.refused > 0 {
            note!("butterfs: {} attributes could not be kept", tally.refused);
        }
        Ok(Filled {
            files: tally.files,
            left_out: tally.left_out.ended("in the volume"),
        })
    }

    fn fill_volume(&self, directory: &Path, devices: &[PathBuf], tally: &mut Tally) -> Done {
        tally.bar.count_host(&[directory.as_os_str().to_owned()]);
        let options = self.mount_options()?.open_options();
        let volume = Volume::open_all(devices, options)?;
        self.make_subvolumes(&volume)?;
        let mut flags = HashMap::new();
        for path in &self.inode_flags {
            flags.insert(directory.join(path), InodeFlags::NODATACOW);
        }
        let root = FilledRoot {
            volume: &volume,
            flags: &flags,
        };
        root.copy_into_root(directory, tally)?;
        self.end_subvolumes(&volume)?;
        if self.shrink {
            resize::end_at_content(volume.files().store())?;
        }
        // What waited in memory may find no room.
        tally.left_out.done(volume.close())
    }

    /// Makes the subvolumes. Those that contain others come first.
    fn make_subvolumes(&self, volume: &Volume) -> Done {
        let mut paths: Vec<&Path> = self.subvol.iter().map(|one| &*one.path).collect();
        paths.sort();
        paths.dedup();
        for path in paths {
            if let Some(above) = path.parent() {
                volume.create_dir_all(above.as_os_str().as_bytes())?;
            }
            volume.create_subvolume(path.as_os_str().as_bytes())?;
        }
        Ok(())
    }

    fn end_subvolumes(&self, volume: &Volume) -> Done {
        for one in &self.subvol {
            let path: &OsStr = one.path.as_os_str();
            if one.is_default {
                volume.set_default_subvolume(path.as_bytes())?;
            }
            if one.is_read_only {
                volume.set_subvolume_access(path.as_bytes(), SnapshotAccess::ReadOnly)?;
            }
        }
        Ok(())
    }
}

/// Cuts the files of a volume at the end of the volume. Returns its bytes on
/// all devices.
pub fn cut(devices: &[PathBuf]) -> Result<u64, Failure> {
    let mut total = 0;
    for path in devices {
        let at = path.display();
        let size = resize::bytes_used(&FileDevice::open(path, Access::ReadOnly)?).context(&at)?;
        total += size;
        if std::fs::metadata(path).context(&at)?.is_file() {
            let file = File::options().write(true).open(path).context(&at)?;
            let cut = file.set_len(size).and_then(|()| file.sync_all());
            cut.context(&at)?;
        }
    }
    Ok(total)
}
