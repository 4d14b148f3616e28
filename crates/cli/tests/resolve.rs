//! From numbers to paths, compared with the kernel's Btrfs and its tools.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use support::{Bench, SYNC_HERE, can_mount, said};

fn run_in(directory: &Path, script: &str) -> String {
    let mut shell = Command::new("sh");
    let here = format!("{SYNC_HERE}{script}");
    let output = shell.args(["-ec", &here]).current_dir(directory).output();
    let output = output.expect("sh runs");
    assert!(output.status.success(), "{script}: {}", said(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

/// Files of all sorts, made by the kernel.
const FILL: &str = "
btrfs -q subvolume create sub
mkdir -p sub/a/b
head -c 700000 /dev/urandom > sub/a/file
ln sub/a/file sub/a/b/twin
cp --reflink=always sub/a/file cloned
btrfs property set sub compression zstd
seq 200000 > sub/packed
sync
btrfs -q subvolume snapshot sub shot
btrfs -q subvolume snapshot -r sub frozen
dd if=/dev/urandom of=sub/a/file bs=4096 seek=20 count=3 conv=notrunc status=none
sync
dd if=/dev/urandom of=sub/packed bs=1000 seek=3 count=1 conv=notrunc status=none
sync
";

/// Addresses to ask for: of each extent, its beginning, its middle and its last
/// byte.
fn addresses(bench: &Bench) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    for place in ["volume", "volume:/sub", "volume:/shot"] {
        let found = bench.run(&["subvolume", "find-new", "--json", place, "0"]);
        let found: serde_json::Value = serde_json::from_str(&found).expect("JSON");
        for extent in found["extents"].as_array().expect("extents") {
            let number = |name: &str| extent[name].as_u64().expect("a number");
            let start = number("disk_start");
            if start == 0 {
                continue;
            }
            all.insert(start);
            let is_packed = extent["flags"].to_string().contains("COMPRESS");
            if !is_packed {
                let first = start + number("disk_offset");
                all.extend([
                    first,
                    first + number("length") / 2,
                    first + number("length") - 1,
                ]);
            }
        }
    }
    all
}

#[test]
fn numbers_lead_to_the_paths_that_the_kernel_names() {
    let bench = Bench::new();
    if !bench.with_kernel(|mount| {
        run_in(mount, FILL);
    }) {
        println!("skipped: mounting by the kernel needs root");
        return;
    }
    let addresses = addresses(&bench);
    assert!(addresses.len() > 8, "{addresses:?}");
    let mut theirs = Vec::new();
    let point = bench.path("kernel").display().to_string();
    bench.with_kernel(|mount| {
        for address in &addresses {
            for options in ["-P", "-P -o", ""] {
                let at = mount.display();
                let script =
                    format!("btrfs inspect-internal logical-resolve {options} {address} {at}");
                let output = Command::new("sh")
                    .args(["-c", &script])
                    .current_dir(mount)
                    .output();
                let output = String::from_utf8(output.expect("btrfs").stdout).expect("text");
                theirs.push((*address, options, lines(&output)));
            }
        }
    });
    for (address, options, theirs) in &theirs {
        let mut words = vec!["inspect", "logical-resolve"];
        words.extend(options.split_whitespace());
        let address = address.to_string();
        words.extend([&address[..], "volume"]);
        let ours = lines(&bench.run(&words));
        if !options.is_empty() {
            assert_eq!(ours, *theirs, "{address} {options}");
            continue;
        }
        // The tools name paths only in the mounted subvolume.
        let is_there = |line: &String| match line.split_once(" subvol ") {
            Some((_, rest)) => {
                let subvolume = rest.split(' ').next().unwrap_or(rest);
                let below = format!("/{subvolume}/");
                ours.iter().any(|path| path.starts_with(&below))
            }
            None => ours.contains(line.strip_prefix(&point).unwrap_or(line)),
        };
        assert!(
            theirs.iter().all(is_there),
            "{address}: {ours:?} {theirs:?}"
        );
    }
    let sub = bench.run(&["inspect", "rootid", "volume:/sub/a"]);
    let mut paths = Vec::new();
    bench.with_kernel(|mount| {
        assert_eq!(run_in(mount, "btrfs inspect-internal rootid sub/a"), sub);
        let number = run_in(mount, "stat -c %i sub/a/file").trim().to_owned();
        let found = run_in(
            mount,
            &format!("btrfs inspect-internal inode-resolve {number} sub"),
        );
        let path = run_in(
            mount,
            &format!("btrfs inspect-internal subvolid-resolve {} .", sub.trim()),
        );
        paths = vec![number, found, path];
    });
    let ours = bench.run(&["inspect", "inode-resolve", &paths[0], "volume:/sub/packed"]);
    let expected: BTreeSet<String> = lines(&paths[1])
        .iter()
        .map(|path| format!("/{path}"))
        .collect();
    assert_eq!(lines(&ours), expected);
    assert_eq!(lines(&ours).len(), 2, "{ours}");
    let ours = bench.run(&["inspect", "subvolid-resolve", sub.trim(), "volume"]);
    assert_eq!(ours, paths[2]);
}

/// Lines of a table, however wide its columns are.
fn table(text: &str, point: &str) -> BTreeSet<Vec<String>> {
    let words = |line: &str| {
        let line = line.replace(point, "volume:");
        line.split_whitespace().map(str::to_owned).collect()
    };
    text.lines().map(words).collect()
}

#[test]
fn space_of_files_is_what_the_kernel_counts() {
    let bench = Bench::new();
    let mut theirs = Vec::new();
    let requests = [
        ("", "/sub"),
        ("-s", "/sub"),
        ("-s", "/shot"),
        ("-s", "/cloned"),
        ("", "/sub/packed"),
        ("-s --kbytes", "/frozen"),
        ("", "/"),
    ];
    let point = bench.path("kernel").display().to_string();
    if !bench.with_kernel(|mount| {
        run_in(mount, FILL);
        run_in(
            mount,
            "fallocate -l 50000 promised; echo small > small; ln -s small link; sync",
        );
        for (options, path) in requests {
            let at = format!("{point}{path}");
            let raw = if options.contains("bytes") {
                ""
            } else {
                "--raw"
            };
            let script = format!("btrfs filesystem du {raw} {options} {at}");
            theirs.push(table(&run_in(mount, &script), &point));
        }
    }) {
        return;
    }
    for ((options, path), theirs) in requests.iter().zip(&theirs) {
        let mut words = vec!["filesystem", "du"];
        if !options.contains("bytes") {
            words.push("--raw");
        }
        words.extend(options.split_whitespace());
        let at = format!("volume:{path}");
        words.push(&at);
        let ours = table(&bench.run(&words), "no such");
        assert_eq!(ours, *theirs, "{options} {path}");
    }
    if !can_mount() {
        return;
    }
    let mounted = bench.mount("rw");
    let ours = bench.run(&["filesystem", "du", "--raw", "mnt/sub"]);
    let ours = table(&ours.replace("mnt/", "volume:/"), "no such");
    assert_eq!(ours, theirs[0]);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

/// What another file system hides counts nowhere, and neither does what it has.
/// What a mount of the same volume shows counts where it is seen first.
#[test]
fn du_sees_what_programs_see_below_other_mounts() {
    if !can_mount() || !support::is_root() {
        println!("skipped: only root mounts other file systems");
        return;
    }
    const FILL: &str = "mkdir -p top/hidden top/twice; head -c 100000 /dev/urandom > top/hidden/a; \
        head -c 200000 /dev/urandom > top/b; head -c 50000 /dev/urandom > top/twice/c; \
        mkdir other; head -c 70000 /dev/urandom > other/d; sync";
    const MOUNT: &str = "mount -t tmpfs none top/hidden; head -c 4000000 /dev/zero > top/hidden/e; \
        mount --bind other top/twice";
    const UNMOUNT: &str = "umount top/hidden; umount top/twice";
    let bench = Bench::new();
    let point = bench.path("kernel").display().to_string();
    let mut theirs = Vec::new();
    bench.with_kernel(|mount| {
        run_in(mount, FILL);
        run_in(mount, MOUNT);
        for name in ["top", "."] {
            let at = format!("{point}/{name}");
            let script = format!("btrfs filesystem du --raw {at} 2>/dev/null");
            theirs.push(table(&run_in(mount, &script), &at));
            let ours = bench.run(&["filesystem", "du", "--raw", &at]);
            assert_eq!(
                table(&ours, &at),
                theirs[theirs.len() - 1],
                "on the kernel's mount"
            );
        }
        run_in(mount, UNMOUNT);
    });
    let mounted = bench.mount("rw");
    let mount = bench.path("mnt");
    run_in(&mount, MOUNT);
    for (name, theirs) in ["top", "."].iter().zip(&theirs) {
        let at = format!("mnt/{name}");
        let output = bench.try_run(&["filesystem", "du", "--raw", &at]);
        assert!(output.status.success(), "{}", said(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(table(&text, &at), *theirs, "on our mount");
        let told = said(&output);
        assert!(
            told.contains("another file system is mounted here"),
            "{told}"
        );
    }
    run_in(&mount, UNMOUNT);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn paths_are_those_below_the_mountpoint() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    bench.run(&["subvolume", "create", "mnt/sub"]);
    std::fs::create_dir(bench.path("mnt/sub/dir")).expect("a directory");
    std::fs::write(bench.path("mnt/sub/dir/file"), vec![3; 100_000]).expect("a file");
    std::fs::hard_link(bench.path("mnt/sub/dir/file"), bench.path("mnt/sub/other"))
        .expect("a name");
    bench.run(&["filesystem", "sync", "mnt"]);
    bench.run(&["subvolume", "snapshot", "mnt/sub", "mnt/shot"]);
    let number = run_in(&bench.path("mnt"), "stat -c %i sub/dir/file");
    let number = number.trim();
    let point = bench.path("mnt").canonicalize().expect("a directory");
    let below = |names: &[&str]| -> BTreeSet<String> {
        let whole = |name: &&str| point.join(name).display().to_string();
        names.iter().map(whole).collect()
    };
    let found = bench.run(&["inspect", "inode-resolve", number, "mnt/sub/dir"]);
    assert_eq!(lines(&found), below(&["sub/dir/file", "sub/other"]));
    let extents = bench.run(&["subvolume", "find-new", "--json", "mnt/sub", "0"]);
    let extents: serde_json::Value = serde_json::from_str(&extents).expect("JSON");
    let start = extents["extents"][0]["disk_start"].to_string();
    let found = bench.run(&["inspect", "logical-resolve", &start, "mnt"]);
    let all = ["sub/dir/file", "sub/other", "shot/dir/file", "shot/other"];
    assert_eq!(lines(&found), below(&all));
    let sub = bench.run(&["inspect", "rootid", "mnt/sub/dir/file"]);
    assert_ne!(sub, bench.run(&["inspect", "rootid", "mnt"]));
    for (words, reason) in [
        (["inode-resolve", "999999", "mnt/sub"], "999999"),
        (["logical-resolve", "1", "mnt"], "no data of files lie at"),
        (
            ["subvolid-resolve", "999999", "mnt"],
            "there is no subvolume",
        ),
    ] {
        let output = bench.try_run(&[&["inspect"], &words[..]].concat());
        assert!(
            !output.status.success() && said(&output).contains(reason),
            "{}",
            said(&output)
        );
    }
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
}
