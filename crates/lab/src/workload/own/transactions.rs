//! Transactions as InnoDB has them: random pages of 16 KiB read and changed,
//! a redo log with group commit, and a page cleaner that writes changed pages
//! in batches, through a doublewrite area or not.
//!
//! A transaction reads pages (those that are changed and not yet written are
//! in memory), changes some, and is over when its redo is durable. One that
//! finds too many changed pages waits for the cleaner, as a full log makes
//! databases wait: that is where stalls come from.

use super::super::content::{Content, Version};
use super::super::crowd::{Stop, crowd};
use super::super::files::{Aligned, Caching, OpenFile};
use super::super::measure::{Recorder, less, more};
use super::super::parameters::Given;
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use crate::stats::Random;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Transactions.
pub(in super::super) struct Transactions;

const TABLES: &str = "tables";
const LOG: &str = "redo-log";
const DOUBLEWRITE: &str = "doublewrite";

struct Plan {
    pages: u64,
    page: u64,
    log: u64,
    redo: u64,
    threads: usize,
    seconds: u64,
    transactions: u64,
    reads: u64,
    writes: u64,
    batch: usize,
    has_doublewrite: bool,
    is_durable: bool,
    is_preallocated: bool,
    caching: Caching,
    compressible: u8,
}

impl Plan {
    fn new(workload: &Transactions, parameters: &Parameters) -> Result<Self, String> {
        let given = Given::new(workload, parameters)?;
        let page = given.bytes("page", 4096, 1 << 20)?;
        if page % 4096 != 0 {
            return Err(format!(
                "transactions: page = {page} is no multiple of 4096"
            ));
        }
        let plan = Self {
            pages: given.bytes("size", page, 1 << 44)? / page,
            page,
            log: given.bytes("log", 64 << 10, 1 << 40)? / 4096 * 4096,
            redo: given.bytes("redo", 512, 32 << 10)?.next_multiple_of(512),
            threads: given.count("threads", 1, 1000)?,
            seconds: given.number("time", 0, 86_400)?,
            transactions: given.number("transactions", 0, u64::MAX)?,
            reads: given.number("reads", 0, 10_000)?,
            writes: given.number("writes", 1, 10_000)?,
            batch: given.count("batch", 1, 1 << 20)?,
            has_doublewrite: given.is_yes("doublewrite")?,
            is_durable: given.is_yes("durable")?,
            is_preallocated: given.is_yes("preallocate")?,
            caching: match given.is_yes("direct")? {
                true => Caching::Direct,
                false => Caching::Cached,
            },
            compressible: given.compressible()?,
        };
        if plan.seconds == 0 && plan.transactions == 0 {
            return Err(
                "transactions: one of time and transactions must be more than 0".to_owned(),
            );
        }
        Ok(plan)
    }
}

impl Workload for Transactions {
    fn name(&self) -> &'static str {
        "transactions"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("size", "1g", "bytes of the tables"),
            ("page", "16k", "bytes of a page"),
            (
                "log",
                "64m",
                "bytes of the redo log, written round and round",
            ),
            ("redo", "1k", "bytes of redo of a transaction"),
            ("threads", "4", "clients"),
            ("time", "60", "seconds; 0 is without limit"),
            (
                "transactions",
                "0",
                "transactions of each client at most; 0 is without limit",
            ),
            ("reads", "10", "pages that a transaction reads"),
            ("writes", "4", "pages that it changes"),
            (
                "batch",
                "128",
                "changed pages that the cleaner writes at once; clients wait at four times as many",
            ),
            (
                "doublewrite",
                "yes",
                "changed pages are written to another place first",
            ),
            (
                "durable",
                "yes",
                "a transaction waits for its redo to be on the medium",
            ),
            (
                "preallocate",
                "no",
                "space of the tables is allotted before they are filled",
            ),
            (
                "direct",
                "yes",
                "O_DIRECT for pages; the log is always cached",
            ),
            (
                "compressible",
                "50",
                "per cent that a compressor can take away",
            ),
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let plan = Plan::new(self, parameters)?;
        let tables = plan.pages * plan.page;
        let doublewrite = plan.batch as u64 * plan.page;
        let time = match plan.seconds {
            0 => plan.transactions * plan.threads as u64 / 200 + 1,
            seconds => seconds,
        };
        Ok(Demand {
            space: tables + plan.log + doublewrite,
            memory: plan.pages * 8 + doublewrite * 6 + (32 << 20),
            time: Duration::from_secs(time + 2 * tables / (100 << 20) + 1),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = Plan::new(self, parameters)?;
        let content = Content::new(ground.seed(), plan.compressible);
        let mut figures = Figures::default();
        super::facts(
            &mut figures,
            "transactions",
            ground.seed(),
            plan.compressible,
        );
        ground.next_phase("fill")?;
        fill(&plan, content, ground)?;
        ground.next_phase("transactions")?;
        let versions = transact(&plan, content, ground, &mut figures)?;
        ground.next_phase("check")?;
        let wrong = check(&plan, content, &versions, ground)?;
        figures.content(plan.pages * plan.page, &wrong);
        figures.keep = [TABLES, LOG].map(PathBuf::from).to_vec();
        if !plan.is_durable {
            figures.mark("transactions are not durable when they end");
        }
        Ok(figures)
    }
}

/// Pages are places of one file; the version tells their changes apart.
fn tables(version: u64) -> Version {
    Version { file: 0, version }
}

fn fill(plan: &Plan, content: Content, ground: &dyn Ground) -> Result<(), String> {
    let files = ground.files();
    crowd(ground, 1, |_, stop| {
        let file = files.create(TABLES, Caching::Cached)?;
        if plan.is_preallocated {
            file.preallocate(plan.pages * plan.page)?;
        }
        let mut part = vec![0; 1 << 20];
        let end = plan.pages * plan.page;
        let mut offset = 0;
        while offset < end && !stop.is_asked() {
            let length = (end - offset).min(part.len() as u64) as usize;
            content.fill(tables(0), offset, &mut part[..length]);
            file.write_at(offset, &part[..length])?;
            offset += length as u64;
        }
        file.fsync()?;
        let log = files.create(LOG, Caching::Cached)?;
        let mut offset = 0;
        while offset < plan.log && !stop.is_asked() {
            let length = (plan.log - offset).min(part.len() as u64) as usize;
            content.fill(
                Version {
                    file: 1,
                    version: 0,
                },
                offset,
                &mut part[..length],
            );
            log.write_at(offset, &part[..length])?;
            offset += length as u64;
        }
        log.fsync()?;
        if plan.has_doublewrite {
            files.create(DOUBLEWRITE, Caching::Cached)?.fsync()?;
        }
        Ok(())
    })?;
    Ok(())
}

/// A lock that a panicking thread left is still a lock: the panic itself
/// ends the workload.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct LogState {
    /// Bytes of redo that clients handed in.
    written: u64,
    /// Bytes that are on the medium.
    durable: u64,
    is_writing: bool,
    error: Option<String>,
}

#[derive(Default)]
struct Dirty {
    pages: BTreeSet<u64>,
    /// Being written; still in memory.
    leaving: BTreeSet<u64>,
    error: Option<String>,
}

struct Database<'a> {
    plan: &'a Plan,
    content: Content,
    tables: Box<dyn OpenFile>,
    log_file: Box<dyn OpenFile>,
    doublewrite: Option<Box<dyn OpenFile>>,
    log: Mutex<LogState>,
    log_moved: Condvar,
    dirty: Mutex<Dirty>,
    dirty_moved: Condvar,
    versions: Vec<AtomicU64>,
    clients: AtomicUsize,
    start: Instant,
}

#[derive(Debug)]
struct Measured {
    transactions: Recorder,
    reads: Recorder,
    writes: Recorder,
    fsyncs: Recorder,
    waits: Recorder,
    written: u64,
    /// Of all pages that were drawn, in their order by each client.
    choices: u64,
}

impl Measured {
    fn new(start: Instant) -> Self {
        let recorder = Recorder::new(start);
        Self {
            transactions: recorder.clone(),
            reads: recorder.clone(),
            writes: recorder.clone(),
            fsyncs: recorder.clone(),
            waits: recorder,
            written: 0,
            choices: 0,
        }
    }

    fn merge(&mut self, other: &Self) {
        self.transactions.merge(&other.transactions);
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.fsyncs.merge(&other.fsyncs);
        self.waits.merge(&other.waits);
        self.written += other.written;
        self.choices = self.choices.wrapping_add(other.choices);
    }
}

/// How long a wait lasts before it looks whether all should end.
const GLANCE: Duration = Duration::from_millis(100);

impl Database<'_> {
    fn client(&self, index: usize, seed: u64, stop: &Stop) -> Result<Measured, String> {
        let plan = self.plan;
        let mut random = Random::new(seed ^ (index as u64 + 1).wrapping_mul(0xA076_1D64_78BD_642F));
        let mut measured = Measured::new(self.start);
        let mut page = Aligned::new(plan.page as usize);
        let end = (plan.seconds > 0).then(|| self.start + Duration::from_secs(plan.seconds));
        let pages = usize::try_from(plan.pages).map_err(|_| "the tables are too large")?;
        let mut draw = |measured: &mut Measured| {
            let page = random.below(pages) as u64;
            measured.choices = Random::new(measured.choices ^ page).bits();
            page
        };
        while !stop.is_asked()
            && end.is_none_or(|end| Instant::now() < end)
            && (plan.transactions == 0 || measured.transactions.count < plan.transactions)
        {
            let began = Instant::now();
            for _ in 0..plan.reads {
                let number = draw(&mut measured);
                self.read(number, &mut page, &mut measured)?;
            }
            let changed: Vec<u64> = (0..plan.writes).map(|_| draw(&mut measured)).collect();
            for number in &changed {
                // A page must be in memory to be changed.
                self.read(*number, &mut page, &mut measured)?;
            }
            self.change(&changed, stop, &mut measured)?;
            self.commit(stop, &mut measured)?;
            measured.transactions.record(began, Instant::now(), 0);
        }
        Ok(measured)
    }

    fn read(&self, number: u64, page: &mut Aligned, measured: &mut Measured) -> Result<(), String> {
        {
            let dirty = lock(&self.dirty);
            if dirty.pages.contains(&number) || dirty.leaving.contains(&number) {
                return Ok(());
            }
        }
        let read = measured.reads.time(self.plan.page, || {
            self.tables.read_at(number * self.plan.page, page.bytes())
        })?;
        if read as u64 == self.plan.page {
            return Ok(());
        }
        Err(format!("page {number} of {TABLES} has {read} bytes"))
    }

    fn change(&self, pages: &[u64], stop: &Stop, measured: &mut Measured) -> Result<(), String> {
        let began = Instant::now();
        let mut has_waited = false;
        let mut dirty = lock(&self.dirty);
        while dirty.pages.len() + dirty.leaving.len() >= self.plan.batch * 4 && !stop.is_asked() {
            if let Some(error) = &dirty.error {
                return Err(error.clone());
            }
            has_waited = true;
            let (next, _) = self
                .dirty_moved
                .wait_timeout(dirty, GLANCE)
                .unwrap_or_else(PoisonError::into_inner);
            dirty = next;
        }
        dirty.pages.extend(pages);
        if dirty.pages.len() >= self.plan.batch {
            self.dirty_moved.notify_all();
        }
        drop(dirty);
        if has_waited {
            measured.waits.record(began, Instant::now(), 0);
        }
        Ok(())
    }

    /// Hands in redo and waits until it is durable: who finds nobody writing
    /// writes for all that have come by then.
    fn commit(&self, stop: &Stop, measured: &mut Measured) -> Result<(), String> {
        let mut log = lock(&self.log);
        log.written += self.plan.redo;
        let mine = log.written;
        loop {
            if let Some(error) = &log.error {
                return Err(error.clone());
            }
            if log.durable >= mine || stop.is_asked() {
                return Ok(());
            }
            if log.is_writing {
                let (next, _) = self
                    .log_moved
                    .wait_timeout(log, GLANCE)
                    .unwrap_or_else(PoisonError::into_inner);
                log = next;
                continue;
            }
            log.is_writing = true;
            let (from, to) = (log.durable, log.written);
            drop(log);
            let result = self.write_log(from, to, measured);
            log = lock(&self.log);
            log.is_writing = false;
            match result {
                Ok(()) => log.durable = to,
                Err(error) => log.error = Some(error),
            }
            self.log_moved.notify_all();
        }
    }

    fn write_log(&self, from: u64, to: u64, measured: &mut Measured) -> Result<(), String> {
        let mut redo = Vec::new();
        let mut from = from;
        while from < to {
            let place = from % self.plan.log;
            let length = (to - from).min(self.plan.log - place).min(1 << 20);
            redo.resize(length as usize, 0);
            let version = 1 + from / self.plan.log;
            self.content
                .fill(Version { file: 1, version }, place, &mut redo);
            self.log_file.write_at(place, &redo)?;
            measured.written += length;
            from += length;
        }
        if self.plan.is_durable {
            measured.fsyncs.time(0, || self.log_file.fsync())?;
        }
        Ok(())
    }

    /// The page cleaner: writes batches until the clients have ended.
    fn cleaner(&self, stop: &Stop) -> Result<Measured, String> {
        let mut measured = Measured::new(self.start);
        loop {
            let mut dirty = lock(&self.dirty);
            while dirty.pages.len() < self.plan.batch
                && self.clients.load(Ordering::Acquire) > 0
                && !stop.is_asked()
            {
                let (next, _) = self
                    .dirty_moved
                    .wait_timeout(dirty, GLANCE)
                    .unwrap_or_else(PoisonError::into_inner);
                dirty = next;
            }
            if stop.is_asked() || dirty.pages.is_empty() {
                return Ok(measured);
            }
            let batch: Vec<u64> = dirty.pages.iter().copied().take(self.plan.batch).collect();
            for page in &batch {
                dirty.pages.remove(page);
            }
            dirty.leaving.extend(&batch);
            drop(dirty);
            let result = self.clean(&batch, &mut measured);
            let mut dirty = lock(&self.dirty);
            dirty.leaving.clear();
            if let Err(error) = result {
                dirty.error = Some(error.clone());
                self.dirty_moved.notify_all();
                return Err(error);
            }
            self.dirty_moved.notify_all();
        }
    }

    fn clean(&self, batch: &[u64], measured: &mut Measured) -> Result<(), String> {
        let length = self.plan.page as usize;
        let mut memory = Aligned::new(length * batch.len());
        let all = memory.bytes();
        for (number, page) in batch.iter().zip(all.chunks_mut(length)) {
            let version = 1 + self.versions[*number as usize].load(Ordering::Relaxed);
            let offset = number * self.plan.page;
            self.content.fill(tables(version), offset, page);
        }
        if let Some(doublewrite) = &self.doublewrite {
            doublewrite.write_at(0, all)?;
            measured.written += all.len() as u64;
            measured.fsyncs.time(0, || doublewrite.fsync())?;
        }
        for (number, page) in batch.iter().zip(all.chunks(length)) {
            let offset = number * self.plan.page;
            let write = || self.tables.write_at(offset, page);
            measured.writes.time(self.plan.page, write)?;
            self.versions[*number as usize].fetch_add(1, Ordering::Relaxed);
            measured.written += self.plan.page;
        }
        measured.fsyncs.time(0, || self.tables.fsync())
    }
}

fn transact(
    plan: &Plan,
    content: Content,
    ground: &dyn Ground,
    figures: &mut Figures,
) -> Result<Vec<AtomicU64>, String> {
    let files = ground.files();
    let database = Database {
        plan,
        content,
        tables: files.open(TABLES, plan.caching)?,
        log_file: files.open(LOG, Caching::Cached)?,
        doublewrite: match plan.has_doublewrite {
            true => Some(files.open(DOUBLEWRITE, plan.caching)?),
            false => None,
        },
        log: Mutex::default(),
        log_moved: Condvar::new(),
        dirty: Mutex::default(),
        dirty_moved: Condvar::new(),
        versions: (0..plan.pages).map(|_| AtomicU64::new(0)).collect(),
        clients: AtomicUsize::new(plan.threads),
        start: Instant::now(),
    };
    let seed = ground.seed();
    let threads = crowd(ground, plan.threads + 1, |index, stop| {
        if index == plan.threads {
            return database.cleaner(stop);
        }
        let result = database.client(index, seed, stop);
        database.clients.fetch_sub(1, Ordering::Release);
        result
    })?;
    let end = Instant::now();
    let mut all = Measured::new(database.start);
    for one in &threads {
        all.merge(one);
    }
    let seconds = match plan.seconds {
        0 => (end - database.start).as_secs_f64(),
        // What comes after is the cleaner's last batch.
        seconds => (end - database.start).as_secs_f64().min(seconds as f64),
    };
    let transactions = all.transactions.latencies("transaction");
    let rate = all.transactions.count as f64 / seconds;
    figures.add(more("throughput", "transactions/s", rate).headline());
    if let Some(p95) = crate::stats::percentile(&transactions, 0.95) {
        figures.add(less("p95", "s", p95).headline());
    }
    let last = database.start + Duration::from_secs_f64(seconds);
    figures
        .series
        .extend(all.transactions.series("transactions", last));
    figures.add_percentiles(&transactions);
    figures.latencies.push(transactions);
    for (name, recorder) in [
        ("page read", &all.reads),
        ("page write", &all.writes),
        ("fsync", &all.fsyncs),
        ("wait for the cleaner", &all.waits),
    ] {
        if recorder.count > 0 {
            let latencies = recorder.latencies(name);
            figures.add_percentiles(&latencies);
            figures.latencies.push(latencies);
        }
    }
    if plan.seconds == 0 {
        // Which pages a seed drew; when they are written is a matter of time.
        figures.fact("choices", format!("{:016x}", all.choices));
    }
    figures.operations = Some(all.transactions.count);
    figures.written = Some(all.written);
    Ok(database.versions)
}

fn check(
    plan: &Plan,
    content: Content,
    versions: &[AtomicU64],
    ground: &dyn Ground,
) -> Result<Vec<String>, String> {
    let files = ground.files();
    let mut results = crowd(ground, 1, |_, stop| {
        let file = files.open(TABLES, Caching::Cached)?;
        let mut page = vec![0; plan.page as usize];
        let mut wrong = Vec::new();
        for (number, version) in (0..plan.pages).zip(versions) {
            if stop.is_asked() {
                break;
            }
            let offset = number * plan.page;
            let read = file.read_at(offset, &mut page)?;
            let version = tables(version.load(Ordering::Relaxed));
            let differs = content.first_difference(version, offset, &page[..read]);
            if differs.is_some() || read < page.len() {
                wrong.push(format!("page {number} of {TABLES}"));
            }
        }
        Ok(wrong)
    })?;
    Ok(results.pop().unwrap_or_default())
}
