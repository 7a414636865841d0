//! The runtime of a worker: it holds layers, loads a stage, runs it, and keeps copies.
//!
//! A runtime carries out the commands of its
//! [`WorkerSession`](zbelastic_consensus::WorkerSession) and reports the results to it. It owns the
//! stage factory and the layers; threads, sockets, files and clocks are its owner's.
//! Layers are named by id and version everywhere, never by stage, so that any worker that holds the
//! right version can send it to any worker that needs it.
//!
//! ```text
//!           Load                all there                Run
//!   Idle ---------> Loading ----------------> Loaded ---------> running
//!    ^                 |                          |                |
//!    +------ Stop -----+---------- Stop ----------+------ Stop ----+     layers become idle
//! ```
//!
//! A life of the node that ends (`EndLife`) leaves its layers idle as well, for the next life.

mod active_stage;
mod checkpoint_writes;
mod copies;
mod copy_exchange;
mod inventory;
mod loading_stage;
mod peers;
mod stage_refusal;
mod standby;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use zbelastic_consensus::member::Holder;
use zbelastic_consensus::message::HeldLayer;
use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::pre_copy::PreCopyPlan;
use zbelastic_consensus::session::{WorkerCommand, WorkerEvent};
use zbelastic_kernels::DeviceFault;
use zbelastic_types::{Digest, Generation, LayerId, Step};

use crate::data::BatchSource;
use crate::elastic::{FrameLimits, LayerCopy, LayerImage, LoadedLayer, StageFactory};
use crate::outer::{OuterRequest, OuterWeights};
use crate::stage::{EngineProgress, StageSetup};

pub use active_stage::ActiveStage;
pub use peers::{MessageNumber, PeerBody, PeerFrame, PeerFrameRefusal};
pub use stage_refusal::{PlanMismatch, StageRefusal};

use checkpoint_writes::{CheckpointWrites, WriteProgress};
use inventory::InventoryCache;
use loading_stage::LoadingStage;
use standby::StandbyLayers;

/// An event that the runtime handles.
#[derive(Clone, Debug)]
pub enum RuntimeInput {
    /// A tick of the node's clock.
    Tick,
    /// A command of the worker session.
    Command(WorkerCommand),
    /// A frame from another worker.
    Peer(PeerFrame),
    /// A layer of a checkpoint was read, or could not be.
    Read {
        /// Version that was read.
        version: Step,
        /// Id of the layer in model order.
        layer: LayerId,
        /// The layer that was read; none if it could not be.
        read: Option<Box<LoadedLayer>>,
    },
    /// Reading the layers of a version that is being written kept the device from computing for so
    /// long; or the threads that write them used so much of the processors that it computes on.
    /// Added up.
    Exported {
        /// Version that is being written.
        version: Step,
        /// Time that the device was kept from computing, in thousandths of a tick.
        busy_milliticks: u32,
    },
    /// The weights of a version of a layer are durable where other islands read them.
    Published {
        /// Id of the layer in model order.
        layer: LayerId,
        /// The version.
        version: Step,
    },
    /// The weights that an outer step of all islands led to.
    Outer(OuterWeights),
    /// A layer of a checkpoint is durable, or could not be written.
    Written {
        /// Version that was written.
        version: Step,
        /// Id of the layer in model order.
        layer: LayerId,
        /// The plan that the command to write it named.
        generation: Generation,
        /// The digest of its state; none if it is not durable.
        durable: Option<Digest>,
    },
}

/// An action that the runtime's owner carries out.
#[derive(Clone, Debug)]
pub enum RuntimeOutput {
    /// Pass this event to the worker session.
    Event(WorkerEvent),
    /// Send a frame to another worker.
    Peer {
        /// Node that the frame is sent to.
        to: zbelastic_types::NodeId,
        /// The frame, with the sender and the plan that it belongs to.
        frame: PeerFrame,
    },
    /// Read a layer of a checkpoint; answered by [`RuntimeInput::Read`].
    Read {
        /// Version that is to be read: the steps sealed before it.
        version: Step,
        /// Id of the layer in model order.
        layer: LayerId,
        /// The digest of its state.
        digest: Digest,
    },
    /// Hash a layer of a checkpoint and make it durable; answered by [`RuntimeInput::Written`].
    Write {
        /// The layer's sealed state. The writer encodes it: it is as large as it was in training.
        image: LayerImage,
        /// The plan under which the version was sealed. Two states of one version are two things: a
        /// run that went back may leave out other steps than before, under another plan.
        generation: Generation,
    },
    /// The loss on held-out text. After a change of plans it may be reported twice, with the same
    /// bits.
    Evaluated {
        /// Steps done before the evaluation.
        steps_done: u64,
        /// Sum of the cross-entropies of all held-out tokens, in nats.
        loss_sum: f64,
        /// Number of held-out tokens that the sum is over.
        token_count: u64,
    },
    /// A request to the exchange between islands; answered by [`RuntimeInput::Published`] or
    /// [`RuntimeInput::Outer`].
    Outer(OuterRequest),
}

/// The configuration of a runtime, given once when it is made.
#[derive(Clone, Debug)]
pub struct RuntimeSetup {
    /// The run; its plan is replaced by each plan that is loaded.
    pub stage: StageSetup,
    /// How gradients for copies are cut into messages, the same on all workers.
    pub gradient_limits: FrameLimits,
}

/// The phase that a runtime is in.
enum RuntimePhase<M: StageFactory, S> {
    Idle,
    Loading(Box<LoadingStage>),
    /// With a stage that runs or is about to.
    Active(Box<ActiveStage<M, S>>),
}

/// The runtime of a worker.
pub struct WorkerRuntime<M: StageFactory, S> {
    setup: RuntimeSetup,
    model: M,
    source: S,
    /// The node and its life, as named by the last plan that it has a part in.
    me: Option<Holder>,
    /// Layers that no stage uses now, as sealed.
    idle_layers: BTreeMap<LayerId, Arc<LayerImage>>,
    phase: RuntimePhase<M, S>,
    /// The layers copied ahead of a planned change.
    standby: Option<StandbyLayers<M::Copy>>,
    writes: CheckpointWrites,
    inventory: InventoryCache,
    /// Why the stage of the last plan was not run, until [`WorkerRuntime::take_refusal`] returns it.
    refusal: Option<StageRefusal>,
    outbox: VecDeque<RuntimeOutput>,
}

impl<M: StageFactory, S: BatchSource + Clone> WorkerRuntime<M, S> {
    /// A runtime that holds nothing.
    #[must_use]
    pub fn new(setup: RuntimeSetup, model: M, source: S) -> Self {
        Self {
            setup,
            model,
            source,
            me: None,
            idle_layers: BTreeMap::new(),
            phase: RuntimePhase::Idle,
            standby: None,
            writes: CheckpointWrites::default(),
            inventory: InventoryCache::default(),
            refusal: None,
            outbox: VecDeque::new(),
        }
    }

    /// Handles an event.
    ///
    /// # Errors
    /// If a frame does not belong: it is dropped, and the runtime stays as it was.
    pub fn handle(&mut self, input: RuntimeInput) -> Result<(), PeerFrameRefusal> {
        match input {
            RuntimeInput::Tick => self.handle_tick(),
            RuntimeInput::Command(command) => self.handle_command(command),
            RuntimeInput::Peer(frame) => return self.handle_peer(frame),
            RuntimeInput::Read { version, layer, read } => self.handle_read(version, layer, read),
            RuntimeInput::Exported { version, busy_milliticks } => {
                self.writes.count_busy(version, busy_milliticks);
            }
            RuntimeInput::Published { layer, version } => {
                if let RuntimePhase::Active(active) = &mut self.phase {
                    active.handle_published(layer, version);
                }
            }
            RuntimeInput::Outer(outer) => self.handle_outer(&outer),
            RuntimeInput::Written { version, layer, generation, durable } => {
                self.handle_written((version, generation), layer, durable);
            }
        }
        Ok(())
    }

    /// The next output, in order, until nothing is left. Everything that leaves a worker leaves
    /// here, and nothing does once its device has given up: values read then are no results.
    pub fn poll_output(&mut self) -> Option<RuntimeOutput> {
        if self.fault().is_some() {
            self.outbox.clear();
        }
        self.outbox.pop_front()
    }

    /// Why a stage was not run, if that happened since the last call. The cluster receives the
    /// failure as an event; this is for the operator of the machine.
    pub fn take_refusal(&mut self) -> Option<StageRefusal> {
        self.refusal.take()
    }

    /// The fault that ended the device, if any. Only another process may go on.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        self.model.fault()
    }

    /// Runs the next operation of the stage, if there is one that can run.
    pub fn run_next(&mut self) -> Option<EngineProgress> {
        let RuntimePhase::Active(active) = &mut self.phase else { return None };
        let progress = active.run_next()?;
        self.collect();
        Some(progress)
    }

    /// The stage that it runs or is about to run, if it has one.
    #[must_use]
    pub fn active_stage(&self) -> Option<&ActiveStage<M, S>> {
        match &self.phase {
            RuntimePhase::Active(active) => Some(active),
            RuntimePhase::Idle | RuntimePhase::Loading(_) => None,
        }
    }

    /// Layers that no stage uses now, as sealed.
    #[must_use]
    pub fn idle_layers(&self) -> &BTreeMap<LayerId, Arc<LayerImage>> {
        &self.idle_layers
    }

    /// Layers that are kept on standby, as far as they are here.
    pub fn standby_copies(&self) -> impl Iterator<Item = &M::Copy> {
        self.standby.iter().flat_map(StandbyLayers::copies)
    }

    fn handle_command(&mut self, command: WorkerCommand) {
        match command {
            WorkerCommand::ApplySeal(seal) => {
                if let RuntimePhase::Active(active) = &mut self.phase {
                    active.settle(&seal);
                    self.collect();
                }
                if let Some(standby) = &mut self.standby {
                    standby.settle(&seal);
                }
            }
            WorkerCommand::Stop => self.stop(),
            WorkerCommand::Load(command) => self.begin_loading(*command),
            WorkerCommand::Run { generation } => {
                if let RuntimePhase::Active(active) = &mut self.phase
                    && active.plan().generation == generation
                {
                    active.start();
                    self.idle_layers.clear();
                }
            }
            WorkerCommand::Save { generation, version } => self.save(generation, version),
            WorkerCommand::PreCopy { holder, pre_copy } => self.begin_pre_copy(holder, pre_copy),
            WorkerCommand::Rewind => {
                self.phase = RuntimePhase::Idle;
                self.standby = None;
                self.inventory = InventoryCache::default();
                self.idle_layers.clear();
            }
            WorkerCommand::Release => {
                if let RuntimePhase::Idle = self.phase {
                    self.idle_layers.clear();
                }
            }
            WorkerCommand::TakeInventory { holder, index } => {
                // The layers kept of a life before are sent by this one.
                self.me = Some(holder);
                self.end_standby();
                if let RuntimePhase::Active(active) = &mut self.phase {
                    active.settle_for_inventory();
                    self.collect();
                }
                self.report_inventory(index);
            }
            WorkerCommand::EndLife => {
                if let RuntimePhase::Active(active) = &mut self.phase
                    && mutant::is(Mutant::M52CandidateKept)
                {
                    active.seal_candidate();
                }
                self.stop();
                self.end_life();
            }
            WorkerCommand::Forget => {
                self.phase = RuntimePhase::Idle;
                self.idle_layers.clear();
                self.end_life();
            }
        }
    }

    /// A plan that is needed at once is not the one whose layers were copied ahead. They are held all the
    /// same, each at the version that it has reached, and perhaps nobody else holds them.
    fn end_standby(&mut self) {
        let Some(standby) = self.standby.take() else { return };
        for image in standby.into_images() {
            let known = self.idle_layers.get(&image.layer).map(|known| known.version);
            if known.is_none_or(|known| known < image.version) {
                self.idle_layers.insert(image.layer, Arc::new(image));
            }
        }
    }

    /// Gives up what belongs to a life of the node, and not to the layers.
    fn end_life(&mut self) {
        self.standby = None;
        self.inventory = InventoryCache::default();
        self.me = None;
        self.writes.forget();
    }

    /// Drops unsealed state; the sealed layers become idle.
    fn stop(&mut self) {
        if self.setup.stage.outer.is_some() {
            self.outbox.push_back(RuntimeOutput::Outer(OuterRequest::Forget));
        }
        if let RuntimePhase::Active(active) = &mut self.phase {
            active.abandon_unsealed();
            self.collect();
        }
        match std::mem::replace(&mut self.phase, RuntimePhase::Idle) {
            RuntimePhase::Idle => {}
            RuntimePhase::Loading(loading) => self.idle_layers.extend(loading.into_images()),
            RuntimePhase::Active(active) => {
                let images = active.into_images();
                self.idle_layers.extend(images.into_iter().map(|image| (image.layer, image)));
            }
        }
    }

    /// Reports the layers that are held.
    fn report_inventory(&mut self, index: u64) {
        let idle = self.idle_layers.values().map(|image| (image.layer, image.version));
        let active = self.active_stage().map_or(Vec::new(), ActiveStage::versions);
        let has_active = !active.is_empty();
        let versions: Vec<_> = idle.chain(active).collect();
        let mut cache = std::mem::take(&mut self.inventory);
        let layers = cache.layers(versions, has_active, || self.inventory());
        self.inventory = cache;
        self.report(WorkerEvent::Inventory { index, layers });
    }

    /// The layers that are held here, each with its version and digest: the contents of an
    /// inventory. Each is hashed on the threads of the stage factory.
    #[must_use]
    pub fn inventory(&self) -> Vec<HeldLayer> {
        let held = |image: &LayerImage| HeldLayer {
            layer: image.layer,
            version: image.version,
            digest: self.model.digest(image),
        };
        let idle = self.idle_layers.values().map(|image| held(image));
        let followed = self.standby_copies().map(|copy| held(&copy.image()));
        let mut layers: Vec<_> = idle.chain(followed).collect();
        match &self.phase {
            RuntimePhase::Idle => {}
            RuntimePhase::Loading(loading) => {
                layers.extend(loading.images().map(|image| held(image)));
            }
            RuntimePhase::Active(active) => {
                layers.extend(active.held_images().map(|image| held(&image)));
            }
        }
        layers.sort_unstable_by_key(|held| (held.layer, held.version));
        layers.dedup();
        layers
    }

    fn handle_tick(&mut self) {
        match &mut self.phase {
            RuntimePhase::Idle => {}
            RuntimePhase::Loading(loading) => {
                let outputs = loading.retry_requests();
                self.outbox.extend(outputs);
            }
            RuntimePhase::Active(active) => active.count_tick(),
        }
        if let Some(standby) = &mut self.standby {
            standby.count_tick();
        }
        self.drive_standby();
    }

    fn begin_pre_copy(&mut self, me: Holder, pre_copy: Option<Arc<PreCopyPlan>>) {
        if let RuntimePhase::Active(active) = &mut self.phase {
            active.set_pre_copy(pre_copy.clone());
        }
        let before = self.standby.take();
        let schedule = self.setup.stage.outer.clone();
        self.standby =
            pre_copy.and_then(|pre_copy| StandbyLayers::new(me, pre_copy, before, schedule));
        self.drive_standby();
    }

    /// An outer step of all islands has an outcome, for whoever has the layer here.
    fn handle_outer(&mut self, outer: &OuterWeights) {
        if let Some(standby) = &mut self.standby {
            standby.handle_outer(outer);
        }
        if let RuntimePhase::Active(active) = &mut self.phase {
            active.handle_outer(outer);
            self.collect();
        }
    }

    /// Requests the missing layers, reports when none is missing, and moves layers to a plan that
    /// loads them.
    fn drive_standby(&mut self) {
        let requests = self.standby.iter_mut().flat_map(StandbyLayers::take_requests);
        self.outbox.extend(requests.map(RuntimeOutput::Outer));
        match &self.phase {
            RuntimePhase::Idle | RuntimePhase::Active(_) => {
                let Some(standby) = &mut self.standby else { return };
                self.outbox.extend(standby.request_missing());
                let event = standby.take_event();
                self.outbox.extend(event.map(RuntimeOutput::Event));
            }
            RuntimePhase::Loading(_) => self.load_standby(),
        }
    }

    fn report(&mut self, event: WorkerEvent) {
        self.outbox.push_back(RuntimeOutput::Event(event));
    }

    /// Moves the outputs of the active stage to the outbox, and writes the state that it sealed.
    fn collect(&mut self) {
        let RuntimePhase::Active(active) = &mut self.phase else { return };
        let before = self.outbox.len();
        let sealed = active.collect(&mut self.outbox);
        for output in self.outbox.range(before..) {
            if let RuntimeOutput::Event(WorkerEvent::Reported { report, .. }) = output {
                self.inventory.count_report(report.turn.step);
            }
        }
        if let Some(version) = sealed {
            self.write(version);
        }
    }

    /// Writes a version that a command names, at once or when it is the sealed one.
    fn save(&mut self, generation: Generation, version: Step) {
        match &mut self.phase {
            RuntimePhase::Idle => {}
            RuntimePhase::Loading(loading) => loading.save(generation, version),
            RuntimePhase::Active(active) => {
                if active.plan().generation == generation && active.save(version) {
                    self.write(version);
                }
            }
        }
    }

    /// Writes a sealed version; rule R5: nothing else ever is.
    fn write(&mut self, version: Step) {
        let RuntimePhase::Active(active) = &mut self.phase else { return };
        // A stage of later replicas alone has nothing to write: others own its layers.
        if active.plan().layers_of(active.stage()).next().is_none() || !self.writes.admit(version) {
            return;
        }
        let images = active.export(version);
        let generation = active.plan().generation;
        self.writes.begin(version, generation, &images);
        let write = |image| RuntimeOutput::Write { image, generation };
        self.outbox.extend(images.into_iter().map(write));
    }

    fn handle_written(
        &mut self,
        written: (Step, Generation),
        layer: LayerId,
        durable: Option<Digest>,
    ) {
        match self.writes.finish_layer(written, layer, durable) {
            WriteProgress::Waiting => return,
            WriteProgress::Failed => {}
            WriteProgress::Saved(event) => self.report(event),
        }
        self.write_deferred();
    }

    /// Writes the version that was deferred, if nothing was sealed since: the last version of a
    /// run, or the one that it is held at, stays to be written.
    fn write_deferred(&mut self) {
        let Some(version) = self.writes.take_deferred() else { return };
        let RuntimePhase::Active(active) = &self.phase else { return };
        if active.is_at(version) {
            self.write(version);
        }
    }

    fn handle_read(&mut self, version: Step, layer: LayerId, read: Option<Box<LoadedLayer>>) {
        let RuntimePhase::Loading(loading) = &mut self.phase else { return };
        let outcome = loading.handle_read(version, layer, read);
        self.after_loading(outcome);
    }
}
