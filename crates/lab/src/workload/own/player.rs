//! Plays what file server clients did, from a load file of dbench or one of its
//! own making, with data that compress as asked.
//!
//! Each client has a directory of its own and repeats the load until the time
//! is over. Locks, and attributes that our files do not have, are skipped.

use super::super::content::{Content, POOL, Pool};
use super::super::crowd::{Stop, crowd};
use super::super::files::{Caching, Files, OpenFile};
use super::super::measure::{Recorder, less, more};
use super::super::parameters::Given;
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use super::load::{Load, Operation};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// The player of load files.
pub(in super::super) struct Player;

struct Plan {
    clients: usize,
    seconds: u64,
    loops: u64,
    loadfile: String,
    compressible: u8,
}

impl Plan {
    fn new(workload: &Player, parameters: &Parameters) -> Result<Self, String> {
        let given = Given::new(workload, parameters)?;
        let plan = Self {
            clients: given.count("clients", 1, 1000)?,
            seconds: given.number("time", 0, 86_400)?,
            loops: given.number("loops", 0, u64::MAX)?,
            loadfile: given.text("loadfile").to_owned(),
            compressible: given.compressible()?,
        };
        if plan.seconds == 0 && plan.loops == 0 {
            return Err("player: one of time and loops must be more than 0".to_owned());
        }
        Ok(plan)
    }
}

impl Workload for Player {
    fn name(&self) -> &'static str {
        "player"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("clients", "1", "clients"),
            ("time", "60", "seconds; 0 is without limit"),
            (
                "loops",
                "0",
                "times that each client plays the load at most; 0 is without limit",
            ),
            (
                "loadfile",
                "own",
                "own: an office's morning, drawn from the seed; or the path of a load file of \
                 dbench (/usr/share/dbench/client.txt)",
            ),
            (
                "compressible",
                "50",
                "per cent that a compressor can take away",
            ),
        ]
    }

    fn is_by_files(&self) -> bool {
        true
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let plan = Plan::new(self, parameters)?;
        let time = match plan.seconds {
            0 => plan.loops * 60,
            seconds => seconds,
        };
        Ok(Demand {
            space: plan.clients as u64 * (48 << 20),
            memory: plan.clients as u64 * (4 << 20) + (64 << 20),
            time: Duration::from_secs(time + 2),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = Plan::new(self, parameters)?;
        let load = match plan.loadfile.as_str() {
            "own" => Load::drawn(ground.seed()),
            path => Load::read(std::path::Path::new(path))?,
        };
        let mut figures = Figures::default();
        super::facts(&mut figures, "player", ground.seed(), plan.compressible);
        figures.fact("loadfile", plan.loadfile.as_str());
        figures.fact("operations of the load", load.operations.len().to_string());
        figures.fact("data", "repeat after 1 MiB");
        let pool = Pool::new(Content::new(ground.seed(), plan.compressible));
        ground.next_phase("clients")?;
        let files = ground.files();
        for client in 0..plan.clients {
            files.mkdir(&format!("client{client}"))?;
        }
        let start = Instant::now();
        let end = (plan.seconds > 0).then(|| start + Duration::from_secs(plan.seconds));
        let played = crowd(ground, plan.clients, |number, stop| {
            let mut client = Client::new(number, files.as_ref(), &pool, start);
            let mut loops = 0;
            while plan.loops == 0 || loops < plan.loops {
                if !client.play(&load, end, stop)? {
                    break;
                }
                loops += 1;
            }
            Ok(client.heard)
        })?;
        let stopped = Instant::now();
        let seconds = (stopped - start).as_secs_f64();
        report(&played, start, stopped, seconds, &mut figures);
        Ok(figures)
    }
}

fn report(played: &[Heard], start: Instant, stopped: Instant, seconds: f64, figures: &mut Figures) {
    let mut kinds: BTreeMap<&'static str, Recorder> = BTreeMap::new();
    let mut all = Recorder::new(start);
    let mut wrong = Vec::new();
    let (mut written, mut checked) = (0, 0);
    for heard in played {
        for (kind, recorder) in &heard.kinds {
            kinds
                .entry(kind)
                .or_insert_with(|| Recorder::new(start))
                .merge(recorder);
            all.merge(recorder);
        }
        wrong.extend_from_slice(&heard.wrong);
        written += heard.written;
        checked += heard.checked;
    }
    figures.add(more("throughput", "bytes/s", all.bytes as f64 / seconds).headline());
    figures.add(more(
        "operations",
        "operations/s",
        all.count as f64 / seconds,
    ));
    let latencies = all.latencies("operation");
    if let Some(longest) = crate::stats::percentile(&latencies, 1.0) {
        figures.add(less("longest latency", "s", longest));
    }
    figures.add_percentiles(&latencies);
    figures.latencies.push(latencies);
    for (kind, recorder) in &kinds {
        let latencies = recorder.latencies(kind);
        figures.add_percentiles(&latencies);
        figures.latencies.push(latencies);
    }
    figures.series.extend(all.series("operations", stopped));
    figures.operations = Some(all.count);
    figures.written = Some(written);
    figures.content(checked, &wrong);
}

/// What a client measured and found.
struct Heard {
    kinds: HashMap<&'static str, Recorder>,
    wrong: Vec<String>,
    written: u64,
    checked: u64,
}

/// What a file holds: the content of `identity`, in the ranges that were
/// written.
#[derive(Clone, Default)]
struct Known {
    identity: u64,
    /// Ranges, apart from each other, ascending.
    written: Vec<(u64, u64)>,
}

impl Known {
    fn write(&mut self, from: u64, to: u64) {
        let (mut from, mut to) = (from, to);
        self.written.retain(|&(a, b)| {
            let is_apart = b < from || a > to;
            if !is_apart {
                from = from.min(a);
                to = to.max(b);
            }
            is_apart
        });
        let place = self.written.partition_point(|&(a, _)| a < from);
        self.written.insert(place, (from, to));
    }

    fn holds(&self, from: u64, to: u64) -> bool {
        self.written.iter().any(|&(a, b)| a <= from && to <= b)
    }
}

struct Opened {
    file: Box<dyn OpenFile>,
    path: String,
    /// Another file may have the path by now.
    identity: u64,
}

struct Client<'a> {
    root: String,
    files: &'a dyn Files,
    pool: &'a Pool,
    start: Instant,
    opened: HashMap<u64, Opened>,
    known: HashMap<String, Known>,
    identities: u64,
    buffer: Vec<u8>,
    heard: Heard,
}

impl<'a> Client<'a> {
    fn new(number: usize, files: &'a dyn Files, pool: &'a Pool, start: Instant) -> Self {
        Self {
            root: format!("client{number}"),
            files,
            pool,
            start,
            opened: HashMap::new(),
            known: HashMap::new(),
            identities: (number as u64) << 40,
            buffer: vec![0; POOL],
            heard: Heard {
                kinds: HashMap::new(),
                wrong: Vec::new(),
                written: 0,
                checked: 0,
            },
        }
    }

    /// False when it ended before the load did.
    fn play(&mut self, load: &Load, end: Option<Instant>, stop: &Stop) -> Result<bool, String> {
        self.opened.clear();
        for operation in &load.operations {
            if stop.is_asked() || end.is_some_and(|end| Instant::now() >= end) {
                return Ok(false);
            }
            self.step(operation)?;
        }
        Ok(true)
    }

    fn time<T>(
        &mut self,
        kind: &'static str,
        bytes: u64,
        operation: impl FnOnce(&dyn Files) -> Result<T, String>,
    ) -> Result<T, String> {
        let start = self.start;
        let recorder = self.heard.kinds.entry(kind);
        let recorder = recorder.or_insert_with(|| Recorder::new(start));
        let files = self.files;
        recorder.time(bytes, || operation(files))
    }

    fn path(&self, path: &str) -> String {
        match path {
            "" => self.root.clone(),
            _ => format!("{}/{path}", self.root),
        }
    }

    fn step(&mut self, operation: &Operation) -> Result<(), String> {
        match operation {
            Operation::Open { path, handle } => self.open(path, *handle),
            Operation::Mkdir { path } => {
                let path = self.path(path);
                // It may be there from the loop before.
                self.time("mkdir", 0, |files| Ok(files.mkdir(&path).ok()))?;
                Ok(())
            }
            Operation::Missing { path } => {
                let path = self.path(path);
                self.time("stat of nothing", 0, |files| Ok(files.stat(&path).ok()))?;
                Ok(())
            }
            Operation::Stat { path } => {
                let path = self.path(path);
                // A load may ask for what another client made when it was
                // recorded.
                self.time("stat", 0, |files| Ok(files.stat(&path).ok()))?;
                Ok(())
            }
            Operation::List { path } => {
                let path = self.path(path);
                self.time("list", 0, |files| Ok(files.list(&path).ok()))?;
                Ok(())
            }
            Operation::Unlink { path } => {
                let path = self.path(path);
                if self.known.remove(&path).is_some() {
                    self.time("unlink", 0, |files| files.unlink(&path))?;
                }
                Ok(())
            }
            Operation::Rename { from, to } => {
                let (from, to) = (self.path(from), self.path(to));
                if let Some(known) = self.known.remove(&from) {
                    self.time("rename", 0, |files| files.rename(&from, &to))?;
                    self.known.insert(to, known);
                }
                Ok(())
            }
            Operation::DeleteTree { path } => self.delete_tree(&self.path(path)),
            Operation::Close { handle } => {
                if let Some(opened) = self.opened.remove(handle) {
                    self.time("close", 0, |_| {
                        drop(opened);
                        Ok(())
                    })?;
                }
                Ok(())
            }
            Operation::Flush { handle } => self.with(*handle, |client, opened| {
                client.time("flush", 0, |_| opened.file.fsync())
            }),
            Operation::Write {
                handle,
                offset,
                length,
            } => self.write(*handle, *offset, *length),
            Operation::Read {
                handle,
                offset,
                length,
            } => self.read(*handle, *offset, *length),
        }
    }

    /// Handles of what could not be opened have no file.
    fn with(
        &mut self,
        handle: u64,
        act: impl FnOnce(&mut Self, &Opened) -> Result<(), String>,
    ) -> Result<(), String> {
        let Some(opened) = self.opened.remove(&handle) else {
            return Ok(());
        };
        let result = act(self, &opened);
        self.opened.insert(handle, opened);
        result
    }

    fn open(&mut self, path: &str, handle: u64) -> Result<(), String> {
        let path = self.path(path);
        let known = self.known.get(&path).map(|known| known.identity);
        let (file, identity) = if let Some(identity) = known {
            let file = self.time("open", 0, |files| files.open(&path, Caching::Cached))?;
            (file, identity)
        } else {
            self.identities += 1;
            let identity = self.identities;
            let file = self.time("create", 0, |files| files.create(&path, Caching::Cached))?;
            let known = Known {
                identity,
                written: Vec::new(),
            };
            self.known.insert(path.clone(), known);
            (file, identity)
        };
        let opened = Opened {
            file,
            path,
            identity,
        };
        self.opened.insert(handle, opened);
        Ok(())
    }

    fn write(&mut self, handle: u64, offset: u64, length: u64) -> Result<(), String> {
        self.with(handle, |client, opened| {
            let known = client.known.get_mut(&opened.path);
            if let Some(known) = known.filter(|known| known.identity == opened.identity) {
                known.write(offset, offset + length);
            }
            let pool = client.pool;
            let bytes = pool.at(opened.identity, offset, (length as usize).min(POOL));
            client.heard.written += bytes.len() as u64;
            client.time("write", bytes.len() as u64, |_| {
                opened.file.write_at(offset, bytes)
            })
        })
    }

    fn read(&mut self, handle: u64, offset: u64, length: u64) -> Result<(), String> {
        self.with(handle, |client, opened| {
            let length = (length as usize).min(POOL);
            let mut buffer = std::mem::take(&mut client.buffer);
            let part = &mut buffer[..length];
            let read = client.time("read", length as u64, |_| opened.file.read_at(offset, part));
            if let (Ok(read), Some(known)) = (&read, client.known.get(&opened.path))
                && known.identity == opened.identity
                && known.holds(offset, offset + length as u64)
            {
                client.heard.checked += length as u64;
                let expected = client.pool.at(known.identity, offset, length);
                if *read != length || part != expected {
                    client
                        .heard
                        .wrong
                        .push(format!("{} near {offset}", opened.path));
                }
            }
            client.buffer = buffer;
            read.map(|_| ())
        })
    }

    fn delete_tree(&mut self, path: &str) -> Result<(), String> {
        let files = self.files;
        let prefix = format!("{path}/");
        self.known.retain(|known, _| !known.starts_with(&prefix));
        self.time("delete tree", 0, |_| {
            // A load begins with deleting what is not there yet.
            for name in files.list(path).unwrap_or_default() {
                delete_all(files, &format!("{path}/{name}"))?;
            }
            Ok(())
        })
    }
}

fn delete_all(files: &dyn Files, path: &str) -> Result<(), String> {
    if files.unlink(path).is_ok() {
        return Ok(());
    }
    for name in files.list(path)? {
        delete_all(files, &format!("{path}/{name}"))?;
    }
    files.rmdir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let mut known = Known::default();
        known.write(10, 20);
        known.write(30, 40);
        assert!(known.holds(10, 20) && !known.holds(15, 31));
        known.write(20, 30);
        assert_eq!(known.written, [(10, 40)]);
        known.write(0, 5);
        assert_eq!(known.written, [(0, 5), (10, 40)]);
        assert!(!known.holds(4, 11));
    }
}
