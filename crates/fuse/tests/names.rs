//! Names through the kernel: directories, links, renames, listings, xattrs.

mod support;

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use butterfs_fuse::{Config, Handles, NodeId};
use rustix::fs::{CWD, RenameFlags, XattrFlags};
use support::{Mount, config, fuse_available, skip};

#[test]
fn directories_links_and_special_files() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    fs::create_dir(mount.path("d")).unwrap();
    fs::create_dir(mount.path("d/e")).unwrap();
    assert_eq!(fs::metadata(mount.path("d")).unwrap().nlink(), 3);
    let error = fs::remove_dir(mount.path("d")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTEMPTY));

    fs::write(mount.path("d/f"), "data").unwrap();
    fs::hard_link(mount.path("d/f"), mount.path("g")).unwrap();
    assert_eq!(fs::metadata(mount.path("g")).unwrap().nlink(), 2);
    fs::remove_file(mount.path("d/f")).unwrap();
    assert_eq!(fs::read(mount.path("g")).unwrap(), b"data");

    symlink("d/../g", mount.path("s")).unwrap();
    assert_eq!(
        fs::read_link(mount.path("s")).unwrap().to_str(),
        Some("d/../g")
    );
    assert_eq!(fs::read(mount.path("s")).unwrap(), b"data");
    let long = "x".repeat(4095);
    symlink(&long, mount.path("long")).unwrap();
    assert_eq!(
        fs::read_link(mount.path("long")).unwrap().to_str(),
        Some(&*long)
    );

    let mode = rustix::fs::Mode::from_bits_retain(0o640);
    let device = rustix::fs::makedev(259, 70000);
    rustix::fs::mknodat(
        CWD,
        mount.path("b"),
        rustix::fs::FileType::BlockDevice,
        mode,
        device,
    )
    .unwrap();
    let special = fs::metadata(mount.path("b")).unwrap();
    assert!(special.file_type().is_block_device());
    assert_eq!(special.rdev(), device);

    fs::remove_dir(mount.path("d/e")).unwrap();
    fs::remove_dir(mount.path("d")).unwrap();
    assert!(!mount.path("d").exists());
    for call in [
        "lookup", "mkdir", "rmdir", "unlink", "link", "symlink", "readlink", "mknod",
    ] {
        assert!(mount.fs.calls(call) > 0, "{call}");
    }
}

#[test]
fn renames_with_every_flag() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    fs::write(mount.path("a"), "a").unwrap();
    fs::write(mount.path("b"), "b").unwrap();
    fs::create_dir(mount.path("d")).unwrap();
    let rename = |from: &str, to: &str, flags| {
        rustix::fs::renameat_with(CWD, mount.path(from), CWD, mount.path(to), flags)
    };
    assert_eq!(
        rename("a", "b", RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(mount.path("a")).unwrap(), b"b");
    fs::rename(mount.path("a"), mount.path("d/a")).unwrap();
    fs::rename(mount.path("d/a"), mount.path("b")).unwrap();
    assert_eq!(fs::read(mount.path("b")).unwrap(), b"b");
    assert!(!mount.path("d/a").exists());
    assert!(mount.fs.calls("rename") >= 2 && mount.fs.calls("rename2") >= 1);
}

#[test]
fn ten_thousand_entries_with_seekdir() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    let directory = mount.path("many");
    fs::create_dir(&directory).unwrap();
    for number in 0..10_000 {
        let name = directory.join(format!("entry number {number:05}"));
        let mode = rustix::fs::Mode::from_bits_retain(0o600);
        rustix::fs::mknodat(CWD, name, rustix::fs::FileType::RegularFile, mode, 0).unwrap();
    }
    let names: HashSet<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 10_000);

    // With positions: what follows a position is the same again.
    let mut stream = rustix::fs::Dir::new(File::open(&directory).unwrap()).unwrap();
    let mut positions = vec![0];
    let mut listed = Vec::new();
    while let Some(entry) = stream.read() {
        let entry = entry.unwrap();
        positions.push(entry.offset());
        listed.push(entry.file_name().to_owned());
    }
    for at in [9_000, 1, 5_555, 10_001, 0, 3, 10_002] {
        stream.seek(positions[at]).unwrap();
        let next = stream
            .read()
            .map(|entry| entry.unwrap().file_name().to_owned());
        assert_eq!(next.as_ref(), listed.get(at), "position {at}");
    }
    assert_eq!((positions.len(), listed.len()), (10_003, 10_002));
    assert_eq!(listed[0].to_bytes(), b".");

    // With attributes: every entry was looked up by the listing alone.
    fs::write("/proc/sys/vm/drop_caches", "2").ok();
    let lookups = mount.fs.calls("lookup");
    for entry in fs::read_dir(&directory).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().mode() & 0o777, 0o600);
    }
    assert!(mount.fs.calls("readdirplus") > 0 && mount.fs.calls("readdir") > 0);
    assert!(
        mount.fs.calls("lookup") - lookups < 5_000,
        "listings should bring attributes"
    );
}

#[test]
fn forgotten_nodes_can_go() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    for number in 0..200 {
        fs::write(mount.path(&format!("f{number}")), "x").unwrap();
    }
    // Lists with lookups, so that readdirplus counts are balanced too.
    assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 200);
    for number in 0..200 {
        fs::remove_file(mount.path(&format!("f{number}"))).unwrap();
    }
    for _ in 0..100 {
        if mount.fs.nodes() == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(mount.fs.nodes(), 1, "unlinked files are forgotten");
}

#[test]
fn extended_attributes() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    let path = mount.path("f");
    fs::write(&path, "").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.a", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(
        set("user.a", b"2", XattrFlags::CREATE),
        Err(rustix::io::Errno::EXIST)
    );
    assert_eq!(
        set("user.b", b"2", XattrFlags::REPLACE),
        Err(rustix::io::Errno::NODATA)
    );
    let big = vec![7; 60_000];
    set("user.big", &big, XattrFlags::empty()).unwrap();

    let mut value = vec![0; 65536];
    assert_eq!(
        rustix::fs::getxattr(&path, "user.big", &mut value).unwrap(),
        60_000
    );
    assert_eq!(value[..60_000], big);
    assert_eq!(
        rustix::fs::getxattr_query(&path, "user.big").unwrap(),
        60_000
    );
    assert_eq!(
        rustix::fs::getxattr(&path, "user.big", &mut [0; 10]),
        Err(rustix::io::Errno::RANGE)
    );
    let mut names = vec![0u8; 100];
    let len = rustix::fs::listxattr(&path, &mut names).unwrap();
    assert_eq!(&names[..len], b"user.a\0user.big\0");
    assert_eq!(rustix::fs::listxattr_query(&path).unwrap(), len);
    rustix::fs::removexattr(&path, "user.a").unwrap();
    assert_eq!(
        rustix::fs::getxattr(&path, "user.a", &mut value),
        Err(rustix::io::Errno::NODATA)
    );
}

#[test]
fn attributes_statx_statfs_and_directories_sync() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    let path = mount.path("f");
    fs::write(&path, "12345").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4711)).unwrap();
    std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(3).unwrap();
    let early = std::time::UNIX_EPOCH - std::time::Duration::from_nanos(1_500_000_001);
    file.set_times(fs::FileTimes::new().set_modified(early))
        .unwrap();
    let stat = fs::metadata(&path).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.size()), (12, 34, 3));
    assert_eq!(stat.mode() & 0o777, 0o711);
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (-2, 499_999_999));
    assert_eq!(stat.modified().unwrap(), early);

    assert!(stat.created().unwrap() > std::time::UNIX_EPOCH);
    assert!(mount.fs.calls("statx") > 0);

    let statfs = rustix::fs::statvfs(mount.root()).unwrap();
    assert_eq!(
        (statfs.f_blocks, statfs.f_bavail, statfs.f_namemax),
        (1000, 500, 255)
    );
    assert_eq!(statfs.f_ffree, 33);

    File::open(mount.root()).unwrap().sync_all().unwrap();
    assert_eq!(mount.fs.calls("fsyncdir"), 1);
}

#[test]
fn access_is_asked_where_the_file_system_checks() {
    if !fuse_available() {
        return;
    }
    let mut config = config();
    config.mount.permission_checks = butterfs_fuse::mount::PermissionChecks::FileSystem;
    let mount = Mount::new(config);
    fs::write(mount.path("f"), "").unwrap();
    let access = |wanted| rustix::fs::access(mount.path("f"), wanted);
    access(rustix::fs::Access::READ_OK).unwrap();
    assert_eq!(
        access(rustix::fs::Access::WRITE_OK),
        Err(rustix::io::Errno::ACCESS)
    );
    assert!(mount.fs.calls("access") >= 2);
}

#[test]
fn stateless_opens_and_mknod_instead_of_create() {
    if !fuse_available() {
        return;
    }
    let config = Config {
        open: Handles::Stateless,
        opendir: Handles::Stateless,
        ..config()
    };
    let mount = Mount::new(config);
    mount
        .fs
        .no_create
        .store(true, std::sync::atomic::Ordering::Relaxed);
    fs::write(mount.path("f"), "hello").unwrap();
    fs::write(mount.path("f"), "world!").unwrap();
    fs::write(mount.path("f"), "bye").unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"bye");
    assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 1);
    for call in ["create", "open", "opendir", "release", "releasedir"] {
        assert_eq!(mount.fs.calls(call), 0, "{call}");
    }
    assert!(mount.fs.calls("mknod") == 1);
    // A new file opened for writing without permission to write it.
    let mut options = fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o400);
    let file = options
        .write(true)
        .create_new(true)
        .open(mount.path("ro"))
        .unwrap();
    assert!(file.as_raw_fd() >= 0);
}

#[test]
fn notifications_reach_the_caches() {
    if !fuse_available() {
        return;
    }
    use butterfs_fuse::{EntryChange, InvalidRange};
    let mount = Mount::new(config());
    let path = mount.path("f");
    fs::write(&path, "old data").unwrap();
    let node = mount.fs.find(b"f");
    let notifier = mount.session.notifier();
    assert_eq!(fs::read(&path).unwrap(), b"old data");
    mount.fs.overwrite(node, b"new");
    assert_eq!(fs::read(&path).unwrap(), b"old data", "cached for ever");
    notifier
        .invalidate_inode(node, InvalidRange::Everything)
        .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new data");
    notifier.store(node, 0, b"NEW").unwrap();
    assert_eq!(
        fs::read(&path).unwrap(),
        b"NEW data",
        "the page cache was filled"
    );

    mount.fs.remove(b"f");
    assert!(path.exists(), "cached for ever");
    notifier
        .invalidate_entry(NodeId::ROOT, b"f", EntryChange::Drop)
        .unwrap();
    assert!(!path.exists());

    fs::write(mount.path("g"), "").unwrap();
    let node = mount.fs.remove(b"g");
    notifier.deleted(NodeId::ROOT, node, b"g").unwrap();
    assert!(!mount.path("g").exists());

    fs::write(mount.path("h"), "").unwrap();
    let lookups = mount.fs.calls("lookup");
    notifier
        .invalidate_entry(NodeId::ROOT, b"h", EntryChange::Expire)
        .unwrap();
    assert!(mount.path("h").exists());
    assert_eq!(mount.fs.calls("lookup"), lookups + 1);
    assert!(
        notifier
            .invalidate_entry(NodeId::ROOT, b"none", EntryChange::Drop)
            .is_err()
    );
}

#[test]
fn the_parents_group_comes_with_a_creation() {
    if !fuse_available() {
        return;
    }
    let mut config = config();
    config.mount.allow = butterfs_fuse::mount::Allow::Everyone;
    let mount = Mount::new(config);
    let features = mount.fs.agreed.lock().unwrap().features;
    if !features.contains(butterfs_fuse::Features::CREATE_SUPP_GROUP) {
        skip("needs a kernel that sends supplementary groups");
        return;
    }
    fs::create_dir(mount.path("d")).unwrap();
    std::os::unix::fs::chown(mount.path("d"), None, Some(4242)).unwrap();
    fs::set_permissions(mount.path("d"), fs::Permissions::from_mode(0o2775)).unwrap();
    let status = std::process::Command::new("setpriv")
        .args([
            "--reuid", "65534", "--regid", "65534", "--groups", "17,4242", "touch",
        ])
        .arg(mount.path("d/f"))
        .status();
    if !status.is_ok_and(|status| status.success()) {
        skip("needs setpriv");
        return;
    }
    assert_eq!(*mount.fs.groups.lock(), [4242]);
    assert_eq!(fs::metadata(mount.path("d/f")).unwrap().uid(), 65534);
}
