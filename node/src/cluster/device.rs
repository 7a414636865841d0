//! The device thread: owns the runtime of a worker, runs its operations one after the other, and
//! sends frames as soon as they exist. It decides nothing: the session sends commands, the runtime
//! executes them.
//!
//! ```text
//!   event loop ── commands, ticks ───────▶ ┌─────────┐ ── events, reads, writes ──▶ event loop
//!   frames of other workers ─────────────▶ │ runtime │ ── frames ──▶ tensor lanes
//!                                          └─────────┘
//! ```

mod begin;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use zbelastic_consensus::member::Holder;
use zbelastic_consensus::session::{WorkerCommand, WorkerEvent};
use zbelastic_consensus::validation::Turn;
use zbelastic_data::training_data::TrainingData;
use zbelastic_islands::{ExchangeEvent, ExchangeThread};
use zbelastic_kernels::cuda::nccl::DeviceLinks;
use zbelastic_machine::device_links::{self, LinkReport};
use zbelastic_machine::layer_snapshot::{LayerSnapshot, LayerSnapshots};
use zbelastic_policy::tick::milliticks;
use zbelastic_schedule::Op;
use zbelastic_timing::{
    ARRIVALS_REPORTED_MAX, MeasuredSlice, MessageArrival, RunClock, SLICES_REPORTED_MAX,
    SliceActivity, SliceLog, TakenSlices,
};
use zbelastic_trainer::elastic::BackendStageFactory;
use zbelastic_trainer::model::{LayerTimes, StageTimings};
use zbelastic_trainer::runtime::{
    PeerBody, PeerFrame, RuntimeInput, RuntimeOutput, StageRefusal, WorkerRuntime,
};
use zbelastic_trainer::stage::{EngineActivity, EngineProgress, InitialWeights, WaitReason};
use zbelastic_transport::FrameSender;
use zbelastic_types::{Digest, Generation, LayerId, NodeId, Step};
use zbelastic_wire::LayerMessage;
use zbelastic_wire::document::NamedJob;
use zbelastic_wire::frames::{FrameAssembly, FramePiece};

use super::compute::WorkerDevice;
use super::device_error::WorkerDeviceError;
use super::frame_dispatch::FrameDispatcher;
use super::tensor_links::TensorLinks;
use begin::begin;
use zbelastic_policy::device_gauge::DeviceGauge;

/// Inputs that wait for the device at once: frames of a step, commands and reads. A plan has at
/// most seven frames for each pass under way; beyond this a peer sends frames that were never
/// requested.
const INBOX_MAX: usize = 16_384;
/// Outputs of the device that wait for the event loop.
const OUTBOX_MAX: usize = 1024;

/// Inputs that the device receives from the event loop and from other workers.
pub enum DeviceInput {
    /// A job begins: all state of the job before it is dropped.
    Begin(Box<DeviceJob>),
    /// An input for the worker runtime.
    Runtime(RuntimeInput),
    /// A frame of another worker, and when it arrived.
    Frame(Box<PeerFrame>, Instant),
    /// A piece of another worker's frame. A frame that is cut is not timed: its pieces are messages
    /// of their own.
    Piece(Box<FramePiece>),
}

/// All that the device needs to run a job.
pub struct DeviceJob {
    /// The document of the job, with its name.
    pub document: Arc<NamedJob>,
    /// What is trained on.
    pub corpus: Arc<TrainingData>,
    /// The weights that training begins with.
    pub weights: InitialWeights,
    /// The folder for stashes that leave memory, if they are stored in files.
    pub scratch: PathBuf,
}

/// Reports of the device to the event loop.
pub enum DeviceOutput {
    /// An event for the worker's session.
    Event(WorkerEvent),
    /// A layer is requested from another worker.
    Request {
        /// The worker that has the layer.
        to: NodeId,
        /// The request for it.
        message: LayerMessage,
    },
    /// A layer that another worker requested.
    Offer {
        /// The worker that requested it.
        to: NodeId,
        /// The layer, ready to be fetched.
        offer: OfferedSnapshot,
    },
    /// A layer of a checkpoint is requested.
    Read {
        /// The version that the checkpoint holds.
        version: Step,
        /// Index of the layer in the model.
        layer: LayerId,
        /// The digest of its state.
        digest: Digest,
    },
    /// A layer of a checkpoint is to be hashed and to become durable.
    Write {
        /// The layer's state, as it was read from the device.
        snapshot: Arc<LayerSnapshot>,
        /// The plan under which the version was sealed.
        generation: Generation,
    },
    /// The loss on held-out text.
    Evaluated {
        /// The number of steps that were done.
        steps_done: u64,
        /// The mean cross-entropy, in nats for each token.
        loss: f64,
    },
    /// How a step's time was spent here.
    StepTime(StepTime),
    /// What is to be logged of a link.
    Link(LinkReport),
    /// What is to be logged of the exchange with other islands.
    Islands(ExchangeEvent),
    /// A stage was not run. The session has reported it to the cluster.
    StageRefused(StageRefusal),
    /// The device cannot be opened, or has failed.
    Failed(WorkerDeviceError),
}

/// A layer that another worker requested.
pub struct OfferedSnapshot {
    /// The plan it is for.
    pub generation: Generation,
    /// The worker that has it.
    pub sender: Holder,
    /// The layer's state, as it is fetched.
    pub snapshot: Arc<LayerSnapshot>,
    /// The turn whose seal it waits for, if it is requested ahead.
    pub open: Option<Turn>,
}

/// How a step's time was spent on one stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTime {
    /// The time from the report before to this one.
    pub span: Duration,
    /// The part of the span that was spent in passes and updates.
    pub busy: Duration,
    /// The part of the span with nothing to run before a verdict.
    pub waited: Duration,
    /// Slices of work with their times, up to a maximum count.
    pub slices: Vec<MeasuredSlice>,
    /// The times of layers since the report before, and the turn of this one.
    pub layers: Option<(Turn, Box<LayerTimes>)>,
    /// Messages with their times of arrival, up to a maximum count.
    pub arrivals: Vec<MessageArrival>,
}

/// The inbox of the device is full, or its thread has ended.
#[derive(Debug, thiserror::Error)]
pub enum DeviceRefusal {
    /// The device's inbox is full.
    #[error("{INBOX_MAX} inputs wait for the device")]
    Full,
    /// The thread ended: an assertion failed.
    #[error("the device's thread has ended")]
    Gone,
}

/// The handle of the device thread; cheap to clone.
#[derive(Clone)]
pub struct DeviceHandle {
    inbox: SyncSender<DeviceInput>,
    gauge: Arc<DeviceGauge>,
    links: Option<TensorLinks>,
    in_force: watch::Sender<Generation>,
}

impl DeviceHandle {
    /// Starts the thread of a device.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start<M: WorkerDevice>(
        frames: FrameSender,
        worker_device: M,
        snapshots: LayerSnapshots,
    ) -> std::io::Result<(Self, mpsc::Receiver<DeviceOutput>)> {
        let (inbox, inputs) = sync_channel(INBOX_MAX);
        let (outbox, outputs) = mpsc::channel(OUTBOX_MAX);
        let gauge = Arc::new(DeviceGauge::default());
        let shared_gauge = gauge.clone();
        let (in_force, of_dispatcher) = watch::channel(Generation(0));
        // A value that is neither 0 nor 1 is refused when the program begins.
        let links = match device_links::are_enabled() {
            Ok(true) => Some(TensorLinks::start(frames.clone(), inbox.clone(), outbox.clone())?),
            Ok(false) | Err(_) => None,
        };
        let shared_links = links.clone();
        // Made on its own thread: handles that a device makes need not move between threads.
        let begin = move || DeviceThread {
            inbox: inputs,
            dispatcher: FrameDispatcher::new(
                frames,
                outbox.clone(),
                (worker_device.name(), snapshots.clone()),
                of_dispatcher,
                shared_links.clone(),
            ),
            links: shared_links,
            exchange: None,
            snapshots,
            worker_device,
            outbox,
            gauge: shared_gauge,
            runtime: None,
            corpus: None,
            assembly: FrameAssembly::default(),
            step: StepTime::default(),
            slices: SliceLog::default(),
            reported: Instant::now(),
            waits_since: None,
            clock: RunClock::of_day(),
        };
        thread::Builder::new().name("device".to_owned()).spawn(move || begin().run())?;
        Ok((Self { inbox, gauge, links, in_force }, outputs))
    }

    /// Sends an input to the device.
    ///
    /// # Errors
    /// If too many inputs wait, or the thread has ended.
    pub fn send(&self, input: DeviceInput) -> Result<(), DeviceRefusal> {
        self.inbox.try_send(input).map_err(|error| match error {
            TrySendError::Full(_) => DeviceRefusal::Full,
            TrySendError::Disconnected(_) => DeviceRefusal::Gone,
        })
    }

    /// A plan is in force: frames of those before it do not wait for space in a queue any more.
    pub(super) fn begin_plan(&self, generation: Generation) {
        self.in_force.send_replace(generation);
    }

    /// The links of the device with those of other workers, if there are to be any.
    pub(super) fn links(&self) -> Option<&TensorLinks> {
        self.links.as_ref()
    }

    /// The counters that the device thread updates.
    #[must_use]
    pub fn gauge(&self) -> &DeviceGauge {
        &self.gauge
    }
}

type DeviceRuntime<M> =
    WorkerRuntime<BackendStageFactory<<M as WorkerDevice>::Factory>, Arc<TrainingData>>;

struct DeviceThread<M: WorkerDevice> {
    worker_device: M,
    inbox: Receiver<DeviceInput>,
    outbox: mpsc::Sender<DeviceOutput>,
    dispatcher: FrameDispatcher,
    links: Option<TensorLinks>,
    /// The exchange with other islands, if the run is one of several.
    exchange: Option<ExchangeThread>,
    /// Layers that are being written or copied ahead.
    snapshots: LayerSnapshots,
    gauge: Arc<DeviceGauge>,
    runtime: Option<DeviceRuntime<M>>,
    /// What the runtime's stage reads.
    corpus: Option<Arc<TrainingData>>,
    /// Frames of which some pieces have arrived.
    assembly: FrameAssembly,
    step: StepTime,
    slices: SliceLog,
    reported: Instant,
    /// Since when there is nothing to run before a verdict, and before which.
    waits_since: Option<(Instant, Turn)>,
    clock: RunClock,
}

/// The receiver of outputs was dropped.
pub(super) struct OutputsClosed;

impl<M: WorkerDevice> DeviceThread<M> {
    fn run(mut self) {
        while self.run_once().is_ok() {}
    }

    /// Handles the inputs that wait, then runs one operation, or waits for more.
    fn run_once(&mut self) -> Result<(), OutputsClosed> {
        loop {
            match self.inbox.try_recv() {
                Ok(input) => self.accept(input)?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(OutputsClosed),
            }
        }
        while let Some(event) = self.exchange.as_ref().and_then(ExchangeThread::try_next) {
            match event.into_input() {
                Ok(input) => self.send_to_runtime(input)?,
                Err(event) => self.emit(DeviceOutput::Islands(event))?,
            }
        }
        if self.run_next()? {
            return Ok(());
        }
        let input = self.inbox.recv().map_err(|_| OutputsClosed)?;
        self.accept(input)
    }

    /// Runs an operation if one can run. Yields whether one did.
    fn run_next(&mut self) -> Result<bool, OutputsClosed> {
        self.release_snapshots()?;
        let Some(runtime) = &mut self.runtime else { return Ok(false) };
        let evaluates = runtime.active_stage().is_some_and(|active_stage| {
            let engine = active_stage.engine();
            engine.evaluates_last() && engine.evaluated().is_some()
        });
        if evaluates && self.gauge.evaluation().waits() {
            // The next tick looks again.
            return Ok(false);
        }
        let began = Instant::now();
        self.gauge.mark_edge();
        self.gauge.set_awaited_layer(None);
        self.gauge.set_awaited_step(None);
        let progress = runtime.run_next();
        self.gauge.mark_edge();
        if let Some(fault) = self.corpus.as_deref().and_then(TrainingData::fault) {
            // Nothing that was computed of such a batch leaves the device.
            let error = WorkerDeviceError::Unreadable(fault.to_string());
            self.runtime = None;
            self.emit(DeviceOutput::Failed(error))?;
            return Ok(false);
        }
        let active_stage = runtime.active_stage();
        self.gauge
            .evaluation()
            .set(active_stage.and_then(|active_stage| active_stage.engine().evaluated()));
        let has_run = match progress {
            Some(EngineProgress::Ran(activity)) => {
                if let Some((since, turn)) = self.waits_since.take() {
                    self.step.waited += began - since;
                    self.log_slice(Some(SliceActivity::Waited(turn)), since, began);
                }
                self.record_activity(activity, began);
                true
            }
            Some(EngineProgress::Blocked(WaitReason::Seal(turn))) => {
                self.waits_since.get_or_insert((began, turn));
                false
            }
            Some(EngineProgress::Failed(error)) => {
                self.emit(DeviceOutput::Failed(error.into()))?;
                false
            }
            // Other islands are waited for as long as it takes: to look is progress.
            Some(EngineProgress::Blocked(WaitReason::Outer { layer })) => {
                self.gauge.work().add(1);
                self.gauge.set_awaited_layer(Some(layer));
                false
            }
            // The bytes that arrive are progress.
            Some(EngineProgress::Blocked(WaitReason::Data { step })) => {
                self.gauge.set_awaited_step(Some(step));
                false
            }
            // Reported below, whichever operation met it.
            Some(EngineProgress::Faulted(_)) => false,
            Some(
                EngineProgress::Blocked(
                    WaitReason::Frame { .. } | WaitReason::Prefix | WaitReason::Partial { .. },
                )
                | EngineProgress::Finished,
            )
            | None => false,
        };
        self.drain_outputs(began)?;
        Ok(has_run && self.runtime.is_some())
    }

    /// Records an operation that was run. Transfers only pass memory on, in too little time to be
    /// drawn.
    fn record_activity(&mut self, activity: EngineActivity, began: Instant) {
        let now = Instant::now();
        self.gauge.work().add(1);
        let is_drawn = match activity {
            EngineActivity::Op {
                op: Op::Compute(..) | Op::Update(_) | Op::Reduce(..) | Op::Memory(..),
                ..
            } => {
                self.step.busy += now - began;
                true
            }
            EngineActivity::Op { op: Op::Transfer(..), .. } => false,
            EngineActivity::Evaluation { .. } | EngineActivity::Settled { .. } => true,
        };
        self.log_slice(is_drawn.then_some(SliceActivity::Ran(activity)), began, now);
    }

    fn log_slice(&mut self, doing: Option<SliceActivity>, start: Instant, end: Instant) {
        let start_us = self.clock.at_us(start);
        let end_us = self.clock.at_us(end);
        let has_room = self.slices.count() < SLICES_REPORTED_MAX;
        let slice =
            doing.filter(|_| has_room).map(|doing| MeasuredSlice { doing, start_us, end_us });
        if let Some(active_stage) = self.runtime.as_ref().and_then(WorkerRuntime::active_stage) {
            self.slices.push(active_stage.engine().executor(), slice);
        }
    }

    fn note_arrival(&mut self, body: &PeerBody, at: Instant) {
        if self.step.arrivals.len() < ARRIVALS_REPORTED_MAX {
            self.step.arrivals.extend(MessageArrival::of(body, self.clock.at_us(at)));
        }
    }

    fn accept(&mut self, input: DeviceInput) -> Result<(), OutputsClosed> {
        // A tick is no work, and neither is a frame until an operation reads it.
        let is_command = matches!(
            input,
            DeviceInput::Begin(_)
                | DeviceInput::Runtime(RuntimeInput::Command(_) | RuntimeInput::Read { .. })
        );
        self.gauge.mark_command_edge();
        let result = self.execute(input);
        self.gauge.mark_command_edge();
        self.gauge.work().add(u64::from(is_command));
        result
    }

    fn execute(&mut self, input: DeviceInput) -> Result<(), OutputsClosed> {
        match input {
            DeviceInput::Begin(job) => {
                // The memory of the job before is released first: it may not suffice for both.
                self.runtime = None;
                self.set_links(None);
                self.corpus = Some(job.corpus.clone());
                match begin(&self.worker_device, *job, self.gauge.drawn().shared()) {
                    Ok((runtime, links, exchange)) => {
                        self.exchange = exchange;
                        self.runtime = Some(runtime);
                        self.set_links(links);
                    }
                    Err(error) => self.emit(DeviceOutput::Failed(error))?,
                }
            }
            DeviceInput::Runtime(input) => {
                if let (RuntimeInput::Command(WorkerCommand::Load(_)), Some(thread)) =
                    (&input, &self.links)
                {
                    thread.wait();
                }
                self.release_snapshots()?;
                self.send_to_runtime(input)?;
            }
            DeviceInput::Frame(frame, at) => {
                self.note_arrival(&frame.body, at);
                self.send_to_runtime(RuntimeInput::Peer(*frame))?;
            }
            DeviceInput::Piece(piece) => {
                if let Some(frame) = self.assembly.push(*piece) {
                    self.send_to_runtime(RuntimeInput::Peer(frame))?;
                }
            }
        }
        Ok(())
    }

    fn set_links(&self, links: Option<Box<dyn DeviceLinks>>) {
        if let Some(thread) = &self.links {
            thread.set_device(links);
        }
    }

    /// Where a seal waits comes a COMMIT, which copies what a snapshot holds in memory. Moving
    /// snapshots keeps the device from computing, as reading layers does, and is progress: on a slow
    /// disk it may last longer than a member without any is waited for.
    fn release_snapshots(&mut self) -> Result<(), OutputsClosed> {
        let active_stage = self.runtime.as_ref().and_then(WorkerRuntime::active_stage);
        if !active_stage.is_some_and(|active_stage| active_stage.engine().has_seal_waiting()) {
            return Ok(());
        }
        let began = Instant::now();
        let moved = self.snapshots.release_memory(self.gauge.work());
        let Some(version) = moved else { return Ok(()) };
        let busy_milliticks = milliticks(began.elapsed());
        self.send_to_runtime(RuntimeInput::Exported { version, busy_milliticks })
    }

    fn send_to_runtime(&mut self, input: RuntimeInput) -> Result<(), OutputsClosed> {
        let Some(runtime) = &mut self.runtime else { return Ok(()) };
        let began = Instant::now();
        // A frame that does not belong is dropped: its sender is of another plan or start.
        let _ = runtime.handle(input);
        self.drain_outputs(began)
    }

    /// Passes on the runtime's outputs. A runtime with a failed device has none any more; the fault
    /// is sent to the event loop, and the runtime is dropped.
    ///
    /// Layers that are to be written were read from the device since `began`: so long it did not
    /// compute.
    fn drain_outputs(&mut self, began: Instant) -> Result<(), OutputsClosed> {
        let elapsed = began.elapsed();
        let mut exported = None;
        while let Some(output) = self.runtime.as_mut().and_then(WorkerRuntime::poll_output) {
            if let RuntimeOutput::Write { image, .. } = &output {
                exported = Some(image.version);
            }
            self.perform(output)?;
        }
        if let (Some(version), Some(runtime)) = (exported, &mut self.runtime) {
            let busy_milliticks = milliticks(elapsed);
            // It leads to nothing that could be refused.
            let _ = runtime.handle(RuntimeInput::Exported { version, busy_milliticks });
        }
        if let Some(refusal) = self.runtime.as_mut().and_then(WorkerRuntime::take_refusal) {
            self.emit(DeviceOutput::StageRefused(refusal))?;
        }
        let Some(fault) = self.runtime.as_ref().and_then(WorkerRuntime::fault) else {
            return Ok(());
        };
        self.runtime = None;
        let device = self.worker_device.name();
        self.emit(DeviceOutput::Failed(WorkerDeviceError::Fault { device, fault }))
    }

    fn perform(&mut self, output: RuntimeOutput) -> Result<(), OutputsClosed> {
        match output {
            RuntimeOutput::Event(event) => {
                if let WorkerEvent::Reported { report, .. } = &event {
                    self.close_step(report.turn);
                    let now = Instant::now();
                    self.step.span = now - std::mem::replace(&mut self.reported, now);
                    let step = std::mem::take(&mut self.step);
                    self.emit(DeviceOutput::StepTime(step))?;
                }
                self.emit(DeviceOutput::Event(event))
            }
            RuntimeOutput::Outer(request) => {
                self.exchange.as_ref().expect("an island has an exchange").send(request);
                Ok(())
            }
            RuntimeOutput::Peer { to, frame } => self.dispatcher.send(to, frame),
            RuntimeOutput::Read { version, layer, digest } => {
                self.emit(DeviceOutput::Read { version, layer, digest })
            }
            RuntimeOutput::Write { image, generation } => {
                let snapshot = self.snapshots.take(Arc::new(image));
                self.emit(DeviceOutput::Write { snapshot, generation })
            }
            RuntimeOutput::Evaluated { steps_done, loss_sum, token_count } => {
                let loss = loss_sum / token_count as f64;
                self.emit(DeviceOutput::Evaluated { steps_done, loss })
            }
        }
    }

    /// Adds the times of the step that is about to be reported, if the runtime has a stage.
    fn close_step(&mut self, turn: Turn) {
        let active_stage = self.runtime.as_ref().and_then(WorkerRuntime::active_stage);
        let Some(executor) = active_stage.map(|active_stage| active_stage.engine().executor())
        else {
            return;
        };
        let StageTimings { layers, spans } = executor.times();
        let TakenSlices { slices, device_us } = self.slices.take(executor, &spans, &self.clock);
        self.step.layers = layers.map(|times| (turn, Box::new(times)));
        self.step.slices = slices;
        if let Some(us) = device_us {
            self.step.busy = Duration::from_secs_f64(us.max(0.0) / 1e6);
        }
    }

    fn emit(&self, output: DeviceOutput) -> Result<(), OutputsClosed> {
        self.outbox.blocking_send(output).map_err(|_| OutputsClosed)
    }
}
