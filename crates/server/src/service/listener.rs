//! Running commands for others, in the server of a mount.
//!
//! Owns the socket. Whoever may administer the volume may ask. For work on files
//! everyone may ask, and gets it with the rights of the process that asks
//! ([`Files`]). Every answer ends
//! with a part that says how the command ended. A caller that did not get every
//! earlier part gets no end. A caller that may not ask is told so at once, so
//! that nobody waits for it.

use super::parts::{self, Begin, PART};
use super::starts::Starts;
use crate::error::{About, ServerError};
use crate::mounts::Mount;
use crate::requests::{Acting, Peer, Refused, Server, may_administer};
use butterfs::{FsError, InodeId, Volume};
use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufWriter};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Requests that are served at a time.
const SERVED_MAX: usize = 16;
/// Those of one user who may not administer the volume, and of all such users.
const SERVED_MAX_OF_USER: usize = 4;
const SERVED_MAX_OF_USERS: usize = 12;
/// A caller must send its request within this time. While an answer is printed,
/// other callers may have to wait, so the caller must also read each part
/// within this time. Streams have no such limit.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the stack of a thread that runs a command: as for the main thread.
const STACK: usize = 8 << 20;

/// Runs a command that another process asked for, on a thread of its own. A
/// command that is dropped without [`Answer::end`] counts as failed for the caller.
pub type Runner = Arc<dyn Fn(Command) + Send + Sync>;

/// A command that another process asked for.
#[derive(Debug)]
pub struct Command {
    /// What is asked for.
    pub request: Vec<u8>,
    /// The volume; everything but some files' data is on the device.
    pub volume: Volume,
    /// The process that asked.
    pub answer: Answer,
    /// What work on files goes through, if that is asked for.
    pub files: Option<Files>,
    /// `major:minor` of the mount.
    device: Option<String>,
}

/// Work on files that a process asked for.
#[derive(Debug)]
pub struct Files {
    /// The calls that do it, with the rights of the process.
    pub calls: Acting,
    /// What the descriptors stand for that the process sent.
    pub starts: Vec<InodeId>,
    /// What the process sends after its request.
    pub input: UnixStream,
    is_read_only: bool,
}

impl Command {
    /// Errors unless the process that asked sees a mount of the volume through
    /// which it could write. The kernel refuses what changes a volume through a
    /// mount that is read-only, but the socket does not say which mount led to
    /// it. So a process in a container that has only a read-only mount changes
    /// nothing.
    ///
    /// # Errors
    /// [`ServerError::ReadOnly`].
    pub fn verify_writable(&self) -> Result<(), ServerError> {
        if let Some(files) = &self.files {
            return match files.is_read_only {
                true => Err(ServerError::ReadOnly),
                false => Ok(()),
            };
        }
        let Some(device) = &self.device else {
            return Ok(());
        };
        let peer = rustix::net::sockopt::socket_peercred(self.answer.stream.get_ref());
        let process = peer.map_or(0, |peer| peer.pid.as_raw_pid());
        let mut mounts = Mount::seen_by(&process.to_string());
        if mounts.is_empty() {
            // A process of another PID namespace has no number here.
            mounts = Mount::seen_by("self");
        }
        let mut ours = mounts.iter().filter(|mount| mount.device == *device);
        match ours.any(|mount| !mount.is_read_only) {
            true => Ok(()),
            false => Err(ServerError::ReadOnly),
        }
    }
}

/// The process that asked.
pub struct Answer {
    stream: BufWriter<UnixStream>,
    /// A part could not be sent. Parts after it would stand in the wrong place.
    gone: bool,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

impl Answer {
    /// The caller may read what follows as slowly as it likes, because nobody
    /// else waits while it is written.
    ///
    /// # Errors
    /// What the system says.
    pub fn is_stream(&self) -> io::Result<()> {
        self.stream.get_ref().set_write_timeout(None)
    }

    /// Sends bytes for standard output.
    ///
    /// # Errors
    /// The caller does not read them.
    pub fn output(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.send(bytes, parts::write_output)
    }

    /// Sends what is still in memory.
    ///
    /// # Errors
    /// The caller does not read it.
    pub fn flush(&mut self) -> io::Result<()> {
        io::Write::flush(&mut self.stream)
    }

    /// Sends bytes for standard error.
    ///
    /// # Errors
    /// The caller does not read them.
    pub fn note(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.send(bytes, parts::write_note)
    }

    fn send(
        &mut self,
        bytes: &[u8],
        put: fn(&mut BufWriter<UnixStream>, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        for part in bytes.chunks(PART) {
            if self.gone {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let sent = put(&mut self.stream, part);
            self.gone = sent.is_err();
            sent?;
        }
        Ok(())
    }

    /// Says with which exit code the command ended, or why it failed, if the
    /// caller has got everything before.
    pub fn end(mut self, done: Result<u8, &str>) {
        if !self.gone {
            self.gone = parts::write_end(&mut self.stream, done).is_err();
        }
        if self.gone {
            // Parts that are still in memory must not follow.
            let _ = self.stream.get_ref().shutdown(Shutdown::Both);
            tracing::debug!("a command for another process: who asked does not read the answer");
        } else if let Err(text) = done {
            tracing::debug!("a command for another process: {text}");
        }
    }
}

/// Listens, and serves each request in a thread of its own until the process
/// ends. Gives the name of the socket.
///
/// `device` is `major:minor` of the mount, if it is known.
pub(crate) fn start(
    server: &Arc<Server>,
    device: Option<&str>,
    run: Runner,
) -> Result<Vec<u8>, ServerError> {
    let name = format!("butterfs-{}", uuid::Uuid::new_v4()).into_bytes();
    let address = SocketAddr::from_abstract_name(&name)?;
    let listener = UnixListener::bind_addr(&address)?;
    let volume = server.volume().share();
    let server = Arc::downgrade(server);
    let device = device.map(str::to_owned);
    let serving = Serving::default();
    std::thread::Builder::new()
        .name("service".into())
        .spawn(move || {
            for client in listener.incoming().flatten() {
                let volume = volume.share();
                let Some(turn) = serving.turn_of(&client) else {
                    // This is too short to block.
                    let _ = parts::write_end(&mut &client, Err("too many commands at a time"));
                    continue;
                };
                let run = Arc::clone(&run);
                let server = Weak::clone(&server);
                let device = device.clone();
                let serve_it = move || {
                    if let Err(error) = serve(client, (volume, &server, device), &run) {
                        tracing::debug!("a command for another process: {error}");
                    }
                    drop(turn);
                };
                let started = std::thread::Builder::new()
                    .name("command".into())
                    .stack_size(STACK)
                    .spawn(serve_it);
                if let Err(error) = started {
                    tracing::error!(%error, "a command cannot be served");
                }
            }
        })?;
    Ok(name)
}

fn serve(
    mut stream: UnixStream,
    (volume, server, device): (Volume, &Weak<Server>, Option<String>),
    run: &Runner,
) -> Result<(), ServerError> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = read(&mut stream, server);
    let answer = Answer {
        stream: BufWriter::with_capacity(PART, stream),
        gone: false,
    };
    let request = request.and_then(|(request, files)| match files {
        Some(files) => Ok((request, Some(files))),
        None => synced(&volume).map(|()| (request, None)),
    });
    match request {
        Ok((request, files)) => {
            let command = Command {
                request,
                volume: volume.share(),
                answer,
                files,
                device,
            };
            volume.watch_panics(|| run(command));
        }
        Err(error) => answer.end(Err(&error.to_string())),
    }
    Ok(())
}

/// Brings to the device what a command reads there.
fn synced(volume: &Volume) -> Result<(), ServerError> {
    match volume.sync() {
        // Everything but the data of some files can be looked at. An fsync of
        // such a file reports the error.
        Ok(()) | Err(butterfs::Error::Fs(FsError::NotFlushed { .. })) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Reads the request, if its sender may ask.
fn read(
    stream: &mut UnixStream,
    server: &Weak<Server>,
) -> Result<(Vec<u8>, Option<Files>), ServerError> {
    let descriptors = match parts::read_begin(stream).about("the request")? {
        Begin::Request(_) if !may_administer(stream) => return Err(ServerError::NotAllowed),
        Begin::Request(length) => {
            let request = parts::read_request(stream, length).about("the request")?;
            return Ok((request, None));
        }
        Begin::Files(descriptors) => descriptors,
    };
    let server = server.upgrade().ok_or(ServerError::NoConnection)?;
    let peer = Peer::of(stream, server.served()).map_err(|refused| match refused {
        Refused::NotForOthers => ServerError::NotAllowed,
        Refused::Unknown(what) => ServerError::NotActedFor(what),
    })?;
    let Starts {
        inodes,
        is_read_only,
    } = Starts::of(&descriptors, &server, peer.process())?;
    let length = parts::read_length(stream).about("the request")?;
    let request = parts::read_request(stream, length).about("the request")?;
    // The process may read its sources as slowly as it likes.
    stream.set_read_timeout(None)?;
    let files = Files {
        calls: Acting::new(server, peer, stream.try_clone()?),
        starts: inodes,
        input: stream.try_clone()?,
        is_read_only,
    };
    Ok((request, Some(files)))
}

/// The requests that are served, by user.
#[derive(Clone, Debug, Default)]
struct Serving(Arc<Mutex<HashMap<u32, usize>>>);

impl Serving {
    fn counts(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if too many are served. Other users leave turns for those who
    /// administer the volume, and for each other.
    fn turn_of(&self, client: &UnixStream) -> Option<Turn> {
        let uid = rustix::net::sockopt::socket_peercred(client).ok()?.uid;
        let own = rustix::process::geteuid();
        let (uid, own) = (uid.as_raw(), own.as_raw());
        let is_other = |uid: u32| uid != 0 && uid != own;
        let mut counts = self.counts();
        let all: usize = counts.values().sum();
        let others = counts.iter().filter(|(uid, _)| is_other(**uid));
        let others: usize = others.map(|(_, count)| count).sum();
        let count = counts.get(&uid).copied().unwrap_or(0);
        let is_full =
            is_other(uid) && (count >= SERVED_MAX_OF_USER || others >= SERVED_MAX_OF_USERS);
        if all >= SERVED_MAX || is_full {
            return None;
        }
        counts.insert(uid, count + 1);
        let serving = self.clone();
        Some(Turn { serving, uid })
    }
}

/// One of the requests that are served.
struct Turn {
    serving: Serving,
    uid: u32,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut counts = self.serving.counts();
        if let Some(count) = counts.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}
