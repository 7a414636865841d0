//! Threads that do what no pass waits for: their nice value, and the processor time that they take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::ClockId;

use crate::processor_time;

/// The `nice` value of threads that nothing waits for: they get a third of the processor time that
/// a pass gets where all cores are busy, and everything where one is idle. Not lower in priority: a
/// thread that is preempted while it holds the memory map of its process (`mmap_lock`, in mprotect
/// and munmap) stops all others that allocate, and with them heartbeats. At GPT-2 124M on two cores
/// event loops stood still for up to 0.9 s at 15, and 0.5 s at 5.
const NICENESS: i32 = 5;

/// Raises the nice value of the calling thread, and of those that it starts. Linux counts this by
/// thread.
pub fn raise_niceness() {
    // A system that forbids it runs the thread as any other.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// The processor time that threads beside the device spent on checkpoints.
#[derive(Clone, Debug, Default)]
pub struct CheckpointTime(Arc<AtomicU64>);

impl CheckpointTime {
    /// Does a part of the work, and counts the processor time of its thread.
    pub fn meter<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = processor_time(ClockId::ThreadCPUTime);
        let done = work();
        let used = processor_time(ClockId::ThreadCPUTime).saturating_sub(before);
        self.0.fetch_add(used.as_nanos() as u64, Ordering::Relaxed);
        done
    }

    /// The time spent since this was called last.
    #[must_use]
    pub fn take(&self) -> Duration {
        Duration::from_nanos(self.0.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn only_the_time_that_the_work_took_of_a_processor_is_counted() {
        let time = CheckpointTime::default();
        let asleep = CheckpointTime::default();
        let sum = time.meter(|| (0..1_000_000_u64).fold(0, |sum: u64, i| sum.rotate_left(7) ^ i));
        asleep.meter(|| thread::sleep(Duration::from_millis(20)));
        let worked = time.take();
        let slept = asleep.take();
        assert!(worked > Duration::ZERO, "{sum}");
        assert!(slept < Duration::from_millis(20), "{slept:?}");
        assert_eq!(time.take(), Duration::ZERO, "it was taken");
    }
}
