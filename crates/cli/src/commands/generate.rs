//! Completions and manual, from the same tables as the help.

use crate::fail::Done;
use crate::output;
use clap::{Args, Command};
use clap_complete::Shell;
use std::io::Write;

/// Writes completions for a shell to standard output.
#[derive(Args, Debug)]
pub struct Completions {
    /// Which shell.
    shell: Shell,
}

/// Writes the manual page to standard output.
#[derive(Args, Debug)]
pub struct Manual {
    /// Subcommand; the overview without it.
    command: Option<String>,
}

impl Completions {
    /// Runs it, for the whole command line.
    pub fn run(self, mut command: Command) -> Done {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command, "butterfs", &mut text);
        Ok(output::own().write_all(&text)?)
    }
}

impl Manual {
    /// Runs it, for the whole command line.
    pub fn run(self, mut command: Command) -> Done {
        command.build();
        let wanted = match &self.command {
            None => command,
            Some(name) => match command.find_subcommand(name) {
                Some(found) => found.clone(),
                None => return crate::fail::fail(format!("there is no command {name}")),
            },
        };
        Ok(clap_mangen::Man::new(wanted).render(&mut output::own())?)
    }
}
