//! What mount options mean for the connection to the kernel and for requests.

use crate::requests::{Owners, Served};
use butterfs::{Access, AccessTimes, AclPolicy, MountOptions, Transport, Wake, WriteCache};
use butterfs_fuse::mount::{Allow, MountFlags};
use butterfs_fuse::protocol::Features;
use butterfs_fuse::{Config, Handles, Transports};
use std::path::Path;
use std::thread::available_parallelism;

/// Threads that read /dev/fuse for several callers, at most. All of them take
/// from one queue of the kernel's.
const READERS_MAX: usize = 4;

/// Flags for mount(2).
pub(crate) fn flags(options: &MountOptions) -> MountFlags {
    config(Path::new(""), options).mount.flags
}

/// How the kernel is to mount, and how requests arrive.
pub(crate) fn config(source: &Path, options: &MountOptions) -> Config {
    let mut config = Config {
        open: Handles::Stateless,
        opendir: Handles::Stateless,
        features: Config::FEATURES
            .with(Features::POSIX_ACL)
            .with(Features::DONT_MASK),
        // One thread serves on the CPU that asks, because waking another CPU
        // costs more than most requests. Spare threads take over while it
        // waits.
        threads: options.threads.unwrap_or(1),
        threads_for_several: match options.threads {
            Some(_) => 0,
            None => available_parallelism().map_or(1, |n| n.get().min(READERS_MAX)),
        },
        ..Config::default()
    };
    config.transports = match options.transport {
        Transport::Auto | Transport::Uring => Transports::UringToo,
        Transport::Device => Transports::Device,
    };
    config.wake = match options.wake {
        Wake::Auto => butterfs_fuse::Wake::Auto,
        Wake::Poll => butterfs_fuse::Wake::Poll,
        Wake::Sleep => butterfs_fuse::Wake::Sleep,
    };
    if options.acl == AclPolicy::Off {
        config.features = config.features.without(Features::POSIX_ACL);
    }
    if options.write_cache == WriteCache::Kernel {
        config.features = config.features.with(Features::WRITEBACK_CACHE);
    }
    if options.idmap {
        config.features = config.features.with(Features::ALLOW_IDMAP);
    }
    let mount = &mut config.mount;
    mount.source = source.display().to_string();
    mount.subtype = Some("butterfs".into());
    // Like every other file system that root mounts: permissions say who may do
    // what.
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

/// What the mount options say about how requests are answered.
pub(crate) fn served(options: &MountOptions) -> Served {
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
        write_cache: options.write_cache,
        sync_data: given("sync"),
        sync_names: given("sync") || given("dirsync"),
        options: options.to_string(),
        is_for_everyone: options.allow_other || rustix::process::geteuid().is_root(),
        has_mapped_owners: options.idmap,
        user_subvol_rm_allowed: options.user_subvol_rm_allowed,
    }
}
