//! A mounted file system and its life from INIT to the last request.
//!
//! Owns the order of things: mount, agree with the kernel, `init`, threads,
//! unmount, threads joined, `destroy` exactly once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::config::Config;
use crate::dispatch::{Serve, Server};
use crate::mount::{Guardian, MountError, Mounted, UnmountError, UnmountMode, Unmounter, mount};
use crate::notifier::Notifier;
use crate::pool::{Pool, Strength};
use crate::protocol::init::{MAJOR, MINOR_MIN, Offer, answer, negotiate};
use crate::protocol::layout::InitOut;
use crate::protocol::wire::{Wire, encode};
use crate::protocol::{Malformed, Message, Negotiated, Opcode};
use crate::transport::{DeviceTransport, Handshake, handshake};
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
    /// The kernel's first request makes no sense.
    #[error("the kernel's first request is not INIT; mount again with a fresh descriptor")]
    Handshake(#[source] Malformed),
    /// The connection failed.
    #[error("the FUSE connection failed ({0}); unmount with `umount -l` and mount again")]
    Connection(#[source] io::Error),
    /// Threads could not be started.
    #[error("no threads could be started ({0}); raise the limit on processes")]
    Threads(#[source] io::Error),
}

/// A mounted file system that nobody serves yet. Dropping it unmounts.
pub struct Session {
    /// Taken by `spawn`; dropped with the session otherwise.
    parts: Option<Parts>,
    unmounter: Unmounter,
    notifier: Notifier,
    agreed: Negotiated,
}

struct Parts {
    config: Config,
    device: Arc<OwnedFd>,
    server: Box<dyn Serve>,
    guardian: Option<Guardian>,
}

impl Session {
    /// Mounts at `mountpoint`, agrees with the kernel and initializes the file
    /// system. `/dev/fd/N` adopts a descriptor on which someone else mounted.
    ///
    /// Until `run` or `spawn`, everyone who touches the mount waits.
    pub fn mount<F: FileSystem>(
        config: Config,
        mountpoint: &Path,
        file_system: Arc<F>,
    ) -> Result<Self, SessionError> {
        let Mounted {
            device,
            unmounter,
            guardian,
        } = mount(&config.mount, mountpoint)?;
        let device = Arc::new(device);
        let notifier = Notifier::new(Arc::downgrade(&device));
        let agreed = agree(&device, &config, |agreed| {
            file_system.init(agreed, &notifier)
        })
        .inspect_err(|_| {
            let _ = unmounter.unmount(UnmountMode::Lazy);
        })?;
        tracing::debug!(?agreed, "mounted");
        let server = Box::new(Server::new(file_system, agreed));
        let parts = Some(Parts {
            config,
            device,
            server,
            guardian,
        });
        Ok(Self {
            parts,
            unmounter,
            notifier,
            agreed,
        })
    }

    /// What kernel and server agreed on.
    #[must_use]
    pub fn agreed(&self) -> &Negotiated {
        &self.agreed
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
        let seats = parts.config.seats();
        let strength = Strength {
            seats,
            threads_max: seats + parts.config.spare_threads,
        };
        let transport = DeviceTransport::new(parts.device, &self.agreed);
        let started = Pool::start(transport, parts.server, strength, parts.config.pinning);
        let pool = started.map_err(|error| {
            let _ = self.unmounter.unmount(UnmountMode::Lazy);
            SessionError::Threads(error)
        })?;
        Ok(RunningSession {
            pool: Some(pool),
            guardian: parts.guardian,
            unmounter: self.unmounter.clone(),
            notifier: self.notifier.clone(),
        })
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
    pool: Option<Arc<Pool<DeviceTransport>>>,
    guardian: Option<Guardian>,
    unmounter: Unmounter,
    notifier: Notifier,
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

    /// Unmounts and waits as `join` does. If it is in use, it serves on.
    pub fn unmount(&mut self, mode: UnmountMode) -> Result<(), SessionError> {
        self.unmounter.unmount(mode)?;
        self.finish()
    }

    fn finish(&mut self) -> Result<(), SessionError> {
        let Some(pool) = self.pool.take() else {
            return Ok(());
        };
        let ended = pool.join();
        // The last descriptor goes with the pool: a connection that was aborted
        // or failed leaves a dead mount behind, which nobody else cleans up.
        drop(pool);
        drop(self.guardian.take());
        if self.unmounter.is_mounted() {
            let _ = self.unmounter.unmount(UnmountMode::Lazy);
        }
        ended.map_err(SessionError::Connection)
    }
}

impl Drop for RunningSession {
    fn drop(&mut self) {
        if self.pool.is_some() {
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
