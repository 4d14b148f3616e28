//! Reflinks on mounts.
//!
//! A kernel file system is asked with FICLONERANGE. That request never reaches
//! a FUSE server. So on a mount of ButterFS, ranges are copied with
//! copy_file_range, which the server answers by sharing. Then the server is
//! asked whether they are shared, so that no copy passes for a reflink.

use super::how::{How, working_name};
use crate::commands::dedupe::{Span, dedupe_open};
use crate::commands::subvolume::site::unseen;
use crate::fail::{Context, Done, Failure, fail};
use butterfs::copy_host_tree;
use butterfs_kernel::butterfs_mount as own;
use butterfs_kernel::{self as btrfs, CloneRequest, Deduped};
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
    let size = |file: &File| rustix::fs::fstat(file).map(|facts| facts.st_size.cast_unsigned());
    let left = size(source)?.checked_sub(span.from).ok_or(Errno::INVAL)?;
    let length = if span.length == 0 { left } else { span.length };
    let span = Span { length, ..span };
    if !own::is_butterfs(target.as_fd()) {
        let request = CloneRequest {
            source: source.as_fd(),
            source_offset: span.from,
            length,
            offset: span.to,
        };
        btrfs::clone_range(target.as_fd(), request)?;
        return Ok(length);
    }
    let sector = rustix::fs::fstatfs(target)?.f_bsize.cast_unsigned().max(1);
    let aligned = span.from.is_multiple_of(sector) && span.to.is_multiple_of(sector);
    let ends_both = length == left && span.to.saturating_add(length) >= size(target)?;
    if length > left || !aligned || !(ends_both || length.is_multiple_of(sector)) {
        return Err(Errno::INVAL);
    }
    source.sync_data().map_err(|_| Errno::IO)?;
    // Checks whether they can share at all, before anything changes.
    let nothing = Span { length: 0, ..span };
    dedupe_open(source, target, nothing)?;
    let mut done = 0;
    while done < length {
        let (mut from, mut to) = (span.from + done, span.to + done);
        let room = usize::try_from(length - done).unwrap_or(usize::MAX);
        let part =
            rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), room)?;
        if part == 0 {
            return Err(Errno::INVAL);
        }
        done += part as u64;
    }
    // Inline data, of less than a sector, are never shared.
    match dedupe_open(source, target, span)? {
        Deduped::Shared(bytes) if bytes == length || length <= sector => Ok(length),
        Deduped::Shared(_) | Deduped::Differs => Err(Errno::AGAIN),
    }
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
