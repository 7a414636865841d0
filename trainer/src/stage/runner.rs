//! Runs the passes of one stage on its executor, with the tensors that come and go.

use std::collections::VecDeque;
use std::sync::Arc;

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::{DeviceFault, LossScale, TensorHandle};
use zbelastic_schedule::{Compute, Flow, MemoryOp, Pass, Transfer, Window};
use zbelastic_types::{ChunkIndex, SliceIndex, StageIndex, Step};

use super::events::{Output, StageSetup, Stop, WaitReason};
use super::executor::StageExecutor;
use super::frame::{Frame, PassMode};
use super::inbox::{BoundaryFrameRefusal, FrameInbox};
use super::outer::StageExchange;
use super::partial::PartialInbox;
use super::phase::StepLosses;
use super::stash_store::StashStoreError;
use crate::data::{BatchSource, StepTargets, TokenBatch};

/// Frames that may wait for one pass: an activation and a gradient, of this turn, of the next, and
/// of a neighbour's that is further for having dropped one; and one on held-out text.
const FRAMES_PER_PASS: usize = 7;

/// The executor of a stage with its inputs and its outputs.
pub(super) struct StageRunner<W, S> {
    pub(super) setup: Arc<StageSetup>,
    pub(super) stage: StageIndex,
    pub(super) source: S,
    pub(super) executor: W,
    /// The turn whose program runs.
    pub(super) turn: Turn,
    /// The step that was replayed last, and how often.
    replayed: (Step, u32),
    /// The last step of the run, if it ends early.
    halt_after: Option<Step>,
    pub(super) inbox: FrameInbox,
    pub(super) partials: PartialInbox,
    pub(super) exchange: StageExchange,
    pub(super) outbox: VecDeque<Output>,
}

impl<W: StageExecutor, S: BatchSource> StageRunner<W, S> {
    pub(super) fn new(
        setup: Arc<StageSetup>,
        stage: StageIndex,
        executor: W,
        source: S,
        turn: Turn,
    ) -> Self {
        let chunk_count = executor.chunk_indices().len();
        let slice_count = setup.plan.program.slice_count;
        let parts = (setup.plan.microbatches_per_replica() * slice_count) as usize;
        let frame_lens = (0..slice_count).map(|slice| executor.frame_len(SliceIndex(slice)));
        let exchange = StageExchange::new(&setup, stage);
        let inbox = FrameInbox::new(frame_lens.collect(), chunk_count * parts * FRAMES_PER_PASS);
        Self {
            setup,
            stage,
            source,
            executor,
            turn,
            replayed: (turn.step, 0),
            halt_after: None,
            inbox,
            partials: PartialInbox::default(),
            exchange,
            outbox: VecDeque::new(),
        }
    }

    /// Begins a turn from the top of the program.
    pub(super) fn begin(&mut self, turn: Turn) {
        assert_eq!(self.executor.slots_in_use(), 0, "a turn begins with free slots");
        self.turn = turn;
        self.inbox.forget_before(turn);
        self.partials.forget_before(turn);
    }

    /// How often a step was replayed.
    pub(super) fn replays_of(&self, step: Step) -> u32 {
        if self.replayed.0 == step { self.replayed.1 } else { 0 }
    }

    /// A step is replayed once more.
    pub(super) fn count_replay(&mut self, step: Step) {
        self.replayed = (step, self.replays_of(step) + 1);
    }

    /// The run ends after this step, or sooner if that was said before.
    pub(super) fn halt_after(&mut self, step: Step) {
        self.halt_after = Some(self.halt_after.map_or(step, |known| known.min(step)));
    }

    /// Whether the run ends with `step`.
    pub(super) fn is_last(&self, step: Step) -> bool {
        step.0 + 1 >= self.setup.step_count || self.halt_after.is_some_and(|last| step >= last)
    }

    /// Whether nothing of the next step may run before `step` is sealed.
    pub(super) fn closes_after(&self, step: Step) -> bool {
        self.setup.plan.program.window == Some(Window::Zero)
            || self.is_last(step)
            || self.setup.evaluates_after(step)
            || self.setup.outer.as_ref().is_some_and(|outer| outer.mixes_any(step.next()))
    }

    /// Stores a boundary tensor that arrived, if it belongs.
    pub(super) fn receive(&mut self, frame: Frame) -> Result<(), BoundaryFrameRefusal> {
        if !self.executor.has_chunk(frame.pass.chunk) {
            return Err(BoundaryFrameRefusal::Elsewhere { pass: frame.pass });
        }
        self.inbox.check(self.turn, &frame)?;
        let tensor = self.executor.receive(frame.tensor);
        self.inbox.put(Frame { tensor, ..frame });
        Ok(())
    }

    pub(super) fn send_frame(
        &mut self,
        flow: Flow,
        pass: Pass,
        mode: PassMode,
        tensor: TensorHandle,
    ) {
        let to = self.setup.plan.placement().stage_of(pass.chunk);
        let to = to.expect("a chunk that is sent to stands somewhere");
        let frame = Frame { turn: self.turn, mode, flow, pass, tensor };
        self.outbox.push_back(Output::Frame { to, frame });
    }

    /// Stores a boundary tensor for another chunk of this stage.
    pub(super) fn keep_frame(
        &mut self,
        flow: Flow,
        pass: Pass,
        mode: PassMode,
        tensor: TensorHandle,
    ) {
        let frame = Frame { turn: self.turn, mode, flow, pass, tensor };
        let accepted = self.inbox.insert(self.turn, frame);
        assert_eq!(accepted, Ok(()), "a frame of this stage is accepted at once");
    }

    /// Whether a chunk of this stage reads batches.
    pub(super) fn reads_batches(&self, chunk: ChunkIndex) -> bool {
        let placement = self.setup.plan.placement();
        let is_end = placement.is_first(chunk) || placement.is_last(chunk);
        is_end || self.source.is_read_by_all_stages()
    }

    /// The batch of a pass, once all that its step reads is here.
    fn training_batch(&self, pass: Pass) -> Result<TokenBatch, WaitReason> {
        if !self.reads_batches(pass.chunk) {
            return Ok(TokenBatch::default());
        }
        let step = self.turn.step;
        let is_again = mutant::is(Mutant::M7CursorMoves) && self.replayed.0 == step;
        let ahead = if is_again { u64::from(self.replayed.1) } else { 0 };
        let batch_step = self.setup.batch_step(Step(step.0 + ahead));
        if !self.source.has_step(batch_step) {
            return Err(WaitReason::Data { step });
        }
        Ok(self.source.training(batch_step, pass.microbatch))
    }

    /// The operand of a pass, if it comes from another chunk.
    fn take_operand(&mut self, flow: Flow, pass: Pass) -> Option<TensorHandle> {
        let operand = self.inbox.take(self.turn, PassMode::Training, flow, pass);
        let before = self.setup.plan.placement().chunk_before(pass.chunk, flow);
        assert_eq!(operand.is_none(), before.is_none(), "the operand of {pass:?} was received");
        operand
    }

    pub(super) fn run_pass(
        &mut self,
        compute: Compute,
        pass: Pass,
        losses: &mut StepLosses,
    ) -> Result<(), Stop> {
        let batch = self.training_batch(pass)?;
        match compute {
            Compute::F => {
                let input = self.take_operand(Flow::Forward, pass);
                if let Some(loss) = self.executor.forward(pass, &batch, input)? {
                    losses.set(pass, loss);
                }
            }
            Compute::B => self.run_backward(pass, &batch, losses)?,
            Compute::R => self.executor.recompute(pass, &batch),
            Compute::WE => self.executor.head_weights(pass),
            Compute::W => self.executor.backward_weights(pass, &batch),
            Compute::BW => {
                self.run_backward(pass, &batch, losses)?;
                self.executor.backward_weights(pass, &batch);
            }
        }
        Ok(())
    }

    fn run_backward(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        losses: &mut StepLosses,
    ) -> Result<(), DeviceFault> {
        let gradient = self.take_operand(Flow::Backward, pass);
        let has_head = gradient.is_none();
        let scale = if has_head {
            self.step_targets(losses).loss_scale(self.setup.z_loss)
        } else {
            LossScale::of_cross_entropy(1.0)
        };
        self.executor.backward_input(pass, (batch, scale), gradient)
    }

    /// The targets of the turn's step, counted once a turn.
    pub(super) fn step_targets(&self, losses: &mut StepLosses) -> StepTargets {
        let microbatch_count = self.setup.plan.batch.microbatch_count;
        let step = self.setup.batch_step(self.turn.step);
        losses.targets(|| self.source.targets(step, microbatch_count))
    }

    /// An operation that the second store refuses is tried again when the engine runs next.
    pub(super) fn run_memory(
        &mut self,
        memory: MemoryOp,
        pass: Pass,
    ) -> Result<(), StashStoreError> {
        match memory {
            MemoryOp::Offload => self.executor.offload(pass),
            MemoryOp::Reload => self.executor.reload(pass),
            MemoryOp::Drop => {
                self.executor.drop_activations(pass);
                Ok(())
            }
        }
    }

    pub(super) fn run_transfer(
        &mut self,
        transfer: Transfer,
        flow: Flow,
        pass: Pass,
    ) -> Result<(), WaitReason> {
        match transfer {
            Transfer::Receive => {
                let is_here = self.inbox.has(self.turn, PassMode::Training, flow, pass);
                return if is_here { Ok(()) } else { Err(WaitReason::Frame { flow, pass }) };
            }
            Transfer::Send => {
                let (reader, tensor) = self.take_result(flow, pass);
                self.send_frame(flow, reader, PassMode::Training, tensor);
            }
            Transfer::Local => {
                let (reader, tensor) = self.take_result(flow, pass);
                self.keep_frame(flow, reader, PassMode::Training, tensor);
            }
        }
        Ok(())
    }

    /// The result of the last F or B, and the pass that reads it.
    fn take_result(&mut self, flow: Flow, pass: Pass) -> (Pass, TensorHandle) {
        let after = self.setup.plan.placement().chunk_after(pass.chunk, flow);
        let chunk = after.expect("a result that is passed on has a reader");
        (Pass { chunk, ..pass }, self.executor.take_result(flow, pass))
    }
}
