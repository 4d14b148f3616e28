//! Snapshots as streams, by path.

use crate::{Error, Volume, VolumePath};
use butterfs_format::TreeId;
use butterfs_fs::receive::{
    NewSubvolume, ReadAhead, ReceiveOptions, Termination, VolumeTarget, receive,
};
use butterfs_fs::send::{Beginning, SendOptions, SendRequest, StreamWriter};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Counts the bytes that pass through.
struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.out.write(data)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Volume {
    /// Writes the read-only snapshot at `path` to `out` as a stream that
    /// [`Volume::receive`], `butterfs receive` and `btrfs receive` take. Gives
    /// the bytes of the stream.
    ///
    /// # Errors
    /// It is not a read-only subvolume; damage, reading; writing to `out`. The
    /// stream is cut then, and no receiver takes it for complete.
    pub fn send(&self, path: impl VolumePath, out: impl Write) -> Result<u64, Error> {
        self.send_from(path.path_bytes(), None, out)
    }

    /// [`Volume::send`] of what changed since the read-only snapshot at
    /// `parent`, which the receiver must have.
    ///
    /// # Errors
    /// As there.
    pub fn send_changes(
        &self,
        parent: impl VolumePath,
        path: impl VolumePath,
        out: impl Write,
    ) -> Result<u64, Error> {
        let parent = self.subvolume_at(parent)?;
        self.send_from(path.path_bytes(), Some(parent), out)
    }

    fn send_from(
        &self,
        path: &[u8],
        parent: Option<TreeId>,
        out: impl Write,
    ) -> Result<u64, Error> {
        let names = path.split(|byte| *byte == b'/');
        let name = names.rev().find(|name| !name.is_empty());
        let request = SendRequest {
            subvolume: self.subvolume_at(path)?,
            name: name.unwrap_or(b"top-level"),
            parent,
            clone_sources: &[],
        };
        let options = SendOptions::default();
        let out = Counted { out, bytes: 0 };
        let mut writer = StreamWriter::new(out, options.version, Beginning::Header);
        self.files().send(&request, &options, &mut writer)?;
        Ok(writer.finish()?.bytes)
    }

    /// Makes the snapshots of a stream in the directory at `path`. A thread reads
    /// ahead of `input`, to the end of the stream's last command.
    ///
    /// When this returns, what was received is durable, read-only and known by
    /// its source's UUID.
    ///
    /// # Errors
    /// The stream is damaged or cut, or its parent is not here; no space. What
    /// is left of a subvolume then is writable and does not count as received.
    pub fn receive<R: Read + Send + 'static>(
        &self,
        path: impl VolumePath,
        input: R,
    ) -> Result<Vec<NewSubvolume>, Error> {
        let directory = self.resolve_followed(path)?;
        let mut reader = ReadAhead::new(input).map_err(Error::Thread)?;
        let mut target = VolumeTarget::new(Arc::clone(self.files()), directory);
        let options = ReceiveOptions {
            termination: Termination::EndOfInput,
            ..ReceiveOptions::default()
        };
        let received = receive(&mut reader, &mut target, options, &mut |_, _| {});
        if let Some(failure) = received.failure {
            return Err(failure.into());
        }
        self.sync()?;
        Ok(received.subvolumes)
    }
}
