//! `butterfs rescue chunk-recover`: a chunk tree from what is left of it.
//!
//! Owns the options and what is said. The crate `rescue` finds the chunks, and
//! the crate `repair` writes the tree.

use crate::commands::repair::{Laid, Writing};
use crate::fail::{Done, Failure, fail};
use crate::patient::{Showing, shell};
use crate::sizes;
use butterfs_check::NoProgress;
use butterfs_repair::{Begin, Options};
use butterfs_rescue::{
    ChunkEvidence, ChunkRecovery, LostChunk, Patient, PatientOptions, ScanScope, recover_chunks,
};
use clap::Args;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Chunks and files that are listed.
const LISTED_MAX: usize = 20;

/// Make a lost chunk tree anew from all that is left of it.
#[derive(Args, Debug)]
#[command(
    long_about = "Make a lost chunk tree anew from all that is left of it: chunk items in superblocks and older nodes, device extents, block groups, the addresses in nodes, checksums and parity. A chunk that is not certain is named, with what it held, and then nothing is changed. Works on an overlay, as `butterfs check --repair` does, and writes to the devices only with --commit.",
    after_help = "Examples:
  butterfs rescue chunk-recover disk.img               what would be done; disk.img stays as it is
  butterfs rescue chunk-recover --commit one.img two.img
  butterfs rescue undo one.img.overlay                 bring back what was there before"
)]
pub struct ChunkRecover {
    #[command(flatten)]
    writing: Writing,
    /// List each chunk.
    #[arg(short, long)]
    verbose: bool,
    /// Memory for the nodes that the scan finds, 96 bytes each (default 4g).
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    memory: Option<u64>,
    /// All devices of the volume, files or block devices. Those beside a single
    /// one are found.
    #[arg(required = true)]
    volume: Vec<PathBuf>,
}

impl ChunkRecover {
    /// Runs it.
    pub fn run(self) -> Done {
        let paths = match &self.volume[..] {
            [one] => butterfs::find_members(one),
            several => several.to_vec(),
        };
        let (devices, ending) = self.writing.open(&paths)?;
        let patient = Laid::open(devices, &ending)?;
        let found = self.find(&patient);
        let recovery = match found {
            Ok(Some(recovery)) => recovery,
            Ok(None) => {
                patient.give_up(&ending);
                say!("the chunk tree is whole; nothing was changed");
                return Ok(());
            }
            Err(failure) => {
                patient.give_up(&ending);
                return Err(failure);
            }
        };
        tell(&recovery, self.verbose)?;
        if !recovery.is_whole() {
            patient.give_up(&ending);
            tell_lost(&recovery)?;
            let words: Vec<String> = paths.iter().map(|path| shell(path)).collect();
            return fail(format!(
                "no chunk tree was made, because a part of it would be a guess; nothing was \
                 changed. `butterfs restore {}` brings files out without one",
                words.join(" ")
            ));
        }
        let options = Options {
            begin: Begin {
                chunks: Some(recovery.map),
                ..Begin::default()
            },
            ..Options::default()
        };
        match patient.repair(&options, &NoProgress, &ending)? {
            true => Ok(()),
            false => fail("the chunk tree is there again, and other faults are left"),
        }
    }

    /// The chunks of a volume whose chunk tree is not whole.
    fn find(&self, patient: &Laid) -> Result<Option<ChunkRecovery>, Failure> {
        let mut options = PatientOptions::default();
        if let Some(memory) = self.memory {
            options.memory_max = memory;
        }
        let mut patient = Patient::open(patient.laid.clone(), options)?;
        if !patient.needs_scan() {
            return Ok(None);
        }
        let showing = Showing::new()?;
        let scanned = patient.scan(ScanScope::Everything, &showing);
        scanned.map_err(|error| showing.failed(error))?;
        showing.end();
        Ok(Some(recover_chunks(&patient)?))
    }
}

fn tell(recovery: &ChunkRecovery, is_verbose: bool) -> Done {
    let mut counts: BTreeMap<ChunkEvidence, u64> = BTreeMap::new();
    for chunk in &recovery.found {
        let count = counts.entry(chunk.evidence).or_default();
        *count = count.saturating_add(1);
        if is_verbose {
            say!(
                "chunk at logical {}: {}, {}, {}",
                chunk.logical,
                sizes::human(chunk.length),
                chunk.flags.describe(),
                chunk.evidence
            );
        }
    }
    say!("{} chunks are certain:", recovery.found.len());
    for (evidence, count) in counts {
        say!("  {count} {evidence}");
    }
    Ok(())
}

fn tell_lost(recovery: &ChunkRecovery) -> Done {
    if !recovery.is_complete {
        say!(
            "neither the device tree nor the block groups are whole, so there may be chunks that \
             nothing names any more"
        );
    }
    for LostChunk {
        logical,
        length,
        flags,
        doubt,
        held,
    } in &recovery.lost
    {
        let length = length.map_or_else(|| "an unknown length".to_owned(), sizes::human);
        let flags = flags.map_or_else(|| "unknown type".to_owned(), |flags| flags.describe());
        say!("chunk at logical {logical} ({flags}, {length}) is not certain: {doubt}");
        if let Some(used) = held.used {
            say!("  it held {} in use", sizes::human(used));
        }
        for (tree, path) in held.files.iter().take(LISTED_MAX) {
            let path = String::from_utf8_lossy(path);
            say!("  it held data of /{path} (subvolume {tree})");
        }
        let listed = u64::try_from(held.files.len().min(LISTED_MAX)).unwrap_or(u64::MAX);
        if held.file_count > listed {
            say!(
                "  and of {} more files",
                held.file_count.saturating_sub(listed)
            );
        }
    }
    Ok(())
}
