//! The threads that serve the queues of io_uring.
//!
//! Owns a few threads for each CPU of the process, which serve what is asked
//! there, and the spares that join a CPU while its threads wait for a device.
//! CPUs that the process does not run on have their threads together.
//!
//! Invariant: each possible CPU has a queue from the start. A request that finds
//! all threads of its CPU at work waits until one of them is done, or until a
//! new thread that joins them nudges the kernel. So there are always some
//! threads more than wait, unless the bound of threads is reached.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::dispatch::Serve;
use crate::seat::{Bench, Placement, Seat};
use crate::transport::{Queue, Served, UringTransport, possible_cpus};

/// Threads of a post that do not wait for a device, if possible.
const READY: usize = 2;

/// Threads that may fail one after the other before the crew gives up.
const FAILURES_MAX: usize = 8;

/// A place at which threads serve: a CPU, or all CPUs elsewhere.
struct Post {
    /// The kernel's queues that are served here.
    queues: Vec<u16>,
    /// Where its threads run; none: anywhere.
    cpu: Option<usize>,
}

struct State {
    /// For each post, threads that wait for a request or serve one without
    /// waiting for anything else.
    ready: Vec<usize>,
    /// Threads that have not ended.
    alive: usize,
    failures: usize,
    closed: bool,
    handles: Vec<JoinHandle<()>>,
}

/// All threads that serve one connection through io_uring.
pub(crate) struct Crew {
    transport: UringTransport,
    server: Arc<dyn Serve>,
    posts: Vec<Post>,
    threads_max: usize,
    state: Mutex<State>,
    me: Weak<Self>,
}

impl Crew {
    /// Starts the threads of each post; `spare_threads` more may follow.
    pub(crate) fn start(
        transport: UringTransport,
        server: Arc<dyn Serve>,
        spare_threads: usize,
    ) -> io::Result<Arc<Self>> {
        let posts = posts(possible_cpus()?, &Placement::own_cpus());
        let crew = Arc::new_cyclic(|me| Self {
            transport,
            server,
            threads_max: READY * posts.len() + spare_threads,
            state: Mutex::new(State {
                ready: vec![READY; posts.len()],
                alive: READY * posts.len(),
                failures: 0,
                closed: false,
                handles: Vec::new(),
            }),
            posts,
            me: me.clone(),
        });
        for post in 0..crew.posts.len() {
            for _ in 0..READY {
                crew.spawn(post, false)?;
            }
        }
        Ok(crew)
    }

    /// Threads of a crew at most.
    pub(crate) fn threads_max(spare_threads: usize) -> usize {
        let possible = possible_cpus().unwrap_or(1);
        READY * posts(possible, &Placement::own_cpus()).len() + spare_threads
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
        let Some(bench) = self.me.upgrade() else {
            return;
        };
        let seat = Seat::of(bench);
        let post = &self.posts[index];
        let sit = || {
            seat.take(index);
            if let Some(cpu) = post.cpu {
                seat.placement().on(cpu);
            }
        };
        sit();
        let mut queue = match self.transport.queue(&post.queues) {
            Ok(queue) => queue,
            Err(error) => return self.fail(index, &seat, &error),
        };
        // The first ones come before all requests.
        if is_spare {
            self.transport.nudge();
        }
        loop {
            match queue.serve_one(&*self.server, &seat) {
                Served::Again => {}
                Served::Ended => {
                    self.state.lock().closed = true;
                    return;
                }
                Served::Failed(error) => {
                    queue.abandon();
                    return self.fail(index, &seat, &error);
                }
            }
            if seat.index().is_none() {
                self.state.lock().ready[index] += 1;
                sit();
            }
        }
    }

    /// A thread cannot go on; another one tries in its place.
    fn fail(&self, post: usize, seat: &Seat, error: &io::Error) {
        seat.placement().anywhere();
        let mut state = self.state.lock();
        state.alive -= 1;
        if seat.index().is_some() {
            state.ready[post] -= 1;
        }
        state.failures += 1;
        if state.closed {
            return;
        }
        if state.failures > FAILURES_MAX {
            tracing::error!(%error, "a queue of io_uring failed; mount with -o transport=dev");
            return;
        }
        tracing::warn!(%error, "a queue of io_uring failed; another one takes its place");
        state.alive += 1;
        state.ready[post] += 1;
        drop(state);
        if let Err(error) = self.spawn(post, true) {
            tracing::error!(%error, "no thread could be started for a queue of io_uring");
        }
    }
}

impl Bench for Crew {
    fn vacate(&self, post: usize) {
        let mut state = self.state.lock();
        state.ready[post] -= 1;
        if state.ready[post] >= READY || state.closed || state.alive >= self.threads_max {
            return;
        }
        state.ready[post] += 1;
        state.alive += 1;
        drop(state);
        if let Err(error) = self.spawn(post, true) {
            tracing::warn!(%error, "cannot start a spare thread; requests wait for each other");
            let mut state = self.state.lock();
            state.alive -= 1;
            state.ready[post] -= 1;
        }
    }
}

/// One post for each CPU of this process, and one for all others.
fn posts(possible: usize, own: &[usize]) -> Vec<Post> {
    let queue = |cpu: usize| u16::try_from(cpu).ok();
    let (own, others): (Vec<_>, Vec<_>) = (0..possible).partition(|cpu| own.contains(cpu));
    let mut posts: Vec<Post> = own
        .into_iter()
        .map(|cpu| Post {
            queues: queue(cpu).into_iter().collect(),
            cpu: Some(cpu),
        })
        .collect();
    if !others.is_empty() {
        posts.push(Post {
            queues: others.into_iter().filter_map(queue).collect(),
            cpu: None,
        });
    }
    posts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_possible_cpu_has_a_queue_once() {
        for (possible, own) in [
            (1, vec![0]),
            (4, vec![0, 2]),
            (8, vec![]),
            (2, vec![0, 1, 5]),
        ] {
            let posts = posts(possible, &own);
            let mut queues: Vec<_> = posts.iter().flat_map(|post| post.queues.clone()).collect();
            queues.sort_unstable();
            assert_eq!(queues, (0..possible as u16).collect::<Vec<_>>());
            for post in posts.iter().filter(|post| post.cpu.is_some()) {
                assert_eq!(post.queues.len(), 1);
            }
        }
    }
}
