//! Held-out text, on sealed weights, between two steps.

use std::collections::VecDeque;

use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::DeviceFault;
use zbelastic_schedule::{Flow, Pass};
use zbelastic_types::{ChunkIndex, MicrobatchIndex, SliceIndex, Step};

use super::events::{Output, StageSetup, Stop, WaitReason};
use super::executor::StageExecutor;
use super::frame::PassMode;
use super::runner::StageRunner;
use crate::data::{BatchSource, TokenBatch};

/// Held-out microbatches read at most: enough for the second decimal of a loss.
pub const HELD_OUT_MAX: u32 = 64;

/// An evaluation under way.
#[derive(Debug)]
pub(super) struct Evaluation {
    /// The turn that follows, which tags its frames.
    next: Turn,
    /// The step it follows.
    after: Step,
    /// The passes, once they are listed.
    passes: Option<HeldOutPasses>,
    loss_sum: f64,
    token_count: u64,
}

/// This stage's passes over held-out text.
#[derive(Debug)]
struct HeldOutPasses {
    left: VecDeque<Pass>,
    /// Passes there were when they were listed.
    count: u32,
    /// Microbatches to read.
    microbatch_count: u32,
}

impl HeldOutPasses {
    /// In groups of a step's microbatches, chunk by chunk, so that no more frames wait than in a
    /// step.
    fn new<W: StageExecutor, S: BatchSource>(runner: &StageRunner<W, S>) -> Self {
        let microbatch_count = runner.source.held_out_count(HELD_OUT_MAX);
        let all: Vec<u32> = (0..microbatch_count).collect();
        let setup = &runner.setup;
        let groups = all.chunks(setup.evaluation_window() as usize);
        let placement = setup.plan.placement();
        let mut chunks: Vec<ChunkIndex> = runner.executor.chunk_indices();
        // Every replica has the same weights: one is enough.
        chunks.retain(|chunk| placement.replica_of(*chunk) == 0);
        let slice_count = setup.plan.program.slice_count;
        let passes = groups.flat_map(|group| {
            let parts =
                group.iter().flat_map(move |i| (0..slice_count).map(move |slice| (*i, slice)));
            chunks.iter().flat_map(move |chunk| {
                parts.clone().map(|(i, slice)| Pass::sliced(chunk.0, i, slice))
            })
        });
        let left: VecDeque<Pass> = passes.collect();
        let microbatch_count = if left.is_empty() { 0 } else { microbatch_count };
        Self { count: left.len() as u32, left, microbatch_count }
    }
}

/// Whether held-out text is read at a version of a run of so many steps: behind its last one, and after
/// every so many, unless that is 0.
#[must_use]
pub const fn evaluates_at(version: u64, (step_count, every): (u64, u64)) -> bool {
    version == step_count || (every > 0 && version > 0 && version.is_multiple_of(every))
}

impl StageSetup {
    /// Whether held-out text is read at this version.
    pub(super) fn evaluates_at(&self, version: Step) -> bool {
        evaluates_at(version.0, (self.step_count, self.evaluate_every))
    }

    /// Whether held-out text is read after `step`: a function of the configuration, so that all
    /// stages agree.
    pub(super) fn evaluates_after(&self, step: Step) -> bool {
        self.evaluates_at(step.next())
    }

    /// The receipt that must be here before the first chunk begins a microbatch: the last chunk is
    /// done with the one as many before as a step has. So no more frames are under way than in a
    /// step. None is needed where one stage holds both ends, whose list keeps that order.
    fn receipt_before(&self, pass: Pass) -> Option<Pass> {
        if pass.slice > SliceIndex(0) {
            return None;
        }
        let window = self.evaluation_window();
        let before = pass.microbatch.0.checked_sub(window).filter(|_| self.gives_receipts())?;
        Some(Pass::new(0, before))
    }

    /// Microbatches under way at most: those of a replica's step.
    fn evaluation_window(&self) -> u32 {
        self.plan.microbatches_per_replica()
    }

    fn gives_receipts(&self) -> bool {
        let placement = self.plan.placement();
        placement.stage_of(ChunkIndex(0)) != placement.stage_of(placement.last_chunk())
    }
}

/// Whether the held-out text is here that this stage reads.
fn has_text<W: StageExecutor, S: BatchSource>(runner: &StageRunner<W, S>) -> bool {
    let mut chunks = runner.executor.chunk_indices().into_iter();
    !chunks.any(|chunk| runner.reads_batches(chunk)) || runner.source.has_held_out()
}

/// The batch of a pass.
fn batch<W: StageExecutor, S: BatchSource>(runner: &StageRunner<W, S>, pass: Pass) -> TokenBatch {
    if !runner.reads_batches(pass.chunk) {
        return TokenBatch::default();
    }
    runner.source.held_out(pass.microbatch.0).expect("it was counted before")
}

impl Evaluation {
    pub(super) fn new(next: Turn, after: Step) -> Self {
        Self { next, after, passes: None, loss_sum: 0.0, token_count: 0 }
    }

    /// The step it follows.
    pub(super) fn after(&self) -> Step {
        self.after
    }

    /// Passes that ran, and all of them, once they are listed.
    pub(super) fn progress(&self) -> Option<(u32, u32)> {
        let passes = self.passes.as_ref()?;
        Some((passes.count - passes.left.len() as u32, passes.count))
    }

    /// Runs the next pass and returns it; `None` if there is none left.
    pub(super) fn run_next<W: StageExecutor, S: BatchSource>(
        &mut self,
        runner: &mut StageRunner<W, S>,
    ) -> Result<Option<Pass>, Stop> {
        let next = self.next;
        if self.passes.is_none() && !has_text(runner) {
            return Err(WaitReason::Data { step: next.step }.into());
        }
        let passes = self.passes.get_or_insert_with(|| {
            runner.turn = next;
            runner.inbox.forget_before(next);
            HeldOutPasses::new(runner)
        });
        let Some(pass) = passes.left.front().copied() else { return Ok(None) };
        let awaited = if runner.setup.plan.placement().is_first(pass.chunk) {
            runner.setup.receipt_before(pass).map(|pass| (Flow::Backward, pass))
        } else {
            Some((Flow::Forward, pass))
        };
        if let Some((flow, pass)) = awaited
            && !runner.inbox.has(next, PassMode::Evaluation, flow, pass)
        {
            return Err(WaitReason::Frame { flow, pass }.into());
        }
        self.run_pass(runner, pass)?;
        self.passes.as_mut().expect("listed above").left.pop_front();
        Ok(Some(pass))
    }

    fn run_pass<W: StageExecutor, S: BatchSource>(
        &mut self,
        runner: &mut StageRunner<W, S>,
        pass: Pass,
    ) -> Result<(), DeviceFault> {
        let is_first = runner.setup.plan.placement().is_first(pass.chunk);
        if let Some(receipt) = runner.setup.receipt_before(pass).filter(|_| is_first) {
            runner.inbox.take(runner.turn, PassMode::Evaluation, Flow::Backward, receipt);
        }
        let input = runner.inbox.take(runner.turn, PassMode::Evaluation, Flow::Forward, pass);
        let batch = batch(runner, pass);
        if let Some(loss) = runner.executor.forward_only(pass, &batch, input)? {
            self.loss_sum += loss.wait()?;
            if pass.slice.0 + 1 == runner.setup.plan.program.slice_count {
                self.token_count += batch.target_count();
                self.give_receipt(runner, pass.microbatch);
            }
            return Ok(());
        }
        let tensor = runner.executor.take_result(Flow::Forward, pass);
        let chunk = runner.setup.plan.placement().chunk_after(pass.chunk, Flow::Forward);
        let reader = Pass { chunk: chunk.expect("what has no loss has a reader"), ..pass };
        if runner.executor.has_chunk(reader.chunk) {
            runner.keep_frame(Flow::Forward, reader, PassMode::Evaluation, tensor);
        } else {
            runner.send_frame(Flow::Forward, reader, PassMode::Evaluation, tensor);
        }
        Ok(())
    }

    /// Sends the first chunk a receipt that the last one is done with a microbatch, if a later one
    /// waits for it.
    fn give_receipt<W: StageExecutor, S: BatchSource>(
        &self,
        runner: &mut StageRunner<W, S>,
        microbatch: MicrobatchIndex,
    ) {
        let window = runner.setup.evaluation_window();
        let count = self.passes.as_ref().map_or(0, |passes| passes.microbatch_count);
        if runner.setup.gives_receipts() && microbatch.0 + window < count {
            let reader = Pass::new(0, microbatch.0);
            runner.send_frame(Flow::Backward, reader, PassMode::Evaluation, Vec::new().into());
        }
    }

    /// The loss that is reported, if this stage has the head, and the turn and step to go on from.
    pub(super) fn finish(&self) -> (Option<Output>, Turn, Step) {
        let Self { next, after, loss_sum, token_count, .. } = *self;
        let steps_done = after.0 + 1;
        let evaluated = Output::Evaluated { steps_done, loss_sum, token_count };
        ((token_count > 0).then_some(evaluated), next, after)
    }
}
