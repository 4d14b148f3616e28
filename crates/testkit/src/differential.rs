//! The same operations, applied to the model and to something else.

use crate::op::Op;
use crate::op::generate::Generator;
use crate::{Manifest, Oracle};
use rustix::io::Errno;
use std::fmt;
use std::ops::Range;

/// Operations that a divergence shows.
const SHOWN: usize = 12;

/// The first operation with a different answer.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// Seed of the generator.
    pub seed: u64,
    /// How many operations went before.
    pub step: usize,
    /// What the model says.
    pub expected: Result<(), Errno>,
    /// What the other one says.
    pub found: Result<(), Errno>,
    /// The operation, and some before it, in order.
    pub operations: Vec<Op>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, step, .. } = self;
        writeln!(
            f,
            "seed {seed}, step {step}: found {:?}, expected {:?}; the last operations:",
            self.found, self.expected
        )?;
        for op in &self.operations {
            let text = format!("{op:?}");
            let cut: String = text.chars().take(300).collect();
            writeln!(f, "    {cut}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Divergence {}

/// The seeds to run: `BUTTERFS_SEEDS=first..last` in the environment (for a
/// soak, or to see one failure again), or else `usual`.
///
/// # Panics
/// If the variable holds anything else.
#[must_use]
pub fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("BUTTERFS_SEEDS") else {
        return usual;
    };
    let range = text.split_once("..").and_then(|(first, last)| {
        let range = first.parse().ok()?..last.parse().ok()?;
        Some(range)
    });
    range.expect("BUTTERFS_SEEDS=first..last")
}

/// Applies `count` operations of `seed` through `apply` and to a model. Returns
/// the model, for its manifest.
///
/// # Errors
/// The first operation with a different answer.
pub fn run(
    seed: u64,
    count: usize,
    apply: impl FnMut(&Op) -> Result<(), Errno>,
) -> Result<Oracle, Box<Divergence>> {
    run_on(Oracle::new(), seed, Generator::new(seed).take(count), apply)
}

/// As [`run`], with a given model and given operations. `seed` is only for the
/// report.
///
/// # Errors
/// As [`run`].
pub fn run_on(
    mut oracle: Oracle,
    seed: u64,
    all: impl Iterator<Item = Op>,
    mut apply: impl FnMut(&Op) -> Result<(), Errno>,
) -> Result<Oracle, Box<Divergence>> {
    let mut operations: Vec<Op> = Vec::new();
    for (step, op) in all.enumerate() {
        let expected = oracle.apply(&op);
        let found = apply(&op);
        if operations.len() == SHOWN {
            operations.remove(0);
        }
        operations.push(op);
        if expected != found {
            return Err(Box::new(Divergence {
                seed,
                step,
                expected,
                found,
                operations,
            }));
        }
    }
    Ok(oracle)
}

/// Applies operations, and looks at the whole tree after every `every` of them.
/// This narrows down which operation changed something that it should not.
///
/// # Errors
/// The first differences, with the operations since the last look.
pub fn bisect(
    mut oracle: Oracle,
    all: impl Iterator<Item = Op>,
    every: usize,
    mut apply: impl FnMut(&Op) -> Result<(), Errno>,
    mut look: impl FnMut() -> Manifest,
) -> Result<(), String> {
    let mut since: Vec<String> = Vec::new();
    for (step, op) in all.enumerate() {
        let expected = oracle.apply(&op);
        let found = apply(&op);
        since.push(format!("{found:?} ({expected:?}) {op:.200?}"));
        if step % every == 0 {
            let model = Manifest::of(&oracle).map_err(|error| error.to_string())?;
            let differences = look().differences(&model, 5);
            if !differences.is_empty() {
                let (differences, since) = (differences.join("\n"), since.join("\n"));
                return Err(format!("step {step}:\n{differences}\nafter:\n{since}"));
            }
            since.clear();
        }
    }
    Ok(())
}
