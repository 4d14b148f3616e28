//! A file system that does nothing but remember names: the ceiling of the
//! transport. Run as root:
//!
//!     cargo run --release -p butterfs-fuse --example null -- [FILES]
//!
//! Prints operations per second of one client in one directory, for one and two
//! threads, free and pinned, with and without stateless opens. "Cold" is after
//! it was mounted anew. The last column is a cold read of a file of 1 GiB in
//! pieces of 1 MiB, in MiB per second. For `make bench` it serves a directory as it is told on
//! standard input:
//!
//!     null --serve DIRECTORY

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use butterfs_fuse::mount::PermissionChecks;
use butterfs_fuse::reply::{
    Attr, AttrReply, Created, DirectoryEntry, DirectoryPlusBuffer, Entry, FOREVER, FileType,
    OpenFlags, Opened, Push,
};
use butterfs_fuse::request::{
    Create, GetAttr, GetXattr, Lookup, Mkdir, Mknod, Open, OpenDir, Read, ReadDir, SetAttr, Unlink,
    Write,
};
use butterfs_fuse::{
    Config, Context, Errno, FileHandle, FileSystem, Handles, MountOptions, NodeId, Pinning,
    Session, UnmountMode, Wake,
};
use parking_lot::Mutex;

type Answer<T> = Result<T, Errno>;

/// The node of the file `large`, which has zeros.
const LARGE: u64 = 1 << 40;
const LARGE_BYTES: u64 = 1 << 30;

/// Names of the root directory and sizes of files. Node 1 is the root.
#[derive(Default)]
struct State {
    names: HashMap<Vec<u8>, u64>,
    order: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// Handles, create and flush as POSIX has them.
    Plain,
    /// No open, no flush, mknod in place of create.
    Stateless,
}

struct Null {
    state: Mutex<State>,
    style: Style,
}

fn attr(node: u64) -> Attr {
    let mode = if node == 1 {
        libc::S_IFDIR | 0o755
    } else {
        libc::S_IFREG | 0o644
    };
    let size = match node {
        1 => 0,
        LARGE => LARGE_BYTES,
        _ => 4096,
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

fn entry(node: u64) -> Entry {
    Entry {
        node: NodeId(node),
        generation: 0,
        attr: attr(node),
        entry_timeout: FOREVER,
        attr_timeout: FOREVER,
    }
}

impl Null {
    fn add(&self, name: &[u8]) -> Entry {
        let mut state = self.state.lock();
        state.order.push(name.to_vec());
        let node = state.order.len() as u64 + 1;
        state.names.insert(name.to_vec(), node);
        entry(node)
    }

    fn when_plain<T>(&self, value: T) -> Answer<T> {
        if self.style == Style::Plain {
            Ok(value)
        } else {
            Err(Errno::ENOSYS)
        }
    }
}

const OPENED: Opened = Opened {
    handle: FileHandle(0),
    flags: OpenFlags::KEEP_CACHE,
};

impl FileSystem for Null {
    fn lookup(&self, _: &Context<'_>, request: Lookup<'_>) -> Answer<Entry> {
        if request.name == b"large" {
            return Ok(entry(LARGE));
        }
        self.state
            .lock()
            .names
            .get(request.name)
            .map(|node| entry(*node))
            .ok_or(Errno::ENOENT)
    }

    fn getattr(&self, _: &Context<'_>, request: GetAttr) -> Answer<AttrReply> {
        Ok(AttrReply {
            attr: attr(request.node.0),
            timeout: FOREVER,
        })
    }

    fn setattr(&self, _: &Context<'_>, request: SetAttr) -> Answer<AttrReply> {
        Ok(AttrReply {
            attr: attr(request.node.0),
            timeout: FOREVER,
        })
    }

    fn mknod(&self, _: &Context<'_>, request: Mknod<'_>) -> Answer<Entry> {
        Ok(self.add(request.name))
    }

    fn mkdir(&self, _: &Context<'_>, _: Mkdir<'_>) -> Answer<Entry> {
        Err(Errno::EPERM)
    }

    fn unlink(&self, _: &Context<'_>, request: Unlink<'_>) -> Answer<()> {
        self.state
            .lock()
            .names
            .remove(request.name)
            .map(|_| ())
            .ok_or(Errno::ENOENT)
    }

    fn create(&self, _: &Context<'_>, request: Create<'_>) -> Answer<Created> {
        self.when_plain(())?;
        Ok(Created {
            entry: self.add(request.name),
            opened: OPENED,
        })
    }

    fn open(&self, _: &Context<'_>, _: Open) -> Answer<Opened> {
        self.when_plain(OPENED)
    }

    fn opendir(&self, _: &Context<'_>, _: OpenDir) -> Answer<Opened> {
        self.when_plain(OPENED)
    }

    fn read(&self, _: &Context<'_>, request: Read, data: &mut [u8]) -> Answer<usize> {
        match request.node.0 {
            LARGE => Ok(data.len()),
            _ => Ok(data.len().min(4096)),
        }
    }

    fn write(&self, _: &Context<'_>, request: Write<'_>) -> Answer<usize> {
        Ok(request.data.len())
    }

    fn fsync(&self, _: &Context<'_>, _: butterfs_fuse::request::Fsync) -> Answer<()> {
        Ok(())
    }

    fn flush(&self, _: &Context<'_>, _: butterfs_fuse::request::Flush) -> Answer<()> {
        self.when_plain(())
    }

    fn getxattr(
        &self,
        _: &Context<'_>,
        _: GetXattr<'_>,
        _: &mut butterfs_fuse::reply::ValueBuffer<'_>,
    ) -> Answer<()> {
        Err(Errno::ENODATA)
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        request: ReadDir,
        listing: &mut DirectoryPlusBuffer<'_>,
    ) -> Answer<()> {
        let state = self.state.lock();
        let start = usize::try_from(request.offset).map_err(|_| Errno::EINVAL)?;
        for (at, name) in state.order.iter().enumerate().skip(start) {
            let Some(node) = state.names.get(name) else {
                continue;
            };
            let (next, kind) = (at as u64 + 1, FileType::Regular);
            let line = DirectoryEntry {
                ino: *node,
                next,
                kind,
                name,
            };
            if listing.push(&line, &entry(*node)) == Push::Full {
                break;
            }
        }
        Ok(())
    }
}

/// Thousands of operations per second.
fn rate(paths: &[PathBuf], mut operation: impl FnMut(&Path)) -> f64 {
    let start = Instant::now();
    paths.iter().for_each(|path| operation(path));
    paths.len() as f64 / start.elapsed().as_secs_f64() / 1000.0
}

fn read_one(path: &Path) {
    let mut data = [0; 4096];
    let _ = File::open(path).and_then(|mut file| file.read(&mut data));
}

/// MiB per second.
fn read_large(path: &Path) -> f64 {
    let mut data = vec![0; 1 << 20];
    let start = Instant::now();
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{error}"));
    let mut done = 0;
    loop {
        match file.read(&mut data) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(done as u64, LARGE_BYTES);
    done as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64()
}

fn measure(root: &Path, files: usize, go_cold: &mut dyn FnMut()) -> Vec<f64> {
    let named = |kind: &str| -> Vec<PathBuf> {
        (0..files)
            .map(|number| root.join(format!("{kind}{number}")))
            .collect()
    };
    let (empty, full) = (named("empty"), named("full"));
    let must = |done: std::io::Result<()>| done.unwrap_or_else(|error| panic!("{error}"));
    let data = [7; 4096];
    let mut rates = vec![
        rate(&empty, |path| must(File::create_new(path).map(|_| ()))),
        rate(&full, |path| {
            must(File::create_new(path).and_then(|mut f| f.write_all(&data)))
        }),
    ];
    go_cold();
    rates.push(rate(&full, |path| must(fs::metadata(path).map(|_| ()))));
    rates.push(rate(&full, |path| must(fs::metadata(path).map(|_| ()))));
    go_cold();
    let start = Instant::now();
    let listed = fs::read_dir(root).into_iter().flatten().flatten();
    let count = listed.filter(|entry| entry.metadata().is_ok()).count();
    rates.push(count as f64 / start.elapsed().as_secs_f64() / 1000.0);
    go_cold();
    rates.push(rate(&full, read_one));
    rates.push(rate(&full, read_one));
    rates.push(rate(&full, |path| must(fs::remove_file(path))));
    rates.push(read_large(&root.join("large")));
    rates
}

/// Where the client runs while a line is measured.
fn pin_client(cpu: Option<usize>) {
    let mut set = rustix::thread::CpuSet::new();
    match cpu {
        Some(cpu) => set.set(cpu),
        None => (0..rustix::thread::CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu)),
    }
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Mounts and unmounts as ButterFS does, whenever standard input says so; names
/// stay in between.
fn serve(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let null = Arc::new(Null {
        state: Mutex::default(),
        style: Style::Stateless,
    });
    let mut session = None;
    for line in std::io::stdin().lines() {
        let done = match line?.as_str() {
            "mount" => {
                let config = Config {
                    wake: Wake::Auto,
                    ..config(1, Pinning::default(), Style::Stateless)
                };
                session = Some(Session::mount(config, directory, Arc::clone(&null))?.spawn()?);
                "mounted"
            }
            "unmount" => {
                if let Some(mut session) = session.take() {
                    session.unmount(UnmountMode::Normal)?;
                }
                "unmounted"
            }
            "forget" => {
                *null.state.lock() = State::default();
                "forgotten"
            }
            word => return Err(format!("what is {word}?").into()),
        };
        println!("{done}");
    }
    Ok(())
}

fn config(threads: usize, pinning: Pinning, style: Style) -> Config {
    let handles = if style == Style::Plain {
        Handles::Kept
    } else {
        Handles::Stateless
    };
    Config {
        threads,
        pinning,
        open: handles,
        opendir: handles,
        mount: MountOptions {
            source: "null".into(),
            ..MountOptions::default()
        },
        ..Config::default()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, directory] = arguments.as_slice()
        && word == "--serve"
    {
        return serve(Path::new(directory));
    }
    let files = arguments.get(1).map_or(Ok(20_000), |count| count.parse())?;
    let heads = [
        "create", "+4K", "stat", "hot", "ls -l", "read", "hot", "unlink", "large",
    ];
    let heads: Vec<String> = heads.iter().map(|head| format!("{head:>7}")).collect();
    println!("{:30} {}", "thousands per second", heads.join(" "));
    let directory = tempfile::tempdir()?;
    let free = || (Pinning::Free, None);
    let together = || (Pinning::Cpus(vec![0, 1]), Some(0));
    for (threads, (pinning, client), style, checks) in [
        (1, free(), Style::Plain, PermissionChecks::Kernel),
        (2, free(), Style::Plain, PermissionChecks::Kernel),
        (1, together(), Style::Plain, PermissionChecks::Kernel),
        (2, together(), Style::Plain, PermissionChecks::Kernel),
        (1, free(), Style::Stateless, PermissionChecks::Kernel),
        (2, free(), Style::Stateless, PermissionChecks::Kernel),
        (1, together(), Style::Stateless, PermissionChecks::Kernel),
        (2, together(), Style::Stateless, PermissionChecks::Kernel),
        (
            1,
            together(),
            Style::Stateless,
            PermissionChecks::FileSystem,
        ),
        (
            2,
            together(),
            Style::Stateless,
            PermissionChecks::FileSystem,
        ),
    ] {
        let label = format!(
            "{threads} {} {} {}",
            if client.is_some() { "pinned" } else { "free  " },
            if style == Style::Plain {
                "plain    "
            } else {
                "stateless"
            },
            if checks == PermissionChecks::Kernel {
                "kernel-checks"
            } else {
                "no-checks"
            },
        );
        let mut config = config(threads, pinning, style);
        config.mount.permission_checks = checks;
        let null = Arc::new(Null {
            state: Mutex::default(),
            style,
        });
        let mount = || {
            let mounted = Session::mount(config.clone(), directory.path(), Arc::clone(&null));
            mounted.and_then(Session::spawn)
        };
        let mut session = mount()?;
        pin_client(client);
        let rates = measure(directory.path(), files, &mut || {
            let again = session.unmount(UnmountMode::Normal).and_then(|()| mount());
            session = again.unwrap_or_else(|error| panic!("{error}"));
        });
        pin_client(None);
        session.unmount(UnmountMode::Normal)?;
        let cells: Vec<String> = rates.iter().map(|rate| format!("{rate:7.1}")).collect();
        println!("{label:30} {}", cells.join(" "));
    }
    Ok(())
}
