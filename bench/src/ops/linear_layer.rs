//! The linear layers of a block of GPT-2.

use zbelastic_kernels::{BackwardEpilogue, CpuBuffer, ForwardEpilogue, MatrixShape};
use zbelastic_trainer::model::ModelConfig;

/// A linear layer of a block, which says what its products are fused with.
#[derive(Clone, Copy)]
pub enum LinearLayer {
    /// Plain.
    Qkv,
    /// Its result is added to the residual stream.
    Out,
    /// GELU follows.
    Up,
    /// Its result is added to the residual stream; the slope of GELU meets its input's gradient.
    Down,
}

impl LinearLayer {
    /// Its rows of the table: F, B and W.
    pub const fn names(self) -> [&'static str; 3] {
        match self {
            Self::Qkv => ["qkv F", "qkv B", "qkv W"],
            Self::Out => ["out F", "out B", "out W"],
            Self::Up => ["up F", "up B", "up W"],
            Self::Down => ["down F", "down B", "down W"],
        }
    }

    /// Its weights.
    pub fn matrix(self, model: &ModelConfig) -> MatrixShape {
        match self {
            Self::Qkv => model.qkv_matrix(),
            Self::Out => model.out_matrix(),
            Self::Up => model.up_matrix(),
            Self::Down => model.down_matrix(),
        }
    }

    /// What F is fused with, over rows as wide as its result.
    pub fn forward(self, other: &mut CpuBuffer) -> ForwardEpilogue<'_, CpuBuffer> {
        match self {
            Self::Qkv => ForwardEpilogue::Plain,
            Self::Up => ForwardEpilogue::Gelu { before: other },
            Self::Out | Self::Down => ForwardEpilogue::Add { skip: other },
        }
    }

    /// What B is fused with, over rows as wide as its result.
    pub fn backward(self, to: &mut CpuBuffer) -> BackwardEpilogue<'_, CpuBuffer> {
        match self {
            Self::Down => BackwardEpilogue::Gelu { before_then_gradient: to },
            Self::Qkv | Self::Out | Self::Up => BackwardEpilogue::Plain { gradient: to },
        }
    }
}
