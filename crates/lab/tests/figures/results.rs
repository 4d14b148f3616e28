//! The database of results: nothing is lost, nothing half-written is read, and
//! older files are upgraded.

use crate::synthetic;
use butterfs_lab::model::{Latencies, Run};
use butterfs_lab::results::{
    Dump, Recorded, Results, ResultsError, from_json, pack, to_csv, to_json, unpack,
};
use butterfs_lab::stats::Random;
use std::path::Path;
use std::process::Command;

fn fill(results: &mut Results, recorded: &Recorded) {
    results.add_run(&recorded.run).unwrap();
    for cell in &recorded.cells {
        results.add_cell(&recorded.run.name, cell).unwrap();
    }
}

/// Random runs of odd records; each block has distinct cells.
fn odd(seed: u64) -> Recorded {
    let mut random = Random::new(seed);
    let mut recorded = synthetic::run(seed, 0);
    recorded.run.seed = random.bits();
    let mut seen = std::collections::BTreeSet::new();
    for block in 0..12 {
        let cell = synthetic::odd_record(&mut random, block / 3);
        if seen.insert((cell.block, cell.experiment.clone(), cell.cell.clone())) {
            recorded.cells.push(cell);
        }
    }
    recorded.cells.sort_by_key(|cell| (cell.block, cell.place));
    recorded
}

#[test]
fn what_goes_in_comes_out_to_the_bit() {
    for seed in 0..200 {
        let recorded = odd(seed);
        let mut results = Results::in_memory().unwrap();
        fill(&mut results, &recorded);
        let found = results.recorded(&recorded.run.name).unwrap();
        assert!(found == recorded, "seed {seed}");
        let passes = results.passes(&recorded.run.name).unwrap();
        assert_eq!(passes.len(), recorded.cells.len());
        for cell in &recorded.cells {
            assert!(
                passes
                    .iter()
                    .any(|pass| pass.block == cell.block && pass.cell == cell.cell)
            );
        }
    }
}

#[test]
fn json_and_packed_json_give_the_same_database() {
    let mut results = Results::in_memory().unwrap();
    fill(&mut results, &synthetic::run(1, 3));
    for seed in 2..60 {
        fill(&mut results, &odd(seed));
    }
    let dump = results.dump().unwrap();
    let json = to_json(&dump).unwrap();
    let packed = pack(&json).unwrap();
    assert!(packed.len() * 3 < json.len());
    for text in [unpack(&packed).unwrap(), unpack(json.as_bytes()).unwrap()] {
        let read: Dump = from_json(&text).unwrap();
        let mut copy = Results::in_memory().unwrap();
        copy.import(&read).unwrap();
        assert!(copy.dump().unwrap() == dump);
    }
    // An import that contains an existing run adds no run at all.
    let mut copy = Results::in_memory().unwrap();
    copy.add_run(&dump.runs[30].run).unwrap();
    assert!(matches!(
        copy.import(&dump),
        Err(ResultsError::RunExists(_))
    ));
    assert_eq!(copy.runs().unwrap().len(), 1);
}

#[test]
fn csv_has_a_line_for_each_figure_and_each_pass_without_any() {
    let recorded = synthetic::run(1, 3);
    let dump = Dump {
        butterfs_lab_results: 1,
        runs: vec![recorded.clone()],
    };
    let text = to_csv(&dump).unwrap();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let heads = reader.headers().unwrap().clone();
    let column = |name: &str| heads.iter().position(|head| head == name).unwrap();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let expected: usize = recorded.cells.iter().map(|c| c.metrics.len().max(1)).sum();
    assert_eq!(rows.len(), expected);
    let void = rows
        .iter()
        .find(|row| &row[column("outcome")] == "void")
        .unwrap();
    assert!(void[column("reason")].contains("512 files"));
    assert_eq!(&void[column("axis mount")], "compress=zstd");
    let first = &recorded.cells[0].metrics[0];
    let value: f64 = rows[0][column("value")].parse().unwrap();
    assert_eq!(value.to_bits(), first.value.to_bits());
}

#[test]
fn bad_records_are_refused_whole() {
    let mut results = Results::in_memory().unwrap();
    let recorded = synthetic::run(1, 1);
    results.add_run(&recorded.run).unwrap();
    let name = recorded.run.name.as_str();
    let good = &recorded.cells[0];
    let mut bad = good.clone();
    bad.metrics[1].value = f64::NAN;
    let error = results.add_cell(name, &bad).unwrap_err();
    assert!(error.to_string().contains("sequential create"), "{error}");
    let mut bad = good.clone();
    bad.latencies.push(Latencies {
        name: "fsync".to_owned(),
        upper: vec![1.0],
        counts: vec![],
    });
    let error = results.add_cell(name, &bad).unwrap_err();
    assert!(error.to_string().contains("1 buckets with 0 counts"));
    assert!(results.cells(name).unwrap().is_empty());
    results.add_cell(name, good).unwrap();
    assert!(matches!(
        results.add_cell(name, good),
        Err(ResultsError::CellExists { .. })
    ));
    let error = results.add_cell("other", good).unwrap_err();
    assert!(error.to_string().contains("synthetic-1"), "{error}");
    assert!(matches!(
        results.add_run(&recorded.run),
        Err(ResultsError::RunExists(_))
    ));
    results.remove_run(name).unwrap();
    assert_eq!(results.dump().unwrap().runs, []);
}

#[test]
fn a_file_of_version_1_is_brought_to_this_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.sqlite");
    let old = rusqlite::Connection::open(&path).unwrap();
    // As version 1 wrote it; this text never changes.
    old.execute_batch(include_str!("results-version1.sql"))
        .unwrap();
    drop(old);
    let mut results = Results::open(&path).unwrap();
    assert_eq!(results.version().unwrap(), 2);
    let found = results.recorded("first").unwrap();
    assert_eq!(found.run.seed, u64::MAX);
    assert_eq!(found.run.manifest.facts["kernel"]["release"], "6.18.0");
    assert_eq!(found.cells.len(), 1);
    let cell = &found.cells[0];
    assert_eq!(cell.cell.0["file-system"], "ext4");
    assert_eq!(cell.metrics[0].value, 1.5);
    assert_eq!(cell.series[0].values, [1.0, 2.0]);
    assert_eq!(cell.latencies[0].counts, [3]);
    fill(&mut results, &synthetic::run(5, 1));
    let figures: i64 = rusqlite::Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM figure", [], |row| row.get(0))
        .unwrap();
    assert!(figures > 1);
}

#[test]
fn foreign_and_newer_files_are_refused_and_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("foreign.sqlite");
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("CREATE TABLE mine (x)").unwrap();
    drop(foreign);
    let before = std::fs::read(&path).unwrap();
    let error = Results::open(&path).unwrap_err();
    assert!(matches!(error, ResultsError::NotResults { .. }));
    assert!(error.to_string().contains("foreign.sqlite"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let path = folder.path().join("newer.sqlite");
    drop(Results::open(&path).unwrap());
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    let error = Results::open(&path).unwrap_err();
    assert!(error.to_string().contains("version 99"), "{error}");

    let path = folder.path().join("text");
    std::fs::write(
        &path,
        "not a database, but long enough to look at it".repeat(20),
    )
    .unwrap();
    assert!(Results::open(&path).is_err());
}

/// Not a test of its own: the next test kills this process.
#[test]
fn writer_that_is_killed() {
    let Some(path) = std::env::var_os("LAB_RESULTS_WRITE") else {
        return;
    };
    let recorded = synthetic::run(9, 60);
    let mut results = Results::open(Path::new(&path)).unwrap();
    results.add_run(&recorded.run).unwrap();
    for cell in &recorded.cells {
        results.add_cell(&recorded.run.name, cell).unwrap();
        // Told only after it is durable.
        println!("added");
    }
}

#[test]
fn a_killed_writer_leaves_every_cell_that_it_told_of() {
    use std::io::{BufRead, BufReader};
    let expected = synthetic::run(9, 60);
    for kill_after in [1_usize, 7, 40, 111] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("killed.sqlite");
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "results::writer_that_is_killed", "--nocapture"])
            .env("LAB_RESULTS_WRITE", &path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let told = lines
            .map_while(Result::ok)
            .filter(|line| line.ends_with("added"))
            .take(kill_after)
            .count();
        writer.kill().unwrap();
        writer.wait().unwrap();
        assert_eq!(told, kill_after);
        let results = Results::open(&path).unwrap();
        let run: Run = results.run(&expected.run.name).unwrap();
        assert_eq!(run, expected.run);
        let cells = results.cells(&run.name).unwrap();
        assert!(cells.len() >= told, "{} {told}", cells.len());
        assert!(cells.len() < expected.cells.len(), "it was not killed");
        assert_eq!(cells, expected.cells[..cells.len()]);
    }
}
