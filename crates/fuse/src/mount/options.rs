//! How a file system is mounted.
//!
//! Owns the options, the table of their names, and their spelling for the
//! kernel and for fusermount3.

pub use rustix::mount::MountFlags;

/// Whom the kernel lets in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allow {
    /// The user who mounted.
    #[default]
    Owner,
    /// Everyone, as permissions allow. Ordinary users need `user_allow_other`
    /// in /etc/fuse.conf for this.
    Everyone,
}

/// Who checks permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PermissionChecks {
    /// The kernel, by mode, owner and group; it asks for the parent's
    /// attributes at every create and unlink.
    #[default]
    Kernel,
    /// The file system, in every operation.
    FileSystem,
}

/// Which of the kernel's two kinds of FUSE it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountKind {
    /// Without a device: umount and sync do not wait for the server.
    #[default]
    Plain,
    /// On the block device that `source` names: umount waits for the server,
    /// and syncfs reaches it. Only for root. The kernel claims the device, so
    /// the server must not hold it with O_EXCL.
    Block {
        /// Bytes of a block of the file system.
        block_size: u32,
    },
}

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What /proc/mounts shows first; the device for block mounts.
    pub source: String,
    /// Shown after the type: `fuse.subtype`.
    pub subtype: Option<String>,
    /// Plain or on a device.
    pub kind: MountKind,
    /// Whom the kernel lets in.
    pub allow: Allow,
    /// Who checks permissions.
    pub permission_checks: PermissionChecks,
    /// Read-only, no access times and so on.
    pub flags: MountFlags,
    /// Bytes of the largest read, if it should be smaller than the largest
    /// write.
    pub max_read: Option<u32>,
    /// Unmount when this process dies. Only through fusermount3, and there only
    /// with `Allow::Everyone`, because the helper is not the owner of the mount
    /// and must see that the server is gone.
    pub auto_unmount: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "fuse".into(),
            subtype: None,
            kind: MountKind::Plain,
            allow: Allow::Owner,
            permission_checks: PermissionChecks::Kernel,
            flags: MountFlags::NODEV | MountFlags::NOSUID,
            max_read: None,
            auto_unmount: false,
        }
    }
}

#[derive(Clone, Copy)]
enum Change {
    Set,
    Clear,
}

/// Names of flags as mount(8) knows them.
const FLAG_NAMES: &[(&str, MountFlags, Change)] = &[
    ("ro", MountFlags::RDONLY, Change::Set),
    ("rw", MountFlags::RDONLY, Change::Clear),
    ("nosuid", MountFlags::NOSUID, Change::Set),
    ("suid", MountFlags::NOSUID, Change::Clear),
    ("nodev", MountFlags::NODEV, Change::Set),
    ("dev", MountFlags::NODEV, Change::Clear),
    ("noexec", MountFlags::NOEXEC, Change::Set),
    ("exec", MountFlags::NOEXEC, Change::Clear),
    ("sync", MountFlags::SYNCHRONOUS, Change::Set),
    ("async", MountFlags::SYNCHRONOUS, Change::Clear),
    ("dirsync", MountFlags::DIRSYNC, Change::Set),
    ("noatime", MountFlags::NOATIME, Change::Set),
    ("atime", MountFlags::NOATIME, Change::Clear),
    ("nodiratime", MountFlags::NODIRATIME, Change::Set),
    ("diratime", MountFlags::NODIRATIME, Change::Clear),
    ("relatime", MountFlags::RELATIME, Change::Set),
    ("norelatime", MountFlags::RELATIME, Change::Clear),
    ("strictatime", MountFlags::STRICTATIME, Change::Set),
    ("nostrictatime", MountFlags::STRICTATIME, Change::Clear),
    ("lazytime", MountFlags::LAZYTIME, Change::Set),
    ("nolazytime", MountFlags::LAZYTIME, Change::Clear),
];

/// Flags that fusermount3 does not know. They are the kernel's default for
/// users, or have no meaning for them.
const NOT_FOR_HELPER: MountFlags = MountFlags::LAZYTIME
    .union(MountFlags::RELATIME)
    .union(MountFlags::STRICTATIME);

impl MountOptions {
    /// Applies a flag by the name mount(8) gives it; false if there is none of
    /// that name.
    #[must_use]
    pub fn apply_flag(&mut self, name: &str) -> bool {
        let Some((_, flag, change)) = FLAG_NAMES.iter().find(|(known, ..)| *known == name) else {
            return false;
        };
        match change {
            Change::Set => self.flags |= *flag,
            Change::Clear => self.flags &= !*flag,
        }
        true
    }

    /// The names `apply_flag` knows.
    pub fn flag_names() -> impl Iterator<Item = &'static str> {
        FLAG_NAMES.iter().map(|(name, ..)| *name)
    }

    /// The type for mount(2).
    pub(super) fn kernel_type(&self) -> String {
        let base = match self.kind {
            MountKind::Plain => "fuse",
            MountKind::Block { .. } => "fuseblk",
        };
        match &self.subtype {
            Some(subtype) => format!("{base}.{subtype}"),
            None => base.to_owned(),
        }
    }

    /// The options that kernel and helper spell alike.
    fn common(&self) -> Vec<String> {
        let mut words = Vec::new();
        if self.allow == Allow::Everyone {
            words.push("allow_other".to_owned());
        }
        if self.permission_checks == PermissionChecks::Kernel {
            words.push("default_permissions".to_owned());
        }
        if let Some(max_read) = self.max_read {
            words.push(format!("max_read={max_read}"));
        }
        words
    }

    /// The data for mount(2).
    pub(super) fn kernel_data(&self, connection: &KernelData) -> String {
        let KernelData {
            descriptor,
            root_mode,
            uid,
            gid,
        } = connection;
        let mut words = vec![
            format!("fd={descriptor}"),
            format!("rootmode={root_mode:o}"),
            format!("user_id={uid}"),
            format!("group_id={gid}"),
        ];
        words.extend(self.common());
        if let MountKind::Block { block_size } = self.kind {
            words.push(format!("blksize={block_size}"));
        }
        words.join(",")
    }

    /// The argument of fusermount3's `-o`.
    pub(super) fn helper_argument(&self) -> String {
        let mut words = vec![format!("fsname={}", escape(&self.source))];
        if let Some(subtype) = &self.subtype {
            words.push(format!("subtype={}", escape(subtype)));
        }
        words.extend(self.common());
        if self.auto_unmount {
            words.push("auto_unmount".to_owned());
        }
        let flags = self.flags - NOT_FOR_HELPER;
        let set = |change: &Change| matches!(change, Change::Set);
        words.extend(
            FLAG_NAMES
                .iter()
                .filter(|(_, flag, change)| set(change) && flags.contains(*flag))
                .map(|(name, ..)| (*name).to_owned()),
        );
        words.join(",")
    }
}

/// What mount(2) must know of the connection.
pub(super) struct KernelData {
    pub(super) descriptor: i32,
    pub(super) root_mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Commas end an option, so they are escaped, and so is the escape.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_options_are_escaped() {
        let options = MountOptions {
            source: "a,b\\c".into(),
            subtype: Some("butterfs".into()),
            flags: MountFlags::RDONLY | MountFlags::RELATIME,
            permission_checks: PermissionChecks::FileSystem,
            ..MountOptions::default()
        };
        assert_eq!(
            options.helper_argument(),
            "fsname=a\\,b\\\\c,subtype=butterfs,ro"
        );
    }

    #[test]
    fn kernel_options_name_the_connection() {
        let options = MountOptions {
            kind: MountKind::Block { block_size: 4096 },
            allow: Allow::Everyone,
            max_read: Some(4096),
            subtype: Some("x".into()),
            ..MountOptions::default()
        };
        let data = KernelData {
            descriptor: 5,
            root_mode: 0o40755,
            uid: 1,
            gid: 2,
        };
        assert_eq!(
            options.kernel_data(&data),
            "fd=5,rootmode=40755,user_id=1,group_id=2,allow_other,default_permissions,\
             max_read=4096,blksize=4096"
        );
        assert_eq!(options.kernel_type(), "fuseblk.x");
    }

    #[test]
    fn flags_go_by_name() {
        let mut options = MountOptions::default();
        assert!(options.apply_flag("ro"));
        assert!(options.apply_flag("dev"));
        assert!(!options.apply_flag("subvol"));
        assert_eq!(options.flags, MountFlags::RDONLY | MountFlags::NOSUID);
        assert!(MountOptions::flag_names().any(|name| name == "noatime"));
    }
}
