//! `butterfs mount`.
//!
//! Owns the background: the command starts itself again with `-f` and
//! `--ready`, waits for the line that says that the mount is live, and ends.

use super::served;
use crate::fail::{Context, Done, Failure, fail};
use crate::log;
use crate::patient::guided;
use butterfs::{Access, MountOptions, OPTIONS, OptionError};
use butterfs_server::{Mounted, Remount, ServerError};
use clap::Args;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the server says when the mount is live.
const READY: &str = "ready\n";

/// Mounts a volume and returns when the mount is live.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs mount disk.img /mnt
  butterfs mount -o ro,subvol=/home disk.img /mnt
  butterfs mount -o remount,ro /mnt                     change the mount's flags; root only
  butterfs mount -f -o compress=zstd:3 disk.img /mnt    serve in the foreground

`butterfs mount -o help` lists the mount options.
Exit codes: 0 mounted, 1 a mistake in the arguments, 32 failed.")]
pub struct Mount {
    /// Serve in the foreground; logs to standard error.
    #[arg(short, long)]
    foreground: bool,
    /// Mount options, separated by commas.
    #[arg(short, value_name = "OPTIONS", value_delimiter = None)]
    options: Vec<String>,
    /// Type, as mount(8) passes it; ignored.
    #[arg(short = 't', hide = true)]
    kind: Option<String>,
    /// Accepted from mount(8).
    #[arg(short, hide = true)]
    sloppy: bool,
    /// Accepted from mount(8).
    #[arg(short, hide = true)]
    verbose: bool,
    /// Accepted from mount(8).
    #[arg(short, hide = true)]
    no_mtab: bool,
    /// Do everything but the mount (`-f` of mount(8)).
    #[arg(long, hide = true)]
    fake: bool,
    /// Say on standard output when the mount is live (used by itself).
    #[arg(long, hide = true)]
    ready: bool,
    /// File or block device that holds the volume.
    #[arg(required_unless_present = "options")]
    source: Option<PathBuf>,
    /// Directory to mount at.
    #[arg(required_unless_present = "options")]
    mountpoint: Option<PathBuf>,
}

impl Mount {
    /// Mounts the devices of an overlay that is named in their place.
    fn take_overlay(&mut self) -> Done {
        let Some(overlay) = self.source.take_if(|source| butterfs::is_overlay(source)) else {
            return Ok(());
        };
        let words = || self.options.iter().flat_map(|list| list.split(','));
        if words().any(|word| word.starts_with("overlay=")) {
            return fail("the source is an overlay itself; leave out overlay=");
        }
        let named = butterfs::devices_of_overlay(&overlay).context(overlay.display())?;
        let mut named = named.into_iter();
        self.source = named.next();
        let overlay = std::fs::canonicalize(&overlay).context(overlay.display())?;
        self.options.push(format!("overlay={}", overlay.display()));
        let others = named.map(|device| format!("device={}", device.display()));
        self.options.extend(others);
        Ok(())
    }

    /// Runs it.
    pub fn run(mut self) -> Done {
        self.take_overlay()?;
        if self.options.iter().any(|options| options == "help") {
            return list_options();
        }
        let words = || self.options.iter().flat_map(|list| list.split(','));
        if words().any(|word| word == "remount") {
            return self.remount(words());
        }
        let mut options = MountOptions::default();
        for list in &self.options {
            options.apply(list).map_err(with_help)?;
        }
        let (Some(source), Some(mountpoint)) = (&self.source, &self.mountpoint) else {
            return fail("a source and a mountpoint are needed; see `butterfs mount --help`");
        };
        let source = std::fs::canonicalize(source).context(source.display())?;
        let protected = options.access == Access::ReadWrite && is_write_protected(&source);
        if protected {
            // As mount(8) does.
            options.access = Access::ReadOnly;
            if !self.ready {
                let shown = source.display();
                note!("butterfs: warning: {shown} is write-protected, mounted read-only");
            }
        }
        // A descriptor on which somebody else mounted is passed on as it is
        // written.
        let mountpoint = if mountpoint.starts_with("/dev/fd") {
            mountpoint.clone()
        } else {
            std::fs::canonicalize(mountpoint).context(mountpoint.display())?
        };
        if self.fake {
            return Ok(());
        }
        if !self.foreground {
            return self.in_background(&source, &mountpoint);
        }
        butterfs_device::return_large_allocations();
        if self.ready {
            // A session of its own, so that the server does not get the
            // terminal's signals.
            let _ = rustix::process::setsid();
            let target = match &options.logfile {
                Some(path) => log::Target::File(path),
                None => log::Target::Syslog,
            };
            // The process that started this one reads it.
            log::start(target).inspect_err(|failure| {
                let _ = std::io::stdout().write_all(failure.0.as_bytes());
            })?;
        } else {
            log::start(log::Target::Terminal)?;
        }
        let say_ready = self.ready;
        let served = serve(&source, &mountpoint, &options, || {
            if say_ready {
                let _ = rustix::process::chdir("/");
                let mut out = std::io::stdout();
                let told = out.write_all(READY.as_bytes()).and_then(|()| out.flush());
                // Whoever ended that process wants no mount.
                told.context("the process that asked for the mount is gone")?;
            }
            Ok(())
        });
        if let (true, Err(failure)) = (say_ready, &served) {
            // Until the mount is live, the process that started this one reads
            // it. After that, nobody does.
            let _ = std::io::stdout().write_all(failure.0.as_bytes());
            tracing::error!("{}", failure.0);
        }
        served
    }

    /// Changes the flags of a mount.
    fn remount<'w>(&self, words: impl Iterator<Item = &'w str>) -> Done {
        // What mount(8) reads from the table of mounts and passes along.
        const OF_THE_KERNEL: [&str; 6] = [
            "user_id",
            "group_id",
            "blksize",
            "max_read",
            "default_permissions",
            "allow_other",
        ];
        let name = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
        let is_asked =
            |word: &&str| *word != "remount" && !OF_THE_KERNEL.contains(&&name(word)[..]);
        let words: Vec<&str> = words.filter(is_asked).collect();
        let mut known = MountOptions::default();
        for word in &words {
            known.apply(word).map_err(with_help)?;
        }
        let Some(mountpoint) = self.mountpoint.as_ref().or(self.source.as_ref()) else {
            return fail("a mountpoint is needed");
        };
        let remount = Remount::plan(mountpoint, &words)?;
        if !rustix::process::geteuid().is_root() {
            return fail(format!(
                "{}: only root can remount; otherwise unmount it, and mount it again",
                mountpoint.display()
            ));
        }
        for word in remount.ignored() {
            note!("butterfs: {word} is an option of the volume, which stays as it was mounted");
        }
        Ok(remount.apply()?)
    }

    fn in_background(&self, source: &Path, mountpoint: &Path) -> Done {
        let mut command = Command::new(std::env::current_exe().context("own path")?);
        command.args(["mount", "--foreground", "--ready"]);
        for list in &self.options {
            command.arg("-o").arg(list);
        }
        let mut server = command
            .arg("--")
            .arg(source)
            .arg(mountpoint)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("the server cannot be started")?;
        let Some(output) = server.stdout.take() else {
            return fail("internal error, please report it: the server has no output");
        };
        let mut output = BufReader::new(output);
        let mut said = String::new();
        output.read_line(&mut said).context("the server")?;
        if said == READY {
            crate::hint::tell_of_run();
            return Ok(());
        }
        output.read_to_string(&mut said).context("the server")?;
        let status = server.wait().context("the server")?;
        if said.is_empty() {
            return fail(format!("the server ended at once ({status})"));
        }
        fail(said)
    }
}

/// Mounts, reports that the mount is live, and serves it until the end. If that
/// cannot be reported, the mount goes.
fn serve(
    source: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    live: impl FnOnce() -> Done,
) -> Done {
    let mounted = butterfs_server::mount(source, mountpoint, options, served::runner());
    let mounted = mounted.map_err(|error| match &error {
        ServerError::Open { error: cause, .. } => guided(Failure(error.to_string()), cause, source),
        _ => error.into(),
    });
    match mounted? {
        Mounted::Joined => live()?,
        Mounted::Served(mut serving) => {
            serving.end_on_signals()?;
            if let Err(failure) = live() {
                serving.unmount()?;
                serving.wait()?;
                return Err(failure);
            }
            if options.access == Access::ReadWrite && !options.skip_balance {
                super::balance::go_on(serving.volume());
            }
            serving.wait()?;
        }
    }
    Ok(())
}

/// Whether the source can be read and not written: a write-protected device, a
/// file on a write-protected file system, or a file whose permissions say so.
fn is_write_protected(source: &Path) -> bool {
    let open = |write| {
        std::fs::File::options()
            .read(true)
            .write(write)
            .open(source)
    };
    let refused = match open(true) {
        // The kernel lets root open such a device for writing.
        Ok(file) => return is_read_only_device(&file),
        Err(error) => error.raw_os_error(),
    };
    matches!(refused, Some(libc::EROFS | libc::EACCES | libc::EPERM)) && open(false).is_ok()
}

/// Whether a file is a block device that accepts no writes, according to the
/// kernel.
fn is_read_only_device(file: &std::fs::File) -> bool {
    let Some(facts) = file
        .metadata()
        .ok()
        .filter(|f| f.file_type().is_block_device())
    else {
        return false;
    };
    let (major, minor) = (
        rustix::fs::major(facts.rdev()),
        rustix::fs::minor(facts.rdev()),
    );
    let said = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    said.is_ok_and(|said| said.trim() == "1")
}

/// A mistake in `-o`, with the way to what there is.
fn with_help(error: OptionError) -> Failure {
    match &error {
        OptionError::Unknown { nearest: None, .. } => {
            Failure(format!("{error}; `butterfs mount -o help` lists them"))
        }
        _ => error.into(),
    }
}

fn list_options() -> Done {
    for option in OPTIONS {
        let name = format!("{}{}", option.name, option.value);
        say!("  {name:<32} {}", option.help);
    }
    Ok(())
}
