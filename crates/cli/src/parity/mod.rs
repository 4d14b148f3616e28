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

/// As the Btrfs tools call the groups of verbs.
fn named_as_there(name: &str) -> String {
    name.replacen("inspect ", "inspect-internal ", 1)
}

/// Removes `-q` and `-v` from commands that print no more and no less with
/// them, if the Btrfs tools have them. `whole` is the whole command line.
pub fn drop_what_says_nothing(words: &mut Vec<OsString>, whole: &Command) {
    let text: Vec<String> = words
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let below: Vec<&str> = text.iter().skip(1).map(String::as_str).collect();
    let (command, name, count) = find(whole, &below);
    let name = named_as_there(&name);
    let Some((_, options)) = VERBS.iter().find(|(verb, _)| *verb == name) else {
        return;
    };
    let mut position = 0;
    let mut only_words = false;
    words.retain(|word| {
        position += 1;
        only_words |= word == "--";
        let is_said = SAID.iter().any(|(one, _)| word == one);
        let word = word.to_string_lossy();
        let drops = position > count + 1
            && !only_words
            && is_said
            && options.contains(&&*word)
            && !knows(command, &word);
        !drops
    });
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
                let is_there = knows(command, option) || is_said(option);
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
            has there. `-q` and `-v` are taken everywhere; where a command has no more and no less to say, they change \
            nothing. What is not there answers with the sentence of this table and exit code 1 (`check`: 2). Verbs may be shortened as \
            there (`butterfs sub li`); `version` is `--version`.\n\n\
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
                .filter(|one| knows(command, one) || is_said(one));
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

    fn answer_to(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let error = crate::arguments::Arguments::try_parse_from(&words).err()?;
        answer(&words, &error, &crate::arguments::Arguments::command())
    }

    use clap::Parser;

    #[test]
    fn what_is_not_there_says_what_is() {
        let said = answer_to("butterfs restore a b").unwrap();
        assert!(said.contains("butterfs copy VOLUME:/path"), "{said}");
        let said = answer_to("butterfs rescue chunk-recover a").unwrap();
        assert!(
            said.starts_with("there is no `rescue chunk-recover`: "),
            "{said}"
        );
        let said = answer_to("butterfs check --repair a").unwrap();
        assert!(said.starts_with("`check` has no --repair: "), "{said}");
        assert_eq!(answer_to("butterfs nonsense"), None);
        assert_eq!(answer_to("butterfs check --nonsense a"), None);
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
    }
}
