//! The end of a conversion: the saved image of the old file system goes, and
//! the files may be compressed.

use crate::fail::{Context, Done, Failure};
use crate::patient::shell;
use crate::sizes::human;
use butterfs::{Error, Method, OpenOptions, Usage, Volume};
use std::path::Path;

/// With less than this outside of chunks, metadata can hardly grow.
const ROOM_MIN: u64 = 256 << 20;

/// Deletes the saved image in a converted volume, waits until its space is
/// free, and compresses all files if `compression` is given. There is no way
/// back then.
pub(super) fn finish(path: &Path, compression: Option<Method>, is_quiet: bool) -> Done {
    let volume = Volume::open(path, OpenOptions::default()).context(path.display())?;
    let done = in_volume(&volume, path, compression);
    volume.close().context(path.display())?;
    let (before, after) = done?;
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
fn in_volume(
    volume: &Volume,
    path: &Path,
    compression: Option<Method>,
) -> Result<(Usage, Usage), Failure> {
    let before = volume.usage();
    let finished = volume.finish_conversion(compression, &mut |file| {
        let name = String::from_utf8_lossy(file);
        note!("{name}: is immutable or append-only, and stays as it is");
    });
    match finished {
        Ok(()) => Ok((before, volume.usage())),
        // An earlier run may have been cut short when the image was deleted.
        Err(Error::NoSubvolume(name)) => Err(Failure(format!(
            "{}: it has no subvolume {name}; files are compressed by `butterfs filesystem \
             defragment -r -c zstd {}:/`",
            path.display(),
            shell(path)
        ))),
        Err(error) => Err(error).context(path.display()),
    }
}
