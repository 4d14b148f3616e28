//! Serving a volume at a mountpoint until it is unmounted.

use crate::fail::{Context, Done, Failure, fail};
use crate::fuse_fs::{Owners, Served, Server};
use butterfs::{
    Access, AccessTimes, AclPolicy, BlockDevice, FileDevice, MountOptions, Volume, WriteCache,
};
use butterfs_fuse::mount::{Allow, MountError, MountKind};
use butterfs_fuse::protocol::Features;
use butterfs_fuse::{Config, Handles, Session, SessionError, unmount_on_signals};
use std::path::Path;
use std::sync::Arc;

fn config(source: &Path, options: &MountOptions) -> Config {
    let mut config = Config {
        open: Handles::Stateless,
        opendir: Handles::Stateless,
        features: Config::FEATURES
            .with(Features::POSIX_ACL)
            .with(Features::DONT_MASK),
        // One thread serves on the CPU that asks; waking another one costs more
        // than most requests. Spares take over while it waits.
        threads: options.threads.unwrap_or(1),
        ..Config::default()
    };
    if options.acl == AclPolicy::Off {
        config.features = config.features.without(Features::POSIX_ACL);
    }
    if options.write_cache == WriteCache::Kernel {
        config.features = config.features.with(Features::WRITEBACK_CACHE);
    }
    let mount = &mut config.mount;
    mount.source = source.display().to_string();
    mount.subtype = Some("butterfs".into());
    // As every other file system that root mounts: permissions say who may.
    if options.allow_other || rustix::process::geteuid().is_root() {
        mount.allow = Allow::Everyone;
    }
    for flag in &options.kernel_flags {
        // Every one is a name that mount(8) knows.
        let _ = mount.apply_flag(flag);
    }
    if options.access == Access::ReadOnly {
        let _ = mount.apply_flag("ro");
    }
    config
}

fn served(options: &MountOptions, mountpoint: &Path) -> Served {
    let given = |name| options.kernel_flags.contains(&name);
    Served {
        owners: Owners {
            uid: options.uid,
            gid: options.gid,
        },
        access_times: options.access_times,
        directory_access_times: if given("nodiratime") {
            AccessTimes::Never
        } else {
            options.access_times
        },
        acl: options.acl,
        sync_names: given("sync") || given("dirsync"),
        options: options.to_string(),
        mountpoint: mountpoint
            .canonicalize()
            .unwrap_or_else(|_| mountpoint.to_owned()),
        user_subvol_rm_allowed: options.user_subvol_rm_allowed,
    }
}

/// Mounts a block device as one: umount and syncfs wait for the server there.
/// A kernel that forbids writing to mounted devices forbids that to the server
/// too; then the mount is a plain one.
fn mount_block(
    device: &FileDevice,
    config: Config,
    mountpoint: &Path,
    server: &Arc<Server>,
) -> Result<Session, Failure> {
    let mut block = config.clone();
    block.mount.kind = MountKind::Block { block_size: 4096 };
    device.hand_over();
    match Session::mount(block, mountpoint, Arc::clone(server)) {
        Err(SessionError::Mount(MountError::Busy(_))) => {
            device.take_back()?;
            tracing::info!("mounted plainly: the kernel keeps the device to itself otherwise");
            Ok(Session::mount(config, mountpoint, Arc::clone(server))?)
        }
        mounted => Ok(mounted?),
    }
}

/// Opens the volume, mounts it, calls `live`, and serves until the end.
pub fn serve(
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    live: impl FnOnce(),
) -> Done {
    let open = options.open_options();
    let device = Arc::new(FileDevice::open(source, options.access).context(source.display())?);
    let volume = Volume::open_device(Arc::clone(&device) as Arc<dyn BlockDevice>, open)
        .context(source.display())?;
    let server = Arc::new(Server::new(volume, served(options, mountpoint)));
    let config = config(source, options);
    let session = if device.is_block_device() && rustix::process::geteuid().is_root() {
        mount_block(&device, config, mountpoint, &server)?
    } else {
        Session::mount(config, mountpoint, Arc::clone(&server))?
    };
    let running = session.spawn()?;
    let signals = unmount_on_signals(running.unmounter()).context("signals")?;
    let farewell = server.start_service();
    live();
    let served = running.join();
    drop(signals);
    let done = served.map_err(Failure::from).and_then(|()| lost(&server));
    if let Some(farewell) = farewell {
        farewell.say(&done);
    }
    done
}

/// What is not on the device although `destroy` closed the volume, if any.
fn lost(server: &Server) -> Done {
    let waiting = server.volume().files().dirty_bytes();
    if let Some(reason) = server.volume().store().poison() {
        return fail(format!(
            "the volume became read-only while it was mounted ({reason}): changes since its last \
             commit are lost, with {waiting} bytes of data that were never written"
        ));
    }
    match server.unwritten() {
        Some(reason) => fail(format!(
            "not everything is on the device, and what is not is lost: {reason}"
        )),
        None => Ok(()),
    }
}
