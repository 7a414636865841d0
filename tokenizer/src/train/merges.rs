//! The vocabulary that grows by merging the most frequent pair.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::words::WordCounts;
use crate::table::{ByteStringTable, IdPair, PairTable};

/// Merges between two reports.
const MERGES_PER_REPORT: usize = 64;

/// A pair in the queue: the most frequent one first, of equal ones that of lower ids.
type Candidate = (u64, Reverse<IdPair>);

/// A word as tokens.
struct Word {
    ids: Vec<u32>,
    count: u64,
}

/// How often a pair is in the words, and which of them have or had it.
#[derive(Default)]
struct PairStatistics {
    count: u64,
    words: Vec<u32>,
}

/// Tokens by id, and which pairs were merged, in order.
#[derive(Debug)]
pub(super) struct LearntVocabulary {
    tokens: Vec<String>,
    /// The tokens of pieces by their characters, to find one that is there already.
    known: ByteStringTable,
    /// By index in `known`.
    known_ids: Vec<u32>,
    byte_ids: [u32; 256],
    merges: Vec<IdPair>,
}

impl LearntVocabulary {
    /// Special tokens, then bytes.
    pub(super) fn new(special: &[String], alphabet: &[(char, u8)]) -> Self {
        let mut vocabulary = Self {
            tokens: Vec::new(),
            known: ByteStringTable::new(),
            known_ids: Vec::new(),
            byte_ids: [0; 256],
            merges: Vec::new(),
        };
        special.iter().for_each(|token| {
            vocabulary.id(token.clone());
        });
        for (character, byte) in alphabet {
            vocabulary.byte_ids[usize::from(*byte)] = vocabulary.id(character.to_string());
        }
        vocabulary
    }

    pub(super) fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// The contents of merged pairs.
    pub(super) fn merges(&self) -> impl ExactSizeIterator<Item = [&str; 2]> {
        let content = |id: u32| &self.tokens[id as usize][..];
        self.merges.iter().map(move |pair| [content(pair.left), content(pair.right)])
    }

    /// The id of a token, which is added if it is not there.
    fn id(&mut self, token: String) -> u32 {
        let index = self.known.insert(token.as_bytes());
        if index == self.tokens.len() {
            self.known_ids.push(u32::try_from(index).expect("ids are of 32 bits"));
            self.tokens.push(token);
        }
        self.known_ids[index]
    }

    /// Merges pairs that are `min_frequency` times in the words until there are `vocab_size` tokens.
    pub(super) fn learn(
        &mut self,
        words: &WordCounts,
        vocab_size: usize,
        min_frequency: u64,
        mut report: impl FnMut(usize),
    ) {
        let byte_id = |byte: &u8| self.byte_ids[usize::from(*byte)];
        let words = words.iter();
        let words =
            words.map(|(word, count)| Word { ids: word.iter().map(byte_id).collect(), count });
        let mut pairs = Pairs::new(words.collect());
        while self.tokens.len() < vocab_size {
            let Some(pair) = pairs.pop_most_frequent(min_frequency.max(1)) else { break };
            let content =
                format!("{}{}", self.tokens[pair.left as usize], self.tokens[pair.right as usize]);
            let id = self.id(content);
            self.merges.push(pair);
            pairs.merge(pair, id);
            if self.merges.len().is_multiple_of(MERGES_PER_REPORT) {
                report(self.tokens.len());
            }
        }
        report(self.tokens.len());
    }
}

/// The words, and the pairs in them.
struct Pairs {
    words: Vec<Word>,
    /// Index of a pair in `statistics`.
    indices: PairTable<u32>,
    statistics: Vec<PairStatistics>,
    /// Has for each pair an entry of its count, or of one that it had and that was higher.
    queue: BinaryHeap<Candidate>,
}

impl Pairs {
    fn new(words: Vec<Word>) -> Self {
        let mut pairs = Self {
            words,
            indices: PairTable::new(),
            statistics: Vec::new(),
            queue: BinaryHeap::new(),
        };
        let mut seen = Vec::new();
        for index in 0..pairs.words.len() {
            let word = &pairs.words[index];
            let count = word.count;
            let neighbours: Vec<_> = neighbours(&word.ids).collect();
            for pair in neighbours {
                pairs.add(pair, index, count, &mut seen);
            }
        }
        pairs.enqueue(&mut seen);
        pairs
    }

    /// Counts a pair of a word, and lists it in `grown`.
    fn add(&mut self, pair: IdPair, word: usize, count: u64, grown: &mut Vec<IdPair>) {
        let index = self.indices.get(pair).unwrap_or_else(|| {
            let next = u32::try_from(self.statistics.len()).expect("pairs fit in memory");
            self.statistics.push(PairStatistics::default());
            self.indices.insert(pair, next);
            next
        });
        let statistics = &mut self.statistics[index as usize];
        statistics.count += count;
        let word = u32::try_from(word).expect("fewer than 2^32 words fit in memory");
        if statistics.words.last() != Some(&word) {
            statistics.words.push(word);
        }
        grown.push(pair);
    }

    /// Changes the count of a pair that was in a word before.
    fn change_count(&mut self, pair: IdPair, change: impl FnOnce(u64) -> u64) {
        let index = self.indices.get(pair).expect("the pair of a word was counted");
        let count = &mut self.statistics[index as usize].count;
        *count = change(*count);
    }

    fn count(&self, pair: IdPair) -> u64 {
        self.indices.get(pair).map_or(0, |index| self.statistics[index as usize].count)
    }

    /// Enqueues each of these pairs, once, with its count, and empties the list.
    fn enqueue(&mut self, pairs: &mut Vec<IdPair>) {
        pairs.sort_unstable();
        pairs.dedup();
        for pair in pairs.drain(..) {
            let count = self.count(pair);
            if count > 0 {
                self.queue.push((count, Reverse(pair)));
            }
        }
    }

    fn pop_most_frequent(&mut self, min_frequency: u64) -> Option<IdPair> {
        while let Some((count, Reverse(pair))) = self.queue.pop() {
            let current = self.count(pair);
            if current == count {
                return (count >= min_frequency).then_some(pair);
            }
            // A higher count was enqueued when the pair grew; this entry is of an earlier one.
            if current > 0 && current < count {
                self.queue.push((current, Reverse(pair)));
            }
        }
        None
    }

    /// Puts `id` in place of each `pair`.
    fn merge(&mut self, pair: IdPair, id: u32) {
        let index = self.indices.get(pair).expect("the pair was counted");
        let words = std::mem::take(&mut self.statistics[index as usize].words);
        let mut grown = Vec::new();
        for word in words {
            let word = word as usize;
            let merged = merged(&self.words[word].ids, pair, id);
            if merged.len() == self.words[word].ids.len() {
                continue;
            }
            let before = std::mem::replace(&mut self.words[word].ids, merged);
            let count = self.words[word].count;
            neighbours(&before).for_each(|pair| self.change_count(pair, |sum| sum - count));
            let after: Vec<_> = neighbours(&self.words[word].ids).collect();
            for pair in after {
                if pair.left == id || pair.right == id {
                    self.add(pair, word, count, &mut grown);
                } else {
                    self.change_count(pair, |sum| sum + count);
                }
            }
        }
        self.enqueue(&mut grown);
    }
}

fn neighbours(ids: &[u32]) -> impl Iterator<Item = IdPair> + '_ {
    ids.windows(2).map(|pair| IdPair { left: pair[0], right: pair[1] })
}

fn merged(ids: &[u32], pair: IdPair, id: u32) -> Vec<u32> {
    let mut merged = Vec::with_capacity(ids.len());
    let mut rest = ids;
    while let [first, after @ ..] = rest {
        if *first == pair.left && after.first() == Some(&pair.right) {
            merged.push(id);
            rest = &after[1..];
        } else {
            merged.push(*first);
            rest = after;
        }
    }
    merged
}
