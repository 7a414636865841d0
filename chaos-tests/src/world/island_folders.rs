//! The folders through which the cluster of a life exchanges weights with another island.

use std::collections::BTreeSet;

use zbelastic_trainer::data::BatchSource;
use zbelastic_trainer::elastic::StageFactory;
use zbelastic_trainer::outer::OuterRequest;
use zbelastic_trainer::runtime::RuntimeInput;
use zbelastic_types::{LayerId, NodeId, Step};

use super::WorldEvent;
use super::surroundings::Surroundings;
use super::workers::Workers;
use crate::failure::{Invariant, LifeFailure};
use crate::islands::SimulatedIslands;
use crate::markers::Marker;
use crate::options::FaultClass;

/// How long a folder takes, in microseconds, and the share of requests for which it takes much longer.
const ANSWER_US: (u64, u64) = (1_000, 300_000);
const LATE_US: (u64, u64) = (500_000, 4_000_000);
const LATE_SHARE: f64 = 0.05;
/// How soon what is not there is looked for again.
const LOOK_US: u64 = 20_000;

/// What lies in the folders.
pub(super) struct IslandFolders {
    islands: Option<SimulatedIslands>,
    /// Weights that are durable.
    published: BTreeSet<(LayerId, Step)>,
    /// Outer steps that were made, by the version that they are mixed into.
    made: BTreeSet<(LayerId, Step)>,
}

impl IslandFolders {
    pub(super) const fn new(islands: Option<SimulatedIslands>) -> Self {
        Self { islands, published: BTreeSet::new(), made: BTreeSet::new() }
    }
}

impl Surroundings<'_> {
    /// A worker requests something of the folders.
    /// Requests of a plan that ended are answered all the same: answers may be late.
    pub(super) fn request_of_islands(
        &mut self,
        (node, life): (NodeId, u64),
        request: OuterRequest,
    ) {
        if let OuterRequest::Forget = request {
            return;
        }
        let is_late = !self.is_calm && self.draws_islands.chance(LATE_SHARE);
        let (least, most) = if is_late { LATE_US } else { ANSWER_US };
        let at = self.now.after(self.draws_islands.between(least, most));
        let request = Box::new(request);
        self.queue.push(at, WorldEvent::IslandAnswer { node, life, request });
    }

    /// What a request leads to; none if it is to be looked for again.
    fn island_answer(&mut self, request: &OuterRequest) -> Option<RuntimeInput> {
        let islands = self.islands.islands.clone().expect("an island");
        match request {
            OuterRequest::Forget => unreachable!("it is no request that is answered"),
            OuterRequest::Publish { layer, version, weights } => {
                let (layer, version) = (*layer, *version);
                if !self.islands.published.insert((layer, version)) {
                    self.mark(Marker::PublishedAgain);
                }
                let is_expected = islands.publish(layer, version, weights);
                let may_differ = self.rewound_at > 0
                    || [FaultClass::SilentErrors, FaultClass::Numbers, FaultClass::MajorityLost]
                        .into_iter()
                        .any(|class| self.case.options.has(class));
                if !is_expected && !may_differ {
                    let text =
                        format!("layer {layer} is published at {version} with other weights");
                    self.fail(LifeFailure::safety(Invariant::N1, text));
                }
                Some(RuntimeInput::Published { layer, version })
            }
            OuterRequest::Await { layer, round, is_owner } => {
                let is_sent = self.islands.published.contains(&(*layer, round.sent));
                if *is_owner && is_sent {
                    self.islands.made.insert((*layer, round.mixed));
                }
                let is_made = self.islands.made.contains(&(*layer, round.mixed));
                is_made.then(|| RuntimeInput::Outer(islands.outer(*layer, *round)))
            }
        }
    }
}

/// A folder did what a process requested, if that runs yet. What a process requested before it ended
/// may have been written, or not.
pub(super) fn answer<M: StageFactory, S: BatchSource + Clone>(
    workers: &mut Workers<M, S>,
    env: &mut Surroundings<'_>,
    (node, life): (NodeId, u64),
    request: OuterRequest,
) {
    let machine = workers.machines.get(&node);
    if !machine.is_some_and(|machine| machine.life == life && machine.process.is_some()) {
        return;
    }
    match env.island_answer(&request) {
        Some(input) => {
            if let RuntimeInput::Outer(_) = &input {
                env.mark(Marker::IslandsMixed);
            }
            workers.runtime_input(env, node, life, input);
        }
        None => {
            let request = Box::new(request);
            let at = env.now.after(LOOK_US);
            env.queue.push(at, WorldEvent::IslandAnswer { node, life, request });
        }
    }
}
