//! Asking the server of a mount.

use super::parts::{self, Part};
use crate::attributes::server_of;
use crate::error::ServerError;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};

/// A connection to the server of a mount.
#[derive(Debug)]
pub struct Connection {
    mount: PathBuf,
    server: UnixStream,
}

impl Connection {
    /// To the server of the mount at `mountpoint`.
    ///
    /// # Errors
    /// It is not mounted, or the server cannot be reached from here.
    pub fn to(mountpoint: &Path) -> Result<Self, ServerError> {
        let mount = mountpoint.to_owned();
        let name = server_of(mountpoint).ok_or_else(|| ServerError::Gone(mount.clone()))?;
        let connected = SocketAddr::from_abstract_name(name)
            .and_then(|address| UnixStream::connect_addr(&address));
        match connected {
            Ok(server) => Ok(Self { mount, server }),
            Err(error) => Err(ServerError::NotReached { mount, error }),
        }
    }

    /// Shows the server where work on files begins that it is then asked for.
    ///
    /// # Errors
    /// Too many descriptors; the server is gone.
    pub fn begin_files(&self, descriptors: &[BorrowedFd<'_>]) -> Result<(), ServerError> {
        let sent = parts::write_files(&self.server, descriptors);
        sent.map_err(|error| ServerError::system(self.mount.display(), error))
    }

    /// What is sent here after a request is the input of the command. Nobody
    /// sends anything after that was dropped and shut down.
    ///
    /// # Errors
    /// What the system says.
    pub fn input(&self) -> Result<UnixStream, ServerError> {
        Ok(self.server.try_clone()?)
    }

    /// Sends a request whose command has input. [`Connection::answer`] comes
    /// beside that.
    ///
    /// # Errors
    /// The server does not take it. Its answer says why.
    pub fn ask(&mut self, request: &[u8]) -> io::Result<()> {
        parts::write_request(&mut self.server, request)
    }

    /// Lets the server run a command. Writes what the command prints, as it
    /// arrives, to `output` and `notes`. Returns the command's exit code.
    ///
    /// # Errors
    /// The command failed, the server did not finish it, or its output cannot
    /// be written.
    pub fn run(
        mut self,
        request: &[u8],
        output: &mut impl Write,
        notes: &mut impl Write,
    ) -> Result<u8, ServerError> {
        // A server that refuses may have closed the socket before it read
        // everything. Its answer is read in any case.
        let sent = self.ask(request);
        self.answer(sent, output, notes)
    }

    /// Reads the answer to a request. `sent` says what became of sending it, and
    /// counts only if the answer is good.
    ///
    /// # Errors
    /// As [`Connection::run`].
    pub fn answer(
        mut self,
        sent: io::Result<()>,
        output: &mut impl Write,
        notes: &mut impl Write,
    ) -> Result<u8, ServerError> {
        loop {
            match parts::read(&mut self.server) {
                Ok(Part::Output(part)) => output.write_all(&part)?,
                Ok(Part::Note(part)) => notes.write_all(&part)?,
                Ok(Part::End(Err(text))) => {
                    output.flush()?;
                    return Err(ServerError::Answered(text));
                }
                Ok(Part::End(Ok(code))) => {
                    sent.map_err(|error: io::Error| {
                        ServerError::system(self.mount.display(), error)
                    })?;
                    output.flush()?;
                    return Ok(code);
                }
                Err(error) => {
                    return Err(ServerError::NotFinished {
                        mount: self.mount,
                        error,
                    });
                }
            }
        }
    }
}
