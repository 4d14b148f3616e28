//! What can go wrong with a mount.

use butterfs::{DeviceError, FsError};
use butterfs_fuse::SessionError;
use rustix::io::Errno;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// Why an answer has no end, for people.
fn ended(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the mount ended before".to_owned(),
        _ => error.to_string(),
    }
}

/// Why a volume cannot be served, or a mount cannot be used as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The source cannot be opened.
    #[error("{}", named(.source_path, .error))]
    Source {
        /// File or device.
        source_path: PathBuf,
        /// Why.
        error: DeviceError,
    },
    /// It holds no volume that can be opened.
    #[error("{}", named(.source_path, .error))]
    Open {
        /// File or device.
        source_path: PathBuf,
        /// Why.
        error: butterfs::Error,
    },
    /// The device cannot be taken back from the kernel.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The volume has no such subvolume, or its content cannot be read.
    #[error(transparent)]
    Volume(#[from] butterfs::Error),
    /// A path in the volume cannot be found.
    #[error(transparent)]
    Files(#[from] FsError),
    /// The limit on file sizes is smaller than a volume that is to be written.
    #[error(
        "{}: the volume has {size} bytes, and this process may write files of {limit} only; \
         raise the limit (`ulimit -f unlimited`) or mount with -o ro",
        .source_path.display()
    )]
    FileSizeLimit {
        /// File that holds the volume.
        source_path: PathBuf,
        /// Its bytes.
        size: u64,
        /// Bytes that may be written.
        limit: u64,
    },
    /// The kernel does not mount, or the connection to it broke.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// What it was about.
        what: String,
        /// Why.
        error: io::Error,
    },
    /// The system refused something. There is no name to give.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What a server reports about itself cannot be understood.
    #[error(
        "{}: another version of ButterFS serves this mount ({error}); unmount it and mount it again, \
         or use that version", .mount.display()
    )]
    NotUnderstood {
        /// The mount.
        mount: PathBuf,
        /// Why.
        error: serde_json::Error,
    },
    /// A command would change the volume, and every mount of it that the
    /// process sees is read-only.
    #[error("the volume is mounted read-only; remount it for writing (`mount -o remount,rw`)")]
    ReadOnly,
    /// No server of ButterFS answers there.
    #[error(
        "{}: no ButterFS volume is mounted here; name the mountpoint, or the file or device that \
         holds a volume",
        .0.display()
    )]
    NoVolume(PathBuf),
    /// Nothing of ButterFS is mounted there.
    #[error("{}: nothing of ButterFS is mounted here", .0.display())]
    NotMounted(PathBuf),
    /// It was mounted when its server was asked for, and is no longer mounted.
    #[error("{}: is not mounted any more", .0.display())]
    Gone(PathBuf),
    /// Only the user who serves the volume, and root, may do this.
    #[error("only root and the user who mounted may do this")]
    NotAllowed,
    /// The server does not work on files for a process, because its rights are
    /// not certain.
    #[error(
        "the server of this mount does not act for this process, because it cannot know {0}; \
         use the commands of the system (cp, rm, find, du, chmod, chown, mv, tar) on this mount"
    )]
    NotActedFor(&'static str),
    /// A descriptor leads elsewhere than to a mount of the server.
    #[error("this is not on a mount of this server")]
    OtherMount,
    /// Programs see something else there than the volume has.
    #[error(
        "something is mounted below it; use the commands of the system (cp, rm, find, du, chmod, \
         chown, mv, tar) here"
    )]
    MountedBelow,
    /// A label that no volume can have.
    #[error("a label has at most 255 bytes and no NUL")]
    Label,
    /// A directory that should be the root of a subvolume is not one.
    #[error("{}: is no subvolume", .0.display())]
    NoSubvolumeRoot(PathBuf),
    /// The volume, which is mounted, has no such subvolume.
    #[error("{}: there is no such subvolume", .0.display())]
    NoSubvolume(PathBuf),
    /// The volume is open for reading only.
    #[error(
        "{}: the volume was mounted with -o ro at {} and is open for reading only; unmount it \
         there first",
        .source_path.display(), .mount.display()
    )]
    OpenReadOnly {
        /// What is mounted.
        source_path: PathBuf,
        /// Where.
        mount: PathBuf,
    },
    /// Another server answered than the volume's.
    #[error("{}: what answered is not the server of this volume", .0.display())]
    OtherServer(PathBuf),
    /// The server of a mount cannot be reached.
    #[error("{}: its server cannot be reached from here", .0.display())]
    OutOfReach(PathBuf),
    /// The server of a mount cannot be reached, for a reason.
    #[error("{}: its server cannot be reached from here: {error}", .mount.display())]
    NotReached {
        /// The mount.
        mount: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The server of a mount no longer has it.
    #[error("the server has no connection to the kernel")]
    NoConnection,
    /// The server did not finish what it was asked to do.
    #[error("{}: its server did not finish the command: {}", .mount.display(), ended(.error))]
    NotFinished {
        /// The mount.
        mount: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A command failed that a server ran. The server's own words.
    #[error("{0}")]
    Answered(String),
    /// What a server says at its end: what was lost.
    #[error("{0}")]
    LastWord(String),
    /// A server died.
    #[error("the server died; what changed since the last commit is lost")]
    Died,
    /// The volume failed while it was mounted.
    #[error(
        "the volume became read-only while it was mounted ({reason}): changes since its last \
         commit are lost, with {waiting} bytes of data that were never written"
    )]
    Failed {
        /// Why.
        reason: String,
        /// Bytes that waited in memory.
        waiting: u64,
    },
    /// Not everything was written at the end.
    #[error("not everything is on the device, and what is not is lost: {0}")]
    Unwritten(String),
}

impl ServerError {
    /// With `what` before the error's own text.
    pub(crate) fn system(what: impl Display, error: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.to_string(),
            error: error.into(),
        }
    }
}

impl From<Errno> for ServerError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// What an error says, with the path in front unless the error names the path
/// itself.
fn named(path: &Path, error: &dyn Display) -> String {
    let (path, text) = (path.display().to_string(), error.to_string());
    match text.contains(&path) {
        true => text,
        false => format!("{path}: {text}"),
    }
}

/// Says what the system refused.
pub(crate) trait About<T> {
    /// Puts `what` before the error's own text.
    fn about(self, what: impl Display) -> Result<T, ServerError>;
    /// Puts the path before it.
    fn at(self, path: &Path) -> Result<T, ServerError>;
}

impl<T, E: Into<io::Error>> About<T> for Result<T, E> {
    fn about(self, what: impl Display) -> Result<T, ServerError> {
        self.map_err(|error| ServerError::system(what, error))
    }

    fn at(self, path: &Path) -> Result<T, ServerError> {
        self.map_err(|error| ServerError::system(path.display(), error))
    }
}
