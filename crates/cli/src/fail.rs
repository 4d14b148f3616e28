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

/// The result of a command.
pub type Done = Result<(), Failure>;

/// A failure with this text.
pub fn fail<T>(text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure(text.into()))
}

/// Whether an error's text begins with the name of what failed.
fn begins_with(text: &str, what: &str) -> bool {
    let named = |text: &str| {
        let rest = text.strip_prefix(what);
        rest.is_some_and(|rest| rest.starts_with([':', ' ', ',']))
    };
    // As errors of devices begin.
    let verb = text.strip_prefix("cannot ").and_then(|rest| {
        let (_, rest) = rest.split_once(' ')?;
        Some(rest)
    });
    named(text) || verb.is_some_and(named)
}

/// Says what failed.
pub trait Context<T> {
    /// Puts `what` before the error's own text, if that does not begin with it.
    fn context(self, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn context(self, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| {
            let (text, what) = (error.to_string(), what.to_string());
            match begins_with(&text, &what) {
                true => Failure(text),
                false => Failure(format!("{what}: {text}")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(error: &str) -> String {
        let failed: Result<(), &str> = Err(error);
        failed.context("a.img").unwrap_err().0
    }

    #[test]
    fn what_failed_is_named_once() {
        assert_eq!(told("it is damaged"), "a.img: it is damaged");
        assert_eq!(told("a.img holds ext4"), "a.img holds ext4");
        assert_eq!(told("a.img: it is busy"), "a.img: it is busy");
        let cannot = "cannot open a.img: no such file";
        assert_eq!(told(cannot), cannot);
        assert_eq!(told("a.img2 is one"), "a.img: a.img2 is one");
        assert_eq!(told("cannot go on"), "a.img: cannot go on");
    }
}
