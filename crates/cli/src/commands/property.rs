//! `butterfs property`: what can be set of a subvolume, a file or a volume.

use crate::commands::subvolume::site::{Site, open_directory, open_volume, said};
use crate::fail::{Context, Done, fail};
use crate::place::Place;
use butterfs::{Access, TreeId, Volume};
use butterfs_kernel::{self as btrfs, Changes};
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

const COMPRESSION: &[u8] = b"btrfs.compression";

/// Gets and sets properties.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs property set disk.img:/snapshots/monday ro true
  butterfs property get mnt/home ro
  butterfs property set disk.img:/logs compression zstd")]
pub struct Property {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show a property.
    Get {
        /// Object: VOLUME:/path or a path on a mounted Btrfs.
        object: OsString,
        /// ro (of a subvolume) or compression (of a file or directory).
        name: String,
    },
    /// Set a property.
    Set {
        /// Make a received subvolume writable: it no longer is what was sent,
        /// and nothing incremental can be received on it.
        #[arg(short, long)]
        force: bool,
        /// Object: VOLUME:/path or a path on a mounted Btrfs.
        object: OsString,
        /// ro (true, false) or compression (zlib, lzo, zstd, none).
        name: String,
        /// Its value.
        value: String,
    },
    /// List the properties that an object can have.
    List,
}

impl Property {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::List => {
                say!("ro                  a subvolume cannot be changed");
                say!(
                    "compression         how new data of a file, or of files in a directory, are compressed"
                );
                Ok(())
            }
            What::Get { object, name } => get(&Site::parse(&object), &name),
            What::Set {
                force,
                object,
                name,
                value,
            } => match name.as_str() {
                "ro" => set_access(&Site::parse(&object), access_of(&value)?, force),
                "compression" => set_compression(&Site::parse(&object), &value),
                _ => fail(format!("{name}: properties are ro and compression")),
            },
        }
    }
}

fn access_of(value: &str) -> Result<Access, crate::fail::Failure> {
    match value {
        "true" => Ok(Access::ReadOnly),
        "false" => Ok(Access::ReadWrite),
        _ => fail(format!("{value}: ro is true or false")),
    }
}

fn subvolume_in(volume: &Volume, place: &Place) -> Result<TreeId, crate::fail::Failure> {
    volume.subvolume_at(place.path.as_bytes()).context(place)
}

fn get(site: &Site, name: &str) -> Done {
    match (name, site) {
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
        _ => return fail(format!("{name}: properties are ro and compression")),
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
