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
use crate::service::{Effect, OnVolume};
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

/// Does the same with each command.
macro_rules! each {
    ($asked:expr, $command:ident => $done:expr) => {
        match $asked {
            Asked::Balance($command) => $done,
            Asked::Diff($command) => $done,
            Asked::Du($command) => $done,
            Asked::Explain($command) => $done,
            Asked::FindNew($command) => $done,
            Asked::History($command) => $done,
            Asked::Info($command) => $done,
            Asked::List($command) => $done,
            Asked::ListChunks($command) => $done,
            Asked::Members($command) => $done,
            Asked::MinDevSize($command) => $done,
            Asked::Replace($command) => $done,
            Asked::Resize($command) => $done,
            Asked::Resolve($command) => $done,
            Asked::Scrub($command) => $done,
            Asked::Send($command) => $done,
            Asked::Show($command) => $done,
            Asked::Space($command) => $done,
            Asked::TreeStats($command) => $done,
        }
    };
}

impl Asked {
    fn effect(&self) -> Effect {
        each!(self, command => command.effect())
    }

    fn run(self) -> Done {
        each!(self, command => command.run_here())
    }
}

/// Runs what is asked for.
pub fn runner() -> Runner {
    Arc::new(|command: Command| {
        let asked = serde_json::from_slice(&command.request).context(
            "another version of ButterFS serves this mount; unmount it and mount it again, or use \
             that version",
        );
        // A caller that is no tool of ours may not have looked.
        let asked = asked.and_then(|asked: Asked| match asked.effect() {
            Effect::Changes => Ok(command.verify_writable().map(|()| asked)?),
            Effect::Reads => Ok(asked),
        });
        let Command { volume, answer, .. } = command;
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
