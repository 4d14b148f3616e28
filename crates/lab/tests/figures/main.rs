//! Experiments, results, statistics and reports, from figures that are given.

mod browser;
mod experiments;
mod published;
mod report;
mod results;
mod stats;
mod synthetic;
