//! The same program again, for what goes on after the command has ended.

use crate::fail::{Context, Failure, fail};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// The pause between two looks at the process.
const PAUSE: Duration = Duration::from_millis(10);

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
    let program = std::env::current_exe().context("this program")?;
    let mut command = Command::new(program);
    command
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = command.spawn().context("this program")?;
    while !has_begun() {
        if let Some(ended) = child.try_wait()? {
            if ended.success() || ended.code().is_some_and(|code| fine.contains(&code)) {
                break;
            }
            let mut said = String::new();
            if let Some(mut text) = child.stderr.take() {
                text.read_to_string(&mut said)?;
            }
            return fail(said.trim().trim_start_matches("butterfs: "));
        }
        thread::sleep(PAUSE);
    }
    Ok(child.id())
}
