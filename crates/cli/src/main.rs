//! The command `butterfs`: Btrfs volumes in userspace.
//!
//! Owns the command line. Each subcommand is a file in [`commands`]. Exit
//! codes: 0 success; 1 failure or a mistake in the arguments; 141 if the reader
//! of standard output is gone. `mount` returns 32 for a failure, as mount(8)
//! expects of its helpers. `check` returns 1 for faults, 2 for a mistake, and 8
//! if it could not check.

/// Prints a line on standard output. If that fails, the function that prints
/// returns with the failure.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::say(format_args!($($text)*))? };
}

/// Prints a line on standard error. If that cannot be written, nothing happens.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::note(format_args!($($text)*)) };
}

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod arguments;
mod background;
mod beside;
mod changes;
mod command_groups;
mod commands;
mod dates;
mod facts;
mod fail;
mod files_bar;
mod frames;
mod fsck;
mod ground;
mod hint;
mod host;
mod host_file;
mod interrupt;
mod kernel_volume;
mod left_out;
mod log;
mod meter;
mod on_mount;
mod output;
mod parity;
mod part;
mod patience;
mod patient;
mod place;
mod reading;
mod run;
mod service;
mod sizes;
mod tools_json;
mod units;
mod version;
mod whole_file;
mod whole_help;
mod zone;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A write beyond `ulimit -f` is an error, not the end of a server.
    butterfs_device::ignore_file_size_signal();
    if let Some(memory) = butterfs_device::memory_of_process() {
        butterfs_device::keep_little_free_memory(memory);
    }
    let words: Vec<OsString> = std::env::args_os().collect();
    let answered = fsck::run(&words).or_else(|| whole_help::run(&words));
    let ended = answered.unwrap_or_else(|| match arguments::from_command_line(words) {
        Ok(arguments) => run::run(arguments),
        Err(ended) => ended,
    });
    interrupt::end_by_signal();
    ended
}
