//! What is run on a file system, real tools and our own.
//!
//! A workload is told where to work, and returns figures. It knows nothing of
//! devices, mounts and blocks, which belong to the runner.

mod content;
mod crowd;
mod files;
mod library;
mod measure;
#[cfg(test)]
mod nowhere;
mod own;
mod parameters;
mod program;
mod tools;

pub(crate) use files::Aligned;
pub use files::{Caching, Directory, Files, OpenFile};
pub use library::Library;
pub use program::locate;

use crate::model::{Integrity, Latencies, Metric, Series};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// All workloads, real tools first.
pub fn all() -> &'static [&'static dyn Workload] {
    &[
        &tools::fio::Fio,
        &tools::dbench::Dbench,
        &tools::bonnie::Bonnie,
        &tools::fs_mark::FsMark,
        &tools::postmark::Postmark,
        &tools::sysbench_files::SysbenchFiles,
        &tools::web::Ab,
        &tools::web::Wrk,
        &tools::pgbench::Pgbench,
        &tools::oltp::Oltp,
        &own::grid::Grid,
        &own::transactions::Transactions,
        &own::small_files::SmallFiles,
        &own::http::Http,
        &own::ager::Ager,
        &own::threads::Threads,
        &own::player::Player,
    ]
}

/// The workload of a name.
pub fn find(name: &str) -> Option<&'static dyn Workload> {
    all().iter().copied().find(|one| one.name() == name)
}

/// Parameters of a workload by name, as the experiment gave them.
pub type Parameters = BTreeMap<String, String>;

/// A kind of workload.
pub trait Workload: Send + Sync {
    /// Its name in experiments ("fio").
    fn name(&self) -> &'static str;

    /// Programs that must be on this machine, with the Debian package of each.
    fn programs(&self) -> &'static [(&'static str, &'static str)];

    /// Names of its parameters, with their defaults and meanings.
    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)];

    /// Whether everything that it does to the file system goes through
    /// [`Ground::files`]. Only then can a library replace the mount.
    fn is_by_files(&self) -> bool {
        false
    }

    /// What a pass needs and takes at most, stated before it begins.
    ///
    /// # Errors
    /// A parameter that it does not know or cannot use, in words.
    fn demand(&self, parameters: &Parameters) -> Result<Demand, String>;

    /// Makes a pass. All programs that it started have ended when it returns,
    /// also with an error.
    ///
    /// # Errors
    /// What failed, in words, with the end of what the program printed.
    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String>;
}

/// What a pass needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Bytes that it has in the file system at most.
    pub space: u64,
    /// Bytes of memory of the programs themselves, without caches.
    pub memory: u64,
    /// Time on a usual disk, roughly.
    pub time: Duration,
}

/// Where a pass works.
///
/// Servers that refuse to run as root are started as another user, so everybody
/// must be able to pass through the directories above both (mode 755;
/// `allow_other` on a FUSE mount). The path of a socket may have at most 108
/// bytes, so that of scratch has at most 80.
pub trait Ground {
    /// An empty directory of the file system that is measured.
    fn directory(&self) -> &Path;

    /// An empty directory elsewhere: logs, sockets, configuration.
    fn scratch(&self) -> &Path;

    /// Seed of all random choices of this pass.
    fn seed(&self) -> u64;

    /// Ends a phase and begins the next ("read"). Everything is durable
    /// afterwards. If the cell asks for a cold cache, nothing of the files is
    /// in memory. [`Ground::directory`] may be another one then. Time between
    /// two phases belongs to neither.
    ///
    /// # Errors
    /// What failed, in words.
    fn next_phase(&mut self, name: &str) -> Result<(), String>;

    /// The same for work that is not measured, such as making what is read
    /// later and checking it at the end. Its costs are charged to nothing.
    ///
    /// # Errors
    /// What failed, in words.
    fn next_phase_aside(&mut self, name: &str) -> Result<(), String> {
        self.next_phase(name)
    }

    /// Whether the user wants the run to stop; asked at least once a second.
    fn is_cancelled(&self) -> bool;

    /// The files of [`Ground::directory`] as our own workloads see them, until
    /// the next phase. A target that is not a directory of this system (a
    /// volume that the library has open) gives its own files.
    fn files(&self) -> Arc<dyn Files> {
        Arc::new(Directory::new(self.directory()))
    }
}

/// What a pass gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Figures; those of the headline are marked.
    pub metrics: Vec<Metric>,
    /// Values over time, in steps of a second.
    pub series: Vec<Series>,
    /// Distributions of latencies.
    pub latencies: Vec<Latencies>,
    /// What the workload checked about its own content.
    pub integrity: Vec<Integrity>,
    /// Things that a reader must know ("the tool writes zeros").
    pub marks: Vec<String>,
    /// Tool, version, command lines.
    pub facts: BTreeMap<String, String>,
    /// Bytes that the application asked to write, if it says so; otherwise what
    /// its processes gave to write(2) counts.
    pub written: Option<u64>,
    /// Operations that it made, if known. CPU time is divided by them.
    pub operations: Option<u64>,
    /// Files whose content must be the same after everything is unmounted and
    /// mounted again, relative to the directory. Empty: the whole directory.
    pub keep: Vec<PathBuf>,
}

#[cfg(test)]
impl Figures {
    /// The figure of a name; a test that asks for another one fails.
    fn value(&self, name: &str) -> f64 {
        let found = self.metrics.iter().find(|metric| metric.name == name);
        found.unwrap_or_else(|| panic!("no figure {name}")).value
    }
}
