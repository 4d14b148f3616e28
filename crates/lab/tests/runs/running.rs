//! Whole runs on loop devices, and what goes wrong in them. Each fault voids or
//! fails its cell, and nothing is left behind.

use butterfs_lab::catalogue::Catalogue;
use butterfs_lab::experiment::Experiment;
use butterfs_lab::filesystem::FileSystems;
use butterfs_lab::machine::Machine;
use butterfs_lab::model::{CellRecord, Outcome};
use butterfs_lab::plan::{Choice, Devices, plan};
use butterfs_lab::results::Results;
use butterfs_lab::run::{Ended, Event, Job, Lab, stopped};
use butterfs_lab::wakeup;
use butterfs_lab::workload::{Demand, Figures, Ground, Parameters, Workload};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// Devices are in memory, so runs come one after another.
static ONE: Mutex<()> = Mutex::new(());

/// False, with a line that says why, if nothing can be mounted.
fn can_run() -> bool {
    let machine = Machine::here();
    let why = if !machine.root {
        "it needs root"
    } else if !Path::new("/dev/loop-control").exists() {
        "there are no loop devices"
    } else {
        return true;
    };
    assert!(std::env::var_os("CI").is_none(), "skipped in CI: {why}");
    eprintln!("skipped: {why}");
    false
}

/// ext4 that a test spoils: NAME, options of mkfs, a command after each mount.
fn spoiled(name: &str, mkfs: &str, after: &str) -> String {
    format!(
        r#"
[[file-system]]
name = "{name}"
kernel = "ext4"
make = "mkfs.ext4 -q -F {mkfs} {{device}}"
mount = ["mount -t ext4 -o {{mount}} {{device}} {{directory}}", "{after}"]
unmount = "umount {{directory}}"
[[file-system.check]]
name = "e2fsck"
run = "e2fsck -f -n {{device}}"
"#
    )
}

struct Ran {
    folder: TempDir,
    results: PathBuf,
    cells: Vec<CellRecord>,
    ended: Result<Ended, String>,
}

/// Runs cells; the text is what stands below [[cells]].
fn run(cells: &str, declared: &str, workloads: Catalogue, cancel_at: Option<usize>) -> Ran {
    run_on(None, cells, declared, workloads, cancel_at)
}

/// The same on a block device.
fn run_on(
    device: Option<&str>,
    cells: &str,
    declared: &str,
    workloads: Catalogue,
    cancel_at: Option<usize>,
) -> Ran {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let text = format!(
        "name = \"mine\"\nrepeats = 1\n[scale.small]\ndevice-size = \"48M\"\nsettle = 0.0\n[[cells]]\n{cells}"
    );
    let experiment = Experiment::parse("mine.toml", &text).unwrap();
    let mut file_systems = FileSystems::shipped();
    file_systems.add("declared.toml", declared).unwrap();
    let machine = Machine::here();
    let choice = Choice {
        devices: Some(match device {
            None => Devices::Files(folder.path().to_owned()),
            Some(path) => Devices::Blocks(vec![path.into()]),
        }),
        ..Choice::default()
    };
    let plan = plan(&experiment, &choice, &file_systems, &workloads, &machine).unwrap();
    let cancel = AtomicBool::new(false);
    let results = folder.path().join("lab.sqlite");
    let job = Job {
        results: results.clone(),
        name: "mine".to_owned(),
        butterfs: "/nonexistent".into(),
    };
    let lab = Lab {
        file_systems: &file_systems,
        given: &[("declared.toml".to_owned(), declared.to_owned())],
        workloads: &workloads,
        machine: &machine,
        cancel: &cancel,
    };
    let mut watch = |event: Event<'_>| {
        if let Event::Pass { number, .. } = event
            && Some(number) == cancel_at
        {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let ended = lab.run(&plan, &choice, &job, &mut watch);
    nothing_left(folder.path());
    let found = Results::open(&results).unwrap().cells("mine");
    let cells = found.unwrap_or_default();
    Ran {
        folder,
        results,
        cells,
        ended,
    }
}

/// Asserts that a run left no mount, no loop device and no file.
fn nothing_left(folder: &Path) {
    let name = folder.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&name), "{mounts}");
    for entry in std::fs::read_dir("/sys/block").unwrap().flatten() {
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        assert!(
            !file.unwrap_or_default().contains(&name),
            "{:?}",
            entry.path()
        );
    }
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        assert!(
            matches!(
                name.as_str(),
                "lab.sqlite" | "lab.sqlite-wal" | "lab.sqlite-shm" | "lab.sqlite.lock"
            ),
            "{name}"
        );
    }
}

const TINY: &str = "workload = \"tiny\"\nparameters = { files = 40, size = \"8k\" }\n";

fn reason(record: &CellRecord) -> &str {
    match &record.outcome {
        Outcome::Done => "done",
        Outcome::Void(why) | Outcome::Failed(why) | Outcome::Unavailable(why) => why,
    }
}

#[test]
fn a_cell_has_figures_costs_and_checks() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let cells = format!("file-system = [\"ext4\", \"jfs\"]\ncache = [\"warm\", \"cold\"]\n{TINY}");
    let ran = run(&cells, "", Catalogue::shipped(), None);
    assert_eq!(ran.ended, Ok(Ended::Complete));
    assert_eq!(ran.cells.len(), 4);
    for record in &ran.cells {
        let axis = |name: &str| record.cell.0.get(name).map_or("", String::as_str);
        if axis("file-system") == "jfs" {
            if !Machine::here().kernel_has("jfs") {
                assert_eq!(
                    record.outcome,
                    Outcome::Unavailable("the kernel has no jfs".into())
                );
            }
            continue;
        }
        assert_eq!(record.outcome, Outcome::Done, "{}", reason(record));
        let metric = |name: &str| {
            let found = record.metrics.iter().find(|metric| metric.name == name);
            found.unwrap_or_else(|| panic!("{name}")).value
        };
        assert!(metric("create") > 0.0);
        // All bytes were written, and not many times.
        let amplification = metric("write amplification");
        assert!((1.0..20.0).contains(&amplification), "{amplification}");
        assert!((0.9..3.0).contains(&metric("space amplification")));
        assert!(metric("CPU") >= 0.0);
        let checks: Vec<&str> = record
            .integrity
            .iter()
            .map(|one| one.check.as_str())
            .collect();
        assert_eq!(
            checks,
            [
                "content as it was written",
                "content after a new mount",
                "e2fsck"
            ]
        );
        let effective = |name: &str| record.effective.iter().find(|one| one.name == name);
        assert_eq!(effective("device's direct I/O").unwrap().effective, "on");
        if axis("cache") == "cold" {
            let cache = &effective("cache").unwrap().effective;
            assert!(cache.starts_with("from the device: read read "), "{cache}");
        } else {
            assert!(effective("cache").is_none());
        }
    }
    let run = Results::open(&ran.results).unwrap().run("mine").unwrap();
    for topic in [
        "cpu", "memory", "kernel", "device", "tools", "seeds", "harness",
    ] {
        assert!(run.manifest.facts.contains_key(topic), "{topic}");
    }
    let harness = &run.manifest.facts["harness"];
    assert!(
        harness["a pass that does nothing"].ends_with(" s on ext4"),
        "{harness:?}"
    );
    assert!(harness["timer resolution"].ends_with(" ns"));
    let tools = &run.manifest.facts["tools"];
    assert!(tools["e2fsck"].starts_with("e2fsck 1."), "{tools:?}");
    drop(ran.folder);
}

#[test]
fn content_that_changes_voids_its_cell() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    // After the second mount, one byte of a file is different.
    let change = "sh -c 'f={directory}/work/d0/f32; test -e $f && printf X | dd of=$f bs=1 seek=5000 conv=notrunc status=none; true'";
    let declared = spoiled("liar", "", change);
    let ran = run(
        &format!("file-system = [\"liar\", \"ext4\"]\n{TINY}"),
        &declared,
        Catalogue::shipped(),
        None,
    );
    assert_eq!(ran.ended, Ok(Ended::Complete));
    for record in &ran.cells {
        if record.cell.0["file-system"] == "ext4" {
            assert_eq!(record.outcome, Outcome::Done);
            continue;
        }
        assert!(
            matches!(&record.outcome, Outcome::Void(why) if why.starts_with("content after a new mount: 20 files with")),
            "{}",
            reason(record)
        );
        // The figures are kept, so that somebody can look at them.
        assert!(!record.metrics.is_empty());
    }
}

#[test]
fn options_that_are_not_in_effect_void_their_cell() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let declared = spoiled("deaf", "", "mount -o remount,commit=5 {directory}");
    let ran = run(
        &format!("file-system = \"deaf\"\nmount = \"commit=60\"\n{TINY}"),
        &declared,
        Catalogue::shipped(),
        None,
    );
    let asked = ran
        .cells
        .iter()
        .find(|record| record.cell.0.contains_key("mount"))
        .unwrap();
    assert!(
        matches!(&asked.outcome, Outcome::Void(why) if why.contains("(without commit=60)")),
        "{}",
        reason(asked)
    );
    let plain = ran.cells.iter().find(|record| record.default).unwrap();
    assert_eq!(plain.outcome, Outcome::Done, "{}", reason(plain));
}

#[test]
fn a_mkfs_that_fails_and_a_tool_that_is_missing() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let mut declared = spoiled("broken", "-O nonsense", "true");
    declared += &spoiled("toolless", "", "true").replace(
        "kernel =",
        "programs = \"mkfs.nothing: nothing-progs\"\nkernel =",
    );
    let ran = run(
        &format!("file-system = [\"ext4\", \"broken\", \"toolless\"]\n{TINY}"),
        &declared,
        Catalogue::shipped(),
        None,
    );
    assert_eq!(ran.ended, Ok(Ended::Complete));
    for record in &ran.cells {
        match record.cell.0["file-system"].as_str() {
            "broken" => {
                assert!(
                    matches!(&record.outcome, Outcome::Failed(why) if why.contains("mkfs.ext4") && why.contains("Invalid filesystem option set")),
                    "{}",
                    reason(record)
                );
                assert!(record.metrics.is_empty());
            }
            "toolless" => assert_eq!(
                reason(record),
                "there is no program mkfs.nothing (package nothing-progs)"
            ),
            _ => assert_eq!(record.outcome, Outcome::Done, "{}", reason(record)),
        }
    }
}

/// Spoils something, and returns the result.
struct Spoiler {
    name: &'static str,
    act: fn(&mut dyn Ground) -> Result<(), String>,
}

impl Workload for Spoiler {
    fn name(&self) -> &'static str {
        self.name
    }
    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[]
    }
    fn demand(&self, _: &Parameters) -> Result<Demand, String> {
        Ok(Demand::default())
    }
    fn run(&self, _: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        (self.act)(ground)?;
        Ok(Figures::default())
    }
}

static FILLER: Spoiler = Spoiler {
    name: "filler",
    act: |ground| {
        let path = ground.directory().join("all");
        let mut file = std::fs::File::create(&path).map_err(|error| error.to_string())?;
        loop {
            file.write_all(&[7; 1 << 16])
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
    },
};

static KILLER: Spoiler = Spoiler {
    name: "killer",
    act: |ground| {
        let mount = ground.directory().parent().unwrap().display().to_string();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            if line.starts_with("bindfs") && line.split('\0').any(|word| word == mount) {
                let pid = entry.file_name();
                Command::new("kill").arg("-9").arg(pid).status().unwrap();
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        Ok(())
    },
};

static PANICKER: Spoiler = Spoiler {
    name: "panicker",
    act: |_| panic!("on purpose"),
};

#[test]
fn a_full_disk_a_dead_server_and_a_panic_fail_their_cells() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let workloads = || {
        Catalogue::shipped()
            .with(&FILLER)
            .with(&KILLER)
            .with(&PANICKER)
    };
    let ran = run(
        "file-system = \"ext4\"\nworkload = \"filler\"\n[[cells]]\nfile-system = \"ext4\"\nworkload = \"panicker\"\n",
        "",
        workloads(),
        None,
    );
    assert_eq!(ran.ended, Ok(Ended::Complete));
    for record in &ran.cells {
        let said = reason(record);
        match record.cell.0["workload"].as_str() {
            "filler" => assert!(said.contains("No space left on device"), "{said}"),
            _ => assert_eq!(said, "the workload panicker panicked"),
        }
        assert!(matches!(record.outcome, Outcome::Failed(_)));
    }
    if Machine::here().program("bindfs").is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "skipped in CI: there is no bindfs"
        );
        eprintln!("skipped: there is no bindfs");
        return;
    }
    let ran = run(
        "file-system = \"bindfs\"\nworkload = \"killer\"\n",
        "",
        workloads(),
        None,
    );
    assert_eq!(ran.ended, Ok(Ended::Complete));
    assert_eq!(
        reason(&ran.cells[0]),
        "the server of bindfs died during the workload"
    );
}

#[test]
fn a_stopped_run_leaves_nothing_and_goes_on() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let cells = format!("file-system = [\"ext4\", \"ext2\", \"ext3\"]\n{TINY}");
    let ran = run(&cells, "", Catalogue::shipped(), Some(2));
    assert_eq!(ran.ended, Ok(Ended::Stopped));
    assert_eq!(ran.cells.len(), 1);
    let found = stopped(&ran.results, None).unwrap();
    let machine = Machine::here();
    let mut file_systems = FileSystems::shipped();
    for (file, text) in &found.given {
        file_systems.add(file, text).unwrap();
    }
    let cancel = AtomicBool::new(false);
    let workloads = Catalogue::shipped();
    let lab = Lab {
        file_systems: &file_systems,
        given: &[],
        workloads: &workloads,
        machine: &machine,
        cancel: &cancel,
    };
    let job = Job {
        results: ran.results.clone(),
        name: "mine".to_owned(),
        butterfs: "/nonexistent".into(),
    };
    assert_eq!(lab.resume(&found, &job, &mut |_| {}), Ok(Ended::Complete));
    nothing_left(ran.folder.path());
    let cells = Results::open(&ran.results).unwrap().cells("mine").unwrap();
    assert_eq!(cells.len(), 3);
    assert!(cells.iter().all(|record| record.outcome == Outcome::Done));
    assert_eq!(cells[0], ran.cells[0], "what was there stays");
    let places: Vec<u32> = cells.iter().map(|record| record.place).collect();
    assert_eq!(places, [0, 1, 2]);
}

#[test]
fn a_device_that_holds_something_is_not_touched() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = folder.path().join("image");
    std::fs::write(&file, vec![0; 16 << 20]).unwrap();
    let output = Command::new("losetup")
        .args(["--show", "-f"])
        .arg(&file)
        .output()
        .unwrap();
    let device = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let problems = |meant: Vec<PathBuf>| {
        let experiment = Experiment::parse("mine.toml", &format!("name = \"mine\"\n[scale.small]\ndevice-size = \"16M\"\n[[cells]]\nfile-system = \"ext4\"\n{TINY}")).unwrap();
        let choice = Choice {
            devices: Some(Devices::Blocks(vec![device.clone()])),
            i_mean_it: meant,
            ..Choice::default()
        };
        let plan = plan(
            &experiment,
            &choice,
            &FileSystems::shipped(),
            &Catalogue::shipped(),
            &Machine::here(),
        );
        plan.unwrap().problems.join("; ")
    };
    let empty = problems(Vec::new());
    Command::new("mkfs.ext4")
        .arg("-q")
        .arg(&device)
        .status()
        .unwrap();
    let full = problems(Vec::new());
    let meant = problems(vec![device.clone()]);
    let mount = folder.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    Command::new("mount")
        .arg(&device)
        .arg(&mount)
        .status()
        .unwrap();
    let mounted = problems(vec![device.clone()]);
    Command::new("umount").arg(&mount).status().unwrap();
    Command::new("losetup")
        .arg("-d")
        .arg(&device)
        .status()
        .unwrap();
    assert_eq!(empty, "");
    assert!(
        full.contains("holds ext4, which would be lost; --i-mean-it=/dev/loop"),
        "{full}"
    );
    assert_eq!(meant, "");
    assert!(mounted.contains("is in use"), "{mounted}");
}

const TRANSACTIONS: &str = "workload = \"transactions\"\nconcurrency = 2\n";

fn shown<'a>(record: &'a CellRecord, name: &str) -> &'a butterfs_lab::model::Effective {
    let found = record.effective.iter().find(|one| one.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {:?}", record.effective))
}

#[test]
fn a_rate_in_per_cent_is_a_share_of_the_slowest_systems_throughput() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let parameters = r#"parameters = { size = "16m", log = "4m", time = 1, rate = ["50%", "0"] }"#;
    let cells = format!("file-system = [\"ext2\", \"ext4\"]\n{TRANSACTIONS}{parameters}\n");
    let ran = run(&cells, "", Catalogue::shipped(), None);
    assert_eq!(ran.ended, Ok(Ended::Complete));
    let of = |rate: &'static str| {
        let own = ran
            .cells
            .iter()
            .filter(move |one| one.cell.0["rate"] == rate);
        own.inspect(|one| assert_eq!(reason(one), "done"))
    };
    let throughput = |one: &CellRecord| {
        let mut metrics = one.metrics.iter();
        metrics.find(|one| one.name == "throughput").unwrap().value
    };
    assert_eq!((of("0").count(), of("50%").count()), (2, 2));
    let slowest = of("0").map(throughput).min_by(f64::total_cmp).unwrap();
    let expected = format!("{} transactions/s", (slowest / 2.0).round().max(1.0));
    for one in of("50%") {
        let rate = shown(one, "rate");
        assert_eq!((&*rate.requested, &rate.effective), ("50%", &expected));
        // These cells come after those of whose throughput their rate is a
        // share.
        assert!(of("0").all(|closed| closed.place < one.place));
    }
    let alone = cells.replace(", \"0\"]", "]");
    let ran = problems_of(&alone);
    assert!(ran.contains("no cell with rate 0"), "{ran}");
}

/// Why cells cannot be run.
fn problems_of(cells: &str) -> String {
    let text = format!("name = \"mine\"\nrepeats = 1\n[[cells]]\n{cells}");
    let experiment = Experiment::parse("mine.toml", &text).unwrap();
    let (systems, workloads) = (FileSystems::shipped(), Catalogue::shipped());
    let machine = Machine::here();
    let plan = plan(
        &experiment,
        &Choice::default(),
        &systems,
        &workloads,
        &machine,
    );
    plan.unwrap().problems.join("; ")
}

#[test]
fn whether_direct_writes_are_copied_is_told() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let parameters = r#"parameters = { size = "16m", log = "4m", time = 1, direct = "yes" }"#;
    let cells = format!("file-system = [\"ext4\", \"bindfs\"]\n{TRANSACTIONS}{parameters}\n");
    let ran = run(&cells, "", Catalogue::shipped(), None);
    let of = |system: &str| {
        let mut own = ran.cells.iter();
        let wanted = |one: &&CellRecord| one.cell.0["file-system"] == system;
        own.find(wanted).unwrap()
    };
    let ext4 = shown(of("ext4"), "O_DIRECT");
    assert_eq!((&*ext4.requested, &*ext4.effective), ("direct", "direct"));
    assert_eq!(reason(of("ext4")), "done");
    // bindfs opens the file below without it.
    let bindfs = shown(of("bindfs"), "O_DIRECT");
    assert_eq!(bindfs.effective, "through the page cache");
    assert!(
        reason(of("bindfs")).contains("O_DIRECT"),
        "{:?}",
        of("bindfs").outcome
    );
}

static WRITER: Spoiler = Spoiler {
    name: "writer",
    act: |ground| {
        let path = ground.directory().join("all");
        let line = format!("of={}", path.display());
        let dd = Command::new("dd")
            .args(["if=/dev/zero", "bs=1M", "count=8", "status=none", &line])
            .status();
        assert!(dd.unwrap().success());
        Ok(())
    },
};

#[test]
fn what_programs_write_is_counted_where_the_workload_does_not_tell() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let cells = "file-system = \"ext4\"\nworkload = \"writer\"\n";
    let ran = run(cells, "", Catalogue::shipped().with(&WRITER), None);
    let metrics = &ran.cells[0].metrics;
    let amplification = metrics.iter().find(|one| one.name == "write amplification");
    let amplification = amplification.expect("it is known").value;
    assert!((0.95..2.0).contains(&amplification), "{amplification}");
}

/// A block device of 64 MiB that compresses, for a while.
struct Zram;

impl Zram {
    const DEVICE: &str = "/dev/zram0";

    fn set(what: &str, value: &str) -> std::io::Result<()> {
        std::fs::write(format!("/sys/block/zram0/{what}"), value)
    }

    /// `None` if there is none, or if it belongs to somebody.
    fn new() -> Option<Self> {
        Self::set("disksize", "64M").ok().map(|()| Self)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = Self::set("reset", "1");
    }
}

#[test]
fn a_device_that_compresses_is_marked() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let Some(_zram) = Zram::new() else {
        eprintln!("skipped: there is no free /dev/zram0");
        return;
    };
    let cells = format!("file-system = \"ext4\"\n{TINY}");
    let ran = run_on(Some(Zram::DEVICE), &cells, "", Catalogue::shipped(), None);
    assert_eq!(ran.ended, Ok(Ended::Complete));
    assert_eq!(reason(&ran.cells[0]), "done");
    let marks = ran.cells[0].marks.join("; ");
    assert!(marks.contains("zram"), "{marks}");
}

#[test]
fn processors_halt_or_poll_as_a_cell_asks() {
    if !can_run() {
        return;
    }
    let _one = ONE.lock();
    let setting = || std::fs::read_to_string(wakeup::SETTING).unwrap_or_default();
    let before = setting();
    let cells = format!("file-system = \"ext4\"\nwake = [\"halting\", \"polling\"]\n{TINY}");
    let ran = run(&cells, "", Catalogue::shipped(), None);
    assert_eq!(setting(), before);
    if wakeup::lack().is_some() {
        let none = "this machine can run none of the cells";
        assert_eq!(ran.ended, Err(none.to_owned()));
        return;
    }
    assert_eq!(ran.ended, Ok(Ended::Complete));
    assert_eq!(ran.cells.len(), 2);
    for cell in &ran.cells {
        let wake = cell.cell.0["wake"].as_str();
        assert_eq!(reason(cell), "done");
        let found = shown(cell, "waking a processor");
        assert_eq!(found.requested, wake);
        let polls = found.effective.contains("poll for 200 µs");
        assert_eq!(polls, wake == "polling", "{}", found.effective);
    }
}
