//! Running commands for others, in the server of a mount.
//!
//! Owns the socket, who may ask (root, and the user who mounted), and where a
//! command that runs here finds its volume and prints to: both belong to the
//! thread that runs it.

use super::Asked;
use super::client::{END, NOTE, OUTPUT, PART};
use crate::fail::{Context, Done, Failure};
use butterfs::{FsError, Volume};
use std::cell::RefCell;
use std::io::{self, BufWriter, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of a request.
const REQUEST_MAX: u64 = 1 << 20;
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
    client: BufWriter<UnixStream>,
    /// Nobody reads any more.
    gone: bool,
}

impl Host {
    fn send(&mut self, kind: u8, bytes: &[u8]) {
        for part in bytes.chunks(PART) {
            self.gone = self.gone || put(&mut self.client, kind, part).is_err();
        }
    }
}

fn put(out: &mut impl Write, kind: u8, part: &[u8]) -> io::Result<()> {
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
    out.write_all(&[kind])?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(part)
}

/// The volume of the server, for a command that runs for another process.
pub fn volume() -> Option<Volume> {
    HOST.with_borrow(|host| host.as_ref().map(|host| host.volume.share()))
}

/// Prints for another process; false when the command runs for itself.
pub fn print(bytes: &[u8]) -> bool {
    send(OUTPUT, bytes)
}

/// Prints to the standard error of another process; false when the command
/// runs for itself.
pub fn note(bytes: &[u8]) -> bool {
    send(NOTE, bytes)
}

fn send(kind: u8, bytes: &[u8]) -> bool {
    HOST.with_borrow_mut(|host| {
        if let Some(host) = host {
            host.send(kind, bytes);
        }
        host.is_some()
    })
}

/// Output for another process.
pub struct Printed;

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(PART)];
        HOST.with_borrow_mut(|host| match host {
            Some(host) if !host.gone => {
                host.send(OUTPUT, part);
                Ok(part.len())
            }
            _ => Err(io::Error::from(io::ErrorKind::BrokenPipe)),
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

fn serve(client: UnixStream, volume: Volume) -> Done {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let who = rustix::net::sockopt::socket_peercred(&client)?;
    let mut out = BufWriter::with_capacity(PART, client.try_clone()?);
    let allowed = [0, rustix::process::geteuid().as_raw()];
    if !allowed.contains(&who.uid.as_raw()) {
        let text = "only root and the user who mounted may do this";
        put(&mut out, END, text.as_bytes())?;
        return Ok(out.flush()?);
    }
    let mut request = Vec::new();
    client.take(REQUEST_MAX).read_to_end(&mut request)?;
    let asked = serde_json::from_slice::<Asked>(&request).context("a request that is none");
    if matches!(asked, Ok(Asked::Send(_))) {
        // Who writes a stream holds no lock.
        out.get_ref().set_write_timeout(None)?;
    }
    let synced = asked.and_then(|asked| match volume.sync() {
        // All but some files' data can be looked at; their own fsync tells.
        Ok(()) | Err(butterfs::Error::Fs(FsError::NotFlushed { .. })) => Ok(asked),
        Err(error) => Err(error.into()),
    });
    HOST.set(Some(Host {
        volume,
        client: out,
        gone: false,
    }));
    let done = synced.and_then(Asked::run_here);
    let Some(mut host) = HOST.take() else {
        return Ok(());
    };
    let text = done.err().map_or(String::new(), |failure| failure.0);
    let text = text.as_bytes();
    put(&mut host.client, END, &text[..text.len().min(PART)])?;
    Ok(host.client.flush()?)
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
