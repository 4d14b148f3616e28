//! A volume served to the kernel: the library behind the FUSE trait.
//!
//! Owns the translation of requests, the kernel's lookups ([`nodes`]) and what
//! the server must enforce itself (immutable and append-only files, read-only
//! subvolumes). Permissions are the kernel's (`default_permissions`).
//!
//! Opens are stateless: the kernel asks for nothing at open and close. Only
//! this server changes the volume, so names and attributes, absent names too,
//! never expire, but for attributes of immutable and append-only files
//! ([`intent`]). Reads that the kernel answers from its cache are unseen and
//! change no access time.

mod autodefrag;
mod caller;
mod callers_memory;
mod convert;
mod guard;
mod intent;
mod nodes;
mod quotas;
mod requests;
mod rights;
mod serve;
mod serve_data;
mod sharing;
mod subvolumes;
mod telling;
mod trees;
mod whole;

pub use convert::Owners;

use crate::facts::TransportFacts;
use crate::service::farewell::Farewell;
use crate::service::host;
use butterfs::{AccessTimes, AclPolicy, FsError, Inode, InodeFlags, InodeId, Volume};
use butterfs_fuse::reply::{AttrReply, Entry, FOREVER};
use butterfs_fuse::{Errno, NodeId, Notifier};
use nodes::Nodes;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How a volume is served.
#[derive(Clone, Debug)]
pub struct Served {
    /// Owners that all files seem to have.
    pub owners: Owners,
    /// When access times of all but directories change.
    pub access_times: AccessTimes,
    /// When those of directories change.
    pub directory_access_times: AccessTimes,
    /// Every change of names goes to the device at once.
    pub sync_names: bool,
    /// The mount options in effect, for people.
    pub options: String,
    /// Whether access control lists count.
    pub acl: AclPolicy,
    /// Users may delete their own subvolumes.
    pub user_subvol_rm_allowed: bool,
}

/// A volume being served.
pub struct Server {
    volume: Volume,
    nodes: Nodes,
    mount: Served,
    sector: u32,
    /// The count of quota groups that is being made.
    rescan: quotas::Rescan,
    /// Defragments in the background, where the mount asks for it.
    autodefrag: OnceLock<autodefrag::Autodefrag>,
    /// Somebody asked that the volume is used no more.
    shut: AtomicBool,
    /// Tells the kernel of changes that it does not expect.
    notifier: OnceLock<Notifier>,
    /// How requests come.
    transport: OnceLock<Transported>,
    /// The device number of the mount, as the table of mounts has it.
    device_number: OnceLock<String>,
    /// Files of which the kernel has pages that it could not write back.
    stale: Arc<guard::Stale>,
    telling: telling::Telling,
    /// The name of the socket where commands are asked for.
    service: OnceLock<Vec<u8>>,
    /// Why closing the volume left something unwritten.
    unwritten: OnceLock<String>,
}

/// How a mount's requests come.
pub struct Transported {
    pub name: &'static str,
    /// Bytes of the buffers of each thread, at most.
    pub thread_buffers: u64,
    pub threads_max: u64,
    pub awake: Arc<butterfs_fuse::Awake>,
}

impl Transported {
    fn facts(&self) -> TransportFacts {
        TransportFacts {
            name: self.name.to_owned(),
            thread_buffers: self.thread_buffers,
            threads_max: self.threads_max,
            wake_up_ns: self.awake.cost().map(|cost| cost.as_nanos() as u64),
            awake_ms: self.awake.spent().as_millis() as u64,
        }
    }
}

/// The answer for an error of the library. Damage and failing devices are
/// logged, because the caller learns no more than EIO.
fn errno(error: &FsError) -> Errno {
    let number = error.errno();
    if number == libc::EIO {
        tracing::error!(%error, "answered EIO");
    }
    Errno(number)
}

/// Turns errors of the library into answers.
trait Answered<T> {
    fn answered(self) -> Result<T, Errno>;
}

impl<T> Answered<T> for Result<T, FsError> {
    fn answered(self) -> Result<T, Errno> {
        self.map_err(|error| errno(&error))
    }
}

impl Server {
    /// Serves `volume` as `mount` says.
    pub fn new(volume: Volume, mount: Served) -> Self {
        let sector = volume.store().read().sector_size();
        Self {
            nodes: Nodes::new(volume.files().root().tree),
            volume,
            mount,
            sector: sector.try_into().unwrap_or(4096),
            rescan: quotas::Rescan::default(),
            autodefrag: OnceLock::new(),
            shut: AtomicBool::new(false),
            notifier: OnceLock::new(),
            transport: OnceLock::new(),
            device_number: OnceLock::new(),
            stale: Arc::default(),
            telling: telling::Telling::default(),
            service: OnceLock::new(),
            unwritten: OnceLock::new(),
        }
    }

    /// Tells the device number that the mount got.
    pub fn mounted_as(&self, device_number: &str) {
        // There is one mount.
        let _ = self.device_number.set(device_number.to_owned());
    }

    /// Tells how requests come.
    pub fn served_by(&self, transport: Transported) {
        // There is one connection.
        let _ = self.transport.set(transport);
    }

    /// Defragments in the background from now on, a round every `pause`.
    pub fn start_autodefrag(&self, pause: std::time::Duration) {
        match autodefrag::Autodefrag::start(Arc::clone(self.files()), pause) {
            Ok(started) => {
                let _ = self.autodefrag.set(started);
            }
            Err(error) => tracing::error!(%error, "autodefrag does not work"),
        }
    }

    /// Runs commands about the volume for others from now on, and gives those
    /// who will wait for the end.
    pub fn start_service(&self) -> Option<Farewell> {
        let started = host::start(&self.volume).and_then(|name| {
            let farewell = Farewell::start(&name)?;
            Ok((name, farewell))
        });
        match started {
            Ok((name, farewell)) => {
                let _ = self.service.set(name);
                Some(farewell)
            }
            Err(failure) => {
                tracing::error!("commands are not served: {}", failure.0);
                None
            }
        }
    }

    /// Why closing the volume left something unwritten, if it did.
    pub fn unwritten(&self) -> Option<&str> {
        self.unwritten.get().map(String::as_str)
    }

    /// The volume.
    pub const fn volume(&self) -> &Volume {
        &self.volume
    }

    fn files(&self) -> &Arc<butterfs::Filesystem> {
        self.volume.files()
    }

    fn inode(&self, node: NodeId) -> Result<Arc<Inode>, Errno> {
        self.nodes.get(self.files(), node).answered()
    }

    fn id(&self, node: NodeId) -> InodeId {
        self.nodes.id(node)
    }

    fn attr_reply(&self, inode: &Inode) -> Result<AttrReply, Errno> {
        let attributes = self.files().attributes_of(inode).answered()?;
        let node = self.nodes.node_of(inode.id).answered()?;
        Ok(AttrReply {
            attr: convert::attr(&attributes, node, self.mount.owners),
            timeout: attributes_last(attributes.flags),
        })
    }

    /// An entry for `inode`, which counts as a lookup.
    fn entry(&self, inode: &Arc<Inode>) -> Result<Entry, Errno> {
        let AttrReply { attr, timeout } = self.attr_reply(inode)?;
        let node = self.nodes.remember(self.files(), inode).answered()?;
        Ok(Entry {
            node,
            generation: inode.state.read().item.generation.get(),
            attr,
            entry_timeout: FOREVER,
            attr_timeout: timeout,
        })
    }
}

/// How long the kernel may keep attributes: where it must ask before it opens
/// a file, not at all.
fn attributes_last(flags: InodeFlags) -> Duration {
    if flags.intersects(guard::ASKED) {
        Duration::ZERO
    } else {
        FOREVER
    }
}
