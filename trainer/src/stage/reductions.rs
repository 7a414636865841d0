//! SEND_G, RECV_G, LOCAL_G and REDUCE: the gradients of two replicas become one.

use zbelastic_kernels::DeviceFault;
use zbelastic_schedule::Reduction;
use zbelastic_types::{ChunkIndex, MicrobatchIndex};

use super::events::{Output, Stop, WaitReason};
use super::executor::StageExecutor;
use super::partial::{PartialGradient, PartialLength, PartialRefusal};
use super::phase::StepLosses;
use super::runner::StageRunner;
use crate::data::BatchSource;

impl<W: StageExecutor, S: BatchSource> StageRunner<W, S> {
    pub(super) fn run_reduction(
        &mut self,
        reduction: Reduction,
        chunk: ChunkIndex,
        losses: &mut StepLosses,
    ) -> Result<(), Stop> {
        match reduction {
            Reduction::Receive => {
                let is_here = self.partials.has(chunk, self.turn);
                return if is_here { Ok(()) } else { Err(WaitReason::Partial { chunk }.into()) };
            }
            Reduction::Send => {
                let partial = self.partial_of(chunk, losses)?;
                let to = self.setup.plan.placement().stage_of(partial.chunk);
                let to = to.expect("a twin stands somewhere");
                self.outbox.push_back(Output::Partial { to, partial });
            }
            Reduction::Local => {
                let partial = self.partial_of(chunk, losses)?;
                let accepted = self.accept_partial(partial);
                assert_eq!(accepted, Ok(()), "a gradient of this stage is accepted at once");
            }
            Reduction::Add => {
                let partial = self.partials.take(chunk, self.turn);
                let partial = partial.expect("it was received");
                self.executor.reduce(chunk, &partial.floats);
                for (microbatch, loss) in self.losses_of_twin(chunk).zip(partial.losses) {
                    losses.set_of_twin(microbatch, loss);
                }
            }
        }
        Ok(())
    }

    pub(super) fn accept_partial(
        &mut self,
        partial: PartialGradient,
    ) -> Result<(), PartialRefusal> {
        let chunk = partial.chunk;
        let has_twin = self.setup.plan.placement().twin_of(chunk).is_some();
        let expected = (has_twin && self.executor.has_chunk(chunk)).then(|| PartialLength {
            floats: self.executor.partial_len(chunk),
            losses: self.losses_of_twin(chunk).count(),
        });
        self.partials.insert(self.turn, partial, expected)
    }

    /// What `chunk` has of the gradient, for its twin.
    fn partial_of(
        &self,
        chunk: ChunkIndex,
        losses: &StepLosses,
    ) -> Result<PartialGradient, DeviceFault> {
        let placement = self.setup.plan.placement();
        let twin = placement.twin_of(chunk).expect("only a chunk with a twin sends its gradient");
        let losses = self.losses_of_twin(twin).map(|microbatch| losses.for_twin(microbatch));
        let losses = losses.collect::<Result<_, _>>()?;
        let floats = self.executor.partial(chunk);
        Ok(PartialGradient { turn: self.turn, chunk: twin, floats, losses })
    }

    /// The microbatches whose losses the twin of `chunk` has, if it ends the model.
    fn losses_of_twin(
        &self,
        chunk: ChunkIndex,
    ) -> impl Iterator<Item = MicrobatchIndex> + use<W, S> {
        let placement = self.setup.plan.placement();
        let twin = placement.twin_of(chunk).filter(|twin| placement.is_last(*twin));
        let replica_count = placement.replica_count();
        let replica = twin.map(|twin| placement.replica_of(twin));
        let all = (0..self.setup.plan.batch.microbatch_count).map(MicrobatchIndex);
        all.filter(move |microbatch| replica == Some(microbatch.0 % replica_count))
    }
}
