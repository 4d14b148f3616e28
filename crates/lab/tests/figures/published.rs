//! The published claims against a run whose truth is known.

use crate::synthetic;
use butterfs_lab::published::{Judged, Judgement, bonnie, claims, iozone, judge};

fn find<'a>(judged: &'a [Judged], source: &str, comparison: &str) -> &'a Judged {
    judged
        .iter()
        .find(|claim| claim.source == source && claim.comparison.contains(comparison))
        .unwrap_or_else(|| panic!("no claim on {comparison}"))
}

#[test]
fn the_tables_are_whole() {
    assert_eq!(bonnie().len(), 132);
    assert_eq!(iozone().len(), 92);
    assert_eq!(claims().len(), 14);
    let per_char = &bonnie()[0];
    assert_eq!((per_char.value, per_char.cpu_percent), (582.0, Some(98.0)));
    assert!(iozone().iter().all(|figure| figure.value > 0.0));
}

#[test]
fn each_claim_is_judged_as_the_run_is_made() {
    let judged = judge(&synthetic::run(3, 9).cells, 3);
    assert_eq!(judged.iter().filter(|claim| claim.in_words).count(), 14);
    let is = |source, comparison| &find(&judged, source, comparison).judgement;
    // 5 processes: xfs 1.1 of ext2, btrfs under 0.5 of it.
    assert_eq!(
        *is("dbench-2011", "btrfs relative to the best"),
        Judgement::Reproduced
    );
    assert_eq!(
        *is("dbench-2011", "btrfs throughput trend"),
        Judgement::Reproduced
    );
    assert_eq!(*is("dbench-2011", "ext2 at 10"), Judgement::Reversed);
    assert_eq!(
        *is("oltp-2012", "throughput relative"),
        Judgement::Reproduced
    );
    assert_eq!(*is("oltp-2012", "response time"), Judgement::Reproduced);
    assert_eq!(*is("oltp-2012", "stability"), Judgement::Reproduced);
    let trend = find(&judged, "dbench-2011", "btrfs throughput trend");
    assert!((trend.published_ratio.unwrap() - (50.0_f64 / 3.0).powf(0.29)).abs() < 1e-9);
    // Apache is as fast on both here.
    assert_eq!(
        *is("web-2010", "every mount variant"),
        Judgement::NotReproduced
    );
    for (comparison, reason) in [
        ("jfs relative to the best", "the kernel has no jfs"),
        ("reiserfs", "the kernel has no reiserfs"),
        ("jfs at 10", "the kernel has no jfs"),
        ("ranking", "ext3"),
    ] {
        let Judgement::NotTestable(said) = is("dbench-2011", comparison) else {
            panic!("{comparison}: {:?}", is("dbench-2011", comparison));
        };
        assert!(said.contains(reason), "{comparison}: {said}");
    }
    let Judgement::NotTestable(reason) = is("iozone-2009", "Ext3") else {
        panic!("iozone was not run");
    };
    assert!(reason.contains("no such experiment"));
    // Figures: ext4 without barriers was published as faster in creates.
    let create = |config: &str| {
        judged
            .iter()
            .find(|c| c.workload == "seq_create" && c.comparison.starts_with(config))
            .unwrap()
    };
    assert_eq!(
        create("btrfs relative").judgement,
        Judgement::Reproduced,
        "{:?}",
        create("btrfs relative")
    );
    assert!(matches!(
        create("btrfs converted").judgement,
        Judgement::NotTestable(_)
    ));
}

#[test]
fn few_blocks_decide_no_claim() {
    for blocks in [1, 3, 6] {
        for claim in judge(&synthetic::run(3, blocks).cells, 3) {
            assert!(
                matches!(
                    claim.judgement,
                    Judgement::Undecided(_) | Judgement::NotTestable(_)
                ),
                "{claim:?}"
            );
        }
    }
}
