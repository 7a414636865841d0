//! Plans: adopted, loaded, resumed.

use std::collections::BTreeSet;
use std::sync::Arc;

use zbelastic_types::{Digest, Generation, LayerId, StageIndex, Step};

use super::apply::StateChange;
use super::{EntryRefusal, PLANNED_AHEAD_MAX, PlanPhase, PlanState, State};
use crate::checkpoint::LayerDigest;
use crate::entry::ReadyRecord;
use crate::job::JobRefusal;
use crate::member::{Holder, Role};
use crate::plan::{LayerSource, PlanRecord, PlanRefusal};

impl State {
    pub(super) fn apply_adopt(&mut self, record: PlanRecord) -> Result<StateChange, EntryRefusal> {
        self.check_adopt(&record)?;
        self.generation = record.generation;
        self.class = self.class_of_plan(&record).ok();
        let record = Arc::new(record);
        if record.from_step > self.open_turn().step {
            self.next = Some(record.clone());
            return Ok(StateChange::Planned(record));
        }
        self.load(record.clone());
        Ok(StateChange::Adopted(record))
    }

    /// Whether a plan would be accepted now.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check_adopt(&self, record: &PlanRecord) -> Result<(), EntryRefusal> {
        let spec = self.job.as_ref().ok_or(JobRefusal::Missing)?.under_way()?;
        let expected = self.generation_next();
        let found = record.generation;
        if found != expected {
            return Err(PlanRefusal::Generation { expected, found }.into());
        }
        let open = self.open_turn().step;
        let found = record.from_step;
        let is_ahead = found > open && found.0 <= open.0 + PLANNED_AHEAD_MAX;
        let is_planned = is_ahead && self.is_running() && self.next.is_none();
        if found != open && !is_planned {
            return Err(PlanRefusal::FromStep { open, found }.into());
        }
        let is_worker = |holder: &&Holder| {
            let member = self.members.get(&holder.node);
            self.is_live(**holder) && member.is_some_and(|member| member.role == Role::Worker)
        };
        if let Some(holder) = record.stages.iter().find(|holder| !is_worker(holder)) {
            return Err(PlanRefusal::Holder { holder: *holder }.into());
        }
        record.check(spec)?;
        self.class_of_plan(record)?;
        Ok(())
    }

    fn load(&mut self, record: Arc<PlanRecord>) {
        // R2: from here on nothing of an earlier generation is applied.
        self.ledger.adopt(record.generation);
        self.renew_checkpoint();
        let phase = PlanPhase::Loading(vec![None; record.stages.len()]);
        self.plan = Some(PlanState { record, phase });
        self.next = None;
    }

    /// Begins to load the planned change, if its step is the open one.
    pub(super) fn begin_planned(&mut self) -> Option<Arc<PlanRecord>> {
        let open: Step = self.open_turn().step;
        let record = self.next.take_if(|next| next.from_step <= open)?;
        self.load(record.clone());
        Some(record)
    }

    pub(super) fn apply_ready(&mut self, ready: ReadyRecord) -> Result<StateChange, EntryRefusal> {
        let holder = ready.holder;
        let is_live = self.is_live(holder);
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
        match &mut self.plan {
            Some(PlanState { record, phase: PlanPhase::Loading(slots) }) => {
                Ok((record.clone(), slots))
            }
            Some(_) | None => Err(EntryRefusal::NotLoading { generation }),
        }
    }

    pub(super) fn apply_resume(
        &mut self,
        generation: Generation,
    ) -> Result<StateChange, EntryRefusal> {
        let lost = self.lost_holder();
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
        self.plan.as_mut().expect("it loads").phase = PlanPhase::Running;
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
