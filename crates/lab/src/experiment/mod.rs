//! What is measured: axes whose values make cells, what is left out, and how
//! often all is repeated. Written as TOML (docs/lab.md describes it).
//!
//! Owns the words of an experiment. [`crate::plan`] decides which cells come
//! out of it.

mod parse;

use crate::declaration::{Mistake, Word};
use std::collections::BTreeMap;

/// Axes that every group of cells may have, with what a value means.
pub const AXES: &[(&str, &str)] = &[
    ("file-system", "name of a file system (`butterfs lab list`)"),
    ("mkfs", "options of mkfs, as on its command line"),
    ("mount", "mount options, separated by commas"),
    ("devices", "number of devices, 1 to 4"),
    ("profile", "profile of data and metadata over the devices"),
    ("scheduler", "I/O scheduler of the devices"),
    ("cache", "warm, cold or capped"),
    (
        "wake",
        "what idle processors of a virtual machine do: halting or polling",
    ),
    (
        "compressible",
        "how much of the data compresses, in percent: 0, 50, 100",
    ),
    ("concurrency", "processes, threads or clients"),
    (
        "history",
        "what the file system went through before (\"snapshot\")",
    ),
];

/// Names of [`AXES`].
pub fn axis_names() -> impl Iterator<Item = &'static str> {
    AXES.iter().map(|(name, _)| *name)
}

/// Where the bytes go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Loop devices over files in memory (tmpfs).
    Memory,
    /// Loop devices over files of a directory.
    File,
}

/// How large an experiment is.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Its name.
    pub name: String,
    /// Bytes of each device.
    pub device_size: u64,
    /// Where the devices are.
    pub device: DeviceKind,
    /// Memory that cells may use, page cache included.
    pub memory: Option<u64>,
    /// Seconds of rest between mounting and measuring.
    pub settle: f64,
    /// Blocks, if not as the experiment says.
    pub repeats: Option<u32>,
    /// Parameters of workloads that differ from those of the group.
    pub parameters: BTreeMap<String, BTreeMap<String, Vec<Word>>>,
}

/// Cells for all combinations of some values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Values of each axis that has any.
    pub axes: BTreeMap<String, Vec<Word>>,
    /// The workload.
    pub workload: Word,
    /// Values of each parameter of the workload.
    pub parameters: BTreeMap<String, Vec<Word>>,
    /// How many blocks have these cells, if not all.
    pub repeats: Option<u32>,
    /// The main conclusions rest on these cells.
    pub headline: bool,
    /// Line in the file.
    pub line: usize,
}

/// An experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// Name ("bonnie-2012").
    pub name: String,
    /// One line on it.
    pub title: String,
    /// Blocks.
    pub repeats: u32,
    /// Seed of all random choices, if nobody gives another.
    pub seed: u64,
    /// File system whose default cell is the control.
    pub control: Option<Word>,
    /// Sizes, by name; there is always "small".
    pub scales: Vec<Scale>,
    /// Groups of cells.
    pub groups: Vec<Group>,
    /// Combinations without cells: each named axis, parameter or "workload" has
    /// one of the values.
    pub leave_out: Vec<BTreeMap<String, Vec<Word>>>,
    /// The file as it was given.
    pub text: String,
}

/// The experiments that ship with the program.
pub const SHIPPED: &[(&str, &str)] = &[
    (
        "bonnie-2012",
        include_str!("../../experiments/bonnie-2012.toml"),
    ),
    (
        "iozone-2009",
        include_str!("../../experiments/iozone-2009.toml"),
    ),
    ("web-2010", include_str!("../../experiments/web-2010.toml")),
    (
        "dbench-2011",
        include_str!("../../experiments/dbench-2011.toml"),
    ),
    (
        "oltp-2012",
        include_str!("../../experiments/oltp-2012.toml"),
    ),
    ("programs", include_str!("../../experiments/programs.toml")),
    ("smoke", include_str!("../../experiments/smoke.toml")),
];

impl Experiment {
    /// Reads an experiment; `file` is named in mistakes.
    ///
    /// # Errors
    /// The first mistake, with its line.
    pub fn parse(file: &str, text: &str) -> Result<Self, Mistake> {
        parse::experiment(file, text)
    }

    /// One that ships with the program.
    pub fn shipped(name: &str) -> Option<Result<Self, Mistake>> {
        let (_, text) = SHIPPED.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(&format!("{name}.toml"), text))
    }

    /// The scale of this name.
    pub fn scale(&self, name: &str) -> Option<&Scale> {
        self.scales.iter().find(|scale| scale.name == name)
    }
}
