//! AMPNet's reference: the order that was found, run again in one plain loop.
//!
//! There is no formula for which weights a pass reads: they are those of the chunk when its turn
//! comes. So the loop takes the stages in turn, and of each as many passes as have their operands,
//! in the order that was recorded.

use std::collections::BTreeMap;

use zbelastic_kernels::{Accumulate, AllocateError, Backend, HostFloats};
use zbelastic_schedule::asynchronous::{AsyncOp, AsyncProgram};
use zbelastic_schedule::{Compute, Pass};
use zbelastic_types::{MicrobatchIndex, Step};

use super::reference::{ChunkFloats, LayerFloats, SerialUpdate};
use super::setup::{AsyncSetup, context};
use super::state::AsyncState;
use crate::data::BatchSource;
use crate::elastic::LayerImage;
use crate::model::{
    BufferSize, Chunk, LayerState, Logits, PassScratch, PassSizes, PassStash, model_layers,
    rotary_angles,
};

/// A chunk of the model on its own.
struct ReplayedChunk<B: Backend> {
    chunk: Chunk<B>,
    floats: ChunkFloats,
    number: u32,
    accumulated: u32,
    stashes: BTreeMap<MicrobatchIndex, StashWithLogits<B::Buffer>>,
}

/// What a pass keeps between F and BW; logits only with the head.
type StashWithLogits<T> = (PassStash<T>, Option<Logits<T>>);

/// Runs what `found` recorded of a run of `setup`, which must be one chunk a stage.
///
/// # Errors
/// If the device's memory does not hold it.
///
/// # Panics
/// If the order cannot be run.
pub fn replay_found<B: Backend, S: BatchSource>(
    setup: &AsyncSetup,
    found: &AsyncProgram,
    backend: &B,
    source: &S,
) -> Result<AsyncState, AllocateError> {
    let mut replay = AsyncReplay::new(setup, backend, source)?;
    let mut positions = vec![0; found.stages.len()];
    loop {
        let mut has_moved = false;
        for (stage, ops) in found.stages.iter().enumerate() {
            while let Some(op) = ops.get(positions[stage]) {
                if !replay.run(*op)? {
                    break;
                }
                (positions[stage], has_moved) = (positions[stage] + 1, true);
            }
        }
        if !has_moved {
            break;
        }
    }
    let lens: Vec<usize> = found.stages.iter().map(Vec::len).collect();
    assert_eq!(positions, lens, "the order that was found comes to its end");
    Ok(replay.state())
}

struct AsyncReplay<'a, B: Backend, S> {
    setup: &'a AsyncSetup,
    backend: &'a B,
    source: &'a S,
    chunks: Vec<ReplayedChunk<B>>,
    /// What passes left for the next, by the pass that reads it.
    inputs: BTreeMap<Pass, Vec<f32>>,
    gradients: BTreeMap<Pass, Vec<f32>>,
    scratch: PassScratch<B::Buffer>,
    angles: Option<B::Buffer>,
}

impl<'a, B: Backend, S: BatchSource> AsyncReplay<'a, B, S> {
    fn new(setup: &'a AsyncSetup, backend: &'a B, source: &'a S) -> Result<Self, AllocateError> {
        let model = &setup.model;
        let specs = model_layers(model);
        let mut chunks = Vec::new();
        for range in &setup.plan.chunks {
            let mut layers = Vec::new();
            let mut floats = Vec::new();
            for layer in range.ids() {
                let spec = specs[layer as usize].clone();
                let weights = setup.weights.of_layer(&spec).into_floats();
                layers.push(LayerState::new(backend, model, spec, &weights)?);
                floats.push(LayerFloats::new(weights));
            }
            let floats = ChunkFloats { layers: floats, updates: 0 };
            let chunk = Chunk::new(layers);
            let stashes = BTreeMap::new();
            chunks.push(ReplayedChunk { chunk, floats, number: 0, accumulated: 0, stashes });
        }
        let shape = setup.plan.batch.microbatch;
        let scratch = PassSizes::whole(model, shape).scratch(&mut |size| size.allocate(backend))?;
        let angles = rotary_angles(backend, model, shape)?;
        let inputs = BTreeMap::new();
        let gradients = BTreeMap::new();
        Ok(Self { setup, backend, source, chunks, inputs, gradients, scratch, angles })
    }

    /// Runs an operation; returns false if its operand is not there yet.
    fn run(&mut self, op: AsyncOp) -> Result<bool, AllocateError> {
        match op {
            AsyncOp::Compute(Compute::F, pass, _) => self.forward(pass),
            AsyncOp::Compute(_, pass, _) => Ok(self.backward(pass)),
            AsyncOp::Step(chunk, _) => {
                self.step(chunk.index());
                Ok(true)
            }
            AsyncOp::Transfer(..) => Ok(true),
            AsyncOp::Predict(..)
            | AsyncOp::Stash(..)
            | AsyncOp::Free(..)
            | AsyncOp::Average(..)
            | AsyncOp::Dynamic(..) => panic!("{op} is not found in a dynamic region"),
        }
    }

    fn batch(&self, pass: Pass) -> crate::data::TokenBatch {
        let within = self.setup.plan.program.microbatch_count;
        let k = pass.microbatch.0;
        self.source.training(Step((k / within).into()), MicrobatchIndex(k % within))
    }

    fn forward(&mut self, pass: Pass) -> Result<bool, AllocateError> {
        let input = self.inputs.remove(&pass);
        if input.is_none() && pass.chunk.0 > 0 {
            return Ok(false);
        }
        let batch = self.batch(pass);
        let sizes = PassSizes::whole(&self.setup.model, self.setup.plan.batch.microbatch);
        let mut make = |size: BufferSize| size.allocate(self.backend);
        let range = self.setup.plan.chunks[pass.chunk.index()];
        let mut stash = PassStash::build(&sizes, range, &mut make)?;
        let replayed = &mut self.chunks[pass.chunk.index()];
        let mut logits = replayed.chunk.has_head().then(|| sizes.logits(&mut make)).transpose()?;
        if let Some(input) = input {
            replayed.chunk.set_input(self.backend, &input, &mut stash);
        }
        let context = context(self.setup, self.backend, &self.angles, None);
        replayed.chunk.forward(&context, &batch, &mut stash, logits.as_mut());
        let next = Pass::new(pass.chunk.0 + 1, pass.microbatch.0);
        if logits.is_none() {
            self.inputs.insert(next, replayed.chunk.output(self.backend, &stash));
        }
        replayed.stashes.insert(pass.microbatch, (stash, logits));
        Ok(true)
    }

    fn backward(&mut self, pass: Pass) -> bool {
        let gradient = self.gradients.remove(&pass);
        let batch = self.batch(pass);
        let replayed = &mut self.chunks[pass.chunk.index()];
        if gradient.is_none() && !replayed.chunk.has_head() {
            return false;
        }
        let (mut stash, mut logits) =
            replayed.stashes.remove(&pass.microbatch).expect("F comes before B");
        if let Some(gradient) = gradient {
            replayed.chunk.set_gradient(self.backend, &gradient, &mut stash);
        }
        let context = context(self.setup, self.backend, &self.angles, None);
        let program = &self.setup.plan.program;
        let step = Step(program.minibatch_of(pass.microbatch).into());
        let targets = self.source.targets(step, program.microbatch_count);
        let loss = (&batch, self.setup.loss_scale(targets));
        replayed.chunk.backward_input(
            &context,
            loss,
            &mut stash,
            logits.as_mut(),
            &mut self.scratch,
        );
        if let Some(before) = pass.chunk.0.checked_sub(1) {
            let reader = Pass::new(before, pass.microbatch.0);
            self.gradients.insert(reader, replayed.chunk.input_gradient(self.backend, &stash));
        }
        let accumulate =
            if replayed.accumulated == 0 { Accumulate::Start } else { Accumulate::Add };
        replayed.accumulated += 1;
        if let Some(logits) = &logits {
            replayed.chunk.head_weights(&context, &stash, logits, accumulate);
        }
        replayed.chunk.backward_weights(&context, &batch, &stash, &mut self.scratch, accumulate);
        true
    }

    fn step(&mut self, chunk: usize) {
        let replayed = &mut self.chunks[chunk];
        let setup = self.setup;
        let base = replayed.number;
        let update = SerialUpdate { setup, replica: 0, base, lr: setup.lr_of_update(0, base) };
        replayed.floats =
            replayed.floats.updated(self.backend, replayed.chunk.layers_mut(), &update);
        for (layer, floats) in replayed.chunk.layers_mut().iter_mut().zip(&replayed.floats.layers) {
            layer.set_weights(self.backend, &floats.w);
        }
        (replayed.number, replayed.accumulated) = (replayed.number + 1, 0);
    }

    fn state(&self) -> AsyncState {
        let mut state = AsyncState::default();
        for replayed in &self.chunks {
            state.updates += replayed.floats.updates;
            for (layer, floats) in replayed.chunk.layers().iter().zip(&replayed.floats.layers) {
                let LayerFloats { w, m, v, .. } = floats.clone();
                let layer = layer.spec.layer;
                let version = Step(replayed.number.into());
                let [w, m, v] = [w, m, v].map(HostFloats::from);
                state.layers.push((0, LayerImage { layer, version, w, m, v }));
            }
        }
        state
    }
}
