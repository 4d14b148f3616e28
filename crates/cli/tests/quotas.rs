//! `butterfs quota` and `butterfs qgroup` on a volume, agreed by btrfs-progs.

mod support;

use serde_json::Value;
use support::{Bench, said};

fn groups(bench: &Bench) -> Vec<Value> {
    let shown = bench.run(&["qgroup", "show", "--json", "volume"]);
    let facts: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(facts["inconsistent"], false, "{shown}");
    facts["qgroups"].as_array().expect("groups").clone()
}

fn group<'a>(groups: &'a [Value], id: &str) -> &'a Value {
    let found = groups.iter().find(|group| group["qgroupid"] == id);
    found.unwrap_or_else(|| panic!("{id} in {groups:?}"))
}

/// Limits, which are in no number of the kernel's listing of use.
fn shown_by_kernel(bench: &Bench) -> Option<String> {
    let mut shown = None;
    bench.with_kernel(|mount| {
        let output = std::process::Command::new("btrfs")
            .args(["qgroup", "show", "--raw", "-pcre"])
            .arg(mount)
            .output()
            .expect("btrfs runs");
        assert!(output.status.success(), "{}", said(&output));
        shown = Some(String::from_utf8_lossy(&output.stdout).into_owned());
    });
    shown
}

#[test]
fn groups_are_made_joined_limited_and_shown() {
    let bench = Bench::new();
    let off = bench.try_run(&["qgroup", "show", "volume"]);
    assert!(!off.status.success() && said(&off).contains("not enabled"));
    bench.run(&["subvolume", "create", "volume:/a", "volume:/b"]);
    std::fs::write(bench.path("file"), vec![1; 300_000]).expect("a file");
    bench.run(&["copy", "file", "volume:/a/file"]);
    bench.run(&["quota", "enable", "volume"]);
    assert!(
        bench
            .run(&["quota", "status", "volume"])
            .contains("Enabled:       yes")
    );
    bench.run(&["qgroup", "create", "1/1", "volume"]);
    let again = bench.try_run(&["qgroup", "create", "1/1", "volume"]);
    assert!(said(&again).contains("exists already"), "{}", said(&again));
    bench.run(&["qgroup", "assign", "0/256", "1/1", "volume"]);
    bench.run(&[
        "subvolume",
        "snapshot",
        "-i",
        "1/1",
        "volume:/a",
        "volume:/s",
    ]);
    bench.run(&["qgroup", "limit", "10m", "256", "volume"]);
    bench.run(&["qgroup", "limit", "-e", "20m", "1/1", "volume"]);
    let found = groups(&bench);
    let (a, s, all) = (
        group(&found, "0/256"),
        group(&found, "0/258"),
        group(&found, "1/1"),
    );
    assert_eq!(a["path"], "a");
    assert_eq!(a["referenced"], s["referenced"]);
    assert_eq!(a["exclusive"], 16384);
    assert_eq!(a["max_referenced"], 10 << 20);
    assert_eq!(all["max_exclusive"], 20 << 20);
    assert_eq!(all["children"], serde_json::json!(["0/256", "0/258"]));
    assert_eq!(all["referenced"], all["exclusive"]);
    bench.check();
    if let Some(theirs) = shown_by_kernel(&bench) {
        let words = |text: &str| -> Vec<Vec<String>> {
            let rows = text.lines().filter(|line| line.contains('/'));
            rows.map(|row| row.split_whitespace().take(7).map(str::to_owned).collect())
                .collect()
        };
        let ours = bench.run(&["qgroup", "show", "--raw", "-pcre", "volume"]);
        assert_eq!(words(&ours)[..4], words(&theirs)[..4], "{ours}\n{theirs}");
    }
    // Out again: with a count, since the members share.
    bench.run(&["qgroup", "remove", "0/258", "1/1", "volume"]);
    let found = groups(&bench);
    assert_eq!(
        group(&found, "1/1")["children"],
        serde_json::json!(["0/256"])
    );
    assert_eq!(group(&found, "1/1")["exclusive"], 16384);
    let full = bench.try_run(&["qgroup", "destroy", "1/1", "volume"]);
    assert!(said(&full).contains("has members"), "{}", said(&full));
    bench.run(&["qgroup", "remove", "0/256", "1/1", "volume"]);
    bench.run(&["qgroup", "destroy", "1/1", "volume"]);
    bench.run(&["qgroup", "limit", "none", "0/256", "volume"]);
    assert_eq!(groups(&bench).len(), 4);
    bench.run(&["quota", "rescan", "volume"]);
    bench.check();
    // What does not fit its limit is refused.
    bench.run(&["qgroup", "limit", "200k", "0/257", "volume"]);
    let too_much = bench.try_run(&["copy", "file", "volume:/b/file"]);
    assert!(said(&too_much).contains("quota"), "{}", said(&too_much));
    bench.run(&["qgroup", "limit", "1m", "0/257", "volume"]);
    bench.run(&["copy", "file", "volume:/b/other"]);
    bench.run(&["quota", "disable", "volume"]);
    bench.check();
}
