//! The type of activations.

/// The type that activations have in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32-bit floats in memory and in products.
    F32,
    /// bfloat16 in memory and as operands of products, whose sums are 32-bit floats.
    Bf16,
}

impl Precision {
    /// Both types of activations.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// Bytes of an activation.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// The name of the type: `f32` or `bf16`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}
