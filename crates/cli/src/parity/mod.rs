//! How the command line compares with that of the Btrfs tools.
//!
//! Owns one table: what they have (`verbs`) and what ButterFS does not have
//! (`absent`), with a sentence that says what to use instead. The command line
//! answers with that sentence, and docs/parity.md is made from the table. A
//! test compares the table with the existing commands.

mod absent;
mod verbs;

use absent::ABSENT;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use verbs::VERBS;

/// Options that only say how much is said.
const SAID: [(&str, &str); 4] = [
    ("-q", "quiet"),
    ("--quiet", "quiet"),
    ("-v", "verbose"),
    ("--verbose", "verbose"),
];

/// Verbs that change something, and of whose output nothing is left with `-q`.
const HUSHED: [&str; 17] = [
    "balance resume",
    "balance start",
    "device add",
    "device remove",
    "device replace start",
    "device scan",
    "filesystem mkswapfile",
    "filesystem resize",
    "qgroup clear-stale",
    "quota rescan",
    "replace start",
    "scrub cancel",
    "scrub resume",
    "scrub start",
    "subvolume create",
    "subvolume delete",
    "subvolume snapshot",
];

/// Whether a command knows an option, written with its dashes.
fn knows(command: &Command, option: &str) -> bool {
    let name = option.trim_start_matches('-');
    let is_long = option.starts_with("--");
    let own = |argument: &&clap::Arg| argument.get_id() != "help";
    command.get_arguments().filter(own).any(|argument| {
        let longs = argument.get_long_and_visible_aliases().unwrap_or_default();
        let hidden = argument.get_all_aliases().unwrap_or_default();
        let shorts = argument.get_short_and_visible_aliases().unwrap_or_default();
        let hidden_shorts = argument.get_all_short_aliases().unwrap_or_default();
        if is_long {
            longs.contains(&name) || hidden.contains(&name)
        } else {
            let letter = name.chars().next().unwrap_or('-');
            shorts.contains(&letter) || hidden_shorts.contains(&letter)
        }
    })
}

/// The command below `command` that a word names, in full or by a prefix that
/// no other command has.
fn below<'c>(command: &'c Command, word: &str) -> Option<&'c Command> {
    let begins = |one: &&Command| {
        one.get_name().starts_with(word) || one.get_all_aliases().any(|name| name.starts_with(word))
    };
    command.find_subcommand(word).or_else(|| {
        let mut all = command.get_subcommands().filter(begins);
        all.next().filter(|_| all.next().is_none())
    })
}

/// The command below `whole` that `words` begin with, as far as they name one.
/// Gives it with its full name and with the number of words that belong to it.
fn find<'c>(whole: &'c Command, words: &[&str]) -> (&'c Command, String, usize) {
    let (mut at, mut name) = (whole, String::new());
    for (count, word) in words.iter().enumerate() {
        let Some(next) = below(at, word) else {
            return (at, name, count);
        };
        let space = if name.is_empty() { "" } else { " " };
        name = format!("{name}{space}{}", next.get_name());
        at = next;
    }
    (at, name, words.len())
}

/// The command that `words` begin with, as far as they name one, and the number
/// of words that do.
pub fn command<'c>(words: &[&str], whole: &'c Command) -> (&'c Command, usize) {
    let (command, _, count) = find(whole, words);
    (command, count)
}

/// The full name of the command that `words` begin with.
pub fn verb(words: &[&str], whole: &Command) -> String {
    find(whole, words).1
}

/// As the Btrfs tools call the groups of verbs.
fn named_as_there(name: &str) -> String {
    name.replacen("inspect ", "inspect-internal ", 1)
}

/// Whether the command of these words says nothing of what it does if it is asked
/// to be quiet.
pub fn can_be_hushed(words: &[OsString], whole: &Command) -> bool {
    let text: Vec<String> = words
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let words: Vec<&str> = text.iter().map(String::as_str).collect();
    let json = |word: &&str| ["--json", "--format=json"].contains(word);
    HUSHED.contains(&&*find(whole, &words).1) && !words.iter().any(json)
}

/// Letters of flags behind one minus (`-Bqd`) without `q` and `v`, if the command
/// knows the others and not these.
fn without_said(command: &Command, word: &str) -> Option<String> {
    let letters = word.strip_prefix('-').filter(|rest| rest.len() > 1)?;
    let flag = |letter: char| {
        command
            .get_arguments()
            .any(|one| one.get_short() == Some(letter) && !one.get_action().takes_values())
    };
    let (said, others): (Vec<char>, Vec<char>) = letters
        .chars()
        .partition(|letter| "qv".contains(*letter) && !flag(*letter));
    let known = !said.is_empty() && !others.is_empty() && others.iter().all(|one| flag(*one));
    known.then(|| others.into_iter().collect())
}

/// Removes `-q` and `-v` from commands that do not have them, if the Btrfs tools
/// do. `whole` is the whole command line. Says whether there was a `-q`.
pub fn drop_what_says_nothing(words: &mut Vec<OsString>, whole: &Command) -> bool {
    let text: Vec<String> = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let below: Vec<&str> = text.iter().skip(1).map(String::as_str).collect();
    let (command, name, count) = find(whole, &below);
    let name = named_as_there(&name);
    let Some((_, options)) = VERBS.iter().find(|(verb, _)| *verb == name) else {
        return false;
    };
    let mut position = 0;
    let mut only_words = false;
    let mut is_quiet = false;
    for word in words
        .iter_mut()
        .skip(count + 1)
        .take_while(|word| *word != "--")
    {
        let text = word.to_string_lossy();
        let has = |letter: &str| text.contains(letter) && options.contains(&&*format!("-{letter}"));
        if (has("q") || has("v"))
            && let Some(left) = without_said(command, &text)
        {
            is_quiet |= has("q");
            *word = format!("-{left}").into();
        }
    }
    words.retain(|word| {
        position += 1;
        only_words |= word == "--";
        let is_said = SAID.iter().any(|(one, _)| word == one);
        let word = word.to_string_lossy();
        let is_meant = position > count + 1 && !only_words && is_said && options.contains(&&*word);
        is_quiet |= is_meant && ["-q", "--quiet"].contains(&&*word);
        !is_meant || knows(command, &word)
    });
    is_quiet
}

/// What to use instead of `option` of a verb, or instead of the verb.
fn instead(verb: &str, option: Option<&str>) -> Option<&'static str> {
    let row = ABSENT.iter().find(|(name, options, _)| {
        *name == verb
            && match option {
                None => options.is_empty(),
                Some(option) => options.contains(&option),
            }
    });
    row.map(|(_, _, sentence)| *sentence)
}

/// The answer to a mistake that is not one for the Btrfs tools: something that
/// they have and ButterFS does not have.
pub fn answer(words: &[OsString], error: &clap::Error, whole: &Command) -> Option<String> {
    let text: Vec<String> = words
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let words: Vec<&str> = text.iter().map(String::as_str).collect();
    let (_, name, count) = find(whole, &words);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let next = words.get(count)?;
            let space = if name.is_empty() { "" } else { " " };
            let verb = named_as_there(&format!("{name}{space}{next}"));
            let sentence = instead(&verb, None)?;
            Some(format!("there is no `{verb}`: {sentence}"))
        }
        ErrorKind::UnknownArgument => {
            let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
                return None;
            };
            let option = option.split('=').next()?;
            let verb = named_as_there(&name);
            let sentence = instead(&verb, Some(option))?;
            Some(format!("`{verb}` has no {option}: {sentence}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::fmt::Write;

    /// The command of a verb, if there is one.
    fn command_of<'c>(whole: &'c Command, verb: &str) -> Option<&'c Command> {
        let words: Vec<&str> = verb.split(' ').collect();
        let (command, _, count) = find(whole, &words);
        (count == words.len()).then_some(command)
    }

    fn is_said(option: &str) -> bool {
        SAID.iter().any(|(one, _)| *one == option)
    }

    /// There, this option prints the help, as it does here everywhere.
    fn is_help(verb: &str, option: &str) -> bool {
        (verb, option) == ("rescue chunk-recover", "-h")
    }

    /// Everything that the tools have exists here, or has its sentence, but
    /// never both.
    #[test]
    fn the_table_is_true() {
        let mut whole = crate::arguments::Arguments::command();
        whole.build();
        let mut wrong = Vec::new();
        for (verb, options) in VERBS {
            let Some(command) = command_of(&whole, verb) else {
                if instead(verb, None).is_none() {
                    wrong.push(format!("{verb}: not there, without a sentence"));
                }
                continue;
            };
            if instead(verb, None).is_some() {
                wrong.push(format!("{verb}: there, with a sentence"));
            }
            for option in *options {
                let is_there = knows(command, option) || is_said(option) || is_help(verb, option);
                if is_there == instead(verb, Some(option)).is_some() {
                    wrong.push(format!("{verb} {option}: there: {is_there}"));
                }
            }
        }
        for (verb, options, _) in ABSENT {
            let known = VERBS.iter().find(|(name, _)| name == verb);
            let all = |(_, known): &(_, &[&str])| options.iter().all(|one| known.contains(one));
            if !known.is_some_and(all) {
                wrong.push(format!("{verb} {options:?}: the tools have no such thing"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    fn document() -> String {
        let mut whole = crate::arguments::Arguments::command();
        whole.build();
        let mut text = "# Beside the Btrfs tools\n\n\
            What `alias btrfs=butterfs` answers: each verb and option of btrfs(8), mkfs.btrfs(8) (`mkfs`), btrfs-convert(8) \
            (`convert`), btrfstune(8) (`tune`) and btrfs-image(8) (`image`). An option that is taken has the meaning that it \
            has there. `-q` and `-v` are taken everywhere. With `-q` a command that changes something says nothing of it; a command that is \
            asked for facts prints them all the same. Where a command has no more to say, `-v` changes nothing. `image -r` wants `-f` where a target holds a file system or something else that is known. What is not there answers with the sentence of this table and exit code 1 (`check`: 2). Verbs may be shortened as \
            there (`butterfs sub li`). Before the verb stand `-q`, `-v`, `--log LEVEL`, `--format json|text` and `--dry-run`; \
            `version`, `help --full` and `help --box` are there, too.\n\n\
            This page is made by `BUTTERFS_WRITE=1 cargo test -p butterfs-cli parity`; a test holds it against the program.\n\n\
            | Verb | Options that are taken | Not there, and what to use instead |\n|---|---|---|\n"
            .to_owned();
        for (verb, options) in VERBS {
            let Some(command) = command_of(&whole, verb) else {
                let sentence = instead(verb, None).unwrap_or_default();
                let _ = writeln!(text, "| {verb} | | The verb: {sentence}. |");
                continue;
            };
            let taken = options
                .iter()
                .filter(|one| knows(command, one) || is_said(one) || is_help(verb, one));
            let taken: Vec<String> = taken.map(|one| format!("`{one}`")).collect();
            let rows = ABSENT.iter().filter(|(name, _, _)| name == verb);
            let not: Vec<String> = rows
                .map(|(_, options, sentence)| {
                    let options: Vec<String> =
                        options.iter().map(|one| format!("`{one}`")).collect();
                    format!("{}: {sentence}.", options.join(", "))
                })
                .collect();
            let _ = writeln!(
                text,
                "| {verb} | {} | {} |",
                taken.join(" "),
                not.join("<br>")
            );
        }
        text
    }

    #[test]
    fn the_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/parity.md");
        if std::env::var_os("BUTTERFS_WRITE").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == document(),
            "docs/parity.md: see its second paragraph"
        );
    }

    /// The verbs and options that the help of the Btrfs tools lists.
    fn listed(help: &str) -> Vec<(String, String)> {
        let mut verb = String::new();
        let mut found = Vec::new();
        for line in help.lines() {
            if let Some(usage) = line.trim_start().strip_prefix("btrfs ")
                && !line.starts_with("    ")
            {
                let is_word =
                    |word: &&str| word.bytes().all(|one| matches!(one, b'a'..=b'z' | b'-'));
                let words = usage.split(' ').take_while(is_word);
                let words: Vec<&str> = words.take_while(|word| !word.starts_with('-')).collect();
                verb = words.join(" ");
                found.push((verb.clone(), String::new()));
                continue;
            }
            let names = line
                .split_whitespace()
                .take_while(|word| word.starts_with('-'))
                .flat_map(|word| word.split(['|', ',']));
            for name in names {
                let end = |one: char| !one.is_ascii_alphanumeric() && one != '-';
                let name = name.split(end).next().unwrap_or_default();
                if name.starts_with('-') && !name.trim_start_matches('-').is_empty() {
                    found.push((verb.clone(), name.to_owned()));
                }
            }
        }
        found
    }

    /// What the installed tools have is in the table. `BUTTERFS_BTRFS` names
    /// other ones than `btrfs`.
    #[test]
    fn the_installed_tools_have_no_more() {
        let tools = std::env::var_os("BUTTERFS_BTRFS").unwrap_or_else(|| "btrfs".into());
        let help = std::process::Command::new(tools)
            .args(["help", "--full"])
            .output();
        let Ok(help) = help else {
            println!("skipped: btrfs is not installed");
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            return;
        };
        let listed = listed(&String::from_utf8_lossy(&help.stdout));
        assert!(listed.len() > 300, "{} options are listed", listed.len());
        let mut unknown = Vec::new();
        for (verb, option) in listed {
            let global = SAID.iter().any(|(one, _)| *one == option)
                || ["--format", "--log", "--dry-run", "--help", "--version"].contains(&&*option);
            // The last lines show how to get help, by the name of a group.
            let group = format!("{verb} ");
            let is_group = VERBS.iter().any(|(name, _)| name.starts_with(&group));
            if ["", "help", "version"].contains(&&*verb) || global || is_group {
                continue;
            }
            let row = VERBS.iter().find(|(name, _)| *name == verb);
            let is_known =
                row.is_some_and(|(_, options)| option.is_empty() || options.contains(&&*option));
            if !is_known {
                unknown.push(format!("{verb} {option}"));
            }
        }
        assert!(unknown.is_empty(), "not in the table: {unknown:#?}");
    }

    fn answer_to(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let error = crate::arguments::Arguments::try_parse_from(&words).err()?;
        answer(&words, &error, &crate::arguments::Arguments::command())
    }

    use clap::Parser;

    #[test]
    fn what_is_not_there_says_what_is() {
        let said = answer_to("butterfs check --subvol-extents a").unwrap();
        assert!(
            said.starts_with("`check` has no --subvol-extents: "),
            "{said}"
        );
        assert_eq!(answer_to("butterfs nonsense"), None);
        assert_eq!(answer_to("butterfs check --nonsense a"), None);
    }

    #[test]
    fn verbs_that_can_be_quiet_are_there() {
        let mut whole = crate::arguments::Arguments::command();
        whole.build();
        for verb in HUSHED {
            assert!(command_of(&whole, verb).is_some(), "{verb}");
        }
        let hushed = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            can_be_hushed(&words, &whole)
        };
        assert!(hushed("btrfs sub cr a"));
        assert!(!hushed("btrfs subvolume list a") && !hushed("btrfs scrub start --json a"));
    }

    #[test]
    fn what_says_nothing_is_taken() {
        let left = |line: &str| {
            let mut words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            drop_what_says_nothing(&mut words, &crate::arguments::Arguments::command());
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            words.join(" ")
        };
        assert_eq!(
            left("butterfs scrub start -q -B m"),
            "butterfs scrub start -B m"
        );
        assert_eq!(left("butterfs sub cr -q m"), "butterfs sub cr m");
        assert_eq!(
            left("butterfs subvolume create -- -q"),
            "butterfs subvolume create -- -q"
        );
        assert_eq!(
            left("butterfs subvolume list -q m"),
            "butterfs subvolume list -q m"
        );
        assert_eq!(left("butterfs ls -q"), "butterfs ls -q");
        assert_eq!(
            left("butterfs scrub start -Bdq m"),
            "butterfs scrub start -Bd m"
        );
        assert_eq!(
            left("butterfs scrub start -qc m"),
            "butterfs scrub start -qc m"
        );
    }
}
