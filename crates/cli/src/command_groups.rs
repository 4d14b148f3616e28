//! The list of commands in the help, in groups by purpose.

use clap::Command;

/// A command of a group, and its line if the group's title says a part of what
/// its own help says.
type Line = (&'static str, Option<&'static str>);

const fn own(name: &'static str) -> Line {
    (name, None)
}

const fn short(name: &'static str, line: &'static str) -> Line {
    (name, Some(line))
}

/// The groups, in the order in which they are shown.
const GROUPS: &[(&str, &[Line])] = &[
    ("Mount a volume", &[own("mount"), own("umount"), own("run")]),
    (
        "Make volumes and look at them",
        &[
            own("mkfs"),
            own("convert"),
            own("build"),
            own("info"),
            own("tune"),
        ],
    ),
    (
        "Files of a volume",
        &[
            short("ls", "List files"),
            short("tree", "Draw directories"),
            short("find", "Find files"),
            short("du", "Sum up the sizes of files"),
            short("cat", "Write files to standard output"),
            short(
                "copy",
                "Copy files into the volume, out of it, or within it",
            ),
            short("mv", "Rename and move files"),
            short("rm", "Remove files"),
            short("mkdir", "Make directories"),
            short("ln", "Make links"),
            short("chmod", "Change permissions"),
            short("chown", "Change owners"),
            short("tar", "Read and write tar archives"),
        ],
    ),
    (
        "Snapshots, shared data and streams",
        &[
            own("subvolume"),
            own("property"),
            own("reflink"),
            own("dedupe"),
            own("send"),
            own("receive"),
        ],
    ),
    (
        "Devices, space and quotas",
        &[
            own("filesystem"),
            own("device"),
            own("replace"),
            own("balance"),
            own("quota"),
            own("qgroup"),
        ],
    ),
    (
        "Check, repair and rescue",
        &[
            own("check"),
            own("scrub"),
            own("rescue"),
            own("restore"),
            own("undelete"),
            own("inspect"),
            own("image"),
        ],
    ),
    (
        "Measurements, and this program",
        &[
            own("lab"),
            own("completions"),
            own("manual"),
            short("help", "Show the help of a command"),
        ],
    ),
];

/// Shows the commands of `whole` in groups in its help.
pub fn in_groups(whole: Command) -> Command {
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (title, lines) in GROUPS {
        text.push_str(&format!("\n{title}:\n"));
        for (name, line) in *lines {
            let found = whole.find_subcommand(name);
            let about = found.and_then(Command::get_about).map(ToString::to_string);
            let mut line = line.map_or_else(|| about.unwrap_or_default(), str::to_owned);
            let aliases = found.map(|command| command.get_visible_aliases().collect::<Vec<_>>());
            if let Some(aliases) = aliases.filter(|aliases| !aliases.is_empty()) {
                line.push_str(&format!(" [alias: {}]", aliases.join(", ")));
            }
            text.push_str(&format!("  {name:<11}  {line}\n"));
        }
    }
    text.push_str("\nOptions:\n{options}{after-help}");
    whole.help_template(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use clap::CommandFactory;

    #[test]
    fn each_command_is_in_one_group() {
        let whole = Arguments::command();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, lines)| lines.iter().map(|(name, _)| *name))
            .collect();
        grouped.sort_unstable();
        let mut all: Vec<&str> = whole
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .chain(["help"])
            .collect();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn the_help_fits_a_terminal() {
        let mut whole = in_groups(Arguments::command());
        let help = whole.render_help().to_string();
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.len() <= 100, "{line}");
        }
        assert!(help.contains("  ls           List files\n"), "{help}");
        assert!(help.contains("[alias: cp]"), "{help}");
    }
}
