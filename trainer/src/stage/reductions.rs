//! SEND_G, RECV_G, LOCAL_G and REDUCE: the gradients of two replicas become one. SEND_T, RECV_T and
//! TIE: so do the two parts of a tied matrix's gradient.

use zbelastic_kernels::DeviceFault;
use zbelastic_schedule::Reduction;
use zbelastic_types::{ChunkIndex, MicrobatchIndex};

use super::events::{Output, Stop, WaitReason};
use super::executor::StageExecutor;
use super::partial::{PartialGradient, PartialLength, PartialRefusal};
use super::phase::StepLosses;
use super::runner::StageRunner;
use crate::data::BatchSource;
use crate::model::{TiedEnd, TiedParts};

impl<W: StageExecutor, S: BatchSource> StageRunner<W, S> {
    pub(super) fn run_reduction(
        &mut self,
        reduction: Reduction,
        chunk: ChunkIndex,
        losses: &mut StepLosses,
    ) -> Result<(), Stop> {
        match reduction {
            Reduction::Receive | Reduction::ReceiveTied => {
                let is_here = self.partials.has(chunk, self.turn);
                return if is_here { Ok(()) } else { Err(WaitReason::Partial { chunk }.into()) };
            }
            Reduction::Send => {
                let partial = self.partial_of(chunk, losses)?;
                self.send_partial(partial);
            }
            Reduction::SendTied => {
                let placement = self.setup.plan.placement();
                let other = placement.other_end_of(chunk).expect("an end sends its part");
                let floats = self.executor.tied_part(chunk, self.end_of(chunk));
                let turn = self.turn;
                self.send_partial(PartialGradient {
                    turn,
                    chunk: other,
                    floats,
                    losses: Vec::new(),
                });
            }
            Reduction::Tie => self.tie(chunk),
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

    fn send_partial(&mut self, partial: PartialGradient) {
        let to = self.setup.plan.placement().stage_of(partial.chunk);
        let to = to.expect("a chunk that adds a gradient stands somewhere");
        self.outbox.push_back(Output::Partial { to, partial });
    }

    /// Both parts of the tied matrix's gradient are added at `chunk`, and at the other end as well
    /// if it is on this stage.
    fn tie(&mut self, chunk: ChunkIndex) {
        let end = self.end_of(chunk);
        let mut ends = vec![(chunk, end)];
        let own = self.executor.tied_part(chunk, end);
        let other = if let Some(other) = self.other_end_elsewhere(chunk) {
            assert!(!self.executor.has_chunk(other), "what is here is not sent");
            self.partials.take(chunk, self.turn).expect("it was received").floats
        } else {
            let head = self.setup.plan.placement().other_end_of(chunk);
            let head = head.expect("an end has another");
            ends.push((head, TiedEnd::Head));
            self.executor.tied_part(head, TiedEnd::Head)
        };
        let parts = match end {
            TiedEnd::Embedding => TiedParts { head: other, embedding: own },
            TiedEnd::Head => TiedParts { head: own, embedding: other },
        };
        self.executor.tie(&ends, parts);
    }

    /// The end of the model that `chunk` is at; of one that is all of it, the embedding.
    fn end_of(&self, chunk: ChunkIndex) -> TiedEnd {
        let is_first = self.setup.plan.placement().is_first(chunk);
        if is_first { TiedEnd::Embedding } else { TiedEnd::Head }
    }

    /// The other end of the model, if it is on another stage.
    fn other_end_elsewhere(&self, chunk: ChunkIndex) -> Option<ChunkIndex> {
        let placement = self.setup.plan.placement();
        let is_elsewhere =
            |other: &ChunkIndex| placement.stage_of(*other) != placement.stage_of(chunk);
        placement.other_end_of(chunk).filter(is_elsewhere)
    }

    /// How long a gradient that `chunk` adds to its own is, if it waits for one.
    fn expected_partial(&self, chunk: ChunkIndex) -> Option<PartialLength> {
        let plan = &self.setup.plan;
        if plan.placement().twin_of(chunk).is_some() {
            let losses = self.losses_of_twin(chunk).count();
            return Some(PartialLength { floats: self.executor.partial_len(chunk), losses });
        }
        let waits = plan.program.is_tied() && self.other_end_elsewhere(chunk).is_some();
        waits.then(|| PartialLength { floats: self.executor.tied_len(), losses: 0 })
    }

    pub(super) fn accept_partial(
        &mut self,
        partial: PartialGradient,
    ) -> Result<(), PartialRefusal> {
        let chunk = partial.chunk;
        let is_here = self.executor.has_chunk(chunk);
        let expected = is_here.then(|| self.expected_partial(chunk)).flatten();
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
        let count = placement.microbatches_per_replica(self.setup.plan.batch.microbatch_count);
        let of_twin = twin.map_or(0..0, |twin| {
            let replica = placement.replica_of(twin);
            replica * count..(replica + 1) * count
        });
        of_twin.map(MicrobatchIndex)
    }
}
