//! Byte-pair encoding of one piece: of all neighbouring pairs that are in the list of merges, the
//! one that is listed first is merged, the leftmost of them if there are several, until none is
//! left (Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::table::{IdPair, PairTable};

/// Pieces of up to so many bytes are merged by looking at all pairs each time, longer ones with a
/// queue. Nearly every word has fewer.
const SCANNED_BYTES_MAX: usize = 48;
/// The rank of a pair that is not merged.
const UNRANKED: u32 = u32::MAX;

/// The symbol that two neighbours become.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    /// Index in the list of merges.
    pub(super) rank: u32,
    pub(super) id: u32,
}

impl Default for Merge {
    fn default() -> Self {
        Self { rank: UNRANKED, id: 0 }
    }
}

/// A token of a piece in the making.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    /// The merge of it with the symbol after it.
    merge: Merge,
}

/// A token of a long piece, in a list; `id` is [`UNRANKED`] once it was merged into its neighbour.
#[derive(Clone, Copy, Debug)]
struct LinkedSymbol {
    id: u32,
    previous: usize,
    next: usize,
}

/// Memory that is used again for each piece.
#[derive(Debug, Default)]
pub(super) struct MergeScratch {
    symbols: Vec<Symbol>,
    linked: Vec<LinkedSymbol>,
    queue: BinaryHeap<Reverse<(u32, usize)>>,
}

/// The merges of a byte-level BPE.
#[derive(Clone, Debug)]
pub(super) struct MergeList {
    pub(super) byte_ids: [u32; 256],
    pub(super) pairs: PairTable<Merge>,
}

impl MergeList {
    fn merge(&self, left: u32, right: u32) -> Merge {
        self.pairs.get(IdPair { left, right }).unwrap_or_default()
    }

    /// Appends the ids of `piece`.
    pub(super) fn encode(&self, piece: &[u8], scratch: &mut MergeScratch, ids: &mut Vec<u32>) {
        if piece.len() <= SCANNED_BYTES_MAX {
            self.scan(piece, &mut scratch.symbols, ids);
        } else {
            self.queue(piece, scratch, ids);
        }
    }

    fn scan(&self, piece: &[u8], symbols: &mut Vec<Symbol>, ids: &mut Vec<u32>) {
        symbols.clear();
        let bytes = piece.iter().map(|byte| self.byte_ids[usize::from(*byte)]);
        symbols.extend(bytes.map(|id| Symbol { id, merge: Merge::default() }));
        for index in 1..symbols.len() {
            symbols[index - 1].merge = self.merge(symbols[index - 1].id, symbols[index].id);
        }
        loop {
            let ranks = symbols.iter().map(|symbol| symbol.merge.rank).enumerate();
            let lowest = ranks.min_by_key(|(_, rank)| *rank);
            let Some((index, _)) = lowest.filter(|(_, rank)| *rank != UNRANKED) else { break };
            symbols[index].id = symbols[index].merge.id;
            symbols.remove(index + 1);
            let after = symbols.get(index + 1).map(|after| self.merge(symbols[index].id, after.id));
            symbols[index].merge = after.unwrap_or_default();
            if index > 0 {
                symbols[index - 1].merge = self.merge(symbols[index - 1].id, symbols[index].id);
            }
        }
        ids.extend(symbols.iter().map(|symbol| symbol.id));
    }

    fn queue(&self, piece: &[u8], scratch: &mut MergeScratch, ids: &mut Vec<u32>) {
        let MergeScratch { linked, queue, .. } = scratch;
        linked.clear();
        queue.clear();
        linked.extend(piece.iter().enumerate().map(|(index, byte)| LinkedSymbol {
            id: self.byte_ids[usize::from(*byte)],
            previous: index.wrapping_sub(1),
            next: index + 1,
        }));
        let enqueue = |queue: &mut BinaryHeap<_>, linked: &[LinkedSymbol], index: usize| {
            let after = linked.get(index).and_then(|symbol| linked.get(symbol.next));
            let rank = after.map_or(UNRANKED, |after| self.merge(linked[index].id, after.id).rank);
            if rank != UNRANKED {
                queue.push(Reverse((rank, index)));
            }
        };
        (0..linked.len()).for_each(|index| enqueue(queue, linked, index));
        while let Some(Reverse((rank, index))) = queue.pop() {
            let symbol = linked[index];
            let Some(after) = linked.get(symbol.next).copied() else { continue };
            let merge = self.merge(symbol.id, after.id);
            if symbol.id == UNRANKED || merge.rank != rank {
                continue;
            }
            linked[symbol.next].id = UNRANKED;
            linked[index] = LinkedSymbol { id: merge.id, next: after.next, ..symbol };
            if let Some(next) = linked.get_mut(after.next) {
                next.previous = index;
            }
            enqueue(queue, linked, index);
            enqueue(queue, linked, symbol.previous);
        }
        ids.extend(linked.iter().map(|symbol| symbol.id).filter(|id| *id != UNRANKED));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Merges over the letters a to d, each of two tokens that are there.
    fn merges(draws: &[(u32, u32)]) -> MergeList {
        let mut byte_ids = [0; 256];
        (b'a'..=b'd').zip(0..).for_each(|(byte, id)| byte_ids[usize::from(byte)] = id);
        let mut pairs = PairTable::new();
        for (rank, (left, right)) in (0..).zip(draws) {
            let id = 4 + rank;
            pairs.insert(IdPair { left: left % id, right: right % id }, Merge { rank, id });
        }
        MergeList { byte_ids, pairs }
    }

    proptest! {
        #[test]
        fn both_ways_give_the_same_ids(
            draws in proptest::collection::vec((any::<u32>(), any::<u32>()), 0..30),
            piece in "[a-d]{1,120}",
        ) {
            let merges = merges(&draws);
            let mut scratch = MergeScratch::default();
            let mut scanned = Vec::new();
            merges.scan(piece.as_bytes(), &mut scratch.symbols, &mut scanned);
            let mut queued = Vec::new();
            merges.queue(piece.as_bytes(), &mut scratch, &mut queued);
            prop_assert_eq!(scanned, queued);
        }
    }
}
