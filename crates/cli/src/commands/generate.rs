//! Completions and manual, from the same tables as the help.

use crate::fail::{Context, Done, fail};
use crate::output;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes completions for a shell to standard output.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs completions bash > ~/.local/share/bash-completion/completions/butterfs")]
pub struct Completions {
    /// Which shell.
    shell: Shell,
}

/// Writes the manual page of a command to standard output.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs manual subvolume list | man -l -
  butterfs manual --directory ~/.local/share/man/man1")]
pub struct Manual {
    /// Write the pages of all commands into this directory.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
    directory: Option<PathBuf>,
    /// The command, such as `subvolume list`; the overview without one.
    command: Vec<String>,
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
    pub fn run(self, command: Command) -> Done {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        if let Some(directory) = &self.directory {
            std::fs::create_dir_all(directory).context(directory.display())?;
            return write_all(&command, directory);
        }
        let mut wanted = &command;
        for name in &self.command {
            wanted = match wanted.find_subcommand(name) {
                Some(found) => found,
                None => {
                    return fail(format!(
                        "there is no command {}; `butterfs --help` lists them",
                        self.command.join(" ")
                    ));
                }
            };
        }
        Ok(output::own().write_all(&page(wanted)?)?)
    }
}

/// The page of one command, in the language of man(7).
fn page(command: &Command) -> Result<Vec<u8>, std::io::Error> {
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text)?;
    Ok(text)
}

/// Writes the pages of a command and of all commands below it.
fn write_all(command: &Command, directory: &Path) -> Done {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = directory.join(format!("{name}.1"));
    std::fs::write(&path, page(command)?).context(path.display())?;
    let shown = |below: &&Command| !below.is_hide_set() && below.get_name() != "help";
    for below in command.get_subcommands().filter(shown) {
        write_all(below, directory)?;
    }
    Ok(())
}
