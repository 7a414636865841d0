//! The generation of devices that code is for.

use std::fmt;

/// A compute capability: a major and a minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Architecture {
    major: u32,
    minor: u32,
}

impl Architecture {
    /// The oldest that the kernels run on: bf16 in tensor cores came with it.
    pub const OLDEST: Self = Self::new(8, 0);
    /// What every kernel is compiled for when the sources are tested: A100, H100 and H200, B200.
    pub const TESTED: [Self; 3] = [Self::OLDEST, Self::new(9, 0), Self::new(10, 0)];

    /// The architecture of a compute capability.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The compute capability as one number: 90 for 9.0.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.major * 10 + self.minor
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.number())
    }
}
