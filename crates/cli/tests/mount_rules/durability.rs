//! Every way to ask that what was written is on the device. It is judged by the
//! content of the image at the moment of the answer, as if the server were
//! killed then.

use super::io::{Way, Worker, Written};
use super::support::{Bench, Foreground, can_mount, is_root, said};
use butterfs::{OpenOptions, Volume};
use rustix::fs::{Mode, OFlags};
use std::path::Path;
use std::process::Command;

const SIZE: usize = 64 << 10;
const OLD: u8 = 1;
const NEW: u8 = 2;

/// How a write is told to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ask {
    flags: &'static str,
    rwf: &'static str,
    sync: &'static str,
}

const fn ask(flags: &'static str, rwf: &'static str, sync: &'static str) -> Ask {
    Ask { flags, rwf, sync }
}

const ASKS: [Ask; 8] = [
    ask("", "0", "none"),
    ask("", "0", "range"),
    ask("", "0", "fsync"),
    ask("", "0", "fdatasync"),
    ask("+SYNC", "0", "none"),
    ask("+DSYNC", "0", "none"),
    ask("", "dsync", "none"),
    ask("", "0", "msync"),
];

impl Ask {
    /// Whether a process can ask for it in this way.
    fn fits(self, way: Way) -> bool {
        match way {
            Way::Mapped => self.flags.is_empty() && self.rwf == "0",
            _ => self.sync != "msync",
        }
    }

    fn promises(self) -> bool {
        !self.flags.is_empty() || self.rwf != "0" || !matches!(self.sync, "none" | "range")
    }
}

/// What a server that ends now would leave of a file.
fn left(bench: &Bench, name: &str) -> Vec<u8> {
    let copied = Command::new("cp")
        .args(["--sparse=always", "volume", "left"])
        .current_dir(bench.path(""))
        .output()
        .expect("cp runs");
    assert!(copied.status.success(), "{}", said(&copied));
    let volume = Volume::open(&bench.path("left"), OpenOptions::default()).expect("a volume");
    content(&volume, name)
}

fn content(volume: &Volume, name: &str) -> Vec<u8> {
    let Ok(id) = volume.resolve(format!("/{name}").as_bytes()) else {
        return Vec::new();
    };
    let inode = volume.files().inode(id).expect("the file");
    let mut found = Vec::new();
    let read = volume.read_chunks::<butterfs::Error>(&inode, &mut |chunk| {
        found.extend_from_slice(chunk);
        Ok(())
    });
    read.expect("its data");
    found
}

fn durable_is_what_was_promised(options: &str) {
    let Some(mut worker) = Worker::start() else {
        return;
    };
    let bench = Bench::new();
    let server = Foreground::start(&bench, options);
    let mut kept = Vec::new();
    let mut broken = Vec::new();
    let cases = worker
        .ways(&bench.path(""))
        .into_iter()
        .flat_map(|way| ASKS.map(|ask| (way, ask)))
        .filter(|(way, ask)| ask.fits(*way))
        .flat_map(|(way, ask)| ["", "+DIRECT"].map(|access| (way, ask, access)))
        .filter(|(way, _, access)| *way != Way::Mapped || access.is_empty())
        .flat_map(|(way, ask, access)| [false, true].map(|over| (way, ask, access, over)));
    for (number, (way, ask, access, is_overwrite)) in cases.enumerate() {
        let name = format!("file{number}");
        let path = bench.path("mnt").join(&name);
        let old = Written {
            way: Way::Psync,
            flags: "RDWR+CREAT",
            rwf: "0",
            offset: 0,
            length: SIZE,
            byte: OLD,
            sync: "fsync",
        };
        // A mapping needs a file that has its size.
        if is_overwrite || way == Way::Mapped {
            worker.write(old, &path).expect("an old file");
        }
        let flags = format!("RDWR+CREAT{access}{}", ask.flags);
        let new = Written {
            way,
            flags: &flags,
            rwf: ask.rwf,
            byte: NEW,
            sync: ask.sync,
            ..old
        };
        worker.write(new, &path).expect("a write");
        let found = left(&bench, &name);
        if ask.promises() {
            if found != [NEW; SIZE] {
                broken.push(format!("{new:?}: {} bytes", found.len()));
            }
            kept.push(name);
        }
    }
    server.kill();
    assert!(
        broken.is_empty(),
        "promised and not kept:\n{}",
        broken.join("\n")
    );
    let volume = Volume::open(&bench.path("volume"), OpenOptions::default()).expect("a volume");
    for name in kept {
        assert!(content(&volume, &name) == [NEW; SIZE], "{name}");
    }
    volume.close().expect("a commit");
    bench.check();
}

#[test]
fn what_is_asked_to_be_durable_is() {
    if can_mount() {
        durable_is_what_was_promised("commit=300");
    }
}

#[test]
fn what_is_asked_to_be_durable_is_with_the_kernels_write_cache() {
    if can_mount() {
        durable_is_what_was_promised("commit=300,writeback");
    }
}

fn copy(from: &Path, to: &Path, flags: OFlags) {
    let from = std::fs::File::open(from).expect("the source");
    let flags = flags | OFlags::WRONLY | OFlags::CREATE;
    let to = rustix::fs::open(to, flags, Mode::from_raw_mode(0o600)).expect("the target");
    let copied = rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), SIZE);
    assert_eq!(copied.expect("a copy"), SIZE);
}

/// After copies within the volume, the kernel asks for nothing.
#[test]
fn a_copy_is_as_durable_as_its_target_was_opened() {
    if !can_mount() {
        return;
    }
    for options in ["commit=300", "commit=300,sync"] {
        let bench = Bench::new();
        let server = Foreground::start(&bench, options);
        let at = |name: &str| bench.path("mnt").join(name);
        std::fs::write(at("from"), [NEW; SIZE]).expect("a file");
        std::fs::File::open(at("from"))
            .expect("it")
            .sync_all()
            .expect("an fsync");
        let mut asked = Vec::new();
        if options.ends_with("sync") {
            copy(&at("from"), &at("mounted so"), OFlags::empty());
            asked.push("mounted so");
        } else {
            copy(&at("from"), &at("not asked"), OFlags::empty());
            assert!(left(&bench, "not asked").is_empty());
            std::fs::write(at("flag"), "").expect("a file");
            let status = Command::new("chattr").arg("+S").arg(at("flag")).status();
            assert!(status.expect("chattr runs").success());
            for (name, flags) in [
                ("data", OFlags::DSYNC),
                ("all", OFlags::SYNC),
                ("flag", OFlags::empty()),
            ] {
                copy(&at("from"), &at(name), flags);
                asked.push(name);
                assert!(left(&bench, name) == [NEW; SIZE], "{name}");
            }
        }
        server.kill();
        let volume = Volume::open(&bench.path("volume"), OpenOptions::default()).expect("a volume");
        for name in asked {
            assert!(content(&volume, name) == [NEW; SIZE], "{name}, {options}");
        }
        volume.close().expect("a commit");
        bench.check();
    }
}

/// Changes two files, one of them through a mapping that stays, while commands
/// run.
const MAPPED: &str = r"
import fcntl, mmap, os, struct, subprocess, sys
os.chdir(sys.argv[1])
butterfs = sys.argv[2:]
def run(*words):
    subprocess.run([*butterfs, *words], check=True, stdout=subprocess.DEVNULL)
run('subvolume', 'create', 'mnt/a')
file = os.open('mnt/a/mapped', os.O_CREAT | os.O_RDWR)
os.ftruncate(file, 1 << 16)
pages = mmap.mmap(file, 1 << 16)
plain = os.open('mnt/a/plain', os.O_CREAT | os.O_RDWR)
def change(byte):
    pages[:] = byte * (1 << 16)
    os.pwrite(plain, byte * (1 << 16), 0)
change(b'1')
run('subvolume', 'snapshot', 'mnt/a', 'mnt/snapshot')
change(b'2')
run('filesystem', 'sync', 'mnt')
subprocess.run(['cp', '--sparse=always', 'volume', 'synced'], check=True)
change(b'3')
top = os.open('mnt', os.O_RDONLY)
fcntl.ioctl(top, 0x8004587d, struct.pack('I', 0))
";

/// Pages that programs changed through a mapping are in the kernel alone.
#[test]
fn what_programs_changed_in_mappings_is_in_snapshots_and_saved() {
    if !can_mount() {
        return;
    }
    for options in ["commit=300", "commit=300,writeback"] {
        let bench = Bench::new();
        let server = Foreground::start(&bench, options);
        let done = Command::new("python3")
            .args(["-c", MAPPED])
            .arg(bench.path(""))
            .arg(env!("CARGO_BIN_EXE_butterfs"))
            .output()
            .expect("python3 runs");
        assert!(done.status.success(), "{}", said(&done));
        server.kill();
        for (image, name, byte) in [
            ("volume", "snapshot/mapped", b'1'),
            ("volume", "snapshot/plain", b'1'),
            ("synced", "a/mapped", b'2'),
            ("synced", "a/plain", b'2'),
            ("volume", "a/mapped", b'3'),
            ("volume", "a/plain", b'3'),
        ] {
            let volume = Volume::open(&bench.path(image), OpenOptions::read_only());
            let found = content(&volume.expect("a volume"), name);
            assert!(found == [byte; SIZE], "{options}: {name} in {image}");
        }
        bench.check();
    }
}

/// Writes to a page that another process changes through a mapping, while a
/// third one syncs the file system.
const BESIDE: &str = r#"
import fcntl, mmap, os, sys, time
file = os.open(os.path.join(sys.argv[1], "beside"), os.O_RDWR | os.O_CREAT)
os.pwrite(file, b"i" * 6000, 0)
children = []
def beside(work):
    child = os.fork()
    if child == 0:
        while True:
            work()
    children.append(child)
page = mmap.mmap(file, 4096)
def store():
    page[100] = (page[100] + 1) % 256
    time.sleep(0.00002)
beside(store)
beside(lambda: fcntl.ioctl(file, 0x9408))
wrong = rounds = 0
end = time.monotonic() + 4
while time.monotonic() < end:
    rounds += 1
    start, last = 1000 + rounds % 997, 2500 + rounds % 991
    data = bytes([1 + rounds % 250]) * (last - start)
    os.ftruncate(file, start)
    os.pwrite(file, data, start)
    wrong += os.pread(file, last, start) != data
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
print(f"{wrong} of {rounds} writes are lost")
sys.exit(wrong * 200 >= rounds)
"#;

/// Bringing in what mappings changed must not bring old bytes over a write that
/// is on its way. Linux itself loses a few: while it writes back a page, it
/// clears what lies beyond the end of the file that it knows. If the server
/// makes it drop pages, one write in 25 is lost.
#[test]
fn a_write_beside_a_mapping_and_a_sync_stays() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let _mounted = bench.mount("rw");
    let done = Command::new("python3")
        .args(["-c", BESIDE])
        .arg(bench.path("mnt"))
        .output()
        .expect("python3 runs");
    assert!(done.status.success(), "{}", said(&done));
}

/// What a command says that it has done is there after the end of the server,
/// if Btrfs promises that.
#[test]
fn commands_have_made_durable_what_they_say() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let source = Bench::new();
    let server = Foreground::start(&source, "commit=300");
    source.run(&["subvolume", "create", "mnt/sent"]);
    std::fs::write(source.path("mnt/sent/file"), [NEW; SIZE]).expect("a file");
    source.run(&["subvolume", "snapshot", "-r", "mnt/sent", "mnt/sent-1"]);
    source.run(&["send", "-q", "-f", "stream", "mnt/sent-1"]);
    server.kill();
    let server = Foreground::start(&bench, "commit=300");
    for name in ["gone", "gone too", "kept", "read-only"] {
        bench.run(&["subvolume", "create", &format!("mnt/{name}")]);
    }
    bench.run(&["filesystem", "sync", "mnt"]);
    bench.run(&["subvolume", "delete", "-C", "mnt/gone", "mnt/gone too"]);
    let volume = |bench: &Bench| {
        let copied = Command::new("cp")
            .args(["--sparse=always", "volume", "left"])
            .current_dir(bench.path(""))
            .status();
        assert!(copied.expect("cp runs").success());
        Volume::open(&bench.path("left"), OpenOptions::read_only()).expect("a volume")
    };
    let now = volume(&bench);
    assert!(now.resolve(b"/gone").is_err() && now.resolve(b"/gone too").is_err());
    assert!(now.resolve(b"/kept").is_ok());
    bench.run(&["property", "set", "mnt/read-only", "ro", "true"]);
    let now = volume(&bench);
    let id = now.resolve(b"/read-only").expect("the subvolume");
    let access = now.files().subvolume_access(id.tree).expect("its access");
    assert_eq!(access, butterfs::Access::ReadOnly);
    bench.run(&[
        "receive",
        "-q",
        "-f",
        source.path("stream").to_str().expect("UTF-8"),
        "mnt",
    ]);
    server.kill();
    let now = Volume::open(&bench.path("volume"), OpenOptions::read_only()).expect("a volume");
    assert!(content(&now, "sent-1/file") == [NEW; SIZE]);
    let id = now.resolve(b"/sent-1").expect("what was received");
    let access = now.files().subvolume_access(id.tree).expect("its access");
    assert_eq!(access, butterfs::Access::ReadOnly);
    let item = now.files().root_item(id.tree).expect("its item");
    assert_ne!(item.received_uuid, [0; 16]);
    bench.check();
}

/// Files on an image that nobody serves are shown with what is only in its
/// fsync log.
#[test]
fn what_a_server_left_in_its_log_is_read_without_a_mount() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let server = Foreground::start(&bench, "commit=300");
    let path = bench.path("mnt/file");
    std::fs::write(&path, "in the log").expect("a file");
    let file = std::fs::File::open(&path).expect("it");
    file.sync_all().expect("an fsync");
    drop(file);
    server.kill();
    let before = std::fs::read(bench.path("volume")).expect("the image");
    assert_eq!(bench.run(&["cat", "volume:/file"]), "in the log");
    assert!(bench.run(&["ls", "volume:/"]).contains("file"));
    bench.run(&["copy", "-q", "volume:/file", "out"]);
    let out = std::fs::read_to_string(bench.path("out")).expect("a copy");
    assert_eq!(out, "in the log");
    let after = std::fs::read(bench.path("volume")).expect("the image");
    assert!(before == after, "the image is read alone");
}

/// Writes to a cache of the kernel, whose times another change makes the kernel
/// tell at once.
const TIMES: &str = r"
import os, sys, time
os.chdir(sys.argv[1])
def times(name):
    facts = os.stat(name)
    return facts.st_mtime_ns, facts.st_ctime_ns
changes = {
    'renamed': lambda name: os.rename(name, name + '-new') or name + '-new',
    'linked': lambda name: os.link(name, name + '-new') or name,
    'marked': lambda name: os.setxattr(name, 'user.x', b'1') or name,
    'left': lambda name: name,
}
told = {}
for name, change in changes.items():
    file = os.open(name, os.O_CREAT | os.O_RDWR)
    os.write(file, b'x')
    name = change(name)
    told[name] = times(name)
    time.sleep(0.05)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
# With 3, the kernel would look for pages of every file system, and wait for it.
with open('/proc/sys/vm/drop_caches', 'w') as out:
    out.write('2')
for name, before in told.items():
    assert times(name) == before, (name, before, times(name))
";

#[test]
fn cached_data_are_as_old_as_the_write() {
    if !can_mount() {
        return;
    }
    if !is_root() {
        println!("skipped: dropping caches needs root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return;
    }
    let bench = Bench::new();
    let _mounted = bench.mount("writeback");
    let done = Command::new("python3")
        .args(["-c", TIMES])
        .arg(bench.path("mnt"))
        .output()
        .expect("python3 runs");
    assert!(done.status.success(), "{}", said(&done));
}
