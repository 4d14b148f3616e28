//! A cell's file system: made, mounted, unmounted, checked by its commands.

use super::command::{self, TIME_LIMIT};
use super::device::Device;
use super::mounts;
use super::process::{self, Process};
use super::undo::{Made, Undo};
use crate::filesystem::{Command, FileSystem, Place};
use crate::model::Integrity;
use crate::workload::{Files as _, Library};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time that a server may take to write everything after its mount is
/// unmounted.
const FAREWELL: Duration = Duration::from_secs(120);

/// Directories of a run.
#[derive(Clone, Debug)]
pub(crate) struct Folders {
    /// All of it.
    pub(crate) top: PathBuf,
    /// Where file systems are mounted.
    pub(crate) mount: PathBuf,
    /// Where a file system is mounted that lies below another one.
    pub(crate) under: PathBuf,
    /// Links to the devices.
    pub(crate) links: PathBuf,
    /// The workload's logs and sockets.
    pub(crate) scratch: PathBuf,
}

/// A file system on devices.
pub(crate) struct Mounted<'a> {
    file_system: &'a FileSystem,
    place: Place,
    /// Height of the stack below the mount; None while it is not mounted.
    below: Option<usize>,
    daemon: Option<(std::process::Child, Process)>,
    servers: Vec<Process>,
    /// The volume, while the library has it open and it is not mounted.
    library: Option<Library>,
}

impl<'a> Mounted<'a> {
    pub(crate) fn new(
        file_system: &'a FileSystem,
        folders: &Folders,
        devices: &[Device],
        (mkfs, mount, butterfs): (String, String, PathBuf),
    ) -> Self {
        Self {
            place: Place {
                devices: devices.iter().map(|device| device.path.clone()).collect(),
                directory: folders.mount.clone(),
                under: folders.under.clone(),
                links: folders.links.clone(),
                name: format!("butterfslab{}", std::process::id()),
                mkfs,
                mount,
                butterfs,
            },
            file_system,
            below: None,
            daemon: None,
            servers: Vec::new(),
            library: None,
        }
    }

    fn run(&self, command: &Command) -> Result<String, String> {
        command::run(&command.fill(&self.place), TIME_LIMIT)
    }

    pub(crate) fn run_all(&self, commands: &[Command]) -> Result<(), String> {
        commands
            .iter()
            .try_for_each(|command| self.run(command).map(|_| ()))
    }

    /// Where it is mounted.
    pub(crate) fn directory(&self) -> &Path {
        &self.place.directory
    }

    /// Brings everything to the devices. For a plain FUSE mount, also what its
    /// server gave to the file system below.
    pub(crate) fn sync(&self) -> Result<(), String> {
        match &self.library {
            Some(library) => library.sync()?,
            None => super::ground::sync(self.directory())?,
        }
        if mounts::is_mounted(&self.place.under) {
            super::ground::sync(&self.place.under)?;
        }
        for device in &self.place.devices {
            let at = |error: std::io::Error| format!("{}: {error}", device.display());
            let file = std::fs::File::open(device).map_err(at)?;
            file.sync_all().map_err(at)?;
        }
        Ok(())
    }

    /// Processes that serve it.
    pub(crate) fn servers(&self) -> &[Process] {
        &self.servers
    }

    /// One of its servers has ended.
    pub(crate) fn lost_server(&self) -> bool {
        self.servers.iter().any(|server| !server.is_alive())
    }

    /// Starts its daemon, if it has one, and makes it.
    pub(crate) fn make(&mut self, undo: &mut Undo) -> Result<(), String> {
        if let Some(daemon) = &self.file_system.daemon {
            self.start_daemon(&daemon.fill(&self.place), undo)?;
        }
        if self.file_system.daemon.is_some() {
            // Its socket is there a moment later.
            let until = Instant::now() + Duration::from_secs(10);
            while let Err(error) = self.run_all(&self.file_system.make[..1]) {
                if Instant::now() > until {
                    return Err(error);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
            return self.run_all(&self.file_system.make[1..]);
        }
        self.run_all(&self.file_system.make)
    }

    fn start_daemon(&mut self, line: &[String], undo: &mut Undo) -> Result<(), String> {
        use std::os::unix::process::CommandExt as _;
        let quiet = || std::process::Stdio::null();
        let child = std::process::Command::new(&line[0])
            .args(&line[1..])
            .stdin(quiet())
            .stdout(quiet())
            .stderr(quiet())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("{}: {error}", line[0]))?;
        let pid = i32::try_from(child.id()).map_err(|error| error.to_string())?;
        let process = Process::of(pid).ok_or_else(|| format!("{} ended at once", line[0]))?;
        undo.will_make(Made::Process(process))?;
        self.daemon = Some((child, process));
        Ok(())
    }

    /// Mounts it.
    pub(crate) fn mount(&mut self, undo: &mut Undo) -> Result<(), String> {
        let unmount = self.file_system.unmount.iter();
        let below = undo.height();
        undo.will_make(Made::Mount {
            directory: self.place.under.clone(),
            unmount: Vec::new(),
        })?;
        undo.will_make(Made::Mount {
            directory: self.place.directory.clone(),
            unmount: unmount.map(|command| command.fill(&self.place)).collect(),
        })?;
        self.below = Some(below);
        self.run_all(&self.file_system.mount)?;
        if !mounts::is_mounted(self.directory()) {
            return Err(format!(
                "{} is not mounted after its mount command",
                self.file_system.name
            ));
        }
        self.servers.clear();
        if self.file_system.served {
            self.servers = process::serving(&self.place.directory);
            self.servers
                .extend(self.daemon.as_ref().map(|(_, process)| *process));
            if self.servers.is_empty() {
                return Err(format!("no process serves {}", self.file_system.name));
            }
        }
        Ok(())
    }

    /// Unmounts it; everything is on the devices when this returns.
    pub(crate) fn unmount(&mut self, undo: &mut Undo) -> Result<(), String> {
        let Some(below) = self.below.take() else {
            return Ok(());
        };
        let until = Instant::now() + Duration::from_secs(10);
        // A daemon of ours may have a file open for a moment.
        while let Err(error) = self.run_all(&self.file_system.unmount) {
            if !mounts::is_mounted(self.directory()) && !mounts::is_mounted(&self.place.under) {
                break;
            }
            if Instant::now() > until {
                self.below = Some(below);
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let daemon = self.daemon.as_ref().map(|(_, process)| *process);
        let leaving: Vec<Process> = self
            .servers
            .drain(..)
            .filter(|server| Some(*server) != daemon)
            .collect();
        process::wait_gone(&leaving, FAREWELL)?;
        undo.forget(below)
    }

    /// Lets the library open it in place of the mount, if the library can.
    pub(crate) fn open_library(&mut self, undo: &mut Undo) -> Result<(), String> {
        if self.file_system.library {
            self.unmount(undo)?;
            self.library = Some(self.opened()?);
        }
        Ok(())
    }

    fn opened(&self) -> Result<Library, String> {
        let options = butterfs::MountOptions::parse(&self.place.mount);
        let options = options.map_err(|error| error.to_string())?;
        Library::open(&self.place.devices[0], options.open_options())
    }

    /// The volume that the library has open.
    pub(crate) fn library(&self) -> Option<&Library> {
        self.library.as_ref()
    }

    /// Mounts it again after [`Self::open_library`].
    pub(crate) fn close_library(&mut self, undo: &mut Undo) -> Result<(), String> {
        match self.library.take() {
            None => Ok(()),
            Some(library) => {
                library.close()?;
                drop(library);
                self.mount(undo)
            }
        }
    }

    /// Empties its caches: closes and opens it again, or unmounts and mounts it
    /// again.
    pub(crate) fn renew(&mut self, undo: &mut Undo) -> Result<(), String> {
        if let Some(library) = self.library.take() {
            library.close()?;
            drop(library);
            self.library = Some(self.opened()?);
            return Ok(());
        }
        self.unmount(undo)?;
        self.mount(undo)
    }

    /// Runs its checks, those of the mounted or of the unmounted one.
    pub(crate) fn check(&self, mounted: bool) -> Vec<Integrity> {
        let own = self
            .file_system
            .checks
            .iter()
            .filter(|check| check.mounted == mounted);
        own.map(|check| {
            let result = self.run(&check.run);
            Integrity {
                check: check.name.clone(),
                passed: result.is_ok(),
                detail: match result {
                    Ok(_) => String::new(),
                    Err(said) => said,
                },
            }
        })
        .collect()
    }

    /// Ends its daemon.
    pub(crate) fn end_daemon(&mut self) -> Result<(), String> {
        let Some((mut child, process)) = self.daemon.take() else {
            return Ok(());
        };
        let ended = process.end(Duration::from_secs(10));
        // It is gone. This only reads its status.
        let _ = child.wait();
        ended
    }
}
