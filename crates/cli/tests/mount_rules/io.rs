//! Another process that reads and writes by every way that Linux has.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The program of the other process, and its language.
const PROGRAM: &str = include_str!("io_worker.py");

/// How a process reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Psync,
    Libaio,
    IoUring,
    Mapped,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::Psync, Self::Libaio, Self::IoUring, Self::Mapped];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Psync => "psync",
            Self::Libaio => "libaio",
            Self::IoUring => "io_uring",
            Self::Mapped => "mmap",
        }
    }
}

/// A write of one byte's value over a range of a file.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    pub way: Way,
    /// As of open(2), joined by `+`.
    pub flags: &'a str,
    /// `0` or `dsync`.
    pub rwf: &'a str,
    pub offset: usize,
    pub length: usize,
    pub byte: u8,
    /// `none`, `fsync`, `fdatasync`, `msync` or `range`.
    pub sync: &'a str,
}

/// The other process.
pub struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts it; `None`, with a message, if this machine cannot.
    pub fn start() -> Option<Self> {
        let child = Command::new("python3")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            println!("skipped: python3 is not installed");
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            return None;
        };
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Some(Self {
            child,
            input,
            output,
        })
    }

    /// The ways that this machine's kernel lets processes use. They are tried
    /// on a file in `directory`.
    pub fn ways(&mut self, directory: &Path) -> Vec<Way> {
        let file = directory.join("tried");
        std::fs::write(&file, [0; 4096]).expect("a file");
        let works = |way: &Way| {
            self.ask_read(*way, "RDWR", (0, 1), &file);
            let works = self.answer().is_ok();
            if !works {
                println!("skipped: this machine refuses {}", way.name());
            }
            works
        };
        Way::ALL.into_iter().filter(works).collect()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it listens");
    }

    /// Asks for a write; [`Worker::answer`] waits for it.
    pub fn ask_write(&mut self, written: Written<'_>, path: &Path) {
        let Written {
            way,
            flags,
            rwf,
            offset,
            length,
            byte,
            sync,
        } = written;
        let path = path.display();
        self.say(&format!(
            "write {} {flags} {rwf} {offset} {length} {byte} {sync} {path}",
            way.name()
        ));
    }

    /// Asks for a range's content; [`Worker::answer`] waits for it.
    pub fn ask_read(&mut self, way: Way, flags: &str, (at, length): (usize, usize), path: &Path) {
        let path = path.display();
        self.say(&format!("read {} {flags} {at} {length} {path}", way.name()));
    }

    /// The result of the oldest request, or the error's number.
    pub fn answer(&mut self) -> Result<Vec<u8>, i32> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("an answer");
        let line = line.trim();
        if let Some(number) = line.strip_prefix("errno ") {
            return Err(number.parse().expect("a number"));
        }
        if line == "ok" {
            return Ok(Vec::new());
        }
        let digits = |at: usize| u8::from_str_radix(&line[at..at + 2], 16);
        Ok((0..line.len())
            .step_by(2)
            .map(|at| digits(at).expect("hex"))
            .collect())
    }

    pub fn write(&mut self, written: Written<'_>, path: &Path) -> Result<(), i32> {
        self.ask_write(written, path);
        self.answer().map(drop)
    }

    pub fn read(
        &mut self,
        way: Way,
        flags: &str,
        range: (usize, usize),
        path: &Path,
    ) -> Result<Vec<u8>, i32> {
        self.ask_read(way, flags, range, path);
        self.answer()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
