//! `butterfs tune`, also called btrfstune: changes the form of a volume that is
//! not mounted.

use crate::fail::{Done, Failure, fail};
use crate::interrupt::Interrupt;
use butterfs::du::Limits;
use butterfs::quota::{QgroupStatusFlags, QuotaMode};
use butterfs::{Access, BlockDevice, OpenOptions, Volume};
use butterfs_admin::tune::{
    Change, Ended, Progress, Seeding, Stage, TuneError, read_superblock, tune,
};
use butterfs_format::ChecksumType;
use butterfs_format::features::Incompat;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::BufRead;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use uuid::Uuid;

/// Changes features, UUIDs and checksums of a volume that is not mounted.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs tune -r -x -n disk.img
  butterfs tune -m disk.img                          another UUID, at once
  butterfs tune -u disk.img                          another UUID in every node
  butterfs tune --csum xxhash disk.img
  butterfs tune --convert-to-free-space-tree disk.img
  butterfs tune --convert-to-block-group-tree disk.img

A fsync log that waits is replayed first. A change that takes long (-u, -U, --csum) may be interrupted at any time, by a power cut too: the volume says then that it is half done and is not mounted, and the same command goes on. All devices of a volume are changed; those that are not named are looked for.")]
pub struct Tune {
    /// Extended inode references: more names of one file.
    #[arg(short = 'r')]
    extref: bool,
    /// Skinny metadata: smaller items for extents of nodes.
    #[arg(short = 'x')]
    skinny: bool,
    /// No items for holes of files.
    #[arg(short = 'n')]
    no_holes: bool,
    /// Make the volume a read-only seed (1), or a normal volume again (0).
    #[arg(short = 'S', value_name = "0|1", value_parser = seeding)]
    seeding: Option<Seeding>,
    /// Another UUID, a random one, in every node.
    #[arg(short = 'u', group = "large")]
    random_fsid: bool,
    /// This UUID, in every node.
    #[arg(short = 'U', value_name = "UUID", group = "large")]
    fsid: Option<Uuid>,
    /// Another UUID, a random one, in the superblock alone (a reader must know
    /// that feature, metadata_uuid).
    #[arg(short = 'm', group = "large")]
    random_metadata_uuid: bool,
    /// This UUID, in the superblock alone.
    #[arg(short = 'M', value_name = "UUID", group = "large")]
    metadata_uuid: Option<Uuid>,
    /// Do not ask.
    #[arg(short, long)]
    force: bool,
    /// Give block group items a tree of their own, so that large volumes open
    /// faster.
    #[arg(long, group = "large")]
    convert_to_block_group_tree: bool,
    /// Bring block group items back into the extent tree.
    #[arg(long, group = "large")]
    convert_from_block_group_tree: bool,
    /// Make a free-space tree, instead of caches of the old kind or none.
    #[arg(long, group = "large")]
    convert_to_free_space_tree: bool,
    /// Another checksum algorithm: crc32c, xxhash, sha256 or blake2. Data are
    /// verified and get new checksums.
    #[arg(long, value_name = "TYPE", value_parser = checksum, group = "large")]
    csum: Option<ChecksumType>,
    /// Switch simple quotas on.
    #[arg(long, group = "large")]
    enable_simple_quota: bool,
    /// Switch simple quotas off, and remove what they wrote into extents.
    #[arg(long, group = "large")]
    remove_simple_quota: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// File or block device that holds the volume; other devices of it.
    #[arg(required = true)]
    devices: Vec<PathBuf>,
}

fn seeding(text: &str) -> Result<Seeding, String> {
    match text {
        "0" => Ok(Seeding::Off),
        "1" => Ok(Seeding::On),
        _ => Err("it is 0 or 1".to_owned()),
    }
}

fn checksum(text: &str) -> Result<ChecksumType, String> {
    ChecksumType::from_name(text)
        .ok_or_else(|| "there are crc32c, xxhash, sha256 and blake2".to_owned())
}

/// A step of what was asked for.
enum Step {
    /// Of the volume's form.
    Change(Change),
    /// Simple quotas on or off.
    Quotas(Quotas),
}

enum Quotas {
    On,
    Off,
}

impl Tune {
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let features = [
            (self.extref, Incompat::EXTENDED_IREF),
            (self.skinny, Incompat::SKINNY_METADATA),
            (self.no_holes, Incompat::NO_HOLES),
        ];
        let features = features.into_iter().filter(|(asked, _)| *asked);
        let features = features.fold(Incompat::default(), |all, (_, one)| all | one);
        let mut add = |change| steps.push(Step::Change(change));
        // Comes first, because nothing else of a seed can be changed.
        if self.seeding == Some(Seeding::Off) {
            add(Change::Seeding(Seeding::Off));
        }
        if !features.is_empty() {
            add(Change::Features(features));
        }
        let bytes = |uuid: Option<Uuid>| uuid.map(Uuid::into_bytes);
        if self.random_fsid || self.fsid.is_some() {
            add(Change::Fsid(bytes(self.fsid)));
        }
        if self.random_metadata_uuid || self.metadata_uuid.is_some() {
            add(Change::MetadataUuid(bytes(self.metadata_uuid)));
        }
        if self.convert_to_free_space_tree {
            add(Change::ToFreeSpaceTree);
        }
        if self.convert_to_block_group_tree {
            add(Change::ToBlockGroupTree);
        }
        if self.convert_from_block_group_tree {
            add(Change::FromBlockGroupTree);
        }
        if let Some(to) = self.csum {
            add(Change::Checksum(to));
        }
        if self.enable_simple_quota {
            steps.push(Step::Quotas(Quotas::On));
        }
        if self.remove_simple_quota {
            steps.push(Step::Quotas(Quotas::Off));
            steps.push(Step::Change(Change::RemoveSimpleQuota));
        }
        if self.seeding == Some(Seeding::On) {
            steps.push(Step::Change(Change::Seeding(Seeding::On)));
        }
        steps
    }

    /// What a user should know first, if there is something.
    fn danger(&self) -> Option<&'static str> {
        if self.random_fsid || self.fsid.is_some() {
            return Some(
                "Every node is rewritten. Until that is done the volume cannot be mounted; after \
                 an interruption the same command goes on. Mounts by UUID need the new one.",
            );
        }
        if self.csum.is_some() {
            return Some(
                "All data are read and every node is rewritten. Until that is done the volume \
                 cannot be mounted; after an interruption the same command goes on.",
            );
        }
        if self.seeding == Some(Seeding::Off) {
            return Some(
                "Volumes that grew from this seed cannot be mounted any more once it was changed.",
            );
        }
        None
    }

    fn ask(&self) -> Done {
        let Some(danger) = self.danger().filter(|_| !self.force) else {
            return Ok(());
        };
        note!("{danger}");
        note!("Go on? [y/N]: (-f does not ask)");
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        match answer.trim_start().as_bytes() {
            [b'y' | b'Y', ..] => Ok(()),
            _ => fail("nothing was changed: the answer was not yes"),
        }
    }

    /// Runs it.
    pub fn run(self) -> Done {
        let steps = self.steps();
        let Some(first) = self.devices.first() else {
            return fail("no device was given; name the file or device of the volume");
        };
        if steps.is_empty() {
            return fail("no change is asked for; `butterfs tune --help` shows what there is");
        }
        let paths = match &self.devices[..] {
            [one] => butterfs::find_members(one),
            several => several.to_vec(),
        };
        self.ask()?;
        replay_log(&paths).map_err(|failure| failure.at(first.display()))?;
        for step in steps {
            match step {
                Step::Change(change) => self.change(&paths, change),
                Step::Quotas(quotas) => self.quotas(&paths, &quotas),
            }
            .map_err(|failure| failure.at(first.display()))?;
        }
        Ok(())
    }

    fn change(&self, paths: &[PathBuf], change: Change) -> Done {
        let devices = butterfs::open_members(paths, Access::ReadWrite)?;
        let interrupt = Interrupt::watch()?;
        let bar = self.bar();
        let watch = &mut |progress: &Progress| {
            show(&bar, progress);
            match interrupt.check() {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        };
        let ended = tune(&devices, change, watch);
        bar.finish_and_clear();
        match ended {
            Ok(Ended::Changed) => self.tell(change, &devices),
            Ok(Ended::Already) => {
                if !self.quiet {
                    say!("{}: it is so already", name_of(change));
                }
                Ok(())
            }
            Ok(Ended::Halfway) => fail(
                "interrupted; the volume is half changed and cannot be mounted until the same \
                 command is run again",
            ),
            Err(error @ TuneError::Store(_)) if is_changing(&devices) => fail(format!(
                "{error}; the volume is half changed and cannot be mounted. Once the cause is \
                 gone, the same command goes on"
            )),
            Err(error) => Err(error.into()),
        }
    }

    fn tell(&self, change: Change, devices: &[Arc<dyn BlockDevice>]) -> Done {
        if self.quiet {
            return Ok(());
        }
        match (change, devices.first()) {
            (Change::Fsid(_) | Change::MetadataUuid(_), Some(device)) => {
                let found = read_superblock(&**device)?;
                say!("the UUID is {}", Uuid::from_bytes(found.fsid));
            }
            _ => say!("{}: done", name_of(change)),
        }
        Ok(())
    }

    fn quotas(&self, paths: &[PathBuf], quotas: &Quotas) -> Done {
        let volume = Volume::open_all(paths, OpenOptions::default())?;
        let files = volume.files();
        match quotas {
            Quotas::On => {
                let nobody = &mut |_: &_| ControlFlow::Continue(());
                files.enable_quotas(QuotaMode::Simple, &Limits::default(), nobody)?;
            }
            Quotas::Off => {
                let state = volume.quota_state();
                let is_simple = state.as_ref().is_none_or(|state| {
                    let flags = state.status.flags;
                    flags.contains(QgroupStatusFlags::SIMPLE_MODE)
                });
                if !is_simple {
                    return fail(
                        "its quotas are not simple ones; `butterfs quota disable` ends them",
                    );
                }
                if state.is_some() {
                    files.disable_quotas()?;
                }
            }
        }
        volume.close()?;
        if matches!(quotas, Quotas::On) && !self.quiet {
            say!("simple quotas: done");
        }
        Ok(())
    }

    fn bar(&self) -> ProgressBar {
        let target = match self.quiet {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let form = "{msg} {bar:30} {bytes}/{total_bytes}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style);
        }
        bar
    }
}

fn show(bar: &ProgressBar, progress: &Progress) {
    bar.set_message(match progress.stage {
        Stage::Verifying => "reading nodes",
        Stage::ReadingData => "reading data",
        Stage::Rewriting => "rewriting nodes",
        Stage::Extents => "changing extents",
    });
    bar.set_length(progress.total);
    bar.set_position(progress.done);
}

fn name_of(change: Change) -> String {
    match change {
        Change::Features(features) => features.names().join(", "),
        Change::Seeding(Seeding::On) => "seed".to_owned(),
        Change::Seeding(Seeding::Off) => "no seed".to_owned(),
        Change::Fsid(_) | Change::MetadataUuid(_) => "UUID".to_owned(),
        Change::ToBlockGroupTree => "block group tree".to_owned(),
        Change::FromBlockGroupTree => "no block group tree".to_owned(),
        Change::ToFreeSpaceTree => "free-space tree".to_owned(),
        Change::Checksum(to) => format!("checksums {}", to.name()),
        Change::RemoveSimpleQuota => "no simple quotas".to_owned(),
    }
}

/// Whether one of the devices says that a change is half done.
fn is_changing(devices: &[Arc<dyn BlockDevice>]) -> bool {
    devices.iter().any(|device| {
        read_superblock(&**device).is_ok_and(|found| {
            found
                .flags
                .intersects(butterfs_format::superblock::SuperFlags::CHANGING)
        })
    })
}

/// Replays a waiting fsync log, as opening the volume does.
fn replay_log(paths: &[PathBuf]) -> Result<(), Failure> {
    let mut waits = false;
    for device in butterfs::open_members(paths, Access::ReadOnly)? {
        waits |= read_superblock(&*device)?.log_root.get() != 0;
    }
    if waits {
        Volume::open_all(paths, OpenOptions::default())?.close()?;
    }
    Ok(())
}
