//! Another island beside the cluster of a life, and the folders that both write: what the cluster
//! publishes leads to outer weights that are a function of it alone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use zbelastic_trainer::outer::{OuterRound, OuterSchedule, OuterState, OuterWeights};
use zbelastic_types::{LayerId, Step};

use crate::digest_model::outer_digest;
use crate::options::ComputeModelKind;

/// The share of this island's weights that the other one's are, in lives that compute with floats.
const OTHER_SHARE: f32 = 0.75;

/// What the islands of a life published, as the serial reference has it.
#[derive(Clone)]
pub struct SimulatedIslands(Rc<RefCell<Folders>>);

struct Folders {
    schedule: Arc<OuterSchedule>,
    model: ComputeModelKind,
    /// What was published stays, whatever comes later (rule I1).
    published: BTreeMap<(LayerId, Step), Vec<f32>>,
    states: BTreeMap<(LayerId, Step), OuterState>,
}

impl SimulatedIslands {
    /// Folders with nothing in them.
    #[must_use]
    pub fn new(schedule: Arc<OuterSchedule>, model: ComputeModelKind) -> Self {
        let (published, states) = Default::default();
        Self(Rc::new(RefCell::new(Folders { schedule, model, published, states })))
    }

    /// The step whose batches are trained on in `step`.
    #[must_use]
    pub fn batch_step(&self, step: Step) -> Step {
        Step(self.0.borrow().schedule.config().batches_of(step.0))
    }

    /// Whether weights of this version are published.
    #[must_use]
    pub fn publishes(&self, layer: LayerId, version: Step) -> bool {
        self.0.borrow().schedule.publishes(layer, version)
    }

    /// Publishes weights; yields whether they are those that are there.
    #[must_use]
    pub fn publish(&self, layer: LayerId, version: Step, weights: &[f32]) -> bool {
        let mut folders = self.0.borrow_mut();
        let found = folders.published.entry((layer, version)).or_insert_with(|| weights.to_vec());
        let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect::<Vec<_>>();
        bits(found) == bits(weights)
    }

    /// The outer weights that are mixed into this version, if any are.
    #[must_use]
    pub fn mixed_at(&self, layer: LayerId, version: Step) -> Option<OuterWeights> {
        let round = self.0.borrow().schedule.mixed_at(layer, version)?;
        Some(self.outer(layer, round))
    }

    /// The outer weights of a round.
    ///
    /// # Panics
    /// If nothing was published for it.
    #[must_use]
    pub fn outer(&self, layer: LayerId, round: OuterRound) -> OuterWeights {
        let Folders { schedule, model, published, states } = &mut *self.0.borrow_mut();
        let sent = &published[&(layer, round.sent)];
        let state = match model {
            ComputeModelKind::Digest => OuterState::initial(outer_digest(sent, layer, round.sent)),
            ComputeModelKind::Float => states
                .get(&(layer, round.before))
                .cloned()
                .unwrap_or_else(|| OuterState::initial(published[&(layer, Step(0))].clone()))
                .step(
                    &sent.iter().map(|own| own + own * OTHER_SHARE).collect::<Vec<_>>(),
                    schedule.config().islands,
                    schedule.config().outer_step(),
                ),
        };
        let outer = schedule.config().outer_weights(layer, round, &state);
        states.insert((layer, round.mixed), state);
        outer
    }
}
