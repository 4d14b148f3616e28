//! `butterfs mkfs`, also called mkfs.butterfs and mkfs.btrfs.
//!
//! Owns the options, and the care not to overwrite what somebody needs. The
//! library makes the volume itself.

mod rootdir;

use crate::commands::device::named::{verify_different, verify_nothing_there};
use crate::commands::device::tell_kernel_of;
use crate::fail::{Context, Done, Failure, fail};
use crate::place::json;
use crate::sizes;
use butterfs::du::{Limits, Progress};
use butterfs::quota::QuotaMode;
use butterfs::{Access, BlockDevice, FileDevice, OpenOptions, Subvolume, Volume};
use butterfs_admin::mkfs::{
    DefaultState, FEATURES, FeatureBit, Layout, MkfsError, MkfsOptions, ProfileChoice, RootOwner,
    Summary, make, make_on, verify,
};
use butterfs_device::DeviceRange;
use butterfs_format::{ChecksumType, DeviceOffset};
use clap::Args;
use rootdir::{Filled, RootDir, Unfilled};
use serde::Serialize;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uuid::Uuid;

/// Makes a Btrfs volume in files or on block devices.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs mkfs -b 20g -L photos disk.img    makes the file, too
  butterfs mkfs -f --csum xxhash /dev/sdx1
  butterfs mkfs --root-owner 1000:100 /dev/sdx1    its root directory is theirs
  butterfs mkfs -d raid1 -b 10g one.img two.img    a volume of two devices
  butterfs mkfs --rootdir files --compress zstd --shrink disk.img
  butterfs mkfs -O list-all")]
pub struct Mkfs {
    /// Label, at most 255 bytes.
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// Bytes of a tree node: 4k to 64k (default 16k).
    #[arg(short, long, visible_alias = "leafsize", short_alias = 'l', value_parser = sizes::parse)]
    nodesize: Option<u64>,
    /// Bytes of a sector (default 4k).
    #[arg(short, long, value_parser = sizes::parse)]
    sectorsize: Option<u64>,
    /// Size to use of each device; files that do not exist are made with this
    /// size.
    #[arg(short, long, value_parser = sizes::parse)]
    byte_count: Option<u64>,
    /// Checksums: crc32c, xxhash, sha256 or blake2.
    #[arg(long, visible_alias = "checksum", default_value = "crc32c")]
    csum: String,
    /// Profile of data: single, dup, raid0, raid1, raid1c3, raid1c4, raid10,
    /// raid5 or raid6 (default single).
    #[arg(short, long)]
    data: Option<String>,
    /// Profile of metadata: the same (default dup on one device, raid1 on
    /// several).
    #[arg(short, long)]
    metadata: Option<String>,
    /// Data and metadata share block groups, for small volumes.
    #[arg(short = 'M', long)]
    mixed: bool,
    /// Features, separated by commas; ^NAME switches off; list-all shows them.
    #[arg(short = 'O', long)]
    features: Vec<String>,
    /// The same as -O.
    #[arg(short = 'R', long)]
    runtime_features: Vec<String>,
    /// UUID of the volume.
    #[arg(short = 'U', long)]
    uuid: Option<Uuid>,
    /// UUID of the device, of the first one of several.
    #[arg(long)]
    device_uuid: Option<Uuid>,
    /// Owner of the root directory. Default: the user who makes the volume; with
    /// --rootdir, the owner of that directory.
    #[arg(long, value_name = "UID[:GID]", value_parser = root_owner)]
    root_owner: Option<RootOwner>,
    #[command(flatten)]
    root: RootDir,
    /// Do not discard what is on the device.
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Overwrite what is there.
    #[arg(short, long)]
    force: bool,
    /// Print nothing.
    #[arg(short, long)]
    quiet: bool,
    /// Print more.
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Files or block devices, one or several.
    devices: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Fact {
    label: String,
    uuid: String,
    device_uuid: String,
    node_size: u32,
    sector_size: u32,
    total_bytes: u64,
    checksum: &'static str,
    block_groups: Vec<(String, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    incompat: Vec<String>,
    compat_ro: Vec<String>,
}

fn profile(name: Option<&str>) -> Result<Option<ProfileChoice>, Failure> {
    let Some(name) = name else {
        return Ok(None);
    };
    let names = || ProfileChoice::ALL.map(ProfileChoice::name).join(", ");
    let known = ProfileChoice::from_name(name).ok_or_else(|| {
        Failure(format!(
            "there is no profile {name}; take one of {}",
            names()
        ))
    })?;
    Ok(Some(known))
}

/// Whoever makes the volume; root's volumes belong to root's group too.
fn own() -> RootOwner {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return RootOwner::default();
    }
    RootOwner {
        uid: user.as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

/// `UID` or `UID:GID`; the group without one is that of whoever makes the
/// volume.
fn root_owner(word: &str) -> Result<RootOwner, String> {
    let number = |text: &str| {
        // The greatest number means no owner.
        let number = text.parse().ok().filter(|number| *number != u32::MAX);
        number
            .ok_or_else(|| format!("{text} is no number of a user or group; write UID or UID:GID"))
    };
    let (uid, gid) = match word.split_once(':') {
        Some((uid, gid)) => (number(uid)?, number(gid)?),
        None => (number(word)?, own().gid),
    };
    Ok(RootOwner { uid, gid })
}

fn small(size: Option<u64>, default: u32) -> u32 {
    size.map_or(default, |size| u32::try_from(size).unwrap_or(u32::MAX))
}

/// How large a file that was there before may become.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    AsItIs,
    /// As large as the files of --rootdir may need.
    Enlarged,
}

/// Why there is no volume, or none with all files.
struct Unmade {
    failure: Failure,
    /// More room may help.
    is_full: bool,
    /// The devices hold a part of it.
    is_begun: bool,
}

impl From<Failure> for Unmade {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            is_full: false,
            is_begun: true,
        }
    }
}

impl From<Unfilled> for Unmade {
    fn from(unfilled: Unfilled) -> Self {
        Self {
            failure: unfilled.failure,
            is_full: unfilled.is_full,
            is_begun: true,
        }
    }
}

/// Paths, for messages.
fn names(paths: &[PathBuf]) -> String {
    let names = paths.iter().map(|path| path.display().to_string());
    names.collect::<Vec<_>>().join(" ")
}

impl Mkfs {
    /// Runs it.
    pub fn run(self) -> Done {
        let lists = || self.features.iter().chain(&self.runtime_features);
        if lists().any(|list| list == "list-all") {
            return list_features();
        }
        if self.devices.is_empty() {
            return fail("no file or device given; see `butterfs mkfs --help`");
        }
        verify_different(&self.devices)?;
        self.root.verify(&self.devices)?;
        let checksum = ChecksumType::from_name(&self.csum)
            .ok_or_else(|| Failure(format!("there is no checksum {}", self.csum)))?;
        let default = MkfsOptions::default();
        let mut options = MkfsOptions {
            label: self.label.clone().unwrap_or_default(),
            node_size: small(self.nodesize, default.node_size),
            sector_size: small(self.sectorsize, default.sector_size),
            byte_count: self.byte_count,
            checksum,
            data: profile(self.data.as_deref())?,
            metadata: profile(self.metadata.as_deref())?,
            mixed: if self.mixed {
                Layout::Mixed
            } else {
                Layout::Separate
            },
            fsid: self.uuid.map(Uuid::into_bytes),
            device_uuid: self.device_uuid.map(Uuid::into_bytes),
            root_owner: self.root_owner.unwrap_or_else(own),
            ..default
        };
        if self.mixed && self.nodesize.is_none() {
            options.node_size = options.sector_size;
        }
        let mut quotas = None;
        let lists: Vec<String> = lists().map(|list| take_quotas(list, &mut quotas)).collect();
        for list in &lists {
            options.features.change(list)?;
        }
        if options.features.settle(lists.iter().map(String::as_str)) {
            note!(
                "butterfs: warning: block-group-tree is turned off too, since it needs \
                 free-space-tree and no-holes"
            );
        }
        let old: Vec<PathBuf> = self
            .devices
            .iter()
            .filter(|path| path.exists())
            .cloned()
            .collect();
        let made = match self.attempt(&options, Room::AsItIs) {
            Err(Unmade { is_full: true, .. }) if self.may_enlarge(&old)? => {
                self.attempt(&options, Room::Enlarged)
            }
            made => made,
        };
        let made = made.and_then(|made| {
            let enabled = quotas.map_or(Ok(()), |mode| self.enable_quotas(mode));
            enabled.map_err(|failure| Unmade {
                failure,
                is_full: false,
                is_begun: true,
            })?;
            Ok(made)
        });
        let (made, files) = made.map_err(|unmade| {
            for path in self.devices.iter().filter(|path| !old.contains(path)) {
                // The file was made for the volume, and holds none.
                let _ = std::fs::remove_file(path);
            }
            match old.is_empty() || !unmade.is_begun {
                true => unmade.failure,
                false => {
                    let (names, text) = (names(&old), unmade.failure.0);
                    Failure(format!("{text}; {names} holds an unfinished volume"))
                }
            }
        })?;
        let (files, left_out) = match files {
            Some(filled) => (Some(filled.files), filled.left_out),
            None => (None, Ok(())),
        };
        // The kernel mounts a volume of several devices by one of them only if it
        // knows the others.
        if self.devices.len() > 1 {
            self.devices.iter().for_each(|path| tell_kernel_of(path));
        }
        self.report(&options, &made, files)?;
        left_out
    }

    /// Makes the volume and fills it.
    fn attempt(
        &self,
        options: &MkfsOptions,
        room: Room,
    ) -> Result<(Summary, Option<Filled>), Unmade> {
        let made = self.make(options, room).map_err(|failure| Unmade {
            failure,
            is_full: false,
            is_begun: false,
        })?;
        self.fill(made)
    }

    /// Copies what --rootdir names into the new volume.
    fn fill(&self, mut made: Summary) -> Result<(Summary, Option<Filled>), Unmade> {
        let Some(directory) = &self.root.directory else {
            return Ok((made, None));
        };
        let is_quiet = self.quiet || self.json;
        let filled = self.root.fill(directory, &self.devices, is_quiet)?;
        if self.root.shrink {
            made.total_bytes = rootdir::cut(&self.devices)?;
        }
        Ok((made, Some(filled)))
    }

    /// Whether the one file that was there may become as large as the files may
    /// need, and is not yet.
    fn may_enlarge(&self, old: &[PathBuf]) -> Result<bool, Failure> {
        let ([path], None, Some(needed)) = (old, self.byte_count, self.needed()?) else {
            return Ok(false);
        };
        let file = std::fs::metadata(path).context(path.display())?;
        Ok(file.is_file() && file.size() < needed)
    }

    /// Switches quotas on in the new volume.
    fn enable_quotas(&self, mode: QuotaMode) -> Done {
        let options = OpenOptions {
            subvolume: Subvolume::Id(5),
            ..OpenOptions::default()
        };
        let volume = Volume::open_all(&self.devices, options).context(self.names())?;
        let nobody = &mut |_: &Progress| ControlFlow::Continue(());
        let enabled = volume
            .files()
            .enable_quotas(mode, &Limits::default(), nobody);
        enabled.context(self.names())?;
        Ok(volume.close()?)
    }

    /// The devices, for messages.
    fn names(&self) -> String {
        names(&self.devices)
    }

    fn make(&self, options: &MkfsOptions, room: Room) -> Result<Summary, Failure> {
        let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
        for path in &self.devices {
            devices.push(Arc::new(self.open(path, options, room)?));
        }
        // If the command is refused, nothing may have been discarded.
        let all: Vec<&dyn BlockDevice> = devices.iter().map(|device| &**device).collect();
        verify(&all, options).context(self.names())?;
        if !self.nodiscard {
            for device in &devices {
                // This is advice: not every device can discard.
                let all = DeviceRange {
                    start: DeviceOffset(0),
                    length: device.size(),
                };
                let _ = device.discard(all);
            }
        }
        match &devices[..] {
            [one] => make(&**one, options),
            several => make_on(several, options),
        }
        .context(self.names())
    }

    fn open(&self, path: &Path, options: &MkfsOptions, room: Room) -> Result<FileDevice, Failure> {
        if !path.exists() {
            let Some(size) = self
                .byte_count
                .map_or_else(|| self.needed(), |size| Ok(Some(size)))?
            else {
                return fail(format!(
                    "{} does not exist; give its size with -b to make it",
                    path.display()
                ));
            };
            return FileDevice::create(path, size).context(path.display());
        }
        let device = FileDevice::open(path, Access::ReadWrite)?;
        if !self.force && room == Room::AsItIs {
            verify_nothing_there(path, &device)?;
        }
        // How much room files need is known when they are in the volume. A file
        // in which they may fit is tried as it is.
        let is_hopeless = || matches!(verify(&[&device], options), Err(MkfsError::TooSmall { .. }));
        match self.needed()? {
            Some(needed)
                if self.byte_count.is_none() && (room == Room::Enlarged || is_hopeless()) =>
            {
                self.enlarged(path, device, needed)
            }
            _ => Ok(device),
        }
    }

    /// Bytes that the device must have for what --rootdir names; where the files
    /// go to several devices, their sizes are the user's.
    fn needed(&self) -> Result<Option<u64>, Failure> {
        match (&self.root.directory, &self.devices[..]) {
            (Some(directory), [_]) => {
                let copies = RootDir::copies(profile(self.data.as_deref())?);
                self.root.size(directory, copies).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The device. If it is a file, it is made at least `bytes` long.
    fn enlarged(&self, path: &Path, device: FileDevice, bytes: u64) -> Result<FileDevice, Failure> {
        let file = std::fs::metadata(path).context(path.display())?;
        if !file.is_file() || file.size() >= bytes {
            return Ok(device);
        }
        drop(device);
        let file = std::fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_len(bytes))
            .context(path.display())?;
        Ok(FileDevice::open(path, Access::ReadWrite)?)
    }

    fn report(&self, options: &MkfsOptions, made: &Summary, files: Option<u64>) -> Done {
        let uuid = Uuid::from_bytes(made.fsid);
        if self.json {
            return json(&Fact {
                label: options.label.clone(),
                uuid: uuid.to_string(),
                device_uuid: Uuid::from_bytes(made.device_uuid).to_string(),
                node_size: options.node_size,
                sector_size: options.sector_size,
                total_bytes: made.total_bytes,
                checksum: options.checksum.name(),
                block_groups: made
                    .groups
                    .iter()
                    .map(|(flags, length)| (flags.describe(), *length))
                    .collect(),
                files,
                incompat: made.incompat.names(),
                compat_ro: made.compat_ro.names(),
            });
        }
        if self.quiet {
            return Ok(());
        }
        say!("Label:              {}", options.label);
        say!("UUID:               {uuid}");
        say!("Node size:          {}", options.node_size);
        say!("Sector size:        {}", options.sector_size);
        say!("Filesystem size:    {}", sizes::human(made.total_bytes));
        say!("Block group profiles:");
        for (flags, length) in &made.groups {
            say!("  {:<18}{:>15}", flags.describe(), sizes::human(*length));
        }
        say!("Incompat features:  {}", made.incompat.names().join(", "));
        say!("Runtime features:   {}", made.compat_ro.names().join(", "));
        say!("Checksum:           {}", options.checksum.name());
        if self.verbose {
            say!("Device UUID:        {}", Uuid::from_bytes(made.device_uuid));
        }
        if self.devices.len() > 1 {
            say!("Number of devices:  {}", self.devices.len());
        }
        say!("Path:               {}", self.names());
        if let (Some(directory), Some(files)) = (&self.root.directory, files) {
            say!("Rootdir from:       {}", directory.display());
            say!("Files:              {files}");
        }
        Ok(())
    }
}

/// A list of features without those that are quotas. The last one that is named
/// counts. They are no bits of the format that mkfs writes: they are switched on
/// in the finished volume.
fn take_quotas(list: &str, quotas: &mut Option<QuotaMode>) -> String {
    let mut left = Vec::new();
    for word in list.split(',') {
        match word {
            "quota" => *quotas = Some(QuotaMode::Full),
            "squota" => *quotas = Some(QuotaMode::Simple),
            "^quota" | "^squota" => *quotas = None,
            other => left.push(other),
        }
    }
    left.join(",")
}

fn list_features() -> Done {
    say!("Features of a new volume (-O):");
    for feature in FEATURES {
        let default = match (feature.bit, feature.default) {
            (FeatureBit::NotYet, _) if take_quotas(feature.name, &mut None).is_empty() => "",
            (FeatureBit::NotYet, _) => " (not supported yet)",
            (_, DefaultState::On) => " (default)",
            (_, DefaultState::Off) => "",
        };
        let short = feature.short.map(|short| format!(" ({short})"));
        let short = short.unwrap_or_default();
        say!(
            "  {:<20}- {}{short}{default}",
            feature.name,
            feature.description
        );
    }
    Ok(())
}
