//! A region whose order is found while it runs (AMPNet: Gaunt et al., arXiv 1705.09786).
//!
//! A stage runs the passes that are ready, backward passes before forward ones, and records each of
//! them, so that the order can be shown, checked and run again. The first stage admits as many
//! microbatches as may be in flight. The order depends on the times of arrivals: an executor learns
//! these from its neighbours' messages, the simulator from its clock.

use std::collections::{BTreeSet, VecDeque};

use zbelastic_types::{ChunkIndex, MicrobatchIndex};

use super::op::{AsyncOp, DynamicOptions, DynamicRule, WeightVersion};
use crate::op::{Compute, Flow, Pass, Transfer};

/// The microbatches that a stage has in flight, and the order it has found so far.
#[derive(Clone, Debug)]
pub struct DynamicRegion {
    dynamic: DynamicOptions,
    chunk: ChunkIndex,
    is_first: bool,
    is_last: bool,
    microbatches: u32,
    /// Microbatches whose F has run and whose BW has not.
    in_flight: BTreeSet<MicrobatchIndex>,
    begun: u32,
    done: u32,
    version: u32,
    accumulated: u32,
    /// The operations that were chosen and have not run yet.
    chosen: VecDeque<AsyncOp>,
    /// The operations that have run, in their order.
    executed: Vec<AsyncOp>,
}

/// Operands that have come from other stages and were not used yet.
pub type ArrivedOperands = BTreeSet<(Flow, MicrobatchIndex)>;

impl DynamicRegion {
    /// The region of `chunk`, one of `chunk_count` on a line, before its first operation.
    #[must_use]
    pub fn new(
        dynamic: DynamicOptions,
        chunk: ChunkIndex,
        chunk_count: u32,
        microbatches: u32,
    ) -> Self {
        Self {
            dynamic,
            chunk,
            is_first: chunk.0 == 0,
            is_last: chunk.0 + 1 == chunk_count,
            microbatches,
            in_flight: BTreeSet::new(),
            begun: 0,
            done: 0,
            version: 0,
            accumulated: 0,
            chosen: VecDeque::new(),
            executed: Vec::new(),
        }
    }

    /// Chooses among the operands that have arrived, unless operations are left of the last choice;
    /// nothing, if nothing is ready.
    pub fn choose(&mut self, arrived: &ArrivedOperands) {
        if !self.chosen.is_empty() {
            return;
        }
        match self.choice(arrived) {
            Some((Flow::Forward, microbatch)) => self.take_forward(microbatch),
            Some((Flow::Backward, microbatch)) => self.take_backward(microbatch),
            None => {}
        }
    }

    /// The operation that is next of the chosen pass.
    #[must_use]
    pub fn next_op(&self) -> Option<AsyncOp> {
        self.chosen.front().copied()
    }

    /// Records that the next operation has run.
    ///
    /// # Panics
    /// If no operation was next.
    pub fn finish_op(&mut self) {
        let op = self.chosen.pop_front();
        self.executed.push(op.expect("an operation that has run was chosen before"));
    }

    /// The order found so far.
    #[must_use]
    pub fn executed_ops(&self) -> &[AsyncOp] {
        &self.executed
    }

    /// Whether every microbatch went through.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done == self.microbatches && self.chosen.is_empty()
    }

    /// The microbatch that the rule chooses, of those whose operand has arrived or that need none
    /// from another stage, with its direction.
    pub(super) fn choice(&self, arrived: &ArrivedOperands) -> Option<(Flow, MicrobatchIndex)> {
        let of = |flow| {
            let of_flow = arrived.iter().filter(move |(found, _)| *found == flow);
            of_flow.map(|(_, microbatch)| *microbatch).collect::<Vec<_>>()
        };
        let backward = if self.is_last {
            self.in_flight.iter().copied().collect()
        } else {
            of(Flow::Backward)
        };
        let forward = if self.is_first { self.admitted() } else { of(Flow::Forward) };
        let chosen = |flow, ready: Vec<_>| Some((flow, self.preferred(&ready)?));
        chosen(Flow::Backward, backward).or_else(|| chosen(Flow::Forward, forward))
    }

    /// The next microbatch of the run, if one more may be in flight.
    fn admitted(&self) -> Vec<MicrobatchIndex> {
        let is_below_cap = self.in_flight.len() < self.dynamic.cap as usize;
        let is_left = self.begun < self.microbatches;
        if is_below_cap && is_left { vec![MicrobatchIndex(self.begun)] } else { Vec::new() }
    }

    fn preferred(&self, ready: &[MicrobatchIndex]) -> Option<MicrobatchIndex> {
        match self.dynamic.rule {
            DynamicRule::Oldest => ready.iter().min().copied(),
            DynamicRule::Newest => ready.iter().max().copied(),
        }
    }

    fn take_forward(&mut self, microbatch: MicrobatchIndex) {
        let pass = Pass::new(self.chunk.0, microbatch.0);
        let of = |transfer| AsyncOp::Transfer(transfer, Flow::Forward, pass);
        self.chosen.extend((!self.is_first).then(|| of(Transfer::Receive)));
        let version = WeightVersion::new(self.version);
        self.chosen.push_back(AsyncOp::Compute(Compute::F, pass, version));
        self.chosen.extend((!self.is_last).then(|| of(Transfer::Send)));
        self.in_flight.insert(microbatch);
        self.begun += 1;
    }

    fn take_backward(&mut self, microbatch: MicrobatchIndex) {
        let pass = Pass::new(self.chunk.0, microbatch.0);
        let of = |transfer| AsyncOp::Transfer(transfer, Flow::Backward, pass);
        self.chosen.extend((!self.is_last).then(|| of(Transfer::Receive)));
        let version = WeightVersion::new(self.version);
        self.chosen.push_back(AsyncOp::Compute(Compute::BW, pass, version));
        self.chosen.extend((!self.is_first).then(|| of(Transfer::Send)));
        self.in_flight.remove(&microbatch);
        self.done += 1;
        self.accumulated += 1;
        let is_complete = self.accumulated == self.dynamic.update_every;
        if is_complete || self.done == self.microbatches {
            self.accumulated = 0;
            self.version += 1;
            self.chosen.push_back(AsyncOp::Step(self.chunk, WeightVersion::new(self.version)));
        }
    }
}
