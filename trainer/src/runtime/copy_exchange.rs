//! The exchange between islands, as copies of layers follow it: their owners publish and make outer steps,
//! copies wait for the outcome and mix it in as their owners do.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::{LayerId, Step};

use crate::elastic::LayerCopy;
use crate::outer::{OuterRequest, OuterRound, OuterSchedule, OuterWeights};

/// What came of the exchange for some copies, until they have it.
pub(super) struct CopyExchange {
    schedule: Option<Arc<OuterSchedule>>,
    /// The outcomes of rounds, by the version that they are mixed into.
    outer: BTreeMap<(LayerId, Step), OuterWeights>,
    requests: Vec<OuterRequest>,
}

impl CopyExchange {
    /// Of a run that exchanges weights by this schedule, if it is an island.
    pub(super) const fn new(schedule: Option<Arc<OuterSchedule>>) -> Self {
        Self { schedule, outer: BTreeMap::new(), requests: Vec::new() }
    }

    /// A copy has this version from now on: the round that is under way is awaited.
    pub(super) fn begin(&mut self, layer: LayerId, version: Step) {
        let round = self.schedule.as_ref().and_then(|it| it.under_way(layer, version));
        self.await_round(layer, round);
    }

    /// Whether a seal that leads to this version of a layer can be applied.
    pub(super) fn allows(&self, layer: LayerId, version: Step) -> bool {
        let round = self.schedule.as_ref().and_then(|it| it.mixed_at(layer, version));
        round.is_none() || self.outer.contains_key(&(layer, version))
    }

    /// An outer step has an outcome.
    pub(super) fn receive(&mut self, outer: OuterWeights) {
        self.outer.insert((outer.layer, outer.version), outer);
    }

    /// A seal was applied that led to the version that the copy has now.
    pub(super) fn advance(&mut self, copy: &mut impl LayerCopy) {
        let (layer, version) = (copy.layer(), copy.version());
        let outer = self.outer.get(&(layer, version));
        if let Some(outer) = outer.filter(|_| !mutant::is(Mutant::M60CopyNotMixed)) {
            copy.mix_outer(outer);
        }
        // Those of other requests may come late.
        self.outer.retain(|(of, before), _| *of != layer || *before > version);
        let round = self.schedule.as_ref().and_then(|it| it.sent_at(layer, version));
        self.await_round(layer, round);
    }

    fn await_round(&mut self, layer: LayerId, round: Option<OuterRound>) {
        let is_owner = false;
        self.requests.extend(round.map(|round| OuterRequest::Await { layer, round, is_owner }));
    }

    /// The requests since the last call.
    pub(super) fn take_requests(&mut self) -> Vec<OuterRequest> {
        std::mem::take(&mut self.requests)
    }
}
