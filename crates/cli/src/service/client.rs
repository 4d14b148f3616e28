//! Asking the server of a mount.

use super::parts::{self, Part};
use super::{Asked, server_of};
use crate::fail::{Context, Done, fail};
use crate::output::{self, Notes};
use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;

/// Has the server of a mount run a command, and prints what it prints.
pub(super) fn ask(mountpoint: &Path, mut asked: Asked) -> Done {
    let Some(name) = server_of(mountpoint) else {
        return fail(format!("{}: is not mounted any more", mountpoint.display()));
    };
    let address = SocketAddr::from_abstract_name(name).context(mountpoint.display())?;
    let server = UnixStream::connect_addr(&address).context(format!(
        "{}: its server cannot be reached from here",
        mountpoint.display()
    ))?;
    match &mut asked {
        Asked::Send(send) => {
            let mut stream = send.take_output()?;
            converse(mountpoint, server, &asked, &mut stream)?;
            stream.finish()
        }
        _ => converse(mountpoint, server, &asked, &mut output::own()),
    }
}

fn converse(
    mountpoint: &Path,
    mut server: UnixStream,
    asked: &Asked,
    out: &mut impl Write,
) -> Done {
    // Who refuses may have gone before it read everything: what it says is
    // read in any case.
    let sent = parts::write_request(&mut server, &serde_json::to_vec(asked)?);
    loop {
        match parts::read(&mut server) {
            Ok(Part::Output(part)) => out.write_all(&part)?,
            Ok(Part::Note(part)) => Notes.write_all(&part)?,
            Ok(Part::End(Err(text))) => {
                out.flush()?;
                return fail(text);
            }
            Ok(Part::End(Ok(()))) => {
                sent.context(mountpoint.display())?;
                return Ok(out.flush()?);
            }
            Err(error) => {
                return fail(format!(
                    "{}: its server did not finish the command: {error}",
                    mountpoint.display()
                ));
            }
        }
    }
}
