//! Another island beside the cluster of a life: what the cluster publishes leads to outer weights by the
//! definition of an outer step, whatever happens to folders.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use zbelastic_trainer::outer::{OuterRound, OuterSchedule, OuterState, OuterWeights, add_island};
use zbelastic_types::{LayerId, Step};

/// The share of this island's weights that the other one's are.
const OTHER_SHARE: f32 = 0.75;

/// The weights that the other island sends where this one sends these.
#[must_use]
pub fn other_weights(own: &[f32]) -> Vec<f32> {
    own.iter().map(|own| own * OTHER_SHARE).collect()
}

/// What the islands of a life published, as the serial reference has it.
#[derive(Clone)]
pub struct SimulatedIslands(Rc<RefCell<Published>>);

struct Published {
    schedule: Arc<OuterSchedule>,
    /// What was published stays, whatever comes later (rule I1).
    weights: BTreeMap<(LayerId, Step), Vec<f32>>,
    states: BTreeMap<(LayerId, Step), OuterState>,
}

impl SimulatedIslands {
    /// Nothing is published.
    #[must_use]
    pub fn new(schedule: Arc<OuterSchedule>) -> Self {
        let (weights, states) = Default::default();
        Self(Rc::new(RefCell::new(Published { schedule, weights, states })))
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
        let mut published = self.0.borrow_mut();
        let found = published.weights.entry((layer, version)).or_insert_with(|| weights.to_vec());
        let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect::<Vec<_>>();
        bits(found) == bits(weights)
    }

    /// These weights are durable, and those that others make outer steps of.
    pub fn replace(&self, layer: LayerId, version: Step, weights: &[f32]) {
        self.0.borrow_mut().weights.insert((layer, version), weights.to_vec());
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
        let Published { schedule, weights, states } = &mut *self.0.borrow_mut();
        let before = states.get(&(layer, round.before)).cloned();
        let before =
            before.unwrap_or_else(|| OuterState::initial(weights[&(layer, Step(0))].clone()));
        let own = &weights[&(layer, round.sent)];
        let mut sum = None;
        for island in [own.clone(), other_weights(own)] {
            add_island(&mut sum, island);
        }
        let (config, sum) = (schedule.config(), sum.expect("two islands"));
        let state = before.step(&sum, config.islands, config.outer_step());
        let outer = config.outer_weights(layer, round, &state);
        states.insert((layer, round.mixed), state);
        outer
    }
}
