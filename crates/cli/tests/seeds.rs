//! Volumes that grow from a seed, the kernel's and ours: each side reads, checks
//! and changes the other's, and nobody writes to the seed.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Bench, Kernel, Loop, is_root, said};

fn ran(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {words:?}: {}",
        said(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn can_run() -> bool {
    if !is_root() {
        println!("skipped: kernel mounts need root");
        assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
    }
    is_root()
}

fn sparse(path: &Path) {
    let file = fs::File::create(path).expect("a file");
    file.set_len(600 << 20).expect("its size");
}

/// A seed made by the kernel, with what may lie in place: files without
/// copy-on-write, and preallocated space.
fn make_seed(bench: &Bench) {
    let path = bench.path("seed");
    sparse(&path);
    ran("mkfs.btrfs", &["-q", path.to_str().expect("text")]);
    let point = bench.path("kernel");
    fs::create_dir_all(&point).expect("a mountpoint");
    let at = |name: &str| point.join(name).to_str().expect("text").to_owned();
    ran(
        "mount",
        &["-o", "loop", path.to_str().expect("text"), &at("")],
    );
    let mount = Kernel(point.clone());
    fs::write(at("plain"), vec![1; 3_000_000]).expect("a file");
    fs::write(at("small"), "small").expect("a file");
    fs::write(at("nocow"), "").expect("a file");
    ran("chattr", &["+C", &at("nocow")]);
    fs::write(at("nocow"), vec![2; 1_000_000]).expect("a file");
    ran("fallocate", &["-l", "1m", &at("room")]);
    drop(mount);
    ran("btrfstune", &["-S", "1", path.to_str().expect("text")]);
}

/// Changes the volume through a mount, in ways that would write to the seed if
/// anything did.
fn change(point: &Path) {
    use std::os::unix::fs::FileExt;
    let open = |name: &str| {
        let mut options = fs::File::options();
        options.write(true).open(point.join(name)).expect("a file")
    };
    for name in ["plain", "nocow", "room"] {
        let file = open(name);
        file.write_all_at(&[9; 300_000], 100_000)
            .expect("it is written");
        file.sync_all().expect("it is durable");
    }
    fs::write(point.join("new"), vec![5; 2_000_000]).expect("a file");
    fs::remove_file(point.join("small")).expect("it goes");
}

fn assert_changed(point: &Path) {
    let read = |name: &str| fs::read(point.join(name)).expect("a file");
    for (name, was, size) in [
        ("plain", 1, 3_000_000),
        ("nocow", 2, 1_000_000),
        ("room", 0, 1 << 20),
    ] {
        let mut wanted = vec![was; size];
        wanted[100_000..400_000].fill(9);
        assert!(read(name) == wanted, "{name}");
    }
    assert!(read("new") == vec![5; 2_000_000]);
    assert!(!point.join("small").exists());
}

/// The kernel's view of the volume: check, mount, and a scrub of its own device.
fn kernel_takes(bench: &Bench, own: &str, work: impl FnOnce(&Path)) {
    let seed = Loop::with(&["--read-only"], &bench.path("seed"));
    let device = Loop::new(&bench.path(own));
    ran("btrfs", &["device", "scan", seed.name(), device.name()]);
    ran("btrfs", &["check", "--check-data-csum", device.name()]);
    let point = bench.path("kernel");
    ran("mount", &[device.name(), point.to_str().expect("text")]);
    let mount = Kernel(point.clone());
    work(&point);
    // Only this device is scrubbed: on the seed, Linux reports the seed's own
    // nodes and superblocks as bad.
    ran("btrfs", &["scrub", "start", "-Br", device.name()]);
    drop(mount);
}

#[test]
fn the_kernel_takes_what_grew_here() {
    if !can_run() {
        return;
    }
    let bench = Bench::new();
    make_seed(&bench);
    let before = fs::read(bench.path("seed")).expect("the seed");
    sparse(&bench.path("own"));
    let refused = bench.try_run(&["copy", "own", "seed:/"]);
    assert!(said(&refused).contains("seed"), "{}", said(&refused));
    let told = bench.run(&["device", "add", "own", "seed"]);
    assert!(
        told.contains("a new volume, which grows from seed"),
        "{told}"
    );
    bench.run(&["device", "ready", "own"]);
    let mounted = bench.mount_source("own", "rw", "mnt");
    change(&bench.path("mnt"));
    assert_changed(&bench.path("mnt"));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.run(&["check", "--check-data-csum", "own"]);
    bench.run(&["scrub", "start", "-B", "own"]);
    kernel_takes(&bench, "own", |point| {
        assert_changed(point);
        fs::write(point.join("from the kernel"), "x").expect("a file");
    });
    fs::create_dir(bench.path("away")).expect("a directory");
    let missing = bench.path("away/seed");
    fs::rename(bench.path("seed"), &missing).expect("it is moved");
    let refused = bench.try_run(&["mount", "own", "mnt"]);
    assert!(
        said(&refused).contains("device 1 (UUID"),
        "{}",
        said(&refused)
    );
    let refused = bench.try_run(&["device", "ready", "own"]);
    assert!(!refused.status.success());
    fs::rename(&missing, bench.path("seed")).expect("it is moved");
    assert_eq!(bench.run(&["cat", "own:/from the kernel"]), "x");
    for words in [
        &["filesystem", "resize", "1:max", "own"][..],
        &["replace", "start", "-f", "1", "volume", "own"],
        &["tune", "-f", "-u", "own"],
    ] {
        let refused = bench.try_run(words);
        assert!(!refused.status.success(), "{words:?}");
        assert!(
            said(&refused).contains("seed"),
            "{words:?}: {}",
            said(&refused)
        );
    }
    bench.run(&["device", "remove", "1", "own"]);
    assert!(fs::read(bench.path("seed")).expect("the seed") == before);
    fs::remove_file(bench.path("seed")).expect("it goes");
    bench.run(&["check", "--check-data-csum", "own"]);
    let own = bench.path("own");
    ran(
        "btrfs",
        &["check", "--check-data-csum", own.to_str().expect("text")],
    );
    let mounted = bench.mount_source("own", "rw", "mnt");
    assert_changed(&bench.path("mnt"));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn two_volumes_have_one_seed_at_the_same_time() {
    if !can_run() {
        return;
    }
    let bench = Bench::new();
    make_seed(&bench);
    let mounts = ["one", "two"].map(|name| {
        sparse(&bench.path(name));
        bench.run(&["device", "add", name, "seed"]);
        let point = format!("at {name}");
        fs::create_dir(bench.path(&point)).expect("a mountpoint");
        let mounted = bench.mount_source(name, "rw", &point);
        (point, mounted)
    });
    for (point, _) in &mounts {
        change(&bench.path(point));
    }
    for (point, mounted) in mounts {
        assert_changed(&bench.path(&point));
        bench.run(&["umount", &point]);
        drop(mounted);
    }
    for name in ["one", "two"] {
        bench.run(&["check", "--check-data-csum", name]);
    }
}

#[test]
fn what_grew_in_the_kernel_is_taken() {
    if !can_run() {
        return;
    }
    let bench = Bench::new();
    make_seed(&bench);
    let before = fs::read(bench.path("seed")).expect("the seed");
    sparse(&bench.path("own"));
    {
        let seed = Loop::with(&["--read-only"], &bench.path("seed"));
        let device = Loop::new(&bench.path("own"));
        let point = bench.path("kernel");
        let at = point.to_str().expect("text");
        ran("mount", &[seed.name(), at]);
        let mount = Kernel(point.clone());
        ran("btrfs", &["device", "add", device.name(), at]);
        ran("mount", &["-o", "remount,rw", at]);
        fs::write(point.join("kernel's"), vec![7; 500_000]).expect("a file");
        drop(mount);
    }
    bench.run(&["check", "--check-data-csum", "own"]);
    let shown = bench.run(&["filesystem", "show", "own"]);
    assert!(shown.contains("Total devices 2"), "{shown}");
    let mounted = bench.mount_source("own", "rw", "mnt");
    change(&bench.path("mnt"));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.run(&["check", "--check-data-csum", "own"]);
    kernel_takes(&bench, "own", |point| {
        assert_changed(point);
        let own = fs::read(point.join("kernel's")).expect("a file");
        assert!(own == vec![7; 500_000]);
    });
    assert!(fs::read(bench.path("seed")).expect("the seed") == before);
}

/// Options of mkfs.btrfs, and how many devices.
const KINDS: [(usize, &[&str]); 12] = [
    (1, &["-n", "65536"]),
    (1, &["-n", "4096"]),
    (1, &["--mixed"]),
    (1, &["-R", "^free-space-tree"]),
    (1, &["-R", "quota"]),
    (1, &["--csum", "xxhash"]),
    (1, &["--csum", "sha256"]),
    (1, &["-m", "single"]),
    (2, &["-d", "raid1", "-m", "raid1"]),
    (2, &["-d", "raid0", "-m", "raid1"]),
    (3, &["-d", "raid5", "-m", "raid1"]),
    (4, &["-d", "raid10", "-m", "raid10"]),
];

/// A hash of the content of a file.
fn sum(path: &Path) -> u64 {
    use std::hash::Hasher;
    use std::io::Read;
    let mut file = fs::File::open(path).expect("a file");
    let mut hasher = std::hash::DefaultHasher::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece).expect("it is read") {
            0 => return hasher.finish(),
            count => hasher.write(&piece[..count]),
        }
    }
}

#[test]
fn seeds_of_all_kinds() {
    if !can_run() {
        return;
    }
    for (count, options) in KINDS {
        let bench = Bench::new();
        let point = bench.path("kernel");
        fs::create_dir(&point).expect("a mountpoint");
        let at = point.to_str().expect("text");
        let seeds: Vec<_> = (1..=count)
            .map(|n| bench.path(&format!("seed{n}")))
            .collect();
        {
            let make = |path| {
                sparse(path);
                Loop::new(path)
            };
            let loops: Vec<Loop> = seeds.iter().map(|path| make(path)).collect();
            let names: Vec<&str> = loops.iter().map(Loop::name).collect();
            ran("mkfs.btrfs", &[&["-q", "-f"], options, &names].concat());
            ran("btrfs", &[&["device", "scan"], &names[..]].concat());
            ran("mount", &[names[0], at]);
            let mount = Kernel(point.clone());
            for (name, content, size) in [
                ("plain", 1, 3_000_000),
                ("nocow", 2, 1_000_000),
                ("room", 0, 1 << 20),
            ] {
                fs::write(point.join(name), vec![content; size]).expect("a file");
            }
            fs::write(point.join("small"), "small").expect("a file");
            for number in 0..200 {
                fs::write(point.join(format!("f{number}")), vec![3; number * 50]).expect("a file");
            }
            drop(mount);
            ran("btrfstune", &["-S", "1", names[0]]);
        }
        let before: Vec<u64> = seeds.iter().map(|path| sum(path)).collect();
        sparse(&bench.path("own"));
        bench.run(&["device", "add", "own", "seed1"]);
        bench.run(&["check", "--check-data-csum", "own"]);
        let mounted = bench.mount_source("own", "rw", "mnt");
        change(&bench.path("mnt"));
        bench.run(&["umount", "mnt"]);
        drop(mounted);
        bench.run(&["check", "--check-data-csum", "own"]);
        {
            let loops = seeds.iter().map(|path| Loop::with(&["--read-only"], path));
            let loops: Vec<Loop> = loops.collect();
            let own = Loop::new(&bench.path("own"));
            let mut names: Vec<&str> = loops.iter().map(Loop::name).collect();
            names.push(own.name());
            ran("btrfs", &[&["device", "scan"], &names[..]].concat());
            ran("btrfs", &["check", "--check-data-csum", own.name()]);
            ran("mount", &[own.name(), at]);
            let mount = Kernel(point.clone());
            assert_changed(&point);
            ran("btrfs", &["balance", "start", "--full-balance", at]);
            drop(mount);
        }
        bench.run(&["check", "--check-data-csum", "own"]);
        let after: Vec<u64> = seeds.iter().map(|path| sum(path)).collect();
        assert_eq!(before, after, "{options:?}: a seed changed");
    }
}
