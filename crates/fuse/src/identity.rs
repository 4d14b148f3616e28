//! Who a process is, if the kernel does not say it in the request.
//!
//! Owns the reading of `/proc/PID/status`. With ALLOW_IDMAP the kernel names
//! the caller only in requests that make something.

/// User and group, as a process accesses files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Identity {
    /// What the kernel puts there if it says neither.
    pub(crate) const UNSAID: Self = Self {
        uid: u32::MAX,
        gid: u32::MAX,
    };

    /// User and group of a process; unknown if the process is not visible from
    /// here.
    pub(crate) fn of_process(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        status
            .ok()
            .and_then(|text| Self::parse(&text))
            .unwrap_or(Self::UNSAID)
    }

    fn parse(status: &str) -> Option<Self> {
        // Real, effective, saved and for files.
        let last = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().nth(3)?.parse().ok()
        };
        Some(Self {
            uid: last("Uid:")?,
            gid: last("Gid:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_for_files_counts() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9\n";
        assert_eq!(Identity::parse(status), Some(Identity { uid: 4, gid: 8 }));
        assert_eq!(Identity::parse("Uid:\t1\t2\n"), None);
        let own = Identity::of_process(std::process::id());
        assert_eq!(own.uid, rustix::process::geteuid().as_raw());
        assert_eq!(Identity::of_process(0), Identity::UNSAID);
    }
}
