//! What `-o` can say.
//!
//! Owns the table of option names ([`OPTIONS`]: parsing, help and docs come
//! from it) and how options affect each other, as in btrfs(5). Options are
//! applied from left to right, and a later one wins.

use crate::part::Part;
use crate::volume::OpenOptions;
use butterfs_device::Access;
use butterfs_format::compression::{Algorithm, Level};
use butterfs_fs::options::{AccessTimes, AclPolicy, Compress, DataCow, Options};
use butterfs_store::{Barriers, Degraded, Discard, FreeSpace, LogPolicy, OnFault, Rescue, Roots};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

mod table;

pub use table::{OPTIONS, OptionHelp};

/// Which subvolume is the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Subvolume {
    /// The volume's default one.
    #[default]
    Default,
    /// The one of this id; 0 is the top level.
    Id(u64),
    /// The one at this path from the top level.
    Path(Vec<u8>),
}

/// Who caches written data first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteCache {
    /// ButterFS: it knows of every write(2) that returned. fsync, umount, and
    /// sync(2) on a block mount bring it to the device.
    #[default]
    Server,
    /// The kernel (`writeback`): small writes are faster, but on a plain mount
    /// sync(2) does not wait for them.
    Kernel,
}

/// A mount option cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// No option of this name.
    #[error("unknown mount option `{name}`{}", .nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    Unknown {
        /// As it was given.
        name: String,
        /// A known one that is close.
        nearest: Option<&'static str>,
    },
    /// The value does not fit.
    #[error("mount option `{name}`: {reason}")]
    BadValue {
        /// Option.
        name: String,
        /// What is expected.
        reason: String,
    },
}

/// How a mount's requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Through io_uring if the kernel offers it, otherwise through /dev/fuse.
    #[default]
    Auto,
    /// As `Auto`, and root makes the kernel offer it.
    Uring,
    /// Through /dev/fuse.
    Device,
}

/// What is done about CPUs that wake slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wake {
    /// They are kept awake while requests come, if waking them takes long.
    #[default]
    Auto,
    /// They are kept awake while requests come.
    Poll,
    /// Nothing.
    Sleep,
}

/// All that mount options decide.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Read-only or not.
    pub access: Access,
    /// Which part of the device holds the volume.
    pub part: Part,
    /// Which subvolume is the root.
    pub subvolume: Subvolume,
    /// Compression.
    pub compress: Compress,
    /// Copy-on-write.
    pub data_cow: DataCow,
    /// Greatest inline file, in bytes.
    pub max_inline: u32,
    /// Time between commits.
    pub commit: Duration,
    /// Whether commits flush the devices.
    pub barriers: Barriers,
    /// Whether freed space is discarded.
    pub discard: Discard,
    /// What to do about a log that waits for its replay.
    pub log: LogPolicy,
    /// Which roots of trees may be used to open the volume.
    pub roots: Roots,
    /// Which damage is ignored.
    pub rescue: Rescue,
    /// Whether the record of free space is trusted.
    pub free_space: FreeSpace,
    /// Whether devices may be missing.
    pub degraded: Degraded,
    /// Further devices of the volume.
    pub devices: Vec<PathBuf>,
    /// Whether access control lists count.
    pub acl: AclPolicy,
    /// Whether fsync uses the fsync log.
    pub log_fsync: bool,
    /// Threads that serve and compress; `None` lets the program choose.
    pub threads: Option<usize>,
    /// Bytes of file data that may wait in memory.
    pub buffer_bytes: usize,
    /// When access times change.
    pub access_times: AccessTimes,
    /// Who caches written data first.
    pub write_cache: WriteCache,
    /// How requests come.
    pub transport: Transport,
    /// What is done about CPUs that wake slowly.
    pub wake: Wake,
    /// Everyone may use the mount.
    pub allow_other: bool,
    /// Small scattered writes are defragmented in the background.
    pub autodefrag: bool,
    /// A balance that was interrupted does not continue by itself.
    pub skip_balance: bool,
    /// The mount can be mounted again with other user ids.
    pub idmap: bool,
    /// Users may delete subvolumes that they own.
    pub user_subvol_rm_allowed: bool,
    /// Owner that all files seem to have.
    pub uid: Option<u32>,
    /// Group that all files seem to have.
    pub gid: Option<u32>,
    /// Where events are logged.
    pub logfile: Option<PathBuf>,
    /// File that keeps all changes, so that the devices stay as they are.
    pub overlay: Option<PathBuf>,
    /// Flags for mount(2) and names that only the kernel knows.
    pub kernel_flags: Vec<&'static str>,
}

impl Default for MountOptions {
    fn default() -> Self {
        let files = Options::default();
        Self {
            access: Access::ReadWrite,
            part: Part::Whole,
            subvolume: Subvolume::Default,
            compress: files.compress,
            data_cow: files.data_cow,
            max_inline: files.max_inline,
            commit: Duration::from_secs(30),
            barriers: Barriers::On,
            discard: Discard::Off,
            log: LogPolicy::Replay,
            roots: Roots::Last,
            rescue: Rescue::default(),
            free_space: FreeSpace::Kept,
            degraded: Degraded::Refused,
            devices: Vec::new(),
            acl: AclPolicy::On,
            log_fsync: true,
            threads: None,
            buffer_bytes: files.buffer_bytes,
            access_times: AccessTimes::Relative,
            write_cache: WriteCache::Server,
            transport: Transport::Auto,
            wake: Wake::Auto,
            allow_other: false,
            autodefrag: false,
            skip_balance: false,
            idmap: false,
            user_subvol_rm_allowed: false,
            uid: None,
            gid: None,
            logfile: None,
            overlay: None,
            kernel_flags: Vec::new(),
        }
    }
}

impl MountOptions {
    /// Reads a comma-separated list.
    ///
    /// # Errors
    /// An unknown name, or a value that is not allowed.
    pub fn parse(list: &str) -> Result<Self, OptionError> {
        let mut options = Self::default();
        options.apply(list)?;
        Ok(options)
    }

    /// Applies a comma-separated list on top of what is set.
    ///
    /// # Errors
    /// As [`MountOptions::parse`].
    pub fn apply(&mut self, list: &str) -> Result<(), OptionError> {
        for word in list.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let option = OPTIONS.iter().find(|option| option.name == name);
            let option = option.ok_or_else(|| OptionError::Unknown {
                name: name.to_owned(),
                nearest: nearest(name),
            })?;
            (option.apply)(self, option, value).map_err(|reason| OptionError::BadValue {
                name: name.to_owned(),
                reason,
            })?;
        }
        Ok(())
    }

    /// How to open the volume.
    #[must_use]
    pub fn open_options(&self) -> OpenOptions {
        let mut files = Options {
            compress: self.compress,
            data_cow: self.data_cow,
            max_inline: self.max_inline,
            buffer_bytes: self.buffer_bytes,
            log_fsync: self.log_fsync,
            acl: self.acl,
            ..Options::default()
        };
        if let Some(threads) = self.threads {
            files.threads = threads;
        }
        OpenOptions {
            store: butterfs_store::OpenOptions {
                access: self.access,
                barriers: self.barriers,
                discard: self.discard,
                log: self.log,
                roots: self.roots,
                rescue: self.rescue,
                free_space: self.free_space,
                degraded: self.degraded,
                ..butterfs_store::OpenOptions::default()
            },
            files,
            part: self.part,
            subvolume: self.subvolume.clone(),
            commit_interval: self.commit,
            commit_when_quiet: None,
            cleaner: crate::Cleaner::default(),
            owner: butterfs_fs::names::Owner::default(),
            at_replay: crate::AtReplay::default(),
            direct_io: crate::DirectIo::Preferred,
            overlay: self.overlay.clone(),
        }
    }

    /// What the devices have to be open for: with an overlay, nothing is written
    /// to them.
    #[must_use]
    pub const fn device_access(&self) -> Access {
        match self.overlay {
            Some(_) => Access::ReadOnly,
            None => self.access,
        }
    }

    fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut say = |word: &str| words.push(word.to_owned());
        say(match self.access {
            Access::ReadOnly => "ro",
            Access::ReadWrite => "rw",
        });
        if let Some(part) = self.part.option() {
            say(&part);
        }
        say(match self.access_times {
            AccessTimes::Relative => "relatime",
            AccessTimes::Never => "noatime",
            AccessTimes::Always => "strictatime",
        });
        for flag in &self.kernel_flags {
            let said = matches!(*flag, "relatime" | "noatime" | "strictatime");
            if !said {
                say(flag);
            }
        }
        match self.compress {
            Compress::Off => {}
            Compress::Try(algorithm, level) => {
                say(&format!("compress={}", spelled(algorithm, level)));
            }
            Compress::Force(algorithm, level) => {
                say(&format!("compress-force={}", spelled(algorithm, level)));
            }
        }
        match self.data_cow {
            DataCow::On => {}
            DataCow::NoSum => say("nodatasum"),
            DataCow::Off => say("nodatacow"),
        }
        say("space_cache=v2");
        say(&format!("max_inline={}", self.max_inline));
        say(&format!("commit={}", self.commit.as_secs()));
        if self.barriers == Barriers::UnsafeOff {
            say("nobarrier (UNSAFE: a power cut can lose the volume)");
        }
        if self.discard == Discard::On {
            say("discard");
        }
        if !self.log_fsync {
            say("notreelog");
        }
        if self.log == LogPolicy::Ignore {
            say("norecovery");
        }
        if self.roots == Roots::OrBackups {
            say("usebackuproot");
        }
        if let Roots::Of(generation) = self.roots {
            say(&format!("rescue=generation={generation}"));
        }
        for (on_fault, name) in [
            (self.rescue.roots, "rescue=ignorebadroots"),
            (self.rescue.data, "rescue=ignoredatacsums"),
            (self.rescue.nodes, "rescue=ignoremetacsums"),
            (self.rescue.flags, "rescue=ignoresuperflags"),
        ] {
            if on_fault == OnFault::PassOver {
                say(name);
            }
        }
        if self.degraded == Degraded::Allowed {
            say("degraded");
        }
        for device in &self.devices {
            say(&format!("device={}", device.display()));
        }
        if self.acl == AclPolicy::Off {
            say("noacl");
        }
        say(&format!("memory={}", self.buffer_bytes));
        if self.write_cache == WriteCache::Kernel {
            say("writeback");
        }
        say(match self.transport {
            Transport::Auto => "transport=auto",
            Transport::Uring => "transport=uring",
            Transport::Device => "transport=dev",
        });
        match self.wake {
            Wake::Auto => {}
            Wake::Poll => say("wake=poll"),
            Wake::Sleep => say("wake=sleep"),
        }
        if self.autodefrag {
            say("autodefrag");
        }
        if self.skip_balance {
            say("skip_balance");
        }
        if self.idmap {
            say("idmap");
        }
        if self.user_subvol_rm_allowed {
            say("user_subvol_rm_allowed");
        }
        if self.allow_other {
            say("allow_other");
        }
        say("default_permissions");
        if let Some(uid) = self.uid {
            say(&format!("uid={uid}"));
        }
        if let Some(gid) = self.gid {
            say(&format!("gid={gid}"));
        }
        match &self.subvolume {
            Subvolume::Default => {}
            Subvolume::Id(id) => say(&format!("subvolid={id}")),
            Subvolume::Path(path) => say(&format!("subvol={}", String::from_utf8_lossy(path))),
        }
        words
    }

    fn compress_with(&mut self, value: Option<&str>, force: Force) -> Result<(), String> {
        let value = value.unwrap_or("zlib");
        if matches!(value, "no" | "none") {
            self.compress = Compress::Off;
            return Ok(());
        }
        let (name, level) = match value.split_once(':') {
            Some((name, level)) => {
                let level = level
                    .parse::<i32>()
                    .map_err(|_| format!("`{level}` is no level"))?;
                (name, level)
            }
            None => (value, 0),
        };
        let known = Algorithm::ALL.into_iter().find(|a| a.name() == name);
        let algorithm = known.ok_or("it is zlib, lzo, zstd or no, with :level")?;
        let level = algorithm.clamp_level(level);
        self.compress = match force {
            Force::No => Compress::Try(algorithm, level),
            Force::Yes => Compress::Force(algorithm, level),
        };
        // Compressed data are copied on write and have checksums.
        self.data_cow = DataCow::On;
        Ok(())
    }
}

/// The options in effect, in the form of `-o`, with those defaults that matter.
impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(","))
    }
}

/// Algorithm and level as options spell them.
fn spelled(algorithm: Algorithm, level: Level) -> String {
    match algorithm {
        Algorithm::Lzo => algorithm.name().to_owned(),
        Algorithm::Zlib | Algorithm::Zstd => format!("{}:{}", algorithm.name(), level.0),
    }
}

#[derive(Clone, Copy)]
enum Force {
    No,
    Yes,
}

/// The known name closest to `name`, if one is close.
fn nearest(name: &str) -> Option<&'static str> {
    let limit = 1 + name.len() / 4;
    OPTIONS
        .iter()
        .map(|option| (distance(name, option.name), option.name))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, name)| name)
}

/// How many edits turn one word into the other (Levenshtein distance).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<u8> = other.bytes().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn options_act_on_each_other_as_in_the_kernel() {
        let options = MountOptions::parse("compress=zstd:3,nodatacow").expect("valid");
        assert_eq!(options.compress, Compress::Off);
        assert_eq!(options.data_cow, DataCow::Off);
        let options = MountOptions::parse("nodatacow,compress=lzo").expect("valid");
        assert!(matches!(options.compress, Compress::Try(Algorithm::Lzo, _)));
        assert_eq!(options.data_cow, DataCow::On);
        let options = MountOptions::parse("nodatasum,datasum").expect("valid");
        assert_eq!(options.data_cow, DataCow::On);
        let options = MountOptions::parse("nodatacow,datacow").expect("valid");
        assert_eq!(options.data_cow, DataCow::NoSum);
    }

    #[test]
    fn values_are_read() {
        let options = MountOptions::parse("ro,commit=5,subvol=/a/b,max_inline=1k,thread_pool=3")
            .expect("valid");
        assert_eq!(options.access, Access::ReadOnly);
        assert_eq!(options.commit, Duration::from_secs(5));
        assert_eq!(options.subvolume, Subvolume::Path(b"/a/b".to_vec()));
        assert_eq!(options.max_inline, 1024);
        assert_eq!(options.threads, Some(3));
        let options = MountOptions::parse("device=/dev/b,degraded,device=c.img").expect("valid");
        assert_eq!(options.devices, [Path::new("/dev/b"), Path::new("c.img")]);
        assert_eq!(options.open_options().store.degraded, Degraded::Allowed);
    }

    #[test]
    fn mistakes_are_named() {
        let error = MountOptions::parse("rw,compres=zstd").expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "unknown mount option `compres`; did you mean `compress`?"
        );
        for bad in [
            "compress=brotli",
            "commit=soon",
            "subvolid=x",
            "ro=1",
            "space_cache=v1",
            "device",
        ] {
            let error = MountOptions::parse(bad).expect_err(bad);
            assert!(matches!(error, OptionError::BadValue { .. }), "{bad}");
        }
    }
}
