//! Volumes that run full. ENOSPC comes before anything changed, what was
//! accepted is kept, files can still be deleted, and then there is room again.

use butterfs::{
    FallocateMode, FileDevice, FsError, InodeId, NewInode, OpenOptions, Owner, StoreError,
    Subvolume, Volume,
};
use butterfs_admin::balance::{self, BalanceError, Filter, Filters, Redundancy};
use butterfs_admin::mkfs::{Layout, MkfsOptions, make};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_testkit::content::content;
use butterfs_testkit::judge::{
    Access as KernelAccess, KernelMount, judge_image, mkfs_btrfs, scratch_dir,
};
use butterfs_testkit::{Capability, Random, differential};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const S_IFREG: u32 = 0o100_000;

/// A volume, with what its files must contain.
struct Bench {
    image: PathBuf,
    options: OpenOptions,
    volume: Option<Volume>,
    files: BTreeMap<String, Vec<u8>>,
    _dir: Option<tempfile::TempDir>,
}

fn is_full(error: &FsError) -> bool {
    matches!(error, FsError::Store(StoreError::NoSpace))
}

impl Bench {
    fn new(mib: u64, node_size: u32) -> Self {
        Self::with(mib, node_size, Layout::Separate)
    }

    fn with(mib: u64, node_size: u32, mixed: Layout) -> Self {
        let dir = scratch_dir();
        let image = dir.path().join("small.img");
        let device = FileDevice::create(&image, mib << 20).unwrap();
        let mut mkfs = MkfsOptions {
            node_size,
            mixed,
            ..MkfsOptions::default()
        };
        // Debian's btrfs check does not know it.
        mkfs.features.change("^block-group-tree").unwrap();
        make(&device, &mkfs).unwrap();
        drop(device);
        Self::on(image, Subvolume::Default, Some(dir))
    }

    fn on(image: PathBuf, subvolume: Subvolume, dir: Option<tempfile::TempDir>) -> Self {
        let mut options = OpenOptions {
            subvolume,
            ..OpenOptions::default()
        };
        options.files.buffer_bytes = 32 << 20;
        let volume = Some(Volume::open(&image, options.clone()).unwrap());
        Self {
            image,
            options,
            volume,
            files: BTreeMap::new(),
            _dir: dir,
        }
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    fn root(&self) -> InodeId {
        self.volume().files().root()
    }

    /// Creates a file and writes as much of `data` as there is room for. True
    /// if that is all of it. What was accepted must be kept, so `files` has it.
    fn write(&mut self, name: &str, data: &[u8]) -> bool {
        let volume = self.volume.as_ref().unwrap();
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let inode = match volume.files().create(self.root(), name.as_bytes(), &new) {
            Ok(inode) => inode,
            Err(error) => {
                assert!(is_full(&error), "{name}: {error}");
                let there = volume.resolve(name.as_bytes());
                assert!(there.is_err(), "what failed left a name");
                return false;
            }
        };
        let mut done = 0;
        while done < data.len() {
            let end = data.len().min(done + (256 << 10));
            match volume.files().write(&inode, done as u64, &data[done..end]) {
                Ok(count) => done += count,
                Err(error) => {
                    assert!(is_full(&error), "{name}: {error}");
                    let size = volume.files().attributes_of(&inode).unwrap().size;
                    assert_eq!(size, done as u64, "what failed changed nothing");
                    break;
                }
            }
        }
        self.files.insert(name.to_owned(), data[..done].to_vec());
        done == data.len()
    }

    fn delete(&mut self, name: &str) {
        let gone = self.volume().files().unlink(self.root(), name.as_bytes());
        gone.unwrap_or_else(|error| panic!("{name} cannot be deleted: {error}"));
        self.files.remove(name);
    }

    /// How full the block groups are.
    fn space(&self) -> String {
        let engine = self.volume().files().store().read();
        let lines = engine.groups().map(|group| {
            let flags = group.flags.describe();
            let (length, used) = (group.length >> 10, group.used >> 10);
            let (promised, left) = (group.promised >> 10, group.available() >> 10);
            format!("{flags}: {length} KiB, {used} used, {promised} promised, {left} left")
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn assert_alive(&self, when: &str) {
        self.volume()
            .sync()
            .unwrap_or_else(|error| panic!("{when}: {error}\n{}", self.space()));
        assert_eq!(self.volume().failure(), None, "{when}");
    }

    fn reopen(&mut self) {
        self.volume().close().unwrap();
        self.volume = None;
        self.volume = Some(Volume::open(&self.image, self.options.clone()).unwrap());
    }

    fn assert_content(&self) {
        for (name, data) in &self.files {
            let found = self.volume().read_file(name.as_bytes()).unwrap();
            assert!(found == *data, "{name} is not what was accepted");
        }
    }

    fn judge(&mut self, when: &str) {
        self.volume().close().unwrap();
        self.volume = None;
        judge_image(&self.image, when);
        self.volume = Some(Volume::open(&self.image, self.options.clone()).unwrap());
    }
}

/// Fills, empties and fills again. `size` gives the length of each file.
fn fill_and_empty(bench: &mut Bench, what: &str, size: impl Fn(u64) -> usize) {
    let mut least = usize::MAX;
    for round in 0..2 {
        let mut number = 0;
        // A file that does not fit may be followed by a smaller one that does.
        let mut failed = 0;
        while failed < 3 {
            let name = format!("{what} {round} {number}");
            if !bench.write(&name, &content(number, size(number))) {
                failed += 1;
            }
            number += 1;
            assert!(number < 2_000_000, "{what}: never full");
        }
        bench.assert_alive(&format!("{what}, full for time {round}"));
        assert!(
            !bench
                .volume()
                .write_file(b"more", &[1; 8 << 20])
                .is_ok_and(|()| true)
        );
        bench.assert_alive("after a write that does not fit");
        if bench.volume().resolve(b"more").is_ok() {
            bench.files.insert(
                "more".to_owned(),
                bench.volume().read_file(b"more").unwrap(),
            );
            bench.delete("more");
        }
        bench.reopen();
        bench.assert_content();
        // The first round leaves a part, the second nothing.
        let names: Vec<String> = bench.files.keys().cloned().collect();
        for (at, name) in names.iter().enumerate() {
            if round == 1 || at % 4 != 0 {
                bench.delete(name);
            }
        }
        bench.assert_alive(&format!("{what}, emptied for time {round}"));
        least = least.min(names.len());
        assert!(
            bench.write("again", &content(1, 1 << 20)),
            "there is room again"
        );
        bench.assert_alive("written again");
        bench.delete("again");
    }
    assert!(least > 3, "{what}: {least} files");
    bench.judge(what);
    bench.assert_content();
}

const SIZES_MIB: [u64; 5] = [114, 128, 200, 512, 1024];

#[test]
fn full_of_data() {
    for (at, mib) in SIZES_MIB.into_iter().enumerate() {
        let mut bench = Bench::new(mib, [16384, 4096][at % 2]);
        let large = (mib << 20) as usize / 20;
        fill_and_empty(&mut bench, &format!("data, {mib} MiB"), |number| {
            large / (1 + number as usize % 5)
        });
    }
}

#[test]
fn full_of_small_files() {
    for (at, mib) in SIZES_MIB[..4].iter().enumerate() {
        let mut bench = Bench::new(*mib, [4096, 16384][at % 2]);
        fill_and_empty(&mut bench, &format!("metadata, {mib} MiB"), |number| {
            [1900, 0, 700][number as usize % 3]
        });
    }
}

#[test]
fn full_with_small_extents() {
    let mut bench = Bench::new(160, 16384);
    fill_and_empty(&mut bench, "small extents", |number| {
        4096 * (1 + number as usize % 3)
    });
}

/// Data and metadata take from the same block groups.
#[test]
fn full_when_mixed() {
    let sizes: [fn(u64) -> usize; 4] = [
        |number| (3 << 20) / (1 + number as usize % 5),
        |number| [1900, 0, 700][number as usize % 3],
        |number| 4096 * (1 + number as usize % 3),
        |number| [1 << 20, 1900, 5000, 40_000][number as usize % 4],
    ];
    for (at, size) in sizes.into_iter().enumerate() {
        let mut bench = Bench::with(40, 4096, Layout::Mixed);
        fill_and_empty(&mut bench, &format!("mixed {at}"), size);
    }
}

fn btrfs(args: &[&str]) {
    let out = Command::new("btrfs").args(args).output().unwrap();
    assert!(
        out.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

fn fill_by_kernel(mount: &Path) {
    let base = mount.join("base");
    btrfs(&["subvolume", "create", base.to_str().unwrap()]);
    for number in 0..300_u64 {
        let data = content(number, 20_000 + number as usize * 200);
        std::fs::write(base.join(format!("old {number}")), data).unwrap();
        std::fs::write(base.join(format!("tiny {number}")), "tiny").unwrap();
        if number % 60 == 0 {
            let target = mount.join(format!("snapshot {number}"));
            let paths = [base.to_str().unwrap(), target.to_str().unwrap()];
            btrfs(&["subvolume", "snapshot", "-r", paths[0], paths[1]]);
        }
    }
}

/// Deleting what snapshots share frees nothing, and needs room for the nodes
/// that are copied.
#[test]
fn full_with_snapshots() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let dir = scratch_dir();
    let image = dir.path().join("shared.img");
    mkfs_btrfs(&image, 256 << 20, &["-n", "4096"]);
    let mount = KernelMount::mount(&image, KernelAccess::ReadWrite, "").unwrap();
    fill_by_kernel(mount.path());
    mount.unmount().unwrap();
    let mut bench = Bench::on(image, Subvolume::Path(b"base".to_vec()), Some(dir));
    let mut number = 0;
    while bench.write(&format!("new {number}"), &content(number, 700_000)) {
        number += 1;
    }
    while bench.write(&format!("small {number}"), &[7; 1500]) {
        number += 1;
    }
    bench.assert_alive("full");
    for number in 0..300 {
        for kind in ["old", "tiny"] {
            let name = format!("{kind} {number}");
            bench.files.insert(name.clone(), Vec::new());
            bench.delete(&name);
        }
    }
    bench.assert_alive("what is shared is deleted");
    let mine: Vec<String> = bench.files.keys().cloned().collect();
    for name in &mine {
        bench.delete(name);
    }
    bench.assert_alive("emptied");
    assert!(
        bench.write("again", &content(1, 1 << 20)),
        "there is room again"
    );
    bench.judge("snapshots");
    bench.assert_content();
}

/// Random writes, deletions and truncations, again and again on an almost full
/// volume.
fn soak(seed: u64) {
    let mut random = Random::new(seed);
    let mib = *random.pick(&[114, 130, 180, 260]);
    let node_size = *random.pick(&[4096, 16384, 65536]);
    let mut bench = match seed % 4 {
        3 => Bench::with(mib / 3, 4096, Layout::Mixed),
        _ => Bench::new(mib, node_size),
    };
    let usual = *random.pick(&[1500, 30_000, 900_000]);
    let mut fills = 0;
    let mut number = 0;
    while fills < 6 {
        let name = format!("{number}");
        number += 1;
        let length = random.below(usual) as usize;
        let fits = bench.write(&name, &content(random.bits(), length));
        if fits && random.one_in(12) {
            let from = format!("{}", random.below(number));
            let name = bench.files.range(from..).next();
            if let Some(name) = name.map(|(name, _)| name.clone()) {
                bench.delete(&name);
            }
        }
        if !fits {
            fills += 1;
            bench.assert_alive(&format!("seed {seed}, full for time {fills}"));
            let names: Vec<String> = bench.files.keys().cloned().collect();
            for name in &names {
                if random.one_in(2) {
                    bench.delete(name);
                }
            }
        }
        if random.one_in(40) {
            truncate_one(&mut bench, &mut random);
        }
        if random.one_in(200) {
            bench.assert_alive(&format!("seed {seed}"));
        }
        if random.one_in(2000) {
            bench.reopen();
        }
        assert!(number < 400_000, "seed {seed}: never full");
    }
    bench.reopen();
    bench.assert_content();
    bench.judge(&format!("seed {seed}"));
}

fn truncate_one(bench: &mut Bench, random: &mut Random) {
    if bench.files.is_empty() {
        return;
    }
    let which = random.below(bench.files.len() as u64) as usize;
    let (name, data) = bench.files.iter().nth(which).unwrap();
    let (name, mut data) = (name.clone(), data.clone());
    let size = random.below(data.len() as u64 + 1) as usize;
    let volume = bench.volume();
    let id = volume.resolve(name.as_bytes()).unwrap();
    let inode = volume.files().inode(id).unwrap();
    match volume.files().truncate(&inode, size as u64) {
        Ok(()) => {
            data.truncate(size);
            bench.files.insert(name, data);
        }
        Err(error) => assert!(is_full(&error), "{name}: {error}"),
    }
}

#[test]
fn at_the_brim_again_and_again() {
    for seed in differential::seeds(0..6) {
        soak(seed);
    }
}

/// If each extent of a scattered file is estimated at its worst case, deleting
/// the file exceeds what one commit may change.
#[test]
fn a_file_in_many_extents_is_deleted_when_full() {
    let mut bench = Bench::new(400, 4096);
    {
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let files = bench.volume().files();
        let made = ["kept", "gone"].map(|name| {
            let made = files.create(bench.root(), name.as_bytes(), &new);
            made.unwrap()
        });
        for at in (0..20_000).map(|at| at * 4096) {
            for inode in &made {
                let mode = FallocateMode::AllocateKeepSize;
                files.fallocate(inode, mode, at, 4096).unwrap();
            }
        }
    }
    bench.files.insert("kept".to_owned(), Vec::new());
    bench.write("rest", &content(1, 400 << 20));
    let mut number = 0;
    while bench.write(&format!("small {number}"), &[7; 1500]) {
        number += 1;
    }
    bench.assert_alive("full");
    bench.files.insert("gone".to_owned(), Vec::new());
    bench.delete("gone");
    bench.assert_alive("one file is gone");
    assert!(
        bench.write("again", &content(1, 1 << 20)),
        "there is room again"
    );
    bench.judge("many extents");
    bench.assert_content();
}

/// Files of 16 KiB need an extent each, and a commit of many such files could
/// change any leaf. Space that metadata do not need stays for data. The kernel
/// fits 1.69 GiB of data into 1.91 GiB.
#[test]
fn metadata_take_little_more_than_they_need() {
    const FILE: usize = 16 << 10;
    let mib = 1953;
    let bench = Bench::new(mib, 16384);
    let files = bench.volume().files();
    let data = content(5, FILE);
    let write = |number: u64| -> Result<(), FsError> {
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let inode = files.create(bench.root(), format!("{number}").as_bytes(), &new)?;
        files.write(&inode, 0, &data).map(drop)
    };
    let mut number = 0;
    let error = loop {
        match write(number) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(is_full(&error), "{error}");
    bench.assert_alive("full of files of 16 KiB");
    let held = number * FILE as u64;
    assert!(held > (mib << 20) / 4 * 3, "{} MiB", held >> 20);
}

/// A volume whose free space is promised to written data, but for `left` bytes,
/// with small files beside it. Gives the small files.
fn promise_nearly_all(bench: &mut Bench, left: u64) -> Vec<String> {
    let small: Vec<String> = (0..600).map(|number| format!("small {number}")).collect();
    for (number, name) in small.iter().enumerate() {
        assert!(bench.write(name, &content(number as u64, 5000)));
    }
    let mut number = 0;
    while bench.write(&format!("fill {number}"), &content(number, 1 << 20)) {
        number += 1;
    }
    bench.assert_alive("full");
    for number in number - 3..number {
        bench.delete(&format!("fill {number}"));
    }
    bench.assert_alive("some is free");
    let free = bench.volume().usage().data_free.saturating_sub(left) as usize;
    assert!(free > 1 << 20, "{free} bytes are free");
    assert!(bench.write("promised", &content(7, free / 4096 * 4096)));
    small
}

/// Growing files, punching holes and sharing changes sectors at the edges. That
/// takes no space that was promised to data of other files.
#[test]
fn changes_at_edges_leave_promised_space_alone() {
    let mut bench = Bench::new(160, 16384);
    let small = promise_nearly_all(&mut bench, 256 << 10);
    let (mut grown, mut refused) = (0, 0);
    for (at, name) in small.iter().enumerate() {
        let volume = bench.volume();
        let files = volume.files();
        let inode = files
            .inode(volume.resolve(name.as_bytes()).unwrap())
            .unwrap();
        let mut after = bench.files[name].clone();
        let done = match at % 3 {
            0 => {
                after.resize(9000, 0);
                files.truncate(&inode, 9000)
            }
            1 => {
                after[100..4200].fill(0);
                files.fallocate(&inode, FallocateMode::PunchHole, 100, 4100)
            }
            _ => {
                after[10..5000].fill(0);
                files.fallocate(&inode, FallocateMode::ZeroRangeKeepSize, 10, 4990)
            }
        };
        match done {
            Ok(()) => {
                grown += 1;
                bench.files.insert(name.clone(), after);
            }
            Err(error) => {
                assert!(is_full(&error), "{name}: {error}");
                refused += 1;
            }
        }
    }
    assert!(grown > 5 && refused > 100, "{grown} changed, {refused} not");
    // What was refused changed nothing, and what was accepted is there.
    bench.assert_content();
    bench.assert_alive("with all that was promised");
    bench.reopen();
    bench.assert_content();
    bench.judge("edges");
}

/// A range is not zeroed if no space remains for the zeros.
#[test]
fn zeros_that_have_no_space_change_nothing() {
    let mut bench = Bench::new(160, 16384);
    let mut number = 0;
    while bench.write(&format!("fill {number}"), &content(number, 4 << 20)) {
        number += 1;
    }
    bench.assert_alive("full");
    let volume = bench.volume();
    let inode = volume.resolve(b"fill 0").unwrap();
    let inode = volume.files().inode(inode).unwrap();
    let done = volume
        .files()
        .fallocate(&inode, FallocateMode::ZeroRange, 1000, 3 << 20);
    assert!(is_full(&done.expect_err("nothing is free")));
    bench.assert_content();
    // Space that is preallocated already stays, and no other is needed.
    bench.delete("fill 1");
    bench.assert_alive("some is free");
    let files = bench.volume().files();
    let inode = bench.volume().resolve(b"fill 0").unwrap();
    let inode = files.inode(inode).unwrap();
    files
        .fallocate(&inode, FallocateMode::ZeroRange, 1000, 3 << 20)
        .expect("there is space");
    bench.files.get_mut("fill 0").unwrap()[1000..1000 + (3 << 20)].fill(0);
    let mut number = 0;
    while bench.write(&format!("more {number}"), &content(number, 256 << 10)) {
        number += 1;
    }
    bench.assert_alive("full again");
    let files = bench.volume().files();
    let inode = bench.volume().resolve(b"fill 0").unwrap();
    let inode = files.inode(inode).unwrap();
    files
        .fallocate(&inode, FallocateMode::ZeroRange, 8192, 1 << 20)
        .expect("it has space already");
    bench.assert_content();
    bench.judge("zeros");
    bench.assert_content();
}

/// A balance that fails for lack of space is over, and one that frees an empty
/// block group needs none.
#[test]
fn a_balance_without_space_leaves_nothing_that_waits() {
    for mib in [114, 128] {
        let mut bench = Bench::new(mib, 16384);
        let mut failed = 0;
        for number in 0..2_000_000_u32 {
            if !bench.write(&format!("{number:0250}"), b"") {
                failed += 1;
                if failed == 3 {
                    break;
                }
            }
        }
        assert_eq!(failed, 3, "never full");
        bench.reopen();
        let balanced = |bench: &Bench, filters: &Filters| {
            let store = Arc::clone(bench.volume().files().store());
            let done = balance::start(&store, filters, Redundancy::Kept, &mut |_| None);
            assert!(balance::waiting(&store).unwrap().is_none());
            done
        };
        let only = Filters {
            data: Some(Filter::parse("usage=1,limit=2").unwrap()),
            metadata: None,
            system: None,
        };
        let (progress, _) = balanced(&bench, &only).expect("it frees what is empty");
        assert!(progress.expected > 0);
        match balanced(&bench, &Filters::all()) {
            Ok(_) | Err(BalanceError::Store(StoreError::NoSpace)) => {}
            Err(error) => panic!("{mib} MiB: {error}"),
        }
        bench.assert_alive("after balances");
        bench.judge("balanced when full");
        bench.assert_content();
    }
}

/// Data that find no space move after all when block groups of metadata, which
/// come later, have left theirs.
#[test]
fn a_block_group_without_space_is_tried_again_at_the_end() {
    let mut bench = Bench::new(1024, 16384);
    let groups = |bench: &Bench, flag: BlockGroupFlags| {
        let engine = bench.volume().files().store().read();
        let all = engine.groups().filter(|group| group.flags.contains(flag));
        all.count()
    };
    let inline = content(1, 2000);
    let mut number = 0;
    while groups(&bench, BlockGroupFlags::METADATA) < 3 {
        assert!(bench.write(&format!("small {number}"), &inline));
        number += 1;
    }
    for small in (0..number).filter(|small| small % 50 != 0) {
        bench.delete(&format!("small {small}"));
    }
    bench.reopen();
    for (number, size) in [8 << 20, 1 << 20, 64 << 10].into_iter().enumerate() {
        let mut at = 0;
        while bench.write(&format!("data {number} {at}"), &content(at, size)) {
            at += 1;
        }
    }
    bench.reopen();
    let before = groups(&bench, BlockGroupFlags::METADATA);
    let store = Arc::clone(bench.volume().files().store());
    let mut without_space = 0;
    let (progress, end) = balance::start(&store, &Filters::all(), Redundancy::Kept, &mut |now| {
        without_space = without_space.max(now.without_space);
        None
    })
    .unwrap();
    drop(store);
    let after = groups(&bench, BlockGroupFlags::METADATA);
    assert!(
        after < before,
        "{before} and {after} block groups\n{}",
        bench.space()
    );
    assert!(without_space > 0, "nothing was without space at first");
    assert_eq!(end, balance::End::Done);
    assert_eq!(progress.without_space, 0, "{}", bench.space());
    assert_eq!(progress.completed, progress.expected);
    assert_eq!(progress.considered, progress.expected);
    bench.judge("balanced");
    bench.assert_content();
}

fn new_file(volume: &Volume, name: &str) -> Arc<butterfs::Inode> {
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let files = volume.files();
    files.create(files.root(), name.as_bytes(), &new).unwrap()
}

/// As in the kernel, preallocation gets the last sector.
#[test]
fn preallocation_gets_all_of_the_data_space() {
    let bench = Bench::new(256, 16384);
    let volume = bench.volume.as_ref().unwrap();
    let file = new_file(volume, "all");
    let mut end = 0;
    for step in [64 << 20, 4 << 20, 256 << 10, 16 << 10, 4096] {
        while volume
            .files()
            .fallocate(&file, FallocateMode::Allocate, end, step)
            .inspect_err(|error| assert!(is_full(error), "{error}"))
            .is_ok()
        {
            end += step;
        }
    }
    assert_eq!(volume.usage().data_free, 0, "{end}");
    volume
        .files()
        .unlink(volume.files().root(), b"all")
        .unwrap();
}

/// The server of a mount lets a removed file go a little after its removal. What
/// needs its space waits for that.
#[test]
fn space_of_a_removed_file_that_is_let_go_late_is_waited_for() {
    const LENGTH: u64 = 120 << 20;
    let bench = Bench::new(256, 16384);
    let volume = bench.volume.as_ref().unwrap();
    let files = volume.files();
    let written = vec![7; 1 << 20];
    for round in 0..4 {
        let old = new_file(volume, "old");
        files
            .fallocate(&old, FallocateMode::Allocate, 0, LENGTH)
            .unwrap();
        volume.sync().unwrap();
        files.pin(&old);
        files.unlink(files.root(), b"old").unwrap();
        let new = new_file(volume, "new");
        std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                files.unpin(&old, 1).unwrap();
            });
            if round % 2 == 0 {
                files
                    .fallocate(&new, FallocateMode::Allocate, 0, LENGTH)
                    .unwrap();
            } else {
                for at in (0..LENGTH).step_by(1 << 20) {
                    files.write(&new, at, &written).unwrap();
                }
            }
        });
        drop(new);
        files.unlink(files.root(), b"new").unwrap();
        volume.sync().unwrap();
    }
}
