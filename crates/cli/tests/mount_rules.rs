//! What a mount promises beyond plain files: synchronous names, access times,
//! unnamed files, facts and labels, block devices, servers that die. Who may do
//! what, and protected files, as on a kernel mount (`support/rights_probe.py`).

#[path = "mount_rules/coherence.rs"]
mod coherence;
#[path = "mount_rules/durability.rs"]
mod durability;
#[path = "mount_rules/io.rs"]
mod io;
#[path = "mount_rules/memory.rs"]
mod memory;
#[path = "mount_rules/refused.rs"]
mod refused;
#[path = "mount_rules/requests.rs"]
mod requests;
mod support;

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use support::{Bench, Foreground, Loop, can_mount, is_root, said};

fn chattr(flags: &str, path: &Path) {
    let status = Command::new("chattr").arg(flags).arg(path).status();
    assert!(status.expect("chattr runs").success(), "chattr {flags}");
}

#[test]
fn what_the_kernel_changes_is_not_served() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    bench.with_kernel(|root| {
        let mount = ["mount", "-o", "ro", "volume", "mnt"];
        let refused = bench.try_run(&mount);
        assert_eq!(refused.status.code(), Some(32), "{}", said(&refused));
        assert!(
            said(&refused).contains("in use by the mount"),
            "{}",
            said(&refused)
        );
        // A kernel mount that only reads is in nobody's way, either.
        let remounted = Command::new("mount")
            .args(["-o", "remount,ro"])
            .arg(root)
            .status();
        assert!(remounted.expect("mount runs").success());
        bench.run(&mount);
        bench.run(&["umount", "mnt"]);
    });
}

#[test]
fn an_image_in_use_is_said_to_be_mounted_where_it_is() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let point = bench.path("mnt");
    let place = format!("in use by the mount at {}", point.display());
    for words in [
        &["check", "volume"][..],
        &["ls", "volume:/"],
        &["mkfs", "-f", "volume"],
        &["filesystem", "label", "volume", "x"],
    ] {
        let refused = bench.try_run(words);
        assert!(!refused.status.success(), "{words:?}");
        assert!(
            said(&refused).contains(&place),
            "{words:?}: {}",
            said(&refused)
        );
    }
    bench.run(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn chattr_keeps_what_means_something() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let _mounted = bench.mount("rw");
    std::fs::create_dir(bench.path("mnt/dir")).expect("a directory");
    std::fs::write(bench.path("mnt/file"), "").expect("a file");
    let flags = |name: &str| {
        let path = bench.path("mnt").join(name);
        chattr("+Dd", &path);
        let listed = Command::new("lsattr").arg("-d").arg(&path).output();
        let listed = said(&listed.expect("lsattr runs"));
        let flags = listed.split(' ').next().expect("flags");
        flags.replace('-', "")
    };
    assert_eq!((flags("dir"), flags("file")), ("Dd".into(), "d".into()));
}

#[test]
fn lsattr_shows_the_generation_that_made_a_file() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let _mounted = bench.mount("rw");
    let version = |name: &str| -> u64 {
        let path = bench.path("mnt").join(name);
        std::fs::write(&path, "").expect("a file");
        let listed = Command::new("lsattr").arg("-v").arg(&path).output();
        let listed = said(&listed.expect("lsattr runs"));
        let first = listed.split_whitespace().next().map(str::parse);
        first
            .and_then(Result::ok)
            .unwrap_or_else(|| panic!("{listed}"))
    };
    let early = version("early");
    bench.run(&["filesystem", "sync", "mnt"]);
    assert!(early > 0 && version("late") > early);
    assert_eq!(version("early"), early);
}

#[test]
fn a_log_that_no_terminal_shows_has_no_colours() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let server = Command::new(support::BINARY)
        .args(["mount", "-f"])
        .args([bench.path("volume"), bench.path("mnt")])
        .env("BUTTERFS_LOG", "debug")
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the server starts");
    let started = std::time::Instant::now();
    loop {
        // As soon as there is a mount, its server can be asked how it ended.
        let output = bench.try_run(&["umount", "mnt"]);
        if output.status.success() {
            break;
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("nothing is mounted at"), "{errors}");
        assert!(started.elapsed() < std::time::Duration::from_secs(20));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let log = server.wait_with_output().expect("its log").stderr;
    assert!(String::from_utf8_lossy(&log).contains("mounted"), "{log:?}");
    assert!(!log.contains(&0x1b), "{}", String::from_utf8_lossy(&log));
}

#[test]
fn what_is_synchronous_survives_a_server_that_dies() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let server = Foreground::start(&bench, "commit=300");
    std::fs::create_dir(bench.path("mnt/dir")).expect("a directory");
    chattr("+D", &bench.path("mnt/dir"));
    std::fs::write(bench.path("mnt/file"), "old").expect("a file");
    chattr("+S", &bench.path("mnt/file"));
    std::fs::write(bench.path("mnt/file"), "synchronous").expect("a write");
    std::fs::create_dir(bench.path("mnt/dir/kept")).expect("a synchronous name");
    std::fs::write(bench.path("mnt/lost"), "not promised").expect("a file");
    server.kill();
    bench.check();
    let mounted = bench.mount("rw");
    let found = std::fs::read_to_string(bench.path("mnt/file"));
    assert_eq!(found.expect("the file"), "synchronous");
    assert!(bench.path("mnt/dir/kept").is_dir());
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
}

#[test]
fn a_mount_with_dirsync_keeps_every_name() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let server = Foreground::start(&bench, "commit=300,dirsync");
    std::fs::create_dir_all(bench.path("mnt/a/b")).expect("directories");
    std::fs::rename(bench.path("mnt/a/b"), bench.path("mnt/c")).expect("a rename");
    server.kill();
    let mounted = bench.mount("ro");
    assert!(bench.path("mnt/a").is_dir() && bench.path("mnt/c").is_dir());
    assert!(!bench.path("mnt/a/b").exists());
    drop(mounted);
}

#[test]
fn access_times_follow_the_option() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let file = bench.path("mnt/file");
    let atime = || {
        let of = std::fs::metadata(&file).expect("attributes");
        (of.atime(), of.atime_nsec())
    };
    let read = || std::fs::read(&file).expect("the file");
    let mounted = bench.mount("rw");
    std::fs::write(&file, "x").expect("a file");
    let made = atime();
    bench.run(&["umount", "mnt"]);
    bench.run(&["mount", "-o", "noatime", "volume", "mnt"]);
    read();
    assert_eq!(atime(), made, "noatime");
    bench.run(&["umount", "mnt"]);
    bench.run(&["mount", "volume", "mnt"]);
    read();
    let once = atime();
    assert!(
        once > made,
        "relatime changes a time that is not later than the last change"
    );
    bench.run(&["umount", "mnt"]);
    bench.run(&["mount", "volume", "mnt"]);
    read();
    assert_eq!(atime(), once, "relatime keeps a later time");
    bench.run(&["umount", "mnt"]);
    bench.run(&["mount", "-o", "strictatime", "volume", "mnt"]);
    read();
    assert!(atime() > once, "strictatime");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
}

#[test]
fn an_unnamed_file_can_get_a_name() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags};
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let open = || {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(bench.path("mnt"), flags, Mode::from_raw_mode(0o640)).expect("O_TMPFILE")
    };
    let (named, never_named) = (open(), open());
    for file in [&named, &never_named] {
        assert_eq!(rustix::io::pwrite(file, b"unnamed", 0), Ok(7));
    }
    let number = std::os::fd::AsRawFd::as_raw_fd(&named);
    let link = format!("/proc/self/fd/{number}");
    let target = bench.path("mnt/name");
    rustix::fs::linkat(CWD, link, CWD, &target, AtFlags::SYMLINK_FOLLOW).expect("a name");
    drop((named, never_named));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
    assert_eq!(bench.run(&["cat", "volume:/name"]), "unnamed");
    assert_eq!(bench.run(&["ls", "volume:/"]), "name\n");
}

#[test]
fn a_mount_tells_its_facts_and_takes_a_label() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    bench.run(&["filesystem", "label", "volume", "before"]);
    let mounted = bench.mount("compress=zstd:5,noatime");
    let usage = bench.run(&["filesystem", "usage", "mnt"]);
    assert!(
        usage.contains("compress=zstd:5") && usage.contains("noatime"),
        "{usage}"
    );
    assert!(
        bench
            .run(&["filesystem", "df", "mnt"])
            .contains("Data, single")
    );
    assert_eq!(bench.run(&["filesystem", "label", "mnt"]), "before\n");
    bench.run(&["filesystem", "label", "mnt", "after"]);
    assert!(
        bench
            .run(&["filesystem", "show", "mnt"])
            .contains("Label: 'after'")
    );
    let refused = bench.try_run(&["filesystem", "label", "mnt", &"x".repeat(256)]);
    assert!(said(&refused).contains("255 bytes"), "{}", said(&refused));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    assert_eq!(bench.run(&["filesystem", "label", "volume"]), "after\n");
    let refused = bench.try_run(&["filesystem", "usage", "mnt"]);
    assert!(said(&refused).contains("no ButterFS volume is mounted here"));
    bench.check();
}

#[test]
fn a_block_device_is_mounted_as_one() {
    if !can_mount() || !is_root() {
        println!("skipped: loop devices need root");
        return;
    }
    let bench = Bench::new();
    let device = Loop::new(&bench.path("volume"));
    bench.run(&["mount", device.name(), "mnt"]);
    let table = std::fs::read_to_string("/proc/mounts").expect("the mount table");
    let line = table
        .lines()
        .find(|line| line.starts_with(device.name()))
        .expect("the mount");
    assert!(line.contains(" fuseblk.butterfs "), "{line}");
    std::fs::write(bench.path("mnt/file"), vec![7; 1 << 20]).expect("a file");
    let refused = Command::new("mount")
        .args(["-t", "btrfs", device.name()])
        .arg(bench.path(""))
        .output();
    assert!(!refused.expect("runs").status.success(), "mounted twice");
    // umount(8) returns when everything is on the device.
    let status = Command::new("umount").arg(bench.path("mnt")).status();
    assert!(status.expect("umount runs").success());
    let checked = Command::new("btrfs")
        .args(["check", "--check-data-csum", device.name()])
        .output();
    assert!(checked.expect("btrfs runs").status.success());
    assert_eq!(
        bench.run(&["ls", &format!("{}:/", device.name())]),
        "file\n"
    );
}

#[test]
fn what_root_mounts_everyone_enters_as_permissions_allow() {
    if !can_mount() || !is_root() {
        println!("skipped: it needs root");
        return;
    }
    let bench = Bench::new();
    let folder = bench.path("");
    // Everybody may pass through the directories above the mount.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&folder, open).expect("the folder's mode");
    let mounted = bench.mount("rw");
    std::fs::write(bench.path("mnt/open"), "for all").expect("a file");
    std::fs::write(bench.path("mnt/closed"), "for root").expect("a file");
    let shut = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(bench.path("mnt/closed"), shut).expect("a mode");
    let reads = |name: &str| {
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]);
        let output = nobody.arg(bench.path(name)).output();
        output.expect("setpriv runs").status.success()
    };
    assert!(reads("mnt/open"));
    assert!(!reads("mnt/closed"));
    drop(mounted);
}

#[test]
fn a_snapshot_shows_an_empty_directory_for_a_nested_subvolume() {
    let bench = Bench::new();
    let btrfs = |words: &[&str]| {
        let output = Command::new("btrfs")
            .args(words)
            .output()
            .expect("btrfs runs");
        assert!(output.status.success(), "{}", said(&output));
    };
    let made = bench.with_kernel(|root| {
        let at = |path: &str| root.join(path).display().to_string();
        btrfs(&["subvolume", "create", &at("base")]);
        btrfs(&["subvolume", "create", &at("base/nested")]);
        std::fs::write(root.join("base/nested/file"), "x").expect("a file");
        btrfs(&["subvolume", "snapshot", &at("base"), &at("shot")]);
    });
    if !made || !can_mount() {
        return;
    }
    let mounted = bench.mount("rw");
    let inside = |path: &str| {
        let listing = std::fs::read_dir(bench.path("mnt").join(path)).expect("a listing");
        listing.count()
    };
    assert_eq!((inside("base/nested"), inside("shot/nested")), (1, 0));
    let refused = std::fs::write(bench.path("mnt/shot/nested/new"), "x").expect_err("not kept");
    assert!(matches!(
        refused.raw_os_error(),
        Some(libc::EPERM | libc::EROFS)
    ));
    let refused = std::fs::remove_dir(bench.path("mnt/base/nested")).expect_err("full");
    assert!(matches!(
        refused.raw_os_error(),
        Some(libc::EPERM | libc::ENOTEMPTY)
    ));
    std::fs::remove_dir(bench.path("mnt/shot/nested")).expect("the empty directory goes");
    assert_eq!((inside("base"), inside("shot")), (1, 0));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
    bench.with_kernel(|root| {
        assert!(root.join("base/nested/file").exists() && !root.join("shot/nested").exists());
    });
}

/// The result of each way to change what a conversion saved.
fn attack(root: &Path) -> Vec<(&'static str, Option<i32>)> {
    use rustix::fs::{FallocateFlags, Mode, OFlags, XattrFlags};
    let saved = root.join("ext2_saved");
    let image = saved.join("image");
    let open = |flags| rustix::fs::open(&image, flags | OFlags::CLOEXEC, Mode::empty());
    let writing = |change: &dyn Fn(&std::fs::File) -> std::io::Result<()>| {
        let file = std::fs::File::from(open(OFlags::RDWR)?);
        change(&file)?;
        file.sync_all()
    };
    let allocate =
        |mode: FallocateFlags| writing(&|file| Ok(rustix::fs::fallocate(file, mode, 0, 4096)?));
    let set = |name: &str| {
        let set = rustix::fs::setxattr(&image, name, b"1", XattrFlags::empty());
        set.map_err(std::io::Error::from)
    };
    std::fs::write(root.join("other"), vec![7; 1 << 16]).expect("a file");
    let copy = || {
        let from = std::fs::File::open(root.join("other"))?;
        let to = std::fs::File::from(open(OFlags::RDWR)?);
        let copied = rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 65536)?;
        assert_eq!(copied, 0, "something was copied");
        Ok(())
    };
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let second = saved.join("second");
    [
        (
            "write",
            writing(&|mut file| std::io::Write::write_all(&mut file, b"x")),
        ),
        ("size", writing(&|file| file.set_len(5))),
        (
            "truncate",
            open(OFlags::WRONLY | OFlags::TRUNC)
                .map(drop)
                .map_err(std::io::Error::from),
        ),
        ("allocate", allocate(FallocateFlags::empty())),
        ("punch", allocate(punch)),
        ("zero", allocate(FallocateFlags::ZERO_RANGE)),
        ("copy", copy()),
        ("user attribute", set("user.a")),
        ("system attribute", set("trusted.a")),
        ("link", std::fs::hard_link(&image, &second)),
        ("unlink", std::fs::remove_file(&second)),
        (
            "mode",
            std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o400)),
        ),
    ]
    .into_iter()
    .map(|(what, result)| (what, result.err().and_then(|error| error.raw_os_error())))
    .collect()
}

#[test]
fn a_conversions_way_back_is_kept_as_by_the_kernel() {
    if !can_mount() || !is_root() {
        println!("skipped: attributes of the system need root");
        return;
    }
    let bench = Bench::new();
    let volume = bench.path("volume");
    std::fs::remove_file(&volume).expect("no volume");
    let file = std::fs::File::create(&volume).expect("a file");
    file.set_len(256 << 20).expect("its size");
    let run = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).arg(&volume).output();
        let output = output.expect("the program runs");
        assert!(output.status.success(), "{program}: {}", said(&output));
    };
    run("mkfs.ext4", &["-q", "-F", "-b", "4096"]);
    run("btrfs-convert", &["--no-progress"]);
    let mounted = bench.mount("rw");
    let ours = attack(&bench.path("mnt"));
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
    bench.with_kernel(|root| assert_eq!(ours, attack(root)));
    let refused = ours.iter().filter(|(_, error)| *error == Some(13));
    assert_eq!(refused.count(), 8, "{ours:?}");
    run("btrfs-convert", &["-r"]);
    run("e2fsck", &["-f", "-n"]);
}

#[test]
fn a_write_protected_device_is_mounted_read_only() {
    if !can_mount() || !is_root() {
        println!("skipped: loop devices need root");
        return;
    }
    let bench = Bench::new();
    let device = Loop::with(&["--read-only"], &bench.path("volume"));
    let output = bench.try_run(&["mount", device.name(), "mnt"]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("is write-protected, mounted read-only"),
        "{text}"
    );
    let refused = std::fs::write(bench.path("mnt/file"), "x").expect_err("read-only");
    assert_eq!(refused.raw_os_error(), Some(30));
    let table = std::fs::read_to_string("/proc/mounts").expect("the mount table");
    let line = table.lines().find(|line| line.starts_with(device.name()));
    assert!(line.is_some_and(|line| line.contains(" ro,")), "{line:?}");
    bench.run(&["umount", "mnt"]);
}

#[test]
fn noacl_leaves_access_control_lists_alone() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let setfacl = |words: &[&str]| {
        let output = Command::new("setfacl").args(words).output();
        output.expect("setfacl runs")
    };
    let directory = bench.path("mnt/dir");
    let path = directory.to_str().expect("a path");
    let accepted = "noacl,clear_cache,skip_balance,enospc_debug,metadata_ratio=4,usebackuproot";
    let mounted = bench.mount("acl");
    std::fs::create_dir(&directory).expect("a directory");
    let set = setfacl(&["-d", "-m", "u:daemon:rwx", path]);
    assert!(set.status.success(), "{}", said(&set));
    std::fs::write(directory.join("first"), "").expect("a file");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let has_list = |name: &str| {
        let output = Command::new("getfacl").arg(directory.join(name)).output();
        said(&output.expect("getfacl runs")).contains("user:daemon")
    };
    let mounted = bench.mount(accepted);
    let refused = setfacl(&["-m", "u:daemon:rwx", path]);
    assert!(!refused.status.success(), "a list is set");
    assert!(
        said(&refused).contains("not supported"),
        "{}",
        said(&refused)
    );
    assert!(!has_list("first"));
    std::fs::write(directory.join("second"), "").expect("a file");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    let mounted = bench.mount("acl");
    assert!(has_list("first") && !has_list("second"));
    drop(mounted);
}

/// What the probe prints on a kernel mount and on ours, line by line.
fn on_both(words: &[&str]) -> Option<Vec<(String, String)>> {
    if !can_mount() {
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/rights_probe.py");
    let options = "user_subvol_rm_allowed";
    let run = |mount: &Path, image: &Path| -> Vec<String> {
        let output = Command::new("python3")
            .arg(script)
            .arg(mount)
            .args(words)
            .arg(image)
            .output()
            .expect("python3 runs");
        let text = said(&output);
        assert!(output.status.success(), "{text}");
        text.lines().map(str::to_owned).collect()
    };
    let (theirs, ours) = (Bench::new(), Bench::new());
    for bench in [&theirs, &ours] {
        let volume = std::fs::File::options()
            .write(true)
            .open(bench.path("volume"));
        volume
            .expect("it opens")
            .set_len(4 << 30)
            .expect("a length");
        bench.run(&["mkfs", "-q", "-f", "volume"]);
    }
    let mut expected = Vec::new();
    let ran = theirs.with_kernel(|mount| {
        let remounted = Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(mount)
            .status();
        assert!(remounted.expect("mount runs").success());
        expected = run(mount, &theirs.path("volume"));
    });
    if !ran {
        return None;
    }
    let mounted = ours.mount(options);
    let found = run(&ours.path("mnt"), &ours.path("volume"));
    ours.run(&["umount", "mnt"]);
    drop(mounted);
    ours.check();
    assert_eq!(expected.len(), found.len());
    Some(expected.into_iter().zip(found).collect())
}

/// Panics where the two differ, with all differences.
fn same<'a>(pairs: impl Iterator<Item = &'a (String, String)>) {
    let differ = pairs.filter(|(kernel, ours)| kernel != ours);
    let texts = differ.map(|(kernel, ours)| format!("kernel {kernel}\nours   {ours}\n"));
    let texts: String = texts.collect();
    assert!(texts.is_empty(), "\n{texts}");
}

#[test]
fn callers_may_do_what_they_may_on_a_kernel_mount() {
    let Some(pairs) = on_both(&[]) else { return };
    // Metadata are not defragmented. A caller who may do it is told so.
    let known = |kernel: &str, ours: &str| {
        kernel.ends_with("defragment-directory: ok") && ours.ends_with(": ENOTSUP")
    };
    println!("{} answers on each", pairs.len());
    assert!(pairs.len() > 5000, "{}", pairs.len());
    same(pairs.iter().filter(|(kernel, ours)| !known(kernel, ours)));
}

#[test]
fn protected_files_open_as_on_a_kernel_mount_and_keep_their_content() {
    let Some(pairs) = on_both(&["protected"]) else {
        return;
    };
    let is_later = |(kernel, _): &&(String, String)| kernel.starts_with("later");
    same(pairs.iter().filter(|pair| !is_later(pair)));
    let later: Vec<&str> = pairs
        .iter()
        .filter(is_later)
        .map(|(_, ours)| &**ours)
        .collect();
    // They are refused when they arrive, and no reader sees them.
    let refused = |error| {
        let content = "later content b'0000' b'0000'".to_owned();
        [
            format!("later write: {error}"),
            format!("later msync: {error}"),
            content,
        ]
    };
    let expected = [refused("EPERM"), refused("EPERM"), refused("EROFS")].concat();
    assert_eq!(later, expected);
}

/// Commands that the server runs for others ask for the rights that ioctls ask
/// for.
#[test]
fn root_without_capabilities_may_not_administer_roots_volume() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("noatime");
    let scrub = |without: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=0", "--regid=0", "--clear-groups"]);
        command.args(without).arg(support::BINARY);
        let output = command.args(["scrub", "start", "-B", "mnt"]);
        output
            .current_dir(bench.path(""))
            .output()
            .expect("setpriv runs")
    };
    let none = [
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--ambient-caps=-all",
        "--no-new-privs",
    ];
    let refused = scrub(&none);
    assert!(!refused.status.success(), "{}", said(&refused));
    let done = scrub(&[]);
    assert!(done.status.success(), "{}", said(&done));
    drop(mounted);
}

/// A volume that is open for writing may have a mount that is read-only, as
/// containers have.
#[test]
fn ioctls_change_nothing_through_a_read_only_mount() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    bench.run(&["subvolume", "create", "volume:/a"]);
    let mounted = bench.mount("noatime");
    std::fs::create_dir(bench.path("bound")).expect("a directory");
    let system = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        let output = command.args(words).current_dir(bench.path("")).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{words:?}: {}", said(&output));
    };
    system("mount", &["--bind", "mnt", "bound"]);
    system("mount", &["-o", "remount,bind,ro", "bound"]);
    for words in [
        ["subvolume", "create", "bound/new"].as_slice(),
        &["subvolume", "snapshot", "bound/a", "bound/b"],
        &["subvolume", "delete", "bound/a"],
        &["subvolume", "set-default", "bound/a"],
        &["property", "set", "bound/a", "ro", "true"],
        &["filesystem", "label", "bound", "other"],
        &["quota", "enable", "bound"],
    ] {
        let output = bench.try_run(words);
        assert!(!output.status.success(), "{words:?}: {}", said(&output));
        let text = said(&output).to_lowercase();
        assert!(text.contains("read-only"), "{words:?}: {text}");
    }
    bench.run(&["filesystem", "sync", "bound"]);
    bench.run(&["subvolume", "create", "mnt/new"]);
    system("umount", &["bound"]);
    drop(mounted);
}

#[test]
fn small_rules_are_those_of_a_kernel_mount() {
    if let Some(pairs) = on_both(&["odds"]) {
        same(pairs.iter());
    }
}

#[test]
fn commands_change_nothing_through_a_read_only_mount() {
    if !can_mount() || !is_root() {
        println!("skipped: only root mounts a volume again");
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    std::fs::create_dir(bench.path("second")).expect("a directory");
    let second = bench.mount_source("volume", "ro", "second");
    let device = bench.path("other");
    std::fs::write(&device, vec![0; 128 << 20]).expect("a file");
    let device = Loop::new(&device);
    for words in [
        &["balance", "start", "--full-balance", "second"][..],
        &["filesystem", "resize", "500m", "second"],
        &["device", "add", device.name(), "second"],
        &["replace", "start", "-B", "1", device.name(), "second"],
        &["scrub", "start", "-B", "second"],
    ] {
        let refused = bench.try_run(words);
        assert!(!refused.status.success(), "{words:?}");
        let text = said(&refused);
        assert!(text.contains("is mounted read-only"), "{words:?}: {text}");
    }
    // What only looks works, and so does discarding, as in the kernel.
    bench.run(&["scrub", "start", "-B", "-r", "second"]);
    bench.run(&["balance", "status", "second"]);
    let trimmed = Command::new("fstrim").arg(bench.path("second")).output();
    let trimmed = trimmed.expect("fstrim runs");
    assert!(trimmed.status.success(), "{}", said(&trimmed));
    bench.run(&["filesystem", "resize", "500m", "mnt"]);
    bench.run(&["umount", "second"]);
    drop(second);
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
}

/// A program that is no tool of ours asks the server itself.
const FOREIGN: &str = r#"
import json, os, socket, struct, sys
point, command = sys.argv[1:]
server = socket.socket(socket.AF_UNIX)
server.connect(b"\0" + os.getxattr(point, "butterfs.service"))
request = command.encode()
server.sendall(struct.pack("<I", len(request)) + request)
answer = b""
while part := server.recv(65536):
    answer += part
sys.stdout.write(answer.decode(errors="replace"))
"#;

#[test]
fn the_server_refuses_changes_of_processes_that_see_only_read_only_mounts() {
    if !can_mount() || !is_root() {
        println!("skipped: only root mounts a volume again");
        return;
    }
    let bench = Bench::new();
    let mounted = bench.mount("rw");
    let program = bench.path("foreign.py");
    std::fs::write(&program, FOREIGN).expect("a program");
    let point = bench.path("mnt");
    let command = |name: &str, more: &str| {
        let bytes: Vec<u8> = point.as_os_str().as_bytes().to_vec();
        format!(
            r#"{{"{name}": {{{more} {{"volume": {{"Unix": {bytes:?}}}, "path": {{"Unix": [47]}}}}}}}}"#
        )
    };
    let resize = command("Resize", r#""size": "500m", "offline": false, "volume":"#);
    let info = command("Balance", r#""action": "Status", "place":"#);
    let ask = |remount: &str, command: &str| {
        // A mount namespace of its own, as a container has.
        let script = "mount -o remount,bind,$1 \"$2\" && exec python3 \"$3\" \"$2\" \"$4\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", script, "sh", remount]);
        let output = unshare.args([&point, &program]).arg(command).output();
        said(&output.expect("unshare runs"))
    };
    let refused = ask("ro", &resize);
    assert!(refused.contains("is mounted read-only"), "{refused}");
    let looked = ask("ro", &info);
    assert!(looked.contains("No balance found"), "{looked}");
    let done = ask("rw", &resize);
    assert!(done.contains("and has 500"), "{done}");
    bench.run(&["umount", "mnt"]);
    drop(mounted);
    bench.check();
}
