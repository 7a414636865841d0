//! An update of a layer: which optimizer updates what, each with its numbers.

use std::ops::Range;

use zbelastic_kernels::{AdamWRange, Backend, BufferView, MatrixPart, MuonRange};

use super::parts::LayerParts;

/// The ranges of a layer that are updated alike. Together they cover what is trained of it, and none
/// overlaps another.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LayerUpdate {
    /// Those of AdamW, in order.
    pub(crate) adamw: Vec<AdamWRange>,
    /// Those of Muon, in order.
    pub(crate) muon: Vec<MuonRange>,
}

/// The weights that an update writes beside the state, or over it.
pub(super) enum UpdateTarget<'a, B> {
    /// The candidate, from these weights and moments.
    Candidate { w: &'a B, m: &'a B, v: &'a B, candidate: &'a mut B },
    /// Weights and moments in place.
    InPlace { w: &'a mut B, m: &'a mut B, v: &'a mut B },
}

impl LayerUpdate {
    /// The ranges where AdamW updates all that is trained.
    ///
    /// # Panics
    /// If it does not.
    pub(super) fn all_adamw(&self) -> &[AdamWRange] {
        assert!(self.muon.is_empty(), "Muon has no candidates with sums of squares");
        &self.adamw
    }

    /// Computes Muon's part of a candidate that is packed weights.
    pub(super) fn pack_muon<B: Backend>(
        &self,
        backend: &B,
        [w, m, g]: [&B::Buffer; 3],
        matrices: &mut [MatrixPart<'_, B::Matrix>],
    ) {
        for run in &self.muon {
            backend.muon_optimizer().candidate(run, w, m, g, None, matrices);
        }
    }

    /// Commits Muon's part of such a candidate: weights and momentum, in place.
    pub(crate) fn commit_muon<B: Backend>(
        &self,
        backend: &B,
        g: &B::Buffer,
        [w, m]: [&mut B::Buffer; 2],
    ) {
        for run in &self.muon {
            backend.muon_optimizer().in_place(run, g, w, m, &mut []);
        }
    }

    /// Computes weights from the gradient, and packs the matrices.
    pub(super) fn apply<B: Backend>(
        &self,
        backend: &B,
        (parts, matrices): (&LayerParts, &mut [B::Matrix]),
        g: &B::Buffer,
        mut target: UpdateTarget<'_, B::Buffer>,
    ) {
        let mut parts = placed(parts, matrices);
        for AdamWRange { range, numbers } in &self.adamw {
            let mut within = within(&mut parts, &range.weights);
            match &mut target {
                UpdateTarget::Candidate { w, m, v, candidate } => {
                    backend.adamw_candidate(range, w, m, v, g, *numbers, candidate, &mut within);
                }
                UpdateTarget::InPlace { w, m, v } => {
                    backend.adamw_in_place(range, g, *numbers, w, m, v, &mut within);
                }
            }
        }
        for run in &self.muon {
            let optimizer = backend.muon_optimizer();
            let mut within = within(&mut parts, &run.range.weights);
            match &mut target {
                UpdateTarget::Candidate { w, m, candidate, .. } => {
                    optimizer.candidate(run, w, m, g, Some(candidate), &mut within);
                }
                UpdateTarget::InPlace { w, m, .. } => {
                    optimizer.in_place(run, g, w, m, &mut within);
                }
            }
        }
        let weights: &B::Buffer = match &target {
            UpdateTarget::Candidate { candidate, .. } => candidate,
            UpdateTarget::InPlace { w, .. } => w,
        };
        // No range has all of a matrix that is partly frozen, or parts of which decay by different rates.
        for MatrixPart { range, matrix } in parts.into_iter().filter(|it| self.touches(&it.range)) {
            backend.load_matrix(BufferView::new(weights, range), matrix);
        }
    }

    /// The moments after the update, in place.
    pub(super) fn commit<B: Backend>(
        &self,
        backend: &B,
        g: &B::Buffer,
        [m, v]: [&mut B::Buffer; 2],
    ) {
        for AdamWRange { range, numbers } in neighbours(&self.adamw) {
            backend.adamw_commit(&range, g, numbers, m, v);
        }
        for run in &self.muon {
            backend.muon_optimizer().commit(run, g, m);
        }
    }

    /// Whether any of a range is updated.
    fn touches(&self, of: &Range<usize>) -> bool {
        let adamw = self.adamw.iter().map(|run| &run.range);
        let mut all = adamw.chain(self.muon.iter().map(|run| &run.range));
        all.any(|range| range.weights.start < of.end && of.start < range.weights.end)
    }
}

/// Ranges without what weight decay differs in, those that touch as one: moments are the same whether
/// weights decay or not, and need one pass.
fn neighbours(ranges: &[AdamWRange]) -> Vec<AdamWRange> {
    let mut all: Vec<AdamWRange> = Vec::new();
    for run in ranges {
        if !all.last_mut().is_some_and(|last| last.range.extend(&run.range)) {
            all.push(run.clone());
        }
    }
    all
}

/// Each matrix with its place.
pub(super) fn placed<'a, M>(parts: &LayerParts, matrices: &'a mut [M]) -> Vec<MatrixPart<'a, M>> {
    let ranges = parts.matrices().into_iter().map(|linear| linear.weight.clone());
    ranges.zip(matrices).map(|(range, matrix)| MatrixPart { range, matrix }).collect()
}

/// Takes out the matrices that lie within `range`.
fn within<'a, M>(
    parts: &mut Vec<MatrixPart<'a, M>>,
    range: &Range<usize>,
) -> Vec<MatrixPart<'a, M>> {
    let is_within = |part: &mut MatrixPart<'a, M>| {
        range.start <= part.range.start && part.range.end <= range.end
    };
    parts.extract_if(.., is_within).collect()
}
