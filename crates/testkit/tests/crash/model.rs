//! What a crash may leave, given what was done and what was acknowledged.
//!
//! Every path has a history of bindings to inodes, and every file has one of
//! contents. An acknowledgement (fsync of a file, of a directory, sync) sets
//! the earliest entry of a history that a crash may show. Entries of operations
//! that began after the crash are not allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// A place in the recording.
pub type Time = usize;
pub type Number = u64;

/// Content and one extended attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub data: Vec<u8>,
    pub attribute: Option<Vec<u8>>,
}

/// Number of an operation, in order.
pub type Step = usize;

/// Whether a commit that contains a part of an operation contains all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The tree changes with the operation.
    AtOnce,
    /// Data wait in memory; a commit may come before they are written.
    Delayed,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    /// When its operation began.
    time: Time,
    step: Step,
    effect: Effect,
    value: T,
}

/// Entries, and acknowledgements: the earliest entry that may be found, and
/// since when.
#[derive(Clone, Debug)]
pub struct History<T> {
    entries: Vec<Entry<T>>,
    acknowledged: Vec<(Time, usize)>,
}

impl<T> History<T> {
    fn new(time: Time, step: Step, value: T) -> Self {
        let effect = Effect::AtOnce;
        let first = Entry {
            time,
            step,
            effect,
            value,
        };
        Self {
            entries: vec![first],
            acknowledged: Vec::new(),
        }
    }

    pub fn last(&self) -> &T {
        &self.entries.last().expect("never empty").value
    }

    fn acknowledge(&mut self, time: Time) {
        self.acknowledged.push((time, self.entries.len() - 1));
    }

    /// All entries.
    #[allow(dead_code, reason = "one of the tests asks")]
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.value)
    }

    /// Entries that a crash at `time` may show. An operation that begins at
    /// `time` has not written anything yet.
    fn window(&self, time: Time) -> &[Entry<T>] {
        let promised = self.acknowledged.iter().filter(|(at, _)| *at <= time);
        let least = promised.map(|(_, entry)| *entry).max().unwrap_or(0);
        let begun = self
            .entries
            .iter()
            .filter(|entry| entry.time < time)
            .count();
        &self.entries[least..begun.max(least + 1)]
    }

    /// What a crash at `time` may show.
    fn allowed(&self, time: Time) -> impl Iterator<Item = &T> {
        self.window(time).iter().map(|entry| &entry.value)
    }

    /// The value when operation `step` was done.
    fn at(&self, step: Step) -> Option<&T> {
        let past = self.entries.partition_point(|entry| entry.step <= step);
        Some(&self.entries[past.checked_sub(1)?].value)
    }
}

/// What an operation makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durable {
    File(Number),
    Directory,
    All,
}

/// What was done to a volume.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub paths: BTreeMap<String, History<Option<Number>>>,
    pub files: BTreeMap<Number, History<Content>>,
    /// When each operation began.
    steps: Vec<Time>,
    /// Operations that were acknowledged, and when.
    acknowledged: Vec<(Time, Step, Durable)>,
    /// Operations that make a part of the volume durable, but not everything.
    partial: Vec<Step>,
    /// When a subvolume was received as a whole.
    whole: Option<Step>,
}

/// What is found after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub paths: BTreeMap<String, Number>,
    pub files: BTreeMap<Number, Content>,
}

#[allow(dead_code, reason = "each test uses a part")]
/// Bytes that are written as a whole: a block if data are copied on write,
/// otherwise a sector of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    Block = 4096,
    Sector = 512,
}

/// The bytes of one unit, zeros beyond the end.
fn unit(data: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    let mut unit = vec![0; range.len()];
    let part = data.get(range.start..).unwrap_or_default();
    let length = part.len().min(unit.len());
    unit[..length].copy_from_slice(&part[..length]);
    unit
}

impl Model {
    /// A volume that has all of this from the beginning on.
    #[allow(dead_code, reason = "one of the tests asks")]
    pub fn of(found: &Found) -> Self {
        let mut model = Self::default();
        for (path, number) in &found.paths {
            let history = History::new(0, 0, Some(*number));
            model.paths.insert(path.clone(), history);
        }
        for (number, content) in &found.files {
            let history = History::new(0, 0, content.clone());
            model.files.insert(*number, history);
        }
        model
    }

    pub fn number(&self, path: &str) -> Number {
        self.paths
            .get(path)
            .and_then(|history| *history.last())
            .unwrap_or_else(|| panic!("the workload names {path}, which is not there"))
    }

    pub fn content(&self, path: &str) -> &Content {
        self.files[&self.number(path)].last()
    }

    /// An operation begins.
    pub fn begin(&mut self, time: Time) {
        self.steps.push(time);
    }

    /// The operation that runs makes a file or directory durable.
    pub fn begin_fsync(&mut self) {
        self.partial.push(self.step());
    }

    /// The number of the operation that runs. What existed before the first one
    /// has 0.
    fn step(&self) -> Step {
        self.steps.len()
    }

    pub fn bind(&mut self, time: Time, path: &str, number: Option<Number>) {
        let step = self.step();
        let history = self
            .paths
            .entry(path.to_owned())
            .or_insert_with(|| History::new(0, 0, None));
        history.entries.push(Entry {
            time,
            step,
            effect: Effect::AtOnce,
            value: number,
        });
    }

    /// A name moves, with everything below it, over what is there.
    pub fn rename(&mut self, time: Time, from: &str, to: &str) {
        self.move_names(time, &[(from, to)]);
    }

    /// Two names change places, with everything below them.
    pub fn exchange(&mut self, time: Time, one: &str, other: &str) {
        self.move_names(time, &[(one, other), (other, one)]);
    }

    fn move_names(&mut self, time: Time, moves: &[(&str, &str)]) {
        let old: Vec<(String, Number)> = self
            .paths
            .iter()
            .filter_map(|(path, history)| Some((path.clone(), (*history.last())?)))
            .collect();
        let below = |path: &str, dir: &str| -> Option<String> {
            let rest = path.strip_prefix(dir)?;
            (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
        };
        // What is replaced or moved away is removed first.
        for (path, _) in &old {
            let goes = |(from, to): &(&str, &str)| {
                below(path, from).is_some() || below(path, to).is_some()
            };
            if moves.iter().any(goes) {
                self.bind(time, path, None);
            }
        }
        for (path, number) in &old {
            for (from, to) in moves {
                if let Some(rest) = below(path, from) {
                    self.bind(time, &format!("{to}{rest}"), Some(*number));
                }
            }
        }
    }

    /// All of a subvolume was received.
    pub fn received(&mut self) {
        self.whole = Some(self.step());
    }

    /// Errors with the reason if what is below `prefix` is not everything that
    /// was received.
    #[allow(dead_code, reason = "one of the tests asks")]
    pub fn judge_whole(&self, prefix: &str, found: &Found) -> Result<(), String> {
        let Some(step) = self.whole else {
            return Err(format!("{prefix} was never whole"));
        };
        let below = self
            .paths
            .iter()
            .filter(|(path, _)| path.starts_with(prefix));
        for (path, history) in below {
            let number = history.at(step).copied().flatten();
            if found.paths.get(path).copied() != number {
                return Err(format!("{path} of a whole subvolume is not as it must be"));
            }
            let file = number.and_then(|number| Some((number, self.files.get(&number)?)));
            if let Some((number, file)) = file
                && found.files.get(&number) != file.at(step)
            {
                return Err(format!("{path} of a whole subvolume has other content"));
            }
        }
        Ok(())
    }

    pub fn add_file(&mut self, time: Time, number: Number) {
        if self.files.contains_key(&number) {
            // A deleted subvolume is received again, with the same numbers.
            return self.change_file(time, number, Effect::Delayed, |content| {
                *content = Content::default();
            });
        }
        let history = History::new(time, self.step(), Content::default());
        self.files.insert(number, history);
    }

    /// A file that begins as a copy of another.
    pub fn add_copy(&mut self, time: Time, number: Number, content: Content) {
        let history = History::new(time, self.step(), content);
        self.files.insert(number, history);
    }

    /// All names, but not all data, were made durable.
    pub fn acknowledge_names(&mut self, time: Time) {
        for history in self.paths.values_mut() {
            history.acknowledge(time);
        }
    }

    pub fn change_file(
        &mut self,
        time: Time,
        number: Number,
        effect: Effect,
        change: impl FnOnce(&mut Content),
    ) {
        let step = self.step();
        let history = self.files.get_mut(&number).expect("a file");
        let mut value = history.last().clone();
        change(&mut value);
        history.entries.push(Entry {
            time,
            step,
            effect,
            value,
        });
    }

    /// A file and its names were made durable.
    pub fn acknowledge_file(&mut self, time: Time, number: Number) {
        let step = self.step();
        self.acknowledged.push((time, step, Durable::File(number)));
        if let Some(file) = self.files.get_mut(&number) {
            file.acknowledge(time);
        }
        let named: Vec<String> = self
            .paths
            .iter()
            .filter(|(_, history)| *history.last() == Some(number))
            .map(|(path, _)| path.clone())
            .collect();
        for path in named {
            let mut parts = path.as_str();
            while !parts.is_empty() {
                if let Some(history) = self.paths.get_mut(parts) {
                    history.acknowledge(time);
                }
                parts = parts.rsplit_once('/').map_or("", |(parent, _)| parent);
            }
        }
    }

    /// The names in a directory were made durable.
    pub fn acknowledge_directory(&mut self, time: Time, dir: &str) {
        let step = self.step();
        self.acknowledged.push((time, step, Durable::Directory));
        for (path, history) in &mut self.paths {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            if parent == dir || path == dir {
                history.acknowledge(time);
            }
        }
    }

    /// Everything was made durable.
    pub fn acknowledge_all(&mut self, time: Time) {
        let step = self.step();
        self.acknowledged.push((time, step, Durable::All));
        for history in self.paths.values_mut() {
            history.acknowledge(time);
        }
        for history in self.files.values_mut() {
            history.acknowledge(time);
        }
    }

    /// Errors with the reason if what was found is not possible after a crash at
    /// `time`.
    pub fn judge(&self, time: Time, found: &Found, whole: Whole) -> Result<(), String> {
        for path in found.paths.keys() {
            if !self.paths.contains_key(path) {
                return Err(format!("{path} was never made"));
            }
        }
        for (path, history) in &self.paths {
            let is = found.paths.get(path).copied();
            // Below a directory that is elsewhere (or does not exist yet) there
            // is nothing.
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            let reachable = parent.is_empty() || found.paths.contains_key(parent);
            if !reachable && is.is_none() {
                continue;
            }
            if !history.allowed(time).any(|allowed| *allowed == is) {
                let allowed: Vec<_> = history.allowed(time).collect();
                return Err(format!("{path} is {is:?}, not one of {allowed:?}"));
            }
        }
        self.judge_names(time, found)?;
        self.judge_prefix(time, found)?;
        for (number, content) in &found.files {
            let history = self
                .files
                .get(number)
                .ok_or_else(|| format!("file {number} was never made"))?;
            judge_file(history, time, content, whole)
                .map_err(|reason| format!("file {number}: {reason}"))?;
        }
        Ok(())
    }

    /// Which operations a crash at `time` may find as the last one done: from
    /// the last that was promised, for everything or for one file, to the last
    /// that had begun.
    fn steps(&self, time: Time, number: Option<Number>) -> RangeInclusive<Step> {
        let promised = self.acknowledged.iter().filter(|(at, _, what)| {
            *at <= time
                && match what {
                    Durable::All => true,
                    Durable::File(file) => Some(*file) == number,
                    Durable::Directory => false,
                }
        });
        let least = promised.map(|(_, step, _)| *step).max().unwrap_or(0);
        let begun = self.steps.partition_point(|began| *began < time);
        least..=begun.max(least)
    }

    /// An inode has as many names as it had at some time: nobody sees both
    /// names of a rename, or none. A name that it lost before it was made
    /// durable does not come back.
    fn judge_names(&self, time: Time, found: &Found) -> Result<(), String> {
        let mut names: BTreeMap<Number, Vec<(&str, &History<_>)>> = BTreeMap::new();
        for (path, history) in &self.paths {
            let numbers: BTreeSet<Number> = history.all().copied().flatten().collect();
            for number in numbers {
                names.entry(number).or_default().push((path, history));
            }
        }
        for (number, names) in names {
            let steps = self.steps(time, Some(number));
            let had = |step| {
                let has = |history: &History<_>| history.at(step) == Some(&Some(number));
                names.iter().filter(|(_, history)| has(history)).count()
            };
            let counts: Vec<usize> = steps.clone().map(had).collect();
            let (least, most) = (counts.iter().min(), counts.iter().max());
            let is = |path: &str| found.paths.get(path) == Some(&number);
            let count = names.iter().filter(|(path, _)| is(path)).count();
            if Some(&count) < least || Some(&count) > most {
                return Err(format!(
                    "inode {number} has {count} names, not one of {counts:?}"
                ));
            }
            for (path, history) in names {
                let had = |step| history.at(step) == Some(&Some(number));
                if is(path) && !steps.clone().any(had) {
                    return Err(format!("inode {number} lost its name {path} for good"));
                }
            }
        }
        Ok(())
    }

    /// If there was no fsync since the last promised commit, the names are
    /// those of one moment.
    fn judge_prefix(&self, time: Time, found: &Found) -> Result<(), String> {
        let mut steps = self.steps(time, None);
        if self.partial.iter().any(|step| steps.contains(step)) {
            return Ok(());
        }
        let of = |step| {
            let named = |(path, history): (&String, &History<Option<Number>>)| {
                Some((path.clone(), (*history.at(step)?)?))
            };
            self.paths.iter().filter_map(named).collect()
        };
        if steps.any(|step| found.paths == of(step)) {
            return Ok(());
        }
        Err("the names are of no one moment".to_owned())
    }
}

impl History<Content> {
    /// Whether every block of `data` had this content at some time.
    #[allow(dead_code, reason = "one of the tests asks")]
    pub fn ever(&self, data: &[u8]) -> bool {
        (0..data.len()).step_by(Whole::Block as usize).all(|at| {
            let range = at..data.len().min(at + Whole::Block as usize);
            self.all()
                .any(|content| unit(&content.data, range.clone()) == data[range.clone()])
        })
    }
}

fn judge_file(
    history: &History<Content>,
    time: Time,
    found: &Content,
    whole: Whole,
) -> Result<(), String> {
    let window = history.window(time);
    let attribute = |entry: &Entry<Content>| entry.value.attribute == found.attribute;
    if !window.iter().any(attribute) {
        return Err("its attribute was never so".to_owned());
    }
    let mut first = None;
    for last in (0..window.len()).rev() {
        match judge_data(&window[..=last], &found.data, whole) {
            Ok(()) => return Ok(()),
            Err(reason) => first = first.or(Some(reason)),
        }
    }
    Err(first.unwrap_or_default())
}

/// Compares data with the versions of a file. A commit or a log may contain the
/// last version, but lack data of writes. But if it has anything from after a
/// truncation or a hole, the bytes that these removed are gone.
fn judge_data(versions: &[Entry<Content>], found: &[u8], whole: Whole) -> Result<(), String> {
    let in_place = whole == Whole::Sector;
    // The operation of the last version may itself be done only in part.
    let settled = versions.len().saturating_sub(1);
    let removals = || {
        let both = versions[..settled].windows(2).enumerate();
        let kind = |(at, pair): (usize, &[Entry<Content>])| {
            let cuts = pair[1].effect == Effect::AtOnce && !in_place;
            cuts.then_some(at + 1)
        };
        both.filter_map(kind).collect::<Vec<_>>()
    };
    let removals = removals();
    let data = |at: usize| &versions[at].value.data;
    let shrunk = |at: &&usize| data(**at).len() < data(**at - 1).len();
    let least = removals.iter().filter(shrunk).max().copied().unwrap_or(0);
    let lengths: Vec<usize> = (least..versions.len()).map(|at| data(at).len()).collect();
    if !lengths.contains(&found.len()) {
        return Err(format!(
            "it has {} bytes, not one of {lengths:?}",
            found.len()
        ));
    }
    for at in (0..found.len()).step_by(whole as usize) {
        let range = at..at + whole as usize;
        let is = unit(found, range.clone());
        let seen = at..found.len().min(range.end);
        let took = |removal: &&usize| {
            let zeros = unit(data(**removal), range.clone());
            let before = unit(data(**removal - 1), range.clone());
            zeros.iter().all(|byte| *byte == 0) && before != zeros
        };
        let least = removals.iter().filter(took).max().copied().unwrap_or(0);
        // A version that ends before this unit says nothing about the rest of
        // the unit, unless it was written over existing data, with zeros
        // behind.
        let was = |version: usize| {
            (in_place || data(version).len() >= seen.end)
                && unit(data(version), seen.clone()) == is[..seen.len()]
        };
        if !(least..versions.len()).any(was) {
            return Err(format!(
                "bytes from {at} of {} were never so in {} versions",
                found.len(),
                versions.len() - least
            ));
        }
    }
    Ok(())
}
