//! Threads of a command, which debuggers and `ps` show by name.

use std::thread::{self, JoinHandle};

use zbelastic_wording::{CommandFailure, FailureCode};

/// Starts a thread.
///
/// # Errors
/// If the system gives none.
pub fn spawn_named<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, CommandFailure> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|error| {
        CommandFailure::new(FailureCode::OutOfResource, format!("no thread {name}: {error}"))
    })
}
