//! Taking runs and cells out.

use super::{Pass, Results, ResultsError};
use crate::model::{
    Better, CellKey, CellRecord, Durability, Effective, Integrity, Latencies, Manifest, Metric,
    Outcome, Run, Series,
};
use rusqlite::{OptionalExtension, Row, params};
use std::collections::{BTreeMap, BTreeSet};

impl Results {
    /// Names of all runs, oldest first.
    ///
    /// # Errors
    /// SQLite's.
    pub fn runs(&self) -> Result<Vec<String>, ResultsError> {
        self.all("SELECT name FROM run ORDER BY started, id", 0, |row| {
            row.get(0)
        })
    }

    /// A run by its name.
    ///
    /// # Errors
    /// [`ResultsError::NoRun`]; SQLite's.
    pub fn run(&self, name: &str) -> Result<Run, ResultsError> {
        let id = self.run_id(name)?;
        let mut run = self.connection.query_row(
            "SELECT name, experiment, seed, blocks, started FROM run WHERE id = ?1",
            [id],
            |row| {
                Ok(Run {
                    name: row.get(0)?,
                    experiment: row.get(1)?,
                    seed: row.get::<_, i64>(2)?.cast_unsigned(),
                    blocks: row.get(3)?,
                    started: row.get(4)?,
                    manifest: Manifest::default(),
                })
            },
        )?;
        let facts: Vec<(String, String, String)> = self.all(
            "SELECT topic, name, value FROM fact WHERE run = ?1",
            id,
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )?;
        for (topic, name, value) in facts {
            let group = run.manifest.facts.entry(topic).or_default();
            group.insert(name, value);
        }
        Ok(run)
    }

    /// All passes of a run in the order of blocks and places.
    ///
    /// # Errors
    /// [`ResultsError::NoRun`], [`ResultsError::Malformed`]; SQLite's.
    pub fn cells(&self, run: &str) -> Result<Vec<CellRecord>, ResultsError> {
        let id = self.run_id(run)?;
        let mut records = self.all(
            "SELECT id, experiment, control, is_default, block, place, started, duration,
                    outcome, reason, durability
             FROM cell WHERE run = ?1 ORDER BY block, place, id",
            id,
            record,
        )?;
        for (cell, record) in &mut records {
            self.read_parts(*cell, record)?;
        }
        Ok(records.into_iter().map(|(_, record)| record).collect())
    }

    /// Which passes of a run are stored, whatever their outcome.
    ///
    /// # Errors
    /// [`ResultsError::NoRun`], [`ResultsError::Malformed`]; SQLite's.
    pub fn passes(&self, run: &str) -> Result<BTreeSet<Pass>, ResultsError> {
        let id = self.run_id(run)?;
        let rows: Vec<(u32, String, String)> = self.all(
            "SELECT block, experiment, key FROM cell WHERE run = ?1",
            id,
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )?;
        rows.into_iter()
            .map(|(block, experiment, key)| {
                let cell: CellKey = serde_json::from_str(&key)
                    .map_err(|e| ResultsError::malformed(format!("cell {key:?}"), e.to_string()))?;
                Ok(Pass {
                    block,
                    experiment,
                    cell,
                })
            })
            .collect()
    }

    pub(super) fn run_id(&self, name: &str) -> Result<i64, ResultsError> {
        let id = self
            .connection
            .query_row("SELECT id FROM run WHERE name = ?1", [name], |row| {
                row.get(0)
            })
            .optional()?;
        match id {
            Some(id) => Ok(id),
            None => Err(ResultsError::NoRun {
                name: name.to_owned(),
                known: self.runs()?,
            }),
        }
    }

    /// All rows of a query with at most one parameter.
    fn all<T>(
        &self,
        query: &str,
        parameter: i64,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, ResultsError> {
        let mut statement = self.connection.prepare_cached(query)?;
        let wanted = statement.parameter_count();
        let parameters: &[i64] = &[parameter];
        let rows = statement.query_map(
            rusqlite::params_from_iter(&parameters[..wanted.min(1)]),
            read,
        )?;
        Ok(rows.collect::<rusqlite::Result<Vec<T>>>()?)
    }

    fn read_parts(&self, cell: i64, record: &mut CellRecord) -> Result<(), ResultsError> {
        let pair = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let pairs = |query: &str| -> Result<BTreeMap<String, String>, ResultsError> {
            Ok(self.all(query, cell, pair)?.into_iter().collect())
        };
        record.cell = CellKey(pairs("SELECT name, value FROM axis WHERE cell = ?1")?);
        record.workload = pairs("SELECT name, value FROM workload WHERE cell = ?1")?;
        record.metrics = self.all(
            "SELECT name, unit, value, better, headline FROM metric WHERE cell = ?1 ORDER BY place",
            cell,
            |row| {
                Ok(Metric {
                    name: row.get(0)?,
                    unit: row.get(1)?,
                    value: row.get(2)?,
                    better: better(&row.get::<_, String>(3)?),
                    headline: row.get(4)?,
                })
            },
        )?;
        record.effective = self.all(
            "SELECT name, requested, effective, agrees FROM effective WHERE cell = ?1
             ORDER BY place",
            cell,
            |row| {
                Ok(Effective {
                    name: row.get(0)?,
                    requested: row.get(1)?,
                    effective: row.get(2)?,
                    agrees: row.get(3)?,
                })
            },
        )?;
        record.integrity = self.all(
            "SELECT name, passed, detail FROM integrity WHERE cell = ?1 ORDER BY place",
            cell,
            |row| {
                Ok(Integrity {
                    check: row.get(0)?,
                    passed: row.get(1)?,
                    detail: row.get(2)?,
                })
            },
        )?;
        record.marks = self.all(
            "SELECT text FROM mark WHERE cell = ?1 ORDER BY place",
            cell,
            |row| row.get(0),
        )?;
        self.read_courses(cell, record)
    }

    fn read_courses(&self, cell: i64, record: &mut CellRecord) -> Result<(), ResultsError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT name, unit, step, \"values\" FROM series WHERE cell = ?1 ORDER BY place",
        )?;
        let mut rows = statement.query(params![cell])?;
        while let Some(row) = rows.next()? {
            let name: String = row.get(0)?;
            record.series.push(Series {
                values: words(&name, &row.get::<_, Vec<u8>>(3)?, f64::from_le_bytes)?,
                name,
                unit: row.get(1)?,
                step: row.get(2)?,
            });
        }
        let mut statement = self.connection.prepare_cached(
            "SELECT name, upper, counts FROM latencies WHERE cell = ?1 ORDER BY place",
        )?;
        let mut rows = statement.query(params![cell])?;
        while let Some(row) = rows.next()? {
            let name: String = row.get(0)?;
            record.latencies.push(Latencies {
                upper: words(&name, &row.get::<_, Vec<u8>>(1)?, f64::from_le_bytes)?,
                counts: words(&name, &row.get::<_, Vec<u8>>(2)?, u64::from_le_bytes)?,
                name,
            });
        }
        Ok(())
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<(i64, CellRecord)> {
    let reason: String = row.get(9)?;
    // The tables allow no other words.
    let outcome = match row.get::<_, String>(8)?.as_str() {
        "done" => Outcome::Done,
        "void" => Outcome::Void(reason),
        "failed" => Outcome::Failed(reason),
        _ => Outcome::Unavailable(reason),
    };
    let durability = match row.get::<_, String>(10)?.as_str() {
        "full" => Durability::Full,
        "weak" => Durability::Weak,
        _ => Durability::Unsafe,
    };
    let record = CellRecord {
        experiment: row.get(1)?,
        cell: CellKey::default(),
        control: row.get(2)?,
        default: row.get(3)?,
        block: row.get(4)?,
        place: row.get(5)?,
        started: row.get(6)?,
        duration: row.get(7)?,
        outcome,
        durability,
        effective: Vec::new(),
        metrics: Vec::new(),
        series: Vec::new(),
        latencies: Vec::new(),
        integrity: Vec::new(),
        marks: Vec::new(),
        workload: BTreeMap::new(),
    };
    Ok((row.get(0)?, record))
}

fn better(word: &str) -> Better {
    match word {
        "higher" => Better::Higher,
        "lower" => Better::Lower,
        _ => Better::Neither,
    }
}

fn words<T>(name: &str, bytes: &[u8], word: impl Fn([u8; 8]) -> T) -> Result<Vec<T>, ResultsError> {
    let (whole, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        return Err(ResultsError::malformed(
            name,
            format!("{} bytes are no whole number of values", bytes.len()),
        ));
    }
    Ok(whole.iter().map(|chunk| word(*chunk)).collect())
}
