//! Defragmenting, in the background, what small writes scatter (`autodefrag`).
//!
//! Owns the parts of files that small writes changed since the last round. Owns
//! the thread that rewrites their small extents into larger ones. Data that
//! snapshots share stay as they are.
//!
//! Bound: `PARTS_MAX` parts are noted. Further parts count only when they are
//! written again later.

use butterfs::{Defragment, Filesystem, FsError, InodeFlags, InodeId, Sharing, Volume};
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a part, and of an extent that is large enough.
const PART: u64 = 256 << 10;
/// Writes of this many bytes scatter nothing.
const LARGE_WRITE: u64 = 64 << 10;
/// Parts that are noted.
const PARTS_MAX: usize = 4096;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A write into a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) offset: u64,
    pub(super) length: u64,
    /// Size of the file before it.
    pub(super) size: u64,
}

impl Spot {
    /// True for a write that leaves a small extent among others.
    const fn scatters(&self) -> bool {
        self.length < LARGE_WRITE && self.offset.saturating_add(self.length) < self.size
    }
}

#[derive(Debug, Default)]
struct State {
    /// Files and numbers of their parts.
    parts: BTreeSet<(InodeId, u64)>,
    ended: bool,
}

/// What waits to be defragmented, and who does it.
#[derive(Debug)]
pub(super) struct Autodefrag {
    shared: Arc<(Mutex<State>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Autodefrag {
    /// Starts the thread, which looks every `pause`.
    pub(super) fn start(volume: Volume, pause: Duration) -> std::io::Result<Self> {
        let shared: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let thread = std::thread::Builder::new()
            .name("autodefrag".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || work(&shared, &volume, pause)
            })?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Notes a write.
    pub(super) fn note(&self, id: InodeId, spot: Spot) {
        if !spot.scatters() {
            return;
        }
        let mut state = lock(&self.shared.0);
        if state.parts.len() < PARTS_MAX {
            state.parts.insert((id, spot.offset / PART));
        }
    }

    /// Ends the thread after its current part.
    pub(super) fn stop(&self) {
        lock(&self.shared.0).ended = true;
        self.shared.1.notify_all();
        let thread = lock(&self.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that defragments panicked");
        }
    }
}

fn work(shared: &(Mutex<State>, Condvar), volume: &Volume, pause: Duration) {
    let (state, changed) = shared;
    loop {
        let waiting = lock(state);
        let waited = changed.wait_timeout_while(waiting, pause, |state| !state.ended);
        let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if waiting.ended {
            return;
        }
        let parts = std::mem::take(&mut waiting.parts);
        drop(waiting);
        for (id, part) in parts {
            if lock(state).ended || !volume.is_writable() {
                break;
            }
            if let Err(error) = defragment(volume.files(), id, part) {
                // The part is unchanged. The next write into it counts again.
                tracing::debug!(%error, "a part of a file stays as it is");
            }
        }
    }
}

fn defragment(files: &Filesystem, id: InodeId, part: u64) -> Result<(), FsError> {
    let inode = files.inode(id)?;
    let flags = inode.state.read().item.flags;
    let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND | InodeFlags::NODATACOW;
    if flags.intersects(fixed) || files.subvolume_access(id.tree)? != butterfs::Access::ReadWrite {
        return Ok(());
    }
    let start = part.saturating_mul(PART);
    let wanted = Defragment {
        range: start..start.saturating_add(PART),
        large: PART,
        sharing: Sharing::Keep,
        ..Defragment::default()
    };
    files.defragment(&inode, &wanted).map(drop)
}
