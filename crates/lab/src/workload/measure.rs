//! Latencies and one-second series of our own workloads, and the making of
//! figures.

use super::Figures;
use crate::model::{Better, Integrity, Latencies, Metric, Series};
use hdrhistogram::Histogram;
use std::time::{Duration, Instant};

/// A figure.
pub(super) fn metric(name: &str, unit: &str, value: f64, better: Better) -> Metric {
    Metric {
        name: name.to_owned(),
        unit: unit.to_owned(),
        value,
        better,
        headline: false,
    }
}

/// A figure of which more is better.
pub(super) fn more(name: &str, unit: &str, value: f64) -> Metric {
    metric(name, unit, value, Better::Higher)
}

/// A figure of which less is better.
pub(super) fn less(name: &str, unit: &str, value: f64) -> Metric {
    metric(name, unit, value, Better::Lower)
}

impl Metric {
    /// The same, as part of the headline.
    pub(super) fn headline(self) -> Self {
        Self {
            headline: true,
            ..self
        }
    }
}

impl Figures {
    /// Adds a figure. One that is not finite was not measured.
    pub(super) fn add(&mut self, metric: Metric) {
        if metric.value.is_finite() {
            self.metrics.push(metric);
        }
    }

    /// Adds a line about the tool.
    pub(super) fn fact(&mut self, name: &str, value: impl Into<String>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    /// Adds what a reader must know, once.
    pub(super) fn mark(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.marks.contains(&text) {
            self.marks.push(text);
        }
    }

    /// Adds the usual percentiles of a distribution ("fsync p99").
    pub(super) fn add_percentiles(&mut self, latencies: &Latencies) {
        for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)] {
            if let Some(value) = crate::stats::percentile(latencies, share) {
                self.add(less(&format!("{} {name}", latencies.name), "s", value));
            }
        }
    }

    /// Adds the result of a comparison of content with what was written.
    pub(super) fn content(&mut self, checked: u64, wrong: &[String]) {
        self.integrity.push(Integrity {
            check: "content".to_owned(),
            passed: wrong.is_empty(),
            detail: match wrong {
                [] => format!("{checked} bytes read back as written"),
                [first, ..] => format!("{} places differ; the first: {first}", wrong.len()),
            },
        });
    }
}

/// What a thread measured of one kind of operation.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    start: Instant,
    histogram: Histogram<u64>,
    seconds: Vec<u64>,
    /// Time inside operations.
    pub(super) busy: Duration,
    /// Operations.
    pub(super) count: u64,
    /// Bytes that they moved.
    pub(super) bytes: u64,
}

impl Recorder {
    /// An empty one; series begin at `start`.
    pub(super) fn new(start: Instant) -> Self {
        Self {
            start,
            histogram: Histogram::new(3).expect("three digits are allowed"),
            seconds: Vec::new(),
            busy: Duration::ZERO,
            count: 0,
            bytes: 0,
        }
    }

    /// Runs an operation that moves some bytes, and records it.
    pub(super) fn time<T>(
        &mut self,
        bytes: u64,
        operation: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let began = Instant::now();
        let result = operation()?;
        self.record(began, Instant::now(), bytes);
        Ok(result)
    }

    /// Records how long an operation of another program took.
    pub(super) fn add(&mut self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        // It grows by itself. If it cannot grow, it keeps what it has.
        let _ = self.histogram.record(nanoseconds.max(1));
        self.busy += took;
        self.count += 1;
    }

    /// Records an operation.
    pub(super) fn record(&mut self, began: Instant, ended: Instant, bytes: u64) {
        self.add(ended.saturating_duration_since(began));
        let second = ended.saturating_duration_since(self.start).as_secs();
        // A day of seconds is more than any pass has.
        let second = usize::try_from(second.min(86_400)).unwrap_or(86_400);
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, 0);
        }
        self.seconds[second] += 1;
        self.bytes += bytes;
    }

    /// Adds what another thread recorded.
    pub(super) fn merge(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("histograms that resize themselves take any other");
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), 0);
        }
        for (mine, theirs) in self.seconds.iter_mut().zip(&other.seconds) {
            *mine += theirs;
        }
        self.busy += other.busy;
        self.count += other.count;
        self.bytes += other.bytes;
    }

    /// All threads in one.
    pub(super) fn merged<'a>(start: Instant, all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::new(start);
        for one in all {
            sum.merge(one);
        }
        sum
    }

    /// Operations per second of time inside operations; of one thread.
    pub(super) fn rate(&self) -> f64 {
        self.count as f64 / self.busy.as_secs_f64()
    }

    /// Bytes per second of time inside operations; of one thread.
    pub(super) fn speed(&self) -> f64 {
        self.bytes as f64 / self.busy.as_secs_f64()
    }

    /// The distribution.
    pub(super) fn latencies(&self, name: &str) -> Latencies {
        let mut upper = Vec::new();
        let mut counts = Vec::new();
        for bucket in self.histogram.iter_recorded() {
            upper.push(bucket.value_iterated_to() as f64 / 1e9);
            counts.push(bucket.count_since_last_iteration());
        }
        Latencies {
            name: name.to_owned(),
            upper,
            counts,
        }
    }

    /// Operations in each whole second from the start to `end`. Seconds without
    /// any are zeros; the incomplete last one is left out.
    pub(super) fn series(&self, name: &str, end: Instant) -> Option<Series> {
        let whole = end.saturating_duration_since(self.start).as_secs();
        let whole = usize::try_from(whole.min(86_400)).unwrap_or(86_400);
        if whole == 0 {
            return None;
        }
        let values = (0..whole).map(|second| self.seconds.get(second).map_or(0.0, |&n| n as f64));
        Some(Series {
            name: name.to_owned(),
            unit: "operations/s".to_owned(),
            step: 1.0,
            values: values.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::percentile;

    #[test]
    fn a_stalled_second_is_a_zero_in_the_series() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut one = Recorder::new(start);
        one.record(at(0), at(10), 5);
        one.record(at(20), at(2500), 5);
        let mut other = Recorder::new(start);
        other.record(at(100), at(200), 1);
        let sum = Recorder::merged(start, [&one, &other]);
        assert_eq!(sum.series("all", at(3900)).unwrap().values, [2.0, 0.0, 1.0]);
        assert_eq!(sum.series("all", at(900)), None);
        assert_eq!((sum.count, sum.bytes), (3, 11));
        let latencies = sum.latencies("all");
        let slowest = percentile(&latencies, 1.0).unwrap();
        assert!((2.48..2.49).contains(&slowest), "{slowest}");
        let middle = percentile(&latencies, 0.5).unwrap();
        assert!((0.1..0.1002).contains(&middle), "{middle}");
    }
}
