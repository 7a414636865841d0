//! The values that every version must have: the same training in one loop, without a cluster.

use zbelastic_consensus::validation::Seal;
use zbelastic_types::{Digest, Step};

use crate::digest_reference::DigestReference;
use crate::float_model::FloatReference;
use crate::reference_sums::ReferenceSums;

/// A serial run, as far as steps are sealed.
pub enum LifeReference {
    /// A run on hashes in place of tensors.
    Digest(DigestReference),
    /// With the real kernels.
    Float(Box<FloatReference>),
}

impl LifeReference {
    /// The digests of a version, if it is known.
    #[must_use]
    pub fn version(&self, version: Step) -> Option<&[Digest]> {
        match self {
            Self::Digest(reference) => reference.version(version),
            Self::Float(reference) => reference.version(version),
        }
    }

    /// The next step, under this verdict.
    pub fn advance(&mut self, seal: &Seal) -> ReferenceSums {
        match self {
            Self::Digest(reference) => reference.advance(seal),
            Self::Float(reference) => reference.advance(seal),
        }
    }

    /// Back to where these seals lead.
    pub fn rewind(&mut self, seals: &[Seal]) {
        match self {
            Self::Digest(reference) => reference.restart(),
            Self::Float(reference) => reference.restart(),
        }
        for seal in seals {
            self.advance(seal);
        }
    }
}
