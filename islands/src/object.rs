//! The head of an object: what its floats are of, and their hash.
//!
//! ```text
//!   zbelastic-island 2 <BLAKE3 of what follows, 64 letters>\n
//!   the head in postcard's form
//! ```

use serde::{Deserialize, Serialize};
use zbelastic_config::RunConfig;
use zbelastic_consensus::validation::GuardPolicy;
use zbelastic_trainer::model::ModelConfig;
use zbelastic_trainer::optimizer::OptimizerConfig;
use zbelastic_trainer::outer::OuterConfig;
use zbelastic_trainer::plan::BatchShape;
use zbelastic_types::{Digest, LayerId, Step};

/// What a head begins with. Another version of the form has another number.
const TITLE: &str = "zbelastic-island 2 ";
/// Letters of a hash, and the end of its line.
const HASH_LINE: usize = 65;
/// Bytes of a head at most: three hashes and some numbers.
pub(crate) const HEAD_BYTES_MAX: usize = 256;

const _: () = assert!(cfg!(target_endian = "little"), "floats are written as they lie in memory");

/// What an object is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightsHead {
    /// The hash of the settings that the islands of the run have in common.
    pub settings: [u8; 32],
    /// The island that wrote it.
    pub island: u32,
    /// The layer.
    pub layer: u32,
    /// The version.
    pub version: u64,
    /// Of weights that were sent: the [`Self::contents`] of the outer state that their round began with. Of
    /// an outer state: zeros.
    pub before: [u8; 32],
    /// Whether the outer step that led to a state was left out.
    pub is_skipped: bool,
    /// Floats of each of its vectors.
    pub floats: u64,
    /// The hash of all its floats ([`contents_hash`]).
    pub contents: [u8; 32],
}

/// Why bytes are no weights of an island.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Another title, or another version of the form.
    #[error("it is no object of an island that this program reads")]
    Title,
    /// They are not the bytes that were written.
    #[error("its bytes have the hash {found}, its head says {expected}")]
    Damaged {
        /// The hash in the head.
        expected: String,
        /// That of the bytes.
        found: String,
    },
    /// They have the hash and are not of the form.
    #[error("it cannot be read: {0}")]
    Form(#[from] postcard::Error),
    /// A part of it is not there, or has another length.
    #[error("its part {part} is not there, or not whole")]
    Part {
        /// The part, counted from 0.
        part: usize,
    },
}

impl WeightsHead {
    /// The layer and the version that it names.
    #[must_use]
    pub const fn place(&self) -> (LayerId, Step) {
        (LayerId(self.layer), Step(self.version))
    }

    /// The bytes of the head.
    ///
    /// # Errors
    /// If it has no form.
    pub fn encode(&self) -> Result<Vec<u8>, ObjectError> {
        let head = postcard::to_allocvec(self)?;
        let mut bytes = format!("{TITLE}{}\n", blake3::hash(&head)).into_bytes();
        bytes.extend(head);
        Ok(bytes)
    }

    /// The head in these bytes.
    ///
    /// # Errors
    /// If there is none that was written whole.
    pub fn decode(bytes: &[u8]) -> Result<Self, ObjectError> {
        let rest = bytes.strip_prefix(TITLE.as_bytes()).ok_or(ObjectError::Title)?;
        let (line, head) = rest.split_at_checked(HASH_LINE).ok_or(ObjectError::Title)?;
        let expected = std::str::from_utf8(line).map_err(|_| ObjectError::Title)?;
        let expected = expected.strip_suffix('\n').ok_or(ObjectError::Title)?;
        check_hash(expected, blake3::hash(head))?;
        match postcard::take_from_bytes(head)? {
            (head, []) => Ok(head),
            (_, [_, ..]) => Err(ObjectError::Form(postcard::Error::DeserializeBadEncoding)),
        }
    }

    /// Compares floats that were read with the hash that it has of them.
    ///
    /// # Errors
    /// If they are others.
    pub fn check_contents(&self, found: [u8; 32]) -> Result<(), ObjectError> {
        let expected = blake3::Hash::from_bytes(self.contents).to_string();
        check_hash(&expected, blake3::Hash::from_bytes(found))
    }
}

fn check_hash(expected: &str, found: blake3::Hash) -> Result<(), ObjectError> {
    let found = found.to_string();
    let expected = expected.to_owned();
    if found == expected { Ok(()) } else { Err(ObjectError::Damaged { expected, found }) }
}

/// The hash of the floats of an object: of all its vectors, one after the other, little endian. That of an
/// outer state is what a round names it by.
#[must_use]
pub fn contents_hash(vectors: &[&[f32]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for vector in vectors {
        hasher.update(bytemuck::cast_slice(vector));
    }
    *hasher.finalize().as_bytes()
}

/// The settings that islands have in common: not where each computes, what it keeps and which data it
/// trains on.
#[derive(Serialize)]
struct SharedSettings<'a> {
    /// Another number where another program would make something else of them.
    form: u32,
    model: &'a ModelConfig,
    steps: u64,
    batch: BatchShape,
    seed: u64,
    z_loss: f64,
    optimizer: &'a OptimizerConfig,
    guard: GuardPolicy,
    outer: OuterConfig,
}

/// The hash of the settings that the islands of a run have in common; none if it is a run alone.
///
/// # Panics
/// If they have no form, as no setting has.
#[must_use]
pub fn settings_hash(config: &RunConfig) -> Option<Digest> {
    let outer = OuterConfig { island: 0, ..config.sync.as_ref()?.outer.clone() };
    let shared = SharedSettings {
        form: 1,
        model: &config.model,
        steps: config.steps,
        batch: config.batch,
        seed: config.seed,
        z_loss: config.z_loss,
        optimizer: &config.optimizer,
        guard: config.guard,
        outer,
    };
    let bytes = postcard::to_allocvec(&shared).expect("settings have a form");
    Some(Digest(*blake3::hash(&bytes).as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> WeightsHead {
        WeightsHead {
            settings: [7; 32],
            island: u32::MAX,
            layer: u32::MAX,
            version: u64::MAX,
            before: [9; 32],
            is_skipped: false,
            floats: u64::MAX,
            contents: contents_hash(&[&[1.5, -0.0], &[f32::MIN_POSITIVE, 4.0]]),
        }
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let bytes = head().encode().expect("a form");
        assert!(bytes.len() <= HEAD_BYTES_MAX);
        assert_eq!(WeightsHead::decode(&bytes).expect("whole"), head());
    }

    #[test]
    fn any_byte_that_is_missing_or_another_is_noticed() {
        let bytes = head().encode().expect("a form");
        for place in 0..bytes.len() {
            assert!(WeightsHead::decode(&bytes[..place]).is_err(), "cut at {place}");
            let mut damaged = bytes.clone();
            damaged[place] ^= 4;
            assert!(WeightsHead::decode(&damaged).is_err(), "flipped at {place}");
        }
    }

    #[test]
    fn nothing_is_behind_a_head() {
        let longer = [postcard::to_allocvec(&head()).expect("a form"), vec![0]].concat();
        let mut bytes = format!("{TITLE}{}\n", blake3::hash(&longer)).into_bytes();
        bytes.extend(longer);
        assert!(matches!(WeightsHead::decode(&bytes), Err(ObjectError::Form(_))));
    }

    #[test]
    fn the_hash_is_of_bits_in_their_order() {
        let contents = |vectors: [&[f32]; 2]| head().check_contents(contents_hash(&vectors));
        contents([&[1.5], &[-0.0, f32::MIN_POSITIVE, 4.0]]).expect("the same floats");
        contents([&[1.5, 0.0], &[f32::MIN_POSITIVE, 4.0]]).expect_err("another zero");
        contents([&[-0.0, 1.5], &[f32::MIN_POSITIVE, 4.0]]).expect_err("another order");
    }
}
