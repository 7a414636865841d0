//! A stage of a plan: the engine, and the copies kept of other stages.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use zbelastic_consensus::job::JobSpec;
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::plan::PlanRecord;
use zbelastic_consensus::pre_copy::PreCopyPlan;
use zbelastic_consensus::session::{LoadCommand, WorkerEvent};
use zbelastic_consensus::validation::{Reason, Seal, Turn, Verdict};
use zbelastic_kernels::AllocateError;
use zbelastic_types::{Generation, LayerId, NodeId, StageIndex, Step};

use super::copies::StageCopy;
use super::copy_exchange::CopyExchange;
use super::peers::{MessageNumber, PeerBody, PeerFrame, PeerFrameRefusal};
use super::stage_refusal::{StageRefusal, check_arithmetic};
use super::standby::StandbyPeers;
use super::{RuntimeOutput, RuntimeSetup};
use crate::data::BatchSource;
use crate::elastic::{
    FrameLimits, GradientPart, LayerCopy, LayerGradient, LayerImage, StageFactory,
};
use crate::outer::OuterWeights;
use crate::plan::Plan;
use crate::stage::{
    EngineProgress, Event, Output, SealedState, StageEngine, StageSetup, WaitReason,
};

/// A stage of a plan that this worker runs: its engine, and the copies of other stages kept here.
pub struct ActiveStage<M: StageFactory, S> {
    plan: Arc<PlanRecord>,
    spec: Arc<JobSpec>,
    stage: StageIndex,
    engine: StageEngine<M::Executor, S>,
    copies: Vec<StageCopy<M::Copy>>,
    gradient_limits: FrameLimits,
    standby_peers: StandbyPeers,
    /// The seal that was passed to the engine last.
    settled: Option<Seal>,
    is_running: bool,
    /// Ticks the verdict has been waited for.
    waited_ticks: u32,
    is_waiting: bool,
    /// A version that a command names, written when it is sealed.
    save_at: Option<Step>,
    /// Events for the worker session that were not moved to the outbox yet.
    events: VecDeque<WorkerEvent>,
}

impl<M: StageFactory, S: BatchSource + Clone> ActiveStage<M, S> {
    pub(super) fn new(
        (setup, model, source): (&RuntimeSetup, &M, S),
        command: LoadCommand,
        images: &BTreeMap<LayerId, Arc<LayerImage>>,
    ) -> Result<Self, StageRefusal> {
        let LoadCommand { plan, stage, spec, turn, updates, is_pending: _ } = command;
        let image = |layer: LayerId| Arc::clone(&images[&layer]);
        check_arithmetic(&setup.stage, &plan)?;
        let stage_setup = Arc::new(stage_setup(&setup.stage, (&plan, stage), &spec));
        let trained: Vec<_> = plan.layers_at(stage).map(image).collect();
        let executor = model.executor(&stage_setup, stage, &trained)?;
        let engine = StageEngine::resume(stage_setup, stage, executor, source, turn, updates);
        let mut copies = Vec::new();
        for of in plan.copied_by(stage) {
            let layers = plan.layers_of(of).map(|layer| model.copy(&image(layer)));
            let layers = layers.collect::<Result<_, AllocateError>>()?;
            let exchange = CopyExchange::new(setup.stage.outer.clone());
            copies.push(StageCopy::new(of, layers, turn, exchange));
        }
        Ok(Self {
            plan,
            spec,
            stage,
            engine,
            copies,
            gradient_limits: setup.gradient_limits,
            standby_peers: StandbyPeers::default(),
            settled: None,
            is_running: false,
            waited_ticks: 0,
            is_waiting: false,
            save_at: None,
            events: VecDeque::new(),
        })
    }

    /// The plan that this stage belongs to.
    #[must_use]
    pub fn plan(&self) -> &PlanRecord {
        &self.plan
    }

    /// The node and its life, as the plan names them for this stage.
    #[must_use]
    pub fn holder(&self) -> Holder {
        self.plan.stages[self.stage.index()]
    }

    /// Index of this stage in the pipeline.
    #[must_use]
    pub fn stage(&self) -> StageIndex {
        self.stage
    }

    /// The engine that runs this stage's program.
    #[must_use]
    pub fn engine(&self) -> &StageEngine<M::Executor, S> {
        &self.engine
    }

    /// The copies kept here, layer by layer.
    pub fn copies(&self) -> impl Iterator<Item = &M::Copy> {
        self.copies.iter().flat_map(|copy| copy.layers())
    }

    /// Whether the program runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    pub(super) fn start(&mut self) {
        self.is_running = true;
    }

    pub(super) fn count_tick(&mut self) {
        if self.is_waiting {
            self.waited_ticks += 1;
        }
    }

    pub(super) fn run_next(&mut self) -> Option<EngineProgress> {
        if !self.is_running {
            return None;
        }
        let progress = self.engine.run_next();
        self.is_waiting = matches!(progress, EngineProgress::Blocked(WaitReason::Seal(_)));
        Some(progress)
    }

    pub(super) fn settle(&mut self, seal: &Seal) {
        self.settled = Some(*seal);
        let seal = &match mutant::is(Mutant::M6AppliedTwice) {
            true => Seal { turn: self.engine.open_turn(), ..*seal },
            false => *seal,
        };
        // A seal that arrives twice is refused by the engine (rule R8) and that is all.
        let _ = self.engine.handle(Event::Seal(*seal));
        let attests = self.spec.attests(seal.next_turn().step);
        for index in 0..self.copies.len() {
            if let Some(update) = self.copies[index].settle(seal, attests) {
                self.events.push_back(WorkerEvent::UpdateHeld(update));
            }
        }
    }

    /// The exchange between islands made a version durable.
    pub(super) fn handle_published(&mut self, layer: LayerId, version: Step) {
        // It leads to nothing that could be refused.
        let _ = self.engine.handle(Event::Published { layer, version });
    }

    /// An outer step of all islands has an outcome.
    pub(super) fn handle_outer(&mut self, outer: &OuterWeights) {
        for copy in &mut self.copies {
            let update = copy.receive_outer(outer, |step| self.spec.attests(step));
            self.events.extend(update.map(WorkerEvent::UpdateHeld));
        }
        // It leads to nothing that could be refused.
        let _ = self.engine.handle(Event::Outer(outer.clone()));
    }

    pub(super) fn handle_peer(&mut self, body: PeerBody) -> Result<(), PeerFrameRefusal> {
        match body {
            PeerBody::Frame(mut frame) => {
                if mutant::is(Mutant::M2TurnUnchecked) {
                    frame.turn = self.engine.turn();
                }
                Ok(self.engine.handle(Event::Frame(frame))?)
            }
            PeerBody::Prefix(prefix) => Ok(self.engine.handle(Event::Prefix(prefix))?),
            PeerBody::Partial(partial) => Ok(self.engine.handle(Event::Partial(partial))?),
            PeerBody::Gradients { turn, of, number, parts } => {
                let attests = self.spec.attests(turn.step);
                let copy = self.copies.iter_mut().find(|copy| copy.of() == of);
                let copy = copy.ok_or(PeerFrameRefusal::Gradient { of, turn })?;
                let held = copy.handle_gradients((turn, number), parts, attests)?;
                self.events.extend(held.map(WorkerEvent::UpdateHeld));
                Ok(())
            }
            PeerBody::Fetch { .. }
            | PeerBody::Layer(_)
            | PeerBody::StandbyRequest { .. }
            | PeerBody::StandbyLayer { .. }
            | PeerBody::StandbyUpdate { .. } => Err(PeerFrameRefusal::NoStage),
        }
    }

    /// Moves outputs and events to the outbox. Yields a version that was sealed and is to be
    /// written.
    pub(super) fn collect(&mut self, outbox: &mut VecDeque<RuntimeOutput>) -> Option<Step> {
        let mut written = None;
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Frame { to, frame } => {
                    outbox.push_back(self.to_stage(to, PeerBody::Frame(frame)));
                }
                Output::Prefix { to, prefix } => {
                    outbox.push_back(self.to_stage(to, PeerBody::Prefix(prefix)));
                }
                Output::Report { report, state } => {
                    let next = report.turn.step.next();
                    if mutant::is(Mutant::R5CheckpointBeforeSeal) && self.spec.checkpoints(next) {
                        written = Some(next);
                    }
                    self.events.push_back(WorkerEvent::Reported { report, state });
                }
                Output::Gradients { turn, gradients } => {
                    let gradients: Vec<_> = gradients.into_iter().map(Arc::new).collect();
                    self.update_standby_peers(turn, &gradients, outbox);
                    self.send_gradients(turn, &gradients, outbox);
                }
                Output::Sealed { version } => {
                    let ticks = std::mem::take(&mut self.waited_ticks);
                    self.events.push_back(WorkerEvent::VerdictWaited { ticks });
                    let is_commanded = self.save_at.take_if(|at| *at <= version) == Some(version);
                    let is_due = self.spec.checkpoints(version) || is_commanded;
                    written = is_due.then_some(version);
                }
                Output::Partial { to, partial } => {
                    outbox.push_back(self.to_stage(to, PeerBody::Partial(partial)));
                }
                Output::Outer(request) => outbox.push_back(RuntimeOutput::Outer(request)),
                Output::Evaluated { steps_done, loss_sum, token_count } => {
                    outbox.push_back(RuntimeOutput::Evaluated {
                        steps_done,
                        loss_sum,
                        token_count,
                    });
                }
            }
        }
        let requests = self.copies.iter_mut().flat_map(StageCopy::take_requests);
        outbox.extend(requests.map(RuntimeOutput::Outer));
        self.serve_standby_peers(outbox);
        outbox.extend(self.events.drain(..).map(RuntimeOutput::Event));
        written
    }

    /// A version is to be written. Yields whether it can be now; if it is not sealed here yet, it
    /// is when it is.
    pub(super) fn save(&mut self, version: Step) -> bool {
        let is_here = self.is_at(version);
        self.save_at = Some(version).filter(|_| !is_here);
        is_here
    }

    /// Whether a version is the sealed one.
    pub(super) fn is_at(&self, version: Step) -> bool {
        self.engine.executor().version() == version && !self.engine.is_committing()
    }

    /// Stores which layers are to be copied ahead from here.
    pub(super) fn set_pre_copy(&mut self, pre_copy: Option<Arc<PreCopyPlan>>) {
        self.standby_peers.set_pre_copy(pre_copy);
        self.engine.set_sends_gradients(!self.standby_peers.is_empty());
    }

    /// A worker requests to keep a layer on standby.
    pub(super) fn admit_standby(
        &mut self,
        found: Generation,
        sender: Holder,
        layer: LayerId,
    ) -> Result<(), PeerFrameRefusal> {
        let expected = self.plan.generation;
        if expected != found {
            return Err(PeerFrameRefusal::OtherGeneration { expected, found });
        }
        if !self.plan.layers_of(self.stage).any(|own| own == layer) {
            let version = self.engine.executor().version();
            return Err(PeerFrameRefusal::Lacking { layer, version });
        }
        self.standby_peers.admit(sender, layer)?;
        self.engine.set_sends_gradients(true);
        Ok(())
    }

    /// Sends layers to the workers that wait for them, as they are sealed now; and with them the
    /// gradient that is frozen, if one is, because it was sent before they requested the layer.
    fn serve_standby_peers(&mut self, outbox: &mut VecDeque<RuntimeOutput>) {
        if self.standby_peers.is_empty() || !self.is_running || self.engine.is_committing() {
            return;
        }
        let open = self.engine.open_turn();
        for (holder, layer) in self.standby_peers.take_waiting() {
            let Some((image, frozen)) = self.engine.pending_layer(layer) else { continue };
            let image = Arc::new(image);
            outbox.push_back(self.to_node(holder.node, PeerBody::StandbyLayer { open, image }));
            if let Some(g) = frozen {
                let own = vec![Arc::new(LayerGradient { layer, turn: open, g })];
                outbox.push_back(self.update(holder.node, open, own));
            }
        }
    }

    /// Sends the stage's gradient to the stages that keep its copies.
    fn send_gradients(
        &self,
        turn: Turn,
        gradients: &[Arc<LayerGradient>],
        outbox: &mut VecDeque<RuntimeOutput>,
    ) {
        let of = self.stage;
        let messages = GradientPart::messages(gradients, self.gradient_limits);
        let count = messages.len() as u32;
        for (index, parts) in (0..).zip(messages) {
            for to in &self.plan.copies[of.index()] {
                let number = MessageNumber { index, count };
                let parts = parts.clone();
                let body = PeerBody::Gradients { turn, of, number, parts };
                outbox.push_back(self.to_stage(*to, body));
            }
        }
    }

    fn update_standby_peers(
        &self,
        turn: Turn,
        gradients: &[Arc<LayerGradient>],
        outbox: &mut VecDeque<RuntimeOutput>,
    ) {
        for (node, layers) in self.standby_peers.served() {
            let of_node = |gradient: &&Arc<LayerGradient>| layers.contains(&gradient.layer);
            let own = gradients.iter().filter(of_node).cloned().collect();
            outbox.push_back(self.update(node, turn, own));
        }
    }

    fn update(&self, to: NodeId, turn: Turn, gradients: Vec<Arc<LayerGradient>>) -> RuntimeOutput {
        let before = self.settled.filter(|seal| seal.next_turn() == turn);
        self.to_node(to, PeerBody::StandbyUpdate { turn, before, gradients })
    }

    fn to_stage(&self, to: StageIndex, body: PeerBody) -> RuntimeOutput {
        self.to_node(self.plan.stages[to.index()].node, body)
    }

    fn to_node(&self, to: NodeId, body: PeerBody) -> RuntimeOutput {
        let generation = self.plan.generation;
        let sender = self.holder();
        RuntimeOutput::Peer { to, frame: PeerFrame { generation, sender, body } }
    }

    /// The layers of a version that is sealed and in force.
    ///
    /// # Panics
    /// If the state has another version (rule R5).
    pub(super) fn export(&self, version: Step) -> Vec<LayerImage> {
        let images = self.engine.executor().images();
        if mutant::is(Mutant::R5CheckpointBeforeSeal) {
            return images.into_iter().map(|image| LayerImage { version, ..image }).collect();
        }
        let is_sealed = images.iter().all(|image| image.version == version);
        assert!(is_sealed, "R5: only what is sealed is written");
        images
    }

    /// Carries out a seal that waits for its gate, so that what is sealed is counted as held. What
    /// ran ahead of it is dropped: a request for an inventory precedes a change of plans. Without
    /// such a seal the program runs on, because its own report may be sealed yet.
    pub(super) fn settle_for_inventory(&mut self) {
        if self.engine.has_seal_waiting() {
            self.abandon_unsealed();
        }
    }

    /// A worker's known bug: the open step counts as sealed.
    pub(super) fn seal_candidate(&mut self) {
        let turn = self.engine.open_turn();
        self.settle(&Seal {
            turn,
            verdict: Verdict::Keep,
            reason: Reason::Sound,
            square_sum_bits: 0,
            loss_sum_bits: 0,
            updates_after: self.settled.map_or(1, |seal| seal.updates_after + 1),
            cursor_after: turn.step.next(),
        });
    }

    /// Carries out what is sealed and drops what is not. The program cannot go on after this.
    pub(super) fn abandon_unsealed(&mut self) {
        self.engine.abandon_unsealed();
        self.is_running = false;
    }

    /// The version of each layer that the plan gives to this stage, and of each copy.
    pub(super) fn versions(&self) -> Vec<(LayerId, Step)> {
        let version = self.engine.executor().version();
        let own = self.plan().layers_of(self.stage()).map(|layer| (layer, version));
        own.chain(self.copies().map(|copy| (copy.layer(), copy.version()))).collect()
    }

    /// The sealed state of each layer that is trained here, and of each copy.
    pub(super) fn held_images(&self) -> impl Iterator<Item = LayerImage> + '_ {
        let executor = self.engine.executor();
        let trained = executor.images().into_iter().chain(executor.twin_images());
        trained.chain(self.copies().map(LayerCopy::image))
    }

    /// Drops what is not sealed. A layer that is here twice, as a copy and trained, is left at
    /// its newest version: a copy that lacks a gradient stays behind.
    pub(super) fn into_images(self) -> Vec<Arc<LayerImage>> {
        let copies: Vec<_> = self.copies.iter().flat_map(StageCopy::images).collect();
        let executor = self.engine.into_executor();
        let mut newest = BTreeMap::new();
        for image in executor.all_images().into_iter().chain(copies) {
            let known = newest.get(&image.layer).map(|known: &Arc<LayerImage>| known.version);
            if known.is_none_or(|known| known < image.version) {
                newest.insert(image.layer, Arc::new(image));
            }
        }
        newest.into_values().collect()
    }
}

/// The run's setup of a stage under a plan of the log, which has its arithmetic.
fn stage_setup(
    base: &StageSetup,
    (plan, stage): (&PlanRecord, StageIndex),
    spec: &JobSpec,
) -> StageSetup {
    let plan_of_run = Plan::of_record(plan, base.plan.batch, base.plan.recompute);
    // Without copies, the stages that train other replicas are there to compare with.
    let is_held_twice = spec.copies > 0 || plan.program.placement.replica_count() > 1;
    let attest_every = if is_held_twice { spec.attest_every } else { 0 };
    // Where a place is shared, one stage may have a copy and another none.
    let copies_wanted = !plan.copies[stage.index()].is_empty();
    StageSetup { plan: plan_of_run, copies_wanted, attest_every, ..base.clone() }
}
