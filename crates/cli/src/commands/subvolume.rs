//! `butterfs subvolume`: subvolumes and snapshots.

mod create;
mod default;
mod delete;
mod diff;
mod du;
mod find_new;
mod history;
mod list;
mod show;
pub mod site;

pub use diff::Diff;
pub use du::Du;
pub use find_new::FindNew;
pub use history::History;
pub use list::List;
pub use show::Show;

use crate::fail::{Context, Done, Failure};
use crate::place::Place;
use crate::service::Asked;
use butterfs::{TreeId, UuidBytes, Volume};
use clap::{Args, Subcommand};
use std::os::unix::ffi::OsStrExt;
use uuid::Uuid;

/// Makes, deletes and looks into subvolumes and snapshots.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs subvolume create disk.img:/home
  butterfs subvolume snapshot -r mnt/home mnt/snapshots/monday
  butterfs subvolume list --tree disk.img
  butterfs subvolume show mnt/home
  butterfs subvolume du disk.img --if-deleted snapshots/monday,snapshots/tuesday
  butterfs subvolume diff disk.img:/snapshots/monday disk.img:/home
  butterfs subvolume history disk.img:/home/notes.txt")]
pub struct Subvolume {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Create(create::Create),
    Snapshot(create::Snapshot),
    Delete(delete::Delete),
    Sync(delete::Sync),
    GetDefault(default::GetDefault),
    SetDefault(default::SetDefault),
    List(List),
    Show(Show),
    FindNew(FindNew),
    Du(Du),
    Diff(Diff),
    History(History),
}

impl Subvolume {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Create(create) => create.run(),
            What::Snapshot(snapshot) => snapshot.run(),
            What::Delete(delete) => delete.run(),
            What::Sync(sync) => sync.run(),
            What::GetDefault(get) => get.run(),
            What::SetDefault(set) => set.run(),
            What::List(list) => Asked::List(list).run(),
            What::Show(show) => Asked::Show(show).run(),
            What::FindNew(find_new) => Asked::FindNew(find_new).run(),
            What::Du(du) => Asked::Du(du).run(),
            What::Diff(diff) => Asked::Diff(diff).run(),
            What::History(history) => Asked::History(history).run(),
        }
    }
}

/// Opens the volume of a place to look into it.
fn open(place: &Place, subvolid: Option<u64>) -> Result<Volume, Failure> {
    place.open_read_only(subvolid)
}

/// The subvolume whose root is at a place.
fn subvolume_at(volume: &Volume, place: &Place) -> Result<TreeId, Failure> {
    volume
        .subvolume_at(place.path.as_bytes())
        .context(place.volume.display())
}

/// A UUID; `None` where there is none.
fn uuid(bytes: UuidBytes) -> Option<String> {
    (bytes != [0; 16]).then(|| Uuid::from_bytes(bytes).to_string())
}

/// `YYYY-MM-DD hh:mm:ss` in UTC.
fn moment(seconds: i64) -> String {
    let date = super::list::date(seconds);
    format!("{date}:{:02}", seconds.rem_euclid(60))
}

/// A path for people and JSON.
fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
