//! Balances of volumes that the kernel has mounted.

use super::ends::{PAUSED, WAITS, none};
use super::shown::Shown;
use crate::beside::beside;
use crate::fail::{Context, Done, Failure, fail};
use crate::interrupt::Interrupt;
use crate::output;
use butterfs_admin::balance::{Filters, Redundancy};
use butterfs_kernel::{self as kernel, BalanceProgress};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Why the kernel does not do it.
fn refused(error: Errno) -> String {
    match error {
        Errno::INPROGRESS => "a balance runs or waits, or another change of the devices runs; \
                              `butterfs balance status` and `butterfs replace status` show them"
            .into(),
        Errno::INVAL => "the kernel does not take these filters: a profile may need more devices, \
                         or less redundancy needs -f; its log (dmesg) says which"
            .into(),
        Errno::NOSPC => "some block groups stay where they are: there is no space elsewhere for \
                         what is in them; the kernel's log (dmesg) says how many"
            .into(),
        Errno::PERM => "not permitted: this is for root".into(),
        Errno::ROFS => "the file system is read-only".into(),
        other => std::io::Error::from(other).to_string(),
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    crate::host_file::open(path).context(path.display())
}

fn failure(path: &Path, error: Errno) -> Failure {
    Failure(format!("{}: {}", path.display(), refused(error)))
}

/// Begins a balance, and waits for its end.
pub fn start(path: &Path, filters: &Filters, redundancy: Redundancy, shown: Shown) -> Done {
    let [data, metadata, system] =
        [&filters.data, &filters.metadata, &filters.system].map(|filter| {
            let filter = filter.as_ref()?;
            Some(filter.args())
        });
    let force = redundancy == Redundancy::MayShrink;
    run(path, shown, |file| {
        let filters = [data.as_ref(), metadata.as_ref(), system.as_ref()];
        kernel::start_balance(file, filters, force)
    })
}

/// Resumes the balance that waits.
pub fn resume(path: &Path) -> Done {
    run(path, Shown::Progress, kernel::resume_balance)
}

/// Has the kernel do what `work` asks for, and shows how far it is. The first
/// Ctrl-C pauses it.
fn run(
    path: &Path,
    shown: Shown,
    work: impl FnOnce(BorrowedFd<'_>) -> Result<BalanceProgress, Errno> + Send,
) -> Done {
    let file = open(path)?;
    let file = file.as_fd();
    let interrupt = Interrupt::watch()?;
    let bar = ProgressBar::with_draw_target(Some(0), shown.target());
    let template = "{bar:30} {pos} of about {len} block groups, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let (mut has_begun, mut is_asked) = (false, false);
    let ended = beside(
        || work(file),
        || {
            if let Ok(Some(progress)) = kernel::balance_progress(file) {
                if progress.is_running && !std::mem::replace(&mut has_begun, true) {
                    shown.begun();
                }
                bar.set_length(progress.expected);
                bar.set_position(progress.considered.min(progress.expected));
            }
            if !is_asked && interrupt.check().is_err() {
                // The kernel may not have begun yet: then it is asked again.
                is_asked = kernel::pause_balance(file).is_ok();
            }
        },
    )?;
    bar.finish_and_clear();
    match ended {
        Ok(progress) => {
            say!(
                "Done, had to relocate {} out of {} chunks",
                progress.completed,
                progress.considered
            );
            Ok(())
        }
        Err(Errno::NOTCONN) => none(path, "no balance waits to go on"),
        Err(Errno::CANCELED) => match kernel::balance_progress(file) {
            Ok(Some(_)) => fail(PAUSED),
            _ => fail("cancelled"),
        },
        Err(error) => Err(failure(path, error)),
    }
}

/// Cancels the balance that runs or waits.
pub fn cancel(path: &Path) -> Done {
    end(path, "no balance runs or waits", kernel::cancel_balance)
}

/// Pauses the running balance.
pub fn pause(path: &Path) -> Done {
    end(path, "no balance runs", kernel::pause_balance)
}

fn end(path: &Path, without: &str, how: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>) -> Done {
    match how(open(path)?.as_fd()) {
        Err(Errno::NOTCONN) => none(path, without),
        ended => ended.map_err(|error| failure(path, error)),
    }
}

/// Shows how far it is.
pub fn status(path: &Path) -> Done {
    let name = path.display();
    let file = open(path)?;
    let found = kernel::balance_progress(file.as_fd()).map_err(|error| failure(path, error))?;
    let Some(found) = found else {
        say!("No balance found on '{name}'");
        return Ok(());
    };
    let state = match found.is_running {
        true => "running",
        false => "paused",
    };
    say!("Balance on '{name}' is {state}");
    let left = 100 - found.completed.min(found.expected) * 100 / found.expected.max(1);
    say!(
        "{} out of about {} chunks balanced ({} considered), {left:>3}% left",
        found.completed,
        found.expected,
        found.considered
    );
    output::end_with(WAITS)
}
