//! Who is using a device or a file.
//!
//! Owns the questions to `/proc` and `/sys`. Their answers serve messages and
//! refusals. They do not show other mount namespaces; for block devices, the
//! kernel's own exclusive open covers those.

use std::fmt;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// What uses a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// It is mounted here.
    Mount(PathBuf),
    /// It is part of a volume that the kernel has mounted where we cannot see.
    KernelVolume {
        /// Type of the file system.
        kind: String,
        /// What the kernel calls the volume.
        name: String,
    },
    /// The kernel swaps to it.
    Swap,
    /// A device built on top of it: device mapper, RAID.
    StackedDevice(String),
    /// A loop device over the file, which is itself in use.
    Loop {
        /// The loop device.
        device: PathBuf,
        /// What uses it.
        holder: Box<Holder>,
    },
    /// A process that locked the file.
    Process {
        /// Its number.
        pid: u32,
        /// Its command's name.
        name: String,
    },
    /// Something that could not be found out.
    Unknown,
}

impl Holder {
    /// Who uses the file or block device at `path`, as far as the system says.
    /// Locks of other processes are not looked at.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        if meta.file_type().is_block_device() {
            return holder_of_block_device(DeviceNumber::new(meta.rdev()));
        }
        holder_of_file(&meta)
    }

    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Mount(_) | Self::KernelVolume { .. } => "unmount it first",
            Self::Swap => "turn the swap off first",
            Self::StackedDevice(_) => "use that device, or take it apart first",
            Self::Loop { holder, .. } => holder.advice(),
            Self::Process { .. } => "wait for it or end it first",
            Self::Unknown => "end what uses it first",
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(at) => write!(f, "the mount at {}", at.display()),
            Self::KernelVolume { kind, name } => {
                let mut letters = kind.chars();
                let first = letters.next().unwrap_or_default().to_ascii_uppercase();
                write!(f, "the kernel's {first}{} volume {name}", letters.as_str())
            }
            Self::Swap => f.write_str("the kernel as swap"),
            Self::StackedDevice(name) => write!(f, "the device {name}"),
            Self::Loop { device, holder } => write!(f, "{holder} over {}", device.display()),
            Self::Process { pid, name } if name.contains("butterfs") => {
                write!(f, "another ButterFS (process {pid})")
            }
            Self::Process { pid, name } => write!(f, "process {pid} ({name})"),
            Self::Unknown => f.write_str("another program"),
        }
    }
}

/// Number of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceNumber(u64);

impl DeviceNumber {
    pub(crate) const fn new(rdev: u64) -> Self {
        Self(rdev)
    }

    fn parts(self) -> (u32, u32) {
        (rustix::fs::major(self.0), rustix::fs::minor(self.0))
    }

    /// `major:minor` in decimal, as /sys and mountinfo spell it.
    fn text(self) -> String {
        let (major, minor) = self.parts();
        format!("{major}:{minor}")
    }

    fn sys_path(self) -> PathBuf {
        Path::new("/sys/dev/block").join(self.text())
    }

    /// The kernel's name, such as `loop0`.
    pub(crate) fn name(self) -> Option<String> {
        let target = fs::read_link(self.sys_path()).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    fn from_path(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        meta.file_type()
            .is_block_device()
            .then(|| Self(meta.rdev()))
    }

    fn from_text(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        Some(Self(number))
    }
}

/// A file system in mountinfo.
struct Mounted {
    number: String,
    kind: String,
    source: PathBuf,
    point: PathBuf,
}

/// Undoes mountinfo's octal escapes (`\040` for a space).
fn unescape(text: &str) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let escaped = tail.get(..3).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match (first, escaped) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

fn parse_mountinfo(text: &str) -> Vec<Mounted> {
    text.lines()
        .filter_map(|line| {
            let (front, back) = line.split_once(" - ")?;
            let mut front = front.split(' ');
            let mut back = back.split(' ');
            Some(Mounted {
                kind: back.next()?.to_owned(),
                number: front.nth(2)?.to_owned(),
                point: unescape(front.nth(1)?),
                source: unescape(back.next()?),
            })
        })
        .collect()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(list) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = list.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn base_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// What uses a block device or one of its partitions, as far as /proc and
/// /sys tell.
pub(crate) fn holder_of_block_device(device: DeviceNumber) -> Option<Holder> {
    let mounts = parse_mountinfo(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let look = |device: DeviceNumber| -> Option<Holder> {
        // A file system on several devices shows an anonymous number, so its
        // source counts too.
        let mounted = mounts.iter().find(|mount| {
            mount.number == device.text()
                || (mount.source.is_absolute()
                    && DeviceNumber::from_path(&mount.source) == Some(device))
        });
        if let Some(mount) = mounted {
            return Some(Holder::Mount(mount.point.clone()));
        }
        let swapped = swaps.lines().skip(1).any(|line| {
            let path = line.split_whitespace().next().unwrap_or_default();
            DeviceNumber::from_path(&unescape(path)) == Some(device)
        });
        if swapped {
            return Some(Holder::Swap);
        }
        let name = device.name()?;
        // File systems on several devices list them.
        for volume in entries(Path::new("/sys/fs"))
            .iter()
            .flat_map(|kind| entries(kind))
        {
            if volume.join("devices").join(&name).exists() {
                let of_kernel = Holder::KernelVolume {
                    kind: volume.parent().map(base_name).unwrap_or_default(),
                    name: base_name(&volume),
                };
                // Its mount point is that of another of its devices.
                let point = entries(&volume.join("devices")).iter().find_map(|link| {
                    let dev = Path::new("/dev").join(base_name(link));
                    let number = DeviceNumber::from_path(&dev)?;
                    let mount = mounts
                        .iter()
                        .find(|m| DeviceNumber::from_path(&m.source) == Some(number))?;
                    Some(mount.point.clone())
                });
                return Some(point.map_or(of_kernel, Holder::Mount));
            }
        }
        let stacked = entries(&device.sys_path().join("holders"));
        stacked
            .first()
            .map(|holder| Holder::StackedDevice(base_name(holder)))
    };
    look(device).or_else(|| {
        entries(&device.sys_path())
            .iter()
            .filter(|path| path.join("partition").exists())
            .filter_map(|path| fs::read_to_string(path.join("dev")).ok())
            .filter_map(|text| DeviceNumber::from_text(&text))
            .find_map(look)
    })
}

/// A loop device over a file.
struct LoopDevice {
    path: PathBuf,
    number: DeviceNumber,
}

/// The device and the inode number of a file.
type FileIdentity = (u64, u64);

/// The file behind the loop device with this folder in /sys. The kernel knows
/// it even if its name is gone or hidden; whoever may not open the loop device
/// has only the name.
fn identity_behind(dir: &Path) -> Option<FileIdentity> {
    let by_name = backing_file_in(dir)?;
    let opened = fs::File::open(Path::new("/dev").join(base_name(dir))).ok();
    let known = opened.and_then(|device| crate::sys::file_behind_loop(device.as_fd()).ok());
    known.or_else(|| {
        let file = fs::metadata(by_name).ok()?;
        Some((file.dev(), file.ino()))
    })
}

fn file_behind(device: DeviceNumber) -> Option<FileIdentity> {
    identity_behind(&Path::new("/sys/block").join(device.name()?))
}

fn loops_over(file: FileIdentity) -> Vec<LoopDevice> {
    entries(Path::new("/sys/block"))
        .iter()
        .filter_map(|dir| {
            if identity_behind(dir)? != file {
                return None;
            }
            let number = fs::read_to_string(dir.join("dev")).ok()?;
            Some(LoopDevice {
                path: Path::new("/dev").join(base_name(dir)),
                number: DeviceNumber::from_text(&number)?,
            })
        })
        .collect()
}

fn backing_file_in(sys_dir: &Path) -> Option<PathBuf> {
    let mut bytes = fs::read(sys_dir.join("loop/backing_file")).ok()?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// The file behind a loop device; `None` for other devices.
pub(crate) fn backing_file(device: DeviceNumber) -> Option<PathBuf> {
    backing_file_in(&device.sys_path())
}

/// What holds the bytes of a file or block device: a loop device has none of
/// its own.
#[derive(PartialEq, Eq)]
enum Storage {
    File { device: u64, inode: u64 },
    Device(u64),
}

impl Storage {
    fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        let (device, inode) = match meta.file_type().is_block_device() {
            false => (meta.dev(), meta.ino()),
            true => match file_behind(DeviceNumber::new(meta.rdev())) {
                Some(file) => file,
                None => return Some(Self::Device(meta.rdev())),
            },
        };
        Some(Self::File { device, inode })
    }
}

/// Whether two paths name the same bytes: equal ones, links to one file, nodes
/// of one device, a loop device and its file.
#[must_use]
pub fn is_same_storage(one: &Path, other: &Path) -> bool {
    one == other || Storage::of(one).is_some_and(|storage| Storage::of(other) == Some(storage))
}

/// What uses a regular file through a loop device. A loop device that nobody
/// uses is no holder.
pub(crate) fn holder_of_file(file: &fs::Metadata) -> Option<Holder> {
    user_of_loops(loops_over((file.dev(), file.ino())))
}

/// What uses the file behind a loop device through another loop device.
pub(crate) fn holder_beside_loop(device: DeviceNumber) -> Option<Holder> {
    let mut others = loops_over(file_behind(device)?);
    others.retain(|found| found.number != device);
    user_of_loops(others)
}

fn user_of_loops(loops: Vec<LoopDevice>) -> Option<Holder> {
    loops.into_iter().find_map(|found| {
        let known = holder_of_block_device(found.number);
        // The kernel grants one exclusive open at a time, and so knows users
        // that /proc does not show.
        let holder = known.or_else(|| {
            let refused = fs::OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_EXCL)
                .open(&found.path)
                .err()?;
            (refused.kind() == std::io::ErrorKind::ResourceBusy).then_some(Holder::Unknown)
        })?;
        Some(Holder::Loop {
            device: found.path,
            holder: Box::new(holder),
        })
    })
}

/// The mount point of a mount whose source is this file, such as an image that
/// a FUSE server has open.
fn mount_of_file(file: &fs::Metadata) -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let is_source = |mount: &Mounted| {
        mount.kind.starts_with("fuse")
            && mount.source.is_absolute()
            && fs::metadata(&mount.source).is_ok_and(|source| {
                source.is_file() && (source.dev(), source.ino()) == (file.dev(), file.ino())
            })
    };
    let found = parse_mountinfo(&text).into_iter().find(is_source);
    found.map(|mount| mount.point)
}

/// The process that holds a lock on a file, by /proc/locks.
pub(crate) fn lock_holder(file: &fs::Metadata) -> Option<Holder> {
    // The kernel does not read the list at one moment: it may skip an entry
    // when others go away meanwhile.
    const ATTEMPTS: usize = 4;
    (0..ATTEMPTS).find_map(|_| find_lock_holder(file))
}

fn find_lock_holder(file: &fs::Metadata) -> Option<Holder> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = DeviceNumber(file.dev()).parts();
    let exact = format!("{major:02x}:{minor:02x}:{}", file.ino());
    // For files on stacked file systems the list shows another device than
    // stat. Hence the second look, by inode number alone.
    let by_inode = format!(":{}", file.ino());
    let pid_where = |matches: &dyn Fn(&str) -> bool| {
        locks.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let _number = fields.next()?;
            let kind = fields.next()?;
            let pid: u32 = fields.nth(2)?.parse().ok()?;
            (kind == "FLOCK" && matches(fields.next()?)).then_some(pid)
        })
    };
    let pid = pid_where(&|place| place == exact)
        .or_else(|| pid_where(&|place| place.ends_with(&by_inode)))?;
    if let Some(point) = mount_of_file(file) {
        return Some(Holder::Mount(point));
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(Holder::Process {
        pid,
        name: name.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_with_spaces() {
        let text = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n\
                    40 35 0:52 / /data rw shared:7 - btrfs /dev/loop3 rw,space_cache=v2\n\
                    broken line\n";
        let found = parse_mountinfo(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].number, "98:0");
        assert_eq!(found[0].point, Path::new("/mnt 2"));
        assert_eq!(found[1].source, Path::new("/dev/loop3"));
    }
}
