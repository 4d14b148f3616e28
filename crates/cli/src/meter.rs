//! How far a long command is, and how long it will take: a bar for the user who
//! runs it, or a line now and then for a caller that asked a server.

use crate::host;
use crate::sizes::human;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// The pause between two lines.
const PAUSE: Duration = Duration::from_secs(10);

/// Shows the progress.
#[derive(Debug)]
pub struct Meter {
    bar: ProgressBar,
    begun: Instant,
    told: Instant,
}

impl Meter {
    /// Begins.
    pub fn new() -> Self {
        let target = match host::is_serving() {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let now = Instant::now();
        Self {
            bar,
            begun: now,
            told: now,
        }
    }

    /// Bytes that are done, and all bytes.
    pub fn show(&mut self, done: u64, all: u64) {
        self.bar.set_length(all);
        self.bar.set_position(done);
        if host::is_serving() && self.told.elapsed() >= PAUSE && done > 0 {
            self.told = Instant::now();
            let seconds = self.begun.elapsed().as_secs();
            let left = all.saturating_sub(done);
            let left = u128::from(seconds) * u128::from(left) / u128::from(done);
            note!("{} of {}, {left} s left", human(done), human(all));
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
