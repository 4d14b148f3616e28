//! The Btrfs tools and ButterFS side by side, each on a volume of its own that the
//! kernel has mounted: devices, balance, scrub and streams. And the list of the
//! verbs that no suite compares, each with its reason.

mod beside;
mod support;

use beside::Compared::{self, All, Code, Codes, Sorted, Without};
use beside::{fault, has_tools, run, shell, words};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use support::{BINARY, Kernel, Loop, is_root};

const TRIM: Compared = Without(
    &["Performing full device TRIM", "Device 2 is"],
    "ButterFS says what the device is, and not that it is discarded",
);
const STATS: Compared = Without(
    &[
        "Scrub started:",
        "Scrub device",
        "scrub done for",
        "UUID:",
        "Duration:",
        "Rate:",
        "Total to scrub:",
        "unverified_errors",
        "Status:",
    ],
    "times are UTC, rates are of the bytes that were read, and the total is of what is in use",
);
const SHOWN: Compared = Code("it is shown in another form");
const NAMED: Compared = Sorted("the order of devices is the kernel's");
const OWN_IDENTITY: Compared = Without(
    &["subvol ", "snapshot ", "utimes"],
    "the volumes have their own UUIDs and times",
);

/// `ONE`, `TWO` and `THREE` are devices; the volume is on the first and mounted at
/// `MNT`, and `HERE` is a directory.
const LINES: &[(&str, Compared)] = &[
    ("balance start --full-balance MNT", All),
    ("balance start -dusage=50 MNT", All),
    (
        "balance start -musage=10..90,limit=1 -v MNT",
        Without(
            &["Dumping filters", "METADATA (flags", "SYSTEM (flags"],
            "filters are not dumped",
        ),
    ),
    ("-q balance start -dusage=1 MNT", All),
    ("balance start -s MNT", All),
    ("balance start -f -s MNT", All),
    ("balance start -dnonsense MNT", All),
    ("balance pause MNT", All),
    ("balance cancel MNT", All),
    ("balance resume MNT", All),
    ("balance status MNT", All),
    ("balance status -v MNT", All),
    ("device add -f TWO MNT", TRIM),
    ("device add TWO MNT", All),
    ("device add HERE/nothing MNT", All),
    ("device usage -b MNT", NAMED),
    (
        "filesystem usage -T MNT",
        Code("columns are as wide as the names of devices"),
    ),
    ("balance start -dconvert=raid1 -mconvert=raid1 MNT", All),
    ("device remove 2 MNT", All),
    ("device remove 9 MNT", All),
    ("device remove HERE/nothing MNT", All),
    ("balance start -f -dconvert=single -mconvert=dup MNT", All),
    ("device delete TWO MNT", All),
    ("device remove 1 MNT", All),
    ("device scan ONE", SHOWN),
    ("-q device scan ONE", All),
    ("device scan HERE/nothing", All),
    ("device ready ONE", All),
    ("device ready HERE/nothing", All),
    ("device scan -u ONE", All),
    ("device scan --forget HERE/nothing", All),
    ("replace status -1 MNT", All),
    ("replace cancel MNT", All),
    ("replace start -B -f 1 THREE MNT", TRIM),
    (
        "replace status -1 MNT",
        Without(&["Started on"], "times are UTC, and have the year"),
    ),
    ("replace start -B 7 TWO MNT", All),
    ("device replace start -B 1 HERE/nothing MNT", All),
    ("device stats MNT", All),
    ("device stats -c MNT", All),
    ("scrub start -B MNT", STATS),
    ("scrub start -B -R MNT", STATS),
    ("scrub start -Bd MNT", STATS),
    ("scrub start -B -c 3 MNT", STATS),
    ("scrub start -B -c 2 -n 4 MNT", STATS),
    ("scrub start -B -r -f MNT", STATS),
    ("-q scrub start -B MNT", All),
    ("scrub start -Bq MNT", All),
    ("scrub cancel MNT", All),
    ("scrub resume -B MNT", All),
    ("scrub start HERE/nothing", All),
    ("quota enable MNT", All),
    ("quota disable MNT", All),
    ("send -f HERE/stream MNT/snap", All),
    ("send -f HERE/stream2 MNT/sub", All),
    ("-q send -f HERE/stream2 MNT/snap", All),
    ("send --no-data -f HERE/stream3 MNT/snap", All),
    ("send -p MNT/nothing -f HERE/stream4 MNT/snap", All),
    ("receive --dump -f HERE/stream", OWN_IDENTITY),
    ("receive -f HERE/stream MNT/nothing", All),
    ("receive -q -f HERE/stream MNT/d", All),
    ("receive -q -f HERE/stream MNT/d", All),
    (
        "receive -f HERE/nothing MNT/d",
        Codes(0, 1, "btrfs-progs 6.2 succeed without their input"),
    ),
    (
        "subvolume delete -c MNT/d/snap",
        Code("the kernel's tool does not print the number"),
    ),
    (
        "subvolume delete -i 256 MNT",
        Code("the path is not printed"),
    ),
    (
        "filesystem show ONE",
        Code("the first device is no member any more"),
    ),
    // From here on, the volume is not mounted any more.
    ("UNMOUNT", All),
    ("check THREE", SHOWN),
    ("check --readonly --force THREE", SHOWN),
    ("check -p THREE", SHOWN),
    (
        "check HERE/nothing",
        Codes(1, 8, "8 says that a check was not possible"),
    ),
    ("rescue zero-log THREE", Code("it is said in other words")),
    ("rescue zero-log HERE/nothing", All),
    ("filesystem label THREE named", All),
    ("filesystem label THREE", All),
    (
        "inspect-internal dump-super -i 0 THREE",
        Code("btrfs-progs 6.2 call -i deprecated"),
    ),
];

/// What the Btrfs tools see of a mounted volume, without times and UUIDs.
const STATE: &str = "
    sync; btrfs subvolume list -p . | sed 's/gen [0-9]* //'
    btrfs filesystem show --raw . | grep -o 'devid *[0-9]* size [0-9]*'
    btrfs filesystem df . | sed 's/total.*//' | sort -u
    find . -type f -printf '%p %s %m\\n' | sort; find . -type f | sort | xargs md5sum";

/// A mounted volume with two more devices.
struct Side {
    program: &'static str,
    directory: tempfile::TempDir,
    devices: [Loop; 3],
    mount: Option<Kernel>,
}

impl Side {
    fn new(program: &'static str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let devices = ["one", "two", "three"].map(|name| {
            let path = directory.path().join(name);
            let file = std::fs::File::create(&path).expect("a file");
            file.set_len(512 << 20).expect("its size");
            Loop::new(&path)
        });
        let mount = directory.path().join("mount");
        std::fs::create_dir(&mount).expect("a mountpoint");
        let made = Command::new(BINARY)
            .args(["mkfs", "-q", devices[0].name()])
            .status();
        assert!(made.expect("mkfs runs").success());
        let mounted = Command::new("mount")
            .arg(&devices[0].0)
            .arg(&mount)
            .status();
        assert!(mounted.expect("mount runs").success());
        shell(
            &mount,
            "btrfs -q subvolume create sub; seq 100000 >sub/file; mkdir d; echo hi >d/small
             btrfs -q subvolume snapshot -r sub snap; sync",
        );
        Self {
            program,
            directory,
            devices,
            mount: Some(Kernel(mount)),
        }
    }

    fn names(&self) -> [(&'static str, String); 5] {
        let [one, two, three] = &self.devices;
        let here = self.directory.path().display().to_string();
        [
            ("ONE", one.name().to_owned()),
            ("TWO", two.name().to_owned()),
            ("THREE", three.name().to_owned()),
            ("MNT", format!("{here}/mount")),
            ("HERE", here),
        ]
    }

    /// Runs a line. In its output, paths are replaced by the names in
    /// [`LINES`].
    fn run(&self, line: &str) -> std::process::Output {
        let mut line = line.to_owned();
        for (name, meant) in self.names() {
            line = line.replace(name, &meant);
        }
        let mut output = run(self.program, self.directory.path(), &words(&line, ""));
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        for (name, meant) in self.names() {
            text = text.replace(&meant, name);
        }
        output.stdout = text.into_bytes();
        output
    }

    fn state(&self) -> String {
        let mount: Option<&Path> = self.mount.as_ref().map(|mount| mount.0.as_path());
        mount.map_or_else(String::new, |mount| shell(mount, STATE))
    }
}

/// A conversion that ended half way: both programs warn, and compute the same.
#[test]
fn several_profiles_of_one_kind_are_told() {
    if !has_tools() {
        return;
    }
    if !is_root() {
        println!("skipped: kernel mounts need root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return;
    }
    let mut side = Side::new("btrfs");
    let [_, two, _] = &side.devices;
    let prepared = format!(
        "dd if=/dev/urandom of=f bs=1M count=150 status=none; sync
         btrfs device add -f {} . >&2; btrfs balance start -dconvert=raid1,limit=1 . >&2; sync",
        two.name()
    );
    let mount = side.mount.as_ref().expect("it is mounted").0.clone();
    shell(&mount, &prepared);
    for line in [
        "filesystem df MNT",
        "device usage MNT",
        "filesystem usage -b MNT",
    ] {
        let said = ["btrfs", BINARY].map(|program| {
            side.program = program;
            let output = side.run(line);
            let warned = String::from_utf8_lossy(&output.stderr).into_owned();
            (String::from_utf8_lossy(&output.stdout).into_owned(), warned)
        });
        assert_eq!(said[0], said[1], "{line}");
        let is_told = line.contains("-b") || said[0].1.contains("Data: single, raid1");
        assert!(is_told, "{line}: {}", said[0].1);
    }
}

#[test]
fn devices_and_streams_behave_the_same() {
    if !has_tools() {
        return;
    }
    if !is_root() {
        println!("skipped: kernel mounts need root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return;
    }
    let mut sides = ["btrfs", BINARY].map(Side::new);
    let mut faults = Vec::new();
    for (line, compared) in LINES {
        if *line == "UNMOUNT" {
            sides.iter_mut().for_each(|side| side.mount = None);
            continue;
        }
        let [theirs, ours] = [0, 1].map(|side| sides[side].run(line));
        faults.extend(fault(line, &theirs, &ours, *compared));
        let states = [0, 1].map(|side| sides[side].state());
        if states[0] != states[1] {
            let [theirs, ours] = states;
            faults.push(format!(
                "after {line}:\n--- theirs\n{theirs}\n--- ours\n{ours}"
            ));
            break;
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    for side in &sides {
        let checked = Command::new("btrfs")
            .arg("check")
            .arg(side.devices[2].name())
            .output();
        assert!(checked.expect("btrfs runs").status.success());
    }
}

/// Verbs that are not compared line by line, and where they are tried instead.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "convert",
        "converting.rs, and the tests of the crate convert, where the kernel and btrfs check judge",
    ),
    (
        "image",
        "images.rs restores their images and has them restore ours",
    ),
    (
        "mkfs",
        "mkfs_care.rs, mkfs_rootdir.rs and matrix.rs have the kernel and btrfs check judge",
    ),
    (
        "tune",
        "images.rs has btrfs check judge; tune.rs of the admin crate each change",
    ),
    (
        "filesystem commit-stats",
        "not in btrfs-progs 6.2; kernel_mounts.rs",
    ),
    (
        "inspect-internal list-chunks",
        "not in btrfs-progs 6.2; kernel_mounts.rs",
    ),
    ("quota status", "not in btrfs-progs 6.2; quotas.rs"),
    ("scrub limit", "not in btrfs-progs 6.2; kernel_mounts.rs"),
    (
        "rescue clear-ino-cache",
        "works on an overlay; repair.rs, and the crate repair",
    ),
    (
        "rescue clear-space-cache",
        "works on an overlay; repair.rs, and the crate repair",
    ),
    (
        "rescue chunk-recover",
        "works on an overlay; chunk_recover.rs, which asks btrfs check and the kernel",
    ),
    (
        "rescue clear-uuid-tree",
        "works on an overlay; repair.rs, and the crate repair",
    ),
    (
        "rescue fix-data-checksum",
        "works on an overlay; repair.rs, and the crate repair",
    ),
    (
        "rescue fix-device-size",
        "works on an overlay; repair.rs, and the crate repair",
    ),
    (
        "rescue super-recover",
        "works on an overlay; repair.rs, and the crate repair",
    ),
    ("rescue create-control-device", "does nothing, and says so"),
    (
        "restore",
        "recover_files.rs, and the crate rescue beside btrfs restore",
    ),
];

#[test]
fn every_verb_is_compared_or_has_its_reason() {
    let page = include_str!("../../../docs/parity.md");
    let absent = |row: &str| row.contains("| | The verb: ");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let verbs: BTreeSet<&str> = rows
        .filter(|row| !absent(&format!("| {row}")) && !row.starts_with("Verb |"))
        .filter_map(|row| row.split(" |").next())
        .collect();
    assert!(verbs.len() > 60, "{verbs:?}");
    let sources = [
        include_str!("beside_btrfs.rs"),
        include_str!("beside_btrfs_devices.rs"),
    ];
    let compared = |verb: &str| {
        let quoted = [format!("\"{verb} "), format!("\"{verb}\"")];
        let global = format!(" {verb} ");
        sources.iter().any(|text| {
            text.lines().any(|line| {
                quoted.iter().any(|words| line.contains(words))
                    || (line.contains("\"-") && line.contains(&global))
            })
        })
    };
    let elsewhere = |verb: &str| ELSEWHERE.iter().any(|(name, _)| *name == verb);
    for verb in verbs {
        assert!(
            compared(verb) || elsewhere(verb),
            "{verb}: no suite compares it"
        );
    }
    for (verb, _) in ELSEWHERE {
        assert!(
            page.contains(&format!("| {verb} |")),
            "{verb}: there is no such verb"
        );
    }
}
