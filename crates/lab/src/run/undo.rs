//! What a run made on the machine, and how it is removed again.
//!
//! Owns a stack, which is undone from its top. Each entry is on the disk before
//! the thing is made, so a later process can undo exactly what a killed one
//! left, by its name, and nothing else.

use super::command::{self, TIME_LIMIT};
use super::mounts::{is_mounted, processes_in};
use super::process::{self, Process};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Something that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Made {
    /// A file.
    File(PathBuf),
    /// A directory with all that is in it.
    Directory(PathBuf),
    /// A loop device over this file.
    Loop(PathBuf),
    /// A mount.
    Mount {
        /// Where.
        directory: PathBuf,
        /// What unmounts it.
        unmount: Vec<Vec<String>>,
    },
    /// A process.
    Process(Process),
    /// A setting of the kernel that was changed.
    Setting {
        /// Its file.
        path: PathBuf,
        /// What it was.
        value: String,
    },
    /// A control group, which this process may be in.
    Group {
        /// The group.
        group: PathBuf,
        /// Where its processes go.
        home: PathBuf,
    },
}

/// The stack.
#[derive(Debug)]
pub struct Undo {
    journal: PathBuf,
    made: Vec<Made>,
}

impl Undo {
    /// Begins with an empty stack. What an earlier process left there is
    /// removed first.
    ///
    /// # Errors
    /// What could not be undone.
    pub fn begin(journal: &Path) -> Result<Self, String> {
        let mut undo = Self {
            journal: journal.to_owned(),
            made: Self::left(journal)?,
        };
        undo.to(0)?;
        Ok(undo)
    }

    /// What an earlier process left.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn left(journal: &Path) -> Result<Vec<Made>, String> {
        let text = match fs::read_to_string(journal) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(format!("{}: {error}", journal.display())),
        };
        serde_json::from_str(&text)
            .map_err(|error| format!("{} is damaged: {error}", journal.display()))
    }

    /// The height of the stack.
    pub fn height(&self) -> usize {
        self.made.len()
    }

    /// Puts something on the stack, before it is made.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn will_make(&mut self, made: Made) -> Result<(), String> {
        self.made.push(made);
        self.write()
    }

    /// Undoes everything above a height, the last first. All of it is tried.
    /// What could not be undone stays on the stack.
    ///
    /// # Errors
    /// What could not be undone.
    pub fn to(&mut self, height: usize) -> Result<(), String> {
        let mut wrong = Vec::new();
        let mut stuck = Vec::new();
        while self.made.len() > height {
            let Some(made) = self.made.pop() else { break };
            if let Err(error) = undo(&made) {
                wrong.push(error);
                stuck.insert(0, made);
            }
        }
        self.made.extend(stuck);
        self.write()?;
        if wrong.is_empty() {
            return Ok(());
        }
        Err(format!(
            "what the run made is still there: {}",
            wrong.join("; ")
        ))
    }

    /// Removes what is above a height from the stack, because it is already
    /// gone.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn forget(&mut self, height: usize) -> Result<(), String> {
        self.made.truncate(height);
        self.write()
    }

    fn write(&self) -> Result<(), String> {
        let at = |error: std::io::Error| format!("{}: {error}", self.journal.display());
        if self.made.is_empty() {
            return match fs::remove_file(&self.journal) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(error)),
                _ => Ok(()),
            };
        }
        let text = serde_json::to_string_pretty(&self.made).map_err(|error| error.to_string())?;
        let next = self.journal.with_extension("next");
        let mut file = fs::File::create(&next).map_err(at)?;
        file.write_all(text.as_bytes()).map_err(at)?;
        file.sync_all().map_err(at)?;
        fs::rename(&next, &self.journal).map_err(at)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Err(error) = self.to(0) {
            eprintln!(
                "butterfs lab: {error}; the journal {} names it",
                self.journal.display()
            );
        }
    }
}

fn undo(made: &Made) -> Result<(), String> {
    match made {
        Made::File(path) => gone(path, fs::remove_file(path)),
        Made::Directory(path) => {
            if let Some(mount) = super::mounts::below(path) {
                return Err(format!("{} is mounted", mount.display()));
            }
            gone(path, fs::remove_dir_all(path))
        }
        Made::Loop(file) => detach(file),
        Made::Mount { directory, unmount } => take_away(directory, unmount),
        Made::Process(process) => process.end(Duration::from_secs(5)),
        Made::Setting { path, value } => {
            fs::write(path, value).map_err(|error| format!("{}: {error}", path.display()))
        }
        Made::Group { group, home } => {
            let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            for pid in procs.lines() {
                // A process may have ended since.
                let _ = fs::write(home.join("cgroup.procs"), pid);
            }
            gone(group, fs::remove_dir(group))
        }
    }
}

fn gone(path: &Path, result: std::io::Result<()>) -> Result<(), String> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Detaches all loop devices over a file.
fn detach(file: &Path) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let devices = super::device::loops_over(file);
        if devices.is_empty() {
            return Ok(());
        }
        let mut said = Err(String::new());
        for device in &devices {
            let line = [
                "losetup".to_owned(),
                "-d".to_owned(),
                device.display().to_string(),
            ];
            said = command::run(&line, TIME_LIMIT).map(|_| ());
        }
        if Instant::now() > until {
            return Err(format!(
                "{}: {}",
                devices[0].display(),
                said.err().unwrap_or_else(|| "is in use".to_owned())
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Unmounts, patiently at first and in the end by force.
fn take_away(directory: &Path, unmount: &[Vec<String>]) -> Result<(), String> {
    if is_mounted(directory) {
        // Left by a killed run: programs of its workload.
        for process in processes_in(directory) {
            process.end(Duration::from_secs(3))?;
        }
    }
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        for line in unmount {
            // What counts is whether it is mounted afterwards.
            let _ = command::run(line, TIME_LIMIT);
        }
        if !is_mounted(directory) {
            return process::wait_gone(&process::serving(directory), Duration::from_secs(60));
        }
        if Instant::now() > until {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    while is_mounted(directory) {
        rustix::mount::unmount(directory, rustix::mount::UnmountFlags::DETACH)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_process_puts_a_setting_back() {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("lab.made");
        let path = folder.path().join("setting");
        fs::write(&path, "0").unwrap();
        let mut undo = Undo::begin(&journal).unwrap();
        let made = Made::Setting {
            path: path.clone(),
            value: "0".to_owned(),
        };
        undo.will_make(made).unwrap();
        fs::write(&path, "200000").unwrap();
        // As a kill leaves it.
        std::mem::forget(undo);
        assert_eq!(Undo::left(&journal).unwrap().len(), 1);
        drop(Undo::begin(&journal).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "0");
        assert!(!journal.exists());
    }
}
