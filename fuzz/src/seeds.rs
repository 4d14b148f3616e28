//! The inputs that each target begins with: leaves, superblocks and extents of
//! kernel volumes, and one of each kind of mutation.

use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE};
use butterfs_format::{ItemType, Key};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes that the node target leaves out.
const NODE_FIELDS: usize = 48;

struct Seeds {
    root: PathBuf,
}

impl Seeds {
    fn put(&self, target: &str, name: &str, data: &[u8]) -> io::Result<()> {
        let directory = self.root.join(target);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(name), data)
    }

    fn superblocks(&self, testdata: &Path) -> io::Result<()> {
        for entry in fs::read_dir(testdata.join("superblocks"))? {
            let entry = entry?;
            let name = entry.file_name();
            self.put(
                "superblock",
                &name.to_string_lossy(),
                &fs::read(entry.path())?,
            )?;
        }
        Ok(())
    }

    /// Leaves that the kernel wrote, whole and item by item.
    fn leaves(&self, testdata: &Path) -> io::Result<()> {
        for entry in fs::read_dir(testdata.join("leaves"))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let leaf = fs::read(entry.path())?;
            let body = [&[0][..], &leaf[NODE_FIELDS..]].concat();
            self.put("node", &name, &body)?;
            let word = |at: usize| {
                let bytes = leaf[at..at + 4].try_into().expect("four bytes");
                u32::from_le_bytes(bytes) as usize
            };
            for slot in 0..word(96) {
                let at = HEADER_SIZE + slot * ITEM_SIZE;
                let key: [u8; Key::SIZE] = leaf[at..at + Key::SIZE].try_into().expect("a key");
                let start = HEADER_SIZE + word(at + 17);
                let data = &leaf[start..start + word(at + 21)];
                let key = Key::from_bytes(&key);
                self.item(&format!("{name}-{slot}"), &key, data)?;
            }
        }
        Ok(())
    }

    fn item(&self, name: &str, key: &Key, data: &[u8]) -> io::Result<()> {
        let mut table = ItemType::TABLE.iter();
        let number = table.position(|(found, _)| *found == key.item_type);
        let number = number.expect("a known type") as u8;
        let object = key.objectid.to_le_bytes();
        let offset = key.offset.to_le_bytes();
        let whole = [&[number, 0][..], &object, &offset, data].concat();
        self.put("items", name, &whole)?;
        if [
            ItemType::XATTR_ITEM,
            ItemType::DIR_ITEM,
            ItemType::INODE_REF,
        ]
        .contains(&key.item_type)
        {
            self.put("attributes", name, &[&[0xa4, 1][..], data].concat())?;
        }
        Ok(())
    }

    fn compression(&self, testdata: &Path) -> io::Result<()> {
        for entry in fs::read_dir(testdata)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let algorithm = ["zlib", "lzo", "zstd"]
                .iter()
                .position(|algorithm| name.contains(algorithm));
            if let (true, Some(algorithm)) = (path.is_file(), algorithm) {
                let stream = fs::read(&path)?;
                let data = [&[algorithm as u8, 0xff, 0x5f][..], &stream].concat();
                self.put("compression", &name, &data)?;
            }
        }
        Ok(())
    }

    fn streams(&self, source: &Path) -> io::Result<()> {
        for entry in fs::read_dir(source.join("send_stream/golden"))? {
            let entry = entry?;
            let data = [&[0][..], &fs::read(entry.path())?].concat();
            self.put("send_stream", &entry.file_name().to_string_lossy(), &data)?;
        }
        Ok(())
    }

    fn requests(&self) -> io::Result<()> {
        for opcode in 0..64_u8 {
            for (size, tail) in [
                (0, &b"name\0other\0"[..]),
                (16, b"name\0other\0"),
                (64, b""),
            ] {
                let body = [&vec![0; size][..], tail].concat();
                let data = [&[opcode, 0][..], &body].concat();
                self.put("fuse_request", &format!("{opcode}-{size}"), &data)?;
            }
        }
        Ok(())
    }

    fn options(&self) -> io::Result<()> {
        for option in butterfs::OPTIONS {
            let text = format!("rw,{}{}", option.name, option.value);
            self.put("mount_options", option.name, text.as_bytes())?;
        }
        for (number, text) in [
            "compress=zstd:-5,commit=5,subvol=/a/b,max_inline=1k,thread_pool=3",
            "nodatacow,compress-force=lzo,noatime,subvolid=256",
            "^no-holes,block-group-tree,mixed-bg",
        ]
        .iter()
        .enumerate()
        {
            self.put("mount_options", &format!("list-{number}"), text.as_bytes())?;
        }
        Ok(())
    }

    fn chunks(&self) -> io::Result<()> {
        for profile in 0..8_u8 {
            // Four devices of 1 GiB, then chunks of 16 MiB side by side.
            let mut data = vec![9, 0, 64, 9, 0, 64, 9, 0, 64, 9, 0, 64, 4];
            for chunk in 1..5_u8 {
                data.extend([9, 0, chunk]);
                data.extend([if profile == 0 { 1 } else { 1 + (1 << profile) }, 0, 0]);
                data.extend([9, 0, 1]);
                data.push(4);
                for stripe in 0..4_u8 {
                    data.extend([stripe, 9, 0, chunk * 8 + stripe]);
                }
            }
            self.put("chunks", &format!("profile-{profile}"), &data)?;
        }
        Ok(())
    }

    /// Each kind of mutation on nodes here and there, and none at all.
    fn images(&self) -> io::Result<()> {
        for way in 4..6_u8 {
            for how in 0..8_u8 {
                self.put("image", &format!("{way}-given-{how}"), &[way, how, 1, 0])?;
            }
        }
        for way in 0..6_u8 {
            self.put("image", &format!("{way}-whole"), &[way])?;
            self.put("repair", &format!("{way}-anew"), &[way, 15])?;
            for kind in 0..24_u8 {
                for node in (0..32_u8).step_by(3) {
                    let fill = node.wrapping_mul(37).wrapping_add(kind);
                    // All devices of these volumes are given.
                    let given: &[u8] = if way < 4 { &[] } else { &[0, 0, 0] };
                    let data = [kind, node, 0, fill, 0, fill / 3, 0, node, 0, fill, 5, 0, 1];
                    let name = format!("{way}-{kind}-{node}");
                    self.put("repair", &name, &[&[way, 0][..], &data].concat())?;
                    let data = [&[way][..], given, &data].concat();
                    self.put("image", &name, &data)?;
                }
            }
        }
        Ok(())
    }

    /// Each image, whole and with one change of each width and kind.
    fn conversions(&self) -> io::Result<()> {
        for kind in 0..u8::try_from(crate::targets::convert::KINDS.len()).expect("few") {
            self.put("convert", &format!("{kind}-whole"), &[kind])?;
            for at in 0..96_u8 {
                let near = if at % 3 == 0 { 128 } else { at };
                let number = at.wrapping_mul(37);
                let data = [kind, near, number, at, 0, 0, at, number, at % 12, number];
                self.put("convert", &format!("{kind}-{at}"), &data)?;
            }
        }
        Ok(())
    }

    /// Each command on each volume, whole and with a mutation of each kind.
    fn commands(&self) -> io::Result<()> {
        let commands = u8::try_from(crate::commands::ALL.len()).expect("few");
        for command in 0..2 * commands {
            for way in 0..6_u8 {
                self.put(
                    "commands",
                    &format!("{way}-{command}-whole"),
                    &[way, command],
                )?;
            }
            for kind in 0..24_u8 {
                let (way, fill) = ((command + kind) % 6, kind.wrapping_mul(37));
                let data = [
                    kind,
                    fill,
                    0,
                    command,
                    0,
                    fill / 3,
                    0,
                    kind,
                    0,
                    fill,
                    5,
                    0,
                    1,
                ];
                let data = [&[way, command][..], &data].concat();
                self.put("commands", &format!("{command}-{kind}"), &data)?;
            }
        }
        Ok(())
    }

    fn operations(&self) -> io::Result<()> {
        for number in 0..48_u64 {
            let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut data = vec![number as u8];
            for _ in 0..60 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                data.extend(state.to_le_bytes());
            }
            self.put("operations", &format!("random-{number}"), &data)?;
        }
        Ok(())
    }
}

/// Writes the seeds of all targets below `root`.
///
/// # Errors
/// Those of the file system.
pub fn write(root: &Path) -> io::Result<()> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/format/testdata");
    let format = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/format/src");
    let seeds = Seeds { root: root.into() };
    seeds.superblocks(&testdata)?;
    seeds.streams(&format)?;
    seeds.leaves(&testdata)?;
    seeds.compression(&testdata)?;
    seeds.requests()?;
    seeds.options()?;
    seeds.chunks()?;
    seeds.images()?;
    seeds.operations()?;
    seeds.commands()?;
    seeds.conversions()?;
    seeds.put("canary", "nothing", b"nothing")
}
