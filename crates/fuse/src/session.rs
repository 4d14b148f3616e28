//! A mounted file system and its life from INIT to the last request.
//!
//! Owns the order of steps: mount, agree with the kernel, `init`, threads,
//! unmount, threads joined, `destroy` exactly once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::config::{Config, Transports};
use crate::cpu_wakeup::CpuWakeup;
use crate::crew::Crew;
use crate::dispatch::{Serve, Server};
use crate::mount::{
    Guardian, MountError, MountKind, Mounted, Namespace, UnmountError, UnmountMode, Unmounter,
    mount,
};
use crate::notifier::Notifier;
use crate::pool::{Pool, Strength};
use crate::protocol::init::{MAJOR, MINOR_MIN, Offer, answer, negotiate};
use crate::protocol::layout::InitOut;
use crate::protocol::wire::{Wire, encode};
use crate::protocol::{Features, Malformed, Message, Negotiated, Opcode};
use crate::transport::{
    DeviceTransport, Handshake, UringTransport, descriptors_are_possible, handshake,
};
use crate::{Errno, FileSystem};

/// A session cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Mounting failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Unmounting failed.
    #[error(transparent)]
    Unmount(#[from] UnmountError),
    /// The kernel is too old.
    #[error("the kernel speaks FUSE {major}.{minor}; run Linux 5.4 or later, which speaks 7.31")]
    OldKernel {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The file system's `init` failed.
    #[error("the file system refused to start ({0}); see its log for the reason")]
    Refused(Errno),
    /// The kernel's first request cannot be understood.
    #[error("the kernel's first request is not INIT; mount again with a fresh descriptor")]
    Handshake(#[source] Malformed),
    /// The connection failed.
    #[error("the FUSE connection failed ({0}); unmount with `umount -l` and mount again")]
    Connection(#[source] io::Error),
    /// Threads could not be started.
    #[error("no threads could be started ({error}); raise the limit on {}", limit(.error))]
    Threads {
        /// Why not.
        #[source]
        error: io::Error,
    },
}

/// What a mount opens beside a connection for each of its threads: the first
/// connection, the mount namespace, and a few of the program that serves it.
const OTHER_DESCRIPTORS: usize = 6;

/// The limit that kept a thread from starting.
fn limit(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "open files (`ulimit -n`)",
        _ => "processes (`ulimit -u`)",
    }
}

/// A mounted file system that nobody serves yet. Dropping it unmounts.
pub struct Session {
    /// Taken by `spawn`; dropped with the session otherwise.
    parts: Option<Parts>,
    unmounter: Unmounter,
    notifier: Notifier,
    agreed: Negotiated,
    wakeup: Arc<CpuWakeup>,
}

struct Parts {
    config: Config,
    device: Arc<OwnedFd>,
    server: Arc<dyn Serve>,
    guardian: Option<Guardian>,
    namespace: Option<Namespace>,
}

impl Session {
    /// Mounts at `mountpoint`, agrees with the kernel and initializes the file
    /// system. `/dev/fd/N` adopts a descriptor on which someone else mounted.
    ///
    /// Until `run` or `spawn`, everybody who touches the mount waits.
    pub fn mount<F: FileSystem>(
        mut config: Config,
        mountpoint: &Path,
        file_system: Arc<F>,
    ) -> Result<Self, SessionError> {
        if config.transports == Transports::UringToo
            && let Err(error) = Crew::is_possible()
        {
            tracing::info!(%error, "no io_uring here; requests come through /dev/fuse");
            config.transports = Transports::Device;
        }
        // The helper tries only once to unmount, and only a mount that answers
        // ENOTCONN. While queues of io_uring end, the answer is another one for
        // a moment.
        if config.mount.auto_unmount {
            config.transports = Transports::Device;
        }
        // A thread that gets no descriptor later ends the mount.
        let descriptors = config.slots_max() + OTHER_DESCRIPTORS;
        descriptors_are_possible(descriptors).map_err(|error| SessionError::Threads { error })?;
        let Mounted {
            device,
            unmounter,
            namespace,
            guardian,
        } = mount(&config.mount, mountpoint)?;
        let notifier = Notifier::new(Arc::downgrade(&device));
        let agreed = agree(&device, &config, |agreed| {
            file_system.init(agreed, &notifier)
        })
        .inspect_err(|_| {
            let _ = unmounter.unmount(UnmountMode::Lazy);
        })?;
        read_ahead(&config, &unmounter);
        tracing::debug!(?agreed, "mounted");
        let server = Arc::new(Server::new(file_system, agreed));
        let wakeup = CpuWakeup::new(config.wake);
        let parts = Some(Parts {
            config,
            device,
            server,
            guardian,
            namespace,
        });
        Ok(Self {
            parts,
            unmounter,
            notifier,
            agreed,
            wakeup,
        })
    }

    /// What kernel and server agreed on.
    #[must_use]
    pub fn agreed(&self) -> &Negotiated {
        &self.agreed
    }

    /// What this machine's wake-ups cost, and what is done about them.
    #[must_use]
    pub fn cpu_wakeup(&self) -> Arc<CpuWakeup> {
        Arc::clone(&self.wakeup)
    }

    /// The number of threads that may serve, and how many bytes the buffers of
    /// each have at most. A buffer takes only as much memory as requests ever
    /// filled.
    #[must_use]
    pub fn threads_max(&self) -> (usize, usize) {
        let Some(parts) = &self.parts else {
            return (0, 0);
        };
        let config = &parts.config;
        let readers = config.slots_max() + config.spare_threads;
        let all = match self.agreed.features.contains(Features::OVER_IO_URING) {
            true => readers + Crew::threads_max(config.spare_threads),
            false => readers,
        };
        let data = self.agreed.max_write.max(self.agreed.max_reply) as usize;
        (all, 2 * data.next_multiple_of(1 << 12))
    }

    /// A way to end the session from elsewhere.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// A way to tell the kernel that caches are stale.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Serves until unmounted, then returns after `destroy`.
    pub fn run(self) -> Result<(), SessionError> {
        self.spawn()?.join()
    }

    /// Serves on threads of its own.
    pub fn spawn(mut self) -> Result<RunningSession, SessionError> {
        let Some(parts) = self.parts.take() else {
            unreachable!("only spawn takes the parts, and it takes the session")
        };
        let config = &parts.config;
        let strength = Strength {
            slots: config.slots(),
            slots_max: config.slots_max(),
            threads_max: config.slots_max() + config.spare_threads,
        };
        self.wakeup.start();
        // The pool comes first. Whatever happens to the crew, somebody then
        // reads the device, which announces the end of the mount.
        let device = Arc::clone(&parts.device);
        let transport = DeviceTransport::new(
            device,
            &self.agreed,
            Arc::clone(&self.wakeup),
            self.unmounter.clone(),
        );
        let pinning = parts.config.pinning.clone();
        let server = Arc::clone(&parts.server);
        let started = Pool::start(transport, server, strength, pinning)
            .and_then(|pool| Ok((self.start_crew(&parts)?, pool)));
        let (crew, pool) = started.map_err(|error| {
            let _ = self.unmounter.unmount(UnmountMode::Lazy);
            parts.server.finish();
            self.wakeup.stop();
            SessionError::Threads { error }
        })?;
        Ok(RunningSession {
            threads: Some(Threads {
                pool,
                crew,
                server: parts.server,
                wakeup: Arc::clone(&self.wakeup),
            }),
            guardian: parts.guardian,
            _namespace: parts.namespace,
            unmounter: self.unmounter.clone(),
            notifier: self.notifier.clone(),
        })
    }

    /// The threads of io_uring, if it was agreed: the kernel then waits for
    /// them.
    fn start_crew(&self, parts: &Parts) -> io::Result<Option<Arc<Crew>>> {
        if !self.agreed.features.contains(Features::OVER_IO_URING) {
            return Ok(None);
        }
        let transport = UringTransport::new(
            Arc::clone(&parts.device),
            &self.agreed,
            Arc::clone(&self.wakeup),
        );
        let server = Arc::clone(&parts.server);
        Crew::start(transport, server, parts.config.spare_threads).map(Some)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(parts) = self.parts.take() {
            let _ = self.unmounter.unmount(UnmountMode::Lazy);
            parts.server.finish();
        }
    }
}

/// A session whose threads run. Dropping it unmounts lazily and waits for them.
pub struct RunningSession {
    /// Taken when joined.
    threads: Option<Threads>,
    guardian: Option<Guardian>,
    _namespace: Option<Namespace>,
    unmounter: Unmounter,
    notifier: Notifier,
}

/// The threads that serve: always through /dev/fuse, and through io_uring if
/// that was agreed.
struct Threads {
    pool: Arc<Pool<DeviceTransport>>,
    crew: Option<Arc<Crew>>,
    server: Arc<dyn Serve>,
    wakeup: Arc<CpuWakeup>,
}

impl RunningSession {
    /// A way to end the session from elsewhere.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// A way to tell the kernel that caches are stale.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Waits until it is unmounted, all threads ended and `destroy` returned.
    pub fn join(mut self) -> Result<(), SessionError> {
        self.finish()
    }

    /// Unmounts and waits as `join` does. If the mount is in use, it is served
    /// as before.
    pub fn unmount(&mut self, mode: UnmountMode) -> Result<(), SessionError> {
        self.unmounter.unmount(mode)?;
        self.finish()
    }

    fn finish(&mut self) -> Result<(), SessionError> {
        let Some(threads) = self.threads.take() else {
            return Ok(());
        };
        let Threads {
            pool,
            crew,
            server,
            wakeup,
        } = threads;
        let ended = pool.join();
        if ended.is_err() {
            // Nobody reads the device any more.
            let _ = self.unmounter.unmount(UnmountMode::Lazy);
        }
        if let Some(crew) = crew {
            crew.close();
            crew.join();
        }
        // A connection that was aborted or failed leaves a dead mount, which
        // nobody else cleans up.
        if self.unmounter.is_mounted() {
            let _ = self.unmounter.unmount(UnmountMode::Lazy);
        }
        server.finish();
        wakeup.stop();
        drop(pool);
        drop(self.guardian.take());
        ended.map_err(|error| match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => SessionError::Threads { error },
            _ => SessionError::Connection(error),
        })
    }
}

impl Drop for RunningSession {
    fn drop(&mut self) {
        if self.threads.is_some() {
            let _ = self.unmounter.unmount(UnmountMode::Lazy);
            let _ = self.finish();
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("agreed", &self.agreed)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RunningSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningSession")
            .field("mountpoint", &self.unmounter.mountpoint())
            .finish_non_exhaustive()
    }
}

/// Makes the kernel read ahead as far as the configuration says. By itself it
/// reads at most 128 KiB ahead. Root can set more, mount by mount.
fn read_ahead(config: &Config, unmounter: &Unmounter) {
    let Some(device) = unmounter.device_number() else {
        return;
    };
    let suffix = match config.mount.kind {
        MountKind::Plain => "",
        MountKind::Block { .. } => "-fuseblk",
    };
    let path = format!("/sys/class/bdi/{device}{suffix}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, (config.max_readahead >> 10).to_string()) {
        tracing::debug!(%error, path, "the kernel's own read-ahead applies");
    }
}

/// Answers INIT.
fn agree(
    device: &OwnedFd,
    config: &Config,
    init: impl Fn(&Negotiated) -> Result<(), Errno>,
) -> Result<Negotiated, SessionError> {
    let decide = |message: &Message<'_>| match offer_in(message) {
        Err(error) => Handshake::Refused(Errno::EPROTO, Err(SessionError::Handshake(error))),
        // A newer kernel sees our version and asks again in it.
        Ok(offer) if offer.major > MAJOR => {
            let ours = InitOut {
                major: MAJOR,
                ..InitOut::default()
            };
            Handshake::Retry(encoded(&ours))
        }
        Ok(offer) if offer.major < MAJOR || offer.minor < MINOR_MIN => {
            let error = SessionError::OldKernel {
                major: offer.major,
                minor: offer.minor,
            };
            Handshake::Refused(Errno::EPROTO, Err(error))
        }
        Ok(offer) => {
            let agreed = negotiate(&offer, config);
            match init(&agreed) {
                Ok(()) => Handshake::Done(encoded(&answer(&agreed, config)), Ok(agreed)),
                Err(error) => Handshake::Refused(error, Err(SessionError::Refused(error))),
            }
        }
    };
    handshake(device.as_fd(), decide).map_err(SessionError::Connection)?
}

fn offer_in(message: &Message<'_>) -> Result<Offer, Malformed> {
    if message.header.opcode != Opcode::Init as u32 {
        return Err(Malformed("it is not INIT"));
    }
    Offer::parse(message.parts()?.0)
}

fn encoded(answer: &InitOut) -> Vec<u8> {
    let mut bytes = vec![0; InitOut::SIZE];
    encode(answer, &mut bytes);
    bytes
}
