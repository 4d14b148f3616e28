//! Throughput over concurrency: the Universal Scalability Law (Gunther) and a
//! power law, with confidence bands from resampling whole blocks.

use super::interval::{Interval, sorted};
use super::random::Random;

/// Blocks drawn anew this often for a band.
const RESAMPLED: usize = 400;
/// A band of fewer blocks would say too little.
const BAND_BLOCKS: usize = 5;

/// A throughput at a concurrency, in a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Block.
    pub block: u32,
    /// Processes, threads or clients; at least 1.
    pub concurrency: f64,
    /// Throughput; positive.
    pub throughput: f64,
}

/// X(N) = λN / (1 + σ(N−1) + κN(N−1)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usl {
    /// Throughput of one, as fitted.
    pub lambda: f64,
    /// Contention: the share that is serial.
    pub sigma: f64,
    /// Coherency: the cost of agreeing, per pair.
    pub kappa: f64,
}

/// X(N) = a·N^b.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerLaw {
    /// Throughput of one, as fitted.
    pub a: f64,
    /// Exponent: 1 scales perfectly, 0 not at all, negative backwards.
    pub b: f64,
}

/// A curve that can be fitted.
pub trait Law: Copy {
    /// The throughput that it predicts.
    fn at(&self, concurrency: f64) -> f64;
    /// The best fit to points; `None` if they do not determine one.
    fn fit(points: &[Point]) -> Option<Self>;
}

/// The curve at one concurrency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BandPoint {
    /// Where.
    pub concurrency: f64,
    /// Fitted throughput and its pointwise 95 % percentile interval; the
    /// coverage of a bootstrap is nominal.
    pub interval: Interval,
}

/// A confidence band, pointwise.
pub type Band = Vec<BandPoint>;

/// A law fitted to all points.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit<L> {
    /// The law with its parameters.
    pub law: L,
    /// 1 − residual ÷ total sum of squares of ln(throughput); 1 where nothing
    /// varies and the law says so.
    pub r_squared: f64,
    /// None with fewer than 5 blocks.
    pub band: Option<Band>,
}

impl Usl {
    /// The concurrency of the highest throughput; `None` if throughput never
    /// falls.
    pub fn peak(&self) -> Option<f64> {
        (self.kappa > 0.0).then(|| ((1.0 - self.sigma).max(0.0) / self.kappa).sqrt().max(1.0))
    }
}

impl Law for Usl {
    fn at(&self, n: f64) -> f64 {
        self.lambda * n / (1.0 + self.sigma * (n - 1.0) + self.kappa * n * (n - 1.0))
    }

    /// N/X is linear in 1, N−1 and N(N−1). The fit takes the least squares of
    /// its relative error with all coefficients at least 0. It finds them by
    /// trying the four possible sets of the last two. There is no iteration and
    /// no start value, and the result is the global optimum.
    fn fit(points: &[Point]) -> Option<Self> {
        let mut distinct: Vec<f64> = points.iter().map(|p| p.concurrency).collect();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        let mut best: Option<(f64, Self)> = None;
        for (with_sigma, with_kappa) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            if distinct.len() < 1 + with_sigma + with_kappa {
                continue;
            }
            let columns: Vec<usize> = [
                Some(0),
                (with_sigma == 1).then_some(1),
                (with_kappa == 1).then_some(2),
            ]
            .into_iter()
            .flatten()
            .collect();
            let Some(found) = relative_least_squares(points, &columns) else {
                continue;
            };
            let [a, b, c] = found;
            if a <= 0.0 || b < 0.0 || c < 0.0 {
                continue;
            }
            let error: f64 = points
                .iter()
                .map(|p| {
                    let row = usl_row(p);
                    (1.0 - row[0] * a - row[1] * b - row[2] * c).powi(2)
                })
                .sum();
            // A parameter must earn its place by more than rounding.
            if best.is_none_or(|(least, _)| error < least - 1e-12) {
                let law = Self {
                    lambda: 1.0 / a,
                    sigma: b / a,
                    kappa: c / a,
                };
                best = Some((error, law));
            }
        }
        best.map(|(_, law)| law)
    }
}

fn usl_row(point: &Point) -> [f64; 3] {
    let n = point.concurrency;
    let scale = point.throughput / n;
    [scale, scale * (n - 1.0), scale * n * (n - 1.0)]
}

/// Solves the normal equations for the named columns; others are 0.
fn relative_least_squares(points: &[Point], columns: &[usize]) -> Option<[f64; 3]> {
    let size = columns.len();
    let mut system = [[0.0; 4]; 3];
    for point in points {
        let row = usl_row(point);
        for (i, &column) in columns.iter().enumerate() {
            for (j, &other) in columns.iter().enumerate() {
                system[i][j] += row[column] * row[other];
            }
            system[i][3] += row[column];
        }
    }
    for pivot in 0..size {
        let largest = (pivot..size)
            .max_by(|&i, &j| system[i][pivot].abs().total_cmp(&system[j][pivot].abs()))?;
        system.swap(pivot, largest);
        let head = system[pivot];
        if head[pivot].abs() < f64::MIN_POSITIVE {
            return None;
        }
        for (index, row) in system.iter_mut().enumerate().take(size) {
            if index != pivot {
                let factor = row[pivot] / head[pivot];
                for (value, above) in row.iter_mut().zip(head) {
                    *value -= factor * above;
                }
            }
        }
    }
    let mut found = [0.0; 3];
    for (i, &column) in columns.iter().enumerate() {
        found[column] = system[i][3] / system[i][i];
    }
    found.iter().all(|v| v.is_finite()).then_some(found)
}

impl Law for PowerLaw {
    fn at(&self, n: f64) -> f64 {
        self.a * n.powf(self.b)
    }

    fn fit(points: &[Point]) -> Option<Self> {
        let count = points.len() as f64;
        let x = |p: &Point| p.concurrency.ln();
        let y = |p: &Point| p.throughput.ln();
        let mean_x = points.iter().map(x).sum::<f64>() / count;
        let mean_y = points.iter().map(y).sum::<f64>() / count;
        let spread: f64 = points.iter().map(|p| (x(p) - mean_x).powi(2)).sum();
        if spread.is_nan() || spread <= 1e-12 {
            return None;
        }
        let b = points
            .iter()
            .map(|p| (x(p) - mean_x) * (y(p) - mean_y))
            .sum::<f64>()
            / spread;
        Some(Self {
            a: (mean_y - b * mean_x).exp(),
            b,
        })
    }
}

/// Fits the Universal Scalability Law. `grid` says where the band is wanted.
pub fn fit_usl(points: &[Point], grid: &[f64], seed: u64) -> Option<Fit<Usl>> {
    fit(points, grid, seed)
}

/// Fits a power law. `grid` says where the band is wanted.
pub fn fit_power_law(points: &[Point], grid: &[f64], seed: u64) -> Option<Fit<PowerLaw>> {
    fit(points, grid, seed)
}

fn fit<L: Law>(points: &[Point], grid: &[f64], seed: u64) -> Option<Fit<L>> {
    let usable = |p: &Point| {
        p.concurrency >= 1.0
            && p.concurrency.is_finite()
            && p.throughput > 0.0
            && p.throughput.is_finite()
    };
    if points.len() < 3 || !points.iter().all(usable) {
        return None;
    }
    let law = L::fit(points)?;
    let mean = points.iter().map(|p| p.throughput.ln()).sum::<f64>() / points.len() as f64;
    let (mut residual, mut total) = (0.0, 0.0);
    for point in points {
        residual += (point.throughput.ln() - law.at(point.concurrency).ln()).powi(2);
        total += (point.throughput.ln() - mean).powi(2);
    }
    let r_squared = if total > 1e-12 {
        1.0 - residual / total
    } else {
        1.0
    };
    Some(Fit {
        law,
        r_squared,
        band: band(points, &law, grid, seed),
    })
}

fn band<L: Law>(points: &[Point], law: &L, grid: &[f64], seed: u64) -> Option<Band> {
    let mut blocks: Vec<u32> = points.iter().map(|p| p.block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    if blocks.len() < BAND_BLOCKS {
        return None;
    }
    let by_block: Vec<Vec<Point>> = blocks
        .iter()
        .map(|&block| {
            points
                .iter()
                .filter(|p| p.block == block)
                .copied()
                .collect()
        })
        .collect();
    let mut random = Random::new(seed);
    let mut curves: Vec<L> = Vec::with_capacity(RESAMPLED);
    for _ in 0..RESAMPLED {
        let mut drawn = Vec::with_capacity(points.len());
        for _ in 0..by_block.len() {
            drawn.extend_from_slice(&by_block[random.below(by_block.len())]);
        }
        curves.extend(L::fit(&drawn));
    }
    let edge = curves.len() / 40;
    grid.iter()
        .map(|&concurrency| {
            let values: Vec<f64> = curves.iter().map(|curve| curve.at(concurrency)).collect();
            let values = sorted(&values)?;
            let value = law.at(concurrency);
            Some(BandPoint {
                concurrency,
                interval: Interval {
                    low: values[edge].min(value),
                    high: values[values.len() - 1 - edge].max(value),
                    coverage: super::CONFIDENCE,
                },
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(law: impl Law, noise: f64, seed: u64) -> Vec<Point> {
        let mut random = Random::new(seed);
        let mut points = Vec::new();
        for block in 0..7 {
            for n in [1.0, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0, 50.0] {
                points.push(Point {
                    block,
                    concurrency: n,
                    throughput: law.at(n) * (noise * random.normal()).exp(),
                });
            }
        }
        points
    }

    #[test]
    fn parameters_come_back_exactly_without_noise() {
        let usl = Usl {
            lambda: 120.0,
            sigma: 0.05,
            kappa: 0.002,
        };
        let found = fit_usl(&points(usl, 0.0, 1), &[], 1).unwrap();
        assert!((found.law.lambda - 120.0).abs() < 1e-6, "{found:?}");
        assert!((found.law.sigma - 0.05).abs() < 1e-8);
        assert!((found.law.kappa - 0.002).abs() < 1e-9);
        assert!((found.law.peak().unwrap() - (0.95_f64 / 0.002).sqrt()).abs() < 1e-3);
        let power = PowerLaw { a: 0.34, b: 0.29 };
        let found = fit_power_law(&points(power, 0.0, 1), &[], 1).unwrap();
        assert!((found.law.a - 0.34).abs() < 1e-9 && (found.law.b - 0.29).abs() < 1e-9);
        assert!(found.r_squared > 0.999_999);
    }

    #[test]
    fn contention_and_coherency_are_never_negative() {
        // Better than linear: no law of this kind, so the line is the best.
        let faster = PowerLaw { a: 1.0, b: 1.3 };
        let found = fit_usl(&points(faster, 0.05, 2), &[], 1).unwrap().law;
        assert!(found.sigma >= 0.0 && found.kappa >= 0.0);
        assert_eq!(found.peak(), None);
    }

    #[test]
    fn bands_hold_the_true_curve_about_as_often_as_they_say() {
        let usl = Usl {
            lambda: 100.0,
            sigma: 0.1,
            kappa: 0.001,
        };
        let grid = [1.0, 10.0, 40.0];
        let (mut held, mut all) = (0, 0);
        for seed in 0..60 {
            let found = fit_usl(&points(usl, 0.1, seed), &grid, seed).unwrap();
            for point in found.band.unwrap() {
                let truth = usl.at(point.concurrency);
                all += 1;
                held += usize::from(point.interval.low <= truth && truth <= point.interval.high);
            }
        }
        // A percentile bootstrap of seven blocks covers less than it says.
        let share = held as f64 / all as f64;
        assert!((0.82..=0.99).contains(&share), "{share}");
    }

    #[test]
    fn too_little_gives_no_fit_or_no_band() {
        let usl = Usl {
            lambda: 100.0,
            sigma: 0.1,
            kappa: 0.001,
        };
        let some = points(usl, 0.1, 1);
        assert!(fit_usl(&some[..2], &[1.0], 1).is_none());
        assert!(fit_usl(&some[..8], &[1.0], 1).unwrap().band.is_none());
        let same: Vec<Point> = (0..4)
            .map(|i| Point {
                block: i,
                ..some[0]
            })
            .collect();
        assert!(fit_power_law(&same, &[], 1).is_none());
        let mut bad = some;
        bad[0].throughput = 0.0;
        assert!(fit_usl(&bad, &[], 1).is_none());
    }
}
