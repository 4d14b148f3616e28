//! How a command fails: one sentence on standard error, and an exit code.

use std::fmt::Display;

/// A failed command.
#[derive(Debug)]
pub struct Failure(pub String);

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl Failure {
    /// With `what` before its text.
    pub fn at(self, what: impl Display) -> Self {
        Self(format!("{what}: {}", self.0))
    }
}

/// What commands give.
pub type Done = Result<(), Failure>;

/// A failure with this text.
pub fn fail<T>(text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure(text.into()))
}

/// Says what failed.
pub trait Context<T> {
    /// Puts `what` before the error's own text.
    fn context(self, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn context(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}
