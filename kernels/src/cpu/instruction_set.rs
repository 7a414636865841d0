//! The instruction set that kernels are run with: the best that the processor has, or the one that
//! `ZBELASTIC_CPU` names. Results do not depend on it; speed does.

use std::fmt;

use thiserror::Error;

/// The environment variable that names the instruction set of the kernels.
pub const CPU_VARIABLE: &str = "ZBELASTIC_CPU";

/// The values of [`CPU_VARIABLE`]: instruction sets that kernels exist for, on all processors
/// together.
const NAMES: [&str; 4] = ["portable", "avx2", "avx512", "neon"];

/// The instruction set that the CPU backend uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// 512-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 128-bit vectors with fused multiply-add.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The code that the compiler makes of plain Rust.
    Portable,
}

/// Why [`CPU_VARIABLE`] chooses no kernels.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InstructionSetError {
    /// The word names no instruction set.
    #[error(
        "{CPU_VARIABLE}: found `{found}`, expected one of {}; this machine has {}",
        NAMES.join(", "), listed(.available)
    )]
    Unknown {
        /// The value of the variable.
        found: String,
        /// The instruction sets that this processor has kernels for, the fastest first.
        available: Vec<InstructionSet>,
    },
    /// The processor lacks the instructions, or this program kernels for them.
    #[error("{CPU_VARIABLE}: no {found} kernels for this processor; this machine has {}", listed(.available))]
    Absent {
        /// The value of the variable.
        found: &'static str,
        /// The instruction sets that this processor has kernels for, the fastest first.
        available: Vec<InstructionSet>,
    },
}

fn listed(sets: &[InstructionSet]) -> String {
    sets.iter().map(|set| set.name()).collect::<Vec<_>>().join(", ")
}

impl InstructionSet {
    /// The instruction sets that this processor has, the fastest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2");
            if fma && is_x86_feature_detected!("avx512f") {
                sets.push(Self::Avx512);
            }
            if fma {
                sets.push(Self::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        sets.extend([Self::Neon]);
        sets.push(Self::Portable);
        sets
    }

    /// The instruction set that [`CPU_VARIABLE`] names; the fastest if it is not set, or empty.
    ///
    /// # Errors
    /// If the variable names none, or one without kernels for this processor.
    pub fn of_environment() -> Result<Self, InstructionSetError> {
        let found = std::env::var_os(CPU_VARIABLE).unwrap_or_default();
        Self::choose(&found.to_string_lossy(), &Self::available())
    }

    /// [`Self::of_environment`] where the environment was checked before.
    ///
    /// # Panics
    /// If the variable names an instruction set that cannot be chosen.
    pub(super) fn chosen() -> Self {
        Self::of_environment().unwrap_or_else(|error| panic!("{error}"))
    }

    fn choose(found: &str, available: &[Self]) -> Result<Self, InstructionSetError> {
        if found.is_empty() {
            return Ok(available[0]);
        }
        let Some(name) = NAMES.into_iter().find(|name| *name == found) else {
            let available = available.to_vec();
            return Err(InstructionSetError::Unknown { found: found.to_owned(), available });
        };
        let set = available.iter().find(|set| set.name() == name);
        set.copied().ok_or_else(|| InstructionSetError::Absent {
            found: name,
            available: available.to_vec(),
        })
    }

    /// Whether the processor multiplies bfloat16 numbers with instructions of this set: AVX512-BF16,
    /// whose results were compared with the definition when this was first called. Without them products of such factors have the same bits and take longer.
    #[must_use]
    pub fn has_bf16(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => super::bf16::instruction::is_as_defined(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => false,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => false,
            Self::Portable => false,
        }
    }

    /// The set that products of bfloat16 numbers take: AVX2 for AVX-512 without AVX512-BF16.
    pub(super) fn of_bf16(self) -> Self {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 if !self.has_bf16() => Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Avx2 => self,
            #[cfg(target_arch = "aarch64")]
            Self::Neon => self,
            Self::Portable => self,
        }
    }

    /// Its name, as [`CPU_VARIABLE`] has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::{InstructionSet, InstructionSetError, NAMES};

    #[test]
    fn a_name_chooses_what_the_machine_has_and_nothing_the_fastest() {
        let available = InstructionSet::available();
        for set in &available {
            assert_eq!(InstructionSet::choose(set.name(), &available), Ok(*set));
        }
        assert_eq!(InstructionSet::choose("", &available), Ok(available[0]));
        let portable = [InstructionSet::Portable];
        assert_eq!(InstructionSet::choose("", &portable), Ok(InstructionSet::Portable));
    }

    #[test]
    fn a_refusal_names_what_the_machine_has() {
        let portable = [InstructionSet::Portable];
        for name in NAMES.into_iter().filter(|name| *name != "portable") {
            let error = InstructionSet::choose(name, &portable).expect_err(name);
            assert!(matches!(error, InstructionSetError::Absent { .. }), "{error}");
            let expected = format!(
                "ZBELASTIC_CPU: no {name} kernels for this processor; this machine has portable"
            );
            assert_eq!(error.to_string(), expected);
        }
        let error = InstructionSet::choose("AVX2", &portable).expect_err("names are lower case");
        assert_eq!(
            error.to_string(),
            "ZBELASTIC_CPU: found `AVX2`, expected one of portable, avx2, avx512, neon; this \
             machine has portable"
        );
    }
}
