//! Load, panics, waiting handlers, aborts.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use butterfs_fuse::{Config, Pinning, UnmountMode};
use support::{Mount, config, fuse_available, skip};

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_panic_answers_eio_and_the_mount_lives() {
    if !fuse_available() {
        return;
    }
    let mut mount = Mount::new(Config {
        threads: 1,
        ..config()
    });
    fs::write(mount.path("f"), "alive").unwrap();
    for _ in 0..5 {
        let error = fs::metadata(mount.path("panic")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"alive");
    mount.unmount();
    assert_eq!(mount.fs.destroyed.load(Ordering::Relaxed), 1);
}

#[test]
fn a_waiting_fsync_does_not_stop_others() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(Config {
        threads: 1,
        ..config()
    });
    let files: Vec<File> = (0..6)
        .map(|number| File::create(mount.path(&format!("f{number}"))).unwrap())
        .collect();
    mount.fs.hold_fsync();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = files
            .iter()
            .map(|file| scope.spawn(|| file.sync_all().unwrap()))
            .collect();
        eventually("all fsyncs run at once", || mount.fs.calls("fsync") == 6);
        // The only request slot is still served.
        fs::write(mount.path("other"), "x").unwrap();
        assert_eq!(fs::read(mount.path("other")).unwrap(), b"x");
        assert!(waiting.iter().all(|thread| !thread.is_finished()));
        mount.fs.release_fsync();
    });
    for file in &files {
        file.sync_all().unwrap();
    }
    assert_eq!(mount.fs.calls("fsync"), 12);
}

#[test]
fn an_interrupt_reaches_the_file_system() {
    if !fuse_available() {
        return;
    }
    let mount = Mount::new(config());
    fs::write(mount.path("f"), "x").unwrap();
    mount.fs.hold_fsync();
    let mut child = std::process::Command::new("sync")
        .arg(mount.path("f"))
        .spawn()
        .unwrap();
    eventually("sync calls fsync", || mount.fs.calls("fsync") == 1);
    child.kill().unwrap();
    eventually("the interrupt arrives", || mount.fs.calls("interrupt") >= 1);
    mount.fs.release_fsync();
    child.wait().unwrap();
    assert!(mount.path("f").exists());
}

#[test]
fn many_threads_at_once_pinned_or_not() {
    if !fuse_available() {
        return;
    }
    for (threads, pinning) in [
        (4, Pinning::Free),
        (2, Pinning::Cpus(vec![0, 1])),
        (1, Pinning::Cpus(vec![100_000])),
    ] {
        let mut mount = Mount::new(Config {
            threads,
            pinning,
            ..config()
        });
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let mount = &mount;
                scope.spawn(move || {
                    let directory = mount.path(&format!("d{thread}"));
                    fs::create_dir(&directory).unwrap();
                    for number in 0..100 {
                        let path = directory.join(format!("f{number}"));
                        let data = vec![thread as u8; number * 97];
                        fs::write(&path, &data).unwrap();
                        assert!(fs::read(&path).unwrap() == data);
                        assert_eq!(fs::metadata(&path).unwrap().size(), data.len() as u64);
                        if number % 2 == 0 {
                            fs::remove_file(&path).unwrap();
                        }
                    }
                    assert_eq!(fs::read_dir(&directory).unwrap().count(), 50);
                });
            }
        });
        mount.unmount();
    }
}

#[test]
fn unmounting_under_load() {
    if !fuse_available() {
        return;
    }
    for round in 0..5 {
        let mut mount = Mount::new(config());
        let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let root = mount.root().to_owned();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (stop, done, path) = (&stop, &done, root.join(format!("f{thread}")));
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        // After the unmount these go to the directory below.
                        let _ = fs::write(&path, "data");
                        let _ = fs::read(&path);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            eventually("there is load", || {
                done.load(Ordering::Relaxed) > 50 * (round + 1)
            });
            mount.session.unmount(UnmountMode::Lazy).unwrap();
            assert_eq!(mount.fs.destroyed.load(Ordering::Relaxed), 1);
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn an_aborted_connection_ends_the_session() {
    if !fuse_available() {
        return;
    }
    let mut mount = Mount::new(config());
    fs::write(mount.path("f"), "x").unwrap();
    let minor = rustix::fs::minor(fs::metadata(mount.root()).unwrap().dev());
    // A view of the control files of our own, whatever is mounted elsewhere.
    let view = tempfile::tempdir().unwrap();
    let flags = rustix::mount::MountFlags::empty();
    let mounted = rustix::mount::mount("fusectl", view.path(), "fusectl", flags, None);
    if mounted.is_err() {
        skip("needs the control file system of FUSE");
        return;
    }
    fs::write(view.path().join(format!("{minor}/abort")), "1").unwrap();
    rustix::mount::unmount(view.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    let unmounter = mount.unmounter();
    eventually("destroy is called or the session joins", || {
        fs::metadata(mount.path("f")).is_err()
    });
    mount.session.unmount(UnmountMode::Lazy).unwrap();
    assert_eq!(mount.fs.destroyed.load(Ordering::Relaxed), 1);
    assert!(!unmounter.is_mounted());
}
