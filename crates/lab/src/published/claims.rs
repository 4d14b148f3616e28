//! The claims in words, and the claims that the tables of figures make.

use super::figures::{bonnie, iozone, table};
use super::{Pattern, Quantity, Test};
use crate::stats::MARGIN;
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// A published claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The report. It is also the experiment that repeats it.
    pub source: String,
    /// Workload.
    pub workload: String,
    /// What was compared.
    pub comparison: String,
    /// What came out.
    pub value: String,
    /// What the report adds.
    pub note: String,
}

/// The claims in words (`claims.csv`).
pub fn claims() -> &'static [Claim] {
    static CLAIMS: LazyLock<Vec<Claim>> =
        LazyLock::new(|| table(include_str!("../../published/claims.csv")));
    &CLAIMS
}

const THROUGHPUT: &[&str] = &["throughput"];
const REQUESTS: &[&str] = &["requests", "throughput"];
const RESPONSE: &[&str] = &["p95", "95th"];

/// How each claim in words is tested, in the order of the lines of
/// `claims.csv`.
pub(super) fn tests_of_claims() -> Vec<(&'static Claim, Test)> {
    let at = |name: &str, level: &str| Pattern::system(name).with(super::CONCURRENCY, level);
    let dbench = |subject, reference, published| Test::Ratio {
        subject,
        reference,
        quantity: Quantity::Metric(THROUGHPUT),
        published,
    };
    let oltp = |quantity, published| Test::Ratio {
        subject: Pattern::system("btrfs"),
        reference: Pattern::system("ext4"),
        quantity,
        published,
    };
    let tests = [
        Test::Absolute(
            "the figure of another machine; its ratio to btrfs is judged in the next line",
        ),
        Test::Ratio {
            subject: Pattern::system("btrfs"),
            reference: Pattern::system("ext4"),
            quantity: Quantity::Metric(REQUESTS),
            published: 400.0 / 12_600.0,
        },
        // The report has no intervals, and counts 3 % below the best as a
        // difference. Here the claim holds if xfs is worse or equivalent.
        dbench(at("xfs", "5"), at("ext2", "5"), 0.97),
        dbench(at("btrfs", "5"), at("ext2", "5"), 0.5),
        dbench(at("jfs", "5"), at("ext2", "5"), 0.5),
        dbench(at("reiserfs", "5"), at("ext2", "5"), 0.33),
        dbench(at("jfs", "20"), at("xfs", "20"), 0.4),
        Test::Ranking {
            order: ["xfs", "ext4", "ext2", "ext3"]
                .map(|name| at(name, "20"))
                .to_vec(),
            quantity: Quantity::Metric(THROUGHPUT),
        },
        dbench(at("jfs", "10"), at("jfs", "3"), 0.33),
        dbench(at("ext2", "10"), at("ext2", "5"), 0.75),
        Test::Growth {
            subject: Pattern::system("btrfs"),
            metric: THROUGHPUT,
            from: 3.0,
            published: (50.0_f64 / 3.0).powf(0.29),
        },
        oltp(Quantity::Metric(THROUGHPUT), 0.2),
        oltp(Quantity::Metric(RESPONSE), 10.0),
        // "Not stable" against a stable ext4 means more variation; no figure is
        // given.
        oltp(Quantity::Variation, f64::INFINITY),
    ];
    claims().iter().zip(tests).collect()
}

/// A claim that a table of figures makes: one configuration against the
/// report's first, in one metric.
pub(super) struct FigureClaim {
    pub(super) source: &'static str,
    pub(super) metric: String,
    pub(super) config: String,
    pub(super) against: &'static str,
    pub(super) test: Test,
}

/// Our metric for one of bonnie-2012's.
fn bonnie_metric(metric: &str) -> Option<&'static [&'static str]> {
    Some(match metric {
        "seq_output_per_char" => &["sequential output per char", "seq output per char"],
        "seq_output_block" => &["sequential output block", "seq output block"],
        "seq_rewrite" => &["rewrite"],
        "seq_input_per_char" => &["sequential input per char", "seq input per char"],
        "seq_input_block" => &["sequential input block", "seq input block"],
        "random_seeks" => &["seeks"],
        "seq_create" => &["sequential create", "seq create"],
        "seq_stat" => &["sequential stat", "sequential read files", "seq stat"],
        "seq_delete" => &["sequential delete", "seq delete"],
        "random_create" => &["random create"],
        "random_stat" => &["random stat"],
        "random_delete" => &["random delete"],
        _ => return None,
    })
}

/// Our cell for one of bonnie-2012's configurations.
fn bonnie_cell(config: &str) -> Result<Pattern, &'static str> {
    let btrfs = || Pattern::system("btrfs");
    Ok(match config {
        "ext4" | "btrfs" | "xfs" => Pattern::system(config),
        "ext4 data=writeback,barrier=0,nobh,commit=60" => {
            Pattern::system("ext4").with("mount", "data=writeback,barrier=0,commit=60")
        }
        "btrfs nodesize=16384" => {
            return Err("16 KiB nodes are btrfs' default now; the default cell is this one");
        }
        "btrfs nodesize=32768" => btrfs().with("mkfs", "-n 32768"),
        "btrfs nodesize=65536" => btrfs().with("mkfs", "-n 65536"),
        "xfs agcount=32,logsize=64m,logbsize=262144,logbufs=8" => Pattern::system("xfs")
            .with("mkfs", "-d agcount=32 -l size=64m")
            .with("mount", "logbsize=262144,logbufs=8"),
        "btrfs converted from ext4" => btrfs().with("history", "converted from ext4"),
        "btrfs with a snapshot" => btrfs().with("history", "snapshot"),
        "btrfs with a snapshot, source tree deleted" => {
            btrfs().with("history", "snapshot, tree deleted")
        }
        _ => return Err("no cell of ours repeats this configuration"),
    })
}

fn iozone_metric(metric: &str) -> Option<&'static [&'static str]> {
    Some(match metric {
        "write" => &["=write"],
        "rewrite" => &["=rewrite"],
        "read" => &["=read"],
        "reread" => &["=reread"],
        _ => return None,
    })
}

/// The claims of both tables: each configuration against ext4's default, in
/// each metric that the lab has, too.
pub(super) fn figure_claims() -> Vec<FigureClaim> {
    let mut found = Vec::new();
    for figure in bonnie() {
        let base = bonnie()
            .iter()
            .find(|base| base.config == "ext4" && base.metric == figure.metric);
        let (Some(base), Some(names)) = (base, bonnie_metric(&figure.metric)) else {
            continue;
        };
        if figure.config == "ext4" {
            continue;
        }
        let test = match bonnie_cell(&figure.config) {
            Ok(subject) => Test::Ratio {
                subject,
                reference: Pattern::system("ext4"),
                quantity: Quantity::Metric(names),
                published: figure.value / base.value,
            },
            Err(reason) => Test::Absolute(reason),
        };
        found.push(FigureClaim {
            source: "bonnie-2012",
            metric: figure.metric.clone(),
            config: figure.config.clone(),
            against: "ext4",
            test,
        });
    }
    for figure in iozone() {
        let base = iozone()
            .iter()
            .find(|base| base.config == "Ext4" && base.metric == figure.metric);
        let (Some(base), Some(names)) = (base, iozone_metric(&figure.metric)) else {
            continue;
        };
        if figure.config == "Ext4" {
            continue;
        }
        let mut subject = Pattern::system(&figure.filesystem);
        for (axis, value) in [("mkfs", &figure.mkfs), ("mount", &figure.mount)] {
            if !value.is_empty() {
                subject = subject.with(axis, value.replace(", ", ","));
            }
        }
        if figure.disks > 1 {
            subject = subject.with("devices", figure.disks.to_string());
            let profile = ["raid10", "raid0", "raid1", "single"]
                .into_iter()
                .find(|profile| figure.config.contains(profile));
            if let Some(profile) = profile {
                // The profile is an axis of its own, not an option of mkfs.
                subject.0.retain(|(axis, _)| *axis != "mkfs");
                subject = subject.with("profile", profile);
            }
        }
        found.push(FigureClaim {
            source: "iozone-2009",
            metric: figure.metric.clone(),
            config: figure.config.clone(),
            against: "Ext4",
            test: Test::Ratio {
                subject,
                reference: Pattern::system("ext4"),
                quantity: Quantity::Metric(names),
                published: figure.value / base.value,
            },
        });
    }
    found
}

/// Which way a published ratio points: below, within or above ±3 %.
pub(super) fn direction(published: f64) -> std::cmp::Ordering {
    if published > MARGIN {
        std::cmp::Ordering::Greater
    } else if published < 1.0 / MARGIN {
        std::cmp::Ordering::Less
    } else {
        std::cmp::Ordering::Equal
    }
}
