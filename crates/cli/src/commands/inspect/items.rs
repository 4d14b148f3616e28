//! Items as text. Unknown content is shown as bytes.

use super::names::{key_text, object_name};
use crate::fail::{Done, Failure};
use butterfs::{FileType, Timespec};
use butterfs_format::item::balance::halves;
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::csum::CsumItem;
use butterfs_format::item::device::{DeviceExtent, DeviceItem};
use butterfs_format::item::dir::DirEntries;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::free_space::FreeSpaceInfo;
use butterfs_format::item::inode::{ExtrefEntries, InodeItem, RefEntries};
use butterfs_format::item::log::DirLogItem;
use butterfs_format::item::qgroup::{QgroupInfo, QgroupLimit, QgroupStatus, QgroupStatusFlags};
use butterfs_format::item::root::RootItem;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::item::state::{BalanceItem, DeviceStats};
use butterfs_format::item::uuid as subvolumes;
use butterfs_format::{ChecksumType, ItemType, Key, ParseError};
use std::borrow::Cow;
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

/// Whether names are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// As they are.
    Shown,
    /// As [`HIDDEN`].
    Hidden,
}

/// What stands for a name.
const HIDDEN: &str = "HIDDEN";

impl Names {
    fn show(self, name: &[u8]) -> Cow<'_, str> {
        match self {
            Self::Shown => String::from_utf8_lossy(name),
            Self::Hidden => Cow::Borrowed(HIDDEN),
        }
    }
}

/// What of items is printed.
#[derive(Debug)]
pub struct Style {
    pub names: Names,
    /// The checksums of data, too.
    pub csum_items: bool,
    /// The checksums of nodes, too.
    pub csum_headers: bool,
    /// Of the volume.
    pub checksum: ChecksumType,
    /// Bytes of a sector of the volume.
    pub sector_size: u32,
}

/// Prints an item's content, indented.
pub fn print(style: &Style, key: Key, data: &[u8]) -> Done {
    match show(style, key, data) {
        Ok(()) => Ok(()),
        Err(Stop::Output(failure)) => Err(failure),
        Err(Stop::Damaged(error)) => {
            say!("\t\tdamaged: {error}");
            bytes(data)
        }
    }
}

fn show(style: &Style, key: Key, data: &[u8]) -> Result<(), Stop> {
    let hidden = style.names;
    match key.item_type {
        ItemType::INODE_ITEM => inode(&InodeItem::parse(data)?)?,
        ItemType::INODE_REF => names(hidden, data)?,
        ItemType::INODE_EXTREF => extended_names(hidden, data)?,
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => entries(hidden, data)?,
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
        ItemType::DEV_ITEM => device(&DeviceItem::parse(data)?)?,
        ItemType::DEV_EXTENT => {
            let item = DeviceExtent::parse(data)?;
            say!(
                "\t\tdev extent chunk_tree {}\n\t\tchunk_objectid {} chunk_offset {} length {}",
                item.chunk_tree,
                item.chunk_objectid,
                item.chunk,
                item.length
            );
            let uuid = Uuid::from_bytes(item.chunk_tree_uuid);
            say!("\t\tchunk_tree_uuid {uuid}");
        }
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
            let item = RootRef::parse(data)?;
            let kind = match key.item_type {
                ItemType::ROOT_REF => "ref",
                _ => "backref",
            };
            say!(
                "\t\troot {kind} key dirid {} sequence {} name {}",
                item.directory,
                item.index,
                hidden.show(item.name)
            );
        }
        ItemType::EXTENT_CSUM => checksums(style, key, data)?,
        ItemType::ORPHAN_ITEM => say!("\t\torphan item"),
        ItemType::DIR_LOG_ITEM | ItemType::DIR_LOG_INDEX => {
            say!("\t\tdir log end {}", DirLogItem::parse(data)?.end);
        }
        ItemType::FREE_SPACE_INFO => {
            let item = FreeSpaceInfo::parse(data)?;
            let (extents, flags) = (item.extents, item.flags.0);
            say!("\t\tfree space info extent count {extents} flags {flags}");
        }
        ItemType::FREE_SPACE_EXTENT => say!("\t\tfree space extent"),
        ItemType::FREE_SPACE_BITMAP => say!("\t\tfree space bitmap"),
        ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => {
            for tree in subvolumes::parse(data)? {
                say!("\t\tsubvol_id {}", tree.get());
            }
        }
        ItemType::PERSISTENT_ITEM => {
            let (object, offset) = (key.objectid, key.offset);
            let object = match object {
                0 => "DEV_STATS".to_owned(),
                other => other.to_string(),
            };
            say!("\t\tpersistent item objectid {object} offset {offset}");
            let item = DeviceStats::parse(data)?;
            say!("\t\tdevice stats");
            say!(
                "\t\twrite_errs {} read_errs {} flush_errs {} corruption_errs {} generation {}",
                item.write_errors,
                item.read_errors,
                item.flush_errors,
                item.corruption_errors,
                item.generation_errors
            );
        }
        ItemType::TEMPORARY_ITEM => balance(key, &BalanceItem::parse(data)?)?,
        ItemType::QGROUP_STATUS => quota_status(&QgroupStatus::parse(data)?)?,
        ItemType::QGROUP_INFO => {
            let item = QgroupInfo::parse(data)?;
            say!("\t\tgeneration {}", item.generation);
            let (bytes, compressed) = (item.referenced, item.referenced_compressed);
            say!("\t\treferenced {bytes} referenced_compressed {compressed}");
            let (bytes, compressed) = (item.exclusive, item.exclusive_compressed);
            say!("\t\texclusive {bytes} exclusive_compressed {compressed}");
        }
        ItemType::QGROUP_LIMIT => {
            let item = QgroupLimit::parse(data)?;
            say!("\t\tflags {:x}", item.flags.0);
            let (referenced, exclusive) = (item.referenced_max, item.exclusive_max);
            say!("\t\tmax_referenced {referenced} max_exclusive {exclusive}");
            let (referenced, exclusive) = (item.reserved_referenced, item.reserved_exclusive);
            say!("\t\trsv_referenced {referenced} rsv_exclusive {exclusive}");
        }
        ItemType::QGROUP_RELATION => {}
        ItemType::EXTENT_DATA_REF | ItemType::SHARED_DATA_REF => {
            match super::extents::data_reference(key.item_type, data) {
                Some(line) => say!("\t\t{line}"),
                None => bytes(data)?,
            }
        }
        ItemType::TREE_BLOCK_REF => say!("\t\ttree block backref"),
        ItemType::SHARED_BLOCK_REF => say!("\t\tshared block backref"),
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

/// Bytes as a number, the first byte in front.
pub fn hex<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> String {
    let digits = bytes.into_iter().map(|byte| format!("{byte:02x}"));
    format!("0x{}", digits.collect::<String>())
}

fn device(item: &DeviceItem) -> Done {
    say!(
        "\t\tdevid {} total_bytes {} bytes_used {}",
        item.id,
        item.total_bytes,
        item.bytes_used
    );
    say!(
        "\t\tio_align {} io_width {} sector_size {} type {}",
        item.io_align,
        item.io_width,
        item.sector_size,
        item.device_type
    );
    say!(
        "\t\tgeneration {} start_offset {} dev_group {}",
        item.generation,
        item.start_offset,
        item.group
    );
    let (speed, width) = (item.seek_speed, item.bandwidth);
    say!("\t\tseek_speed {speed} bandwidth {width}");
    say!("\t\tuuid {}", Uuid::from_bytes(item.uuid));
    say!("\t\tfsid {}", Uuid::from_bytes(item.fsid));
    Ok(())
}

fn checksums(style: &Style, key: Key, data: &[u8]) -> Result<(), Stop> {
    /// Bytes of a line, with its addresses, that the Btrfs tools fill.
    const LINE: usize = 128;
    let item = CsumItem::parse(&key, data, style.checksum, style.sector_size)?;
    let (start, end) = (item.start, item.end);
    let length = end.get() - start.get();
    say!("\t\trange start {start} end {end} length {length}");
    if !style.csum_items {
        return Ok(());
    }
    // An address, and the checksum in hexadecimal digits.
    let width = "[0123456789ABCDEF] 0x".len() + 2 * style.checksum.size();
    let sector = u64::from(style.sector_size);
    let sums = data.chunks_exact(style.checksum.size());
    let sums: Vec<_> = (start.get()..).step_by(sector as usize).zip(sums).collect();
    for line in sums.chunks((LINE / width).max(1)) {
        let line = line.iter().map(|(at, sum)| format!("[{at}] {}", hex(*sum)));
        say!("\t\t{}", line.collect::<Vec<_>>().join(" "));
    }
    Ok(())
}

fn balance(key: Key, item: &BalanceItem) -> Result<(), Stop> {
    let object = object_name(key.objectid);
    say!("\t\ttemporary item objectid {object} offset {}", key.offset);
    say!("\t\tbalance status flags {}", item.flags.0);
    let names = ["DATA", "METADATA", "SYSTEM"];
    for (name, args) in names.iter().zip(item.filters()?) {
        say!("\t\t{name}");
        say!(
            "\t\tprofiles {} devid {} target {} flags {}",
            args.profiles,
            args.device,
            args.target,
            args.filters.0
        );
        let ((least, most), (start, end)) = (halves(args.usage), args.physical);
        say!("\t\tusage_min {least} usage_max {most} pstart {start} pend {end}");
        let ((start, end), (least, most)) = (args.logical, halves(args.limit));
        say!("\t\tvstart {start} vend {end} limit_min {least} limit_max {most}");
        let (least, most) = args.stripes;
        say!("\t\tstripes_min {least} stripes_max {most}");
    }
    Ok(())
}

fn quota_status(item: &QgroupStatus) -> Done {
    let flags = item.flags;
    let mut names = vec![match flags.contains(QgroupStatusFlags::ON) {
        true => "ON",
        false => "OFF",
    }];
    let others = [
        (QgroupStatusFlags::SIMPLE_MODE, "SIMPLE_MODE"),
        (QgroupStatusFlags::RESCAN, "SCANNING"),
        (QgroupStatusFlags::INCONSISTENT, "INCONSISTENT"),
    ];
    names.extend(
        others
            .iter()
            .filter(|(flag, _)| flags.contains(*flag))
            .map(|(_, name)| name),
    );
    let since = item
        .enable_generation
        .filter(|_| flags.contains(QgroupStatusFlags::SIMPLE_MODE))
        .map(|number| format!(" enable_gen {number}"));
    say!(
        "\t\tversion {} generation {} flags {} scan {}{}",
        QgroupStatus::VERSION,
        item.generation,
        names.join("|"),
        item.rescan,
        since.unwrap_or_default()
    );
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

fn names(hidden: Names, data: &[u8]) -> Result<(), Stop> {
    for entry in RefEntries::new(data) {
        let entry = entry?;
        say!(
            "\t\tindex {} namelen {} name: {}",
            entry.index,
            entry.name.len(),
            hidden.show(entry.name)
        );
    }
    Ok(())
}

fn extended_names(hidden: Names, data: &[u8]) -> Result<(), Stop> {
    for entry in ExtrefEntries::new(data) {
        let entry = entry?;
        say!(
            "\t\tindex {} parent {} namelen {} name: {}",
            entry.index,
            entry.parent,
            entry.name.len(),
            hidden.show(entry.name)
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

fn entries(hidden: Names, data: &[u8]) -> Result<(), Stop> {
    for entry in DirEntries::new(data) {
        let entry = entry?;
        let at = entry.location;
        let (key, kind) = (key_text(at), kind_name(entry.kind));
        say!("\t\tlocation key {key} type {kind}");
        say!(
            "\t\ttransid {} data_len {} name_len {}",
            entry.generation,
            entry.data.len(),
            entry.name.len()
        );
        say!("\t\tname: {}", hidden.show(entry.name));
        if !entry.data.is_empty() {
            say!("\t\tdata {}", hidden.show(entry.data));
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
        FileExtentBody::Prealloc(place) => {
            let (disk, disk_length) = (place.disk, place.disk_length);
            let (offset, length) = (place.offset, place.length);
            say!("\t\tgeneration {generation} type 2 (prealloc)");
            say!("\t\tprealloc data disk byte {disk} nr {disk_length}");
            say!("\t\tprealloc data offset {offset} nr {length}");
        }
        FileExtentBody::Regular(place) => {
            let (disk, disk_length) = (place.disk, place.disk_length);
            let (offset, length) = (place.offset, place.length);
            say!("\t\tgeneration {generation} type 1 (regular)");
            say!("\t\textent data disk byte {disk} nr {disk_length}");
            let ram = item.ram_bytes;
            say!("\t\textent data offset {offset} nr {length} ram {ram}");
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
    let progress = item.drop_progress.unwrap_or(Key::MIN);
    let (progress, level) = (key_text(progress), item.drop_level);
    say!("\t\tdrop_progress key {progress} drop_level {level}");
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
