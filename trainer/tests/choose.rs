//! Which schedule is chosen, and why the others are not.

use crate::common::{BATCH, batch_for, tiny_model};
use zbelastic_kernels::{CpuBackend, DeviceSizes, Precision};
use zbelastic_schedule::{GenerateError, ScheduleKind, Window};
use zbelastic_trainer::model::{Family, MicrobatchShape, ModelConfig, model_layers};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    AUTO_KINDS, BatchShape, ChooseRequest, HeldBeside, MemoryPolicy, Pace, Plan, PlanChoice,
    PlanError, PlanPrediction, PlanRequest, ReplicaCount, ScheduleRefusal, choose, plan_period,
};
use zbelastic_types::{Bytes, StageIndex};

fn attempt(
    model: &ModelConfig,
    kinds: &[ScheduleKind],
    stage_count: u32,
    stage_bytes_max: Option<Bytes>,
) -> Result<PlanChoice, Vec<(ScheduleKind, ScheduleRefusal)>> {
    attempt_with_copies(model, kinds, stage_count, 0, stage_bytes_max)
}

fn attempt_with_copies(
    model: &ModelConfig,
    kinds: &[ScheduleKind],
    stage_count: u32,
    copies: u32,
    stage_bytes_max: Option<Bytes>,
) -> Result<PlanChoice, Vec<(ScheduleKind, ScheduleRefusal)>> {
    let backend = CpuBackend::new(1).expect("one thread");
    let pace = &Pace::estimated(model, BATCH.microbatch);
    let stage_bytes_max =
        &stage_bytes_max.map_or(Vec::new(), |limit| vec![limit; stage_count as usize]);
    let request = request(model, kinds, stage_count, pace);
    let beside = HeldBeside::copies(copies);
    choose(&backend, ChooseRequest { beside, stage_bytes_max, ..request })
}

/// What is to be planned where nothing limits it.
fn request<'a>(
    model: &'a ModelConfig,
    kinds: &'a [ScheduleKind],
    stage_count: u32,
    pace: &'a Pace,
) -> ChooseRequest<'a> {
    ChooseRequest {
        model,
        optimizer: OptimizerKind::AdamW,
        // Lanes for both directions.
        batch: batch_for(ScheduleKind::Gems),
        kinds,
        chunks_per_stage: None,
        slice_count: None,
        stage_count,
        replicas: ReplicaCount::ONE,
        window: Window::One,
        memory: MemoryPolicy::default(),
        beside: HeldBeside::default(),
        stage_bytes_max: &[],
        pace,
    }
}

fn prediction_of(choice: &PlanChoice, kind: ScheduleKind) -> PlanPrediction {
    let found = choice.considered.iter().find(|considered| considered.kind == kind);
    found.expect("looked at").outcome.clone().expect("fits")
}

#[test]
fn the_shortest_step_is_chosen() {
    let model = tiny_model(Family::Gpt2);
    let choice = attempt(&model, &ScheduleKind::ALL, 4, None).expect("fits");
    for considered in &choice.considered {
        let other = considered.outcome.as_ref().expect("fits");
        assert!(choice.prediction.period <= other.period * 1.001, "{}", considered.kind);
    }
    let gpipe = ScheduleKind::GPipe;
    let zb_h1 = ScheduleKind::ZbH1;
    assert!(choice.prediction.period < prediction_of(&choice, gpipe).period);
    assert!(prediction_of(&choice, zb_h1).period < prediction_of(&choice, gpipe).period);
}

#[test]
fn of_equal_steps_the_one_that_takes_least_memory_is_chosen() {
    let model = tiny_model(Family::Llama);
    let choice = attempt(&model, &ScheduleKind::ALL, 1, None).expect("fits");
    let sizes = choice.considered.iter().filter_map(|c| c.outcome.as_ref().ok());
    let least = sizes.map(|prediction| prediction.stage_bytes).min();
    assert_eq!(Some(choice.prediction.stage_bytes), least);
}

#[test]
fn a_limit_leaves_what_fits() {
    let model = tiny_model(Family::Gpt2);
    let free = attempt(&model, &ScheduleKind::ALL, 4, None).expect("fits");
    let needed = prediction_of(&free, ScheduleKind::OneFOneB).stage_bytes;
    let choice = attempt(&model, &ScheduleKind::ALL, 4, Some(needed)).expect("1f1b fits");
    assert!(choice.prediction.stage_bytes <= needed);
    assert!(choice.considered.iter().any(|considered| considered.outcome.is_err()));

    let limit = Bytes(needed.0 - 1);
    let refusals = attempt(&model, &[ScheduleKind::OneFOneB], 4, Some(limit)).expect_err("a byte");
    let [(ScheduleKind::OneFOneB, refusal)] = &refusals[..] else { panic!("{refusals:?}") };
    let ScheduleRefusal::Memory { needed: found, limit: of, .. } = refusal else {
        panic!("{refusal}")
    };
    assert_eq!((*found, *of), (needed, limit));
}

#[test]
fn what_fits_alone_may_not_fit_with_copies_of_others() {
    let model = tiny_model(Family::Gpt2);
    let kinds = [ScheduleKind::OneFOneB];
    let chosen =
        |copies| attempt_with_copies(&model, &kinds, 4, copies, None).expect("no limit: it fits");
    let [alone, one, two] = [0, 1, 2].map(|copies| chosen(copies).prediction.stage_bytes);
    assert!(alone < one && one < two, "{alone}, {one}, {two}");
    // Weights, two moments and a gradient for each parameter of the largest other stage.
    let PlanChoice { plan, memory, .. } = chosen(1);
    let layers = model_layers(&model);
    let len_of = |stage| -> usize {
        let ids = plan.chunks_of(stage).flat_map(|(_, range)| range.ids());
        ids.map(|layer| layers[layer as usize].len()).sum()
    };
    for stage in (0..4).map(StageIndex) {
        let others = (0..4).map(StageIndex).filter(|other| *other != stage);
        let largest = others.map(len_of).max().expect("three others");
        assert!(memory[stage.index()].copies.0 >= 16 * largest as u64, "{memory:?}");
    }
    let refusals = attempt_with_copies(&model, &kinds, 4, 1, Some(alone))
        .expect_err("memory does not hold it");
    assert!(matches!(refusals[..], [(_, ScheduleRefusal::Memory { limit, .. })] if limit == alone));
}

/// In the last round an island holds three floats of each one that it trains: what it sends, the sum of what came, and
/// what it mixes in.
#[test]
fn what_fits_alone_may_not_fit_as_one_of_several_islands() {
    let model = tiny_model(Family::Gpt2);
    let backend = CpuBackend::new(1).expect("one thread");
    let pace = &Pace::estimated(&model, BATCH.microbatch);
    let alone = request(&model, &[ScheduleKind::OneFOneB], 4, pace);
    let island = ChooseRequest { beside: HeldBeside { copies: 0, is_island: true }, ..alone };
    let choice = choose(&backend, island).expect("no limit: it fits");
    let layers = model_layers(&model);
    for (stage, memory) in choice.memory.iter().enumerate() {
        let ids =
            choice.plan.chunks_of(StageIndex(stage as u32)).flat_map(|(_, range)| range.ids());
        let trained: Vec<_> = ids.map(|layer| layers[layer as usize].trained_floats()).collect();
        let held = 3 * trained.iter().sum::<usize>();
        let outer_step = 6 * trained.iter().max().expect("layers");
        assert_eq!(memory.islands, Bytes::of_f32(held + outer_step), "stage {stage}");
    }
    // What is mixed into copies, and one that is read for it.
    let copied = choose(
        &backend,
        ChooseRequest { beside: HeldBeside { copies: 1, is_island: true }, ..alone },
    )
    .expect("no limit: it fits");
    let plain = choose(&backend, ChooseRequest { beside: HeldBeside::copies(1), ..alone })
        .expect("no limit: it fits");
    let largest = layers.iter().map(|layer| layer.trained_floats()).max().expect("layers");
    for (stage, (copied, plain)) in copied.memory.iter().zip(&plain.memory).enumerate() {
        let read = Bytes::of_f32(3 * largest);
        assert_eq!(copied.islands, choice.memory[stage].islands + read, "stage {stage}");
        assert!(copied.copies > plain.copies, "stage {stage}");
    }
    let fits = choose(&backend, alone).expect("no limit: it fits").prediction.stage_bytes;
    let limits = [fits; 4];
    choose(&backend, ChooseRequest { stage_bytes_max: &limits, ..alone }).expect("it fits");
    choose(&backend, ChooseRequest { stage_bytes_max: &limits, ..island })
        .expect_err("memory does not hold what is exchanged");
    let device = choose(&DeviceSizes::Cuda(Precision::F32), island).expect("no limit: it fits");
    assert!(device.memory.iter().all(|memory| memory.islands == Bytes(0)), "it is in the host's");
}

#[test]
fn a_schedule_that_does_not_exist_for_a_size_is_passed_over() {
    let model = tiny_model(Family::Gpt2);
    let backend = CpuBackend::new(1).expect("one thread");
    let shape = MicrobatchShape { sequences: 2, sequence_len: 8 };
    let request = ChooseRequest {
        model: &model,
        optimizer: OptimizerKind::AdamW,
        batch: BatchShape { microbatch: shape, microbatch_count: 5, ..BATCH },
        kinds: &AUTO_KINDS,
        chunks_per_stage: None,
        slice_count: None,
        stage_count: 4,
        replicas: ReplicaCount::ONE,
        window: Window::Zero,
        memory: MemoryPolicy::default(),
        beside: HeldBeside::default(),
        stage_bytes_max: &[],
        pace: &Pace::estimated(&model, shape),
    };
    let choice = choose(&backend, request).expect("others do");
    let refused: Vec<_> = choice.considered.iter().filter(|c| c.outcome.is_err()).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].kind, ScheduleKind::Interleaved);
}

#[test]
fn with_nothing_to_choose_from_every_reason_is_returned() {
    let model = tiny_model(Family::Gpt2);
    let refusals = attempt(&model, &ScheduleKind::ALL, 5, None).expect_err("four blocks");
    assert_eq!(refusals.len(), ScheduleKind::ALL.len());
    let expected = ScheduleRefusal::Plan(PlanError::Stages { stage_count: 5, blocks: 4 });
    assert!(refusals.iter().all(|(_, refusal)| *refusal == expected));
}

/// A stage that is slow gets less to do, and the order is solved for what is left uneven.
#[test]
fn a_solved_order_is_never_slower_than_the_one_for_equal_stages() {
    let model = tiny_model(Family::Gpt2);
    let backend = CpuBackend::new(1).expect("one thread");
    let kinds = [ScheduleKind::ZbH1, ScheduleKind::ZbAuto];
    for speeds in [vec![], vec![0.5, 1.0, 1.0, 1.0], vec![1.0, 0.4, 1.0, 2.0]] {
        let estimated = Pace::estimated(&model, BATCH.microbatch);
        let pace = &Pace { speeds, link: 1e3, ..estimated };
        let request = request(&model, &kinds[..1], 4, pace);
        let by_hand = choose(&backend, request).expect("fits");
        let limit = &[by_hand.prediction.stage_bytes; 4];
        let request = ChooseRequest { kinds: &kinds[1..], stage_bytes_max: limit, ..request };
        let solved = choose(&backend, request).expect("fits as well");
        let solved = solved.prediction;
        let by_hand = by_hand.prediction;
        assert!(solved.period <= by_hand.period * (1.0 + 1e-9), "{solved:?} {by_hand:?} {pace:?}");
        assert!(solved.stage_bytes <= by_hand.stage_bytes, "{solved:?} {by_hand:?}");
    }
}

#[test]
fn as_many_chunks_as_requested_are_cut_and_no_more_than_there_are_layers() {
    let model = tiny_model(Family::Gpt2);
    let plan = |kind, chunks_per_stage, stage_count| {
        let model = &model;
        let batch = BATCH;
        let window = Window::One;
        Plan::new(PlanRequest {
            model,
            batch,
            kind,
            chunks_per_stage,
            slice_count: None,
            stage_count,
            replicas: ReplicaCount::ONE,
            window,
        })
    };
    let count = |chunks| plan(ScheduleKind::Gis, chunks, 2).expect("ten layers").chunks.len();
    assert_eq!([count(None), count(Some(2)), count(Some(5))], [4, 4, 10]);
    let stage_count = 2;
    let layer_count = 10;
    let many = PlanError::Chunks { stage_count, chunks_per_stage: 6, layer_count };
    assert_eq!(plan(ScheduleKind::Gis, Some(6), 2), Err(many));
    let fixed = plan(ScheduleKind::ZbV, Some(3), 2).expect_err("a vee has two");
    assert!(matches!(fixed, PlanError::Generate(GenerateError::ChunkCount { .. })), "{fixed}");
}

/// Where the verdict takes longer than forward passes of the next step do, its first weight
/// gradients wait for it. They can come later, as far as there is memory.
#[test]
fn an_order_is_made_for_the_verdict_that_it_waits_for() {
    let model = tiny_model(Family::Llama);
    let backend = CpuBackend::new(1).expect("one thread");
    let estimated = Pace::estimated(&model, BATCH.microbatch);
    let work: f64 = estimated.layers.iter().map(|layer| layer.f + layer.b + layer.w).sum();
    let step = f64::from(BATCH.microbatch_count) * work / 4.0;
    let attempt = |verdict: f64| {
        let pace = Pace { verdict, speeds: vec![1.0, 0.8, 1.0, 1.0], ..estimated.clone() };
        let request = request(&model, &[ScheduleKind::ZbAuto], 4, &pace);
        (choose(&backend, request).expect("it fits").plan, pace)
    };
    let (heedless, _) = attempt(0.0);
    for (share, gain) in [(0.2, 0.02), (0.4, 0.0), (0.6, 0.0), (1.2, 0.0)] {
        let (plan, pace) = attempt(share * step);
        let waits = plan_period(&plan, &pace);
        let would_wait = plan_period(&heedless, &pace);
        assert!(waits <= would_wait * (1.0 - gain) * (1.0 + 1e-9), "{share}: {waits} {would_wait}");
    }
}

/// Bytes are counted where no device is: halves take less of what passes keep and hand on, and as
/// much of the state but for the matrices that products read.
#[test]
fn plans_count_the_bytes_of_a_device_without_one() {
    let model = tiny_model(Family::Llama);
    let pace = &Pace::estimated(&model, BATCH.microbatch);
    let kinds = [ScheduleKind::ZbH1];
    let memory = |sizes: DeviceSizes| {
        let choice = choose(&sizes, request(&model, &kinds, 2, pace)).expect("nothing limits it");
        choice.memory[0]
    };
    let whole = memory(DeviceSizes::Cuda(Precision::F32));
    let half = memory(DeviceSizes::Cuda(Precision::Bf16));
    assert!(half.stash < whole.stash && half.scratch < whole.scratch, "{half:?} {whole:?}");
    assert!(half.state < whole.state && half.messages < whole.messages, "{half:?} {whole:?}");
    let processors =
        choose(&CpuBackend::new(1).expect("one thread"), request(&model, &kinds, 2, pace));
    assert_eq!(
        memory(DeviceSizes::Processors(Precision::F32)),
        processors.expect("as before").memory[0]
    );
}
