//! The operations of a program, each run by the stage executor.

use zbelastic_consensus::mutant::{self, Mutant};
use zbelastic_kernels::{DeviceFault, TensorHandle};
use zbelastic_schedule::{Compute, Flow, MemoryOp, Pass, Transfer};
use zbelastic_types::{MicrobatchIndex, Step};

use super::engine::{StageEngine, WaitReason};
use super::executor::StageExecutor;
use super::frame::{Frame, PassMode};
use super::stash_store::StashStoreError;
use crate::data::{BatchSource, TokenBatch};

impl<W: StageExecutor, S: BatchSource> StageEngine<W, S> {
    fn training_batch(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        let is_again = mutant::is(Mutant::M7CursorMoves) && self.replayed.0 == step;
        let ahead = if is_again { u64::from(self.replayed.1) } else { 0 };
        self.source.training(Step(step.0 + ahead), microbatch)
    }

    /// The operand of a pass, if it comes from another chunk.
    fn take_operand(&mut self, flow: Flow, pass: Pass) -> Option<TensorHandle> {
        let operand = self.inbox.take(self.turn, PassMode::Training, flow, pass);
        let before = self.setup.plan.placement().chunk_before(pass.chunk, flow);
        assert_eq!(operand.is_none(), before.is_none(), "the operand of {pass:?} was received");
        operand
    }

    pub(super) fn run_pass(&mut self, compute: Compute, pass: Pass) -> Result<(), DeviceFault> {
        let batch = self.training_batch(self.turn.step, pass.microbatch);
        match compute {
            Compute::F => {
                let input = self.take_operand(Flow::Forward, pass);
                let loss = self.executor.forward(pass, &batch, input)?;
                if loss.is_some() {
                    let slices = self.setup.plan.program.slice_count as usize;
                    self.losses[pass.microbatch.index() * slices + pass.slice.index()] = loss;
                }
            }
            Compute::B => {
                let gradient = self.take_operand(Flow::Backward, pass);
                self.executor.backward_input(pass, &batch, gradient)?;
            }
            Compute::R => self.executor.recompute(pass, &batch),
            Compute::WE => self.executor.head_weights(pass),
            Compute::W => self.executor.backward_weights(pass, &batch),
            Compute::BW => {
                let gradient = self.take_operand(Flow::Backward, pass);
                self.executor.backward_input(pass, &batch, gradient)?;
                self.executor.backward_weights(pass, &batch);
            }
        }
        Ok(())
    }

    /// What the second store refuses is tried again when the engine runs next.
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
        let reader = || {
            let after = self.setup.plan.placement().chunk_after(pass.chunk, flow);
            Pass { chunk: after.expect("a result that is passed on has a reader"), ..pass }
        };
        match transfer {
            Transfer::Receive => {
                let is_here = self.inbox.has(self.turn, PassMode::Training, flow, pass);
                return if is_here { Ok(()) } else { Err(WaitReason::Frame { flow, pass }) };
            }
            Transfer::Send => {
                let reader = reader();
                let tensor = self.executor.take_result(flow, pass);
                self.send_frame(flow, reader, PassMode::Training, tensor);
            }
            Transfer::Local => {
                let reader = reader();
                let tensor = self.executor.take_result(flow, pass);
                let frame =
                    Frame { turn: self.turn, mode: PassMode::Training, flow, pass: reader, tensor };
                let accepted = self.inbox.insert(self.turn, frame);
                assert_eq!(accepted, Ok(()), "a frame of this stage is accepted at once");
            }
        }
        Ok(())
    }
}
