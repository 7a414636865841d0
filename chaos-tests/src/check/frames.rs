//! S3: only frames of the plan that runs, from nodes that have a part in it, are processed. Nothing
//! is remembered for that: a frame is looked at beside the plan that its runtime had.

use zbelastic_consensus::member::Holder;
use zbelastic_types::Generation;

use super::FirstFailure;
use crate::failure::Invariant;

/// A runtime accepted a frame while it had this plan.
pub(super) fn check_processed(
    failure: &mut FirstFailure,
    (generation, sender): (Generation, Holder),
    plan: Option<(Generation, Vec<Holder>)>,
) {
    let is_known =
        plan.as_ref().is_some_and(|(of, stages)| *of == generation && stages.contains(&sender));
    if !is_known {
        let now = plan.map(|(of, _)| of);
        failure.set(Invariant::S3, || {
            format!("a frame of generation {generation} from {sender} was processed in {now:?}")
        });
    }
}
