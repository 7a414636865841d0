//! Why a run is held for want of space on disks.

use std::fmt;

/// The data that no disk has space for, so that no further step is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldForSpace {
    /// Checkpoints: sealed steps would be lost with the workers.
    Checkpoints,
    /// The logs of so many controllers that the others would be no majority.
    Logs,
}

/// As an operator is warned of it.
impl fmt::Display for HeldForSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Checkpoints => {
                "the run is held: several checkpoints, one after the other, could be written to no \
                 disk; free space, or keep fewer checkpoints (checkpoint.keep_last, runs remove): it \
                 goes on by itself when a disk has space"
            }
            Self::Logs => {
                "the run is held: controllers have hardly any space for their logs, and the others \
                 would be no majority; free space there: it goes on by itself when they have some"
            }
        })
    }
}
