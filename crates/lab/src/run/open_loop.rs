//! Rates in per cent of what the slowest system can do.
//!
//! A cell with `rate = "70%"` gets 70 % of a throughput of the first block: the
//! throughput that the slowest cell of its condition reached there with `rate =
//! "0"` (as fast as it can). So the load is the same for all systems, in all
//! blocks.

use crate::model::{CellRecord, Effective, Outcome};
use crate::plan::{Cell, RATE, condition_of};
use crate::results::Results;
use std::borrow::Cow;

/// The cell with its rate as a number. A cell whose rate is not known is
/// unavailable.
pub(super) fn resolve<'a>(
    cell: &'a Cell,
    results: &Results,
    run: &str,
) -> Result<Cow<'a, Cell>, String> {
    let (Some(share), None) = (cell.share, &cell.lack) else {
        return Ok(Cow::Borrowed(cell));
    };
    let records = results.cells(run).map_err(|error| error.to_string())?;
    let mut found = cell.clone();
    match capacity(cell, &records) {
        // Some tools take whole numbers only.
        Some(capacity) => {
            let rate = (capacity * share).round().max(1.0);
            found.parameters.insert(RATE.to_owned(), rate.to_string());
        }
        None => {
            found.lack = Some(format!(
                "no pass with {RATE} 0 says what {:.0} % are",
                share * 100.0
            ));
        }
    }
    Ok(Cow::Owned(found))
}

/// Throughput of the slowest closed loop of the cell's condition in the first
/// block.
fn capacity(cell: &Cell, records: &[CellRecord]) -> Option<f64> {
    let wanted = cell.closed_condition()?;
    let first = records
        .iter()
        .filter(|one| one.block == 0 && one.outcome == Outcome::Done)
        .filter(|one| condition_of(&one.cell) == wanted);
    let throughput = |one: &CellRecord| {
        let metric = one.metrics.iter().find(|one| one.name == "throughput")?;
        Some(metric.value)
    };
    first.filter_map(throughput).min_by(f64::total_cmp)
}

/// The rate that a cell was given.
pub(super) fn effective(cell: &Cell) -> Option<Effective> {
    cell.share?;
    Some(Effective {
        name: RATE.to_owned(),
        requested: cell.key.0.get(RATE).cloned().unwrap_or_default(),
        effective: format!("{} transactions/s", cell.parameters.get(RATE)?),
        agrees: true,
    })
}
