//! Programs that a workload starts: none outlives it.
//!
//! Each is a process group of its own. It gets SIGTERM, then SIGKILL, if the
//! workload fails or is cancelled, and SIGKILL from the kernel if the lab
//! itself is killed.

use super::Ground;
use super::crowd::CANCELLED;
use super::files::gist_of;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a program has to end by itself before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Finds a program in PATH, where administrators' programs are, and where
/// Debian keeps PostgreSQL's (the newest version's).
pub fn locate(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    // Debian's wrappers in PATH choose a version by themselves, so the programs
    // of one version come first.
    let postgres = versions.into_iter().rev().map(|(_, folder)| folder);
    let all = postgres.chain(folders);
    all.map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// A user that owns a server's files.
#[derive(Clone, Debug)]
pub(super) struct User {
    /// Its name.
    pub(super) name: String,
    uid: u32,
    gid: u32,
}

impl User {
    /// The first of these users that the machine has, if the lab is root,
    /// because some servers refuse to run as root.
    pub(super) fn instead_of_root(names: &[&str]) -> Result<Option<Self>, String> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd").map_err(|e| format!("/etc/passwd: {e}"))?;
        let found = names.iter().find_map(|name| {
            let line = users
                .lines()
                .find(|line| line.split(':').next() == Some(*name))?;
            let mut fields = line.split(':').skip(2);
            Some(Self {
                name: (*name).to_owned(),
                uid: fields.next()?.parse().ok()?,
                gid: fields.next()?.parse().ok()?,
            })
        });
        let names = names.join(" or ");
        found.map(Some).ok_or_else(|| {
            format!("the server refuses to be root and there is no user {names}; add one")
        })
    }
}

/// Makes a directory for a user.
pub(super) fn directory_of(path: &Path, user: Option<&User>) -> Result<(), String> {
    let told = |error| format!("make {}: {error}", path.display());
    fs::create_dir_all(path).map_err(told)?;
    if let Some(user) = user {
        std::os::unix::fs::chown(path, Some(user.uid), Some(user.gid)).map_err(told)?;
    }
    Ok(())
}

/// A command that dies with the lab. It runs as another user if one is given.
pub(super) fn command(program: &str, user: Option<&User>) -> Result<Command, String> {
    command_until(program, user, "KILL")
}

/// The same for a command that gets this signal when the lab dies, and cleans
/// up after itself.
pub(super) fn command_until(
    program: &str,
    user: Option<&User>,
    signal: &str,
) -> Result<Command, String> {
    let path = locate(program).ok_or_else(|| format!("the program {program} is not here"))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal]);
    if let Some(user) = user {
        command.arg(format!("--reuid={}", user.uid));
        command.arg(format!("--regid={}", user.gid));
        command.arg("--clear-groups");
    }
    command.arg("--").arg(path).env("LC_ALL", "C");
    Ok(command)
}

/// A command as a reader would type it.
pub(super) fn line_of(command: &Command) -> String {
    let words: Vec<String> = command
        .get_args()
        .skip_while(|word| *word != "--")
        .skip(1)
        .map(|word| {
            let word = word.to_string_lossy();
            if word.contains([' ', '\'', '"', '$', '\n']) {
                format!("'{}'", word.replace('\'', "'\\''"))
            } else {
                word.into_owned()
            }
        })
        .collect();
    words.join(" ")
}

struct Running {
    name: String,
    child: Child,
    error: PathBuf,
    /// What ends the program if nobody waits for its work.
    abandon: Signal,
}

fn start(name: &str, command: &mut Command, scratch: &Path) -> Result<Running, String> {
    let told = |error| format!("start {name}: {error}");
    let error = scratch.join(format!("{name}.err"));
    let output = File::create(scratch.join(format!("{name}.out"))).map_err(told)?;
    let child = command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(File::create(&error).map_err(told)?)
        .process_group(0)
        .spawn()
        .map_err(told)?;
    Ok(Running {
        name: name.to_owned(),
        child,
        error,
        abandon: Signal::TERM,
    })
}

impl Running {
    fn status(&mut self) -> Result<Option<ExitStatus>, String> {
        let status = self.child.try_wait();
        status.map_err(|error| format!("wait for {}: {error}", self.name))
    }

    fn signal(&self, signal: Signal) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            // If it has ended already, that is what is wanted.
            let _ = kill_process_group(group, signal);
        }
    }

    fn ends_within(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Ends it and all of its group.
    fn end(&mut self, signal: Signal, grace: Duration) {
        self.signal(signal);
        self.ends_within(grace);
        // Children that outlived it are in the group, too. A process that is
        // inside the kernel takes its time.
        self.signal(Signal::KILL);
        self.ends_within(Duration::from_secs(30));
        let until = Instant::now() + Duration::from_secs(30);
        while has_members(self.child.id()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn failed(&self, status: ExitStatus) -> String {
        let output = gist_of(&self.error.with_extension("out"));
        let errors = gist_of(&self.error);
        format!("{} ended with {status}: {errors}\n{output}", self.name)
            .trim_end()
            .to_owned()
    }
}

/// Whether a process of the group lives. Dead ones that nobody has waited for
/// do not count.
fn has_members(group: u32) -> bool {
    let group = group.to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .any(|stat| {
            // The name in brackets may hold anything.
            let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
            let mut fields = fields.split(' ');
            let state = fields.next();
            state != Some("Z") && fields.nth(1) == Some(group.as_str())
        })
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end(self.abandon, GRACE);
        }
    }
}

/// What a program printed.
pub(super) struct Output {
    /// On standard output.
    pub(super) text: String,
    /// On standard error.
    pub(super) errors: String,
}

/// Runs a program to its end; its output goes to files in scratch meanwhile.
pub(super) fn run(
    name: &str,
    command: &mut Command,
    ground: &dyn Ground,
) -> Result<Output, String> {
    let mut running = start(name, command, ground.scratch())?;
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = running.status()? {
            break status;
        }
        if ground.is_cancelled() {
            running.end(Signal::TERM, Duration::from_millis(500));
            return Err(CANCELLED.to_owned());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    if !status.success() {
        return Err(running.failed(status));
    }
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).map_err(|error| format!("read {}: {error}", path.display()))?;
        Ok::<_, String>(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Output {
        text: read(running.error.with_extension("out"))?,
        errors: read(running.error.clone())?,
    })
}

/// A server, ended when dropped.
pub(super) struct Server {
    running: Running,
    ending: Signal,
}

/// Signals of a server.
#[derive(Clone, Copy)]
pub(super) struct Endings {
    /// Asks it to end in good order, with all its work done.
    pub(super) orderly: Signal,
    /// Makes it throw its work away, but clean up after itself.
    pub(super) at_once: Signal,
}

impl Endings {
    /// What most servers take.
    pub(super) const TERM: Self = Self {
        orderly: Signal::TERM,
        at_once: Signal::TERM,
    };
}

impl Server {
    /// Starts a server and waits until `is_ready`.
    pub(super) fn start(
        name: &str,
        command: &mut Command,
        endings: Endings,
        ground: &dyn Ground,
        mut is_ready: impl FnMut() -> bool,
    ) -> Result<Self, String> {
        let mut server = Self {
            running: start(name, command, ground.scratch())?,
            ending: endings.orderly,
        };
        server.running.abandon = endings.at_once;
        let until = Instant::now() + Duration::from_secs(120);
        while !is_ready() {
            server.check()?;
            if ground.is_cancelled() {
                return Err(CANCELLED.to_owned());
            }
            if Instant::now() > until {
                let gist = gist_of(&server.running.error);
                return Err(format!("{name} was not ready within two minutes: {gist}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        server.check()?;
        Ok(server)
    }

    /// Whether it still runs.
    pub(super) fn check(&mut self) -> Result<(), String> {
        match self.running.status()? {
            None => Ok(()),
            Some(status) => Err(self.running.failed(status)),
        }
    }

    /// Asks it to end in good order and waits.
    pub(super) fn stop(mut self) -> Result<(), String> {
        self.check()?;
        self.running.signal(self.ending);
        if self.running.ends_within(Duration::from_secs(120)) {
            return Ok(());
        }
        Err(format!(
            "{} did not end within two minutes",
            self.running.name
        ))
    }
}

/// What a program says of its version: the first line that is not empty.
pub(super) fn version(program: &str, arguments: &[&str]) -> String {
    let output = locate(program).and_then(|path| {
        Command::new(path)
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .ok()
    });
    let Some(output) = output else {
        return "unknown".to_owned();
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| !line.trim().is_empty());
    line.map_or_else(|| "unknown".to_owned(), |line| line.trim().to_owned())
}
