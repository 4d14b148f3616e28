//! The end of a conversion: the saved image of the old file system goes, and
//! the files may be compressed.

use crate::fail::{Context, Done, Failure, fail};
use crate::patient::shell;
use crate::sizes::human;
use butterfs::{
    Cleaning, Defragment, FsError, InodeId, Method, OpenOptions, Recompress, Sharing, Usage,
    Volume, Walk,
};
use std::collections::HashSet;
use std::path::Path;

/// Where a conversion keeps the old file system.
const SAVED: &str = "/ext2_saved";
/// With less than this outside of chunks, metadata can hardly grow.
const ROOM_MIN: u64 = 256 << 20;

/// Deletes the saved image in a converted volume, waits until its space is
/// free, and compresses all files if `compression` is given. There is no way
/// back then.
pub(super) fn finish(path: &Path, compression: Option<Method>, is_quiet: bool) -> Done {
    let volume = Volume::open(path, OpenOptions::default()).context(path.display())?;
    let done = in_volume(&volume, compression);
    volume.close().context(path.display())?;
    let (before, after) = done.map_err(|failure| failure.at(path.display()))?;
    if is_quiet {
        return Ok(());
    }
    say!("The saved image is deleted, and there is no way back.");
    say!(
        "In use: {} before, {} now. Not in any chunk: {}.",
        human(before.used()),
        human(after.used()),
        human(after.unallocated())
    );
    if after.unallocated() < ROOM_MIN && after.data_free > ROOM_MIN {
        say!(
            "Metadata can hardly grow. This makes room: butterfs balance start -dusage=70 {}",
            shell(path)
        );
    }
    Ok(())
}

/// How the space was used before and is afterwards.
fn in_volume(volume: &Volume, compression: Option<Method>) -> Result<(Usage, Usage), Failure> {
    let before = volume.usage();
    let saved = volume.attributes(SAVED);
    if !saved.is_ok_and(|found| found.is_directory()) {
        return fail(format!("it has no subvolume {}", &SAVED[1..]));
    }
    volume.delete_subvolume(SAVED).context(SAVED)?;
    volume.sync()?;
    loop {
        match volume.files().clean()? {
            Cleaning::Idle => break,
            Cleaning::Stuck(tree) => {
                return fail(format!(
                    "subvolume {tree} cannot be freed; run `butterfs check`"
                ));
            }
            Cleaning::Step(_) | Cleaning::Freed(_) => {}
        }
    }
    if let Some(method) = compression {
        compress(volume, method)?;
    }
    volume.sync()?;
    Ok((before, volume.usage()))
}

/// Rewrites all files of the top-level subvolume, compressed where that makes
/// them smaller.
fn compress(volume: &Volume, method: Method) -> Done {
    let wanted = Defragment {
        compress: Recompress::With(method.algorithm, method.level),
        sharing: Sharing::Keep,
        ..Defragment::default()
    };
    let files = volume.files();
    let mut seen: HashSet<InodeId> = HashSet::new();
    let mut found = Vec::new();
    let root = volume.resolve(b"/")?;
    volume.walk::<butterfs::Error>(root, &mut |entry| {
        let attributes = &entry.attributes;
        let is_file = attributes.mode & libc::S_IFMT == libc::S_IFREG;
        if is_file && seen.insert(attributes.id) {
            found.push((entry.path.clone(), attributes.id));
        }
        Ok(Walk::Enter)
    })?;
    for (path, id) in found {
        let name = String::from_utf8_lossy(&path).into_owned();
        let inode = files.inode(id).context(&name)?;
        match files.defragment(&inode, &wanted) {
            Ok(_) => {}
            Err(FsError::NotPermitted(_)) => {
                note!("{name}: is immutable or append-only, and stays as it is");
            }
            Err(error) => return Err(error).context(&name),
        }
    }
    Ok(())
}
