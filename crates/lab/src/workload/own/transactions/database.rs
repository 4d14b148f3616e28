//! The database of transactions: clients, redo log, page cleaner.
//!
//! A transaction reads pages (those that are changed and not yet written are in
//! memory), changes some, and ends when its redo is durable. If it finds too
//! many changed pages, it waits for the cleaner, as a full log makes databases
//! wait. Stalls come from there.

use super::super::super::content::{Content, Version};
use super::super::super::crowd::{Stop, sleep_until};
use super::super::super::files::{Aligned, Caching, Files, OpenFile};
use super::super::super::measure::Recorder;
use super::{DOUBLEWRITE, LOG, Plan, TABLES, tables};
use crate::stats::Random;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A lock that a panicking thread left can still be used, because the panic
/// itself ends the workload.
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

pub(super) struct Database<'a> {
    plan: &'a Plan,
    content: Content,
    tables: Box<dyn OpenFile>,
    log_file: Box<dyn OpenFile>,
    doublewrite: Option<Box<dyn OpenFile>>,
    log: Mutex<LogState>,
    log_moved: Condvar,
    dirty: Mutex<Dirty>,
    dirty_moved: Condvar,
    pub(super) versions: Vec<AtomicU64>,
    pub(super) clients: AtomicUsize,
    pub(super) start: Instant,
}

impl<'a> Database<'a> {
    /// Opens the files that were filled.
    pub(super) fn open(
        plan: &'a Plan,
        content: Content,
        files: &dyn Files,
    ) -> Result<Self, String> {
        Ok(Self {
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
        })
    }
}

#[derive(Debug)]
pub(super) struct Measured {
    pub(super) transactions: Recorder,
    pub(super) reads: Recorder,
    pub(super) writes: Recorder,
    pub(super) fsyncs: Recorder,
    pub(super) waits: Recorder,
    /// Transactions that arrived and were never begun.
    pub(super) missed: Recorder,
    /// When the last client ended.
    pub(super) last: Instant,
    pub(super) written: u64,
    /// Hash of all pages that were drawn, in the order of each client.
    pub(super) choices: u64,
}

impl Measured {
    pub(super) fn new(start: Instant) -> Self {
        let recorder = Recorder::new(start);
        Self {
            transactions: recorder.clone(),
            reads: recorder.clone(),
            writes: recorder.clone(),
            fsyncs: recorder.clone(),
            waits: recorder.clone(),
            missed: recorder,
            last: start,
            written: 0,
            choices: 0,
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.transactions.merge(&other.transactions);
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.fsyncs.merge(&other.fsyncs);
        self.waits.merge(&other.waits);
        self.missed.merge(&other.missed);
        self.last = self.last.max(other.last);
        self.written += other.written;
        self.choices = self.choices.wrapping_add(other.choices);
    }
}

/// How long a wait lasts before the thread checks whether all should end.
const GLANCE: Duration = Duration::from_millis(100);

/// A client's share of a Poisson process.
struct Arrivals {
    random: Random,
    rate: f64,
    next: Instant,
}

impl Arrivals {
    fn draw(&mut self) -> Instant {
        let gap = -(1.0 - self.random.unit()).ln() / self.rate;
        // A day is longer than any pass.
        self.next += Duration::from_secs_f64(gap.min(86_400.0));
        self.next
    }
}

impl Database<'_> {
    pub(super) fn client(&self, index: usize, seed: u64, stop: &Stop) -> Result<Measured, String> {
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
        let mut arrivals = (plan.rate > 0.0).then(|| Arrivals {
            random: Random::new(seed ^ (index as u64 + 1) << 32),
            rate: plan.rate / plan.threads as f64,
            next: self.start,
        });
        while !stop.is_asked()
            && end.is_none_or(|end| Instant::now() < end)
            && (plan.transactions == 0 || measured.transactions.count < plan.transactions)
        {
            let began = match &mut arrivals {
                None => Instant::now(),
                Some(arrivals) => {
                    let due = arrivals.draw();
                    if end.is_some_and(|end| due >= end) {
                        break;
                    }
                    if !sleep_until(due, stop) {
                        break;
                    }
                    due
                }
            };
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
        measured.last = Instant::now();
        if let (Some(arrivals), Some(end)) = (&mut arrivals, end) {
            // Transactions that arrived and never began.
            while !stop.is_asked() && arrivals.next < end {
                let due = arrivals.draw();
                if due < end {
                    let waited = measured.last.saturating_duration_since(due);
                    measured.missed.add(waited);
                }
            }
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

    /// Hands in redo and waits until it is durable. A thread that finds nobody
    /// writing writes for all that have handed in by then.
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
    pub(super) fn cleaner(&self, stop: &Stop) -> Result<Measured, String> {
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
