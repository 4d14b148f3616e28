//! What can go wrong with results.

/// An error of [`super::Results`], with what to do next.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// SQLite or the file system below it failed.
    #[error("{place}: {source}")]
    Sqlite {
        /// The file, or what was done.
        place: String,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// The file is a database of something else.
    #[error("{place} is a database, but not one of the lab's; name another file")]
    NotResults {
        /// The file.
        place: String,
    },
    /// The file was written by a newer version.
    #[error(
        "{place} has version {found} of the tables, this program knows up to {known}; \
         use the program that wrote it, or export it there as JSON"
    )]
    Newer {
        /// The file.
        place: String,
        /// Its version.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// No such run.
    #[error("there is no run {name:?}; there {are}", are = listed(.known))]
    NoRun {
        /// The name asked for.
        name: String,
        /// Those that are there.
        known: Vec<String>,
    },
    /// The run is there already.
    #[error("run {0:?} is there already; give another name, or resume it")]
    RunExists(String),
    /// The cell has a record in this block already.
    #[error("block {block} of run {run:?} has {cell} already; a pass is recorded once")]
    CellExists {
        /// The run.
        run: String,
        /// The block.
        block: u32,
        /// The cell.
        cell: String,
    },
    /// A number that is not finite.
    #[error("{place} is {value}: only finite numbers are kept")]
    NotFinite {
        /// Which number.
        place: String,
        /// Its value.
        value: f64,
    },
    /// Stored or imported data do not mean anything.
    #[error("{place}: {what}")]
    Malformed {
        /// Where.
        place: String,
        /// What is wrong.
        what: String,
    },
}

fn listed(known: &[String]) -> String {
    if known.is_empty() {
        "is none yet".to_owned()
    } else {
        format!("are: {}", known.join(", "))
    }
}

impl From<rusqlite::Error> for ResultsError {
    fn from(source: rusqlite::Error) -> Self {
        Self::sqlite("results".to_owned(), source)
    }
}

impl ResultsError {
    pub(super) fn sqlite(place: String, source: rusqlite::Error) -> Self {
        Self::Sqlite { place, source }
    }

    pub(super) fn malformed(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Malformed {
            place: place.into(),
            what: what.into(),
        }
    }

    /// Names the file, if the error came before the file was known.
    pub(super) fn in_file(mut self, path: &str) -> Self {
        match &mut self {
            Self::Sqlite { place, .. } | Self::NotResults { place } | Self::Newer { place, .. } => {
                *place = path.to_owned()
            }
            _ => {}
        }
        self
    }
}
