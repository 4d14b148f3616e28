//! A ground for workloads in a temporary directory.

use butterfs_lab::workload::{self, Figures, Ground, Parameters};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A directory that workloads run in.
pub struct TestGround {
    root: PathBuf,
    _root: Option<tempfile::TempDir>,
    directory: PathBuf,
    scratch: PathBuf,
    seed: u64,
    cancel_after: Option<Instant>,
    /// Phases that began.
    pub phases: Vec<String>,
    /// Called with the directory when this phase begins.
    #[allow(clippy::type_complexity)]
    pub at_phase: Option<(String, Box<dyn Fn(&Path)>)>,
}

impl TestGround {
    pub fn new(seed: u64) -> Self {
        let base = Path::new("/dev/shm");
        let base = if base.is_dir() {
            base
        } else {
            Path::new("/tmp")
        };
        let root = tempfile::Builder::new()
            .prefix("butterfs-workload-")
            .tempdir_in(base)
            .unwrap();
        // Servers that do not run as root must be able to pass through.
        std::fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["measured", "scratch"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        let mut ground = Self::at(root.path());
        ground.seed = seed;
        ground._root = Some(root);
        ground
    }

    /// One that another process made and will remove.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            _root: None,
            directory: root.join("measured"),
            scratch: root.join("scratch"),
            seed: 1,
            cancel_after: None,
            phases: Vec::new(),
            at_phase: None,
        }
    }

    pub fn cancelled_after(mut self, time: Duration) -> Self {
        self.cancel_after = Some(Instant::now() + time);
        self
    }

    /// The directory of this ground. No process may have it open afterwards.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

impl Ground for TestGround {
    fn directory(&self) -> &Path {
        &self.directory
    }

    fn scratch(&self) -> &Path {
        &self.scratch
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn next_phase(&mut self, name: &str) -> Result<(), String> {
        if let Some((phase, action)) = &self.at_phase
            && phase == name
        {
            action(&self.directory);
        }
        self.phases.push(name.to_owned());
        Ok(())
    }

    fn is_cancelled(&self) -> bool {
        self.cancel_after.is_some_and(|at| Instant::now() >= at)
    }
}

pub fn parameters(pairs: &[(&str, &str)]) -> Parameters {
    let pairs = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    pairs.collect()
}

/// Runs a workload and checks what holds for all.
pub fn run(name: &str, pairs: &[(&str, &str)], ground: &mut TestGround) -> Result<Figures, String> {
    let workload = workload::find(name).unwrap();
    let parameters = parameters(pairs);
    let demand = workload.demand(&parameters)?;
    assert!(demand.time > Duration::ZERO);
    let figures = workload.run(&parameters, ground)?;
    let space = space_of(ground.directory());
    assert!(
        space <= demand.space + (1 << 20),
        "{name}: {space} of {}",
        demand.space
    );
    let mut names = std::collections::BTreeSet::new();
    for metric in &figures.metrics {
        assert!(metric.value.is_finite(), "{}", metric.name);
        assert!(names.insert(metric.name.clone()), "{} twice", metric.name);
    }
    for latencies in &figures.latencies {
        assert_eq!(latencies.upper.len(), latencies.counts.len());
        assert!(latencies.upper.is_sorted(), "{}", latencies.name);
    }
    assert!(figures.metrics.iter().any(|metric| metric.headline));
    assert!(figures.facts.contains_key("tool"));
    for kept in &figures.keep {
        assert!(ground.directory().join(kept).exists(), "{}", kept.display());
    }
    Ok(figures)
}

pub fn value(figures: &Figures, name: &str) -> f64 {
    let found = figures.metrics.iter().find(|metric| metric.name == name);
    found
        .unwrap_or_else(|| panic!("no {name} in {:?}", figures.metrics))
        .value
}

/// Whether the program's workload can run here; in CI it must.
pub fn is_here(name: &str) -> bool {
    let workload = workload::find(name).unwrap();
    for (program, package) in workload.programs() {
        if workload::locate(program).is_none() {
            assert!(
                std::env::var_os("CI").is_none(),
                "{name} needs {program} of {package}"
            );
            println!("skipped: {name} needs {program} of the package {package}");
            return false;
        }
    }
    true
}

/// Processes that still have the ground in their command line or as their
/// directory.
pub fn processes_of(ground: &TestGround) -> Vec<String> {
    let root = ground.root().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        if entry.file_name().to_str() == Some(&std::process::id().to_string()) {
            continue;
        }
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let stands = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        if line.contains(&root) || stands.starts_with(&root) {
            found.push(line);
        }
    }
    found
}

/// Bytes that files take below a directory.
fn space_of(directory: &Path) -> u64 {
    let mut sum = 0;
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let about = entry.metadata().unwrap();
        sum += about.blocks() * 512;
        if about.is_dir() {
            sum += space_of(&entry.path());
        }
    }
    sum
}
