//! Copies of another stage's layers, one seal behind their owner at most.

use std::sync::Arc;

use zbelastic_consensus::message::HeldUpdate;
use zbelastic_consensus::validation::{LayerFingerprint, Seal, Turn};
use zbelastic_types::StageIndex;

use super::peers::PeerRefusal;
use crate::elastic::{LayerCopy, LayerGradient, LayerImage};

/// The copy of a stage's layers.
pub(super) struct StageCopy<C> {
    of: StageIndex,
    layers: Vec<C>,
    /// The turn whose seal it applies next.
    open: Turn,
    /// The turn whose gradient it holds.
    held: Option<Turn>,
    /// A gradient that came before the seal of the turn before it.
    early: Option<(Turn, Arc<Vec<LayerGradient>>)>,
}

impl<C: LayerCopy> StageCopy<C> {
    pub(super) fn new(of: StageIndex, layers: Vec<C>, open: Turn) -> Self {
        Self { of, layers, open, held: None, early: None }
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
    fn attested(&self) -> Vec<LayerFingerprint> {
        self.layers.iter().map(|copy| (copy.layer(), copy.fingerprint())).collect()
    }

    /// Takes a gradient; yields what is to be told once it is held.
    pub(super) fn handle_gradients(
        &mut self,
        turn: Turn,
        gradients: Arc<Vec<LayerGradient>>,
        attests: bool,
    ) -> Result<Option<HeldUpdate>, PeerRefusal> {
        if turn < self.open || self.held == Some(turn) {
            return Err(PeerRefusal::Gradient { of: self.of, turn });
        }
        if turn > self.open {
            self.early = Some((turn, gradients));
            return Ok(None);
        }
        self.hold(turn, &gradients, attests).map(Some)
    }

    fn hold(
        &mut self,
        turn: Turn,
        gradients: &[LayerGradient],
        attests: bool,
    ) -> Result<HeldUpdate, PeerRefusal> {
        let refusal = || PeerRefusal::Gradient { of: self.of, turn };
        let mut sums = Vec::new();
        // A gradient taken half-way is not held: the whole of another may take its place.
        for copy in &mut self.layers {
            let gradient = gradients.iter().find(|gradient| gradient.layer == copy.layer());
            let gradient = gradient.ok_or_else(refusal)?;
            sums.extend(copy.hold(gradient).map_err(|_| refusal())?);
        }
        self.held = Some(turn);
        let state = if attests { self.attested() } else { Vec::new() };
        Ok(HeldUpdate { turn, of: self.of, sums, state })
    }

    /// Applies a seal; yields what is to be told of a gradient that waited for it.
    pub(super) fn settle(&mut self, seal: &Seal, attests: bool) -> Option<HeldUpdate> {
        if seal.turn != self.open {
            return None;
        }
        let is_held = self.held == Some(seal.turn);
        if seal.verdict.coefficient().is_some() && !is_held {
            // Without its gradient the copy stays behind; its version says so.
            return None;
        }
        for copy in &mut self.layers {
            copy.apply(seal).expect("the copy holds the open turn's gradient");
        }
        self.open = seal.next_turn();
        self.held = None;
        let (turn, gradients) = self.early.take_if(|(turn, _)| *turn == self.open)?;
        self.hold(turn, &gradients, attests).ok()
    }
}
