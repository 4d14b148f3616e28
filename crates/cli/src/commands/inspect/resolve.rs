//! `butterfs inspect rootid|inode-resolve|logical-resolve|subvolid-resolve`:
//! from numbers to paths, mounted or not.

use crate::fail::{Context, Done, Failure, fail};
use crate::output;
use crate::place::Place;
use crate::service::{OnKernel, OnVolume};
use butterfs::files_at::ExtentPart;
use butterfs::list::Subvolumes;
use butterfs::{InodeId, InodeNumber, Logical, Part, TreeId, Volume};
use butterfs_kernel::{self as kernel, is_kernel_btrfs};
use butterfs_server::{Mount, inode_shown_as, server_of};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Print the ID of the subvolume in which a path lies.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs inspect rootid disk.img:/home/notes.txt
  butterfs inspect rootid /mnt/home/notes.txt")]
pub struct Rootid {
    /// VOLUME:/path, or a path on a mount.
    place: Place,
}

/// Print all paths of an inode.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs inspect inode-resolve 257 disk.img:/home
  butterfs inspect inode-resolve 257 /mnt/home")]
pub struct InodeResolve {
    /// Number of the inode; on a mount also as stat(1) prints it there.
    inode: u64,
    /// A path in the subvolume that has the inode: VOLUME:/path, or one on a
    /// mount.
    place: Place,
}

/// Print the files that hold the data at a logical address.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs inspect logical-resolve 13631488 disk.img
  butterfs inspect logical-resolve -P 13631488 /mnt

Snapshots that share the data are listed too. On a mount, what was written is committed first.")]
pub struct LogicalResolve {
    /// Print inodes, offsets and subvolume IDs instead of paths.
    #[arg(short = 'P')]
    inodes: bool,
    /// Files that hold any part of the extent, not this address alone.
    #[arg(short = 'o')]
    extent: bool,
    /// Accepted: all files are listed.
    #[arg(short = 's', value_name = "BUFFER-SIZE")]
    _buffer: Option<u64>,
    /// Logical address, in bytes.
    logical: u64,
    /// The volume, or a path on a mount of it.
    place: Place,
}

/// Print the path of a subvolume.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs inspect subvolid-resolve 256 disk.img
  butterfs inspect subvolid-resolve 256 /mnt

The path begins at the volume's top level, whatever subvolume is mounted.")]
pub struct SubvolidResolve {
    /// ID of the subvolume.
    subvolid: u64,
    /// The volume, or a path on a mount of it.
    place: Place,
}

#[derive(Debug, Deserialize, Serialize)]
enum Question {
    SubvolumeOf,
    PathsOf(u64),
    FilesAt {
        logical: u64,
        inodes: bool,
        extent: bool,
    },
    PathOfSubvolume(u64),
}

/// What is asked of a volume.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    question: Question,
    place: Place,
    /// Mountpoint, and the directory of the mounted subvolume that it shows.
    mount: Option<(OsString, OsString)>,
}

impl Order {
    fn new(question: Question, place: Place) -> Self {
        let here = place.volume.canonicalize().ok();
        let is_path = here.as_ref().is_some_and(|here| here.is_dir());
        let mount = here
            .filter(|_| is_path)
            .and_then(|here| Mount::of_path(&here));
        let mount = mount.map(|mount| (mount.point.into(), mount.root.into()));
        Self {
            question,
            place,
            mount,
        }
    }
}

/// Turns a file on a mount into its directory and its name, in which form a
/// command on a mount takes it.
pub fn on_mount(place: Place) -> Place {
    let is_file = place.path == "/" && place.volume.is_file();
    let is_on_mount = || {
        let here = place.volume.canonicalize().ok()?;
        let point = Mount::of_path(&here)?.point;
        Some(server_of(&point).is_some() || is_kernel_btrfs(&here))
    };
    if !is_file || is_on_mount() != Some(true) {
        return place;
    }
    let (Some(above), Some(name)) = (place.volume.parent(), place.volume.file_name()) else {
        return place;
    };
    let above = match above.as_os_str().is_empty() {
        true => Path::new("."),
        false => above,
    };
    Place {
        volume: above.to_owned(),
        path: Path::new("/").join(name).into_os_string(),
    }
}

impl Rootid {
    /// Runs it. On its own mounts, the kernel answers this for everybody.
    pub fn run(self) -> Done {
        let path = &self.place.volume;
        if self.place.path == "/" && is_kernel_btrfs(path) {
            let file = crate::host_file::open(path).context(path.display())?;
            let found = kernel::subvolume_info(file.as_fd()).context(path.display())?;
            say!("{}", found.id);
            return Ok(());
        }
        Order::from(self).run()
    }
}

impl From<Rootid> for Order {
    fn from(rootid: Rootid) -> Self {
        Self::new(Question::SubvolumeOf, on_mount(rootid.place))
    }
}

impl From<InodeResolve> for Order {
    fn from(resolve: InodeResolve) -> Self {
        Self::new(Question::PathsOf(resolve.inode), on_mount(resolve.place))
    }
}

impl From<LogicalResolve> for Order {
    fn from(resolve: LogicalResolve) -> Self {
        let question = Question::FilesAt {
            logical: resolve.logical,
            inodes: resolve.inodes,
            extent: resolve.extent,
        };
        Self::new(question, resolve.place)
    }
}

impl From<SubvolidResolve> for Order {
    fn from(resolve: SubvolidResolve) -> Self {
        Self::new(Question::PathOfSubvolume(resolve.subvolid), resolve.place)
    }
}

impl OnVolume for Order {
    const NAME: &'static str = "inspect-internal";
    const TAG: &'static str = "Resolve";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn whole_volume(&self) -> Option<(&Place, Part)> {
        match self.question {
            Question::FilesAt { .. } | Question::PathOfSubvolume(_) => {
                Some((&self.place, Part::Whole))
            }
            Question::SubvolumeOf | Question::PathsOf(_) => None,
        }
    }

    fn run_here(self) -> Done {
        let volume = self.place.open_read_only(None)?;
        let subvolumes = volume.subvolumes().context(self.place.volume.display())?;
        let shown = Shown {
            volume: &volume,
            subvolumes: &subvolumes,
            mount: self.mount.as_ref(),
        };
        match self.question {
            Question::SubvolumeOf => {
                say!("{}", inode_at(&volume, &self.place)?.tree);
            }
            Question::PathsOf(number) => {
                let tree = inode_at(&volume, &self.place)?.tree;
                shown.paths_of(match self.mount {
                    Some(_) => inode_shown_as(number, tree),
                    None => InodeId {
                        tree,
                        number: InodeNumber(number),
                    },
                })?;
            }
            Question::FilesAt {
                logical,
                inodes,
                extent,
            } => {
                let part = match extent {
                    true => ExtentPart::Extent,
                    false => ExtentPart::Address,
                };
                shown.files_at(Logical(logical), part, inodes)?;
            }
            Question::PathOfSubvolume(id) => {
                let found = subvolumes.get(TreeId(id));
                let Some(path) = found.and_then(|one| one.path.as_deref()) else {
                    return fail(format!("there is no subvolume {id}"));
                };
                output::line(&[path])?;
            }
        }
        Ok(())
    }
}

fn inode_at(volume: &Volume, place: &Place) -> Result<InodeId, Failure> {
    let path: &OsStr = &place.path;
    volume.resolve(path.as_bytes()).context(place)
}

/// Paths as the user sees them.
struct Shown<'v> {
    volume: &'v Volume,
    subvolumes: &'v Subvolumes,
    mount: Option<&'v (OsString, OsString)>,
}

impl Shown<'_> {
    /// A path of a subvolume: below the mountpoint where it is seen there, from
    /// the volume's top level elsewhere.
    fn path(&self, tree: TreeId, path: &[u8]) -> Option<PathBuf> {
        let top = |tree| {
            let subvolume = self.subvolumes.get(tree)?;
            let path = OsStr::from_bytes(subvolume.path.as_deref()?);
            Some(Path::new("/").join(path))
        };
        let whole = top(tree)?.join(OsStr::from_bytes(path));
        let Some((point, root)) = self.mount else {
            return Some(whole);
        };
        let (point, root) = (Path::new(point), Path::new(root));
        let root = root.strip_prefix("/").unwrap_or(root);
        let seen = top(self.volume.files().root().tree)?.join(root);
        Some(match whole.strip_prefix(&seen) {
            Ok(below) if below.as_os_str().is_empty() => point.to_owned(),
            Ok(below) => point.join(below),
            Err(_) => whole,
        })
    }

    fn paths_of(&self, inode: InodeId) -> Done {
        let found = self.volume.paths_of(inode);
        let paths = found.context(format!(
            "inode {} of subvolume {}",
            inode.number, inode.tree
        ))?;
        for path in paths {
            match self.path(inode.tree, &path) {
                Some(path) => output::line(&[path.as_os_str().as_bytes()])?,
                None => output::line(&[&path])?,
            }
        }
        Ok(())
    }

    fn files_at(&self, logical: Logical, part: ExtentPart, inodes: bool) -> Done {
        let Some(files) = self.volume.files_at(logical, part)? else {
            return fail(format!(
                "no data of files lie at {logical}; `butterfs inspect dump-tree -t extent` shows \
                 what does"
            ));
        };
        for file in files {
            let inode = InodeId {
                tree: file.tree,
                number: file.inode,
            };
            if inodes {
                let (number, offset, tree) = (file.inode, file.offset.get(), file.tree);
                say!("inode {number} offset {offset} root {tree}");
            } else {
                self.paths_of(inode)?;
            }
        }
        Ok(())
    }
}
