//! SEND_G, RECV_G, LOCAL_G and REDUCE: the gradients of replicas become one, each replica some of its
//! floats. SEND_S, RECV_S, LOCAL_S and GATHER: all have it. SEND_C, RECV_C, LOCAL_C and GATHER_C: candidates of
//! layers that other replicas update. SEND_T, RECV_T and TIE: the two parts of a tied
//! matrix's gradient become one.

use std::ops::Range;

use zbelastic_kernels::DeviceFault;
use zbelastic_schedule::{Reduction, TreeExchange};
use zbelastic_types::ChunkIndex;

use super::events::{Output, Stop, WaitReason};
use super::executor::StageExecutor;
use super::partial::{PartialExchange, PartialGradient, PartialLength, PartialRefusal};
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
            Reduction::Receive(exchange) => self.wait_for(chunk, self.number_of(exchange))?,
            Reduction::ReceiveTied => self.wait_for(chunk, self.tied_exchange())?,
            Reduction::Send(exchange) => {
                let partial = self.partial_of(chunk, exchange, losses)?;
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
                    exchange: self.tied_exchange(),
                    floats,
                    losses: Vec::new(),
                });
            }
            Reduction::Tie => self.tie(chunk),
            Reduction::Local(exchange) => {
                let partial = self.partial_of(chunk, exchange, losses)?;
                let accepted = self.accept_partial(partial);
                assert_eq!(accepted, Ok(()), "a gradient of this stage is accepted at once");
            }
            Reduction::Merge(exchange) => self.merge(chunk, exchange, losses),
        }
        Ok(())
    }

    fn wait_for(&self, chunk: ChunkIndex, exchange: PartialExchange) -> Result<(), WaitReason> {
        let is_here = self.partials.has(chunk, exchange, self.turn);
        if is_here { Ok(()) } else { Err(WaitReason::Partial { chunk }) }
    }

    /// Adds the sum of the sibling's subtree to that of the chunk's own, left plus right, or puts the sum of
    /// all in the place of its own.
    fn merge(&mut self, chunk: ChunkIndex, exchange: TreeExchange, losses: &mut StepLosses) {
        let partial = self.partials.take(chunk, self.number_of(exchange), self.turn);
        let partial = partial.expect("it was received");
        let placement = self.setup.plan.placement();
        let first = self.merged_floats(chunk, chunk, exchange).start;
        match exchange {
            TreeExchange::Reduce(level) => {
                let side = placement.side_of(chunk, level);
                self.executor.reduce(chunk, (first, &partial.floats), side);
            }
            TreeExchange::Gather(_) => self.executor.gather(chunk, (first, &partial.floats)),
            TreeExchange::GatherCandidates(_) => {
                self.executor.gather_candidates(chunk, (first, &partial.floats));
            }
        }
        let sibling = self.sibling_in(chunk, exchange);
        for (part, loss) in self.losses_sent(sibling, exchange).zip(partial.losses) {
            losses.set_of_sibling(part, loss);
        }
    }

    fn number_of(&self, exchange: TreeExchange) -> PartialExchange {
        PartialExchange::of(self.setup.plan.placement(), exchange)
    }

    fn sibling_in(&self, chunk: ChunkIndex, exchange: TreeExchange) -> ChunkIndex {
        let sibling = self.setup.plan.placement().sibling_at(chunk, exchange.level());
        sibling.expect("only chunks with a sibling exchange gradients")
    }

    /// The floats that `merging` merges in an exchange: `chunk` or its sibling, whose gradient is as long and
    /// which need not be here.
    fn merged_floats(
        &self,
        merging: ChunkIndex,
        chunk: ChunkIndex,
        exchange: TreeExchange,
    ) -> Range<usize> {
        let placement = self.setup.plan.placement();
        let shards = placement.shards().lens(chunk, &self.executor.layer_lens(chunk));
        exchange.merged_floats(placement, merging, &shards)
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
            let partial = self.partials.take(chunk, self.tied_exchange(), self.turn);
            partial.expect("it was received").floats
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

    fn tied_exchange(&self) -> PartialExchange {
        PartialExchange::of_tied(self.setup.plan.placement())
    }

    /// How long the gradient is that `chunk` adds to its own in an exchange, if it waits for one.
    fn expected_partial(
        &self,
        chunk: ChunkIndex,
        exchange: PartialExchange,
    ) -> Option<PartialLength> {
        let plan = &self.setup.plan;
        if let Some(exchange) = exchange.between_siblings(plan.placement()) {
            let losses = self.losses_sent(self.sibling_in(chunk, exchange), exchange).len();
            return Some(PartialLength {
                floats: self.merged_floats(chunk, chunk, exchange).len(),
                losses,
            });
        }
        let waits = exchange == self.tied_exchange()
            && plan.program.is_tied()
            && self.other_end_elsewhere(chunk).is_some();
        waits.then(|| PartialLength { floats: self.executor.tied_len(), losses: 0 })
    }

    pub(super) fn accept_partial(
        &mut self,
        partial: PartialGradient,
    ) -> Result<(), PartialRefusal> {
        let chunk = partial.chunk;
        let is_here = self.executor.has_chunk(chunk);
        let expected = is_here.then(|| self.expected_partial(chunk, partial.exchange)).flatten();
        self.partials.insert(self.turn, partial, expected)
    }

    /// What `chunk` has of the floats that its sibling merges in this exchange.
    fn partial_of(
        &self,
        chunk: ChunkIndex,
        exchange: TreeExchange,
        losses: &StepLosses,
    ) -> Result<PartialGradient, DeviceFault> {
        let sibling = self.sibling_in(chunk, exchange);
        let losses = self.losses_sent(chunk, exchange).map(|part| losses.for_sibling(part));
        let losses = losses.collect::<Result<_, _>>()?;
        let floats = self.merged_floats(sibling, chunk, exchange);
        let floats = if exchange.is_of_candidates() {
            self.executor.candidates(chunk, floats)
        } else {
            self.executor.partial(chunk, floats)
        };
        let exchange = self.number_of(exchange);
        Ok(PartialGradient { turn: self.turn, chunk: sibling, exchange, floats, losses })
    }

    /// The passes whose losses go along with what `chunk` sends to be added, if it ends the model: those of
    /// its subtree, as they are counted through, microbatch by microbatch, and slice by slice within one.
    fn losses_sent(&self, chunk: ChunkIndex, exchange: TreeExchange) -> Range<usize> {
        let plan = &self.setup.plan;
        let placement = plan.placement();
        let level = match exchange {
            TreeExchange::Reduce(level) if placement.is_last(chunk) => level,
            TreeExchange::Reduce(_)
            | TreeExchange::Gather(_)
            | TreeExchange::GatherCandidates(_) => return 0..0,
        };
        let replicas = placement.replicas_below(chunk, level);
        let parts = plan.microbatches_per_replica() * plan.program.slice_count;
        (replicas.start * parts) as usize..(replicas.end * parts) as usize
    }
}
