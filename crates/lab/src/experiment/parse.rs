//! From TOML to an experiment.

use super::{DeviceKind, Experiment, Group, Scale, axis_names};
use crate::declaration::{Fields, Mistake, Source, Word, nearest};
use std::collections::BTreeMap;
use toml::de::DeTable;

const TOP: &[&str] = &[
    "name",
    "title",
    "repeats",
    "seed",
    "control",
    "scale",
    "cells",
    "leave-out",
];
const SCALE: &[&str] = &[
    "device-size",
    "device",
    "memory",
    "settle",
    "repeats",
    "parameters",
];
/// Blocks, if nobody says how many: the fewest that can decide three
/// comparisons.
const REPEATS: u32 = 7;

pub(super) fn experiment(file: &str, text: &str) -> Result<Experiment, Mistake> {
    let source = Source { file, text };
    let table = source.parse()?;
    let top = Fields::new(source, &table, 1, ("an experiment", TOP))?;
    let name = top.needed("name")?;
    let groups = top
        .tables("cells")?
        .into_iter()
        .map(|(table, line)| group(source, table, line))
        .collect::<Result<Vec<_>, _>>()?;
    if groups.is_empty() {
        return Err(source.mistake(1, "an experiment needs [[cells]]"));
    }
    let leave_out = top
        .tables("leave-out")?
        .into_iter()
        .map(|(table, line)| leave_out(source, table, line, &groups))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Experiment {
        title: top.text("title")?.unwrap_or_default(),
        repeats: repeats(&top)?.unwrap_or(REPEATS),
        seed: top.number("seed")?.unwrap_or(1),
        control: top.word("control")?,
        scales: scales(source, &top)?,
        name: name.text,
        groups,
        leave_out,
        text: text.to_owned(),
    })
}

fn repeats(fields: &Fields<'_>) -> Result<Option<u32>, Mistake> {
    let Some(count) = fields.number("repeats")? else {
        return Ok(None);
    };
    match u32::try_from(count) {
        Ok(count) if (1..=1000).contains(&count) => Ok(Some(count)),
        _ => Err(fields.error(fields.line, format!("`repeats` is 1 to 1000, not {count}"))),
    }
}

/// The old name of the axis `compressible`, which says the opposite of what it
/// means.
const FORMERLY: &str = "entropy";

fn group<'a>(source: Source<'a>, table: &'a DeTable<'a>, line: usize) -> Result<Group, Mistake> {
    let mut known: Vec<&str> = axis_names().collect();
    known.extend(["workload", "parameters", "repeats", "headline", FORMERLY]);
    let fields = Fields::new(source, table, line, ("a group of cells", &known))?;
    let mut axes = BTreeMap::new();
    for axis in axis_names() {
        let mut values = fields.words(axis)?;
        if axis == "compressible" && values.is_empty() {
            values = fields.words(FORMERLY)?;
        }
        for value in &values {
            verify_value(&fields, axis, value)?;
        }
        if !values.is_empty() {
            axes.insert(axis.to_owned(), values);
        }
    }
    if !axes.contains_key("file-system") {
        return Err(fields.error(line, "a group of cells needs a `file-system`"));
    }
    let parameters = match fields.table("parameters")? {
        Some((table, line)) => Fields::free(source, table, line).all_words()?,
        None => BTreeMap::new(),
    };
    Ok(Group {
        workload: fields.needed("workload")?,
        repeats: repeats(&fields)?,
        headline: fields.yes("headline")?,
        axes,
        parameters,
        line,
    })
}

fn verify_value(fields: &Fields<'_>, axis: &str, value: &Word) -> Result<(), Mistake> {
    let range = |low: u64, high: u64| match value.text.parse::<u64>() {
        Ok(number) if (low..=high).contains(&number) => Ok(()),
        _ => Err(fields.error(
            value.line,
            format!("`{axis}` is {low} to {high}, not `{}`", value.text),
        )),
    };
    let one_of = |words: &[&'static str]| {
        if words.contains(&value.text.as_str()) {
            return Ok(());
        }
        let hint = nearest(&value.text, words.iter().copied());
        let what = format!("`{axis}` cannot be `{}`{hint}", value.text);
        Err(fields.error(value.line, what))
    };
    match axis {
        "devices" => range(1, 4),
        "compressible" => range(0, 100),
        "concurrency" => range(1, 10_000),
        "cache" => one_of(&["warm", "cold", "capped"]),
        "wake" => one_of(&["halting", "polling"]),
        _ => Ok(()),
    }
}

fn leave_out<'a>(
    source: Source<'a>,
    table: &'a DeTable<'a>,
    line: usize,
    groups: &[Group],
) -> Result<BTreeMap<String, Vec<Word>>, Mistake> {
    let fields = Fields::free(source, table, line);
    let mut known: Vec<&str> = vec!["workload"];
    for name in axis_names() {
        known.push(name);
    }
    for name in groups.iter().flat_map(|group| group.parameters.keys()) {
        known.push(name);
    }
    for (key, line) in fields.keys() {
        if !known.contains(&key) {
            let hint = nearest(key, known.iter().copied());
            return Err(source.mistake(line, format!("there is no axis `{key}`{hint}")));
        }
    }
    let all = fields.all_words()?;
    if all.is_empty() {
        return Err(source.mistake(line, "an empty [[leave-out]] would leave out everything"));
    }
    Ok(all)
}

fn scales(source: Source<'_>, top: &Fields<'_>) -> Result<Vec<Scale>, Mistake> {
    let small = Scale {
        name: "small".to_owned(),
        device_size: 4 << 30,
        device: DeviceKind::File,
        memory: Some(1 << 30),
        settle: 0.5,
        repeats: None,
        parameters: BTreeMap::new(),
    };
    let mut found = Vec::new();
    if let Some((table, line)) = top.table("scale")? {
        let names = Fields::free(source, table, line);
        for (name, line) in names.keys() {
            let Some((table, _)) = names.table(name)? else {
                continue;
            };
            let fields = Fields::new(source, table, line, ("a scale", SCALE))?;
            let device = match fields.one_of("device", &["memory", "file"])?.as_deref() {
                Some("memory") => DeviceKind::Memory,
                _ => DeviceKind::File,
            };
            let mut parameters = BTreeMap::new();
            if let Some((table, line)) = fields.table("parameters")? {
                let workloads = Fields::free(source, table, line);
                for (workload, line) in workloads.keys() {
                    let Some((table, _)) = workloads.table(workload)? else {
                        continue;
                    };
                    let words = Fields::free(source, table, line).all_words()?;
                    parameters.insert(workload.to_owned(), words);
                }
            }
            found.push(Scale {
                name: name.to_owned(),
                device_size: fields.size("device-size")?.unwrap_or(small.device_size),
                device,
                memory: fields.size("memory")?,
                settle: fields.seconds("settle")?.unwrap_or(small.settle),
                repeats: repeats(&fields)?,
                parameters,
            });
        }
    }
    if !found.iter().any(|scale| scale.name == "small") {
        found.insert(0, small);
    }
    Ok(found)
}
