//! Asking the server of a mount.

use super::{Asked, server_of};
use crate::fail::{Context, Done, fail};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;

/// What a part of an answer is. A part is its kind, four bytes of length, and
/// that many bytes.
pub(super) const OUTPUT: u8 = 1;
/// For standard error.
pub(super) const NOTE: u8 = 2;
/// The end: why it failed, or nothing.
pub(super) const END: u8 = 3;
/// Greatest part.
pub(super) const PART: usize = 64 << 10;

/// Has the server of a mount run a command, and prints what it prints.
pub(super) fn ask(mountpoint: &Path, mut asked: Asked) -> Done {
    let mut out: Box<dyn Write> = match &mut asked {
        Asked::Send(send) => send.take_output()?,
        _ => Box::new(io::stdout()),
    };
    let Some(name) = server_of(mountpoint) else {
        return fail(format!("{}: is not mounted any more", mountpoint.display()));
    };
    let address = SocketAddr::from_abstract_name(name).context(mountpoint.display())?;
    let mut server = UnixStream::connect_addr(&address).context(format!(
        "{}: its server cannot be reached from here",
        mountpoint.display()
    ))?;
    server.write_all(&serde_json::to_vec(&asked)?)?;
    server.shutdown(Shutdown::Write)?;
    let mut part = Vec::new();
    loop {
        let mut head = [0; 5];
        if server.read_exact(&mut head).is_err() {
            return fail(format!(
                "{}: its server ended before the command did",
                mountpoint.display()
            ));
        }
        let [kind, length @ ..] = head;
        let length = u32::from_le_bytes(length) as usize;
        part.resize(length.min(PART), 0);
        server.read_exact(&mut part)?;
        match kind {
            OUTPUT => out.write_all(&part)?,
            NOTE => io::stderr().write_all(&part)?,
            END if part.is_empty() => return Ok(out.flush()?),
            END => {
                out.flush()?;
                return fail(String::from_utf8_lossy(&part).into_owned());
            }
            _ => return fail("the server is of another version of butterfs"),
        }
    }
}
