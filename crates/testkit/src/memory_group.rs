//! Control groups that limit memory.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A control group that limits memory. It goes when it is dropped, if all of its
/// processes have ended.
#[derive(Debug)]
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A group below that of this process, of cgroup v1 or v2, that may have
    /// `bytes` of memory; `None` where none can be made.
    #[must_use]
    pub fn new(bytes: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path_of = |wanted: &str| {
            own.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let is_wanted = parts.next()?.split(',').any(|one| one == wanted);
                is_wanted.then(|| {
                    parts
                        .next()
                        .unwrap_or("/")
                        .trim_start_matches('/')
                        .to_owned()
                })
            })
        };
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("butterfs-test-{}-{number}", std::process::id());
        let roots = [
            ("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("", "/sys/fs/cgroup", "memory.max"),
        ];
        for (controller, root, limit) in roots {
            let Some(below) = path_of(controller) else {
                continue;
            };
            let folder = Path::new(root).join(below).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self(folder);
            // A folder of a plain file system would limit nothing.
            let is_group = group.0.join("cgroup.procs").exists();
            if is_group && fs::write(group.0.join(limit), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }

    /// A command that runs `program` in the group. Arguments may be added.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.0.join("cgroup.procs"))
            .arg(program);
        command
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A group goes when the last process is gone.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
