//! Windows packed from the documents of a store.
//!
//! All documents stand one behind the other in one stream. Window w holds the ids w L to w L + L,
//! both included: L inputs and, moved by one, L targets. The next window begins with this one's last
//! id, and an end of the stream too short for a window is left out. That holds for either packing.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use zbelastic_trainer::data::{IGNORED_TARGET, TokenBatch};

use crate::store::{StoreError, TokenSpan, TokenStore};

/// The label of a target that does not count in the loss, PyTorch's `ignore_index`.
pub const IGNORE_INDEX: i32 = -100;

/// Whether the documents of a window are seen by each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packing {
    /// A window is one sequence: positions count through, an input attends to all before it, and the
    /// first id of a document is a target of the last one before.
    #[default]
    Concat,
    /// Positions begin again with each document, attention stays within one (a block-diagonal
    /// mask), and a document's first id is no target.
    Documents,
}

/// A window of L inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedWindow {
    /// The ids: L + 1.
    pub ids: Vec<u32>,
    /// The position of each input: L. Ids that were cut off before the window are not counted.
    pub positions: Vec<u32>,
    /// For each id, the number of its document in the store: L + 1. With [`Packing::Documents`] an
    /// input attends to inputs of the same number.
    pub documents: Vec<u64>,
    /// Whether target k, which is `ids[k + 1]`, counts in the loss: L.
    pub loss_mask: Vec<bool>,
}

impl PackedWindow {
    /// The window of consecutive ids.
    #[must_use]
    pub fn pack(span: TokenSpan, packing: Packing) -> Self {
        let TokenSpan { ids, documents, loss_mask } = span;
        let inputs = ids.len().saturating_sub(1);
        let is_same_document = |at: usize| match packing {
            Packing::Concat => true,
            Packing::Documents => documents[at] == documents[at + 1],
        };
        let mut positions = Vec::with_capacity(inputs);
        let mut position = 0;
        for at in 0..inputs {
            positions.push(position);
            position = if is_same_document(at) { position + 1 } else { 0 };
        }
        let loss_mask = (0..inputs).map(|at| is_same_document(at) && loss_mask[at + 1]).collect();
        Self { ids, positions, documents, loss_mask }
    }

    /// The ids that the model sees: L.
    #[must_use]
    pub fn inputs(&self) -> &[u32] {
        &self.ids[..self.positions.len()]
    }

    /// The ids that it is to predict: L, with [`IGNORE_INDEX`] where that does not count.
    #[must_use]
    pub fn labels(&self) -> Vec<i32> {
        let targets = self.ids.iter().skip(1).zip(&self.loss_mask);
        targets
            .map(|(id, is_in_loss)| if *is_in_loss { *id as i32 } else { IGNORE_INDEX })
            .collect()
    }

    /// What a model reads of windows that were packed so, one a sequence.
    #[must_use]
    pub fn batch(windows: &[Self], packing: Packing) -> TokenBatch {
        let inputs = windows.iter().flat_map(|window| window.inputs().iter().copied()).collect();
        let targets = windows.iter().flat_map(Self::targets).collect();
        let document_starts = match packing {
            Packing::Concat => None,
            Packing::Documents => Some(windows.iter().flat_map(Self::starts).collect()),
        };
        TokenBatch { document_starts, ..TokenBatch::new(inputs, targets) }
    }

    /// The ids that inputs are to predict.
    fn targets(&self) -> impl Iterator<Item = u32> {
        let targets = self.ids.iter().skip(1).zip(&self.loss_mask);
        targets.map(|(id, is_in_loss)| if *is_in_loss { *id } else { IGNORED_TARGET })
    }

    /// For each input, which input of the window its document begins with.
    fn starts(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.positions).map(|(at, position)| at - position)
    }

    /// The inputs of each document: the blocks of the attention's mask.
    #[must_use]
    pub fn blocks(&self) -> Vec<Range<usize>> {
        equal_spans(&self.documents[..self.positions.len()])
    }
}

/// Ranges of equal neighbours.
pub(crate) fn equal_spans<T: PartialEq>(values: &[T]) -> Vec<Range<usize>> {
    let mut start = 0;
    let spans = values.chunk_by(|a, b| a == b).map(|run| {
        let span = start..start + run.len();
        start = span.end;
        span
    });
    spans.collect()
}

/// Number of windows of `sequence_len` inputs among so many ids.
#[must_use]
pub fn window_count(tokens: u64, sequence_len: u64) -> u64 {
    tokens.saturating_sub(1) / sequence_len.max(1)
}

impl TokenStore {
    /// The window of `sequence_len` inputs that begins with id `first` of the store.
    ///
    /// # Errors
    /// If the store has too few ids behind it, or is damaged.
    pub fn window(
        &self,
        first: u64,
        sequence_len: usize,
        packing: Packing,
    ) -> Result<PackedWindow, StoreError> {
        let end = first.saturating_add(sequence_len as u64).saturating_add(1);
        Ok(PackedWindow::pack(self.read(first..end)?, packing))
    }
}

#[cfg(test)]
mod tests {
    use super::{IGNORE_INDEX, PackedWindow, Packing, window_count};
    use crate::store::TokenSpan;

    fn span() -> TokenSpan {
        TokenSpan {
            ids: vec![5, 6, 0, 0, 7, 8],
            documents: vec![3, 3, 3, 4, 5, 5],
            loss_mask: vec![true, false, true, true, true, true],
        }
    }

    #[test]
    fn documents_do_not_see_each_other() {
        let window = PackedWindow::pack(span(), Packing::Documents);
        assert_eq!(window.inputs(), [5, 6, 0, 0, 7]);
        assert_eq!(window.positions, [0, 1, 2, 0, 0]);
        assert_eq!(window.labels(), [IGNORE_INDEX, 0, IGNORE_INDEX, IGNORE_INDEX, 8]);
        assert_eq!(window.blocks(), [0..3, 3..4, 4..5]);
        let batch = PackedWindow::batch(&[window], Packing::Documents);
        assert_eq!(batch.document_starts, Some(vec![0, 0, 0, 3, 4]));
        assert_eq!(batch.target_count(), 2);
    }

    #[test]
    fn a_concatenated_window_is_one_sequence() {
        let window = PackedWindow::pack(span(), Packing::Concat);
        assert_eq!(window.positions, [0, 1, 2, 3, 4]);
        assert_eq!(window.labels(), [IGNORE_INDEX, 0, 0, 7, 8]);
    }

    #[test]
    fn a_window_takes_one_id_more_than_inputs() {
        let check = |tokens, expected| assert_eq!(window_count(tokens, 10), expected, "{tokens}");
        check(0, 0);
        check(10, 0);
        check(11, 1);
        check(20, 1);
        check(21, 2);
    }
}
