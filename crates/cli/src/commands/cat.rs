//! `butterfs cat`.

use crate::fail::{Done, Failure, fail};
use crate::output;
use crate::part::PartArguments;
use crate::place::Place;
use clap::Args;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

/// Writes files of a volume that is not mounted to standard output.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs cat disk.img:/etc/fstab")]
pub struct Cat {
    /// Subvolume id to start from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    #[command(flatten)]
    part: PartArguments,
    /// VOLUME:/path, one or more.
    #[arg(required = true)]
    places: Vec<Place>,
}

impl Cat {
    /// Runs it.
    pub fn run(self) -> Done {
        let mut out = output::own();
        for place in &self.places {
            let volume = place.open_part(self.subvolid, self.part.part())?;
            // The slash makes a link at the end be followed, also to a file.
            let id = volume.resolve(&[place.path.as_bytes(), b"/"].concat())?;
            let inode = volume.files().inode(id)?;
            let mode = volume.files().attributes_of(&inode)?.mode;
            if mode & libc::S_IFMT != libc::S_IFREG {
                return fail(format!("{place}: not a regular file"));
            }
            volume.read_chunks::<Failure>(&inode, &mut |chunk| Ok(out.write_all(chunk)?))?;
        }
        Ok(out.flush()?)
    }
}
