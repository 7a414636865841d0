//! A worker: one thread, one device, one stage.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::thread;

use zbelastic_kernels::{AllocateError, DeviceFault};
use zbelastic_schedule::render::chrome_trace::category;
use zbelastic_trainer::data::Corpus;
use zbelastic_trainer::elastic::layer_digest;
use zbelastic_trainer::stage::{
    Activity, Event, EventRefusal, FrameRefusal, Output, PartialRefusal, Progress, StageEngine,
    StageSetup, Wait, Workbench,
};
use zbelastic_types::StageIndex;

use super::mail::{Evaluated, Mail, Message, StageResult};
use super::outfit::Outfit;
use super::timing::{Clock, Doing, SLICES_TOLD_MAX, Slice, SliceLog, Sliced};

type Engine<O> = StageEngine<<O as Outfit>::Bench, Arc<Corpus>>;

/// What a worker begins with.
pub struct Worker<'a, O> {
    /// The worker's stage.
    pub stage: StageIndex,
    /// What all stages begin with.
    pub setup: Arc<StageSetup>,
    /// Where batches come from.
    pub corpus: Arc<Corpus>,
    /// What it computes with.
    pub outfit: &'a O,
    /// The clock that all slices are read from.
    pub clock: Clock,
    /// Receiver of the mail to this worker.
    pub mailbox: Receiver<Mail>,
    /// The mail of every stage.
    pub mailboxes: Vec<SyncSender<Mail>>,
    /// Sender of messages to the coordinator.
    pub coordinator: SyncSender<Message>,
}

/// Whether to go on.
#[derive(Clone, Copy, PartialEq)]
enum Course {
    Continue,
    Abort,
}

impl<O: Outfit> Worker<'_, O> {
    /// Trains to the end of the run, or until it receives [`Mail::Abort`].
    pub fn run(self) {
        let notice = DeathNotice { stage: self.stage, coordinator: self.coordinator.clone() };
        match self.engine() {
            Ok(engine) => {
                self.tell(Message::Ready);
                self.drive(engine);
            }
            Err(AllocateError { fault: Some(fault), .. }) => self.tell_fault(*fault),
            Err(error) => self.tell(Message::OutOfMemory { stage: self.stage, error }),
        }
        drop(notice);
    }

    fn engine(&self) -> Result<Engine<O>, AllocateError> {
        let bench = self.outfit.bench(&self.setup, self.stage)?;
        let (setup, corpus) = (self.setup.clone(), self.corpus.clone());
        Ok(StageEngine::begin_run(setup, self.stage, bench, corpus))
    }

    fn drive(&self, mut engine: Engine<O>) {
        let mut slices = SliceLog::default();
        loop {
            if self.take_mail(&mut engine) == Course::Abort {
                return;
            }
            let start_us = self.clock.now_us();
            let progress = engine.run_next();
            if let &Progress::Ran(activity) = &progress {
                self.log(&mut slices, &engine, Doing::Ran(activity), start_us);
            }
            self.deliver(&mut engine, &mut slices);
            match progress {
                Progress::Ran(_) => {}
                Progress::Blocked(wait) => {
                    if self.await_mail(&mut engine) == Course::Abort {
                        return;
                    }
                    self.log_wait(&mut slices, &engine, wait, start_us);
                }
                Progress::Failed(error) => {
                    self.tell(Message::StoreFailed { stage: self.stage, error });
                    return;
                }
                Progress::Faulted(fault) => return self.tell_fault(fault),
                Progress::Finished => break,
            }
            if slices.count() >= SLICES_TOLD_MAX {
                self.tell_slices(&engine, &mut slices);
            }
        }
        self.tell_slices(&engine, &mut slices);
        let result = result::<O>(&engine);
        // What was read of a device that gave up meanwhile is no result.
        if let Some(fault) = engine.bench().fault() {
            return self.tell_fault(fault);
        }
        // The device's memory is given back before the coordinator puts the model together.
        drop(engine);
        self.tell(Message::Finished(result));
    }

    /// Notes what was run. Transfers hand memory over and take no time worth drawing.
    fn log(&self, slices: &mut SliceLog, engine: &Engine<O>, doing: Doing, start_us: f64) {
        let is_drawn = match doing {
            Doing::Ran(Activity::Op { op, .. }) => category(op).is_some(),
            Doing::Ran(Activity::Evaluation { .. } | Activity::Settled { .. })
            | Doing::Waited(_) => true,
        };
        let slice = is_drawn.then(|| Slice { doing, start_us, end_us: self.clock.now_us() });
        slices.push(engine.bench(), slice);
    }

    /// Notes a wait for a verdict or for the sums before it. To wait for a neighbour is the
    /// bubble, and shows as what is between slices.
    fn log_wait(&self, slices: &mut SliceLog, engine: &Engine<O>, wait: Wait, start_us: f64) {
        match wait {
            Wait::Frame { .. } | Wait::Partial { .. } => {}
            Wait::Prefix => self.log(slices, engine, Doing::Waited(engine.turn()), start_us),
            Wait::Seal(turn) => self.log(slices, engine, Doing::Waited(turn), start_us),
        }
    }

    fn take_mail(&self, engine: &mut Engine<O>) -> Course {
        while let Ok(mail) = self.mailbox.try_recv() {
            if handle::<O>(engine, mail) == Course::Abort {
                return Course::Abort;
            }
        }
        Course::Continue
    }

    fn await_mail(&self, engine: &mut Engine<O>) -> Course {
        match self.mailbox.recv() {
            Ok(mail) => handle::<O>(engine, mail),
            // Every sender is gone, so what is missing cannot come.
            Err(_) => Course::Abort,
        }
    }

    fn deliver(&self, engine: &mut Engine<O>, slices: &mut SliceLog) {
        while let Some(output) = engine.poll_output() {
            match output {
                Output::Frame { to, frame } => self.send(to, Event::Frame(frame)),
                Output::Prefix { to, prefix } => self.send(to, Event::Prefix(prefix)),
                Output::Partial { to, partial } => self.send(to, Event::Partial(partial)),
                Output::Gradients { .. } => unreachable!("this run keeps no copies"),
                Output::Sealed { .. } => {}
                Output::Report { report, .. } => {
                    self.tell_slices(engine, slices);
                    self.tell(Message::Report(report));
                }
                Output::Evaluated { steps_done, loss_sum, token_count } => {
                    let loss = loss_sum / token_count as f64;
                    self.tell(Message::Evaluated(Evaluated { steps_done, loss }));
                }
            }
        }
    }

    /// Sends to a neighbour. One that has left has no use for it.
    fn send(&self, to: StageIndex, event: Event) {
        match self.mailboxes[to.index()].try_send(Mail::Event(event)) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => {
                panic!("stage {} sends stage {to} more than a plan allows", self.stage)
            }
        }
    }

    fn tell_slices(&self, engine: &Engine<O>, slices: &mut SliceLog) {
        let bench = engine.bench();
        let Sliced { slices, .. } = slices.take(bench, &bench.spans(), &self.clock);
        self.tell(Message::Slices { stage: self.stage, slices });
    }

    fn tell_fault(&self, fault: DeviceFault) {
        let device = self.outfit.name(self.stage);
        self.tell(Message::Faulted { stage: self.stage, device, fault });
    }

    /// Sends to the coordinator. If it has left, the worker is about to receive [`Mail::Abort`].
    fn tell(&self, message: Message) {
        let _ = self.coordinator.send(message);
    }
}

fn handle<O: Outfit>(engine: &mut Engine<O>, mail: Mail) -> Course {
    let event = match mail {
        Mail::Abort => return Course::Abort,
        Mail::Event(event) => event,
    };
    match engine.handle(event) {
        // A frame of a turn that was dropped while it was on its way.
        Ok(())
        | Err(
            EventRefusal::Frame(FrameRefusal::Stale { .. })
            | EventRefusal::Partial(PartialRefusal::Stale { .. }),
        ) => Course::Continue,
        Err(EventRefusal::Frame(
            refusal @ (FrameRefusal::Length { .. }
            | FrameRefusal::Elsewhere { .. }
            | FrameRefusal::Full { .. }),
        )) => panic!("frames follow the plan: {refusal}"),
        Err(EventRefusal::Partial(
            refusal @ (PartialRefusal::Length { .. }
            | PartialRefusal::Elsewhere { .. }
            | PartialRefusal::Full { .. }),
        )) => panic!("gradients of twins follow the plan: {refusal}"),
        Err(EventRefusal::Seal(refusal)) => panic!("seals come in order: {refusal}"),
    }
}

fn result<O: Outfit>(engine: &Engine<O>) -> StageResult {
    let bench = engine.bench();
    let twins = bench.twin_images();
    StageResult {
        layers: O::weights(bench),
        digests: bench.digests(),
        twins: twins.iter().map(|image| (image.layer, layer_digest(image))).collect(),
        updates: engine.updates(),
    }
}

/// Sends [`Message::Died`] to the coordinator when the thread unwinds.
struct DeathNotice {
    stage: StageIndex,
    coordinator: SyncSender<Message>,
}

impl Drop for DeathNotice {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.coordinator.send(Message::Died { stage: self.stage });
        }
    }
}
