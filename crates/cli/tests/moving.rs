//! Scrub, balance and resize, on volumes that are mounted and that are not.

mod support;

use butterfs::{OpenOptions, Volume};
use butterfs_admin::balance::{self, End, Filters, Redundancy, Wish};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{BINARY, Bench, can_mount, said};

const UNCORRECTABLE: i32 = 3;
const NONE: i32 = 2;

/// Bytes that nothing else on a volume has.
fn content(seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut bytes = Vec::new();
    while bytes.len() < 300_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        bytes.extend_from_slice(&(state >> 16).to_le_bytes());
    }
    bytes
}

/// A volume with files; `options` are those of mkfs.
fn filled(options: &[&str]) -> Bench {
    let bench = Bench::new();
    let words = [&["mkfs", "-q", "-f", "-b", "512m"], options, &["volume"]].concat();
    bench.run(&words);
    for seed in 0..8 {
        let name = format!("f{seed}");
        fs::write(bench.path(&name), content(seed)).unwrap();
        bench.run(&["copy", &name, "volume:/"]);
    }
    bench
}

/// Where a file's first bytes lie in the image, all copies.
fn places(bench: &Bench, seed: u8) -> Vec<u64> {
    let wanted = content(seed);
    let image = fs::read(bench.path("volume")).unwrap();
    let sectors = image.chunks(4096).enumerate();
    let found = sectors.filter(|(_, sector)| sector[..] == wanted[..4096]);
    found.map(|(index, _)| index as u64 * 4096).collect()
}

fn damage(bench: &Bench, at: u64) {
    let image = fs::File::options().write(true).open(bench.path("volume"));
    image.unwrap().write_all_at(b"damaged", at + 100).unwrap();
}

#[test]
fn a_scrub_corrects_what_has_another_copy() {
    let bench = filled(&["-d", "dup"]);
    let clean = bench.run(&["scrub", "start", "-B", "volume"]);
    assert!(clean.contains("no errors found"), "{clean}");
    let copies = places(&bench, 3);
    assert_eq!(copies.len(), 2);
    for copy in copies {
        damage(&bench, copy);
        let found = bench.try_run(&["scrub", "start", "-B", "-r", "volume"]);
        assert!(found.status.success(), "{}", said(&found));
        assert!(
            said(&found).contains("/f3 (offset 0): another copy"),
            "{}",
            said(&found)
        );
        assert!(
            said(&found).contains("Correctable:    1"),
            "{}",
            said(&found)
        );
        let mended = bench.run(&["scrub", "start", "-B", "volume"]);
        assert!(mended.contains("csum=1"), "{mended}");
        assert!(mended.contains("Corrected:      1"), "{mended}");
        assert_eq!(places(&bench, 3).len(), 2);
    }
    let again = bench.run(&["scrub", "start", "-B", "--json", "volume"]);
    assert!(again.contains("\"csum_errors\": 0"), "{again}");
    bench.check();
}

#[test]
fn a_scrub_names_what_is_lost() {
    let bench = filled(&[]);
    let copies = places(&bench, 5);
    assert_eq!(copies.len(), 1);
    damage(&bench, copies[0]);
    let found = bench.try_run(&["scrub", "start", "-B", "volume"]);
    assert_eq!(found.status.code(), Some(UNCORRECTABLE), "{}", said(&found));
    assert!(
        said(&found).contains("/f5 (offset 0): no copy is good"),
        "{}",
        said(&found)
    );
    let status = bench.run(&["scrub", "status", "volume"]);
    assert!(status.contains("Uncorrectable:  1"), "{status}");
    let raw = bench.run(&["scrub", "status", "-R", "volume"]);
    assert!(raw.contains("uncorrectable_errors: 1"), "{raw}");
    let nothing = bench.try_run(&["scrub", "resume", "-B", "volume"]);
    assert_eq!(nothing.status.code(), Some(NONE), "{}", said(&nothing));
    let idle = bench.try_run(&["scrub", "cancel", "volume"]);
    assert_eq!(idle.status.code(), Some(NONE), "{}", said(&idle));
}

#[test]
fn bad_sectors_side_by_side_are_one_line() {
    let bench = filled(&[]);
    let place = places(&bench, 5)[0];
    for sector in [1, 2, 3, 7] {
        damage(&bench, place + sector * 4096);
    }
    let found = said(&bench.try_run(&["scrub", "start", "-B", "volume"]));
    let lines: Vec<_> = found.lines().filter(|line| line.contains("/f5")).collect();
    assert_eq!(lines.len(), 2, "{found}");
    assert!(
        lines[0].contains("12288 bytes: /f5 (offset 4096): no copy"),
        "{found}"
    );
    assert!(
        lines[1].contains("4096 bytes: /f5 (offset 28672): no copy"),
        "{found}"
    );
    assert!(found.contains("csum=4"), "{found}");
}

/// The user may have a home directory that belongs to somebody else, or none at
/// all.
#[test]
fn a_scrub_needs_no_home() {
    let bench = filled(&[]);
    let (home, temporary) = (bench.path("home"), bench.path("temporary"));
    for directory in [&home, &temporary] {
        fs::create_dir(directory).unwrap();
    }
    let user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", BINARY]);
        command.args(words).current_dir(bench.path(""));
        command.env("HOME", &home).env_remove("XDG_STATE_HOME");
        command.env("TMPDIR", &temporary).output().unwrap()
    };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can run a program as somebody else");
        return;
    }
    let everybody = fs::Permissions::from_mode(0o777);
    for path in ["", "volume", "temporary"] {
        fs::set_permissions(bench.path(path), everybody.clone()).unwrap();
    }
    let done = user(&["scrub", "start", "-B", "volume"]);
    assert!(done.status.success(), "{}", said(&done));
    let status = user(&["scrub", "status", "volume"]);
    assert!(
        said(&status).contains("no errors found"),
        "{}",
        said(&status)
    );
    // Somebody else's directory is not used.
    let made = fs::read_dir(&temporary).unwrap().next().unwrap().unwrap();
    fs::set_permissions(made.path(), everybody).unwrap();
    let refused = user(&["scrub", "start", "-B", "volume"]);
    assert!(
        said(&refused).contains("not a directory of yours alone"),
        "{}",
        said(&refused)
    );
}

#[test]
fn a_scrub_is_cancelled_and_resumed() {
    let bench = filled(&[]);
    bench.run(&["scrub", "limit", "--limit", "1m", "volume"]);
    bench.run(&["scrub", "start", "volume"]);
    let status = bench.run(&["scrub", "status", "volume"]);
    assert!(status.contains("Status:           running"), "{status}");
    let second = bench.try_run(&["scrub", "start", "-B", "-r", "volume"]);
    assert!(!second.status.success(), "{}", said(&second));
    bench.run(&["scrub", "cancel", "volume"]);
    let status = bench.run(&["scrub", "status", "volume"]);
    assert!(status.contains("Status:           aborted"), "{status}");
    let none = bench.run(&["scrub", "limit", "--limit", "0", "volume"]);
    assert!(none.contains("unlimited"), "{none}");
    let done = bench.run(&["scrub", "resume", "-B", "volume"]);
    assert!(done.contains("Status:           finished"), "{done}");
    assert!(done.contains("Scrub resumed:"), "{done}");
}

#[test]
fn balance_and_resize_of_a_volume_that_is_not_mounted() {
    let bench = filled(&[]);
    let plan = bench.run(&["balance", "plan", "-dusage=90", "volume"]);
    assert!(plan.contains("DATA|single"), "{plan}");
    assert!(plan.contains("Nothing was written"), "{plan}");
    let refused = bench.try_run(&["balance", "start", "-mconvert=single", "volume"]);
    assert!(
        said(&refused).contains("fewer copies of metadata"),
        "{}",
        said(&refused)
    );
    // Data alone: the chunks of metadata and of the system count as looked at.
    let done = bench.run(&["balance", "start", "-dconvert=dup", "volume"]);
    let numbers = done.split_whitespace().filter_map(|word| word.parse().ok());
    let numbers: Vec<u64> = numbers.collect();
    assert_eq!(numbers[1], numbers[0] + 2, "{done}");
    bench.run(&["balance", "start", "-m", "volume"]);
    let kinds = bench.run(&["filesystem", "df", "volume"]);
    assert!(kinds.contains("Data, DUP"), "{kinds}");
    for word in ["resume", "cancel", "pause"] {
        let none = bench.try_run(&["balance", word, "volume"]);
        assert_eq!(none.status.code(), Some(NONE), "{word}: {}", said(&none));
    }
    let status = bench.run(&["balance", "status", "volume"]);
    assert!(status.contains("No balance found"), "{status}");
    bench.run(&["filesystem", "resize", "-200m", "volume"]);
    bench.check();
    bench.run(&["filesystem", "resize", "+1g", "volume"]);
    let size = fs::metadata(bench.path("volume")).unwrap().len();
    assert_eq!(size, (312 << 20) + (1 << 30), "the file grew");
    bench.check();
    let small = bench.try_run(&["filesystem", "resize", "1:10m", "volume"]);
    assert!(
        said(&small).contains("no device shrinks below"),
        "{}",
        said(&small)
    );
    bench.run(&["filesystem", "resize", "1:300m", "volume"]);
    bench.check();
    let found = bench.run(&["ls", "volume:/"]);
    assert!(
        (0..8).all(|seed| found.contains(&format!("f{seed}"))),
        "{found}"
    );
}

#[test]
fn balance_resize_and_scrub_of_a_mount() {
    if !can_mount() {
        return;
    }
    let bench = filled(&[]);
    {
        let _mounted = bench.mount("");
        let good = |context: &str| {
            for seed in 0..8 {
                let found = fs::read(bench.path(&format!("mnt/f{seed}"))).unwrap();
                assert!(found == content(seed), "{context}: f{seed}");
            }
        };
        let plan = bench.run(&["balance", "plan", "--json", "mnt"]);
        assert!(plan.contains("bytes_to_move"), "{plan}");
        let done = bench.run(&["balance", "start", "mnt"]);
        assert!(done.contains("Done, had to relocate"), "{done}");
        good("balanced");
        bench.run(&["balance", "start", "-dconvert=dup", "mnt"]);
        let kinds = bench.run(&["filesystem", "df", "mnt"]);
        assert!(kinds.contains("Data, DUP"), "{kinds}");
        good("converted");
        let status = bench.run(&["balance", "status", "mnt"]);
        assert!(status.contains("No balance found"), "{status}");
        let none = bench.try_run(&["balance", "resume", "mnt"]);
        assert!(said(&none).contains("no balance waits"), "{}", said(&none));
        assert_eq!(none.status.code(), Some(NONE));
        let shrunk = bench.run(&["filesystem", "resize", "300m", "mnt"]);
        assert!(shrunk.contains("has 300.00MiB"), "{shrunk}");
        good("shrunk");
        fs::write(bench.path("mnt/new"), content(9)).unwrap();
        let grown = bench.run(&["filesystem", "resize", "max", "mnt"]);
        assert!(grown.contains("has 512.00MiB"), "{grown}");
        let scrub = bench.run(&["scrub", "start", "-B", "mnt"]);
        assert!(scrub.contains("no errors found"), "{scrub}");
        good("scrubbed");
        bench.run(&["umount", "mnt"]);
    }
    bench.check();
}

/// Data do not move while a snapshot is read that is being sent. The balance
/// waits for that, and can be ended meanwhile.
#[test]
fn a_balance_waits_for_a_send() {
    if !can_mount() {
        return;
    }
    let bench = filled(&[]);
    {
        let _mounted = bench.mount("");
        bench.run(&["subvolume", "snapshot", "-r", "mnt", "mnt/snap"]);
        let spawn = |words: &[&str]| {
            let mut command = Command::new(BINARY);
            command.args(words).current_dir(bench.path(""));
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("it runs")
        };
        // More than a pipe takes, and nobody reads it.
        let mut send = spawn(&["send", "mnt/snap"]);
        std::thread::sleep(Duration::from_millis(300));
        assert!(send.try_wait().expect("a process").is_none(), "it was sent");
        for how in ["cancel", "pause"] {
            let balance = spawn(&["balance", "start", "-d", "mnt"]);
            std::thread::sleep(Duration::from_millis(500));
            let status = said(&bench.try_run(&["balance", "status", "mnt"]));
            assert!(status.contains("is running"), "{status}");
            bench.run(&["balance", how, "mnt"]);
            let ended = balance.wait_with_output().expect("it ends");
            assert!(!ended.status.success());
        }
        let mut balance = spawn(&["balance", "resume", "mnt"]);
        std::thread::sleep(Duration::from_millis(300));
        assert!(balance.try_wait().expect("a process").is_none());
        let sent = send.wait_with_output().expect("it ends");
        assert!(sent.status.success(), "{}", said(&sent).len());
        assert!(balance.wait().expect("it ends").success());
        for seed in 0..8 {
            let found = fs::read(bench.path(&format!("mnt/f{seed}"))).unwrap();
            assert!(found == content(seed), "f{seed}");
        }
        bench.run(&["umount", "mnt"]);
    }
    bench.check();
}

/// The reasons why there is space or none are given for mounted and unmounted
/// volumes, and the command that is named frees what was promised.
#[test]
fn space_is_explained() {
    let bench = filled(&[]);
    let said = bench.run(&["filesystem", "usage", "--explain", "volume"]);
    assert!(said.contains("Files can get about "), "{said}");
    let facts = bench.run(&["filesystem", "usage", "--explain", "--json", "volume"]);
    let facts: serde_json::Value = serde_json::from_str(&facts).unwrap();
    assert!(
        facts["data_writable"].as_u64().unwrap() > 300 << 20,
        "{facts}"
    );
    let remedies = facts["remedies"].as_array().unwrap();
    for remedy in remedies {
        let Some(freed) = remedy["device_bytes_freed"].as_u64() else {
            continue;
        };
        let command = remedy["command"].as_str().unwrap();
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let before = facts["device_bytes_unallocated"].as_u64().unwrap();
        bench.run(&words);
        let after = bench.run(&["filesystem", "usage", "--explain", "--json", "volume"]);
        let after: serde_json::Value = serde_json::from_str(&after).unwrap();
        let after = after["device_bytes_unallocated"].as_u64().unwrap();
        assert_eq!(after - before, freed, "{command}");
        break;
    }
    if can_mount() {
        let _mounted = bench.mount("");
        let said = bench.run(&["filesystem", "usage", "--explain", "mnt"]);
        assert!(said.contains("Files can get about "), "{said}");
        bench.run(&["umount", "mnt"]);
    }
    bench.check();
}

/// As in the kernel, an interrupted balance continues at the next mount for
/// writing, unless the mount says otherwise.
#[test]
fn a_balance_goes_on_at_the_next_mount() {
    if !can_mount() {
        return;
    }
    let bench = filled(&[]);
    {
        let path = bench.path("volume");
        let volume = Volume::open(&path, OpenOptions::default()).unwrap();
        let store = volume.files().store();
        let paused = balance::start(store, &Filters::all(), Redundancy::Kept, &mut |progress| {
            (progress.completed > 0).then_some(Wish::Pause)
        });
        assert_eq!(paused.unwrap().1, End::Stopped(Wish::Pause));
        volume.close().unwrap();
    }
    let waits = |options: &str| {
        let _mounted = bench.mount(options);
        let status = bench.try_run(&["balance", "status", "mnt"]);
        bench.run(&["umount", "mnt"]);
        let code = i32::from(!said(&status).contains("No balance found"));
        assert_eq!(status.status.code(), Some(code), "{}", said(&status));
        said(&status)
    };
    assert!(waits("skip_balance").contains("is paused"));
    assert!(waits("ro").contains("is paused"));
    // However soon the mount ends.
    waits("");
    bench.check();
    {
        let _mounted = bench.mount("");
        let begun = Instant::now();
        loop {
            let status = said(&bench.try_run(&["balance", "status", "mnt"]));
            if status.contains("No balance found") {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{status}");
        }
        for seed in 0..8 {
            let found = fs::read(bench.path(&format!("mnt/f{seed}"))).unwrap();
            assert!(found == content(seed), "f{seed}");
        }
        bench.run(&["umount", "mnt"]);
    }
    bench.check();
    let plan = bench.run(&["balance", "plan", "volume"]);
    assert!(plan.contains(" would move, in about "), "{plan}");
    let all = bench.run(&["balance", "start", "--full-balance", "volume"]);
    assert!(all.contains("Done, had to relocate"), "{all}");
    bench.check();
}
