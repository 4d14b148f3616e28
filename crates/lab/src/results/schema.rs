//! The tables and how older files become newer ones.
//!
//! A released step never changes: a new version is a new step.

use super::ResultsError;
use rusqlite::Connection;

/// "ButL": marks the file as the lab's (`PRAGMA application_id`).
pub(super) const APPLICATION: i32 = 0x4275_744C;

/// Steps from each version to the next; version 0 is an empty file.
const STEPS: &[&str] = &[include_str!("version1.sql"), include_str!("version2.sql")];

pub(super) fn version(connection: &Connection) -> Result<u32, ResultsError> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    u32::try_from(found).map_err(|_| ResultsError::NotResults {
        place: String::new(),
    })
}

/// Refuses, before any change, what is not ours or is newer than this program.
pub(super) fn check(connection: &Connection) -> Result<(), ResultsError> {
    let application: i32 =
        connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application != APPLICATION && tables > 0 {
        return Err(ResultsError::NotResults {
            place: String::new(),
        });
    }
    let found = version(connection)?;
    let known = STEPS.len() as u32;
    if found > known {
        return Err(ResultsError::Newer {
            place: String::new(),
            found,
            known,
        });
    }
    Ok(())
}

/// Takes the steps that the file lacks, all in one transaction.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), ResultsError> {
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let found = version(&transaction)? as usize;
    if found < STEPS.len() {
        for step in &STEPS[found..] {
            transaction.execute_batch(step)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", STEPS.len() as u32)?;
    }
    transaction.commit()?;
    Ok(())
}
