//! Requests at their own times: an open-loop client of static files.
//!
//! Arrivals are a Poisson process of a given rate, drawn before the start. The
//! time of a request runs from when it should have begun. So the time includes
//! any wait for a connection while the server stood still.

mod client;
mod server;
#[cfg(test)]
mod tests;

use super::super::content::Content;
use super::super::crowd::{crowd, sleep_until};
use super::super::measure::{Recorder, less, more};
use super::super::parameters::Given;
use super::super::program::version;
use super::super::tools::web::{Apache, Pages};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use crate::stats::Random;
use client::Client;
use server::OwnServer;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The open-loop client.
pub(in super::super) struct Http;

/// Greatest number of requests at one rate. They are drawn before the start.
const ARRIVALS_MAX: f64 = 10e6;

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
        let text = given.text("rates");
        let rates = rates.ok_or_else(|| {
            format!("http: rates = \"{text}\" is not a list of numbers from 0.1 to 1000000")
        })?;
        let seconds = given.number("time", 1, 3600)?;
        for (place, rate) in rates.iter().enumerate() {
            if rates[..place].contains(rate) {
                return Err(format!("http: rates = \"{text}\" has {rate} twice"));
            }
            if rate * seconds as f64 > ARRIVALS_MAX {
                return Err(format!(
                    "http: {rate} requests per second for {seconds} s are more than {ARRIVALS_MAX}"
                ));
            }
        }
        Ok(Self {
            rates,
            seconds,
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
            memory: plan
                .rates
                .iter()
                .fold(0.0, |most: f64, rate| most.max(*rate)) as u64
                * plan.seconds
                * 16
                + plan.clients as u64 * (plan.pages.size * 2 + (300 << 10))
                + (64 << 20),
            time: Duration::from_secs(
                2 * plan.seconds * plan.rates.len() as u64 + 2 + plan.pages.files / 5000,
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
        ground.next_phase_aside("pages")?;
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
    /// From the time at which a request should have begun. Requests that were
    /// never made have waited until the end.
    requests: Recorder,
    /// From when it was made.
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
    // All connections are open before the first request is due.
    let start = Instant::now() + Duration::from_millis(50 + plan.clients as u64);
    // A server that is too slow gets as much time again, and no more.
    let last = start + Duration::from_secs(2 * plan.seconds + 1);
    let (content, seed) = (plan.pages.content(ground.seed()), ground.seed());
    let measured = crowd(ground, plan.clients, |_, stop| {
        let mut client = Client::new(address, stop)?;
        let mut requests = Recorder::new(start);
        let mut service = Recorder::new(start);
        while !stop.is_asked() && Instant::now() < last {
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
            let Some(length) = client.get(&format!("/{}", Pages::path(page)))? else {
                break;
            };
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
    let mut requests = Recorder::merged(start, measured.iter().map(|(requests, _)| requests));
    for due in arrivals.iter().skip(next.into_inner()) {
        requests.add(end.saturating_duration_since(start + *due));
    }
    Ok(Answers {
        requests,
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

impl Answers {
    fn report(&self, plan: &Plan, suffix: &str, figures: &mut Figures) {
        let name = |word: &str| format!("{word}{suffix}");
        // The rate that was served. If the server is too slow, it is less than
        // the rate asked for.
        let seconds = self.elapsed.as_secs_f64().max(plan.seconds as f64);
        let served = self.service.count as f64 / seconds;
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
        *figures.operations.get_or_insert(0) += self.service.count;
        figures.written = Some(0);
        figures.content(self.requests.bytes, &self.wrong);
        let missing = (self.due as u64).saturating_sub(self.service.count);
        if missing > 0 {
            figures.mark(format!(
                "{missing} of {} requests{suffix} were never made: the server is slower than \
                 they came; they count as having waited until the end",
                self.due
            ));
        }
    }
}
