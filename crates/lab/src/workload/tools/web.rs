//! Static files from Apache, asked for by ab or wrk as fast as they come.

use super::super::content::{Content, Version};
use super::super::crowd::crowd;
use super::super::files::Caching;
use super::super::measure::{less, more};
use super::super::parameters::Given;
use super::super::program::{Endings, Server, User, command, line_of, run, version};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use crate::model::Latencies;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// Apache with ab.
pub(in super::super) struct Ab;

/// Apache with wrk.
pub(in super::super) struct Wrk;

type Parameter = (&'static str, &'static str, &'static str);

const FILES: Parameter = ("files", "1000", "pages");
const SIZE: Parameter = ("size", "10k", "bytes of a page");
const CLIENTS: Parameter = ("clients", "16", "connections");
const COMPRESSIBLE: Parameter = (
    "compressible",
    "50",
    "per cent that a compressor can take away",
);

/// Pages that are served.
#[derive(Clone, Copy)]
pub(in super::super) struct Pages {
    /// How many.
    pub(in super::super) files: u64,
    /// Bytes of each.
    pub(in super::super) size: u64,
    compressible: u8,
}

impl Pages {
    /// From the parameters files, size, compressible.
    pub(in super::super) fn new(given: &Given<'_>) -> Result<Self, String> {
        Ok(Self {
            files: given.number("files", 1, 10_000_000)?,
            size: given.bytes("size", 1, 1 << 30)?,
            compressible: given.compressible()?,
        })
    }

    /// Bytes in the file system.
    pub(in super::super) fn space(&self) -> u64 {
        self.files * (self.size.next_multiple_of(4096) + 1024)
    }

    /// Path of a page, also in its address.
    pub(in super::super) fn path(page: u64) -> String {
        format!("www/p{page}")
    }

    /// What a page holds.
    pub(in super::super) fn content(&self, seed: u64) -> Content {
        Content::new(seed, self.compressible)
    }

    /// Makes them.
    pub(in super::super) fn make(&self, ground: &dyn Ground) -> Result<(), String> {
        let files = ground.files();
        let content = self.content(ground.seed());
        crowd(ground, 1, |_, stop| {
            files.mkdir("www")?;
            let mut buffer = vec![0; self.size as usize];
            for page in 0..self.files {
                if stop.is_asked() {
                    break;
                }
                content.fill(Self::version(page), 0, &mut buffer);
                let file = files.create(&Self::path(page), Caching::Cached)?;
                file.write_at(0, &buffer)?;
            }
            files.sync()
        })?;
        Ok(())
    }

    /// Which content a page has.
    pub(in super::super) fn version(page: u64) -> Version {
        Version {
            file: page,
            version: 0,
        }
    }
}

/// Apache on the loopback interface.
pub(in super::super) struct Apache {
    server: Server,
    /// Where it listens.
    pub(in super::super) address: SocketAddr,
}

impl Apache {
    /// Serves the ground's directory.
    pub(in super::super) fn start(clients: u64, ground: &dyn Ground) -> Result<Self, String> {
        let user = User::instead_of_root(&["www-data", "nobody"])?;
        let scratch = ground.scratch().join("apache");
        fs::create_dir_all(&scratch).map_err(|e| format!("make {}: {e}", scratch.display()))?;
        // Two tries: another program may take the port in between.
        for is_last in [false, true] {
            let address = free_port()?;
            let text = configuration(&scratch, address, clients, user.as_ref(), ground)?;
            let path = scratch.join("configuration");
            fs::write(&path, text).map_err(|e| format!("write {}: {e}", path.display()))?;
            let mut apache = command("apache2", None)?;
            // One process with all threads. Children would outlive a lab that
            // is killed, and so would the server in front of them.
            apache.arg("-X").arg("-f").arg(&path);
            let server = Server::start("apache", &mut apache, Endings::TERM, ground, || {
                TcpStream::connect(address).is_ok()
            });
            match server {
                Ok(server) => return Ok(Self { server, address }),
                Err(error) if is_last => {
                    let log = super::super::files::gist_of(&scratch.join("errors"));
                    return Err(format!("{error}\n{log}").trim_end().to_owned());
                }
                Err(_) => {}
            }
        }
        unreachable!("the last try returns")
    }

    /// Ends it.
    pub(in super::super) fn stop(self) -> Result<(), String> {
        self.server.stop()
    }
}

fn free_port() -> Result<SocketAddr, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    address.map_err(|error| format!("find a port of the loopback interface: {error}"))
}

fn configuration(
    scratch: &std::path::Path,
    address: SocketAddr,
    clients: u64,
    user: Option<&User>,
    ground: &dyn Ground,
) -> Result<String, String> {
    let modules = ["/usr/lib/apache2/modules", "/usr/lib64/httpd/modules"];
    let modules = modules
        .iter()
        .map(PathBuf::from)
        .find(|folder| folder.is_dir());
    let modules = modules.ok_or("Apache's modules are not in /usr/lib/apache2/modules")?;
    let (scratch, modules) = (scratch.display(), modules.display());
    let user = user
        .map(|user| format!("User {}\n", user.name))
        .unwrap_or_default();
    let workers = clients.max(16) + 16;
    Ok(format!(
        "ServerRoot \"{scratch}\"\nServerName localhost\nPidFile \"{scratch}/pid\"\n\
         DefaultRuntimeDir \"{scratch}\"\nErrorLog \"{scratch}/errors\"\nListen {address}\n\
         LoadModule mpm_event_module {modules}/mod_mpm_event.so\n\
         LoadModule authz_core_module {modules}/mod_authz_core.so\n{user}\
         ServerLimit 1\nStartServers 1\nThreadLimit {workers}\nThreadsPerChild {workers}\n\
         MaxRequestWorkers {workers}\n\
         KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 60\n\
         DocumentRoot \"{root}\"\n<Directory \"{root}\">\nRequire all granted\n</Directory>\n",
        root = ground.directory().display(),
    ))
}

impl Workload for Ab {
    fn name(&self) -> &'static str {
        "apache-ab"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("apache2", "apache2-bin"), ("ab", "apache2-utils")]
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[
            ("files", "1", "pages; ab asks for the first alone"),
            SIZE,
            CLIENTS,
            ("requests", "100000", "requests"),
            COMPRESSIBLE,
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let given = Given::new(self, parameters)?;
        let requests = given.number("requests", 1, 1 << 30)?;
        given.number("clients", 1, 10_000)?;
        Ok(Demand {
            space: Pages::new(&given)?.space(),
            memory: requests * 48 + (64 << 20),
            time: Duration::from_secs(3 + requests / 5000),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        self.demand(parameters)?;
        let given = Given::new(self, parameters)?;
        let pages = Pages::new(&given)?;
        let clients = given.number("clients", 1, 10_000)?;
        let requests = given.number("requests", 1, 1 << 30)?.max(clients);
        ground.next_phase_aside("pages")?;
        pages.make(ground)?;
        ground.next_phase("requests")?;
        let apache = Apache::start(clients, ground)?;
        let table = ground.scratch().join("ab.csv");
        let mut ab = command("ab", None)?;
        ab.args([
            "-q",
            "-k",
            "-c",
            &clients.to_string(),
            "-n",
            &requests.to_string(),
            "-e",
        ]);
        ab.arg(&table);
        ab.arg(format!("http://{}/{}", apache.address, Pages::path(0)));
        let output = run("ab", &mut ab, ground)?;
        apache.stop()?;
        let table = fs::read_to_string(&table).map_err(|e| format!("ab left no table: {e}"))?;
        let mut figures = parse_ab(&output.text, &table)?;
        figures.fact("server", version("apache2", &["-v"]));
        figures.fact("command", line_of(&ab));
        figures.mark("one page is asked for again and again: a test of the cache");
        Ok(figures)
    }
}

/// Reads ab's summary and its table of percentages.
fn parse_ab(text: &str, table: &str) -> Result<Figures, String> {
    let told = |what: &str| format!("ab printed no {what}: {text}");
    let after = |label: &str| -> Result<f64, String> {
        let line = text.lines().find_map(|line| line.strip_prefix(label));
        let word = line.and_then(|rest| rest.split_whitespace().next());
        word.and_then(|word| word.parse().ok())
            .ok_or_else(|| told(label))
    };
    let mut figures = Figures::default();
    let version = text
        .lines()
        .find(|line| line.contains("ApacheBench, Version"));
    if let Some(line) = version {
        let words: Vec<&str> = line.split_whitespace().skip(2).take(3).collect();
        figures.fact("tool", words.join(" "));
    }
    let failed = after("Failed requests:")? + after("Non-2xx responses:").unwrap_or(0.0);
    if failed > 0.0 {
        return Err(format!("{failed} requests failed: {text}"));
    }
    figures.add(more("requests", "requests/s", after("Requests per second:")?).headline());
    figures.operations = Some(after("Complete requests:")? as u64);
    figures.written = Some(0);
    for (percent, name) in [(50, "request p50"), (95, "p95"), (99, "request p99")] {
        let line = table
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{percent},")));
        let value: f64 = line
            .and_then(|time| time.trim().parse().ok())
            .ok_or_else(|| format!("ab's table has no {percent} %"))?;
        let one = less(name, "s", value / 1e3);
        figures.add(if name == "p95" { one.headline() } else { one });
    }
    Ok(figures)
}

impl Workload for Wrk {
    fn name(&self) -> &'static str {
        "apache-wrk"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("apache2", "apache2-bin"), ("wrk", "wrk")]
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[
            FILES,
            SIZE,
            CLIENTS,
            ("threads", "2", "threads of the client program"),
            ("time", "60", "seconds"),
            COMPRESSIBLE,
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let given = Given::new(self, parameters)?;
        let pages = Pages::new(&given)?;
        let clients = given.number("clients", 1, 10_000)?;
        if given.number("threads", 1, 1000)? > clients {
            return Err("apache-wrk: there are more threads than clients".to_owned());
        }
        Ok(Demand {
            space: pages.space(),
            memory: clients * (1 << 20) + (64 << 20),
            time: Duration::from_secs(given.number("time", 1, 86_400)? + 2 + pages.files / 5000),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        self.demand(parameters)?;
        let given = Given::new(self, parameters)?;
        let pages = Pages::new(&given)?;
        let clients = given.number("clients", 1, 10_000)?;
        ground.next_phase_aside("pages")?;
        pages.make(ground)?;
        let script = ground.scratch().join("wrk.lua");
        let text = lua(pages.files, ground.seed());
        fs::write(&script, text).map_err(|error| format!("write {}: {error}", script.display()))?;
        ground.next_phase("requests")?;
        let apache = Apache::start(clients, ground)?;
        let mut wrk = command("wrk", None)?;
        wrk.args(["-t", given.text("threads"), "-c", &clients.to_string()]);
        wrk.args(["-d", &format!("{}s", given.text("time")), "-s"]);
        wrk.arg(&script).arg(format!("http://{}/", apache.address));
        let output = run("wrk", &mut wrk, ground)?;
        apache.stop()?;
        let mut figures = parse_wrk(&output.text)?;
        let version = version("wrk", &["-v"]);
        figures.fact(
            "tool",
            version.split(" Copyright").next().unwrap_or(&version),
        );
        figures.fact("server", self::version("apache2", &["-v"]));
        figures.mark(
            "wrk's latencies hold requests that it supposes stalled connections would have made",
        );
        figures.fact("command", line_of(&wrk));
        Ok(figures)
    }
}

/// A script for wrk: pages drawn evenly, and all of its histogram printed.
fn lua(files: u64, seed: u64) -> String {
    format!(
        r#"local number = 0
function setup(thread)
  thread:set("number", number)
  number = number + 1
end
function init()
  math.randomseed({seed} + number)
end
function request()
  return wrk.format("GET", "/www/p" .. math.random(0, {last}))
end
function done(summary, latency)
  local e = summary.errors
  io.write("LAB requests ", summary.requests, " bytes ", summary.bytes,
    " duration_us ", summary.duration,
    " errors ", e.connect + e.read + e.write + e.timeout + e.status, "\n")
  for i = 1, #latency do
    local value, count = latency(i)
    io.write("LAB us ", value, " ", count, "\n")
  end
end
"#,
        seed = seed % (1 << 31),
        last = files - 1,
    )
}

/// Reads what the script prints.
fn parse_wrk(text: &str) -> Result<Figures, String> {
    let told = || format!("wrk printed no figures: {text}");
    let mut figures = Figures::default();
    let mut latencies = Latencies {
        name: "request".to_owned(),
        upper: Vec::new(),
        counts: Vec::new(),
    };
    let mut summary = None;
    for line in text.lines().filter_map(|line| line.strip_prefix("LAB ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |place: usize| words.get(place).and_then(|word| word.parse::<f64>().ok());
        match words.first() {
            Some(&"requests") => summary = number(1).zip(number(5)).zip(number(7)),
            Some(&"us") => {
                let (value, count) = number(1).zip(number(2)).ok_or_else(told)?;
                latencies.upper.push(value / 1e6);
                latencies.counts.push(count as u64);
            }
            _ => {}
        }
    }
    let ((requests, microseconds), errors) = summary.ok_or_else(told)?;
    if errors > 0.0 {
        return Err(format!("{errors} requests failed: {text}"));
    }
    figures.add(more("requests", "requests/s", requests / microseconds * 1e6).headline());
    if let Some(p95) = crate::stats::percentile(&latencies, 0.95) {
        figures.add(less("p95", "s", p95).headline());
    }
    figures.add_percentiles(&latencies);
    figures.latencies.push(latencies);
    figures.operations = Some(requests as u64);
    figures.written = Some(0);
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(figures: &Figures, name: &str) -> f64 {
        figures
            .metrics
            .iter()
            .find(|m| m.name == name)
            .unwrap()
            .value
    }

    #[test]
    fn ab_2_3_is_understood() {
        let text = include_str!("golden/ab.txt");
        let figures = parse_ab(text, include_str!("golden/ab.csv")).unwrap();
        assert_eq!(figures.facts["tool"], "ApacheBench, Version 2.3");
        assert!((value(&figures, "requests") - 6831.18).abs() < 1e-9);
        assert_eq!(figures.operations, Some(2000));
        let p95 = include_str!("golden/ab.csv")
            .lines()
            .find_map(|l| l.strip_prefix("95,"));
        let p95: f64 = p95.unwrap().parse().unwrap();
        assert!((value(&figures, "p95") * 1e3 - p95).abs() < 1e-9 && p95 > 1.0);
        let failed = text.replace("Failed requests:        0", "Failed requests:        3");
        assert!(
            parse_ab(&failed, "")
                .unwrap_err()
                .contains("3 requests failed")
        );
    }

    #[test]
    fn wrk_4_1_is_understood() {
        let text = include_str!("golden/wrk.txt");
        let figures = parse_wrk(text).unwrap();
        // wrk itself says 11354.36.
        assert!((value(&figures, "requests") - 11_354.36).abs() < 0.01);
        // More than the 22,801 requests: wrk adds those that a stalled
        // connection would have made.
        assert_eq!(figures.latencies[0].counts.iter().sum::<u64>(), 30_120);
        // wrk itself says 249 µs and 89.45 ms.
        assert_eq!(value(&figures, "request p50"), 249e-6);
        assert!((value(&figures, "request p99") - 0.089_45).abs() < 0.000_01);
        assert!(parse_wrk("unable to connect to 127.0.0.1:1").is_err());
        assert!(parse_wrk(&text.replace("errors 0", "errors 2")).is_err());
    }
}
