//! Text from a trained model.
//!
//! The model reads as many tokens as the longest sequence it was trained on, or fewer if a shorter
//! context was requested, and computes them all again for each token: its memory is
//! in the tokens alone. Draws are a function of a seed and the token's position (rule R7).

use zbelastic_kernels::{AllocateError, Backend, BufferView, DeviceFault};

use crate::data::TokenBatch;
use crate::model::{
    BufferSize, Chunk, LayerRange, LayerState, Logits, MicrobatchShape, ModelConfig, PassContext,
    PassSizes, PassStash, SlicePosition, model_layers, rotary_angles,
};
use crate::random::{RandomPurpose, RandomStream};

/// A model that continues text.
pub struct Sampler<'a, B: Backend> {
    backend: B,
    model: &'a ModelConfig,
    shape: MicrobatchShape,
    chunk: Chunk<B>,
    stash: PassStash<B::Buffer>,
    logits: Logits<B::Buffer>,
    angles: Option<B::Buffer>,
}

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingConfig {
    /// The divisor of logits: below 1 the likely gets likelier.
    pub temperature: f64,
    /// The seed of all draws.
    pub seed: u64,
}

impl<'a, B: Backend> Sampler<'a, B> {
    /// A model with these weights, layer by layer, that sees `context_len` tokens.
    ///
    /// # Errors
    /// If the device's memory does not hold it.
    pub fn new(
        backend: B,
        model: &'a ModelConfig,
        context_len: usize,
        weights: &[impl AsRef<[f32]>],
    ) -> Result<Self, AllocateError> {
        let shape = MicrobatchShape { sequences: 1, sequence_len: context_len };
        let sizes = PassSizes::whole(model, shape);
        let mut make = |size: BufferSize| size.allocate(&backend);
        let stash = PassStash::build(&sizes, LayerRange::new(0, model.layer_count()), &mut make)?;
        let logits = sizes.logits(&mut make)?;
        let angles = rotary_angles(&backend, model, shape)?;
        let layers = model_layers(model).into_iter().zip(weights);
        let layers = layers
            .map(|(spec, weights)| LayerState::frozen(&backend, model, spec, weights.as_ref()));
        let chunk = Chunk::new(layers.collect::<Result<_, _>>()?);
        Ok(Self { backend, model, shape, chunk, stash, logits, angles })
    }

    /// Continues `prompt` by `token_count` tokens.
    ///
    /// # Panics
    /// If the prompt is empty.
    pub fn continue_text(
        &mut self,
        prompt: &[u32],
        token_count: usize,
        draw: SamplingConfig,
    ) -> Vec<u32> {
        assert!(!prompt.is_empty(), "there is a token to continue");
        let stream = RandomStream::new(draw.seed, RandomPurpose::Sampling, 0);
        let mut tokens = prompt.to_vec();
        for _ in 0..token_count {
            let logits = self.next_logits(&tokens);
            let uniform = stream.uniform(tokens.len() as u64);
            tokens.push(pick(&logits, draw.temperature, uniform));
        }
        tokens.split_off(prompt.len())
    }

    /// The fault that ended the device, if any: then the drawn tokens are no sample.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        self.backend.fault()
    }

    /// The logits of the token after `tokens`, or after the last of them that are seen.
    fn next_logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        let context_len = self.shape.sequence_len;
        let seen = &tokens[tokens.len().saturating_sub(context_len)..];
        let mut inputs = seen.to_vec();
        // The last token does not see the positions behind it.
        inputs.resize(context_len, 0);
        let batch = TokenBatch::new(inputs, vec![0; context_len]);
        let context = PassContext {
            backend: &self.backend,
            model: self.model,
            shape: self.shape,
            place: SlicePosition::WHOLE,
            angles: self.angles.as_ref(),
            timer: None,
        };
        self.chunk.forward(&context, &batch, &mut self.stash, Some(&mut self.logits));
        let vocabulary = self.model.vocabulary as usize;
        let start = (seen.len() - 1) * vocabulary;
        self.backend.download(BufferView::new(self.logits.values(), start..start + vocabulary))
    }
}

/// The token at which the cumulated probability passes `uniform`.
fn pick(logits: &[f32], temperature: f64, uniform: f64) -> u32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| libm::exp(f64::from(logit - most) / temperature);
    let weights: Vec<f64> = logits.iter().map(weight).collect();
    let mut left = uniform * weights.iter().sum::<f64>();
    for (token, weight) in (0..).zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return token;
        }
    }
    // Rounding may leave a little, and a model of NaN nothing at all.
    logits.len() as u32 - 1
}

#[cfg(test)]
mod tests {
    use super::pick;

    #[test]
    fn tokens_are_drawn_by_their_weight() {
        let check = |temperature, uniform, expected| {
            let logits = [0.0, 3f32.ln(), f32::NEG_INFINITY, 0.0];
            assert_eq!(pick(&logits, temperature, uniform), expected);
        };
        check(1.0, 0.0, 0);
        check(1.0, 0.19, 0);
        check(1.0, 0.21, 1);
        check(1.0, 0.79, 1);
        check(1.0, 0.81, 3);
        check(0.01, 0.01, 1);
        check(0.01, 0.99, 1);
    }

    #[test]
    fn a_broken_model_yields_tokens_all_the_same() {
        assert_eq!(pick(&[f32::NAN; 4], 1.0, 0.5), 3);
    }
}
