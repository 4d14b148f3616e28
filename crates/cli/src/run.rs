//! Running what the command line asks for.

use crate::arguments::{Arguments, Command};
use crate::commands::check::FAULTS;
use crate::fail::Done;
use crate::on_mount::OnFiles;
use crate::service::OnVolume;
use crate::{log, output};
use clap::CommandFactory;
use std::process::ExitCode;

/// Exit code of a mount that failed, as in mount(8).
const MOUNT_FAILED: u8 = 32;

/// Runs a command that logs to the terminal.
fn offline(run: impl FnOnce() -> Done) -> Done {
    log::start(log::Target::Terminal)?;
    run()
}

/// Runs a command. Standard error says what failed.
pub fn run(arguments: Arguments) -> ExitCode {
    if let Command::Check(check) = &arguments.command {
        return check.run(FAULTS);
    }
    if let Command::Run(run) = &arguments.command {
        return run.run();
    }
    let (done, failure_code) = match arguments.command {
        Command::Mount(mount) => (mount.run(), MOUNT_FAILED),
        Command::Umount(umount) => (umount.run(), 1),
        Command::Mkfs(mkfs) => (offline(|| mkfs.run()), 1),
        Command::Convert(convert) => (offline(|| convert.run()), 1),
        Command::Build(build) => (offline(|| build.run()), 1),
        Command::Filesystem(filesystem) => (offline(|| filesystem.run()), 1),
        Command::Info(info) => (offline(|| info.run()), 1),
        Command::Ls(list) => (offline(|| list.run()), 1),
        Command::Cat(cat) => (offline(|| cat.run()), 1),
        Command::Tree(tree) => (offline(|| tree.run()), 1),
        Command::Find(find) => (offline(|| find.run()), 1),
        Command::Du(du) => (offline(|| du.run()), 1),
        Command::Copy(copy) => (offline(|| copy.run()), 1),
        Command::Mv(mv) => (offline(|| mv.run()), 1),
        Command::Rm(rm) => (offline(|| rm.run()), 1),
        Command::Mkdir(mkdir) => (offline(|| mkdir.run()), 1),
        Command::Ln(ln) => (offline(|| ln.run()), 1),
        Command::Chmod(chmod) => (offline(|| chmod.run()), 1),
        Command::Chown(chown) => (offline(|| chown.run()), 1),
        Command::Tar(tar) => (offline(|| tar.run()), 1),
        Command::Reflink(reflink) => (offline(|| reflink.run()), 1),
        Command::Dedupe(dedupe) => (offline(|| dedupe.run()), 1),
        Command::Device(device) => (offline(|| device.run()), 1),
        Command::Subvolume(subvolume) => (offline(|| subvolume.run()), 1),
        Command::Property(property) => (offline(|| property.run()), 1),
        Command::Quota(quota) => (offline(|| quota.run()), 1),
        Command::Qgroup(qgroup) => (offline(|| qgroup.run()), 1),
        Command::Scrub(scrub) => (offline(|| scrub.run()), 1),
        Command::Balance(balance) => (offline(|| balance.run()), 1),
        Command::Replace(replace) => (offline(|| replace.run()), 1),
        Command::Tune(tune) => (offline(|| tune.run()), 1),
        Command::Image(image) => (offline(|| image.run()), 1),
        Command::Rescue(rescue) => (offline(|| rescue.run()), 1),
        Command::Restore(restore) => (offline(|| restore.run()), 1),
        Command::Undelete(undelete) => (offline(|| undelete.run()), 1),
        Command::Send(send) => (offline(|| send.start()), 1),
        Command::Receive(receive) => (offline(|| receive.run()), 1),
        Command::Check(_) | Command::Run(_) => (Ok(()), 0),
        Command::Inspect(inspect) => (offline(|| inspect.run()), 1),
        Command::Lab(lab) => (offline(|| lab.run()), 1),
        Command::Completions(completions) => (completions.run(Arguments::command()), 1),
        Command::Manual(manual) => (manual.run(Arguments::command()), 1),
    };
    output::end(done.map(|()| ExitCode::SUCCESS), failure_code)
}
