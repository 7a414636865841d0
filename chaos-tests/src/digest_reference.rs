//! The same training in one loop: the values that every version must have, from nothing but the
//! seals' verdicts.

use zbelastic_consensus::validation::{Seal, TensorSum, Verdict};
use zbelastic_trainer::data::{BatchSource, TokenBatch};
use zbelastic_trainer::elastic::layer_digest;
use zbelastic_trainer::plan::Plan;
use zbelastic_trainer::stage::UpdateRequest;
use zbelastic_types::{Digest, LayerId, MicrobatchIndex, SliceIndex, Step};

use crate::digest_model::{
    DigestGradient, DigestLayerState, DigestShape, DigestSource, passes, tokens,
};
use crate::islands::SimulatedIslands;
use crate::reference_sums::ReferenceSums;

/// The addends of a step's gradients.
#[derive(Clone, Copy, Debug)]
pub struct GradientAddends {
    /// Number of microbatches of a step.
    pub microbatch_count: u32,
    /// Number of slices of each microbatch.
    pub slice_count: u32,
    /// Number of lanes, each of a run of neighbouring microbatches.
    pub lane_count: u32,
    /// Whether the last layer shares a matrix with the first.
    pub is_tied: bool,
}

/// A serial run, one step behind the seals.
#[derive(Clone)]
pub struct DigestReference {
    shape: DigestShape,
    source: DigestSource,
    addends: GradientAddends,
    layers: Vec<DigestLayerState>,
    updates: u64,
    /// The other island of the life, if there is one.
    islands: Option<SimulatedIslands>,
    /// The digests of each version so far.
    versions: Vec<Vec<Digest>>,
}

/// The state that a slice's forward pass left.
struct SlicePass {
    inputs: Vec<u64>,
    loss: f64,
    /// At the end of the model.
    gradient: u64,
}

impl GradientAddends {
    /// The addends of a job's gradients.
    #[must_use]
    pub fn of(microbatch_count: u32, plan: &Plan) -> Self {
        let slice_count = plan.program.slice_count;
        let lane_count = plan.batch.lanes.get();
        Self { microbatch_count, slice_count, lane_count, is_tied: plan.program.is_tied() }
    }
}

impl DigestReference {
    /// A run before its first step.
    #[must_use]
    pub fn new(shape: DigestShape, microbatch_count: u32) -> Self {
        Self::with_addends(
            shape,
            GradientAddends { microbatch_count, slice_count: 1, lane_count: 1, is_tied: false },
        )
    }

    /// A run with gradients that are added up from more, before its first step.
    #[must_use]
    pub fn with_addends(shape: DigestShape, addends: GradientAddends) -> Self {
        Self::among_islands(shape, addends, None)
    }

    /// The same of one island of two, if there is another.
    #[must_use]
    pub fn among_islands(
        shape: DigestShape,
        addends: GradientAddends,
        islands: Option<SimulatedIslands>,
    ) -> Self {
        let layers = (0..shape.layer_count()).map(|layer| shape.initial(LayerId(layer))).collect();
        let source = DigestSource { seed: shape.seed };
        let updates = 0;
        let versions = Vec::new();
        let mut reference = Self { shape, source, addends, layers, updates, islands, versions };
        reference.exchange(Step(0));
        reference.remember();
        reference
    }

    /// The digests of a version, if the reference is that far.
    #[must_use]
    pub fn version(&self, version: Step) -> Option<&[Digest]> {
        self.versions.get(version.index()).map(Vec::as_slice)
    }

    /// The next step, under this verdict. Yields the sums that an undisturbed run reports of it.
    ///
    /// # Panics
    /// If the seal is not final, or of another step.
    pub fn advance(&mut self, seal: &Seal) -> ReferenceSums {
        let step = seal.turn.step;
        assert!(
            seal.verdict.is_final() && step.0 + 1 == self.versions.len() as u64,
            "one step after the other"
        );
        let batch_step = self.islands.as_ref().map_or(step, |it| it.batch_step(step));
        let (gradients, loss_sum) = self.gradients(batch_step);
        let sums = (0..).map(LayerId).zip(&gradients);
        let sums = sums.flat_map(|(layer, g)| self.shape.sums(layer, *g));
        let square_sum = sums.fold(0.0, |total, sum: TensorSum| total + sum.square_sum);
        if let Some(clip) = match seal.verdict {
            Verdict::Keep => Some(1.0),
            Verdict::Clip { coefficient } => Some(coefficient),
            Verdict::Skip | Verdict::Replay => None,
        } {
            self.updates += 1;
            let update = UpdateRequest { step, number: self.updates, clip };
            for (layer, g) in self.layers.iter_mut().zip(&gradients) {
                let candidate = layer.candidate(*g, update);
                *layer = layer.committed(candidate, *g, clip);
            }
        }
        self.exchange(step.next());
        self.remember();
        ReferenceSums { square_sum, loss_sum }
    }

    /// Back to before the first step.
    pub fn restart(&mut self) {
        *self = Self::among_islands(self.shape.clone(), self.addends, self.islands.clone());
    }

    /// Mixes what came of the other island into a version, and publishes what is this one's.
    fn exchange(&mut self, version: Step) {
        let Some(islands) = &self.islands else { return };
        for (layer, state) in (0..).map(LayerId).zip(&mut self.layers) {
            if let Some(outer) = islands.mixed_at(layer, version) {
                *state = state.mixed(&outer);
            }
            if islands.publishes(layer, version) {
                // After a rewind what was published before stays.
                let _ = islands.publish(layer, version, &state.trained_weights());
            }
        }
    }

    /// The sums of lanes, joined two by two until one is left; losses in the order of microbatches.
    fn gradients(&self, step: Step) -> (Vec<DigestGradient>, f64) {
        let GradientAddends { microbatch_count, slice_count, lane_count, is_tied } = self.addends;
        let mut sums =
            vec![vec![DigestGradient::default(); self.layers.len()]; lane_count as usize];
        let mut loss_sum = 0.0;
        for microbatch in (0..microbatch_count).map(MicrobatchIndex) {
            let lane = microbatch.0 / (microbatch_count / lane_count);
            let gradients = &mut sums[lane as usize];
            let batch = self.source.training(step, microbatch);
            let mut slices: Vec<SlicePass> = Vec::new();
            for slice in (0..slice_count).map(SliceIndex) {
                let pass = self.forward((step, microbatch, slice), &batch, &slices);
                loss_sum += pass.loss;
                slices.push(pass);
            }
            let mut added = vec![0; self.layers.len()];
            for SlicePass { inputs, mut gradient, .. } in slices.into_iter().rev() {
                for layer in (0..self.layers.len()).rev() {
                    gradient = passes::gather(gradient, added[layer]);
                    let share = passes::weights(gradient, inputs[layer]);
                    gradients[layer] = gradients[layer].plus(share);
                    added[layer] = passes::add(added[layer], gradient);
                    let w = self.layers[layer].weights();
                    gradient = passes::backward(gradient, w, inputs[layer]);
                }
            }
        }
        while sums.len() > 1 {
            let join = |pair: &[Vec<DigestGradient>]| {
                pair[0].iter().zip(&pair[1]).map(|(left, right)| left.reduced(*right)).collect()
            };
            sums = sums.chunks(2).map(join).collect();
        }
        let mut gradients = sums.pop().expect("there is a lane");
        if let [embedding, .., head] = &mut gradients[..]
            && is_tied
        {
            let of_head = head.tied(*head, *embedding);
            (*embedding, *head) = (embedding.tied(*head, *embedding), of_head);
        }
        (gradients, loss_sum)
    }

    fn forward(
        &self,
        (step, microbatch, slice): (Step, MicrobatchIndex, SliceIndex),
        batch: &TokenBatch,
        earlier: &[SlicePass],
    ) -> SlicePass {
        let mut x = passes::slice(tokens(batch), slice);
        let mut inputs = Vec::with_capacity(self.layers.len());
        for (layer, numbers) in (0..).map(LayerId).zip(&self.layers) {
            inputs.push(x);
            x = passes::attend(x, earlier.iter().map(|slice| slice.inputs[layer.index()]));
            let draw = passes::draw(self.shape.seed, step, microbatch, layer);
            x = passes::forward(x, numbers.weights(), layer, draw);
        }
        let target = passes::slice(u64::from(batch.targets[0]), slice);
        let (loss, gradient) = passes::loss(x, target);
        SlicePass { inputs, loss, gradient }
    }

    fn remember(&mut self) {
        let version = Step(self.versions.len() as u64);
        let layers = (0..).map(LayerId).zip(&self.layers);
        let digests = layers.map(|(layer, numbers)| layer_digest(&numbers.image(layer, version)));
        self.versions.push(digests.collect());
    }
}
