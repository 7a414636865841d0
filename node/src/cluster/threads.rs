//! The threads of a node beside those that compute, and which of them stand back for those.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Runtime};

use crate::failure::{Failure, FailureCode};

/// What frames and messages go through: passes of others wait for it.
const TRANSPORT: &str = "transport";
/// What disks and hashes of what travels take time of: nobody waits for it.
const BACKGROUND: &str = "background";

/// The `nice` value of threads that nobody waits for: they get a third of the processor time that a pass
/// gets where all cores are busy, and everything where one is idle. Not lower in priority: a thread that
/// is preempted while it holds the memory map of its process (`mmap_lock`, in mprotect and munmap) stops
/// all others that allocate, and with them heartbeats. At GPT-2 124M on two cores event loops stood still
/// for up to 0.9 s at 15, and 0.5 s at 5.
const NICENESS: i32 = 5;

/// The calling thread, and those that it starts, stand back from now on. Linux counts this by thread.
pub fn stand_back() {
    // A system that forbids it runs the thread as any other.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// One thread for what others wait for, and others, which stand back, for what may block.
///
/// # Errors
/// If the system gives no threads.
pub fn runtime() -> Result<Runtime, Failure> {
    let started = AtomicUsize::new(0);
    // The only worker is the first to be started.
    let name = move || match started.fetch_add(1, Ordering::Relaxed) {
        0 => TRANSPORT.to_owned(),
        _ => BACKGROUND.to_owned(),
    };
    let start = || {
        if thread::current().name() == Some(BACKGROUND) {
            stand_back();
        }
    };
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).thread_name_fn(name).on_thread_start(start);
    let runtime = builder.enable_all().build();
    runtime.map_err(|error| Failure::new(FailureCode::OutOfResource, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn niceness() -> i32 {
        rustix::process::getpriority_process(None).expect("a thread may ask")
    }

    #[test]
    fn what_may_block_stands_back_and_what_is_waited_for_does_not() {
        let runtime = runtime().expect("threads");
        let own = niceness();
        let (of_transport, of_background) = runtime.block_on(async {
            let of_transport = tokio::spawn(async { niceness() }).await.expect("it runs");
            (of_transport, tokio::task::spawn_blocking(niceness).await.expect("it runs"))
        });
        assert_eq!(of_transport, own);
        assert!(of_background > own, "{of_background}, {own}");
    }
}
