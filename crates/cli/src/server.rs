//! Serving a volume at a mountpoint until it is unmounted.

use crate::fail::{Context, Done, Failure, fail};
use crate::fuse_fs::{Owners, Served, Server, Transported};
use crate::join;
use crate::mounts::Mount;
use butterfs::{
    Access, AccessTimes, AclPolicy, BlockDevice, FileDevice, MountOptions, Subvolume, Transport,
    TreeId, Volume, Wake, WriteCache,
};
use butterfs_device::{DeviceError, Holder};
use butterfs_fuse::mount::{Allow, MountError, MountFlags, MountKind, UnmountMode, Unmounter};
use butterfs_fuse::protocol::Features;
use butterfs_fuse::{
    Config, Handles, Session, SessionError, Transports, on_signals, unmount_or_detach,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// Flags for mount(2).
pub fn flags(options: &MountOptions) -> MountFlags {
    config(Path::new(""), options).mount.flags
}

/// Threads that read /dev/fuse for several callers, at most: all take from one
/// queue of the kernel's.
const READERS_MAX: usize = 4;

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

fn served(options: &MountOptions) -> Served {
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

/// Opens the device. A server whose mount is gone holds its volume until all is
/// written: it is waited for.
fn open_source(source: &Path, access: Access) -> Result<FileDevice, DeviceError> {
    const PATIENCE: Duration = Duration::from_secs(60);
    /// Between a lock that is refused and the look for its holder, the holder
    /// may have ended.
    const NOBODY: Duration = Duration::from_secs(1);
    let started = Instant::now();
    loop {
        let error = match FileDevice::open(source, access) {
            Err(error) => error,
            opened => return opened,
        };
        let left = PATIENCE.saturating_sub(started.elapsed());
        let try_again = match &error {
            DeviceError::Busy {
                holder: Holder::Process { pid, .. },
                ..
            } => !left.is_zero() && is_ending(*pid, source) && wait_for_end(*pid),
            DeviceError::Busy {
                holder: Holder::Unknown,
                ..
            } if started.elapsed() < NOBODY => {
                std::thread::sleep(Duration::from_millis(20));
                true
            }
            _ => false,
        };
        if !try_again {
            return Err(error);
        }
    }
}

/// True for the server of a volume that is mounted nowhere.
fn is_ending(pid: u32, source: &Path) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let serves = line.split(|byte| *byte == 0).nth(1) == Some(b"mount");
    let mounts = Mount::seen_by(&pid.to_string());
    let is_here = |mount: &Mount| mount.is_ours() && mount.source == source;
    // None at all: who asks may not look.
    serves && !mounts.is_empty() && !mounts.iter().any(is_here)
}

/// Waits for the end of a process, for a while; false where that cannot be.
fn wait_for_end(pid: u32) -> bool {
    const WHILE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return true;
    };
    let mut ends = [PollFd::new(&process, PollFlags::IN)];
    rustix::event::poll(&mut ends, Some(&WHILE)).is_ok()
}

/// Errors where the limit on file sizes lies within a volume that is to be
/// written.
fn check_file_size_limit(source: &Path, access: Access) -> Done {
    let limit = getrlimit(Resource::Fsize).current;
    let size = match source.metadata() {
        Ok(facts) if facts.is_file() && access == Access::ReadWrite => facts.len(),
        _ => 0,
    };
    match limit {
        Some(limit) if size > limit => crate::fail::fail(format!(
            "{}: the volume has {size} bytes, and this process may write files of {limit} only; \
             raise the limit (`ulimit -f unlimited`) or mount with -o ro",
            source.display()
        )),
        _ => Ok(()),
    }
}

/// A volume is as great as it is, whatever limit the shell has. What the
/// process may not lift stays.
fn lift_file_size_limit() {
    let now = getrlimit(Resource::Fsize);
    let wanted = [
        Rlimit {
            current: None,
            maximum: None,
        },
        Rlimit {
            current: now.maximum,
            ..now
        },
    ];
    let lifted = wanted
        .into_iter()
        .any(|limit| setrlimit(Resource::Fsize, limit).is_ok());
    if !lifted {
        tracing::debug!("the limit on file sizes stays");
    }
}

/// The parameter of the kernel that lets FUSE use io_uring.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Has the kernel offer io_uring, as root may.
fn offer_uring() {
    let is_off = std::fs::read_to_string(ENABLE_URING).is_ok_and(|value| value.trim() == "N");
    if is_off && std::fs::write(ENABLE_URING, "1").is_ok() {
        tracing::info!("{ENABLE_URING} was switched on, and stays on until the next boot");
    }
}

/// Why requests come through /dev/fuse although io_uring was wanted.
fn why_not_uring() -> String {
    let reason = match std::fs::read_to_string(ENABLE_URING) {
        Ok(value) if value.trim() == "N" => {
            format!("it is switched off; as root, `echo 1 > {ENABLE_URING}`")
        }
        Ok(_) => "this process may not have a ring (see the line above)".to_owned(),
        Err(_) => "this kernel has no FUSE over io_uring; Linux 6.14 has".to_owned(),
    };
    format!("requests come through /dev/fuse instead of io_uring: {reason}")
}

/// Without changes for so long, a mount commits what there is.
const QUIET: Duration = Duration::from_secs(1);

/// Opens the volume, mounts it, calls `live`, and serves until the end.
pub fn serve(
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    live: impl FnOnce(),
) -> Done {
    // Root's mounts can be several, so all of the volume is served.
    let is_whole = rustix::process::geteuid().is_root() && !mountpoint.starts_with("/dev/fd");
    let mut open = options.open_options();
    if is_whole {
        open.subvolume = Subvolume::Id(TreeId::FS.get());
    }
    lift_file_size_limit();
    check_file_size_limit(source, options.access)?;
    let join = || join::join((source, mountpoint), options, flags(options));
    let is_block = |facts: std::fs::Metadata| facts.file_type().is_block_device();
    // A block device that is mounted can be opened for reading all the same.
    let mut joined = source.metadata().is_ok_and(is_block).then(join).flatten();
    let mut device = None;
    if joined.is_none() {
        match open_source(source, options.access) {
            Ok(opened) => device = Some(Arc::new(opened)),
            Err(error) => {
                let is_busy = matches!(error, DeviceError::Busy { .. });
                joined = is_busy.then(join).flatten();
                if joined.is_none() {
                    return Err(error).context(source.display());
                }
            }
        }
    }
    let Some(device) = device else {
        joined.unwrap_or(Ok(()))?;
        live();
        return Ok(());
    };
    // Linux tells a plain FUSE server nothing of sync(2).
    open.commit_when_quiet = Some(QUIET);
    let volume = Volume::open_device(Arc::clone(&device) as Arc<dyn BlockDevice>, open)
        .context(source.display())?;
    let shown = match is_whole {
        true => {
            let tree = volume.find_subvolume(&options.subvolume)?;
            join::path_from_top(volume.files(), tree)?
        }
        false => "/".into(),
    };
    let server = Arc::new(Server::new(volume, served(options)));
    butterfs_device::on_wait(butterfs_fuse::about_to_wait);
    if options.transport == Transport::Uring {
        offer_uring();
    }
    let config = config(source, options);
    let session = if device.is_block_device() && rustix::process::geteuid().is_root() {
        mount_block(&device, config, mountpoint, &server)?
    } else {
        Session::mount(config, mountpoint, Arc::clone(&server))?
    };
    let uring = session.agreed().features.contains(Features::OVER_IO_URING);
    if options.transport == Transport::Uring && !uring {
        tracing::warn!("{}", why_not_uring());
    }
    let (threads_max, thread_buffers) = session.threads_max();
    server.served_by(Transported {
        name: if uring { "io_uring" } else { "/dev/fuse" },
        thread_buffers: thread_buffers as u64,
        threads_max: threads_max as u64,
        awake: session.awake(),
    });
    if let Some(number) = session.unmounter().device_number() {
        server.mounted_as(number);
    }
    let running = session.spawn()?;
    if let Err(failure) = join::narrow(mountpoint, &shown) {
        let _ = running.unmounter().unmount(UnmountMode::Lazy);
        return Err(failure);
    }
    let (unmounter, saved) = (running.unmounter(), Arc::clone(&server));
    let signals = on_signals(move |_| end(&saved, &unmounter)).context("signals")?;
    let farewell = server.start_service();
    if options.autodefrag && options.access == Access::ReadWrite {
        server.start_autodefrag(options.commit);
    }
    live();
    let served = running.join();
    drop(signals);
    let done = served.map_err(Failure::from).and_then(|()| lost(&server));
    if let Some(farewell) = farewell {
        farewell.say(&done);
    }
    done
}

/// Ends on a signal: saves what waits, since the next signal may be SIGKILL, and
/// unmounts all mounts of the volume, the last one first.
fn end(server: &Server, unmounter: &Unmounter) {
    if let Err(error) = server.volume().sync() {
        tracing::error!(%error, "not everything is on the device");
    }
    let mounts = Mount::seen_by("self").into_iter().rev();
    for mount in mounts.filter(|mount| Some(&mount.device[..]) == unmounter.device_number()) {
        // What cannot go now is told by the last.
        let _ = rustix::mount::unmount(&mount.point, UnmountFlags::NOFOLLOW);
    }
    unmount_or_detach(unmounter);
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
