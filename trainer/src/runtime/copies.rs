//! Copies of another stage's layers, one seal behind their owner at most.

use zbelastic_consensus::message::HeldUpdate;
use zbelastic_consensus::validation::{LayerFingerprint, Seal, Turn};
use zbelastic_kernels::DeviceFault;
use zbelastic_types::{StageIndex, Step};

use super::copy_exchange::CopyExchange;
use super::peers::{MessageNumber, PeerFrameRefusal};
use crate::elastic::{GradientPart, LayerCopy, LayerImage};
use crate::outer::{OuterRequest, OuterWeights};

/// The copy of a stage's layers.
pub(super) struct StageCopy<C> {
    of: StageIndex,
    layers: Vec<C>,
    /// The turn whose seal it applies next.
    open: Turn,
    /// The turn whose whole gradient it holds.
    held: Option<Turn>,
    /// Parts of a gradient that came before the seal of the turn before it.
    early: Option<EarlyGradient>,
    exchange: CopyExchange,
}

/// The first messages of a later turn's gradient.
struct EarlyGradient {
    turn: Turn,
    /// The index of the message that is to come next.
    next: u32,
    parts: Vec<GradientPart>,
}

impl<C: LayerCopy> StageCopy<C> {
    pub(super) fn new(
        of: StageIndex,
        layers: Vec<C>,
        open: Turn,
        mut exchange: CopyExchange,
    ) -> Self {
        layers.iter().for_each(|copy| exchange.begin(copy.layer(), copy.version()));
        Self { of, layers, open, held: None, early: None, exchange }
    }

    /// An outer step of all islands has an outcome; yields the update to report if only that was missing.
    pub(super) fn receive_outer(
        &mut self,
        outer: &OuterWeights,
        attests: impl FnOnce(Step) -> bool,
    ) -> Option<HeldUpdate> {
        if !self.layers.iter().any(|copy| copy.layer() == outer.layer) {
            return None;
        }
        let was_whole = self.is_whole();
        self.exchange.receive(outer.clone());
        (!was_whole && self.is_whole()).then(|| self.update(attests(self.open.step)).ok())?
    }

    /// What is requested of the exchange between islands.
    pub(super) fn take_requests(&mut self) -> Vec<OuterRequest> {
        self.exchange.take_requests()
    }

    /// Whether all that the open turn's seal needs is here.
    fn is_whole(&self) -> bool {
        let next = self.open.step.next();
        self.held == Some(self.open)
            && self.layers.iter().all(|copy| self.exchange.allows(copy.layer(), next))
    }

    fn update(&self, attests: bool) -> Result<HeldUpdate, DeviceFault> {
        let sums = self.layers.iter().flat_map(LayerCopy::sums).collect();
        let state = if attests { self.attested()? } else { Vec::new() };
        Ok(HeldUpdate { turn: self.open, of: self.of, sums, state })
    }

    pub(super) fn of(&self) -> StageIndex {
        self.of
    }

    pub(super) fn images(&self) -> impl Iterator<Item = LayerImage> + '_ {
        self.layers.iter().map(LayerCopy::image)
    }

    pub(super) fn layers(&self) -> &[C] {
        &self.layers
    }

    /// Fingerprints of the state, in model order.
    fn attested(&self) -> Result<Vec<LayerFingerprint>, DeviceFault> {
        self.layers.iter().map(|copy| Ok((copy.layer(), copy.fingerprint()?))).collect()
    }

    /// Accepts parts of a gradient, which come in order; yields the update to report once all of
    /// it is held.
    pub(super) fn handle_gradients(
        &mut self,
        (turn, number): (Turn, MessageNumber),
        parts: Vec<GradientPart>,
        attests: bool,
    ) -> Result<Option<HeldUpdate>, PeerFrameRefusal> {
        if turn < self.open || self.held == Some(turn) {
            return Err(PeerFrameRefusal::Gradient { of: self.of, turn });
        }
        if turn > self.open {
            self.keep_early(turn, number.index, parts);
            return Ok(None);
        }
        self.hold(turn, &parts, attests)
    }

    /// Keeps parts of a later turn, in place of those of another one: an owner is one step ahead at
    /// most. No message is kept twice, so that no more of it lies here than a stage's gradient.
    fn keep_early(&mut self, turn: Turn, index: u32, parts: Vec<GradientPart>) {
        let early = self.early.take().filter(|early| (early.turn, early.next) == (turn, index));
        let begun = (index == 0).then(|| EarlyGradient { turn, next: 0, parts: Vec::new() });
        self.early = begun.or(early).map(|mut early| {
            early.next += 1;
            early.parts.extend(parts);
            early
        });
    }

    fn hold(
        &mut self,
        turn: Turn,
        parts: &[GradientPart],
        attests: bool,
    ) -> Result<Option<HeldUpdate>, PeerFrameRefusal> {
        let refusal = || PeerFrameRefusal::Gradient { of: self.of, turn };
        for part in parts {
            let copy = self.layers.iter_mut().find(|copy| copy.layer() == part.layer());
            // A gradient held half-way is not held: the whole of another may replace it.
            copy.ok_or_else(refusal)?.hold(part).map_err(|_| refusal())?;
        }
        if self.layers.iter().any(|copy| copy.held() != Some(turn)) {
            return Ok(None);
        }
        self.held = Some(turn);
        if !self.is_whole() {
            // It is reported with the outcome of an outer step.
            return Ok(None);
        }
        self.update(attests).map(Some).map_err(|_| refusal())
    }

    /// Applies a seal; yields the update to report of a gradient that waited for it.
    pub(super) fn settle(&mut self, seal: &Seal, attests: bool) -> Option<HeldUpdate> {
        if seal.turn != self.open {
            return None;
        }
        let is_held = self.held == Some(seal.turn);
        if seal.verdict.coefficient().is_some() && !is_held {
            // Without its gradient the copy stays behind, and so does its version.
            return None;
        }
        let next = seal.next_turn();
        let is_final = seal.verdict.is_final();
        let allows = |copy: &C| self.exchange.allows(copy.layer(), next.step);
        if is_final && !self.layers.iter().all(allows) {
            return None;
        }
        for copy in &mut self.layers {
            copy.apply(seal).expect("the copy holds the open turn's gradient");
            if is_final {
                self.exchange.advance(copy);
            }
        }
        self.open = next;
        self.held = None;
        let EarlyGradient { turn, parts, .. } =
            self.early.take_if(|early| early.turn == self.open)?;
        self.hold(turn, &parts, attests).ok()?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zbelastic_consensus::validation::{Reason, TensorSum, Verdict};
    use zbelastic_types::{Attempt, Digest, Generation, LayerId};

    use super::*;
    use crate::elastic::{CopyRefusal, FrameLimits, GradientProgress, LayerGradient};

    /// Floats of each of two layers, and what fits into a message.
    const FLOATS: usize = 5;
    const LIMITS: FrameLimits = FrameLimits { parts: 8, floats: 4 };

    /// Counts what it holds, and computes nothing.
    struct CountingCopy {
        layer: LayerId,
        version: Step,
        held: GradientProgress,
        /// Outer weights that were mixed in.
        mixed: u32,
    }

    impl LayerCopy for CountingCopy {
        fn layer(&self) -> LayerId {
            self.layer
        }

        fn version(&self) -> Step {
            self.version
        }

        fn hold(&mut self, part: &GradientPart) -> Result<(), CopyRefusal> {
            self.held.count(part, FLOATS)
        }

        fn held(&self) -> Option<Turn> {
            self.held.whole(FLOATS)
        }

        fn sums(&self) -> Vec<TensorSum> {
            Vec::new()
        }

        fn apply(&mut self, seal: &Seal) -> Result<(), CopyRefusal> {
            self.version = seal.turn.step.next();
            self.held.clear();
            Ok(())
        }

        fn mix_outer(&mut self, outer: &OuterWeights) {
            assert_eq!(outer.version, self.version, "an outcome is mixed into its version");
            self.mixed += 1;
        }

        fn image(&self) -> LayerImage {
            unreachable!("no test calls it")
        }

        fn digest(&self) -> Digest {
            unreachable!("no test calls it")
        }
    }

    fn turn(step: u64) -> Turn {
        Turn { generation: Generation(1), attempt: Attempt(0), step: Step(step) }
    }

    fn copy() -> StageCopy<CountingCopy> {
        let layer = |layer| {
            let held = GradientProgress::default();
            CountingCopy { layer: LayerId(layer), version: Step(4), held, mixed: 0 }
        };
        let exchange = CopyExchange::new(None);
        StageCopy::new(StageIndex(0), vec![layer(0), layer(1)], turn(4), exchange)
    }

    /// Three messages: of layer 0, of both, of layer 1.
    fn messages(step: u64) -> Vec<(MessageNumber, Vec<GradientPart>)> {
        let gradient = |layer| {
            let g = vec![0.0; FLOATS].into();
            Arc::new(LayerGradient { layer: LayerId(layer), turn: turn(step), g })
        };
        let messages = GradientPart::messages(&[gradient(0), gradient(1)], LIMITS);
        let count = messages.len() as u32;
        (0..).zip(messages).map(|(index, m)| (MessageNumber { index, count }, m)).collect()
    }

    /// Delivers the messages of a step with these indices; yields whether the last made it whole.
    fn deliver(copy: &mut StageCopy<CountingCopy>, step: u64, indices: &[usize]) -> Option<bool> {
        let all = messages(step);
        let results = indices.iter().map(|index| {
            let (number, parts) = all[*index].clone();
            copy.handle_gradients((turn(step), number), parts, false)
        });
        results.last().and_then(|result| result.ok().map(|held| held.is_some()))
    }

    fn seal(step: u64) -> Seal {
        Seal {
            turn: turn(step),
            verdict: Verdict::Keep,
            reason: Reason::Sound,
            square_sum_bits: 0,
            loss_sum_bits: 0,
            updates_after: step + 1,
            cursor_after: Step(step + 1),
        }
    }

    #[test]
    fn a_gradient_is_held_with_its_last_message_and_not_before() {
        let mut copy = copy();
        assert_eq!(messages(4).len(), 3);
        assert_eq!(deliver(&mut copy, 4, &[0, 1]), Some(false));
        assert!(copy.settle(&seal(4), false).is_none());
        assert_eq!(copy.open, turn(4), "a copy without its gradient stays behind");
        assert_eq!(deliver(&mut copy, 4, &[2]), Some(true));
        copy.settle(&seal(4), false);
        assert_eq!(copy.open, turn(5));
    }

    #[test]
    fn a_gradient_of_which_a_message_was_lost_is_refused_and_the_whole_of_it_taken() {
        let mut copy = copy();
        assert_eq!(deliver(&mut copy, 4, &[0, 2]), None);
        assert_eq!(deliver(&mut copy, 4, &[0, 1, 2]), Some(true));
        assert_eq!(deliver(&mut copy, 4, &[0]), None, "it is held already");
    }

    #[test]
    fn what_comes_before_the_seal_waits_for_it_and_no_message_waits_twice() {
        let mut copy = copy();
        assert_eq!(deliver(&mut copy, 4, &[0, 1, 2]), Some(true));
        assert_eq!(deliver(&mut copy, 5, &[0, 1]), Some(false));
        assert_eq!(copy.early.as_ref().map(|early| early.parts.len()), Some(3));
        assert!(copy.settle(&seal(4), false).is_none(), "one message is missing");
        assert_eq!(deliver(&mut copy, 5, &[2]), Some(true), "the others were not lost");
        assert_eq!(deliver(&mut copy, 6, &[0, 1, 1]), Some(false));
        assert!(copy.early.is_none(), "one came twice: it is no message of this gradient");
        assert_eq!(deliver(&mut copy, 6, &[0, 1, 2]), Some(false));
        assert!(copy.settle(&seal(5), false).is_some_and(|held| held.turn == turn(6)));
    }
}
