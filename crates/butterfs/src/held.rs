//! What a device holds if it holds no volume, and what to do then.

use butterfs_device::probe::{Found, Partition, PartitionTable};
use std::fmt;

/// What a device holds instead of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Held {
    /// A partition table, with the partitions that hold Btrfs.
    Partitions {
        /// GPT or MBR.
        table: &'static str,
        /// Those with Btrfs.
        btrfs: Vec<Partition>,
    },
    /// No partition has the number that was asked for.
    NoPartition {
        /// What was asked for.
        number: u32,
        /// What the table has; `None` without a table.
        table: Option<PartitionTable>,
    },
    /// Something that is known by its signature.
    Other(Found),
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partitions { table, btrfs } if btrfs.is_empty() => {
                write!(
                    f,
                    "has a partition table ({table}), and no partition holds Btrfs"
                )
            }
            Self::Partitions { table, btrfs } => {
                let named: Vec<String> = btrfs.iter().map(described).collect();
                let first = btrfs.first().map_or(0, |partition| partition.number);
                write!(
                    f,
                    "has a partition table ({table}); Btrfs is in {}; choose it with --partition \
                     {first}, or mount it (butterfs mount -o partition={first}) for commands \
                     without this option",
                    named.join(" and ")
                )
            }
            Self::NoPartition {
                number,
                table: None,
            } => write!(
                f,
                "has no partition table, so no partition {number}; leave the partition out"
            ),
            Self::NoPartition {
                number,
                table: Some(table),
            } => {
                let all = table.partitions.iter();
                let numbers: Vec<String> = all.map(|one| one.number.to_string()).collect();
                write!(
                    f,
                    "has no partition {number}; its table ({}) has {}",
                    table.kind,
                    match numbers.is_empty() {
                        true => "none".to_owned(),
                        false => numbers.join(", "),
                    }
                )
            }
            Self::Other(Found::FileSystem(name)) => write!(f, "holds {name}, not Btrfs"),
            Self::Other(Found::DiskImage(name)) => write!(
                f,
                "is a disk image ({name}); make a plain one of it first: qemu-img convert -f \
                 {name} -O raw IMAGE disk.img"
            ),
            Self::Other(Found::Compressed(name)) => write!(
                f,
                "is compressed with {name}; decompress it first: {name} --decompress --keep IMAGE"
            ),
            Self::Other(found) => write!(f, "holds no Btrfs but {found}"),
        }
    }
}

fn described(partition: &Partition) -> String {
    let mib = partition.range.length >> 20;
    match partition.name.is_empty() {
        true => format!("partition {} ({mib} MiB)", partition.number),
        false => format!(
            "partition {} ({}, {mib} MiB)",
            partition.number, partition.name
        ),
    }
}
