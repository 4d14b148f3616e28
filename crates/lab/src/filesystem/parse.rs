//! From TOML to file systems.

use super::command::NAMES;
use super::{Check, Command, FileSystem, History, Probe};
use crate::declaration::{Fields, Mistake, Source, Word, nearest};
use crate::model::Durability;
use std::collections::BTreeMap;

const FILE_SYSTEM: &[&str] = &[
    "name",
    "title",
    "kernel",
    "needs",
    "programs",
    "daemon",
    "make",
    "mount",
    "unmount",
    "check",
    "durability",
    "promise",
    "max-devices",
    "profiles",
    "profile-option",
    "shown",
    "probe",
    "served",
    "library",
    "history",
];

pub(super) fn file_systems(file: &str, text: &str) -> Result<Vec<FileSystem>, Mistake> {
    let source = Source { file, text };
    let table = source.parse()?;
    let what = ("a file of file systems", &["file-system"][..]);
    let top = Fields::new(source, &table, 1, what)?;
    let tables = top.tables("file-system")?;
    tables
        .into_iter()
        .map(|(table, line)| {
            let what = ("a file system", FILE_SYSTEM);
            file_system(source, &Fields::new(source, table, line, what)?)
        })
        .collect()
}

fn file_system(source: Source<'_>, fields: &Fields<'_>) -> Result<FileSystem, Mistake> {
    let texts = |name: &str| -> Result<Vec<String>, Mistake> {
        let words = fields.words(name)?;
        Ok(words.into_iter().map(|word| word.text).collect())
    };
    let name = fields.needed("name")?;
    if name.text.is_empty() || name.text.contains(char::is_whitespace) {
        return Err(fields.error(name.line, "a name has no spaces and is not empty"));
    }
    let kernel = fields.text("kernel")?;
    let make = commands(fields, "make")?;
    let mount = commands(fields, "mount")?;
    let unmount = commands(fields, "unmount")?;
    for (key, list) in [("make", &make), ("mount", &mount), ("unmount", &unmount)] {
        if list.is_empty() {
            return Err(fields.error(fields.line, format!("{} needs `{key}`", name.text)));
        }
    }
    let probe = match fields
        .one_of("probe", &["mountinfo", "btrfs", "butterfs", "none"])?
        .as_deref()
    {
        Some("btrfs") => Probe::Btrfs,
        Some("butterfs") => Probe::Butterfs,
        Some("mountinfo") => Probe::Mountinfo,
        None if kernel.is_some() => Probe::Mountinfo,
        _ => Probe::None,
    };
    let max_devices = fields.number("max-devices")?.unwrap_or(1);
    Ok(FileSystem {
        title: fields.text("title")?.unwrap_or_default(),
        needs: texts("needs")?,
        programs: programs(fields)?,
        daemon: commands(fields, "daemon")?.into_iter().next(),
        checks: checks(source, fields)?,
        durability: durability(fields)?.unwrap_or(Durability::Full),
        promises: promises(source, fields)?,
        max_devices: usize::try_from(max_devices).unwrap_or(4).clamp(1, 4),
        profiles: texts("profiles")?,
        profile_option: fields.text("profile-option")?.unwrap_or_default(),
        shown: shown(source, fields)?,
        served: fields.yes("served")?,
        library: fields.yes("library")?,
        histories: histories(source, fields)?,
        name: name.text,
        kernel,
        make,
        mount,
        unmount,
        probe,
    })
}

fn commands(fields: &Fields<'_>, name: &str) -> Result<Vec<Command>, Mistake> {
    let words = fields.words(name)?;
    words.iter().map(|word| command(fields, word)).collect()
}

fn command(fields: &Fields<'_>, word: &Word) -> Result<Command, Mistake> {
    let command = Command::parse(&word.text)
        .ok_or_else(|| fields.error(word.line, format!("`{}` is no command", word.text)))?;
    if let Some(unknown) = command.unknown() {
        let hint = nearest(unknown, NAMES.iter().copied());
        return Err(fields.error(
            word.line,
            format!("nothing is filled in for `{{{unknown}}}`{hint}"),
        ));
    }
    Ok(command)
}

fn durability(fields: &Fields<'_>) -> Result<Option<Durability>, Mistake> {
    let word = fields.one_of("durability", &["full", "weak", "unsafe"])?;
    Ok(word.map(|word| match word.as_str() {
        "full" => Durability::Full,
        "weak" => Durability::Weak,
        _ => Durability::Unsafe,
    }))
}

/// "mkfs.ext4: e2fsprogs".
fn programs(fields: &Fields<'_>) -> Result<Vec<(String, String)>, Mistake> {
    let words = fields.words("programs")?;
    let split = words.into_iter().map(|word| {
        let (program, package) = word.text.split_once(':').unwrap_or((&word.text, ""));
        (program.trim().to_owned(), package.trim().to_owned())
    });
    Ok(split.collect())
}

fn checks(source: Source<'_>, fields: &Fields<'_>) -> Result<Vec<Check>, Mistake> {
    let mut found = Vec::new();
    for (table, line) in fields.tables("check")? {
        let what = ("a check", &["name", "run", "mounted"][..]);
        let check = Fields::new(source, table, line, what)?;
        found.push(Check {
            name: check.needed("name")?.text,
            run: command(&check, &check.needed("run")?)?,
            mounted: check.yes("mounted")?,
        });
    }
    Ok(found)
}

fn promises(source: Source<'_>, fields: &Fields<'_>) -> Result<Vec<(String, Durability)>, Mistake> {
    let mut found = Vec::new();
    for (table, line) in fields.tables("promise")? {
        let what = ("a promise", &["options", "durability"][..]);
        let promise = Fields::new(source, table, line, what)?;
        let durability = durability(&promise)?
            .ok_or_else(|| promise.error(line, "a promise needs a `durability`"))?;
        let options = promise.words("options")?;
        if options.is_empty() {
            return Err(promise.error(line, "a promise needs `options`"));
        }
        found.extend(options.into_iter().map(|word| (word.text, durability)));
    }
    Ok(found)
}

fn shown(source: Source<'_>, fields: &Fields<'_>) -> Result<BTreeMap<String, String>, Mistake> {
    let Some((table, line)) = fields.table("shown")? else {
        return Ok(BTreeMap::new());
    };
    let names = Fields::free(source, table, line);
    let mut found = BTreeMap::new();
    for (option, line) in names.keys() {
        let word = names
            .word(option)?
            .ok_or_else(|| names.error(line, "an option"))?;
        found.insert(option.to_owned(), word.text);
    }
    Ok(found)
}

fn histories(source: Source<'_>, fields: &Fields<'_>) -> Result<Vec<History>, Mistake> {
    let mut found = Vec::new();
    for (table, line) in fields.tables("history")? {
        let keys = [
            "name",
            "through",
            "through-mkfs",
            "before",
            "mounted",
            "unmounted",
        ];
        let history = Fields::new(source, table, line, ("a history", &keys))?;
        found.push(History {
            name: history.needed("name")?.text,
            through: history.text("through")?,
            through_mkfs: history.text("through-mkfs")?.unwrap_or_default(),
            before: commands(&history, "before")?,
            mounted: commands(&history, "mounted")?,
            unmounted: commands(&history, "unmounted")?,
        });
    }
    Ok(found)
}
