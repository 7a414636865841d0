//! The exchange of sealed weights with other islands, as a stage takes part in it.
//!
//! The weights of a version are published before the step that begins with it is reported, and the
//! outcome of an outer step is here before the step is reported whose seal leads to the version that it is
//! mixed into. So what is sealed can always be carried out, and whoever holds a later version than
//! one that was to be published knows that it was.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_types::{LayerId, StageIndex, Step};

use super::events::{Output, StageSetup, WaitReason};
use super::executor::OuterExecutor;
use crate::outer::{OuterRequest, OuterRound, OuterSchedule, OuterWeights};

/// The exchange of a stage with other islands: nothing, where the run is one alone.
#[derive(Debug, Default)]
pub(super) struct StageExchange {
    schedule: Option<Arc<OuterSchedule>>,
    /// The layers here, each with whether this stage speaks for it: of the replicas that update it the first
    /// one does.
    layers: BTreeMap<LayerId, bool>,
    /// Versions of layers that are durable. Answers to a stage that ended before a rewind may come late,
    /// so all are kept by version.
    published: BTreeSet<(LayerId, Step)>,
    /// The outcomes of rounds, by the version that they are mixed into.
    outer: BTreeMap<(LayerId, Step), OuterWeights>,
}

impl StageExchange {
    /// That of a stage.
    pub(super) fn new(setup: &StageSetup, stage: StageIndex) -> Self {
        let Some(schedule) = &setup.outer else { return Self::default() };
        let mut layers = BTreeMap::new();
        for (chunk, range) in setup.plan.chunks_of(stage) {
            let owned = setup.plan.owned_layers(chunk);
            for layer in range.layers() {
                *layers.entry(layer).or_default() |= owned.contains(&layer.0);
            }
        }
        Self { schedule: Some(schedule.clone()), layers, ..Self::default() }
    }

    /// The weights of a version are durable.
    pub(super) fn count_published(&mut self, layer: LayerId, version: Step) {
        self.published.insert((layer, version));
    }

    /// An outer step has an outcome.
    pub(super) fn receive(&mut self, outer: OuterWeights) {
        self.outer.insert((outer.layer, outer.version), outer);
    }

    /// Publishes what the version here is published of, and awaits the rounds that are under way: the
    /// plan before may have ended before it could.
    pub(super) fn begin(
        &self,
        version: Step,
        executor: &impl OuterExecutor,
        outbox: &mut VecDeque<Output>,
    ) {
        let Some(schedule) = &self.schedule else { return };
        self.publish(version, executor, outbox);
        for (layer, is_owner) in &self.layers {
            let round = schedule.under_way(*layer, version);
            let round = round.filter(|round| round.sent < version);
            outbox.extend(request((*layer, *is_owner), round));
        }
    }

    /// Whether the exchange is as far as the report of `step` says it is.
    pub(super) fn check(&self, step: Step) -> Result<(), WaitReason> {
        let Some(schedule) = &self.schedule else { return Ok(()) };
        let next = step.next();
        for (layer, is_owner) in &self.layers {
            let publishes = *is_owner
                && schedule.publishes(*layer, step)
                && !mutant::is(Mutant::M59ReportedBeforePublished);
            let is_mixed = schedule.mixed_at(*layer, next).is_some();
            if publishes && !self.published.contains(&(*layer, step))
                || is_mixed && !self.outer.contains_key(&(*layer, next))
            {
                return Err(WaitReason::Outer { layer: *layer });
            }
        }
        Ok(())
    }

    /// A version is sealed: what came of other islands is mixed in, and what is theirs is
    /// published.
    pub(super) fn advance(
        &mut self,
        version: Step,
        executor: &mut impl OuterExecutor,
        outbox: &mut VecDeque<Output>,
    ) {
        let Some(schedule) = &self.schedule else { return };
        for layer in self.layers.keys() {
            if schedule.mixed_at(*layer, version).is_some() {
                let outer = self.outer.remove(&(*layer, version));
                executor.mix_outer(&outer.expect("the report of the step waited for it"));
            }
        }
        // The weights of this version are published, and reported, from here on.
        self.published.retain(|(_, of)| *of >= version);
        self.outer.retain(|(_, of), _| *of > version);
        self.publish(version, executor, outbox);
    }

    fn publish(&self, version: Step, executor: &impl OuterExecutor, outbox: &mut VecDeque<Output>) {
        let Some(schedule) = &self.schedule else { return };
        for (layer, is_owner) in &self.layers {
            if *is_owner && schedule.publishes(*layer, version) {
                let weights = executor.trained_weights(*layer).into();
                let request = OuterRequest::Publish { layer: *layer, version, weights };
                outbox.push_back(Output::Outer(request));
            }
            outbox.extend(request((*layer, *is_owner), schedule.sent_at(*layer, version)));
        }
    }
}

fn request((layer, is_owner): (LayerId, bool), round: Option<OuterRound>) -> Option<Output> {
    let request = round.map(|round| OuterRequest::Await { layer, round, is_owner });
    request.map(Output::Outer)
}
