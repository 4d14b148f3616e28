//! Transactions as in InnoDB: random pages of 16 KiB read and changed, a redo
//! log with group commit, and a page cleaner that writes changed pages in
//! batches, with or without a doublewrite area.

mod database;

use super::super::content::{Content, Version};
use super::super::crowd::crowd;
use super::super::files::Caching;
use super::super::measure::{less, more};
use super::super::parameters::Given;
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use database::{Database, Measured};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
    rate: f64,
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
            rate: given.real("rate", 0.0, 1e6)?,
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
            (
                "rate",
                "0",
                "transactions per second that come whether the clients are ready or not; \
                 0 is as many as they can",
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

    fn is_by_files(&self) -> bool {
        true
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
        ground.next_phase_aside("fill")?;
        fill(&plan, content, ground)?;
        ground.next_phase("transactions")?;
        let versions = transact(&plan, content, ground, &mut figures)?;
        ground.next_phase_aside("check")?;
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

fn transact(
    plan: &Plan,
    content: Content,
    ground: &dyn Ground,
    figures: &mut Figures,
) -> Result<Vec<AtomicU64>, String> {
    let files = ground.files();
    let database = Database::open(plan, content, files.as_ref())?;
    let seed = ground.seed();
    let threads = crowd(ground, plan.threads + 1, |index, stop| {
        if index == plan.threads {
            return database.cleaner(stop);
        }
        let result = database.client(index, seed, stop);
        database.clients.fetch_sub(1, Ordering::Release);
        result
    })?;
    let mut all = Measured::new(database.start);
    for one in &threads {
        all.merge(one);
    }
    let seconds = (all.last - database.start).as_secs_f64();
    let mut came = all.transactions.clone();
    if all.missed.count > 0 {
        came.merge(&all.missed);
        figures.mark(format!(
            "{} of {} transactions came and were never begun: the clients are slower; they \
             count as having waited until the end",
            all.missed.count, came.count
        ));
    }
    let transactions = came.latencies("transaction");
    let rate = all.transactions.count as f64 / seconds;
    figures.add(more("throughput", "transactions/s", rate).headline());
    if let Some(p95) = crate::stats::percentile(&transactions, 0.95) {
        figures.add(less("p95", "s", p95).headline());
    }
    let series = all.transactions.series("transactions", all.last);
    figures.series.extend(series);
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
        // A seed determines which pages are drawn, but not when they are
        // written.
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
