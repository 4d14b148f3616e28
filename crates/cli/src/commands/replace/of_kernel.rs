//! Replacements of devices of volumes that the kernel has mounted.

use super::words::{NOT_STARTED, Wanted, ended_as};
use crate::background::in_background;
use crate::beside::beside;
use crate::commands::device::of_kernel::{Fresh, Meant, open, prepare, refused};
use crate::fail::{Done, Failure, fail};
use crate::interrupt::Interrupt;
use crate::meter::Meter;
use crate::output;
use butterfs_kernel::{self as kernel, ReplaceAnswer, ReplaceState};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// The state of a replacement that runs.
const RUNS: u64 = 1;

const ALREADY: &str = "a replacement of a device runs already; `butterfs replace status` shows it";

fn failure(volume: &Path, error: Errno) -> Failure {
    Failure(format!("{}: {}", volume.display(), refused(error)))
}

/// Begins a replacement, and waits for its end if that is asked for.
pub fn start(volume: &Path, wanted: &Wanted, wait: bool) -> Done {
    let file = open(volume)?;
    let file = file.as_fd();
    let source = Meant::of(file, &wanted.source)?;
    let state = kernel::replace_state(file).map_err(|error| failure(volume, error))?;
    if state.state == RUNS {
        return fail(ALREADY);
    }
    let fresh = Fresh {
        force: wanted.force,
        nodiscard: wanted.nodiscard,
    };
    if !wait {
        return begin(volume, wanted);
    }
    let source = source.number(file)?;
    let (target, _) = prepare(&wanted.target, fresh)?;
    let interrupt = Interrupt::watch()?;
    let mut meter = Meter::new();
    let mut is_asked = false;
    let ended = beside(
        || {
            kernel::replace_device(
                file,
                source,
                target.as_os_str().as_bytes(),
                wanted.others_first,
            )
        },
        || {
            if let Ok(state) = kernel::replace_state(file) {
                meter.show(state.thousandths, 1000);
            }
            if !is_asked && interrupt.check().is_err() {
                // The kernel may not have begun yet: then it is asked again.
                is_asked = kernel::cancel_replace(file) == Ok(ReplaceAnswer::Done);
            }
        },
    );
    meter.end();
    match ended? {
        Ok(ReplaceAnswer::Done) => {}
        Ok(ReplaceAnswer::AlreadyStarted) => return fail(ALREADY),
        Ok(ReplaceAnswer::ScrubRuns) => {
            return fail("a scrub runs; `butterfs scrub cancel` ends it");
        }
        Ok(ReplaceAnswer::NotStarted | ReplaceAnswer::Other(_)) => {
            return fail("the kernel did not begin; its log (dmesg) says why");
        }
        Err(Errno::CANCELED) => return fail("the replacement was cancelled: the device stays"),
        Err(Errno::NOSPC) => {
            return fail(
                "the kernel found no room to set a block group aside; try again when less is \
                 written, or free some space (`butterfs filesystem usage` shows it)",
            );
        }
        Err(Errno::INVAL) => {
            return fail(
                "the kernel does not take the target: it may be smaller than the source; its log \
                 (dmesg) says why",
            );
        }
        Err(error) => return Err(failure(volume, error)),
    }
    let ended = kernel::replace_state(file).map_err(|error| failure(volume, error))?;
    match ended.read_errors {
        0 => Ok(()),
        count => fail(format!(
            "the device was replaced, but of {count} sectors no copy was good; the kernel's log \
             (dmesg) names the files"
        )),
    }
}

/// Has another process do it, and returns when the kernel has begun.
fn begin(volume: &Path, wanted: &Wanted) -> Done {
    let mut words: Vec<OsString> = ["replace", "start", "-B"].map(OsString::from).into();
    let options = [
        (wanted.others_first, "-r"),
        (wanted.force, "-f"),
        (wanted.nodiscard, "-K"),
    ];
    let given = options.into_iter().filter(|(is_given, _)| *is_given);
    words.extend(given.map(|(_, option)| option.into()));
    words.push("--".into());
    words.push(wanted.source.clone().into());
    words.push(wanted.target.clone().into());
    words.push(volume.into());
    let file = open(volume)?;
    let runs = || kernel::replace_state(file.as_fd()).is_ok_and(|state| state.state == RUNS);
    in_background(&words, &[], runs).map(|_| ())
}

/// Shows how far it is, or how the last one ended: once if `once` is true,
/// otherwise every second while it runs.
pub fn status(volume: &Path, once: bool) -> Done {
    let file = open(volume)?;
    let look = || kernel::replace_state(file.as_fd()).map_err(|error| failure(volume, error));
    let mut state = look()?;
    while state.state == RUNS {
        say!(
            "{}.{}% done, {} write errs, {} uncorr. read errs",
            state.thousandths / 10,
            state.thousandths % 10,
            state.write_errors,
            state.read_errors
        );
        if once {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
        state = look()?;
    }
    let ReplaceState {
        started_seconds,
        stopped_seconds,
        write_errors,
        read_errors,
        ..
    } = state;
    ended_as(
        state.state,
        state.thousandths,
        (started_seconds, stopped_seconds),
        (write_errors, read_errors),
    )
}

/// Ends the replacement that runs.
pub fn cancel(volume: &Path) -> Done {
    let file = open(volume)?;
    match kernel::cancel_replace(file.as_fd()) {
        Ok(ReplaceAnswer::Done) => Ok(()),
        Ok(_) => {
            note!("{}: not started", volume.display());
            output::end_with(NOT_STARTED)
        }
        Err(error) => Err(failure(volume, error)),
    }
}
