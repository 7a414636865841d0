//! Embeddings of tokens and positions.

use super::probe::{
    check, download, floats, poisoned, poisoned_rows, tokens, upload, upload_rows, whole, widen,
};
use crate::backend::{Accumulate, Backend, EmbedGradient, RowPositions};
use crate::reference;

/// Forward and W of two microbatches, with and without positions, of which there is one more than a
/// sequence has; they count through sequences, or begin again within them.
pub fn embedding<B: Backend>(devices: &[B]) {
    for (sequences, sequence_len, width, vocabulary) in [(1, 1, 3, 2), (3, 7, 17, 11)] {
        let rows = sequences * sequence_len;
        let again: Vec<u32> = (0..rows).map(|row| (row % sequence_len % 4) as u32).collect();
        for at in [RowPositions::Given(&again), RowPositions::Counted { sequence_len }] {
            check_embedding(devices, at, sequence_len, (rows, width, vocabulary));
        }
    }
}

fn check_embedding<B: Backend>(
    devices: &[B],
    at: RowPositions<'_>,
    sequence_len: usize,
    (rows, width, vocabulary): (usize, usize, usize),
) {
    let ids = tokens(rows, vocabulary, 1);
    let position_count = sequence_len + 1;
    let table = floats(vocabulary * width, 2);
    let positions = floats(position_count * width, 3);
    let dx = floats(rows * width, 4);
    let forward = |positions: Option<&[f64]>| {
        reference::embed_forward(at, width, &ids, &widen(&table), positions)
    };
    let (dtable, dpositions) =
        reference::embed_backward(at, width, (vocabulary, position_count), &ids, &widen(&dx));
    let gradient = dtable.iter().chain(&dpositions).map(|x| 2.0 * x).collect();
    let expected = [
        ("tokens", forward(None)),
        ("with positions", forward(Some(&widen(&positions)))),
        ("gradient", gradient),
        ("gradient without positions", dtable),
    ];
    let case = format!("embedding of {rows} by {width} at {at:?}");
    check(&case, devices, &expected, 1e-6, |device| {
        let table = upload(device, &table);
        let positions = upload(device, &positions);
        let dx = upload_rows(device, &dx);
        let mut plain = poisoned_rows(device, rows * width);
        let mut placed = poisoned_rows(device, rows * width);
        device.embed_forward(at, &ids, whole(device, &table), None, &mut plain);
        let views = (whole(device, &table), Some(whole(device, &positions)));
        device.embed_forward(at, &ids, views.0, views.1, &mut placed);
        let token_range = 0..vocabulary * width;
        let mut g = poisoned(device, (vocabulary + position_count) * width);
        for accumulate in [Accumulate::Start, Accumulate::Add] {
            let range = token_range.end..(vocabulary + position_count) * width;
            let to = EmbedGradient {
                buffer: &mut g,
                tokens: token_range.clone(),
                positions: Some(range),
            };
            device.embed_backward_weights(at, &ids, &dx, to, accumulate);
        }
        let mut g_plain = poisoned(device, vocabulary * width);
        let to = EmbedGradient { buffer: &mut g_plain, tokens: token_range, positions: None };
        device.embed_backward_weights(at, &ids, &dx, to, Accumulate::Start);
        [&plain, &placed, &g, &g_plain].map(|result| download(device, result)).to_vec()
    });
}
