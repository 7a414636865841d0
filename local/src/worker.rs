//! A worker: one thread, one device, one stage.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use zbelastic_data::training_data::TrainingData;
use zbelastic_islands::{ExchangeEvent, ExchangeSetup, ExchangeThread};
use zbelastic_kernels::{AllocateError, DeviceFault};
use zbelastic_schedule::render::chrome_trace::category;
use zbelastic_timing::{
    MeasuredSlice, RunClock, SLICES_REPORTED_MAX, SliceActivity, SliceLog, TakenSlices,
};
use zbelastic_trainer::elastic::layer_digest;
use zbelastic_trainer::stage::{
    BoundaryFrameRefusal, EngineActivity, EngineProgress, Event, EventRefusal, OperationClock,
    Output, PartialRefusal, SealedState, StageEngine, StageExecutor, StageSetup, WaitReason,
};
use zbelastic_types::{LayerId, StageIndex};

use super::executor_factory::ExecutorFactory;
use super::messages::{CoordinatorMessage, HeldOutLoss, StageResult, WorkerMessage};

/// How soon a worker that waits for other islands looks again.
const ISLANDS_POLL: Duration = Duration::from_millis(10);

/// A step that waits for other islands for so long says so: a fragment needs less over any link that it
/// was planned for.
const LONG_WAIT: Duration = Duration::from_secs(10);

/// A step's wait for other islands.
#[derive(Default)]
struct IslandWait {
    since: Option<Instant>,
    is_said: bool,
}

type WorkerEngine<O> = StageEngine<<O as ExecutorFactory>::Executor, Arc<TrainingData>>;

/// The worker of a stage, before it begins.
pub struct StageWorker<'a, O> {
    /// Stage that the worker runs.
    pub stage: StageIndex,
    /// The setup of all stages.
    pub setup: Arc<StageSetup>,
    /// Where batches come from.
    pub corpus: Arc<TrainingData>,
    /// How weights are exchanged with other islands, if the run is one of several.
    pub islands: Option<&'a ExchangeSetup>,
    /// The factory of its executor.
    pub factory: &'a O,
    /// The clock that all slices are read from.
    pub clock: RunClock,
    /// Receiver of the mail to this worker.
    pub mailbox: Receiver<WorkerMessage>,
    /// The mail of every stage.
    pub mailboxes: Vec<SyncSender<WorkerMessage>>,
    /// Sender of messages to the coordinator.
    pub coordinator: SyncSender<CoordinatorMessage>,
}

/// Whether to go on.
#[derive(Clone, Copy, PartialEq)]
enum LoopControl {
    Continue,
    Abort,
}

impl<O: ExecutorFactory> StageWorker<'_, O> {
    /// Trains to the end of the run, or until it receives [`WorkerMessage::Abort`].
    pub fn run(self) {
        let guard = WorkerUnwindGuard { stage: self.stage, coordinator: self.coordinator.clone() };
        let exchange = match self.islands.map(ExchangeThread::start).transpose() {
            Ok(exchange) => exchange,
            Err(error) => {
                let stage = self.stage;
                self.report(CoordinatorMessage::NoExchange { stage, error });
                return drop(guard);
            }
        };
        match self.engine() {
            Ok(engine) => {
                self.report(CoordinatorMessage::Ready);
                self.drive(engine, exchange.as_ref());
            }
            Err(AllocateError { fault: Some(fault), .. }) => self.report_fault(*fault),
            Err(error) => self.report(CoordinatorMessage::OutOfMemory { stage: self.stage, error }),
        }
        drop(guard);
    }

    fn engine(&self) -> Result<WorkerEngine<O>, AllocateError> {
        let executor = self.factory.executor(&self.setup, self.stage)?;
        let setup = self.setup.clone();
        let corpus = self.corpus.clone();
        Ok(StageEngine::begin_run(setup, self.stage, executor, corpus))
    }

    fn drive(&self, mut engine: WorkerEngine<O>, exchange: Option<&ExchangeThread>) {
        let mut slices = SliceLog::default();
        let mut island_wait = IslandWait::default();
        loop {
            if self.poll_mailbox(&mut engine) == LoopControl::Abort {
                return;
            }
            self.receive_of_islands(&mut engine, exchange);
            let start_us = self.clock.now_us();
            let progress = engine.run_next();
            if let Some(fault) = self.corpus.fault() {
                // Nothing that was computed of such a batch leaves the stage.
                let stage = self.stage;
                let error = fault.to_string();
                return self.report(CoordinatorMessage::Unreadable { stage, error });
            }
            if let &EngineProgress::Ran(activity) = &progress {
                self.log(&mut slices, &engine, SliceActivity::Ran(activity), start_us);
            }
            self.deliver(&mut engine, exchange, &mut slices);
            match progress {
                EngineProgress::Ran(_) => island_wait = IslandWait::default(),
                EngineProgress::Blocked(wait) => {
                    if let WaitReason::Outer { layer } = wait {
                        self.note_wait(&mut island_wait, layer, exchange);
                    }
                    if self.await_message(&mut engine, wait) == LoopControl::Abort {
                        return;
                    }
                    self.log_wait(&mut slices, &engine, wait, start_us);
                }
                EngineProgress::Failed(error) => {
                    self.report(CoordinatorMessage::StoreFailed { stage: self.stage, error });
                    return;
                }
                EngineProgress::Faulted(fault) => return self.report_fault(fault),
                EngineProgress::Finished => break,
            }
            if slices.count() >= SLICES_REPORTED_MAX {
                self.report_slices(&engine, &mut slices);
            }
        }
        self.report_slices(&engine, &mut slices);
        let result = result::<O>(&engine);
        // A value read of a device that gave up meanwhile is no result.
        if let Some(fault) = engine.executor().fault() {
            return self.report_fault(fault);
        }
        // The device's memory is given back before the coordinator puts the model together.
        drop(engine);
        self.report(CoordinatorMessage::Finished(result));
    }

    /// Notes the activity that was run. Transfers hand memory over and need no time worth drawing.
    fn log(
        &self,
        slices: &mut SliceLog,
        engine: &WorkerEngine<O>,
        doing: SliceActivity,
        start_us: f64,
    ) {
        let is_drawn = match doing {
            SliceActivity::Ran(EngineActivity::Op { op, .. }) => category(op).is_some(),
            SliceActivity::Ran(
                EngineActivity::Evaluation { .. } | EngineActivity::Settled { .. },
            )
            | SliceActivity::Waited(_) => true,
        };
        let slice =
            is_drawn.then(|| MeasuredSlice { doing, start_us, end_us: self.clock.now_us() });
        slices.push(engine.executor(), slice);
    }

    /// Notes a wait for a verdict or for the sums before it. To wait for a neighbour is the
    /// bubble, and shows as the gap between slices.
    fn log_wait(
        &self,
        slices: &mut SliceLog,
        engine: &WorkerEngine<O>,
        wait: WaitReason,
        start_us: f64,
    ) {
        match wait {
            WaitReason::Frame { .. }
            | WaitReason::Partial { .. }
            | WaitReason::Outer { .. }
            | WaitReason::Data { .. } => {}
            WaitReason::Prefix => {
                self.log(slices, engine, SliceActivity::Waited(engine.turn()), start_us)
            }
            WaitReason::Seal(turn) => {
                self.log(slices, engine, SliceActivity::Waited(turn), start_us)
            }
        }
    }

    fn poll_mailbox(&self, engine: &mut WorkerEngine<O>) -> LoopControl {
        while let Ok(message) = self.mailbox.try_recv() {
            if handle::<O>(engine, message) == LoopControl::Abort {
                return LoopControl::Abort;
            }
        }
        LoopControl::Continue
    }

    fn await_message(&self, engine: &mut WorkerEngine<O>, wait: WaitReason) -> LoopControl {
        let received = match wait {
            // Islands answer elsewhere, and tokens arrive there.
            WaitReason::Outer { .. } | WaitReason::Data { .. } => {
                self.mailbox.recv_timeout(ISLANDS_POLL)
            }
            WaitReason::Frame { .. }
            | WaitReason::Prefix
            | WaitReason::Partial { .. }
            | WaitReason::Seal(_) => {
                self.mailbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            }
        };
        match received {
            Ok(message) => handle::<O>(engine, message),
            Err(RecvTimeoutError::Timeout) => LoopControl::Continue,
            // Every sender is gone, so the missing messages cannot come.
            Err(RecvTimeoutError::Disconnected) => LoopControl::Abort,
        }
    }

    /// What came of the exchange with other islands.
    fn receive_of_islands(&self, engine: &mut WorkerEngine<O>, exchange: Option<&ExchangeThread>) {
        while let Some(event) = exchange.and_then(ExchangeThread::try_next) {
            let event = match event {
                ExchangeEvent::Published { layer, version } => Event::Published { layer, version },
                ExchangeEvent::Outer(outer) => Event::Outer(outer),
                event @ (ExchangeEvent::Skipped { .. }
                | ExchangeEvent::Stays { .. }
                | ExchangeEvent::Failed(_)) => {
                    self.note_of_islands(event.to_string());
                    continue;
                }
            };
            engine.handle(event).expect("what islands answer is never refused");
        }
    }

    fn note_of_islands(&self, text: String) {
        self.report(CoordinatorMessage::Islands { stage: self.stage, text });
    }

    /// Says once which island a step waits for, if it does for long.
    fn note_wait(&self, wait: &mut IslandWait, layer: LayerId, exchange: Option<&ExchangeThread>) {
        let IslandWait { since, is_said } = wait;
        let is_long = since.get_or_insert_with(Instant::now).elapsed() >= LONG_WAIT;
        if is_long && !std::mem::replace(is_said, true) {
            let island = exchange.and_then(ExchangeThread::missing_island);
            let whose = island
                .map_or(String::new(), |island| format!(", which island {island} has not sent"));
            self.note_of_islands(format!("waits for the outer step of layer {layer}{whose}"));
        }
    }

    fn deliver(
        &self,
        engine: &mut WorkerEngine<O>,
        exchange: Option<&ExchangeThread>,
        slices: &mut SliceLog,
    ) {
        while let Some(output) = engine.poll_output() {
            match output {
                Output::Frame { to, frame } => self.send(to, Event::Frame(frame)),
                Output::Prefix { to, prefix } => self.send(to, Event::Prefix(prefix)),
                Output::Partial { to, partial } => self.send(to, Event::Partial(partial)),
                Output::Gradients { .. } => unreachable!("this run keeps no copies"),
                Output::Sealed { .. } => {}
                Output::Outer(request) => {
                    exchange.expect("an island has an exchange").send(request)
                }
                Output::Report { report, .. } => {
                    self.report_slices(engine, slices);
                    self.report(CoordinatorMessage::Report(report));
                }
                Output::Evaluated { steps_done, loss_sum, token_count } => {
                    let loss = loss_sum / token_count as f64;
                    self.report(CoordinatorMessage::Evaluated(HeldOutLoss { steps_done, loss }));
                }
            }
        }
    }

    /// Sends to a neighbour. One that has left has no use for it.
    fn send(&self, to: StageIndex, event: Event) {
        match self.mailboxes[to.index()].try_send(WorkerMessage::Event(event)) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => {
                panic!("stage {} sends stage {to} more than a plan allows", self.stage)
            }
        }
    }

    fn report_slices(&self, engine: &WorkerEngine<O>, slices: &mut SliceLog) {
        let executor = engine.executor();
        let TakenSlices { slices, .. } = slices.take(executor, &executor.spans(), &self.clock);
        self.report(CoordinatorMessage::Slices { stage: self.stage, slices });
    }

    fn report_fault(&self, fault: DeviceFault) {
        let device = self.factory.name(self.stage);
        self.report(CoordinatorMessage::Faulted { stage: self.stage, device, fault });
    }

    /// Sends to the coordinator. If it has left, the worker is about to receive
    /// [`WorkerMessage::Abort`].
    fn report(&self, message: CoordinatorMessage) {
        let _ = self.coordinator.send(message);
    }
}

fn handle<O: ExecutorFactory>(engine: &mut WorkerEngine<O>, message: WorkerMessage) -> LoopControl {
    let event = match message {
        WorkerMessage::Abort => return LoopControl::Abort,
        WorkerMessage::Event(event) => event,
    };
    match engine.handle(event) {
        // A frame of a turn that was dropped while it was on its way.
        Ok(())
        | Err(
            EventRefusal::Frame(BoundaryFrameRefusal::Stale { .. })
            | EventRefusal::Partial(PartialRefusal::Stale { .. }),
        ) => LoopControl::Continue,
        Err(EventRefusal::Frame(
            refusal @ (BoundaryFrameRefusal::Length { .. }
            | BoundaryFrameRefusal::Elsewhere { .. }
            | BoundaryFrameRefusal::Full { .. }),
        )) => panic!("frames follow the plan: {refusal}"),
        Err(EventRefusal::Partial(
            refusal @ (PartialRefusal::Length { .. }
            | PartialRefusal::Elsewhere { .. }
            | PartialRefusal::Full { .. }),
        )) => panic!("parts of gradients follow the plan: {refusal}"),
        Err(EventRefusal::Seal(refusal)) => panic!("seals come in order: {refusal}"),
    }
}

fn result<O: ExecutorFactory>(engine: &WorkerEngine<O>) -> StageResult {
    let executor = engine.executor();
    let twins = executor.twin_images();
    StageResult {
        layers: O::weights(executor),
        digests: executor.digests(),
        twins: twins.iter().map(|image| (image.layer, layer_digest(image))).collect(),
        updates: engine.updates(),
    }
}

/// Sends [`CoordinatorMessage::Died`] to the coordinator when the thread unwinds.
struct WorkerUnwindGuard {
    stage: StageIndex,
    coordinator: SyncSender<CoordinatorMessage>,
}

impl Drop for WorkerUnwindGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.coordinator.send(CoordinatorMessage::Died { stage: self.stage });
        }
    }
}
