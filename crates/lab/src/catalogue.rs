//! All workloads by name.

use crate::declaration::nearest;
use crate::run::{Nothing, Tiny};
use crate::workload::Workload;

/// Workloads by name.
#[derive(Clone)]
pub struct Catalogue(Vec<&'static dyn Workload>);

impl Catalogue {
    /// Those that ship with the program.
    pub fn shipped() -> Self {
        let mut all: Vec<&'static dyn Workload> = vec![&Tiny, &Nothing];
        all.extend(crate::workload::all());
        Self(all)
    }

    /// Adds a workload. It replaces one of the same name.
    #[must_use]
    pub fn with(mut self, workload: &'static dyn Workload) -> Self {
        self.0.retain(|other| other.name() != workload.name());
        self.0.push(workload);
        self
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<&'static dyn Workload> {
        let mut all = self.iter();
        all.find(|workload| workload.name() == name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &'static dyn Workload> {
        self.0.iter().copied()
    }

    /// The nearest names, for a message about a name that no workload has.
    pub fn hint(&self, name: &str) -> String {
        nearest(name, self.0.iter().map(|one| one.name()))
    }
}
