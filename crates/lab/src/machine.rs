//! What this machine has, and what it lacks.

use crate::declaration::show_size;
use crate::filesystem::{FileSystem, FileSystems};
use crate::run::memory_cap;
use crate::wakeup::WakeUp;
use crate::workload::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What this machine has.
#[derive(Clone, Debug)]
pub struct Machine {
    kernel_knows: BTreeSet<String>,
    /// Loadable modules.
    modules: String,
    path: Vec<PathBuf>,
    /// It runs as root.
    pub root: bool,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes that programs can have now.
    pub memory_available: u64,
    /// Processors.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// How memory can be capped, or why it cannot.
    pub cap: Result<memory_cap::Controller, String>,
}

/// A line of what `doctor` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// It is there.
    pub good: bool,
    /// What was found, or what is missing.
    pub detail: String,
    /// Debian package that brings it.
    pub package: Option<String>,
}

impl Machine {
    /// Looks at this machine.
    pub fn here() -> Self {
        let kernel = read("/proc/sys/kernel/osrelease");
        let modules = ["modules.builtin", "modules.dep"]
            .map(|file| read(&format!("/lib/modules/{kernel}/{file}")))
            .join("\n");
        // Programs of administrators are not in everybody's PATH.
        let given = std::env::var_os("PATH").unwrap_or_default();
        let mut path: Vec<PathBuf> = std::env::split_paths(&given).collect();
        path.extend(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from));
        let memory = |name: &str| {
            let text = read("/proc/meminfo");
            let line = text.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            number.unwrap_or(0) * 1024
        };
        Self {
            kernel_knows: read("/proc/filesystems")
                .lines()
                .filter_map(|line| line.split_whitespace().last())
                .map(str::to_owned)
                .collect(),
            modules,
            path,
            root: rustix::process::geteuid().is_root(),
            memory: memory("MemTotal:"),
            memory_available: memory("MemAvailable:"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel,
            cap: memory_cap::Controller::find(),
        }
    }

    /// Where a program is.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        if name.contains('/') {
            return Path::new(name).exists().then(|| name.into());
        }
        self.path
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
    }

    /// The kernel has a file system, or a module for it.
    pub fn kernel_has(&self, name: &str) -> bool {
        self.kernel_knows.contains(name) || self.modules.contains(&format!("/{name}.ko"))
    }

    /// Why it cannot have a file system.
    pub fn lacks_file_system(&self, file_system: &FileSystem) -> Option<String> {
        if let Some(kernel) = &file_system.kernel
            && !self.kernel_has(kernel)
        {
            return Some(format!("the kernel has no {kernel}"));
        }
        if let Some(file) = file_system.needs.iter().find(|f| !Path::new(f).exists()) {
            return Some(format!("there is no {file}"));
        }
        self.lacks_program(
            file_system
                .programs
                .iter()
                .map(|(a, b)| (a.as_str(), b.as_str())),
        )
    }

    /// Why it cannot run a workload.
    pub fn lacks_workload(&self, workload: &dyn Workload) -> Option<String> {
        self.lacks_program(workload.programs().iter().copied())
    }

    fn lacks_program<'a>(
        &self,
        programs: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Option<String> {
        let missing = programs
            .into_iter()
            .find(|(program, _)| self.program(program).is_none())?;
        Some(match missing {
            (program, "") => format!("there is no program {program}"),
            (program, package) => format!("there is no program {program} (package {package})"),
        })
    }

    /// Everything that the lab needs and may need.
    pub fn examine(
        &self,
        file_systems: &FileSystems,
        workloads: &crate::catalogue::Catalogue,
    ) -> Vec<Finding> {
        let mut found = vec![
            finding(
                "root",
                self.root,
                if self.root {
                    "yes"
                } else {
                    "devices, mounts and caches need it; run it with sudo"
                },
            ),
            finding("processors", true, self.cores.to_string()),
            finding(
                "memory",
                self.memory_available >= 1 << 30,
                format!(
                    "{} of {} free",
                    show_size(self.memory_available),
                    show_size(self.memory)
                ),
            ),
            finding("kernel", true, self.kernel.clone()),
            finding("waking a processor", true, WakeUp::measure().to_string()),
            finding(
                "loop devices",
                Path::new("/dev/loop-control").exists(),
                if Path::new("/dev/loop-control").exists() {
                    "there"
                } else {
                    "there is no /dev/loop-control; `modprobe loop` brings it"
                },
            ),
            finding(
                "FUSE",
                Path::new("/dev/fuse").exists(),
                if Path::new("/dev/fuse").exists() {
                    "there"
                } else {
                    "there is no /dev/fuse; `modprobe fuse` brings it"
                },
            ),
            match &self.cap {
                Ok(controller) => finding("memory cap", true, controller.to_string()),
                Err(why) => finding("memory cap", false, why.clone()),
            },
            finding("I/O schedulers of loop devices", true, schedulers()),
        ];
        for directory in ["/dev/shm", "/var/tmp"] {
            if let Some(free) = free_space(Path::new(directory)) {
                found.push(finding(
                    &format!("space in {directory}"),
                    free >= 1 << 30,
                    format!("{} free", show_size(free)),
                ));
            }
        }
        for one in file_systems.iter() {
            let lack = self.lacks_file_system(one);
            found.push(finding(
                &format!("file system {}", one.name),
                lack.is_none(),
                lack.unwrap_or_else(|| one.title.clone()),
            ));
        }
        let mut programs: BTreeMap<String, String> = BTreeMap::new();
        programs.insert("losetup".to_owned(), "mount".to_owned());
        for one in file_systems.iter() {
            // A program for a file system that the kernel lacks is useless.
            if one
                .kernel
                .as_ref()
                .is_none_or(|kernel| self.kernel_has(kernel))
            {
                programs.extend(one.programs.iter().cloned());
            }
        }
        for one in workloads.iter() {
            let own = one.programs().iter();
            programs.extend(own.map(|(a, b)| ((*a).to_owned(), (*b).to_owned())));
        }
        for (program, package) in programs {
            let mut line = finding(&format!("program {program}"), true, "");
            match self.program(&program) {
                Some(path) => line.detail = version(&path),
                None => {
                    line.good = false;
                    "not there".clone_into(&mut line.detail);
                    line.package = Some(package).filter(|package| !package.is_empty());
                }
            }
            found.push(line);
        }
        found
    }
}

/// The one command that installs what is missing.
pub fn install_command(findings: &[Finding]) -> Option<String> {
    let packages: BTreeSet<&str> = findings
        .iter()
        .filter(|finding| !finding.good)
        .filter_map(|finding| finding.package.as_deref())
        .collect();
    if packages.is_empty() {
        return None;
    }
    let packages: Vec<&str> = packages.into_iter().collect();
    Some(format!(
        "sudo apt-get install --no-install-recommends {}",
        packages.join(" ")
    ))
}

fn finding(what: &str, good: bool, detail: impl Into<String>) -> Finding {
    Finding {
        what: what.to_owned(),
        good,
        detail: detail.into(),
        package: None,
    }
}

fn schedulers() -> String {
    let text = read("/sys/block/loop0/queue/scheduler");
    if text.is_empty() {
        return "not known before a loop device is there".to_owned();
    }
    text.replace(['[', ']'], "")
}

/// Bytes that are free where a path is.
pub fn free_space(path: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(path).ok()?;
    Some(found.f_bavail * found.f_frsize)
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// What a program says of its version.
pub fn version(program: &Path) -> String {
    let name = program.file_name();
    let name = name.map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let mut found: Option<(u32, String)> = None;
    // Only words that no program understands as a command.
    for argument in ["--version", "-V"] {
        let output = Command::new(program)
            .arg(argument)
            .stdin(Stdio::null())
            .output();
        let Ok(output) = output else { continue };
        let said = [output.stdout, output.stderr].concat();
        for line in String::from_utf8_lossy(&said).lines() {
            let small = line.to_lowercase();
            let complaint = ["invalid", "usage", "unrecognized", "unknown"];
            if !line.contains(|c: char| c.is_ascii_digit())
                || complaint.iter().any(|word| small.contains(word))
            {
                continue;
            }
            let likely = u32::from(small.contains(&name)) * 2
                + u32::from(small.contains("version"))
                + u32::from(output.status.success());
            if found.as_ref().is_none_or(|(best, _)| likely > *best) {
                found = Some((likely, line.trim().chars().take(120).collect()));
            }
        }
    }
    match found {
        Some((likely, line)) if likely > 0 => line,
        _ => "there".to_owned(),
    }
}
