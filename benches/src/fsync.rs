//! Workloads that make data durable: appends with fsync, and the shape of a
//! database, on ButterFS (library, FUSE), kernel Btrfs and ext4.

use super::subject::Subject;
use super::volume::{Handle, Volume};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: usize = 16 << 10;
const DATABASE: u64 = 1 << 30;
const JOBS: usize = 4;
/// How long each number of threads appends. The volume has room for more.
const APPENDS: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
struct Figures {
    /// fsync/s with 1, 4 and 16 threads.
    appends: Vec<f64>,
    /// Files replaced per second.
    replaced: f64,
    /// Operations per second of the database's shape.
    database: f64,
    /// Latency in milliseconds below which 50, 95 and 99 of 100 operations lie.
    latency_ms: [f64; 3],
    /// The longest operation, in milliseconds.
    longest_ms: f64,
    /// Operations of the slowest second.
    slowest_second: f64,
    /// Standard deviation of the operations of one second, divided by their
    /// mean.
    variation: f64,
}

/// Appends with an fsync each. Each thread has a file of its own. Returns the
/// milliseconds of each append, ascending.
pub fn appends(volume: &Volume, threads: usize, time: Duration) -> Vec<f64> {
    let names: Vec<String> = (0..threads).map(|n| format!("append-{n}")).collect();
    let end = Instant::now() + time;
    let mut took: Vec<f64> = std::thread::scope(|scope| {
        let start = |name: &String| {
            let file = volume.create(name, 0);
            scope.spawn(move || append_until(end, &*file))
        };
        let jobs: Vec<_> = names.iter().map(start).collect();
        jobs.into_iter()
            .flat_map(|job| job.join().unwrap())
            .collect()
    });
    names.iter().for_each(|name| volume.remove(name));
    took.sort_by(f64::total_cmp);
    took
}

fn append_until(end: Instant, file: &dyn Handle) -> Vec<f64> {
    let data = vec![7; BLOCK];
    let mut took = Vec::new();
    while Instant::now() < end {
        let began = Instant::now();
        file.write((took.len() * BLOCK) as u64, &data);
        file.fsync();
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    took
}

/// Replaces files of 4 KiB as programs do that want the old content or the new:
/// a new file is written, fsynced and renamed, and its directory is fsynced.
/// Returns the number of replacements.
fn replaces(volume: &Volume, time: Duration) -> usize {
    /// Files that are replaced in turns.
    const FILES: usize = 50;
    let directory = volume.directory("replaced");
    let data = vec![7; 4096];
    let end = Instant::now() + time;
    let mut count = 0;
    while Instant::now() < end {
        let file = directory.open_new("new");
        file.write(0, &data);
        file.fsync();
        directory.rename("new", &format!("file-{}", count % FILES));
        directory.fsync();
        count += 1;
    }
    (0..count.min(FILES)).for_each(|number| directory.unlink(&format!("file-{number}")));
    count
}

/// An operation of the database: the second in which it ended, and how many
/// milliseconds it took.
pub type Operation = (u64, f64);

/// The shape of a database: random writes and reads 70:30, an fsync every ten
/// writes.
pub fn database(volume: &Volume, time: Duration) -> Vec<Operation> {
    let file = volume.create("database", DATABASE);
    let start = Instant::now();
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..JOBS)
            .map(|job| {
                let file = Arc::clone(&file);
                scope.spawn(move || job_of_database(job, &*file, start, time))
            })
            .collect();
        for job in jobs {
            all.extend(job.join().unwrap());
        }
    });
    drop(file);
    volume.remove("database");
    all
}

fn job_of_database(
    job: usize,
    file: &dyn Handle,
    start: Instant,
    time: Duration,
) -> Vec<Operation> {
    let mut seed = job as u64 * 77 + 5;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed >> 33
    };
    let mut data = vec![job as u8; BLOCK];
    let mut done = Vec::new();
    let mut writes = 0;
    while start.elapsed() < time {
        let at = random() % (DATABASE / BLOCK as u64) * BLOCK as u64;
        let began = Instant::now();
        if random() % 10 < 7 {
            data[0] = data[0].wrapping_add(1);
            file.write(at, &data);
            writes += 1;
            if writes % 10 == 0 {
                file.fsync();
            }
        } else {
            file.read(at, &mut data);
        }
        let second = start.elapsed().as_secs();
        done.push((second, began.elapsed().as_secs_f64() * 1e3));
    }
    done
}

/// The value below which this share of ascending values lies.
pub fn quantile(ascending: &[f64], part: f64) -> f64 {
    ascending[((ascending.len() - 1) as f64 * part) as usize]
}

fn measure_one(volume: &Volume, seconds: u64) -> Figures {
    let appends = [1, 4, 16]
        .map(|threads| appends(volume, threads, APPENDS).len() as f64 / APPENDS.as_secs_f64());
    let replaced = replaces(volume, APPENDS) as f64 / APPENDS.as_secs_f64();
    let all = database(volume, Duration::from_secs(seconds));
    let mut latencies: Vec<f64> = all.iter().map(|(_, ms)| *ms).collect();
    latencies.sort_by(f64::total_cmp);
    let mut per_second = vec![0.0; seconds as usize];
    for (second, _) in &all {
        if let Some(count) = per_second.get_mut(*second as usize) {
            *count += 1.0;
        }
    }
    let mean = per_second.iter().sum::<f64>() / seconds as f64;
    let squares: f64 = per_second.iter().map(|n| (n - mean) * (n - mean)).sum();
    Figures {
        appends: appends.to_vec(),
        replaced,
        database: all.len() as f64 / seconds as f64,
        latency_ms: [0.5, 0.95, 0.99].map(|part| quantile(&latencies, part)),
        longest_ms: quantile(&latencies, 1.0),
        slowest_second: per_second.iter().copied().fold(f64::MAX, f64::min),
        variation: (squares / seconds as f64).sqrt() / mean,
    }
}

/// Measures all targets, the database's shape for `seconds`, and prints a table.
pub fn measure(subjects: &[Subject], seconds: u64) {
    let mut rows: Vec<(&str, Figures)> = Vec::new();
    for subject in subjects {
        eprintln!("{}", subject.name);
        subject.fresh();
        let volume = subject.open("");
        rows.push((&subject.name, measure_one(&volume, seconds)));
        subject.close(volume);
    }
    println!(
        "| target | fsync/s, 1 thread | 4 threads | 16 threads | replaced/s | database op/s | p50 ms | p95 ms | p99 ms | longest ms | slowest second, operations | variation |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let reference = &rows[0].1;
    for (name, row) in &rows {
        let ratio = |own: f64, other: f64| format!("{own:.0} ({:.2})", own / other);
        println!(
            "| {name} | {} | {} | {} | {} | {} | {:.3} | {:.3} | {:.3} | {:.1} | {:.0} | {:.2} |",
            ratio(row.appends[0], reference.appends[0]),
            ratio(row.appends[1], reference.appends[1]),
            ratio(row.appends[2], reference.appends[2]),
            ratio(row.replaced, reference.replaced),
            ratio(row.database, reference.database),
            row.latency_ms[0],
            row.latency_ms[1],
            row.latency_ms[2],
            row.longest_ms,
            row.slowest_second,
            row.variation
        );
    }
    println!("\nIn brackets are the ratios to kernel Btrfs in the same run.");
}
