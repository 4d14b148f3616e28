//! Items as text. What is not known here is shown as bytes.

use crate::fail::{Done, Failure};
use butterfs::{FileType, Timespec};
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::device::{DeviceExtent, DeviceItem};
use butterfs_format::item::dir::DirEntries;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::{ExtrefEntries, InodeItem, RefEntries};
use butterfs_format::item::root::RootItem;
use butterfs_format::{ItemType, Key, ParseError};
use uuid::Uuid;

/// Why an item is not shown to its end.
enum Stop {
    /// It is not what its key says.
    Damaged(ParseError),
    /// Nobody takes the output.
    Output(Failure),
}

impl From<ParseError> for Stop {
    fn from(error: ParseError) -> Self {
        Self::Damaged(error)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Output(failure)
    }
}

/// Prints an item's content, indented.
pub fn print(key: Key, data: &[u8]) -> Done {
    match show(key, data) {
        Ok(()) => Ok(()),
        Err(Stop::Output(failure)) => Err(failure),
        Err(Stop::Damaged(error)) => {
            say!("\t\tdamaged: {error}");
            bytes(data)
        }
    }
}

fn show(key: Key, data: &[u8]) -> Result<(), Stop> {
    match key.item_type {
        ItemType::INODE_ITEM => inode(&InodeItem::parse(data)?)?,
        ItemType::INODE_REF => names(data)?,
        ItemType::INODE_EXTREF => extended_names(data)?,
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => entries(data)?,
        ItemType::EXTENT_DATA => file_extent(&FileExtent::parse(data)?)?,
        ItemType::ROOT_ITEM => root(&RootItem::parse(data)?)?,
        ItemType::CHUNK_ITEM => chunk(&Chunk::parse(data)?)?,
        ItemType::BLOCK_GROUP_ITEM => {
            let item = BlockGroupItem::parse(data)?;
            say!(
                "\t\tblock group used {} chunk_objectid {} flags {}",
                item.used,
                item.chunk_objectid,
                item.flags.describe()
            );
        }
        ItemType::DEV_ITEM => {
            let item = DeviceItem::parse(data)?;
            say!(
                "\t\tdevid {} total_bytes {} bytes_used {}\n\t\tuuid {}",
                item.id,
                item.total_bytes,
                item.bytes_used,
                Uuid::from_bytes(item.uuid)
            );
        }
        ItemType::DEV_EXTENT => {
            let item = DeviceExtent::parse(data)?;
            say!(
                "\t\tdev extent chunk_tree {}\n\t\tchunk_objectid {} chunk_offset {} length {}",
                item.chunk_tree,
                item.chunk_objectid,
                item.chunk,
                item.length
            );
        }
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
            let mut lines = Vec::new();
            let whole = super::extents::describe(key, data, &mut lines);
            for line in lines {
                say!("\t\t{line}");
            }
            if whole.is_none() {
                bytes(data)?;
            }
        }
        _ => bytes(data)?,
    }
    Ok(())
}

fn bytes(data: &[u8]) -> Done {
    for line in data.chunks(32) {
        let text: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
        say!("\t\t{text}");
    }
    Ok(())
}

fn time(name: &str, time: Timespec) -> Done {
    let date = crate::dates::date(time.seconds);
    let second = time.seconds.rem_euclid(60);
    say!(
        "\t\t{name} {}.{} ({date}:{second:02})",
        time.seconds,
        time.nanoseconds
    );
    Ok(())
}

fn inode(item: &InodeItem) -> Done {
    say!(
        "\t\tgeneration {} transid {} size {} nbytes {}",
        item.generation,
        item.transid,
        item.size,
        item.nbytes
    );
    say!(
        "\t\tblock group {} mode {:o} links {} uid {} gid {} rdev {}",
        item.block_group,
        item.mode,
        item.nlink,
        item.uid,
        item.gid,
        item.rdev
    );
    let names = match item.flags.is_empty() {
        true => "none".to_owned(),
        false => item.flags.names().join("|"),
    };
    say!(
        "\t\tsequence {} flags {:#x}({names})",
        item.sequence,
        item.flags.0
    );
    time("atime", item.atime)?;
    time("ctime", item.ctime)?;
    time("mtime", item.mtime)?;
    time("otime", item.otime)?;
    Ok(())
}

fn names(data: &[u8]) -> Result<(), Stop> {
    for entry in RefEntries::new(data) {
        let entry = entry?;
        say!(
            "\t\tindex {} namelen {} name: {}",
            entry.index,
            entry.name.len(),
            String::from_utf8_lossy(entry.name)
        );
    }
    Ok(())
}

fn extended_names(data: &[u8]) -> Result<(), Stop> {
    for entry in ExtrefEntries::new(data) {
        let entry = entry?;
        say!(
            "\t\tindex {} parent {} namelen {} name: {}",
            entry.index,
            entry.parent,
            entry.name.len(),
            String::from_utf8_lossy(entry.name)
        );
    }
    Ok(())
}

const fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "FILE",
        FileType::Directory => "DIR",
        FileType::CharDevice => "CHRDEV",
        FileType::BlockDevice => "BLKDEV",
        FileType::Fifo => "FIFO",
        FileType::Socket => "SOCK",
        FileType::Symlink => "SYMLINK",
        FileType::Xattr => "XATTR",
    }
}

fn entries(data: &[u8]) -> Result<(), Stop> {
    for entry in DirEntries::new(data) {
        let entry = entry?;
        let at = entry.location;
        say!(
            "\t\tlocation key ({} {:?} {}) type {}",
            at.objectid,
            at.item_type,
            at.offset,
            kind_name(entry.kind)
        );
        say!(
            "\t\ttransid {} data_len {} name_len {}",
            entry.generation,
            entry.data.len(),
            entry.name.len()
        );
        say!("\t\tname: {}", String::from_utf8_lossy(entry.name));
        if !entry.data.is_empty() {
            say!("\t\tdata {}", String::from_utf8_lossy(entry.data));
        }
    }
    Ok(())
}

fn file_extent(item: &FileExtent<'_>) -> Done {
    let algorithm = item
        .compression
        .map_or("none", |algorithm| algorithm.name());
    let number = item.compression.map_or(0, |algorithm| algorithm.number());
    let generation = item.generation;
    match &item.body {
        FileExtentBody::Inline(data) => {
            say!("\t\tgeneration {generation} type 0 (inline)");
            say!(
                "\t\tinline extent data size {} ram_bytes {} compression {number} ({algorithm})",
                data.len(),
                item.ram_bytes
            );
        }
        FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => {
            let (kind, verb) = match item.body {
                FileExtentBody::Prealloc(_) => ("2 (prealloc)", "prealloc"),
                _ => ("1 (regular)", "extent"),
            };
            say!("\t\tgeneration {generation} type {kind}");
            say!(
                "\t\t{verb} data disk byte {} nr {}",
                place.disk,
                place.disk_length
            );
            say!(
                "\t\t{verb} data offset {} nr {} ram {}",
                place.offset,
                place.length,
                item.ram_bytes
            );
            say!("\t\textent compression {number} ({algorithm})");
        }
    }
    Ok(())
}

fn root(item: &RootItem) -> Done {
    say!(
        "\t\tgeneration {} root_dirid {} bytenr {} byte_limit {} bytes_used {}",
        item.generation,
        item.root_dir,
        item.logical,
        item.byte_limit,
        item.bytes_used
    );
    let names = match item.flags.is_empty() {
        true => "none".to_owned(),
        false => item.flags.names().join("|"),
    };
    say!(
        "\t\tlast_snapshot {} flags {:#x}({names}) refs {}",
        item.last_snapshot,
        item.flags.0,
        item.refs
    );
    say!(
        "\t\tlevel {} generation_v2 {}",
        item.level,
        item.generation_v2
    );
    say!("\t\tuuid {}", Uuid::from_bytes(item.uuid));
    say!("\t\tparent_uuid {}", Uuid::from_bytes(item.parent_uuid));
    say!("\t\treceived_uuid {}", Uuid::from_bytes(item.received_uuid));
    say!(
        "\t\tctransid {} otransid {} stransid {} rtransid {}",
        item.ctransid,
        item.otransid,
        item.stransid,
        item.rtransid
    );
    time("ctime", item.ctime)?;
    time("otime", item.otime)?;
    time("stime", item.stime)?;
    time("rtime", item.rtime)?;
    Ok(())
}

/// Prints a chunk.
pub fn chunk(item: &Chunk) -> Done {
    say!(
        "\t\tlength {} owner {} stripe_len {} type {}",
        item.length,
        item.owner,
        item.stripe_length,
        item.flags.describe()
    );
    say!(
        "\t\tio_align {} io_width {} sector_size {}",
        item.io_align,
        item.io_width,
        item.sector_size
    );
    say!(
        "\t\tnum_stripes {} sub_stripes {}",
        item.stripes.len(),
        item.sub_stripes
    );
    for (index, stripe) in item.stripes.iter().enumerate() {
        say!(
            "\t\t\tstripe {index} devid {} offset {}\n\t\t\tdev_uuid {}",
            stripe.device,
            stripe.offset,
            Uuid::from_bytes(stripe.device_uuid)
        );
    }
    Ok(())
}
