//! Running commands for others, in the server of a mount.
//!
//! Owns the socket, who may ask (root, and the user who mounted), and where a
//! command that runs here finds its volume and prints to: both belong to the
//! thread that runs it. Every request is answered with an end that says how it
//! went; who did not get every part before it gets no end. Who may not ask is
//! told so at once: nobody else waits for what they send.

use super::Asked;
use super::parts::{self, PART};
use crate::fail::{Context, Done, Failure, fail};
use butterfs::{FsError, Volume};
use std::cell::RefCell;
use std::io::{self, BufWriter, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Requests that are served at a time.
const SERVED_MAX: usize = 16;
/// Who asks must send its request in this time. All but a stream is printed
/// while others may have to wait for it, so it must be read in this time too.
const PATIENCE: Duration = Duration::from_secs(10);
/// As the main thread's.
const STACK: usize = 8 << 20;

thread_local! {
    static HOST: RefCell<Option<Host>> = const { RefCell::new(None) };
}

/// What a command that runs for another process works with.
struct Host {
    volume: Volume,
    client: Client,
}

/// The process that asked.
struct Client {
    stream: BufWriter<UnixStream>,
    /// A part could not be sent: what follows would stand in the wrong place.
    gone: bool,
}

impl Client {
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

    /// Says how it ended, to who has got all that came before.
    fn end(mut self, done: Done) -> Done {
        if !self.gone {
            let end = done.as_ref().map(|_| ()).map_err(|failure| &*failure.0);
            let sent = parts::write_end(&mut self.stream, end);
            self.gone = sent.is_err();
        }
        if self.gone {
            // What is still in memory must not follow.
            let _ = self.stream.get_ref().shutdown(Shutdown::Both);
            return fail("who asked does not read the answer");
        }
        done
    }
}

/// The volume of the server, for a command that runs for another process.
pub fn volume() -> Option<Volume> {
    HOST.with_borrow(|host| host.as_ref().map(|host| host.volume.share()))
}

/// Whether this thread runs a command for another process.
pub fn is_serving() -> bool {
    HOST.with_borrow(Option::is_some)
}

/// Prints to the standard error of another process; false when the command
/// runs for itself.
pub fn note(bytes: &[u8]) -> bool {
    HOST.with_borrow_mut(|host| {
        if let Some(host) = host {
            // Advice; the command's output says that nobody is there.
            let _ = host.client.send(bytes, parts::write_note);
        }
        host.is_some()
    })
}

/// Output for another process.
#[derive(Debug)]
pub struct Printed;

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        HOST.with_borrow_mut(|host| match host {
            Some(host) => {
                host.client.send(bytes, parts::write_output)?;
                Ok(bytes.len())
            }
            None => Err(io::ErrorKind::BrokenPipe.into()),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Listens, and serves what is asked in threads of its own until the process
/// ends. Gives the name of the socket.
pub fn start(volume: &Volume) -> Result<Vec<u8>, Failure> {
    let name = format!("butterfs-{}", uuid::Uuid::new_v4()).into_bytes();
    let address = SocketAddr::from_abstract_name(&name)?;
    let listener = UnixListener::bind_addr(&address)?;
    let volume = volume.share();
    let serving = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new()
        .name("service".into())
        .spawn(move || {
            for client in listener.incoming().flatten() {
                let volume = volume.share();
                let Some(turn) = Turn::take(&serving) else {
                    // Little enough to wait for nobody.
                    let _ = parts::write_end(&mut &client, Err("too many commands at a time"));
                    continue;
                };
                let run = move || {
                    if let Err(failure) = serve(client, volume) {
                        tracing::debug!("a command for another process: {}", failure.0);
                    }
                    drop(turn);
                };
                let started = std::thread::Builder::new()
                    .name("command".into())
                    .stack_size(STACK)
                    .spawn(run);
                if let Err(error) = started {
                    tracing::error!(%error, "a command cannot be served");
                }
            }
        })?;
    Ok(name)
}

fn serve(mut stream: UnixStream, volume: Volume) -> Done {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let asked = read(&mut stream);
    if matches!(asked, Ok(Asked::Send(_))) {
        // Who writes a stream holds no lock.
        stream.set_write_timeout(None)?;
    }
    let client = Client {
        stream: BufWriter::with_capacity(PART, stream),
        gone: false,
    };
    let synced = asked.and_then(|asked| match volume.sync() {
        // All but some files' data can be looked at; their own fsync tells.
        Ok(()) | Err(butterfs::Error::Fs(FsError::NotFlushed { .. })) => Ok(asked),
        Err(error) => Err(error.into()),
    });
    let asked = match synced {
        Ok(asked) => asked,
        Err(failure) => return client.end(Err(failure)),
    };
    let store = Arc::clone(volume.store());
    let _watch = store.fail_on_panic();
    HOST.set(Some(Host { volume, client }));
    let done = asked.run_here();
    match HOST.take() {
        Some(host) => host.client.end(done),
        None => Ok(()),
    }
}

/// What is asked for, by who may.
fn read(stream: &mut UnixStream) -> Result<Asked, Failure> {
    let who = rustix::net::sockopt::socket_peercred(&*stream)?;
    let allowed = [0, rustix::process::geteuid().as_raw()];
    if !allowed.contains(&who.uid.as_raw()) {
        return fail("only root and the user who mounted may do this");
    }
    let request = parts::read_request(stream).context("the request")?;
    serde_json::from_slice(&request).context("a request that is none")
}

/// One of the requests that are served.
struct Turn(Arc<AtomicUsize>);

impl Turn {
    fn take(serving: &Arc<AtomicUsize>) -> Option<Self> {
        let turn = Self(Arc::clone(serving));
        (serving.fetch_add(1, Ordering::AcqRel) < SERVED_MAX).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
