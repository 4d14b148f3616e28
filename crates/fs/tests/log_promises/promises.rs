//! Judges what a volume shows after a sequence and a crash: by what fsyncs
//! promised, which needs no kernel, and by what the kernel kept.

use super::sequence::{ATTRIBUTES, FileNumber, Name, PATHS, Sequence, State, Step};

/// What ButterFS made of a sequence.
pub struct Found<'a> {
    pub sequence: &'a Sequence,
    /// The steps at which it committed, all of them fsyncs.
    pub commits: &'a [usize],
    /// What is there after the crash.
    pub state: &'a State,
}

impl Found<'_> {
    /// All commits except the one that the last fsync itself made.
    pub fn commits_before_last(&self) -> &[usize] {
        let last = self.sequence.steps.len() - 1;
        self.commits.strip_suffix(&[last]).unwrap_or(self.commits)
    }

    /// Checks that every fsync made its file durable as it was then: its names
    /// and no others, its attributes and its data. A commit did so with the
    /// names and the attributes of all files. What changed afterwards may be
    /// there as it was at any later moment. The names of one file must be from
    /// one moment, and so must its attributes. If the log has a new file, the
    /// next fsync of any file that writes to the log also records what happened
    /// to the names of the new file.
    pub fn keeps_promises(&self) -> Result<(), String> {
        let committed = self.commits.last().map_or(0, |at| at + 1);
        for (name, path) in PATHS.iter().enumerate() {
            let since =
                committed.max(self.last_fsync(|file, at| at.names.get(&name) == Some(&file)));
            self.is_as_since(since, |state| state.names.get(&name))
                .map_err(|why| format!("{path}: {why}"))?;
        }
        for file in 0..self.sequence.now().data.len() {
            let fsynced = self.last_fsync(|other, _| other == file);
            let since = committed.max(fsynced);
            let named = since.max(self.last_told(file, committed));
            self.is_as_since(named, |state| state.names_of(file))
                .map_err(|why| format!("names of file {file}: {why}"))?;
            if self.state.names_of(file).is_empty() {
                continue;
            }
            self.is_as_since(since, |state| state.attributes_of(file))
                .map_err(|why| format!("attributes of file {file}: {why}"))?;
            let flushed = fsynced.max(self.last_replacement(file, committed));
            self.is_as_since(flushed, |state| state.data.get(&file))
                .map_err(|why| format!("data of file {file}: {why}"))?;
        }
        Ok(())
    }

    /// The state after the last fsync that `counts` accepts, by its file and
    /// that state.
    fn last_fsync(&self, counts: impl Fn(FileNumber, &State) -> bool) -> usize {
        let Sequence { steps, states } = self.sequence;
        let last = steps
            .iter()
            .zip(&states[1..])
            .rposition(|(step, state)| matches!(step, Step::Fsync(file) if counts(*file, state)));
        last.map_or(0, |at| at + 1)
    }

    /// The state after the last fsync, of any file, that told the log what
    /// happened to the names of `file`.
    fn last_told(&self, file: FileNumber, committed: usize) -> usize {
        let Sequence { steps, states } = self.sequence;
        if states[committed].data.contains_key(&file) {
            return 0;
        }
        // The new file is in the log from here on.
        let logged = (committed..steps.len())
            .find(|at| steps[*at] == Step::Fsync(file) && !states[*at].names_of(file).is_empty());
        let tells = |at: &usize| match steps[*at] {
            Step::Fsync(other) if !states[*at].names_of(other).is_empty() => {
                let done = steps[..*at]
                    .iter()
                    .rposition(|step| *step == Step::Fsync(other));
                let since = committed.max(done.map_or(0, |done| done + 1));
                let changes = |step: &Step| {
                    matches!(step, Step::Write(of, _) | Step::SetAttribute(of, ..)
                        | Step::RemoveAttribute(of, _) if *of == other)
                };
                !states[since].data.contains_key(&other) || steps[since..*at].iter().any(changes)
            }
            _ => false,
        };
        let last = logged.and_then(|logged| (logged..steps.len()).rev().find(tells));
        last.map_or(0, |at| at + 1)
    }

    /// The state after `file` last replaced another one, no later than
    /// `committed`. The data that it had then went into that commit.
    fn last_replacement(&self, file: FileNumber, committed: usize) -> usize {
        let Sequence { steps, states } = self.sequence;
        let last = steps[..committed]
            .iter()
            .zip(states)
            .rposition(|(step, before)| {
                matches!(step, Step::Rename(from, to, _)
                if before.names[from] == file && before.names.contains_key(to))
            });
        last.map_or(0, |at| at + 1)
    }

    fn is_as_since<'s, T: PartialEq + std::fmt::Debug>(
        &'s self,
        since: usize,
        part: impl Fn(&'s State) -> T,
    ) -> Result<(), String> {
        let found = part(self.state);
        let allowed: Vec<T> = self.sequence.states[since..].iter().map(part).collect();
        match allowed.contains(&found) {
            true => Ok(()),
            false => Err(format!(
                "{found:?} is there, promised is one of {allowed:?}"
            )),
        }
    }

    /// Checks that ButterFS kept what `kernel`, which never commits, has as it
    /// is at the end and was not at the beginning. After a commit by ButterFS,
    /// checks only the file of the last fsync, because what the kernel keeps of
    /// other files depends on what it did since its own last commit.
    pub fn keeps_what_the_kernel_keeps(&self, kernel: &State) -> Result<(), String> {
        let (before, now) = (self.sequence.before(), self.sequence.now());
        let Some(Step::Fsync(last)) = self.sequence.steps.last() else {
            return Err("it does not end with an fsync".to_owned());
        };
        let commits = self.commits_before_last();
        // The state from which the last fsync starts.
        let committed = &self.sequence.states[commits.last().map_or(0, |at| at + 1)];
        for fact in facts(now, kernel) {
            let new = kernel.has(fact, now) && !before.has(fact, now);
            // If a name belonged to the file at the beginning, and the commit
            // gave it to another file, it belongs to that one.
            let of_last = fact.is_of(*last, committed)
                || fact.is_of(*last, before) && committed.has(fact, now);
            if new && (commits.is_empty() || of_last) && !self.state.has(fact, now) {
                return Err(format!("{fact:?} is lost: {:?}", self.state));
            }
        }
        Ok(())
    }

    /// Checks that ButterFS kept all names that `kernel`, which committed when
    /// ButterFS did, has as they are at the end. (Its commits bring along the
    /// data of all files.)
    pub fn keeps_names_of_the_committing_kernel(&self, kernel: &State) -> Result<(), String> {
        let now = self.sequence.now();
        for fact in facts(now, kernel) {
            let kept = matches!(fact, Fact::Name(..)) && kernel.has(fact, now);
            if kept && !self.state.has(fact, now) {
                return Err(format!("{fact:?} is lost after a commit: {:?}", self.state));
            }
        }
        Ok(())
    }
}

/// A part of the state at the end.
#[derive(Clone, Copy, Debug)]
enum Fact {
    Name(Name, Option<FileNumber>),
    Data(FileNumber),
    Attribute(FileNumber, usize),
}

impl Fact {
    fn is_of(self, file: FileNumber, before: &State) -> bool {
        match self {
            Self::Name(name, now) => now == Some(file) || before.names.get(&name) == Some(&file),
            Self::Data(of) | Self::Attribute(of, _) => of == file,
        }
    }
}

/// Facts of all names, and of the files that have one in both states.
fn facts(now: &State, kernel: &State) -> Vec<Fact> {
    let names = (0..PATHS.len()).map(|name| Fact::Name(name, now.names.get(&name).copied()));
    let mut facts: Vec<Fact> = names.collect();
    for file in now.data.keys().copied() {
        if [now, kernel]
            .iter()
            .all(|state| !state.names_of(file).is_empty())
        {
            facts.push(Fact::Data(file));
            facts.extend((0..ATTRIBUTES.len()).map(|at| Fact::Attribute(file, at)));
        }
    }
    facts
}

impl State {
    /// Whether a fact of `now` holds here too.
    fn has(&self, fact: Fact, now: &Self) -> bool {
        match fact {
            Fact::Name(name, file) => self.names.get(&name).copied() == file,
            Fact::Data(file) => self.data.get(&file) == now.data.get(&file),
            Fact::Attribute(file, at) => {
                self.attributes.get(&(file, at)) == now.attributes.get(&(file, at))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::{Content, Handle::Kept};
    use Step::*;

    /// What is there after `steps`, but for `edit`.
    fn made_up<T>(steps: &[Step], edit: impl Fn(&mut State) -> T) -> (Sequence, State) {
        let sequence = Sequence::of(steps);
        let mut state = sequence.now().clone();
        edit(&mut state);
        (sequence, state)
    }

    #[track_caller]
    fn promised<T>(steps: &[Step], commits: &[usize], good: bool, edit: impl Fn(&mut State) -> T) {
        let (sequence, state) = made_up(steps, edit);
        let found = Found {
            sequence: &sequence,
            commits,
            state: &state,
        };
        let judged = found.keeps_promises();
        assert_eq!(judged.is_ok(), good, "{judged:?}");
    }

    /// File 1 loses `d1/b` before a commit, which another file's fsync makes,
    /// and is written after it.
    const UNLINKED: [Step; 5] = [Link(0, 5), Unlink(1, Kept), Fsync(0), Write(1, 9), Fsync(1)];
    /// What [`SEED_945`] leaves, see docs/evidence/trust.md.
    const SEED_945: [Step; 7] = [
        Link(0, 5),
        Write(1, 19),
        Rename(4, 1, Kept),
        Fsync(0),
        Unlink(0, Kept),
        Unlink(1, Kept),
        Fsync(1),
    ];

    fn seed_945_by_butterfs(state: &mut State) {
        state.names.extend([(0, 0), (1, 2)]);
    }

    #[test]
    fn committed_names_and_attributes_stay() {
        let bad = false;
        promised(&UNLINKED, &[2], true, |_| {});
        promised(&UNLINKED, &[2], bad, |state| state.names.insert(1, 1));
        promised(&UNLINKED, &[2], bad, |state| state.names.insert(1, 0));
        for name in [0, 3, 4, 5] {
            promised(&UNLINKED, &[2], bad, |state| state.names.remove(&name));
        }
        promised(&UNLINKED, &[2], bad, |state| {
            state.attributes.remove(&(0, 0))
        });
        promised(&SEED_945, &[3], true, seed_945_by_butterfs);
        promised(&SEED_945, &[3, 6], bad, seed_945_by_butterfs);
        promised(&SEED_945, &[3], bad, |state| state.names.insert(1, 1));
    }

    #[test]
    fn a_removed_attribute_stays_away() {
        let steps = [
            Link(0, 5),
            SetAttribute(0, 1, 7),
            Fsync(0),
            RemoveAttribute(0, 1),
            Fsync(0),
        ];
        for commits in [&[][..], &[2]] {
            promised(&steps, commits, true, |_| {});
            promised(&steps, commits, false, |state| {
                state.attributes.insert((0, 1), vec![7])
            });
        }
        // As long as no fsync or commit removed it, it may be there.
        let steps = [&steps[..4], &[Write(1, 9), Fsync(1)]].concat();
        promised(&steps, &[2], true, |state| {
            state.attributes.insert((0, 1), vec![7])
        });
        promised(&steps, &[2, 5], false, |state| {
            state.attributes.insert((0, 1), vec![7])
        });
    }

    #[test]
    fn fsynced_data_stay_whoever_commits() {
        let (write, commit) = ([Write(1, 9), Fsync(1)], [Link(0, 5), Fsync(0)]);
        let last = [Write(0, 8), Fsync(0)];
        for first in [[write, commit], [commit, write]] {
            let steps = [first[0], first[1], last].concat();
            let at = if first[0] == commit { 1 } else { 3 };
            for commits in [&[][..], &[at]] {
                promised(&steps, commits, true, |_| {});
                for old in [Content::default(), Content::of(4)] {
                    promised(&steps, commits, false, |state| state.data.insert(1, old));
                }
            }
        }
        // What was never written to is unchanged. What was written and not
        // fsynced is old or new.
        let steps = [Write(1, 9), Write(1, 11), Write(0, 8), Fsync(0)];
        for (content, good) in [(4, true), (9, true), (11, true), (5, false)] {
            promised(&steps, &[], good, |state| {
                state.data.insert(1, Content::of(content))
            });
        }
        promised(&steps, &[], false, |state| {
            state.data.insert(2, Content::of(4))
        });
        promised(&steps, &[], false, |state| {
            state.data.insert(1, Content::default())
        });
    }

    #[test]
    fn a_replacement_is_committed_with_its_data() {
        let steps = [Write(0, 9), Rename(0, 4, Kept), Link(1, 2), Fsync(1)];
        for (commits, good) in [(&[][..], true), (&[3], false)] {
            promised(&steps, commits, good, |state| {
                state.data.insert(0, Content::of(2))
            });
        }
    }

    #[test]
    fn a_name_that_an_fsync_removed_stays_away() {
        let steps = [Create(2), Link(3, 5), Fsync(3), Unlink(2, Kept), Fsync(3)];
        promised(&steps, &[], true, |_| {});
        promised(&steps, &[], false, |state| state.names.insert(2, 3));
        promised(&steps, &[], false, |state| state.names.remove(&5));
        // The fsync of another file tells the log too, if it writes to the log.
        for (other, good) in [(&[Write(0, 9), Fsync(0)][..], false), (&[Fsync(0)], true)] {
            let steps = [&steps[..4], other].concat();
            promised(&steps, &[], good, |state| state.names.insert(2, 3));
            promised(&steps, &[], false, |state| state.names.remove(&5));
        }
        // A file that the log does not have may come back, but only whole.
        let steps = [
            Link(0, 2),
            Link(0, 5),
            Unlink(5, Kept),
            Write(1, 9),
            Fsync(1),
        ];
        promised(&steps, &[], true, |state| state.names.insert(5, 0));
        promised(&steps, &[], true, |state| state.names.remove(&2));
        promised(&steps, &[], false, |state| {
            state.names.remove(&2);
            state.names.insert(5, 0)
        });
    }

    #[test]
    fn changes_of_one_file_are_not_torn() {
        let steps = [Rename(4, 2, Kept), Write(0, 9), Fsync(0)];
        promised(&steps, &[], true, |state| {
            state.names.remove(&2);
            state.names.insert(4, 2);
        });
        promised(&steps, &[], false, |state| state.names.remove(&2));
        promised(&steps, &[], false, |state| state.names.insert(4, 2));
        let steps = [
            SetAttribute(0, 1, 7),
            RemoveAttribute(0, 0),
            Write(1, 9),
            Fsync(1),
        ];
        promised(&steps, &[], true, |state| {
            state.attributes.insert((0, 0), vec![1])
        });
        promised(&steps, &[], false, |state| state.attributes.remove(&(0, 1)));
    }

    #[test]
    fn the_kernel_is_followed_where_it_can_be() {
        let judge = |steps: &[Step], commit: usize, edit: fn(&mut State), alone, committing| {
            let (sequence, state) = made_up(steps, edit);
            let found = Found {
                sequence: &sequence,
                commits: &[commit],
                state: &state,
            };
            let now = sequence.now();
            assert_eq!(found.keeps_what_the_kernel_keeps(now).is_ok(), alone);
            let names = found.keeps_names_of_the_committing_kernel(now);
            assert_eq!(names.is_ok(), committing);
        };
        judge(&UNLINKED, 2, |_| {}, true, true);
        let back = |state: &mut State| _ = state.names.insert(1, 1);
        judge(&UNLINKED, 2, back, false, false);
        let lost = |state: &mut State| _ = state.names.remove(&4);
        judge(&UNLINKED, 2, lost, true, false);
        // Another file's name is not looked for in a kernel that did not commit.
        judge(&SEED_945, 3, seed_945_by_butterfs, true, false);
    }
}
