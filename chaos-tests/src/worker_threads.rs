//! Work shared out among threads.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::mpsc::sync_channel;
use std::thread;

/// Results that may wait for each thread: a thread blocks while its results are not received.
const RESULTS_WAITING: usize = 2;

/// Does `work` on every item, on `jobs` threads, and hands the results to `done` on this one, as
/// they come.
///
/// A thread fetches an item when it is free, so that a million of them cost no memory, and items
/// that are only made while there is time for them come to an end.
///
/// # Panics
/// If `items`, `work` or `done` does.
pub fn share_out<T, R: Send>(
    jobs: NonZeroUsize,
    items: impl Iterator<Item = T> + Send,
    work: &(impl Fn(T) -> R + Sync),
    done: impl FnMut(R),
) {
    let (sender, results) = sync_channel(jobs.get() * RESULTS_WAITING);
    // Protects the iterator of items; no thread holds it while working.
    let items = Mutex::new(items);
    let take = || items.lock().expect("whoever takes an item does not panic").next();
    thread::scope(|scope| {
        for _ in 0..jobs.get() {
            let sender = sender.clone();
            let take = &take;
            scope.spawn(move || {
                while let Some(item) = take() {
                    if sender.send(work(item)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        results.into_iter().for_each(done);
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{RESULTS_WAITING, share_out};

    #[test]
    fn every_item_is_worked_on_once() {
        for jobs in [1, 2, 7].map(|jobs| NonZeroUsize::new(jobs).expect("not zero")) {
            let mut results = Vec::new();
            share_out(jobs, 0..1000, &|item: u32| item * 2, |result| results.push(result));
            assert_eq!(results.len(), 1000);
            let expected: BTreeSet<u32> = (0..1000).map(|item| item * 2).collect();
            assert_eq!(results.into_iter().collect::<BTreeSet<_>>(), expected);
        }
    }

    #[test]
    fn threads_do_not_run_ahead_of_whoever_takes_the_results() {
        let jobs = NonZeroUsize::new(2).expect("not zero");
        let taken = AtomicUsize::new(0);
        let mut done = 0;
        let items = (0..1000).inspect(|_| {
            taken.fetch_add(1, Ordering::SeqCst);
        });
        share_out(jobs, items, &|item: usize| item, |_| {
            done += 1;
            // Those that wait, and one in the hands of each thread.
            let ahead = taken.load(Ordering::SeqCst) - done;
            assert!(ahead <= jobs.get() * (RESULTS_WAITING + 1), "{ahead} items ahead");
        });
        assert_eq!(done, 1000);
    }
}
