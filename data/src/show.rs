//! Samples of a store, as training reads it.

use std::ops::Range;

use crate::store::{StoreError, TokenStore};
use crate::window::{Packing, equal_spans, window_count};

/// Most windows that are shown at once.
pub const SAMPLES_MAX: usize = 1000;

/// Which samples to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShowRequest {
    /// Inputs of a window.
    pub sequence_len: usize,
    /// How documents are packed into it.
    pub packing: Packing,
    /// Number of windows, evenly spaced over the store; at most [`SAMPLES_MAX`].
    pub samples: usize,
}

/// Samples of a store's windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreView {
    /// Windows of the requested length.
    pub windows: u64,
    /// The samples.
    pub samples: Vec<WindowSample>,
}

/// A window of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowSample {
    /// Number of the window.
    pub window: u64,
    /// The ids of the window, one more than there are inputs.
    pub ids: Vec<u32>,
    /// Its documents or parts of them, in order.
    pub documents: Vec<SampleDocument>,
    /// Ranges of targets that count in the loss.
    pub loss_spans: Vec<Range<usize>>,
}

/// A document in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleDocument {
    /// Number of the document in the store.
    pub document: u64,
    /// Its ids in the window.
    pub ids: Range<usize>,
    /// The text of those.
    pub text: String,
}

/// Shows a store. `decode` makes a text of ids.
///
/// # Errors
/// If the store is damaged.
pub fn show(
    store: &TokenStore,
    request: &ShowRequest,
    decode: &dyn Fn(&[u32]) -> String,
) -> Result<StoreView, StoreError> {
    let windows = window_count(store.tokens(), request.sequence_len as u64);
    let count = (request.samples.min(SAMPLES_MAX) as u64).min(windows);
    // At most 1,000 times a number of windows, which ids of less than 2^50 have.
    let numbers = (0..count).map(|at| at * windows / count);
    let samples = numbers.map(|window| sample(store, request, window, decode));
    Ok(StoreView { windows, samples: samples.collect::<Result<_, _>>()? })
}

fn sample(
    store: &TokenStore,
    request: &ShowRequest,
    number: u64,
    decode: &dyn Fn(&[u32]) -> String,
) -> Result<WindowSample, StoreError> {
    let first = number * request.sequence_len as u64;
    let window = store.window(first, request.sequence_len, request.packing)?;
    let documents = equal_spans(&window.documents).into_iter().map(|ids| SampleDocument {
        document: window.documents[ids.start],
        text: decode(&window.ids[ids.clone()]),
        ids,
    });
    let documents = documents.collect();
    let mut loss_spans = equal_spans(&window.loss_mask);
    loss_spans.retain(|span| window.loss_mask[span.start]);
    Ok(WindowSample { window: number, ids: window.ids, documents, loss_spans })
}
