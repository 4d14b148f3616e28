//! Threads that answer calls.

use crate::answers::Answers;
use crate::listener::Answer;
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

/// Answers calls until no process is under the filter any more.
pub(crate) fn serve(answers: Answers) {
    let answers = Arc::new(answers);
    let crew: Arc<Crew> = Arc::default();
    if !add(&answers, &crew) {
        // Without threads, calls go on as if nobody had stopped them.
        crew.idle.fetch_add(1, Ordering::Relaxed);
        return work(&answers, &crew);
    }
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

/// False if there are as many as may be, or the system refuses one.
fn add(answers: &Arc<Answers>, crew: &Arc<Crew>) -> bool {
    if crew.threads.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
        crew.threads.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    crew.idle.fetch_add(1, Ordering::Relaxed);
    let (answers, own) = (Arc::clone(answers), Arc::clone(crew));
    let spawned = std::thread::Builder::new().spawn(move || work(&answers, &own));
    if spawned.is_err() {
        crew.threads.fetch_sub(1, Ordering::Relaxed);
        crew.idle.fetch_sub(1, Ordering::Relaxed);
    }
    spawned.is_ok()
}

fn work(answers: &Arc<Answers>, crew: &Arc<Crew>) {
    loop {
        match answers.listener.receive() {
            Ok(stopped) => {
                // Somebody always waits for the next call: the last one that can
                // does nothing that may take long.
                let is_last = crew.idle.fetch_sub(1, Ordering::Relaxed) == 1;
                match is_last && !add(answers, crew) {
                    true => answers.listener.answer(stopped.id, Answer::Continue),
                    false => answers.serve(&stopped),
                }
                crew.idle.fetch_add(1, Ordering::Relaxed);
            }
            // The caller is gone, or this thread was disturbed.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(_) => return,
        }
    }
}
