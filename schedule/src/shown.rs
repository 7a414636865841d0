//! What figures and drawings see of an operation.
//!
//! Timelines are drawn alike whether their program has steps or versions of weights: a drawing reads
//! from an operation what it is to look at, and its text, and nothing else.

use crate::asynchronous::AsyncOp;
use crate::op::{Compute, Memory, Op, Pass, Reduction, Update};

/// What an operation is to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Arithmetic, in the pipeline of this number.
    Pass(Compute, Pass, u32),
    /// What a pass keeps leaves.
    CopyOut(Pass),
    /// What a pass keeps comes back.
    CopyBack(Pass),
    /// Something else than a pass, at a place in time.
    Mark(Mark),
    /// Part of an update that is no place to mark: REPORT and COMMIT.
    Bookkeeping,
    /// Operations inside of it have no order before it runs.
    Region,
    /// Transfers, and what only counts memory.
    Nothing,
}

/// What is marked below a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A verdict is waited for.
    Gate,
    /// Gradients of replicas are added.
    Reduce,
    /// New weights are made.
    Step,
    /// A version of the weights is kept beside.
    Stash,
    /// A temporary version is made.
    Predict,
    /// A version is given up.
    Free,
    /// A model and the reference model pull each other.
    Average,
}

/// An operation that has a place in a [`crate::Timeline`].
pub trait Operation: Copy {
    /// What it is to look at.
    fn shown(self) -> Shown;

    /// Its text in a program with `slice_count` slices.
    fn text(self, slice_count: u32) -> String;

    /// What is computed, if something is.
    fn computed(self) -> Option<(Compute, Pass)> {
        match self.shown() {
            Shown::Pass(compute, pass, _) => Some((compute, pass)),
            Shown::CopyOut(_)
            | Shown::CopyBack(_)
            | Shown::Mark(_)
            | Shown::Bookkeeping
            | Shown::Region
            | Shown::Nothing => None,
        }
    }
}

impl Operation for Op {
    fn shown(self) -> Shown {
        match self {
            Self::Compute(compute, pass) => Shown::Pass(compute, pass, 0),
            Self::Memory(Memory::Offload, pass) => Shown::CopyOut(pass),
            Self::Memory(Memory::Reload, pass) => Shown::CopyBack(pass),
            Self::Update(Update::GatePrevious | Update::GateThis) => Shown::Mark(Mark::Gate),
            Self::Update(Update::Step) => Shown::Mark(Mark::Step),
            Self::Update(Update::Report | Update::Commit) => Shown::Bookkeeping,
            Self::Reduce(Reduction::Add, _) => Shown::Mark(Mark::Reduce),
            Self::Transfer(..)
            | Self::Memory(Memory::Drop, _)
            | Self::Reduce(Reduction::Send | Reduction::Receive | Reduction::Local, _) => {
                Shown::Nothing
            }
        }
    }

    fn text(self, slice_count: u32) -> String {
        Self::text(self, slice_count)
    }
}

impl Operation for AsyncOp {
    fn shown(self) -> Shown {
        match self {
            Self::Compute(compute, pass, version) => Shown::Pass(compute, pass, version.replica),
            Self::Transfer(..) => Shown::Nothing,
            Self::Step(..) => Shown::Mark(Mark::Step),
            Self::Predict(..) => Shown::Mark(Mark::Predict),
            Self::Stash(..) => Shown::Mark(Mark::Stash),
            Self::Free(..) => Shown::Mark(Mark::Free),
            Self::Average(..) => Shown::Mark(Mark::Average),
            Self::Dynamic(..) => Shown::Region,
        }
    }

    fn text(self, _: u32) -> String {
        self.to_string()
    }
}
