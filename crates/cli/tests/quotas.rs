//! `butterfs quota` and `butterfs qgroup` on a volume, confirmed by
//! btrfs-progs.

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

/// What `btrfs qgroup show` prints of the volume on a kernel mount; `None` if
/// the kernel cannot mount it.
fn shown_by_kernel(bench: &Bench, options: &[&str]) -> Option<String> {
    let mut shown = None;
    bench.with_kernel(|mount| {
        let output = std::process::Command::new("btrfs")
            .args(["qgroup", "show"])
            .args(options)
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
            .contains("Enabled:                 yes")
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
    for options in [
        &["--raw", "-pcre"][..],
        &["--sort=-rfer,qgroupid", "-re"],
        &["--sort=max_rfer,-excl,-qgroupid", "-re", "--kbytes"],
        &["--sort=-max_excl,-qgroupid", "--si", "--sync"],
    ] {
        let Some(theirs) = shown_by_kernel(&bench, options) else {
            break;
        };
        let words = |text: &str| -> Vec<Vec<String>> {
            let rows = text.lines().filter(|line| line.contains('/'));
            rows.map(|row| {
                let numbers = if options.contains(&"-pcre") { 7 } else { 3 };
                row.split_whitespace()
                    .take(numbers)
                    .map(str::to_owned)
                    .collect()
            })
            .collect()
        };
        let ours = bench.run(&[&["qgroup", "show"], options, &["volume"]].concat());
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

fn write_durably(path: &std::path::Path, data: &[u8]) {
    std::fs::write(path, data).expect("written");
    let file = std::fs::File::open(path).expect("opens");
    file.sync_all().expect("synced");
}

/// The words on a mountpoint, whoever serves it.
fn on_a_mount(bench: &Bench, mount: &str) {
    let at = |path: &str| format!("{mount}/{path}");
    let full = |path: &str| bench.path(&at(path));
    assert!(
        bench
            .run(&["quota", "status", mount])
            .contains("Enabled: no")
    );
    let off = bench.try_run(&["qgroup", "create", "1/1", mount]);
    assert!(said(&off).contains("not enabled"), "{}", said(&off));
    bench.run(&["subvolume", "create", &at("a")]);
    std::fs::write(full("a/file"), vec![1; 300_000]).expect("written");
    std::fs::create_dir_all(full("dir/deeper")).expect("made");
    bench.run(&["quota", "enable", mount]);
    bench.run(&["qgroup", "create", "1/1", mount]);
    let again = bench.try_run(&["qgroup", "create", "1/1", mount]);
    assert!(said(&again).contains("exists already"), "{}", said(&again));
    bench.run(&["qgroup", "assign", "0/256", "1/1", mount]);
    let (a, s, b) = (at("a"), at("dir/deeper/s"), at("dir/b"));
    bench.run(&["subvolume", "snapshot", "-i", "1/1", &a, &s]);
    bench.run(&["subvolume", "create", "-i", "1/1", &b]);
    bench.run(&["qgroup", "limit", "10m", "256", mount]);
    bench.run(&["qgroup", "limit", "-e", "20m", "1/1", mount]);
    let missing = bench.try_run(&["qgroup", "limit", "1m", "1/77", mount]);
    assert!(
        said(&missing).contains("no such group"),
        "{}",
        said(&missing)
    );
    bench.run(&["quota", "rescan", mount]);
    bench.run(&["filesystem", "sync", mount]);
    let shown = bench.run(&["qgroup", "show", "--json", mount]);
    let facts: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(
        (&facts["inconsistent"], &facts["mode"]),
        (&false.into(), &"qgroup".into())
    );
    let found = facts["qgroups"].as_array().expect("groups").clone();
    assert_eq!(group(&found, "0/256")["path"], "a");
    assert_eq!(group(&found, "0/257")["path"], "dir/deeper/s");
    assert_eq!(group(&found, "0/258")["path"], "dir/b");
    assert_eq!(group(&found, "0/5")["path"], "");
    assert_eq!(group(&found, "0/256")["max_referenced"], 10 << 20);
    let all = group(&found, "1/1");
    assert_eq!(
        all["children"],
        serde_json::json!(["0/256", "0/257", "0/258"])
    );
    assert_eq!(all["max_exclusive"], 20 << 20);
    assert_eq!(all["referenced"], all["exclusive"]);
    // What does not fit is refused, by write or at the end.
    let mut noise = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        noise = noise
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (noise >> 56) as u8
    })
    .take(12 << 20)
    .collect();
    let refused = std::fs::write(full("a/big"), &noise).expect_err("a limit");
    assert_eq!(refused.raw_os_error(), Some(libc::EDQUOT));
    std::fs::remove_file(full("a/big")).expect("removed");
    // Members that share: a count follows.
    bench.run(&["qgroup", "remove", "0/257", "1/1", mount]);
    let status = bench.run(&["quota", "status", "--json", mount]);
    let status: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["inconsistent"], false);
    assert_eq!(status["groups"], 5);
    let full_group = bench.try_run(&["qgroup", "destroy", "1/1", mount]);
    assert!(
        said(&full_group).contains("has members"),
        "{}",
        said(&full_group)
    );
    bench.run(&["qgroup", "remove", "256", "1/1", mount]);
    bench.run(&["qgroup", "remove", "258", "1/1", mount]);
    bench.run(&["qgroup", "destroy", "1/1", mount]);
    bench.run(&["qgroup", "limit", "none", "0/256", mount]);
    bench.run(&["quota", "disable", mount]);
    assert!(
        bench
            .run(&["quota", "status", mount])
            .contains("Enabled: no")
    );
}

fn simple_on_a_mount(bench: &Bench, mount: &str) -> Value {
    bench.run(&["quota", "enable", "--simple", mount]);
    assert!(
        bench
            .run(&["quota", "status", mount])
            .contains("Mode:                    squota")
    );
    let scan = bench.try_run(&["quota", "rescan", mount]);
    assert!(said(&scan).contains("nothing to scan"), "{}", said(&scan));
    let new = format!("{mount}/simple");
    bench.run(&["subvolume", "create", &new]);
    write_durably(&bench.path(&new).join("file"), &vec![1; 300_000]);
    bench.run(&["filesystem", "sync", mount]);
    let shown = bench.run(&["qgroup", "show", "--json", mount]);
    let facts: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(facts["mode"], "squota");
    facts
}

/// `quota rescan` with questions about a count. On the kernel's mount `btrfs`
/// is asked the same. It refuses every mount that is not the kernel's, so on
/// ours the test compares with its answer without a count.
fn rescan_is_alike(bench: &Bench, mount: &str, is_kernels: bool) {
    for options in [&["-w"][..], &["-W"], &["-s"], &["--status"]] {
        let words = [&["quota", "rescan"], options, &[mount]].concat();
        let ours = bench.try_run(&words);
        assert_eq!(ours.status.code(), Some(0), "{}", said(&ours));
        if options[0].starts_with("-s") || options[0] == "--status" {
            assert_eq!(ours.stdout, b"no rescan operation in progress\n");
        }
        if !is_kernels {
            continue;
        }
        let theirs = std::process::Command::new("btrfs")
            .args(&words[..words.len() - 1])
            .arg(bench.path(mount))
            .output()
            .expect("btrfs runs");
        assert_eq!(theirs.status.code(), Some(0), "{}", said(&theirs));
        // There, `-w` reports what it starts. This command is silent if it did
        // what it was asked to do.
        if !options.contains(&"-w") {
            assert_eq!(ours.stdout, theirs.stdout, "{words:?}");
        }
    }
}

#[test]
fn a_rescan_is_asked_about_with_the_same_words() {
    let bench = Bench::new();
    let unmounted = bench.try_run(&["quota", "rescan", "-s", "volume"]);
    assert_eq!(unmounted.status.code(), Some(1));
    assert!(said(&unmounted).contains("is not mounted"));
    bench.run(&["quota", "enable", "volume"]);
    if support::can_mount() {
        let mounted = bench.mount("noatime");
        rescan_is_alike(&bench, "mnt", false);
        drop(mounted);
    }
    let bench = Bench::new();
    bench.run(&["quota", "enable", "volume"]);
    bench.with_kernel(|_| rescan_is_alike(&bench, "kernel", true));
}

#[test]
fn the_same_words_work_on_mounts() {
    let bench = Bench::new();
    if support::can_mount() {
        let mounted = bench.mount("noatime");
        on_a_mount(&bench, "mnt");
        let facts = simple_on_a_mount(&bench, "mnt");
        drop(mounted);
        wait_until_closed(&bench);
        bench.run(&["check", "--check-data-csum", "volume"]);
        let shown = bench.run(&["qgroup", "show", "--json", "volume"]);
        assert_eq!(facts, serde_json::from_str::<Value>(&shown).expect("JSON"));
    }
    let bench = Bench::new();
    bench.with_kernel(|_| {
        on_a_mount(&bench, "kernel");
        simple_on_a_mount(&bench, "kernel");
    });
    bench.run(&["check", "--check-data-csum", "volume"]);
}

/// The server may write its last commit after the mountpoint is free.
fn wait_until_closed(bench: &Bench) {
    for _ in 0..100 {
        let status = bench.try_run(&["quota", "enable", "--simple", "volume"]);
        if status.status.success() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("the volume is still mounted");
}

#[test]
fn a_check_prints_the_numbers_of_groups() {
    let bench = Bench::new();
    bench.run(&["quota", "enable", "volume"]);
    bench.run(&["subvolume", "create", "volume:/sub"]);
    std::fs::write(bench.path("host"), vec![7; 1 << 20]).expect("a file");
    bench.run(&["copy", "-q", "host", "volume:/sub/"]);
    let text = bench.run(&["check", "-Q", "volume"]);
    let group = text
        .split("Counts for qgroup id: ")
        .find(|part| part.starts_with("0/256 \n"));
    let group = group.expect("the group of the subvolume");
    // A node of 16 KiB and the file.
    let line = "referenced 1064960 referenced compressed 1064960\n";
    for side in ["our:\t\t", "disk:\t\t"] {
        assert!(group.contains(&format!("{side}{line}")), "{text}");
    }
    assert!(!text.contains("are different"), "{text}");
}
