//! Text from a trained model: which token follows, drawn from logits.
//!
//! Draws are a function of a seed and the token's position (rule R7), and of the logits; the same
//! text has the same continuation.

use zbelastic_kernels::{AllocateError, Backend, DeviceFault};

use crate::decoder::Decoder;
use crate::model::ModelConfig;
use crate::random::{RandomPurpose, RandomStream};

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingConfig {
    /// The divisor of logits: below 1 the likely gets likelier, and 0 takes the likeliest token, of
    /// equal ones that of the lowest id.
    pub temperature: f64,
    /// Draw from the likeliest tokens whose probabilities together reach this: the fewest that do
    /// (Holtzman et al., arXiv 1904.09751, section 3.1). 1 draws from all.
    pub top_p: f64,
    /// Draw from so many of the likeliest tokens, before `top_p` counts; nothing draws from all.
    pub top_k: Option<usize>,
    /// The seed of all draws.
    pub seed: u64,
}

impl SamplingConfig {
    /// Draws from all tokens by their probability.
    #[must_use]
    pub const fn of_all(temperature: f64, seed: u64) -> Self {
        Self { temperature, top_p: 1.0, top_k: None, seed }
    }

    /// The token at `position` of a text, counted from 0, by the logits behind the tokens before.
    #[must_use]
    pub fn draw(&self, logits: &[f32], position: u64) -> u32 {
        let stream = RandomStream::new(self.seed, RandomPurpose::Sampling, 0);
        self.pick(logits, stream.uniform(position))
    }

    /// The token at which the cumulated probability passes `uniform`.
    fn pick(&self, logits: &[f32], uniform: f64) -> u32 {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if self.temperature == 0.0 {
            let likeliest = logits.iter().position(|logit| *logit == most);
            return likeliest.unwrap_or(logits.len() - 1) as u32;
        }
        let weight = |logit: &f32| libm::exp(f64::from(logit - most) / self.temperature);
        let mut weights: Vec<f64> = logits.iter().map(weight).collect();
        self.leave_out_unlikely(logits, &mut weights);
        let mut left = uniform * weights.iter().sum::<f64>();
        for (token, weight) in (0..).zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return token;
            }
        }
        // Rounding may leave a little, and a model of NaN nothing at all.
        weights.iter().rposition(|weight| *weight != 0.0).unwrap_or(0) as u32
    }

    /// Puts the weight 0 to the tokens that `top_k` and `top_p` leave out.
    fn leave_out_unlikely(&self, logits: &[f32], weights: &mut [f64]) {
        if self.top_k.is_none_or(|count| count >= logits.len()) && self.top_p >= 1.0 {
            return;
        }
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // Of equal logits the one of the lower id is the likelier.
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let mut kept = self.top_k.unwrap_or(order.len()).clamp(1, order.len());
        if self.top_p < 1.0 {
            let total: f64 = order[..kept].iter().map(|token| weights[*token]).sum();
            let mut sum = 0.0;
            let reached = order[..kept].iter().position(|token| {
                sum += weights[*token];
                sum >= self.top_p * total
            });
            kept = reached.map_or(kept, |last| last + 1);
        }
        order[kept..].iter().for_each(|token| weights[*token] = 0.0);
    }
}

/// A model that continues text of any length, and sees as many tokens of it as its context holds.
pub struct Sampler<'a, B: Backend> {
    decoder: Decoder<'a, B>,
    context_len: usize,
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
        Ok(Self { decoder: Decoder::new(backend, model, weights)?, context_len })
    }

    /// Continues `prompt` by `token_count` tokens.
    ///
    /// # Errors
    /// If the device's memory does not hold what was read.
    ///
    /// # Panics
    /// If the prompt is empty.
    pub fn continue_text(
        &mut self,
        prompt: &[u32],
        token_count: usize,
        draw: SamplingConfig,
    ) -> Result<Vec<u32>, AllocateError> {
        assert!(!prompt.is_empty(), "there is a token to continue");
        self.decoder.clear();
        let mut tokens = prompt.to_vec();
        for _ in 0..token_count {
            let logits = self.next_logits(&tokens)?;
            tokens.push(draw.draw(&logits, tokens.len() as u64));
        }
        Ok(tokens.split_off(prompt.len()))
    }

    /// The fault that ended the device, if any: then the drawn tokens are no sample.
    #[must_use]
    pub fn fault(&self) -> Option<DeviceFault> {
        self.decoder.fault()
    }

    /// The logits of the token after `tokens`, or after the last of them that are seen. Beyond the
    /// context each position has another token than before, so all are read again.
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, AllocateError> {
        if tokens.len() > self.context_len {
            self.decoder.clear();
            return self.decoder.read(&tokens[tokens.len() - self.context_len..]);
        }
        self.decoder.read(&tokens[self.decoder.tokens_read()..])
    }
}

#[cfg(test)]
mod tests {
    use super::SamplingConfig;

    /// Probabilities of 1/6, 3/6, 0 and 2/6.
    fn logits() -> [f32; 4] {
        [0.0, 3f32.ln(), f32::NEG_INFINITY, 2f32.ln()]
    }

    #[test]
    fn tokens_are_drawn_by_their_weight() {
        let check = |temperature, uniform, expected| {
            let config = SamplingConfig::of_all(temperature, 0);
            assert_eq!(config.pick(&logits(), uniform), expected, "{temperature} {uniform}");
        };
        check(1.0, 0.0, 0);
        check(1.0, 0.16, 0);
        check(1.0, 0.17, 1);
        check(1.0, 0.66, 1);
        check(1.0, 0.67, 3);
        check(0.01, 0.01, 1);
        check(0.01, 0.99, 1);
    }

    #[test]
    fn at_zero_the_likeliest_is_taken_and_of_equal_ones_the_first() {
        let pick = |logits: &[f32]| SamplingConfig::of_all(0.0, 0).pick(logits, 0.99);
        assert_eq!(pick(&logits()), 1);
        assert_eq!(pick(&[0.5, 2.0, 2.0, 1.0]), 1);
    }

    #[test]
    fn the_unlikely_are_left_out() {
        let check = |top_k, top_p, uniform, expected| {
            let config = SamplingConfig { temperature: 1.0, top_p, top_k, seed: 0 };
            let found = config.pick(&logits(), uniform);
            assert_eq!(found, expected, "{top_k:?} {top_p} {uniform}");
        };
        check(Some(1), 1.0, 0.0, 1);
        check(Some(1), 1.0, 0.999, 1);
        // Tokens 1 and 3, with 3/5 and 2/5.
        check(Some(2), 1.0, 0.0, 1);
        check(Some(2), 1.0, 0.59, 1);
        check(Some(2), 1.0, 0.61, 3);
        check(Some(9), 1.0, 0.16, 0);
        check(None, 0.499, 0.999, 1);
        check(None, 0.501, 0.61, 3);
        check(None, 0.501, 0.0, 1);
        check(None, 0.85, 0.0, 0);
        // Of tokens 1 and 3 the first has 3/5.
        check(Some(2), 0.55, 0.999, 1);
        check(Some(2), 0.65, 0.999, 3);
        check(None, 0.0, 0.999, 1);
    }

    #[test]
    fn a_broken_model_yields_tokens_all_the_same() {
        for temperature in [0.0, 1.0] {
            let config = SamplingConfig::of_all(temperature, 0);
            assert_eq!(config.pick(&[f32::NAN; 4], 0.5), 3);
        }
    }
}
