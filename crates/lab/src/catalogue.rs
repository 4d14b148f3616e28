//! All workloads by name.

use crate::declaration::nearest;
use crate::run::{Nothing, Tiny};
use crate::workload::Workload;

/// Workloads by name.
pub struct Catalogue(Vec<Box<dyn Workload>>);

impl Catalogue {
    /// Those that ship with the program.
    pub fn shipped() -> Self {
        Self(vec![Box::new(Tiny), Box::new(Nothing)])
    }

    /// With one more; one of the same name is replaced.
    #[must_use]
    pub fn with(mut self, workload: Box<dyn Workload>) -> Self {
        self.0.retain(|other| other.name() != workload.name());
        self.0.push(workload);
        self
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<&dyn Workload> {
        self.0
            .iter()
            .find(|workload| workload.name() == name)
            .map(AsRef::as_ref)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Workload> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// What to say where there is none of a name.
    pub fn hint(&self, name: &str) -> String {
        nearest(name, self.0.iter().map(|one| one.name()))
    }
}
