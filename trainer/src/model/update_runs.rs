//! An update over the parts of a layer that are trained: runs, and the matrices that lie within them.

use std::ops::Range;

use zbelastic_kernels::{AdamWRange, Backend, BufferView, MatrixPart};

use super::parts::LayerParts;

/// Each matrix with its place.
pub(super) fn placed<'a, M>(parts: &LayerParts, matrices: &'a mut [M]) -> Vec<MatrixPart<'a, M>> {
    let ranges = parts.matrices().into_iter().map(|linear| linear.weight.clone());
    ranges.zip(matrices).map(|(range, matrix)| MatrixPart { range, matrix }).collect()
}

/// Runs without what weight decay differs in, those that touch as one: moments are the same whether
/// weights decay or not, and need one pass.
pub(super) fn neighbours(runs: &[AdamWRange]) -> Vec<AdamWRange> {
    let mut all: Vec<AdamWRange> = Vec::new();
    for run in runs {
        match all.last_mut() {
            Some(last) if last.range.end == run.range.start => last.range.end = run.range.end,
            Some(_) | None => all.push(run.clone()),
        }
    }
    all
}

/// Whether a run has all of a matrix, and packs it as it is updated.
fn is_whole(matrix: &Range<usize>, run: &AdamWRange) -> bool {
    run.range.start <= matrix.start && matrix.end <= run.range.end
}

/// Packs matrices of which a part is trained and the rest frozen, from updated `weights`: no run
/// has all of them.
pub(super) fn load_partly_frozen<B: Backend>(
    backend: &B,
    parts: &LayerParts,
    matrices: &mut [B::Matrix],
    runs: &[AdamWRange],
    weights: &B::Buffer,
) {
    for MatrixPart { range, matrix } in placed(parts, matrices) {
        let touches = |run: &AdamWRange| run.range.start < range.end && range.start < run.range.end;
        let mut touching = runs.iter().filter(|run| touches(run)).peekable();
        if touching.peek().is_some_and(|run| !is_whole(&range, run)) {
            backend.load_matrix(BufferView::new(weights, range.clone()), matrix);
        }
    }
}

/// Calls `update` for each run with the matrices that lie within it.
pub(super) fn for_each_run<M>(
    parts: &LayerParts,
    matrices: &mut [M],
    runs: &[AdamWRange],
    mut update: impl FnMut(AdamWRange, &mut [MatrixPart<'_, M>]),
) {
    let mut matrices = placed(parts, matrices).into_iter().peekable();
    for run in runs {
        let mut within = Vec::new();
        while let Some(part) = matrices.next_if(|part| part.range.end <= run.range.end) {
            if is_whole(&part.range, run) {
                within.push(part);
            }
        }
        update(run.clone(), &mut within);
    }
}
