//! Where a subvolume is, or will be: in a volume that is not mounted, or below
//! a mountpoint (of ButterFS or of the kernel's Btrfs).

use crate::fail::{Context, Done, Failure, fail};
use crate::place::Place;
use butterfs::{Cleaner, InodeId, InodeNumber, OpenOptions, Subvolume, TreeId, Volume};
use butterfs_server::Mount;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A path on either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    /// In a volume.
    Unmounted(Place),
    /// Below a mountpoint.
    Mounted(PathBuf),
}

impl Site {
    /// What a word means: `VOLUME:/path`, unless a file of that name exists, or
    /// could be made because its directory does.
    pub fn parse(word: &OsStr) -> Self {
        let word = word.to_owned();
        let on_host = Path::new(&word);
        let has_directory = || on_host.parent().is_some_and(Path::is_dir);
        match Place::parse(&word) {
            Some(place) if !on_host.exists() && (place.volume.exists() || !has_directory()) => {
                Self::Unmounted(place)
            }
            _ => Self::Mounted(word.into()),
        }
    }

    /// What a word means if it names a volume or a mountpoint.
    pub fn parse_volume(word: &OsStr) -> Self {
        match Path::new(word) {
            path if path.is_dir() => Self::Mounted(path.to_owned()),
            path => Self::Unmounted(Place {
                volume: path.to_owned(),
                path: "/".into(),
            }),
        }
    }

    /// The directory above, and the name in it.
    pub fn split(&self) -> Result<(Self, OsString), Failure> {
        let path = match self {
            Self::Unmounted(place) => Path::new(&place.path),
            Self::Mounted(path) => path,
        };
        let (Some(name), Some(above)) = (path.file_name(), path.parent()) else {
            return fail(format!("{self}: names no subvolume in a directory"));
        };
        let above = if above.as_os_str().is_empty() {
            Path::new(".")
        } else {
            above
        };
        let site = match self {
            Self::Unmounted(place) => Self::Unmounted(Place {
                volume: place.volume.clone(),
                path: above.into(),
            }),
            Self::Mounted(_) => Self::Mounted(above.to_owned()),
        };
        Ok((site, name.to_owned()))
    }

    /// As a user writes it; it need not be UTF-8.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Unmounted(place) => place.bytes(),
            Self::Mounted(path) => path.as_os_str().as_bytes().to_vec(),
        }
    }

    /// True when there is a directory.
    pub fn is_directory(&self, volume: Option<&Volume>) -> bool {
        match (self, volume) {
            (Self::Mounted(path), _) => path.is_dir(),
            (Self::Unmounted(place), Some(volume)) => volume
                .attributes(place.path.as_bytes())
                .is_ok_and(|found| found.is_directory()),
            (Self::Unmounted(_), None) => false,
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmounted(place) => place.fmt(f),
            Self::Mounted(path) => path.display().fmt(f),
        }
    }
}

/// Opens a directory below a mountpoint.
pub fn open_directory(path: &Path) -> Result<File, Failure> {
    let file = crate::host_file::open(path).context(path.display())?;
    if file.metadata().context(path.display())?.is_dir() {
        return Ok(file);
    }
    fail(format!("{}: is no directory", path.display()))
}

/// Errors unless a directory is the root of a subvolume, on a mount of ButterFS
/// or of the kernel's Btrfs.
pub fn check_root(at: impl fmt::Display, directory: BorrowedFd<'_>) -> Done {
    let shown = rustix::fs::fstat(directory)?.st_ino;
    match butterfs_server::inode_shown_as(shown, TreeId::FS).number {
        InodeNumber::ROOT => Ok(()),
        _ => fail(format!("{at}: this is no subvolume but a directory in one")),
    }
}

/// Opens a volume to change it, from its top level.
pub fn open_volume(path: &Path) -> Result<Volume, Failure> {
    open_volume_with(path, Cleaner::default())
}

/// [`open_volume`], with the time at which deleted subvolumes are freed.
pub fn open_volume_with(path: &Path, cleaner: Cleaner) -> Result<Volume, Failure> {
    let options = OpenOptions {
        subvolume: Subvolume::Id(5),
        cleaner,
        ..OpenOptions::default()
    };
    Volume::open(path, options).context(path.display())
}

/// The directory at a path of a volume.
pub fn directory_in(volume: &Volume, path: &OsStr) -> Result<InodeId, Failure> {
    volume.resolve(path.as_bytes()).context(path.display())
}

/// The subvolume whose root is at a place.
pub fn subvolume_at(volume: &Volume, place: &Place) -> Result<TreeId, Failure> {
    volume
        .subvolume_at(place.path.as_bytes())
        .context(place.volume.display())
}

/// Why a file that a request names by its descriptor is refused, if that is
/// because the server may not look at this process.
pub fn unseen(path: &Path, error: rustix::io::Errno) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    let mount = Mount::of_path(&path.canonicalize().ok()?)?;
    let user = mount.user().filter(|user| *user != 0 && *user != own)?;
    (error == rustix::io::Errno::ACCESS && mount.is_ours()).then(|| {
        format!(
            "the server of this mount runs as user {user} and may not see what your process has \
             open; let that user do it, or have root mount the volume"
        )
    })
}

/// An error of the file system, in words.
pub fn said(site: &dyn fmt::Display, error: rustix::io::Errno) -> Failure {
    use rustix::io::Errno;
    let reason = match error {
        Errno::NOTTY | Errno::OPNOTSUPP => {
            "is on no Btrfs; name a path on a mounted one, or VOLUME:/path".to_owned()
        }
        Errno::NOTEMPTY => "other subvolumes are in it; delete them first".to_owned(),
        Errno::PERM => "not permitted: it is not yours, it is the default subvolume, or it is being sent".to_owned(),
        Errno::DQUOT => "a limit of a quota group would be exceeded; `butterfs qgroup show -re` shows the limits".to_owned(),
        Errno::NOTCONN => "quotas are not enabled (`butterfs quota enable` does it), or the server of the mount is gone (unmount it, and mount the volume again)".to_owned(),
        Errno::BUSY => "it is mounted; unmount it first, or mount another subvolume".to_owned(),
        Errno::EXIST => "the name exists already".to_owned(),
        Errno::INVAL => "is no subvolume".to_owned(),
        Errno::ROFS => "the file system or the subvolume is read-only".to_owned(),
        other => std::io::Error::from(other).to_string(),
    };
    Failure(format!("{site}: {reason}"))
}

/// An error about the subvolume with an id, in words.
pub fn said_of(site: &dyn fmt::Display, tree: TreeId, error: rustix::io::Errno) -> Failure {
    match error {
        rustix::io::Errno::NOENT => Failure(format!(
            "{site}: there is no subvolume {tree}; `butterfs subvolume list` shows those there are"
        )),
        other => said(site, other),
    }
}
