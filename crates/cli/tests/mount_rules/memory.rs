//! A server in a control group with little memory: slower, never killed.

use super::support::{BINARY, Bench, can_mount, is_root, said};
use butterfs_testkit::MemoryGroup;
use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Files in one directory.
const IN_DIRECTORY: usize = 500;

/// A server in a control group.
fn serve(group: &MemoryGroup, bench: &Bench, options: &str) -> Child {
    let child = group
        .command(BINARY)
        .args(["mount", "-f", "-o", options])
        .args([bench.path("volume"), bench.path("mnt")])
        .spawn();
    let began = Instant::now();
    while !bench.try_run(&["filesystem", "df", "mnt"]).status.success() {
        assert!(began.elapsed() < Duration::from_secs(20), "no mount");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.expect("the server starts")
}

fn content(number: usize) -> Vec<u8> {
    let length = 1000 + number * 7919 % 9000;
    (0..length).map(|at| (at * 31 + number) as u8).collect()
}

fn name(number: usize) -> String {
    format!("mnt/d{}/f{number}", number / IN_DIRECTORY)
}

/// Small files, a large one, and all of it read again, by programs outside of the
/// group.
fn work(bench: &Bench, files: usize) {
    for number in 0..files {
        if number % IN_DIRECTORY == 0 {
            let folder = bench.path(&format!("mnt/d{}", number / IN_DIRECTORY));
            fs::create_dir(folder).expect("a directory");
        }
        fs::write(bench.path(&name(number)), content(number))
            .unwrap_or_else(|error| panic!("file {number}: {error}"));
    }
    let piece: Vec<u8> = (0..4 << 20)
        .map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut large = fs::File::create(bench.path("mnt/large")).expect("a file");
    for _ in 0..32 {
        std::io::Write::write_all(&mut large, &piece).expect("a piece of the large file");
    }
    large.sync_all().expect("the large file is durable");
}

fn verify(bench: &Bench, files: usize) {
    for number in 0..files {
        let found = fs::read(bench.path(&name(number)));
        let found = found.unwrap_or_else(|error| panic!("file {number}: {error}"));
        assert!(found == content(number), "file {number}");
    }
}

/// `BUTTERFS_FILES` asks for more files.
#[test]
fn a_server_lives_in_little_memory() {
    if !can_mount() {
        return;
    }
    if !is_root() {
        println!("skipped: control groups need root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
        return;
    }
    let files =
        std::env::var("BUTTERFS_FILES").map_or(8000, |count| count.parse().expect("a number"));
    for mib in [48, 64] {
        let Some(group) = MemoryGroup::new(mib << 20) else {
            println!("skipped: no control group that limits memory can be made");
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            return;
        };
        let bench = Bench::new();
        // Two servers in turn: the second one finds a volume that is not empty.
        let mut server = serve(&group, &bench, "rw");
        work(&bench, files);
        bench.run(&["umount", "mnt"]);
        assert!(server.wait().expect("its status").success(), "{mib} MiB");
        let mut server = serve(&group, &bench, "rw");
        verify(&bench, files);
        let removed = Command::new("rm")
            .arg("-r")
            .arg(bench.path("mnt/d0"))
            .status();
        assert!(removed.expect("rm runs").success());
        bench.run(&["umount", "mnt"]);
        assert!(server.wait().expect("its status").success(), "{mib} MiB");
        let checked = bench.try_run(&["check", "volume"]);
        assert!(checked.status.success(), "{}", said(&checked));
    }
}
