//! Plans: the one in force, and the one that follows it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbelastic_types::{Digest, Generation, LayerId, NodeId, StageIndex, Step};

use super::membership::ClusterMembership;
use super::{EntryRefusal, PLANNED_AHEAD_MAX, StateChange};
use crate::checkpoint::LayerDigest;
use crate::entry::ReadyRecord;
use crate::member::{Holder, LossReason, MembershipStatus};
use crate::plan::{LayerSource, PlanRecord, PlanRefusal};

/// How far a plan is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PlanPhase {
    /// Holders load their layers; for each stage, the record of its holder once that is ready.
    Loading(Vec<Option<ReadyRecord>>),
    /// Every holder was ready, and the plan's program runs.
    Running,
    /// It ended with a rewind, and no other is adopted yet.
    Closed,
}

/// The plan in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanState {
    /// The plan as it was adopted.
    pub record: Arc<PlanRecord>,
    /// How far it is: it loads, runs, or is closed.
    pub phase: PlanPhase,
}

/// The plan in force, the planned change, and the numbers that plans were given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanSlots {
    current: Option<PlanState>,
    next: Option<Arc<PlanRecord>>,
    /// The highest number given to a plan.
    generation_last: Generation,
}

impl PlanSlots {
    /// No plan, after plans up to this number.
    pub(super) const fn after(generation_last: Generation) -> Self {
        Self { current: None, next: None, generation_last }
    }

    /// The plan in force.
    #[must_use]
    pub fn current(&self) -> Option<&PlanState> {
        self.current.as_ref()
    }

    /// The plan that follows at a later step.
    #[must_use]
    pub fn next(&self) -> Option<&Arc<PlanRecord>> {
        self.next.as_ref()
    }

    /// The highest number given to a plan.
    pub(super) fn generation_last(&self) -> Generation {
        self.generation_last
    }

    /// The number of the plan in force; without one, the highest number given to a plan.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.current.as_ref().map_or(self.generation_last, |plan| plan.record.generation)
    }

    /// The number of the next plan.
    #[must_use]
    pub fn generation_next(&self) -> Generation {
        self.generation_last.next()
    }

    /// Whether a plan names a node.
    #[must_use]
    pub fn names(&self, node: NodeId) -> bool {
        let plans = self.current.iter().map(|plan| &plan.record).chain(&self.next);
        plans.flat_map(|plan| &plan.stages).any(|holder| holder.node == node)
    }

    /// Whether the program of the plan in force runs, as far as was agreed.
    pub(super) fn is_in_running_phase(&self) -> bool {
        self.current.as_ref().is_some_and(|plan| plan.phase == PlanPhase::Running)
    }

    /// Whether the plan's program runs, and all holders in it are there.
    pub(super) fn is_running(&self, membership: &ClusterMembership) -> bool {
        self.is_in_running_phase() && self.lost_holder(membership).is_none()
    }

    fn holders(&self) -> impl Iterator<Item = Holder> {
        self.current.iter().flat_map(|plan| plan.record.stages.iter().copied())
    }

    /// The first holder of the plan in force that is not counted on any more.
    pub(super) fn lost_holder(&self, membership: &ClusterMembership) -> Option<Holder> {
        self.holders().find(|holder| !membership.is_live(*holder))
    }

    /// Number of holders in the plan in force that are about to go.
    #[must_use]
    pub fn draining_holders(&self, membership: &ClusterMembership) -> u32 {
        let status = |holder: Holder| membership.status_of(holder.node);
        let draining = Some(MembershipStatus::Draining);
        self.holders().filter(|holder| status(*holder) == draining).count() as u32
    }

    /// Whether a holder in the plan in force went after its state was saved: no node holds the
    /// state that it reported since.
    #[must_use]
    pub fn has_drained_holder(&self, membership: &ClusterMembership) -> bool {
        self.holders().any(|holder| match membership.status_of(holder.node) {
            Some(MembershipStatus::Lost(reason)) => reason == LossReason::Drained,
            Some(MembershipStatus::Present | MembershipStatus::Draining) => false,
            None => true,
        })
    }

    /// Checks the number and the first step of a plan that is to follow at the open step or later.
    pub(super) fn check_next(
        &self,
        record: &PlanRecord,
        open: Step,
        membership: &ClusterMembership,
    ) -> Result<(), PlanRefusal> {
        let expected = self.generation_next();
        let found = record.generation;
        if found != expected {
            return Err(PlanRefusal::Generation { expected, found });
        }
        let found = record.from_step;
        let is_ahead = found > open && found.0 <= open.0 + PLANNED_AHEAD_MAX;
        let is_planned = is_ahead && self.is_running(membership) && self.next.is_none();
        if found != open && !is_planned {
            return Err(PlanRefusal::FromStep { open, found });
        }
        Ok(())
    }

    /// Keeps a plan that was checked until its first step is the open one.
    pub(super) fn plan_next(&mut self, record: Arc<PlanRecord>) {
        self.generation_last = record.generation;
        self.next = Some(record);
    }

    /// Puts a plan in force: its holders load their layers now.
    pub(super) fn load(&mut self, record: Arc<PlanRecord>) {
        self.generation_last = self.generation_last.max(record.generation);
        let phase = PlanPhase::Loading(vec![None; record.stages.len()]);
        self.current = Some(PlanState { record, phase });
        self.next = None;
    }

    /// Removes and returns the planned change, if its step is the open one.
    pub(super) fn take_due(&mut self, open: Step) -> Option<Arc<PlanRecord>> {
        self.next.take_if(|next| next.from_step <= open)
    }

    /// Ends the plan in force, and drops the planned change: the run goes back.
    pub(super) fn close(&mut self) {
        self.next = None;
        if let Some(plan) = &mut self.current {
            plan.phase = PlanPhase::Closed;
        }
    }

    /// Drops the plan in force and the planned change.
    pub(super) fn clear(&mut self) {
        (self.current, self.next) = (None, None);
    }

    pub(super) fn apply_ready(
        &mut self,
        ready: ReadyRecord,
        membership: &ClusterMembership,
    ) -> Result<StateChange, EntryRefusal> {
        let holder = ready.holder;
        let is_live = membership.is_live(holder);
        let (record, slots) = self.loading(ready.generation)?;
        let stage = record.stage_of(holder).filter(|_| is_live);
        let stage = stage.ok_or(EntryRefusal::NotAHolder { holder })?;
        if !names(&ready.layers, record.layers_of(stage))
            || !names(&ready.copies, copied_layers(&record, stage).into_iter())
        {
            return Err(EntryRefusal::OtherLayers { holder });
        }
        if slots[stage.index()].is_some() {
            return Err(EntryRefusal::AlreadyReady { holder });
        }
        slots[stage.index()] = Some(ready);
        Ok(StateChange::Ready(holder))
    }

    fn loading(
        &mut self,
        generation: Generation,
    ) -> Result<(Arc<PlanRecord>, &mut Vec<Option<ReadyRecord>>), EntryRefusal> {
        let expected = self.generation();
        if generation != expected {
            return Err(EntryRefusal::OtherGeneration { expected, found: generation });
        }
        match &mut self.current {
            Some(PlanState { record, phase: PlanPhase::Loading(slots) }) => {
                Ok((record.clone(), slots))
            }
            Some(_) | None => Err(EntryRefusal::NotLoading { generation }),
        }
    }

    pub(super) fn apply_resume(
        &mut self,
        generation: Generation,
        membership: &ClusterMembership,
    ) -> Result<StateChange, EntryRefusal> {
        let lost = self.lost_holder(membership);
        let (record, slots) = self.loading(generation)?;
        let missing = slots.iter().filter(|slot| slot.is_none()).count() as u32;
        if missing > 0 {
            return Err(EntryRefusal::NotReady { missing });
        }
        if let Some(holder) = lost {
            return Err(EntryRefusal::NotAHolder { holder });
        }
        if let Some(layer) = differing_layer(&record, slots) {
            return Err(EntryRefusal::DigestsDiffer { layer });
        }
        self.current.as_mut().expect("it loads").phase = PlanPhase::Running;
        Ok(StateChange::Resumed(generation))
    }
}

/// The layers a stage holds beside its own, in model order: those it keeps copies of, and those
/// that it trains as a second replica's.
#[must_use]
pub fn copied_layers(record: &PlanRecord, stage: StageIndex) -> Vec<LayerId> {
    let kept = record.copied_by(stage).flat_map(|of| record.layers_of(of).collect::<Vec<_>>());
    let all: BTreeSet<LayerId> = kept.chain(record.twins_at(stage)).collect();
    let own: BTreeSet<LayerId> = record.layers_of(stage).collect();
    all.difference(&own).copied().collect()
}

fn names(found: &[LayerDigest], expected: impl Iterator<Item = LayerId>) -> bool {
    let mut expected: Vec<_> = expected.collect();
    expected.sort_unstable();
    found.iter().map(|(layer, _)| *layer).eq(expected)
}

/// The first layer that a holder loaded with other bits than another holder, or than its checkpoint
/// or an inventory has.
#[must_use]
pub fn differing_layer(record: &PlanRecord, ready: &[Option<ReadyRecord>]) -> Option<LayerId> {
    let loaded = || ready.iter().flatten();
    let owned: std::collections::BTreeMap<_, _> =
        loaded().flat_map(|ready| ready.layers.iter().copied()).collect();
    let mut copies = loaded().flat_map(|ready| &ready.copies);
    let copy = copies.find(|(layer, digest)| owned.get(layer) != Some(digest));
    let expected = |layer: &LayerId| match &record.sources[layer.index()] {
        LayerSource::Checkpoint { digest, .. } => Some(*digest),
        LayerSource::Nodes(_) | LayerSource::Initial => record.expected[layer.index()],
    };
    let is_other = |(layer, found): &(&LayerId, &Digest)| {
        expected(layer).is_some_and(|expected| expected != **found)
    };
    copy.map(|(layer, _)| *layer).or_else(|| owned.iter().find(is_other).map(|(layer, _)| *layer))
}
