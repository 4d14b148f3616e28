//! Volumes that mkfs.btrfs and the kernel made with each profile: every copy of
//! the roots of all trees and of a file's data is where the map says.

use butterfs_device::{Access, BlockDevice, FileDevice};
use butterfs_format::bytes::Reader;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, ItemDescriptor, NodeHeader};
use butterfs_format::superblock::{self, Superblock};
use butterfs_format::{DeviceId, ItemType, Logical};
use butterfs_volume::{ChunkMap, Healed, LogicalSpace, OnDamage, Profile};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Sectors of the file.
const SECTORS: u64 = 150;
const SECRET: &[u8] = b"where does this text lie?";

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Loop devices and a mount over them, which go away with the value.
struct Mounted {
    loops: Vec<String>,
    point: Option<String>,
}

impl Mounted {
    fn over(paths: &[PathBuf], point: &Path) -> Option<Self> {
        let mut mounted = Self {
            loops: Vec::new(),
            point: None,
        };
        for path in paths {
            let device = run("losetup", &["--find", "--show", path.to_str()?])?;
            mounted.loops.push(device);
        }
        let members: Vec<String> = mounted
            .loops
            .iter()
            .map(|d| format!("device={d}"))
            .collect();
        let point = point.to_str()?.to_owned();
        let options = members.join(",");
        let arguments = ["-t", "btrfs", "-o", &options, &mounted.loops[0], &point];
        run("mount", &arguments)?;
        mounted.point = Some(point);
        Some(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(point) = &self.point {
            run("umount", &[point]);
        }
        for device in &self.loops {
            run("btrfs", &["device", "scan", "--forget", device]);
            run("losetup", &["--detach", device]);
        }
    }
}

/// Has mkfs make a volume and the kernel write a file to it.
fn make(dir: &Path, profile: Profile, devices: usize) -> Option<Vec<PathBuf>> {
    // 600 KiB, each 4 KiB with its own number, so that a wrong row, column or
    // rotation shows.
    let mut data = Vec::new();
    for number in 0_u64..SECTORS {
        let mut sector = vec![number as u8; 4096];
        sector[..SECRET.len()].copy_from_slice(SECRET);
        sector[32..40].copy_from_slice(&number.to_le_bytes());
        data.extend(sector);
    }
    let paths: Vec<PathBuf> = (0..devices)
        .map(|n| {
            let path = dir.join(format!("device{n}"));
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(300 << 20).unwrap();
            path
        })
        .collect();
    let name = profile.name();
    let mut arguments = vec!["-q", "-f", "-m", name, "-d", name];
    arguments.extend(paths.iter().filter_map(|path| path.to_str()));
    run("mkfs.btrfs", &arguments)?;
    let point = dir.join("point");
    std::fs::create_dir(&point).ok()?;
    let mounted = Mounted::over(&paths, &point)?;
    std::fs::write(point.join("file"), data).ok()?;
    drop(mounted);
    Some(paths)
}

/// Items of a leaf: key and data.
fn items(node: &[u8]) -> Vec<(butterfs_format::Key, &[u8])> {
    let header = NodeHeader::parse(node).unwrap();
    assert_eq!(header.level, 0, "a fresh volume has small trees");
    (0..header.item_count as usize)
        .map(|n| {
            let at = HEADER_SIZE + n * ITEM_SIZE;
            let item = ItemDescriptor::parse(&mut Reader::new("item", &node[at..])).unwrap();
            let start = HEADER_SIZE + item.data_offset as usize;
            (item.key, &node[start..start + item.data_size as usize])
        })
        .collect()
}

fn examine(paths: &[PathBuf], profile: Profile) {
    let mut first = None;
    let devices: Vec<(DeviceId, Arc<dyn BlockDevice>)> = paths
        .iter()
        .map(|path| {
            let device = FileDevice::open(path, Access::ReadOnly).unwrap();
            let mut bytes = vec![0; superblock::SIZE];
            let at = superblock::COPIES[0];
            device.read_at(at, &mut bytes).unwrap();
            let superblock = Superblock::parse(&bytes, at).unwrap();
            let id = superblock.device.id;
            first.get_or_insert(superblock);
            (id, Arc::new(device) as Arc<dyn BlockDevice>)
        })
        .collect();
    let superblock = first.unwrap();
    let mut map = ChunkMap::default();
    for (logical, chunk) in &superblock.sys_chunks {
        map.insert(*logical, chunk.clone()).unwrap();
    }
    let space = LogicalSpace::new(devices, map, OnDamage::Heal);
    let node_size = superblock.node_size as usize;
    let read = |logical: Logical| {
        let mut good = vec![0; node_size];
        let checksum = superblock.checksum_type;
        let mut verify = |bytes: &[u8]| checksum.verify_block(bytes);
        let healed = space.read_verified(logical, &mut good, &mut verify);
        assert_eq!(healed.unwrap(), Healed::default());
        for copy in 0..space.copies(logical) {
            let mut other = vec![0; node_size];
            space.read_copy(logical, copy, &mut other).unwrap();
            assert_eq!(other, good, "{profile}: copy {copy} of {logical}");
        }
        good
    };
    let chunk_root = read(superblock.chunk_root);
    let mut map = ChunkMap::default();
    for (key, data) in items(&chunk_root) {
        if key.item_type == ItemType::CHUNK_ITEM {
            let chunk = Chunk::parse(data).unwrap();
            map.insert(Logical(key.offset), chunk).unwrap();
        }
    }
    space.set_map(map);
    space.check_chunks().unwrap();
    let root = read(superblock.root);
    let mut nodes = 0;
    for (key, data) in items(&root) {
        if key.item_type == ItemType::ROOT_ITEM {
            // The address of the tree's root is at a fixed place.
            let logical = u64::from_le_bytes(data[176..184].try_into().unwrap());
            read(Logical(logical));
            nodes += 1;
        }
    }
    assert!(nodes >= 6, "{nodes}");

    // The file's data: one run of logical space, each sector in its place.
    let chunks = space.map();
    let run = chunks
        .iter()
        .filter(|(_, chunk)| Profile::from_flags(chunk.flags) == Some(profile))
        .find_map(|(start, chunk)| {
            let mut sector = vec![0; 4096];
            (0..chunk.length / 4096).find_map(|n| {
                let at = start.saturating_add(n * 4096);
                space.read(at, &mut sector).unwrap();
                (sector.starts_with(SECRET) && sector[32..40] == [0; 8]).then_some(at)
            })
        })
        .expect("the file is somewhere");
    for copy in 0..space.copies(run) {
        let mut data = vec![0; SECTORS as usize * 4096];
        space.read_copy(run, copy, &mut data).unwrap();
        for (number, sector) in data.chunks(4096).enumerate() {
            assert_eq!(sector[32..40], (number as u64).to_le_bytes(), "{profile}");
        }
    }
}

#[test]
fn the_map_agrees_with_mkfs() {
    for profile in Profile::ALL {
        for devices in 1..=4_usize {
            let on_one = matches!(profile, Profile::Single | Profile::Dup);
            let stripes = if profile == Profile::Dup { 2 } else { devices };
            if (on_one && devices > 1) || !profile.allows_stripes(stripes) {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            match make(dir.path(), profile, devices) {
                Some(paths) => examine(&paths, profile),
                None => eprintln!(
                    "skipped: {profile} on {devices} devices: no mkfs, loop devices or mount"
                ),
            }
        }
    }
}
