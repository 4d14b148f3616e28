//! Files come back from volumes with each kind of damage, from volumes that
//! ButterFS made and from volumes that the kernel made. What is not whole is
//! named, and no byte is wrong.
//!
//! `BUTTERFS_FILES` sets the number of files (300 by default), and
//! `BUTTERFS_BESIDE=1` runs `btrfs restore -i` on the same images and prints a
//! table.

use butterfs::{BlockDevice, MemoryDevice, MountOptions, TreeId, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{DeviceOffset, Logical, NodeRef};
use butterfs_rescue::{
    DirectoryTarget, Outcome, Patient, PatientOptions, RestoreOptions, Restored, ScanScope, Silent,
    SurveyOptions, restore, survey,
};
use butterfs_testkit::capability::Capability;
use butterfs_testkit::content::content;
use butterfs_testkit::judge::{Access, KernelMount, mkfs_btrfs, scratch_dir};
use butterfs_tree::NodeSource;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SIZES: [usize; 6] = [0, 100, 3000, 9000, 70_000, 300_000];

fn files() -> u64 {
    let files = std::env::var("BUTTERFS_FILES").ok();
    files.and_then(|text| text.parse().ok()).unwrap_or(300)
}

fn path_of(file: u64) -> String {
    let name = format!("file-{file}-with-a-name-that-takes-some-room-in-its-leaf");
    format!("dir{}/below{}/{name}", file % 7, file % 3)
}

fn bytes_of(file: u64) -> Vec<u8> {
    content(file, SIZES[(file % 6) as usize])
}

/// What is in a volume.
type Oracle = BTreeMap<String, Vec<u8>>;

fn oracle() -> Oracle {
    (0..files())
        .map(|file| (path_of(file), bytes_of(file)))
        .collect()
}

/// A volume that ButterFS made: some files of the past are deleted, and
/// others changed.
fn ours() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(512 << 20));
    let mkfs = MkfsOptions {
        node_size: 4096,
        ..MkfsOptions::default()
    };
    make(&*device, &mkfs).unwrap();
    let options = MountOptions::parse("rw,compress=zstd").unwrap();
    let volume = Volume::open_device(device.clone(), options.open_options()).unwrap();
    for file in 0..files() / 4 {
        volume
            .write_file(format!("/old-{file}"), &content(file, 5000))
            .unwrap();
    }
    volume.sync().unwrap();
    for (path, bytes) in oracle() {
        let (directory, _) = path.rsplit_once('/').unwrap();
        volume.create_dir_all(format!("/{directory}")).unwrap();
        volume
            .write_file(format!("/{path}"), &bytes[..bytes.len() / 2])
            .unwrap();
    }
    volume.sync().unwrap();
    for file in 0..files() / 4 {
        volume.remove_file(format!("/old-{file}")).unwrap();
    }
    for (path, bytes) in oracle() {
        volume.write_file(format!("/{path}"), &bytes).unwrap();
    }
    volume.close().unwrap();
    drop(volume);
    device.snapshot()
}

/// The same, made by the kernel.
fn of_kernel(folder: &Path) -> MemoryDevice {
    let image = folder.join("kernel.img");
    mkfs_btrfs(&image, 512 << 20, &["-n", "4096", "-m", "dup"]);
    let mount = KernelMount::mount(&image, Access::ReadWrite, "compress=lzo").unwrap();
    let sync = || {
        let root = std::fs::File::open(mount.path()).unwrap();
        rustix::fs::syncfs(&root).unwrap();
    };
    for file in 0..files() / 4 {
        std::fs::write(
            mount.path().join(format!("old-{file}")),
            content(file, 5000),
        )
        .unwrap();
    }
    sync();
    for (path, bytes) in oracle() {
        let path = mount.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    }
    sync();
    for file in 0..files() / 4 {
        std::fs::remove_file(mount.path().join(format!("old-{file}"))).unwrap();
    }
    for (path, bytes) in oracle() {
        std::fs::write(mount.path().join(path), bytes).unwrap();
    }
    mount.unmount().unwrap();
    MemoryDevice::load(&image).unwrap()
}

fn open(device: &MemoryDevice) -> Volume {
    let options = MountOptions::parse("ro").unwrap().open_options();
    Volume::open_device(Arc::new(device.snapshot()), options).unwrap()
}

/// Where the nodes of a whole volume are.
struct Anatomy {
    volume: Volume,
}

impl Anatomy {
    fn of(device: &MemoryDevice) -> Self {
        Self {
            volume: open(device),
        }
    }

    fn copies(&self, logical: Logical) -> Vec<DeviceOffset> {
        let space = self.volume.files().store().space();
        let all = 0..space.copies(logical);
        all.map(|copy| space.place(logical, copy).unwrap().offset)
            .collect()
    }

    fn root(&self, tree: TreeId) -> NodeRef {
        let engine = self.volume.files().store().read();
        engine.root(tree).unwrap()
    }

    fn leaves(&self, tree: TreeId) -> Vec<Logical> {
        fn below(source: &impl NodeSource, node: NodeRef, leaves: &mut Vec<Logical>) {
            if node.level == 0 {
                leaves.push(node.logical);
                return;
            }
            let branch = source.node(node).unwrap();
            for slot in 0..branch.len() {
                below(source, branch.child(slot), leaves);
            }
        }
        let engine = self.volume.files().store().read();
        let mut leaves = Vec::new();
        below(&*engine, engine.root(tree).unwrap(), &mut leaves);
        leaves
    }

    /// Nodes of the newest generation, in the trees that every volume has.
    fn newest(&self) -> Vec<Logical> {
        fn below(source: &impl NodeSource, node: NodeRef, newest: u64, found: &mut Vec<Logical>) {
            if node.generation.get() != newest {
                return;
            }
            found.push(node.logical);
            if node.level > 0 {
                let branch = source.node(node).unwrap();
                for slot in 0..branch.len() {
                    below(source, branch.child(slot), newest, found);
                }
            }
        }
        let engine = self.volume.files().store().read();
        let newest = engine.superblock().generation.get();
        let mut found = vec![engine.superblock().root];
        for tree in [TreeId::FS, TreeId::CSUM, TreeId::EXTENT, TreeId::DEVICE] {
            below(&*engine, engine.root(tree).unwrap(), newest, &mut found);
        }
        found
    }

    /// Zeroes all copies of nodes.
    fn zero(&self, device: &MemoryDevice, nodes: &[Logical]) {
        for node in nodes {
            for copy in self.copies(*node) {
                device.write_at(copy, &[0; 4096]).unwrap();
            }
        }
    }
}

/// Another commit, whose nodes are lost again: the superblock names nodes that
/// never came to the device ("parent transid verify failed").
fn lose_a_commit(device: &MemoryDevice) {
    let newer = Arc::new(device.snapshot());
    let options = MountOptions::parse("rw").unwrap().open_options();
    let volume = Volume::open_device(newer.clone(), options).unwrap();
    for file in 0..20 {
        let path = format!("/dir{}/newest-{file}", file % 7);
        volume.write_file(&path, &content(file, 9000)).unwrap();
    }
    volume.close().unwrap();
    drop(volume);
    let (mut old, mut new) = (vec![0; 4096], vec![0; 4096]);
    for at in (0..device.size()).step_by(4096).map(DeviceOffset) {
        device.read_at(at, &mut old).unwrap();
        newer.read_at(at, &mut new).unwrap();
        if old != new {
            device.write_at(at, &new).unwrap();
        }
    }
    let anatomy = Anatomy::of(device);
    anatomy.zero(device, &anatomy.newest());
}

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = vec![0; SIZE];
    device.read_at(COPIES[0], &mut bytes).unwrap();
    Superblock::parse(&bytes, COPIES[0]).unwrap()
}

fn zero_superblocks(device: &MemoryDevice, from: usize) {
    for copy in &COPIES[from..] {
        if copy.get() < device.size() {
            device.write_at(*copy, &[0; SIZE]).unwrap();
        }
    }
}

/// What a restore brought.
struct Back {
    restored: Restored,
    outcomes: BTreeMap<String, Outcome>,
    folder: PathBuf,
    _keep: tempfile::TempDir,
}

fn bring_back(devices: Vec<Arc<dyn BlockDevice>>, options: &RestoreOptions<'_>) -> Back {
    let keep = scratch_dir();
    let folder = keep.path().join("out");
    let mut patient = Patient::open(devices, PatientOptions::default()).unwrap();
    let mut target = DirectoryTarget::new(&folder).unwrap();
    let mut outcomes = BTreeMap::new();
    let restored = restore(
        &mut patient,
        &mut target,
        options,
        &Silent,
        &mut |path, outcome| {
            let path = String::from_utf8(path.join(&b'/')).unwrap();
            outcomes.insert(path, outcome.clone());
        },
    );
    Back {
        restored: restored.unwrap(),
        outcomes,
        folder,
        _keep: keep,
    }
}

/// Files of a folder by their last names, wherever they are.
fn everywhere(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut all = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(at) = left.pop() {
        for entry in std::fs::read_dir(&at).unwrap().flatten() {
            match entry.path().is_dir() {
                true => left.push(entry.path()),
                false => {
                    let name = entry.file_name().into_string().unwrap();
                    all.insert(name, entry.path());
                }
            }
        }
    }
    all
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

/// Files that are whole in a folder, whatever became of their directories.
/// Fails if one under its own name is wrong.
fn count(folder: &Path, oracle: &Oracle, context: &str) -> usize {
    let found = everywhere(folder);
    let mut whole = 0;
    for (path, bytes) in oracle {
        let Some(place) = found.get(name_of(path)) else {
            continue;
        };
        let found = std::fs::read(place).unwrap();
        assert!(
            found == *bytes,
            "{context}: {} has wrong bytes under its own name: {} of {}, from {:?}",
            place.display(),
            found.len(),
            bytes.len(),
            found
                .iter()
                .zip(bytes)
                .position(|(one, other)| one != other)
        );
        whole += 1;
    }
    whole
}

impl Back {
    fn whole(&self, oracle: &Oracle, context: &str) -> usize {
        count(&self.folder, oracle, context)
    }

    /// Every file that is not whole is named.
    fn assert_named(&self, oracle: &Oracle, context: &str) {
        let told: std::collections::BTreeSet<&str> =
            self.outcomes.keys().map(|path| name_of(path)).collect();
        for path in oracle.keys() {
            let name = name_of(path);
            let (incomplete, older) = (format!("{name}.incomplete"), format!("{name}.older"));
            let mut names = [name, &incomplete, &older].into_iter();
            let is_named = names.any(|name| told.contains(name));
            assert!(
                is_named || self.restored.gaps > 0,
                "{context}: nobody says that {path} is lost"
            );
        }
    }
}

fn one(device: &MemoryDevice) -> Vec<Arc<dyn BlockDevice>> {
    vec![Arc::new(device.snapshot())]
}

/// A kind of damage, the least percentage of files that come back whole.
struct Damage {
    name: &'static str,
    least: usize,
    make: fn(&MemoryDevice, &Anatomy),
}

const DAMAGES: &[Damage] = &[
    Damage {
        name: "none",
        least: 100,
        make: |_, _| {},
    },
    Damage {
        name: "primary superblock zeroed",
        least: 100,
        make: |device, _| {
            device.write_at(COPIES[0], &[0; SIZE]).unwrap();
        },
    },
    Damage {
        name: "all superblocks zeroed",
        least: 100,
        make: |device, _| zero_superblocks(device, 0),
    },
    Damage {
        name: "root of the chunk tree zeroed",
        least: 100,
        make: |device, anatomy| anatomy.zero(device, &[superblock(device).chunk_root]),
    },
    Damage {
        name: "root of the chunk tree and all superblocks zeroed",
        least: 100,
        make: |device, anatomy| {
            anatomy.zero(device, &[superblock(device).chunk_root]);
            zero_superblocks(device, 0);
        },
    },
    Damage {
        name: "root of the root tree zeroed",
        least: 100,
        make: |device, anatomy| anatomy.zero(device, &[superblock(device).root]),
    },
    Damage {
        name: "root of the root tree and all superblocks zeroed",
        least: 100,
        make: |device, anatomy| {
            anatomy.zero(device, &[superblock(device).root]);
            zero_superblocks(device, 0);
        },
    },
    Damage {
        name: "root of the extent tree zeroed",
        least: 100,
        make: |device, anatomy| anatomy.zero(device, &[anatomy.root(TreeId::EXTENT).logical]),
    },
    Damage {
        name: "root of the subvolume zeroed",
        least: 60,
        make: |device, anatomy| anatomy.zero(device, &[anatomy.root(TreeId::FS).logical]),
    },
    Damage {
        name: "every fourth leaf of the subvolume zeroed",
        least: 70,
        make: |device, anatomy| {
            let leaves = anatomy.leaves(TreeId::FS);
            let some: Vec<Logical> = leaves.into_iter().step_by(4).collect();
            anatomy.zero(device, &some);
        },
    },
    Damage {
        name: "every tenth node zeroed",
        least: 50,
        make: |device, anatomy| {
            let trees = [TreeId::FS, TreeId::CSUM, TreeId::EXTENT, TreeId::ROOT];
            let all = trees.into_iter().flat_map(|tree| anatomy.leaves(tree));
            let some: Vec<Logical> = all.skip(3).step_by(10).collect();
            anatomy.zero(device, &some);
        },
    },
    Damage {
        name: "nodes of the newest generation zeroed",
        least: 95,
        make: |device, _| lose_a_commit(device),
    },
    Damage {
        name: "the first 64 MiB zeroed",
        least: 0,
        make: |device, _| {
            for at in (0..64 << 20).step_by(1 << 20) {
                device.write_at(DeviceOffset(at), &[0; 1 << 20]).unwrap();
            }
        },
    },
    Damage {
        name: "every second leaf of the checksum tree zeroed",
        least: 100,
        make: |device, anatomy| {
            let leaves = anatomy.leaves(TreeId::CSUM);
            let some: Vec<Logical> = leaves.into_iter().step_by(2).collect();
            anatomy.zero(device, &some);
        },
    },
];

/// What `btrfs restore -i` brings back of a device.
fn beside(device: &MemoryDevice, oracle: &Oracle) -> Option<usize> {
    std::env::var_os("BUTTERFS_BESIDE")?;
    let keep = scratch_dir();
    let image = keep.path().join("image");
    device.save(&image).unwrap();
    let out = keep.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let mut command = std::process::Command::new("btrfs");
    command.args(["restore", "-i"]).arg(&image).arg(&out);
    let _ = command.output().unwrap();
    let right = oracle
        .iter()
        .filter(|(path, bytes)| std::fs::read(out.join(path)).is_ok_and(|found| found == **bytes));
    Some(right.count())
}

fn all_damages(device: &MemoryDevice, maker: &str) {
    let oracle = oracle();
    for damage in DAMAGES {
        let context = format!("{maker}, {}", damage.name);
        let bad = device.snapshot();
        (damage.make)(&bad, &Anatomy::of(device));
        let back = bring_back(one(&bad), &RestoreOptions::default());
        let whole = back.whole(&oracle, &context);
        let percent = whole * 100 / oracle.len();
        let theirs = beside(&bad, &oracle);
        eprintln!(
            "{context}: {whole} of {} whole; btrfs restore: {theirs:?}; {:?}",
            oracle.len(),
            back.restored
        );
        assert!(percent >= damage.least, "{context}: {whole} whole");
        back.assert_named(&oracle, &context);
        assert!(theirs.is_none_or(|theirs| theirs <= whole), "{context}");
        if damage.name == "none" {
            assert!(back.restored.is_whole() && back.restored.unverified == 0);
        }
        if damage.name.contains("checksum") {
            assert!(back.restored.unverified > 0, "{context}");
            let named = back.outcomes.values();
            let named = named.filter(|one| matches!(one, Outcome::Unverified(_)));
            assert_eq!(named.count() as u64, back.restored.unverified, "{context}");
        }
    }
}

#[test]
fn files_come_back_from_volumes_of_ours() {
    all_damages(&ours(), "ours");
}

#[test]
fn files_come_back_from_volumes_of_the_kernel() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let folder = scratch_dir();
    all_damages(&of_kernel(folder.path()), "kernel");
}

#[test]
fn a_volume_is_found_inside_a_disk_without_a_partition_table() {
    let device = ours();
    let oracle = oracle();
    // As old partitions begin: at no multiple of a page.
    let base = 63 * 512;
    let disk = MemoryDevice::new(device.size() + base + 4096);
    let mut bytes = vec![0; 1 << 20];
    for at in (0..device.size()).step_by(bytes.len()) {
        device.read_at(DeviceOffset(at), &mut bytes).unwrap();
        disk.write_at(DeviceOffset(at + base), &bytes).unwrap();
    }
    for with_superblocks in [true, false] {
        if !with_superblocks {
            for copy in &COPIES[..2] {
                disk.write_at(DeviceOffset(copy.get() + base), &[0; SIZE])
                    .unwrap();
            }
        }
        let back = bring_back(one(&disk), &RestoreOptions::default());
        let context = format!("superblocks: {with_superblocks}");
        assert_eq!(back.whole(&oracle, &context), oracle.len(), "{context}");
    }
}

#[test]
fn an_image_that_broke_off_gives_what_it_has() {
    let device = ours();
    let oracle = oracle();
    let last = superblock(&device);
    let used: u64 = last.bytes_used;
    let short = MemoryDevice::new((used + (96 << 20)).min(device.size() / 2));
    let mut bytes = vec![0; 1 << 20];
    for at in (0..short.size() & !((1 << 20) - 1)).step_by(bytes.len()) {
        device.read_at(DeviceOffset(at), &mut bytes).unwrap();
        short.write_at(DeviceOffset(at), &bytes).unwrap();
    }
    let back = bring_back(one(&short), &RestoreOptions::default());
    let whole = back.whole(&oracle, "broken off");
    assert!(whole > 0, "{:?}", back.restored);
    back.assert_named(&oracle, "broken off");
}

#[test]
fn a_scan_is_stopped_and_goes_on() {
    struct StopsSoon(std::sync::atomic::AtomicU64);
    impl butterfs_rescue::Watch for StopsSoon {
        fn progress(&self, _: butterfs_rescue::Step, _: u64, _: u64) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        fn is_stopped(&self) -> bool {
            self.0.load(std::sync::atomic::Ordering::Relaxed) > 20
        }
    }
    let device = ours();
    let folder = scratch_dir();
    let options = PatientOptions {
        index: Some(folder.path().join("index")),
        ..PatientOptions::default()
    };
    let nodes = |options: &PatientOptions| {
        let mut patient = Patient::open(one(&device), options.clone()).unwrap();
        patient.scan(ScanScope::Everything, &Silent).unwrap();
        patient.index().len()
    };
    let mut patient = Patient::open(one(&device), options.clone()).unwrap();
    let stopped = patient.scan(ScanScope::Everything, &StopsSoon(0.into()));
    assert!(stopped.is_err());
    let found = nodes(&options);
    assert_eq!(found, nodes(&options), "read from the file");
    assert_eq!(found, nodes(&PatientOptions::default()));
}

#[test]
fn a_survey_names_the_generations() {
    let device = ours();
    let anatomy = Anatomy::of(&device);
    let look = |device: &MemoryDevice| {
        let mut patient = Patient::open(one(device), PatientOptions::default()).unwrap();
        survey(&mut patient, &SurveyOptions::default(), &Silent).unwrap()
    };
    let found = look(&device);
    let best = &found.candidates[found.best.unwrap()];
    assert!(best.opens && best.damaged.is_empty());
    assert_eq!(best.generation, superblock(&device).generation);
    assert_eq!(best.files, files());
    let total: usize = oracle().values().map(Vec::len).sum();
    assert_eq!(best.bytes, total as u64);
    let bad = device.snapshot();
    anatomy.zero(&bad, &[superblock(&bad).root]);
    let found = look(&bad);
    assert!(!found.candidates[0].opens);
    let leaves = found.candidates.last().unwrap();
    assert_eq!(leaves.files, files());
}
