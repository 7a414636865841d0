//! How a life fails, and which exit code that gives.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FailureKind {
    /// An invariant is broken.
    Safety,
    /// Nothing moves, though it should.
    Liveness,
    /// The code under test panicked.
    Panic,
    /// The same seed led to something else.
    NonDeterminism,
}

impl FailureKind {
    /// The exit code of this kind, which no other kind has.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Safety => 10,
            Self::Liveness => 11,
            Self::Panic => 12,
            Self::NonDeterminism => 13,
        }
    }
}

/// An invariant of the protocol, by its name there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Invariant {
    /// Sealed history is linear and gap-free.
    S1,
    /// Applied prefixes are equal.
    S2,
    /// Only frames of the current generation and life are processed.
    S3,
    /// No two active plans.
    S4,
    /// One leader a term.
    S5,
    /// An acknowledged seal survives.
    S6,
    /// A version is exposed by all or none: by no node before it is agreed on.
    S9,
    /// Every version equals the undisturbed run's.
    N1,
    /// After a rollback the state is the version before.
    N2,
    /// No operation reads a dropped candidate.
    N3,
    /// Nothing sealed is not finite.
    N4,
    /// A verdict depends on the sums alone.
    N5,
    /// Every referenced checkpoint can be restored.
    C1,
    /// Progress within the fault budget.
    L1,
    /// Work lost per failure at most the open attempt.
    L3,
    /// No sealed version is given up that a living member holds.
    L4,
    /// A process leaves a plan that was made for a drift alone for its steps, as far as it has seen them.
    L5,
    /// No checkpoint is given up while a worker that was just lost may come back with a piece of it.
    L6,
    /// No store grows beyond the data that is kept.
    H1,
    /// A checkpoint is placed while members have disk space for it.
    H2,
    /// A piece that is damaged on one disk is fetched again while another disk has it sound.
    H3,
    /// A member that reports to keep a piece has it, and a checkpoint that came about is somewhere.
    H4,
    /// There is a plan while nodes have memory for one, and no stage needs more than its node has.
    H6,
    /// A damaged store of checkpoints keeps no node from starting.
    H9,
    /// A message that a member sends beyond its role ends no process, reserves nothing, and is not
    /// accepted.
    H10,
    /// A member that was removed is cut off by all members within a second.
    H11,
    /// Certificates do not end while processes run.
    H12,
    /// No member refuses another one for the authority that made its certificate.
    H13,
    /// A run is held while the controllers whose logs have space are no majority, and no longer.
    H14,
    /// A store that is closed while its process runs, and one that is found damaged then, is followed by
    /// an open one.
    H15,
    /// No node is sent a format that its program does not read.
    F1,
    /// The canary: broken by a switch that makes every life fail.
    Canary,
}

impl Invariant {
    /// Whether it is about the work of members beside the protocol ([`crate::housekeeping`]).
    #[must_use]
    pub const fn is_of_housekeeping(self) -> bool {
        match self {
            Self::H1
            | Self::H2
            | Self::H3
            | Self::H4
            | Self::H6
            | Self::H9
            | Self::H10
            | Self::H11
            | Self::H12
            | Self::H13
            | Self::H14
            | Self::H15 => true,
            Self::S1
            | Self::S2
            | Self::S3
            | Self::S4
            | Self::S5
            | Self::S6
            | Self::S9
            | Self::N1
            | Self::N2
            | Self::N3
            | Self::N4
            | Self::N5
            | Self::C1
            | Self::L1
            | Self::L3
            | Self::L4
            | Self::L5
            | Self::L6
            | Self::F1
            | Self::Canary => false,
        }
    }
}

/// Why a life failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifeFailure {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The invariant, if one is broken.
    pub invariant: Option<Invariant>,
    /// The expected and the found value.
    pub message: String,
}

impl LifeFailure {
    /// The failure of a broken invariant.
    #[must_use]
    pub fn safety(invariant: Invariant, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind: FailureKind::Safety, invariant: Some(invariant), message }
    }

    /// The failure of a life in which nothing moves.
    #[must_use]
    pub fn liveness(message: impl Into<String>) -> Self {
        let kind = FailureKind::Liveness;
        let invariant = Some(Invariant::L1);
        Self { kind, invariant, message: message.into() }
    }

    /// A panic of the code under test.
    #[must_use]
    pub fn panic(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Panic, invariant: None, message: message.into() }
    }

    /// The same case lived twice came to something else.
    #[must_use]
    pub fn non_determinism(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::NonDeterminism, invariant: None, message: message.into() }
    }

    /// Whether the other is a failure of the same kind against the same invariant: the same, as far
    /// as a program can tell.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        (self.kind, self.invariant) == (other.kind, other.invariant)
    }
}

impl fmt::Display for LifeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.invariant {
            Some(invariant) => write!(f, "{:?} {invariant:?}: {}", self.kind, self.message),
            None => write!(f, "{:?}: {}", self.kind, self.message),
        }
    }
}
