//! Whether a scrub runs, here, in a server or in the kernel.

use super::record::{self, State};
use super::subject::Subject;
use crate::facts;
use crate::fail::{Context, Failure, fail};
use butterfs_format::DeviceId;
use butterfs_kernel as kernel;
use butterfs_server::Facts;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

/// Why the kernel does not do it.
pub fn refused(error: Errno) -> String {
    match error {
        Errno::INPROGRESS => "a scrub or a replacement of a device runs; `butterfs scrub status` \
                              and `butterfs replace status` show them"
            .into(),
        Errno::PERM => "not permitted: this is for root".into(),
        Errno::ROFS => "the file system is read-only; -r scrubs it without corrections".into(),
        Errno::NODEV => "the device is missing".into(),
        other => std::io::Error::from(other).to_string(),
    }
}

/// The devices that are there.
pub fn present(facts: &Facts) -> impl Iterator<Item = DeviceId> {
    let members = facts.members.iter();
    let present = members.filter(|member| member.path.is_some());
    present.map(|member| DeviceId(member.id))
}

/// Whether a scrub of a volume runs.
pub fn state(subject: &Subject) -> Result<State, Failure> {
    match (record::state_of(&subject.uuid)?, &subject.of_kernel) {
        (State::Idle, Some(mount)) => of_kernel(mount),
        (state, _) => Ok(state),
    }
}

/// Whether the kernel scrubs a device of the volume, for whomever.
fn of_kernel(volume: &Path) -> Result<State, Failure> {
    let file = File::open(volume).context(volume.display())?;
    let facts = facts::at(volume)?;
    for id in present(&facts) {
        match kernel::scrub_progress(file.as_fd(), id) {
            Ok(Some(_)) => return Ok(State::Running),
            // Others than root are told nothing; they see what is written down.
            Ok(None) | Err(Errno::PERM | Errno::NODEV) => {}
            Err(error) => return fail(format!("{}: {}", volume.display(), refused(error))),
        }
    }
    Ok(State::Idle)
}
