//! A worker of the model: its session and its runtime, with versions in place of layers.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbelastic_consensus::entry::ReadyRecord;
use zbelastic_consensus::message::{HeldLayer, HeldUpdate};
use zbelastic_consensus::plan::{LayerSource, PlanRecord};
use zbelastic_consensus::state::{PlanPhase, State, copied_layers};
use zbelastic_consensus::validation::{
    CandidateAction, Gate, GradientReport, LayerFingerprint, Prefix, Seal, StageHalf, Turn,
};
use zbelastic_types::{Generation, LayerId, NodeId, StageIndex, Step};

use super::check::ModelViolation;
use super::entries;

/// A worker that lives.
#[derive(Clone)]
pub(super) struct ModelWorker {
    pub me: NodeId,
    /// The plan it knows.
    pub generation: Generation,
    /// Layers that no stage uses now.
    pub unused_layers: BTreeMap<LayerId, Step>,
    pub phase: ModelWorkerPhase,
}

#[derive(Clone)]
pub(super) enum ModelWorkerPhase {
    Idle,
    Loading(ModelLoading),
    Active(ModelActiveStage),
}

/// A plan that is being loaded: its layers are fetched.
#[derive(Clone)]
pub(super) struct ModelLoading {
    pub plan: Arc<PlanRecord>,
    pub stage: StageIndex,
    pub turn: Turn,
    updates: u64,
    pub images: BTreeMap<LayerId, Step>,
}

/// A stage, and the copy it keeps of another.
#[derive(Clone)]
pub(super) struct ModelActiveStage {
    pub plan: Arc<PlanRecord>,
    pub stage: StageIndex,
    pub half: StageHalf,
    pub version: Step,
    /// The report on the open turn, with the state it began with.
    pub reported: Option<Arc<(GradientReport, Vec<LayerFingerprint>)>>,
    /// The turn for which there is a candidate.
    pub candidate: Option<Turn>,
    pub copy: Option<ModelStageCopy>,
    pub is_running: bool,
}

/// The copy of a stage's layers.
#[derive(Clone)]
pub(super) struct ModelStageCopy {
    pub of: StageIndex,
    pub version: Step,
    /// The turn that it applies the next seal of.
    pub open: Turn,
    /// The turn of the gradient that it holds.
    pub held: Option<Turn>,
}

impl ModelWorker {
    pub(super) fn new(me: NodeId) -> Self {
        Self {
            me,
            generation: Generation(0),
            unused_layers: BTreeMap::new(),
            phase: ModelWorkerPhase::Idle,
        }
    }

    pub(super) fn active_stage(&self) -> Option<&ModelActiveStage> {
        match &self.phase {
            ModelWorkerPhase::Active(active) => Some(active),
            ModelWorkerPhase::Idle | ModelWorkerPhase::Loading(_) => None,
        }
    }

    pub(super) fn active_stage_mut(&mut self) -> Option<&mut ModelActiveStage> {
        match &mut self.phase {
            ModelWorkerPhase::Active(active) => Some(active),
            ModelWorkerPhase::Idle | ModelWorkerPhase::Loading(_) => None,
        }
    }

    pub(super) fn loading(&self) -> Option<&ModelLoading> {
        match &self.phase {
            ModelWorkerPhase::Loading(loading) => Some(loading),
            ModelWorkerPhase::Idle | ModelWorkerPhase::Active(_) => None,
        }
    }

    /// Whether it was declared dead. No worker is admitted twice here.
    pub(super) fn is_fenced(&self, state: &State) -> bool {
        state.holder_of(self.me).is_none()
    }

    /// Whether a briefing would change something.
    pub(super) fn lacks(&self, state: &State) -> bool {
        let Some(plan) = state.plan() else { return false };
        let awaits_run =
            |active: &ModelActiveStage| !active.is_running && plan.phase == PlanPhase::Running;
        let awaits = |active: &ModelActiveStage| {
            awaits_run(active)
                || state.training().seals().last_seal().is_some_and(|seal| active.awaits(seal))
        };
        plan.record.generation > self.generation || self.active_stage().is_some_and(awaits)
    }

    /// Applies a briefing: the last seal first, then the plan.
    pub(super) fn learn(&mut self, state: &State) -> Result<(), ModelViolation> {
        if let Some(seal) = state.training().seals().last_seal() {
            self.settle(seal)?;
        }
        let Some(plan) = state.plan() else { return Ok(()) };
        if plan.record.generation > self.generation {
            self.change_plan(state, &plan.record);
        }
        if let ModelWorkerPhase::Active(active) = &mut self.phase
            && plan.phase == PlanPhase::Running
            && !active.is_running
        {
            active.is_running = true;
            self.unused_layers.clear();
        }
        Ok(())
    }

    /// Applies a seal of the plan that runs here.
    pub(super) fn settle(&mut self, seal: &Seal) -> Result<(), ModelViolation> {
        let ModelWorkerPhase::Active(active) = &mut self.phase else { return Ok(()) };
        if !active.is_running || seal.turn.generation != active.plan.generation {
            return Ok(());
        }
        active.settle(seal)?;
        match &mut active.copy {
            Some(copy) => copy.settle(seal),
            None => Ok(()),
        }
    }

    fn change_plan(&mut self, state: &State, plan: &Arc<PlanRecord>) {
        self.stop();
        self.generation = plan.generation;
        let stage = plan.stages.iter().position(|holder| holder.node == self.me);
        let Some(stage) = stage.map(|index| StageIndex(index as u32)) else { return };
        let turn = state.open_turn();
        let updates = state.ledger().updates();
        let mut loading =
            ModelLoading { plan: plan.clone(), stage, turn, updates, images: BTreeMap::new() };
        for layer in loading.missing() {
            if self.is_held_locally(&loading, layer) {
                loading.images.insert(layer, loading.plan.from_step);
            }
        }
        self.activate_once_complete(loading);
    }

    /// Gives up the candidate that is not sealed; sealed layers stay among the unused layers.
    fn stop(&mut self) {
        match std::mem::replace(&mut self.phase, ModelWorkerPhase::Idle) {
            ModelWorkerPhase::Idle => {}
            ModelWorkerPhase::Loading(loading) => self.unused_layers.extend(loading.images),
            ModelWorkerPhase::Active(active) => self.unused_layers.extend(active.layers()),
        }
    }

    fn is_held_locally(&self, loading: &ModelLoading, layer: LayerId) -> bool {
        match &loading.plan.sources[layer.index()] {
            LayerSource::Nodes(nodes) => {
                nodes.contains(&self.me)
                    && self.unused_layers.get(&layer) == Some(&loading.plan.from_step)
            }
            LayerSource::Initial => true,
            LayerSource::Checkpoint { .. } => false,
        }
    }

    /// A layer that was awaited has come.
    pub(super) fn fetched(&mut self, layer: LayerId) {
        if let ModelWorkerPhase::Loading(mut loading) =
            std::mem::replace(&mut self.phase, ModelWorkerPhase::Idle)
        {
            loading.images.insert(layer, loading.plan.from_step);
            self.activate_once_complete(loading);
        }
    }

    fn activate_once_complete(&mut self, loading: ModelLoading) {
        if !loading.missing().is_empty() {
            self.phase = ModelWorkerPhase::Loading(loading);
            return;
        }
        let ModelLoading { plan, stage, turn, updates, images } = loading;
        let version = plan.from_step;
        let of = plan.copied_by(stage).next();
        let copy = of.map(|of| ModelStageCopy { of, version, open: turn, held: None });
        let half = StageHalf::new(turn, updates, entries::clip_norm());
        self.unused_layers.extend(images);

        self.phase = ModelWorkerPhase::Active(ModelActiveStage {
            plan,
            stage,
            half,
            version,
            reported: None,
            candidate: None,
            copy,
            is_running: false,
        });
    }

    /// Whether it sends this layer at this version to a worker that requests it.
    pub(super) fn offers(&self, layer: LayerId, version: Step) -> bool {
        let unused = self.unused_layers.get(&layer) == Some(&version);
        match &self.phase {
            ModelWorkerPhase::Idle | ModelWorkerPhase::Active(_) => unused,
            ModelWorkerPhase::Loading(loading) => {
                unused || loading.images.get(&layer) == Some(&version)
            }
        }
    }

    /// The layers that it holds, with versions.
    pub(super) fn layers(&self) -> BTreeMap<LayerId, Vec<Step>> {
        let mut layers: BTreeMap<LayerId, Vec<Step>> = BTreeMap::new();
        let unused = self.unused_layers.iter().map(|(layer, version)| (*layer, *version));
        let others: Vec<_> = match &self.phase {
            ModelWorkerPhase::Idle => Vec::new(),
            ModelWorkerPhase::Loading(loading) => loading.images.clone().into_iter().collect(),
            ModelWorkerPhase::Active(active) => active.layers().collect(),
        };
        for (layer, version) in unused.chain(others) {
            layers.entry(layer).or_default().push(version);
        }
        layers
    }

    /// The layers and versions that it reports to hold.
    pub(super) fn inventory(&self) -> Vec<HeldLayer> {
        let held = |(layer, versions): (LayerId, Vec<Step>)| {
            versions.into_iter().map(move |version| {
                let digest = entries::digest(layer, version);
                HeldLayer { layer, version, digest }
            })
        };
        self.layers().into_iter().flat_map(held).collect()
    }

    /// The record that it has loaded the layers that the plan gives it.
    pub(super) fn ready(&self) -> Option<ReadyRecord> {
        let active = self.active_stage().filter(|active| !active.is_running)?;
        let ModelActiveStage { plan, stage, version, .. } = active;
        let layers = entries::digests(plan.layers_of(*stage), *version);
        let copies = entries::digests(copied_layers(plan, *stage).into_iter(), *version);
        let generation = plan.generation;
        let holder = plan.stages[stage.index()];
        Some(ReadyRecord { generation, holder, layers, copies })
    }
}

impl ModelLoading {
    /// Layers that have not come yet.
    pub(super) fn missing(&self) -> Vec<LayerId> {
        let own = self.plan.layers_of(self.stage);
        let required = own.chain(copied_layers(&self.plan, self.stage));
        required.filter(|layer| !self.images.contains_key(layer)).collect()
    }
}

impl ModelActiveStage {
    /// Computes the open step: reports, and goes ahead if the gate is open.
    pub(super) fn compute(&mut self) -> Result<(), ModelViolation> {
        let turn = self.half.open_turn();
        if self.version != turn.step {
            let stage = self.stage;
            let found = self.version;
            return Err(ModelViolation::OtherVersion { stage, expected: turn.step, found });
        }
        let is_last = self.stage.index() + 1 == self.plan.stages.len();
        let sums = entries::sums(self.plan.layers_of(self.stage), turn.step);
        let report = self.half.report(self.stage, sums, is_last.then_some(1.0));
        let before = (0..self.stage.0).map(StageIndex).flat_map(|stage| self.plan.layers_of(stage));
        let before = entries::sums(before, turn.step).iter().fold(0.0, |sum, t| sum + t.square_sum);
        let received = Prefix { turn, square_sum: before };
        if self.half.gate(&Prefix::of(&report, Some(&received))) == Gate::Open {
            self.candidate = Some(turn);
        }
        let state = entries::fingerprints(self.plan.layers_of(self.stage), self.version);
        self.reported = Some(Arc::new((report, state)));
        Ok(())
    }

    /// Whether a seal would change something here.
    pub(super) fn awaits(&self, seal: &Seal) -> bool {
        let copy_awaits = |copy: &ModelStageCopy| copy.held == Some(seal.turn);
        self.is_running
            && seal.turn.generation == self.plan.generation
            && (self.half.check(seal).is_ok() || self.copy.as_ref().is_some_and(copy_awaits))
    }

    fn settle(&mut self, seal: &Seal) -> Result<(), ModelViolation> {
        let stage = self.stage;
        let turn = seal.turn;
        if self.half.check(seal).is_err() {
            return Ok(());
        }
        if !self.half.is_reported() {
            return Err(ModelViolation::SealedUncomputed { stage, turn });
        }
        let application = self.half.apply(seal).expect("checked above");
        if application.candidate == CandidateAction::Stay && self.candidate != Some(turn) {
            return Err(ModelViolation::OtherAttempt { stage, turn });
        }
        if self.version != turn.step {
            let step = turn.step;
            let found = self.version;
            return Err(ModelViolation::AppliedTwice { stage, step, found });
        }
        if seal.verdict.is_final() {
            self.version = turn.step.next();
        }
        (self.reported, self.candidate) = (None, None);
        Ok(())
    }

    /// The layers that it holds: its own and those of the copy.
    pub(super) fn layers(&self) -> impl Iterator<Item = (LayerId, Step)> + '_ {
        let own = self.plan.layers_of(self.stage).map(|layer| (layer, self.version));
        let copied = self
            .copy
            .iter()
            .flat_map(|copy| self.plan.layers_of(copy.of).map(move |layer| (layer, copy.version)));
        own.chain(copied)
    }
}

impl ModelStageCopy {
    /// Holds the gradient of its open turn.
    pub(super) fn hold(&mut self, plan: &PlanRecord) -> HeldUpdate {
        self.held = Some(self.open);
        self.update(plan)
    }

    /// The report on the gradient that is held.
    pub(super) fn update(&self, plan: &PlanRecord) -> HeldUpdate {
        let turn = self.open;
        let of = self.of;
        let sums = entries::sums(plan.layers_of(of), turn.step);
        HeldUpdate {
            turn,
            of,
            sums,
            state: entries::fingerprints(plan.layers_of(of), self.version),
        }
    }

    /// Applies a seal, if its gradient is here. Otherwise the copy stays behind for good.
    fn settle(&mut self, seal: &Seal) -> Result<(), ModelViolation> {
        if seal.turn != self.open || self.held != Some(seal.turn) {
            return Ok(());
        }
        if self.version != seal.turn.step {
            let stage = self.of;
            let step = seal.turn.step;
            let found = self.version;
            return Err(ModelViolation::AppliedTwice { stage, step, found });
        }
        if seal.verdict.is_final() {
            self.version = seal.turn.step.next();
        }
        self.open = seal.next_turn();
        self.held = None;
        Ok(())
    }
}
