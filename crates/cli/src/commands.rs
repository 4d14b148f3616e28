//! The subcommands, one file each.

pub mod mount;
pub mod umount;

use crate::arguments::{Arguments, Command};
use std::process::ExitCode;

/// Exit code of a mount that failed, as mount(8) has it.
const MOUNT_FAILED: u8 = 32;

/// Runs a command; says on standard error what failed.
pub fn run(arguments: Arguments) -> ExitCode {
    let (done, failure_code) = match arguments.command {
        Command::Mount(mount) => (mount.run(), MOUNT_FAILED),
        Command::Umount(umount) => (umount.run(), 1),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("butterfs: {}", failure.0);
            ExitCode::from(failure_code)
        }
    }
}
