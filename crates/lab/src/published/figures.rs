//! The two tables of figures.

use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// A figure of bonnie-2012.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BonnieFigure {
    /// Configuration, as the report names it.
    pub config: String,
    /// Metric.
    pub metric: String,
    /// Value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// CPU that bonnie++ saw.
    pub cpu_percent: Option<f64>,
    /// Longest latency.
    pub max_latency_us: Option<f64>,
}

/// A figure of iozone-2009.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IozoneFigure {
    /// Configuration, as the report names it.
    pub config: String,
    /// File system.
    pub filesystem: String,
    /// Disks.
    pub disks: u32,
    /// Options of mkfs.
    pub mkfs: String,
    /// Mount options.
    pub mount: String,
    /// Metric.
    pub metric: String,
    /// Value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// What the report says of it.
    pub note: String,
}

/// A table that ships with the program: a test reads it.
pub(super) fn table<T: for<'a> Deserialize<'a>>(text: &str) -> Vec<T> {
    csv::Reader::from_reader(text.as_bytes())
        .deserialize()
        .map(|row| row.unwrap_or_else(|error| panic!("a published table: {error}")))
        .collect()
}

/// All figures of bonnie-2012.
pub fn bonnie() -> &'static [BonnieFigure] {
    static FIGURES: LazyLock<Vec<BonnieFigure>> =
        LazyLock::new(|| table(include_str!("../../published/bonnie-2012.csv")));
    &FIGURES
}

/// All figures of iozone-2009.
pub fn iozone() -> &'static [IozoneFigure] {
    static FIGURES: LazyLock<Vec<IozoneFigure>> =
        LazyLock::new(|| table(include_str!("../../published/iozone-2009.csv")));
    &FIGURES
}
