//! Data go to the device while the next files are made.

use crate::{Filesystem, Inode};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Files that wait at most; who gives one more waits.
const WAITING_MAX: usize = 256;

/// A thread that flushes files. All that it was given is flushed when it is
/// dropped, but for what failed: that stays in the buffers of its files, and
/// fails again in the commit that needs it.
#[derive(Debug)]
pub(super) struct Flusher {
    files: Option<SyncSender<Arc<Inode>>>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// Without a thread where none can be started: then the write buffers'
    /// budget sees to it that data are flushed.
    pub fn new(files: &Arc<Filesystem>) -> Self {
        let (sender, given) = sync_channel::<Arc<Inode>>(WAITING_MAX);
        let files = Arc::clone(files);
        let thread = std::thread::Builder::new()
            .name("flush".into())
            .spawn(move || {
                for inode in given {
                    if let Err(error) = files.flush_inode(&inode) {
                        tracing::debug!(%error, inode = %inode.id.number, "data stay in memory");
                    }
                }
            });
        Self {
            files: thread.is_ok().then_some(sender),
            thread: thread.ok(),
        }
    }

    pub fn flush(&self, inode: Arc<Inode>) {
        if let Some(files) = &self.files {
            // Nobody takes it after a panic, which the end will report.
            let _ = files.send(inode);
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.files = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that flushes panicked");
        }
    }
}
