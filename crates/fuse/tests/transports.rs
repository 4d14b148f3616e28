//! io_uring beside /dev/fuse: agreed on if it is offered, and every request
//! served as through the device.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use butterfs_fuse::protocol::Features;
use butterfs_fuse::{Config, Transports, UnmountMode};
use support::{Mount, config, fuse_available, uring_is_offered};

fn has_uring(mount: &Mount) -> bool {
    let agreed = mount.fs.agreed.lock().unwrap();
    agreed.features.contains(Features::OVER_IO_URING)
}

/// Threads of this process whose names begin with this.
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

/// More requests at once, from one CPU, than there are threads for it: none
/// waits for another.
#[test]
fn a_burst_of_waiting_fsyncs_does_not_stop_others() {
    const BURST: usize = 24;
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(Config {
        spare_threads: 2 * BURST,
        ..config()
    });
    let files: Vec<File> = (0..BURST)
        .map(|number| File::create(mount.path(&format!("f{number}"))).unwrap())
        .collect();
    let stay = || {
        let own = rustix::thread::sched_getaffinity(None).unwrap();
        let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| own.is_set(*cpu));
        let mut only = rustix::thread::CpuSet::new();
        only.set(first.unwrap());
        rustix::thread::sched_setaffinity(None, &only).unwrap();
    };
    let passes = |condition: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(10);
        while !condition() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        condition()
    };
    // Of the whole machine; nothing else makes the kernel warn.
    let warnings = || fs::read_to_string("/sys/kernel/warn_count").ok();
    let warned = warnings();
    mount.fs.hold_fsync();
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || {
                stay();
                file.sync_all().unwrap();
            });
        }
        let all_wait = passes(&|| mount.fs.calls("fsync") == BURST);
        scope.spawn(|| {
            stay();
            fs::write(mount.path("other"), "x").unwrap();
        });
        let is_served = passes(&|| mount.fs.calls("write") == 1);
        // Otherwise the threads above would be waited for without end.
        mount.fs.release_fsync();
        assert!(all_wait, "all fsyncs run at once");
        assert!(is_served, "the rest is served");
    });
    assert_eq!(warnings(), warned, "the kernel warned; see dmesg");
}
