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
