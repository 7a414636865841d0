//! Validation of optimizer steps: applied first, judged afterwards, dropped exactly.
//!
//! A stage computes a *candidate* beside its state and goes on with it. It never overwrites the
//! state to which it would go back: there is nothing to undo, only something to drop. The leader
//! sums squares over all tensors in model order, [`decide`]s, and the decision becomes a [`Seal`]
//! which every stage applies. `docs/validation.md` describes the whole protocol.
//!
//! ```text
//! stage   W ... W | REPORT | STEP (candidate) | F F B of the next step | GATE | COMMIT | W ...
//!                    |                                                    ^
//! leader             +--> Tally --> decide --> Seal -- agreed on ---------+
//! ```
//!
//! The stage's part is [`StageHalf`], the leader's [`LeaderHalf`]; [`Ledger`] is the agreed part.
//! The rules R1, R2, R4 and R8 are asserted where they are named.

mod leader;
mod ledger;
mod report;
mod seal;
mod stage;
mod tally;
mod verdict;

pub use leader::{LeaderHalf, Proposal};
pub use ledger::{Ledger, NORM_WINDOW};
pub use report::{GradientReport, LayerFingerprint, Prefix, TensorSum};
pub use seal::{Seal, SealRefusal, Turn};
pub use stage::{CandidateAction, SealApplication, StageHalf};
pub use tally::{ReportRefusal, Tally, TallySummary};
pub use verdict::{
    Gate, GuardPolicy, NonfinitePolicy, Reason, SPIKE_SKIPS_MAX, SPIKE_WARMUP, Verdict,
    VerdictDecision, clip_coefficient, decide,
};

#[cfg(test)]
mod tests;
