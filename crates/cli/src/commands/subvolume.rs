//! `butterfs subvolume`: subvolumes and snapshots.

mod create;
mod default;
mod delete;
mod diff;
mod du;
mod find_new;
mod history;
mod list;
pub mod mounted;
mod show;
pub mod shown;
pub mod site;

pub use diff::Diff;
pub use du::Du;
pub use find_new::FindNew;
pub use history::History;
pub use list::{List, tree as draw};
pub use show::Show;

use crate::fail::Done;
use crate::service::OnVolume;
use clap::{Args, Subcommand};

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
    #[command(disable_help_flag = true)]
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
            What::List(list) => list.run(),
            What::Show(show) => show.run(),
            What::FindNew(find_new) => find_new.run(),
            What::Du(du) => du.run(),
            What::Diff(diff) => diff.run(),
            What::History(history) => history.run(),
        }
    }
}
