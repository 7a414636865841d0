//! One cell for every pass of a program, found by arithmetic instead of by search.

use crate::limits::PASS_COUNT_MAX;
use crate::op::Pass;
use crate::program::Program;

/// A cell for every chunk, microbatch and slice. A pass the program does not have has no cell, so
/// readers of unchecked programs cannot go astray; nor has a microbatch in a replica that it does
/// not run through.
#[derive(Clone)]
pub(crate) struct PassTable<T> {
    cells: Vec<T>,
    microbatch_count: u32,
    slice_count: u32,
    chunks_per_replica: u32,
    microbatches_per_replica: u32,
}

impl<T: Copy> PassTable<T> {
    /// A table for the passes of `program`, every cell filled with `cell`.
    ///
    /// # Panics
    /// If the program has more than [`PASS_COUNT_MAX`] passes, which neither the parser nor
    /// `check` lets through.
    pub fn new(program: &Program, cell: T) -> Self {
        let pass_count = program.pass_count();
        assert!(pass_count <= PASS_COUNT_MAX, "{pass_count} passes are more than {PASS_COUNT_MAX}");
        let cells = vec![cell; usize::try_from(pass_count).expect("the limit fits an address")];
        let placement = &program.placement;
        let Program { microbatch_count, slice_count, .. } = *program;
        let chunks_per_replica = placement.chunks_per_replica();
        let microbatches_per_replica = placement.microbatches_per_replica(microbatch_count);
        Self { cells, microbatch_count, slice_count, chunks_per_replica, microbatches_per_replica }
    }

    /// The cell of `pass`.
    pub fn get(&self, pass: Pass) -> Option<T> {
        self.position(pass).and_then(|position| self.cells.get(position)).copied()
    }

    /// The cell of `pass`, to be written.
    pub fn get_mut(&mut self, pass: Pass) -> Option<&mut T> {
        self.position(pass).and_then(|position| self.cells.get_mut(position))
    }

    /// Every pass with its cell, chunk by chunk.
    pub fn iter(&self) -> impl Iterator<Item = (Pass, T)> + '_ {
        let slices = self.slice_count;
        let per_chunk = self.microbatches_per_replica;
        let pass = move |position: u32| {
            let chunk = position / slices / per_chunk;
            let first = chunk / self.chunks_per_replica * per_chunk;
            let microbatch = first + position / slices % per_chunk;
            Pass::sliced(chunk, microbatch, position % slices)
        };
        let cells = (0u32..).map(pass).zip(self.cells.iter().copied());
        cells.filter(|(pass, _)| pass.microbatch.0 < self.microbatch_count)
    }

    /// Whether chunk and microbatch belong to one replica.
    fn is_pass(&self, pass: Pass) -> bool {
        let replica = pass.microbatch.0 / self.microbatches_per_replica;
        pass.chunk.0 / self.chunks_per_replica == replica
    }

    fn position(&self, pass: Pass) -> Option<usize> {
        let slices = self.slice_count as usize;
        let per_chunk = self.microbatches_per_replica as usize;
        let slice = pass.slice.index();
        let is_here = pass.microbatch.0 < self.microbatch_count && slice < slices;
        let microbatch = pass.microbatch.index() % per_chunk;
        (is_here && self.is_pass(pass))
            .then(|| (pass.chunk.index() * per_chunk + microbatch) * slices + slice)
    }
}
