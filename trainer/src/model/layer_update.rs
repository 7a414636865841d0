//! An update of a layer: which optimizer updates what, each with its numbers.

use std::ops::Range;

use zbelastic_kernels::{AdamWRange, Backend, MatrixPart, MuonOptimizer, MuonRange};

use super::parts::LayerParts;

/// Why a device has Muon.
const HAS_MUON: &str = "a configuration with Muon names a device that has it";

/// The ranges of a layer that are updated alike. Together they cover the layer, and none overlaps
/// another.
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
    /// The ranges where AdamW updates the whole layer.
    ///
    /// # Panics
    /// If it does not.
    pub(super) fn all_adamw(&self) -> &[AdamWRange] {
        assert!(self.muon.is_empty(), "{HAS_MUON}");
        &self.adamw
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
            let mut within = within(&mut parts, range);
            let range = range.clone();
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
            let optimizer = muon(backend);
            let mut within = within(&mut parts, &run.range);
            match &mut target {
                UpdateTarget::Candidate { w, m, candidate, .. } => {
                    optimizer.candidate(run, w, m, g, candidate, &mut within);
                }
                UpdateTarget::InPlace { w, m, .. } => {
                    optimizer.in_place(run, g, w, m, &mut within);
                }
            }
        }
        assert!(parts.is_empty(), "the ranges cover every matrix");
    }

    /// The moments after the update, in place.
    pub(super) fn commit<B: Backend>(
        &self,
        backend: &B,
        len: usize,
        g: &B::Buffer,
        [m, v]: [&mut B::Buffer; 2],
    ) {
        if self.muon.is_empty() {
            let first = self.adamw.first().expect("a layer has parameters");
            // Moments are the same whether weights decay or not: one pass for all ranges.
            backend.adamw_commit(0..len, g, first.numbers, m, v);
            return;
        }
        for AdamWRange { range, numbers } in &self.adamw {
            backend.adamw_commit(range.clone(), g, *numbers, m, v);
        }
        for run in &self.muon {
            muon(backend).commit(run, g, m);
        }
    }
}

fn muon<B: Backend>(backend: &B) -> &dyn MuonOptimizer<B::Buffer, B::Matrix> {
    backend.muon_optimizer().expect(HAS_MUON)
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
