//! Threads with a file each, as in tiobench.

use super::super::content::{Content, POOL, Pool};
use super::super::crowd::{Stop, crowd};
use super::super::files::{Aligned, Caching, Files};
use super::super::measure::{Recorder, less, more};
use super::super::parameters::Given;
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use crate::stats::Random;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Threads with files.
pub(in super::super) struct Threads;

const PHASES: &[&str] = &["write", "random write", "read", "random read"];

struct Plan {
    threads: usize,
    size: u64,
    block: u64,
    random: u64,
    caching: Caching,
    compressible: u8,
}

impl Plan {
    fn new(workload: &Threads, parameters: &Parameters) -> Result<Self, String> {
        let given = Given::new(workload, parameters)?;
        let threads = given.count("threads", 1, 1000)?;
        let block = given.bytes("block", 512, POOL as u64)?;
        let is_direct = given.is_yes("direct")?;
        if is_direct && block % 4096 != 0 {
            return Err(format!(
                "threads: block = {block} is no multiple of 4096, as direct wants"
            ));
        }
        let size = given.bytes("size", 4096, 1 << 44)? / threads as u64 / block * block;
        if size == 0 {
            return Err("threads: a block is larger than the file of a thread".to_owned());
        }
        Ok(Self {
            threads,
            size,
            block,
            random: given.number("random", 1, 1 << 40)?,
            caching: if is_direct {
                Caching::Direct
            } else {
                Caching::Cached
            },
            compressible: given.compressible()?,
        })
    }
}

impl Workload for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("threads", "4", "threads"),
            ("size", "1g", "bytes of all files"),
            ("block", "4k", "bytes of an operation, at most 1m"),
            ("random", "4000", "random operations of each thread"),
            ("direct", "no", "O_DIRECT"),
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
        let threads = plan.threads as u64;
        Ok(Demand {
            space: plan.size * threads,
            memory: threads * (plan.block + (64 << 10)) + (16 << 20),
            time: Duration::from_secs(
                1 + 2 * plan.size * threads / (100 << 20) + 2 * plan.random * threads / 2000,
            ),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = Plan::new(self, parameters)?;
        let mut figures = Figures::default();
        super::facts(&mut figures, "threads", ground.seed(), plan.compressible);
        figures.fact("data", "repeat after 1 MiB");
        let pool = Pool::new(Content::new(ground.seed(), plan.compressible));
        for (place, phase) in PHASES.iter().enumerate() {
            ground.next_phase(phase)?;
            let files = ground.files();
            let pass = Pass {
                plan: &plan,
                pool: &pool,
                phase,
                seed: ground.seed() ^ (place as u64) << 48,
                wrong: Mutex::default(),
            };
            let start = Instant::now();
            let measured = crowd(ground, plan.threads, |thread, stop| {
                pass.thread(thread, files.as_ref(), start, stop)
            })?;
            let end = Instant::now();
            let all = Recorder::merged(start, &measured);
            let seconds = (end - start).as_secs_f64();
            // For random blocks, their number is the headline.
            let speed = more(phase, "bytes/s", all.bytes as f64 / seconds);
            let name = format!("{phase} operations");
            let rate = more(&name, "operations/s", all.count as f64 / seconds);
            if phase.starts_with("random") {
                figures.add(rate.headline());
                figures.add(speed);
            } else {
                figures.add(speed.headline());
                figures.add(rate);
            }
            let latencies = all.latencies(phase);
            figures.add_percentiles(&latencies);
            if let Some(longest) = crate::stats::percentile(&latencies, 1.0) {
                figures.add(less(&format!("{phase} longest latency"), "s", longest));
            }
            figures.latencies.push(latencies);
            figures.series.extend(all.series(phase, end));
            *figures.operations.get_or_insert(0) += all.count;
            if phase.ends_with("write") {
                *figures.written.get_or_insert(0) += all.bytes;
            } else {
                figures.content(all.bytes, &pass.wrong.into_inner().unwrap_or_default());
            }
        }
        Ok(figures)
    }
}

struct Pass<'a> {
    plan: &'a Plan,
    pool: &'a Pool,
    phase: &'a str,
    seed: u64,
    wrong: Mutex<Vec<String>>,
}

impl Pass<'_> {
    fn thread(
        &self,
        thread: usize,
        files: &dyn Files,
        start: Instant,
        stop: &Stop,
    ) -> Result<Recorder, String> {
        let plan = self.plan;
        let path = format!("thread-{thread}");
        let mut recorder = Recorder::new(start);
        let mut random = Random::new(self.seed ^ thread as u64);
        let mut memory = Aligned::new(plan.block as usize);
        let file = match self.phase {
            "write" => files.create(&path, plan.caching)?,
            _ => files.open(&path, plan.caching)?,
        };
        let blocks = plan.size / plan.block;
        let count = match self.phase.starts_with("random") {
            true => plan.random,
            false => blocks,
        };
        for number in 0..count {
            if stop.is_asked() {
                return Ok(recorder);
            }
            let block = match self.phase.starts_with("random") {
                true => random.bits() % blocks,
                false => number,
            };
            let offset = block * plan.block;
            let content = self.pool.at(thread as u64, offset, plan.block as usize);
            let bytes = memory.bytes();
            if self.phase.ends_with("write") {
                bytes.copy_from_slice(content);
                recorder.time(plan.block, || file.write_at(offset, bytes))?;
                continue;
            }
            let read = recorder.time(plan.block, || file.read_at(offset, bytes))?;
            if bytes[..read] != *content
                && let Ok(mut wrong) = self.wrong.lock()
            {
                wrong.push(format!("{path} in the block at {offset}"));
            }
        }
        if self.phase.ends_with("write") {
            file.fsync()?;
        }
        Ok(recorder)
    }
}
