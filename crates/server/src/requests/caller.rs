//! Who a request comes from, beyond what it says itself.
//!
//! Owns what /proc tells about a caller: groups, capabilities, user namespace,
//! file mode mask, and what it has open. Requests carry user, group and thread.
//! The rest is read once, when something first depends on it. A caller waits
//! until it is answered, so its thread exists and its number belongs to no
//! other. A request has no further groups and no capabilities if its thread
//! cannot be seen, or is not of the user and group that the request names (a
//! service that acts for somebody).

use butterfs::Owner;
use butterfs::access::{Capability, Credentials};
use butterfs_fuse::{Context, is_running, peer_process};
use std::cell::OnceCell;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bits of capabilities, see capabilities(7).
pub(super) const fn bit(capability: Capability) -> u64 {
    match capability {
        Capability::ChangeOwner => 1,
        Capability::DacOverride => 1 << 1,
        Capability::DacReadSearch => 1 << 2,
        Capability::Owner => 1 << 3,
        Capability::KeepSetId => 1 << 4,
        Capability::Immutable => 1 << 9,
        Capability::Administer => 1 << 21,
        Capability::MakeDevices => 1 << 27,
    }
}

/// A caller.
pub struct Caller<'a> {
    context: &'a Context<'a>,
    /// The user who runs the server, unless that is root. This user administers
    /// the volume, and may do with files what their permissions say.
    master: Option<u32>,
    facts: OnceCell<Facts>,
}

/// What /proc says of a thread.
#[derive(Debug, Default, PartialEq, Eq)]
struct Facts {
    groups: Vec<u32>,
    /// Capabilities in effect.
    effective: u64,
    umask: Option<u32>,
    /// If the thread is in another user namespace than the server: what that
    /// namespace knows.
    namespace: Option<Known>,
}

/// Users and groups that a namespace knows, by the server's numbers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    users: Vec<std::ops::Range<u64>>,
    groups: Vec<std::ops::Range<u64>>,
}

impl<'a> Caller<'a> {
    /// The caller of a request.
    pub fn of(context: &'a Context<'a>) -> Self {
        let server = rustix::process::geteuid();
        Self {
            context,
            master: (!server.is_root()).then(|| server.as_raw()),
            facts: OnceCell::new(),
        }
    }

    fn facts(&self) -> &Facts {
        self.facts.get_or_init(|| {
            let Context { uid, gid, pid, .. } = *self.context;
            Facts::read(pid, uid, gid).unwrap_or_default()
        })
    }

    /// Whether it runs the server, without being root.
    pub fn is_master(&self) -> bool {
        self.master == Some(self.context.uid)
    }

    /// The file mode mask.
    pub fn umask(&self) -> u32 {
        self.facts().umask.unwrap_or(0o022)
    }

    /// Whether it may administer the volume.
    pub fn is_privileged(&self) -> bool {
        self.has(Capability::Administer)
    }
}

/// Whether somebody kills a thread. The kernel does not let a caller die while
/// its request is under way, so a request that takes long looks for this.
pub(super) fn is_killed(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"));
    let is_killed = |status: &str| {
        ["SigPnd:", "ShdPnd:"].iter().any(|name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let pending = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
            pending.is_some_and(|bits| bits & 1 << (libc::SIGKILL - 1) != 0)
        })
    };
    status.map_or(true, |status| is_killed(&status))
}

/// The caller of a request that takes long.
#[derive(Debug)]
pub(super) struct Watched {
    thread: u32,
    looked: Instant,
}

impl Watched {
    /// How often the caller is looked for.
    const LOOK: Duration = Duration::from_millis(500);

    pub(super) fn new(thread: u32) -> Self {
        Self {
            thread,
            looked: Instant::now(),
        }
    }

    /// Whether somebody kills it.
    pub(super) fn is_gone(&mut self) -> bool {
        if self.looked.elapsed() < Self::LOOK {
            return false;
        }
        self.looked = Instant::now();
        is_killed(self.thread)
    }
}

impl Credentials for Caller<'_> {
    fn user(&self) -> u32 {
        self.context.uid
    }

    fn is_member(&self, group: u32) -> bool {
        self.context.gid == group || self.facts().groups.contains(&group)
    }

    fn has(&self, capability: Capability) -> bool {
        (capability == Capability::Administer && self.is_master()) || {
            let facts = self.facts();
            facts.namespace.is_none() && facts.effective & bit(capability) != 0
        }
    }

    fn has_over(&self, capability: Capability, owner: Owner) -> bool {
        let facts = self.facts();
        facts.effective & bit(capability) != 0
            && facts.namespace.as_ref().is_none_or(|known| {
                knows(&known.users, owner.uid) && knows(&known.groups, owner.gid)
            })
    }

    fn stands_in_for(&self, user: u32) -> bool {
        let facts = self.facts();
        let namespace = facts.namespace.as_ref();
        facts.effective & bit(Capability::Owner) != 0
            && namespace.is_none_or(|known| knows(&known.users, user))
    }
}

fn knows(ranges: &[std::ops::Range<u64>], id: u32) -> bool {
    ranges.iter().any(|range| range.contains(&u64::from(id)))
}

/// Whether the process at the other end of a socket may administer the volume:
/// by the rule for ioctls, the user who runs the server or a process with
/// CAP_SYS_ADMIN in the server's user namespace. A server that is not root's
/// cannot look at root's processes, so it trusts a peer that is root.
pub fn may_administer(socket: &UnixStream) -> bool {
    let Ok(peer) = rustix::net::sockopt::socket_peercred(socket) else {
        return false;
    };
    let server = rustix::process::geteuid();
    if !server.is_root() {
        return peer.uid.is_root() || peer.uid == server;
    }
    let process = match peer_process(socket) {
        Ok(process) => Some(process),
        // Before Linux 6.5.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => None,
        // It is gone.
        Err(_) => return false,
    };
    // A process that still runs was looked at, and not one that got its number.
    has_rights(peer) && process.is_none_or(|process| is_running(process).unwrap_or(false))
}

fn has_rights(peer: rustix::net::UCred) -> bool {
    let process = peer.pid.as_raw_pid().cast_unsigned();
    let facts = Facts::read(process, peer.uid.as_raw(), peer.gid.as_raw());
    facts.is_some_and(|facts| {
        facts.namespace.is_none() && facts.effective & bit(Capability::Administer) != 0
    })
}

impl Facts {
    /// `None` if nothing can be learned about the thread.
    fn read(thread: u32, uid: u32, gid: u32) -> Option<Self> {
        let place = Path::new("/proc").join(thread.to_string());
        let text = |name: &str| std::fs::read_to_string(place.join(name));
        let mut facts = Self::parse(&text("status").ok()?, uid, gid)?;
        // Nobody asks for the namespace of a caller without capabilities.
        if facts.effective != 0 {
            let of = |place: &Path| std::fs::read_link(place.join("ns/user")).ok();
            let own = of(Path::new("/proc/self"));
            if own.is_none() || of(&place) != own {
                let ranges = |name| text(name).map_or_else(|_| Vec::new(), |map| ranges(&map));
                facts.namespace = Some(Known {
                    users: ranges("uid_map"),
                    groups: ranges("gid_map"),
                });
            }
        }
        Some(facts)
    }

    fn parse(status: &str, uid: u32, gid: u32) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let numbers = |name: &str| {
            let words = field(name).unwrap_or_default().split_whitespace();
            words.filter_map(|word| word.parse().ok()).collect()
        };
        // Real, effective and saved, and the one that counts for files.
        let users: Vec<u32> = numbers("Uid:");
        let groups: Vec<u32> = numbers("Gid:");
        if users.get(3) != Some(&uid) || groups.get(3) != Some(&gid) {
            return None;
        }
        let number = |name: &str, radix| u64::from_str_radix(field(name)?.trim(), radix).ok();
        Some(Self {
            groups: numbers("Groups:"),
            effective: number("CapEff:", 16).unwrap_or(0),
            umask: number("Umask:", 8).and_then(|mask| mask.try_into().ok()),
            namespace: None,
        })
    }
}

/// The second column of a map of a user namespace: what it knows.
fn ranges(map: &str) -> Vec<std::ops::Range<u64>> {
    let range = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let first: u64 = words.next()?.parse().ok()?;
        let count: u64 = words.next()?.parse().ok()?;
        Some(first..first.checked_add(count)?)
    };
    map.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tcat\nUmask:\t0027\nUid:\t1\t1\t1\t7\nGid:\t2\t2\t2\t8\n\
        Groups:\t4 24 \nCapEff:\t0000000000000202\n";

    #[test]
    fn a_status_is_understood() {
        let facts = Facts::parse(STATUS, 7, 8).expect("it is this caller's");
        assert_eq!(facts.groups, [4, 24]);
        assert_eq!(facts.umask, Some(0o027));
        let has = |capability| facts.effective & bit(capability) != 0;
        assert!(has(Capability::DacOverride) && has(Capability::Immutable));
        assert!(!has(Capability::Administer) && !has(Capability::Owner));
        // The thread is of another user or group: nothing about it counts.
        assert_eq!(Facts::parse(STATUS, 1, 8), None);
        assert_eq!(Facts::parse(STATUS, 7, 2), None);
        assert_eq!(Facts::parse("", 0, 0), None);
    }

    #[test]
    fn maps_of_namespaces_are_understood() {
        let map = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(ranges(map), [1000..1001, 100_000..165_536]);
        assert!(ranges("0 5").is_empty());
    }

    #[test]
    fn a_process_without_capabilities_may_not_administer_roots_server() {
        let peer = |pid: u32, uid: u32| rustix::net::UCred {
            pid: rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
            uid: rustix::fs::Uid::from_raw(uid),
            gid: rustix::process::getegid(),
        };
        let own = rustix::process::geteuid();
        assert!(has_rights(peer(std::process::id(), own.as_raw())));
        // It is not this process's user.
        assert!(!has_rights(peer(std::process::id(), own.as_raw() + 1)));
    }

    #[test]
    fn this_process_is_of_its_own_namespace() {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let thread = std::process::id();
        let facts = Facts::read(thread, uid.as_raw(), gid.as_raw()).expect("it is there");
        assert_eq!(facts.namespace, None);
        assert!(Facts::read(0, 0, 0).is_none());
    }
}
