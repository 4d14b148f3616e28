//! `butterfs replace`: another device takes the place of a device of a volume.

mod of_kernel;
mod words;

use super::device::named::{absolute, device_of, is_same, name_of, open, open_new, verify_new};
use super::device::running::begun;
use crate::fail::{Context, Done, Failure, fail};
use crate::host;
use crate::interrupt::Interrupt;
use crate::meter::Meter;
use crate::output;
use crate::place::Place;
use crate::service::{Effect, OnKernel, OnVolume};
use butterfs::{
    BlockDevice, Degraded, DeviceChange, DeviceChangeProgress, DeviceFacts, MemberState,
    OnReplacement, OpenOptions, Part, RunningChange, Subvolume, Volume,
};
use butterfs_admin::devices::{self, Discard, ReplaceProgress, ReplaceReads, Replaced};
use butterfs_format::DeviceId;
use butterfs_format::item::state::DeviceReplace;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use words::{NOT_STARTED, Wanted, ended_as};

/// Replace a device of a volume by another one.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs replace start 2 new.img one.img        a volume that is not mounted
  butterfs replace start /dev/sdx1 /dev/sdy1 /mnt
  butterfs replace start -B -r 2 /dev/sdy1 /mnt   and waits for the end
  butterfs replace status /mnt
  butterfs replace cancel /mnt

The source may be missing, stale or failing: its content is made from the other devices then. The target gets the source's number; the source is wiped. Whatever interrupts it (Ctrl-C, a power cut) leaves the volume with the source, and it is begun anew. On a mounted volume it runs in the server while the volume is used.")]
pub struct Replace {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Begin.
    Start(Start),
    /// Say how far it is, or how the last one ended.
    Status(Status),
    /// End the one that runs, or one that the kernel left unfinished; the source
    /// stays.
    Cancel {
        /// The volume: one of its devices, or a directory where it is mounted.
        volume: Place,
    },
}

#[derive(Args, Debug)]
struct Start {
    /// Read the source only where no other copy is good.
    #[arg(short = 'r')]
    others_first: bool,
    /// Overwrite a file system on the target.
    #[arg(short, long)]
    force: bool,
    /// Wait for the end. Of a volume that is not mounted it is waited for in
    /// any case.
    #[arg(short = 'B')]
    wait: bool,
    /// Do not discard what is on the target.
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Number or path of the device that is to go.
    source: PathBuf,
    /// File or block device that comes; at least as large as the volume's part
    /// of the source.
    target: PathBuf,
    /// The volume: one of its devices, or a directory where it is mounted.
    volume: Place,
}

#[derive(Args, Debug)]
struct Status {
    /// Print once; otherwise every second until it ends.
    #[arg(short = '1')]
    once: bool,
    /// The volume: one of its devices, or a directory where it is mounted.
    volume: Place,
}

#[derive(Debug, Deserialize, Serialize)]
enum Action {
    Start { wanted: Wanted, wait: bool },
    Status { once: bool },
    Cancel,
}

/// What is to be done, and where.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    action: Action,
    place: Place,
}

impl Replace {
    /// Runs it.
    pub fn run(self) -> Done {
        let (action, place) = match self.what {
            What::Start(start) => {
                let wanted = Wanted {
                    source: name_of(&start.source)?,
                    target: absolute(&start.target)?,
                    others_first: start.others_first,
                    force: start.force,
                    nodiscard: start.nodiscard,
                };
                let wait = start.wait;
                (Action::Start { wanted, wait }, start.volume)
            }
            What::Status(status) => (Action::Status { once: status.once }, status.volume),
            What::Cancel { volume } => (Action::Cancel, volume),
        };
        OnVolume::run(Order { action, place })
    }
}

impl OnVolume for Order {
    const NAME: &'static str = "replace";
    const TAG: &'static str = "Replace";
    const ON_KERNEL: OnKernel = OnKernel::Asks;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn whole_volume(&self) -> Option<(&Place, Part)> {
        Some((&self.place, Part::Whole))
    }

    fn effect(&self) -> Effect {
        match self.action {
            Action::Start { .. } => Effect::Changes,
            Action::Status { .. } | Action::Cancel => Effect::Reads,
        }
    }

    fn run_here(self) -> Done {
        let place = &self.place;
        match self.action {
            Action::Start { wanted, wait } => start(place, &wanted, wait),
            Action::Status { once } => status(place, once),
            Action::Cancel => cancel(place),
        }
    }

    fn ask_kernel(self, _: &Path, given: &Path) -> Done {
        match self.action {
            Action::Start { wanted, wait } => of_kernel::start(given, &wanted, wait),
            Action::Status { once } => of_kernel::status(given, once),
            Action::Cancel => of_kernel::cancel(given),
        }
    }
}

/// A replacement that may begin.
struct Ready {
    volume: Volume,
    device: DeviceId,
    target: Arc<dyn BlockDevice>,
    reads: ReplaceReads,
    discard: Discard,
    running: RunningChange,
}

impl Ready {
    fn new(volume: Volume, wanted: &Wanted) -> Result<Self, Failure> {
        let device = device_of(&volume, &wanted.source)?;
        let running = begun(&volume, DeviceChange::Replacement)?;
        Ok(Self {
            target: target_of(&volume, device, wanted)?,
            volume,
            device,
            reads: match wanted.others_first {
                true => ReplaceReads::OthersFirst,
                false => ReplaceReads::Any,
            },
            discard: match wanted.nodiscard {
                true => Discard::Nothing,
                false => Discard::Whole,
            },
            running,
        })
    }

    fn run(
        &self,
        watch: &mut dyn FnMut(&ReplaceProgress) -> ControlFlow<()>,
    ) -> Result<Replaced, butterfs::StoreError> {
        let store = self.volume.files().store();
        devices::replace(
            store,
            self.device,
            Arc::clone(&self.target),
            (self.reads, self.discard),
            &mut |progress| {
                let noted = DeviceChangeProgress {
                    done: progress.bytes_done,
                    all: progress.bytes_expected,
                    errors: progress.uncorrectable,
                };
                match self.running.note(noted) {
                    true => ControlFlow::Break(()),
                    false => watch(progress),
                }
            },
        )
    }
}

/// Opens the target. A stale or failing device can be the target of its own
/// replacement.
fn target_of(
    volume: &Volume,
    device: DeviceId,
    wanted: &Wanted,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    let all = volume.devices();
    let own = all.iter().find(|own| own.item.id == device);
    let is_itself = own.is_some_and(|own| {
        let name = own.name.as_deref().map(Path::new);
        own.state != MemberState::Present && name.is_some_and(|name| is_same(name, &wanted.target))
    });
    if !is_itself {
        verify_new(volume, &wanted.target)?;
        return open_new(&wanted.target, wanted.force);
    }
    if !wanted.force {
        return fail(format!(
            "{path} has an old state of device {device}; use the -f option to force overwrite of \
             {path}",
            path = wanted.target.display()
        ));
    }
    match volume.files().store().space().take_unused(device) {
        Some(target) => Ok(target),
        None => fail(format!("{}: it is in use", wanted.target.display())),
    }
}

fn start(place: &Place, wanted: &Wanted, wait: bool) -> Done {
    let (volume, is_own) = open(place, std::slice::from_ref(&wanted.source))?;
    let ready = Ready::new(volume, wanted)?;
    let name = wanted.target.display().to_string();
    if !is_own && !wait {
        let store = ready.volume.files().store();
        store.verify_target(ready.device, &*ready.target)?;
        // The command ends when the replacement has begun, or has failed to.
        let (began, has_begun) = mpsc::channel();
        let spawned = std::thread::Builder::new()
            .name("replace".into())
            .spawn(move || {
                let replaced = ready.run(&mut |_| {
                    let _ = began.send(Ok(()));
                    ControlFlow::Continue(())
                });
                let _ = began.send(match &replaced {
                    Ok(_) => Ok(()),
                    Err(error) => Err(error.to_string()),
                });
                match replaced {
                    Ok(Replaced::Done { .. }) => {
                        tracing::info!(device = %ready.device, target = name, "a device was replaced");
                    }
                    Ok(Replaced::Stopped) => tracing::info!("a replacement was cancelled"),
                    Err(error) => {
                        tracing::error!(device = %ready.device, %error, "a device was not replaced");
                    }
                }
            });
        spawned.context("a thread")?;
        let target = wanted.target.display();
        return match has_begun.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(text)) => fail(format!("{target}: {text}")),
            Err(_) => fail(format!(
                "{target}: the replacement broke off; the device stays"
            )),
        };
    }
    let interrupt = is_own.then(Interrupt::watch).transpose()?;
    let mut meter = Meter::new();
    let replaced = ready.run(&mut |progress| {
        meter.show(progress.bytes_done, progress.bytes_expected);
        let asked = interrupt.as_ref().is_some_and(|own| own.check().is_err());
        match asked {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    meter.end();
    let Ready {
        volume, running, ..
    } = ready;
    drop(running);
    let ended = replaced.context(name)?;
    if is_own {
        volume.close().context(place.volume.display())?;
    }
    match ended {
        Replaced::Stopped => fail("the replacement was cancelled: the device stays"),
        Replaced::Done { former, progress } => {
            if let (Some(name), Some(error)) = (former.name, former.not_wiped) {
                note!(
                    "warning: {name} is no part of the volume any more, but its superblock could \
                     not be wiped: {error}; do not use it with the volume"
                );
            }
            match progress.uncorrectable {
                0 => Ok(()),
                count => fail(format!(
                    "the device was replaced, but of {count} sectors no copy was good; `butterfs \
                     check --check-data-csum` names the files"
                )),
            }
        }
    }
}

fn status(place: &Place, once: bool) -> Done {
    let volume = place.open_as_committed()?;
    while let Some(state) = volume.device_change_progress(DeviceChange::Replacement) {
        let tenths = u128::from(state.done) * 1000 / u128::from(state.all.max(1));
        say!(
            "{}.{}% done, 0 write errs, {} uncorr. read errs",
            tenths / 10,
            tenths % 10,
            state.errors
        );
        if once {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    let item = volume
        .files()
        .store()
        .look(|engine| engine.replace_item())
        .context(place.volume.display())?;
    let item = item.unwrap_or_default();
    let devices = volume.devices();
    let source = devices.iter().find(|own| own.item.id == item.source);
    let size = source.map_or(0, |own| own.item.total_bytes);
    let thousandths = match item.is_under_way() {
        true => u128::from(item.cursor_left) * 1000 / u128::from(size.max(1)),
        false => 0,
    };
    ended_as(
        item.state,
        u64::try_from(thousandths).unwrap_or(1000),
        (item.started_seconds, item.stopped_seconds),
        (item.write_errors, item.read_errors),
    )
}

fn cancel(place: &Place) -> Done {
    if let Some(volume) = host::volume()
        && volume.cancel_device_change(DeviceChange::Replacement)
    {
        return Ok(());
    }
    let text = format!("{}: not started", place.volume.display());
    if !host::is_serving() && cancel_interrupted(&place.volume)? {
        return Ok(());
    }
    note!("{text}");
    output::end_with(NOT_STARTED)
}

/// Cancels the kernel's replacement on a volume that is not mounted. False when
/// there is none.
fn cancel_interrupted(path: &Path) -> Result<bool, Failure> {
    let mut look = OpenOptions::as_committed();
    look.store.degraded = Degraded::Allowed;
    look.subvolume = Subvolume::Id(5);
    look.store.on_replacement = OnReplacement::Cancel;
    let volume = Volume::open(path, look).context(path.display())?;
    let store = volume.files().store();
    let item = store
        .look(|engine| engine.replace_item())
        .context(path.display())?
        .filter(DeviceReplace::is_under_way);
    let targets = store.replacement_targets();
    if item.is_none() && targets.is_empty() {
        return Ok(false);
    }
    // Only the source may be missing: any other missing device would become
    // stale by what is written now.
    let devices = volume.devices();
    let mut away = devices
        .iter()
        .filter(|own| own.state != MemberState::Present);
    let is_source = |own: &DeviceFacts| item.is_some_and(|item| item.source == own.item.id);
    let degraded = match away.all(is_source) {
        true => Degraded::Allowed,
        false => Degraded::Refused,
    };
    drop(volume);
    let mut options = OpenOptions {
        subvolume: Subvolume::Id(5),
        ..OpenOptions::default()
    };
    options.store.degraded = degraded;
    options.store.on_replacement = OnReplacement::Cancel;
    let volume = Volume::open(path, options).context(path.display())?;
    volume.close().context(path.display())?;
    for target in targets {
        // The kernel refuses to mount the volume as long as it takes this
        // device for a target. If it knows nothing of the device, there is
        // nothing to do.
        let _ = butterfs_kernel::forget_device(target.as_bytes());
    }
    Ok(true)
}
