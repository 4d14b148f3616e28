//! Progress of work on many files: how many of how many, bytes, time left.
//!
//! The total is counted beside the work, by a thread of its own, and only if
//! somebody sees it: in a terminal.

use crate::fail::Failure;
use crate::sizes::human;
use butterfs::{InodeId, Volume, Walk};
use indicatif::{HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A file without content counts for this many bytes.
const FILE_BYTES: u64 = 16 << 10;

/// Work done, or to be done.
#[derive(Debug, Default)]
struct Amount {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Amount {
    fn add(&self, bytes: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn work(&self, by: u64) -> u64 {
        self.bytes() + self.files() * by
    }
}

#[derive(Debug, Default)]
struct State {
    done: Amount,
    all: Amount,
    /// Everything to be done is counted.
    is_counted: AtomicBool,
    /// Nobody wants to know any more.
    is_over: AtomicBool,
}

impl State {
    /// The text of the line after this time.
    fn line(&self, passed: Duration) -> String {
        let (files, bytes) = (self.done.files(), self.done.bytes());
        let rate = |line: &mut String| {
            let per_second = bytes as f64 / passed.as_secs_f64().max(0.001);
            let _ = write!(line, " ({}/s", human(per_second as u64));
        };
        let mut line = String::new();
        if !self.is_counted.load(Ordering::Acquire) {
            let _ = write!(line, "{files} files, {}", human(bytes));
            rate(&mut line);
            line.push(')');
            return line;
        }
        // For an archive, only the bytes are known.
        let (of_files, each) = match self.all.files() {
            0 => (String::new(), 0),
            all => (format!(" of {all}"), FILE_BYTES),
        };
        let all = self.all.work(each);
        let done = self.done.work(each).min(all);
        let (bytes, all_bytes) = (human(bytes), human(self.all.bytes()));
        let _ = write!(line, "{files}{of_files} files, {bytes} of {all_bytes}");
        rate(&mut line);
        if done > 0 {
            let left = passed.mul_f64((all - done) as f64 / done as f64);
            let _ = write!(line, ", {} left", HumanDuration(left));
        }
        line.push(')');
        line
    }
}

/// Shows the progress. Dropping it removes the line.
#[derive(Debug)]
pub struct FilesBar {
    bar: ProgressBar,
    state: Arc<State>,
    counting: Option<JoinHandle<()>>,
}

/// What becomes of the holes of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// They count as content.
    Copied,
    /// They cost nothing.
    LeftOut,
}

/// Takes what threads report of their work.
#[derive(Clone, Debug)]
pub struct Done(Arc<State>);

impl Done {
    /// Counts one more file.
    pub fn file(&self) {
        self.0.done.add(0);
    }

    /// Wraps `reader` so that its bytes are counted.
    pub fn reading<R: Read>(&self, reader: R) -> impl Read {
        Reading(reader, self.clone())
    }

    /// Counts more bytes.
    pub fn data(&self, bytes: u64) {
        self.0.done.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl FilesBar {
    /// Begins. Nothing is shown if standard error is not a terminal.
    pub fn new(quiet: bool) -> Self {
        let state = Arc::new(State::default());
        let bar = match quiet {
            true => ProgressBar::hidden(),
            false => ProgressBar::new_spinner(),
        };
        let (shown, begun) = (Arc::clone(&state), Instant::now());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {far}") {
            let line = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
                let _ = out.write_str(&shown.line(begun.elapsed()));
            };
            bar.set_style(style.with_key("far", line));
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Self {
            bar,
            state,
            counting: None,
        }
    }

    /// What a thread needs to report its work.
    pub fn done(&self) -> Done {
        Done(Arc::clone(&self.state))
    }

    /// Counts what is to be done: sources of the host.
    pub fn count_host(&mut self, sources: &[OsString]) {
        let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
        self.count(move |state| {
            count_host(state, sources);
        });
    }

    /// Adds what is to be done: what is at a path of a volume, and everything
    /// below it.
    pub fn count_volume(&mut self, volume: &Volume, start: InodeId, holes: Holes) {
        let volume = volume.share();
        self.count(move |state| {
            // The thread that copies reports what cannot be read.
            let _ = volume.walk::<Failure>(start, &mut |entry| {
                let of = &entry.attributes;
                let is_file = of.mode & libc::S_IFMT == libc::S_IFREG;
                let bytes = match holes {
                    Holes::Copied => of.size,
                    Holes::LeftOut => of.size.min(of.allocated),
                };
                state.all.add(if is_file { bytes } else { 0 });
                match state.is_over.load(Ordering::Relaxed) {
                    true => Ok(Walk::Stop),
                    false => Ok(Walk::Enter),
                }
            });
        });
    }

    /// What is to be done: this many bytes of an archive.
    pub fn expect_bytes(&mut self, bytes: u64) {
        self.state.all.bytes.store(bytes, Ordering::Relaxed);
        self.state.is_counted.store(true, Ordering::Release);
    }

    /// Runs `count` on a thread of its own, if somebody sees the result.
    /// Without a thread only the totals are missing.
    fn count(&mut self, count: impl FnOnce(&State) + Send + 'static) {
        if self.bar.is_hidden() {
            return;
        }
        self.join();
        self.state.is_counted.store(false, Ordering::Release);
        let state = Arc::clone(&self.state);
        let thread = std::thread::Builder::new().spawn(move || {
            count(&state);
            state.is_counted.store(true, Ordering::Release);
        });
        self.counting = thread.ok();
    }

    /// The work that was counted has ended, or nobody wants its totals any
    /// more.
    fn join(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.counting.take() {
            let _ = thread.join();
        }
        self.state.is_over.store(false, Ordering::Relaxed);
    }

    /// Takes the line away.
    pub fn end(&mut self) {
        self.join();
        self.bar.finish_and_clear();
    }
}

impl FilesBar {
    /// The line itself, for whoever prints beside it.
    pub fn line(&self) -> ProgressBar {
        self.bar.clone()
    }
}

impl Drop for FilesBar {
    fn drop(&mut self) {
        self.end();
    }
}

struct Reading<R>(R, Done);

impl<R: Read> Read for Reading<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(buf)?;
        self.1.data(count as u64);
        Ok(count)
    }
}

fn count_host(state: &State, mut waiting: Vec<PathBuf>) {
    let mut linked = HashSet::new();
    while let Some(path) = waiting.pop() {
        if state.is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(meta) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        let again = meta.nlink() > 1 && !meta.is_dir() && !linked.insert((meta.dev(), meta.ino()));
        let has_content = meta.is_file() && !again;
        // Holes are not copied.
        let bytes = meta.len().min(meta.blocks() * 512);
        state.all.add(if has_content { bytes } else { 0 });
        if meta.is_dir()
            && let Ok(entries) = std::fs::read_dir(&path)
        {
            waiting.extend(entries.flatten().map(|entry| entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_of_how_much() {
        let state = State::default();
        for _ in 0..3 {
            state.done.add(1 << 20);
        }
        let two = Duration::from_secs(2);
        assert_eq!(state.line(two), "3 files, 3.00MiB (1.50MiB/s)");
        for _ in 0..9 {
            state.all.add(1 << 20);
        }
        state.is_counted.store(true, Ordering::Release);
        let line = state.line(two);
        assert_eq!(
            line,
            "3 of 9 files, 3.00MiB of 9.00MiB (1.50MiB/s, 4 seconds left)"
        );
        // There is more than was counted, because the files grew.
        for _ in 0..9 {
            state.done.add(1 << 20);
        }
        assert!(state.line(two).contains("12 of 9 files"));
        assert!(state.line(two).contains("0 seconds left"));
    }

    #[test]
    fn the_host_is_counted_once() {
        let folder = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(folder.path().join("below")).expect("a directory");
        std::fs::write(folder.path().join("below/one"), [1; 5000]).expect("a file");
        let (one, two) = (folder.path().join("below/one"), folder.path().join("two"));
        std::fs::hard_link(one, two).expect("a link");
        let state = State::default();
        count_host(&state, vec![folder.path().to_owned()]);
        assert_eq!((state.all.files(), state.all.bytes()), (4, 5000));
    }
}
