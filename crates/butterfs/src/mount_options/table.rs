//! The mount options: name, value, help, effect. One line each.

use super::{Force, MountOptions, Subvolume, Transport, Wake, WriteCache};
use crate::part::Part;
use butterfs_device::Access;
use butterfs_format::Generation;
use butterfs_fs::options::{AccessTimes, AclPolicy, Compress, DataCow};
use butterfs_store::{Barriers, Degraded, Discard, FreeSpace, LogPolicy, OnFault, Rescue, Roots};
use std::time::Duration;

type Value<'a> = Option<&'a str>;
type Apply = fn(&mut MountOptions, &OptionHelp, Value<'_>) -> Result<(), String>;

/// A mount option.
#[derive(Clone, Copy, Debug)]
pub struct OptionHelp {
    /// Name.
    pub name: &'static str,
    /// What its value is, with the equals sign; empty if it has none.
    pub value: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    pub(super) apply: Apply,
}

const fn option(
    name: &'static str,
    value: &'static str,
    help: &'static str,
    apply: Apply,
) -> OptionHelp {
    OptionHelp {
        name,
        value,
        help,
        apply,
    }
}

fn none(value: Value<'_>) -> Result<(), String> {
    value.map_or(Ok(()), |_| Err("it takes no value".to_owned()))
}

fn number<N: std::str::FromStr>(value: Value<'_>) -> Result<N, String> {
    let value = value.ok_or("it needs a number")?;
    let parsed = value.parse();
    parsed.map_err(|_| format!("`{value}` is not a number that fits"))
}

fn size(value: Value<'_>) -> Result<u64, String> {
    let value = value.ok_or("it needs a size")?;
    let (digits, factor) = match value.chars().last().map(|c| c.to_ascii_lowercase()) {
        Some('k') => (&value[..value.len() - 1], 1 << 10),
        Some('m') => (&value[..value.len() - 1], 1 << 20),
        Some('g') => (&value[..value.len() - 1], 1 << 30),
        _ => (value, 1u64),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| format!("`{value}` is no size; write for example 512k"))
}

fn nothing(_: &mut MountOptions, _: &OptionHelp, value: Value<'_>) -> Result<(), String> {
    none(value)
}

/// A flag that mount(2) knows by the same name.
fn kernel(options: &mut MountOptions, this: &OptionHelp, value: Value<'_>) -> Result<(), String> {
    options.kernel_flags.push(this.name);
    none(value)
}

fn rescue(options: &mut MountOptions, _: &OptionHelp, value: Value<'_>) -> Result<(), String> {
    for word in value
        .ok_or("it needs a value, such as nologreplay")?
        .split(':')
    {
        match word {
            "nologreplay" => options.log = LogPolicy::Ignore,
            "usebackuproot" => options.roots = Roots::OrBackups,
            "ignorebadroots" | "ibadroots" => options.rescue.roots = OnFault::PassOver,
            "ignoredatacsums" | "idatacsums" => options.rescue.data = OnFault::PassOver,
            "ignoremetacsums" | "imetacsums" => options.rescue.nodes = OnFault::PassOver,
            "ignoresuperflags" | "isuperflags" => options.rescue.flags = OnFault::PassOver,
            "all" => {
                options.rescue = Rescue::ALL;
                options.log = LogPolicy::Ignore;
            }
            other => match other.strip_prefix("generation=").map(str::parse) {
                Some(Ok(generation)) => options.roots = Roots::Of(Generation(generation)),
                Some(Err(_)) => return Err(format!("{other} has no number")),
                None => return Err(format!("there is no rescue={other}")),
            },
        }
    }
    Ok(())
}

/// All mount options, in the order of the manual.
pub const OPTIONS: &[OptionHelp] = &[
    option(
        "ro",
        "",
        "read-only: nothing is written to the device",
        |o, _, v| {
            o.access = Access::ReadOnly;
            none(v)
        },
    ),
    option("rw", "", "read-write (default)", |o, _, v| {
        o.access = Access::ReadWrite;
        none(v)
    }),
    option(
        "partition",
        "=N",
        "the volume is in this partition of the device",
        |o, _, v| {
            o.part = Part::Partition(number(v)?);
            Ok(())
        },
    ),
    option(
        "offset",
        "=BYTES",
        "the volume begins at this byte of the device",
        |o, _, v| {
            o.part = Part::Offset(size(v)?);
            Ok(())
        },
    ),
    option(
        "subvol",
        "=PATH",
        "mount the subvolume at PATH from the top level",
        |o, _, v| {
            let path = v.filter(|path| !path.is_empty()).ok_or("it needs a path")?;
            o.subvolume = Subvolume::Path(path.as_bytes().to_vec());
            Ok(())
        },
    ),
    option(
        "subvolid",
        "=ID",
        "mount the subvolume of this id; 5 is the top level",
        |o, _, v| {
            o.subvolume = Subvolume::Id(number(v)?);
            Ok(())
        },
    ),
    option(
        "subvolrootid",
        "=ID",
        "accepted and ignored, as the kernel does",
        |_, _, v| number::<u64>(v).map(|_| ()),
    ),
    option(
        "compress",
        "[=ALG[:LEVEL]]",
        "compress with zlib, lzo or zstd where it pays; no turns it off",
        |o, _, v| o.compress_with(v, Force::No),
    ),
    option(
        "compress-force",
        "[=ALG[:LEVEL]]",
        "try to compress every unit of every file",
        |o, _, v| o.compress_with(v, Force::Yes),
    ),
    option(
        "nodatacow",
        "",
        "overwrite new files in place, without checksums or compression",
        |o, _, v| {
            o.data_cow = DataCow::Off;
            o.compress = Compress::Off;
            none(v)
        },
    ),
    option("datacow", "", "copy data on write (default)", |o, _, v| {
        if o.data_cow == DataCow::Off {
            o.data_cow = DataCow::NoSum;
        }
        none(v)
    }),
    option("nodatasum", "", "no checksums for new data", |o, _, v| {
        if o.data_cow == DataCow::On {
            o.data_cow = DataCow::NoSum;
        }
        none(v)
    }),
    option(
        "datasum",
        "",
        "checksums for data (default); turns datacow on",
        |o, _, v| {
            o.data_cow = DataCow::On;
            none(v)
        },
    ),
    option(
        "max_inline",
        "=BYTES",
        "greatest file kept in the tree itself (default 2048)",
        |o, _, v| {
            o.max_inline = size(v)?.try_into().unwrap_or(u32::MAX);
            Ok(())
        },
    ),
    option(
        "commit",
        "=SECONDS",
        "time between commits (default 30)",
        |o, _, v| {
            o.commit = Duration::from_secs(number::<u32>(v)?.max(1).into());
            Ok(())
        },
    ),
    option(
        "flushoncommit",
        "",
        "accepted; commits by time, sync and unmount bring all data along, those of fsync do not",
        nothing,
    ),
    option(
        "noflushoncommit",
        "",
        "accepted; see flushoncommit",
        nothing,
    ),
    option(
        "barrier",
        "",
        "flush the device in each commit (default)",
        |o, _, v| {
            o.barriers = Barriers::On;
            none(v)
        },
    ),
    option(
        "nobarrier",
        "",
        "do not flush: a power cut can lose the volume",
        |o, _, v| {
            o.barriers = Barriers::UnsafeOff;
            none(v)
        },
    ),
    option(
        "ssd",
        "",
        "accepted: the allocator does not depend on it",
        nothing,
    ),
    option(
        "nossd",
        "",
        "accepted: the allocator does not depend on it",
        nothing,
    ),
    option(
        "ssd_spread",
        "",
        "accepted: the allocator does not depend on it",
        nothing,
    ),
    option(
        "nossd_spread",
        "",
        "accepted: the allocator does not depend on it",
        nothing,
    ),
    option(
        "discard",
        "[=async|sync]",
        "give freed space back to the device (punches holes in a file)",
        |o, _, v| match v {
            None | Some("async" | "sync") => {
                o.discard = Discard::On;
                Ok(())
            }
            Some(_) => Err("it is async or sync".to_owned()),
        },
    ),
    option("nodiscard", "", "keep freed space (default)", |o, _, v| {
        o.discard = Discard::Off;
        none(v)
    }),
    option(
        "space_cache",
        "=v2",
        "the free-space tree; v1 is not kept",
        |_, _, v| match v {
            Some("v2") => Ok(()),
            _ => Err("only v2, the free-space tree, is supported".to_owned()),
        },
    ),
    option(
        "nospace_cache",
        "",
        "accepted: the free-space tree is kept where it is",
        nothing,
    ),
    option(
        "treelog",
        "",
        "fsync through the fsync log (default)",
        |o, _, v| {
            o.log_fsync = true;
            none(v)
        },
    ),
    option("notreelog", "", "every fsync is a commit", |o, _, v| {
        o.log_fsync = false;
        none(v)
    }),
    option("nologreplay", "", "the same as norecovery", |o, _, v| {
        o.log = LogPolicy::Ignore;
        none(v)
    }),
    option(
        "usebackuproot",
        "",
        "where the last commit's roots are damaged, open by those of an earlier one",
        |o, _, v| {
            o.roots = Roots::OrBackups;
            none(v)
        },
    ),
    option(
        "clear_cache",
        "",
        "make the free-space tree anew from the extent tree, once",
        |o, _, v| {
            o.free_space = FreeSpace::Remade;
            none(v)
        },
    ),
    option(
        "skip_balance",
        "",
        "an interrupted balance waits until it is resumed by hand",
        |o, _, v| {
            o.skip_balance = true;
            none(v)
        },
    ),
    option(
        "enospc_debug",
        "",
        "accepted: nothing more is logged",
        nothing,
    ),
    option("noenospc_debug", "", "accepted (default)", nothing),
    option(
        "metadata_ratio",
        "=N",
        "accepted: metadata chunks are made when they are needed",
        |_, _, v| number::<u32>(v).map(drop),
    ),
    option(
        "acl",
        "",
        "access control lists count (default)",
        |o, _, v| {
            o.acl = AclPolicy::On;
            none(v)
        },
    ),
    option(
        "noacl",
        "",
        "access control lists are neither looked at nor set",
        |o, _, v| {
            o.acl = AclPolicy::Off;
            none(v)
        },
    ),
    option(
        "thread_pool",
        "=N",
        "threads that serve and compress",
        |o, _, v| {
            let threads: usize = number(v)?;
            if !(1..=1024).contains(&threads) {
                return Err("it is 1 to 1024".to_owned());
            }
            o.threads = Some(threads);
            Ok(())
        },
    ),
    option(
        "memory",
        "=SIZE",
        "file data that may wait in memory (default 96m)",
        |o, _, v| {
            let bytes = usize::try_from(size(v)?).unwrap_or(usize::MAX);
            o.buffer_bytes = bytes.max(4 << 20);
            Ok(())
        },
    ),
    option(
        "writeback",
        "",
        "the kernel keeps written data first: faster small writes, but sync(2) does not wait for them",
        |o, _, v| {
            o.write_cache = WriteCache::Kernel;
            none(v)
        },
    ),
    option(
        "transport",
        "=auto|uring|dev",
        "how requests come: by io_uring where the kernel offers it (auto), which root switches on (uring), or by /dev/fuse (dev)",
        |o, _, v| {
            o.transport = match v {
                Some("auto") => Transport::Auto,
                Some("uring") => Transport::Uring,
                Some("dev") => Transport::Device,
                _ => return Err("it is auto, uring or dev".to_owned()),
            };
            Ok(())
        },
    ),
    option(
        "wake",
        "=auto|poll|sleep",
        "keep CPUs awake while requests come: where waking them takes long (auto), always (poll), never (sleep)",
        |o, _, v| {
            o.wake = match v {
                Some("auto") => Wake::Auto,
                Some("poll") => Wake::Poll,
                Some("sleep") => Wake::Sleep,
                _ => return Err("it is auto, poll or sleep".to_owned()),
            };
            Ok(())
        },
    ),
    option(
        "degraded",
        "",
        "open the volume without devices that are missing or stale, where every chunk allows that",
        |o, _, v| {
            o.degraded = Degraded::Allowed;
            none(v)
        },
    ),
    option(
        "device",
        "=PATH",
        "a further device of the volume; without any, they are looked for beside the source",
        |o, _, v| {
            let path = v.filter(|path| !path.is_empty());
            o.devices.push(path.ok_or("it needs a path")?.into());
            Ok(())
        },
    ),
    option(
        "autodefrag",
        "",
        "defragment in the background what small writes scatter",
        |o, _, v| {
            o.autodefrag = true;
            none(v)
        },
    ),
    option("noautodefrag", "", "do not (default)", |o, _, v| {
        o.autodefrag = false;
        none(v)
    }),
    option(
        "idmap",
        "",
        "allow idmapped mounts of this mount (X-mount.idmap); requests cost more",
        |o, _, v| {
            o.idmap = true;
            none(v)
        },
    ),
    option(
        "user_subvol_rm_allowed",
        "",
        "users may delete subvolumes that they own",
        |o, _, v| {
            o.user_subvol_rm_allowed = true;
            none(v)
        },
    ),
    option(
        "norecovery",
        "",
        "with ro: open without replaying the fsync log",
        |o, _, v| {
            o.log = LogPolicy::Ignore;
            none(v)
        },
    ),
    option(
        "rescue",
        "=WORD[:WORD]",
        "open a damaged volume: usebackuproot; with ro nologreplay, ignorebadroots, ignoredatacsums, \
         ignoremetacsums, ignoresuperflags, generation=N, all",
        rescue,
    ),
    option(
        "noatime",
        "",
        "reading changes no access time",
        |o, this, v| {
            o.access_times = AccessTimes::Never;
            kernel(o, this, v)
        },
    ),
    option(
        "relatime",
        "",
        "reading changes access times older than the last change or a day (default)",
        |o, this, v| {
            o.access_times = AccessTimes::Relative;
            kernel(o, this, v)
        },
    ),
    option(
        "strictatime",
        "",
        "every read that the kernel does not answer from its cache changes the access time",
        |o, this, v| {
            o.access_times = AccessTimes::Always;
            kernel(o, this, v)
        },
    ),
    option(
        "nodiratime",
        "",
        "reading directories changes no access time",
        kernel,
    ),
    option("atime", "", "undoes noatime", kernel),
    option("diratime", "", "undoes nodiratime", kernel),
    option("lazytime", "", "accepted by the kernel", kernel),
    option("suid", "", "honour set-user-id files (root)", kernel),
    option("nosuid", "", "ignore set-user-id files (default)", kernel),
    option("dev", "", "device files work (root)", kernel),
    option("nodev", "", "device files do not work (default)", kernel),
    option("exec", "", "programs can be run (default)", kernel),
    option("noexec", "", "programs cannot be run", kernel),
    option("sync", "", "writes are synchronous", kernel),
    option("async", "", "writes are not synchronous (default)", kernel),
    option("dirsync", "", "changes of names are synchronous", kernel),
    option(
        "allow_other",
        "",
        "let other users in, as permissions allow (always so when root mounts)",
        |o, _, v| {
            o.allow_other = true;
            none(v)
        },
    ),
    option(
        "default_permissions",
        "",
        "the kernel checks permissions (always so)",
        nothing,
    ),
    option(
        "uid",
        "=ID",
        "all files seem to belong to this user",
        |o, _, v| {
            o.uid = Some(number(v)?);
            Ok(())
        },
    ),
    option(
        "gid",
        "=ID",
        "all files seem to belong to this group",
        |o, _, v| {
            o.gid = Some(number(v)?);
            Ok(())
        },
    ),
    option(
        "logfile",
        "=PATH",
        "where the server in the background logs (default: the system log)",
        |o, _, v| {
            o.logfile = Some(v.ok_or("it needs a path")?.into());
            Ok(())
        },
    ),
    option(
        "overlay",
        "=FILE",
        "write to FILE instead of the devices; `butterfs rescue commit FILE` writes it to them",
        |o, _, v| {
            o.overlay = Some(v.ok_or("it needs a path")?.into());
            Ok(())
        },
    ),
    // What mount(8) passes along from fstab.
    option("auto", "", "for fstab", nothing),
    option("noauto", "", "for fstab", nothing),
    option("nofail", "", "for fstab", nothing),
    option("user", "", "for fstab", nothing),
    option("nouser", "", "for fstab", nothing),
    option("users", "", "for fstab", nothing),
    option("_netdev", "", "for fstab", nothing),
    option("defaults", "", "for fstab", nothing),
];
