//! Reading and verifying a stream while earlier commands are applied.

use super::error::ReceiveError;
use super::reader::{CommandSource, Framed, Position, StreamReader};
use butterfs_format::send_stream::Command;
use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes that are read at once.
const READ: usize = 64 << 10;
/// A batch has at least this many bytes, or this many commands, unless its
/// reader waits.
const BATCH_BYTES: usize = 512 << 10;
const BATCH_COMMANDS: usize = 1024;
/// Batches that wait at most.
const BATCHES: usize = 8;
/// How often a thread that waits for the stream checks whether it should end.
const LOOK: Duration = Duration::from_millis(100);

/// Commands that were verified together.
#[derive(Debug, Default)]
struct Batch {
    commands: Vec<Framed>,
    bodies: Vec<u8>,
    /// If no more commands follow: how far was read, and the error if there was
    /// one.
    last: Option<(Position, Option<ReceiveError>)>,
}

/// Commands of a stream. A thread of its own reads and verifies them before
/// they are used.
#[derive(Debug)]
pub struct ReadAhead {
    batches: Receiver<Batch>,
    /// Returns used batches to the thread, which fills them again.
    empty: SyncSender<Batch>,
    batch: Batch,
    next: usize,
    position: Position,
    /// True if the receiver wants to end.
    interrupt: Arc<AtomicBool>,
    /// Ends with the input, or when nobody takes its next batch.
    _thread: JoinHandle<()>,
}

impl ReadAhead {
    /// Reads `input` ahead.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new<R: Read + Send + 'static>(input: R) -> io::Result<Self> {
        Self::until(input, Arc::default())
    }

    /// Reads `input` ahead until `interrupt` becomes true. The next command is
    /// then [`ReceiveError::Interrupted`], even if no data arrive.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn until<R: Read + Send + 'static>(
        input: R,
        interrupt: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let (full, batches) = sync_channel(BATCHES);
        let (empty, free) = sync_channel(BATCHES);
        let thread = std::thread::Builder::new()
            .name("read stream".into())
            .spawn(move || read_batches(input, &full, &free))?;
        Ok(Self {
            batches,
            empty,
            batch: Batch::default(),
            next: 0,
            position: Position::default(),
            interrupt,
            _thread: thread,
        })
    }
}

fn read_batches<R: Read>(input: R, full: &SyncSender<Batch>, free: &Receiver<Batch>) {
    let mut reader = StreamReader::new(BufReader::with_capacity(READ, input));
    loop {
        let mut batch = match free.try_recv() {
            Ok(batch) => batch,
            Err(TryRecvError::Empty) => Batch::default(),
            Err(TryRecvError::Disconnected) => return,
        };
        batch.commands.clear();
        batch.bodies.clear();
        batch.last = None;
        while batch.last.is_none()
            && batch.bodies.len() < BATCH_BYTES
            && batch.commands.len() < BATCH_COMMANDS
        {
            match reader.read_framed(&mut batch.bodies) {
                Ok(Some(framed)) => batch.commands.push(framed),
                Ok(None) => batch.last = Some((reader.position(), None)),
                Err(error) => batch.last = Some((reader.position(), Some(error))),
            }
        }
        let last = batch.last.is_some();
        if full.send(batch).is_err() || last {
            return;
        }
    }
}

impl ReadAhead {
    fn check_interrupt(&self) -> Result<(), ReceiveError> {
        if self.interrupt.load(Ordering::Acquire) {
            return Err(ReceiveError::Interrupted {
                offset: self.position.offset,
            });
        }
        Ok(())
    }

    /// The next batch; `None` when there is no other.
    fn next_batch(&self) -> Result<Option<Batch>, ReceiveError> {
        loop {
            match self.batches.recv_timeout(LOOK) {
                Ok(batch) => return Ok(Some(batch)),
                Err(RecvTimeoutError::Timeout) => self.check_interrupt()?,
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }
}

impl CommandSource for ReadAhead {
    fn read_command(&mut self) -> Result<Option<(Position, Command<'_>)>, ReceiveError> {
        self.check_interrupt()?;
        while self.next == self.batch.commands.len() {
            if let Some((end, error)) = self.batch.last.take() {
                self.position = end;
                return error.map_or(Ok(None), Err);
            }
            // After an end or an error the thread is gone: the result is an end
            // again.
            let Some(batch) = self.next_batch()? else {
                return Ok(None);
            };
            let old = std::mem::replace(&mut self.batch, batch);
            self.next = 0;
            // If enough empty batches wait already, this one is dropped.
            let _ = self.empty.try_send(old);
        }
        let framed = self.batch.commands[self.next];
        self.next += 1;
        self.position = framed.after;
        framed.parse(&self.batch.bodies)
    }

    fn position(&self) -> Position {
        self.position
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::FileOffset;
    use butterfs_format::send_stream::{Encoder, Version};

    fn stream(commands: u64) -> Vec<u8> {
        let mut bytes = Version::One.header().to_vec();
        let encoder = Encoder::new(Version::One);
        let data = vec![7; 40_000];
        for number in 0..commands {
            let command = Command::Write {
                path: b"file",
                offset: FileOffset(number * 40_000),
                data: &data[..(number as usize * 37) % data.len()],
            };
            encoder.encode(&command, &mut bytes).unwrap();
        }
        encoder.encode(&Command::End, &mut bytes).unwrap();
        bytes
    }

    /// All commands as text, where they lie, and how it ended.
    fn listed(source: &mut dyn CommandSource) -> (Vec<String>, String, Position) {
        let mut commands = Vec::new();
        let end = loop {
            match source.read_command() {
                Ok(Some((at, command))) => commands.push(format!("{at:?} {command:?}")),
                Ok(None) => break "end".to_owned(),
                Err(error) => break error.to_string(),
            }
        };
        (commands, end, source.position())
    }

    #[test]
    fn gives_what_the_stream_has() {
        let whole = stream(3000);
        let mut damaged = whole.clone();
        *damaged.last_mut().unwrap() ^= 1;
        let mut inside = whole.clone();
        inside[whole.len() / 2] ^= 1;
        let cut = whole[..whole.len() - 3].to_vec();
        for bytes in [whole, damaged, inside, cut, Vec::new()] {
            let expected = listed(&mut StreamReader::new(&bytes[..]));
            let mut ahead = ReadAhead::new(io::Cursor::new(bytes)).unwrap();
            assert!(listed(&mut ahead) == expected, "{}", expected.1);
            assert!(ahead.read_command().unwrap().is_none());
        }
    }

    #[test]
    fn an_interrupt_ends_it_also_while_nothing_comes() {
        let (input, mut output) = io::pipe().unwrap();
        let bytes = stream(2000);
        let interrupt = Arc::new(AtomicBool::new(false));
        let mut ahead = ReadAhead::until(input, Arc::clone(&interrupt)).unwrap();
        let writer = std::thread::spawn(move || {
            // If reading ends early, nobody takes the rest.
            let _ = io::Write::write_all(&mut output, &bytes[..bytes.len() - 1]);
            output
        });
        let later = std::thread::spawn(move || {
            std::thread::sleep(2 * LOOK);
            interrupt.store(true, Ordering::Release);
        });
        let mut last = 0;
        let ended = loop {
            match ahead.read_command() {
                Ok(command) => assert!(command.is_some()),
                Err(error) => break error,
            }
            last = ahead.position().offset;
        };
        assert!(matches!(ended, ReceiveError::Interrupted { offset } if offset == last));
        later.join().unwrap();
        drop(ahead);
        drop(writer.join().unwrap());
    }
}
