//! Superblocks as text.

use super::DumpSuper;
use crate::fail::{Context, Done};
use crate::place::json;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use serde::Serialize;
use uuid::Uuid;

#[derive(Serialize)]
struct Fact {
    offset: u64,
    fault: Option<String>,
    fields: Vec<(&'static str, String)>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn uuid(bytes: [u8; 16]) -> String {
    Uuid::from_bytes(bytes).to_string()
}

fn flags(number: u64, names: &[String]) -> String {
    if names.is_empty() {
        return format!("{number:#x}");
    }
    format!("{number:#x}\n\t\t\t( {} )", names.join(" |\n\t\t\t  "))
}

/// A word at a place of the superblock.
fn word(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_le_bytes(found.copied().unwrap_or_default())
}

fn fields(of: &Superblock, bytes: &[u8]) -> Vec<(&'static str, String)> {
    let checksum = of.checksum_type;
    let text = |number: u64| number.to_string();
    let device = &of.device;
    let matches = if device.fsid == of.node_fsid() {
        "[match]"
    } else {
        "[DON'T MATCH]"
    };
    vec![
        (
            "csum_type",
            format!("{} ({})", checksum.number(), checksum.name()),
        ),
        ("csum_size", text(checksum.size() as u64)),
        ("csum", format!("0x{}", hex(&bytes[..checksum.size()]))),
        ("bytenr", text(of.own_offset.get())),
        ("flags", flags(of.flags.0, &of.flags.names())),
        ("magic", "_BHRfS_M".to_owned()),
        ("fsid", uuid(of.fsid)),
        ("metadata_uuid", uuid(of.node_fsid())),
        ("label", String::from_utf8_lossy(&of.label).into_owned()),
        ("generation", text(of.generation.get())),
        ("root", text(of.root.get())),
        ("sys_array_size", text(word(bytes, 160) & 0xffff_ffff)),
        (
            "chunk_root_generation",
            text(of.chunk_root_generation.get()),
        ),
        ("root_level", text(of.root_level.into())),
        ("chunk_root", text(of.chunk_root.get())),
        ("chunk_root_level", text(of.chunk_root_level.into())),
        ("log_root", text(of.log_root.get())),
        ("log_root_transid (deprecated)", text(word(bytes, 104))),
        ("log_root_level", text(of.log_root_level.into())),
        ("total_bytes", text(of.total_bytes)),
        ("bytes_used", text(of.bytes_used)),
        ("sectorsize", text(of.sector_size.into())),
        ("nodesize", text(of.node_size.into())),
        (
            "leafsize (deprecated)",
            text(word(bytes, 152) & 0xffff_ffff),
        ),
        ("stripesize", text(of.stripe_size.into())),
        ("root_dir", text(of.root_dir)),
        ("num_devices", text(of.num_devices)),
        ("compat_flags", format!("{:#x}", of.compat)),
        (
            "compat_ro_flags",
            flags(of.compat_ro.0, &of.compat_ro.names()),
        ),
        ("incompat_flags", flags(of.incompat.0, &of.incompat.names())),
        ("cache_generation", text(of.cache_generation)),
        ("uuid_tree_generation", text(of.uuid_tree_generation.get())),
        ("dev_item.uuid", uuid(device.uuid)),
        ("dev_item.fsid", format!("{} {matches}", uuid(device.fsid))),
        ("dev_item.type", text(device.device_type)),
        ("dev_item.total_bytes", text(device.total_bytes)),
        ("dev_item.bytes_used", text(device.bytes_used)),
        ("dev_item.io_align", text(device.io_align.into())),
        ("dev_item.io_width", text(device.io_width.into())),
        ("dev_item.sector_size", text(device.sector_size.into())),
        ("dev_item.devid", text(device.id.get())),
        ("dev_item.dev_group", text(device.group.into())),
        ("dev_item.seek_speed", text(device.seek_speed.into())),
        ("dev_item.bandwidth", text(device.bandwidth.into())),
        ("dev_item.generation", text(device.generation.get())),
    ]
}

fn print_full(of: &Superblock) -> Done {
    say!("sys_chunk_array[2048]:");
    for (item, (logical, chunk)) in of.sys_chunks.iter().enumerate() {
        say!("\titem {item} key (FIRST_CHUNK_TREE CHUNK_ITEM {logical})");
        super::items::chunk(chunk)?;
    }
    say!("backup_roots[4]:");
    for (slot, backup) in of.backup_roots.iter().enumerate() {
        say!("\tbackup {slot}:");
        let roots = [
            ("backup_tree_root:", backup.tree_root),
            ("backup_chunk_root:", backup.chunk_root),
            ("backup_extent_root:", backup.extent_root),
            ("backup_fs_root:", backup.fs_root),
            ("backup_dev_root:", backup.device_root),
            ("csum_root:", backup.csum_root),
        ];
        for (name, root) in roots {
            let (logical, generation, level) = (root.logical, root.generation, root.level);
            say!("\t\t{name}\t{logical}\tgen: {generation}\tlevel: {level}");
        }
        say!("\t\tbackup_total_bytes:\t{}", backup.total_bytes);
        say!("\t\tbackup_bytes_used:\t{}", backup.bytes_used);
        say!("\t\tbackup_num_devices:\t{}\n", backup.num_devices);
    }
    Ok(())
}

/// Prints the backups of roots, in short.
pub fn print_backups(of: &Superblock) -> Done {
    for (slot, backup) in of.backup_roots.iter().enumerate() {
        say!("btrfs root backup slot {slot}");
        let roots = [
            ("\ttree", backup.tree_root),
            ("\t\textent", backup.extent_root),
            ("\t\tchunk", backup.chunk_root),
            ("\t\tdevice", backup.device_root),
            ("\t\tcsum", backup.csum_root),
            ("\t\tfs", backup.fs_root),
        ];
        for (name, root) in roots {
            let (at, generation) = (root.logical, root.generation);
            say!("{name} root gen {generation} block {at}");
        }
        say!(
            "\t\t{} used {} total {} devices",
            backup.bytes_used,
            backup.total_bytes,
            backup.num_devices
        );
    }
    Ok(())
}

impl DumpSuper {
    /// Runs it. It takes no lock, so a mounted volume can be looked at.
    pub fn run(self) -> Done {
        let device = butterfs::open_to_look(&self.volume)?;
        let copies = match (self.superblock, self.all) {
            (Some(number), _) => &COPIES[number.into()..=number.into()],
            (None, true) => &COPIES[..],
            (None, false) => &COPIES[..1],
        };
        let mut facts = Vec::new();
        for offset in copies {
            let mut bytes = vec![0; SIZE];
            if let Err(error) = device.read_at(*offset, &mut bytes) {
                if *offset == copies[0] {
                    return Err(error.into());
                }
                break;
            }
            // A damaged copy is shown as far as it can be read.
            let fault = Superblock::parse(&bytes, *offset).err();
            let fault = fault.map(|error| error.to_string());
            let parsed = Superblock::parse_unverified(&bytes);
            let parsed = parsed.context(format_args!("superblock at {offset}"))?;
            let fields = fields(&parsed, &bytes);
            let checksum = parsed.checksum_type;
            if self.json {
                facts.push(Fact {
                    offset: offset.get(),
                    fault,
                    fields,
                });
                continue;
            }
            say!(
                "superblock: bytenr={offset}, device={}",
                self.volume.display()
            );
            say!("---------------------------------------------------------");
            if let Some(fault) = fault {
                say!("damaged\t\t\t{fault}");
            }
            for (name, value) in fields {
                let value = match (name, checksum.verify_block(&bytes)) {
                    // A block with another magic number is not a superblock.
                    ("magic", _) | ("csum", true) => format!("{value} [match]"),
                    ("csum", false) => format!("{value} [DON'T MATCH]"),
                    _ => value,
                };
                let tabs = "\t".repeat((24usize.saturating_sub(name.len())).div_ceil(8).max(1));
                say!("{name}{tabs}{value}");
            }
            if self.full {
                print_full(&parsed)?;
            }
            say!("");
        }
        if self.json { json(&facts) } else { Ok(()) }
    }
}
