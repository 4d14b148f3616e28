//! The open-loop client against servers that behave badly.

use super::super::super::content::Content;
use super::super::super::crowd::Stop;
use super::super::super::files::{Caching, Files, OpenFile};
use super::super::super::nowhere::Nowhere;
use super::*;
use crate::stats::percentile;
use std::path::Path;
use std::sync::Arc;

/// Pages from memory; all stand still for the second second.
struct Stalls {
    since: Instant,
    /// How long each answer takes besides.
    pause: Duration,
    size: u64,
    content: Content,
}

struct Page(Vec<u8>);

impl OpenFile for Page {
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
    fn create(&self, path: &str, caching: Caching) -> Result<Box<dyn OpenFile>, String> {
        self.open(path, caching)
    }
    fn open(&self, path: &str, _: Caching) -> Result<Box<dyn OpenFile>, String> {
        std::thread::sleep(self.pause);
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
        pause: Duration::ZERO,
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
    let stop = Stop::default();
    let error = Client::new(server.address, &stop)
        .unwrap()
        .get("/www/p1")
        .unwrap_err();
    assert!(error.contains("404"), "{error}");
}

#[test]
fn cancelling_does_not_wait_for_an_answer() {
    struct Cancelled(Instant);

    impl Ground for Cancelled {
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
            self.0.elapsed() > Duration::from_millis(300)
        }
    }

    // It takes connections and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let parameters = [("clients".to_owned(), "3".to_owned())].into();
    let plan = Plan::new(&Http, &parameters).unwrap();
    let began = Instant::now();
    let ground = Cancelled(began);
    let error = open_loop(&plan, 1000.0, silent.local_addr().unwrap(), &ground).err();
    assert_eq!(error.as_deref(), Some("cancelled"));
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn a_server_that_is_too_slow_ends_and_says_so() {
    let pairs = [
        ("time", "1"),
        ("clients", "2"),
        ("size", "1k"),
        ("files", "5"),
    ];
    let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let plan = Plan::new(&Http, &pairs.into()).unwrap();
    let server = OwnServer::start(Arc::new(Stalls {
        since: Instant::now() - Duration::from_secs(60),
        pause: Duration::from_millis(50),
        size: 1024,
        content: plan.pages.content(3),
    }))
    .unwrap();
    let began = Instant::now();
    let answers = open_loop(&plan, 1000.0, server.address, &Nowhere).unwrap();
    // Two connections of 20 answers per second, for three seconds.
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(
        (60..=140).contains(&answers.service.count),
        "{}",
        answers.service.count
    );
    // The median of 1000 requests is one that was never made.
    let waited = answers.requests.latencies("request");
    assert_eq!(waited.counts.iter().sum::<u64>(), answers.due as u64);
    let middle = percentile(&waited, 0.5).unwrap();
    assert!((2.0..3.5).contains(&middle), "{middle}");
    let mut figures = Figures::default();
    answers.report(&plan, "", &mut figures);
    assert!(
        figures.marks[0].contains("never made"),
        "{:?}",
        figures.marks
    );
    let rate = figures.metrics[0].value;
    assert!((20.0..60.0).contains(&rate), "{rate}");
}

#[test]
fn rates_beyond_reason_are_refused() {
    for (rates, time) in [("1000000", "3600"), ("5,5", "1"), ("0", "1"), ("fast", "1")] {
        let pairs = [("rates", rates), ("time", time)];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let error = Plan::new(&Http, &pairs.into()).err();
        assert!(error.unwrap().contains("http:"), "{rates}");
    }
}
