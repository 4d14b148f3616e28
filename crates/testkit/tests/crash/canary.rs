//! The model must condemn what a crash may not leave. Each history is accepted
//! first, so that it is the change that is condemned.

use super::model::{Content, Effect, Found, Model, Whole};

const FILE: u64 = 300;
const OTHER: u64 = 301;

/// A history that is written down in steps; the time is its number of steps.
#[derive(Default)]
struct Script {
    model: Model,
    time: usize,
}

impl Script {
    fn step(&mut self) -> usize {
        self.model.begin(self.time);
        self.time += 1;
        self.time - 1
    }

    fn create(mut self, path: &str, number: u64) -> Self {
        let time = self.step();
        self.model.bind(time, path, Some(number));
        self.model.add_file(time, number);
        self
    }

    fn rename(mut self, from: &str, to: &str, number: u64) -> Self {
        let time = self.step();
        self.model.bind(time, from, None);
        self.model.bind(time, to, Some(number));
        self
    }

    fn set(mut self, effect: Effect, data: &[u8]) -> Self {
        let time = self.step();
        let change = |content: &mut Content| content.data = data.to_vec();
        self.model.change_file(time, FILE, effect, change);
        self
    }

    fn sync(mut self) -> Self {
        self.step();
        self.model.acknowledge_all(self.time);
        self
    }

    fn fsync(mut self, number: u64) -> Self {
        self.step();
        self.model.begin_fsync();
        self.model.acknowledge_file(self.time, number);
        self
    }

    fn judge(&self, found: &Found) -> Result<(), String> {
        self.model.judge(self.time, found, Whole::Block)
    }

    fn allows(&self, found: &Found) {
        assert_eq!(self.judge(found), Ok(()));
    }

    fn condemns(&self, found: &Found) {
        assert!(self.judge(found).is_err(), "{found:?} was allowed");
    }
}

fn found(names: &[(&str, u64)], data: &[u8]) -> Found {
    let content = |number: &u64| {
        let data = if *number == FILE {
            data.to_vec()
        } else {
            Vec::new()
        };
        let attribute = None;
        (*number, Content { data, attribute })
    };
    Found {
        paths: names.iter().map(|(n, i)| ((*n).to_owned(), *i)).collect(),
        files: names.iter().map(|(_, number)| content(number)).collect(),
    }
}

#[test]
fn a_lost_write_that_was_acknowledged_is_condemned() {
    let (old, new) = (vec![1; 9000], vec![2; 9000]);
    let script = Script::default().create("a", FILE);
    let script = script.set(Effect::Delayed, &old).sync();
    let script = script.set(Effect::Delayed, &new);
    script.allows(&found(&[("a", FILE)], &old));
    script.allows(&found(&[("a", FILE)], &new));
    let script = script.fsync(FILE);
    script.allows(&found(&[("a", FILE)], &new));
    script.condemns(&found(&[("a", FILE)], &old));
    script.condemns(&found(&[], &[]));
    script.condemns(&found(&[("a", FILE)], &[3; 9000]));
    script.condemns(&found(&[("a", FILE)], &[0; 9000]));
}

#[test]
fn a_file_under_both_names_or_none_is_condemned() {
    let script = Script::default().create("a", FILE).sync();
    let script = script.create("x", OTHER).fsync(OTHER);
    let script = script.rename("a", "b", FILE);
    script.allows(&found(&[("a", FILE), ("x", OTHER)], &[]));
    script.allows(&found(&[("b", FILE), ("x", OTHER)], &[]));
    script.condemns(&found(&[("a", FILE), ("b", FILE), ("x", OTHER)], &[]));
    script.condemns(&found(&[("x", OTHER)], &[]));
    let script = script.fsync(FILE);
    script.allows(&found(&[("b", FILE), ("x", OTHER)], &[]));
    script.condemns(&found(&[("a", FILE), ("x", OTHER)], &[]));
}

#[test]
fn names_of_two_moments_are_condemned() {
    let script = Script::default().sync();
    let script = script.create("a", FILE).create("b", OTHER);
    script.allows(&found(&[], &[]));
    script.allows(&found(&[("a", FILE)], &[]));
    script.allows(&found(&[("a", FILE), ("b", OTHER)], &[]));
    script.condemns(&found(&[("b", OTHER)], &[]));
    // An fsync in between may make only the later one durable.
    let script = script.fsync(OTHER);
    script.allows(&found(&[("b", OTHER)], &[]));
}

#[test]
fn data_that_a_truncation_took_do_not_come_back() {
    let (old, cut) = (vec![1; 20_000], vec![1; 4096]);
    let mut new = cut.clone();
    new.resize(16_384, 0);
    let tail: Vec<u8> = [&new[..], &[2; 3616]].concat();
    let script = Script::default().create("a", FILE);
    let script = script.set(Effect::Delayed, &old).sync();
    let script = script.set(Effect::AtOnce, &cut);
    let script = script.set(Effect::Delayed, &tail);
    script.allows(&found(&[("a", FILE)], &old));
    script.allows(&found(&[("a", FILE)], &cut));
    script.allows(&found(&[("a", FILE)], &tail));
    let mut stale = tail.clone();
    stale[8192..12_288].fill(1);
    script.condemns(&found(&[("a", FILE)], &stale));
}

#[test]
fn a_size_without_its_data_is_condemned() {
    let script = Script::default().create("a", FILE);
    let script = script.set(Effect::Delayed, &[1; 4096]).sync();
    let script = script.set(Effect::Delayed, &[1; 12_288]);
    script.allows(&found(&[("a", FILE)], &[1; 4096]));
    script.allows(&found(&[("a", FILE)], &[1; 12_288]));
    let zeros: Vec<u8> = [&[1; 4096][..], &[0; 8192]].concat();
    script.condemns(&found(&[("a", FILE)], &zeros));
}
