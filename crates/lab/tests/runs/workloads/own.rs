//! Our own workloads.

use super::ground::{TestGround, parameters, run, value};
use butterfs_admin::mkfs::MkfsOptions;
use butterfs_lab::stats::percentile;
use butterfs_lab::workload::{self, Files, Ground, Library};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Each with parameters that take a moment.
const TINY: &[(&str, &[(&str, &str)])] = &[
    (
        "grid",
        &[
            ("size", "2m"),
            ("record", "64k"),
            (
                "phases",
                "write,rewrite,read,reread,random read,random write",
            ),
        ],
    ),
    (
        "files",
        &[
            ("files", "300"),
            ("size", "100"),
            ("size-most", "9000"),
            ("sync", "each"),
            ("phases", "sequential create,sequential stat,random read"),
        ],
    ),
    (
        "transactions",
        &[
            ("size", "4m"),
            ("log", "64k"),
            ("time", "0"),
            ("transactions", "200"),
            ("threads", "1"),
            ("batch", "16"),
        ],
    ),
    ("ager", &[("trees", "3"), ("files", "70"), ("rounds", "20")]),
    (
        "threads",
        &[("threads", "3"), ("size", "3m"), ("random", "200")],
    ),
    ("player", &[("clients", "2"), ("time", "0"), ("loops", "2")]),
    (
        "http",
        &[
            ("rates", "300,600"),
            ("time", "1"),
            ("clients", "8"),
            ("files", "20"),
            ("size", "3000"),
        ],
    ),
];

fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap().to_string_lossy();
                found.insert(name.into_owned(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn own_workloads_run_and_their_content_is_right() {
    for (name, pairs) in TINY {
        let mut ground = TestGround::new(7);
        let figures = run(name, pairs, &mut ground).unwrap();
        assert!(!ground.phases.is_empty(), "{name}");
        assert!(figures.operations.unwrap() > 0, "{name}");
        let content = figures.integrity.iter().find(|one| one.check == "content");
        let content = content.unwrap_or_else(|| panic!("{name} checked nothing"));
        assert!(content.passed, "{name}: {}", content.detail);
        for latencies in &figures.latencies {
            let longest = percentile(latencies, 1.0).unwrap();
            // Every operation takes some time, and none takes a minute.
            assert!(
                (1e-8..60.0).contains(&longest),
                "{name} {}: {longest}",
                latencies.name
            );
        }
    }
}

fn hash(content: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    hasher.finish()
}

#[test]
fn a_seed_makes_the_same_files_and_another_seed_others() {
    for (name, pairs) in TINY {
        let left = |seed| {
            let mut ground = TestGround::new(seed);
            let figures = run(name, pairs, &mut ground).unwrap();
            let mut files = contents(ground.directory());
            // The cleaner writes changed pages at other times in each run.
            files.remove("tables");
            files.remove("doublewrite");
            let files: Vec<_> = files
                .into_iter()
                .map(|(name, content)| (name, content.len(), hash(&content)))
                .collect();
            let choices = figures.facts.get("choices").cloned();
            (files, choices, figures.operations)
        };
        let first = left(7);
        assert!(!first.0.is_empty(), "{name}");
        assert_eq!(first, left(7), "{name}");
        let other = left(8);
        assert_ne!(first.0, other.0, "{name}");
        assert!(first.1.is_none() || first.1 != other.1, "{name}");
    }
}

type Damage = fn(&Path);

#[test]
fn damaged_content_is_found() {
    let cases: &[(&str, &str, Damage)] = &[
        ("grid", "check", |directory| {
            flip(&directory.join("grid-0"), 1_234_567)
        }),
        ("files", "random read", |directory| {
            let (name, _) = contents(directory)
                .into_iter()
                .find(|(_, c)| c.len() > 50)
                .unwrap();
            flip(&directory.join(name), 50);
        }),
        ("transactions", "check", |directory| {
            flip(&directory.join("tables"), 3_000_001)
        }),
    ];
    for (name, phase, damage) in cases {
        let (_, pairs) = TINY.iter().find(|(known, _)| known == name).unwrap();
        let mut ground = TestGround::new(7);
        ground.at_phase = Some(((*phase).to_owned(), Box::new(damage)));
        let figures = run(name, pairs, &mut ground).unwrap();
        assert!(
            figures.integrity.iter().any(|one| !one.passed),
            "{name}: {:?}",
            figures.integrity
        );
    }
}

fn flip(path: &Path, offset: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// Long runs of each, to be cancelled.
const LONG: &[(&str, &[(&str, &str)])] = &[
    (
        "grid",
        &[
            ("size", "512m"),
            ("record", "4k"),
            ("phases", "write,rewrite,rewrite,rewrite"),
        ],
    ),
    ("files", &[("files", "10000000"), ("size", "0")]),
    ("transactions", &[("size", "4m"), ("time", "1000")]),
    ("http", &[("files", "10"), ("time", "1000")]),
    ("ager", &[("files", "100000")]),
    ("threads", &[("size", "256m"), ("random", "100000000")]),
    ("player", &[("time", "1000")]),
];

#[test]
fn cancelling_ends_own_workloads_at_once() {
    for (name, pairs) in LONG {
        let mut ground = TestGround::new(1).cancelled_after(Duration::from_millis(300));
        let began = Instant::now();
        let error = run(name, pairs, &mut ground).unwrap_err();
        assert_eq!(error, "cancelled", "{name}");
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{name}: {:?}",
            began.elapsed()
        );
    }
}

#[test]
fn a_full_file_system_is_told_with_the_path() {
    // /dev/full takes opens and refuses writes.
    let mut ground = TestGround::new(1);
    let target = ground.directory().join("grid-0");
    std::os::unix::fs::symlink("/dev/full", target).unwrap();
    let error = run("grid", TINY[0].1, &mut ground).unwrap_err();
    assert!(
        error.contains("grid-0") && error.contains("No space left"),
        "{error}"
    );
}

#[test]
fn transactions_come_at_a_rate() {
    let pairs = |rate| {
        [
            ("size", "4m"),
            ("log", "64k"),
            ("time", "3"),
            ("threads", "4"),
            ("rate", rate),
        ]
    };
    let mut ground = TestGround::new(1);
    let figures = run("transactions", &pairs("100"), &mut ground).unwrap();
    // 300 are expected: five standard deviations are 87.
    let operations = figures.operations.unwrap();
    assert!((210..390).contains(&operations), "{operations}");
    assert!((70.0..130.0).contains(&value(&figures, "throughput")));
    assert!(value(&figures, "transaction p50") < 0.1);
    // No memory is fast enough for this rate, so most transactions wait for
    // longer than a second.
    let mut ground = TestGround::new(1);
    let figures = run("transactions", &pairs("1000000"), &mut ground).unwrap();
    assert!(
        figures.marks[0].contains("never begun"),
        "{:?}",
        figures.marks
    );
    assert!(value(&figures, "p95") > 1.0);
}

#[test]
fn transactions_write_twice_with_doublewrite() {
    let written = |doublewrite| {
        let mut pairs = TINY[2].1.to_vec();
        pairs.push(("doublewrite", doublewrite));
        let mut ground = TestGround::new(3);
        let figures = run("transactions", &pairs, &mut ground).unwrap();
        assert!(value(&figures, "throughput") > 0.0 && value(&figures, "p95") > 0.0);
        figures.written.unwrap() - 200 * 1024
    };
    // Redo is 1 KiB for each of 200 transactions.
    let (with, without) = (written("yes"), written("no"));
    assert!(without > 100 * 16 * 1024);
    let ratio = with as f64 / without as f64;
    assert!((1.8..2.2).contains(&ratio), "{with} and {without}");
}

#[test]
fn the_player_plays_dbenchs_load() {
    let path = "/usr/share/dbench/client.txt";
    if !Path::new(path).exists() {
        assert!(std::env::var_os("CI").is_none(), "CI has dbench");
        println!("skipped: {path} of the package dbench is not here");
        return;
    }
    let mut ground = TestGround::new(1);
    let pairs = [("loadfile", path), ("time", "2"), ("clients", "2")];
    let figures = run("player", &pairs, &mut ground).unwrap();
    assert!(value(&figures, "throughput") > 1e6);
    assert!(figures.integrity[0].passed, "{:?}", figures.integrity);
    assert!(!figures.integrity[0].detail.starts_with("0 bytes"));
    assert!(figures.latencies.iter().any(|one| one.name == "flush"));
}

/// A ground whose files are those of a volume that the library has open.
struct VolumeGround {
    image: std::path::PathBuf,
    scratch: TestGround,
    library: Library,
}

impl VolumeGround {
    fn new(options: &str) -> Self {
        let scratch = TestGround::new(11);
        let image = scratch.root().join("volume");
        std::fs::File::create(&image)
            .unwrap()
            .set_len(512 << 20)
            .unwrap();
        {
            let access = butterfs::Access::ReadWrite;
            let device = butterfs::FileDevice::open(&image, access).unwrap();
            butterfs_admin::mkfs::make(&device, &MkfsOptions::default()).unwrap();
        }
        let library = open(&image, options);
        Self {
            image,
            scratch,
            library,
        }
    }
}

fn open(image: &Path, options: &str) -> Library {
    let options = butterfs::MountOptions::parse(options).unwrap();
    Library::open(image, options.open_options()).unwrap()
}

impl Ground for VolumeGround {
    fn directory(&self) -> &Path {
        self.scratch.directory()
    }

    fn scratch(&self) -> &Path {
        self.scratch.scratch()
    }

    fn seed(&self) -> u64 {
        self.scratch.seed()
    }

    fn next_phase(&mut self, _: &str) -> Result<(), String> {
        self.library.sync()
    }

    fn is_cancelled(&self) -> bool {
        false
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::new(self.library.clone())
    }
}

#[test]
fn own_workloads_run_on_a_volume_by_the_library() {
    for (name, pairs) in TINY {
        let mut ground = VolumeGround::new("compress=zstd");
        let mut pairs = pairs.to_vec();
        if *name == "transactions" {
            let told = workload::find(name).unwrap();
            let refused = told.run(&parameters(&pairs), &mut ground).unwrap_err();
            assert!(refused.contains("direct=no"), "{refused}");
            ground = VolumeGround::new("compress=zstd");
            pairs.push(("direct", "no"));
        }
        let one = workload::find(name).unwrap();
        let figures = one.run(&parameters(&pairs), &mut ground).unwrap();
        assert!(
            figures.integrity.iter().all(|one| one.passed),
            "{name}: {:?}",
            figures.integrity
        );
        assert!(figures.operations.unwrap() > 0, "{name}");
        // What was written is there after all was closed, and the volume is
        // clean.
        let before = names_in(&ground.library, "");
        assert!(!before.is_empty(), "{name}");
        ground.library.close().unwrap();
        drop(ground.library);
        let library = open(&ground.image, "");
        assert_eq!(names_in(&library, ""), before, "{name}");
        library.close().unwrap();
        drop(library);
        let access = butterfs::Access::ReadOnly;
        let device = butterfs::FileDevice::open(&ground.image, access).unwrap();
        let options = butterfs_check::Options {
            data: butterfs_check::DataChecksums::Verify,
            ..Default::default()
        };
        let progress = butterfs_check::NoProgress;
        let report = butterfs_check::check(vec![Arc::new(device)], &options, &progress).unwrap();
        assert!(report.is_exact(), "{name}: {:?}", report.faults);
        // Nothing went to the directory beside it.
        assert!(contents(ground.scratch.directory()).is_empty(), "{name}");
    }
}

fn names_in(files: &dyn Files, folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for name in files.list(folder).unwrap() {
        let path = format!("{folder}/{name}");
        if let Ok(inside) = files.list(&path)
            && !inside.is_empty()
        {
            found.extend(names_in(files, &path));
        } else {
            found.push(format!("{path} {}", files.stat(&path).unwrap()));
        }
    }
    found.sort();
    found
}
