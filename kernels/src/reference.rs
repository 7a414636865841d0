//! Every operation in plain f64, as slow and as clear as can be.
//!
//! This is what the operations of [`crate::Backend`] mean. Gradients are written out by hand here
//! too, and checked against finite differences of the forward functions, so that a backend can be
//! compared with them element by element.

mod adapter;
mod attention;
mod fingerprint;
mod head;
mod layers;
mod muon;
mod optimizer;
mod versions;

pub use adapter::{adapted_matrix, adapter_gradients};
pub use attention::{attention_backward, attention_forward, rotate};
pub use fingerprint::state_sums;
pub use head::{HeadGradients, HeadResult, head_backward, head_forward};
pub use layers::{
    NormGradients, embed_backward, embed_forward, gelu, gelu_slope, linear_backward_input,
    linear_backward_weights, linear_forward, norm_backward, norm_forward, qk_norm_backward,
    qk_norm_forward, swiglu_backward, swiglu_forward,
};
pub use muon::{muon, newton_schulz};
pub use optimizer::{AdamWState, adamw};
pub use versions::{adam_ahead, pull_together, track_change, weights_along};

#[cfg(test)]
mod tests;
