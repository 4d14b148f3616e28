//! Threads that answer calls.

use crate::answers::Answers;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads at most. A call that waits for a slow mount takes one.
const THREADS_MAX: usize = 128;

/// Threads, and how many of them wait for calls.
#[derive(Debug, Default)]
struct Crew {
    threads: AtomicUsize,
    idle: AtomicUsize,
}

/// Answers calls until no process is under the filter any more.
pub(crate) fn serve(answers: Answers) {
    let answers = Arc::new(answers);
    add(&answers, &Arc::default());
    loop {
        // A hang-up is reported without being asked for.
        let mut waits = [PollFd::from_borrowed_fd(
            answers.listener.as_fd(),
            PollFlags::empty(),
        )];
        match poll(&mut waits, None) {
            Ok(_) if waits[0].revents().is_empty() => {}
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

fn add(answers: &Arc<Answers>, crew: &Arc<Crew>) {
    if crew.threads.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
        crew.threads.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    crew.idle.fetch_add(1, Ordering::Relaxed);
    let (answers, own) = (Arc::clone(answers), Arc::clone(crew));
    let spawned = std::thread::Builder::new().spawn(move || work(&answers, &own));
    if spawned.is_err() {
        crew.threads.fetch_sub(1, Ordering::Relaxed);
        crew.idle.fetch_sub(1, Ordering::Relaxed);
    }
}

fn work(answers: &Arc<Answers>, crew: &Arc<Crew>) {
    loop {
        match answers.listener.receive() {
            Ok(stopped) => {
                // Somebody always waits for the next call.
                if crew.idle.fetch_sub(1, Ordering::Relaxed) == 1 {
                    add(answers, crew);
                }
                answers.serve(&stopped);
                crew.idle.fetch_add(1, Ordering::Relaxed);
            }
            // The caller is gone, or this thread was disturbed.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(_) => return,
        }
    }
}
