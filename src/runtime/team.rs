//! The threads of one device: they divide the tasks of a kernel.
//!
//! The device's own thread takes part. Tasks are handed out in chunks from a counter, so a slow thread takes fewer;
//! results do not depend on who does what. Nothing is allocated after the team is made.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Spins before a waiting thread sleeps.
const SPINS: usize = 2000;

/// What the members run: a range of tasks and the member's number.
type Job<'a> = dyn Fn(Range<usize>, usize) + Sync + 'a;

/// A job whose lifetime is that of one `run`, which does not return before every member is done with it.
#[derive(Clone, Copy)]
struct Posted {
    job: *const Job<'static>,
    tasks: usize,
    chunk: usize,
}

// SAFETY: the pointer is used between the posting and the end of `run` only, and the job is Sync.
unsafe impl Send for Posted {}

struct Shared {
    posted: Mutex<Option<Posted>>,
    wake: Condvar,
    epoch: AtomicU64,
    next: AtomicUsize,
    busy: AtomicUsize,
    stop: AtomicBool,
    /// What a member's job panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The threads of one device.
pub(crate) struct Team {
    shared: Arc<Shared>,
    /// Held by the one `run` at a time.
    turn: Mutex<()>,
    members: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Team of {}", self.threads())
    }
}

impl Team {
    /// A team of `threads` in all, at least 1; the caller of `run` is one of them.
    pub(crate) fn new(threads: usize) -> std::io::Result<Team> {
        let shared = Arc::new(Shared {
            posted: Mutex::new(None),
            wake: Condvar::new(),
            epoch: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        // Where a thread cannot be started, dropping the team ends those that were.
        let mut team = Team { shared, turn: Mutex::new(()), members: Vec::new() };
        for member in 1..threads.max(1) {
            let shared = team.shared.clone();
            let thread = std::thread::Builder::new().name(format!("worker-{member}"));
            team.members.push(thread.spawn(move || work(&shared, member))?);
        }
        Ok(team)
    }

    /// Number of threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.members.len() + 1
    }

    /// Runs `job` on all of `0..tasks`, divided over the threads, and returns when all is done.
    ///
    /// # Panics
    /// If the job does on any thread; the team can be used again.
    pub(crate) fn run(&self, tasks: usize, job: &Job<'_>) {
        if self.members.is_empty() || tasks <= 1 {
            if tasks > 0 {
                job(0..tasks, 0);
            }
            return;
        }
        /// Waits until no member uses the job, also when the job panics on this thread.
        struct Wait<'a>(&'a Shared);
        impl Drop for Wait<'_> {
            fn drop(&mut self) {
                let mut spins = 0;
                while self.0.busy.load(Ordering::Acquire) != 0 {
                    pause(&mut spins);
                }
            }
        }
        let _turn = lock(&self.turn);
        let chunk = (tasks / (self.threads() * 4)).max(1);
        // SAFETY: only the lifetime is changed; `Wait` keeps this call from ending while a member uses the job.
        let job: *const Job<'static> = unsafe { std::mem::transmute(std::ptr::from_ref(job)) };
        let posted = Posted { job, tasks, chunk };
        let shared = &self.shared;
        shared.next.store(0, Ordering::Relaxed);
        shared.busy.store(self.members.len(), Ordering::Relaxed);
        *lock(&shared.panic) = None;
        let wait = Wait(shared);
        {
            // The epoch moves under the lock, else a member that is about to sleep would miss it.
            let mut guard = lock(&shared.posted);
            *guard = Some(posted);
            shared.epoch.fetch_add(1, Ordering::Release);
        }
        shared.wake.notify_all();
        take_part(shared, posted, 0);
        drop(wait);
        if let Some(panic) = lock(&shared.panic).take() {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        {
            let _posted = lock(&self.shared.posted);
            self.shared.stop.store(true, Ordering::Release);
            self.shared.epoch.fetch_add(1, Ordering::Release);
        }
        self.shared.wake.notify_all();
        for m in self.members.drain(..) {
            // Members catch the panics of their jobs.
            let _ = m.join();
        }
    }
}

/// A lock whose data is whole whatever panicked while it was held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits a little; gives the processor away after a while.
pub(crate) fn pause(spins: &mut usize) {
    *spins += 1;
    if *spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

fn take_part(shared: &Shared, posted: Posted, member: usize) {
    loop {
        let begin = shared.next.fetch_add(posted.chunk, Ordering::Relaxed);
        if begin >= posted.tasks {
            return;
        }
        // SAFETY: `run` keeps the job alive until this member has counted itself out.
        let job = unsafe { &*posted.job };
        job(begin..(begin + posted.chunk).min(posted.tasks), member);
    }
}

fn work(shared: &Shared, member: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.epoch.load(Ordering::Acquire) == seen && spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        }
        let posted = {
            let mut guard = lock(&shared.posted);
            while shared.epoch.load(Ordering::Acquire) == seen {
                guard = shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            seen = shared.epoch.load(Ordering::Acquire);
            *guard
        };
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        if let Some(posted) = posted {
            // `run` waits for this member and needs it again, so a panic is passed on instead of ending the thread.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| take_part(shared, posted, member))) {
                *lock(&shared.panic) = Some(panic);
            }
            shared.busy.fetch_sub(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_number_of_threads() {
        for threads in [1, 2, 5] {
            let team = Team::new(threads).unwrap();
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.run(tasks, &|range, member| {
                    assert!(member < threads);
                    range.for_each(|t| {
                        counts[t].fetch_add(1, Ordering::Relaxed);
                    });
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_team_usable() {
        let team = Team::new(3).unwrap();
        for bad in [0, 50, 99] {
            let job = |range: Range<usize>, _: usize| assert!(!range.contains(&bad), "task {bad}");
            assert!(catch_unwind(AssertUnwindSafe(|| team.run(100, &job))).is_err(), "task {bad}");
            let count = AtomicUsize::new(0);
            team.run(100, &|range, _| {
                count.fetch_add(range.len(), Ordering::Relaxed);
            });
            assert_eq!(count.load(Ordering::Relaxed), 100);
        }
    }
}
