//! `butterfs subvolume du`.

use super::shown::Name;
use super::site::subvolume_at;
use crate::fail::{Done, Failure, fail};
use crate::output;
use crate::place::{Place, json};
use crate::service::{OnKernel, OnVolume};
use crate::sizes::{self, human};
use butterfs::TreeId;
use butterfs::du::{Limits, Progress, Space, SpaceSharing};
use butterfs::list::Subvolumes;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Show what each subvolume holds alone and shares, and what deleting would
/// free. Exact, without quotas.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs subvolume du disk.img
  butterfs subvolume du disk.img:/home disk.img:/snapshots/monday
  butterfs subvolume du disk.img --if-deleted snapshots/monday,snapshots/tuesday
  butterfs subvolume du disk.img --if-deleted 260-299 --if-deleted 260-310 --json

Figures are bytes on disk (compressed, whole extents, each copy once) of file data and of the subvolumes' tree nodes. What is exclusive is freed when that subvolume alone is deleted; a set of several can free more than the sum of it, which is what --if-deleted answers.")]
pub struct Du {
    /// What would be freed if all of these were deleted together: ids, ranges
    /// of ids and paths from the top level, with commas between them. Can be
    /// given several times, each answered on its own.
    #[arg(long, value_name = "SET")]
    if_deleted: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print bytes instead of KiB, MiB and so on.
    #[arg(short = 'b', long)]
    raw: bool,
    /// Show how far it is.
    #[arg(long)]
    progress: bool,
    /// Bytes of memory to take at most, about; less takes longer where very
    /// much is shared.
    #[arg(long, value_parser = sizes::parse, value_name = "SIZE", default_value = "1g")]
    memory: u64,
    /// Subvolume id that paths start from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    /// VOLUME for all subvolumes, or VOLUME:/path of some in one volume.
    #[arg(required = true)]
    places: Vec<Place>,
}

#[derive(Serialize)]
struct SpaceFact {
    data: u64,
    metadata: u64,
}

#[derive(Serialize)]
struct Row {
    id: u64,
    path: Name,
    total: SpaceFact,
    exclusive: SpaceFact,
    shared: SpaceFact,
}

#[derive(Serialize)]
struct Deletion {
    set: String,
    ids: Vec<u64>,
    freed: SpaceFact,
}

#[derive(Serialize)]
struct Facts {
    subvolumes: Vec<Row>,
    if_deleted: Vec<Deletion>,
    all: SpaceFact,
    being_freed: SpaceFact,
}

const fn fact(space: Space) -> SpaceFact {
    SpaceFact {
        data: space.data,
        metadata: space.metadata,
    }
}

/// Bytes of memory for one extent that waits, and for one run of a set.
const EXTENT_BYTES: u64 = 64;
const RUN_BYTES: u64 = 64;

fn limits(memory: u64) -> Limits {
    let half = memory / 2;
    let count = |bytes: u64| usize::try_from(half / bytes).unwrap_or(usize::MAX);
    Limits {
        extents: count(EXTENT_BYTES),
        runs: count(RUN_BYTES),
    }
}

impl OnVolume for Du {
    const NAME: &'static str = "subvolume du";
    const TAG: &'static str = "Du";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        self.places.iter_mut().try_for_each(visit)
    }

    fn run_here(self) -> Done {
        let Some(first) = self.places.first() else {
            return fail("no volume was given; name VOLUME:/path or a directory on a mount");
        };
        if self.places.iter().any(|place| place.volume != first.volume) {
            return fail("all paths must be in one volume");
        }
        let volume = first.open_read_only(self.subvolid)?;
        let subvolumes = volume.subvolumes()?;
        let wanted = if self.places.len() == 1 && first.path == "/" {
            None
        } else {
            let ids = self.places.iter().map(|place| subvolume_at(&volume, place));
            Some(ids.collect::<Result<BTreeSet<_>, _>>()?)
        };
        let sets: Vec<BTreeSet<TreeId>> = self
            .if_deleted
            .iter()
            .map(|set| parse_set(&subvolumes, set))
            .collect::<Result<_, _>>()?;
        let bar = Bar::new(self.progress);
        let sharing = volume.space_sharing(&limits(self.memory), &mut |progress| {
            bar.show(progress);
            ControlFlow::Continue(())
        })?;
        bar.bar.finish_and_clear();
        let facts = self.facts(&subvolumes, &sharing, wanted.as_ref(), &sets)?;
        if self.json {
            return json(&facts);
        }
        self.print(&facts)?;
        Ok(())
    }
}

impl Du {
    fn facts(
        &self,
        subvolumes: &Subvolumes,
        sharing: &SpaceSharing,
        wanted: Option<&BTreeSet<TreeId>>,
        sets: &[BTreeSet<TreeId>],
    ) -> Result<Facts, Failure> {
        let mut rows = Vec::new();
        for space in sharing.subvolumes() {
            if wanted.is_some_and(|wanted| !wanted.contains(&space.id)) {
                continue;
            }
            let path = subvolumes.get(space.id).and_then(|info| info.path.clone());
            rows.push(Row {
                id: space.id.get(),
                path: Name(path.unwrap_or_default()),
                total: fact(space.total),
                exclusive: fact(space.exclusive),
                shared: fact(space.shared()),
            });
        }
        let mut deletions = Vec::new();
        for (set, ids) in self.if_deleted.iter().zip(sets) {
            let Some(freed) = sharing.freed_by(ids) else {
                return fail(format!(
                    "{set}: one of these was deleted meanwhile; see `butterfs subvolume list`"
                ));
            };
            deletions.push(Deletion {
                set: set.clone(),
                ids: ids.iter().map(|id| id.get()).collect(),
                freed: fact(freed),
            });
        }
        Ok(Facts {
            subvolumes: rows,
            if_deleted: deletions,
            all: fact(sharing.total()),
            being_freed: fact(sharing.being_freed()),
        })
    }

    fn size(&self, space: &SpaceFact) -> String {
        let bytes = space.data.saturating_add(space.metadata);
        if self.raw {
            bytes.to_string()
        } else {
            human(bytes)
        }
    }

    fn print(&self, facts: &Facts) -> Done {
        say!(
            "{:>12} {:>12} {:>12}  {:>6} path",
            "total",
            "exclusive",
            "shared",
            "id"
        );
        for row in &facts.subvolumes {
            let path = match &row.path.0[..] {
                b"" => b"<FS_TREE>",
                path => path,
            };
            let figures = format!(
                "{:>12} {:>12} {:>12}  {:>6} ",
                self.size(&row.total),
                self.size(&row.exclusive),
                self.size(&row.shared),
                row.id
            );
            output::line(&[figures.as_bytes(), path])?;
        }
        for deletion in &facts.if_deleted {
            say!(
                "deleting {} frees {}",
                deletion.set,
                self.size(&deletion.freed)
            );
        }
        if facts.being_freed.data != 0 || facts.being_freed.metadata != 0 {
            say!("deletions under way free {}", self.size(&facts.being_freed));
        }
        Ok(())
    }
}

/// Ids, ranges of ids and paths. Of a range, only existing ids count.
fn parse_set(subvolumes: &Subvolumes, set: &str) -> Result<BTreeSet<TreeId>, Failure> {
    let mut ids = BTreeSet::new();
    for word in set.split(',').filter(|word| !word.is_empty()) {
        let range = word.split_once('-').and_then(|(first, last)| {
            Some(TreeId(first.parse().ok()?)..=TreeId(last.parse().ok()?))
        });
        let living = |id: TreeId| {
            subvolumes
                .get(id)
                .is_some_and(|info| !info.is_being_deleted())
        };
        // If a word looks like a number and is also a path, the path counts.
        let path = word.trim_matches('/');
        if let Some(info) = subvolumes.by_path(path.as_bytes()) {
            ids.insert(info.id);
        } else if let Some(range) = range {
            let all = subvolumes.iter().map(|info| info.id);
            ids.extend(all.filter(|id| range.contains(id) && living(*id)));
        } else {
            match word.parse().map(TreeId) {
                Ok(id) if living(id) => {
                    ids.insert(id);
                }
                _ => {
                    return fail(format!(
                        "{word}: there is no such subvolume; `butterfs subvolume list` shows ids and paths"
                    ));
                }
            }
        }
    }
    if ids.contains(&TreeId::FS) {
        return fail("the top level cannot be deleted");
    }
    Ok(ids)
}

/// A bar on standard error.
struct Bar {
    bar: ProgressBar,
}

impl Bar {
    fn new(wanted: bool) -> Self {
        let target = if wanted {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} nodes, {eta} left");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self { bar }
    }

    fn show(&self, progress: &Progress) {
        self.bar.set_length(progress.nodes_max.max(progress.nodes));
        self.bar.set_position(progress.nodes);
        if progress.sweeps > 1 {
            self.bar.set_message(format!("sweep {}", progress.sweeps));
        }
    }
}
