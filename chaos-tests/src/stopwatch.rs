//! The duration of a campaign. A person reads it; no life ever does.

use std::time::{Duration, Instant};

/// A watch that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WallStopwatch(Instant);

impl WallStopwatch {
    /// A watch that starts.
    #[expect(
        clippy::disallowed_methods,
        reason = "the time a campaign takes is no life's business"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since its start.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
