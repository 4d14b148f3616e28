//! A limit for the memory of a cell, page cache included. It is a control group
//! into which this process goes for a while, with everything that it starts.

use super::undo::{Made, Undo};
use crate::declaration::show_size;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// How memory can be capped on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Control groups version 2.
    Second,
    /// The memory controller of version 1; our own group there.
    First(PathBuf),
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Second => f.write_str("control groups, version 2"),
            Self::First(_) => f.write_str("control groups, version 1"),
        }
    }
}

const SECOND: &str = "/sys/fs/cgroup";
const FIRST: &str = "/sys/fs/cgroup/memory";

impl Controller {
    /// Looks for a controller. The error says why there is none.
    pub(crate) fn find() -> Result<Self, String> {
        let second = fs::read_to_string(Path::new(SECOND).join("cgroup.controllers"));
        if second.is_ok_and(|text| text.split_whitespace().any(|name| name == "memory")) {
            return Ok(Self::Second);
        }
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers
                .split(',')
                .any(|name| name == "memory")
                .then_some(path)
        });
        let Some(group) = group else {
            return Err("there is no control group for memory".to_owned());
        };
        let path = Path::new(FIRST).join(group.trim_start_matches('/'));
        if path.join("memory.limit_in_bytes").exists() {
            Ok(Self::First(path))
        } else {
            Err("the control group for memory is not mounted".to_owned())
        }
    }

    /// The group that this process is in.
    fn home(&self) -> PathBuf {
        match self {
            Self::First(path) => path.clone(),
            Self::Second => {
                let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
                let path = own.lines().find_map(|line| line.strip_prefix("0::/"));
                Path::new(SECOND).join(path.unwrap_or_default())
            }
        }
    }

    /// Caps the memory of this process and of everything that it starts from
    /// now on, until the stack is undone. Returns the limit that is in effect.
    ///
    /// # Errors
    /// What could not be done.
    pub(crate) fn cap(&self, bytes: u64, undo: &mut Undo) -> Result<u64, String> {
        let name = format!("butterfs-lab-{}", std::process::id());
        let (group, limit) = match self {
            Self::First(path) => (path.join(name), "memory.limit_in_bytes"),
            Self::Second => {
                // This may fail where the controller is already enabled.
                let _ = fs::write(Path::new(SECOND).join("cgroup.subtree_control"), "+memory");
                (Path::new(SECOND).join(name), "memory.max")
            }
        };
        let home = self.home();
        undo.will_make(Made::Group {
            group: group.clone(),
            home,
        })?;
        let at = |error: std::io::Error| {
            format!(
                "memory capped at {}: {}: {error}",
                show_size(bytes),
                group.display()
            )
        };
        fs::create_dir(&group).map_err(at)?;
        fs::write(group.join(limit), bytes.to_string()).map_err(at)?;
        let text = fs::read_to_string(group.join(limit)).map_err(at)?;
        let effective = text
            .trim()
            .parse()
            .map_err(|_| format!("{limit} is {text}"))?;
        let own = std::process::id().to_string();
        fs::write(group.join("cgroup.procs"), own).map_err(at)?;
        Ok(effective)
    }
}
