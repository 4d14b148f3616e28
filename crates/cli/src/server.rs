//! Serving a volume at a mountpoint until it is unmounted.

use crate::fail::{Context, Done};
use crate::fuse_fs::{Owners, Server};
use butterfs::{Access, MountOptions, Volume, WriteCache};
use butterfs_fuse::mount::Allow;
use butterfs_fuse::protocol::Features;
use butterfs_fuse::{Config, Handles, Session, unmount_on_signals};
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
    if options.write_cache == WriteCache::Kernel {
        config.features = config.features.with(Features::WRITEBACK_CACHE);
    }
    let mount = &mut config.mount;
    mount.source = source.display().to_string();
    mount.subtype = Some("butterfs".into());
    if options.allow_other {
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

/// Opens the volume, mounts it, calls `live`, and serves until the end.
pub fn serve(
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    live: impl FnOnce(),
) -> Done {
    let volume = Volume::open(source, options.open_options()).context(source.display())?;
    let owners = Owners {
        uid: options.uid,
        gid: options.gid,
    };
    let server = Arc::new(Server::new(volume, owners));
    let session = Session::mount(config(source, options), mountpoint, Arc::clone(&server))?;
    let running = session.spawn()?;
    let signals = unmount_on_signals(running.unmounter()).context("signals")?;
    live();
    let served = running.join();
    drop(signals);
    served?;
    // `destroy` closed the volume; what it could not write is an error here.
    if let Some(reason) = server.volume().store().poison() {
        return crate::fail::fail(format!(
            "the volume became read-only while it was mounted: {reason}"
        ));
    }
    Ok(())
}
