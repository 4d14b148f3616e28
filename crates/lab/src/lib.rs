//! Measures file systems side by side and says what can be said.
//!
//! A run is a sequence of blocks; each block passes once over all cells of an
//! experiment in an order drawn from the run's seed. What a cell gave is a
//! [`model::CellRecord`]; statistics compare cells within blocks, and the
//! report is made from verdicts and records alone.

pub mod catalogue;
pub mod choose;
pub mod compare;
pub mod declaration;
pub mod experiment;
pub mod filesystem;
pub mod machine;
pub mod model;
pub mod plan;
pub mod published;
pub mod report;
pub mod results;
pub mod run;
pub mod stats;
pub mod wakeup;
pub mod workload;
