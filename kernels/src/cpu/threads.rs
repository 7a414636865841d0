//! Work shared by a fixed number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::AllocateError;

/// The calling thread and its helpers.
///
/// Tasks are claimed one by one in order, so a slow thread takes fewer. Which thread runs a task
/// must never matter to its result; that is the caller's part of the promise that the thread
/// count changes no bit.
pub(crate) struct Threads {
    /// The other threads; `None` if the calling thread is the only one.
    helpers: Option<rayon::ThreadPool>,
    count: usize,
}

impl Threads {
    /// `count` threads in all, the caller included.
    pub(crate) fn new(count: usize) -> Result<Self, AllocateError> {
        assert!(count > 0, "at least the calling thread");
        let helpers = if count == 1 {
            None
        } else {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(count - 1)
                .thread_name(|index| format!("kernel-{}", index + 1))
                .build();
            Some(pool.map_err(|_| AllocateError::of_bytes(0))?)
        };
        Ok(Self { helpers, count })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Runs `task(0)`, `task(1)`, ... `task(task_count - 1)`, each once, and returns when all are
    /// done.
    pub(crate) fn run(&self, task_count: usize, task: impl Fn(usize) + Sync) {
        let Some(helpers) = self.helpers.as_ref().filter(|_| task_count > 1) else {
            (0..task_count).for_each(task);
            return;
        };
        let next = AtomicUsize::new(0);
        let drain = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= task_count {
                    break;
                }
                task(index);
            }
        };
        helpers.in_place_scope(|scope| {
            for _ in 1..self.count.min(task_count) {
                scope.spawn(|_| drain());
            }
            drain();
        });
    }

    /// Runs `task` over `items`, each once; the usual way to pass each task its own mutable piece.
    pub(crate) fn for_each<T: Send>(&self, items: Vec<T>, task: impl Fn(T) + Sync) {
        let slots: Vec<std::sync::Mutex<Option<T>>> =
            items.into_iter().map(|item| std::sync::Mutex::new(Some(item))).collect();
        self.run(slots.len(), |index| {
            let item = slots[index].lock().expect("no task holds another's lock").take();
            task(item.expect("each task is claimed once"));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::Threads;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_task_runs_once_for_any_thread_count() {
        for threads in 1..=4 {
            for tasks in [0, 1, 2, 100] {
                let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                let pool = Threads::new(threads).expect("threads");
                pool.run(tasks, |i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                let mut pieces = vec![0; tasks];
                pool.for_each(pieces.iter_mut().enumerate().collect(), |(i, piece)| *piece = i);
                assert!(pieces.iter().enumerate().all(|(i, piece)| i == *piece));
            }
        }
    }
}
