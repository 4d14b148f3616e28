//! The server of one volume: what its requests share.

use super::answered::Answered;
use super::autodefrag::Autodefrag;
use super::convert::{self, Owners};
use super::crowd::Crowd;
use super::nodes::Nodes;
use super::pages::Pages;
use super::rescan::Rescan;
use super::stale::Stale;
use super::telling::{Telling, Told};
use crate::facts::TransportFacts;
use butterfs::{AccessTimes, AclPolicy, Inode, InodeId, Volume, WriteCache};
use butterfs_fuse::reply::{AttrReply, Entry, FOREVER};
use butterfs_fuse::{Context, Errno, NodeId, Notifier};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How a volume is served.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// Owners that all files seem to have.
    pub(crate) owners: Owners,
    /// When access times of all but directories change.
    pub(crate) access_times: AccessTimes,
    /// When those of directories change.
    pub(crate) directory_access_times: AccessTimes,
    /// Whether the kernel keeps written data before it sends them.
    pub(crate) write_cache: WriteCache,
    /// Everything that is written goes to the device at once. For writes, the
    /// kernel itself asks for that.
    pub(crate) sync_data: bool,
    /// Every change of names goes to the device at once.
    pub(crate) sync_names: bool,
    /// The mount options in effect, for people.
    pub(crate) options: String,
    /// Whether access control lists count.
    pub(crate) acl: AclPolicy,
    /// Everyone may use the mount, as permissions allow; otherwise only the user
    /// who mounted.
    pub(crate) is_for_everyone: bool,
    /// The kernel shows other owners through some mounts than through others.
    pub(crate) has_mapped_owners: bool,
    /// Users may delete their own subvolumes.
    pub(crate) user_subvol_rm_allowed: bool,
}

/// A volume being served.
pub(crate) struct Server {
    pub(super) volume: Volume,
    pub(super) nodes: Nodes,
    pub(super) mount: Served,
    pub(super) sector: u32,
    /// The count of quota groups that is under way.
    pub(super) rescan: Rescan,
    /// Defragments in the background, where the mount asks for it.
    pub(super) autodefrag: OnceLock<Autodefrag>,
    /// Somebody asked that the volume is no longer used.
    pub(super) shut: AtomicBool,
    /// Tells the kernel of changes that it does not expect.
    pub(super) notifier: OnceLock<Notifier>,
    /// How requests come.
    pub(super) transport: OnceLock<Transported>,
    /// The device number of the mount, as in the table of mounts.
    pub(super) device_number: OnceLock<String>,
    /// Files with pages that the kernel could not write back.
    pub(super) stale: Arc<Stale>,
    /// Pages that are on their way from the kernel.
    pub(super) pages: Arc<Pages>,
    pub(super) telling: Telling,
    /// Bounds what the kernel remembers.
    pub(super) crowd: Crowd,
    /// The name of the socket at which commands are asked for.
    pub(super) service: OnceLock<Vec<u8>>,
    /// Why closing the volume left something unwritten.
    pub(super) unwritten: OnceLock<String>,
}

/// How a mount's requests come.
pub(crate) struct Transported {
    pub(crate) name: &'static str,
    /// Bytes of the buffers of each thread, at most.
    pub(crate) thread_buffers: u64,
    pub(crate) threads_max: u64,
    pub(crate) awake: Arc<butterfs_fuse::CpuWakeup>,
}

impl Transported {
    pub(super) fn facts(&self) -> TransportFacts {
        TransportFacts {
            name: self.name.to_owned(),
            thread_buffers: self.thread_buffers,
            threads_max: self.threads_max,
            wake_up_ns: self.awake.cost().map(|cost| cost.as_nanos() as u64),
            awake_ms: self.awake.spent().as_millis() as u64,
        }
    }
}

impl Server {
    /// Serves `volume` as `mount` says.
    pub(crate) fn new(volume: Volume, mount: Served) -> Self {
        let sector = volume.superblock().sector_size;
        Self {
            nodes: Nodes::new(volume.files().root().tree),
            volume,
            mount,
            sector,
            rescan: Rescan::default(),
            autodefrag: OnceLock::new(),
            shut: AtomicBool::new(false),
            notifier: OnceLock::new(),
            transport: OnceLock::new(),
            device_number: OnceLock::new(),
            stale: Arc::default(),
            pages: Arc::default(),
            telling: Telling::default(),
            crowd: Crowd::of_memory(butterfs_device::memory_of_process()),
            service: OnceLock::new(),
            unwritten: OnceLock::new(),
        }
    }

    /// Tells the device number that the mount got.
    pub(crate) fn mounted_as(&self, device_number: &str) {
        // There is one mount.
        let _ = self.device_number.set(device_number.to_owned());
    }

    /// Tells how requests come.
    pub(crate) fn served_by(&self, transport: Transported) {
        // There is one connection.
        let _ = self.transport.set(transport);
    }

    /// Defragments in the background from now on, a round every `pause`.
    pub(crate) fn start_autodefrag(&self, pause: std::time::Duration) {
        match Autodefrag::start(self.volume.share(), pause) {
            Ok(started) => {
                let _ = self.autodefrag.set(started);
            }
            Err(error) => tracing::error!(%error, "autodefrag does not work"),
        }
    }

    /// Tells where commands are asked for.
    pub(crate) fn commands_asked_at(&self, socket: Vec<u8>) {
        // There is one.
        let _ = self.service.set(socket);
    }

    /// Lets `say` tell the kernel what the caller asked for, and waits at most
    /// `patience` for it.
    pub(super) fn tell(
        &self,
        context: &Context<'_>,
        patience: Duration,
        say: impl FnOnce(&Notifier) + Send + 'static,
    ) -> Told {
        self.telling
            .tell(self.notifier.get(), context.uid, patience, say)
    }

    /// Why closing the volume left something unwritten, if it did.
    pub(crate) fn unwritten(&self) -> Option<&str> {
        self.unwritten.get().map(String::as_str)
    }

    /// The volume.
    pub(crate) const fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Whether the mount has this device number.
    pub(crate) fn is_mounted_as(&self, device_number: &str) -> bool {
        let own = self.device_number.get();
        own.is_some_and(|own| own == device_number)
    }

    /// The inode that programs see as `number` on the mount.
    pub(crate) fn inode_shown_as(&self, number: u64) -> InodeId {
        self.nodes.id(NodeId(number))
    }

    /// How the volume is served.
    pub(crate) const fn served(&self) -> &Served {
        &self.mount
    }

    pub(crate) fn files(&self) -> &Arc<butterfs::Filesystem> {
        self.volume.files()
    }

    pub(super) fn inode(&self, node: NodeId) -> Result<Arc<Inode>, Errno> {
        self.nodes.get(self.files(), node).answered()
    }

    pub(super) fn id(&self, node: NodeId) -> InodeId {
        self.nodes.id(node)
    }

    pub(super) fn attr_reply(&self, inode: &Inode) -> Result<AttrReply, Errno> {
        let attributes = self.files().attributes_of(inode).answered()?;
        let node = self.nodes.node_of(inode.id).answered()?;
        Ok(AttrReply {
            attr: convert::attr(&attributes, node, self.mount.owners),
            timeout: self.attributes_last(inode.id, &attributes),
        })
    }

    /// An entry for `inode`, which counts as a lookup.
    pub(super) fn entry(&self, inode: &Arc<Inode>) -> Result<Entry, Errno> {
        // First of all, so that whoever protects the subvolume meanwhile finds it.
        let node = self.nodes.remember(self.files(), inode).answered()?;
        self.crowd.thin(&self.nodes, self.notifier.get());
        let AttrReply { attr, timeout } = self.attr_reply(inode).inspect_err(|_| {
            let _ = self.nodes.forget(self.files(), node, 1);
        })?;
        Ok(Entry {
            node,
            generation: inode.state.read_beside().item.generation.get(),
            attr,
            entry_timeout: FOREVER,
            attr_timeout: timeout,
        })
    }
}
