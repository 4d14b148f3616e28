//! Source trees that are made, read, patched, compiled, cleaned and deleted
//! until the file system is old, as in compilebench.

use super::super::content::{Content, Version};
use super::super::crowd::{Stop, crowd};
use super::super::files::{Caching, Files};
use super::super::measure::{Recorder, more};
use super::super::parameters::Given;
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use crate::stats::Random;
use std::time::{Duration, Instant};

/// Source trees.
pub(in super::super) struct Ager;

struct Plan {
    trees: usize,
    files: u64,
    rounds: u64,
    patched: u64,
    compressible: u8,
}

impl Plan {
    fn new(workload: &Ager, parameters: &Parameters) -> Result<Self, String> {
        let given = Given::new(workload, parameters)?;
        Ok(Self {
            trees: given.count("trees", 1, 1000)?,
            files: given.number("files", 1, 1 << 24)?,
            rounds: given.number("rounds", 0, 1 << 24)?,
            patched: given.number("patched", 0, 100)?,
            compressible: given.compressible()?,
        })
    }
}

impl Workload for Ager {
    fn name(&self) -> &'static str {
        "ager"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("trees", "10", "source trees"),
            (
                "files",
                "2000",
                "files of a tree at first; 12 KiB in the mean",
            ),
            (
                "rounds",
                "30",
                "times that a tree drawn by chance is changed to age it",
            ),
            (
                "patched",
                "10",
                "per cent of its files that a patch writes anew",
            ),
            (
                "compressible",
                "50",
                "per cent that a compressor can take away",
            ),
        ]
    }

    fn is_by_files(&self) -> bool {
        true
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let plan = Plan::new(self, parameters)?;
        let files = plan.files * plan.trees as u64;
        Ok(Demand {
            // Sources and what they are compiled to, in blocks of 4 KiB.
            space: files * (40 << 10),
            memory: files * 64 + (16 << 20),
            time: Duration::from_secs(2 + files * 4 / 3000 + plan.rounds * plan.files / 3000),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = Plan::new(self, parameters)?;
        let mut figures = Figures::default();
        super::facts(&mut figures, "ager", ground.seed(), plan.compressible);
        let mut forest = Forest {
            content: Content::new(ground.seed(), plan.compressible),
            random: Random::new(ground.seed() ^ 0xA6E),
            trees: vec![Tree::default(); plan.trees],
            next: 0,
            plan,
            wrong: Vec::new(),
            checked: 0,
        };
        let steps: &[(&str, Act)] = &[
            ("create", Forest::create_all),
            ("read", Forest::read_all),
            ("age", Forest::age),
            ("aged read", Forest::read_all),
            ("aged stat", Forest::stat_all),
            ("aged create", Forest::create_one_more),
            ("aged delete", Forest::delete_last),
        ];
        for (phase, act) in steps {
            ground.next_phase(phase)?;
            let files = ground.files();
            let start = Instant::now();
            let shared = std::sync::Mutex::new(&mut forest);
            let mut done = crowd(ground, 1, |_, stop| {
                let step = Step::new(files.as_ref(), start, stop);
                let mut forest = shared.lock().map_err(|_| "a step panicked")?;
                act(&mut forest, &step)?;
                Ok(step.measured.into_inner())
            })?;
            for (kind, recorder) in done.pop().unwrap_or_default() {
                let name = match *phase {
                    // The steps of aging have names of their own.
                    "age" => format!("aging {kind}"),
                    _ => (*phase).to_owned(),
                };
                report(&name, &recorder, &mut figures);
                if matches!(kind, "create" | "patch" | "compile") {
                    *figures.written.get_or_insert(0) += recorder.bytes;
                }
            }
        }
        figures.content(forest.checked, &forest.wrong);
        Ok(figures)
    }
}

type Act = fn(&mut Forest, &Step<'_>) -> Result<(), String>;

fn report(name: &str, recorder: &Recorder, figures: &mut Figures) {
    let rate = more(name, "files/s", recorder.rate());
    let is_main = !name.starts_with("aging");
    figures.add(if is_main { rate.headline() } else { rate });
    if recorder.bytes > 0 {
        figures.add(more(&format!("{name} bytes"), "bytes/s", recorder.speed()));
    }
    let latencies = recorder.latencies(name);
    figures.add_percentiles(&latencies);
    figures.latencies.push(latencies);
    *figures.operations.get_or_insert(0) += recorder.count;
}

/// A file, or what one was compiled to.
#[derive(Clone, Copy)]
struct Source {
    id: u64,
    version: u64,
    size: u64,
}

#[derive(Clone, Default)]
struct Tree {
    sources: Vec<Source>,
    objects: Vec<Source>,
    directories: u64,
}

struct Forest {
    plan: Plan,
    content: Content,
    random: Random,
    trees: Vec<Tree>,
    next: u64,
    wrong: Vec<String>,
    checked: u64,
}

/// What is measured, by kind of step.
type Measured = Vec<(&'static str, Recorder)>;

struct Step<'a> {
    files: &'a dyn Files,
    start: Instant,
    stop: &'a Stop,
    measured: std::cell::RefCell<Measured>,
}

impl<'a> Step<'a> {
    fn new(files: &'a dyn Files, start: Instant, stop: &'a Stop) -> Self {
        Self {
            files,
            start,
            stop,
            measured: std::cell::RefCell::default(),
        }
    }

    fn time<T>(
        &self,
        kind: &'static str,
        bytes: u64,
        operation: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let mut measured = self.measured.borrow_mut();
        let place = measured.iter().position(|(known, _)| *known == kind);
        let place = place.unwrap_or_else(|| {
            measured.push((kind, Recorder::new(self.start)));
            measured.len() - 1
        });
        measured[place].1.time(bytes, operation)
    }

    /// An error when the workload should stop. The caller that cancelled it
    /// throws away what was begun.
    fn check(&self) -> Result<(), String> {
        match self.stop.is_asked() {
            true => Err(super::super::crowd::CANCELLED.to_owned()),
            false => Ok(()),
        }
    }
}

/// Files of a directory of sources.
const IN_DIRECTORY: u64 = 32;

fn path_of(tree: usize, source: &Source, ending: &str) -> String {
    let directory = source.id / IN_DIRECTORY;
    format!("tree-{tree}/d{directory}/f{}.{ending}", source.id)
}

impl Forest {
    /// Sizes as source trees have them: most of a few KiB, few of a hundred.
    fn size(&mut self) -> u64 {
        let size = 5500.0 * (1.25 * self.random.normal()).exp();
        size.clamp(16.0, 400_000.0) as u64
    }

    fn write(
        &self,
        kind: &'static str,
        path: &str,
        source: &Source,
        step: &Step<'_>,
    ) -> Result<(), String> {
        step.check()?;
        let mut bytes = vec![0; source.size as usize];
        let version = Version {
            file: source.id,
            version: source.version,
        };
        self.content.fill(version, 0, &mut bytes);
        step.time(kind, source.size, || {
            step.files
                .create(path, Caching::Cached)?
                .write_at(0, &bytes)
        })
    }

    fn create(&mut self, tree: usize, step: &Step<'_>) -> Result<(), String> {
        step.files.mkdir(&format!("tree-{tree}"))?;
        let mut made = Tree::default();
        // Directories are named by the identities of their files.
        self.next = self.next.next_multiple_of(IN_DIRECTORY);
        let first = self.next / IN_DIRECTORY;
        made.directories = first;
        for number in 0..self.plan.files {
            let source = Source {
                id: self.next,
                version: 0,
                size: self.size(),
            };
            if number % IN_DIRECTORY == 0 {
                step.files
                    .mkdir(&format!("tree-{tree}/d{}", source.id / IN_DIRECTORY))?;
            }
            self.write("create", &path_of(tree, &source, "c"), &source, step)?;
            made.sources.push(source);
            self.next += 1;
        }
        self.trees[tree] = made;
        Ok(())
    }

    fn create_all(&mut self, step: &Step<'_>) -> Result<(), String> {
        for tree in 0..self.trees.len() {
            self.create(tree, step)?;
        }
        step.files.sync()
    }

    fn create_one_more(&mut self, step: &Step<'_>) -> Result<(), String> {
        self.trees.push(Tree::default());
        self.create(self.trees.len() - 1, step)
    }

    fn delete_last(&mut self, step: &Step<'_>) -> Result<(), String> {
        self.delete(self.trees.len() - 1, step)?;
        self.trees.pop();
        Ok(())
    }

    fn all(tree: &Tree) -> impl Iterator<Item = (Source, &'static str)> {
        let sources = tree.sources.iter().map(|source| (*source, "c"));
        sources.chain(tree.objects.iter().map(|object| (*object, "o")))
    }

    fn read_all(&mut self, step: &Step<'_>) -> Result<(), String> {
        let mut buffer = Vec::new();
        for (number, tree) in self.trees.iter().enumerate() {
            for (source, ending) in Self::all(tree) {
                step.check()?;
                let path = path_of(number, &source, ending);
                buffer.resize(source.size as usize + 1, 0);
                let read = step.time("read", source.size, || {
                    step.files
                        .open(&path, Caching::Cached)?
                        .read_at(0, &mut buffer)
                })?;
                let version = Version {
                    file: source.id,
                    version: source.version,
                };
                let differs = self.content.first_difference(version, 0, &buffer[..read]);
                if differs.is_some() || read as u64 != source.size {
                    let place = differs.unwrap_or(read as u64);
                    self.wrong.push(format!("{path} at {place}"));
                }
                self.checked += source.size;
            }
        }
        Ok(())
    }

    fn stat_all(&mut self, step: &Step<'_>) -> Result<(), String> {
        for (number, tree) in self.trees.iter().enumerate() {
            for (source, ending) in Self::all(tree) {
                step.check()?;
                let path = path_of(number, &source, ending);
                let size = step.time("stat", 0, || step.files.stat(&path))?;
                if size != source.size {
                    self.wrong.push(format!("{path} has {size} bytes"));
                }
            }
        }
        Ok(())
    }

    fn age(&mut self, step: &Step<'_>) -> Result<(), String> {
        for _ in 0..self.plan.rounds {
            let tree = self.random.below(self.trees.len());
            match self.random.below(4) {
                0 => self.patch(tree, step)?,
                1 => self.compile(tree, step)?,
                2 => self.clean(tree, step)?,
                _ => {
                    self.delete(tree, step)?;
                    self.create(tree, step)?;
                }
            }
        }
        step.files.sync()
    }

    /// Rewrites some files with another size, as editors do: beside the old
    /// one, and renamed over it.
    fn patch(&mut self, tree: usize, step: &Step<'_>) -> Result<(), String> {
        let count = self.trees[tree].sources.len();
        for _ in 0..count as u64 * self.plan.patched / 100 {
            let place = self.random.below(count);
            let size = self.size();
            let mut source = self.trees[tree].sources[place];
            source.version += 1;
            source.size = size;
            let path = path_of(tree, &source, "c");
            let new = format!("{path}.new");
            self.write("patch", &new, &source, step)?;
            step.files.rename(&new, &path)?;
            self.trees[tree].sources[place] = source;
        }
        Ok(())
    }

    /// Reads each source and writes an object beside it.
    fn compile(&mut self, tree: usize, step: &Step<'_>) -> Result<(), String> {
        self.clean(tree, step)?;
        let sources = self.trees[tree].sources.clone();
        for source in sources {
            let mut text = vec![0; source.size as usize];
            let path = path_of(tree, &source, "c");
            step.time("compile read", source.size, || {
                step.files
                    .open(&path, Caching::Cached)?
                    .read_at(0, &mut text)
            })?;
            let object = Source {
                id: source.id,
                version: source.version | 1 << 63,
                size: source.size * 2 / 3 + 64,
            };
            self.write("compile", &path_of(tree, &object, "o"), &object, step)?;
            self.trees[tree].objects.push(object);
        }
        Ok(())
    }

    fn clean(&mut self, tree: usize, step: &Step<'_>) -> Result<(), String> {
        for object in std::mem::take(&mut self.trees[tree].objects) {
            step.check()?;
            let path = path_of(tree, &object, "o");
            step.time("clean", 0, || step.files.unlink(&path))?;
        }
        Ok(())
    }

    fn delete(&mut self, tree: usize, step: &Step<'_>) -> Result<(), String> {
        let gone = std::mem::take(&mut self.trees[tree]);
        for (source, ending) in Self::all(&gone) {
            step.check()?;
            let path = path_of(tree, &source, ending);
            step.time("delete", 0, || step.files.unlink(&path))?;
        }
        let count = (gone.sources.len() as u64).div_ceil(IN_DIRECTORY);
        for directory in gone.directories..gone.directories + count {
            step.files.rmdir(&format!("tree-{tree}/d{directory}"))?;
        }
        step.files.rmdir(&format!("tree-{tree}"))
    }
}
