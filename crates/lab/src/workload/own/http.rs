//! Requests that come when they come: an open-loop client of static files.
//!
//! Arrivals are a Poisson process of a given rate, drawn before the start. A
//! request's time runs from when it should have begun: one that had to wait
//! for a connection, because the server stood still, says so.

use super::super::content::Content;
use super::super::crowd::{Stop, crowd};
use super::super::files::{Caching, Files};
use super::super::measure::{Recorder, less, more};
use super::super::parameters::Given;
use super::super::program::version;
use super::super::tools::web::{Apache, Pages};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use crate::stats::Random;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The open-loop client.
pub(in super::super) struct Http;

struct Plan {
    rates: Vec<f64>,
    seconds: u64,
    clients: usize,
    is_apache: bool,
    pages: Pages,
}

impl Plan {
    fn new(http: &Http, parameters: &Parameters) -> Result<Self, String> {
        let given = Given::new(http, parameters)?;
        let rates: Option<Vec<f64>> = given
            .text("rates")
            .split(',')
            .map(|rate| {
                rate.trim()
                    .parse()
                    .ok()
                    .filter(|rate| (0.1..=1e6).contains(rate))
            })
            .collect();
        Ok(Self {
            rates: rates.ok_or_else(|| {
                let text = given.text("rates");
                format!("http: rates = \"{text}\" is not a list of numbers from 0.1 to 1000000")
            })?,
            seconds: given.number("time", 1, 3600)?,
            clients: given.count("clients", 1, 4000)?,
            is_apache: given.choice("server", &["own", "apache"])? == "apache",
            pages: Pages::new(&given)?,
        })
    }
}

impl Workload for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            (
                "rates",
                "1000",
                "requests per second; several, divided by commas, come one after another",
            ),
            ("time", "30", "seconds of each rate"),
            ("clients", "64", "connections at most"),
            (
                "server",
                "own",
                "own: one inside the lab; apache: apache2, which must be here",
            ),
            ("files", "1000", "pages"),
            ("size", "10k", "bytes of a page"),
            (
                "compressible",
                "50",
                "per cent that a compressor can take away",
            ),
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let plan = Plan::new(self, parameters)?;
        Ok(Demand {
            space: plan.pages.space(),
            memory: plan.clients as u64 * (plan.pages.size * 2 + (300 << 10)) + (64 << 20),
            time: Duration::from_secs(
                plan.seconds * plan.rates.len() as u64 + 2 + plan.pages.files / 5000,
            ),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = Plan::new(self, parameters)?;
        let mut figures = Figures::default();
        let compressible = Given::new(self, parameters)?.compressible()?;
        super::facts(&mut figures, "http", ground.seed(), compressible);
        if plan.is_apache {
            figures.fact("server", version("apache2", &["-v"]));
        }
        ground.next_phase("pages")?;
        plan.pages.make(ground)?;
        for rate in &plan.rates {
            let suffix = match plan.rates.len() {
                1 => String::new(),
                _ => format!(" at {rate}/s"),
            };
            ground.next_phase(&format!("requests{suffix}"))?;
            let all = if plan.is_apache {
                let apache = Apache::start(plan.clients as u64, ground)?;
                let result = open_loop(&plan, *rate, apache.address, ground);
                apache.stop()?;
                result?
            } else {
                let server = OwnServer::start(ground.files())?;
                open_loop(&plan, *rate, server.address, ground)?
            };
            all.report(&plan, &suffix, &mut figures);
        }
        Ok(figures)
    }
}

/// Times of arrivals from the start on.
fn arrivals(rate: f64, time: Duration, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    let mut at = 0.0;
    loop {
        at -= (1.0 - random.unit()).ln() / rate;
        if at >= time.as_secs_f64() {
            return all;
        }
        all.push(Duration::from_secs_f64(at));
    }
}

struct Answers {
    requests: Recorder,
    service: Recorder,
    due: usize,
    elapsed: Duration,
    end: Instant,
    wrong: Vec<String>,
}

fn open_loop(
    plan: &Plan,
    rate: f64,
    address: SocketAddr,
    ground: &dyn Ground,
) -> Result<Answers, String> {
    let arrivals = arrivals(rate, Duration::from_secs(plan.seconds), ground.seed());
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    // All connections stand before the first request is due.
    let start = Instant::now() + Duration::from_millis(50 + plan.clients as u64);
    let (content, seed) = (plan.pages.content(ground.seed()), ground.seed());
    let measured = crowd(ground, plan.clients, |_, stop| {
        let mut client = Client::new(address)?;
        let mut requests = Recorder::new(start);
        let mut service = Recorder::new(start);
        while !stop.is_asked() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(due) = arrivals.get(index) else {
                break;
            };
            let due = start + *due;
            if !sleep_until(due, stop) {
                break;
            }
            let page = Random::new(seed ^ index as u64 ^ 0x9A6E).bits() % plan.pages.files;
            let began = Instant::now();
            let length = client.get(&format!("/{}", Pages::path(page)))?;
            let ended = Instant::now();
            requests.record(due, ended, length as u64);
            service.record(began, ended, length as u64);
            if let Some(text) = differs(&plan.pages, content, page, &client.body)
                && let Ok(mut wrong) = wrong.lock()
            {
                wrong.push(text);
            }
        }
        Ok((requests, service))
    })?;
    let end = Instant::now();
    Ok(Answers {
        requests: Recorder::merged(start, measured.iter().map(|(requests, _)| requests)),
        service: Recorder::merged(start, measured.iter().map(|(_, service)| service)),
        due: arrivals.len(),
        elapsed: end.saturating_duration_since(start),
        end,
        wrong: wrong.into_inner().unwrap_or_default(),
    })
}

fn differs(pages: &Pages, content: Content, page: u64, body: &[u8]) -> Option<String> {
    if body.len() as u64 != pages.size {
        return Some(format!("page {page} has {} bytes", body.len()));
    }
    let place = content.first_difference(Pages::version(page), 0, body)?;
    Some(format!("page {page} at {place}"))
}

/// False when asked to stop meanwhile.
fn sleep_until(due: Instant, stop: &Stop) -> bool {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        if stop.is_asked() {
            return false;
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

impl Answers {
    fn report(&self, plan: &Plan, suffix: &str, figures: &mut Figures) {
        let name = |word: &str| format!("{word}{suffix}");
        // The rate that was served; with a server too slow it is less than
        // what was asked for.
        let seconds = self.elapsed.as_secs_f64().max(plan.seconds as f64);
        let served = self.requests.count as f64 / seconds;
        figures.add(more(&name("requests"), "requests/s", served).headline());
        let latencies = self.requests.latencies(&name("request"));
        if let Some(p95) = crate::stats::percentile(&latencies, 0.95) {
            figures.add(less(&name("p95"), "s", p95).headline());
        }
        figures.add_percentiles(&latencies);
        figures.latencies.push(latencies);
        let service = self.service.latencies(&name("request once begun"));
        figures.add_percentiles(&service);
        figures.latencies.push(service);
        let series = self.requests.series(&name("requests"), self.end);
        figures.series.extend(series);
        *figures.operations.get_or_insert(0) += self.requests.count;
        figures.content(self.requests.bytes, &self.wrong);
        if self.requests.count < self.due as u64 {
            let missing = self.due as u64 - self.requests.count;
            figures.mark(format!("{missing} requests{suffix} were never made"));
        }
    }
}

/// A connection that stays open, opened anew when the server closes it.
struct Client {
    address: SocketAddr,
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

/// Longer than any stall that is still an answer; well below it cancelling
/// must not have to wait.
const PATIENCE: Duration = Duration::from_secs(30);

impl Client {
    fn new(address: SocketAddr) -> Result<Self, String> {
        Ok(Self {
            address,
            stream: Self::connect(address)?,
            body: Vec::new(),
        })
    }

    fn connect(address: SocketAddr) -> Result<BufReader<TcpStream>, String> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE);
        let stream = stream.map_err(|error| format!("connect to {address}: {error}"))?;
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
            .map_err(|error| format!("set up a connection: {error}"))?;
        Ok(BufReader::new(stream))
    }

    fn get(&mut self, path: &str) -> Result<usize, String> {
        let first = match self.try_get(path) {
            // The server may close a connection that was idle.
            Err(_) => {
                self.stream = Self::connect(self.address)?;
                self.try_get(path)
            }
            answer => answer,
        };
        first.map_err(|error| format!("GET {path} from {}: {error}", self.address))
    }

    fn try_get(&mut self, path: &str) -> std::io::Result<usize> {
        let broken = |text: String| std::io::Error::other(text);
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line
            .split_whitespace()
            .nth(1)
            .unwrap_or_default()
            .to_owned();
        let mut length = None;
        loop {
            let mut header = String::new();
            if self.stream.read_line(&mut header)? == 0 {
                return Err(broken("the connection was closed".to_owned()));
            }
            if header.trim_end().is_empty() {
                break;
            }
            if let Some((name, value)) = header.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse::<u64>().ok();
            }
        }
        if status != "200" {
            return Err(broken(format!("status {status}")));
        }
        let length = length.filter(|length| *length <= 1 << 30);
        let length = length.ok_or_else(|| broken("no length".to_owned()))?;
        self.body.resize(length as usize, 0);
        self.stream.read_exact(&mut self.body)?;
        Ok(self.body.len())
    }
}

/// A small server of static files: a thread for each connection.
struct OwnServer {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

impl OwnServer {
    fn start(files: Arc<dyn Files>) -> Result<Self, String> {
        let told = |error| format!("listen on the loopback interface: {error}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(told)?;
        let address = listener.local_addr().map_err(told)?;
        let ends = Arc::new(AtomicBool::new(false));
        let has_ended = Arc::clone(&ends);
        let acceptor = std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for stream in listener.incoming().flatten() {
                    if has_ended.load(Ordering::Acquire) {
                        break;
                    }
                    let (files, has_ended) = (files.as_ref(), has_ended.as_ref());
                    scope.spawn(move || serve(stream, files, has_ended));
                }
            });
        });
        Ok(Self {
            address,
            ends,
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // Wakes the acceptor.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn serve(stream: TcpStream, files: &dyn Files, has_ended: &AtomicBool) {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    while !has_ended.load(Ordering::Acquire) {
        match stream.read_line(&mut request) {
            Ok(0) => return,
            Ok(_) if request.ends_with("\r\n\r\n") => {
                let path = request.split_whitespace().nth(1).unwrap_or_default();
                let answer = answer(path.trim_start_matches('/'), files);
                if stream.get_mut().write_all(&answer).is_err() {
                    return;
                }
                request.clear();
            }
            Ok(_) if request.len() < 64 << 10 => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}

fn answer(path: &str, files: &dyn Files) -> Vec<u8> {
    let read = || -> Result<Vec<u8>, String> {
        let length = usize::try_from(files.stat(path)?).map_err(|_| "too large")?;
        let mut body = vec![0; length];
        let read = files.open(path, Caching::Cached)?.read_at(0, &mut body)?;
        body.truncate(read);
        Ok(body)
    };
    let (status, body) = match read() {
        Ok(body) => ("200 OK", body),
        Err(text) => ("404 Not Found", text.into_bytes()),
    };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend(body);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::percentile;
    use std::path::Path;

    struct Nowhere;

    impl Ground for Nowhere {
        fn directory(&self) -> &Path {
            Path::new("/nonexistent")
        }
        fn scratch(&self) -> &Path {
            Path::new("/nonexistent")
        }
        fn seed(&self) -> u64 {
            3
        }
        fn next_phase(&mut self, _: &str) -> Result<(), String> {
            Ok(())
        }
        fn is_cancelled(&self) -> bool {
            false
        }
    }

    /// Pages from memory; all stand still for the second second.
    struct Stalls {
        since: Instant,
        size: u64,
        content: Content,
    }

    struct Page(Vec<u8>);

    impl super::super::super::files::OpenFile for Page {
        fn write_at(&self, _: u64, _: &[u8]) -> Result<(), String> {
            Err("read only".to_owned())
        }
        fn read_at(&self, _: u64, buffer: &mut [u8]) -> Result<usize, String> {
            buffer.copy_from_slice(&self.0);
            Ok(buffer.len())
        }
        fn fsync(&self) -> Result<(), String> {
            Ok(())
        }
        fn preallocate(&self, _: u64) -> Result<(), String> {
            Ok(())
        }
    }

    impl Files for Stalls {
        fn create(
            &self,
            path: &str,
            caching: Caching,
        ) -> Result<Box<dyn super::super::super::OpenFile>, String> {
            self.open(path, caching)
        }
        fn open(
            &self,
            path: &str,
            _: Caching,
        ) -> Result<Box<dyn super::super::super::OpenFile>, String> {
            let (from, to) = (Duration::from_millis(1500), Duration::from_millis(2500));
            let now = self.since.elapsed();
            if (from..to).contains(&now) {
                std::thread::sleep(to - now);
            }
            let page: u64 = path.trim_start_matches("www/p").parse().unwrap();
            let mut body = vec![0; self.size as usize];
            self.content.fill(Pages::version(page), 0, &mut body);
            Ok(Box::new(Page(body)))
        }
        fn mkdir(&self, _: &str) -> Result<(), String> {
            Ok(())
        }
        fn unlink(&self, _: &str) -> Result<(), String> {
            Ok(())
        }
        fn rmdir(&self, _: &str) -> Result<(), String> {
            Ok(())
        }
        fn rename(&self, _: &str, _: &str) -> Result<(), String> {
            Ok(())
        }
        fn stat(&self, _: &str) -> Result<u64, String> {
            Ok(self.size)
        }
        fn list(&self, _: &str) -> Result<Vec<String>, String> {
            Ok(Vec::new())
        }
        fn sync(&self) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn a_server_that_stands_still_for_a_second_shows_it() {
        let pairs = [
            ("rates", "200"),
            ("time", "4"),
            ("clients", "4"),
            ("size", "1k"),
            ("files", "10"),
        ];
        let parameters = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let plan = Plan::new(&Http, &parameters).unwrap();
        let server = OwnServer::start(Arc::new(Stalls {
            since: Instant::now(),
            size: 1024,
            content: plan.pages.content(3),
        }))
        .unwrap();
        let answers = open_loop(&plan, 200.0, server.address, &Nowhere).unwrap();
        assert!(answers.wrong.is_empty(), "{:?}", answers.wrong);
        assert_eq!(answers.requests.count, answers.due as u64);
        assert!((700..900).contains(&answers.due), "{}", answers.due);
        // A fifth of all came while it stood still and waited for half a
        // second in the mean; only four were on their way.
        let waited = answers.requests.latencies("request");
        let p99 = percentile(&waited, 0.99).unwrap();
        assert!((0.8..1.5).contains(&p99), "{p99}");
        assert!(percentile(&waited, 0.9).unwrap() > 0.2);
        let service = answers.service.latencies("service");
        assert!(percentile(&service, 0.99).unwrap() < 0.5);
        let mut figures = Figures::default();
        answers.report(&plan, "", &mut figures);
        let series = &figures.series[0].values;
        assert!(
            series.iter().any(|&requests| requests < 120.0),
            "{series:?}"
        );
    }

    #[test]
    fn arrivals_are_a_poisson_process() {
        let all = arrivals(1000.0, Duration::from_secs(20), 5);
        assert_eq!(all, arrivals(1000.0, Duration::from_secs(20), 5));
        assert_ne!(all, arrivals(1000.0, Duration::from_secs(20), 6));
        assert!(all.is_sorted());
        // 20,000 ± 5 standard deviations; gaps are exponential: their
        // deviation is their mean.
        assert!((19_300..20_700).contains(&all.len()), "{}", all.len());
        let gaps: Vec<f64> = all
            .windows(2)
            .map(|two| (two[1] - two[0]).as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
    }

    #[test]
    fn a_missing_page_is_an_error() {
        let files = super::super::super::Directory::new(Path::new("/nonexistent"));
        let server = OwnServer::start(Arc::new(files)).unwrap();
        let error = Client::new(server.address)
            .unwrap()
            .get("/www/p1")
            .unwrap_err();
        assert!(error.contains("404"), "{error}");
    }
}
