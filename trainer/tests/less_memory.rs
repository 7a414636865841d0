//! Recomputation and offloading: less memory, and the same bits.

use std::sync::{Arc, Mutex};

use crate::common::{
    BATCH, StageCluster, corpus, offloaded, plan_of_chunks, policy, setup, tiny_model,
};
use zbelastic_consensus::validation::NonfinitePolicy;
use zbelastic_kernels::CpuBackend;
use zbelastic_schedule::{MemoryOp, Pass, ScheduleKind, Window, recompute};
use zbelastic_trainer::digest::StateDigest;
use zbelastic_trainer::model::{Family, ModelConfig, Recompute, RecomputedOps};
use zbelastic_trainer::optimizer::OptimizerKind;
use zbelastic_trainer::plan::{
    ChooseRequest, HeldBeside, MemoryPolicy, Pace, PassExtent, Plan, PlanChoice, ReplicaCount,
    StageMemory, choose, plan_memory, stage_memory,
};
use zbelastic_trainer::reference::SerialReference;
use zbelastic_trainer::stage::{
    BackendExecutor, EngineProgress, MemoryStashStore, StageEngine, StageSetup, StashStore,
    StashStoreError,
};
use zbelastic_types::{Bytes, StageIndex, Step};

const STEPS: u64 = 4;
/// The step whose gradient is corrupted, as people count.
const STRUCK: u64 = 2;

const ALL_OPS: RecomputedOps = RecomputedOps { norm: true, attention: true, activation: true };

fn selective(change: fn(&mut RecomputedOps)) -> Recompute {
    let mut ops = RecomputedOps::default();
    change(&mut ops);
    Recompute::Selective(ops)
}

fn of_plan(model: &ModelConfig, plan: Plan) -> StageSetup {
    let mut setup = setup(model.clone(), plan, STEPS);
    setup.clip_norm = Some(0.5);
    setup
}

fn plan(model: &ModelConfig, kind: ScheduleKind, stages: u32, window: Window) -> Plan {
    plan_of_chunks(model, kind, None, stages, window)
}

/// The serial run of a schedule: in as many lanes as it has directions.
fn serial(model: &ModelConfig, (kind, stages): (ScheduleKind, u32)) -> StateDigest {
    let setup = of_plan(model, plan(model, kind, stages, Window::Zero));
    let backend = CpuBackend::new(1).expect("one thread");
    let mut run = SerialReference::new(&setup, backend, corpus()).expect("memory");
    (0..STEPS).for_each(|step| {
        run.step(Step(step), false);
    });
    run.digest()
}

/// Runs a plan; with a replay, a step's candidate is dropped and the step run again.
fn check_bits(model: &ModelConfig, plan: Plan, expected: StateDigest, seed: u64) {
    let kind = plan.program.kind;
    let case = format!("{kind} {:?} window {:?}", plan.recompute, plan.program.window);
    let mut setup = of_plan(model, plan);
    let is_struck = seed.is_multiple_of(2);
    if is_struck {
        let text = format!("step={STRUCK},tensor=layers.2.mlp.up,value=nan");
        setup.injections = vec![text.parse().expect("a legal injection")];
    }
    let policy = policy(Some(0.5), NonfinitePolicy::Replay);
    let outcome = StageCluster::new(&setup, policy, 1 + seed as usize % 2, seed).run();
    assert_eq!(outcome.digest, expected, "{case}");
    assert_eq!(outcome.verdicts("replay"), usize::from(is_struck), "{case}");
}

#[test]
fn recomputation_goes_with_every_schedule_and_keeps_the_bits() {
    for (seed, family) in [(0, Family::Gpt2), (1, Family::Llama)] {
        let model = tiny_model(family);
        let of_one = serial(&model, (ScheduleKind::GPipe, 1));
        let of_two = serial(&model, (ScheduleKind::Gems, 2));
        assert_ne!(of_one, of_two, "they add up in another order");
        let mut seed: u64 = seed;
        for kind in ScheduleKind::ALL.into_iter().filter(|kind| !kind.is_sliced()) {
            let expected = if kind.replica_count() == 1 { of_one } else { of_two };
            for stages in [2, 4] {
                if kind.chunk_counts().least() * stages > model.layer_count() {
                    continue;
                }
                seed += 1;
                let window = if seed.is_multiple_of(3) { Window::Zero } else { Window::One };
                let recompute = match seed % 5 {
                    0 => Recompute::Selective(ALL_OPS),
                    1 => selective(|ops| ops.norm = true),
                    2 => selective(|ops| ops.attention = true),
                    3 => selective(|ops| ops.activation = true),
                    _ => Recompute::Full,
                };
                for recompute in [recompute, Recompute::Full] {
                    let plan = plan(&model, kind, stages, window).with_recompute(recompute);
                    check_bits(&model, plan, expected, seed);
                }
            }
        }
    }
}

#[test]
fn recomputation_takes_less_memory_and_takes_what_it_claims() {
    for family in [Family::Gpt2, Family::Llama] {
        let model = tiny_model(family);
        for kind in [ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZbV] {
            let claims = |recompute| -> Vec<Bytes> {
                let plan = plan(&model, kind, 2, Window::One).with_recompute(recompute);
                let setup = Arc::new(of_plan(&model, plan));
                let claim = |stage| {
                    let backend = CpuBackend::new(1).expect("one thread");
                    let claim = stage_memory(
                        &backend,
                        &model,
                        OptimizerKind::AdamW,
                        &setup.plan,
                        StageIndex(stage),
                    );
                    // It asserts that it allocates what is claimed.
                    BackendExecutor::new(&setup, StageIndex(stage), backend).expect("memory");
                    claim.stash
                };
                (0..2).map(claim).collect()
            };
            let kept = claims(Recompute::None);
            let each = [
                selective(|ops| ops.norm = true),
                selective(|ops| ops.attention = true),
                selective(|ops| ops.activation = true),
            ];
            let all = claims(Recompute::Selective(ALL_OPS));
            let full = claims(Recompute::Full);
            for one in each.map(claims) {
                assert!(one[0] < kept[0] && all[0] < one[0], "{kind}: {one:?} of {kept:?}");
            }
            assert!(full[0] < all[0], "{kind}: {full:?}, {all:?}");
            // The last stage of 1F1B runs B right after F and has nothing to give up.
            let is_less = full[1] < kept[1];
            assert_eq!(is_less, kind != ScheduleKind::OneFOneB, "{kind}: {full:?} of {kept:?}");
        }
    }
}

fn copies(plan: &Plan) -> usize {
    plan.program.passes_with(MemoryOp::Offload).count()
}

fn memory_of(model: &ModelConfig, plan: &Plan) -> Vec<StageMemory> {
    plan_memory(
        &CpuBackend::new(1).expect("one thread"),
        model,
        OptimizerKind::AdamW,
        plan,
        HeldBeside::default(),
    )
}

#[test]
fn what_leaves_comes_back_to_the_same_bits() {
    let model = tiny_model(Family::Llama);
    let expected = serial(&model, (ScheduleKind::GPipe, 1));
    let mut seed = 0;
    for kind in [
        ScheduleKind::GPipe,
        ScheduleKind::OneFOneB,
        ScheduleKind::Interleaved,
        ScheduleKind::ZbV,
        ScheduleKind::Gis,
        ScheduleKind::GisH,
        ScheduleKind::Po,
    ] {
        for recompute in [Recompute::None, Recompute::Selective(ALL_OPS), Recompute::Full] {
            for window in [Window::Zero, Window::One] {
                seed += 1;
                let kept = plan(&model, kind, 2, window).with_recompute(recompute);
                let moved = offloaded(&kept, 0.0);
                assert!(copies(&moved) > 0, "{kind}");
                let before = memory_of(&model, &kept);
                let after = memory_of(&model, &moved);
                let pairs = before.iter().zip(&after);
                assert!(pairs.clone().all(|(before, after)| after.stash <= before.stash), "{kind}");
                // The first chunk reads tokens: of that nothing is kept if all is made again.
                let leaves = after.iter().any(|claim| claim.offload > Bytes(0));
                assert!(leaves || recompute == Recompute::Full, "{kind}: {after:?}");
                if recompute == Recompute::None {
                    assert!(after[0].stash < before[0].stash, "{kind}: {before:?} {after:?}");
                }
                check_bits(&model, moved, expected, seed);
            }
        }
    }
}

#[test]
fn pipe_offload_takes_less_memory_than_its_order() {
    let model = tiny_model(Family::Gpt2);
    let stash = |kind| {
        let plan = plan_of_chunks(&model, kind, Some(2), 4, Window::One);
        memory_of(&model, &plan)[0].stash
    };
    let order = stash(ScheduleKind::Po);
    let half = stash(ScheduleKind::PoHalf);
    let full = stash(ScheduleKind::PoFull);
    assert!(half < order && full < order, "{order} {half} {full}");
    assert!(stash(ScheduleKind::PoSelective) <= full);
}

/// A store whose medium fails once.
struct FailingStore {
    inner: MemoryStashStore,
    fails: Arc<Mutex<Vec<StashStoreError>>>,
}

impl StashStore for FailingStore {
    fn put(&mut self, pass: Pass, floats: &[f32]) -> Result<(), StashStoreError> {
        match self.fails.lock().expect("one thread").pop() {
            Some(error) => Err(error),
            None => self.inner.put(pass, floats),
        }
    }

    fn take(&mut self, pass: Pass) -> Result<Vec<f32>, StashStoreError> {
        self.inner.take(pass)
    }

    fn clear(&mut self) {
        self.inner.clear();
    }
}

#[test]
fn a_store_that_fails_is_reported_and_called_again() {
    let model = tiny_model(Family::Gpt2);
    let plan = offloaded(&plan(&model, ScheduleKind::GPipe, 1, Window::Zero), 0.0);
    let setup = Arc::new(of_plan(&model, plan));
    let backend = CpuBackend::new(1).expect("one thread");
    let full = StashStoreError::Write { kind: std::io::ErrorKind::StorageFull };
    let fails = Arc::new(Mutex::new(vec![full]));
    let failing = |bytes| {
        Box::new(FailingStore { inner: MemoryStashStore::new(bytes), fails }) as Box<dyn StashStore>
    };
    let executor =
        BackendExecutor::storing(&setup, StageIndex(0), backend, failing).expect("memory");
    let mut engine = StageEngine::begin_run(setup, StageIndex(0), executor, corpus());
    let mut failures = Vec::new();
    for _ in 0..40 {
        match engine.run_next() {
            EngineProgress::Failed(error) => failures.push(error),
            EngineProgress::Ran(_) => {}
            EngineProgress::Blocked(_) | EngineProgress::Finished => break,
            EngineProgress::Faulted(fault) => panic!("{fault}"),
        }
    }
    assert_eq!(failures, [full]);
    assert_eq!(BATCH.microbatch_count, 12);
}

/// The plan that is chosen of one kind, if each stage may take so much.
fn chosen(
    model: &ModelConfig,
    (kind, stage_count): (ScheduleKind, u32),
    memory: MemoryPolicy,
    limit: Option<Bytes>,
) -> Option<PlanChoice> {
    let request = ChooseRequest {
        model,
        optimizer: OptimizerKind::AdamW,
        batch: BATCH,
        kinds: &[kind],
        chunks_per_stage: None,
        slice_count: None,
        stage_count,
        replicas: ReplicaCount::ONE,
        window: Window::One,
        memory,
        beside: HeldBeside::default(),
        stage_bytes_max: &limit.map_or(Vec::new(), |limit| vec![limit; stage_count as usize]),
        pace: &Pace::estimated(model, BATCH.microbatch),
    };
    choose(&CpuBackend::new(1).expect("one thread"), request).ok()
}

fn drops(plan: &Plan) -> usize {
    plan.program.passes_with(MemoryOp::Drop).count()
}

const NEEDED: MemoryPolicy = MemoryPolicy {
    recompute: Recompute::Full,
    recomputed: PassExtent::WhereNeeded,
    offloaded: PassExtent::Everywhere,
    sharded: None,
};

/// Each kind with a limit between what it takes and what it takes if all passes are made again, by
/// one means, the other, and both.
#[test]
fn no_more_is_made_again_or_leaves_than_a_limit_asks_for_and_the_bits_stay() {
    let model = tiny_model(Family::Gpt2);
    let expected = serial(&model, (ScheduleKind::GPipe, 1));
    let leaves =
        MemoryPolicy { recompute: Recompute::None, offloaded: PassExtent::WhereNeeded, ..NEEDED };
    let both = MemoryPolicy { offloaded: PassExtent::WhereNeeded, ..NEEDED };
    let size = |choice: &PlanChoice| choice.prediction.stage_bytes;
    let mut seed = 0;
    for kind in
        [ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZbAuto, ScheduleKind::ZbV]
    {
        let of_kind = (kind, 4);
        let free = chosen(&model, of_kind, NEEDED, None).expect("no limit");
        assert_eq!((drops(&free.plan), copies(&free.plan)), (0, 0), "{kind}");
        let all = MemoryPolicy { recomputed: PassExtent::Everywhere, ..NEEDED };
        let all = chosen(&model, of_kind, all, None).expect("no limit");
        let limit = Bytes((size(&free).0 + size(&all).0) / 2);
        assert!(
            size(&all) < limit && limit < size(&free),
            "{kind}: {} {}",
            size(&all),
            size(&free)
        );
        for policy in [NEEDED, leaves, both] {
            seed += 1;
            let choice = chosen(&model, of_kind, policy, Some(limit)).expect("it can be met");
            assert!(size(&choice) <= limit, "{kind}");
            let PlanChoice { plan, memory, .. } = choice;
            assert_eq!(memory_of(&model, &plan), memory, "{kind}");
            let dropped = drops(&plan);
            let left = copies(&plan);
            if policy == NEEDED {
                assert!(dropped < drops(&all.plan) && left == 0, "{kind}: {dropped}");
            }
            assert!(policy != leaves || dropped == 0, "{kind}: {dropped}");
            // Of orders that are solved for one may fit as it is.
            let may_fit = matches!(kind, ScheduleKind::ZbAuto | ScheduleKind::ZbV);
            assert!(may_fit || dropped + left > 0, "{kind}");
            check_bits(&model, plan, expected, seed);
        }
    }
}

/// A limit a little below what all passes take that are made again: some leave, and all are made
/// again still, also in an order that was solved for.
#[test]
fn what_is_made_again_everywhere_is_so_where_passes_leave_as_well() {
    let model = tiny_model(Family::Gpt2);
    let all = MemoryPolicy { recomputed: PassExtent::Everywhere, ..NEEDED };
    let expected = serial(&model, (ScheduleKind::GPipe, 1));
    for (seed, kind) in
        [ScheduleKind::GPipe, ScheduleKind::ZbAuto, ScheduleKind::ZbV].into_iter().enumerate()
    {
        let ample = chosen(&model, (kind, 4), all, None).expect("no limit");
        let limit = Bytes(ample.prediction.stage_bytes.0 - 1);
        let also_leaves = MemoryPolicy { offloaded: PassExtent::WhereNeeded, ..all };
        let PlanChoice { plan, .. } =
            chosen(&model, (kind, 4), also_leaves, Some(limit)).expect("it can be met");
        let every = recompute(&plan.program).passes_with(MemoryOp::Drop).count();
        assert_eq!(drops(&plan), every, "{kind}");
        check_bits(&model, plan, expected, seed as u64);
    }
}

#[test]
fn slices_are_made_again_where_a_limit_asks_for_it() {
    let model = tiny_model(Family::Llama);
    let of_kind = (ScheduleKind::Seq1F1B, 4);
    let expected = serial(&model, of_kind);
    let all = MemoryPolicy { recomputed: PassExtent::Everywhere, ..NEEDED };
    let [free, all] = [NEEDED, all].map(|policy| chosen(&model, of_kind, policy, None));
    let free = free.expect("no limit");
    let all = all.expect("no limit");
    let size = |choice: &PlanChoice| choice.prediction.stage_bytes.0;
    for part in 1..4 {
        let limit = Bytes(size(&all) + part * (size(&free) - size(&all)) / 4);
        let choice = chosen(&model, of_kind, NEEDED, Some(limit)).expect("it can be met");
        assert!(size(&choice) <= limit.0, "{part}");
        assert!((1..drops(&all.plan)).contains(&drops(&choice.plan)), "{part}");
        check_bits(&model, choice.plan, expected, part);
    }
}

#[test]
fn passes_that_are_made_again_where_needed_make_an_order_possible_that_is_faster() {
    let model = tiny_model(Family::Gpt2);
    let of_kind = (ScheduleKind::ZbAuto, 4);
    let free = chosen(&model, of_kind, MemoryPolicy::default(), None).expect("no limit");
    let mut gains = Vec::new();
    for part in 10..=20 {
        let limit = Some(Bytes(free.prediction.stage_bytes.0 * part / 20));
        let with = |memory| chosen(&model, of_kind, memory, limit).expect("fits").prediction.period;
        gains.push(with(MemoryPolicy::default()) / with(NEEDED));
    }
    assert!(gains.iter().all(|gain| *gain > 1.0 - 1e-9), "{gains:?}");
    assert!(gains[0] > 1.5, "memory hardly holds one microbatch: {gains:?}");
}

/// PipeOffload's selective schedule copies what the limit requires, and nothing if that is nothing.
#[test]
fn selective_offload_follows_the_limit() {
    let model = tiny_model(Family::Gpt2);
    let of_kind = (ScheduleKind::PoSelective, 4);
    let with = |limit| chosen(&model, of_kind, MemoryPolicy::default(), limit);
    let free = with(None).expect("no limit");
    assert!(copies(&free.plan) > 0, "it is planned for equal times");
    let order =
        chosen(&model, (ScheduleKind::Po, 4), MemoryPolicy::default(), None).expect("no limit");
    let ample = with(Some(order.prediction.stage_bytes)).expect("it fits");
    assert_eq!(copies(&ample.plan), 0);
    let few = Bytes(order.prediction.stage_bytes.0 - 1);
    let few = with(Some(few)).expect("a byte less");
    assert!((1..copies(&free.plan)).contains(&copies(&few.plan)), "{}", copies(&few.plan));
}
