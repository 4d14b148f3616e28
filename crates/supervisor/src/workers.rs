//! Threads that answer calls.

use crate::answers::Answers;
use crate::listener::{Answer, Listener};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads at most. A call that waits for a slow mount takes one; when all do,
/// further calls get the kernel's answer.
const THREADS_MAX: usize = 128;

/// Threads, and how many of them wait for calls.
#[derive(Debug, Default)]
struct Crew {
    threads: AtomicUsize,
    idle: AtomicUsize,
}

/// Answers, and the listener through which they are given.
type Served = Arc<(Answers, Arc<Listener>)>;

/// Answers calls until no process is under the filter any more.
pub(crate) fn serve(answers: Answers, listener: Arc<Listener>) {
    let served = Arc::new((answers, Arc::clone(&listener)));
    let crew: Arc<Crew> = Arc::default();
    if !add(&served, &crew) {
        // Without threads, calls go on as if nobody had stopped them.
        crew.idle.fetch_add(1, Ordering::Relaxed);
        return work(&served, &crew);
    }
    loop {
        // A hang-up is reported without being asked for.
        let mut waits = [PollFd::from_borrowed_fd(
            listener.as_fd(),
            PollFlags::empty(),
        )];
        match poll(&mut waits, None) {
            Ok(_) if waits[0].revents().is_empty() => {}
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// False if there are as many as may be, or the system refuses one.
fn add(served: &Served, crew: &Arc<Crew>) -> bool {
    if crew.threads.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
        crew.threads.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    crew.idle.fetch_add(1, Ordering::Relaxed);
    let (served, own) = (Arc::clone(served), Arc::clone(crew));
    let spawned = std::thread::Builder::new().spawn(move || work(&served, &own));
    if spawned.is_err() {
        crew.threads.fetch_sub(1, Ordering::Relaxed);
        crew.idle.fetch_sub(1, Ordering::Relaxed);
    }
    spawned.is_ok()
}

fn work(served: &Served, crew: &Arc<Crew>) {
    let (answers, listener) = &**served;
    loop {
        match listener.receive() {
            Ok(stopped) => {
                // Somebody always waits for the next call: the last one that can
                // does nothing that may take long.
                let is_last = crew.idle.fetch_sub(1, Ordering::Relaxed) == 1;
                let answer = match is_last && !add(served, crew) {
                    true => None,
                    false => answers.answer(&stopped),
                };
                listener.answer(stopped.id, answer.unwrap_or(Answer::Continue));
                crew.idle.fetch_add(1, Ordering::Relaxed);
            }
            // The caller is gone, or this thread was disturbed.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(_) => return,
        }
    }
}
