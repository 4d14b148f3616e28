//! `butterfs convert`, also called btrfs-convert.
//!
//! Owns the options and what is said. The crate `convert` does the work.

mod finish;

use crate::fail::{Context, Done, Failure, fail};
use crate::interrupt::Interrupt;
use crate::meter::Meter;
use crate::patient::shell;
use crate::sizes;
use butterfs::Method;
use butterfs_admin::mkfs::{DefaultState, FEATURES, FeatureBit, FeatureSet};
use butterfs_convert::{
    Attributes, ConvertError, Converted, DataSums, Inline, Label, Options, Step, Watch, convert,
    copy_used, plan, rollback, verify_rollback,
};
use butterfs_device::{Access, BlockDevice, FileDevice};
use butterfs_format::ChecksumType;
use butterfs_format::features::CompatRo;
use butterfs_format::item::inode::Timespec;
use clap::Args;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// Turns ext2, ext3 or ext4 into Btrfs in place, or back.
///
/// The file system must not be mounted. Files stay where they are, and an image
/// of the old file system is kept beside them, in the subvolume ext2_saved. With
/// -r the old file system comes back, bit for bit, as long as that image is
/// there and no balance has moved it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs convert --dry-run /dev/sdx1    says what it would take and what would be lost
  butterfs convert -L /dev/sdx1           the label stays
  butterfs convert --to new.img --compress zstd old.img   a new image; the old one stays
  butterfs convert -r /dev/sdx1           back to ext4; changes since then are lost
  butterfs convert --finish /dev/sdx1     there is no way back then, but more space

docs/convert.md is the page to read before.")]
pub struct Convert {
    /// Make no checksums of data.
    #[arg(short = 'd', long)]
    no_datasum: bool,
    /// Leave out extended attributes and ACLs.
    #[arg(short = 'i', long)]
    no_xattr: bool,
    /// Move no small files into the tree.
    #[arg(short = 'n', long)]
    no_inline: bool,
    /// Checksums: crc32c, xxhash, sha256 or blake2.
    #[arg(long, visible_alias = "checksum", default_value = "crc32c")]
    csum: String,
    /// Bytes of a tree node: 4k to 64k (default 16k).
    #[arg(short = 'N', long, value_parser = sizes::parse)]
    nodesize: Option<u64>,
    /// Features, separated by commas; ^NAME switches off; list-all shows them.
    #[arg(short = 'O', long)]
    features: Vec<String>,
    /// Give the old file system back. What was changed since the conversion is
    /// lost.
    #[arg(short = 'r', long, conflicts_with_all = ["no_datasum", "no_xattr", "no_inline", "nodesize", "features", "label", "copy_label", "uuid"])]
    rollback: bool,
    /// Leave the device as it is, and make the volume in this file, which must
    /// not be there. It is as large as the device, and sparse.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rollback", "finish"])]
    to: Option<PathBuf>,
    /// Delete the saved image of the old file system in a volume that was
    /// converted, which is not mounted. There is no way back then.
    #[arg(long, conflicts_with_all = ["no_datasum", "no_xattr", "no_inline", "nodesize", "features", "rollback", "label", "copy_label", "uuid", "dry_run"])]
    finish: bool,
    /// With --to or --finish: delete the saved image and compress all files, by
    /// zlib, lzo or zstd, with a level as in zstd:9.
    #[arg(long, value_name = "ALGORITHM[:LEVEL]", value_parser = method)]
    compress: Option<Method>,
    /// Label of the volume (default: none).
    #[arg(short = 'l', long, conflicts_with = "copy_label")]
    label: Option<String>,
    /// Take the label of the old file system.
    #[arg(short = 'L', long)]
    copy_label: bool,
    /// UUID of the volume: `new`, `copy` (that of the old file system), or this
    /// one.
    #[arg(short = 'U', long, value_name = "new|copy|UUID", default_value = "new")]
    uuid: String,
    /// Show the progress, which is the default in a terminal.
    #[arg(short = 'p', long, conflicts_with = "no_progress")]
    progress: bool,
    /// Show no progress.
    #[arg(long)]
    no_progress: bool,
    /// Say what would be done, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print nothing.
    #[arg(short, long)]
    quiet: bool,
    /// File or block device.
    #[arg(required_unless_present = "features")]
    device: Option<PathBuf>,
}

/// Shows how far a conversion is, and stops it when somebody asks.
struct Showing {
    interrupt: Interrupt,
    /// `None` where nobody wants to see it.
    meter: Option<Mutex<(Step, Meter)>>,
}

impl Showing {
    fn end(&self) {
        if let Some(meter) = &self.meter
            && let Ok(meter) = meter.lock()
        {
            meter.1.end();
        }
    }

    fn failed(&self, error: ConvertError) -> Failure {
        self.end();
        match (&error, self.interrupt.check()) {
            (ConvertError::Stopped, Err(interrupted)) => interrupted,
            _ => error.into(),
        }
    }
}

impl Watch for Showing {
    fn progress(&self, step: Step, done: u64, total: u64) {
        // Inodes are fast; bytes take the time.
        let is_of_bytes = matches!(step, Step::Copying | Step::Checksums | Step::Comparing);
        if !is_of_bytes || total == 0 {
            return;
        }
        if let Some(meter) = &self.meter
            && let Ok(mut meter) = meter.lock()
        {
            if meter.0 != step {
                meter.1.end();
                *meter = (step, Meter::new());
            }
            meter.1.show(done.min(total), total);
        }
    }

    fn is_stopped(&self) -> bool {
        self.interrupt.asked().load(Ordering::Relaxed)
    }
}

impl Convert {
    /// Runs the command.
    pub fn run(&self) -> Done {
        if self.features.iter().any(|list| list == "list-all") {
            return list_features();
        }
        let Some(path) = &self.device else {
            return fail("no file or device given; see `butterfs convert --help`");
        };
        if self.compress.is_some() && self.to.is_none() && !self.finish {
            return fail(
                "--compress goes with --to or --finish: a conversion in place leaves data where \
                 they are",
            );
        }
        if self.finish {
            return finish::finish(path, self.compress, self.quiet);
        }
        let access = match self.dry_run || self.to.is_some() {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let options = self.options()?;
        let device = FileDevice::open(path, access).context(path.display())?;
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let showing = Showing {
            interrupt: Interrupt::watch()?,
            meter: match self.no_progress || self.quiet {
                true => None,
                false => Some(Mutex::new((Step::Reading, Meter::new()))),
            },
        };
        let failed = |error| showing.failed(error).at(path.display());
        if self.rollback {
            let back = match self.dry_run {
                true => verify_rollback(&device, &showing),
                false => rollback(&device, &showing),
            };
            let back = back.map_err(failed)?;
            showing.end();
            let uuid = Uuid::from_bytes(back.uuid);
            return match (self.quiet, self.dry_run) {
                (true, _) => Ok(()),
                (_, true) => {
                    say!("The way back is there: ext file system {uuid}.");
                    say!("What was changed since the conversion would be lost.");
                    Ok(())
                }
                _ => {
                    say!("Back: ext file system {uuid}.");
                    Ok(())
                }
            };
        }
        if let Some(to) = self.to.as_ref().filter(|_| !self.dry_run) {
            return self.convert_to(to, (path, &device), &options, &showing);
        }
        let converted = match self.dry_run {
            true => plan(&device, &options, &showing),
            false => convert(&device, &options, &showing),
        };
        let converted = converted.map_err(failed)?;
        showing.end();
        match self.quiet {
            true => Ok(()),
            false => self.tell(&converted, path),
        }
    }

    /// Converts a copy of the file system in a new file.
    fn convert_to(
        &self,
        to: &Path,
        (path, device): (&Path, &Arc<dyn BlockDevice>),
        options: &Options,
        showing: &Showing,
    ) -> Done {
        // What is refused is refused before anything is copied.
        let planned = plan(device, options, showing);
        planned.map_err(|error| showing.failed(error).at(path.display()))?;
        let made = File::options().write(true).create_new(true).open(to);
        let made = made.and_then(|file| file.set_len(device.size()));
        made.context(to.display())?;
        let done = copied(to, device, options, showing).and_then(|converted| {
            showing.end();
            if !self.quiet {
                self.tell(&converted, to)?;
            }
            match self.compress {
                None => Ok(()),
                method => finish::finish(to, method, self.quiet),
            }
        });
        if done.is_err() {
            // It holds nothing that is not in the source.
            std::fs::remove_file(to).context(to.display())?;
        }
        done
    }

    fn tell(&self, converted: &Converted, path: &Path) -> Done {
        let uuid = Uuid::from_bytes(converted.uuid);
        if converted.was_begun {
            say!("A conversion that was cut short is ended: Btrfs volume {uuid}.");
            return Ok(());
        }
        let (files, metadata) = (converted.files, sizes::human(converted.metadata_bytes));
        let copied = sizes::human(converted.copied_bytes);
        match self.dry_run {
            true => say!("{files} files would be converted."),
            false => say!("{files} files are converted: Btrfs volume {uuid}."),
        }
        say!("Metadata: {metadata} in free space. Copied: {copied}; all other data stay in place.");
        for sentence in &converted.lost {
            match self.dry_run {
                true => say!("Would be lost: {sentence}."),
                false => say!("Lost: {sentence}."),
            }
        }
        if !self.dry_run {
            say!("The way back: butterfs convert -r {}", shell(path));
        }
        Ok(())
    }

    fn options(&self) -> Result<Options, Failure> {
        let mut features = FeatureSet::default();
        for list in &self.features {
            features.change(list)?;
        }
        features.settle(self.features.iter().map(String::as_str));
        if features.incompat != FeatureSet::default().incompat {
            return fail(
                "a conversion always makes extref, skinny-metadata and no-holes, and nothing else \
                 that a reader must know; free-space-tree and block-group-tree can be chosen",
            );
        }
        let chosen = CompatRo::FREE_SPACE_TREE | CompatRo::BLOCK_GROUP_TREE;
        let checksum = ChecksumType::from_name(&self.csum)
            .ok_or_else(|| Failure(format!("there is no checksum {}", self.csum)))?;
        let mut options = Options {
            checksum,
            compat_ro: CompatRo(features.compat_ro.0 & chosen.0),
            time: now(),
            ..Options::default()
        };
        if let Some(size) = self.nodesize {
            options.node_size = u32::try_from(size).unwrap_or(u32::MAX);
        }
        if self.no_datasum {
            options.data_sums = DataSums::LeftOut;
        }
        if self.no_xattr {
            options.attributes = Attributes::LeftOut;
        }
        if self.no_inline {
            options.inline = Inline::Never;
        }
        options.label = match &self.label {
            Some(label) => Label::Set(label.clone().into_bytes()),
            None if self.copy_label => Label::Copied,
            None => Label::Empty,
        };
        match &self.uuid[..] {
            "new" => {}
            "copy" => options.copies_uuid = true,
            given => {
                let uuid = given.parse::<Uuid>();
                let uuid = uuid.map_err(|_| {
                    Failure(format!("{given} is neither `new`, nor `copy`, nor a UUID"))
                })?;
                options.uuid = Some(uuid.into_bytes());
            }
        }
        Ok(options)
    }
}

/// Copies a file system into a file, and converts it there.
fn copied(
    to: &Path,
    from: &Arc<dyn BlockDevice>,
    options: &Options,
    showing: &Showing,
) -> Result<Converted, Failure> {
    let device = FileDevice::open(to, Access::ReadWrite).context(to.display())?;
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    copy_used(from, &*device, showing)
        .and_then(|_| convert(&device, options, showing))
        .map_err(|error| showing.failed(error).at(to.display()))
}

fn method(text: &str) -> Result<Method, String> {
    let parsed = Method::parse(text).flatten();
    parsed.ok_or_else(|| format!("`{text}` is none of zlib, lzo and zstd"))
}

fn now() -> Timespec {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timespec {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}

fn list_features() -> Done {
    for feature in FEATURES {
        let is_chosen = match feature.bit {
            FeatureBit::Incompat(_) => feature.default == DefaultState::On,
            FeatureBit::CompatRo(_) => true,
            FeatureBit::NotYet => false,
        };
        if is_chosen {
            say!("{:<20} {}", feature.name, feature.description);
        }
    }
    Ok(())
}
