//! `butterfs property`: what can be set of a subvolume, a file or a volume.

use crate::commands::subvolume::site::{Site, open_directory, open_volume, said};
use crate::facts;
use crate::fail::{Context, Done, Failure, fail};
use crate::place::Place;
use butterfs::{Access, TreeId, Volume};
use butterfs_kernel::butterfs_mount::is_butterfs;
use butterfs_kernel::{self as btrfs, Changes};
use clap::{Args, Subcommand};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

const COMPRESSION: &[u8] = b"btrfs.compression";

/// Gets and sets properties.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs property set disk.img:/snapshots/monday ro true
  butterfs property get mnt/home ro
  butterfs property get /mnt
  butterfs property set disk.img:/logs compression zstd
  butterfs property set -t device disk.img label photos")]
pub struct Property {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show a property of an object, or all that it has.
    Get {
        #[command(flatten)]
        object: Object,
        /// ro (of a subvolume), label (of a volume), or compression (of a file
        /// or directory).
        name: Option<String>,
    },
    /// Set a property.
    Set {
        /// Make a received subvolume writable: it no longer is what was sent,
        /// and nothing incremental can be received on it.
        #[arg(short, long)]
        force: bool,
        #[command(flatten)]
        object: Object,
        /// ro (true, false), label, or compression (zlib, lzo, zstd, none).
        name: String,
        /// Its value.
        value: String,
    },
    /// List the properties that an object can have.
    List(Object),
}

/// What has the property.
#[derive(Args, Debug)]
struct Object {
    /// Take the object as this alone: inode, subvol, filesystem, device.
    #[arg(short = 't', value_name = "KIND", value_parser = kind)]
    kind: Option<Kind>,
    /// VOLUME:/path, a path on a mounted Btrfs, or a device.
    object: OsString,
}

/// The kinds of objects that have properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Inode,
    Subvolume,
    Filesystem,
    Device,
}

/// The kind that a word names. The beginning of the word is enough.
fn kind(word: &str) -> Result<Kind, String> {
    let kinds = [
        ("inode", Kind::Inode),
        ("subvol", Kind::Subvolume),
        ("filesystem", Kind::Filesystem),
        ("device", Kind::Device),
    ];
    let mut found = kinds.iter().filter(|(name, _)| name.starts_with(word));
    match (found.next(), found.next()) {
        (Some((_, kind)), None) => Ok(*kind),
        _ => Err("the kinds are inode, subvol, filesystem and device".to_owned()),
    }
}

/// The properties: name, which kinds have it, what it means.
const PROPERTIES: [(&str, &[Kind], &str); 3] = [
    ("ro", &[Kind::Subvolume], "read-only status of a subvolume"),
    (
        "label",
        &[Kind::Filesystem, Kind::Device],
        "label of the filesystem",
    ),
    (
        "compression",
        &[Kind::Inode],
        "compression algorithm for the file or directory",
    ),
];

impl Property {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::List(object) => {
                let kinds = object.kinds()?;
                for (name, of, meaning) in PROPERTIES {
                    if of.iter().any(|kind| kinds.contains(kind)) {
                        say!("{name:<20}{meaning}");
                    }
                }
                Ok(())
            }
            What::Get {
                object,
                name: Some(name),
            } => {
                object.verify(&name)?;
                get(&object.site(), &name)
            }
            What::Get { object, name: None } => {
                let kinds = object.kinds()?;
                let own = PROPERTIES
                    .iter()
                    .filter(|(_, of, _)| of.iter().any(|kind| kinds.contains(kind)));
                own.clone()
                    .try_for_each(|(name, ..)| get(&object.site(), name))
            }
            What::Set {
                force,
                object,
                name,
                value,
            } => {
                object.verify(&name)?;
                let site = object.site();
                match name.as_str() {
                    "ro" => set_access(&site, access_of(&value)?, force),
                    "label" => facts::set_label(volume_of(&site), value.as_bytes()),
                    _ => set_compression(&site, &value),
                }
            }
        }
    }
}

impl Object {
    fn site(&self) -> Site {
        Site::parse(&self.object)
    }

    /// The kinds that this object is of.
    fn kinds(&self) -> Result<Vec<Kind>, Failure> {
        if let Some(kind) = self.kind {
            return Ok(vec![kind]);
        }
        let site = self.site();
        let mut kinds = Vec::new();
        let (is_subvolume, is_root) = match &site {
            Site::Unmounted(place) => {
                let volume = place.open_read_only(Some(5))?;
                volume.resolve(place.path.as_bytes()).context(place)?;
                let is_root = Path::new(&place.path) == Path::new("/");
                (subvolume_in(&volume, place).is_ok(), is_root)
            }
            Site::Mounted(path) => {
                let meta = fs::metadata(path).context(path.display())?;
                if meta.file_type().is_block_device() {
                    return Ok(vec![Kind::Device]);
                }
                let file = crate::host_file::open(path).context(path.display())?;
                if !btrfs::is_kernel_btrfs(path) && !is_butterfs(file.as_fd()) {
                    return Err(said(&site, Errno::NOTTY));
                }
                let is_subvolume =
                    meta.is_dir() && btrfs::changes(open_directory(path)?.as_fd()).is_ok();
                (is_subvolume, is_mountpoint(path))
            }
        };
        if is_subvolume {
            kinds.push(Kind::Subvolume);
        }
        if is_root {
            kinds.push(Kind::Filesystem);
        }
        kinds.push(Kind::Inode);
        Ok(kinds)
    }

    /// Errors unless it can have the property.
    fn verify(&self, name: &str) -> Done {
        let Some((_, of, _)) = PROPERTIES.iter().find(|(known, ..)| *known == name) else {
            return fail(format!(
                "{name}: there is no such property; they are ro, label and compression"
            ));
        };
        let kinds = self.kinds()?;
        if of.iter().any(|kind| kinds.contains(kind)) {
            return Ok(());
        }
        let has = match name {
            "ro" => "subvolumes",
            "label" => "a device, or the directory where a volume is mounted,",
            _ => "files and directories",
        };
        fail(format!(
            "{}: cannot have the property {name}; {has} can",
            self.object.display()
        ))
    }
}

/// Whether something is mounted at a path.
fn is_mountpoint(path: &Path) -> bool {
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The volume that holds an object with a label.
fn volume_of(site: &Site) -> &Path {
    match site {
        Site::Unmounted(place) => &place.volume,
        Site::Mounted(path) => path,
    }
}

fn access_of(value: &str) -> Result<Access, Failure> {
    match value {
        "true" => Ok(Access::ReadOnly),
        "false" => Ok(Access::ReadWrite),
        _ => fail(format!("{value}: ro is true or false")),
    }
}

fn subvolume_in(volume: &Volume, place: &Place) -> Result<TreeId, Failure> {
    volume.subvolume_at(place.path.as_bytes()).context(place)
}

fn get(site: &Site, name: &str) -> Done {
    match (name, site) {
        ("label", _) => say!("label={}", facts::at(volume_of(site))?.label),
        ("ro", Site::Unmounted(place)) => {
            let volume = place.open_read_only(Some(5))?;
            let tree = subvolume_in(&volume, place)?;
            let access = volume.files().subvolume_access(tree)?;
            say!("ro={}", access == Access::ReadOnly);
        }
        ("ro", Site::Mounted(path)) => {
            let directory = open_directory(path)?;
            let changes = btrfs::changes(directory.as_fd()).map_err(|e| said(site, e))?;
            say!("ro={}", changes == Changes::Refused);
        }
        ("compression", Site::Unmounted(place)) => {
            let volume = place.open_read_only(Some(5))?;
            let id = volume.resolve(place.path.as_bytes()).context(place)?;
            if let Ok(value) = volume.files().get_xattr(id, COMPRESSION) {
                say!("compression={}", String::from_utf8_lossy(&value));
            }
        }
        ("compression", Site::Mounted(path)) => {
            let mut value = [0; 64];
            match rustix::fs::getxattr(path, COMPRESSION, &mut value) {
                Ok(length) => say!(
                    "compression={}",
                    String::from_utf8_lossy(value.get(..length).unwrap_or_default())
                ),
                Err(rustix::io::Errno::NODATA) => {}
                Err(error) => return Err(error).context(site),
            }
        }
        _ => unreachable!("properties are verified before"),
    }
    Ok(())
}

fn set_access(site: &Site, access: Access, force: bool) -> Done {
    let guard = |received: bool| {
        if received && access == Access::ReadWrite && !force {
            return fail(format!(
                "{site}: was received; writable it is no base for incremental streams any more; take a snapshot of it, or use -f"
            ));
        }
        Ok(())
    };
    match site {
        Site::Unmounted(place) => {
            let volume = open_volume(&place.volume)?;
            let tree = subvolume_in(&volume, place)?;
            guard(volume.files().root_item(tree)?.received_uuid != [0; 16])?;
            volume.files().set_subvolume_access(tree, access)?;
            Ok(volume.close()?)
        }
        Site::Mounted(path) => {
            let directory = open_directory(path)?;
            let info = btrfs::subvolume_info(directory.as_fd()).map_err(|e| said(site, e))?;
            guard(info.received.uuid != [0; 16])?;
            let changes = match access {
                Access::ReadOnly => Changes::Refused,
                Access::ReadWrite => Changes::Allowed,
            };
            btrfs::set_changes(directory.as_fd(), changes).map_err(|e| said(site, e))
        }
    }
}

fn set_compression(site: &Site, value: &str) -> Done {
    match site {
        Site::Unmounted(place) => {
            let volume = open_volume(&place.volume)?;
            let id = volume.resolve(place.path.as_bytes()).context(place)?;
            let inode = volume.files().inode(id)?;
            volume
                .files()
                .set_xattr(
                    &inode,
                    COMPRESSION,
                    value.as_bytes(),
                    butterfs::SetMode::Any,
                )
                .context(site)?;
            Ok(volume.close()?)
        }
        Site::Mounted(path) => {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(path, COMPRESSION, value.as_bytes(), flags).context(site)
        }
    }
}
