//! Reflinks on mounts.
//!
//! A kernel file system is asked with FICLONERANGE. That request never reaches
//! a FUSE server, so a mount of ButterFS is asked otherwise
//! ([`butterfs_kernel::butterfs_mount::clone_range`]).

use super::how::{How, working_name};
use crate::commands::dedupe::Span;
use crate::commands::subvolume::site::unseen;
use crate::fail::{Context, Done, Failure, fail};
use butterfs::copy_host_tree;
use butterfs_kernel::butterfs_mount as own;
use butterfs_kernel::{self as btrfs, CloneRequest};
use rustix::fs::{IFlags, RenameFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Shares ranges of `source`, or copies it as a whole.
pub fn reflink(wanted: &How, source: &Path, to: &Path) -> Done {
    if !wanted.range.is_empty() {
        let from = crate::host_file::open(source).context(source.display())?;
        let target = File::options().read(true).write(true).open(to);
        let target = target.context(to.display())?;
        for range in &wanted.range {
            let bytes = clone_open(&from, &target, *range)
                .map_err(|error| said(to, error).at(to.display()))?;
            say!("{}: {bytes} bytes shared", to.display());
        }
        return Ok(());
    }
    whole(wanted, source, to)
}

fn whole(wanted: &How, source: &Path, to: &Path) -> Done {
    let facts = std::fs::symlink_metadata(source).context(source.display())?;
    if facts.is_dir() && !wanted.recursive {
        return fail(format!(
            "{}: is a directory; copy it with -r",
            source.display()
        ));
    }
    let to = if to.is_dir() {
        let absolute = std::path::absolute(source).context(source.display())?;
        match absolute.file_name() {
            Some(name) => to.join(name),
            None => return fail(format!("{}: has no name; name the copy", source.display())),
        }
    } else {
        to.to_owned()
    };
    let (Some(name), Some(parent)) = (to.file_name(), to.parent()) else {
        return fail(format!("{}: is no name for a copy", to.display()));
    };
    let parent = match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    };
    if facts.is_dir() {
        let real = |path: &Path| path.canonicalize().context(path.display());
        if real(parent)?.starts_with(real(source)?) {
            return fail("a directory cannot be copied into itself");
        }
    }
    if !wanted.force && std::fs::symlink_metadata(&to).is_ok() {
        return fail(format!(
            "{}: exists already; replace it with -f",
            to.display()
        ));
    }
    let working = parent.join(OsStr::from_bytes(&working_name(name.as_bytes())));
    let mut bytes = 0;
    let mut refused = None;
    let copied = copy_host_tree(source, &working, &mut |from, to, _| {
        bytes += clone_file(from, to).inspect_err(|error| {
            refused = error.raw_os_error();
        })?;
        Ok(())
    });
    let finished = copied.and_then(|done| {
        let flags = match wanted.force {
            true => RenameFlags::empty(),
            false => RenameFlags::NOREPLACE,
        };
        let here = rustix::fs::CWD;
        rustix::fs::renameat_with(here, &working, here, &to, flags)?;
        Ok(done)
    });
    match finished {
        Ok(done) => {
            say!("{} files, {bytes} bytes shared", done.files);
            if done.left_out > 0 {
                note!(
                    "butterfs: {} owners or attributes could not be kept; run as root to keep them",
                    done.left_out
                );
            }
            Ok(())
        }
        Err(error) => {
            // Only what was made here has this name.
            let removed = match facts.is_dir() {
                true => std::fs::remove_dir_all(&working),
                false => std::fs::remove_file(&working),
            };
            drop(removed);
            let why = refused.map(|number| said(parent, Errno::from_raw_os_error(number)).0);
            let why = why.map_or(String::new(), |why| format!(" ({why})"));
            fail(format!("{}: {error}{why}", to.display()))
        }
    }
}

/// Makes a new file that shares all data of another; gives its size.
fn clone_file(from: &Path, to: &Path) -> io::Result<u64> {
    let source = crate::host_file::open(from)?;
    let target = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(to)?;
    // Data with checksums and data without cannot be shared.
    if let (Ok(theirs), Ok(ours)) = (ioctl_getflags(&source), ioctl_getflags(&target))
        && theirs.contains(IFlags::NOCOW) != ours.contains(IFlags::NOCOW)
    {
        ioctl_setflags(&target, ours ^ IFlags::NOCOW)?;
    }
    let whole = Span {
        from: 0,
        length: 0,
        to: 0,
    };
    Ok(clone_open(&source, &target, whole)?)
}

/// Shares a range of two open files; gives how many bytes.
fn clone_open(source: &File, target: &File, span: Span) -> Result<u64, Errno> {
    let request = CloneRequest {
        source: source.as_fd(),
        source_offset: span.from,
        length: span.length,
        offset: span.to,
    };
    if own::is_butterfs(target.as_fd()) {
        return own::clone_range(target.as_fd(), request);
    }
    let size = rustix::fs::fstat(source)?.st_size.cast_unsigned();
    let left = size.checked_sub(span.from).ok_or(Errno::INVAL)?;
    let length = match span.length {
        0 => left,
        length => length,
    };
    btrfs::clone_range(target.as_fd(), CloneRequest { length, ..request })?;
    Ok(length)
}

/// An error of the file system at a path, in words.
fn said(at: &Path, error: Errno) -> Failure {
    if let Some(why) = unseen(at, error) {
        return Failure(why);
    }
    Failure(match error {
        Errno::NOTTY | Errno::OPNOTSUPP => {
            "this file system cannot share data; use cp, or butterfs copy".into()
        }
        Errno::INVAL => {
            "a range begins with a sector, consists of whole ones or ends both files, lies within the source and does not overlap; both files have data checksums, or none (chattr +C)".into()
        }
        Errno::XDEV => "both must be on one volume".into(),
        Errno::AGAIN => "the source changed meanwhile; try again".into(),
        other => io::Error::from(other).to_string(),
    })
}
