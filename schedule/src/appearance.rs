//! How figures and drawings show an operation.
//!
//! Timelines are drawn alike whether their program has steps or versions of weights: a drawing
//! reads from an operation its appearance and its text, and nothing else.

use crate::op::{Compute, MemoryOp, Op, Pass, UpdateOp};
use crate::reduction::Reduction;

/// How an operation is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpAppearance {
    /// Arithmetic, in the pipeline of this number.
    Pass(Compute, Pass, u32),
    /// What a pass keeps is copied out of memory.
    CopyOut(Pass),
    /// What a pass keeps is copied back.
    CopyBack(Pass),
    /// A mark for something else than a pass, at its time.
    Mark(TimelineMark),
    /// Part of an update that is not marked: REPORT and COMMIT.
    Bookkeeping,
    /// Operations inside of it have no order before it runs.
    Region,
    /// Transfers, and operations that only count memory.
    Nothing,
}

/// What is marked below a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimelineMark {
    /// A verdict is waited for.
    Gate,
    /// Gradients of replicas are added, or their sums gathered.
    Reduce,
    /// New weights are made.
    Step,
    /// A version of the weights is kept beside.
    Stash,
    /// A temporary version is made.
    Predict,
    /// A version is freed.
    Free,
    /// A model and the reference model are averaged.
    Average,
}

/// An operation that has a place in a [`crate::Timeline`].
pub trait TimelineOp: Copy {
    /// How it is drawn.
    fn appearance(self) -> OpAppearance;

    /// Its text in a program with `slice_count` slices.
    fn text(self, slice_count: u32) -> String;

    /// The arithmetic, if it is arithmetic.
    fn computed(self) -> Option<(Compute, Pass)> {
        match self.appearance() {
            OpAppearance::Pass(compute, pass, _) => Some((compute, pass)),
            OpAppearance::CopyOut(_)
            | OpAppearance::CopyBack(_)
            | OpAppearance::Mark(_)
            | OpAppearance::Bookkeeping
            | OpAppearance::Region
            | OpAppearance::Nothing => None,
        }
    }
}

impl TimelineOp for Op {
    fn appearance(self) -> OpAppearance {
        match self {
            Self::Compute(compute, pass) => OpAppearance::Pass(compute, pass, 0),
            Self::Memory(MemoryOp::Offload, pass) => OpAppearance::CopyOut(pass),
            Self::Memory(MemoryOp::Reload, pass) => OpAppearance::CopyBack(pass),
            Self::Update(UpdateOp::GatePrevious | UpdateOp::GateThis) => {
                OpAppearance::Mark(TimelineMark::Gate)
            }
            Self::Update(UpdateOp::Step) => OpAppearance::Mark(TimelineMark::Step),
            Self::Update(UpdateOp::Report | UpdateOp::Commit) => OpAppearance::Bookkeeping,
            Self::Reduce(Reduction::Merge(_) | Reduction::Tie, _) => {
                OpAppearance::Mark(TimelineMark::Reduce)
            }
            Self::Transfer(..)
            | Self::Memory(MemoryOp::Drop, _)
            | Self::Reduce(
                Reduction::Send(_)
                | Reduction::Receive(_)
                | Reduction::Local(_)
                | Reduction::SendTied
                | Reduction::ReceiveTied,
                _,
            ) => OpAppearance::Nothing,
        }
    }

    fn text(self, slice_count: u32) -> String {
        Self::text(self, slice_count)
    }
}
