//! Programs that the runner starts itself: mkfs, mount, checks.

use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time that any of them may take.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(900);

/// Runs a command line and gives what it printed.
///
/// # Errors
/// It cannot be started, fails or takes too long. The error has the end of what
/// it printed.
pub(crate) fn run(line: &[String], limit: Duration) -> Result<String, String> {
    let [program, arguments @ ..] = line else {
        return Err("an empty command".to_owned());
    };
    let name = line.join(" ");
    // Servers that keep running would hold a pipe open.
    let mut output = tempfile::tempfile().map_err(|error| format!("{name}: {error}"))?;
    let copy = |file: &std::fs::File| file.try_clone().map(Stdio::from);
    let (out, err) = (copy(&output), copy(&output));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(out.map_err(|error| format!("{name}: {error}"))?)
        .stderr(err.map_err(|error| format!("{name}: {error}"))?)
        // Ctrl-C is for the run, which ends in order.
        .process_group(0)
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let until = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() > until => {
                // It may have ended in between. A process that hangs in the
                // kernel cannot be waited for.
                let _ = child.kill();
                for _ in 0..100 {
                    if !matches!(child.try_wait(), Ok(None)) {
                        break;
                    }
                    std::thread::sleep(pause);
                }
                return Err(format!("{name}: not done after {} s", limit.as_secs()));
            }
            Ok(None) => std::thread::sleep(pause),
            Err(error) => return Err(format!("{name}: {error}")),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let mut said = Vec::new();
    // What it printed is only for people.
    let _ = output.rewind();
    let _ = output.read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    if status.success() {
        return Ok(said);
    }
    Err(format!("{name}: {status}: {}", tail(&said)))
}

/// The beginning and the end of a text, because the mistake is in one of them.
pub(crate) fn tail(text: &str) -> String {
    let mut lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    if lines.len() > 4 {
        let from = lines.len() - 3;
        lines.drain(1..from);
    }
    let clip = |line: &&str| line.chars().take(200).collect::<String>();
    lines.iter().map(clip).collect::<Vec<_>>().join(" / ")
}
