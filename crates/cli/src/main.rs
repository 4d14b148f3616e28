//! The command `butterfs`: Btrfs volumes in userspace.
//!
//! Owns the command line; each subcommand is a file in [`commands`]. Exit
//! codes: 0 success, 1 failure, 2 a mistake in the arguments; `mount` answers
//! 32 for a failure, as mount(8) expects of its helpers; `check` answers 1 for
//! faults and 8 where it could not check, as fsck(8) does.

/// Prints a line on standard output. Where nobody reads it any more, the
/// program ends quietly.
macro_rules! say {
    ($($text:tt)*) => { $crate::place::say(format_args!($($text)*)) };
}

mod arguments;
mod commands;
mod facts;
mod fail;
mod fuse_fs;
mod join;
mod log;
mod mounts;
mod place;
mod server;
mod service;
mod sizes;

use std::process::ExitCode;

fn main() -> ExitCode {
    // A write beyond `ulimit -f` is an error, not the end of a server.
    butterfs_device::ignore_file_size_signal();
    let arguments = arguments::from_command_line(std::env::args_os());
    commands::run(arguments)
}
