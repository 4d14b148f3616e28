//! Waiting for the server of a mount, and saying so.
//!
//! Who asks the server of a mount waits in the kernel until it answers. A server
//! that was stopped (SIGSTOP, a frozen container) never does.

use butterfs_server::Mount;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Servers that work answer sooner, unless they have much to write.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Does what asks the server of the mount at `path`. If that takes long, says
/// for whom this command waits.
pub fn asking<T>(path: &Path, work: impl FnOnce() -> T) -> T {
    let (done, end) = channel::<()>();
    let path = path.to_owned();
    let teller = thread::Builder::new()
        .name("patience".into())
        .spawn(move || {
            if end.recv_timeout(SILENCE_MAX) == Err(RecvTimeoutError::Timeout) {
                tell(&path);
            }
        });
    let answer = work();
    drop(done);
    if let Ok(teller) = teller {
        let _ = teller.join();
    }
    answer
}

/// Asks no file system.
fn tell(path: &Path) {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mount = Mount::of_path(&path);
    // Symbolic links of the path are not followed, and umount(2) takes the mount
    // out of the table before it waits.
    let Some(mount) = mount.filter(Mount::is_ours) else {
        return note!("butterfs: waiting for the server of {}", path.display());
    };
    let point = mount.point.display();
    match server_of(&mount.source) {
        Some((process, State::Stopped)) => note!(
            "butterfs: waiting: the server of {point}, process {process}, is stopped; \
             `kill -CONT {process}` lets it go on"
        ),
        Some((process, State::Other)) => {
            note!("butterfs: waiting for the server of {point}, process {process}")
        }
        None => note!("butterfs: waiting for the server of {point}"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Stopped,
    Other,
}

/// The process that was started to serve `source`.
fn server_of(source: &Path) -> Option<(u32, State)> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let serving = |process: &PathBuf| {
        let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0).skip(1);
        words.next() == Some(b"mount")
            && words.any(|word| word == source.as_os_str().as_encoded_bytes())
    };
    let process = processes.map(|entry| entry.path()).find(serving)?;
    let number = process.file_name()?.to_str()?.parse().ok()?;
    Some((
        number,
        state_in(&std::fs::read_to_string(process.join("stat")).ok()?),
    ))
}

/// The state in a line of /proc/PID/stat, where it follows the name, which may
/// have parentheses itself.
fn state_in(line: &str) -> State {
    let state = line.rsplit(')').next().unwrap_or_default();
    match state.trim_start().as_bytes().first() {
        Some(b'T' | b't') => State::Stopped,
        _ => State::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_is_recognized() {
        assert_eq!(state_in("7 (odd) name) T 1 7 7 0"), State::Stopped);
        assert_eq!(state_in("7 (T) S 1 7 7 0"), State::Other);
        assert_eq!(state_in(""), State::Other);
    }
}
