//! Telling the kernel of the many changes of one command.
//!
//! Owns the order of what is told, and how long a command waits for it. A
//! notification about a name waits for the kernel's lock of the directory. So a
//! thread of its own sends them, one after the other, and at its end the command
//! waits until all were sent. If somebody holds a directory for ever, the command
//! goes on after [`NAME_PATIENCE`], and names may be stale.

use super::telling::{NAME_PATIENCE, Telling};
use butterfs_fuse::{EntryChange, InvalidRange, NodeId, Notifier};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Names that wait at most.
const WAITING_MAX: usize = 4096;
/// After this time without a change, the kernel learns that a listing changed.
const QUIET: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(1);

/// What the kernel is told.
enum News {
    /// A name of a directory stands for something else, or for nothing.
    Name { parent: NodeId, name: Vec<u8> },
    /// Everything before was told.
    Told(Sender<()>),
}

/// Tells the kernel.
#[derive(Debug)]
pub(super) struct Informer {
    notifier: Notifier,
    news: Sender<News>,
    waiting: Arc<AtomicUsize>,
    is_stuck: AtomicBool,
}

impl Informer {
    /// Starts the thread, on behalf of a user.
    pub(super) fn start(notifier: &Notifier, telling: &Telling, uid: u32) -> Option<Self> {
        let Some(turn) = telling.turn_of(uid) else {
            tracing::warn!("the kernel does not take what it is told; names may be stale");
            return None;
        };
        let (news, told) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let (own, counted) = (notifier.clone(), Arc::clone(&waiting));
        let run = move || {
            let _turn = turn;
            tell(&own, &told, &counted);
        };
        let thread = std::thread::Builder::new().name("butterfs-inform".into());
        match thread.spawn(run) {
            Ok(_) => Some(Self {
                notifier: notifier.clone(),
                news,
                waiting,
                is_stuck: AtomicBool::new(false),
            }),
            Err(error) => {
                tracing::warn!(%error, "the kernel is not told of changes");
                None
            }
        }
    }

    /// A name changed.
    pub(super) fn name(&self, parent: NodeId, name: &[u8]) {
        if self.is_stuck.load(Ordering::Acquire) {
            return;
        }
        let begun = Instant::now();
        while self.waiting.load(Ordering::Acquire) >= WAITING_MAX {
            if begun.elapsed() > NAME_PATIENCE {
                tracing::warn!("the kernel does not take what it is told; names may be stale");
                return self.is_stuck.store(true, Ordering::Release);
            }
            std::thread::sleep(PAUSE);
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let name = name.to_vec();
        // The thread ends only after this end is gone.
        let _ = self.news.send(News::Name { parent, name });
    }

    /// The attributes of a node changed. This waits for nothing.
    pub(super) fn attributes(&self, node: NodeId) {
        // A kernel that forgot the node asks anyway.
        let _ = self
            .notifier
            .invalidate_inode(node, InvalidRange::AttributesOnly);
    }

    /// Waits until the kernel knows everything.
    pub(super) fn finish(&self) {
        let (told, end) = channel();
        if self.news.send(News::Told(told)).is_ok() {
            let _ = end.recv_timeout(NAME_PATIENCE);
        }
    }
}

fn tell(notifier: &Notifier, news: &Receiver<News>, waiting: &AtomicUsize) {
    // The directory whose listing the kernel may still have as it was.
    let mut changed: Option<NodeId> = None;
    let listing = |changed: &mut Option<NodeId>| {
        if let Some(parent) = changed.take() {
            let _ = notifier.invalidate_inode(parent, InvalidRange::Everything);
        }
    };
    loop {
        match news.recv_timeout(QUIET) {
            Ok(News::Name { parent, name }) => {
                if changed != Some(parent) {
                    listing(&mut changed);
                }
                let _ = notifier.invalidate_entry(parent, &name, EntryChange::Drop);
                changed = Some(parent);
                waiting.fetch_sub(1, Ordering::AcqRel);
            }
            Ok(News::Told(told)) => {
                listing(&mut changed);
                // The command may not wait any more.
                let _ = told.send(());
            }
            Err(RecvTimeoutError::Timeout) => listing(&mut changed),
            Err(RecvTimeoutError::Disconnected) => return listing(&mut changed),
        }
    }
}
