//! A worker that drains is removed from the plan once nothing would be lost with it.

use super::checkpoint_timer::keep_next;
use super::watch::{DutyWatch, ProposalLane};
use crate::entry::Entry;
use crate::job::JobPhase;
use crate::member::{Holder, LossReason, Member, MemberChange, MembershipStatus};
use crate::state::{PlanPhase, State};

/// A machine that leaves with no worker to hand over to saves the state that it holds. Examines all
/// members, so not for each report of a step.
pub(super) fn decide_saved(state: &State, watch: &DutyWatch) -> Option<Entry> {
    let spec = state.running_spec()?;
    let is_needed = state.is_left_alone() && !state.training().is_being_kept();
    if is_needed { keep_next(state, spec, watch) } else { None }
}

/// A worker that was to go and has no part in the plan any more is gone. Where there is no run,
/// or none that has steps left, or one that is held or left at a checkpoint, no worker has a
/// part in anything.
pub(super) fn decide_drained(state: &State, watch: &DutyWatch) -> Option<MemberChange> {
    let is_saved = is_saved(state);
    let plan = state.plan().filter(|_| !is_over(state) && !is_saved);
    if plan.is_some_and(|plan| plan.phase != PlanPhase::Running) {
        return None;
    }
    // A seal under way would be of a step that no worker holds then.
    if is_saved && watch.is_changing() {
        return None;
    }
    let has_part = |holder: &Holder| {
        let plan = plan.is_some_and(|plan| plan.record.stages.contains(holder));
        let next = state.next_plan().filter(|_| !is_saved);
        plan || next.is_some_and(|next| next.stages.contains(holder))
    };
    let is_free = |(holder, member): &(Holder, &Member)| {
        member.status == MembershipStatus::Draining && !has_part(holder)
    };
    let (holder, _) = state.live_workers().find(is_free)?;
    let change = MemberChange::Lost { holder, reason: LossReason::Drained };
    (!watch.is_in_flight(ProposalLane::Members)).then_some(change)
}

/// Whether the run is held, or left by workers that cannot hand over, and its version is durable:
/// it goes on from there with the workers that are there then.
fn is_saved(state: &State) -> bool {
    let is_held = state.job().is_some_and(|job| job.phase == JobPhase::Paused);
    let is_durable = state.pending().is_empty() && state.training().is_at_checkpoint();
    is_durable && (is_held || state.is_left_alone())
}

/// Whether no step of the job will ever be computed again, and all that was to be kept of it is.
fn is_over(state: &State) -> bool {
    let has_ended = state.job().is_none_or(|job| match job.phase {
        JobPhase::Done | JobPhase::Stopped => true,
        JobPhase::Running | JobPhase::Paused | JobPhase::Halted(_) => false,
    });
    has_ended && state.pending().is_empty()
}
