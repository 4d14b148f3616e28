//! `butterfs copy`: between the host and a volume, mounted or not.
//!
//! Owns the arguments and what source and destination mean. The two directions
//! are in `into` and `out`. Kept: type, mode, owner, times to the nanosecond,
//! extended attributes, ACLs, hard links, holes, device numbers.

mod facts;
mod host;
mod into;
mod out;
mod sent;
mod tally;

use crate::changes::{Start, directory, last_name, name_of, own, verify_is_name_of_file};
use crate::fail::{Context, Done, fail};
use crate::files_bar::FilesBar;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::on_mount::{self, Ending};
use crate::part::PartArguments;
use crate::place::Place;
use crate::reading;
use butterfs::{Access, MountOptions, Part, Subvolume, Volume};
use clap::Args;
use indicatif::HumanBytes;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

pub use into::Filled;
pub use sent::Order;
pub use tally::Tally;

/// Copies files and directories into or out of a volume, or onto a mount, with all
/// below them and all metadata.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs copy -o compress=zstd ~/photos disk.img:/
  butterfs copy disk.img:/etc disk.img:/home /tmp/rescued
  butterfs cp disk.img:/etc disk.img:/etc.before      within a volume: shares its data
  butterfs copy ~/photos /mnt                         onto a mount, by its server

An existing directory as destination gets the sources put into it; of DIR/. it
gets what is in DIR. Directories are merged, files replaced. Within a volume the
name of a copy must be new. A file has its name when it is whole: where copying
ends early, also by Ctrl-C, each file is there whole, or not at all, or as it
was. What cannot be copied is named and left out, all else is copied, and the exit
code is 1: what you may not read, what a damaged volume has lost, device nodes where
you are not root, attributes that are too large for the other side, the file that
holds the volume. With -o ro,rescue=all, files with wrong bytes are copied and
named, and the exit code is 1, too.")]
pub struct Copy {
    /// Mount options for the volume, such as compress=zstd.
    #[arg(short, long, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Subvolume id to start from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    #[command(flatten)]
    part: PartArguments,
    /// No progress.
    #[arg(short, long)]
    quiet: bool,
    /// Files belong to whoever copies them.
    #[arg(long)]
    no_owner: bool,
    /// Accepted for cp(1) habits: directories and metadata are always copied
    /// completely.
    #[arg(short = 'a', long, visible_short_aliases = ['r', 'R', 'p'])]
    archive: bool,
    /// Sources and then the destination; one side is VOLUME:/path, or the
    /// destination is on a mount.
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... DESTINATION")]
    words: Vec<OsString>,
}

impl Copy {
    /// Runs it.
    pub fn run(self) -> Done {
        let Some((destination, sources)) = self.words.split_last() else {
            return fail("sources and a destination are needed; see `butterfs copy --help`");
        };
        let places: Vec<Option<Place>> = sources.iter().map(Place::parse).collect();
        if places.iter().all(Option::is_none) && self.is_plain() {
            let mut place = Place {
                volume: destination.into(),
                path: "/".into(),
            };
            if let Some(found) = on_mount::find(vec![(&mut place, Ending::Destination)])? {
                return sent::copy(sources, place, found, (self.no_owner, self.quiet));
            }
        }
        let mut tally = Tally::new(self.quiet, OnUndone::GoesOn)?;
        match Place::parse(destination) {
            Some(place) => {
                if places.iter().any(Option::is_some) {
                    return self.within(places, place);
                }
                let volume = self.open(&place, MountOptions::default())?;
                let owner = self.no_owner.then(own);
                tally.bar.count_host(sources);
                let copied = into::copy(&volume, sources, &place, owner, &mut tally);
                let closed = volume.close().context(place.volume.display());
                // Without a close, none of it is on the device.
                closed.and_then(|()| tally.ended(copied))?;
            }
            None => {
                let mut read_only = MountOptions::default();
                read_only.apply("ro")?;
                let Some(places) = places.into_iter().collect::<Option<Vec<Place>>>() else {
                    return fail("neither side is VOLUME:/path; see `butterfs copy --help`");
                };
                for place in &places {
                    let volume = self.open(place, read_only.clone())?;
                    let work = out::Source {
                        volume: &volume,
                        place,
                        keeps_owner: !self.no_owner,
                    };
                    let copied = work.copy(destination, places.len(), &mut tally);
                    tally.ended(copied)?;
                }
            }
        }
        tally.bar.end();
        if !self.quiet {
            say!("{} files, {}", tally.files, HumanBytes(tally.bytes));
        }
        if tally.refused > 0 {
            note!(
                "butterfs: {} owners or attributes could not be kept by the host; run as root to \
                 keep owners, or say --no-owner",
                tally.refused
            );
        }
        tally.left_out.ended("copied")
    }

    /// Whether no option is for a volume that the command opens.
    fn is_plain(&self) -> bool {
        let part = self.part.part();
        self.options.is_empty() && self.subvolid.is_none() && part == Part::Whole
    }

    /// Copies within a volume. The copies share their data.
    fn within(&self, sources: Vec<Option<Place>>, destination: Place) -> Done {
        let Some(mut places) = sources.into_iter().collect::<Option<Vec<Place>>>() else {
            return fail("sources are in the volume or on the host, not both");
        };
        let count = places.len();
        if places
            .iter()
            .any(|place| place.volume != destination.volume)
        {
            return fail(
                "volume to volume goes by way of an archive: butterfs tar create A:/path | \
                 butterfs tar extract B:/directory",
            );
        }
        places.push(destination);
        let start = Start::new(self.subvolid, self.part);
        start.change(&places, |volume| {
            let (destination, sources) = (&places[count], &places[..count]);
            let into = directory(volume, destination)?;
            if into.is_none() && count > 1 {
                return fail(format!("{destination} is no directory"));
            }
            let left_out = LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true));
            for source in sources {
                let Some(id) = left_out.entry(
                    source,
                    volume.resolve(source.path.as_bytes()).map_err(Undone::from),
                )?
                else {
                    continue;
                };
                let (parent, name) = match into {
                    Some(parent) => (parent, last_name(source)?),
                    None => {
                        let of = volume.files().attributes(id).context(source)?;
                        if !of.is_directory() {
                            verify_is_name_of_file(destination)?;
                        }
                        name_of(volume, destination)?
                    }
                };
                let from = (id, parent, name);
                volume.clone_tree_where_possible(from, &mut |_| {}, &mut |error| {
                    left_out.undone(Undone::from(error).at(source))
                })?;
            }
            left_out.ended("copied")
        })
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
        options.part = self.part.part();
        let path = &place.volume;
        match options.access {
            Access::ReadOnly => reading::open_with_log(path, options.open_options()),
            Access::ReadWrite => Volume::open(path, options.open_options()).context(path.display()),
        }
    }
}
