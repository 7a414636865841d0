//! The device thread: owns the host of a worker, runs its operations one after the other, and sends
//! frames the moment they are there. It knows no protocol: the seat orders what to do, the host does
//! it.
//!
//! ```text
//!   event loop ── orders, ticks, reads ──▶ ┌────────┐ ── news, reads, writes ──▶ event loop
//!   frames of other workers ─────────────▶ │  host  │ ── frames ──▶ tensor lanes
//!                                          └────────┘
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use zbelastic_consensus::session::WorkerEvent;
use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::cuda::OpenError;
use zbelastic_kernels::{AllocateError, DeviceFault, HostThreads};
use zbelastic_schedule::{Op, ScheduleKind, Window};
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::elastic::{
    BackendStageFactory, GRADIENT_FRAME_LIMITS, LayerImage, StashStoreFactory,
};
use zbelastic_trainer::model::{LayerClock, LayerTimes, StageTimings};
use zbelastic_trainer::plan::{Plan, PlanRequest};
use zbelastic_trainer::runtime::{
    PeerBody, PeerFrame, RuntimeInput, RuntimeOutput, RuntimeSetup, WorkerRuntime,
};
use zbelastic_trainer::stage::{
    EngineActivity, EngineProgress, InitialWeights, StageSetup, StashStoreError, WaitReason,
};
use zbelastic_transport::FrameSender;
use zbelastic_transport::frame::FrameTooLarge;
use zbelastic_types::{Digest, Generation, LayerId, NodeId, Step};

use super::activity::DeviceGauge;
use super::compute::WorkerDevice;
use super::document::NamedJob;
use super::frame_dispatch::FrameDispatcher;
use super::frames::{FrameAssembly, FramePiece, LayerOffer};
use super::process_exit::ProcessExit;
use super::tick::milliticks;
use super::wire::LayerMessage;
use crate::config::{OffloadStore, ScheduleChoice};
use crate::device::{code_of, code_of_fault};
use crate::failure::FailureCode;
use crate::second_store::FileSecondStore;
use crate::train::timing::{
    ARRIVALS_REPORTED_MAX, MeasuredSlice, MessageArrival, RunClock, SLICES_REPORTED_MAX,
    SliceActivity, SliceLog, TakenSlices,
};

/// Things that wait for the device at once: frames of a step, orders and reads. A plan has at most
/// seven frames for each pass under way; beyond this a peer sends what was never requested.
const INBOX_MAX: usize = 16_384;
/// Outputs of the device that wait for the event loop.
const OUTBOX_MAX: usize = 1024;

/// What the device receives from the event loop and from other workers.
pub enum DeviceInput {
    /// A job begins: whatever was there before is forgotten.
    Begin(Box<DeviceJob>),
    /// Something for the host.
    Runtime(RuntimeInput),
    /// A frame of another worker, and when it was here.
    Frame(Box<PeerFrame>, Instant),
    /// A piece of another worker's frame. What is cut is not timed: its pieces are messages of their
    /// own.
    Piece(Box<FramePiece>),
}

/// What a job takes to be run.
pub struct DeviceJob {
    /// The job's document.
    pub document: Arc<NamedJob>,
    /// The text that is trained on.
    pub corpus: Arc<Corpus>,
    /// The weights that training begins with.
    pub weights: InitialWeights,
    /// The folder for what leaves memory, if that goes to files.
    pub scratch: PathBuf,
}

/// Why the device cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerDeviceError {
    /// There is too little memory, or no thread.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The device cannot be opened.
    #[error("{device}: {error}")]
    Open {
        /// The device's name.
        device: String,
        /// Why it cannot be opened.
        error: OpenError,
    },
    /// The device gave up.
    #[error("{device}: {fault}")]
    Fault {
        /// The device's name.
        device: String,
        /// The fault that it reports.
        fault: DeviceFault,
    },
    /// What leaves memory cannot be stored, or read again.
    #[error(transparent)]
    Store(#[from] StashStoreError),
    /// A boundary tensor does not fit into a frame.
    #[error("a tensor cannot be sent: {0}")]
    Frame(#[from] FrameTooLarge),
}

impl WorkerDeviceError {
    /// How the process of a worker ends that has no device: the cluster goes on without it.
    #[must_use]
    pub fn ending(&self) -> ProcessExit {
        let code = match self {
            Self::Open { error, .. } => code_of(error),
            Self::Fault { fault, .. } => code_of_fault(fault),
            Self::Allocate(_) | Self::Store(_) | Self::Frame(_) => FailureCode::OutOfResource,
        };
        let what = self.to_string();
        let is_ours = code == FailureCode::Internal;
        if is_ours { ProcessExit::Lost(what) } else { ProcessExit::OutOfResource(what) }
    }
}

/// What the device sends to the event loop.
pub enum DeviceOutput {
    /// Something for the seat.
    Event(WorkerEvent),
    /// A layer is wanted of another worker.
    Request {
        /// The worker that has the layer.
        to: NodeId,
        /// The request for it.
        message: LayerMessage,
    },
    /// A layer that another worker wanted.
    Offer {
        /// The worker that wanted it.
        to: NodeId,
        /// The layer, ready to be fetched.
        offer: LayerOffer,
    },
    /// A layer of a checkpoint is wanted.
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
        image: LayerImage,
        /// The plan under which the version was sealed.
        generation: Generation,
    },
    /// The loss on held-out text.
    Evaluated {
        /// After so many steps.
        steps_done: u64,
        /// The mean cross-entropy.
        loss: f64,
    },
    /// How a step's time was spent here.
    StepTime(StepTime),
    /// There was no room for a stage. The seat has reported it to the cluster.
    NoRoom(AllocateError),
    /// The device cannot be had, or has given up.
    Failed(WorkerDeviceError),
}

/// How a step's time was spent on one stage.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTime {
    /// From the report before to this one.
    pub span: Duration,
    /// Of it, in passes and updates.
    pub busy: Duration,
    /// Of it, with nothing to run before a verdict.
    pub waited: Duration,
    /// What was done when, as far as there is room for it.
    pub slices: Vec<MeasuredSlice>,
    /// What layers took since the report before, and the turn of this one.
    pub layers: Option<(Turn, Box<LayerTimes>)>,
    /// What arrived when, as far as there is room for it.
    pub arrivals: Vec<MessageArrival>,
}

/// The inbox of the device is full, or its thread is gone.
#[derive(Debug, thiserror::Error)]
pub enum DeviceRefusal {
    /// The device's inbox is full.
    #[error("{INBOX_MAX} things wait for the device")]
    Full,
    /// The thread ended: an assertion of ours failed.
    #[error("the device's thread has ended")]
    Gone,
}

/// The way to the device; cheap to clone.
#[derive(Clone)]
pub struct DeviceHandle {
    inbox: SyncSender<DeviceInput>,
    gauge: Arc<DeviceGauge>,
}

impl DeviceHandle {
    /// Starts the thread of a device.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start<M: WorkerDevice>(
        frames: FrameSender,
        machine: M,
    ) -> std::io::Result<(Self, mpsc::Receiver<DeviceOutput>)> {
        let (inbox, orders) = sync_channel(INBOX_MAX);
        let (outbox, outputs) = mpsc::channel(OUTBOX_MAX);
        let gauge = Arc::new(DeviceGauge::default());
        let told = gauge.clone();
        // Made where it lives: what a device makes need not move between threads.
        let begin = move || DeviceThread {
            inbox: orders,
            dispatcher: FrameDispatcher::new(frames, outbox.clone(), machine.name()),
            machine,
            outbox,
            gauge: told,
            runtime: None,
            assembly: FrameAssembly::default(),
            step: StepTime::default(),
            slices: SliceLog::default(),
            reported: Instant::now(),
            waits_since: None,
            clock: RunClock::of_day(),
        };
        thread::Builder::new().name("device".to_owned()).spawn(move || begin().run())?;
        Ok((Self { inbox, gauge }, outputs))
    }

    /// Sends an input to the device.
    ///
    /// # Errors
    /// If too much waits, or the thread is gone.
    pub fn send(&self, input: DeviceInput) -> Result<(), DeviceRefusal> {
        self.inbox.try_send(input).map_err(|error| match error {
            TrySendError::Full(_) => DeviceRefusal::Full,
            TrySendError::Disconnected(_) => DeviceRefusal::Gone,
        })
    }

    /// What can be seen from here.
    #[must_use]
    pub fn gauge(&self) -> &DeviceGauge {
        &self.gauge
    }
}

type DeviceRuntime<M> =
    WorkerRuntime<BackendStageFactory<<M as WorkerDevice>::Factory>, Arc<Corpus>>;

struct DeviceThread<M: WorkerDevice> {
    machine: M,
    inbox: Receiver<DeviceInput>,
    outbox: mpsc::Sender<DeviceOutput>,
    dispatcher: FrameDispatcher,
    gauge: Arc<DeviceGauge>,
    runtime: Option<DeviceRuntime<M>>,
    /// Frames of which some pieces are here.
    assembly: FrameAssembly,
    step: StepTime,
    slices: SliceLog,
    reported: Instant,
    /// Since when there is nothing to run before a verdict, and before which.
    waits_since: Option<(Instant, Turn)>,
    clock: RunClock,
}

/// The receiver of outputs is gone.
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
        if self.run_next()? {
            return Ok(());
        }
        let input = self.inbox.recv().map_err(|_| OutputsClosed)?;
        self.accept(input)
    }

    /// Runs an operation if one can run. Yields whether one did.
    fn run_next(&mut self) -> Result<bool, OutputsClosed> {
        let Some(host) = &mut self.runtime else { return Ok(false) };
        let evaluates = host.active_stage().is_some_and(|station| {
            let engine = station.engine();
            engine.evaluates_last() && engine.evaluated().is_some()
        });
        if evaluates && self.gauge.evaluation().waits() {
            // The next tick looks again.
            return Ok(false);
        }
        let began = Instant::now();
        self.gauge.mark_edge();
        let progress = host.run_next();
        self.gauge.mark_edge();
        let station = host.active_stage();
        self.gauge.evaluation().set(station.and_then(|station| station.engine().evaluated()));
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

    /// Notes what was run. Transfers hand memory over and take no time worth drawing.
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
        let (start_us, end_us) = (self.clock.at_us(start), self.clock.at_us(end));
        let has_room = self.slices.count() < SLICES_REPORTED_MAX;
        let slice =
            doing.filter(|_| has_room).map(|doing| MeasuredSlice { doing, start_us, end_us });
        if let Some(station) = self.runtime.as_ref().and_then(WorkerRuntime::active_stage) {
            self.slices.push(station.engine().executor(), slice);
        }
    }

    fn log_arrival(&mut self, body: &PeerBody, at: Instant) {
        if self.step.arrivals.len() < ARRIVALS_REPORTED_MAX {
            self.step.arrivals.extend(MessageArrival::of(body, self.clock.at_us(at)));
        }
    }

    fn accept(&mut self, input: DeviceInput) -> Result<(), OutputsClosed> {
        // A tick is no work, and neither is a frame until an operation reads it.
        let is_order = matches!(
            input,
            DeviceInput::Begin(_)
                | DeviceInput::Runtime(RuntimeInput::Command(_) | RuntimeInput::Read { .. })
        );
        self.gauge.mark_command_edge();
        let taken = self.execute(input);
        self.gauge.mark_command_edge();
        self.gauge.work().add(u64::from(is_order));
        taken
    }

    fn execute(&mut self, input: DeviceInput) -> Result<(), OutputsClosed> {
        match input {
            DeviceInput::Begin(job) => {
                // What the job before had goes first: there may be no room for both.
                self.runtime = None;
                match begin(&self.machine, *job) {
                    Ok(host) => self.runtime = Some(host),
                    Err(error) => self.emit(DeviceOutput::Failed(error))?,
                }
            }
            DeviceInput::Runtime(input) => self.send_to_runtime(input)?,
            DeviceInput::Frame(frame, at) => {
                self.log_arrival(&frame.body, at);
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

    fn send_to_runtime(&mut self, input: RuntimeInput) -> Result<(), OutputsClosed> {
        let Some(host) = &mut self.runtime else { return Ok(()) };
        let began = Instant::now();
        // A frame that does not belong is dropped: its sender is of another plan or life.
        let _ = host.handle(input);
        self.drain_outputs(began)
    }

    /// Passes on the host's outputs. A host whose device gave up has none any more; the fault is sent to the
    /// event loop, and the host is dropped.
    ///
    /// Layers that are to be written were read from the device since `began`: so long it did not compute.
    fn drain_outputs(&mut self, began: Instant) -> Result<(), OutputsClosed> {
        let (took, mut exported) = (began.elapsed(), None);
        while let Some(output) = self.runtime.as_mut().and_then(WorkerRuntime::poll_output) {
            if let RuntimeOutput::Write { image, .. } = &output {
                exported = Some(image.version);
            }
            self.perform(output)?;
        }
        if let (Some(version), Some(host)) = (exported, &mut self.runtime) {
            let busy_milliticks = milliticks(took);
            // It leads to nothing that could be refused.
            let _ = host.handle(RuntimeInput::Exported { version, busy_milliticks });
        }
        if let Some(error) = self.runtime.as_mut().and_then(WorkerRuntime::take_refusal) {
            self.emit(DeviceOutput::NoRoom(error))?;
        }
        let Some(fault) = self.runtime.as_ref().and_then(WorkerRuntime::fault) else {
            return Ok(());
        };
        self.runtime = None;
        let device = self.machine.name();
        self.emit(DeviceOutput::Failed(WorkerDeviceError::Fault { device, fault }))
    }

    fn perform(&mut self, output: RuntimeOutput) -> Result<(), OutputsClosed> {
        match output {
            RuntimeOutput::Event(news) => {
                if let WorkerEvent::Reported { report, .. } = &news {
                    self.close_step(report.turn);
                    let now = Instant::now();
                    self.step.span = now - std::mem::replace(&mut self.reported, now);
                    let step = std::mem::take(&mut self.step);
                    self.emit(DeviceOutput::StepTime(step))?;
                }
                self.emit(DeviceOutput::Event(news))
            }
            RuntimeOutput::Peer { to, frame } => self.dispatcher.send(to, frame),
            RuntimeOutput::Read { version, layer, digest } => {
                self.emit(DeviceOutput::Read { version, layer, digest })
            }
            RuntimeOutput::Write { image, generation } => {
                self.emit(DeviceOutput::Write { image, generation })
            }
            RuntimeOutput::Evaluated { steps_done, loss_sum, token_count } => {
                let loss = loss_sum / token_count as f64;
                self.emit(DeviceOutput::Evaluated { steps_done, loss })
            }
        }
    }

    /// What the step took that is about to be reported, if the host stands at a stage.
    fn close_step(&mut self, turn: Turn) {
        let station = self.runtime.as_ref().and_then(WorkerRuntime::active_stage);
        let Some(bench) = station.map(|station| station.engine().executor()) else { return };
        let StageTimings { layers, spans } = bench.times();
        let TakenSlices { slices, device_us } = self.slices.take(bench, &spans, &self.clock);
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

/// Second stores in files, each in a folder of its own: while a plan is loaded there may be two.
fn file_stores(scratch: PathBuf) -> StashStoreFactory {
    // Of a process that was killed. What cannot be removed is reported when something is written.
    drop(std::fs::remove_dir_all(&scratch));
    let made = AtomicU64::new(0);
    Box::new(move |bytes| {
        let number = made.fetch_add(1, Ordering::Relaxed);
        Box::new(FileSecondStore::new(scratch.join(number.to_string()), bytes))
    })
}

/// What layers are timed by.
fn layer_clock() -> LayerClock {
    let clock = RunClock::start();
    Box::new(move || clock.now_us())
}

fn begin<M: WorkerDevice>(
    machine: &M,
    job: DeviceJob,
) -> Result<DeviceRuntime<M>, WorkerDeviceError> {
    let DeviceJob { document, corpus, weights, scratch } = job;
    let config = &document.job.config;
    let device = machine.open(config.arithmetic)?;
    let model = BackendStageFactory {
        model: config.model.clone(),
        optimizer: config.optimizer.clone(),
        step_count: config.steps,
        weights: weights.clone(),
        device,
        host: HostThreads::new(machine.host_threads())?,
        store: match config.memory.offload_store {
            OffloadStore::Memory => None,
            OffloadStore::File => Some(file_stores(scratch)),
        },
        clock: Some(layer_clock),
    };
    // Each plan that is loaded takes the place of this one, and adds up as this one does.
    let kind = match config.schedule {
        ScheduleChoice::Kind(kind) if kind.is_sliced() => kind,
        ScheduleChoice::Kind(kind) if kind.replica_count() > 1 => ScheduleKind::Gems,
        ScheduleChoice::Kind(_) | ScheduleChoice::Auto | ScheduleChoice::Asynchronous(_) => {
            ScheduleKind::OneFOneB
        }
    };
    let request = PlanRequest {
        model: &config.model,
        batch: config.batch,
        kind,
        chunks_per_stage: None,
        slice_count: config.slice_count.filter(|_| kind.is_sliced()),
        stage_count: 1,
        window: Window::One,
    };
    let plan = Plan::new(request)
        .expect("every model fits on one stage of the plainest schedule")
        .with_recompute(config.memory.recomputed());
    let stage = StageSetup {
        model: config.model.clone(),
        plan,
        optimizer: config.optimizer.clone(),
        clip_norm: config.guard.clip_norm,
        step_count: config.steps,
        evaluate_every: config.evaluate_every,
        weights,
        injections: document.job.injections.clone(),
        copies_wanted: false,
        attest_every: 0,
    };
    Ok(WorkerRuntime::new(
        RuntimeSetup { stage, gradient_limits: GRADIENT_FRAME_LIMITS },
        model,
        corpus,
    ))
}
