//! Writes commands as bytes.

use super::error::SendError;
use super::options::Beginning;
use super::sink::CommandSink;
use butterfs_format::send_stream::{Command, Encoder, Version};
use std::io::Write;

/// Bytes gathered before they are written.
const GATHERED: usize = 256 << 10;

/// Writes commands as a stream.
#[derive(Debug)]
pub struct StreamWriter<W: Write> {
    out: W,
    encoder: Encoder,
    waiting: Vec<u8>,
    bytes: u64,
}

impl<W: Write> StreamWriter<W> {
    /// A stream of `version` to `out`.
    pub fn new(out: W, version: Version, beginning: Beginning) -> Self {
        let waiting = match beginning {
            Beginning::Header => version.header().to_vec(),
            Beginning::Continued => Vec::new(),
        };
        Self {
            out,
            encoder: Encoder::new(version),
            waiting,
            bytes: 0,
        }
    }

    /// Bytes written so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_out(&mut self) -> Result<(), SendError> {
        self.out
            .write_all(&self.waiting)
            .map_err(SendError::Write)?;
        self.bytes += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// Writes what was gathered.
    ///
    /// # Errors
    /// [`SendError::Write`]
    pub fn finish(mut self) -> Result<W, SendError> {
        self.write_out()?;
        self.out.flush().map_err(SendError::Write)?;
        Ok(self.out)
    }
}

impl<W: Write> CommandSink for StreamWriter<W> {
    fn put(&mut self, command: &Command<'_>) -> Result<(), SendError> {
        self.encoder.encode(command, &mut self.waiting)?;
        if self.waiting.len() >= GATHERED {
            self.write_out()?;
        }
        Ok(())
    }
}
