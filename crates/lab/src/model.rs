//! What a run leaves: the one result schema that all workloads fill and all
//! reports read.
//!
//! Units are spelled out in [`Metric::unit`] ("operations/s", "bytes/s", "s",
//! "CPU s", "bytes", "ratio"). Times are seconds since the Unix epoch, unless
//! they say "monotonic".

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Values of an experiment's axes (`file-system` = `btrfs`, `mkfs` = `-n
/// 32768`, `cache` = `cold`, ...). Equal keys mean the same cell in every block
/// and every run.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CellKey(pub BTreeMap<String, String>);

/// What a file system promises about data after an fsync, in a cell. A greater
/// value promises less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// fsync reaches the medium; metadata are consistent after a power cut.
    Full,
    /// fsync reaches the medium, but data written without it may come back as
    /// stale or zero bytes (data=writeback, nodatacow in place).
    Weak,
    /// Barriers are off, or the like: a power cut may lose what was fsynced.
    Unsafe,
}

/// Which way a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// More is.
    Higher,
    /// Less is.
    Lower,
    /// It only informs.
    Neither,
}

/// One number that a cell gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Name, stable over versions of a workload ("sequential write").
    pub name: String,
    /// Unit.
    pub unit: String,
    /// Value; finite.
    pub value: f64,
    /// Which way it is better.
    pub better: Better,
    /// It belongs to the headline of its experiment.
    pub headline: bool,
}

/// Values at even steps of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name ("operations").
    pub name: String,
    /// Unit of a value.
    pub unit: String,
    /// Seconds from one value to the next.
    pub step: f64,
    /// Values. The first one covers the first step after the warm-up.
    pub values: Vec<f64>,
}

/// Distribution of latencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// Name of the operation ("fsync").
    pub name: String,
    /// Upper ends of the buckets, in seconds, ascending.
    pub upper: Vec<f64>,
    /// Operations in each bucket.
    pub counts: Vec<u64>,
}

/// A check of a cell's content or of its file system after the workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Integrity {
    /// What was checked ("content hash", "btrfs check", "scrub").
    pub check: String,
    /// It found nothing wrong.
    pub passed: bool,
    /// What it said.
    pub detail: String,
}

/// How a cell ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state", content = "reason")]
pub enum Outcome {
    /// Its figures count.
    Done,
    /// It ran, but its figures must not be used: a check failed, or what was
    /// measured is not what was requested.
    Void(String),
    /// A step failed.
    Failed(String),
    /// This machine cannot run it.
    Unavailable(String),
}

/// A property of a cell: what was asked for, and what the machine says it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    /// Name ("profile", "mount options", "compression ratio", "cache").
    pub name: String,
    /// What was asked for; empty when nothing was.
    pub requested: String,
    /// What it was.
    pub effective: String,
    /// They agree.
    pub agrees: bool,
}

/// One pass over one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellRecord {
    /// Experiment ("bonnie-2012").
    pub experiment: String,
    /// Which cell.
    pub cell: CellKey,
    /// It is the control that every block has.
    pub control: bool,
    /// It has no options but defaults.
    pub default: bool,
    /// Block, from 0.
    pub block: u32,
    /// Place in the block's order, from 0.
    pub place: u32,
    /// When it began.
    pub started: f64,
    /// Seconds that it took, with making and checking the file system.
    pub duration: f64,
    /// How it ended.
    pub outcome: Outcome,
    /// What it promises about data.
    pub durability: Durability,
    /// Requested against effective.
    pub effective: Vec<Effective>,
    /// Figures.
    pub metrics: Vec<Metric>,
    /// Values over time.
    pub series: Vec<Series>,
    /// Distributions.
    pub latencies: Vec<Latencies>,
    /// What was checked.
    pub integrity: Vec<Integrity>,
    /// Facts that a reader must know ("the tool writes zeros", "the device
    /// compresses").
    pub marks: Vec<String>,
    /// Tool and version, command line, seed.
    pub workload: BTreeMap<String, String>,
}

/// Where and how a run was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Facts by group ("cpu", "memory", "kernel", "device", "tools", "seeds",
    /// "harness") and name.
    pub facts: BTreeMap<String, BTreeMap<String, String>>,
}

/// A run: what was asked for, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its name, unique in a database of results.
    pub name: String,
    /// The experiment file, as it was given.
    pub experiment: String,
    /// Seed of all random choices.
    pub seed: u64,
    /// Blocks that were asked for.
    pub blocks: u32,
    /// When it began.
    pub started: f64,
    /// Where it was made.
    pub manifest: Manifest,
}
