//! Random sequences of operations and fsyncs, and what a volume shows after
//! each step when nothing crashes.

use super::common::Random;
use std::collections::BTreeMap;

/// Names that steps use, in directories that the last commit has.
pub const PATHS: [&str; 6] = ["d1/a", "d1/b", "d1/c", "d2/a", "d2/b", "d1/d"];
pub const ATTRIBUTES: [&str; 2] = ["user.one", "user.two"];

/// A name, by its place in [`PATHS`].
pub type Name = usize;
/// A file, by the order in which files were made.
pub type FileNumber = usize;

/// Whether the file stays open when its name goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    Kept,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Create(Name),
    Link(FileNumber, Name),
    Unlink(Name, Handle),
    Rename(Name, Name, Handle),
    Exchange(Name, Name),
    Write(FileNumber, u8),
    SetAttribute(FileNumber, usize, u8),
    RemoveAttribute(FileNumber, usize),
    Fsync(FileNumber),
}

/// What a volume shows: files are known by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub names: BTreeMap<Name, FileNumber>,
    pub data: BTreeMap<FileNumber, Content>,
    pub attributes: BTreeMap<(FileNumber, usize), Vec<u8>>,
}

impl State {
    pub fn names_of(&self, file: FileNumber) -> Vec<Name> {
        let names = self.names.iter().filter(|(_, other)| **other == file);
        names.map(|(name, _)| *name).collect()
    }

    pub fn attributes_of(&self, file: FileNumber) -> Vec<(usize, &[u8])> {
        let all =
            (0..ATTRIBUTES.len()).filter_map(|at| Some((at, self.attributes.get(&(file, at))?)));
        all.map(|(at, value)| (at, &value[..])).collect()
    }

    fn unname(&mut self, name: Name) -> Option<FileNumber> {
        self.names.remove(&name)
    }

    fn apply(&mut self, step: Step, files: FileNumber) {
        match step {
            Step::Create(name) => {
                self.names.insert(name, files);
                self.data.insert(files, Content::default());
            }
            Step::Link(file, name) => {
                self.names.insert(name, file);
            }
            Step::Unlink(name, _) => {
                self.unname(name);
            }
            Step::Rename(from, to, _) => {
                if self.names.get(&from) != self.names.get(&to) {
                    let file = self.unname(from).unwrap();
                    self.names.insert(to, file);
                }
            }
            Step::Exchange(one, two) => {
                let (first, second) = (self.names[&one], self.names[&two]);
                self.names.insert(one, second);
                self.names.insert(two, first);
            }
            Step::Write(file, byte) => {
                self.data.insert(file, Content::of(byte));
            }
            Step::SetAttribute(file, at, byte) => {
                self.attributes.insert((file, at), vec![byte]);
            }
            Step::RemoveAttribute(file, at) => {
                self.attributes.remove(&(file, at));
            }
            Step::Fsync(_) => {}
        }
    }
}

/// Content of one byte, again and again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    byte: u8,
    length: usize,
}

impl Content {
    pub const fn of(byte: u8) -> Self {
        let length = if byte.is_multiple_of(2) { 100 } else { 8192 };
        Self { byte, length }
    }

    pub fn read(data: &[u8]) -> Self {
        let byte = data.first().copied().unwrap_or_default();
        assert!(data.iter().all(|other| *other == byte), "mixed content");
        let length = data.len();
        Self { byte, length }
    }

    pub fn bytes(self) -> Vec<u8> {
        vec![self.byte; self.length]
    }
}

/// A sequence that both sides can run.
pub struct Sequence {
    pub steps: Vec<Step>,
    /// The state before the first step, and after each.
    pub states: Vec<State>,
}

/// The state before each sequence: three files, one of them with two names.
pub const BASE: [Step; 8] = [
    Step::Create(0),
    Step::Create(1),
    Step::Link(1, 3),
    Step::Create(4),
    Step::Write(0, 2),
    Step::Write(1, 4),
    Step::SetAttribute(0, 0, 1),
    Step::SetAttribute(1, 0, 1),
];

pub fn base() -> State {
    let mut state = State::default();
    let mut files = 0;
    for step in BASE {
        state.apply(step, files);
        files += usize::from(matches!(step, Step::Create(_)));
    }
    state
}

impl Sequence {
    pub fn of(steps: &[Step]) -> Self {
        let mut now = base();
        let mut files = now.data.len();
        let mut states = vec![now.clone()];
        for step in steps {
            now.apply(*step, files);
            files += usize::from(matches!(step, Step::Create(_)));
            states.push(now.clone());
        }
        Self {
            steps: steps.to_vec(),
            states,
        }
    }

    pub fn before(&self) -> &State {
        &self.states[0]
    }

    pub fn now(&self) -> &State {
        &self.states[self.steps.len()]
    }

    pub fn random(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1);
        let mut state = base();
        let mut files = state.data.len();
        let mut closed = Vec::new();
        let mut steps = Vec::new();
        let length = 3 + random.below(7) as usize;
        while steps.len() < length {
            let Some(step) = pick(
                &mut random,
                &state,
                files,
                &closed,
                steps.len() + 1 == length,
            ) else {
                continue;
            };
            if let Step::Unlink(name, Handle::Closed) = step {
                closed.push(state.names[&name]);
            }
            if let Step::Rename(_, to, Handle::Closed) = step {
                closed.extend(state.names.get(&to));
            }
            state.apply(step, files);
            files += usize::from(matches!(step, Step::Create(_)));
            steps.push(step);
        }
        Self::of(&steps)
    }
}

/// A step that is possible, or none.
fn pick(
    random: &mut Random,
    state: &State,
    files: usize,
    closed: &[FileNumber],
    last: bool,
) -> Option<Step> {
    let names: Vec<Name> = state.names.keys().copied().collect();
    let free: Vec<Name> = (0..PATHS.len()).filter(|n| !names.contains(n)).collect();
    let open: Vec<FileNumber> = (0..files).filter(|n| !closed.contains(n)).collect();
    let one = |random: &mut Random, all: &[usize]| {
        (!all.is_empty()).then(|| all[random.below(all.len() as u64) as usize])
    };
    let file = one(random, &open)?;
    let byte = random.below(200) as u8;
    let at = random.below(ATTRIBUTES.len() as u64) as usize;
    let handle = |random: &mut Random, name: Option<Name>| {
        let last = name.is_some_and(|name| state.names_of(state.names[&name]).len() == 1);
        // One stays open, to be fsynced at the end.
        match last && random.below(2) == 0 && open.len() > 1 {
            true => Handle::Closed,
            false => Handle::Kept,
        }
    };
    if last {
        return Some(Step::Fsync(file));
    }
    Some(match random.below(20) {
        0..2 => Step::Create(one(random, &free)?),
        2..5 if !state.names_of(file).is_empty() => Step::Link(file, one(random, &free)?),
        5..8 => {
            let name = one(random, &names)?;
            Step::Unlink(name, handle(random, Some(name)))
        }
        8..11 => {
            let (from, to) = (
                one(random, &names)?,
                random.below(PATHS.len() as u64) as usize,
            );
            if state.names.get(&to) == state.names.get(&from) {
                return None;
            }
            let replaced = state.names.contains_key(&to).then_some(to);
            Step::Rename(from, to, handle(random, replaced))
        }
        11 => {
            let (first, second) = (one(random, &names)?, one(random, &names)?);
            if state.names[&first] == state.names[&second] {
                return None;
            }
            Step::Exchange(first, second)
        }
        12..14 => Step::Write(file, byte),
        14 => Step::SetAttribute(file, at, byte),
        15..17 if state.attributes.contains_key(&(file, at)) => Step::RemoveAttribute(file, at),
        17..20 => Step::Fsync(file),
        _ => return None,
    })
}
