//! A file whose writes and flushes take at least set times: a device with a
//! known latency, for benchmarks, with a loop device over it. Run as root:
//!
//!     delayed FILE DIRECTORY WRITE_MICROSECONDS FLUSH_MICROSECONDS
//!
//! `DIRECTORY/device` shows FILE. Requests in flight wait side by side. Reads
//! take as long as they take. It ends when it is unmounted.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use butterfs_fuse::reply::{Attr, AttrReply, Entry, FOREVER, OpenFlags, Opened};
use butterfs_fuse::request::{Flush, Fsync, GetAttr, GetXattr, Lookup, Open, Read, SetAttr, Write};
use butterfs_fuse::{
    Config, Context, Errno, Features, FileHandle, FileSystem, MountOptions, NodeId, Session,
};

type Answer<T> = Result<T, Errno>;

const NAME: &[u8] = b"device";
/// Requests that may wait at one time.
const IN_FLIGHT: usize = 32;

struct Delayed {
    file: File,
    size: u64,
    write: Duration,
    flush: Duration,
}

/// Works, and returns when at least `least` has passed.
fn within<T>(least: Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let left = least.saturating_sub(start.elapsed());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
    result
}

impl Delayed {
    fn attr(&self, node: u64) -> Attr {
        let (mode, size) = if node == 1 {
            (libc::S_IFDIR | 0o755, 0)
        } else {
            (libc::S_IFREG | 0o600, self.size)
        };
        Attr {
            ino: node,
            mode,
            size,
            blocks: size / 512,
            nlink: 1,
            blksize: 4096,
            ..Attr::default()
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno)
}

impl FileSystem for Delayed {
    fn lookup(&self, _: &Context<'_>, request: Lookup<'_>) -> Answer<Entry> {
        if request.name != NAME {
            return Err(Errno::ENOENT);
        }
        Ok(Entry {
            node: NodeId(2),
            generation: 0,
            attr: self.attr(2),
            entry_timeout: FOREVER,
            attr_timeout: FOREVER,
        })
    }

    fn getattr(&self, _: &Context<'_>, request: GetAttr) -> Answer<AttrReply> {
        Ok(AttrReply {
            attr: self.attr(request.node.0),
            timeout: FOREVER,
        })
    }

    fn setattr(&self, _: &Context<'_>, request: SetAttr) -> Answer<AttrReply> {
        Ok(AttrReply {
            attr: self.attr(request.node.0),
            timeout: FOREVER,
        })
    }

    fn open(&self, _: &Context<'_>, _: Open) -> Answer<Opened> {
        Ok(Opened {
            handle: FileHandle(0),
            flags: OpenFlags::DIRECT_IO.with(OpenFlags::PARALLEL_DIRECT_WRITES),
        })
    }

    fn read(&self, _: &Context<'_>, request: Read, data: &mut [u8]) -> Answer<usize> {
        let read = self.file.read_at(data, request.offset);
        read.map_err(|error| errno(&error))
    }

    fn write(&self, _: &Context<'_>, request: Write<'_>) -> Answer<usize> {
        let written = within(self.write, || {
            self.file.write_all_at(request.data, request.offset)
        });
        written
            .map(|()| request.data.len())
            .map_err(|error| errno(&error))
    }

    fn flush(&self, _: &Context<'_>, _: Flush) -> Answer<()> {
        Ok(())
    }

    fn fsync(&self, _: &Context<'_>, _: Fsync) -> Answer<()> {
        within(self.flush, || Ok(()))
    }

    fn getxattr(
        &self,
        _: &Context<'_>,
        _: GetXattr<'_>,
        _: &mut butterfs_fuse::reply::ValueBuffer<'_>,
    ) -> Answer<()> {
        Err(Errno::ENODATA)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, directory, write, flush] = arguments.as_slice() else {
        return Err("FILE DIRECTORY WRITE_MICROSECONDS FLUSH_MICROSECONDS".into());
    };
    let file = File::options().read(true).write(true).open(file)?;
    let delayed = Delayed {
        size: file.metadata()?.len(),
        file,
        write: Duration::from_micros(write.parse()?),
        flush: Duration::from_micros(flush.parse()?),
    };
    let config = Config {
        threads: IN_FLIGHT,
        features: Config::FEATURES.with(Features::ASYNC_DIO),
        mount: MountOptions {
            source: "delayed".into(),
            ..MountOptions::default()
        },
        ..Config::default()
    };
    // Threads inherit it: short sleeps end when they should.
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    let session = Session::mount(config, Path::new(directory), Arc::new(delayed))?;
    println!("mounted");
    session.run()?;
    Ok(())
}
