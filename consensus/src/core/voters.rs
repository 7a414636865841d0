//! Changes of voters, so that they follow the members: decided here, proposed by the controller.

use zbelastic_types::NodeId;

use crate::raft::{Members, RaftStatus, VoterChange};
use crate::state::State;

/// The next step by which the voters follow the members.
#[derive(Clone, Copy, Debug)]
pub(super) enum VoterStep {
    /// A leader does not remove itself: this voter is to lead, and does.
    TransferLeader(NodeId),
    /// The leader proposes this change.
    Change(VoterChange),
}

/// Voters follow the members: a controller that is admitted is a learner first and votes when
/// it has caught up. A voter that goes is replaced in one step if another controller comes, so
/// that a majority never becomes smaller.
pub(super) fn next_voter_step(state: &State, status: &RaftStatus) -> Option<VoterStep> {
    let Members { voters, outgoing, learners } = &status.members;
    if !outgoing.is_empty() {
        return None;
    }
    let is_wanted = |node: &NodeId| state.membership().is_controller(*node);
    if voters.contains(&status.node) && !is_wanted(&status.node) {
        let successors = status
            .matched
            .iter()
            .filter(|(node, _)| *node != status.node && voters.contains(node) && is_wanted(node));
        if let Some((node, _)) = successors.max_by_key(|(_, matched)| *matched) {
            return Some(VoterStep::TransferLeader(*node));
        }
    }
    let known = || voters.iter().chain(learners);
    let gone = known().find(|node| !is_wanted(node) && **node != status.node);
    let new = state.controllers().find(|node| !known().any(|known| known == node));
    let caught_up = |node: &&NodeId| {
        let matched = status.matched.iter().find(|(of, _)| of == *node);
        matched.is_some_and(|(_, index)| *index >= status.commit)
    };
    let ready = learners.iter().find(|node| is_wanted(node) && caught_up(node));
    let is_coming = learners.iter().any(is_wanted);
    let change = match (gone, ready, new) {
        (Some(node), _, _) if learners.contains(node) => VoterChange::Remove(*node),
        (Some(old), Some(new), _) => VoterChange::Replace { old: *old, new: *new },
        (None, Some(node), _) => VoterChange::Promote(*node),
        (_, None, Some(node)) => VoterChange::AddLearner(node),
        (Some(_), None, None) if is_coming => return None,
        (Some(node), None, None) => VoterChange::Remove(*node),
        (None, None, None) => return None,
    };
    Some(VoterStep::Change(change))
}
