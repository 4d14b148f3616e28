//! How often the kernel asked for each operation.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol::Opcode;

/// Operations have smaller numbers.
const NUMBERS: usize = 64;

/// One count for each operation.
pub(crate) struct Counts([AtomicU64; NUMBERS]);

impl Counts {
    pub(crate) fn new() -> Self {
        Self([const { AtomicU64::new(0) }; NUMBERS])
    }

    pub(crate) fn add(&self, opcode: Opcode) {
        self.0[opcode as usize % NUMBERS].fetch_add(1, Ordering::Relaxed);
    }
}

/// "Lookup=12 Mknod=3": operations that were never asked for are left out.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = Opcode::ALL.iter().filter_map(|opcode| {
            let count = self.0[*opcode as usize % NUMBERS].load(Ordering::Relaxed);
            (count > 0).then_some((opcode, count))
        });
        for (at, (opcode, count)) in counted.enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{opcode:?}={count}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_count_of_its_own() {
        let counts = Counts::new();
        assert_eq!(counts.to_string(), "");
        for opcode in Opcode::ALL {
            counts.add(*opcode);
        }
        let said = counts.to_string();
        assert_eq!(said.split(' ').count(), Opcode::ALL.len());
        assert!(said.split(' ').all(|one| one.ends_with("=1")), "{said}");
    }
}
