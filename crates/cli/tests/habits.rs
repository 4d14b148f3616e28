//! Commands as users of the Btrfs tools type them: the same words, compared
//! with what those tools print for the same volume.

mod support;

use std::process::Command;
use support::{BINARY, Bench, Mounted, can_mount, said};

/// What the Btrfs tools print; `None` where they are not installed.
fn theirs(words: &[&str]) -> Option<String> {
    let output = Command::new("btrfs").args(words).output();
    let Ok(output) = output else {
        println!("skipped: btrfs is not installed");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return None;
    };
    assert!(
        output.status.success(),
        "btrfs {words:?}: {}",
        said(&output)
    );
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn sizes_are_in_the_units_that_are_asked_for() {
    let bench = Bench::new();
    let free_of_reserve = |text: &str| {
        let is_ours = |line: &&str| !line.starts_with("GlobalReserve");
        let mut lines: Vec<String> = text.lines().filter(is_ours).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let mut ours = Vec::new();
    let options = [
        "-b", "-h", "-H", "-k", "-m", "-g", "--si", "--iec", "--raw", "--kbytes",
    ];
    for option in options {
        ours.push(bench.run(&["filesystem", "df", option, "volume"]));
    }
    bench.with_kernel(|mnt| {
        let mnt = mnt.to_str().expect("a path");
        for (option, ours) in options.iter().zip(&ours) {
            if let Some(theirs) = theirs(&["filesystem", "df", option, mnt]) {
                // The used space may differ, because the kernel wrote when it
                // mounted.
                let totals = |text: &str| -> Vec<String> {
                    let lines = free_of_reserve(text).into_iter();
                    let cut = |line: String| line.split(", used").next().unwrap_or("").to_owned();
                    lines.map(cut).collect()
                };
                assert_eq!(totals(ours), totals(&theirs), "{option}");
            }
        }
    });
    let help = bench.run(&["filesystem", "df", "--help"]);
    assert!(help.contains("--kbytes"), "{help}");
}

#[test]
fn default_and_deleted_subvolumes_of_mounts() {
    let bench = Bench::new();
    bench.run(&["subvolume", "create", "volume:/one"]);
    bench.run(&["mkdir", "volume:/one/deep"]);
    bench.run(&["subvolume", "create", "volume:/one/deep/two"]);
    assert_eq!(
        bench.run(&["subvolume", "get-default", "volume"]),
        "ID 5 (FS_TREE)\n"
    );
    bench.run(&["subvolume", "set-default", "volume:/one/deep/two"]);
    let unmounted = bench.run(&["subvolume", "get-default", "volume"]);
    assert!(
        unmounted.ends_with(" top level 256 path one/deep/two\n"),
        "{unmounted}"
    );
    bench.with_kernel(|mnt| {
        let mnt = mnt.to_str().expect("a path");
        let ours = bench.run(&["subvolume", "get-default", mnt]);
        if let Some(theirs) = theirs(&["subvolume", "get-default", mnt]) {
            assert_eq!(ours, theirs);
        }
    });
    if !can_mount() || !support::is_root() {
        return;
    }
    let mounted: Mounted = bench.mount("subvolid=5");
    let ours = bench.run(&["subvolume", "get-default", "mnt"]);
    assert!(
        ours.ends_with(" top level 256 path one/deep/two\n"),
        "{ours}"
    );
    bench.run(&["subvolume", "set-default", "5", "mnt"]);
    assert_eq!(
        bench.run(&["subvolume", "get-default", "mnt"]),
        "ID 5 (FS_TREE)\n"
    );
    let refused = bench.try_run(&["subvolume", "sync", "mnt", "257"]);
    assert!(
        said(&refused).contains("is not deleted"),
        "{}",
        said(&refused)
    );
    bench.run(&["subvolume", "delete", "-v", "mnt/one/deep/two"]);
    bench.run(&["subvolume", "sync", "mnt"]);
    let gone = bench.run(&["subvolume", "sync", "mnt", "257"]);
    assert_eq!(gone, "Subvolume id 257 is gone\n");
    drop(mounted);
}

#[test]
fn options_before_the_command() {
    let bench = Bench::new();
    let json = bench.run(&["--format", "json", "filesystem", "df", "volume"]);
    assert!(json.contains("\"filesystem-df\": ["), "{json}");
    let json = bench.run(&["filesystem", "df", "--json", "volume"]);
    assert!(json.starts_with('['), "{json}");
    let json = bench.run(&["-q", "--format=json", "subvolume", "list", "volume"]);
    assert_eq!(json.trim(), "[]");
    let text = bench.run(&["-v", "--format", "text", "filesystem", "df", "volume"]);
    assert!(text.starts_with("Data"), "{text}");
    let refused = bench.try_run(&["--format", "json", "mkdir", "volume:/x"]);
    assert_eq!(refused.status.code(), Some(1));
    let first = bench.run(&["inspect-internal", "dump-super", "volume"]);
    let second = bench.run(&["inspect-internal", "dump-super", "-s", "1", "volume"]);
    assert!(second.contains("bytenr=67108864"), "{second}");
    let facts = |text: &str| -> Vec<String> {
        let differs = |line: &&str| !line.contains("bytenr") && !line.starts_with("csum\t");
        text.lines().filter(differs).map(str::to_owned).collect()
    };
    assert_eq!(facts(&first), facts(&second));

    let dump = |words: &[&str]| {
        bench.run(&[&["inspect-internal", "dump-tree"], words, &["volume"]].concat())
    };
    let (all, uuid) = (dump(&[]), dump(&["-u"]));
    let (_, uuid) = uuid
        .split_once('\n')
        .expect("a first line that names the program");
    assert!(all.contains(uuid));
    assert!(
        uuid.contains("UUID_TREE") && !uuid.contains("EXTENT_TREE"),
        "{uuid}"
    );
    assert!(dump(&["-e"]).contains("METADATA_ITEM"));
    assert!(dump(&["-d"]).contains("CHUNK_ITEM"));
    let roots = dump(&["-r"]);
    assert!(roots.contains("\nroot tree: "), "{roots}");
    assert!(
        roots.contains("chunk tree: ") && !roots.contains("item 0"),
        "{roots}"
    );
}

/// A path that leads to nothing is a mistake, also where the whole volume is
/// meant.
#[test]
fn a_path_to_nothing_is_refused_before_anything_changes() {
    let bench = Bench::new();
    bench.run(&["mkdir", "volume:/there"]);
    bench.run(&["quota", "enable", "volume"]);
    let before = std::fs::read(bench.path("volume")).expect("the volume");
    let commands = [
        "filesystem resize -10m",
        "scrub start -B",
        "scrub start",
        "scrub start -B -c 3",
        "scrub resume -B",
        "info",
        "info --json",
        "subvolume get-default",
        "subvolume list --tree",
        "subvolume list",
        "balance start --full-balance",
        "balance plan",
        "balance resume",
        "balance status",
        "balance cancel",
        "replace status",
        "replace cancel",
        "inspect list-chunks",
        "inspect min-dev-size",
        "inspect tree-stats",
        "inspect subvolid-resolve 5",
        "qgroup show",
        "filesystem df",
    ];
    for command in commands {
        for path in ["volume:/nope", "volume:/there/nope"] {
            let mut words: Vec<&str> = command.split(' ').collect();
            words.push(path);
            let output = bench.try_run(&words);
            let told = said(&output);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {told}");
            let told = told.to_lowercase();
            assert!(told.contains("no such file"), "{words:?}: {told}");
        }
    }
    let after = std::fs::read(bench.path("volume")).expect("the volume");
    assert!(before == after, "the volume changed");
    for place in ["volume:/", "volume:/there", "volume://there/"] {
        bench.run(&["info", place]);
        bench.run(&["subvolume", "get-default", place]);
    }
    bench.run(&["filesystem", "resize", "-10m", "volume:/there"]);
    if can_mount() {
        let _mounted: Mounted = bench.mount("rw");
        for words in [
            ["info", "mnt:/nope"].as_slice(),
            &["filesystem", "resize", "-10m", "mnt:/nope"],
        ] {
            let output = bench.try_run(words);
            assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        }
        bench.run(&["info", "mnt:/there"]);
    }
}

/// What a command says, within some seconds, of what is no volume.
#[test]
fn what_is_no_volume_is_told_and_nobody_waits() {
    let bench = Bench::new();
    std::fs::write(bench.path("empty"), "").expect("a file");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        bench.path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .expect("a FIFO");
    for (command, expected) in [
        ("filesystem sync fifo", "is on no Btrfs"),
        ("property get fifo", "is on no Btrfs"),
        ("scrub status fifo", "is a FIFO"),
        ("scrub cancel fifo", "is a FIFO"),
        ("scrub limit fifo", "is a FIFO"),
        ("inspect dump-super fifo", "is a FIFO"),
        ("device scan fifo", "is a FIFO"),
        ("subvolume snapshot fifo x", "is no directory"),
        ("property get -t subvol fifo ro", "is no directory"),
        ("dedupe fifo volume", "fifo: "),
        ("reflink --range 0:0:4k fifo volume", "a range begins"),
        ("inspect dump-super empty", "empty, which has 0 bytes"),
        ("scrub status empty", "too small"),
        ("device ready nothere", "cannot open nothere"),
        ("subvolume create nothere:/x", "cannot open nothere:"),
        ("subvolume delete nothere:/x", "cannot open nothere:"),
        (
            "subvolume snapshot nothere:/a nothere:/b",
            "nothere: No such",
        ),
        ("reflink nothere:/a nothere:/b", "cannot open nothere:"),
        ("dedupe nothere:/a nothere:/b", "cannot open nothere:"),
        ("filesystem defragment nothere:/a", "cannot open nothere:"),
        ("property set nothere:/a ro true", "cannot open nothere:"),
        ("mkfs -b 15E new", "choose a smaller size"),
        ("filesystem resize +8E volume", "choose a smaller size"),
        (
            "subvolume delete volume:/",
            "the top level of a volume cannot be deleted",
        ),
        ("info empty/x", "check the path"),
        ("check --threads 1000 volume", "0..=256"),
        ("scrub start --threads 1000 volume", "0..=256"),
        ("build --threads 1000 -o new --from empty", "0..=256"),
    ] {
        let mut words = vec!["20", BINARY];
        words.extend(command.split(' '));
        let mut timed = Command::new("timeout");
        let timed = timed.args(&words).current_dir(bench.path(""));
        let output = timed.output().expect("timeout runs");
        let told = said(&output);
        let code = output.status.code();
        assert!(matches!(code, Some(1 | 2)), "{command}: {code:?}: {told}");
        assert!(told.contains(expected), "{command}: {told}");
        assert!(!bench.path("new").exists(), "{command}");
    }
}
