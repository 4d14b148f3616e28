//! The same program again, for what goes on after the command has ended.

use crate::fail::{Context, Failure, fail};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// The pause between two looks at the process.
const PAUSE: Duration = Duration::from_millis(10);

/// What a process in the background says when it has begun.
pub const BEGUN: &str = "begun";

/// Starts this program with these words, out of reach of the terminal's Ctrl-C,
/// and returns once the process said [`BEGUN`] on its standard output, or ended
/// well.
///
/// # Errors
/// What the process says when it fails before it has begun.
pub fn until_begun<W: AsRef<OsStr>>(words: &[W]) -> Result<(), Failure> {
    let mut child = command(words)?
        .stdout(Stdio::piped())
        .spawn()
        .context("this program")?;
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            if line? == BEGUN {
                return Ok(());
            }
        }
    }
    match child.wait()?.success() {
        true => Ok(()),
        false => fail(reason(&mut child)?),
    }
}

fn command<W: AsRef<OsStr>>(words: &[W]) -> Result<Command, Failure> {
    let program = std::env::current_exe().context("this program")?;
    let mut command = Command::new(program);
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    Ok(command)
}

/// Why a process ended.
fn reason(child: &mut Child) -> Result<String, Failure> {
    let mut said = String::new();
    if let Some(mut text) = child.stderr.take() {
        text.read_to_string(&mut said)?;
    }
    Ok(said.trim().trim_start_matches("butterfs: ").to_owned())
}

/// Starts this program with these words, out of reach of the terminal's Ctrl-C.
/// Gives the number of its process once it `has_begun` or ended well.
///
/// # Errors
/// What the process says when it fails before it has begun; exit codes in
/// `fine` are no failures.
pub fn in_background<W: AsRef<OsStr>>(
    words: &[W],
    fine: &[i32],
    has_begun: impl Fn() -> bool,
) -> Result<u32, Failure> {
    let mut child = command(words)?.spawn().context("this program")?;
    while !has_begun() {
        if let Some(ended) = child.try_wait()? {
            if ended.success() || ended.code().is_some_and(|code| fine.contains(&code)) {
                break;
            }
            return fail(reason(&mut child)?);
        }
        thread::sleep(PAUSE);
    }
    Ok(child.id())
}
