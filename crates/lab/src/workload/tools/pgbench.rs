//! PostgreSQL with pgbench: a bank's accounts (TPC-B, sort of).

use super::super::measure::{Recorder, less, more};
use super::super::parameters::Given;
use super::super::program::{
    Endings, Server, User, command, command_until, directory_of, line_of, run, version,
};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use crate::model::{Integrity, Series};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// pgbench.
pub(in super::super) struct Pgbench;

impl Workload for Pgbench {
    fn name(&self) -> &'static str {
        "pgbench"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("postgres", "postgresql"),
            ("initdb", "postgresql"),
            ("pgbench", "postgresql"),
            ("psql", "postgresql"),
        ]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("scale", "20", "branches of the bank, 100,000 accounts each"),
            ("clients", "16", "clients"),
            ("threads", "2", "threads of the client program"),
            ("time", "120", "seconds"),
            (
                "rate",
                "0",
                "transactions per second that come whether the server is ready or not; 0 is as many as it can",
            ),
            ("shared-buffers", "128m", "the server's own cache"),
            (
                "full-page-writes",
                "yes",
                "pages enter the log whole once after each checkpoint",
            ),
            (
                "durable",
                "yes",
                "a commit waits for its log to be on the medium",
            ),
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let plan = Plan::new(self, parameters)?;
        Ok(Demand {
            // 15 MiB a branch, the log between checkpoints, and what grows.
            space: plan.scale * (20 << 20) + (640 << 20),
            memory: plan.buffers + plan.clients * (12 << 20) + (64 << 20),
            time: Duration::from_secs(plan.seconds + plan.scale + 15),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = Plan::new(self, parameters)?;
        let user = User::instead_of_root(&["postgres", "nobody"])?;
        let place = Place::new(ground, user)?;
        let mut figures = Figures::default();
        ground.next_phase_aside("load")?;
        place.make(ground)?;
        let server = place.start(&plan, ground)?;
        let mut load = place.client("pgbench")?;
        load.args(["-i", "-q", "-s", &plan.scale.to_string()]);
        run("load", load.arg("postgres"), ground)?;
        server.stop()?;

        ground.next_phase("transactions")?;
        let server = place.start(&plan, ground)?;
        let mut pgbench = place.client("pgbench")?;
        pgbench.args([
            "-c",
            &plan.clients.to_string(),
            "-j",
            &plan.threads.to_string(),
        ]);
        pgbench.args(["-T", &plan.seconds.to_string(), "-P", "1", "-l", "-n"]);
        pgbench.arg(format!("--random-seed={}", ground.seed() >> 1));
        let logs = ground.scratch().join("pgbench-logs");
        directory_of(&logs, place.user.as_ref())?;
        pgbench.arg(format!("--log-prefix={}", logs.join("log").display()));
        if plan.rate > 0.0 {
            pgbench.args(["-R", &plan.rate.to_string()]);
        }
        let output = run("pgbench", pgbench.arg("postgres"), ground)?;
        server.stop()?;
        parse(&output.text, &output.errors, &mut figures)?;
        read_logs(&logs, &mut figures)?;

        ground.next_phase_aside("check")?;
        let server = place.start(&plan, ground)?;
        figures.integrity.push(place.check(ground)?);
        server.stop()?;

        figures.fact("tool", version("postgres", &["--version"]));
        figures.fact("client", version("pgbench", &["--version"]));
        figures.fact("command", line_of(&pgbench));
        figures.fact("server", line_of(&place.server(&plan, ground)?));
        if !plan.is_durable {
            figures.mark("commits are not durable when they end");
        }
        Ok(figures)
    }
}

struct Plan {
    scale: u64,
    clients: u64,
    threads: u64,
    seconds: u64,
    rate: f64,
    buffers: u64,
    has_full_pages: bool,
    is_durable: bool,
}

impl Plan {
    fn new(workload: &Pgbench, parameters: &Parameters) -> Result<Self, String> {
        let given = Given::new(workload, parameters)?;
        let clients = given.number("clients", 1, 900)?;
        Ok(Self {
            scale: given.number("scale", 1, 100_000)?,
            clients,
            threads: given.number("threads", 1, 900)?.min(clients),
            seconds: given.number("time", 1, 86_400)?,
            rate: given.real("rate", 0.0, 1e7)?,
            buffers: given.bytes("shared-buffers", 1 << 20, 1 << 40)?,
            has_full_pages: given.is_yes("full-page-writes")?,
            is_durable: given.is_yes("durable")?,
        })
    }
}

/// Where the server's files are.
struct Place {
    user: Option<User>,
    sockets: PathBuf,
}

fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

impl Place {
    fn new(ground: &dyn Ground, user: Option<User>) -> Result<Self, String> {
        let sockets = ground.scratch().join("pg");
        // The kernel's limit for the path of a socket.
        if sockets.as_os_str().len() > 80 {
            return Err(format!(
                "{} is too long for a socket; use a shorter path for logs",
                sockets.display()
            ));
        }
        directory_of(&sockets, user.as_ref())?;
        Ok(Self { user, sockets })
    }

    fn data(ground: &dyn Ground) -> PathBuf {
        ground.directory().join("postgresql")
    }

    fn make(&self, ground: &dyn Ground) -> Result<(), String> {
        let data = Self::data(ground);
        directory_of(&data, self.user.as_ref())?;
        let mut initdb = command("initdb", self.user.as_ref())?;
        initdb.args([
            "-A",
            "trust",
            "-U",
            "lab",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
            "-D",
        ]);
        initdb.arg(data).current_dir(&self.sockets);
        run("initdb", &mut initdb, ground).map(|_| ())
    }

    fn server(&self, plan: &Plan, ground: &dyn Ground) -> Result<Command, String> {
        // QUIT is its immediate shutdown, which leaves no shared memory.
        let mut server = command_until("postgres", self.user.as_ref(), "QUIT")?;
        server.current_dir(&self.sockets);
        server.arg("-D").arg(Self::data(ground));
        for setting in [
            "listen_addresses=".to_owned(),
            format!("unix_socket_directories={}", self.sockets.display()),
            format!("max_connections={}", plan.clients + 10),
            format!("shared_buffers={}kB", plan.buffers >> 10),
            "max_wal_size=512MB".to_owned(),
            // Checkpoints come where two phases meet, not by the clock.
            "checkpoint_timeout=1h".to_owned(),
            format!("full_page_writes={}", on_off(plan.has_full_pages)),
            format!("synchronous_commit={}", on_off(plan.is_durable)),
        ] {
            server.arg("-c").arg(setting);
        }
        Ok(server)
    }

    fn start(&self, plan: &Plan, ground: &dyn Ground) -> Result<Server, String> {
        let mut server = self.server(plan, ground)?;
        // INT is PostgreSQL's fast shutdown: clients are sent away, a
        // checkpoint is written.
        let endings = Endings {
            orderly: Signal::INT,
            at_once: Signal::QUIT,
        };
        Server::start("postgres", &mut server, endings, ground, || {
            let mut asks = match self.client("psql") {
                Ok(asks) => asks,
                Err(_) => return false,
            };
            let asked = asks.args(["-qAtc", "select 1", "postgres"]).output();
            asked.is_ok_and(|answer| answer.status.success())
        })
    }

    fn client(&self, program: &str) -> Result<Command, String> {
        let mut client = command(program, self.user.as_ref())?;
        client.current_dir(&self.sockets);
        client.arg("-h").arg(&self.sockets).args(["-U", "lab"]);
        Ok(client)
    }

    /// Every transfer changes an account, a teller, a branch and the history by
    /// the same amount, so they must agree after a restart.
    fn check(&self, ground: &dyn Ground) -> Result<Integrity, String> {
        let mut psql = self.client("psql")?;
        let query = "select (select sum(abalance) from pgbench_accounts), \
             (select sum(tbalance) from pgbench_tellers), \
             (select sum(bbalance) from pgbench_branches), \
             (select coalesce(sum(delta), 0) from pgbench_history)";
        psql.args(["-qAt", "-F", " ", "-c", query, "postgres"]);
        let answer = run("psql", &mut psql, ground)?.text;
        let sums: Vec<&str> = answer.split_whitespace().collect();
        Ok(Integrity {
            check: "balances".to_owned(),
            passed: sums.len() == 4 && sums.iter().all(|sum| *sum == sums[0]),
            detail: format!("accounts, tellers, branches, history: {}", answer.trim()),
        })
    }
}

/// Reads what pgbench prints.
fn parse(text: &str, errors: &str, figures: &mut Figures) -> Result<(), String> {
    let told = || format!("pgbench printed no figures: {text}\n{errors}");
    let after = |prefix: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(prefix));
        line.and_then(|rest| rest.split_whitespace().next())
    };
    let rate: f64 = after("tps = ")
        .and_then(|n| n.parse().ok())
        .ok_or_else(told)?;
    figures.add(more("throughput", "transactions/s", rate).headline());
    let count = after("number of transactions actually processed: ");
    let count = count.and_then(|n| n.split('/').next()?.parse().ok());
    figures.operations = Some(count.ok_or_else(told)?);
    let failed = after("number of failed transactions: ").and_then(|n| n.parse().ok());
    figures.add(less(
        "failed transactions",
        "transactions",
        failed.unwrap_or(0.0),
    ));
    // "rate limit schedule lag: avg 3.235 (max 41.558) ms"
    if let Some(line) = text
        .lines()
        .find(|line| line.starts_with("rate limit schedule lag"))
    {
        let lag = line
            .split_whitespace()
            .nth(5)
            .and_then(|n| n.parse::<f64>().ok());
        if let Some(lag) = lag {
            figures.add(less("mean wait before the start", "s", lag / 1e3));
        }
    }
    let mut values = Vec::new();
    for line in errors
        .lines()
        .filter_map(|line| line.strip_prefix("progress: "))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, "s,", rate, "tps,", ..] = words.as_slice() {
            values.extend(rate.parse::<f64>());
        }
    }
    if !values.is_empty() {
        figures.series.push(Series {
            name: "transactions".to_owned(),
            unit: "transactions/s".to_owned(),
            step: 1.0,
            values,
        });
    }
    Ok(())
}

/// Puts all logs of transactions into one distribution: client, number,
/// microseconds, ... With a rate, the time begins when the transaction should
/// have begun.
fn read_logs(folder: &Path, figures: &mut Figures) -> Result<(), String> {
    let told = |error| format!("read {}: {error}", folder.display());
    let mut recorder = Recorder::new(Instant::now());
    for entry in fs::read_dir(folder).map_err(told)? {
        let text = fs::read_to_string(entry.map_err(told)?.path()).map_err(told)?;
        add_log(&text, &mut recorder);
    }
    let latencies = recorder.latencies("transaction");
    if let Some(p95) = crate::stats::percentile(&latencies, 0.95) {
        figures.add(less("p95", "s", p95).headline());
    }
    figures.add_percentiles(&latencies);
    figures.latencies.push(latencies);
    Ok(())
}

fn add_log(text: &str, recorder: &mut Recorder) {
    for line in text.lines() {
        // A transaction that failed has a word in the third place.
        let took = line.split(' ').nth(2).and_then(|field| field.parse().ok());
        if let Some(took) = took {
            recorder.add(Duration::from_micros(took));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::percentile;

    fn value(figures: &Figures, name: &str) -> f64 {
        figures.value(name)
    }

    #[test]
    fn pgbench_15_is_understood() {
        let mut figures = Figures::default();
        let text = include_str!("golden/pgbench.txt");
        parse(text, include_str!("golden/pgbench.err"), &mut figures).unwrap();
        assert!((value(&figures, "throughput") - 1_279.070_464).abs() < 1e-9);
        assert_eq!(figures.operations, Some(3841));
        assert_eq!(figures.series[0].values, [1504.9, 1456.9, 876.0]);
        let mut recorder = Recorder::new(Instant::now());
        add_log(include_str!("golden/pgbench.log"), &mut recorder);
        let latencies = recorder.latencies("transaction");
        assert_eq!(latencies.counts.iter().sum::<u64>(), 5);
        let longest = percentile(&latencies, 1.0).unwrap();
        assert!((longest - 0.008_308).abs() < 0.000_01, "{longest}");
    }

    #[test]
    fn a_rate_gives_the_wait_before_the_start() {
        let mut figures = Figures::default();
        let text = include_str!("golden/pgbench-rate.txt");
        parse(text, include_str!("golden/pgbench-rate.err"), &mut figures).unwrap();
        assert!((value(&figures, "throughput") - 209.526_965).abs() < 1e-9);
        assert!((value(&figures, "mean wait before the start") - 0.003_235).abs() < 1e-12);
        assert_eq!(figures.series[0].values, [183.7, 217.5]);
    }

    #[test]
    fn a_pgbench_without_figures_is_an_error() {
        let mut figures = Figures::default();
        assert!(parse("pgbench (15.18)\n", "connection refused", &mut figures).is_err());
    }
}
