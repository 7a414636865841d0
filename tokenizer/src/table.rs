//! Two open-addressing tables that neither hash at random nor iterate: byte strings to their
//! index, and pairs of ids to a value. Encoding consists of lookups in them.

/// Slots for each entry, at least; half of them stay empty.
const SLOTS_PER_ENTRY: usize = 2;
/// 2^64 divided by the golden ratio, an odd factor whose products spread over the upper bits.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(SPREAD);
    product ^ (product >> 32)
}

fn hash_bytes(bytes: &[u8]) -> u64 {
    let chunks = bytes.chunks_exact(8);
    let rest = chunks.remainder();
    let tail = rest.iter().fold(0, |word, byte| (word << 8) | u64::from(*byte));
    let words = chunks.map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes")));
    let hash = words.fold(bytes.len() as u64, mix);
    mix(mix(hash, tail), 0)
}

/// Byte strings, each once, numbered in the order in which they were inserted.
#[derive(Clone, Debug)]
pub(crate) struct ByteStringTable {
    /// The upper half of a hash, and below it the index + 1; 0 where empty.
    slots: Vec<u64>,
    /// Where each string ends in `bytes`; it begins where the one before ends.
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl ByteStringTable {
    pub(crate) fn new() -> Self {
        Self { slots: vec![0; 64], ends: Vec::new(), bytes: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The string with an index below [`Self::len`].
    pub(crate) fn string(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    /// The slot of `string`, or the empty one where it belongs.
    fn slot(&self, string: &[u8], hash: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let entry = self.slots[slot];
            let is_same = || self.string((entry as u32 - 1) as usize) == string;
            if entry == 0 || entry >> 32 == hash >> 32 && is_same() {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }

    pub(crate) fn get(&self, string: &[u8]) -> Option<usize> {
        let entry = self.slots[self.slot(string, hash_bytes(string))];
        (entry != 0).then(|| (entry as u32 - 1) as usize)
    }

    /// The index of `string`, which is added if it is not there.
    pub(crate) fn insert(&mut self, string: &[u8]) -> usize {
        let hash = hash_bytes(string);
        let slot = self.slot(string, hash);
        if self.slots[slot] != 0 {
            return (self.slots[slot] as u32 - 1) as usize;
        }
        let index = self.ends.len();
        let number = u32::try_from(index + 1).expect("fewer than 2^32 strings fit in memory");
        self.slots[slot] = (hash >> 32 << 32) | u64::from(number);
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
        if self.ends.len() * SLOTS_PER_ENTRY > self.slots.len() {
            self.grow();
        }
        index
    }

    fn grow(&mut self) {
        self.slots = vec![0; self.slots.len() * 2];
        for index in 0..self.ends.len() {
            let hash = hash_bytes(self.string(index));
            let mask = self.slots.len() - 1;
            let mut slot = hash as usize & mask;
            while self.slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = (hash >> 32 << 32) | (index as u64 + 1);
        }
    }
}

/// Two neighbouring token ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IdPair {
    pub(crate) left: u32,
    pub(crate) right: u32,
}

impl IdPair {
    /// A pair of ids, of which the left one is none of a vocabulary's.
    const NONE: Self = Self { left: u32::MAX, right: u32::MAX };

    fn hash(self) -> u64 {
        mix((u64::from(self.left) << 32) | u64::from(self.right), 0)
    }
}

/// A value for each of some pairs of ids.
#[derive(Clone, Debug)]
pub(crate) struct PairTable<V> {
    slots: Vec<(IdPair, V)>,
    len: usize,
}

impl<V: Copy + Default> PairTable<V> {
    pub(crate) fn new() -> Self {
        Self { slots: vec![(IdPair::NONE, V::default()); 64], len: 0 }
    }

    fn slot(&self, pair: IdPair) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = pair.hash() as usize & mask;
        while self.slots[slot].0 != pair && self.slots[slot].0 != IdPair::NONE {
            slot = (slot + 1) & mask;
        }
        slot
    }

    pub(crate) fn get(&self, pair: IdPair) -> Option<V> {
        let entry = self.slots[self.slot(pair)];
        (entry.0 == pair).then_some(entry.1)
    }

    /// Sets a pair's value, in place of one that it has.
    pub(crate) fn insert(&mut self, pair: IdPair, value: V) {
        let slot = self.slot(pair);
        self.len += usize::from(self.slots[slot].0 != pair);
        self.slots[slot] = (pair, value);
        if self.len * SLOTS_PER_ENTRY > self.slots.len() {
            let twice = vec![(IdPair::NONE, V::default()); self.slots.len() * 2];
            for (pair, value) in std::mem::replace(&mut self.slots, twice) {
                if pair != IdPair::NONE {
                    let slot = self.slot(pair);
                    self.slots[slot] = (pair, value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn strings_have_the_index_of_their_first_insertion(
            strings in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..12), 0..300),
        ) {
            let mut table = ByteStringTable::new();
            let mut model = BTreeMap::new();
            for string in &strings {
                let next = model.len();
                let expected = *model.entry(string.clone()).or_insert(next);
                prop_assert_eq!(table.insert(string), expected);
            }
            prop_assert_eq!(table.len(), model.len());
            for (string, index) in &model {
                prop_assert_eq!(table.get(string), Some(*index));
                prop_assert_eq!(table.string(*index), &string[..]);
            }
            prop_assert_eq!(table.get(b"thirteen bytes"), None);
        }

        #[test]
        fn pairs_have_the_last_value(entries in proptest::collection::vec((0..40u32, 0..40u32, any::<u32>()), 0..900)) {
            let mut table = PairTable::new();
            let mut model = BTreeMap::new();
            for (left, right, value) in entries {
                table.insert(IdPair { left, right }, value);
                model.insert(IdPair { left, right }, value);
            }
            for left in 0..41 {
                for right in 0..41 {
                    let pair = IdPair { left, right };
                    prop_assert_eq!(table.get(pair), model.get(&pair).copied());
                }
            }
        }
    }
}
