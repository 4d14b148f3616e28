//! Data go to the device while the next files are made.

use crate::{Filesystem, Inode};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Files, and bytes of them, that are flushed together.
const FILES: usize = 128;
const BYTES: u64 = 1 << 20;
/// Batches of files that wait at most. A caller that hands over one more waits.
const WAITING_MAX: usize = 4;

/// A thread that flushes complete files, many at a time. When it is dropped,
/// everything handed to it has been flushed. What failed stays in the buffers
/// of its files, and fails again in the commit that needs it.
#[derive(Debug)]
pub struct Flusher {
    batch: Vec<Arc<Inode>>,
    bytes: u64,
    files: Option<SyncSender<Vec<Arc<Inode>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// If no thread can be started, there is none. The budget of the write
    /// buffers then makes sure that data are flushed.
    #[must_use]
    pub fn new(files: &Arc<Filesystem>) -> Self {
        let (sender, given) = sync_channel::<Vec<Arc<Inode>>>(WAITING_MAX);
        let files = Arc::clone(files);
        let thread = std::thread::Builder::new()
            .name("flush".into())
            .spawn(move || {
                for mut batch in given {
                    batch.sort_unstable_by_key(|inode| inode.id);
                    files.flush_together(&batch, &mut |inode, result| {
                        if let Err(error) = result {
                            tracing::debug!(%error, inode = %inode.id.number, "data stay in memory");
                        }
                    });
                }
            });
        Self {
            batch: Vec::new(),
            bytes: 0,
            files: thread.is_ok().then_some(sender),
            thread: thread.ok(),
        }
    }

    /// Flushes a file into which about `bytes` were written.
    pub fn flush(&mut self, inode: Arc<Inode>, bytes: u64) {
        self.batch.push(inode);
        self.bytes += bytes;
        if self.batch.len() >= FILES || self.bytes >= BYTES {
            self.send();
        }
    }

    fn send(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        if let Some(files) = &self.files {
            // After a panic nobody takes it. The end reports that.
            let _ = files.send(batch);
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.send();
        self.files = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that flushes panicked");
        }
    }
}
