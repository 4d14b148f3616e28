//! From axes to cells.

use super::{Cache, Cell, RATE};
use crate::catalogue::Catalogue;
use crate::declaration::{Mistake, Word, nearest};
use crate::experiment::{Experiment, Group, Scale};
use crate::filesystem::{FileSystem, FileSystems};
use crate::machine::Machine;
use crate::model::CellKey;
use crate::published::{CONCURRENCY, SYSTEM_AXES};
use crate::wakeup::Wake;
use crate::workload::{Demand, Parameters, Workload};
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Sources<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) scale: &'a Scale,
    pub(super) file_systems: &'a FileSystems,
    pub(super) workloads: &'a Catalogue,
    pub(super) machine: &'a Machine,
    pub(super) only: &'a [String],
}

/// One value for each axis and parameter.
type Choices = BTreeMap<String, String>;

/// Axes of a group that are not parameters of the workload.
const OWN_AXES: &[&str] = &[
    "file-system",
    "mkfs",
    "mount",
    "devices",
    "profile",
    "scheduler",
    "cache",
    "wake",
    "history",
];

impl Sources<'_> {
    fn mistake(&self, line: usize, what: String) -> Mistake {
        Mistake {
            file: format!("{}.toml", self.experiment.name),
            line,
            what,
        }
    }

    fn file_system(&self, word: &Word) -> Result<&FileSystem, Mistake> {
        self.file_systems.get(&word.text).ok_or_else(|| {
            let hint = self.file_systems.hint(&word.text);
            self.mistake(
                word.line,
                format!("there is no file system `{}`{hint}", word.text),
            )
        })
    }
}

pub(super) fn cells(sources: &Sources<'_>) -> Result<Vec<Cell>, Mistake> {
    let mut found: Vec<Cell> = Vec::new();
    for group in &sources.experiment.groups {
        add_group(sources, group, &mut found)?;
    }
    if !sources.only.is_empty() {
        for name in sources.only {
            let word = Word {
                text: name.clone(),
                line: 1,
            };
            sources.file_system(&word)?;
        }
        found.retain(|cell| sources.only.contains(&cell.file_system));
    }
    let control = match &sources.experiment.control {
        Some(word) => Some(sources.file_system(word)?.name.clone()),
        None => None,
    };
    let is_control = |cell: &Cell| {
        cell.lack.is_none()
            && cell.default
            && control
                .as_ref()
                .is_none_or(|name| cell.file_system == *name)
    };
    // The control is in every block.
    let place = found
        .iter()
        .position(is_control)
        .or_else(|| found.iter().position(|cell| cell.lack.is_none()));
    if let Some(place) = place {
        found[place].control = true;
        found[place].repeats = u32::MAX;
    }
    Ok(found)
}

fn add_group(sources: &Sources<'_>, group: &Group, found: &mut Vec<Cell>) -> Result<(), Mistake> {
    let workload = sources.workloads.get(&group.workload.text);
    if workload.is_none() {
        let names = sources.workloads.iter().map(Workload::name);
        let hint = nearest(&group.workload.text, names);
        if hint.contains("did you mean") {
            let what = format!("there is no workload `{}`{hint}", group.workload.text);
            return Err(sources.mistake(group.workload.line, what));
        }
    }
    let parameters = parameters_of(sources, group, workload)?;
    for word in &group.axes["file-system"] {
        sources.file_system(word)?;
    }
    let mut lists: Vec<(String, Vec<String>)> = Vec::new();
    for (name, words) in group.axes.iter().chain(&parameters) {
        let values = words.iter().map(|word| word.text.clone()).collect();
        lists.push((name.clone(), values));
    }
    let mut all = product(&lists);
    // The default of each file system is always there.
    let with_defaults: Vec<Choices> = all
        .iter()
        .flat_map(|choices| [plain(choices), choices.clone()])
        .collect();
    all = with_defaults;
    let mut seen: BTreeSet<CellKey> = found.iter().map(|cell| cell.key.clone()).collect();
    for mut choices in all {
        choices.insert("workload".to_owned(), group.workload.text.clone());
        if sources
            .experiment
            .leave_out
            .iter()
            .any(|rule| is_left_out(rule, &choices))
        {
            continue;
        }
        let cell = cell(sources, group, workload, &choices)?;
        if seen.insert(cell.key.clone()) {
            found.push(cell);
        } else if let Some(same) = found.iter_mut().find(|other| other.key == cell.key) {
            same.repeats = same.repeats.max(cell.repeats);
            same.headline |= cell.headline;
        }
    }
    Ok(())
}

/// Parameters of a group, changed by the scale and verified.
fn parameters_of(
    sources: &Sources<'_>,
    group: &Group,
    workload: Option<&dyn Workload>,
) -> Result<BTreeMap<String, Vec<Word>>, Mistake> {
    let mut parameters = group.parameters.clone();
    let changed = sources.scale.parameters.get(&group.workload.text);
    for (name, words) in changed.into_iter().flatten() {
        // A list in the group is an axis. A scale only gives other single
        // values.
        parameters.insert(name.clone(), words.clone());
    }
    let Some(workload) = workload else {
        return Ok(parameters);
    };
    let known: Vec<&str> = workload
        .parameters()
        .iter()
        .map(|(name, ..)| *name)
        .collect();
    for (name, words) in &parameters {
        if !known.contains(&name.as_str()) {
            let line = words.first().map_or(group.line, |word| word.line);
            let hint = nearest(name, known.iter().copied());
            return Err(sources.mistake(
                line,
                format!("{} has no parameter `{name}`{hint}", workload.name()),
            ));
        }
    }
    Ok(parameters)
}

fn product(lists: &[(String, Vec<String>)]) -> Vec<Choices> {
    let mut all = vec![Choices::new()];
    for (name, values) in lists {
        all = all
            .into_iter()
            .flat_map(|choices| {
                values.iter().map(move |value| {
                    let mut choices = choices.clone();
                    choices.insert(name.clone(), value.clone());
                    choices
                })
            })
            .collect();
    }
    all
}

/// The same without options and history.
fn plain(choices: &Choices) -> Choices {
    let mut choices = choices.clone();
    choices.retain(|axis, _| {
        axis == "file-system"
            || !SYSTEM_AXES.contains(&axis.as_str()) && axis != "history" && axis != "scheduler"
    });
    choices
}

fn is_left_out(rule: &BTreeMap<String, Vec<Word>>, choices: &Choices) -> bool {
    rule.iter().all(|(axis, words)| {
        let value = choices.get(axis).map_or("", String::as_str);
        words.iter().any(|word| word.text == value)
    })
}

/// The value of an axis; "" if it is absent or says the default.
fn value<'a>(choices: &'a Choices, axis: &str) -> &'a str {
    let value = choices.get(axis).map_or("", |value| value.trim());
    match (axis, value) {
        (_, "default") | ("devices", "1") | ("cache", "warm") => "",
        (_, value) => value,
    }
}

fn cell(
    sources: &Sources<'_>,
    group: &Group,
    workload: Option<&dyn Workload>,
    choices: &Choices,
) -> Result<Cell, Mistake> {
    let get = |axis: &str| value(choices, axis).to_owned();
    let file_system = sources
        .file_systems
        .get(&choices["file-system"])
        .ok_or_else(|| sources.mistake(group.line, "a file system went missing".to_owned()))?;
    let (mkfs, mount) = (get("mkfs"), get("mount"));
    let mut parameters: Parameters = Parameters::new();
    let mut key = BTreeMap::new();
    for axis in choices.keys() {
        let value = value(choices, axis);
        if OWN_AXES.contains(&axis.as_str()) || axis == "workload" {
            if !value.is_empty() {
                key.insert(axis.clone(), value.to_owned());
            }
            continue;
        }
        let Some(parameter) = parameter_of(workload, axis) else {
            let line = group.axes.get(axis).and_then(|words| words.first());
            return Err(sources.mistake(
                line.map_or(group.line, |word| word.line),
                format!("the workload {} has no {axis}", group.workload.text),
            ));
        };
        parameters.insert(parameter, choices[axis].clone());
        key.insert(axis.clone(), choices[axis].clone());
    }
    let share = share_of(&mut parameters).map_err(|given| {
        sources.mistake(group.line, format!("{RATE} is 1% to 200%, not {given}"))
    })?;
    let devices: usize = choices.get("devices").map_or(1, |v| v.parse().unwrap_or(1));
    let cache = match value(choices, "cache") {
        "cold" => Cache::Cold,
        "capped" => Cache::Capped,
        _ => Cache::Warm,
    };
    let wake = Wake::parse(value(choices, "wake"));
    let (profile, history, scheduler) = (get("profile"), get("history"), get("scheduler"));
    let default = mkfs.is_empty()
        && mount.is_empty()
        && devices == 1
        && profile.is_empty()
        && history.is_empty()
        && scheduler.is_empty();
    let demand = match workload {
        Some(workload) => workload.demand(&parameters).map_err(|why| {
            let what = format!("{}: {why}", workload.name());
            sources.mistake(group.workload.line, what)
        })?,
        None => Demand::default(),
    };
    let mut cell = Cell {
        durability: file_system.promise(&mkfs, &mount),
        key: CellKey(key),
        file_system: file_system.name.clone(),
        workload: group.workload.text.clone(),
        repeats: group.repeats.unwrap_or(u32::MAX),
        headline: group.headline,
        control: false,
        lack: None,
        mkfs,
        mount,
        devices,
        profile,
        scheduler,
        cache,
        wake,
        history,
        parameters,
        share,
        default,
        demand,
    };
    cell.lack = lack(sources, file_system, workload, &cell);
    Ok(cell)
}

/// Takes a rate in per cent out of the parameters, and leaves the rate 0 (a
/// closed loop) there.
fn share_of(parameters: &mut Parameters) -> Result<Option<f64>, String> {
    let Some(given) = parameters.get(RATE).filter(|rate| rate.ends_with('%')) else {
        return Ok(None);
    };
    let percent = given.trim_end_matches('%').trim().parse::<f64>();
    let percent = percent.ok().filter(|p| (1.0..=200.0).contains(p));
    let share = percent.ok_or_else(|| given.clone())? / 100.0;
    parameters.insert(RATE.to_owned(), "0".to_owned());
    Ok(Some(share))
}

/// What a workload calls an axis.
fn parameter_of(workload: Option<&dyn Workload>, axis: &str) -> Option<String> {
    let Some(workload) = workload else {
        return Some(axis.to_owned());
    };
    let names: &[&str] = match axis {
        CONCURRENCY => &[CONCURRENCY, "clients", "threads", "jobs"],
        axis => &[axis],
    };
    let known = workload.parameters();
    let found = names
        .iter()
        .find(|name| known.iter().any(|(known, ..)| known == *name))?;
    Some((*found).to_owned())
}

/// Why this machine cannot run a cell.
fn lack(
    sources: &Sources<'_>,
    file_system: &FileSystem,
    workload: Option<&dyn Workload>,
    cell: &Cell,
) -> Option<String> {
    if let Some(lack) = sources.machine.lacks_file_system(file_system) {
        return Some(lack);
    }
    let name = &file_system.name;
    if cell.devices > file_system.max_devices {
        return Some(format!(
            "{name} takes {} device{}",
            file_system.max_devices,
            if file_system.max_devices == 1 {
                ""
            } else {
                "s at most"
            }
        ));
    }
    if !cell.profile.is_empty() && !file_system.profiles.contains(&cell.profile) {
        return Some(format!("{name} has no profile {}", cell.profile));
    }
    if !cell.history.is_empty() {
        let Some(history) = file_system.history(&cell.history) else {
            return Some(format!("{name} cannot be: {}", cell.history));
        };
        let through = history.through.as_ref();
        let through = through.and_then(|name| sources.file_systems.get(name));
        if let Some(lack) = through.and_then(|other| sources.machine.lacks_file_system(other)) {
            return Some(lack);
        }
    }
    if let Some(lack) = cell.wake.and_then(|_| crate::wakeup::lack()) {
        return Some(format!("its processors are woken as they are: {lack}"));
    }
    if cell.cache == Cache::Capped
        && let Err(why) = &sources.machine.cap
    {
        return Some(format!("memory cannot be capped: {why}"));
    }
    match workload {
        None => Some(format!("this program has no workload {}", cell.workload)),
        Some(workload) if file_system.library && !workload.is_by_files() => Some(format!(
            "{} needs a mounted directory, which a library does not give",
            workload.name()
        )),
        Some(workload) => sources.machine.lacks_workload(workload),
    }
}

/// Axes of a cell that do not distinguish systems, as text.
pub(crate) fn condition_of(key: &CellKey) -> String {
    crate::report::label_of(key, |axis| !SYSTEM_AXES.contains(&axis))
}

impl Cell {
    /// System and condition, for people.
    pub fn name(&self) -> String {
        crate::report::label_of(&self.key, |_| true)
    }

    /// Its axes that do not distinguish systems. Cells with equal conditions
    /// are compared.
    pub fn condition(&self) -> String {
        condition_of(&self.key)
    }

    /// The condition of the closed-loop cells. The rate of this cell is a share
    /// of their throughput.
    pub(crate) fn closed_condition(&self) -> Option<String> {
        self.share?;
        let mut key = self.key.clone();
        key.0.insert(RATE.to_owned(), "0".to_owned());
        Some(condition_of(&key))
    }

    /// Processes, threads or clients.
    pub fn concurrency(&self) -> u32 {
        let value = self.key.0.get(CONCURRENCY);
        value.and_then(|value| value.parse().ok()).unwrap_or(1)
    }
}
