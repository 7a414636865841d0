//! Documents and sliding windows in a pass: which keys its rows see, the attention mask, and where
//! they are in the table of positions.

use zbelastic_kernels::{AttentionMask, Backend};

use super::PassContext;
use crate::data::TokenBatch;

/// The first key that each row of a pass sees; `None` if all see their sequences from the
/// beginning.
pub(in crate::model) struct FirstKeys(Option<Vec<u32>>);

impl FirstKeys {
    /// That of a batch: its documents and the model's window.
    pub(in crate::model) fn new<B: Backend>(
        context: &PassContext<'_, B>,
        batch: &TokenBatch,
    ) -> Self {
        let len = context.shape.sequence_len;
        let first = context.place.first_position;
        let window = context.model.sliding_window.map(|window| window as usize);
        let window = window.filter(|window| *window < first + len);
        let starts = batch.document_starts.as_deref();
        if window.is_none() && starts.is_none() {
            return Self(None);
        }
        let of_row = |row: usize| {
            let end = first + row % len + 1;
            let slid = window.map_or(0, |window| end.saturating_sub(window)) as u32;
            starts.map_or(slid, |starts| starts[row].max(slid))
        };
        let first_keys: Vec<u32> = (0..context.shape.rows()).map(of_row).collect();
        Self(first_keys.iter().any(|first| *first > 0).then_some(first_keys))
    }

    pub(in crate::model) fn mask(&self) -> AttentionMask<'_> {
        self.0.as_deref().map_or(AttentionMask::Causal, AttentionMask::From)
    }
}

/// The position of each row, counted from where its document begins; `None` if each sequence is one
/// document.
pub(super) fn row_positions<B: Backend>(
    context: &PassContext<'_, B>,
    batch: &TokenBatch,
) -> Option<Vec<u32>> {
    let first = context.place.first_position as u32;
    let len = context.shape.sequence_len;
    let rows = batch.document_starts.as_deref()?.iter().enumerate();
    Some(rows.map(|(row, start)| first + (row % len) as u32 - start).collect())
}

#[cfg(test)]
mod tests {
    use zbelastic_kernels::CpuBackend;
    use zbelastic_types::SliceIndex;

    use super::{FirstKeys, row_positions};
    use crate::data::TokenBatch;
    use crate::model::{
        Family, FrozenTensors, LlamaFeatures, MicrobatchShape, ModelConfig, PassContext,
        SlicePosition,
    };

    /// First keys and positions of two sequences of four tokens from `first_position` on.
    fn check(
        sliding_window: Option<u32>,
        first_position: usize,
        document_starts: Option<[u32; 8]>,
        first_keys: Option<[u32; 8]>,
        positions: Option<[u32; 8]>,
    ) {
        let model = ModelConfig {
            family: Family::Llama,
            blocks: 1,
            width: 4,
            heads: 1,
            kv_heads: 1,
            head_width: 4,
            mlp_width: 4,
            features: LlamaFeatures::NONE,
            vocabulary: 4,
            sliding_window,
            positions: 8,
            norm_epsilon: 1e-5,
            rope_theta: 1e4,
            tied: false,
            frozen: FrozenTensors::NONE,
            without_moments: FrozenTensors::NONE,
            lora: None,
        };
        let backend = &CpuBackend::new(1).expect("one thread");
        let place = SlicePosition { slice: SliceIndex(0), count: 2, first_position };
        let shape = MicrobatchShape { sequences: 2, sequence_len: 4 };
        let context =
            PassContext { backend, model: &model, shape, place, angles: None, timer: None };
        let mut batch = TokenBatch::new(vec![0; 8], vec![0; 8]);
        batch.document_starts = document_starts.map(Vec::from);
        let found = FirstKeys::new(&context, &batch);
        assert_eq!(found.0.as_deref(), first_keys.as_ref().map(|keys| &keys[..]));
        let found = row_positions(&context, &batch);
        assert_eq!(found.as_deref(), positions.as_ref().map(|positions| &positions[..]));
    }

    #[test]
    fn rows_see_their_documents_and_windows_and_count_from_where_they_begin() {
        check(None, 0, None, None, None);
        check(Some(4), 0, None, None, None);
        check(Some(3), 0, None, Some([0, 0, 0, 1, 0, 0, 0, 1]), None);
        check(Some(3), 4, None, Some([2, 3, 4, 5, 2, 3, 4, 5]), None);
        let whole = [0; 8];
        check(None, 0, Some(whole), None, Some([0, 1, 2, 3, 0, 1, 2, 3]));
        let starts = [0, 1, 1, 1, 0, 0, 2, 3];
        check(None, 0, Some(starts), Some(starts), Some([0, 0, 1, 2, 0, 1, 0, 0]));
        let starts = [1, 1, 6, 6, 4, 4, 4, 4];
        let positions = Some([3, 4, 0, 1, 0, 1, 2, 3]);
        check(None, 4, Some(starts), Some(starts), positions);
        check(Some(2), 4, Some(starts), Some([3, 4, 6, 6, 4, 4, 5, 6]), positions);
    }
}
