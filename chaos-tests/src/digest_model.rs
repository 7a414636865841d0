//! A compute model in which a tensor is a number of 64 bits, and every operation a hash of its
//! inputs.
//!
//! It has no arithmetic to be right or wrong about, so it is quick; and a contribution that is
//! stale, missing, there twice or out of order changes every number after it, so nothing is lost on
//! it. The engine that runs it is the one that trains: this is only the model that the engine
//! computes with.

use zbelastic_consensus::validation::TensorSum;
use zbelastic_trainer::data::{BatchSource, TokenBatch};
use zbelastic_trainer::elastic::LayerImage;
use zbelastic_trainer::outer::OuterWeights;
use zbelastic_trainer::stage::UpdateRequest;
use zbelastic_types::{LayerId, MicrobatchIndex, SliceIndex, Step, TensorIndex};

/// Floats of anything that travels: the two halves of a number, and a mark for numbers that are not
/// finite.
pub(crate) const FRAME_LEN: usize = 3;

/// The place of the mark among them.
const MARK: usize = FRAME_LEN - 1;

/// How much larger the square of a spike is.
const SPIKE_SCALE: f64 = 1e4;

/// Mixes two numbers so that each bit of either changes half of the result's.
#[must_use]
pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(23) ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= x >> 32;
    x = x.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^= x >> 29;
    x = x.wrapping_mul(0xA3EC_647A_1A58_5E1D);
    x ^ (x >> 32)
}

fn mix_all(parts: &[u64]) -> u64 {
    parts.iter().fold(0x243F_6A88_85A3_08D3, |hash, part| mix(hash, *part))
}

/// A number in `[0, 1)`.
fn share(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

pub(crate) fn pack(hash: u64, mark: f32) -> Vec<f32> {
    vec![f32::from_bits(hash as u32), f32::from_bits((hash >> 32) as u32), mark]
}

pub(crate) fn unpack(floats: &[f32]) -> u64 {
    u64::from(floats[0].to_bits()) | u64::from(floats[1].to_bits()) << 32
}

/// A float of a layer's gradient, at this place among its floats, of the sum of two lanes or subtrees of
/// lanes: whoever adds only some of the floats makes those of the whole sum.
pub(crate) fn reduced_float(place: usize, left: f32, right: f32) -> f32 {
    if place == MARK {
        return left + right;
    }
    let parts = [left, right].map(|float| u64::from(float.to_bits()));
    f32::from_bits(mix_all(&[parts[0], parts[1], place as u64, 43]) as u32)
}

/// Floats of a layer that islands exchange, 16 bits of its weights each.
pub(crate) const EXCHANGED_FLOATS: usize = 4;

/// How the model is cut out.
#[derive(Clone, Debug)]
pub struct DigestShape {
    /// The seed of the run.
    pub seed: u64,
    /// Tensors in each layer.
    pub layer_tensors: Vec<u32>,
    /// The share of gradients that are far larger than others: batches of bad text.
    pub spike_share: f64,
}

impl DigestShape {
    /// Layers of the model.
    #[must_use]
    pub fn layer_count(&self) -> u32 {
        self.layer_tensors.len() as u32
    }

    fn first_tensor(&self, layer: LayerId) -> u32 {
        self.layer_tensors[..layer.index()].iter().sum()
    }

    /// The state of a layer before the first step.
    #[must_use]
    pub fn initial(&self, layer: LayerId) -> DigestLayerState {
        let number = |purpose| mix_all(&[self.seed, u64::from(layer.0), purpose]);
        DigestLayerState { w: number(1), m: 0, v: 0 }
    }

    /// The sums that a gradient leads to.
    #[must_use]
    pub fn sums(&self, layer: LayerId, g: DigestGradient) -> Vec<TensorSum> {
        let first = self.first_tensor(layer);
        let count = self.layer_tensors[layer.index()];
        let sum = |offset: u32| {
            let hash = mix_all(&[g.hash, u64::from(offset), 7]);
            let is_spike = share(mix_all(&[g.hash, 9])) < self.spike_share;
            let scale = if is_spike { SPIKE_SCALE } else { 1.0 };
            let mut square_sum = scale * (0.05 + share(hash));
            let mut nonfinite = 0;
            if offset == 0 && !g.mark.is_finite() {
                (square_sum, nonfinite) = (f64::from(g.mark * g.mark), 1);
            }
            TensorSum { tensor: TensorIndex(first + offset), square_sum, nonfinite }
        };
        (0..count).map(sum).collect()
    }
}

/// The state of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestLayerState {
    w: u64,
    m: u64,
    v: u64,
}

/// A layer's gradient: a number, and the mark of one that is not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DigestGradient {
    hash: u64,
    mark: f32,
}

impl DigestGradient {
    /// With a mark of a number that is not finite.
    #[must_use]
    pub fn marked(self, mark: f32) -> Self {
        Self { mark, ..self }
    }

    /// The gradient as floats, as it travels.
    #[must_use]
    pub fn floats(self) -> Vec<f32> {
        pack(self.hash, self.mark)
    }

    /// The gradient from floats, as it arrived.
    #[must_use]
    pub fn of_floats(floats: &[f32]) -> Self {
        Self { hash: unpack(floats), mark: floats[MARK] }
    }

    /// Adds a microbatch's share.
    #[must_use]
    pub fn plus(self, share: u64) -> Self {
        Self { hash: mix(self.hash, share), mark: self.mark }
    }

    /// The sum of two lanes, or of two subtrees of lanes, float by float: this one is on the left.
    #[must_use]
    pub fn reduced(self, second: Self) -> Self {
        let (left, right) = (self.floats(), second.floats());
        let sum = |place| reduced_float(place, left[place], right[place]);
        Self::of_floats(&(0..FRAME_LEN).map(sum).collect::<Vec<_>>())
    }

    /// The gradient of a layer at an end of a tied model: its own, and the head's part plus the
    /// embedding's of the matrix that both have.
    #[must_use]
    pub fn tied(self, head: Self, embedding: Self) -> Self {
        let hash = mix_all(&[self.hash, head.hash, embedding.hash, 47]);
        Self { hash, mark: head.mark + embedding.mark }
    }
}

impl DigestLayerState {
    /// The weights that the passes read.
    #[must_use]
    pub fn weights(&self) -> u64 {
        self.w
    }

    /// The weights of a step that is not sealed yet.
    #[must_use]
    pub fn candidate(&self, g: DigestGradient, update: UpdateRequest) -> u64 {
        let UpdateRequest { step, number, clip } = update;
        let clip = u64::from(clip.to_bits());
        mix_all(&[self.w, self.m, self.v, g.hash, step.0, number, clip])
    }

    /// The state in which a candidate is committed.
    #[must_use]
    pub fn committed(&self, candidate: u64, g: DigestGradient, clip: f32) -> Self {
        let bits = u64::from(clip.to_bits());
        let m = mix_all(&[self.m, g.hash, bits, 11]);
        Self { w: candidate, m, ..self.with_second_moment(g, clip) }
    }

    /// The weights alone, as a replica has them that gets candidates from another.
    #[must_use]
    pub fn without_moments(&self) -> Self {
        Self { w: self.w, m: 0, v: 0 }
    }

    /// The state with nothing but its second moments moved on.
    #[must_use]
    pub fn with_second_moment(&self, g: DigestGradient, clip: f32) -> Self {
        let v = mix_all(&[self.v, g.hash, u64::from(clip.to_bits()), 13]);
        Self { v, ..*self }
    }

    /// The weights as islands exchange them: finite floats, which outer steps are made of.
    #[must_use]
    pub fn trained_weights(&self) -> Vec<f32> {
        (0..EXCHANGED_FLOATS).map(|place| f32::from((self.w >> (16 * place)) as u16)).collect()
    }

    /// The state with outer weights mixed into its own.
    #[must_use]
    pub fn mixed(&self, outer: &OuterWeights) -> Self {
        let share = u64::from(outer.local_share.to_bits());
        let weights = outer.weights.iter().map(|float| u64::from(float.to_bits()));
        let w = mix_all(&[self.w, mix_all(&weights.collect::<Vec<_>>()), share, 53]);
        Self { w, ..*self }
    }

    /// The state with some bits of its weights wrong.
    #[must_use]
    pub fn flipped(&self, bits: u64) -> Self {
        Self { w: self.w ^ bits, ..*self }
    }

    /// The numbers as the image of a layer, as it travels.
    #[must_use]
    pub fn image(&self, layer: LayerId, version: Step) -> LayerImage {
        let floats = |hash| pack(hash, 0.0).into();
        LayerImage { layer, version, w: floats(self.w), m: floats(self.m), v: floats(self.v) }
    }

    /// The numbers from the image of a layer, as it arrived.
    #[must_use]
    pub fn of_image(image: &LayerImage) -> Self {
        Self { w: unpack(&image.w), m: unpack(&image.m), v: unpack(&image.v) }
    }
}

/// The numbers that passes compute, here and in the reference.
pub mod passes {
    use super::{LayerId, MicrobatchIndex, SliceIndex, Step, mix, mix_all};

    /// The part of a microbatch's tokens that a slice has; the first one, which may be all of it,
    /// the tokens.
    #[must_use]
    pub fn slice(tokens: u64, slice: SliceIndex) -> u64 {
        if slice.0 == 0 { tokens } else { mix(tokens, u64::from(slice.0)) }
    }

    /// F's attention over the keys that earlier slices left, in order.
    pub fn attend(x: u64, earlier: impl Iterator<Item = u64>) -> u64 {
        earlier.fold(x, mix)
    }

    /// B's share of the gradient of an earlier slice; the order in which shares are added counts.
    #[must_use]
    pub fn add(added: u64, share: u64) -> u64 {
        mix_all(&[added, share, 41])
    }

    /// The gradient with the contributions of later slices, if there were any.
    #[must_use]
    pub fn gather(gradient: u64, added: u64) -> u64 {
        if added == 0 { gradient } else { mix(gradient, added) }
    }

    /// F of a layer.
    #[must_use]
    pub fn forward(x: u64, w: u64, layer: LayerId, draw: u64) -> u64 {
        mix_all(&[x, w, u64::from(layer.0), draw, 17])
    }

    /// The draw of a layer for a microbatch: a function of its purpose (rule R7).
    #[must_use]
    pub fn draw(seed: u64, step: Step, microbatch: MicrobatchIndex, layer: LayerId) -> u64 {
        mix_all(&[seed, step.0, u64::from(microbatch.0), u64::from(layer.0), 19])
    }

    /// B of a layer.
    #[must_use]
    pub fn backward(gradient: u64, w: u64, x: u64) -> u64 {
        mix_all(&[gradient, w, x, 23])
    }

    /// W of a layer: the contribution of a microbatch.
    #[must_use]
    pub fn weights(gradient: u64, x: u64) -> u64 {
        mix_all(&[gradient, x, 29])
    }

    /// The loss at the end of the model, and where its gradient begins.
    #[must_use]
    pub fn loss(x: u64, target: u64) -> (f64, u64) {
        let hash = mix_all(&[x, target, 31]);
        (1.0 + super::share(hash), hash)
    }
}

/// Text that is a function of seed, step and microbatch.
#[derive(Clone, Debug)]
pub struct DigestSource {
    /// The seed of the run.
    pub seed: u64,
}

impl BatchSource for DigestSource {
    fn training(&self, step: Step, microbatch: MicrobatchIndex) -> TokenBatch {
        let hash = mix_all(&[self.seed, step.0, u64::from(microbatch.0), 37]);
        // The draw of R7 needs the step; it travels with the text.
        let inputs = vec![hash as u32, (hash >> 32) as u32, step.0 as u32];
        TokenBatch::new(inputs, vec![(hash >> 16) as u32])
    }

    fn held_out(&self, _index: u32) -> Option<TokenBatch> {
        None
    }
}

/// Where a batch begins as a number.
#[must_use]
pub fn tokens(batch: &TokenBatch) -> u64 {
    u64::from(batch.inputs[0]) | u64::from(batch.inputs[1]) << 32
}

/// Mixes bytes into a number.
#[must_use]
pub fn mix_bytes(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash, u64::from_le_bytes(word))
    })
}
