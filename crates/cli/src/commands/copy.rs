//! `butterfs copy`: between the host and a volume that is not mounted.
//!
//! Owns the arguments and what source and destination mean; the two
//! directions are in `into` and `out`. Kept: type, mode, owner, times to the
//! nanosecond, extended attributes, ACLs, hard links, holes, device numbers.

mod host;
mod into;
mod out;
mod tally;

use crate::fail::{Context, Done, fail};
use crate::place::Place;
use butterfs::{MountOptions, Subvolume, Volume};
use clap::Args;
use indicatif::HumanBytes;
use std::ffi::OsString;
use tally::Tally;

/// Copies files and directories into or out of a volume, with all below them
/// and all metadata.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs copy -o compress=zstd ~/photos disk.img:/
  butterfs copy disk.img:/etc disk.img:/home /tmp/rescued

An existing directory as destination gets the sources put into it. Directories
are merged, files replaced. A file has its name when it is whole: where copying
ends early, also by Ctrl-C, each file is there whole, or not at all, or as it
was.")]
pub struct Copy {
    /// Mount options for the volume, such as compress=zstd.
    #[arg(short, long, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Subvolume id to start from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    /// No progress.
    #[arg(short, long)]
    quiet: bool,
    /// Sources and then the destination; one side is VOLUME:/path.
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... DESTINATION")]
    words: Vec<OsString>,
}

impl Copy {
    /// Runs it.
    pub fn run(self) -> Done {
        let Some((destination, sources)) = self.words.split_last() else {
            return fail("sources and a destination are needed");
        };
        let places: Vec<Option<Place>> = sources.iter().map(Place::parse).collect();
        let mut tally = Tally::new(self.quiet)?;
        match Place::parse(destination) {
            Some(place) => {
                if places.iter().any(Option::is_some) {
                    return fail("copying from volume to volume is not possible yet");
                }
                let volume = self.open(&place, MountOptions::default())?;
                let copied = into::copy(&volume, sources, &place, &mut tally);
                let closed = volume.close().context(place.volume.display());
                // Without a close nothing of it is there.
                closed.and_then(|()| tally.ended(copied))?;
            }
            None => {
                let mut read_only = MountOptions::default();
                read_only.apply("ro,norecovery")?;
                let Some(places) = places.into_iter().collect::<Option<Vec<Place>>>() else {
                    return fail("neither side is VOLUME:/path; see `butterfs copy --help`");
                };
                for place in &places {
                    let volume = self.open(place, read_only.clone())?;
                    let copied = out::copy(&volume, place, destination, places.len(), &mut tally);
                    tally.ended(copied)?;
                }
            }
        }
        tally.bar.finish_and_clear();
        if !self.quiet {
            say!("{} files, {}", tally.files, HumanBytes(tally.bytes));
        }
        if tally.left_out > 0 {
            note!(
                "butterfs: {} owners or attributes could not be kept by the host; \
                 run as root to keep owners",
                tally.left_out
            );
        }
        Ok(())
    }

    fn open(
        &self,
        place: &Place,
        mut options: MountOptions,
    ) -> Result<Volume, crate::fail::Failure> {
        for list in &self.options {
            options.apply(list)?;
        }
        if let Some(id) = self.subvolid {
            options.subvolume = Subvolume::Id(id);
        }
        Volume::open(&place.volume, options.open_options()).context(place.volume.display())
    }
}
