//! S3: only frames of the plan that runs, from nodes that have a part in it, are processed.

use zbelastic_consensus::member::Holder;
use zbelastic_types::Generation;

use super::InvariantChecker;
use crate::failure::Invariant;

impl InvariantChecker {
    /// A leader counted the message of a holder that is no member any more.
    pub fn note_counted(&mut self, sender: Option<Holder>) {
        self.fail(Invariant::S3, || {
            format!("a message of {sender:?} was counted, and it is fenced")
        });
    }

    /// A runtime accepted a frame while it had this plan.
    pub fn processed(
        &mut self,
        generation: Generation,
        sender: Holder,
        plan: Option<(Generation, Vec<Holder>)>,
    ) {
        let is_known =
            plan.as_ref().is_some_and(|(of, stages)| *of == generation && stages.contains(&sender));
        if !is_known {
            let now = plan.map(|(of, _)| of);
            self.fail(Invariant::S3, || {
                format!("a frame of generation {generation} from {sender} was processed in {now:?}")
            });
        }
    }
}
