//! A volume mounted by the kernel.

use super::{KernelLog, Verdict, run};
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Whether the kernel may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `ro`
    ReadOnly,
    /// `rw`
    ReadWrite,
}

/// A mount of an image through a loop device; both end when it is dropped.
#[derive(Debug)]
pub struct KernelMount {
    point: TempDir,
    device: PathBuf,
    options: String,
    is_mounted: bool,
    log: KernelLog,
}

impl KernelMount {
    /// Mounts `image` with `options` (as `mount -o` takes them, may be empty).
    ///
    /// # Errors
    /// What losetup or mount printed, with what the kernel said.
    pub fn mount(image: &Path, access: Access, options: &str) -> io::Result<Self> {
        let mut args = vec!["--find", "--show"];
        let mut all_options = "rw".to_owned();
        if access == Access::ReadOnly {
            args.push("--read-only");
            all_options = "ro".to_owned();
        }
        if !options.is_empty() {
            all_options = format!("{all_options},{options}");
        }
        let path = image.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        args.push(path);
        let attached = run("losetup", args);
        if !attached.clean {
            return Err(io::Error::other(attached.output));
        }
        let mut mount = Self {
            point: tempfile::tempdir()?,
            device: PathBuf::from(attached.output.trim()),
            options: all_options,
            is_mounted: false,
            log: KernelLog::from_now(),
        };
        // From here on dropping it detaches the device.
        mount.mount_device()?;
        Ok(mount)
    }

    fn mount_device(&mut self) -> io::Result<()> {
        let mut args = ["-t", "btrfs", "-o", &self.options]
            .map(AsRef::as_ref)
            .to_vec();
        args.extend([self.device.as_os_str(), self.point.path().as_os_str()]);
        let verdict = run("mount", args);
        if verdict.clean {
            self.is_mounted = true;
            return Ok(());
        }
        let complaints = self.complaints().join("\n");
        Err(io::Error::other(verdict.output + &complaints))
    }

    fn unmount_device(&mut self) -> io::Result<()> {
        if self.is_mounted {
            super::unmount(self.point.path())?;
            self.is_mounted = false;
        }
        Ok(())
    }

    /// Root of the mounted tree.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// Its loop device.
    #[must_use]
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Warnings and errors that the kernel printed about it since the mount or
    /// the last call.
    pub fn complaints(&mut self) -> Vec<String> {
        let name = self.device.file_name().unwrap_or_default();
        self.log.btrfs_complaints(&name.to_string_lossy())
    }

    /// Unmounts and mounts again, so that everything is read from the device.
    ///
    /// # Errors
    /// What the programs printed.
    pub fn remount(&mut self) -> io::Result<()> {
        self.unmount_device()?;
        self.mount_device()
    }

    /// Reads everything and compares it with its checksums.
    pub fn scrub(&mut self) -> Verdict {
        let point = self.point.path().to_string_lossy();
        let mut verdict = run("btrfs", ["scrub", "start", "-B", &*point]);
        verdict.clean &= verdict.output.contains("no errors found");
        let complaints = self.complaints();
        verdict.clean &= complaints.is_empty();
        verdict.output.push_str(&complaints.join("\n"));
        verdict
    }

    /// Unmounts and detaches, and gives what the kernel complained about.
    ///
    /// # Errors
    /// It is still in use.
    pub fn unmount(mut self) -> io::Result<Vec<String>> {
        self.unmount_device()?;
        Ok(self.complaints())
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount_device() {
            eprintln!("{}: {error}", self.point.path().display());
        }
        let detached = run("losetup", ["--detach".as_ref(), self.device.as_os_str()]);
        if !detached.clean {
            eprintln!("{}: {}", self.device.display(), detached.output);
        }
    }
}
