//! A plan as text.

use super::{Devices, Plan};
use crate::declaration::show_size;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// A time for people ("3 h 20 min").
pub fn show_time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..100 => format!("{seconds} s"),
        100..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

impl Plan {
    /// All of it, for people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let experiment = &self.experiment;
        writeln!(out, "{}: {}", experiment.name, experiment.title)?;
        let able = self.cells.iter().filter(|cell| cell.lack.is_none()).count();
        writeln!(
            out,
            "{} cells, {able} of them can be run here; {} blocks; {} passes; seed {}",
            self.cells.len(),
            self.blocks.len(),
            self.passes(),
            self.seed
        )?;
        let devices = match &self.devices {
            Devices::Files(path) => format!("loop devices over files in {}", path.display()),
            Devices::Blocks(paths) => {
                let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
                names.join(", ")
            }
        };
        writeln!(
            out,
            "scale {}: {} device{} of {}, {devices}; memory {}",
            self.scale.name,
            self.device_count(),
            if self.device_count() == 1 { "" } else { "s" },
            show_size(self.scale.device_size),
            self.scale
                .memory
                .map_or("not capped".to_owned(), |m| format!(
                    "capped at {}",
                    show_size(m)
                )),
        )?;
        writeln!(
            out,
            "about {}; {} of space; {} of memory",
            show_time(self.time()),
            show_size(self.space()),
            show_size(self.memory())
        )?;
        writeln!(out)?;
        for cell in self.cells.iter().filter(|cell| cell.lack.is_none()) {
            let mut marks = Vec::new();
            if cell.control {
                marks.push("control".to_owned());
            }
            if cell.default {
                marks.push("default".to_owned());
            }
            let durability = crate::report::durability_label(cell.durability);
            if !durability.is_empty() {
                marks.push(durability.to_owned());
            }
            let blocks = (cell.repeats as usize).min(self.blocks.len());
            let marks = if marks.is_empty() {
                String::new()
            } else {
                format!(" ({})", marks.join(", "))
            };
            writeln!(
                out,
                "  {blocks} × {}, {} each{marks}",
                cell.name(),
                show_time(cell.demand.time)
            )?;
        }
        let mut lacks: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for cell in &self.cells {
            if let Some(lack) = &cell.lack {
                *lacks.entry((&cell.file_system, lack)).or_default() += 1;
            }
        }
        for ((file_system, lack), count) in lacks {
            writeln!(out, "  unavailable: {file_system}, {count} cells: {lack}")?;
        }
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        for problem in &self.problems {
            writeln!(out, "cannot be run: {problem}")?;
        }
        Ok(())
    }
}
