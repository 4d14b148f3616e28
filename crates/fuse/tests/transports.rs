//! io_uring beside /dev/fuse: agreed where it is offered, and all that it is
//! asked served as through the device.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use butterfs_fuse::protocol::Features;
use butterfs_fuse::{Config, Transports, UnmountMode};
use support::{Mount, config, fuse_available, uring_is_offered};

fn has_uring(mount: &Mount) -> bool {
    let agreed = mount.fs.agreed.lock().unwrap();
    agreed.features.contains(Features::OVER_IO_URING)
}

/// Threads of this process whose names begin so.
fn threads_named(prefix: &str) -> usize {
    let names = fs::read_dir("/proc/self/task").unwrap().flatten();
    names
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .filter(|name| name.starts_with(prefix))
        .count()
}

#[test]
fn io_uring_is_agreed_where_it_is_offered_and_wanted() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    assert_eq!(has_uring(&mount), uring_is_offered());
    let plain = Mount::new(Config {
        transports: Transports::Device,
        ..config()
    });
    assert!(!has_uring(&plain));
    for mount in [&mount, &plain] {
        fs::write(mount.path("f"), "x").unwrap();
        assert_eq!(fs::read(mount.path("f")).unwrap(), b"x");
    }
}

/// Requests of every shape: without a body, a name alone, a structure and a
/// name, a structure and data, replies of no, few and many bytes.
#[test]
fn every_shape_of_request_arrives_whole() {
    if !fuse_available() {
        return;
    }
    for transports in [Transports::UringToo, Transports::Device] {
        let mut mount = Mount::new(Config {
            transports,
            ..config()
        });
        let longest = "n".repeat(255);
        let path = mount.path(&longest);
        let data: Vec<u8> = (0..3_000_001u32)
            .map(|at| (at * 7 + at / 251) as u8)
            .collect();
        let file = File::create(&path).unwrap();
        file.write_all_at(&data, 12_345).unwrap();
        file.sync_all().unwrap();
        drop(file);
        let mut read = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut read).unwrap();
        assert!(read[12_345..] == data[..]);
        assert!(read[..12_345].iter().all(|byte| *byte == 0));
        let renamed = mount.path("short");
        fs::rename(&path, &renamed).unwrap();
        std::os::unix::fs::symlink("t".repeat(4000), mount.path("link")).unwrap();
        assert_eq!(
            fs::read_link(mount.path("link")).unwrap().as_os_str().len(),
            4000
        );
        let value = vec![3; 60_000];
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&renamed, "user.large", &value, flags).unwrap();
        let mut room = vec![0; 1 << 16];
        let length = rustix::fs::getxattr(&renamed, "user.large", &mut room[..]).unwrap();
        assert!(room[..length] == value[..]);
        for number in 0..500 {
            File::create(mount.path(&format!("{number:0200}")))
                .unwrap()
                .write_all(b"y")
                .unwrap();
        }
        assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 502);
        assert!(fs::metadata(mount.path("absent")).is_err());
        mount.unmount();
    }
}

#[test]
fn threads_end_with_their_session_and_begin_again() {
    if !fuse_available() {
        return;
    }
    // Other tests of this binary have threads too.
    for _ in 0..20 {
        let mut mount = Mount::new(config());
        fs::write(mount.path("f"), "x").unwrap();
        mount.session.unmount(UnmountMode::Lazy).unwrap();
    }
    let started = std::time::Instant::now();
    while threads_named("fuse-") > 40 {
        assert!(
            started.elapsed().as_secs() < 10,
            "threads of ended sessions stay"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
