//! The report of a run whose truth is known says that truth, and nothing else.

use crate::synthetic;
use butterfs_lab::compare::compare;
use butterfs_lab::model::{Durability, Outcome};
use butterfs_lab::report::html;
use butterfs_lab::stats::Word;

/// The report's text without tags, one line.
fn text(html: &str) -> String {
    let body = &html[html.find("<main").unwrap()..html.find("<script>").unwrap()];
    let mut out = String::new();
    let mut inside = false;
    for c in body.chars() {
        match c {
            '<' => inside = true,
            '>' => {
                inside = false;
                out.push(' ');
            }
            c if !inside => out.push(if c.is_whitespace() { ' ' } else { c }),
            _ => {}
        }
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_summary_says_what_is_true() {
    let said = text(&html(&synthetic::run(3, 10)));
    let part = &said[..said.find("What the old reports said").unwrap()];
    for sentence in [
        "xfs is better than ext4 in sequential create: 1.2",
        "btrfs is worse than ext4 in sequential create: 0.5",
        "btrfs mkfs -n 32768 and ext4 are equivalent in sequential create: 1.00 times",
        "ext4 -o data=writeback,barrier=0,commit=60 unsafe is better, but unsafe, than ext4",
        "It is no safe choice: a power cut may lose what was fsynced.",
        "btrfs is worse than ext4 in throughput (1, 2, 3, 5, 8, 10, 20, 50 clients)",
        "btrfs is worse than ext4 in response time p95",
        "jfs : unavailable : the kernel has no jfs",
        "void in 1 of 10 passes: content hash: 1 of 512 files differs",
        "failed in 1 of 10 passes: mount: exit status 32",
    ] {
        assert!(part.contains(sentence), "{sentence}\n{part}");
    }
    assert!(!part.contains("screening"));
    // Weak and unsafe cells are marked wherever their system is named.
    for (_, rest) in part
        .match_indices("barrier=0,commit=60")
        .map(|(at, _)| part.split_at(at))
    {
        assert!(
            rest["barrier=0,commit=60".len()..].starts_with(" unsafe"),
            "{rest}"
        );
    }
}

/// The first screen: a sentence, where it comes from, what is decided.
#[test]
fn the_first_screen_says_what_is_decided() {
    let page = html(&synthetic::run(3, 10));
    let header = &page[page.find("<header>").unwrap()..page.find("</header>").unwrap()];
    assert!(header.contains("decided comparisons; 4"), "{header}");
    assert!(header.contains("better in") || header.contains("worse in"));
    for fact in ["2023-11-14", "Synthetic &lt;1&gt;", "Linux 6.18.0"] {
        assert!(header.contains(fact), "{fact}: {header}");
    }
    let table = &page[page.find("<table class=\"bars verdicts\"").unwrap()..];
    let table = &table[..table.find("</table>").unwrap()];
    assert!(table.contains("class=\"own\""));
    // Best first, whatever the metric: ratios of response times are inverted.
    let ratios: Vec<f64> = table
        .split("<td class=\"says\"><strong>")
        .skip(1)
        .map(|rest| rest[..rest.find('<').unwrap()].parse().unwrap())
        .collect();
    assert!((5..=16).contains(&ratios.len()), "{ratios:?}");
    assert!(ratios.is_sorted_by(|a, b| a >= b), "{ratios:?}");
    // A screening has no such chart; a sentence says so.
    let page = html(&synthetic::run(3, 3));
    assert!(page.contains("Nothing is decided: this is a screening of 3 blocks"));
    assert!(!page.contains("bars verdicts"));
}

/// What the report tells readers to save and run chooses what was run.
#[test]
fn the_command_repeats_the_run() {
    let mut recorded = synthetic::run(3, 8);
    let choice = butterfs_lab::plan::Choice {
        repeats: Some(8),
        others: Some(1),
        only: vec!["ext4".to_owned(), "btrfs".to_owned()],
        device_size: Some(1 << 30),
        ..Default::default()
    };
    let fact = serde_json::to_string(&choice).unwrap();
    let facts = &mut recorded.run.manifest.facts;
    facts.insert("run".to_owned(), [("choice".to_owned(), fact)].into());
    let command = "butterfs lab run repeat.toml --scale small --repeats 8 --others 1 --seed 3 --device-size 1073741824 --only ext4 --only btrfs";
    assert!(html(&recorded).contains(command));
}

/// Charts of few points are left to the tables.
#[test]
fn few_points_are_no_chart() {
    let mut recorded = synthetic::run(3, 8);
    recorded.cells.retain(|cell| {
        let level = cell.cell.0.get("concurrency");
        level.is_none_or(|level| ["1", "2", "3", "5"].contains(&level.as_str()))
    });
    for cell in &mut recorded.cells {
        for series in &mut cell.series {
            series.values.truncate(4);
        }
        for latencies in &mut cell.latencies {
            latencies.upper.truncate(4);
            latencies.counts = vec![100; 4];
        }
    }
    let page = html(&recorded);
    assert!(!page.contains("<figure"), "four points are no chart");
    assert!(page.contains("p99.9"), "the table is there");
}

#[test]
fn figures_of_passes_that_do_not_count_change_nothing() {
    let recorded = synthetic::run(3, 9);
    let good = recorded.cells[0].clone();
    let mut with_figures = recorded.clone();
    let mut changed = 0;
    for cell in &mut with_figures.cells {
        if cell.outcome != Outcome::Done {
            cell.metrics.clone_from(&good.metrics);
            for metric in &mut cell.metrics {
                metric.value = 1e15;
            }
            changed += 1;
        }
    }
    assert!(changed > 10);
    assert!(html(&recorded) == html(&with_figures));
    let other = synthetic::run(4, 9);
    assert!(compare(&recorded, &other) == compare(&with_figures, &other));
}

/// Wherever a row or a legend names the system without barriers, its mark
/// stands beside it, and the system is never simply better.
#[test]
fn unsafe_cells_win_nothing_unmarked() {
    let mut recorded = synthetic::run(3, 9);
    for cell in &mut recorded.cells {
        if cell
            .cell
            .0
            .get("file-system")
            .is_some_and(|name| name == "xfs")
        {
            cell.durability = Durability::Unsafe;
        }
    }
    let page = html(&recorded);
    let rows = page
        .split("<tr")
        .skip(1)
        .map(|row| &row[..row.find("</tr>").unwrap()]);
    let mut marked = 0;
    // What is not testable here has no figure of ours.
    let named = |row: &&str| row.contains(">xfs");
    for row in rows
        .filter(named)
        .filter(|row| !row.contains("not-testable-here"))
    {
        assert!(row.contains("badge unsafe"), "{row}");
        assert!(!row.contains("word better"), "{row}");
        marked += 1;
    }
    assert!(marked > 15, "{marked}");
    let items = page
        .split("<li>")
        .skip(1)
        .map(|item| &item[..item.find("</li>").unwrap()]);
    for item in items.filter(|item| item.contains("<strong>xfs") || item.contains("</svg> xfs")) {
        assert!(item.contains("badge unsafe"), "{item}");
        assert!(!item.contains("word better"), "{item}");
    }
    for caption in page.split("<figcaption>").skip(1) {
        let caption = &caption[..caption.find("</figcaption>").unwrap()];
        assert_eq!(
            caption.contains("xfs"),
            caption.contains("badge unsafe"),
            "{caption}"
        );
    }
    let claims = butterfs_lab::published::judge(&recorded.cells, 3);
    let claim = claims
        .iter()
        .find(|claim| claim.comparison.starts_with("xfs relative to ext2"));
    assert_eq!(claim.unwrap().durability, Durability::Unsafe);
}

#[test]
fn a_screening_says_so_and_claims_nothing() {
    let said = text(&html(&synthetic::run(3, 3)));
    assert!(said.contains("This is a screening"));
    for word in ["is better than", "is worse than", "are equivalent"] {
        assert!(!said.contains(word), "{word}");
    }
    let seven = text(&html(&synthetic::run(3, 7)));
    assert!(
        seven.contains("could not have been decided by 7 blocks"),
        "families of 7 need 9"
    );
}

#[test]
fn equal_runs_give_equal_bytes_and_texts_are_escaped() {
    let page = html(&synthetic::run(4, 8));
    assert_eq!(page, html(&synthetic::run(4, 8)));
    assert_ne!(page, html(&synthetic::run(5, 8)));
    assert!(page.contains("1 of 512 files differs &lt;b&gt;&amp;"));
    assert!(page.contains("Synthetic &lt;1&gt;"));
    assert!(page.contains("a &lt; b &amp; c"));
    assert!(!page.contains("NaN") && !page.contains("inf\""));
    // Self-contained: nothing is fetched.
    for fetch in ["src=", "http://", "https://", "@import", "url(//"] {
        assert!(!page.contains(fetch), "{fetch}");
    }
}

#[test]
fn odd_records_make_a_report_too() {
    let mut random = butterfs_lab::stats::Random::new(8);
    for seed in 0..30 {
        let mut recorded = synthetic::run(seed, 1);
        recorded.cells.clear();
        for block in 0..12 {
            recorded
                .cells
                .push(synthetic::odd_record(&mut random, block / 2));
        }
        let page = html(&recorded);
        assert!(page.ends_with("</html>\n"), "seed {seed}");
        assert!(!page.contains('\0'));
        let scripts = page.matches("</script>").count();
        assert_eq!(scripts, 1, "seed {seed}");
    }
    let mut empty = synthetic::run(1, 1);
    empty.cells.clear();
    assert!(html(&empty).contains("0 of 0 passes"));
}

#[test]
fn every_opened_tag_is_closed() {
    let page = html(&synthetic::run(3, 8));
    let body = &page[page.find("<body>").unwrap()..page.find("<script>").unwrap()];
    let mut open: Vec<&str> = Vec::new();
    for part in body.split('<').skip(1) {
        let tag = &part[..part.find('>').unwrap()];
        let name = tag
            .trim_start_matches('/')
            .split([' ', '\n'])
            .next()
            .unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "...{}", &part[..part.len().min(60)]);
        } else if !tag.ends_with('/') && !matches!(name, "br" | "input" | "link" | "meta") {
            open.push(name);
        }
    }
    assert_eq!(open, ["body"]);
}

#[test]
fn two_runs_are_compared_cell_by_cell() {
    let first = synthetic::run(1, 9);
    let mut second = synthetic::run(2, 9);
    for cell in &mut second.cells {
        if cell
            .cell
            .0
            .get("file-system")
            .is_some_and(|name| name == "xfs")
        {
            for metric in cell.metrics.iter_mut().filter(|m| m.name == "throughput") {
                metric.value *= 2.0;
            }
        }
    }
    second.cells.retain(|cell| cell.experiment != "web-2010");
    let facts = second.run.manifest.facts.get_mut("kernel").unwrap();
    facts.insert("release".to_owned(), "6.19.0".to_owned());
    let found = compare(&first, &second);
    assert_eq!(found.differences.len(), 1);
    assert_eq!(found.differences[0].fact, "kernel: release");
    let doubled: Vec<_> = found
        .compared
        .iter()
        .filter(|one| one.metric == "throughput" && one.cell.0["file-system"] == "xfs")
        .collect();
    assert_eq!(doubled.len(), synthetic::CLIENTS.len());
    for one in doubled {
        assert_eq!(one.verdict.word, Word::Better);
        let ratio = one.verdict.ratio.unwrap();
        assert!(ratio.interval.low > 1.7 && ratio.interval.high < 2.4);
    }
    assert!(
        found
            .compared
            .iter()
            .filter(|one| one.cell.0["file-system"] != "xfs")
            .all(|one| one.verdict.word == Word::Undecided || one.verdict.word == Word::Equivalent)
    );
    assert_eq!(found.only_first.len(), 2);
    assert!(found.only_second.is_empty());
    let text = found.to_text();
    assert!(
        text.starts_with(
            "Where synthetic-1 and synthetic-2 differ:\n  kernel: release: 6.18.0 | 6.19.0\n"
        ),
        "{text}"
    );
    assert!(text.contains("[unsafe]") && text.contains(": better\n"));
    assert!(text.contains("Only synthetic-1 has figures of:\n  web-2010: btrfs"));
    let same = compare(&first, &first).to_text();
    assert!(same.starts_with("synthetic-1 and synthetic-1 were made alike."));
    assert!(!same.contains("better") && !same.contains("worse"));
}
