//! How fast nodes were found to be, and that the plan in force does not fit them any more.
//!
//! Nothing is measured here: the program that runs a leader times the work, compares it with the
//! plan and passes the result in. Only that counts, so a leader that gets none plans with the
//! resources of nodes at their admission. Nothing of it is agreed on: a plan that is made for it
//! is.

use std::collections::BTreeMap;

use zbelastic_types::{Generation, NodeId};

use super::InputRefusal;
use crate::member::{Holder, Resources};
use crate::plan::PlanReason;
use crate::state::State;

/// The measurement of the plan in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanMeasurement {
    /// Generation of the plan that was measured.
    pub generation: Generation,
    /// By node, its speed in thousandths of a reference device's: it replaces the speed that the
    /// node brought. Nodes that are not here have the speed that they brought.
    pub speeds: BTreeMap<NodeId, u32>,
    /// Why another plan is wanted, if one is: a [`PlanReason::Drifted`].
    pub drift: Option<PlanReason>,
}

/// The measurements that a leader received.
#[derive(Debug, Default)]
pub(super) struct MeasuredSpeeds {
    speeds: BTreeMap<NodeId, u32>,
    /// Why the plan of this generation does not fit, if it does not.
    drift: Option<(Generation, PlanReason)>,
}

impl MeasuredSpeeds {
    /// The resources of a member that counts, with the speed it was found to have.
    pub(super) fn resources(&self, state: &State, holder: &Holder) -> Resources {
        let brought = state.members()[&holder.node].resources;
        let speed_permille = self.speeds.get(&holder.node).copied();
        Resources { speed_permille: speed_permille.unwrap_or(brought.speed_permille), ..brought }
    }

    /// Why the plan of this generation does not fit, if it does not.
    pub(super) fn drift(&self, generation: Generation) -> Option<&PlanReason> {
        self.drift.as_ref().filter(|(of, _)| *of == generation).map(|(_, reason)| reason)
    }

    /// Nothing better was found.
    pub(super) fn forget_drift(&mut self) {
        self.drift = None;
    }

    /// The measurement of the plan in force. The first drift of a plan stands until there is
    /// another plan, so that one that is being made is not begun anew for another number.
    ///
    /// # Errors
    /// If it is another plan that was measured.
    pub(super) fn handle(
        &mut self,
        state: &State,
        measured: PlanMeasurement,
    ) -> Result<(), InputRefusal> {
        let expected = state.generation();
        let found = measured.generation;
        if expected != found {
            return Err(InputRefusal::OtherGeneration { expected, found });
        }
        self.speeds = measured.speeds;
        self.speeds.retain(|node, _| state.members().contains_key(node));
        if let Some(reason) = measured.drift
            && self.drift(expected).is_none()
        {
            assert!(reason.is_drift(), "a plan that drifted is given up for that: {reason}");
            self.drift = Some((expected, reason));
        }
        Ok(())
    }
}
