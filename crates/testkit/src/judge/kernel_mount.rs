//! A volume mounted by the kernel.

use super::{KernelLog, Verdict, run};
use std::ffi::OsStr;
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

/// An image as a loop device, which is detached when this is dropped.
#[derive(Debug)]
pub struct Loop(PathBuf);

impl Loop {
    /// Attaches `image`.
    ///
    /// # Errors
    /// What losetup printed.
    pub fn attach(image: &Path, access: Access) -> io::Result<Self> {
        let mut args = vec!["--find", "--show"];
        if access == Access::ReadOnly {
            args.push("--read-only");
        }
        args.push(image.to_str().ok_or(io::ErrorKind::InvalidFilename)?);
        let attached = run("losetup", args);
        match attached.clean {
            true => Ok(Self(PathBuf::from(attached.output.trim()))),
            false => Err(io::Error::other(attached.output)),
        }
    }

    /// The device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = run("losetup", ["--detach".as_ref(), self.0.as_os_str()]);
        if !detached.clean {
            eprintln!("{}: {}", self.0.display(), detached.output);
        }
    }
}

/// A mount of images through loop devices. Both end when this is dropped.
#[derive(Debug)]
pub struct KernelMount {
    point: TempDir,
    devices: Vec<Loop>,
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
        Self::mount_all(&[image.to_owned()], access, options)
    }

    /// Mounts the volume on several images.
    ///
    /// # Errors
    /// As [`KernelMount::mount`].
    pub fn mount_all(images: &[PathBuf], access: Access, options: &str) -> io::Result<Self> {
        let mut all_options = match access {
            Access::ReadOnly => "ro".to_owned(),
            Access::ReadWrite => "rw".to_owned(),
        };
        if !options.is_empty() {
            all_options = format!("{all_options},{options}");
        }
        let devices = images.iter().map(|image| Loop::attach(image, access));
        let devices: Vec<Loop> = devices.collect::<io::Result<_>>()?;
        if devices.len() > 1 {
            for device in &devices {
                all_options = format!("{all_options},device={}", device.path().display());
            }
        }
        let mut mount = Self {
            point: tempfile::tempdir()?,
            devices,
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
        args.extend([self.device().as_os_str(), self.point.path().as_os_str()]);
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

    /// Its loop device; if there are several, the first.
    #[must_use]
    pub fn device(&self) -> &Path {
        self.devices[0].path()
    }

    /// Warnings and errors that the kernel printed about it since the mount or
    /// the last call.
    pub fn complaints(&mut self) -> Vec<String> {
        let names = self.devices.iter().map(|device| device.path());
        let names: Vec<String> = names
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        self.log.btrfs_complaints(&names)
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

    /// Unmounts and detaches. Returns what the kernel complained about.
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
        if self.devices.len() > 1 {
            for device in &self.devices {
                // Otherwise the kernel would look for it at the next mount of
                // its volume.
                let args = ["device", "scan", "--forget"].map(OsStr::new);
                let _ = run("btrfs", args.into_iter().chain([device.path().as_os_str()]));
            }
        }
    }
}
