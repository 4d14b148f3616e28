//! Who asks over a socket for work on files.
//!
//! Owns whether the server may act for a process, and with which rights. The
//! kernel says who connected: user, group and further groups, as of that moment,
//! and a descriptor of the process. /proc tells the rest. What the process says
//! itself does not count.
//!
//! A process is refused if its rights cannot be known for certain, or if there
//! may be rules for it that the server does not know: it is in another user
//! namespace, has several users or groups at a time, has capabilities without
//! being root, or is confined (seccomp, `no_new_privs` and so Landlock, a security
//! module) where the server is not. It may do the work through the mount, as any
//! program does.

use super::caller::bit;
use super::server::Served;
use butterfs::Owner;
use butterfs::access::{Capability, Credentials};
use butterfs_fuse::{is_running, peer_groups, peer_process};
use rustix::net::sockopt::socket_peercred;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// A process that the server acts for.
#[derive(Debug)]
pub(crate) struct Peer {
    owner: Owner,
    groups: Vec<u32>,
    /// Capabilities in effect; none unless it is root.
    effective: u64,
    /// Its number in the server's namespace.
    process: u32,
}

/// Why the server does not act for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The mount is another user's, and only for that user.
    NotForOthers,
    /// This about its rights cannot be known.
    Unknown(&'static str),
}

impl Peer {
    /// The process at the other end of a socket, if the server may act for it.
    pub(crate) fn of(socket: &UnixStream, mount: &Served) -> Result<Self, Refused> {
        let peer = socket_peercred(socket).map_err(|_| Refused::Unknown("its user"))?;
        let owner = Owner {
            uid: peer.uid.as_raw(),
            gid: peer.gid.as_raw(),
        };
        if !mount.is_for_everyone && owner.uid != rustix::process::geteuid().as_raw() {
            return Err(Refused::NotForOthers);
        }
        if mount.has_mapped_owners {
            return Err(Refused::Unknown("how its mount shows owners"));
        }
        // While it runs, its number belongs to no other process.
        let running = peer_process(socket).map_err(|_| Refused::Unknown("its process"))?;
        let groups = peer_groups(socket).map_err(|_| Refused::Unknown("its groups"))?;
        let process = peer.pid.as_raw_pid().cast_unsigned();
        let effective = Seen::of(Path::new("/proc").join(process.to_string()))?
            .effective(owner, &Seen::of(PathBuf::from("/proc/self"))?)?;
        match is_running(running) {
            Ok(true) => Ok(Self {
                owner,
                groups,
                effective,
                process,
            }),
            _ => Err(Refused::Unknown("its process")),
        }
    }

    /// Its user and group.
    pub(crate) const fn owner(&self) -> Owner {
        self.owner
    }

    /// Its number.
    pub(crate) const fn process(&self) -> u32 {
        self.process
    }
}

impl Credentials for Peer {
    fn user(&self) -> u32 {
        self.owner.uid
    }

    fn is_member(&self, group: u32) -> bool {
        self.owner.gid == group || self.groups.contains(&group)
    }

    fn has(&self, capability: Capability) -> bool {
        self.effective & bit(capability) != 0
    }

    fn has_over(&self, capability: Capability, _: Owner) -> bool {
        self.has(capability)
    }

    fn stands_in_for(&self, _: u32) -> bool {
        self.has(Capability::Owner)
    }
}

/// What /proc says of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    status: String,
    namespace: PathBuf,
    /// The label of a security module.
    label: String,
}

impl Seen {
    fn of(place: PathBuf) -> Result<Self, Refused> {
        let status = std::fs::read_to_string(place.join("status"));
        let namespace = std::fs::read_link(place.join("ns/user"));
        let label = std::fs::read_to_string(place.join("attr/current"));
        Ok(Self {
            status: status.map_err(|_| Refused::Unknown("its process"))?,
            namespace: namespace.map_err(|_| Refused::Unknown("its user namespace"))?,
            // Without a security module there is none.
            label: label.unwrap_or_default(),
        })
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.status.lines().find_map(|line| line.strip_prefix(name))
    }

    fn number(&self, name: &str) -> u64 {
        let number = self.field(name).and_then(|text| text.trim().parse().ok());
        number.unwrap_or(0)
    }

    /// Whether real, effective and saved number, and the one for files, are this
    /// one.
    fn is_all(&self, name: &str, number: u32) -> bool {
        let words = self.field(name).unwrap_or_default().split_whitespace();
        let numbers: Vec<u32> = words.filter_map(|word| word.parse().ok()).collect();
        numbers == [number; 4]
    }

    /// The capabilities of a process of this owner, if it can be acted for by
    /// the process `server`.
    fn effective(&self, owner: Owner, server: &Self) -> Result<u64, Refused> {
        if !self.is_all("Uid:", owner.uid) || !self.is_all("Gid:", owner.gid) {
            return Err(Refused::Unknown(
                "its user and group, of which it has several",
            ));
        }
        if self.namespace != server.namespace {
            return Err(Refused::Unknown("the rights of its user namespace"));
        }
        let is_more = |name| self.number(name) > server.number(name);
        if ["NoNewPrivs:", "Seccomp:", "Seccomp_filters:"]
            .into_iter()
            .any(is_more)
            || self.label != server.label
        {
            return Err(Refused::Unknown("the rules that confine it"));
        }
        let effective = self.field("CapEff:");
        let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let effective = effective.ok_or(Refused::Unknown("its capabilities"))?;
        match owner.uid {
            0 => Ok(effective),
            // It may get them from a program that it runs meanwhile.
            _ if effective != 0 => Err(Refused::Unknown(
                "its capabilities, which only root's processes lend",
            )),
            _ => Ok(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(status: &str) -> Seen {
        Seen {
            status: status.to_owned(),
            namespace: PathBuf::from("user:[1]"),
            label: String::new(),
        }
    }

    const USER: &str = "Uid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nCapEff:\t0000000000000000\n\
        NoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n";
    const OWNER: Owner = Owner { uid: 7, gid: 8 };

    #[test]
    fn a_plain_process_is_acted_for_with_its_own_rights() {
        let server = seen("");
        assert_eq!(seen(USER).effective(OWNER, &server), Ok(0));
        let root = Owner { uid: 0, gid: 0 };
        let status = "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nCapEff:\t0000000000000002\n";
        assert_eq!(seen(status).effective(root, &server), Ok(2));
    }

    #[test]
    fn a_process_whose_rights_are_not_certain_is_refused() {
        let server = seen("");
        let refused = |status: &str| seen(status).effective(OWNER, &server).is_err();
        for (from, to) in [
            ("Uid:\t7\t7\t7\t7", "Uid:\t7\t0\t0\t7"),
            ("Uid:\t7\t7\t7\t7", "Uid:\t9\t9\t9\t9"),
            ("Gid:\t8\t8\t8\t8", "Gid:\t8\t8\t8\t5"),
            ("CapEff:\t0000000000000000", "CapEff:\t0000000000000002"),
            ("CapEff:\t0000000000000000", "CapEff:\twhat"),
            ("NoNewPrivs:\t0", "NoNewPrivs:\t1"),
            ("Seccomp:\t0", "Seccomp:\t2"),
            ("Seccomp_filters:\t0", "Seccomp_filters:\t1"),
        ] {
            assert!(USER.contains(from));
            assert!(refused(&USER.replace(from, to)), "{to}");
        }
        assert!(refused(""));
        let mut elsewhere = seen(USER);
        elsewhere.namespace = PathBuf::from("user:[2]");
        assert!(elsewhere.effective(OWNER, &server).is_err());
        let mut confined = seen(USER);
        confined.label = "strict (enforce)".to_owned();
        assert!(confined.effective(OWNER, &server).is_err());
        // A server under the same rules knows them.
        let status = USER.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1");
        assert_eq!(seen(&status).effective(OWNER, &seen(&status)), Ok(0));
    }
}
