//! The digest model's stage executor and copies.

mod factory;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use zbelastic_consensus::validation::TensorSum;
use zbelastic_kernels::{DeviceFault, LossScale, Pending, PendingFloats, TensorHandle};
use zbelastic_schedule::{Flow, Pass, Placement, PlacementShards, TreeSide};
use zbelastic_trainer::data::TokenBatch;
use zbelastic_trainer::elastic::LayerImage;
use zbelastic_trainer::model::{TiedEnd, TiedParts};
use zbelastic_trainer::outer::OuterWeights;
use zbelastic_trainer::plan::{LaneAddition, LaneMemory, LaneOrder};
use zbelastic_trainer::stage::{
    GradientExecutor, Injection, OperationClock, OuterExecutor, PassExecutor, SealedState,
    StageExecutor, StashStoreError, UpdateExecutor, UpdateRequest,
};
use zbelastic_types::{ChunkIndex, LayerId, MicrobatchIndex, SliceIndex, Step};

use crate::bug::{self, Bug};
use crate::digest_layer::DigestLayer;
use crate::digest_model::{
    DigestGradient, DigestShape, FRAME_LEN, mix, pack, passes, reduced_float, tokens, unpack,
};
use crate::numeric_faults::NumericFaults;

pub use factory::DigestModel;

/// The state that a pass keeps from F until W.
#[derive(Clone, Debug, Default)]
struct DigestStash {
    inputs: Vec<u64>,
    gradients: Vec<u64>,
    target: u64,
    end: u64,
    /// The contributions of later slices to each layer's gradient.
    added: Vec<u64>,
}

/// A stage on hashes.
pub struct DigestStageExecutor {
    shape: DigestShape,
    chunks: BTreeMap<ChunkIndex, Vec<DigestLayer>>,
    stashes: BTreeMap<(ChunkIndex, MicrobatchIndex, SliceIndex), DigestStash>,
    /// The stashes of passes while they are offloaded.
    offloaded: BTreeMap<(ChunkIndex, MicrobatchIndex, SliceIndex), DigestStash>,
    slice_count: u32,
    placement: Placement,
    lane_order: LaneOrder,
    accumulated: BTreeMap<ChunkIndex, u32>,
    /// The sums of lanes that wait, by layer of the chunk and by level.
    waiting: BTreeMap<ChunkIndex, Vec<Vec<DigestGradient>>>,
    /// The gradient of the head's matrix, which WE completes before W does the layer's, how many
    /// contributions it has, and the sums that wait.
    head_parts: BTreeMap<ChunkIndex, (u32, DigestGradient, Vec<DigestGradient>)>,
    result: Option<(Flow, Pass, u64)>,
    faults: NumericFaults,
    /// Whether another node keeps a copy, and would notice a wrong number.
    is_copied: bool,
    /// Passes run and turns dropped: only a known bug looks at them.
    passes_run: u64,
    turns_dropped: u64,
    dropped: u64,
    leftovers: Rc<RefCell<BTreeMap<LayerId, DigestGradient>>>,
    is_first_turn: bool,
}

impl DigestStageExecutor {
    /// The layers that this stage speaks for.
    fn layers(&self) -> impl Iterator<Item = &DigestLayer> {
        self.layers_in(|shards, chunk, layers| shards.owned(chunk, layers))
    }

    /// The layers of each chunk that are in a part of them.
    fn layers_in(
        &self,
        part: fn(PlacementShards<'_>, ChunkIndex, Range<u32>) -> Range<u32>,
    ) -> impl Iterator<Item = &DigestLayer> {
        self.chunks.iter().flat_map(move |(chunk, layers)| {
            let within = part(self.placement.shards(), *chunk, 0..layers.len() as u32);
            &layers[within.start as usize..within.end as usize]
        })
    }

    fn layers_mut(&mut self) -> impl Iterator<Item = &mut DigestLayer> {
        self.chunks.values_mut().flatten()
    }

    fn has_end(&self, chunk: ChunkIndex) -> bool {
        let last = self.chunks[&chunk].last().expect("a chunk has layers");
        last.id.0 + 1 == self.shape.layer_count()
    }

    /// The numbers that earlier slices of a pass left at a layer, in order.
    fn earlier(&self, pass: Pass, layer: usize) -> impl Iterator<Item = u64> + '_ {
        let Pass { chunk, microbatch, slice } = pass;
        let before = (chunk, microbatch, SliceIndex(0))..(chunk, microbatch, slice);
        self.stashes.range(before).map(move |(_, stash)| stash.inputs[layer])
    }

    fn draw(&self, step: Step, microbatch: MicrobatchIndex, layer: LayerId) -> u64 {
        let draw = passes::draw(self.shape.seed, step, microbatch, layer);
        if bug::is(Bug::M13DrawsNotRolledBack) { mix(draw, self.turns_dropped) } else { draw }
    }
}

impl DigestStageExecutor {
    /// The stash of an F that begins with `x`.
    fn run_forward(&mut self, pass: Pass, batch: &TokenBatch, mut x: u64) -> DigestStash {
        let Pass { chunk, microbatch, slice } = pass;
        let step = Step(u64::from(batch.inputs[2]));
        let mut inputs = Vec::with_capacity(self.chunks[&chunk].len());
        for (index, layer) in self.chunks[&chunk].iter().enumerate() {
            inputs.push(x);
            x = passes::attend(x, self.earlier(pass, index));
            x = passes::forward(x, layer.live(), layer.id, self.draw(step, microbatch, layer.id));
        }
        self.passes_run += 1;
        let target = passes::slice(u64::from(batch.targets[0]), slice);
        let added = vec![0; inputs.len()];
        DigestStash { inputs, gradients: Vec::new(), target, end: x, added }
    }
}

impl StageExecutor for DigestStageExecutor {
    fn chunk_indices(&self) -> Vec<ChunkIndex> {
        self.chunks.keys().copied().collect()
    }

    fn has_chunk(&self, chunk: ChunkIndex) -> bool {
        self.chunks.contains_key(&chunk)
    }
}

impl PassExecutor for DigestStageExecutor {
    fn frame_len(&self, _slice: SliceIndex) -> usize {
        FRAME_LEN
    }

    fn slots_in_use(&self) -> usize {
        self.stashes.len() + self.offloaded.len()
    }

    fn drop_passes(&mut self) {
        self.head_parts.values_mut().for_each(|(count, ..)| *count = 0);
        self.stashes.clear();
        self.offloaded.clear();
        self.result = None;
        self.turns_dropped += 1;
        if bug::is(Bug::M4GradientsKept) {
            let kept = self.layers().map(|layer| (layer.id, layer.g)).collect();
            *self.leftovers.borrow_mut() = kept;
        }
        self.accumulated.values_mut().for_each(|count| *count = 0);
    }

    fn forward(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault> {
        let Pass { chunk, microbatch, slice } = pass;
        let tokens = || passes::slice(tokens(batch), slice);
        let input = input.map(TensorHandle::into_floats).transpose()?;
        let x = input.map_or_else(tokens, |tensor| unpack(&tensor));
        let stash = self.run_forward(pass, batch, x);
        let x = stash.end;
        let target = stash.target;
        let before = self.stashes.insert((chunk, microbatch, slice), stash);
        assert!(before.is_none(), "a microbatch passes once");
        if self.has_end(chunk) {
            return Ok(Some(passes::loss(x, target).0.into()));
        }
        self.result = Some((Flow::Forward, pass, x));
        Ok(None)
    }

    fn forward_only(
        &mut self,
        pass: Pass,
        batch: &TokenBatch,
        input: Option<TensorHandle>,
    ) -> Result<Option<Pending<f64>>, DeviceFault> {
        let loss = self.forward(pass, batch, input);
        if pass.slice.0 + 1 == self.slice_count {
            let Pass { chunk, microbatch, .. } = pass;
            self.stashes.retain(|(c, m, _), _| (*c, *m) != (chunk, microbatch));
        }
        loss
    }

    fn backward_input(
        &mut self,
        pass: Pass,
        _loss: (&TokenBatch, LossScale),
        gradient: Option<TensorHandle>,
    ) -> Result<(), DeviceFault> {
        let Pass { chunk, microbatch, slice } = pass;
        let key = |slice| (chunk, microbatch, slice);
        let stash = self.stashes.get_mut(&key(slice)).expect("F came first");
        let start = || passes::loss(stash.end, stash.target).1;
        let gradient = gradient.map(TensorHandle::into_floats).transpose()?;
        let mut gradient = gradient.map_or_else(start, |tensor| unpack(&tensor));
        let layers = &self.chunks[&chunk];
        stash.gradients = vec![0; layers.len()];
        for (index, layer) in layers.iter().enumerate().rev() {
            gradient = passes::gather(gradient, stash.added[index]);
            stash.gradients[index] = gradient;
            gradient = passes::backward(gradient, layer.live(), stash.inputs[index]);
        }
        let shares = stash.gradients.clone();
        for (_, earlier) in self.stashes.range_mut(key(SliceIndex(0))..key(slice)) {
            for (added, share) in earlier.added.iter_mut().zip(&shares) {
                *added = passes::add(*added, *share);
            }
        }
        self.passes_run += 1;
        if layers[0].id.0 > 0 {
            self.result = Some((Flow::Backward, pass, gradient));
        }
        Ok(())
    }

    fn head_weights(&mut self, pass: Pass) {
        let Pass { chunk, microbatch, slice } = pass;
        let place = self.lane_order.place_of(pass);
        let levels = self.lane_order.levels();
        let stash = &self.stashes[&(chunk, microbatch, slice)];
        let ends = stash.gradients.last().zip(stash.inputs.last());
        let (gradient, input) = ends.expect("a chunk has layers");
        let (count, part, waiting) = self.head_parts.entry(chunk).or_default();
        assert_eq!(*count, place, "WE adds microbatches in order, and slices in reverse");
        *count += 1;
        waiting.resize(levels, DigestGradient::default());
        let share = passes::weights(*gradient, *input);
        add_in_lane(self.lane_order.at(place), part, waiting, |before| before.plus(share));
    }

    fn backward_weights(&mut self, pass: Pass, _batch: &TokenBatch) {
        let Pass { chunk, microbatch, slice } = pass;
        let place = self.lane_order.place_of(pass);
        let addition = self.lane_order.at(place);
        let early = self.head_parts.get(&chunk).map_or(0, |(count, ..)| *count);
        if self.has_end(chunk) && early == place {
            self.head_weights(pass);
        }
        let stash = self.stashes.remove(&(chunk, microbatch, slice)).expect("B came first");
        let count = self.accumulated.entry(chunk).or_default();
        assert_eq!(*count, place, "W adds microbatches in order, and slices in reverse");
        *count += 1;
        self.passes_run += 1;
        let order = if bug::is(Bug::M15OrderDependsOnSchedule) { self.passes_run } else { 0 };
        let layers = self.chunks.get_mut(&chunk).expect("a chunk of this stage");
        let waiting = self.waiting.get_mut(&chunk).expect("a chunk of this stage");
        let is_kept = bug::is(Bug::M4GradientsKept) && self.is_first_turn;
        let is_first = addition.is_first && !(is_kept && place == 0);
        let addition = LaneAddition { is_first, ..addition };
        let is_taken_over =
            self.placement.is_table() && self.placement.table().first_on_stage(chunk) != chunk;
        let is_left_out = is_taken_over && bug::is(Bug::M51ReroutedLaneLeftOut);
        let shares = stash.gradients.iter().zip(&stash.inputs);
        for ((layer, waiting), (gradient, input)) in layers.iter_mut().zip(waiting).zip(shares) {
            let share = passes::weights(*gradient, *input);
            let share = if order > 0 { mix(share, order) } else { share };
            add_in_lane(addition, &mut layer.g, waiting, |before| {
                if is_left_out { before } else { before.plus(share) }
            });
        }
    }

    /// Everything but the chunk's input is made again; of slices, everything but the numbers that
    /// they read of each other.
    fn drop_activations(&mut self, pass: Pass) {
        let is_cut = self.slice_count > 1;
        let stash =
            self.stashes.get_mut(&(pass.chunk, pass.microbatch, pass.slice)).expect("F came first");
        if !is_cut {
            stash.inputs.truncate(1);
        }
        (stash.target, stash.end) = (0, 0);
    }

    fn recompute(&mut self, pass: Pass, batch: &TokenBatch) {
        let place = (pass.chunk, pass.microbatch, pass.slice);
        let DigestStash { inputs, added, .. } = self.stashes.remove(&place).expect("F came first");
        let stash = self.run_forward(pass, batch, inputs[0]);
        self.stashes.insert(place, DigestStash { added, ..stash });
    }

    fn offload(&mut self, pass: Pass) -> Result<(), StashStoreError> {
        let place = (pass.chunk, pass.microbatch, pass.slice);
        let stash = self.stashes.remove(&place).expect("F came first");
        self.offloaded.insert(place, stash);
        Ok(())
    }

    fn reload(&mut self, pass: Pass) -> Result<(), StashStoreError> {
        let place = (pass.chunk, pass.microbatch, pass.slice);
        let stash = self.offloaded.remove(&place).ok_or(StashStoreError::Missing { pass })?;
        self.stashes.insert(place, stash);
        Ok(())
    }

    fn take_result(&mut self, flow: Flow, pass: Pass) -> TensorHandle {
        let (of_flow, of_pass, hash) = self.result.take().expect("a result is there");
        assert_eq!((of_flow, of_pass), (flow, pass), "a result is passed on at once");
        pack(hash, 0.0).into()
    }
}

impl DigestStageExecutor {
    /// The gradients of a chunk's layers, one after another.
    fn floats_of(&self, chunk: ChunkIndex) -> Vec<f32> {
        self.chunks[&chunk].iter().flat_map(|layer| layer.g.floats()).collect()
    }

    /// Makes each float of these, from the first one's index on, what `merge` makes of its place in its
    /// layer, of itself and of the other.
    fn merge_floats(
        &mut self,
        chunk: ChunkIndex,
        (first, others): (usize, &[f32]),
        merge: impl Fn(usize, f32, f32) -> f32,
    ) {
        let mut floats = self.floats_of(chunk);
        for (index, other) in (first..).zip(others) {
            floats[index] = merge(index % FRAME_LEN, floats[index], *other);
        }
        let layers = self.chunks.get_mut(&chunk).expect("a chunk of this stage");
        for (layer, floats) in layers.iter_mut().zip(floats.chunks(FRAME_LEN)) {
            layer.g = DigestGradient::of_floats(floats);
        }
        if let (Some(layer), Some((_, part, _))) = (layers.last(), self.head_parts.get_mut(&chunk))
        {
            *part = layer.g;
        }
    }
}

impl GradientExecutor for DigestStageExecutor {
    fn layer_lens(&self, chunk: ChunkIndex) -> Vec<usize> {
        vec![FRAME_LEN; self.chunks[&chunk].len()]
    }

    fn partial(&self, chunk: ChunkIndex, floats: Range<usize>) -> Vec<f32> {
        self.floats_of(chunk)[floats].to_vec()
    }

    fn reduce(&mut self, chunk: ChunkIndex, other: (usize, &[f32]), own_side: TreeSide) {
        self.merge_floats(chunk, other, |place, own, other| {
            let sum = match own_side {
                _ if bug::is(Bug::M48PartLeftOut) => own,
                TreeSide::Left => reduced_float(place, own, other),
                TreeSide::Right => reduced_float(place, other, own),
            };
            let is_twice = bug::is(Bug::M47PartAddedTwice);
            if is_twice { reduced_float(place, sum, other) } else { sum }
        });
    }

    fn gather(&mut self, chunk: ChunkIndex, sums: (usize, &[f32])) {
        let is_left_out = bug::is(Bug::M55SumNotGathered);
        self.merge_floats(chunk, sums, |_, own, sum| if is_left_out { own } else { sum });
    }

    fn tied_len(&self) -> usize {
        FRAME_LEN
    }

    fn tied_part(&self, chunk: ChunkIndex, end: TiedEnd) -> Vec<f32> {
        match end {
            TiedEnd::Embedding => end.layer(&self.chunks[&chunk]).g.floats(),
            TiedEnd::Head => self.head_parts[&chunk].1.floats(),
        }
    }

    fn tie(&mut self, ends: &[(ChunkIndex, TiedEnd)], parts: TiedParts) {
        let head = DigestGradient::of_floats(&parts.head);
        let embedding = DigestGradient::of_floats(&parts.embedding);
        for (chunk, end) in ends {
            let layers = self.chunks.get_mut(chunk).expect("a chunk of this stage");
            let layer = end.layer_mut(layers);
            let is_turned = *end == TiedEnd::Embedding && bug::is(Bug::M45EmbeddingAddsFirst);
            let (first, second) = if is_turned { (embedding, head) } else { (head, embedding) };
            layer.g = layer.g.tied(first, second);
        }
    }

    fn freeze(&mut self) {
        let expected = self.lane_order.additions();
        for count in self.accumulated.values_mut() {
            assert_eq!(*count, expected, "every microbatch is in the gradient");
            *count = 0;
        }
        self.head_parts.values_mut().for_each(|(count, ..)| *count = 0);
        self.is_first_turn = false;
        // A stage of later replicas alone has no layer that it speaks for.
        let first = self.layers().next().map(|layer| layer.id);
        let mark = first.and_then(|_| self.faults.borrow_mut().gradient_mark());
        if let Some(mark) = mark {
            let mut layers = self.layers_mut().filter(|layer| Some(layer.id) == first);
            let layer = layers.next().expect("a layer of this stage");
            layer.g = layer.g.marked(mark);
        }
        let bits = first
            .filter(|_| self.is_copied)
            .and_then(|first| self.faults.borrow_mut().state_flip(first));
        if let Some(bits) = bits {
            let mut layers = self.layers_mut().filter(|layer| Some(layer.id) == first);
            let layer = layers.next().expect("a layer of this stage");
            layer.state = layer.state.flipped(bits);
        }
    }

    fn inject(&mut self, _injection: &Injection) {}

    fn square_sums(&mut self) -> Vec<TensorSum> {
        let shape = &self.shape;
        let sums = self.layers().flat_map(|layer| shape.sums(layer.id, layer.g));
        let mut sums: Vec<_> = sums.collect();
        let first = sums.first_mut().filter(|_| self.is_copied);
        if let Some(first) = first
            && let Some(factor) = self.faults.borrow_mut().sum_factor()
        {
            first.square_sum *= factor;
        }
        sums
    }

    fn gradients(&mut self) -> Vec<(LayerId, PendingFloats)> {
        self.layers().map(|layer| (layer.id, layer.g.floats().into())).collect()
    }
}

/// Adds to a lane, and joins it with those that wait for it.
fn add_in_lane(
    addition: LaneAddition,
    gradient: &mut DigestGradient,
    waiting: &mut [DigestGradient],
    add: impl FnOnce(DigestGradient) -> DigestGradient,
) {
    let LaneAddition { memory, is_first, carries } = addition;
    let at = |memory: LaneMemory| match memory {
        LaneMemory::Gradient => None,
        LaneMemory::Level(level) => Some(level),
    };
    let before = at(memory).map_or(*gradient, |level| waiting[level]);
    let mut sum = add(if is_first { DigestGradient::default() } else { before });
    for joined in 0..carries {
        // The sum that waits at the highest level is of the lanes that came first.
        let is_first_come = bug::is(Bug::M46FirstComeFirstJoined);
        let level = if is_first_come { carries - 1 - joined } else { joined };
        sum = waiting[level].reduced(sum);
    }
    match at(memory) {
        Some(level) => waiting[level] = sum,
        None => *gradient = sum,
    }
}

impl UpdateExecutor for DigestStageExecutor {
    fn compute_candidate(&mut self, update: UpdateRequest) {
        let ahead = if bug::is(Bug::M14UpdatesNotRolledBack) { self.dropped } else { 0 };
        let number = update.number + ahead;
        let update = UpdateRequest { number, ..update };
        let is_sharded = self.placement.shards().count() > 1;
        for layer in self.layers_mut() {
            let candidate = layer.state.candidate(layer.g, update);
            let is_left_out = is_sharded && bug::is(Bug::M65ShardWithoutOwner);
            let candidate = if is_left_out { layer.state.weights() } else { candidate };
            layer.candidate = (!layer.is_gathered).then_some(candidate);
        }
    }

    fn candidates(&self, chunk: ChunkIndex, floats: Range<usize>) -> Vec<f32> {
        let layers = &self.chunks[&chunk][floats.start / FRAME_LEN..floats.end / FRAME_LEN];
        layers.iter().flat_map(|layer| pack(layer.live(), 0.0)).collect()
    }

    fn gather_candidates(&mut self, chunk: ChunkIndex, (first, weights): (usize, &[f32])) {
        let layers = self.chunks.get_mut(&chunk).expect("a chunk of this stage");
        let gathered = layers[first / FRAME_LEN..].iter_mut();
        for (layer, weights) in gathered.zip(weights.chunks(FRAME_LEN)) {
            assert!(layer.is_gathered, "what is computed here is not gathered");
            // Its moments are not there, so that no update of its own comes to the same.
            let own = UpdateRequest { step: layer.version, number: 0, clip: 1.0 };
            layer.candidate = Some(match () {
                () if bug::is(Bug::M63StaleCandidateGathered) => layer.state.weights(),
                () if bug::is(Bug::M64ShardWithTwoOwners) => layer.state.candidate(layer.g, own),
                () => unpack(weights),
            });
        }
    }

    fn drop_candidate(&mut self) {
        let has_candidate = self.layers().any(|layer| layer.candidate.is_some());
        self.dropped += u64::from(has_candidate);
        let is_replaying = std::mem::take(&mut self.faults.borrow_mut().is_replaying);
        for layer in self.layers_mut() {
            let is_dropped = layer.candidate.take().is_some();
            if is_replaying && bug::is(Bug::M17ReplayFromOtherState) {
                layer.state = layer.state.flipped(1);
            }
            if is_dropped && bug::is(Bug::M3MomentsNotRestored) {
                layer.state = layer.state.with_second_moment(layer.g, 1.0);
            }
        }
    }

    fn commit(&mut self, update: UpdateRequest) {
        self.layers_mut().for_each(|layer| layer.commit(update));
    }

    fn skip(&mut self, step: Step) {
        self.layers_mut().for_each(|layer| layer.skip(step));
    }
}

impl SealedState for DigestStageExecutor {
    fn version(&self) -> Step {
        let mut layers = self.chunks.values().flatten().filter(|layer| !layer.is_gathered);
        layers.next().expect("a stage updates a layer").version
    }

    fn images(&self) -> Vec<LayerImage> {
        self.layers().map(|layer| layer.state.image(layer.id, layer.version)).collect()
    }

    fn twin_images(&self) -> Vec<LayerImage> {
        let twins = self.layers_in(|shards, chunk, layers| shards.twins(chunk, layers));
        twins.map(|layer| layer.state.image(layer.id, layer.version)).collect()
    }
}

impl OuterExecutor for DigestStageExecutor {
    fn trained_weights(&self, layer: LayerId) -> Vec<f32> {
        let mut layers = self.chunks.values().flatten();
        let layer = layers.find(|found| found.id == layer).expect("a layer of this stage");
        layer.state.trained_weights()
    }

    fn mix_outer(&mut self, outer: &OuterWeights) {
        for layer in self.layers_mut().filter(|layer| layer.id == outer.layer) {
            layer.state = layer.state.mixed(outer);
        }
    }
}

impl OperationClock for DigestStageExecutor {}
