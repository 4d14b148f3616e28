//! Reading a stream while what came before is applied.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes of one part.
const PART: usize = 512 << 10;
/// Parts that wait at most.
const PARTS: usize = 8;

/// An input that a thread of its own reads ahead of who uses it.
#[derive(Debug)]
pub struct ReadAhead {
    parts: Receiver<io::Result<Vec<u8>>>,
    /// Goes back to be filled again.
    empty: SyncSender<Vec<u8>>,
    part: Vec<u8>,
    at: usize,
    /// Ends with the input, or when a part finds nobody to take it.
    _thread: JoinHandle<()>,
}

impl ReadAhead {
    /// Reads `input` ahead.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new<R: Read + Send + 'static>(mut input: R) -> io::Result<Self> {
        let (full, parts) = sync_channel(PARTS);
        let (empty, free) = sync_channel::<Vec<u8>>(PARTS);
        let thread = std::thread::Builder::new()
            .name("read stream".into())
            .spawn(move || {
                loop {
                    let mut part = free.try_recv().unwrap_or_default();
                    part.resize(PART, 0);
                    let result = loop {
                        match input.read(&mut part) {
                            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                            result => break result,
                        }
                    };
                    let (part, last) = match result {
                        Ok(count) => {
                            part.truncate(count);
                            (Ok(part), count == 0)
                        }
                        Err(error) => (Err(error), true),
                    };
                    if full.send(part).is_err() || last {
                        return;
                    }
                }
            })?;
        Ok(Self {
            parts,
            empty,
            part: Vec::new(),
            at: 0,
            _thread: thread,
        })
    }
}

impl Read for ReadAhead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.part.len() {
            // The thread is gone after an end or an error: an end again.
            let Ok(next) = self.parts.recv() else {
                return Ok(0);
            };
            let old = std::mem::replace(&mut self.part, next?);
            self.at = 0;
            // Where there are enough, this one is dropped.
            let _ = self.empty.try_send(old);
        }
        let rest = &self.part[self.at..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_what_the_input_has() {
        let data: Vec<u8> = (0..5_000_000_u32).map(|n| (n / 7) as u8).collect();
        let mut ahead = ReadAhead::new(io::Cursor::new(data.clone())).unwrap();
        let mut read = Vec::new();
        ahead.read_to_end(&mut read).unwrap();
        assert!(read == data);
        assert_eq!(ahead.read(&mut [0; 8]).unwrap(), 0);
    }
}
