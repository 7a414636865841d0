//! The kernels' sources and how they are compiled.

use super::architecture::Architecture;

pub use crate::precision::Precision;

impl Precision {
    /// The compiler's option that defines the type for the sources.
    #[must_use]
    pub const fn option(self) -> &'static str {
        match self {
            Self::F32 => "-DROW_IS_BF16=0",
            Self::Bf16 => "-DROW_IS_BF16=1",
        }
    }
}

/// A file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelFile {
    /// Embeddings of tokens and positions.
    Embed,
    /// Normalisations, forward and backward.
    Norm,
    /// Elementwise stages, rotary embedding and conversions.
    Elementwise,
    /// Sums over rows, column by column.
    Columns,
    /// The output head's softmax.
    Head,
    /// Attention on plain multiply-adds, for every width of a head.
    Attention,
    /// Attention on tensor cores.
    Flash,
    /// AdamW, sums of squares, fingerprints.
    Optimizer,
    /// The kernel that reads the device's clock.
    Clock,
    /// Arithmetic between versions of weights.
    Versions,
    /// Muon.
    Muon,
}

/// The text that every source begins with.
pub const PRELUDE: &str = include_str!("../../cu/prelude.cuh");

impl KernelFile {
    /// All files of kernels.
    pub const ALL: [Self; 11] = [
        Self::Embed,
        Self::Norm,
        Self::Elementwise,
        Self::Columns,
        Self::Head,
        Self::Attention,
        Self::Flash,
        Self::Optimizer,
        Self::Clock,
        Self::Versions,
        Self::Muon,
    ];

    /// Name of the file under `kernels/cu/`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed.cu",
            Self::Norm => "norm.cu",
            Self::Elementwise => "elementwise.cu",
            Self::Columns => "columns.cu",
            Self::Head => "head.cu",
            Self::Attention => "attention.cu",
            Self::Flash => "flash.cu",
            Self::Optimizer => "optimizer.cu",
            Self::Clock => "clock.cu",
            Self::Versions => "versions.cu",
            Self::Muon => "muon.cu",
        }
    }

    /// Text of the file, without the prelude.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Embed => include_str!("../../cu/embed.cu"),
            Self::Norm => include_str!("../../cu/norm.cu"),
            Self::Elementwise => include_str!("../../cu/elementwise.cu"),
            Self::Columns => include_str!("../../cu/columns.cu"),
            Self::Head => include_str!("../../cu/head.cu"),
            Self::Attention => include_str!("../../cu/attention.cu"),
            Self::Flash => include_str!("../../cu/flash.cu"),
            Self::Optimizer => include_str!("../../cu/optimizer.cu"),
            Self::Clock => include_str!("../../cu/clock.cu"),
            Self::Versions => include_str!("../../cu/versions.cu"),
            Self::Muon => include_str!("../../cu/muon.cu"),
        }
    }

    /// Whether there is something in it for this precision.
    #[must_use]
    pub fn is_for(self, precision: Precision) -> bool {
        self != Self::Flash || precision == Precision::Bf16
    }

    /// The whole source as the compiler gets it: lines count within the file.
    #[must_use]
    pub fn source(self) -> String {
        let name = self.name();
        format!("#line 1 \"prelude.cuh\"\n{PRELUDE}\n#line 1 \"{name}\"\n{}", self.text())
    }
}

/// One compilation: its file, its type of activations and its architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompilationUnit {
    /// The file that is compiled.
    pub file: KernelFile,
    /// The type of activations that it is compiled for.
    pub precision: Precision,
    /// The compute capability that it is compiled for.
    pub architecture: Architecture,
}

impl CompilationUnit {
    /// The compiler's options. Multiply-adds are fused where a source calls `fmaf` and nowhere
    /// else; division and square root are rounded as IEEE 754 prescribes, and denormal numbers
    /// kept.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        vec![
            format!("--gpu-architecture={}", self.architecture),
            "--std=c++17".to_owned(),
            "--fmad=false".to_owned(),
            "--ftz=false".to_owned(),
            "--prec-div=true".to_owned(),
            "--prec-sqrt=true".to_owned(),
            "--device-as-default-execution-space".to_owned(),
            self.precision.option().to_owned(),
        ]
    }
}
