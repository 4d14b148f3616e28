//! Results as JSON, compressed JSON and CSV.

use super::write::{RunRow, better, durability, insert_cell, insert_run, key_text, outcome};
use super::{Results, ResultsError};
use crate::model::{CellRecord, Run};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::Read;

/// Version of the JSON form.
const JSON_VERSION: u32 = 1;
/// More than this is no file of results (unpacked).
const JSON_BYTES_MAX: u64 = 4 << 30;

/// A run with its cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// The run.
    pub run: Run,
    /// Its passes, by block and place.
    pub cells: Vec<CellRecord>,
}

/// Everything in a database, as JSON has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dump {
    /// Version of this form.
    pub butterfs_lab_results: u32,
    /// Runs, oldest first.
    pub runs: Vec<Recorded>,
}

impl From<Recorded> for Dump {
    fn from(recorded: Recorded) -> Self {
        Self {
            butterfs_lab_results: JSON_VERSION,
            runs: vec![recorded],
        }
    }
}

impl Results {
    /// A run with its cells.
    ///
    /// # Errors
    /// [`ResultsError::NoRun`], [`ResultsError::Malformed`]; SQLite's.
    pub fn recorded(&self, run: &str) -> Result<Recorded, ResultsError> {
        Ok(Recorded {
            run: self.run(run)?,
            cells: self.cells(run)?,
        })
    }

    /// Everything.
    ///
    /// # Errors
    /// [`ResultsError::Malformed`]; SQLite's.
    pub fn dump(&self) -> Result<Dump, ResultsError> {
        let runs = self.runs()?;
        Ok(Dump {
            butterfs_lab_results: JSON_VERSION,
            runs: runs
                .iter()
                .map(|run| self.recorded(run))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Adds all runs of a dump, or none.
    ///
    /// # Errors
    /// As [`Results::add_run`] and [`Results::add_cell`].
    pub fn import(&mut self, dump: &Dump) -> Result<(), ResultsError> {
        let transaction = self.begin()?;
        for recorded in &dump.runs {
            let row = RunRow {
                id: insert_run(&transaction, &recorded.run)?,
                name: &recorded.run.name,
            };
            for cell in &recorded.cells {
                insert_cell(&transaction, row, cell)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

/// A dump as JSON, one line for each cell.
///
/// # Errors
/// [`ResultsError::Malformed`] when a value has no JSON form.
pub fn to_json(dump: &Dump) -> Result<String, ResultsError> {
    let json = |value: Result<String, serde_json::Error>| {
        value.map_err(|e| ResultsError::malformed("JSON", e.to_string()))
    };
    let mut text = format!(
        "{{\"butterfs_lab_results\":{},\"runs\":[",
        dump.butterfs_lab_results
    );
    for (i, recorded) in dump.runs.iter().enumerate() {
        text.push_str(if i > 0 { ",\n" } else { "\n" });
        text.push_str("{\"run\":");
        text.push_str(&json(serde_json::to_string(&recorded.run))?);
        text.push_str(",\"cells\":[");
        for (j, cell) in recorded.cells.iter().enumerate() {
            text.push_str(if j > 0 { ",\n" } else { "\n" });
            text.push_str(&json(serde_json::to_string(cell))?);
        }
        text.push_str("]}");
    }
    text.push_str("]}\n");
    Ok(text)
}

/// Reads a dump from its JSON.
///
/// # Errors
/// [`ResultsError::Malformed`] with line and column.
pub fn from_json(text: &str) -> Result<Dump, ResultsError> {
    let dump: Dump = serde_json::from_str(text)
        .map_err(|e| ResultsError::malformed("JSON results", e.to_string()))?;
    if dump.butterfs_lab_results != JSON_VERSION {
        return Err(ResultsError::malformed(
            "JSON results",
            format!(
                "version {} is not known here, only {JSON_VERSION}",
                dump.butterfs_lab_results
            ),
        ));
    }
    Ok(dump)
}

/// JSON, compressed with zstd; equal texts give equal bytes.
///
/// # Errors
/// [`ResultsError::Malformed`] when zstd fails.
pub fn pack(json: &str) -> Result<Vec<u8>, ResultsError> {
    zstd::encode_all(json.as_bytes(), 19)
        .map_err(|e| ResultsError::malformed("compressing", e.to_string()))
}

/// The JSON that [`pack`] compressed; plain JSON is passed as it is.
///
/// # Errors
/// [`ResultsError::Malformed`] for what is neither, and above 4 GiB.
pub fn unpack(bytes: &[u8]) -> Result<String, ResultsError> {
    let wrong =
        |e: &dyn std::fmt::Display| ResultsError::malformed("compressed results", e.to_string());
    let mut text = String::new();
    if bytes.starts_with(&[0x28, 0xB5, 0x2F, 0xFD]) {
        let decoder = zstd::Decoder::new(bytes).map_err(|e| wrong(&e))?;
        decoder
            .take(JSON_BYTES_MAX + 1)
            .read_to_string(&mut text)
            .map_err(|e| wrong(&e))?;
        if text.len() as u64 > JSON_BYTES_MAX {
            return Err(wrong(&"more than 4 GiB"));
        }
    } else {
        text.push_str(std::str::from_utf8(bytes).map_err(|e| wrong(&e))?);
    }
    Ok(text)
}

/// Every figure of every pass as one line: the run, the pass, its axes in
/// columns of their own, the metric. A pass without metrics has one line in
/// which the metric's columns are empty, so that void and unavailable cells are
/// there too.
///
/// # Errors
/// [`ResultsError::Malformed`] when the text cannot be made.
pub fn to_csv(dump: &Dump) -> Result<String, ResultsError> {
    let cells = || dump.runs.iter().flat_map(|run| &run.cells);
    let axes: BTreeSet<&String> = cells().flat_map(|cell| cell.cell.0.keys()).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let wrong = |e: csv::Error| ResultsError::malformed("CSV", e.to_string());
    let mut head = vec![
        "run",
        "experiment",
        "cell",
        "block",
        "place",
        "control",
        "default",
        "outcome",
        "reason",
        "durability",
    ];
    let columns: Vec<String> = axes.iter().map(|axis| format!("axis {axis}")).collect();
    head.extend(columns.iter().map(String::as_str));
    head.extend(["metric", "unit", "value", "better", "headline"]);
    writer.write_record(&head).map_err(wrong)?;
    for recorded in &dump.runs {
        for cell in &recorded.cells {
            let (state, reason) = outcome(&cell.outcome);
            let mut common = vec![
                recorded.run.name.clone(),
                cell.experiment.clone(),
                key_text(cell),
                cell.block.to_string(),
                cell.place.to_string(),
                cell.control.to_string(),
                cell.default.to_string(),
                state.to_owned(),
                reason.to_owned(),
                durability(cell.durability).to_owned(),
            ];
            common.extend(
                axes.iter()
                    .map(|axis| cell.cell.0.get(*axis).cloned().unwrap_or_default()),
            );
            for metric in &cell.metrics {
                let figures = [
                    metric.name.clone(),
                    metric.unit.clone(),
                    metric.value.to_string(),
                    better(metric.better).to_owned(),
                    metric.headline.to_string(),
                ];
                writer
                    .write_record(common.iter().chain(&figures))
                    .map_err(wrong)?;
            }
            if cell.metrics.is_empty() {
                let none = [const { String::new() }; 5];
                writer
                    .write_record(common.iter().chain(&none))
                    .map_err(wrong)?;
            }
        }
    }
    let bytes = writer
        .into_inner()
        .map_err(|e| ResultsError::malformed("CSV", e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| ResultsError::malformed("CSV", e.to_string()))
}
