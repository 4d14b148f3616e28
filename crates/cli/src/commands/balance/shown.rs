//! What is shown while a balance runs.

use crate::background::BEGUN;
use crate::output;
use indicatif::ProgressDrawTarget;
use serde::{Deserialize, Serialize};
use std::io::Write;

/// What is shown while it runs.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Shown {
    /// How far it is.
    Progress,
    /// Nothing.
    Nothing,
    /// That it has begun, for the process that started this one.
    Begin,
}

impl Shown {
    /// Where the progress is shown.
    pub fn target(self) -> ProgressDrawTarget {
        match self {
            Self::Progress => ProgressDrawTarget::stderr(),
            Self::Nothing | Self::Begin => ProgressDrawTarget::hidden(),
        }
    }

    /// Says that it has begun, if that is shown.
    pub fn begun(self) {
        if self == Self::Begin {
            let mut out = output::standard();
            // A process that does not listen misses nothing.
            let _ = writeln!(out, "{BEGUN}").and_then(|()| out.flush());
        }
    }
}
