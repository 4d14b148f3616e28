//! `butterfs rescue survey`: what is left of a volume.

use crate::fail::Done;
use crate::patient::{PatientArguments, Showing, shell};
use crate::place::json;
use crate::sizes::human;
use butterfs_rescue::{
    CandidateFacts, ChunkSource, Patient, RootSource, ScanScope, Survey as Found, SurveyOptions,
    survey,
};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Damaged trees that are named for each generation.
const TREES_MAX: usize = 6;

/// Says what is left of a volume, which generations can be restored, and what
/// to type next. Writes nothing to it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs rescue survey disk.img
  butterfs rescue survey --index found.index /dev/sdx /dev/sdy
  butterfs rescue survey --json disk.img | jq .candidates

If the chunk tree is whole, only the parts of the devices that hold tree nodes are read; --full reads everything. Without any superblock or partition table, name the whole disk: everything is read, and node size, checksum type and UUID are found from the nodes.")]
pub struct Survey {
    /// Read all of the devices.
    #[arg(long)]
    full: bool,
    /// Generations to look into, the newest first.
    #[arg(long, value_name = "N", default_value_t = 8)]
    generations: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    patient: PatientArguments,
    /// All devices of the volume.
    #[arg(required = true)]
    volumes: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Facts {
    fsid: String,
    node_size: usize,
    checksum: &'static str,
    superblocks_good: usize,
    superblocks: usize,
    generation: Option<u64>,
    fsync_log: bool,
    begins_at: Vec<(String, u64)>,
    missing_devices: Vec<u64>,
    chunks: ChunkFacts,
    scan: ScanFacts,
    candidates: Vec<CandidateFact>,
    other_generations: usize,
    best: Option<usize>,
    next: String,
}

#[derive(Serialize)]
struct ChunkFacts {
    source: &'static str,
    known: usize,
    from_device_extents: usize,
    unknown: usize,
}

#[derive(Serialize)]
struct ScanFacts {
    bytes: u64,
    unreadable: u64,
    nodes: usize,
    memory: u64,
}

#[derive(Serialize)]
struct CandidateFact {
    generation: u64,
    source: &'static str,
    opens: bool,
    subvolumes: u64,
    files: u64,
    bytes: u64,
    damaged: Vec<TreeFact>,
    next: String,
}

#[derive(Serialize)]
struct TreeFact {
    tree: u64,
    nodes: u64,
    lost: u64,
}

impl Survey {
    /// Runs it.
    pub fn run(&self) -> Done {
        let mut patient = self.patient.open(&self.volumes)?;
        let showing = Showing::new()?;
        let options = SurveyOptions {
            scope: match self.full {
                true => ScanScope::Everything,
                false => ScanScope::Nodes,
            },
            candidates_max: self.generations,
        };
        let found = survey(&mut patient, &options, &showing);
        let found = found.map_err(|error| showing.failed(error))?;
        showing.end();
        let facts = self.facts(&patient, &found);
        match self.json {
            true => json(&facts),
            false => print(&facts),
        }
    }

    fn facts(&self, patient: &Patient, found: &Found) -> Facts {
        let identity = patient.identity_found();
        let (good, all) = patient.superblock_copies();
        let map = patient.map_facts();
        let superblock = patient.superblock();
        let index = patient.index();
        let best = found.best.and_then(|best| found.candidates.get(best));
        Facts {
            fsid: Uuid::from_bytes(identity.fsid).to_string(),
            node_size: identity.node_size,
            checksum: identity.checksum.name(),
            superblocks_good: good,
            superblocks: all,
            generation: superblock.map(|one| one.generation.get()),
            fsync_log: superblock.is_some_and(|one| one.log_root.get() != 0),
            begins_at: patient.bases(),
            missing_devices: patient.missing().iter().map(|id| id.get()).collect(),
            chunks: ChunkFacts {
                source: source_name(map.source),
                known: map.chunks,
                from_device_extents: map.from_device_extents.len(),
                unknown: map.unknown,
            },
            scan: ScanFacts {
                bytes: index.scope_bytes(),
                unreadable: index.unreadable(),
                nodes: index.len(),
                memory: index.memory(),
            },
            candidates: found
                .candidates
                .iter()
                .map(|one| self.candidate(one, patient))
                .collect(),
            other_generations: found.others,
            best: found.best,
            next: best.map_or_else(String::new, |best| self.next(best, patient)),
        }
    }

    fn candidate(&self, of: &CandidateFacts, patient: &Patient) -> CandidateFact {
        CandidateFact {
            generation: of.generation.get(),
            source: of.source.name(),
            opens: of.opens,
            subvolumes: of.subvolumes,
            files: of.files,
            bytes: of.bytes,
            damaged: of
                .damaged
                .iter()
                .map(|tree| TreeFact {
                    tree: tree.tree.get(),
                    nodes: tree.nodes,
                    lost: tree.lost,
                })
                .collect(),
            next: self.next(of, patient),
        }
    }

    /// The command that takes the files of a generation.
    fn next(&self, of: &CandidateFacts, patient: &Patient) -> String {
        let is_newest = patient
            .superblock()
            .is_some_and(|one| one.generation == of.generation);
        let is_whole = of.opens && of.damaged.is_empty() && patient.missing().is_empty();
        let (good, all) = patient.superblock_copies();
        let is_sound = is_newest && is_whole && good == all;
        if is_sound
            && of.source == RootSource::Superblock
            && let [volume] = &self.volumes[..]
        {
            return format!("butterfs mount -o ro {} DIRECTORY", shell(volume));
        }
        let generation = match of.source {
            RootSource::Superblock | RootSource::Leaves => String::new(),
            RootSource::Backup | RootSource::Scan => format!(" --generation {}", of.generation),
        };
        let words = self.patient.words(&self.volumes);
        format!("butterfs restore --all{generation}{words} DIRECTORY")
    }
}

const fn source_name(source: ChunkSource) -> &'static str {
    match source {
        ChunkSource::Nothing => "nothing",
        ChunkSource::Tree => "chunk tree",
        ChunkSource::Remains => "remains of the chunk tree, and device extents",
    }
}

fn print(facts: &Facts) -> Done {
    say!("volume:        {}", facts.fsid);
    say!(
        "nodes:         {} bytes, {}",
        facts.node_size,
        facts.checksum
    );
    let generation = facts.generation.map_or_else(
        || "none is good".to_owned(),
        |generation| format!("the newest is of generation {generation}"),
    );
    say!(
        "superblocks:   {} of {} are good; {generation}",
        facts.superblocks_good,
        facts.superblocks
    );
    if facts.fsync_log {
        say!("fsync log:     there is one; restore and a mount replay it, if it is whole");
    }
    for (device, base) in &facts.begins_at {
        say!("begins at:     byte {base} of {}", shell(Path::new(device)));
    }
    for id in &facts.missing_devices {
        say!("missing:       device {id}");
    }
    let chunks = &facts.chunks;
    say!("chunks:        {} from {}", chunks.known, chunks.source);
    if chunks.unknown > 0 {
        say!(
            "               {} more are known by name only; data in them cannot be read",
            chunks.unknown
        );
    }
    say!(
        "scan:          {} nodes in {}",
        facts.scan.nodes,
        human(facts.scan.bytes)
    );
    if facts.scan.unreadable > 0 {
        say!(
            "               {} cannot be read",
            human(facts.scan.unreadable)
        );
    }
    say!("");
    say!("generation  named by     opens  subvolumes      files       bytes  lost nodes");
    for one in &facts.candidates {
        let lost: u64 = one.damaged.iter().map(|tree| tree.lost).sum();
        say!(
            "{:>10}  {:<11}  {:<5}  {:>10}  {:>9}  {:>10}  {:>10}",
            one.generation,
            one.source,
            if one.opens { "yes" } else { "no" },
            one.subvolumes,
            one.files,
            human(one.bytes),
            lost
        );
        for tree in one.damaged.iter().take(TREES_MAX) {
            say!(
                "            tree {}: {} nodes are lost, {} can be read",
                tree.tree,
                tree.lost,
                tree.nodes
            );
        }
    }
    if facts.other_generations > 0 {
        say!(
            "{} older generations were not looked into (--generations N)",
            facts.other_generations
        );
    }
    say!("");
    match facts.next.is_empty() {
        true => say!("no files can be found; --full reads all of the devices"),
        false => say!("next: {}", facts.next),
    }
    Ok(())
}
