//! Our own workloads, for cases where the original is not free, is no longer
//! maintained, or writes zeros.

pub(super) mod ager;
pub(super) mod grid;
pub(super) mod http;
mod load;
pub(super) mod player;
pub(super) mod small_files;
pub(super) mod threads;
pub(super) mod transactions;

use super::Figures;
use super::measure::Recorder;

/// What all of our own say of themselves.
fn facts(figures: &mut Figures, name: &str, seed: u64, compressible: u8) {
    figures.fact(
        "tool",
        format!("{name} of butterfs-lab {}", env!("CARGO_PKG_VERSION")),
    );
    figures.fact("seed", seed.to_string());
    figures.fact("compressible", format!("{compressible} %"));
}

/// Operations per second of threads that run beside each other; making the
/// data is no part of the time.
fn rate_of(threads: &[Recorder]) -> f64 {
    let rates = threads
        .iter()
        .filter(|one| one.count > 0)
        .map(Recorder::rate);
    rates.sum()
}
