use butterfs_device::{Access, FileDevice};
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{OpenOptions, Store};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {text}");
    text
}

fn open(path: &Path) -> Filesystem {
    let device = FileDevice::open(path, Access::ReadWrite).unwrap();
    let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
    Filesystem::new(Arc::new(store), TreeId::FS, Options::default())
}

fn check(path: &Path) {
    for mode in ["original", "lowmem"] {
        let text = run(
            "btrfs",
            &[
                "check",
                "--mode",
                mode,
                "--check-data-csum",
                path.to_str().unwrap(),
            ],
        );
        assert!(text.contains("no error found"), "{text}");
        assert!(!text.contains("mismatch"), "{text}");
    }
}

#[test]
fn names() {
    for extra in [
        &["-n", "4096"][..],
        &[],
        &["-M"],
        &["-R", "^free-space-tree"],
        &["-O", "^no-holes,^skinny-metadata"],
    ] {
        eprintln!("{extra:?}");
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("v.img");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(if extra.contains(&"-M") {
                200 << 20
            } else {
                1 << 30
            })
            .unwrap();
        let p = path.to_str().unwrap();
        run("mkfs.btrfs", &[extra, &["-q", p]].concat());
        let fs = open(&path);
        let owner = Owner::default();
        let t = Instant::now();
        let mut dirs: Vec<InodeId> = vec![];
        for d in 0..20 {
            let inode = fs
                .create(
                    fs.root(),
                    format!("dir{d}").as_bytes(),
                    &NewInode::new(S_IFDIR | 0o755, owner),
                )
                .unwrap();
            dirs.push(inode.id);
            for f in 0..1000 {
                fs.create(
                    inode.id,
                    format!("file-{f:05}").as_bytes(),
                    &NewInode::new(S_IFREG | 0o644, owner),
                )
                .unwrap();
            }
        }
        eprintln!("create {:?}", t.elapsed());
        let t = Instant::now();
        fs.store().commit().unwrap();
        eprintln!("commit {:?}", t.elapsed());
        check(&path);
        for (i, d) in dirs.iter().enumerate() {
            for f in 0..1000 {
                let name = format!("file-{f:05}");
                let from = Place {
                    dir: *d,
                    name: name.as_bytes(),
                };
                match (f + i) % 7 {
                    0 => fs.unlink(*d, name.as_bytes()).unwrap(),
                    1 => {
                        let id = fs.lookup(*d, name.as_bytes()).unwrap().inode;
                        fs.link(id, dirs[(i + 3) % 20], format!("link{i}-{f}").as_bytes())
                            .unwrap();
                    }
                    2 => fs
                        .rename(
                            from,
                            Place {
                                dir: dirs[(i + 5) % 20],
                                name: format!("moved{i}-{f}").as_bytes(),
                            },
                            RenameMode::Replace,
                            OldName::Free,
                        )
                        .unwrap(),
                    3 => fs
                        .set_xattr(
                            &fs.inode(fs.lookup(*d, name.as_bytes()).unwrap().inode)
                                .unwrap(),
                            b"user.x",
                            &vec![1; f],
                            Default::default(),
                        )
                        .unwrap(),
                    4 => {
                        fs.create(
                            *d,
                            format!("sym{f}").as_bytes(),
                            &NewInode::symlink(b"../target", owner),
                        )
                        .unwrap();
                    }
                    _ => {}
                }
            }
            if i % 5 == 0 {
                fs.store().commit().unwrap();
                check(&path);
            }
        }
        fs.store().commit().unwrap();
        drop(fs);
        check(&path);
        let mnt = dir.path().join("mnt");
        std::fs::create_dir(&mnt).unwrap();
        run("mount", &["-o", "loop", p, mnt.to_str().unwrap()]);
        let n = run("find", &[mnt.to_str().unwrap()]).lines().count();
        run("cp", &["-r", "/etc", mnt.join("etc").to_str().unwrap()]);
        run("umount", &[mnt.to_str().unwrap()]);
        check(&path);
        let fs = open(&path);
        let mut count = 1;
        let mut stack = vec![fs.root()];
        while let Some(d) = stack.pop() {
            let mut entries = vec![];
            fs.read_dir(d, 2, &mut |e| {
                entries.push(e);
                true
            })
            .unwrap();
            for e in entries {
                count += 1;
                if fs.attributes(e.target.inode).unwrap().is_directory() {
                    stack.push(e.target.inode);
                }
            }
        }
        let etc = run("find", &["/etc"]).lines().count();
        assert_eq!(count, n + etc);
        // empty it
        fn rm(fs: &Filesystem, d: InodeId) {
            let mut entries = vec![];
            fs.read_dir(d, 2, &mut |e| {
                entries.push(e);
                true
            })
            .unwrap();
            for e in entries {
                if fs.attributes(e.target.inode).unwrap().is_directory() {
                    rm(fs, e.target.inode);
                    fs.rmdir(d, &e.name).unwrap();
                } else {
                    fs.unlink(d, &e.name).unwrap();
                }
            }
        }
        let t = Instant::now();
        rm(&fs, fs.root());
        eprintln!("rm {count} {:?}", t.elapsed());
        fs.store().commit().unwrap();
        check(&path);
        fs.create(fs.root(), b"x", &NewInode::new(S_IFREG | 0o644, owner))
            .unwrap();
        fs.store().commit().unwrap();
        check(&path);
    }
}
