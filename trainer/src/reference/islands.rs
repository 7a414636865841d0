//! Islands, serial: each a plain loop, and the outer steps between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_kernels::{AllocateError, Backend};
use zbelastic_types::{LayerId, Step};

use super::{ReferenceStep, SerialReference};
use crate::data::BatchSource;
use crate::digest::StateDigest;
use crate::outer::{OuterSchedule, OuterState, add_island};
use crate::stage::StageSetup;

/// All islands of a run, one after the other: what each must end with.
pub struct IslandsReference<B: Backend, S> {
    islands: Vec<SerialReference<B, S>>,
    schedule: Arc<OuterSchedule>,
    states: BTreeMap<LayerId, OuterState>,
    /// Weights that were sent and are not mixed in yet, island by island.
    sent: BTreeMap<LayerId, Vec<Vec<f32>>>,
}

impl<B: Backend, S: BatchSource + Clone> IslandsReference<B, S> {
    /// Every island of the run that `setup` is one island of, before its first step.
    ///
    /// # Errors
    /// If the device's memory does not hold them.
    ///
    /// # Panics
    /// If the setup is of no island.
    pub fn new(
        setup: &StageSetup,
        backend: impl Fn() -> B,
        source: S,
    ) -> Result<Self, AllocateError> {
        let schedule = setup.outer.clone().expect("the setup of an island");
        let island = |island| {
            let outer = Some(Arc::new(schedule.of_island(island)));
            SerialReference::new(&StageSetup { outer, ..setup.clone() }, backend(), source.clone())
        };
        let islands = (0..schedule.config().islands).map(island).collect::<Result<Vec<_>, _>>()?;
        let layers = (0..setup.model.layer_count()).map(LayerId);
        let exchanged = layers.filter(|layer| schedule.exchanges(*layer));
        let initial = |layer| (layer, OuterState::initial(islands[0].trained_weights(layer)));
        let states = exchanged.map(initial).collect();
        Ok(Self { islands, schedule, states, sent: BTreeMap::new() })
    }

    /// One step of every island; those for which `is_skipped` holds leave their update out.
    pub fn step(&mut self, step: Step, is_skipped: impl Fn(u32) -> bool) -> Vec<ReferenceStep> {
        let islands = self.islands.iter_mut().zip(0..);
        let results = islands.map(|(run, island)| run.step(step, is_skipped(island))).collect();
        self.exchange(step.next());
        results
    }

    /// The digest of each island's state.
    #[must_use]
    pub fn digests(&self) -> Vec<StateDigest> {
        self.islands.iter().map(SerialReference::digest).collect()
    }

    /// The state of the outer optimizer for a layer, if it is exchanged.
    #[must_use]
    pub fn outer_state(&self, layer: LayerId) -> Option<&OuterState> {
        self.states.get(&layer)
    }

    /// Every island, in order.
    #[must_use]
    pub fn islands(&self) -> &[SerialReference<B, S>] {
        &self.islands
    }

    fn exchange(&mut self, version: Step) {
        let layers: Vec<LayerId> = self.states.keys().copied().collect();
        for layer in layers {
            if let Some(round) = self.schedule.mixed_at(layer, version) {
                let sent = self.sent.remove(&layer).expect("it was sent");
                let islands = sent.len() as u32;
                let mut sum = None;
                sent.into_iter().for_each(|weights| add_island(&mut sum, weights));
                let state = self.states.get_mut(&layer).expect("a layer that is exchanged");
                let sum = sum.expect("there are islands");
                *state = state.step(&sum, islands, self.schedule.config().outer_step());
                let outer = self.schedule.config().outer_weights(layer, round, state);
                self.islands.iter_mut().for_each(|island| island.mix_outer(&outer));
            }
            if self.schedule.sent_at(layer, version).is_some() {
                let weights = self.islands.iter().map(|island| island.trained_weights(layer));
                self.sent.insert(layer, weights.collect());
            }
        }
    }
}
