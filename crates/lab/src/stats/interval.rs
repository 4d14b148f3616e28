//! A value and where it may be.

/// The confidence that intervals aim at.
pub const CONFIDENCE: f64 = 0.95;

/// A confidence interval with its true coverage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Exact coverage for independent values of any continuous distribution (a
    /// symmetric one for paired differences). It is less than [`CONFIDENCE`] if
    /// there are too few values.
    pub coverage: f64,
}

impl Interval {
    /// It has the coverage that [`CONFIDENCE`] asks for.
    pub fn is_confident(&self) -> bool {
        self.coverage >= CONFIDENCE
    }

    /// The interval of `function` of the value; `function` must be strictly
    /// increasing.
    pub fn map(self, function: impl Fn(f64) -> f64) -> Self {
        Self {
            low: function(self.low),
            high: function(self.high),
            coverage: self.coverage,
        }
    }
}

/// An estimate with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// Where the truth may be.
    pub interval: Interval,
}

impl Estimate {
    /// The estimate of `function` of the value; `function` must be strictly
    /// increasing.
    pub fn map(self, function: impl Fn(f64) -> f64) -> Self {
        Self {
            value: function(self.value),
            interval: self.interval.map(function),
        }
    }
}

/// Values in ascending order; None when there is none or one is not finite.
pub(super) fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(sorted)
}

/// Median of sorted values.
pub(super) fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[half]
    } else {
        f64::midpoint(sorted[half - 1], sorted[half])
    }
}
