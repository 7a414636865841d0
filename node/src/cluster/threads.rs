//! The threads of a node beside those that compute, and which of them have a raised nice value.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Runtime};

use zbelastic_machine::background_thread::raise_niceness;
use zbelastic_wording::{CommandFailure, FailureCode};

/// The thread that frames and messages go through: passes of others wait for it.
const TRANSPORT: &str = "transport";
/// Threads for disks and for hashes of data that is sent: nothing waits for them.
const BACKGROUND: &str = "background";

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
}
