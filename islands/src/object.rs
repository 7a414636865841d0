//! Weights as an object.
//!
//! ```text
//!   zbelastic-island 1 <BLAKE3 of what follows, 64 letters>\n
//!   bytes of the head (u32, little endian), the head in postcard's form, floats (f32, little endian)
//! ```

use serde::{Deserialize, Serialize};
use zbelastic_config::RunConfig;
use zbelastic_consensus::validation::GuardPolicy;
use zbelastic_trainer::model::ModelConfig;
use zbelastic_trainer::optimizer::OptimizerConfig;
use zbelastic_trainer::outer::{OuterConfig, OuterState, OuterVerdict};
use zbelastic_trainer::plan::BatchShape;
use zbelastic_types::{Digest, LayerId, Step};

/// What an object begins with. Another version of the form has another number.
const TITLE: &str = "zbelastic-island 1 ";
/// Letters of a hash, and the end of its line.
const HASH_LINE: usize = 65;
/// Bytes of a head at most: two hashes and some numbers.
const HEAD_BYTES_MAX: usize = 256;

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
    /// Of weights that were sent: the hash of the outer state that their round began with. Of an
    /// outer state: zeros.
    pub before: [u8; 32],
    /// Whether the outer step that led to a state was left out.
    pub is_skipped: bool,
}

impl WeightsHead {
    /// The layer and the version that it names.
    #[must_use]
    pub const fn place(&self) -> (LayerId, Step) {
        (LayerId(self.layer), Step(self.version))
    }
}

/// Weights with what they are of.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightsObject {
    /// What they are of.
    pub head: WeightsHead,
    /// The weights; of an outer state its momentum behind them.
    pub floats: Vec<f32>,
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
    /// A part of it is not there, or the list of its parts is none.
    #[error("its part {part} is not there")]
    Part {
        /// The part, counted from 0.
        part: usize,
    },
    /// They end within a float, or before the head does.
    #[error("{found} bytes are no head and whole floats")]
    Length {
        /// Bytes behind the hash.
        found: usize,
    },
}

impl WeightsObject {
    /// The bytes of the object.
    ///
    /// # Errors
    /// If the head has no form.
    pub fn encode(&self) -> Result<Vec<u8>, ObjectError> {
        let head = postcard::to_allocvec(&self.head)?;
        let mut body = Vec::with_capacity(head.len() + 4 * (1 + self.floats.len()));
        body.extend((head.len() as u32).to_le_bytes());
        body.extend(head);
        body.extend(self.floats.iter().flat_map(|float| float.to_le_bytes()));
        let mut bytes = format!("{TITLE}{}\n", blake3::hash(&body)).into_bytes();
        bytes.append(&mut body);
        Ok(bytes)
    }

    /// The weights in an object.
    ///
    /// # Errors
    /// If there are none that were written whole.
    pub fn decode(bytes: &[u8]) -> Result<Self, ObjectError> {
        let rest = bytes.strip_prefix(TITLE.as_bytes()).ok_or(ObjectError::Title)?;
        let (line, body) = rest.split_at_checked(HASH_LINE).ok_or(ObjectError::Title)?;
        let expected = std::str::from_utf8(line).map_err(|_| ObjectError::Title)?.trim_end();
        let found = blake3::hash(body).to_string();
        if found != expected {
            let expected = expected.to_owned();
            return Err(ObjectError::Damaged { expected, found });
        }
        let wrong = || ObjectError::Length { found: body.len() };
        let (length, rest) = body.split_first_chunk::<4>().ok_or_else(wrong)?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > HEAD_BYTES_MAX {
            return Err(wrong());
        }
        let (head, floats) = rest.split_at_checked(length).ok_or_else(wrong)?;
        let (floats, left) = floats.as_chunks::<4>();
        if !left.is_empty() {
            return Err(wrong());
        }
        let floats = floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        Ok(Self { head: postcard::from_bytes(head)?, floats })
    }

    /// Bytes of an object with so many floats at most.
    #[must_use]
    pub const fn bytes_max(floats: usize) -> usize {
        TITLE.len() + HASH_LINE + 4 + HEAD_BYTES_MAX + 4 * floats
    }

    /// The outer state that it has; none if its floats are no weights with as much momentum.
    #[must_use]
    pub fn into_state(mut self) -> Option<OuterState> {
        let count = self.floats.len() / 2;
        if self.floats.len() != 2 * count {
            return None;
        }
        let momentum = self.floats.split_off(count);
        let verdict = if self.head.is_skipped { OuterVerdict::Skip } else { OuterVerdict::Keep };
        Some(OuterState { weights: self.floats, momentum, verdict })
    }
}

/// The floats of an outer state, as an object has them.
#[must_use]
pub fn state_floats(state: &OuterState) -> Vec<f32> {
    [&state.weights[..], &state.momentum].concat()
}

/// The hash that a round names the outer state by which it began with: of its floats, not of who wrote it.
#[must_use]
pub fn state_hash(state: &OuterState) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for float in state.weights.iter().chain(&state.momentum) {
        hasher.update(&float.to_le_bytes());
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

    fn object() -> WeightsObject {
        let head = WeightsHead {
            settings: [7; 32],
            island: 1,
            layer: 3,
            version: 40,
            before: [9; 32],
            is_skipped: false,
        };
        WeightsObject { head, floats: vec![1.5, -0.0, f32::MIN_POSITIVE, 4.0] }
    }

    #[test]
    fn an_object_is_read_as_it_was_written() {
        let bytes = object().encode().expect("a head");
        assert!(bytes.len() <= WeightsObject::bytes_max(4));
        let found = WeightsObject::decode(&bytes).expect("whole");
        let bits = |object: &WeightsObject| -> Vec<u32> {
            object.floats.iter().map(|float| float.to_bits()).collect()
        };
        assert_eq!((&found.head, bits(&found)), (&object().head, bits(&object())));
    }

    #[test]
    fn any_byte_that_is_missing_or_another_is_noticed() {
        let bytes = object().encode().expect("a head");
        for place in 0..bytes.len() {
            assert!(WeightsObject::decode(&bytes[..place]).is_err(), "cut at {place}");
            let mut damaged = bytes.clone();
            damaged[place] ^= 4;
            assert!(WeightsObject::decode(&damaged).is_err(), "flipped at {place}");
        }
    }

    #[test]
    fn a_state_is_its_weights_and_as_much_momentum() {
        let state = object().into_state().expect("two and two");
        assert_eq!((state.weights.len(), state.momentum.len()), (2, 2));
        assert_eq!(state_floats(&state).len(), 4);
        let odd = WeightsObject { floats: vec![1.0; 3], ..object() };
        assert_eq!(odd.into_state(), None);
    }
}
