//! Rules that change while files are open: a subvolume becomes read-only or is
//! deleted, quotas are switched on.

mod common;

use butterfs_format::TreeId;
use butterfs_format::item::qgroup::GroupId;
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::subvolume::du::Limits;
use butterfs_fs::{Filesystem, FsError, Inode};
use butterfs_store::{Access, LimitChange, QuotaMode};
use common::{check, mkfs, open_subvolume};
use std::ops::ControlFlow;
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn subvolume(fs: &Filesystem) -> TreeId {
    let directory = NewInode::new(S_IFDIR | 0o755, Owner::default());
    fs.create_subvolume(fs.root(), b"sub", &directory).unwrap()
}

fn file(fs: &Filesystem, tree: TreeId, name: &str) -> Arc<Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let root = Filesystem::root_of(tree);
    fs.create(root, name.as_bytes(), &new).unwrap()
}

#[test]
fn a_file_that_was_written_obeys_rules_that_came_later() {
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let tree = subvolume(&fs);
    let inode = file(&fs, tree, "file");
    let mut at = 0;
    let mut write = |mib: usize| {
        let result = fs.write(&inode, at, &vec![at as u8; mib * MIB]);
        at += result.as_ref().map_or(0, |written| *written as u64);
        result.map(|written| assert_eq!(written, mib * MIB))
    };
    write(1).unwrap();
    write(1).unwrap();
    fs.set_subvolume_access(tree, Access::ReadOnly).unwrap();
    for _ in 0..2 {
        assert!(matches!(write(1), Err(FsError::ReadOnlySubvolume)));
        let appended = fs.append(&inode, b"x");
        assert!(matches!(appended, Err(FsError::ReadOnlySubvolume)));
    }
    fs.set_subvolume_access(tree, Access::ReadWrite).unwrap();
    write(1).unwrap();
    write(1).unwrap();
    let go_on = &mut |_: &butterfs_fs::subvolume::du::Progress| ControlFlow::Continue(());
    fs.enable_quotas(QuotaMode::Full, &Limits::default(), go_on)
        .unwrap();
    write(1).unwrap();
    let limit = LimitChange {
        referenced: Some(Some(10 << 20)),
        ..LimitChange::default()
    };
    fs.change_quotas(|engine| {
        Ok(engine
            .quota_state_mut()
            .limit_group(GroupId::of_tree(tree), limit)?)
    })
    .unwrap();
    write(2).unwrap();
    assert!(matches!(write(4), Err(FsError::QuotaExceeded)));
    fs.disable_quotas().unwrap();
    write(4).unwrap();
    write(4).unwrap();
    fs.delete_subvolume(fs.root(), b"sub").unwrap();
    assert!(matches!(write(1), Err(FsError::NotFound)));
    fs.sync_all().unwrap();
    drop(fs);
    check(&image);
}

/// Once the subvolume is read-only, nothing changes any more, whatever was
/// being written.
#[test]
fn nobody_writes_after_a_subvolume_became_read_only() {
    const WRITERS: usize = 3;
    let (_dir, image) = mkfs(256 << 20, &[]);
    let fs = open_subvolume(&image, TreeId::FS);
    let tree = subvolume(&fs);
    let files: Vec<_> = (0..WRITERS)
        .map(|n| file(&fs, tree, &format!("file-{n}")))
        .collect();
    let content = || -> Vec<(u64, Vec<u8>)> {
        let read = |inode: &Arc<Inode>| {
            let mut bytes = vec![0; 64 << 10];
            let read = fs.read(inode, 0, &mut bytes).unwrap();
            bytes.truncate(read);
            (inode.state.read().item.size, bytes)
        };
        files.iter().map(read).collect()
    };
    for round in 0..200_u64 {
        std::thread::scope(|scope| {
            let write = |inode: &Arc<Inode>| {
                for count in 0_u64.. {
                    let data = vec![count as u8; 100];
                    match fs.write(inode, count * 37 % (60 << 10), &data) {
                        Ok(written) => assert_eq!(written, 100),
                        Err(FsError::ReadOnlySubvolume) => return,
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            let writers: Vec<_> = files
                .iter()
                .map(|inode| scope.spawn(move || write(inode)))
                .collect();
            std::thread::sleep(std::time::Duration::from_micros(round * 10));
            fs.set_subvolume_access(tree, Access::ReadOnly).unwrap();
            let before = content();
            writers
                .into_iter()
                .for_each(|writer| writer.join().unwrap());
            assert_eq!(before, content(), "round {round}");
            assert!(!fs.has_waiting());
        });
        fs.set_subvolume_access(tree, Access::ReadWrite).unwrap();
    }
    drop((files, fs));
    check(&image);
}
