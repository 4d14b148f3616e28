//! `butterfs run`: a program for which mounts of ButterFS are Btrfs.
//!
//! Owns the arguments and the exit code. The crate `supervisor` does the rest.

use butterfs_supervisor::{End, RunError, is_supervised, run};
use clap::Args;
use rustix::process::{Signal, getpid, kill_process};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Exit codes as those of env(1): this command failed; the program cannot be
/// run; there is no such program.
const FAILED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Run a program for which mounts of ButterFS are Btrfs.
#[derive(Args, Debug)]
#[command(
    long_about = "Run a program, and all that it starts, so that mounts of ButterFS look to it as Btrfs does: the type and id of the file system, device and inode numbers of subvolumes, the tables of mounts, and the requests FICLONE, FICLONERANGE, FIDEDUPERANGE and FIEMAP. Tools made for Btrfs then work on a mount: btrfs, snapper, btrbk, compsize, duperemove, cp --reflink=always. No rights are needed.",
    after_help = "Where the kernel lets nobody watch system calls (some containers), a library is
loaded into the programs in place of that, with the same answers for programs
that are linked dynamically. --preload does so everywhere: it costs a quarter.

Examples:
  butterfs run -- btrfs subvolume list /mnt
  butterfs run -- cp --reflink=always /mnt/a /mnt/b
  butterfs run                                     your shell, and what you start in it

For a service: ExecStart=/usr/bin/butterfs run -- /usr/bin/snapper ...

Exit codes: the program's; 125 if it could not be watched, 126 if it cannot be
run, 127 if there is none of this name. docs/tools.md lists tools and what works."
)]
pub struct Run {
    /// Load a library into the programs in place of watching their system calls.
    #[arg(long)]
    preload: bool,
    /// The program and its arguments (default: your shell).
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

fn shell() -> OsString {
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    shell.unwrap_or_else(|| "/bin/sh".into())
}

const LIBRARY: &str = "libbutterfs_preload.so";
const NO_LIBRARY: &str = "libbutterfs_preload.so is neither beside this program nor in \
                          ../lib/butterfs; `make dist` builds it";

/// The library that programs load: beside this program, or where it is installed.
fn library() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    let installed = folder.join("../lib/butterfs").canonicalize();
    [Some(folder.to_owned()), installed.ok()]
        .into_iter()
        .flatten()
        .map(|folder| folder.join(LIBRARY))
        .find(|library| library.is_file())
}

/// Becomes the program, which loads the library.
fn load(library: &Path, program: &OsStr, arguments: &[OsString]) -> ExitCode {
    const VARIABLE: &str = "LD_PRELOAD";
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os(VARIABLE) {
        all.push(":");
        all.push(others);
    }
    let mut command = Command::new(program);
    let error = command.args(arguments).env(VARIABLE, all).exec();
    note!("butterfs: {}: {error}", program.display());
    code_of(&error).into()
}

fn code_of(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_RUN,
    }
}

impl Run {
    /// Runs it, and ends as the program ends.
    pub fn run(&self) -> ExitCode {
        let shell = [shell()];
        let words = match &self.program[..] {
            [] => &shell,
            words => words,
        };
        let [program, arguments @ ..] = words else {
            return FAILED.into();
        };
        if is_supervised() {
            // The supervisor above watches it.
            let error = Command::new(program).args(arguments).exec();
            note!("butterfs: {}: {error}", program.display());
            return code_of(&error).into();
        }
        if self.preload {
            return match library() {
                Some(library) => load(&library, program, arguments),
                None => {
                    note!("butterfs: {NO_LIBRARY}");
                    FAILED.into()
                }
            };
        }
        let ended = run(program, arguments);
        if let (Err(RunError::Refused(_)), Some(library)) = (&ended, library()) {
            note!(
                "butterfs: this process may not watch system calls, so {} is loaded into the \
                 programs; those that are linked statically see the mounts as FUSE",
                library.display()
            );
            return load(&library, program, arguments);
        }
        match ended {
            Ok(End::Code(code)) => code.into(),
            Ok(End::Signal(signal)) => end_by(signal),
            Err(error) => {
                note!("butterfs: {error}");
                match &error {
                    RunError::Program { error, .. } => code_of(error).into(),
                    _ => FAILED.into(),
                }
            }
        }
    }
}

/// Ends by the signal that ended the program, so that the caller sees that.
fn end_by(signal: i32) -> ExitCode {
    if let Some(signal) = Signal::from_named_raw(signal) {
        // The program's own core is enough.
        let none = rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
        butterfs_supervisor::accept_signals();
        let _ = kill_process(getpid(), signal);
    }
    ExitCode::from(u8::try_from(128_i32.saturating_add(signal)).unwrap_or(FAILED))
}
