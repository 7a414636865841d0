//! Words of texts, counted on several threads.

use std::num::NonZeroUsize;

use super::TrainProgress;
use crate::SplitPattern;
use crate::encode::map_in_order;
use crate::table::ByteStringTable;

/// Bytes of text that are read before they are counted.
const BATCH_BYTES: usize = 16 << 20;
/// A long text is counted in parts of about so many bytes, each on some thread.
const PART_BYTES: usize = 1 << 18;

/// Different words with their frequencies, in the order in which the texts have them.
#[derive(Debug)]
pub(super) struct WordCounts {
    words: ByteStringTable,
    counts: Vec<u64>,
}

impl WordCounts {
    fn new() -> Self {
        Self { words: ByteStringTable::new(), counts: Vec::new() }
    }

    fn add(&mut self, word: &[u8], count: u64) {
        let index = self.words.insert(word);
        if index == self.counts.len() {
            self.counts.push(0);
        }
        self.counts[index] += count;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.counts.iter().enumerate().map(|(index, count)| (self.words.string(index), *count))
    }
}

/// Cuts a text in front of a space that follows an ASCII letter or digit: no pattern has a piece
/// across such a place, nor looks across it.
fn parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(end) = cut(rest) {
        parts.push(&rest[..end]);
        rest = &rest[end..];
    }
    parts.push(rest);
    parts
}

fn cut(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let is_cut = |index: &usize| bytes[*index] == b' ' && bytes[*index - 1].is_ascii_alphanumeric();
    (PART_BYTES..bytes.len()).find(is_cut)
}

fn count_part(part: &&str, pattern: SplitPattern) -> WordCounts {
    let mut counts = WordCounts::new();
    pattern.for_each_piece(part, |word| counts.add(word, 1));
    counts
}

/// Counts the words of all texts, a batch at a time.
pub(super) fn count<T: AsRef<str> + Sync>(
    texts: impl IntoIterator<Item = T>,
    pattern: SplitPattern,
    threads: NonZeroUsize,
    report: &mut impl FnMut(TrainProgress),
) -> WordCounts {
    let mut all = WordCounts::new();
    let mut bytes = 0;
    let mut texts = texts.into_iter().peekable();
    while texts.peek().is_some() {
        let mut batch_bytes = 0;
        let mut batch = Vec::new();
        while let Some(text) = texts.next_if(|_| batch_bytes < BATCH_BYTES) {
            batch_bytes += text.as_ref().len();
            batch.push(text);
        }
        let parts: Vec<_> = batch.iter().flat_map(|text| parts(text.as_ref())).collect();
        for counts in map_in_order(&parts, threads, |part| count_part(part, pattern)) {
            counts.iter().for_each(|(word, count)| all.add(word, count));
        }
        bytes += batch_bytes as u64;
        report(TrainProgress::Words { bytes, words: all.counts.len() });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_words_of_the_whole() {
        let line = "We're 12 of  34 who  don't\n\n\twait, and à la ";
        let text = line.repeat(3 * PART_BYTES / line.len());
        assert!(parts(&text).len() > 2, "the text is cut");
        for pattern in [
            SplitPattern::Gpt2,
            SplitPattern::Gpt2Digits,
            SplitPattern::Llama3,
            SplitPattern::Qwen2,
        ] {
            let mut whole = Vec::new();
            pattern.for_each_piece(&text, |piece| whole.push(piece));
            let mut cut = Vec::new();
            parts(&text)
                .iter()
                .for_each(|part| pattern.for_each_piece(part, |piece| cut.push(piece)));
            assert!(whole == cut, "{pattern:?}");
        }
    }
}
