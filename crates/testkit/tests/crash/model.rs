//! What a crash may leave, by what was done and what was acknowledged.
//!
//! Every path has a history of bindings to inodes, every file one of contents.
//! An acknowledgement (fsync of a file, of a directory, sync) says from which
//! entry of a history on a crash may show it; entries of operations that began
//! after the crash are not allowed.

use std::collections::BTreeMap;

/// A place in the recording.
pub type Time = usize;
pub type Number = u64;

/// Content and one extended attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub data: Vec<u8>,
    pub attribute: Option<Vec<u8>>,
}

/// Entries, each with when its operation began; and since when which entry is
/// the earliest that may be found.
#[derive(Clone, Debug)]
pub struct History<T> {
    entries: Vec<(Time, T)>,
    acknowledged: Vec<(Time, usize)>,
}

impl<T> History<T> {
    fn new(time: Time, first: T) -> Self {
        Self {
            entries: vec![(time, first)],
            acknowledged: Vec::new(),
        }
    }

    pub fn last(&self) -> &T {
        &self.entries.last().expect("never empty").1
    }

    fn push(&mut self, time: Time, entry: T) {
        self.entries.push((time, entry));
    }

    fn acknowledge(&mut self, time: Time) {
        self.acknowledged.push((time, self.entries.len() - 1));
    }

    /// All entries.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// What a crash at `time` may show.
    fn allowed(&self, time: Time) -> impl Iterator<Item = &T> {
        let promised = self.acknowledged.iter().filter(|(at, _)| *at <= time);
        let least = promised.map(|(_, entry)| *entry).max().unwrap_or(0);
        self.entries[least..]
            .iter()
            .enumerate()
            .filter(move |(at, (born, _))| *at == 0 || *born <= time)
            .map(|(_, (_, entry))| entry)
    }
}

/// What was done to a volume.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub paths: BTreeMap<String, History<Option<Number>>>,
    pub files: BTreeMap<Number, History<Content>>,
}

/// What is found after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub paths: BTreeMap<String, Number>,
    pub files: BTreeMap<Number, Content>,
}

#[allow(dead_code, reason = "each test uses a part")]
/// Bytes that are written as a whole: a block where data are copied on write,
/// else a sector of the device.
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
    pub fn number(&self, path: &str) -> Number {
        self.paths
            .get(path)
            .and_then(|history| *history.last())
            .unwrap_or_else(|| panic!("the workload names {path}, which is not there"))
    }

    pub fn content(&self, path: &str) -> &Content {
        self.files[&self.number(path)].last()
    }

    pub fn bind(&mut self, time: Time, path: &str, number: Option<Number>) {
        match self.paths.get_mut(path) {
            Some(history) => history.push(time, number),
            None => {
                let mut history = History::new(0, None);
                history.push(time, number);
                self.paths.insert(path.to_owned(), history);
            }
        }
    }

    pub fn add_file(&mut self, time: Time, number: Number) {
        let history = History::new(time, Content::default());
        self.files.insert(number, history);
    }

    pub fn change_file(&mut self, time: Time, number: Number, change: impl FnOnce(&mut Content)) {
        let history = self.files.get_mut(&number).expect("a file");
        let mut content = history.last().clone();
        change(&mut content);
        history.push(time, content);
    }

    /// A file and its names were made durable.
    pub fn acknowledge_file(&mut self, time: Time, number: Number) {
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
        for (path, history) in &mut self.paths {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            if parent == dir || path == dir {
                history.acknowledge(time);
            }
        }
    }

    /// Everything was made durable.
    pub fn acknowledge_all(&mut self, time: Time) {
        for history in self.paths.values_mut() {
            history.acknowledge(time);
        }
        for history in self.files.values_mut() {
            history.acknowledge(time);
        }
    }

    /// Why what was found cannot be after a crash at `time`, if so.
    pub fn judge(&self, time: Time, found: &Found, whole: Whole) -> Result<(), String> {
        for path in found.paths.keys() {
            if !self.paths.contains_key(path) {
                return Err(format!("{path} was never made"));
            }
        }
        for (path, history) in &self.paths {
            let is = found.paths.get(path).copied();
            // Below a directory that is elsewhere (or not yet) there is nothing.
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
        for (number, content) in &found.files {
            if let Some(history) = self.files.get(number) {
                judge_file(history, time, content, whole)
                    .map_err(|reason| format!("file {number}: {reason}"))?;
            }
        }
        Ok(())
    }
}

impl History<Content> {
    /// Whether every block of `data` was so at some time.
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
    let allowed: Vec<&Content> = history.allowed(time).collect();
    let length = found.data.len();
    if !allowed.iter().any(|content| content.data.len() == length) {
        let lengths: Vec<_> = allowed.iter().map(|content| content.data.len()).collect();
        return Err(format!("it has {length} bytes, not one of {lengths:?}"));
    }
    if !allowed
        .iter()
        .any(|content| content.attribute == found.attribute)
    {
        return Err("its attribute was never so".to_owned());
    }
    for at in (0..length).step_by(whole as usize) {
        // The rest of a last unit may be of a version that was longer.
        let range = at..length.min(at + whole as usize);
        let is = &found.data[range.clone()];
        if !allowed
            .iter()
            .any(|content| unit(&content.data, range.clone()) == is)
        {
            let versions = allowed.len();
            return Err(format!(
                "bytes from {at} of {length} were never so in {versions} versions"
            ));
        }
    }
    Ok(())
}
