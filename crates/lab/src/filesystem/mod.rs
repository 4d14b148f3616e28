//! File systems as declarations: how one is made, mounted, unmounted and
//! checked, and what it promises. They are written as TOML (docs/lab.md
//! describes it), also those that ship with the program.

mod command;
mod parse;

pub use command::{Command, Place};

use crate::declaration::{Mistake, nearest};
use crate::model::Durability;
use std::collections::BTreeMap;

/// A check of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name in results ("e2fsck").
    pub name: String,
    /// Exit code 0 means that nothing is wrong.
    pub run: Command,
    /// It runs on the mounted file system (a scrub); otherwise on the devices.
    pub mounted: bool,
}

/// What a file system goes through before the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Value of the axis ("snapshot").
    pub name: String,
    /// File system that is made and filled first, if it is another one.
    pub through: Option<String>,
    /// Options of mkfs for that one.
    pub through_mkfs: String,
    /// After mounting, before `{directory}/tree` is filled.
    pub before: Vec<Command>,
    /// After it was filled, still mounted.
    pub mounted: Vec<Command>,
    /// After that, unmounted.
    pub unmounted: Vec<Command>,
}

/// How the options in effect are found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// /proc/self/mountinfo tells all.
    Mountinfo,
    /// The same, and `btrfs filesystem df` tells the profiles.
    Btrfs,
    /// The mount's root tells, in an extended attribute.
    Butterfs,
    /// Nobody tells.
    None,
}

/// A file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Name in experiments.
    pub name: String,
    /// One line on it.
    pub title: String,
    /// Type that the kernel must know.
    pub kernel: Option<String>,
    /// Files that must be there ("/dev/fuse").
    pub needs: Vec<String>,
    /// Programs, each with its Debian package; "" if there is none.
    pub programs: Vec<(String, String)>,
    /// A process that must run all the time, started before anything else.
    pub daemon: Option<Command>,
    /// Makes it.
    pub make: Vec<Command>,
    /// Mounts it at `{directory}`.
    pub mount: Vec<Command>,
    /// Unmounts it; everything is on the devices afterwards.
    pub unmount: Vec<Command>,
    /// Checks, in their order.
    pub checks: Vec<Check>,
    /// What it promises without options.
    pub durability: Durability,
    /// Options with which it promises less.
    pub promises: Vec<(String, Durability)>,
    /// Greatest number of devices that it takes.
    pub max_devices: usize,
    /// Profiles that it has over several devices.
    pub profiles: Vec<String>,
    /// Options of mkfs for a profile, with `{profile}`.
    pub profile_option: String,
    /// How an option is shown, if not as it was given; "" if it is not shown
    /// because it is the default.
    pub shown: BTreeMap<String, String>,
    /// How the options in effect are found out.
    pub probe: Probe,
    /// A process of its own serves it. Its CPU time is charged to the cell.
    pub served: bool,
    /// Workloads run in the lab's own process, on a volume that the library has
    /// open. Its commands mount it for what comes before and after.
    pub library: bool,
    /// Histories that it can have.
    pub histories: Vec<History>,
}

/// File systems by name.
#[derive(Clone, Debug, Default)]
pub struct FileSystems(Vec<FileSystem>);

const SHIPPED: &[(&str, &str)] = &[
    ("kernel.toml", include_str!("../../filesystems/kernel.toml")),
    ("fuse.toml", include_str!("../../filesystems/fuse.toml")),
    ("gone.toml", include_str!("../../filesystems/gone.toml")),
];

impl FileSystems {
    /// Those that ship with the program.
    ///
    /// # Panics
    /// When one of them has a mistake. A test reads all of them.
    pub fn shipped() -> Self {
        let mut all = Self::default();
        for (file, text) in SHIPPED {
            if let Err(mistake) = all.add(file, text) {
                panic!("a file that ships with the program: {mistake}");
            }
        }
        all
    }

    /// Adds the file systems of a file. One of the same name is replaced.
    ///
    /// # Errors
    /// The first mistake, with its line.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), Mistake> {
        for found in parse::file_systems(file, text)? {
            self.0.retain(|other| other.name != found.name);
            self.0.push(found);
        }
        Ok(())
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<&FileSystem> {
        self.0.iter().find(|one| one.name == name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &FileSystem> {
        self.0.iter()
    }

    /// The nearest names, for a message about a name that no file system has.
    pub fn hint(&self, name: &str) -> String {
        nearest(name, self.0.iter().map(|one| one.name.as_str()))
    }
}

impl FileSystem {
    /// What a cell with these options of mkfs and mount promises.
    pub fn promise(&self, mkfs: &str, mount: &str) -> Durability {
        let given: Vec<&str> = mount.split(',').map(str::trim).collect();
        let less = self.promises.iter().filter(|(option, _)| {
            given.contains(&option.as_str()) || !mkfs.is_empty() && mkfs.contains(option.as_str())
        });
        less.map(|(_, durability)| *durability)
            .chain([self.durability])
            .max()
            .unwrap_or(self.durability)
    }

    /// What it can go through before the workload, by name.
    pub fn history(&self, name: &str) -> Option<&History> {
        self.histories.iter().find(|history| history.name == name)
    }
}
