//! How scrubs are shown: as btrfs-scrub(8) shows them.

use super::record::{Line, Record, State};
use super::running;
use super::subject::Subject;
use crate::dates::date;
use crate::fail::Done;
use crate::place::json;
use crate::units::Units;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Before the UUID.
const UUID: &str = "UUID:             ";

/// What is to be seen.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// All counters.
    pub raw: bool,
    /// Each device.
    pub devices: bool,
    /// JSON.
    pub json: bool,
    /// Sizes.
    pub units: Units,
}

#[derive(Serialize)]
struct DeviceFact {
    device: u64,
    #[serde(flatten)]
    values: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct StatusFacts {
    uuid: String,
    status: &'static str,
    started: u64,
    resumed: Option<u64>,
    duration: u64,
    bytes_total: u64,
    bytes_scrubbed: u64,
    rate: u64,
    seconds_left: Option<u64>,
    devices: Vec<DeviceFact>,
}

fn clock(seconds: u64) -> String {
    let (minutes, second) = (seconds / 60, seconds % 60);
    format!("{}:{:02}:{second:02}", minutes / 60, minutes % 60)
}

struct Figures {
    status: &'static str,
    done: u64,
    rate: u64,
    left: Option<u64>,
}

impl Figures {
    fn of(line: &Line, total: u64, status: &'static str, seconds: f64) -> Self {
        let done = line.get("data_bytes_scrubbed") + line.get("tree_bytes_scrubbed");
        let rate = match seconds > 0.0 {
            true => (done as f64 / seconds) as u64,
            false => done,
        };
        let rest = total.saturating_sub(done);
        Self {
            status,
            done,
            rate,
            left: rest.checked_div(rate).filter(|_| status == "running"),
        }
    }
}

fn counters(line: &Line) -> Done {
    for (name, value) in line.counters() {
        say!("\t{name}: {value}");
    }
    Ok(())
}

fn summary(line: &Line) -> Done {
    let kinds = ["read", "super", "verify", "csum"];
    let found = kinds
        .iter()
        .map(|kind| (kind, line.get(&format!("{kind}_errors"))))
        .filter(|(_, count)| *count > 0);
    let found: Vec<String> = found
        .map(|(kind, count)| format!("{kind}={count}"))
        .collect();
    if found.is_empty() {
        say!("Error summary:    no errors found");
        return Ok(());
    }
    say!("Error summary:    {}", found.join(" "));
    say!("  Corrected:      {}", line.get("corrected_errors"));
    say!("  Uncorrectable:  {}", line.get("uncorrectable_errors"));
    Ok(())
}

fn figures(shown: &Shown, line: &Line, total: u64, figures: &Figures) -> Done {
    let seconds = |name| i64::try_from(line.get(name)).unwrap_or(i64::MAX);
    say!("Scrub started:    {} UTC", date(seconds("t_start")));
    if line.get("t_resumed") > 0 {
        say!("Scrub resumed:    {} UTC", date(seconds("t_resumed")));
    }
    say!("Status:           {}", figures.status);
    say!("Duration:         {}", clock(line.get("duration")));
    if shown.raw {
        return counters(line);
    }
    if let Some(left) = figures.left {
        say!("Time left:        {}", clock(left));
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let end = now.map_or(0, |now| now.as_secs().saturating_add(left));
        say!(
            "ETA:              {} UTC",
            date(i64::try_from(end).unwrap_or(i64::MAX))
        );
    }
    say!("Total to scrub:   {}", shown.units.size(total));
    if figures.status != "finished" {
        let percent = figures.done as f64 * 100.0 / total.max(1) as f64;
        say!(
            "Bytes scrubbed:   {}  ({percent:.2}%)",
            shown.units.size(figures.done)
        );
    }
    say!("Rate:             {}/s", shown.units.size(figures.rate));
    summary(line)
}

fn show_all(
    shown: &Shown,
    subject: &Subject,
    record: &Record,
    (status, seconds): (&'static str, f64),
    heading: &str,
) -> Done {
    let total = subject.bytes;
    let sum = record.sum();
    let of_all = Figures::of(&sum, total, status, seconds);
    if shown.json {
        let devices = record.lines.iter().map(|line| DeviceFact {
            device: line.device,
            values: line.values.clone(),
        });
        return json(&StatusFacts {
            uuid: subject.uuid.clone(),
            status,
            started: sum.get("t_start"),
            resumed: Some(sum.get("t_resumed")).filter(|seconds| *seconds > 0),
            duration: sum.get("duration"),
            bytes_total: total,
            bytes_scrubbed: of_all.done,
            rate: of_all.rate,
            seconds_left: of_all.left,
            devices: devices.collect(),
        });
    }
    say!("{heading}{}", subject.uuid);
    if !shown.devices {
        return figures(shown, &sum, total, &of_all);
    }
    for line in &record.lines {
        say!("\nScrub device {}", line.device);
        let of_device = Figures::of(line, total, status, seconds);
        figures(shown, line, total, &of_device)?;
    }
    Ok(())
}

/// Shows what a scrub found that just ended, after this many seconds.
pub fn found_of(shown: &Shown, subject: &Subject, record: &Record, seconds: f64) -> Done {
    let status = match record.can_go_on() {
        true => "aborted",
        false => "finished",
    };
    let heading = match record.can_go_on() {
        true => "scrub canceled for ",
        false => "scrub done for ",
    };
    show_all(shown, subject, record, (status, seconds), heading)
}

/// Shows how far the running scrub is, or how the last one ended.
pub fn show(shown: &Shown, subject: &Subject, record: Option<&Record>) -> Done {
    let Some(record) = record else {
        if shown.json {
            return json(&serde_json::json!({ "uuid": subject.uuid, "status": "none" }));
        }
        say!("{UUID}{}", subject.uuid);
        say!("\tno stats available");
        return Ok(());
    };
    let sum = record.sum();
    let status = match (running::state(subject)?, record.can_go_on()) {
        (State::Running, _) => "running",
        (State::Idle, false) => "finished",
        (State::Idle, true) if sum.get("canceled") > 0 => "aborted",
        (State::Idle, true) => "interrupted",
    };
    let seconds = sum.get("duration");
    show_all(shown, subject, record, (status, seconds as f64), UUID)
}
