//! A volume mounted over FUSE by the program `butterfs`.

use crate::capability::{Capability, skip};
use crate::judge::unmount_patiently;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The program: `BUTTERFS` in the environment, or else what was built beside
/// the running test. Says in one line that a test is skipped if there is none,
/// or if nothing can be mounted.
#[must_use]
pub fn butterfs_program() -> Option<PathBuf> {
    if !Capability::all_here(&[Capability::Fuse]) {
        return None;
    }
    if let Some(path) = std::env::var_os("BUTTERFS") {
        return Some(path.into());
    }
    let test = std::env::current_exe().ok()?;
    // <target>/<profile>/deps/<test>
    let target = test.ancestors().nth(3)?;
    let built = ["release", "debug"].map(|profile| target.join(profile).join("butterfs"));
    let found = built.into_iter().find(|path| path.exists());
    if found.is_none() {
        skip("the program butterfs is not built; BUTTERFS names another place");
    }
    found
}

/// A mount; it ends when it is dropped.
#[derive(Debug)]
pub struct FuseMount {
    program: PathBuf,
    point: TempDir,
    is_mounted: bool,
}

impl FuseMount {
    /// Mounts `image` with `options` (as `-o` takes them, may be empty).
    ///
    /// # Errors
    /// What the program printed.
    pub fn mount(program: &Path, image: &Path, options: &str) -> io::Result<Self> {
        let mut mount = Self {
            program: program.to_owned(),
            point: tempfile::tempdir()?,
            is_mounted: false,
        };
        let mut command = Command::new(program);
        command.arg("mount");
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        command.arg(image).arg(mount.point.path());
        finish(&mut command)?;
        mount.is_mounted = true;
        Ok(mount)
    }

    /// Root of the mounted tree.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// Unmounts. Everything is on the device then.
    ///
    /// # Errors
    /// It is still in use.
    pub fn unmount(mut self) -> io::Result<()> {
        unmount_patiently(|| {
            let mut command = Command::new(&self.program);
            finish(command.arg("umount").arg(self.point.path()))
        })?;
        self.is_mounted = false;
        Ok(())
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.is_mounted {
            let mut command = Command::new(&self.program);
            command.args(["umount", "--lazy"]).arg(self.point.path());
            if let Err(error) = finish(&mut command) {
                eprintln!("{}: {error}", self.point.path().display());
            }
        }
    }
}

fn finish(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(said))
}
