//! `butterfs filesystem usage --explain`: where the space of a volume is, in
//! sentences.

use crate::fail::{Context, Done};
use crate::host;
use crate::place::{Place, json};
use crate::service::OnVolume;
use crate::sizes::human;
use butterfs_admin::explain::{Explanation, Obstacle, Remedy, explain};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is asked.
#[derive(Debug, Deserialize, Serialize)]
pub struct Explain {
    json: bool,
    place: Place,
}

#[derive(Serialize)]
struct Facts {
    device_bytes: u64,
    device_bytes_unallocated: u64,
    data_profile: &'static str,
    data_writable: u64,
    sentences: Vec<String>,
    obstacles: Vec<String>,
    remedies: Vec<RemedyFact>,
}

#[derive(Serialize)]
struct RemedyFact {
    command: Option<String>,
    sentence: String,
    device_bytes_freed: Option<u64>,
    data_writable_in_new_chunks: Option<u64>,
}

impl Explain {
    /// About the volume at a path.
    pub fn new(volume: PathBuf, json: bool) -> Self {
        Self {
            json,
            place: Place {
                volume,
                path: "/".into(),
            },
        }
    }
}

impl OnVolume for Explain {
    const NAME: &'static str = "filesystem usage --explain";
    const TAG: &'static str = "Explain";

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn run_here(self) -> Done {
        let volume = match host::volume() {
            Some(volume) => volume,
            None => self.place.open_read_only(None)?,
        };
        let name = self.place.volume.display().to_string();
        let found = explain(volume.files().store()).context(&name)?;
        let facts = facts(&found, &name);
        if self.json {
            return json(&facts);
        }
        for sentence in &facts.sentences {
            say!("{sentence}");
        }
        if !facts.obstacles.is_empty() {
            say!("\nIn the way:");
        }
        for sentence in &facts.obstacles {
            say!("  {sentence}");
        }
        if !facts.remedies.is_empty() {
            say!("\nWhat helps (tried by the allocator's rules; nothing was written):");
        }
        for remedy in &facts.remedies {
            if let Some(command) = &remedy.command {
                say!("  {command}");
            }
            say!("    {}", remedy.sentence);
        }
        Ok(())
    }
}

fn facts(found: &Explanation, name: &str) -> Facts {
    let (size, unallocated) = found.devices();
    Facts {
        device_bytes: size,
        device_bytes_unallocated: unallocated,
        data_profile: Explanation::profile(found.standing.data.flags),
        data_writable: found.writable,
        sentences: sentences(found),
        obstacles: found.obstacles.iter().map(obstacle).collect(),
        remedies: found.remedies.iter().map(|one| remedy(one, name)).collect(),
    }
}

fn sentences(found: &Explanation) -> Vec<String> {
    let standing = &found.standing;
    let (size, unallocated) = found.devices();
    let devices = match standing.devices.len() {
        1 => "The device has".to_owned(),
        count => format!("The {count} devices have"),
    };
    let mut said = vec![format!(
        "{devices} {}; {} of it are in no chunk yet.",
        human(size),
        human(unallocated)
    )];
    let kinds = match standing.is_mixed {
        true => vec![("Data and metadata together", &standing.data)],
        false => vec![("Data", &standing.data), ("Metadata", &standing.metadata)],
    };
    for (kind, of) in kinds {
        said.push(format!(
            "{kind} have chunks of {}, {} of it used and {} free; new ones are {}, and could have \
             {} more.",
            human(of.total),
            human(of.used),
            human(of.free),
            Explanation::profile(of.flags),
            human(of.further)
        ));
    }
    said.push(format!(
        "Files can get about {} more. {} of metadata space are kept for other changes, a part of \
         it for deletions alone.",
        human(found.writable),
        human(standing.kept)
    ));
    said
}

fn obstacle(found: &Obstacle) -> String {
    match found {
        Obstacle::NothingUnallocated => "No further chunk can be made: the space of the devices \
             is in chunks, or too little of it is not."
            .to_owned(),
        Obstacle::MetadataFull { free, kept } => format!(
            "Metadata are full: {} are left, of which {} are kept. Writes fail although data \
             chunks have space, since what is written needs metadata, too.",
            human(*free),
            human(*kept)
        ),
        Obstacle::Stranded { device, bytes } => format!(
            "{} of device {device} cannot be used in this profile: the other devices have no space \
             for their part of a chunk.",
            human(*bytes)
        ),
        Obstacle::Pinned(bytes) => format!(
            "{} were freed since the last commit, and can be used after the next one.",
            human(*bytes)
        ),
        Obstacle::PartlyUsedRows(bytes) => format!(
            "{} are free in rows that hold other data; they are given out when nothing else is left, \
             since writing there is not safe in a power failure.",
            human(*bytes)
        ),
        Obstacle::FreeOfOtherKind { data, metadata } => format!(
            "The {} that are free in data chunks are for data alone, the {} in metadata chunks \
             for metadata.",
            human(*data),
            human(*metadata)
        ),
    }
}

fn remedy(found: &Remedy, name: &str) -> RemedyFact {
    let fact = |command, sentence, freed, data| RemedyFact {
        command,
        sentence,
        device_bytes_freed: freed,
        data_writable_in_new_chunks: data,
    };
    match found {
        Remedy::Commit { frees } => fact(
            None,
            format!(
                "The next commit frees {}; sync(1) makes one now.",
                human(*frees)
            ),
            None,
            None,
        ),
        Remedy::Wait { subvolumes } => fact(
            Some(format!("butterfs subvolume sync {name}")),
            format!("{subvolumes} deleted subvolumes are still being freed; this waits for it."),
            None,
            None,
        ),
        Remedy::Balance {
            usage,
            is_mixed,
            groups,
            moves,
            frees,
            data_after,
            metadata_after,
        } => fact(
            Some(match is_mixed {
                false => format!("butterfs balance start -dusage={usage},limit={groups} {name}"),
                true => format!(
                    "butterfs balance start -dusage={usage},limit={groups} \
                     -musage={usage},limit={groups} {name}"
                ),
            }),
            format!(
                "empties {groups} block groups by moving {}, and gives {} back: new chunks could \
                 have {} of data then, or {} of metadata.",
                human(*moves),
                human(*frees),
                human(*data_after),
                human(*metadata_after)
            ),
            Some(*frees),
            Some(*data_after),
        ),
        Remedy::Grow {
            device,
            gains,
            data_after,
        } => fact(
            Some(format!("butterfs filesystem resize {device}:max {name}")),
            format!(
                "device {device} is {} larger than the volume uses of it: new chunks could have \
                 {} of data then.",
                human(*gains),
                human(*data_after)
            ),
            Some(*gains),
            Some(*data_after),
        ),
        Remedy::Add { size, data_after } => fact(
            Some(format!("butterfs device add DEVICE {name}")),
            format!(
                "with a device of {} or more lets new chunks have {} of data.",
                human(*size),
                human(*data_after)
            ),
            None,
            Some(*data_after),
        ),
    }
}
