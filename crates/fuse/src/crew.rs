//! The threads that serve the queues of io_uring.
//!
//! Owns a few threads for each CPU, which serve the requests of that CPU, and
//! the spares that join them while they wait for a device. A thread whose last
//! request was a long read runs on any CPU, so that it and its caller copy at
//! the same time. CPUs that are switched off share one thread.
//!
//! Invariants: each possible CPU has a queue from the start, because otherwise
//! the kernel holds all requests back. So a thread whose queue fails tries
//! again until the end. A request that finds all threads of its CPU at work
//! waits until one of them is done, or until a new thread that joins them
//! nudges the kernel. So there are always more threads than waiting ones,
//! unless the bound of threads is reached.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::dispatch::Serve;
use crate::request_slot::{Placement, RequestSlot, SlotOwner};
use crate::transport::{Queue, Served, UringQueue, UringTransport, cpus_of, rings_are_possible};

/// Threads of a CPU of this process that do not wait for a device, if possible.
const READY: usize = 2;
/// With more CPUs than this, one thread per CPU.
const MANY: usize = 32;

/// The pause between two attempts to get a queue.
const PAUSE: Duration = Duration::from_millis(200);
/// After a spare could not be started, no other is tried for this time.
const WITHOUT_SPARES: Duration = Duration::from_secs(1);

/// A place at which threads serve: a CPU, or all CPUs that are switched off.
struct Post {
    /// The kernel's queues that are served here.
    queues: Vec<u16>,
    /// Where its threads run; `None` means anywhere.
    cpu: Option<usize>,
    /// Threads that are to be ready.
    ready: usize,
}

struct State {
    /// For each post, threads that wait for a request or serve one without
    /// waiting for anything else.
    ready: Vec<usize>,
    /// Threads that have not ended.
    alive: usize,
    closed: bool,
    /// When a spare last could not be started.
    lacked: Option<Instant>,
    handles: Vec<JoinHandle<()>>,
}

/// All threads that serve one connection through io_uring.
pub(crate) struct Crew {
    transport: UringTransport,
    server: Arc<dyn Serve>,
    posts: Vec<Post>,
    threads_max: usize,
    state: Mutex<State>,
    /// The end of the session.
    ended: Condvar,
    me: Weak<Self>,
}

impl Crew {
    /// Starts the threads of each post; `spare_threads` more may follow.
    pub(crate) fn start(
        transport: UringTransport,
        server: Arc<dyn Serve>,
        spare_threads: usize,
    ) -> io::Result<Arc<Self>> {
        let posts = own_posts()?;
        let threads = threads_of(&posts);
        let crew = Arc::new_cyclic(|me| Self {
            transport,
            server,
            threads_max: threads + spare_threads,
            state: Mutex::new(State {
                ready: posts.iter().map(|post| post.ready).collect(),
                alive: threads,
                closed: false,
                lacked: None,
                handles: Vec::new(),
            }),
            posts,
            ended: Condvar::new(),
            me: me.clone(),
        });
        for (number, post) in crew.posts.iter().enumerate() {
            for _ in 0..post.ready {
                crew.spawn(number, false)?;
            }
        }
        Ok(crew)
    }

    /// Whether this process can have what a crew needs. Call it before the
    /// kernel is told that there will be one.
    pub(crate) fn is_possible() -> io::Result<()> {
        rings_are_possible(threads_of(&own_posts()?))
    }

    /// Threads of a crew at most.
    pub(crate) fn threads_max(spare_threads: usize) -> usize {
        own_posts().map_or(0, |posts| threads_of(&posts)) + spare_threads
    }

    /// Ends the threads that still try to get a queue.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.ended.notify_all();
    }

    /// Waits until all threads ended.
    pub(crate) fn join(&self) {
        loop {
            let handle = self.state.lock().handles.pop();
            let Some(handle) = handle else { break };
            if handle.join().is_err() {
                tracing::error!("a thread of the session panicked");
            }
        }
    }

    fn spawn(&self, post: usize, is_spare: bool) -> io::Result<()> {
        let Some(crew) = self.me.upgrade() else {
            return Ok(());
        };
        let handle = std::thread::Builder::new()
            .name(format!("fuse-cpu{post}"))
            .spawn(move || crew.work(post, is_spare))?;
        self.state.lock().handles.push(handle);
        Ok(())
    }

    fn work(&self, index: usize, is_spare: bool) {
        let Some(owner) = self.me.upgrade() else {
            return;
        };
        let slot = RequestSlot::of(owner);
        let post = &self.posts[index];
        let keep_to_post = || {
            if let Some(cpu) = post.cpu {
                slot.placement().on(cpu);
            }
        };
        let sit = || {
            slot.take(index);
            keep_to_post();
        };
        sit();
        let Some(mut queue) = self.queue(index, is_spare, &slot) else {
            return;
        };
        // The first ones come before all requests.
        if is_spare {
            self.transport.nudge();
        }
        loop {
            match queue.serve_one(&*self.server, &slot) {
                Served::Again if queue.reads_much() => slot.placement().anywhere(),
                Served::Again => keep_to_post(),
                Served::Ended => return self.close(),
                Served::Failed(error) => {
                    tracing::error!(%error, "a queue of io_uring failed; another one takes its place");
                    queue.abandon();
                    let Some(another) = self.queue(index, is_spare, &slot) else {
                        return;
                    };
                    queue = another;
                    self.transport.nudge();
                }
            }
            if slot.index().is_none() {
                self.state.lock().ready[index] += 1;
                sit();
            }
        }
    }

    /// A queue for a thread of that post. `None` if the session ended, or if a
    /// spare gets no queue; other threads then go on without it.
    fn queue(&self, post: usize, is_spare: bool, slot: &RequestSlot) -> Option<UringQueue> {
        let mut is_first = true;
        loop {
            let error = match self.transport.queue(&self.posts[post].queues) {
                Ok(queue) => return Some(queue),
                Err(error) => error,
            };
            let mut state = self.state.lock();
            if is_spare {
                tracing::warn!(%error, "no spare queue of io_uring; requests wait for each other");
                state.lacked = Some(Instant::now());
                state.alive -= 1;
                if slot.index().is_some() {
                    state.ready[post] -= 1;
                }
                return None;
            }
            if std::mem::take(&mut is_first) {
                tracing::error!(%error, "no queue of io_uring; requests wait until there is one");
            }
            if !state.closed {
                self.ended.wait_for(&mut state, PAUSE);
            }
            if state.closed {
                return None;
            }
        }
    }
}

impl SlotOwner for Crew {
    fn vacate(&self, post: usize) {
        let mut state = self.state.lock();
        state.ready[post] -= 1;
        let lacks = state.lacked.is_some_and(|at| at.elapsed() < WITHOUT_SPARES);
        if state.ready[post] >= self.posts[post].ready
            || self.posts[post].queues.len() > 1
            || state.closed
            || lacks
            || state.alive >= self.threads_max
        {
            return;
        }
        state.ready[post] += 1;
        state.alive += 1;
        drop(state);
        if let Err(error) = self.spawn(post, true) {
            tracing::warn!(%error, "cannot start a spare thread; requests wait for each other");
            let mut state = self.state.lock();
            state.lacked = Some(Instant::now());
            state.alive -= 1;
            state.ready[post] -= 1;
        }
    }
}

fn own_posts() -> io::Result<Vec<Post>> {
    let possible = cpus_of("possible")?;
    Ok(posts(
        &possible,
        &cpus_of("online")?,
        &Placement::own_cpus(),
    ))
}

fn threads_of(posts: &[Post]) -> usize {
    posts.iter().map(|post| post.ready).sum()
}

/// One post for each CPU that runs, and one for all others.
fn posts(possible: &[u16], online: &[u16], own: &[usize]) -> Vec<Post> {
    let (running, off): (Vec<u16>, Vec<u16>) =
        possible.iter().partition(|cpu| online.contains(cpu));
    let mut posts: Vec<Post> = running
        .into_iter()
        .map(|cpu| {
            let number = usize::from(cpu);
            let is_own = own.contains(&number);
            Post {
                queues: vec![cpu],
                cpu: is_own.then_some(number),
                ready: match is_own && own.len() <= MANY {
                    true => READY,
                    false => 1,
                },
            }
        })
        .collect();
    if !off.is_empty() {
        posts.push(Post {
            queues: off,
            cpu: None,
            ready: 1,
        });
    }
    posts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_possible_cpu_has_a_queue_once() {
        for (possible, online, own) in [
            (vec![0], vec![0], vec![0]),
            (vec![0, 1, 2, 3], vec![0, 1, 2], vec![0, 2]),
            ((0..8).collect(), (0..8).collect(), vec![]),
            (vec![0, 1], vec![0, 1], vec![0, 1, 5]),
            ((0..200).collect(), (0..100).collect(), (0..64).collect()),
        ] {
            let posts = posts(&possible, &online, &own);
            let mut queues: Vec<_> = posts.iter().flat_map(|post| post.queues.clone()).collect();
            queues.sort_unstable();
            assert_eq!(queues, possible);
            for post in &posts {
                assert!(post.ready > 0);
                let is_off = !online.contains(&post.queues[0]);
                assert!(post.queues.len() == 1 || is_off, "one waits for the other");
                assert!(!is_off || post.cpu.is_none());
            }
        }
    }
}
