//! Held-out text, on sealed weights, between two steps.

use std::collections::VecDeque;

use zbelastic_consensus::validation::Turn;
use zbelastic_kernels::DeviceFault;
use zbelastic_schedule::{Flow, Pass};
use zbelastic_types::{ChunkIndex, MicrobatchIndex, SliceIndex, Step};

use super::engine::{
    EngineActivity, EngineProgress, Output, StageEngine, StageSetup, Stop, WaitReason,
};
use super::executor::StageExecutor;
use super::frame::{Frame, PassMode};
use crate::data::BatchSource;

/// Held-out microbatches read at most: enough for the second decimal of a loss.
pub const HELD_OUT_MAX: u32 = 64;

/// An evaluation under way.
#[derive(Debug)]
pub(super) struct Evaluation {
    /// The turn that follows, which tags its frames.
    next: Turn,
    /// The step it follows.
    after: Step,
    /// Passes still to run, once they are listed.
    passes: Option<VecDeque<Pass>>,
    /// Passes there were when they were listed.
    pass_count: u32,
    /// Microbatches to read, once the passes are listed.
    microbatch_count: u32,
    loss_sum: f64,
    token_count: u64,
}

impl Evaluation {
    pub(super) fn new(next: Turn, after: Step) -> Self {
        Self {
            next,
            after,
            passes: None,
            pass_count: 0,
            microbatch_count: 0,
            loss_sum: 0.0,
            token_count: 0,
        }
    }
}

impl StageSetup {
    /// Whether held-out text is read at this version.
    pub(super) fn evaluates_at(&self, version: Step) -> bool {
        let done = version.0;
        let every = self.evaluate_every;
        done == self.step_count || (every > 0 && done > 0 && done.is_multiple_of(every))
    }
}

impl<W: StageExecutor, S: BatchSource> StageEngine<W, S> {
    /// Whether held-out text is read after `step`: a function of the configuration, so that all
    /// stages agree.
    pub(super) fn evaluates_after(&self, step: Step) -> bool {
        self.setup.evaluates_at(step.next())
    }

    /// This stage's passes over held-out text: in groups of a step's microbatches, chunk by chunk,
    /// so that no more frames wait than in a step.
    fn held_out_passes(&self) -> VecDeque<Pass> {
        let count = (0..HELD_OUT_MAX).take_while(|i| self.source.held_out(*i).is_some()).count();
        let all: Vec<u32> = (0..count as u32).collect();
        let groups = all.chunks(self.setup.plan.batch.microbatch_count as usize);
        let placement = self.setup.plan.placement();
        let mut chunks: Vec<ChunkIndex> = self.executor.chunk_indices();
        // Every replica has the same weights: one is enough.
        chunks.retain(|chunk| placement.replica_of(*chunk) == 0);
        let slice_count = self.setup.plan.program.slice_count;
        let passes = groups.flat_map(|group| {
            let parts =
                group.iter().flat_map(move |i| (0..slice_count).map(move |slice| (*i, slice)));
            chunks.iter().flat_map(move |chunk| {
                parts.clone().map(|(i, slice)| Pass::sliced(chunk.0, i, slice))
            })
        });
        passes.collect()
    }

    pub(super) fn evaluate_next(&mut self) -> Result<EngineProgress, Stop> {
        let super::engine::EnginePhase::Evaluating(evaluation) = &self.phase else {
            unreachable!("called while evaluating")
        };
        let next = evaluation.next;
        let after = evaluation.after;
        let first = match &evaluation.passes {
            Some(passes) => passes.front().copied(),
            None => {
                let passes = self.held_out_passes();
                let first = passes.front().copied();
                self.turn = next;
                self.inbox.forget_before(next);
                let count = passes.iter().map(|pass| pass.microbatch.0 + 1).max().unwrap_or(0);
                self.with_evaluation(|evaluation| {
                    evaluation.microbatch_count = count;
                    evaluation.pass_count = passes.len() as u32;
                    evaluation.passes = Some(passes);
                });
                first
            }
        };
        let Some(pass) = first else {
            self.end_evaluation(next, after);
            return self.run_phase();
        };
        let awaited = if self.setup.plan.placement().is_first(pass.chunk) {
            self.receipt_before(pass).map(|pass| (Flow::Backward, pass))
        } else {
            Some((Flow::Forward, pass))
        };
        if let Some((flow, pass)) = awaited
            && !self.inbox.has(next, PassMode::Evaluation, flow, pass)
        {
            return Err(WaitReason::Frame { flow, pass }.into());
        }
        self.run_held_out(pass)?;
        self.with_evaluation(|evaluation| {
            evaluation.passes.as_mut().expect("listed above").pop_front();
        });
        Ok(EngineProgress::Ran(EngineActivity::Evaluation { pass }))
    }

    /// Whether held-out text is evaluated behind the last step, so that no step waits for it.
    #[must_use]
    pub fn evaluates_last(&self) -> bool {
        let super::engine::EnginePhase::Evaluating(evaluation) = &self.phase else { return false };
        self.is_last(evaluation.after)
    }

    /// Passes of this stage over held-out text that ran, and all of them, while it is evaluated.
    #[must_use]
    pub fn evaluated(&self) -> Option<(u32, u32)> {
        let super::engine::EnginePhase::Evaluating(evaluation) = &self.phase else { return None };
        let left = evaluation.passes.as_ref()?.len() as u32;
        Some((evaluation.pass_count - left, evaluation.pass_count))
    }

    fn with_evaluation(&mut self, change: impl FnOnce(&mut Evaluation)) {
        if let super::engine::EnginePhase::Evaluating(evaluation) = &mut self.phase {
            change(evaluation);
        }
    }

    /// The receipt that must be here before the first chunk begins a microbatch: the last chunk is
    /// done with the one as many before as a step has. So no more frames are under way than in a
    /// step. None is needed where one stage holds both ends, whose list keeps that order.
    fn receipt_before(&self, pass: Pass) -> Option<Pass> {
        if pass.slice > SliceIndex(0) {
            return None;
        }
        let window = self.setup.plan.batch.microbatch_count;
        let before = pass.microbatch.0.checked_sub(window).filter(|_| self.gives_receipts())?;
        Some(Pass::new(0, before))
    }

    fn gives_receipts(&self) -> bool {
        let placement = self.setup.plan.placement();
        placement.stage_of(ChunkIndex(0)) != placement.stage_of(placement.last_chunk())
    }

    /// Sends the first chunk a receipt that the last one is done with a microbatch, if a later one
    /// waits for it.
    fn give_receipt(&mut self, microbatch: MicrobatchIndex) {
        let super::engine::EnginePhase::Evaluating(evaluation) = &self.phase else { return };
        let window = self.setup.plan.batch.microbatch_count;
        if self.gives_receipts() && microbatch.0 + window < evaluation.microbatch_count {
            let reader = Pass::new(0, microbatch.0);
            self.send_frame(Flow::Backward, reader, PassMode::Evaluation, Vec::new().into());
        }
    }

    fn run_held_out(&mut self, pass: Pass) -> Result<(), DeviceFault> {
        let is_first = self.setup.plan.placement().is_first(pass.chunk);
        if let Some(receipt) = self.receipt_before(pass).filter(|_| is_first) {
            self.inbox.take(self.turn, PassMode::Evaluation, Flow::Backward, receipt);
        }
        let input = self.inbox.take(self.turn, PassMode::Evaluation, Flow::Forward, pass);
        let batch = self.source.held_out(pass.microbatch.0).expect("listed because it is there");
        if let Some(loss) = self.executor.forward_only(pass, &batch, input)? {
            let loss = loss.wait()?;
            self.with_evaluation(|evaluation| {
                evaluation.loss_sum += loss;
            });
            if pass.slice.0 + 1 == self.setup.plan.program.slice_count {
                self.with_evaluation(|evaluation| {
                    evaluation.token_count += batch.targets.len() as u64;
                });
                self.give_receipt(pass.microbatch);
            }
            return Ok(());
        }
        let tensor = self.executor.take_result(Flow::Forward, pass);
        let chunk = self.setup.plan.placement().chunk_after(pass.chunk, Flow::Forward);
        let reader = Pass { chunk: chunk.expect("what has no loss has a reader"), ..pass };
        if self.executor.has_chunk(reader.chunk) {
            let mode = PassMode::Evaluation;
            let flow = Flow::Forward;
            let frame = Frame { turn: self.turn, mode, flow, pass: reader, tensor };
            let accepted = self.inbox.insert(self.turn, frame);
            assert_eq!(accepted, Ok(()), "a frame of this stage is accepted at once");
        } else {
            self.send_frame(Flow::Forward, reader, PassMode::Evaluation, tensor);
        }
        Ok(())
    }

    fn end_evaluation(&mut self, next: Turn, after: Step) {
        let super::engine::EnginePhase::Evaluating(evaluation) = &self.phase else { return };
        let Evaluation { loss_sum, token_count, .. } = *evaluation;
        if token_count > 0 {
            let steps_done = after.0 + 1;
            self.outbox.push_back(Output::Evaluated { steps_done, loss_sum, token_count });
        }
        self.continue_after(next, after);
    }
}
