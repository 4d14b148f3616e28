//! The Btrfs tools and ButterFS side by side, on volumes that the kernel has
//! mounted and on unmounted ones: output, exit codes, and what changes.
//!
//! Owns the list of intended differences, each with its reason.

mod beside;
mod support;

use beside::Compared::{self, All, Code, Codes, Numbers, Sorted, Without};
use beside::{fault, has_tools, run, shell, words};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::{BINARY, Bench};

const SEND_TIME: Compared = Without(
    &["Send time:"],
    "btrfs-progs 6.2 prints the time of creation where nothing was sent",
);
const MEMBERS: Compared = Without(
    &["member qgroup"],
    "btrfs-progs 6.2 counts no members at all",
);
const REAL_PATHS: Compared = Code(
    "ButterFS prints paths from the root, which are right for directories below a subvolume, too, \
     and for subvolumes that are not mounted by themselves",
);
const SAID: Compared = Code("what it does is said in other words");
const DELETED: Compared = Without(
    &["Delete subvolume"],
    "ButterFS prints the number of the subvolume, as btrfs-progs do since 6.3 or later",
);
const SHOWN: Compared = Code("it is shown in another form");
const STATS: Compared = Without(
    &["read time", " - "],
    "reading takes its time; btrfs-progs 6.2 leave lengths out of the histogram of seeks",
);
const DUMPED: Compared = Without(
    &[
        "btrfs-progs v",
        "butterfs ",
        "root ref key",
        "root backref key",
    ],
    "the first line names the program; --hide-names hides names of subvolumes, too",
);
const TIMES: Compared = Without(
    &[
        "Scrub started:",
        "Scrub device",
        "Duration:",
        "Rate:",
        "Total to scrub:",
        "unverified_errors",
    ],
    "times are UTC, rates are of the bytes that were read, and the total is of what is in use",
);
const NO_STATS: Compared = Without(
    &["Total to scrub:", "Rate:", "Error summary:"],
    "where no scrub ran, ButterFS does not say that no errors were found",
);

/// On a mount of the kernel's. These change nothing.
const MOUNTED: &[(&str, Compared)] = &[
    ("filesystem df .", All),
    ("filesystem df -b .", All),
    ("filesystem df --si sub", All),
    ("filesystem df -k .", All),
    ("filesystem usage .", All),
    ("filesystem usage -b .", All),
    ("filesystem usage -H .", All),
    ("filesystem usage -k sub", All),
    ("filesystem usage -T .", All),
    ("filesystem usage -T -b .", All),
    ("filesystem usage -g -T .", All),
    ("filesystem usage d/none", All),
    ("filesystem show .", All),
    ("filesystem show --raw .", All),
    ("filesystem show --mbytes .", All),
    ("filesystem show nothing-has-this-label", All),
    ("filesystem label .", All),
    ("filesystem du .", All),
    ("filesystem du -s sub d", All),
    ("filesystem du --raw sub/file", All),
    ("filesystem du --kbytes d", All),
    ("filesystem du nothing", All),
    ("filesystem sync .", All),
    ("filesystem sync nothing", All),
    ("subvolume list .", All),
    ("subvolume list -t .", All),
    ("subvolume list -pcguqR .", All),
    ("subvolume list -pcguqR sub", All),
    ("subvolume list -a sub", All),
    ("subvolume list -o sub", All),
    ("subvolume list -s .", All),
    ("subvolume list -r .", All),
    ("subvolume list -d .", All),
    ("subvolume list -G +5 .", All),
    ("subvolume list -C -9 .", All),
    ("subvolume list --sort=-rootid .", All),
    ("subvolume list --sort=path .", All),
    ("subvolume list nothing", All),
    ("subvolume show .", SEND_TIME),
    ("subvolume show sub", SEND_TIME),
    ("subvolume show snap", SEND_TIME),
    ("subvolume show --raw sub", SEND_TIME),
    ("subvolume show -r 256 .", SEND_TIME),
    ("subvolume show -r 999 .", All),
    ("subvolume show d", All),
    ("subvolume find-new sub 0", All),
    ("subvolume find-new sub 99999", All),
    ("subvolume find-new d 0", All),
    ("subvolume get-default .", All),
    ("subvolume sync .", All),
    ("property get .", All),
    ("property get sub", All),
    ("property get sub/file", All),
    ("property get snap ro", All),
    ("property get -ts sub", All),
    ("property get . colour", All),
    ("property get sub label", All),
    ("property get sub/file ro", All),
    ("property list sub", All),
    ("property list sub/file", All),
    ("property list /proc", All),
    ("property set sub ro perhaps", All),
    ("property list -td .", All),
    ("inspect-internal min-dev-size .", All),
    ("inspect-internal min-dev-size --id 1 sub", All),
    ("device stats .", All),
    ("device stats -c .", All),
    ("device stats -T .", All),
    ("--format json device stats .", Numbers),
    ("--format json filesystem df .", Numbers),
    ("device usage .", All),
    ("device usage -b .", All),
    ("device usage -k .", All),
    ("qgroup show .", MEMBERS),
    ("qgroup show -pcre .", MEMBERS),
    ("qgroup show --raw -re sub", MEMBERS),
    ("qgroup show --sort=-rfer .", MEMBERS),
    ("qgroup show -F sub", MEMBERS),
    ("qgroup show -f sub", All),
    ("qgroup show nothing", All),
    ("quota rescan -s .", All),
    ("balance status .", All),
    ("scrub status .", NO_STATS),
    ("inspect-internal rootid .", All),
    ("inspect-internal rootid sub/file", All),
    ("inspect-internal rootid sub/inner", All),
    ("inspect-internal rootid nothing", All),
    ("inspect-internal inode-resolve 257 sub", REAL_PATHS),
    ("inspect-internal inode-resolve 999 sub", All),
    ("inspect-internal subvolid-resolve 257 .", All),
    ("inspect-internal subvolid-resolve 258 sub", All),
    ("inspect-internal subvolid-resolve 999 .", All),
    ("inspect-internal logical-resolve 4096 .", All),
    ("inspect-internal logical-resolve ADDRESS .", REAL_PATHS),
    (
        "inspect-internal logical-resolve -P ADDRESS .",
        Sorted("ButterFS prints the files in the order of their subvolumes"),
    ),
    ("inspect-internal map-swapfile sub/file", All),
    ("inspect-internal map-swapfile nothing", All),
    // Mistakes.
    ("subvolume list", All),
    ("subvolume create", All),
    ("subvolume nonsense", All),
    ("filesystem nonsense", All),
    ("filesystem df --nonsense .", All),
    ("qgroup limit", All),
    ("qgroup create x .", All),
    ("device nonsense", All),
];

/// Each program does these on a volume of its own, in this order. After each,
/// the volumes are compared, as the Btrfs tools see them.
const CHANGES: &[(&str, Compared)] = &[
    ("subvolume create made", All),
    ("subvolume create made", All),
    (
        "subvolume create a b",
        Codes(
            1,
            0,
            "btrfs-progs 6.2 makes one at a time; 6.19 makes several",
        ),
    ),
    ("subvolume snapshot made shot", All),
    ("subvolume snapshot -r made d/shot", All),
    ("subvolume snapshot nothing shot2", All),
    ("subvolume set-default 256 .", All),
    (
        "subvolume get-default .",
        Without(&["ID 256"], "generations differ"),
    ),
    ("subvolume set-default 5 .", All),
    ("subvolume set-default 999 .", All),
    ("property set made ro true", All),
    ("property set made ro false", All),
    ("property set . label again", All),
    ("filesystem label . tested", All),
    ("filesystem label .", All),
    ("qgroup create 1/7 .", All),
    ("qgroup create 1/7 .", All),
    ("qgroup assign 0/256 1/7 .", SAID),
    ("qgroup limit 100m 0/256 .", All),
    ("qgroup limit -e 50m sub", All),
    ("qgroup limit none sub", All),
    ("qgroup remove 0/256 1/7 .", SAID),
    ("qgroup destroy 1/7 .", All),
    ("qgroup destroy 1/7 .", All),
    ("-q subvolume create quiet", All),
    ("-q subvolume snapshot quiet quiet2", All),
    ("-q subvolume delete quiet", All),
    ("--log quiet subvolume delete quiet2", All),
    ("subvolume delete shot", DELETED),
    ("subvolume delete nothing", All),
    ("subvolume delete d", All),
    (
        "subvolume sync .",
        Code("one of them may be gone before it is looked for"),
    ),
    (
        "qgroup clear-stale .",
        Code("one of them may be gone with its subvolume"),
    ),
    ("filesystem mkswapfile -s 1m d/swap", All),
    ("filesystem mkswapfile -s 1m d/swap", All),
    ("filesystem mkswapfile -s 1k d/less", All),
    (
        "inspect-internal map-swapfile d/swap",
        Code("the volumes may lay it out differently"),
    ),
    ("filesystem defragment sub/file", All),
    ("filesystem defragment -c d/small", All),
    ("filesystem defragment -czstd d/small", All),
    ("filesystem defragment -f -t 1m d/small", All),
    ("filesystem defragment -cnonsense d/small", All),
    ("filesystem defragment -r d", All),
    ("filesystem defragment nothing", All),
    (
        "filesystem resize -64m .",
        Without(&["/dev/"], "the devices have other names"),
    ),
    (
        "filesystem resize 1:+32m .",
        Without(&["/dev/"], "the devices have other names"),
    ),
    (
        "filesystem resize max .",
        Without(&["/dev/"], "the devices have other names"),
    ),
    (
        "filesystem resize 9:max .",
        Code("ButterFS says nothing before it is done"),
    ),
    (
        "filesystem resize 1k .",
        Code("ButterFS says nothing before it is done"),
    ),
    (
        "device stats -z .",
        Without(&["/dev/"], "the devices have other names"),
    ),
    ("quota rescan -w .", SAID),
    ("quota enable .", All),
    ("quota disable .", All),
    ("quota disable .", All),
    ("qgroup show .", All),
];

/// On a volume that nobody has mounted.
const UNMOUNTED: &[(&str, Compared)] = &[
    ("filesystem label volume", All),
    (
        "filesystem show volume",
        Without(&["devid"], "ButterFS prints the path as it was given"),
    ),
    (
        "inspect-internal dump-super volume",
        Without(
            &["BLOCK_GROUP_TREE", "unknown flag"],
            "btrfs-progs 6.2 has other words for new features",
        ),
    ),
    ("inspect-internal dump-super -s 1 volume", SHOWN),
    ("inspect-internal dump-super nothing", All),
    (
        "check -Q volume",
        Code("the whole volume is checked, and said in other words"),
    ),
    ("inspect-internal dump-tree volume", DUMPED),
    ("inspect-internal tree-stats volume", STATS),
    ("inspect-internal tree-stats -b volume", STATS),
    ("inspect-internal dump-tree -t fs volume", DUMPED),
    (
        "inspect-internal dump-tree -t 256 volume",
        Codes(0, 1, "btrfs-progs print nothing where a tree is not there"),
    ),
    ("inspect-internal dump-tree -t root volume", DUMPED),
    ("inspect-internal dump-tree -t nothing volume", All),
    ("inspect-internal dump-tree -e volume", DUMPED),
    ("inspect-internal dump-tree -d volume", DUMPED),
    ("inspect-internal dump-tree -r volume", DUMPED),
    ("inspect-internal dump-tree -R volume", DUMPED),
    ("inspect-internal dump-tree -u volume", DUMPED),
    ("inspect-internal dump-tree --dfs volume", DUMPED),
    ("inspect-internal dump-tree --csum-headers volume", DUMPED),
    (
        "inspect-internal dump-tree --csum-items -t csum volume",
        DUMPED,
    ),
    (
        "inspect-internal dump-tree --hide-names -t fs volume",
        DUMPED,
    ),
    (
        "inspect-internal dump-tree -b 99999 volume",
        Codes(
            0,
            1,
            "btrfs-progs name the mistake and succeed all the same",
        ),
    ),
    (
        "inspect-internal dump-tree nothing",
        Codes(
            234,
            1,
            "btrfs-progs 6.2 answers with the number of an error",
        ),
    ),
    ("check volume", SHOWN),
    (
        "device stats volume",
        Codes(
            1,
            0,
            "ButterFS reads the counters of a volume that is not mounted, too",
        ),
    ),
    (
        "subvolume list volume",
        Codes(1, 0, "ButterFS lists what is not mounted, too"),
    ),
];

/// Subvolumes, files, shared data, quota groups. The kernel may write out a file
/// while it is still being written, in two extents, and what defragmenting does
/// depends on that. So the file is written again until it is one extent.
const FILL: &str = "
    btrfs -q subvolume create sub; btrfs -q subvolume create sub/inner
    until filefrag sub/file 2>/dev/null | grep -q ': 1 extent'; do seq 100000 >sub/file; sync; done
    ln sub/file sub/hard; mkdir -p d/e
    cp --reflink=always sub/file d/e/copy; echo hi >d/small
    btrfs -q subvolume snapshot -r sub snap; sync
    btrfs quota enable . && btrfs -q quota rescan -w . >&2
    btrfs qgroup create 1/0 . && btrfs -q qgroup assign 0/256 1/0 . >&2
    btrfs -q quota rescan -w . >&2; sync";
/// A logical address of data.
const ADDRESS: &str = "filefrag -v sub/file | awk '$1 == \"0:\" {print $4 * 4096}'";
/// What the Btrfs tools see, without times, generations and UUIDs.
const STATE: &str = "
    sync; btrfs subvolume list -p . | sed 's/gen [0-9]* //'
    btrfs subvolume list -r . | sed 's/gen [0-9]* //'
    btrfs filesystem label .; btrfs subvolume get-default . | sed 's/gen [0-9]* //'
    btrfs qgroup show -pcre . 2>&1 | grep -v 0/2[56789]; btrfs filesystem show --raw . | grep -o 'size [0-9]*'
    find . -type f -printf '%p %s %m\\n' | sort; find . -type f ! -name swap | sort | xargs md5sum; lsattr d";

/// Lets both programs look, and says what differs. Usage changes for a moment
/// after a commit, so a difference that goes away does not count.
fn look(mount: &Path, words: &[String], compared: Compared) -> Option<String> {
    const TRIES: u64 = 5;
    let mut found = None;
    for tried in 0..TRIES {
        std::thread::sleep(Duration::from_millis(100 * tried));
        let [theirs, ours] = ["btrfs", BINARY].map(|program| run(program, mount, words));
        found = fault(&words.join(" "), &theirs, &ours, compared);
        if found.is_none() {
            break;
        }
    }
    found
}

#[test]
fn looking_says_the_same() {
    if !has_tools() {
        return;
    }
    let bench = Bench::new();
    bench.with_kernel(|mount| {
        shell(mount, FILL);
        let address = shell(mount, ADDRESS);
        let mut faults = Vec::new();
        for (line, compared) in MOUNTED {
            faults.extend(look(mount, &words(line, &address), *compared));
        }
        // After a scrub by the kernel.
        shell(mount, "btrfs scrub start -B . >&2");
        for line in ["scrub status .", "scrub status -d .", "scrub status -R ."] {
            faults.extend(look(mount, &words(line, ""), TIMES));
        }
        assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    });
}

#[test]
fn changing_has_the_same_effect() {
    if !has_tools() {
        return;
    }
    let benches = [Bench::new(), Bench::new()];
    let mut faults = Vec::new();
    let compared = benches[0].with_kernel(|theirs_at| {
        benches[1].with_kernel(|ours_at| {
            for mount in [theirs_at, ours_at] {
                shell(mount, FILL);
            }
            for (line, compared) in CHANGES {
                let words = words(line, "");
                let theirs = run("btrfs", theirs_at, &words);
                let ours = run(BINARY, ours_at, &words);
                faults.extend(fault(line, &theirs, &ours, *compared));
                if let Codes(1, 0, _) = compared {
                    // If only one program did something, the other volume is
                    // brought to the same state.
                    for word in &words[2..] {
                        run(
                            "btrfs",
                            theirs_at,
                            &["subvolume", "create", word].map(str::to_owned),
                        );
                    }
                }
                let states = [theirs_at, ours_at].map(|mount| shell(mount, STATE));
                if states[0] != states[1] {
                    let [theirs, ours] = states;
                    faults.push(format!(
                        "after {line}:\n--- theirs\n{theirs}\n--- ours\n{ours}"
                    ));
                    return;
                }
            }
        });
    });
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    if compared {
        benches.iter().for_each(Bench::check);
    }
}

#[test]
fn volumes_that_nobody_has_mounted_look_the_same() {
    if !has_tools() {
        return;
    }
    let bench = Bench::new();
    let mut faults = Vec::new();
    for (line, compared) in UNMOUNTED {
        let words = words(line, "");
        let directory = bench.path("");
        let [theirs, ours] = ["btrfs", BINARY].map(|program| run(program, &directory, &words));
        faults.extend(fault(line, &theirs, &ours, *compared));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// A harness that cannot fail proves nothing.
#[test]
fn differences_are_found() {
    let said = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).output().expect("sh runs")
    };
    let [one, other, failed] = ["echo a", "echo b", "false"].map(said);
    assert!(fault("x", &one, &one, All).is_none());
    assert!(fault("x", &one, &other, All).is_some());
    assert!(fault("x", &one, &other, Without(&["a", "b"], "")).is_none());
    assert!(fault("x", &one, &other, Code("")).is_none());
    assert!(fault("x", &one, &failed, Code("")).is_some());
    assert!(fault("x", &failed, &one, Codes(1, 0, "")).is_none());
    assert!(fault("x", &one, &one, Codes(1, 0, "")).is_some());
}
