//! File systems of mke2fs that the kernel filled: what this crate reads is what
//! the kernel shows. Needs root, loop devices and e2fsprogs.

use butterfs_ext4::{EntryKind, FileSystem, Inode, InodeFlags, InodeNumber, Kind, Mapping, State};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

type Source = FileSystem<File>;

/// Runs a program. A mount is tried again: the loop device of the one before may
/// still be on its way out.
fn run(program: &str, arguments: &[&str]) {
    let mut tries = if program == "mount" { 30 } else { 1 };
    loop {
        let output = Command::new(program).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        if output.status.success() {
            return;
        }
        tries -= 1;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(tries > 0, "{program} {arguments:?}: {said}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A mount that ends with its value.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn can_mount() -> bool {
    let root = Command::new("id").arg("-u").output();
    let is_root = root.is_ok_and(|output| output.stdout == b"0\n");
    if !is_root {
        assert!(std::env::var_os("CI").is_none(), "CI has root");
        eprintln!("skipped: mounting ext4 needs root");
    }
    is_root
}

/// What the kernel shows of a file.
#[derive(Debug, PartialEq)]
struct Shown {
    mode: u32,
    user: u32,
    group: u32,
    size: u64,
    links: u64,
    device: (u32, u32),
    times: [(i64, i64); 3],
    content: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    inode: u64,
}

/// The attributes of everything below `root`, of every namespace.
fn attributes_by_kernel(root: &Path) -> BTreeMap<PathBuf, BTreeMap<Vec<u8>, Vec<u8>>> {
    let script = "
import os, sys
def show(path):
    for name in os.listxattr(path, follow_symlinks=False):
        value = os.getxattr(path, name, follow_symlinks=False)
        print(path.hex(), os.fsencode(name).hex(), value.hex(), sep=' ')
root = os.fsencode(sys.argv[1])
show(root)
for base, directories, files in os.walk(root):
    for name in directories + files:
        show(os.path.join(base, name))
";
    let output = Command::new("python3")
        .args(["-c", script])
        .arg(root)
        .output()
        .unwrap();
    assert!(output.status.success());
    let unhex = |text: &str| -> Vec<u8> {
        let digits = text.as_bytes().chunks(2);
        digits
            .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
            .collect()
    };
    let mut all: BTreeMap<PathBuf, BTreeMap<_, _>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let words: Vec<Vec<u8>> = line.split(' ').map(unhex).collect();
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&words[0]));
        let own = all.entry(path).or_default();
        own.insert(words[1].clone(), words[2].clone());
    }
    all
}

fn shown_by_kernel(root: &Path, below: &Path, all: &mut BTreeMap<PathBuf, Shown>) {
    let path = root.join(below);
    let facts = fs::symlink_metadata(&path).unwrap();
    let kind = facts.file_type();
    let content = if kind.is_symlink() {
        fs::read_link(&path)
            .unwrap()
            .as_os_str()
            .as_bytes()
            .to_vec()
    } else if kind.is_file() {
        fs::read(&path).unwrap()
    } else {
        Vec::new()
    };
    let number = facts.rdev();
    let is_device = kind.is_char_device() || kind.is_block_device();
    let shown = Shown {
        mode: facts.mode(),
        user: facts.uid(),
        group: facts.gid(),
        size: if facts.is_dir() { 0 } else { facts.len() },
        links: if facts.is_dir() { 0 } else { facts.nlink() },
        device: match is_device {
            true => (
                ((number >> 8) & 0xfff) as u32,
                ((number & 0xff) | ((number >> 12) & 0xf_ff00)) as u32,
            ),
            false => (0, 0),
        },
        times: [
            (facts.atime(), facts.atime_nsec()),
            (facts.mtime(), facts.mtime_nsec()),
            (facts.ctime(), facts.ctime_nsec()),
        ],
        content,
        attributes: BTreeMap::new(),
        inode: facts.ino(),
    };
    all.insert(below.to_owned(), shown);
    if kind.is_dir() {
        for entry in fs::read_dir(&path).unwrap() {
            shown_by_kernel(root, &below.join(entry.unwrap().file_name()), all);
        }
    }
}

fn content(ext4: &Source, inode: &Inode) -> Vec<u8> {
    if let Some(link) = inode.short_link() {
        return link.to_vec();
    }
    if let Some(data) = ext4.inline_data(inode).unwrap() {
        return data;
    }
    let mut bytes = vec![0; inode.size as usize];
    let block = ext4.superblock().block_size();
    ext4.mappings(
        inode,
        &mut |mapping: Mapping| -> Result<(), butterfs_ext4::Error> {
            let start = mapping.file_block * block;
            let end = (start + mapping.blocks * block).min(inode.size);
            if mapping.state == State::Written && start < end {
                let target = &mut bytes[start as usize..end as usize];
                ext4.read(mapping.block * block, target)?;
            }
            Ok(())
        },
    )
    .unwrap();
    bytes
}

fn shown_by_us(
    ext4: &Source,
    number: InodeNumber,
    below: &Path,
    all: &mut BTreeMap<PathBuf, Shown>,
) {
    let inode = ext4.inode(number).unwrap();
    let kind = inode.kind().unwrap();
    let is_directory = kind == Kind::Directory;
    let has_content = matches!(kind, Kind::File | Kind::Link);
    let is_device = matches!(kind, Kind::CharacterDevice | Kind::BlockDevice);
    let time = |time: butterfs_ext4::Time| (time.seconds, i64::from(time.nanoseconds));
    let attributes = ext4.attributes(&inode).unwrap().into_iter();
    let shown = Shown {
        mode: inode.mode.into(),
        user: inode.user,
        group: inode.group,
        size: if is_directory { 0 } else { inode.size },
        links: if is_directory { 0 } else { inode.links.into() },
        device: if is_device { inode.device() } else { (0, 0) },
        times: [inode.accessed, inode.modified, inode.changed].map(time),
        content: if has_content {
            content(ext4, &inode)
        } else {
            Vec::new()
        },
        attributes: attributes.map(|one| (one.name, one.value)).collect(),
        inode: number.0.into(),
    };
    assert!(
        all.insert(below.to_owned(), shown).is_none(),
        "{}",
        below.display()
    );
    if is_directory {
        let mut entries = Vec::new();
        ext4.entries(&inode, &mut |entry| -> Result<(), butterfs_ext4::Error> {
            entries.push((entry.name.to_vec(), entry.inode, entry.kind));
            Ok(())
        })
        .unwrap();
        for (name, number, kind) in entries {
            let name = <OsString as std::os::unix::ffi::OsStringExt>::from_vec(name);
            if let EntryKind::Known(kind) = kind {
                assert_eq!(ext4.inode(number).unwrap().kind().unwrap(), kind);
            }
            shown_by_us(ext4, number, &below.join(name), all);
        }
    }
}

fn fill(root: &Path, options: &str, large: bool) {
    let at = |name: &str| root.join(name);
    let mut noise = Vec::new();
    let mut seed = 7_u32;
    for _ in 0..400_000 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        noise.push((seed >> 24) as u8);
    }
    for size in [
        0, 1, 59, 60, 61, 100, 150, 1000, 1024, 4096, 5000, 70_000, 400_000,
    ] {
        fs::write(at(&format!("size-{size}")), &noise[..size]).unwrap();
    }
    let sparse = File::create(at("sparse")).unwrap();
    for place in [0_u64, 100_000, 3_000_000, 70_000_000] {
        sparse.write_all_at(&noise[..3000], place).unwrap();
    }
    sparse.set_len(80_000_000).unwrap();
    // Many extents, or all levels of a block map.
    let scattered = File::create(at("scattered")).unwrap();
    for number in 0..if large { 700_u64 } else { 100 } {
        scattered
            .write_all_at(&noise[..700], number * 20_000)
            .unwrap();
    }
    run(
        "sh",
        &[
            "-c",
            "fallocate -l 300000 \"$1\" 2>/dev/null || true",
            "sh",
            at("preallocated").to_str().unwrap(),
        ],
    );
    for (name, length) in [
        ("short", 10),
        ("59", 59),
        ("60", 60),
        ("long", 300),
        ("longest", 1000),
    ] {
        std::os::unix::fs::symlink("x".repeat(length), at(&format!("link-{name}"))).unwrap();
    }
    fs::create_dir(at("many")).unwrap();
    for number in 0..if large { 1200 } else { 100 } {
        fs::write(
            at(&format!(
                "many/a name that is somewhat long, number {number}"
            )),
            b"",
        )
        .unwrap();
    }
    fs::create_dir_all(at("deep/er/and/deeper")).unwrap();
    fs::create_dir(at("few")).unwrap();
    fs::write(at("few/a"), b"hello").unwrap();
    fs::hard_link(at("size-5000"), at("few/hard")).unwrap();
    for (name, words) in [
        ("fifo", ["p", "", ""]),
        ("character", ["c", "1", "3"]),
        ("block", ["b", "259", "70000"]),
    ] {
        let path = at(name);
        let mut all = vec![path.to_str().unwrap()];
        all.extend(words.iter().filter(|word| !word.is_empty()));
        run("mknod", &all);
    }
    std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    std::os::unix::fs::chown(at("size-100"), Some(70_000), Some(1 << 20)).unwrap();
    fs::set_permissions(at("size-1000"), Permissions::from_mode(0o6711)).unwrap();
    run(
        "touch",
        &[
            "-d",
            "1903-05-06 07:08:09.123456789",
            at("size-60").to_str().unwrap(),
        ],
    );
    run(
        "touch",
        &[
            "-d",
            "2030-05-06 07:08:09.5",
            at("size-61").to_str().unwrap(),
        ],
    );
    let attribute = |name: &str, value: &[u8], path: &Path| {
        let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
        let script = "import os, sys\nos.setxattr(sys.argv[1], sys.argv[2], bytes.fromhex(sys.argv[3]), follow_symlinks=False)";
        run(
            "python3",
            &["-c", script, path.to_str().unwrap(), name, &hex],
        );
    };
    attribute("user.small", b"value", &at("size-1"));
    attribute("user.empty", b"", &at("size-1"));
    attribute("security.mine", &noise[..200], &at("size-150"));
    attribute("trusted.link", b"of a link", &at("link-long"));
    attribute("user.directory", &noise[..500], &at("few"));
    for number in 0..8 {
        attribute(
            &format!("user.number-{number}"),
            &noise[..20],
            &at("size-4096"),
        );
    }
    if options.contains("ea_inode") {
        attribute("user.large", &noise[..40_000], &at("size-61"));
    }
    run(
        "setfacl",
        &[
            "-m",
            "u:1234:rwx,g:77:r,m::rx",
            at("size-70000").to_str().unwrap(),
        ],
    );
    run(
        "setfacl",
        &["-d", "-m", "u:1234:rwx", at("deep").to_str().unwrap()],
    );
    let mut file = File::options().append(true).open(at("size-1")).unwrap();
    file.write_all(b"appended").unwrap();
}

/// Everything but the content.
fn facts(shown: &Shown) -> String {
    format!(
        "{:o} {}:{} {} bytes, {} links, {:?} {:?} {:?} inode {}",
        shown.mode,
        shown.user,
        shown.group,
        shown.size,
        shown.links,
        shown.device,
        shown.times,
        shown.attributes,
        shown.inode
    )
}

/// Blocks of files are in use by the bitmap, and none is in two files.
fn verify_blocks(ext4: &Source) {
    let superblock = ext4.superblock();
    let cluster = 1 << superblock.cluster_log;
    let mut used = BTreeSet::new();
    for group in 0..superblock.groups() {
        for range in ext4.used_blocks_of(group).unwrap() {
            used.extend(range);
        }
    }
    let free = superblock.blocks - u64::from(superblock.first_block) - used.len() as u64;
    assert_eq!(free, superblock.free_blocks, "free blocks");
    let mut of_files = BTreeMap::new();
    let mut inodes = 0;
    for group in 0..superblock.groups() {
        ext4.inodes_of(group, &mut |inode| -> Result<(), butterfs_ext4::Error> {
            inodes += 1;
            let inode = inode?;
            if inode.kind().is_err() {
                return Ok(());
            }
            ext4.mappings(
                &inode,
                &mut |mapping: Mapping| -> Result<(), butterfs_ext4::Error> {
                    for block in mapping.block..mapping.block + mapping.blocks {
                        assert!(
                            used.contains(&block),
                            "block {block} of inode {}",
                            inode.number
                        );
                        let owner = of_files.insert(block / cluster, inode.number);
                        let known = owner.is_none_or(|owner| owner == inode.number);
                        assert!(known, "block {block} of {owner:?} and {}", inode.number);
                    }
                    Ok(())
                },
            )
        })
        .unwrap();
    }
    assert_eq!(
        superblock.inodes - inodes,
        superblock.free_inodes,
        "free inodes"
    );
}

fn compare(options: &[&str], size: &str, is_large: bool) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = folder.path().join("image");
    let point = folder.path().join("mnt");
    fs::create_dir(&point).unwrap();
    let name = image.to_str().unwrap();
    let words: Vec<&str> = ["-q", "-F"]
        .iter()
        .chain(options)
        .copied()
        .chain([name, size])
        .collect();
    run("mkfs.ext4", &words);
    let mut by_kernel = BTreeMap::new();
    run(
        "mount",
        &["-o", "loop,noatime", name, point.to_str().unwrap()],
    );
    let mounted = Mounted(point.clone());
    fill(&point, &options.concat(), is_large);
    drop(mounted);
    run(
        "mount",
        &["-o", "loop,noatime,ro", name, point.to_str().unwrap()],
    );
    let mounted = Mounted(point.clone());
    shown_by_kernel(&point, Path::new(""), &mut by_kernel);
    for (path, own) in attributes_by_kernel(&point) {
        let below = path.strip_prefix(&point).unwrap();
        by_kernel.get_mut(below).unwrap().attributes = own;
    }
    drop(mounted);

    let ext4 = FileSystem::open(File::open(&image).unwrap()).unwrap();
    assert!(ext4.superblock().is_clean() && !ext4.needs_replay());
    let mut by_us = BTreeMap::new();
    shown_by_us(&ext4, InodeNumber::ROOT, Path::new(""), &mut by_us);
    assert_eq!(
        by_us.keys().collect::<Vec<_>>(),
        by_kernel.keys().collect::<Vec<_>>(),
        "{options:?}"
    );
    for (path, shown) in &by_kernel {
        let ours = &by_us[path];
        // Not printed if they differ.
        let same = ours.content == shown.content;
        assert!(same, "content of {} {options:?}", path.display());
        assert!(
            ours == shown,
            "{} {options:?}:\n{}\n{}",
            path.display(),
            facts(ours),
            facts(shown)
        );
    }
    verify_blocks(&ext4);
}

macro_rules! kinds {
    ($($name:ident: $options:expr, $size:literal, $large:literal;)*) => {
        $(#[test]
        fn $name() {
            if can_mount() {
                compare(&$options, $size, $large);
            }
        })*
    };
}

kinds! {
    ext4_of_today: ["-O", "metadata_csum,64bit"], "200M", true;
    seeded_and_large_directories: ["-O", "metadata_csum_seed,large_dir,ea_inode"], "200M", true;
    inline_data: ["-O", "inline_data,metadata_csum", "-I", "256"], "200M", true;
    inline_data_in_large_inodes: ["-O", "inline_data", "-I", "1024"], "200M", false;
    ext2: ["-t", "ext2", "-b", "1024"], "300M", true;
    ext3_of_large_blocks: ["-t", "ext3", "-b", "4096"], "200M", true;
    old_inodes: ["-I", "128", "-O", "^metadata_csum,uninit_bg,^64bit"], "200M", false;
    small_blocks: ["-b", "1024", "-O", "metadata_csum,64bit"], "200M", true;
    clusters: ["-O", "bigalloc", "-C", "65536"], "400M", false;
    small_clusters: ["-O", "bigalloc", "-b", "1024", "-C", "16384"], "400M", false;
    meta_groups: ["-b", "1024", "-O", "meta_bg,^resize_inode,64bit"], "300M", false;
    no_flexible_groups: ["-O", "^flex_bg,^metadata_csum,^uninit_bg"], "300M", false;
    two_copies: ["-O", "sparse_super2", "-E", "num_backup_sb=1"], "300M", false;
    no_sparse_superblocks: ["-b", "1024", "-O", "^sparse_super,^resize_inode"], "200M", false;
}

#[test]
fn other_things_are_refused() {
    let open = |bytes: Vec<u8>| FileSystem::open(bytes).err().unwrap().to_string();
    assert_eq!(
        open(vec![0; 100]),
        "this is no ext2, ext3 or ext4 file system"
    );
    assert_eq!(
        open(vec![0; 1 << 20]),
        "this is no ext2, ext3 or ext4 file system"
    );
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap(), "4M"]);
    let mut bytes = fs::read(&image).unwrap();
    let cut = bytes[..3 << 20].to_vec();
    assert!(open(cut).contains("outside of the file system"));
    let mut wrong = bytes.clone();
    wrong[1024 + 0x20] ^= 1;
    assert_eq!(open(wrong), "superblock: the checksum is wrong");
    // A descriptor.
    bytes[2048] ^= 1;
    assert_eq!(open(bytes), "descriptor of group 0: the checksum is wrong");
}

/// Reads everything, and gives up at the first error of each inode.
fn read_all(ext4: &FileSystem<Vec<u8>>) {
    for group in 0..ext4.superblock().groups() {
        let _ = ext4.used_blocks_of(group);
        let _ = ext4.inodes_of(group, &mut |inode| -> Result<(), butterfs_ext4::Error> {
            let Ok(inode) = inode else {
                return Ok(());
            };
            let _ = ext4.mappings(&inode, &mut |_| -> Result<(), butterfs_ext4::Error> {
                Ok(())
            });
            let _ = ext4.entries(&inode, &mut |_| -> Result<(), butterfs_ext4::Error> {
                Ok(())
            });
            let _ = ext4.attributes(&inode);
            let _ = ext4.inline_data(&inode);
            Ok(())
        });
    }
}

/// Bytes of metadata that lie: errors, and always an end.
#[test]
fn damage_ends() {
    if !can_mount() {
        return;
    }
    let given = std::env::var("BUTTERFS_SEEDS").unwrap_or("0..300".to_owned());
    let (first, last) = given.split_once("..").expect("BUTTERFS_SEEDS=first..last");
    let seeds: std::ops::Range<u64> = first.parse().unwrap()..last.parse().unwrap();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (image, point) = (folder.path().join("image"), folder.path().join("mnt"));
    fs::create_dir(&point).unwrap();
    for options in [
        "^metadata_csum,inline_data",
        "^metadata_csum,^extent,^64bit,ea_inode",
    ] {
        let name = image.to_str().unwrap();
        run(
            "mkfs.ext4",
            &[
                "-q", "-F", "-b", "1024", "-N", "512", "-O", options, name, "12M",
            ],
        );
        run("mount", &["-o", "loop", name, point.to_str().unwrap()]);
        let mounted = Mounted(point.clone());
        for number in 0..60_u64 {
            let path = point.join(format!("file {number}"));
            let file = File::create(&path).unwrap();
            for part in 0..number {
                file.write_all_at(&[7; 300], part * 5000).unwrap();
            }
            std::os::unix::fs::symlink(
                "y".repeat(number as usize + 30),
                point.join(format!("link {number}")),
            )
            .unwrap();
        }
        run(
            "setfacl",
            &["-m", "u:1234:rwx", point.join("file 7").to_str().unwrap()],
        );
        drop(mounted);
        let whole = fs::read(&image).unwrap();
        let used: Vec<usize> = (0..whole.len())
            .filter(|at| whole[*at] != 0 && whole[*at] != 7)
            .collect();
        for seed in seeds.clone() {
            let mut state = seed;
            let mut random = move |below: usize| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below
            };
            let mut bytes = whole.clone();
            for _ in 0..1 + random(12) {
                let at = used[random(used.len())];
                bytes[at] = match random(3) {
                    0 => 0xff,
                    1 => bytes[at] ^ 1 << random(8),
                    _ => random(256) as u8,
                };
            }
            if let Ok(ext4) = FileSystem::open(bytes) {
                read_all(&ext4);
            }
        }
    }
}

/// Flags and project ids are read as they were set.
#[test]
fn flags_and_projects() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (image, point) = (folder.path().join("image"), folder.path().join("mnt"));
    fs::create_dir(&point).unwrap();
    run("mkfs.ext4", &["-q", "-F", image.to_str().unwrap(), "20M"]);
    run(
        "mount",
        &[
            "-o",
            "loop",
            image.to_str().unwrap(),
            point.to_str().unwrap(),
        ],
    );
    let mounted = Mounted(point.clone());
    let file = point.join("file");
    fs::write(&file, b"").unwrap();
    let inode = fs::metadata(&file).unwrap().ino();
    run("chattr", &["+AdS", file.to_str().unwrap()]);
    drop(mounted);
    // The kernel has projects only where it has quotas.
    run("tune2fs", &["-O", "project", image.to_str().unwrap()]);
    let set = format!("set_inode_field <{inode}> projid 77");
    run("debugfs", &["-w", "-R", &set, image.to_str().unwrap()]);
    let ext4 = FileSystem::open(File::open(&image).unwrap()).unwrap();
    let inode = ext4.inode(InodeNumber(inode as u32)).unwrap();
    assert_eq!(inode.project, 77);
    for flag in [InodeFlags::NO_ATIME, InodeFlags::NO_DUMP, InodeFlags::SYNC] {
        assert!(inode.flags.has(flag));
    }
    assert!(inode.created.is_some());
}
