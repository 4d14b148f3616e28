//! A seeded run that has every outcome, durability and kind of chart. The
//! figures are invented. What is true about them is written here, so that tests
//! know what the report must say.

#![allow(dead_code, reason = "each test uses a part")]

use butterfs_lab::model::{
    Better, CellKey, CellRecord, Durability, Effective, Integrity, Latencies, Manifest, Metric,
    Outcome, Run, Series,
};
use butterfs_lab::results::Recorded;
use butterfs_lab::stats::Random;
use std::collections::BTreeMap;

/// Clients of the scaling experiment.
pub const CLIENTS: [u32; 8] = [1, 2, 3, 5, 8, 10, 20, 50];

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

struct Maker {
    random: Random,
    place: u32,
    block: u32,
    shared: f64,
}

/// A system of the bonnie-like experiment: axes, speed against ext4,
/// durability, outcome.
struct System {
    axes: &'static [(&'static str, &'static str)],
    speed: f64,
    durability: Durability,
    outcome: fn(u32) -> Outcome,
}

fn done(_: u32) -> Outcome {
    Outcome::Done
}

const SYSTEMS: &[System] = &[
    System {
        axes: &[("file-system", "ext4")],
        speed: 1.0,
        durability: Durability::Full,
        outcome: done,
    },
    System {
        axes: &[
            ("file-system", "ext4"),
            ("mount", "data=writeback,barrier=0,commit=60"),
        ],
        speed: 1.4,
        durability: Durability::Unsafe,
        outcome: done,
    },
    System {
        axes: &[("file-system", "xfs")],
        speed: 1.25,
        durability: Durability::Full,
        outcome: done,
    },
    System {
        axes: &[("file-system", "btrfs")],
        speed: 0.55,
        durability: Durability::Full,
        outcome: done,
    },
    System {
        axes: &[("file-system", "btrfs"), ("mkfs", "-n 32768")],
        speed: 0.999,
        durability: Durability::Full,
        outcome: done,
    },
    System {
        axes: &[("file-system", "btrfs"), ("mount", "nodatacow")],
        speed: 0.95,
        durability: Durability::Weak,
        outcome: done,
    },
    System {
        axes: &[("file-system", "btrfs"), ("mount", "compress=zstd")],
        speed: 0.7,
        durability: Durability::Full,
        outcome: |block| match block {
            1 => Outcome::Void("content hash: 1 of 512 files differs <b>&".to_owned()),
            2 => Outcome::Failed("mount: exit status 32".to_owned()),
            _ => Outcome::Done,
        },
    },
    System {
        axes: &[("file-system", "jfs")],
        speed: 1.0,
        durability: Durability::Full,
        outcome: |_| Outcome::Unavailable("the kernel has no jfs".to_owned()),
    },
    System {
        axes: &[("file-system", "butterfs")],
        speed: 0.8,
        durability: Durability::Full,
        outcome: done,
    },
];

impl Maker {
    /// A value around `centre`, with the deviation that its block shares and
    /// noise of its own.
    fn value(&mut self, centre: f64, noise: f64) -> f64 {
        centre * (self.shared + noise * self.random.normal()).exp()
    }

    fn record(&mut self, experiment: &str, axes: &[(&str, &str)]) -> CellRecord {
        self.place += 1;
        CellRecord {
            experiment: experiment.to_owned(),
            cell: CellKey(map(axes)),
            control: false,
            default: !axes.iter().any(|(k, _)| *k == "mount" || *k == "mkfs"),
            block: self.block,
            place: self.place - 1,
            started: 1.7e9 + f64::from(self.block * 1000 + self.place),
            duration: 30.0 + self.random.unit(),
            outcome: Outcome::Done,
            durability: Durability::Full,
            effective: vec![Effective {
                name: "mount options".to_owned(),
                requested: String::new(),
                effective: "rw,relatime".to_owned(),
                agrees: true,
            }],
            metrics: Vec::new(),
            series: Vec::new(),
            latencies: Vec::new(),
            integrity: vec![Integrity {
                check: "content hash".to_owned(),
                passed: true,
                detail: String::new(),
            }],
            marks: Vec::new(),
            workload: map(&[("tool", "synthetic 1"), ("seed", "42")]),
        }
    }
}

fn metric(name: &str, unit: &str, value: f64, better: Better) -> Metric {
    Metric {
        name: name.to_owned(),
        unit: unit.to_owned(),
        value,
        better,
        headline: false,
    }
}

fn headline(mut metric: Metric) -> Metric {
    metric.headline = true;
    metric
}

fn bonnie(maker: &mut Maker, cells: &mut Vec<CellRecord>) {
    for (index, system) in SYSTEMS.iter().enumerate() {
        let mut record = maker.record("bonnie-2012", system.axes);
        record.control = index == 0;
        record.durability = system.durability;
        record.outcome = (system.outcome)(record.block);
        record
            .marks
            .push("bonnie++ writes nearly only zeros".to_owned());
        let noise = if system.speed == 0.999 { 0.004 } else { 0.03 };
        let noise = if index == 0 { 0.004 } else { noise };
        if matches!(record.outcome, Outcome::Done) {
            let s = system.speed;
            record.metrics = vec![
                headline(metric(
                    "sequential output, block",
                    "bytes/s",
                    maker.value(3.1e8 * s, noise),
                    Better::Higher,
                )),
                headline(metric(
                    "sequential create",
                    "operations/s",
                    maker.value(52_000.0 * s, noise),
                    Better::Higher,
                )),
                metric(
                    "random seeks",
                    "operations/s",
                    maker.value(300.0, 0.1),
                    Better::Higher,
                ),
                metric(
                    "CPU per operation",
                    "CPU s",
                    maker.value(2.2e-5 / s, 0.02),
                    Better::Lower,
                ),
                metric(
                    "CPU per GiB",
                    "CPU s",
                    maker.value(1.4 / s, 0.02),
                    Better::Lower,
                ),
                metric(
                    "write amplification",
                    "ratio",
                    maker.value(1.1 / s, 0.01),
                    Better::Lower,
                ),
                metric(
                    "space amplification",
                    "ratio",
                    maker.value(1.04, 0.01),
                    Better::Lower,
                ),
                metric("files", "count", 512.0, Better::Neither),
            ];
        }
        if let Outcome::Void(reason) = &record.outcome {
            record.integrity[0].passed = false;
            record.integrity[0].detail.clone_from(reason);
        }
        cells.push(record);
    }
}

fn dbench(maker: &mut Maker, cells: &mut Vec<CellRecord>) {
    // (λ, σ, κ) of the law that makes the figures.
    for (name, law) in [
        ("ext2", (260.0, 0.06, 0.0006)),
        ("ext4", (250.0, 0.08, 0.0004)),
        ("xfs", (240.0, 0.02, 0.0008)),
        ("btrfs", (110.0, 0.3, 0.001)),
    ] {
        for clients in CLIENTS {
            let n = f64::from(clients);
            let x = law.0 * n / (1.0 + law.1 * (n - 1.0) + law.2 * n * (n - 1.0));
            let level = clients.to_string();
            let axes = [("file-system", name), ("concurrency", level.as_str())];
            let mut record = maker.record("dbench-2011", &axes);
            let value = maker.value(x * 1e6, 0.04);
            record.metrics = vec![headline(metric(
                "throughput",
                "bytes/s",
                value,
                Better::Higher,
            ))];
            cells.push(record);
        }
    }
    for name in ["jfs", "reiserfs"] {
        let mut record = maker.record(
            "dbench-2011",
            &[("file-system", name), ("concurrency", "5")],
        );
        record.outcome = Outcome::Unavailable(format!("the kernel has no {name}"));
        cells.push(record);
    }
}

fn oltp(maker: &mut Maker, cells: &mut Vec<CellRecord>) {
    for (name, rate, stall, latency) in [
        ("ext4", 800.0, 0, 0.002),
        ("btrfs", 190.0, 6, 0.018),
        ("butterfs", 400.0, 0, 0.006),
    ] {
        let mut record = maker.record("oltp-2012", &[("file-system", name)]);
        let rate = maker.value(rate, 0.04);
        let values: Vec<f64> = (0..60)
            .map(|second| {
                let stalls = stall > 0 && second % 20 >= 20 - stall;
                if stalls {
                    0.0
                } else {
                    rate * (1.0 + 0.05 * maker.random.normal())
                }
            })
            .collect();
        record.series.push(Series {
            name: "transactions".to_owned(),
            unit: "transactions/s".to_owned(),
            step: 1.0,
            values,
        });
        let upper: Vec<f64> = (0..64).map(|i| 1e-4 * 1.2_f64.powi(i)).collect();
        let mut counts = vec![0_u64; upper.len()];
        for _ in 0..5000 {
            let taken = latency * (0.6 * maker.random.normal()).exp();
            let bucket = upper.partition_point(|&edge| edge < taken).min(63);
            counts[bucket] += 1;
        }
        record.latencies.push(Latencies {
            name: "transaction".to_owned(),
            upper,
            counts,
        });
        record.metrics = vec![
            headline(metric("throughput", "transactions/s", rate, Better::Higher)),
            headline(metric(
                "response time p95",
                "s",
                maker.value(latency * 2.7, 0.05),
                Better::Lower,
            )),
        ];
        cells.push(record);
    }
}

fn web(maker: &mut Maker, cells: &mut Vec<CellRecord>) {
    for (name, rate) in [("ext4", 12_600.0), ("btrfs", 12_590.0)] {
        let mut record = maker.record(
            "web-2010",
            &[("file-system", name), ("workload", "apache static")],
        );
        let value = maker.value(rate, 0.002);
        record.metrics = vec![headline(metric(
            "requests",
            "operations/s",
            value,
            Better::Higher,
        ))];
        cells.push(record);
    }
}

/// A run of four experiments with this many blocks.
pub fn run(seed: u64, blocks: u32) -> Recorded {
    let mut maker = Maker {
        random: Random::new(seed),
        place: 0,
        block: 0,
        shared: 0.0,
    };
    let mut cells = Vec::new();
    for block in 0..blocks {
        maker.block = block;
        maker.place = 0;
        maker.shared = 0.05 * maker.random.normal();
        bonnie(&mut maker, &mut cells);
        dbench(&mut maker, &mut cells);
        oltp(&mut maker, &mut cells);
        web(&mut maker, &mut cells);
    }
    let mut facts = BTreeMap::new();
    facts.insert(
        "cpu".to_owned(),
        map(&[("model", "Synthetic <1>"), ("cores", "2")]),
    );
    facts.insert("kernel".to_owned(), map(&[("release", "6.18.0")]));
    facts.insert(
        "harness".to_owned(),
        map(&[("overhead per operation", "41 ns")]),
    );
    let run = Run {
        name: format!("synthetic-{seed}"),
        experiment: "repeats = 9\n# a < b & c\n".to_owned(),
        seed,
        blocks,
        started: 1.7e9,
        manifest: Manifest { facts },
    };
    Recorded { run, cells }
}

/// A record of random shape: empty and odd texts, extreme numbers, any number
/// of parts.
pub fn odd_record(random: &mut Random, block: u32) -> CellRecord {
    let number = |random: &mut Random| match random.below(6) {
        0 => 0.0,
        1 => 1.0 / 3.0,
        2 => f64::MAX,
        3 => f64::from_bits(1),
        4 => random.normal() * 1e-9,
        _ => loop {
            let value = f64::from_bits(random.bits());
            if value.is_finite() {
                break value;
            }
        },
    };
    let text = |random: &mut Random| {
        [
            "",
            "a",
            "ü\u{1F98B}",
            "'; DROP TABLE run; --",
            "a,b\"c\"\nd",
            "\0",
            "</script>",
        ][random.below(7)]
        .to_owned()
    };
    let better = [Better::Higher, Better::Lower, Better::Neither];
    let outcome = match random.below(4) {
        0 => Outcome::Done,
        1 => Outcome::Void(text(random)),
        2 => Outcome::Failed(text(random)),
        _ => Outcome::Unavailable(text(random)),
    };
    let durability = [Durability::Full, Durability::Weak, Durability::Unsafe];
    let mut record = CellRecord {
        experiment: text(random),
        cell: CellKey(
            (0..random.below(4))
                .map(|_| (text(random), text(random)))
                .collect(),
        ),
        control: random.below(2) == 0,
        default: random.below(2) == 0,
        block,
        place: random.bits() as u32,
        started: number(random),
        duration: number(random),
        outcome,
        durability: durability[random.below(3)],
        effective: Vec::new(),
        metrics: Vec::new(),
        series: Vec::new(),
        latencies: Vec::new(),
        integrity: Vec::new(),
        marks: (0..random.below(3)).map(|_| text(random)).collect(),
        workload: (0..random.below(3))
            .map(|_| (text(random), text(random)))
            .collect(),
    };
    for _ in 0..random.below(4) {
        record.metrics.push(Metric {
            name: text(random),
            unit: text(random),
            value: number(random),
            better: better[random.below(3)],
            headline: random.below(2) == 0,
        });
        record.series.push(Series {
            name: text(random),
            unit: text(random),
            step: number(random),
            values: (0..random.below(5)).map(|_| number(random)).collect(),
        });
        let buckets = random.below(5);
        record.latencies.push(Latencies {
            name: text(random),
            upper: (0..buckets).map(|_| number(random)).collect(),
            counts: (0..buckets).map(|_| random.bits()).collect(),
        });
        record.effective.push(Effective {
            name: text(random),
            requested: text(random),
            effective: text(random),
            agrees: random.below(2) == 0,
        });
        record.integrity.push(Integrity {
            check: text(random),
            passed: random.below(2) == 0,
            detail: text(random),
        });
    }
    record
}
