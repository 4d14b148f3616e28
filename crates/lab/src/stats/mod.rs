//! What may be said about measured figures, and how surely.
//!
//! Only this module makes verdicts: no other part of the lab may call a cell
//! better or worse. It knows numbers, blocks and pairs, and neither file
//! systems nor files. Everything random in it is seeded.
//!
//! Intervals are exact and distribution-free: their coverage is computed, not
//! assumed. If there are too few values for the wanted coverage, that is
//! stated.

mod interval;
mod latency;
mod median;
mod paired;
mod random;
mod samples;
mod scaling;
mod series;
mod verdict;

pub use interval::{CONFIDENCE, Estimate, Interval};
pub use latency::{merge, percentile};
pub use median::median;
pub use paired::{hodges_lehmann, log_ratios, sign_flip};
pub use random::Random;
pub use scaling::{Band, BandPoint, Fit, Law, Point, PowerLaw, Usl, fit_power_law, fit_usl};
pub use series::{Steadiness, coefficient_of_variation, longest_stall, warm_up};
pub use verdict::{
    ALPHA, Contrast, DECIDING_BLOCKS, MARGIN, Sample, Verdict, Word, holm, judge, judge_samples,
    least_blocks,
};
