//! SEND_G, RECV_G, LOCAL_G and REDUCE: the gradients of replicas become one. SEND_T, RECV_T and
//! TIE: so do the two parts of a tied matrix's gradient.

use std::ops::Range;

use zbelastic_kernels::DeviceFault;
use zbelastic_schedule::{Reduction, TreeLevel};
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
            Reduction::Receive(level) => self.wait_for(chunk, PartialExchange::of_level(level))?,
            Reduction::ReceiveTied => self.wait_for(chunk, self.tied_exchange())?,
            Reduction::Send(level) => {
                let partial = self.partial_of(chunk, level, losses)?;
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
            Reduction::Local(level) => {
                let partial = self.partial_of(chunk, level, losses)?;
                let accepted = self.accept_partial(partial);
                assert_eq!(accepted, Ok(()), "a gradient of this stage is accepted at once");
            }
            Reduction::Add(level) => self.add_subtree(chunk, level, losses),
        }
        Ok(())
    }

    fn wait_for(&self, chunk: ChunkIndex, exchange: PartialExchange) -> Result<(), WaitReason> {
        let is_here = self.partials.has(chunk, exchange, self.turn);
        if is_here { Ok(()) } else { Err(WaitReason::Partial { chunk }) }
    }

    /// Adds the sum of the sibling's subtree to that of the chunk's own, left plus right.
    fn add_subtree(&mut self, chunk: ChunkIndex, level: TreeLevel, losses: &mut StepLosses) {
        let partial = self.partials.take(chunk, PartialExchange::of_level(level), self.turn);
        let partial = partial.expect("it was received");
        let placement = self.setup.plan.placement();
        let sibling = placement.sibling_at(chunk, level).expect("only a chunk with a sibling adds");
        self.executor.reduce(chunk, &partial.floats, placement.side_of(chunk, level));
        for (part, loss) in self.losses_below(sibling, level).zip(partial.losses) {
            losses.set_of_sibling(part, loss);
        }
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
        if let Some(level) = exchange.level(plan.placement()) {
            let sibling = plan.placement().sibling_at(chunk, level)?;
            let losses = self.losses_below(sibling, level).len();
            return Some(PartialLength { floats: self.executor.partial_len(chunk), losses });
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

    /// What `chunk` has of the gradient at this level, for its sibling.
    fn partial_of(
        &self,
        chunk: ChunkIndex,
        level: TreeLevel,
        losses: &StepLosses,
    ) -> Result<PartialGradient, DeviceFault> {
        let placement = self.setup.plan.placement();
        let sibling = placement.sibling_at(chunk, level);
        let sibling = sibling.expect("only a chunk with a sibling sends its gradient");
        let losses = self.losses_below(chunk, level).map(|part| losses.for_sibling(part));
        let losses = losses.collect::<Result<_, _>>()?;
        let floats = self.executor.partial(chunk);
        let exchange = PartialExchange::of_level(level);
        Ok(PartialGradient { turn: self.turn, chunk: sibling, exchange, floats, losses })
    }

    /// The passes whose losses are known where `chunk` ends the model, at this level of the tree, as
    /// they are counted through: microbatch by microbatch, and slice by slice within one.
    fn losses_below(&self, chunk: ChunkIndex, level: TreeLevel) -> Range<usize> {
        let plan = &self.setup.plan;
        let placement = plan.placement();
        if !placement.is_last(chunk) {
            return 0..0;
        }
        let replicas = placement.replicas_below(chunk, level);
        let parts = plan.microbatches_per_replica() * plan.program.slice_count;
        (replicas.start * parts) as usize..(replicas.end * parts) as usize
    }
}
