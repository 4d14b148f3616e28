//! What five old reports published, and which of it is true here.
//!
//! Owns the figures and claims (`crates/lab/published/*.csv`), and the map
//! from each to cells and metrics. Whether a claim holds is computed from
//! [`crate::stats`]' verdicts on records; nothing here is judged by hand.

mod claims;
mod contrast;
mod figures;
mod judge;

pub use claims::{Claim, claims};
pub use contrast::{Pattern, Quantity};
pub use figures::{BonnieFigure, IozoneFigure, bonnie, iozone};
pub(crate) use judge::ABSENT;
pub use judge::{Judged, Judgement, Test, judge};

/// Names of the axes that distinguish systems. All others say under what
/// conditions systems were compared.
pub const SYSTEM_AXES: &[&str] = &["file-system", "mkfs", "mount", "devices", "profile"];
/// The axis of processes, threads or clients.
pub const CONCURRENCY: &str = "concurrency";
