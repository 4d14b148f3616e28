//! Results in one SQLite file (docs/lab-results.md describes its tables).
//!
//! Owns the file, its versions and its transactions. A cell is added as a
//! whole, in one transaction that is on the device when [`Results::add_cell`]
//! returns. A process or a machine that dies at any point leaves a readable
//! file with every cell that was added before.
//!
//! Everything is read back as it was stored. What SQLite or JSON could not give
//! back (numbers that are not finite) is refused.

mod error;
mod export;
mod read;
mod schema;
mod write;

pub use error::ResultsError;
pub use export::{Dump, Recorded, from_json, pack, to_csv, to_json, unpack};

use crate::model::CellKey;
use rusqlite::Connection;
use std::path::Path;
use std::time::Duration;

/// A database of results.
#[derive(Debug)]
pub struct Results {
    connection: Connection,
}

/// Which pass of a run a record is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pass {
    /// Block, from 0.
    pub block: u32,
    /// Experiment.
    pub experiment: String,
    /// Cell.
    pub cell: CellKey,
}

impl Results {
    /// Opens a file of results. Makes it if there is none, and upgrades one of
    /// an older version.
    ///
    /// # Errors
    /// [`ResultsError::NotResults`] for another program's database,
    /// [`ResultsError::Newer`] for one of a later version. Neither is changed.
    pub fn open(path: &Path) -> Result<Self, ResultsError> {
        let place = || path.display().to_string();
        let connection = Connection::open(path).map_err(|e| ResultsError::sqlite(place(), e))?;
        Self::with(connection).map_err(|error| error.in_file(&place()))
    }

    /// A database in memory.
    ///
    /// # Errors
    /// When SQLite cannot make one.
    pub fn in_memory() -> Result<Self, ResultsError> {
        Self::with(Connection::open_in_memory()?)
    }

    fn with(mut connection: Connection) -> Result<Self, ResultsError> {
        connection.busy_timeout(Duration::from_secs(30))?;
        schema::check(&connection)?;
        // FULL: a commit is on the device before it returns, also in WAL mode.
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;",
        )?;
        schema::migrate(&mut connection)?;
        Ok(Self { connection })
    }

    /// The version of the tables.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn version(&self) -> Result<u32, ResultsError> {
        schema::version(&self.connection)
    }
}
