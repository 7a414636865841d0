//! Ticks: the clock of the pure cores. They count ticks; who runs them makes one every [`TICK`].

use std::fmt;
use std::time::Duration;

/// The length of a tick. Everything that a core counts in ticks is a multiple of this.
pub const TICK: Duration = Duration::from_millis(10);

/// A number of ticks, written as the time that they last: people know no ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticks(pub u32);

impl fmt::Display for Ticks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", f64::from(self.0) * TICK.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_written_as_seconds() {
        assert_eq!(Ticks(71).to_string(), "0.7 s");
        assert_eq!(Ticks(6_001).to_string(), "60.0 s");
    }
}
