//! Commands that the server of a mount runs for other processes.

use super::balance::Order as Balance;
use super::chmod::Chmod;
use super::chown::Chown;
use super::copy::Order as Copy;
use super::device::members::Order as Members;
use super::du::Du as FilesDu;
use super::explain::Explain;
use super::find::Find;
use super::info::Info;
use super::inspect::list_chunks::ListChunks;
use super::inspect::min_dev_size::MinDevSize;
use super::inspect::resolve::Order as Resolve;
use super::inspect::tree_stats::TreeStats;
use super::mv::Mv;
use super::replace::Order as Replace;
use super::resize::Resize;
use super::rm::Rm;
use super::scrub::Start as Scrub;
use super::send::Send;
use super::space::Order as Space;
use super::subvolume::{Diff, Du, FindNew, History, List, Show};
use super::tar::Order as Extract;
use super::tree::Tree;
use crate::fail::{Context, Done};
use crate::frames::Receiving;
use crate::ground::Ground;
use crate::host;
use crate::on_mount::OnMount;
use crate::service::{Effect, OnVolume};
use butterfs::Volume;
use butterfs_server::{Answer, Command, Files, Runner, ServerError};
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

/// A command on files that a server can run, by its [`OnFiles::TAG`].
///
/// [`OnFiles::TAG`]: crate::on_mount::OnFiles::TAG
#[derive(Debug, Deserialize)]
enum AskedOfFiles {
    Chmod(OnMount<Chmod>),
    Chown(OnMount<Chown>),
    FilesDu(OnMount<FilesDu>),
    Find(OnMount<Find>),
    Mv(OnMount<Mv>),
    Rm(OnMount<Rm>),
    Tree(OnMount<Tree>),
    /// These two have input.
    Copy(OnMount<Copy>),
    Extract(OnMount<Extract>),
}

/// Does the same with each command on files, and something else with those that
/// have input.
macro_rules! each_of_files {
    ($asked:expr, $command:ident => $done:expr, $order:ident => $input:expr) => {
        match $asked {
            AskedOfFiles::Copy($order) => $input,
            AskedOfFiles::Extract($order) => $input,
            AskedOfFiles::Chmod($command) => $done,
            AskedOfFiles::Chown($command) => $done,
            AskedOfFiles::FilesDu($command) => $done,
            AskedOfFiles::Find($command) => $done,
            AskedOfFiles::Mv($command) => $done,
            AskedOfFiles::Rm($command) => $done,
            AskedOfFiles::Tree($command) => $done,
        }
    };
}

/// What follows from a request that cannot be read.
const OTHER_VERSION: &str = "another version of ButterFS serves this mount; unmount it and mount \
    it again, or use that version";

/// Runs a command on files, for the process that asked.
fn run_on_files(
    request: &[u8],
    (volume, files, answer): (Volume, Files, Answer),
    is_writable: Result<(), ServerError>,
) {
    // No lock is held while something is printed, so nobody else waits for a
    // slow reader.
    let _ = answer.is_stream();
    let shared = volume.share();
    host::run(volume, answer, || {
        let asked: AskedOfFiles = serde_json::from_slice(request).context(OTHER_VERSION)?;
        let effect = each_of_files!(&asked, command => command.effect(), _order => Effect::Changes);
        if effect == Effect::Changes {
            is_writable?;
        }
        let Files {
            calls,
            starts,
            input,
            ..
        } = files;
        let done = each_of_files!(
            asked,
            command => command.run(&shared, &calls, starts),
            order => {
                let (order, shown) = order.parts(starts);
                let ground = Ground::mounted(&shared, &calls, &shown);
                order.run(&ground, Receiving::new(input))
            }
        );
        // Whoever asked may look at once.
        calls.finish();
        done
    });
}

/// Runs what is asked for.
pub fn runner() -> Runner {
    Arc::new(|mut command: Command| {
        if command.files.is_some() {
            let is_writable = command.verify_writable();
            if let Some(files) = command.files.take() {
                let with = (command.volume, files, command.answer);
                run_on_files(&command.request, with, is_writable);
            }
            return;
        }
        let asked = serde_json::from_slice(&command.request).context(OTHER_VERSION);
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
