//! Ioctls on a mount, beside the same volume mounted by the kernel.

mod support;

use butterfs_testkit::Capability;
use butterfs_testkit::judge::{Access, KernelMount};
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{Bench, can_mount, said};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/ioctls.py");
const FILES: [&str; 3] = ["large", "dir/small", "dir/linked"];

/// What the script prints of a mount.
fn answers(point: &Path) -> String {
    let output = Command::new("python3")
        .arg(SCRIPT)
        .arg(point)
        .args(FILES)
        .output()
        .expect("python3 runs");
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_kernel_answers_the_same() {
    if !can_mount() || !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let bench = Bench::new();
    let devices = ["volume", "second"].map(|name| bench.path(name));
    for device in &devices {
        let file = fs::File::create(device).expect("a file");
        file.set_len(512 << 20).expect("its size");
    }
    bench.run(&["mkfs", "-q", "-f", "-d", "single", "volume", "second"]);
    let mounted = bench.mount("rw,device=second");
    let at = |name: &str| bench.path("mnt").join(name);
    fs::create_dir(at("dir")).expect("a directory");
    let bytes: Vec<u8> = (0..400_000_u32).flat_map(u32::to_le_bytes).collect();
    for name in ["large", "dir/linked"] {
        fs::write(at(name), &bytes).expect("a file");
    }
    fs::write(at("dir/small"), "small").expect("a file");
    for number in 0..20 {
        fs::hard_link(at("dir/linked"), at(&format!("dir/name {number}"))).expect("a link");
    }
    bench.run(&["reflink", "mnt/large", "mnt/clone"]);
    bench.run(&["subvolume", "snapshot", "mnt", "mnt/snapshot"]);
    bench.run(&["umount", "mnt"]);
    drop(mounted);

    let mounted = bench.mount("ro,device=second");
    let ours = answers(&bench.path("mnt"));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let kernel = KernelMount::mount_all(&devices, Access::ReadOnly, "").expect("it mounts");
    let theirs = answers(kernel.path());
    assert_eq!(ours, theirs);
    for word in [
        "files at data of large",
        "name 19",
        "space 0x",
        "generation",
    ] {
        assert!(ours.contains(word), "{word}: {ours}");
    }
}

/// Asks for the error counters of both devices; those of device 1 are reset.
const COUNTERS: &str = "import fcntl, os, struct, sys
directory = os.open(sys.argv[1], os.O_RDONLY)
for device, flags in ((1, 1), (1, 0), (2, 0)):
    told = bytearray(struct.pack('=QQQ', device, 5, flags).ljust(1032, b'\\0'))
    fcntl.ioctl(directory, 0xC4089434, told)
    print(device, *struct.unpack_from('=5Q', told, 24))";

#[test]
fn counters_of_one_device_are_reset() {
    if !can_mount() || !Capability::all_here(&[Capability::Root]) {
        return;
    }
    let bench = Bench::new();
    for name in ["volume", "second"] {
        let file = fs::File::create(bench.path(name)).expect("a file");
        file.set_len(512 << 20).expect("its size");
    }
    bench.run(&["mkfs", "-q", "-f", "-d", "raid1", "volume", "second"]);
    let mounted = bench.mount("rw,device=second");
    fs::write(bench.path("mnt/file"), vec![0xa7; 65536]).expect("a file");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    for name in ["volume", "second"] {
        let mut bytes = fs::read(bench.path(name)).expect("the image");
        let at = bytes.windows(4096).position(|found| found == [0xa7; 4096]);
        bytes[at.expect("the data")] ^= 1;
        fs::write(bench.path(name), bytes).expect("the image");
    }

    let mounted = bench.mount("rw,device=second");
    let read = fs::read(bench.path("mnt/file"));
    read.expect_err("both copies are damaged");
    let told = Command::new("python3")
        .args(["-c", COUNTERS])
        .arg(bench.path("mnt"))
        .output()
        .expect("python3 runs");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let text = said(&told);
    assert!(told.status.success(), "{text}");
    let lines: Vec<Vec<u64>> = text
        .lines()
        .map(|line| {
            line.split(' ')
                .map(|word| word.parse().expect("a number"))
                .collect()
        })
        .collect();
    // Device, writes, reads, flushes, corruption, generations.
    assert!(lines[0][4] > 0 && lines[2][4] > 0, "{text}");
    assert_eq!(lines[1], [1, 0, 0, 0, 0, 0], "{text}");
}

/// Strange arguments, arguments behind no memory, and callers who may not ask.
#[test]
fn the_kernel_refuses_the_same() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/ioctl_errors.py");
    let ask = |point: &Path, user: &[&str]| {
        let mut command = Command::new("python3");
        command.arg(script).arg(point).args(user);
        let output = command.output().expect("python3 runs");
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let (ours, kernels) = (Bench::new(), Bench::new());
    let mounted = ours.mount("rw");
    let done = kernels.with_kernel(|kernel| {
        for user in [
            &[][..],
            &["65534"],
            &["65534", "namespace"],
            &["0", "namespace"],
        ] {
            let own = ask(&ours.path("mnt"), user);
            let theirs = ask(kernel, user);
            let lines = own.lines().zip(theirs.lines());
            let other: Vec<_> = lines.filter(|(one, other)| one != other).collect();
            assert!(
                other.is_empty(),
                "{user:?}, ours and the kernel's: {other:#?}"
            );
            assert_eq!(own.lines().count(), theirs.lines().count());
        }
    });
    ours.run(&["umount", "mnt"]);
    drop(mounted);
    ours.check();
    if !done {
        println!("not compared with the kernel");
    }
}
