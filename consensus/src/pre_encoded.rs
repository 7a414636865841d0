//! Values that many nodes are sent alike: the bytes are made once, however many they are sent to.
//!
//! A plan of many stages goes to as many workers, and so does the list of where members are
//! reached. Encoded anew for each, what a change of plan costs a leader would grow with the square
//! of the cluster.

use std::ops::Deref;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::codec::{self, MESSAGE_BYTES_MAX};

/// A value with its bytes.
#[derive(Clone, Debug)]
pub struct PreEncoded<T> {
    value: Arc<T>,
    bytes: Arc<[u8]>,
}

impl<T> PreEncoded<T> {
    /// The value that the bytes encode.
    #[must_use]
    pub const fn value(&self) -> &Arc<T> {
        &self.value
    }

    /// Whether it is this very value, and not one like it.
    #[must_use]
    pub fn is_same_value(&self, value: &Arc<T>) -> bool {
        Arc::ptr_eq(&self.value, value)
    }
}

impl<T: Serialize> From<Arc<T>> for PreEncoded<T> {
    fn from(value: Arc<T>) -> Self {
        let bytes = codec::encode(&*value).into();
        Self { value, bytes }
    }
}

impl<T> Deref for PreEncoded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for PreEncoded<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T> Serialize for PreEncoded<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for PreEncoded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        let value = codec::decode(&bytes, MESSAGE_BYTES_MAX).map_err(D::Error::custom)?;
        Ok(Self { value: Arc::new(value), bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::PreEncoded;
    use crate::codec::{decode, encode};

    #[test]
    fn what_is_told_comes_out_as_it_went_in() {
        let value = PreEncoded::from(Arc::new(vec![1_u64, 300]));
        let bytes = encode(&value);
        assert_eq!(decode(&bytes, 100), Ok(value.clone()));
        assert!(
            value.is_same_value(value.value()) && !value.is_same_value(&Arc::new(vec![1, 300]))
        );
        let length = bytes.len();
        for cut in 0..length {
            assert!(
                decode::<PreEncoded<Vec<u64>>>(&bytes[..cut], 100).is_err(),
                "{cut} of {length}"
            );
        }
        let mut other = bytes;
        other[2] = 0;
        assert!(decode::<PreEncoded<Vec<u64>>>(&other, 100).is_err(), "another version inside");
    }
}
