//! `butterfs inspect-internal tree-stats`: how trees lie on the devices.

use super::names::{parse_tree, title};
use crate::fail::{Context, Done, Failure};
use crate::place::{Place, json};
use crate::service::{OnKernel, OnVolume};
use crate::units::Units;
use butterfs::{Part, TreeId, Trees};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{ItemType, NodeRef};
use butterfs_tree::{Node, NodeSource};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Print how many nodes trees have, and how far they lie from each other.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs inspect tree-stats disk.img
  butterfs inspect tree-stats -b -t 256 /mnt

A node that does not follow the one before it, in the order of keys, is a seek; nodes that follow
each other are a cluster. Places are logical addresses.")]
pub struct TreeStats {
    /// Number or name of the tree, as dump-tree takes it; may be repeated. The
    /// trees root, extent, csum and fs without it.
    #[arg(short, long, value_name = "TREE")]
    tree: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    units: Units,
    /// The volume, or a path on a mount of it.
    place: Place,
}

/// What is told of a tree. Sizes in bytes.
#[derive(Debug, Default, Serialize)]
struct Stats {
    tree: u64,
    total: u64,
    inline: u64,
    seeks_forward: u64,
    seeks_backward: u64,
    seek_length: u64,
    /// Seeks by their lengths.
    #[serde(skip)]
    seeks: BTreeMap<u64, u64>,
    clusters: u64,
    cluster_total: u64,
    cluster_min: Option<u64>,
    cluster_max: u64,
    /// Bytes between the first and the last node.
    spread: u64,
    #[serde(rename = "microseconds", serialize_with = "microseconds")]
    took: Duration,
    /// Nodes by level, from the leaves on.
    nodes: Vec<u64>,
}

fn microseconds<S: serde::Serializer>(took: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(took.as_micros()).unwrap_or(u64::MAX))
}

impl OnVolume for TreeStats {
    const NAME: &'static str = "inspect-internal tree-stats";
    const TAG: &'static str = "TreeStats";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn whole_volume(&self) -> Option<(&Place, Part)> {
        Some((&self.place, Part::Whole))
    }

    fn run_here(self) -> Done {
        let at = self.place.volume.display().to_string();
        let mut trees: Vec<TreeId> = vec![TreeId::ROOT, TreeId::EXTENT, TreeId::CSUM, TreeId::FS];
        if !self.tree.is_empty() {
            let named: Result<_, _> = self.tree.iter().map(|name| parse_tree(name)).collect();
            trees = named?;
        }
        let volume = self.place.open_as_committed()?;
        let now = volume.steady_trees().context(&at)?;
        let mut all = Vec::new();
        for tree in trees {
            let stats = Stats::of(&now, tree).map_err(|error| error.at(&at))?;
            match self.json {
                true => all.push(stats),
                false => self.print(tree, &stats)?,
            }
        }
        match self.json {
            true => json(&all),
            false => Ok(()),
        }
    }
}

impl Stats {
    fn of(trees: &Trees<'_>, tree: TreeId) -> Result<Self, Failure> {
        let begin = Instant::now();
        let root = trees.node(trees.root(tree)?)?;
        let mut stats = Self {
            tree: tree.get(),
            nodes: vec![0; usize::from(root.level()) + 1],
            ..Self::default()
        };
        let at = root.logical().get();
        let mut ends = (at, at);
        stats.add(trees, &root, &mut ends)?;
        stats.spread = ends.1 - ends.0;
        stats.took = begin.elapsed();
        Ok(stats)
    }

    fn note(&mut self, node: NodeRef, size: u64) {
        self.total += size;
        self.nodes[usize::from(node.level)] += 1;
    }

    fn add(
        &mut self,
        trees: &Trees<'_>,
        node: &Arc<Node>,
        ends: &mut (u64, u64),
    ) -> Result<(), Failure> {
        let size = node.bytes().len() as u64;
        self.note(node.reference(), size);
        if node.is_leaf() {
            self.inline += inline_bytes(node);
            return Ok(());
        }
        // The node itself begins the first cluster.
        let mut last = node.logical().get();
        let mut cluster = size;
        for slot in 0..node.len() {
            let child = node.child(slot);
            let here = child.logical.get();
            self.add(trees, &trees.node(child)?, ends)?;
            if here == last.saturating_add(size) {
                cluster += size;
            } else {
                let length = here.abs_diff(last.saturating_add(size));
                self.seek_length += length;
                *self.seeks.entry(length).or_default() += 1;
                match here > last {
                    true => self.seeks_forward += 1,
                    false => self.seeks_backward += 1,
                }
                self.end_cluster(cluster, size);
                cluster = size;
            }
            last = here;
            *ends = (ends.0.min(here), ends.1.max(here));
        }
        Ok(())
    }

    /// One node alone is no cluster.
    fn end_cluster(&mut self, cluster: u64, node: u64) {
        if cluster != node {
            self.clusters += 1;
            self.cluster_total += cluster;
            self.cluster_min = Some(self.cluster_min.map_or(cluster, |least| least.min(cluster)));
            self.cluster_max = self.cluster_max.max(cluster);
        }
    }
}

/// Bytes of content that lie in a leaf.
fn inline_bytes(leaf: &Node) -> u64 {
    let extents = (0..leaf.len()).filter(|slot| leaf.key(*slot).item_type == ItemType::EXTENT_DATA);
    let sizes = extents.map(|slot| match FileExtent::parse(leaf.data(slot)) {
        Ok(FileExtent {
            body: FileExtentBody::Inline(data),
            ..
        }) => data.len() as u64,
        _ => 0,
    });
    sizes.sum()
}

/// Shortest and greatest length of seeks, and how many there are.
type Group = (u64, u64, u64);

/// Puts lengths into groups of at least `least` seeks. Only the last group, and
/// one in front of a length that has that many seeks alone, may have fewer.
fn groups(seeks: &BTreeMap<u64, u64>, least: u64) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut open = false;
    for (&length, &count) in seeks {
        match groups.last_mut() {
            Some((_, end, sum)) if open && count < least => {
                *end = length;
                *sum += count;
                open = *sum < least;
            }
            _ => {
                groups.push((length, length, count));
                open = count < least;
            }
        }
    }
    groups
}

/// Prints the lengths of seeks, where there are enough to draw them.
fn print_histogram(seeks: &BTreeMap<u64, u64>, total: u64) -> Done {
    /// Seeks from which on there is a histogram, and marks of a full line.
    const MARKS: u64 = 20;
    let Some((longest, _)) = seeks.last_key_value().filter(|_| total > MARKS) else {
        return Ok(());
    };
    let mark = total / MARKS;
    let width = longest.to_string().len();
    say!("\tSeek histogram");
    for (start, end, count) in groups(seeks, 3 * mark) {
        let marks = match count / mark {
            0 => "|".to_owned(),
            marks => "#".repeat(usize::try_from(marks).unwrap_or(0)),
        };
        say!("\t\t{start:>width$} - {end:>width$}: {count:>width$} {marks}");
    }
    Ok(())
}

impl TreeStats {
    fn print(&self, tree: TreeId, stats: &Stats) -> Done {
        let size = |bytes| self.units.size(bytes);
        let name = match (tree, title(tree)) {
            (TreeId::CSUM, _) => "csum tree".to_owned(),
            (tree, "file") => format!("tree {}", tree.get()),
            (_, title) => format!("{title} tree"),
        };
        let seeks = stats.seeks_forward + stats.seeks_backward;
        let least = stats.nodes.len() as u64;
        let node = stats
            .total
            .checked_div(stats.nodes.iter().sum())
            .unwrap_or(0);
        say!("Calculating size of {name}");
        say!("\tTotal size: {}", size(stats.total));
        say!("\t\tInline data: {}", size(stats.inline));
        say!("\tTotal seeks: {seeks}");
        say!("\t\tForward seeks: {}", stats.seeks_forward);
        say!("\t\tBackward seeks: {}", stats.seeks_backward);
        let average = |sum: u64, count: u64| size(sum.checked_div(count).unwrap_or(0));
        say!("\t\tAvg seek len: {}", average(stats.seek_length, seeks));
        print_histogram(&stats.seeks, seeks)?;
        say!("\tTotal clusters: {}", stats.clusters.max(1));
        say!(
            "\t\tAvg cluster size: {}",
            average(stats.cluster_total, stats.clusters)
        );
        say!(
            "\t\tMin cluster size: {}",
            size(stats.cluster_min.unwrap_or(0))
        );
        say!(
            "\t\tMax cluster size: {}",
            size(stats.cluster_max.max(node))
        );
        say!("\tTotal disk spread: {}", size(stats.spread));
        let took = stats.took;
        say!(
            "\tTotal read time: {} s {} us",
            took.as_secs(),
            took.subsec_micros()
        );
        say!("\tLevels: {least}");
        say!("\tTotal nodes: {}", stats.nodes.iter().sum::<u64>());
        for (level, nodes) in stats.nodes.iter().enumerate() {
            let below = level
                .checked_sub(1)
                .and_then(|below| stats.nodes.get(below));
            match below.and_then(|below| below.checked_div(*nodes)) {
                Some(fanout) => {
                    say!("\t\tOn level {level}: {nodes:>8}  (avg fanout {fanout})");
                }
                None => say!("\t\tOn level {level}: {nodes:>8}"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn lengths_that_are_rare_stand_together() {
        let seeks = [(1, 2), (2, 2), (3, 5), (4, 1), (5, 3), (6, 1), (7, 1)];
        let grouped = [(1, 2, 4), (3, 3, 5), (4, 4, 1), (5, 5, 3), (6, 7, 2)];
        assert_eq!(groups(&seeks.into(), 3), grouped);
        assert_eq!(groups(&[].into(), 3), []);
    }
}
