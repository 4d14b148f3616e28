//! Real tools, each once at its smallest size.

use super::ground::{TestGround, is_here, processes_of, run, value};
use butterfs_lab::workload::{self, Ground};
use std::time::{Duration, Instant};

#[test]
fn fio_runs() {
    if !is_here("fio") {
        return;
    }
    let mut ground = TestGround::new(5);
    let pairs = [
        ("size", "8m"),
        ("block", "64k"),
        ("jobs", "2"),
        ("fsync", "4"),
        ("compressible", "50"),
        ("time", "2"),
        ("phases", "write,random read"),
    ];
    let figures = run("fio", &pairs, &mut ground).unwrap();
    assert_eq!(ground.phases, ["write", "random read"]);
    assert!(value(&figures, "write") > 0.0);
    assert!(value(&figures, "random read operations") > 0.0);
    assert!(figures.facts["tool"].starts_with("fio-"));
    assert!(figures.written.unwrap() >= 8 << 20);
    let names: Vec<&str> = figures.latencies.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(names, ["write", "write fsync", "random read"]);
    assert!(!figures.series.is_empty());
    assert!(figures.marks.is_empty(), "{:?}", figures.marks);
}

#[test]
fn dbench_runs() {
    if !is_here("dbench") {
        return;
    }
    let mut ground = TestGround::new(5);
    let pairs = [("clients", "2"), ("time", "2")];
    let figures = run("dbench", &pairs, &mut ground).unwrap();
    assert!(value(&figures, "throughput") > 1e6);
    assert!(!figures.series.is_empty());
    assert!(figures.marks[0].starts_with("the tool writes zeros"));
}

#[test]
fn bonnie_runs() {
    if !is_here("bonnie") {
        return;
    }
    let mut ground = TestGround::new(5);
    let pairs = [("size", "32m"), ("files", "1")];
    let figures = run("bonnie", &pairs, &mut ground).unwrap();
    assert!(figures.marks.iter().any(|mark| mark.contains("syncfs(2)")));
    assert!(value(&figures, "sequential output per char") > 0.0);
    assert!(figures.facts["tool"].starts_with("bonnie++ 2"));
    assert!(
        figures
            .marks
            .iter()
            .any(|m| m.starts_with("the tool writes zeros"))
    );
}

#[test]
fn fs_mark_runs() {
    if !is_here("fs_mark") {
        return;
    }
    let mut ground = TestGround::new(5);
    let pairs = [
        ("files", "50"),
        ("size", "4k"),
        ("threads", "2"),
        ("rounds", "2"),
    ];
    let figures = run("fs_mark", &pairs, &mut ground).unwrap();
    assert!(value(&figures, "files") > 0.0);
    assert_eq!(figures.operations, Some(200));
    assert_eq!(figures.written, Some(200 * 4096));
}

#[test]
fn fs_mark_syncs_the_measured_file_system_alone() {
    if !is_here("fs_mark") {
        return;
    }
    let mut ground = TestGround::new(5);
    let pairs = [("files", "20"), ("size", "0"), ("sync", "sync-then-one")];
    let figures = run("fs_mark", &pairs, &mut ground).unwrap();
    assert!(figures.marks.iter().any(|mark| mark.contains("syncfs(2)")));
    // The tool really calls the library: without a directory, the library
    // aborts it.
    let library = ground.scratch().join("sync.so");
    let status = std::process::Command::new(workload::locate("fs_mark").unwrap())
        .current_dir(ground.directory())
        .args(["-d", "t9", "-s", "0", "-n", "1", "-S", "2", "-l"])
        .arg(ground.scratch().join("log"))
        .env("LD_PRELOAD", library)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(!status.success());
}

#[test]
fn postmark_runs() {
    if !is_here("postmark") {
        return;
    }
    let mut ground = TestGround::new(5);
    let pairs = [
        ("files", "200"),
        ("transactions", "500"),
        ("directories", "3"),
    ];
    let figures = run("postmark", &pairs, &mut ground).unwrap();
    assert!(value(&figures, "transactions") > 0.0);
    assert!(figures.written.unwrap() > 200 * 500);
}

#[test]
fn sysbench_fileio_runs() {
    if !is_here("sysbench-fileio") {
        return;
    }
    let mut ground = TestGround::new(5);
    let pairs = [
        ("size", "8m"),
        ("files", "4"),
        ("time", "2"),
        ("threads", "2"),
    ];
    let figures = run("sysbench-fileio", &pairs, &mut ground).unwrap();
    assert!(value(&figures, "operations") > 0.0);
    assert!(figures.written.unwrap() > 0);
    assert!(figures.marks[0].starts_with("the tool writes zeros"));
}

#[test]
fn apache_serves_ab_and_wrk() {
    for (name, pairs) in [
        (
            "apache-ab",
            [("size", "4k"), ("clients", "2"), ("requests", "500")],
        ),
        (
            "apache-wrk",
            [("files", "5"), ("clients", "2"), ("time", "1")],
        ),
        (
            "http",
            [("server", "apache"), ("files", "5"), ("time", "1")],
        ),
    ] {
        if !is_here("apache-ab") || !is_here(name) {
            return;
        }
        let mut ground = TestGround::new(5);
        let figures = run(name, &pairs, &mut ground).unwrap();
        assert!(value(&figures, "requests") > 1.0, "{name}");
        assert!(value(&figures, "p95") > 0.0, "{name}");
        let left = processes_of(&ground);
        assert!(left.is_empty(), "{name} left {left:?}");
    }
}

#[test]
fn pgbench_runs() {
    if !is_here("pgbench") {
        return;
    }
    for rate in ["0", "50"] {
        let mut ground = TestGround::new(5);
        let pairs = [
            ("scale", "1"),
            ("clients", "2"),
            ("time", "2"),
            ("rate", rate),
        ];
        let figures = run("pgbench", &pairs, &mut ground).unwrap();
        assert!(value(&figures, "throughput") > 1.0);
        assert!(value(&figures, "p95") > 0.0);
        assert!(figures.integrity[0].passed, "{:?}", figures.integrity);
        let sums = figures.integrity[0].detail.clone();
        assert!(!sums.ends_with(" 0"), "no transfer is in {sums}");
        assert!(figures.facts["tool"].starts_with("postgres"));
        assert!(!figures.series.is_empty() || rate != "0");
        let left = processes_of(&ground);
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn mariadb_runs() {
    if !is_here("oltp") {
        return;
    }
    for (doublewrite, direct) in [("yes", "yes"), ("no", "no")] {
        let mut ground = TestGround::new(5);
        let pairs = [
            ("tables", "2"),
            ("rows", "500"),
            ("threads", "2"),
            ("time", "2"),
            ("buffer-pool", "16m"),
            ("log", "8m"),
            ("doublewrite", doublewrite),
            ("direct", direct),
        ];
        let figures = run("oltp", &pairs, &mut ground).unwrap();
        assert!(value(&figures, "throughput") > 1.0);
        assert!(value(&figures, "p95") > 0.0);
        assert!(figures.integrity[0].passed, "{:?}", figures.integrity);
        let left = processes_of(&ground);
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn cancelling_ends_tools_and_what_they_started() {
    let long: &[(&str, &[(&str, &str)])] = &[
        (
            "fio",
            &[
                ("size", "8m"),
                ("block", "64k"),
                ("jobs", "3"),
                ("time", "500"),
            ],
        ),
        ("dbench", &[("clients", "3"), ("time", "500")]),
    ];
    for (name, pairs) in long {
        if !is_here(name) {
            continue;
        }
        let mut ground = TestGround::new(1).cancelled_after(Duration::from_millis(1500));
        let began = Instant::now();
        let error = run(name, pairs, &mut ground).unwrap_err();
        assert_eq!(error, "cancelled", "{name}");
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "{name}: {:?}",
            began.elapsed()
        );
        let left = processes_of(&ground);
        assert!(left.is_empty(), "{name} left {left:?}");
    }
}

#[test]
fn a_tool_that_fails_says_why() {
    if !is_here("dbench") {
        return;
    }
    let mut ground = TestGround::new(1);
    let pairs = [("loadfile", "/nonexistent/load"), ("time", "1")];
    let error = run("dbench", &pairs, &mut ground).unwrap_err();
    assert!(error.contains("/nonexistent/load"), "{error}");
}

/// The test program itself, as the lab that is killed.
#[test]
fn a_lab_that_is_killed_leaves_no_program() {
    let long: &[(&str, &str)] = &[
        ("fio", "size=8m block=64k jobs=3 time=500 phases=write"),
        ("dbench", "clients=3 time=500"),
        ("apache-wrk", "files=5 time=500"),
        ("pgbench", "scale=1 clients=3 time=500"),
        ("oltp", "tables=1 rows=500 buffer-pool=16m log=8m time=500"),
    ];
    for (name, arguments) in long {
        if !is_here(name) {
            continue;
        }
        let ground = TestGround::new(1);
        let test = std::env::current_exe().unwrap();
        let mut lab = std::process::Command::new(test)
            .args([
                "--exact",
                "workloads::tools::runs_until_it_is_killed",
                "--include-ignored",
            ])
            .env("LAB_WORKLOAD", format!("{name} {arguments}"))
            .env("LAB_GROUND", ground.root())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let runs = || {
            let lines = processes_of(&ground);
            let tool = match *name {
                "apache-wrk" => "wrk",
                "oltp" => "oltp_read_write",
                name => name,
            };
            lines
                .iter()
                .any(|line| line.contains(tool) && !line.contains("-i -q"))
        };
        let begun = Instant::now();
        // It is not asked again later: the workload may then be between two
        // programs.
        let has_begun = loop {
            match runs() {
                true => break true,
                false if begun.elapsed() > Duration::from_secs(60) => break false,
                false => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        assert!(has_begun, "{name} did not begin");
        std::thread::sleep(Duration::from_millis(500));
        let postmaster = ground.directory().join("postgresql/postmaster.pid");
        let postmaster = std::fs::read_to_string(postmaster).ok();
        assert_eq!(postmaster.is_some(), *name == "pgbench");
        lab.kill().unwrap();
        lab.wait().unwrap();
        let killed = Instant::now();
        while !processes_of(&ground).is_empty() && killed.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let left = processes_of(&ground);
        assert!(left.is_empty(), "{name} left {left:?}");
        if let Some(postmaster) = postmaster {
            // Its first line is the process that made the shared memory.
            let creator = postmaster.lines().next().unwrap();
            let memory = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
            let left = memory
                .lines()
                .any(|line| line.split_whitespace().nth(4) == Some(creator));
            assert!(!left, "shared memory of process {creator}: {memory}");
        }
    }
}

#[test]
#[ignore = "the test above runs it as the process that is killed"]
fn runs_until_it_is_killed() {
    let line = std::env::var("LAB_WORKLOAD").unwrap();
    let mut words = line.split(' ');
    let name = words.next().unwrap();
    let pairs: Vec<(&str, &str)> = words.map(|word| word.split_once('=').unwrap()).collect();
    let mut ground = TestGround::at(std::env::var("LAB_GROUND").unwrap().as_ref());
    run(name, &pairs, &mut ground).unwrap();
}
