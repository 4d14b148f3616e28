//! Commands that the server of a mount runs for other processes.

use super::balance::Order as Balance;
use super::device::members::Order as Members;
use super::explain::Explain;
use super::info::Info;
use super::inspect::list_chunks::ListChunks;
use super::inspect::min_dev_size::MinDevSize;
use super::inspect::resolve::Order as Resolve;
use super::inspect::tree_stats::TreeStats;
use super::replace::Order as Replace;
use super::resize::Resize;
use super::scrub::Start as Scrub;
use super::send::Send;
use super::space::Order as Space;
use super::subvolume::{Diff, Du, FindNew, History, List, Show};
use crate::fail::{Context, Done};
use crate::host;
use crate::service::OnVolume;
use butterfs_server::{Command, Runner};
use serde::Deserialize;
use std::sync::Arc;

/// A command that a server can run, by its [`OnVolume::TAG`].
#[derive(Debug, Deserialize)]
enum Asked {
    Balance(Balance),
    Diff(Diff),
    Du(Du),
    Explain(Explain),
    FindNew(FindNew),
    History(History),
    Info(Info),
    List(List),
    ListChunks(ListChunks),
    Members(Members),
    MinDevSize(MinDevSize),
    Replace(Replace),
    Resize(Resize),
    Resolve(Resolve),
    Scrub(Scrub),
    Send(Send),
    Show(Show),
    Space(Space),
    TreeStats(TreeStats),
}

impl Asked {
    fn run(self) -> Done {
        match self {
            Self::Balance(balance) => balance.run_here(),
            Self::Diff(diff) => diff.run_here(),
            Self::Du(du) => du.run_here(),
            Self::Explain(explain) => explain.run_here(),
            Self::FindNew(find_new) => find_new.run_here(),
            Self::History(history) => history.run_here(),
            Self::Info(info) => info.run_here(),
            Self::List(list) => list.run_here(),
            Self::ListChunks(list) => list.run_here(),
            Self::Members(members) => members.run_here(),
            Self::MinDevSize(size) => size.run_here(),
            Self::Replace(replace) => replace.run_here(),
            Self::Resize(resize) => resize.run_here(),
            Self::Resolve(resolve) => resolve.run_here(),
            Self::Scrub(scrub) => scrub.run_here(),
            Self::Send(send) => send.run_here(),
            Self::Show(show) => show.run_here(),
            Self::Space(space) => space.run_here(),
            Self::TreeStats(stats) => stats.run_here(),
        }
    }
}

/// Runs what is asked for.
pub fn runner() -> Runner {
    Arc::new(|command: Command| {
        let Command {
            request,
            volume,
            answer,
        } = command;
        let asked = serde_json::from_slice(&request).context(
            "another version of ButterFS serves this mount; unmount it and mount it again, or use \
             that version",
        );
        if matches!(asked, Ok(Asked::Send(_))) {
            // The thread that writes a stream holds no lock.
            let _ = answer.is_stream();
        }
        host::run(volume, answer, || asked?.run());
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_those_of_the_requests() {
        let tags = [
            Balance::TAG,
            Diff::TAG,
            Du::TAG,
            Explain::TAG,
            FindNew::TAG,
            History::TAG,
            Info::TAG,
            List::TAG,
            ListChunks::TAG,
            Members::TAG,
            MinDevSize::TAG,
            Replace::TAG,
            Resize::TAG,
            Resolve::TAG,
            Scrub::TAG,
            Send::TAG,
            Show::TAG,
            Space::TAG,
            TreeStats::TAG,
        ];
        for tag in tags {
            let request = format!("{{\"{tag}\": null}}");
            let error = serde_json::from_str::<Asked>(&request).expect_err("no arguments");
            assert!(error.to_string().contains("invalid type: null"), "{error}");
        }
    }
}
