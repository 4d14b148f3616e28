//! What a server says at its end: whether everything is on the device.
//!
//! Owns a second socket of the server, whose name follows from the first one's. A
//! process that waits for the end of a mount connects to it before it unmounts. It
//! reads until the server's process is gone: the last word, or nothing if the
//! server died.

use crate::attributes::server_of;
use crate::error::ServerError;
use butterfs_fuse::peer_process;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::UCred;
use rustix::process::{PidfdFlags, pidfd_open};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Processes that may wait at a time.
const WAITING_MAX: usize = 16;
/// Bytes of a last word.
const WORDS_MAX: usize = 4096;
/// What a server says if nothing was lost; otherwise it says what was.
const DONE: &str = "done\n";
/// What it says first, to each process that it will tell. A server that ends
/// tells only those processes that it has heard of.
const HEARD: &[u8] = b"+";
/// How long a process waits for that.
const PATIENCE: Duration = Duration::from_secs(10);

fn address(service: &[u8]) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name([service, b"-end"].concat())
}

/// Those who wait for the server's end.
#[derive(Clone, Default)]
pub(crate) struct Farewell {
    waiting: Arc<Mutex<Vec<UnixStream>>>,
}

impl Farewell {
    /// Lets others wait for the end of the server whose socket is `service`.
    pub(crate) fn start(service: &[u8]) -> Result<Self, ServerError> {
        let listener = UnixListener::bind_addr(&address(service)?)?;
        let farewell = Self::default();
        let waiting = Arc::clone(&farewell.waiting);
        let allowed = [0, rustix::process::geteuid().as_raw()];
        std::thread::Builder::new()
            .name("farewell".into())
            .spawn(move || {
                for client in listener.incoming().flatten() {
                    let who = rustix::net::sockopt::socket_peercred(&client);
                    let may = who.is_ok_and(|who| allowed.contains(&who.uid.as_raw()));
                    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                    waiting.retain(is_there);
                    if may
                        && waiting.len() < WAITING_MAX
                        && client.set_nonblocking(true).is_ok()
                        && (&client).write_all(HEARD).is_ok()
                    {
                        waiting.push(client);
                    }
                }
            })?;
        Ok(farewell)
    }

    /// Says how the mount ended. The sockets stay open until the process has
    /// let go of the device.
    pub(crate) fn say(&self, done: &Result<(), ServerError>) {
        let words = match done {
            Ok(()) => DONE.to_owned(),
            Err(error) => error.to_string(),
        };
        let words = &words.as_bytes()[..words.len().min(WORDS_MAX)];
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for client in waiting.iter_mut() {
            // A process that no longer listens misses nothing.
            let _ = client.write_all(words);
        }
    }
}

/// Whether the waiting process is still there.
fn is_there(client: &UnixStream) -> bool {
    let mut byte = [0];
    let read = (&*client).read(&mut byte);
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// The process of a server that listens by itself, its number and a descriptor.
/// `None` once it has closed the connection: another process may have the number
/// then.
pub(crate) fn process_behind(server: &UnixStream) -> Option<(UCred, OwnedFd)> {
    let who = rustix::net::sockopt::socket_peercred(server).ok()?;
    let process = match peer_process(server) {
        Ok(process) => process,
        // Before Linux 6.5. The look at the connection below also tells that
        // the number was not another's.
        Err(_) => pidfd_open(who.pid, PidfdFlags::empty()).ok()?,
    };
    let mut state = [PollFd::new(server, PollFlags::RDHUP)];
    let now = Timespec::default();
    rustix::event::poll(&mut state, Some(&now)).ok()?;
    let ended = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    (!state[0].revents().intersects(ended)).then_some((who, process))
}

/// Waits for the end of a server.
#[derive(Debug)]
pub struct Waiter {
    server: UnixStream,
    /// The server's process. Only at its end has it let go of all its files.
    process: Option<OwnedFd>,
    words: Vec<u8>,
}

/// What is known of a server's end.
#[derive(Debug)]
pub enum End {
    /// It goes on.
    Waits,
    /// It ended, and said this.
    Ended(Result<(), ServerError>),
}

impl Waiter {
    /// For the server of the mount at `mountpoint`; `None` if it cannot be
    /// asked from here.
    #[must_use]
    pub fn new(mountpoint: &Path) -> Option<Self> {
        let service = server_of(mountpoint)?;
        let mut server = UnixStream::connect_addr(&address(&service).ok()?).ok()?;
        server.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut heard = [0];
        server.read_exact(&mut heard).ok()?;
        let process = process_behind(&server).map(|(_, process)| process);
        Some(Self {
            server,
            process,
            words: Vec::new(),
        })
    }

    /// Waits for at most `time`.
    ///
    /// # Errors
    /// The connection to the server cannot be used.
    pub fn wait(&mut self, time: Duration) -> Result<End, ServerError> {
        self.server.set_read_timeout(Some(time))?;
        let mut part = [0; 512];
        loop {
            match self.server.read(&mut part) {
                Ok(0) => {
                    self.wait_for_process();
                    return Ok(End::Ended(self.verdict()));
                }
                Ok(read) => {
                    let room = WORDS_MAX.saturating_sub(self.words.len());
                    self.words.extend_from_slice(&part[..read.min(room)]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(End::Waits),
                // The connection broke, as when the server was killed.
                Err(_) => return Ok(End::Ended(self.verdict())),
            }
        }
    }

    /// Waits until the process that closed its end is gone, which is soon.
    fn wait_for_process(&self) {
        if let Some(process) = &self.process {
            let patience = Timespec {
                tv_sec: PATIENCE.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: 0,
            };
            let mut ends = [PollFd::new(process, PollFlags::IN)];
            // A process that cannot be waited for is gone, or cannot be seen
            // from here.
            let _ = rustix::event::poll(&mut ends, Some(&patience));
        }
    }

    fn verdict(&self) -> Result<(), ServerError> {
        if self.words == DONE.as_bytes() {
            return Ok(());
        }
        if self.words.is_empty() {
            return Err(ServerError::Died);
        }
        let words = String::from_utf8_lossy(&self.words).into_owned();
        Err(ServerError::LastWord(words))
    }
}
