//! A layer of the digest model: as a stage trains it, and as another node copies it.

use zbelastic_consensus::validation::{Seal, TensorSum, Turn};
use zbelastic_trainer::elastic::{
    CopyRefusal, GradientPart, GradientProgress, LayerCopy, LayerImage, layer_digest,
};
use zbelastic_trainer::outer::OuterWeights;
use zbelastic_trainer::stage::UpdateRequest;
use zbelastic_types::{Digest, LayerId, Step};

use crate::digest_model::{DigestGradient, DigestLayerState, DigestShape, FRAME_LEN};

/// A layer of a stage executor.
#[derive(Clone, Debug)]
pub(crate) struct DigestLayer {
    pub(crate) id: LayerId,
    pub(crate) version: Step,
    pub(crate) state: DigestLayerState,
    pub(crate) candidate: Option<u64>,
    pub(crate) g: DigestGradient,
    /// Whether other replicas compute its candidates, and have its moments.
    pub(crate) is_gathered: bool,
}

impl DigestLayer {
    pub(crate) fn of_image(image: &LayerImage) -> Self {
        let state = DigestLayerState::of_image(image);
        let id = image.layer;
        let version = image.version;
        let g = DigestGradient::default();
        Self { id, version, state, candidate: None, g, is_gathered: false }
    }

    /// A layer whose candidates others compute: moments of the image are not kept.
    pub(crate) fn gathered(image: &LayerImage) -> Self {
        let state = DigestLayerState::of_image(image).without_moments();
        Self { is_gathered: true, state, ..Self::of_image(image) }
    }

    pub(crate) fn live(&self) -> u64 {
        self.candidate.unwrap_or(self.state.weights())
    }

    pub(crate) fn commit(&mut self, update: UpdateRequest) {
        if self.is_gathered && self.candidate.is_none() {
            // It did not come: the layer is not sealed, and not read any more.
            return;
        }
        assert_eq!(self.version, update.step, "R8: a verdict is applied once");
        let candidate = self.candidate.take().expect("a candidate is committed");
        let state = self.state.committed(candidate, self.g, update.clip);
        self.state = if self.is_gathered { state.without_moments() } else { state };
        self.version = update.step.next();
    }

    pub(crate) fn skip(&mut self, step: Step) {
        assert_eq!(self.version, step, "R8: a verdict is applied once");
        (self.candidate, self.version) = (None, step.next());
    }
}

/// A copy of a layer on hashes.
pub struct DigestLayerCopy {
    shape: DigestShape,
    layer: DigestLayer,
    /// The floats of a gradient, as far as they came.
    floats: [f32; FRAME_LEN],
    held: GradientProgress,
}

impl DigestLayerCopy {
    /// A copy of the layer of an image.
    pub(crate) fn new(shape: DigestShape, image: &LayerImage) -> Self {
        let layer = DigestLayer::of_image(image);
        Self { shape, layer, floats: [0.0; FRAME_LEN], held: GradientProgress::default() }
    }
}

impl LayerCopy for DigestLayerCopy {
    fn layer(&self) -> LayerId {
        self.layer.id
    }

    fn version(&self) -> Step {
        self.layer.version
    }

    fn hold(&mut self, part: &GradientPart) -> Result<(), CopyRefusal> {
        let expected = self.layer.version;
        let found = part.turn().step;
        if expected != found {
            return Err(CopyRefusal::OtherStep { expected, found });
        }
        if part.layer() != self.layer.id {
            return Err(CopyRefusal::OtherLayer);
        }
        let floats = part.wait().map_err(|_| CopyRefusal::DeviceFailed)?;
        self.held.count(part, FRAME_LEN)?;
        self.floats[part.first()..][..part.len()].copy_from_slice(&floats);
        if self.held().is_some() {
            self.layer.g = DigestGradient::of_floats(&self.floats);
        }
        Ok(())
    }

    fn held(&self) -> Option<Turn> {
        self.held.whole(FRAME_LEN)
    }

    fn sums(&self) -> Vec<TensorSum> {
        self.shape.sums(self.layer.id, self.layer.g)
    }

    fn apply(&mut self, seal: &Seal) -> Result<(), CopyRefusal> {
        let step = seal.turn.step;
        let turn = seal.turn;
        let expected = self.layer.version;
        let found = step;
        if expected != found {
            return Err(CopyRefusal::OtherStep { expected, found });
        }
        match seal.verdict.coefficient() {
            Some(_) if self.held() != Some(turn) => return Err(CopyRefusal::NoGradient { turn }),
            Some(clip) => {
                let update = UpdateRequest { step, number: seal.updates_after, clip };
                self.layer.candidate = Some(self.layer.state.candidate(self.layer.g, update));
                self.layer.commit(update);
            }
            None if seal.verdict.is_final() => self.layer.skip(step),
            None => {}
        }
        self.held.clear();
        Ok(())
    }

    fn mix_outer(&mut self, outer: &OuterWeights) {
        self.layer.state = self.layer.state.mixed(outer);
    }

    fn image(&self) -> LayerImage {
        self.layer.state.image(self.layer.id, self.layer.version)
    }

    fn digest(&self) -> Digest {
        layer_digest(&self.image())
    }
}
