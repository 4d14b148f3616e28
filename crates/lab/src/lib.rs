//! Measures file systems side by side, and says what the figures allow to say.
//!
//! A run is a sequence of blocks. Each block passes once over all cells of an
//! experiment, in an order drawn from the run's seed. The result of a cell is a
//! [`model::CellRecord`]. Statistics compare cells within blocks, and the
//! report is made only from verdicts and records.

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
