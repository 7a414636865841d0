//! The threads of a node beside those that compute, and which of them have a raised nice value.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

use zbelastic_wording::{CommandFailure, FailureCode};

/// The thread that frames and messages go through: passes of others wait for it.
const TRANSPORT: &str = "transport";
/// Threads for disks and for hashes of data that is sent: nothing waits for them.
const BACKGROUND: &str = "background";

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

/// One thread for urgent tasks, and others, with a raised nice value, for tasks that may block.
///
/// # Errors
/// If the system gives no threads.
pub fn runtime() -> Result<Runtime, CommandFailure> {
    let started = AtomicUsize::new(0);
    // The only worker is the first to be started.
    let name = move || match started.fetch_add(1, Ordering::Relaxed) {
        0 => TRANSPORT.to_owned(),
        _ => BACKGROUND.to_owned(),
    };
    let start = || {
        if thread::current().name() == Some(BACKGROUND) {
            raise_niceness();
        }
    };
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).thread_name_fn(name).on_thread_start(start);
    let runtime = builder.enable_all().build();
    runtime.map_err(|error| CommandFailure::new(FailureCode::OutOfResource, error.to_string()))
}

/// The processor time that threads beside the device spent on checkpoints.
#[derive(Clone, Debug, Default)]
pub struct CheckpointTime(Arc<AtomicU64>);

impl CheckpointTime {
    /// Does a part of the work, and counts the processor time of its thread.
    pub fn meter<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = thread_time();
        let done = work();
        let used = thread_time().saturating_sub(before);
        self.0.fetch_add(used.as_nanos() as u64, Ordering::Relaxed);
        done
    }

    /// The time spent since this was called last.
    #[must_use]
    pub fn take(&self) -> Duration {
        Duration::from_nanos(self.0.swap(0, Ordering::Relaxed))
    }
}

/// The processor time of the calling thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn niceness() -> i32 {
        rustix::process::getpriority_process(None).expect("a thread may ask")
    }

    #[test]
    fn what_may_block_has_raised_niceness_and_what_is_waited_for_has_not() {
        let runtime = runtime().expect("threads");
        let own = niceness();
        let (of_transport, of_background) = runtime.block_on(async {
            let of_transport = tokio::spawn(async { niceness() }).await.expect("it runs");
            (of_transport, tokio::task::spawn_blocking(niceness).await.expect("it runs"))
        });
        assert_eq!(of_transport, own);
        assert!(of_background > own, "{of_background}, {own}");
    }

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
