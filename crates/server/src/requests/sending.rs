//! BTRFS_IOC_SEND: a snapshot as a stream into a file that the caller has open.
//!
//! The thread that serves the request writes the stream, so the request ends
//! when the stream ends. As in the kernel, only a privileged caller may send.
//!
//! Source of the layout and flags: the kernel's interface header linux/btrfs.h.

use super::answered::errno;
use super::argument::Bytes;
use super::caller::is_killed;
use super::callers_memory::read_caller;
use super::server::Server;
use butterfs::send::{
    Beginning, DataMode, Ending, SendError, SendOptions, SendRequest, StreamWriter,
};
use butterfs::{InodeNumber, TreeId};
use butterfs_format::send_stream::Version;
use butterfs_fuse::reply::IoctlResult;
use butterfs_fuse::request::Ioctl;
use butterfs_fuse::{Context, Errno};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;

const SEND: u32 = 0x4048_9426;
/// Offsets in `btrfs_ioctl_send_args`.
const SOURCES_COUNT: usize = 8;
const SOURCES: usize = 16;
const PARENT: usize = 24;
const FLAGS: usize = 32;
const VERSION: usize = 40;
/// Its flags.
const NO_DATA: u64 = 1;
const OMIT_HEADER: u64 = 1 << 1;
const OMIT_END: u64 = 1 << 2;
const WITH_VERSION: u64 = 1 << 3;
const COMPRESSED: u64 = 1 << 4;
/// Clone sources at most.
const SOURCES_MAX: u64 = 1024;
/// How long a full pipe is waited for before somebody looks for the caller.
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// Bytes of the stream that are written at once.
const BUFFER: usize = 64 << 10;

impl Server {
    /// Serves the request; `None` when it is another one.
    pub(super) fn control_send(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
    ) -> Option<Result<IoctlResult, Errno>> {
        if request.command != SEND {
            return None;
        }
        let done = self.check_privileged(context);
        let done = done.and_then(|()| self.send(context, request));
        Some(done.map(|()| IoctlResult {
            value: 0,
            filled: 0,
        }))
    }

    fn send(&self, context: &Context<'_>, request: &Ioctl<'_>) -> Result<(), Errno> {
        let data = Bytes(request.data);
        let at = self.id(request.node);
        if at.number != InodeNumber::ROOT {
            return Err(Errno::EINVAL);
        }
        let count = data.u64(SOURCES_COUNT)?;
        if count > SOURCES_MAX {
            return Err(Errno::EINVAL);
        }
        let sources = match count {
            0 => Vec::new(),
            count => read_caller(context, data.u64(SOURCES)?, count as usize * 8)?,
        };
        let (sources, _) = sources.as_chunks::<8>();
        let sources: Vec<TreeId> = sources
            .iter()
            .map(|number| TreeId(u64::from_ne_bytes(*number)))
            .collect();
        let parent = Some(data.u64(PARENT)?).filter(|parent| *parent != 0);
        let (options, beginning) = options(&data)?;
        let descriptor = data.u64(0)?;
        let out = Target::open(context.pid, descriptor.cast_signed())?;
        let out = BufWriter::with_capacity(BUFFER, out);
        let name = match self.files().subvolume_place(at.tree) {
            Ok((_, name)) => name.to_vec(),
            Err(_) => b"top-level".to_vec(),
        };
        let wanted = SendRequest {
            subvolume: at.tree,
            name: &name,
            parent: parent.map(TreeId),
            clone_sources: &sources,
        };
        let mut stream = StreamWriter::new(out, options.version, beginning);
        let sent = self.files().send(&wanted, &options, &mut stream);
        sent.and_then(|()| stream.finish().map(drop))
            .map_err(|error| answer_for(&error))
    }
}

/// Where a stream goes.
///
/// The descriptors of a caller that is being killed stay open ([`is_killed`]): a
/// pipe that only the caller read never says that its reader is gone. So nothing
/// here waits without looking for that.
struct Target {
    file: File,
    caller: u32,
}

impl Target {
    /// As the kernel does, this writes from the file's beginning.
    fn open(caller: u32, descriptor: i64) -> Result<Self, Errno> {
        let file = File::options()
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(format!("/proc/{caller}/fd/{descriptor}"));
        match file {
            Ok(file) => Ok(Self { file, caller }),
            // A pipe without a reader.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Err(Errno(libc::EPIPE)),
            Err(_) => Err(Errno::EBADF),
        }
    }
}

impl Write for Target {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        loop {
            match self.file.write(data) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            let mut waits = [PollFd::new(&self.file, PollFlags::OUT)];
            let ready = poll(&mut waits, Some(&LOOK))?;
            if ready == 0 && is_killed(self.caller) {
                return Err(io::Error::from_raw_os_error(libc::EPIPE));
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn options(data: &Bytes<'_>) -> Result<(SendOptions, Beginning), Errno> {
    let flags = data.u64(FLAGS)?;
    let has = |flag: u64| flags & flag != 0;
    if flags & !(NO_DATA | OMIT_HEADER | OMIT_END | WITH_VERSION | COMPRESSED) != 0 {
        return Err(Errno::EINVAL);
    }
    let version = match (has(WITH_VERSION), data.u64(VERSION)? & u64::from(u32::MAX)) {
        (false, _) | (true, 1) => Version::One,
        // The newest.
        (true, 0 | 2) => Version::Two,
        _ => return Err(Errno(libc::EPROTO)),
    };
    let data_mode = match (has(NO_DATA), has(COMPRESSED)) {
        (true, _) => DataMode::Omit,
        (false, true) if version == Version::One => return Err(Errno::EINVAL),
        (false, true) => DataMode::Encoded,
        (false, false) => DataMode::Plain,
    };
    let ending = match has(OMIT_END) {
        true => Ending::Continued,
        false => Ending::Command,
    };
    let beginning = match has(OMIT_HEADER) {
        true => Beginning::Continued,
        false => Beginning::Header,
    };
    let options = SendOptions {
        version,
        data: data_mode,
        ending,
    };
    Ok((options, beginning))
}

fn answer_for(error: &SendError) -> Errno {
    match error {
        SendError::NotReadOnly(_) => Errno::EPERM,
        SendError::Deleted(_) => Errno::ENOENT,
        SendError::Fs(error) => errno(error),
        SendError::Write(error) => Errno(error.raw_os_error().unwrap_or(libc::EIO)),
        other => {
            tracing::error!(error = %other, "answered EIO");
            Errno::EIO
        }
    }
}
