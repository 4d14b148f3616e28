//! From a request's bytes to the file system's method and back.
//!
//! Owns the mapping of operations to methods, and the bounds of replies. Owns
//! the promise that a panic in the file system answers EIO and ends no other
//! request. Knows no file descriptor.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::Handles;
use crate::context::{Context, Groups};
use crate::counts::Counts;
use crate::identity::Identity;
use crate::protocol::layout::{
    BmapOut, CopyFileRangeOut, GetxattrOut, IoctlOut, LseekOut, OpenOut, WriteOut,
};
use crate::protocol::wire::{Wire, Writer, encode};
use crate::protocol::{CopiedWidth, Message, Negotiated, Opcode, Operation, parse};
use crate::reply::{Created, DirectoryBuffer, DirectoryPlusBuffer, Opened, ValueBuffer};
use crate::request::Ioctl;
use crate::request_slot::RequestSlot;
use crate::{Errno, FileSystem, RequestId};

/// What goes back to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing; the operation has no reply.
    Silent,
    /// Success with that many bytes of the reply buffer.
    Data(usize),
    /// An error.
    Error(Errno),
}

impl From<Errno> for Outcome {
    fn from(error: Errno) -> Self {
        Self::Error(error)
    }
}

/// Serves requests, and tells what a transport needs to know about the file
/// system.
pub(crate) trait Serve: Send + Sync {
    /// Answers one request, with the reply's data in `reply`.
    fn serve(&self, message: &Message<'_>, slot: &RequestSlot, reply: &mut [u8]) -> Outcome;

    /// Tells the file system, once, that nothing more comes.
    fn finish(&self);
}

/// The file system behind the agreement of one connection.
pub(crate) struct Server<F> {
    file_system: Arc<F>,
    agreed: Negotiated,
    counts: Counts,
    finished: AtomicBool,
}

impl<F: FileSystem> Serve for Server<F> {
    fn serve(&self, message: &Message<'_>, slot: &RequestSlot, reply: &mut [u8]) -> Outcome {
        let Some(opcode) = Opcode::from_number(message.header.opcode) else {
            return Outcome::Error(Errno::ENOSYS);
        };
        self.counts.add(opcode);
        if opcode.waits() {
            slot.leave();
        }
        let served = catch_unwind(AssertUnwindSafe(|| {
            self.understand(opcode, message, slot, reply)
        }));
        let outcome = served.unwrap_or_else(|panic| {
            log_panic(&panic, opcode);
            self.file_system.panicked();
            Outcome::Error(Errno::EIO)
        });
        match opcode {
            Opcode::Forget | Opcode::BatchForget | Opcode::NotifyReply => Outcome::Silent,
            _ => outcome,
        }
    }

    fn finish(&self) {
        if self.finished.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::debug!(requests = %self.counts, "served");
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.file_system.destroy())) {
            self.file_system.panicked();
            log_panic(&panic, Opcode::Destroy);
        }
    }
}

impl<F: FileSystem> Server<F> {
    pub(crate) fn new(file_system: Arc<F>, agreed: Negotiated) -> Self {
        Self {
            file_system,
            agreed,
            counts: Counts::new(),
            finished: AtomicBool::new(false),
        }
    }

    fn understand(
        &self,
        opcode: Opcode,
        message: &Message<'_>,
        slot: &RequestSlot,
        reply: &mut [u8],
    ) -> Outcome {
        let header = &message.header;
        let parsed = message.parts().and_then(|(body, extensions)| {
            let groups = Groups::parse(extensions)?;
            Ok((parse(opcode, header, body, self.agreed.dialect())?, groups))
        });
        let (operation, groups) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                tracing::error!(?opcode, %error, "answered EIO");
                return Outcome::Error(Errno::EIO);
            }
        };
        let said = Identity {
            uid: header.uid,
            gid: header.gid,
        };
        let caller = match said {
            Identity::UNSAID if opcode.asks_who() => Identity::of_process(header.pid),
            said => said,
        };
        let context = Context {
            request: RequestId(header.unique),
            uid: caller.uid,
            gid: caller.gid,
            pid: header.pid,
            groups,
            slot: Some(slot),
        };
        self.call(operation, &context, reply)
            .unwrap_or_else(Outcome::Error)
    }

    /// One line per operation. It is longer than other functions because it is
    /// the table of all of them.
    fn call(
        &self,
        operation: Operation<'_>,
        context: &Context<'_>,
        reply: &mut [u8],
    ) -> Result<Outcome, Errno> {
        let fs = &*self.file_system;
        match operation {
            Operation::Forget(_)
            | Operation::BatchForget(_)
            | Operation::Interrupt(_)
            | Operation::Destroy => {}
            _ => fs.admit()?,
        }
        Ok(match operation {
            Operation::Lookup(request) => fixed(&fs.lookup(context, request)?.wire(), reply),
            Operation::Forget(request) => {
                fs.forget(request);
                Outcome::Silent
            }
            Operation::BatchForget(list) => {
                list.iter().for_each(|request| fs.forget(request));
                Outcome::Silent
            }
            Operation::Getattr(request) => fixed(&fs.getattr(context, request)?.wire(), reply),
            Operation::Setattr(request) => fixed(&fs.setattr(context, request)?.wire(), reply),
            Operation::Statx(request) => fixed(&fs.statx(context, request)?.wire(), reply),
            Operation::Readlink(request) => {
                // The kernel gives a page less the final NUL.
                let room = reply.get_mut(..4095).unwrap_or_default();
                let mut target = ValueBuffer::new(room);
                fs.readlink(context, request, &mut target)?;
                Outcome::Data(target.finish().map_err(|_| Errno::ENAMETOOLONG)?)
            }
            Operation::Symlink(request) => fixed(&fs.symlink(context, request)?.wire(), reply),
            Operation::Mknod(request) => fixed(&fs.mknod(context, request)?.wire(), reply),
            Operation::Mkdir(request) => fixed(&fs.mkdir(context, request)?.wire(), reply),
            Operation::Unlink(request) => empty(fs.unlink(context, request)?),
            Operation::Rmdir(request) => empty(fs.rmdir(context, request)?),
            Operation::Rename(request) => empty(fs.rename(context, request)?),
            Operation::Link(request) => fixed(&fs.link(context, request)?.wire(), reply),
            Operation::Open(request) => match self.agreed.open {
                Handles::Stateless => Outcome::Error(Errno::ENOSYS),
                Handles::Kept => fixed(&opened(fs.open(context, request)?), reply),
            },
            Operation::Read { request, size } => {
                let data = reply.get_mut(..size as usize).ok_or(Errno::EIO)?;
                let filled = fs.read(context, request, data)?;
                bounded(filled, size as usize)?
            }
            Operation::Write(request) => {
                let len = request.data.len();
                let taken = fs.write(context, request)?;
                bounded(taken, len)?;
                // `len` came from a 32-bit size.
                fixed(
                    &WriteOut {
                        size: taken as u32,
                        padding: 0,
                    },
                    reply,
                )
            }
            Operation::Statfs(node) => fixed(&fs.statfs(context, node)?.wire(), reply),
            Operation::Release(request) => empty(fs.release(context, request)?),
            Operation::Fsync(request) => empty(fs.fsync(context, request)?),
            Operation::Setxattr(request) => empty(fs.setxattr(context, request)?),
            Operation::Getxattr { request, size } => {
                value(size, reply, |room| fs.getxattr(context, request, room))?
            }
            Operation::Listxattr { request, size } => {
                value(size, reply, |room| fs.listxattr(context, request, room))?
            }
            Operation::Removexattr(request) => empty(fs.removexattr(context, request)?),
            Operation::Flush(request) => empty(fs.flush(context, request)?),
            Operation::Opendir(request) => match self.agreed.opendir {
                Handles::Stateless => Outcome::Error(Errno::ENOSYS),
                Handles::Kept => fixed(&opened(fs.opendir(context, request)?), reply),
            },
            Operation::Readdir { request, size } => {
                let mut listing = DirectoryBuffer::new(room(size, reply));
                let answer = fs.readdir(context, request, &mut listing);
                listed(answer, listing.len())?
            }
            Operation::Readdirplus { request, size } => {
                let mut listing = DirectoryPlusBuffer::new(room(size, reply));
                let answer = fs.readdirplus(context, request, &mut listing);
                listed(answer, listing.len())?
            }
            Operation::Releasedir(request) => empty(fs.releasedir(context, request)?),
            Operation::Fsyncdir(request) => empty(fs.fsyncdir(context, request)?),
            Operation::Access(request) => empty(fs.access(context, request)?),
            Operation::Create(request) => created(&fs.create(context, request)?, reply),
            Operation::Tmpfile(request) => created(&fs.tmpfile(context, request)?, reply),
            Operation::Interrupt(request) => match fs.interrupt(request) {
                Ok(()) => Outcome::Silent,
                // The kernel understands only these two.
                Err(Errno::EAGAIN) => Outcome::Error(Errno::EAGAIN),
                Err(_) => Outcome::Error(Errno::ENOSYS),
            },
            Operation::Bmap(request) => fixed(
                &BmapOut {
                    block: fs.bmap(context, request)?,
                },
                reply,
            ),
            Operation::Destroy => {
                self.finish();
                Outcome::Data(0)
            }
            Operation::Ioctl { request, out_size } => {
                self.ioctl(context, request, out_size as usize, reply)?
            }
            Operation::Fallocate(request) => empty(fs.fallocate(context, request)?),
            Operation::Lseek(request) => fixed(
                &LseekOut {
                    offset: fs.lseek(context, request)?,
                },
                reply,
            ),
            Operation::CopyFileRange { request, width } => {
                let copied = fs.copy_file_range(context, request)?;
                match width {
                    CopiedWidth::Bits32 => {
                        let size = u32::try_from(copied).map_err(|_| Errno::EIO)?;
                        fixed(&WriteOut { size, padding: 0 }, reply)
                    }
                    CopiedWidth::Bits64 => fixed(
                        &CopyFileRangeOut {
                            bytes_copied: copied,
                        },
                        reply,
                    ),
                }
            }
            Operation::Syncfs(node) => empty(fs.syncfs(context, node)?),
            Operation::NotifyReply => Outcome::Silent,
            Operation::Unsupported => Outcome::Error(Errno::ENOSYS),
        })
    }

    /// The kernel copies as many bytes to the caller as the reply has after the
    /// result, and the caller's memory may be smaller than the command says:
    /// for FS_IOC_GETVERSION programs pass an int, though its number says long.
    /// So only what was filled is sent. The reply buffer still holds what
    /// others read before, so all of it is cleared first.
    fn ioctl(
        &self,
        context: &Context<'_>,
        request: Ioctl<'_>,
        out_size: usize,
        reply: &mut [u8],
    ) -> Result<Outcome, Errno> {
        let (head, tail) = reply.split_at_mut(IoctlOut::SIZE);
        let output = tail.get_mut(..out_size).ok_or(Errno::EINVAL)?;
        output.fill(0);
        let result = self.file_system.ioctl(context, request, output)?;
        bounded(result.filled, out_size)?;
        encode(
            &IoctlOut {
                result: result.value,
                ..IoctlOut::default()
            },
            head,
        );
        Ok(Outcome::Data(IoctlOut::SIZE + result.filled))
    }
}

fn fixed<T: Wire>(value: &T, reply: &mut [u8]) -> Outcome {
    Outcome::Data(encode(value, reply))
}

fn empty((): ()) -> Outcome {
    Outcome::Data(0)
}

fn opened(opened: Opened) -> OpenOut {
    OpenOut {
        fh: opened.handle.0,
        open_flags: opened.flags.bits(),
        padding: 0,
    }
}

fn created(answer: &Created, reply: &mut [u8]) -> Outcome {
    let mut writer = Writer::new(reply);
    writer.store(&answer.entry.wire());
    writer.store(&opened(answer.opened));
    Outcome::Data(writer.len())
}

/// The caller's room for a listing.
fn room(size: u32, reply: &mut [u8]) -> &mut [u8] {
    let size = reply.len().min(size as usize);
    &mut reply[..size]
}

/// A count that the file system answers must not exceed what was asked for,
/// because the rest of the buffer does not belong to this request.
fn bounded(count: usize, limit: usize) -> Result<Outcome, Errno> {
    if count > limit {
        tracing::error!(
            count,
            limit,
            "the file system answered more than was asked for"
        );
        return Err(Errno::EIO);
    }
    Ok(Outcome::Data(count))
}

/// Entries that are already listed count as looked up, so they must reach the
/// kernel. The error appears when the kernel asks for more.
fn listed(answer: Result<(), Errno>, len: usize) -> Result<Outcome, Errno> {
    match answer {
        Err(error) if len == 0 => Err(error),
        _ => Ok(Outcome::Data(len)),
    }
}

/// Size zero asks for the length alone.
fn value(
    size: u32,
    reply: &mut [u8],
    fill: impl FnOnce(&mut ValueBuffer<'_>) -> Result<(), Errno>,
) -> Result<Outcome, Errno> {
    if size == 0 {
        let mut counter = ValueBuffer::new(&mut []);
        fill(&mut counter)?;
        let size = u32::try_from(counter.len()).map_err(|_| Errno::E2BIG)?;
        return Ok(fixed(&GetxattrOut { size, padding: 0 }, reply));
    }
    let mut value = ValueBuffer::new(room(size, reply));
    fill(&mut value)?;
    Ok(Outcome::Data(value.finish()?))
}

fn log_panic(panic: &Box<dyn std::any::Any + Send>, opcode: Opcode) {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    tracing::error!(?opcode, text, "the file system panicked");
}
