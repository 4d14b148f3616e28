//! What a server wants of the kernel and of its threads.
//!
//! Owns the settings and their defaults. What was agreed on is in `Negotiated`.

use crate::cpu_wakeup::Wake;
use crate::mount::MountOptions;
use crate::protocol::Features;

/// Whether the file system sees opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handles {
    /// Every open and release reaches it.
    #[default]
    Kept,
    /// The first open is answered with ENOSYS, and the kernel never asks again:
    /// handles are zero, no release comes, caches survive the open. Create
    /// should then answer ENOSYS too, so that the kernel uses mknod.
    Stateless,
}

/// Where threads run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pinning {
    /// Wherever the scheduler puts them.
    #[default]
    Free,
    /// The i-th request slot on the i-th CPU of the list, around again when
    /// there are more request slots than CPUs.
    Cpus(Vec<usize>),
}

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transports {
    /// Through /dev/fuse alone.
    #[default]
    Device,
    /// Also through io_uring, if the kernel offers it (Linux 6.14 and later,
    /// with the parameter `enable_uring` of its module fuse).
    UringToo,
}

/// How a session is set up. All sizes are bytes.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads that wait for requests at one time; zero means one per CPU.
    /// Waking a thread on another CPU costs more than most requests: one
    /// thread is fastest for one client, more let clients work in parallel.
    pub threads: usize,
    /// The same while several callers take turns, if that is more.
    pub threads_for_several: usize,
    /// Threads beyond those. They start when a request waits for a device, so
    /// that others are served meanwhile.
    pub spare_threads: usize,
    /// Where threads run.
    pub pinning: Pinning,
    /// How requests arrive. Those of io_uring are served by threads of their
    /// own: one or two for each CPU, and as many spares as above.
    pub transports: Transports,
    /// What is done about CPUs that wake slowly.
    pub wake: Wake,
    /// The largest write, and the largest read.
    pub max_write: u32,
    /// The most bytes to read ahead. The kernel's own limit, 128 KiB, applies
    /// to mounts of ordinary users. Around a page fault of a mapped file the
    /// kernel reads as much, so more is not always better: the kernel's Btrfs
    /// has 4 MiB.
    pub max_readahead: u32,
    /// Requests the kernel sends in the background (read-ahead, write-back).
    pub max_background: u16,
    /// From this number of background requests on, the device counts as
    /// congested.
    pub congestion_threshold: u16,
    /// Features that are wanted if the kernel has them. NO_OPEN_SUPPORT and
    /// NO_OPENDIR_SUPPORT follow `open` and `opendir`.
    pub features: Features,
    /// Whether files have handles.
    pub open: Handles,
    /// Whether directories have handles.
    pub opendir: Handles,
    /// How it is mounted.
    pub mount: MountOptions,
}

impl Config {
    /// Features that are right for a local file system. ASYNC_DIO is not among
    /// them: it breaks promises that the kernel keeps without it.
    pub const FEATURES: Features = Features::ASYNC_READ
        .with(Features::EXPORT_SUPPORT)
        .with(Features::BIG_WRITES)
        .with(Features::HAS_IOCTL_DIR)
        .with(Features::DO_READDIRPLUS)
        .with(Features::READDIRPLUS_AUTO)
        .with(Features::PARALLEL_DIROPS)
        .with(Features::ABORT_ERROR)
        .with(Features::MAX_PAGES)
        .with(Features::CACHE_SYMLINKS)
        .with(Features::HANDLE_KILLPRIV_V2)
        .with(Features::SETXATTR_EXT)
        .with(Features::CREATE_SUPP_GROUP)
        .with(Features::HAS_EXPIRE_ONLY)
        .with(Features::DIRECT_IO_ALLOW_MMAP);

    /// Threads that wait at one time, resolved.
    pub(crate) fn slots(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            threads => threads,
        }
    }

    /// The same while several callers take turns.
    pub(crate) fn slots_max(&self) -> usize {
        self.slots().max(self.threads_for_several)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: 0,
            threads_for_several: 0,
            spare_threads: 30,
            pinning: Pinning::Free,
            transports: Transports::Device,
            wake: Wake::Sleep,
            max_write: 1 << 20,
            max_readahead: 2 << 20,
            max_background: 64,
            congestion_threshold: 48,
            features: Self::FEATURES,
            open: Handles::Kept,
            opendir: Handles::Kept,
            mount: MountOptions::default(),
        }
    }
}
