//! `butterfs help --full` and `help --box`, as btrfs(8) has them.

use crate::arguments::{Arguments, other_names};
use crate::fail::Done;
use crate::output;
use clap::{Command, CommandFactory};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// Answers, if the words ask for one of the two.
pub fn run(words: &[OsString]) -> Option<ExitCode> {
    let [_, help, what] = words else {
        return None;
    };
    if help != "help" {
        return None;
    }
    let done = match what.to_str()? {
        "--full" => full(),
        "--box" => names(),
        _ => return None,
    };
    Some(output::end(done.map(|()| ExitCode::SUCCESS), 1))
}

/// The help of each command that has none below it.
fn full() -> Done {
    let mut whole = Arguments::command().disable_help_subcommand(true);
    whole.build();
    let mut text = Vec::new();
    below(&mut whole, &mut text);
    Ok(output::own().write_all(&text)?)
}

fn below(command: &mut Command, text: &mut Vec<u8>) {
    if !command.has_subcommands() {
        text.extend_from_slice(command.render_long_help().to_string().as_bytes());
        text.push(b'\n');
    }
    for command in command.get_subcommands_mut() {
        if !command.is_hide_set() {
            below(command, text);
        }
    }
}

/// The other names by which the program may be called.
fn names() -> Done {
    for name in other_names() {
        say!("{name}");
    }
    Ok(())
}
