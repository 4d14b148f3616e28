//! Parameters as an experiment gives them, read with their defaults.

use super::{Parameters, Workload};

/// The parameters of a pass, each known by name.
pub(super) struct Given<'a> {
    workload: &'a dyn Workload,
    parameters: &'a Parameters,
}

impl<'a> Given<'a> {
    /// Refuses names that the workload does not have.
    pub(super) fn new(
        workload: &'a dyn Workload,
        parameters: &'a Parameters,
    ) -> Result<Self, String> {
        let known = workload.parameters();
        for name in parameters.keys() {
            if known.iter().any(|(known, ..)| known == name) {
                continue;
            }
            let nearest = known
                .iter()
                .map(|(known, ..)| (strsim::damerau_levenshtein(known, name), *known))
                .min();
            return Err(match nearest {
                Some((distance, near)) if distance <= 3 => format!(
                    "{} has no parameter {name}; did you mean {near}?",
                    workload.name()
                ),
                _ => format!(
                    "{} has no parameter {name}; it has {}",
                    workload.name(),
                    known
                        .iter()
                        .map(|(n, ..)| *n)
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            });
        }
        Ok(Self {
            workload,
            parameters,
        })
    }

    /// What was given for a name, or its default.
    pub(super) fn text(&self, name: &str) -> &'a str {
        if let Some(value) = self.parameters.get(name) {
            return value;
        }
        let known = self.workload.parameters();
        let found = known.iter().find(|(known, ..)| *known == name);
        let (_, default, _) = found.expect("a workload asks for parameters of its own table");
        default
    }

    fn wrong(&self, name: &str, wanted: &str) -> String {
        format!(
            "{}: {name} = \"{}\" is not {wanted}",
            self.workload.name(),
            self.text(name)
        )
    }

    /// A whole number within limits.
    pub(super) fn number(&self, name: &str, least: u64, most: u64) -> Result<u64, String> {
        let number = self.text(name).trim().parse().ok();
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.wrong(name, &format!("a whole number from {least} to {most}")))
    }

    /// The same where it counts things in memory.
    pub(super) fn count(&self, name: &str, least: usize, most: usize) -> Result<usize, String> {
        let number = self.number(name, least as u64, most as u64)?;
        usize::try_from(number).map_err(|_| self.wrong(name, "a number that fits this machine"))
    }

    /// A number that need not be whole.
    pub(super) fn real(&self, name: &str, least: f64, most: f64) -> Result<f64, String> {
        let number = self.text(name).trim().parse::<f64>().ok();
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| self.wrong(name, &format!("a number from {least} to {most}")))
    }

    /// Bytes: 4096, 64k, 2g (powers of 1024).
    pub(super) fn bytes(&self, name: &str, least: u64, most: u64) -> Result<u64, String> {
        bytes(self.text(name))
            .filter(|bytes| (least..=most).contains(bytes))
            .ok_or_else(|| {
                let wanted = format!("a size from {least} to {most} bytes (as 4096, 64k, 2g)");
                self.wrong(name, &wanted)
            })
    }

    /// Several sizes, divided by commas.
    pub(super) fn sizes(&self, name: &str, least: u64, most: u64) -> Result<Vec<u64>, String> {
        let all: Option<Vec<u64>> = self
            .text(name)
            .split(',')
            .map(|one| bytes(one).filter(|bytes| (least..=most).contains(bytes)))
            .collect();
        all.ok_or_else(|| {
            let wanted = format!("a list of sizes from {least} to {most} bytes (as 64k,1m)");
            self.wrong(name, &wanted)
        })
    }

    /// One of some words.
    pub(super) fn choice(
        &self,
        name: &str,
        words: &[&'static str],
    ) -> Result<&'static str, String> {
        let text = self.text(name).trim();
        let found = words.iter().find(|word| **word == text);
        found
            .copied()
            .ok_or_else(|| self.wrong(name, &format!("one of {}", words.join(", "))))
    }

    /// yes or no.
    pub(super) fn is_yes(&self, name: &str) -> Result<bool, String> {
        Ok(self.choice(name, &["yes", "no"])? == "yes")
    }

    /// Per cent of the data that a compressor can take away.
    pub(super) fn compressible(&self) -> Result<u8, String> {
        let percent = self.number("compressible", 0, 100)?;
        Ok(u8::try_from(percent).unwrap_or(100))
    }
}

fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.trim_end_matches(['k', 'm', 'g']);
    let factor = match &text[digits.len()..] {
        "" => 1_u64,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_letters() {
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes(" 64K "), Some(65536));
        assert_eq!(bytes("2g"), Some(2 << 30));
        for wrong in ["", "k", "1kk", "-1", "1t", "1.5m", "99999999999g"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
