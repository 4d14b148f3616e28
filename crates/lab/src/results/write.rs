//! Putting runs and cells in.

use super::{Results, ResultsError};
use crate::model::{Better, CellRecord, Durability, Outcome, Run};
use rusqlite::{Transaction, TransactionBehavior, params};

impl Results {
    /// Adds a run without cells.
    ///
    /// # Errors
    /// [`ResultsError::RunExists`]; SQLite's.
    pub fn add_run(&mut self, run: &Run) -> Result<(), ResultsError> {
        let transaction = self.begin()?;
        insert_run(&transaction, run)?;
        transaction.commit()?;
        Ok(())
    }

    /// Adds one pass over a cell; it is on the device when this returns.
    ///
    /// # Errors
    /// [`ResultsError::NoRun`], [`ResultsError::CellExists`],
    /// [`ResultsError::NotFinite`]; [`ResultsError::Malformed`] for latencies
    /// whose buckets and counts differ in number. Nothing was added then.
    pub fn add_cell(&mut self, run: &str, record: &CellRecord) -> Result<(), ResultsError> {
        let id = self.run_id(run)?;
        let transaction = self.begin()?;
        insert_cell(&transaction, RunRow { id, name: run }, record)?;
        transaction.commit()?;
        Ok(())
    }

    /// Takes a run with all its cells away.
    ///
    /// # Errors
    /// [`ResultsError::NoRun`]; SQLite's.
    pub fn remove_run(&mut self, run: &str) -> Result<(), ResultsError> {
        let id = self.run_id(run)?;
        let transaction = self.begin()?;
        transaction.execute("DELETE FROM run WHERE id = ?1", [id])?;
        transaction.commit()?;
        Ok(())
    }

    pub(super) fn begin(&mut self) -> Result<Transaction<'_>, ResultsError> {
        Ok(self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?)
    }
}

/// A run's row and name.
#[derive(Clone, Copy)]
pub(super) struct RunRow<'a> {
    pub(super) id: i64,
    pub(super) name: &'a str,
}

pub(super) fn insert_run(transaction: &Transaction<'_>, run: &Run) -> Result<i64, ResultsError> {
    finite("the run's start", run.started)?;
    let there: i64 = transaction.query_row(
        "SELECT count(*) FROM run WHERE name = ?1",
        [&run.name],
        |row| row.get(0),
    )?;
    if there > 0 {
        return Err(ResultsError::RunExists(run.name.clone()));
    }
    // SQLite's integers are signed: the seed keeps its bits.
    transaction.execute(
        "INSERT INTO run (name, experiment, seed, blocks, started) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![
            run.name,
            run.experiment,
            run.seed.cast_signed(),
            run.blocks,
            run.started
        ],
    )?;
    let id = transaction.last_insert_rowid();
    for (topic, facts) in &run.manifest.facts {
        // A topic without facts has no row, so it could not be read back.
        if facts.is_empty() {
            return Err(ResultsError::malformed(
                format!("manifest of run {:?}", run.name),
                format!("group {topic:?} has no facts"),
            ));
        }
        for (name, value) in facts {
            transaction.execute(
                "INSERT INTO fact (run, topic, name, value) VALUES (?1, ?2, ?3, ?4)",
                params![id, topic, name, value],
            )?;
        }
    }
    Ok(id)
}

pub(super) fn insert_cell(
    transaction: &Transaction<'_>,
    run: RunRow<'_>,
    record: &CellRecord,
) -> Result<(), ResultsError> {
    let key = key_text(record);
    verify(record, &key)?;
    let there: i64 = transaction.query_row(
        "SELECT count(*) FROM cell WHERE run = ?1 AND block = ?2 AND experiment = ?3 AND key = ?4",
        params![run.id, record.block, record.experiment, key],
        |row| row.get(0),
    )?;
    if there > 0 {
        return Err(ResultsError::CellExists {
            run: run.name.to_owned(),
            block: record.block,
            cell: key,
        });
    }
    let (outcome, reason) = outcome(&record.outcome);
    transaction.execute(
        "INSERT INTO cell (run, experiment, key, control, is_default, block, place, started,
             duration, outcome, reason, durability)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        params![
            run.id,
            record.experiment,
            key,
            record.control,
            record.default,
            record.block,
            record.place,
            record.started,
            record.duration,
            outcome,
            reason,
            durability(record.durability),
        ],
    )?;
    insert_parts(transaction, transaction.last_insert_rowid(), record)
}

fn insert_parts(
    transaction: &Transaction<'_>,
    cell: i64,
    record: &CellRecord,
) -> Result<(), ResultsError> {
    for (name, value) in &record.cell.0 {
        transaction
            .prepare_cached("INSERT INTO axis VALUES (?1, ?2, ?3)")?
            .execute(params![cell, name, value])?;
    }
    for (name, value) in &record.workload {
        transaction
            .prepare_cached("INSERT INTO workload VALUES (?1, ?2, ?3)")?
            .execute(params![cell, name, value])?;
    }
    for (place, m) in (0_i64..).zip(&record.metrics) {
        transaction
            .prepare_cached("INSERT INTO metric VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?
            .execute(params![
                cell,
                place,
                m.name,
                m.unit,
                m.value,
                better(m.better),
                m.headline
            ])?;
    }
    for (place, e) in (0_i64..).zip(&record.effective) {
        transaction
            .prepare_cached("INSERT INTO effective VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
            .execute(params![
                cell,
                place,
                e.name,
                e.requested,
                e.effective,
                e.agrees
            ])?;
    }
    for (place, i) in (0_i64..).zip(&record.integrity) {
        transaction
            .prepare_cached("INSERT INTO integrity VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![cell, place, i.check, i.passed, i.detail])?;
    }
    for (place, s) in (0_i64..).zip(&record.series) {
        let values: Vec<u8> = s.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        transaction
            .prepare_cached("INSERT INTO series VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
            .execute(params![cell, place, s.name, s.unit, s.step, values])?;
    }
    for (place, l) in (0_i64..).zip(&record.latencies) {
        let upper: Vec<u8> = l.upper.iter().flat_map(|v| v.to_le_bytes()).collect();
        let counts: Vec<u8> = l.counts.iter().flat_map(|v| v.to_le_bytes()).collect();
        transaction
            .prepare_cached("INSERT INTO latencies VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![cell, place, l.name, upper, counts])?;
    }
    for (place, text) in (0_i64..).zip(&record.marks) {
        transaction
            .prepare_cached("INSERT INTO mark VALUES (?1, ?2, ?3)")?
            .execute(params![cell, place, text])?;
    }
    Ok(())
}

/// The cell's key as one text: its axes as JSON, in their order.
pub(super) fn key_text(record: &CellRecord) -> String {
    serde_json::to_string(&record.cell).unwrap_or_default()
}

fn verify(record: &CellRecord, key: &str) -> Result<(), ResultsError> {
    let at = |what: &str| format!("{what} of {key}, block {}", record.block);
    finite(&at("the start"), record.started)?;
    finite(&at("the duration"), record.duration)?;
    for metric in &record.metrics {
        finite(&at(&metric.name), metric.value)?;
    }
    for series in &record.series {
        finite(&at(&series.name), series.step)?;
        for value in &series.values {
            finite(&at(&series.name), *value)?;
        }
    }
    for latencies in &record.latencies {
        for value in &latencies.upper {
            finite(&at(&latencies.name), *value)?;
        }
        if latencies.upper.len() != latencies.counts.len() {
            return Err(ResultsError::malformed(
                at(&latencies.name),
                format!(
                    "{} buckets with {} counts",
                    latencies.upper.len(),
                    latencies.counts.len()
                ),
            ));
        }
    }
    Ok(())
}

fn finite(place: &str, value: f64) -> Result<(), ResultsError> {
    if value.is_finite() {
        return Ok(());
    }
    Err(ResultsError::NotFinite {
        place: place.to_owned(),
        value,
    })
}

pub(super) fn outcome(outcome: &Outcome) -> (&'static str, &str) {
    match outcome {
        Outcome::Done => ("done", ""),
        Outcome::Void(reason) => ("void", reason),
        Outcome::Failed(reason) => ("failed", reason),
        Outcome::Unavailable(reason) => ("unavailable", reason),
    }
}

pub(super) fn durability(durability: Durability) -> &'static str {
    match durability {
        Durability::Full => "full",
        Durability::Weak => "weak",
        Durability::Unsafe => "unsafe",
    }
}

pub(super) fn better(better: Better) -> &'static str {
    match better {
        Better::Higher => "higher",
        Better::Lower => "lower",
        Better::Neither => "neither",
    }
}
