//! MariaDB with sysbench's oltp_read_write: InnoDB under many small
//! transactions.

use super::super::measure::{less, more};
use super::super::parameters::Given;
use super::super::program::{Endings, Server, command, directory_of, line_of, run, version};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use super::sysbench::{add_histogram, counted, series, version_of, word_after};
use crate::model::Integrity;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// sysbench's transactions on MariaDB.
pub(in super::super) struct Oltp;

impl Workload for Oltp {
    fn name(&self) -> &'static str {
        "oltp"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("mariadbd", "mariadb-server-core"),
            ("mariadb-install-db", "mariadb-server-core"),
            ("mariadb", "mariadb-client-core"),
            ("sysbench", "sysbench"),
        ]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("tables", "8", "tables"),
            ("rows", "500000", "rows of each table"),
            ("threads", "16", "clients"),
            ("time", "120", "seconds"),
            (
                "rate",
                "0",
                "transactions per second that come by themselves; 0 is as many as it can",
            ),
            ("buffer-pool", "256m", "InnoDB's own cache"),
            (
                "doublewrite",
                "yes",
                "changed pages are written to another place first",
            ),
            ("direct", "yes", "O_DIRECT for tables (innodb_flush_method)"),
            (
                "durable",
                "yes",
                "a commit waits for its log to be on the medium",
            ),
            ("log", "128m", "InnoDB's redo log"),
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let plan = Plan::new(self, parameters)?;
        Ok(Demand {
            // 240 bytes a row with its index; they grow by half.
            space: plan.tables * (plan.rows * 360 + (16 << 20)) + plan.log + (128 << 20),
            memory: plan.pool + plan.threads * (2 << 20) + (256 << 20),
            time: Duration::from_secs(plan.seconds + 10 + plan.tables * plan.rows / 50_000),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = Plan::new(self, parameters)?;
        let place = Place::new(ground)?;
        ground.next_phase_aside("load")?;
        place.make(ground)?;
        let server = place.start(&plan, ground)?;
        place.ask("create database sbtest", ground)?;
        let mut load = place.sysbench(&plan)?;
        run("load", load.arg("prepare"), ground)?;
        server.stop()?;

        ground.next_phase("transactions")?;
        let server = place.start(&plan, ground)?;
        let mut sysbench = place.sysbench(&plan)?;
        sysbench.args([
            format!("--threads={}", plan.threads),
            format!("--time={}", plan.seconds),
            "--events=0".to_owned(),
            "--report-interval=1".to_owned(),
            "--histogram=on".to_owned(),
            "--percentile=95".to_owned(),
            // Its seed is an int; 0 would be the clock.
            format!("--rand-seed={}", ground.seed() % 0x7FFF_FFFE + 1),
        ]);
        if plan.rate > 0 {
            sysbench.arg(format!("--rate={}", plan.rate));
        }
        let output = run("sysbench", sysbench.arg("run"), ground)?;
        let written = place.written(ground)?;
        server.stop()?;
        let mut figures = parse(&output.text)?;
        figures.written = Some(written);

        ground.next_phase_aside("check")?;
        let server = place.start(&plan, ground)?;
        figures.integrity.push(place.check(&plan, ground)?);
        server.stop()?;

        figures.fact("tool", version("mariadbd", &["--no-defaults", "--version"]));
        figures.fact("client", version_of(&output.text));
        figures.fact("command", line_of(&sysbench));
        figures.fact("server", line_of(&place.server(&plan, ground)?));
        if !plan.is_durable {
            figures.mark("commits are not durable when they end");
        }
        Ok(figures)
    }
}

struct Plan {
    tables: u64,
    rows: u64,
    threads: u64,
    seconds: u64,
    rate: u64,
    pool: u64,
    log: u64,
    has_doublewrite: bool,
    is_direct: bool,
    is_durable: bool,
}

impl Plan {
    fn new(workload: &Oltp, parameters: &Parameters) -> Result<Self, String> {
        let given = Given::new(workload, parameters)?;
        Ok(Self {
            tables: given.number("tables", 1, 10_000)?,
            rows: given.number("rows", 1, 1 << 40)?,
            threads: given.number("threads", 1, 10_000)?,
            seconds: given.number("time", 1, 86_400)?,
            rate: given.number("rate", 0, 10_000_000)?,
            pool: given.bytes("buffer-pool", 5 << 20, 1 << 44)?,
            log: given.bytes("log", 4 << 20, 1 << 39)?,
            has_doublewrite: given.is_yes("doublewrite")?,
            is_direct: given.is_yes("direct")?,
            is_durable: given.is_yes("durable")?,
        })
    }
}

/// Where the server's files are.
struct Place {
    scratch: PathBuf,
}

impl Place {
    fn new(ground: &dyn Ground) -> Result<Self, String> {
        let scratch = ground.scratch().join("my");
        // The kernel's limit for the path of a socket.
        if scratch.as_os_str().len() > 90 {
            return Err(format!(
                "{} is too long for a socket; use a shorter path for logs",
                scratch.display()
            ));
        }
        directory_of(&scratch, None)?;
        Ok(Self { scratch })
    }

    fn socket(&self) -> String {
        format!("--socket={}", self.scratch.join("s").display())
    }

    fn data(ground: &dyn Ground) -> String {
        format!("--datadir={}", ground.directory().join("mariadb").display())
    }

    fn as_root(command: &mut Command) {
        if rustix::process::geteuid().is_root() {
            command.arg("--user=root");
        }
    }

    fn make(&self, ground: &dyn Ground) -> Result<(), String> {
        let mut make = command("mariadb-install-db", None)?;
        make.args([
            "--no-defaults",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ]);
        make.arg(Self::data(ground)).current_dir(&self.scratch);
        Self::as_root(&mut make);
        run("install-db", &mut make, ground).map(|_| ())
    }

    fn server(&self, plan: &Plan, ground: &dyn Ground) -> Result<Command, String> {
        let mut server = command("mariadbd", None)?;
        server.current_dir(&self.scratch);
        server.args(["--no-defaults", "--skip-networking", "--skip-log-bin"]);
        server.arg(self.socket()).arg(Self::data(ground));
        server.arg(format!("--pid-file={}", self.scratch.join("pid").display()));
        server.arg(format!("--tmpdir={}", self.scratch.display()));
        server.arg(format!("--max-connections={}", plan.threads + 10));
        server.arg(format!("--innodb-buffer-pool-size={}", plan.pool));
        server.arg(format!("--innodb-log-file-size={}", plan.log));
        server.arg(format!(
            "--innodb-doublewrite={}",
            u8::from(plan.has_doublewrite)
        ));
        let method = if plan.is_direct { "O_DIRECT" } else { "fsync" };
        server.arg(format!("--innodb-flush-method={method}"));
        let when = if plan.is_durable { 1 } else { 2 };
        server.arg(format!("--innodb-flush-log-at-trx-commit={when}"));
        // Pages of an earlier run would make the cache warm by themselves.
        server.arg("--innodb-buffer-pool-load-at-startup=0");
        Self::as_root(&mut server);
        Ok(server)
    }

    fn start(&self, plan: &Plan, ground: &dyn Ground) -> Result<Server, String> {
        let mut server = self.server(plan, ground)?;
        Server::start("mariadbd", &mut server, Endings::TERM, ground, || {
            let Ok(mut asks) = self.client() else {
                return false;
            };
            asks.args(["-e", "select 1"])
                .output()
                .is_ok_and(|answer| answer.status.success())
        })
    }

    fn client(&self) -> Result<Command, String> {
        let mut client = command("mariadb", None)?;
        client.args(["--no-defaults", "-u", "root", "-N", "-B"]);
        client.arg(self.socket());
        Ok(client)
    }

    fn ask(&self, query: &str, ground: &dyn Ground) -> Result<String, String> {
        let mut client = self.client()?;
        Ok(run("mariadb", client.args(["-e", query]), ground)?.text)
    }

    /// Bytes that InnoDB wrote since the server was started; its libaio writes
    /// are seen nowhere else.
    fn written(&self, ground: &dyn Ground) -> Result<u64, String> {
        let answer = self.ask("show global status like 'Innodb_data_written'", ground)?;
        let number = answer.split_whitespace().last();
        number
            .and_then(|number| number.parse().ok())
            .ok_or_else(|| format!("the server does not tell what it wrote: {answer}"))
    }

    fn sysbench(&self, plan: &Plan) -> Result<Command, String> {
        let mut sysbench = command("sysbench", None)?;
        sysbench.current_dir(&self.scratch);
        sysbench.args([
            "oltp_read_write".to_owned(),
            "--db-driver=mysql".to_owned(),
            format!("--mysql-socket={}", self.scratch.join("s").display()),
            "--mysql-user=root".to_owned(),
            "--mysql-db=sbtest".to_owned(),
            format!("--tables={}", plan.tables),
            format!("--table-size={}", plan.rows),
        ]);
        Ok(sysbench)
    }

    /// Has the server check every page and index after its restart.
    fn check(&self, plan: &Plan, ground: &dyn Ground) -> Result<Integrity, String> {
        let names: Vec<String> = (1..=plan.tables)
            .map(|n| format!("sbtest.sbtest{n}"))
            .collect();
        let answer = self.ask(
            &format!("check table {} extended", names.join(", ")),
            ground,
        )?;
        let lines: Vec<&str> = answer.lines().collect();
        let bad = lines.iter().find(|line| !line.ends_with("\tOK"));
        Ok(Integrity {
            check: "check table".to_owned(),
            passed: bad.is_none() && lines.len() as u64 == plan.tables,
            detail: match bad {
                Some(line) => (*line).to_owned(),
                None => format!("{} of {} tables are OK", lines.len(), plan.tables),
            },
        })
    }
}

/// Reads what sysbench prints of transactions.
fn parse(text: &str) -> Result<Figures, String> {
    let (count, rate) = counted(text, "transactions:")
        .ok_or_else(|| format!("sysbench printed no transactions: {text}"))?;
    let mut figures = Figures::default();
    figures.add(more("throughput", "transactions/s", rate).headline());
    figures.operations = Some(count);
    add_histogram(text, "transaction", &mut figures);
    if let Some((ignored, _)) = counted(text, "ignored errors:") {
        figures.add(less(
            "transactions done again",
            "transactions",
            ignored as f64,
        ));
    }
    let transactions = series(text, "transactions", "transactions/s", |words| {
        word_after(words, "tps:")
    });
    figures.series.extend(transactions);
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysbench_1_0_is_understood() {
        let figures = parse(include_str!("golden/sysbench-oltp.txt")).unwrap();
        let value = |name: &str| figures.value(name);
        assert!((value("throughput") - 827.08).abs() < 1e-9);
        // sysbench itself says 4.74, from the same buckets.
        assert!((value("p95") - 0.004_737).abs() < 1e-9, "{}", value("p95"));
        assert!((value("transaction longest latency") - 0.101_47).abs() < 1e-9);
        assert_eq!(value("transactions done again"), 5.0);
        assert_eq!(figures.latencies[0].counts.iter().sum::<u64>(), 2497);
        assert_eq!(figures.operations, Some(2497));
        assert_eq!(figures.series[0].values, [745.93, 790.15, 965.24]);
    }

    #[test]
    fn a_sysbench_that_failed_is_an_error() {
        assert!(parse("FATAL: unable to connect to MySQL server").is_err());
    }
}
