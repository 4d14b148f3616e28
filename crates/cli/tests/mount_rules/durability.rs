//! Every way to ask that what was written is on the device. It is judged by the
//! content of the image at the moment of the answer, as if the server were
//! killed then.

use super::io::{Way, Worker, Written};
use super::support::{Bench, Foreground, can_mount, said};
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
