//! Ctrl-C: once to finish the step, twice to stop at once.

use std::io::{self, Write};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::failure::{Failure, FailureCode};

/// How often the run was asked to end. An atomic, because a signal arrives on a thread of its own.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    count: Arc<AtomicU32>,
}

impl Interrupt {
    /// Listens for Ctrl-C and for the signal to terminate.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn listen() -> Result<Self, Failure> {
        let interrupt = Self::default();
        let count = interrupt.count.clone();
        let on_signal = move || {
            let says = match count.fetch_add(1, Ordering::SeqCst) {
                0 => "finishing the step; once more to stop at once",
                _ => process::exit(FailureCode::Interrupted as i32),
            };
            // Standard error may be closed; the run ends all the same.
            let _ = writeln!(io::stderr(), "\n{says}");
        };
        ctrlc::set_handler(on_signal).map_err(|error| {
            Failure::new(FailureCode::Internal, format!("cannot listen for Ctrl-C: {error}"))
        })?;
        Ok(interrupt)
    }

    /// Whether the run should end with the step under way.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }
}
