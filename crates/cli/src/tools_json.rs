//! JSON in the form of the Btrfs tools: what `--format json` asks for, where
//! they have a form. `--json` is this program's own.

use crate::fail::Done;
use crate::place::json;
use clap::ValueEnum;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// A form of output, as the Btrfs tools name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text.
    Text,
    /// Their JSON.
    Json,
}

/// The only version of their form that there is.
#[derive(Serialize)]
struct Header {
    version: &'static str,
}

struct Whole<'r, R> {
    name: &'static str,
    rows: &'r [R],
}

impl<R: Serialize> Serialize for Whole<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("__header", &Header { version: "1" })?;
        map.serialize_entry(self.name, self.rows)?;
        map.end()
    }
}

/// Prints the rows of the command `name`. Numbers in them are JSON numbers, as
/// in btrfs-progs 6.3 or later; 6.2 printed strings.
pub fn print<R: Serialize>(name: &'static str, rows: &[R]) -> Done {
    json(&Whole { name, rows })
}
