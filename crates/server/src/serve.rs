//! Serving a volume at a mountpoint until it is unmounted.

use crate::error::ServerError;
use crate::mounts::Mount;
use crate::requests::{Server, Transported};
use crate::service::{Farewell, Runner};
use crate::{join, options, place, service, source, uring};
use butterfs::{
    Access, BlockDevice, FileDevice, FsError, MountOptions, OnReplacement, Part, Subvolume,
    Transport, TreeId, Volume,
};
use butterfs_device::DeviceError;
use butterfs_fuse::mount::{MountError, MountKind, UnmountMode, Unmounter, is_on_top};
use butterfs_fuse::protocol::Features;
use butterfs_fuse::{
    Config, RunningSession, Session, SessionError, SignalGuard, on_signals, unmount_or_detach,
};
use rustix::mount::UnmountFlags;
use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// After this time without changes, a mount commits what there is.
const QUIET: Duration = Duration::from_secs(1);

/// What came of a mount.
#[derive(Debug)]
pub enum Mounted {
    /// This process serves the volume.
    Served(Serving),
    /// Another process serves the volume already. The kernel made one more
    /// mount of it, and this process has nothing to do with it.
    Joined,
}

/// A volume that this process serves at a mountpoint. Dropped, it is unmounted
/// lazily, and nobody learns whether everything was written.
pub struct Serving {
    server: Arc<Server>,
    session: RunningSession,
    farewell: Option<Farewell>,
    ending: Option<Ending>,
}

/// Signals that end a mount are noted from before it is there: one that arrives
/// before the program handles it would leave a dead mount.
struct Ending {
    /// Dropped before the guard, whose thread waits for it.
    mount: Sender<(Arc<Server>, Unmounter)>,
    _guard: SignalGuard,
}

impl Ending {
    /// Signals end nothing until somebody says what.
    fn note_signals() -> std::io::Result<Self> {
        let (mount, told) = channel();
        let mut known: Option<(Arc<Server>, Unmounter)> = None;
        let guard = on_signals(move |_| {
            known = known.take().or_else(|| told.recv().ok());
            if let Some((server, unmounter)) = &known {
                end(server, unmounter);
            }
        })?;
        Ok(Self {
            mount,
            _guard: guard,
        })
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}

impl Serving {
    /// The volume. The program may use it beside the mount, but the kernel does
    /// not learn about its changes.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        self.server.volume()
    }

    /// From now on, SIGINT, SIGTERM and SIGHUP end it: everything is written,
    /// and all mounts of the volume are removed.
    ///
    /// # Errors
    /// What the system says.
    pub fn end_on_signals(&mut self) -> Result<(), ServerError> {
        let ending = match self.ending.take() {
            Some(ending) => ending,
            None => Ending::note_signals().map_err(no_threads)?,
        };
        let mount = (Arc::clone(&self.server), self.session.unmounter());
        // The guard's thread has the other end.
        let _ = ending.mount.send(mount);
        self.ending = Some(ending);
        Ok(())
    }

    /// Unmounts. [`Serving::wait`] then says whether everything is on the
    /// device.
    ///
    /// # Errors
    /// Files are open. The volume is served as before.
    pub fn unmount(&self) -> Result<(), ServerError> {
        let unmounted = self.session.unmounter().unmount(UnmountMode::Normal);
        Ok(unmounted.map_err(SessionError::from)?)
    }

    /// Serves until somebody unmounts.
    ///
    /// # Errors
    /// The connection to the kernel broke, or not everything could be written.
    pub fn wait(self) -> Result<(), ServerError> {
        let served = self.session.join();
        drop(self.ending);
        let done = served
            .map_err(ServerError::from)
            .and_then(|()| lost(&self.server));
        if let Some(farewell) = self.farewell {
            farewell.say(&done);
        }
        done
    }
}

/// Handling signals takes descriptors and a thread.
fn no_threads(error: std::io::Error) -> SessionError {
    SessionError::Threads { error }
}

/// Serves an open volume at `mountpoint`. Of `options`, only those for the
/// mount count. Those for the volume are for the program that opens it.
///
/// # Errors
/// The kernel does not mount there.
///
/// ```no_run
/// use butterfs::{MountOptions, Volume};
/// use std::path::{Path, PathBuf};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = MountOptions::default();
/// let volume = Volume::open(Path::new("disk.img"), options.open_options())?;
/// butterfs_server::serve(volume, Path::new("/mnt"), &options)?.wait()?;
/// # Ok(())
/// # }
/// ```
pub fn serve(
    volume: Volume,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<Serving, ServerError> {
    let config = options::config(Path::new("butterfs"), options);
    start(volume, options, None, |server| {
        Ok(Session::mount(config, mountpoint, Arc::clone(server))?)
    })
}

/// Opens the volume in the file or block device `source` and serves it at
/// `mountpoint`. If it is served already, root gets one more mount of it.
/// Root's mounts share names, pages and changes. Both paths are absolute and
/// without symbolic links.
///
/// `run` runs commands about the volume for other processes. Processes that
/// wait for the end of the mount learn the result. If that is not possible, the
/// mount goes on without it.
///
/// SIGINT, SIGTERM and SIGHUP are noted from before the mount is there.
/// [`Serving::end_on_signals`] acts on them.
///
/// # Errors
/// The source is in use, or holds no volume that can be opened in this way; the
/// kernel does not mount there.
pub fn mount(
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    run: Runner,
) -> Result<Mounted, ServerError> {
    // Root may have several mounts, so the whole volume is served.
    let is_whole = rustix::process::geteuid().is_root() && !mountpoint.starts_with("/dev/fd");
    let mut open = options.open_options();
    if is_whole {
        open.subvolume = Subvolume::Id(TreeId::FS.get());
    }
    source::lift_file_size_limit();
    source::check_file_size_limit(source, options.device_access())?;
    let device = match open_or_join((source, mountpoint), options)? {
        Some(device) => Arc::new(device),
        None => return Ok(Mounted::Joined),
    };
    // Linux does not tell a plain FUSE server about sync(2).
    open.commit_when_quiet = Some(QUIET);
    let part = butterfs::part_of(Arc::clone(&device) as Arc<dyn BlockDevice>, options.part);
    let part = part.map_err(|error| ServerError::Open {
        source_path: source.to_owned(),
        error,
    })?;
    let mut devices = vec![part];
    for member in others(source, options)? {
        // Several volumes may have one seed.
        let access = match butterfs::is_seed(&member) && !butterfs::is_seed(source) {
            true => Access::ReadOnly,
            false => options.device_access(),
        };
        let opened = source::open_source(&member, access);
        let opened = opened.map_err(|error| ServerError::Source {
            source_path: member,
            error,
        })?;
        devices.push(Arc::new(opened));
    }
    let volume = Volume::open_devices(devices, open).and_then(|volume| {
        check_root(&volume)?;
        Ok(volume)
    });
    let volume = volume.map_err(|error| ServerError::Open {
        source_path: source.to_owned(),
        error,
    })?;
    let shown = match is_whole {
        true => {
            let tree = volume.find_subvolume(&options.subvolume)?;
            place::path_from_top(volume.files(), tree)?
        }
        false => "/".into(),
    };
    let config = options::config(source, options);
    let ending = match Ending::note_signals() {
        Ok(ending) => Some(ending),
        // A program with several mounts handles signals itself.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => None,
        Err(error) => return Err(no_threads(error).into()),
    };
    let mut serving = start(volume, options, Some(run), |server| {
        // The kernel would take the whole device for the volume.
        let is_device = options.part == Part::Whole && device.is_block_device();
        if is_device && rustix::process::geteuid().is_root() {
            mount_block(&device, config, mountpoint, server)
        } else {
            Ok(Session::mount(config, mountpoint, Arc::clone(server))?)
        }
    })?;
    let unmounter = serving.session.unmounter();
    if let Err(error) = place::narrow(mountpoint, &shown) {
        let _ = unmounter.unmount(UnmountMode::Lazy);
        return Err(error);
    }
    unmounter.replaced();
    serving.ending = ending;
    Ok(Mounted::Served(serving))
}

/// Errors unless the top directory can be used. The kernel looks at it only
/// when the mount is there.
fn check_root(volume: &Volume) -> Result<(), FsError> {
    let files = volume.files();
    let mode = files.attributes(files.root())?.mode;
    if mode & libc::S_IFMT != libc::S_IFDIR {
        let reason = "the root of the subvolume is no directory; run a check of the volume";
        return Err(FsError::Invalid(reason));
    }
    Ok(())
}

/// The other devices of a volume: those that the options name, or otherwise
/// those that are found.
fn others(source: &Path, options: &MountOptions) -> Result<Vec<PathBuf>, ServerError> {
    if options.devices.is_empty() {
        let mut found = butterfs::find_members_to_use(source, OnReplacement::Refuse)?;
        return Ok(found.split_off(1));
    }
    let identity = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    // As in fstab, the source may be among them. A device that is named twice
    // would be in use by this very process.
    let mut seen: BTreeSet<_> = identity(source).into_iter().collect();
    let is_other = |path: &&PathBuf| identity(path).is_none_or(|own| seen.insert(own));
    let named = options.devices.iter().filter(is_other);
    // The server leaves this directory.
    let whole = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    Ok(named.map(whole).collect())
}

/// Opens the device; `None` if its volume is served already and was joined.
fn open_or_join(
    (source, mountpoint): (&Path, &Path),
    options: &MountOptions,
) -> Result<Option<FileDevice>, ServerError> {
    let join = || join::join((source, mountpoint), options, options::flags(options));
    let is_block = |facts: std::fs::Metadata| facts.file_type().is_block_device();
    // A mounted block device can still be opened for reading.
    if source.metadata().is_ok_and(is_block)
        && let Some(joined) = join()
    {
        return joined.map(|()| None);
    }
    match source::open_source(source, options.device_access()) {
        Ok(device) => Ok(Some(device)),
        Err(error) => {
            let is_busy = matches!(error, DeviceError::Busy { .. });
            match is_busy.then(join).flatten() {
                Some(joined) => joined.map(|()| None),
                None => Err(ServerError::Source {
                    source_path: source.to_owned(),
                    error,
                }),
            }
        }
    }
}

/// Serves `volume` to the kernel, which `mount` connects to.
fn start(
    volume: Volume,
    options: &MountOptions,
    run: Option<Runner>,
    mount: impl FnOnce(&Arc<Server>) -> Result<Session, ServerError>,
) -> Result<Serving, ServerError> {
    let server = Arc::new(Server::new(volume, options::served(options)));
    butterfs_device::on_wait(butterfs_fuse::about_to_wait);
    if options.transport == Transport::Uring {
        uring::offer_uring();
    }
    let session = mount(&server)?;
    let uring = session.agreed().features.contains(Features::OVER_IO_URING);
    if options.transport == Transport::Uring && !uring {
        tracing::warn!("{}", uring::why_not_uring());
    }
    let (threads_max, thread_buffers) = session.threads_max();
    server.served_by(Transported {
        name: if uring { "io_uring" } else { "/dev/fuse" },
        thread_buffers: thread_buffers as u64,
        threads_max: threads_max as u64,
        awake: session.cpu_wakeup(),
    });
    if let Some(number) = session.unmounter().device_number() {
        server.mounted_as(number);
    }
    if options.autodefrag && options.access == Access::ReadWrite {
        server.start_autodefrag(options.commit);
    }
    // Whoever sees the mount waits until the session runs, and then finds where
    // to ask.
    let unmounter = session.unmounter();
    let device = unmounter.device_number();
    let farewell = run.and_then(|run| run_commands(&server, device, run));
    Ok(Serving {
        server,
        session: session.spawn()?,
        farewell,
        ending: None,
    })
}

/// Runs commands for other processes, and tells those that wait for the end how
/// the mount ended.
fn run_commands(server: &Arc<Server>, device: Option<&str>, run: Runner) -> Option<Farewell> {
    let started = service::start(server, device, run).and_then(|name| {
        let farewell = Farewell::start(&name)?;
        Ok((name, farewell))
    });
    match started {
        Ok((name, farewell)) => {
            server.commands_asked_at(name);
            Some(farewell)
        }
        Err(error) => {
            tracing::error!("commands are not served: {error}");
            None
        }
    }
}

/// Mounts a block device as a block mount, so that umount and syncfs wait for
/// the server. A kernel that forbids writing to mounted devices forbids it to
/// the server too. Then the mount is a plain one, as where a server that is
/// killed could not end.
fn mount_block(
    device: &FileDevice,
    config: Config,
    mountpoint: &Path,
    server: &Arc<Server>,
) -> Result<Session, ServerError> {
    let mut block = config.clone();
    block.mount.kind = MountKind::Block { block_size: 4096 };
    device.hand_over();
    match Session::mount(block, mountpoint, Arc::clone(server)) {
        Err(SessionError::Mount(refused @ (MountError::Busy(_) | MountError::Namespace(_)))) => {
            device.take_back()?;
            match refused {
                MountError::Busy(_) => tracing::info!(
                    "mounted plainly: the kernel keeps the device to itself otherwise"
                ),
                refused => tracing::warn!("mounted plainly: {refused}"),
            }
            Ok(Session::mount(config, mountpoint, Arc::clone(server))?)
        }
        mounted => Ok(mounted?),
    }
}

/// Ends on a signal: first saves what waits, because the next signal may be
/// SIGKILL, then unmounts all mounts of the volume, the last one first.
fn end(server: &Server, unmounter: &Unmounter) {
    if let Err(error) = server.volume().sync() {
        tracing::error!(%error, "not everything is on the device");
    }
    let mounts = Mount::seen_by("self").into_iter().rev();
    let ours = mounts.filter(|mount| Some(&mount.device[..]) == unmounter.device_number());
    let ours: Vec<Mount> = ours.collect();
    // Once the kernel has let go of the file system, its number may be that of
    // another one.
    if unmounter.is_connected() {
        for mount in ours {
            // Something else may be mounted over it. The last one reports what
            // cannot be unmounted now.
            if is_on_top(&mount.point, mount.id) {
                let _ = rustix::mount::unmount(&mount.point, UnmountFlags::NOFOLLOW);
            }
        }
    }
    unmount_or_detach(unmounter);
}

/// Errors if something is not on the device although `destroy` closed the
/// volume.
fn lost(server: &Server) -> Result<(), ServerError> {
    let waiting = server.volume().files().dirty_bytes();
    if let Some(reason) = server.volume().failure() {
        return Err(ServerError::Failed { reason, waiting });
    }
    match server.unwritten() {
        Some(reason) => Err(ServerError::Unwritten(reason.to_owned())),
        None => Ok(()),
    }
}
