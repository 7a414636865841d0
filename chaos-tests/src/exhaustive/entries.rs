//! The entries in the log of the small world: its job, its plans, and numbers for tensors.

use zbelastic_consensus::checkpoint::LayerDigest;
use zbelastic_consensus::contact::Contact;
use zbelastic_consensus::job::{JobSpec, WindowPolicy};
use zbelastic_consensus::member::{Holder, MemberChange, Resources, Role};
use zbelastic_consensus::plan::{LayerSource, PlanReason, PlanRecord, Promise, copies_at};
use zbelastic_consensus::state::State;
use zbelastic_consensus::validation::{GuardPolicy, LayerFingerprint, NonfinitePolicy, TensorSum};
use zbelastic_schedule::{LowerOptions, Program, ScheduleKind, Window, generate, lower};
use zbelastic_types::{
    Bytes, ClusterId, Digest, Fingerprint, LayerId, LayerRange, NodeId, StageIndex, Step,
    TensorIndex,
};

use super::ModelBounds;

pub(super) const CLUSTER: ClusterId = ClusterId(1);
const MICROBATCH_COUNT: u32 = 2;
const CLIP_NORM: f64 = 1.0;

/// One layer a stage and one tensor a layer. Owners and copies attest every step.
pub(super) fn spec(bounds: &ModelBounds) -> JobSpec {
    let policy = GuardPolicy {
        clip_norm: clip_norm(),
        nonfinite: NonfinitePolicy::Skip,
        replays_max: 0,
        spike_deviations: None,
    };
    JobSpec {
        run: zbelastic_types::RunId(1),
        name: "a-run".to_owned(),
        from: None,
        config: Digest([1; 32]),
        document: Vec::new(),
        layer_tensors: vec![1; bounds.stages as usize],
        layer_bytes: Vec::new(),
        microbatch_count: MICROBATCH_COUNT,
        step_count: bounds.steps,
        policy,
        window: WindowPolicy::Fixed(Window::One),
        copies: 1,
        checkpoint_every: 0,
        checkpoint_ticks: 0,
        checkpoints_kept: 1,
        attest_every: 1,
        device: zbelastic_consensus::class::DeviceKind::Processors,
        stages_max: bounds.stages,
        workers_min: 1,
        lost_after_ticks: 1,
        settle_ticks: 0,
    }
}

pub(super) const fn clip_norm() -> Option<f64> {
    Some(CLIP_NORM)
}

pub(super) fn admit(node: NodeId) -> MemberChange {
    let resources = Resources {
        memory: Bytes(1 << 30),
        speed_permille: 1000,
        class: zbelastic_consensus::class::DeviceClass::Processors,
    };
    let contact = Contact::of_node(node);
    MemberChange::Admit { node, boot: 1, role: Role::Worker, resources, contact }
}

/// The gradient of a step is a function of the step: the first is kept as it is, the second is
/// clipped, and so on in turns.
pub(super) fn sums(layers: impl Iterator<Item = LayerId>, step: Step) -> Vec<TensorSum> {
    let square_sum = if step.0.is_multiple_of(2) { CLIP_NORM / 64.0 } else { CLIP_NORM * 4.0 };
    let sum = |layer: LayerId| TensorSum { tensor: TensorIndex(layer.0), square_sum, nonfinite: 0 };
    layers.map(sum).collect()
}

pub(super) fn digest(layer: LayerId, version: Step) -> Digest {
    let mut bytes = [layer.0 as u8; 32];
    bytes[..8].copy_from_slice(&version.0.to_le_bytes());
    Digest(bytes)
}

/// Digests in model order.
pub(super) fn digests(layers: impl Iterator<Item = LayerId>, version: Step) -> Vec<LayerDigest> {
    let mut layers: Vec<LayerId> = layers.collect();
    layers.sort_unstable();
    layers.into_iter().map(|layer| (layer, digest(layer, version))).collect()
}

/// Fingerprints in model order.
pub(super) fn fingerprints(
    layers: impl Iterator<Item = LayerId>,
    version: Step,
) -> Vec<LayerFingerprint> {
    let fingerprint = |layer: LayerId| Fingerprint([version.0, u64::from(layer.0)]);
    let mut layers: Vec<LayerId> = layers.collect();
    layers.sort_unstable();
    layers.into_iter().map(|layer| (layer, fingerprint(layer))).collect()
}

/// The plan over these workers, as the product's leader makes it: a worker that stays keeps its
/// place, one that comes fills the place of one that went, and each stage's copy is with the next.
pub(super) fn plan(state: &State, sources: Vec<LayerSource>, reason: PlanReason) -> PlanRecord {
    let spec = &state.job().expect("there is a job").spec;
    let mut stages = stage_candidates(state);
    stages.truncate(spec.stages_max as usize);
    let stage_count = stages.len() as u32;
    let by = |stage: u32| {
        let places = 1..=copies_at(spec.copies, stage_count);
        places.map(|place| StageIndex((stage + place) % stage_count)).collect()
    };
    PlanRecord {
        generation: state.training().plans().generation_next(),
        stages,
        copies: (0..stage_count).map(by).collect(),
        promise: Promise::of(spec.copies, stage_count),
        chunks: chunks(spec.layer_count(), stage_count),
        program: program(stage_count),
        from_step: state.open_turn().step,
        expected: vec![None; sources.len()],
        sources,
        op_ticks_max: 1,
        reason,
    }
}

fn stage_candidates(state: &State) -> Vec<Holder> {
    let stages = state.plan().map_or(&[][..], |plan| &plan.record.stages);
    let live = || state.live_workers().map(|(holder, _)| holder);
    let mut newcomers = live().filter(|holder| !stages.contains(holder));
    let stays = |holder: &Holder| state.is_live(*holder).then_some(*holder);
    let mut holders: Vec<Holder> =
        stages.iter().filter_map(|holder| stays(holder).or_else(|| newcomers.next())).collect();
    holders.extend(newcomers);
    holders
}

/// One chunk a stage; the last has the remainder of the division.
fn chunks(layer_count: u32, stage_count: u32) -> Vec<LayerRange> {
    let each = layer_count / stage_count;
    let end = |stage| if stage + 1 == stage_count { layer_count } else { (stage + 1) * each };
    (0..stage_count).map(|stage| LayerRange::new(stage * each, end(stage))).collect()
}

fn program(stage_count: u32) -> Program {
    let compute =
        generate(ScheduleKind::ZbH1, stage_count, MICROBATCH_COUNT).expect("the size is legal");
    lower(&compute, LowerOptions { window: Window::One, early_head_weights: false })
}
