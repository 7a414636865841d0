//! Values that many nodes are sent alike: the bytes are made once, however many they are sent to.
//!
//! A plan of many stages goes to as many workers, and so does the list of where members are reached.
//! Encoded anew for each, what a change of plan costs a leader would grow with the square of the
//! cluster.

use std::ops::Deref;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec;
use crate::message::MESSAGE_BYTES_MAX;

/// A value with its bytes.
#[derive(Clone, Debug)]
pub struct Told<T> {
    value: Arc<T>,
    bytes: Arc<[u8]>,
}

impl<T> Told<T> {
    /// The value whose bytes are sent.
    #[must_use]
    pub const fn value(&self) -> &Arc<T> {
        &self.value
    }

    /// Whether it is this very value, and not one like it.
    #[must_use]
    pub fn is(&self, value: &Arc<T>) -> bool {
        Arc::ptr_eq(&self.value, value)
    }
}

impl<T: Serialize> From<Arc<T>> for Told<T> {
    fn from(value: Arc<T>) -> Self {
        let bytes = codec::encode(&*value).into();
        Self { value, bytes }
    }
}

impl<T> Deref for Told<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Told<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T> Serialize for Told<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Told<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        let value = codec::decode(&bytes, MESSAGE_BYTES_MAX).map_err(D::Error::custom)?;
        Ok(Self { value: Arc::new(value), bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Told;
    use crate::codec::{decode, encode};

    #[test]
    fn what_is_told_comes_out_as_it_went_in() {
        let told = Told::from(Arc::new(vec![1_u64, 300]));
        let bytes = encode(&told);
        assert_eq!(decode(&bytes, 100), Ok(told.clone()));
        assert!(told.is(told.value()) && !told.is(&Arc::new(vec![1, 300])));
        let length = bytes.len();
        for cut in 0..length {
            assert!(decode::<Told<Vec<u64>>>(&bytes[..cut], 100).is_err(), "{cut} of {length}");
        }
        let mut other = bytes;
        other[2] = 0;
        assert!(decode::<Told<Vec<u64>>>(&other, 100).is_err(), "another version inside");
    }
}
