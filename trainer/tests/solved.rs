//! The orders that the solver finds are what runs: those for stages of unequal speed and for
//! little memory train to the bits of the serial reference.

use crate::common::{BATCH, StageCluster, corpus, plan, policy, setup, tiny_model};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::{Op, ScheduleKind, Window, generate};
use zbelastic_trainer::model::{Family, ModelConfig};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    ChooseRequest, HeldBeside, MemoryPolicy, Pace, Plan, ReplicaCount, choose,
};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_types::{Bytes, Step};

const STEPS: u64 = 4;

/// The plan that is chosen for stages of these speeds.
fn chosen(
    model: &ModelConfig,
    kind: ScheduleKind,
    speeds: &[f64],
    stage_bytes_max: &[Bytes],
) -> Plan {
    let estimated = Pace::estimated(model, BATCH.microbatch);
    let pace = &Pace { speeds: speeds.to_vec(), link: 2e3, ..estimated };
    let request = ChooseRequest {
        model,
        optimizer: OptimizerKind::AdamW,
        batch: BATCH,
        kinds: &[kind],
        chunks_per_stage: None,
        slice_count: None,
        stage_count: speeds.len() as u32,
        replicas: ReplicaCount::ONE,
        window: Window::One,
        memory: MemoryPolicy::default(),
        beside: HeldBeside::default(),
        stage_bytes_max,
        pace,
    };
    choose(&CpuBackend::new(1).expect("one thread"), request).expect("it fits").plan
}

/// The arithmetic of a lowered program.
fn compute(plan: &Plan) -> Vec<Vec<Op>> {
    let is_pass = |op: &&Op| match op {
        Op::Compute(compute, _) => *compute != zbelastic_schedule::Compute::WE,
        Op::Transfer(..) | Op::Update(_) | Op::Reduce(..) | Op::Memory(..) => false,
    };
    plan.program.stages.iter().map(|ops| ops.iter().filter(is_pass).copied().collect()).collect()
}

#[test]
fn solved_orders_train_to_the_bits_of_the_serial_reference() {
    let model = tiny_model(Family::Llama);
    let serial = setup(model.clone(), plan(&model, ScheduleKind::GPipe, 1, Window::Zero), STEPS);
    let backend = CpuBackend::new(1).expect("one thread");
    let mut reference = SerialReference::new(&serial, backend, corpus()).expect("memory");
    for step in 0..STEPS {
        reference.step(Step(step), false);
    }
    let expected = reference.digest();
    let mut unlike = 0;
    for kind in [ScheduleKind::ZbAuto, ScheduleKind::ZbV] {
        for speeds in [&[1.0, 0.4, 1.0][..], &[0.5, 1.0, 1.0, 2.0], &[1.0; 4]] {
            let plan = chosen(&model, kind, speeds, &[]);
            let by_hand = generate(kind, speeds.len() as u32, BATCH.microbatch_count);
            unlike += u32::from(compute(&plan) != by_hand.expect("legal").stages);
            let setup = setup(model.clone(), plan, STEPS);
            let policy = policy(setup.clip_norm, NonfinitePolicy::Skip);
            let cluster = StageCluster::with_corpus(&setup, policy, 1, 7, corpus());
            assert_eq!(cluster.run().digest, expected, "{kind} {speeds:?}");
        }
    }
    assert!(unlike >= 3, "only {unlike} orders are not those for equal stages");
}
