//! Plans: adopted at once or ahead, loaded, resumed.

use zbelastic_schedule::{LowerOptions, ScheduleKind, Window, generate, lower};
use zbelastic_types::{
    ChunkIndex, Digest, Generation, Incarnation, LayerId, LayerRange, NodeId, StageIndex, Step,
};

use crate::codec;
use crate::entry::{Entry, ReadyRecord};
use crate::fixture::{
    FixtureLog, LAYERS, chunks, crossed, digest, four_in_two_shards, one_stage_sharded, program,
    side_by_side_twice, spec, without_the_third,
};
use crate::job::{JobSpec, WindowPolicy};
use crate::member::Holder;
use crate::plan::{LayerSource, PlanRecord, PlanRefusal, Promise, PromiseOff, SOURCES_MAX};
use crate::state::{EntryRefusal, PLANNED_AHEAD_MAX, PlanPhase, StateChange, copied_layers};

/// The usual plan over `nodes` with a change is refused.
fn refuse(
    log: &mut FixtureLog,
    nodes: &[u64],
    spoil: impl FnOnce(&mut PlanRecord),
    refusal: PlanRefusal,
) {
    let mut plan = log.plan(nodes);
    spoil(&mut plan);
    log.refuse(Entry::Adopt(Box::new(plan)), refusal);
}

fn is_loading(log: &FixtureLog, missing: usize) -> bool {
    match &log.state.plan().expect("there is a plan").phase {
        PlanPhase::Loading(slots) => slots.iter().filter(|slot| slot.is_none()).count() == missing,
        PlanPhase::Running | PlanPhase::Closed => false,
    }
}

#[test]
fn a_plan_has_the_next_number_and_begins_where_the_ledger_stands() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    for number in [0, 2] {
        let (expected, found) = (Generation(1), Generation(number));
        let refusal = PlanRefusal::Generation { expected, found };
        refuse(&mut log, &[1, 2], |plan| plan.generation = found, refusal);
    }
    let (open, found) = (Step(0), Step(1));
    let refusal = PlanRefusal::FromStep { open, found };
    refuse(&mut log, &[1, 2], |plan| plan.from_step = found, refusal);
    let plan = log.plan(&[1, 2]);
    assert!(matches!(log.adopt(plan), StateChange::Adopted(_)));
    assert!(is_loading(&log, 2) && !log.state.is_running());
    assert_eq!(log.state.open_turn().generation, Generation(1));
}

#[test]
fn a_stage_is_held_by_one_live_worker_each() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    let [first, second] = [log.holder(1), log.holder(2)];
    let never = Holder { node: NodeId(1), incarnation: Incarnation(99) };
    let mut check = |found: Holder, blamed: Holder| {
        let refusal = PlanRefusal::Holder { holder: blamed };
        refuse(&mut log, &[1, 2], |plan| plan.stages = vec![found, second], refusal);
    };
    check(second, second);
    check(never, never);
    check(Holder { node: NodeId(3), ..first }, Holder { node: NodeId(3), ..first });
    let mut log =
        FixtureLog { state: log.state.with_controllers(crate::fixture::controllers(&[NodeId(8)])) };
    let controller = log.holder(8);
    let refusal = PlanRefusal::Holder { holder: controller };
    refuse(&mut log, &[1, 2], |plan| plan.stages[1] = controller, refusal);
}

#[test]
fn holders_copies_and_lists_are_as_many_as_stages() {
    let mut log = FixtureLog::with_job(JobSpec { stages_max: 2, ..spec() }, &[1, 2, 3]);
    let stages = |expected, found, copies| PlanRefusal::Stages { expected, found, copies };
    refuse(&mut log, &[1, 2], |plan| plan.stages.truncate(1), stages(2, 1, 2));
    refuse(&mut log, &[1, 2], |plan| plan.copies.truncate(1), stages(2, 2, 1));
    refuse(&mut log, &[1, 2], |plan| plan.program = program(3, Window::One), stages(3, 2, 2));
    refuse(&mut log, &[1, 2, 3], |_| {}, stages(3, 3, 3));
}

#[test]
fn chunks_make_up_the_model() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    let mut check = |ranges: &[(u32, u32)], end: u32| {
        let chunks: Vec<_> = ranges.iter().map(|(a, b)| LayerRange::new(*a, *b)).collect();
        let found = chunks.len();
        let refusal = PlanRefusal::Chunks { expected: 2, found, end, layer_count: 4 };
        refuse(&mut log, &[1, 2], |plan| plan.chunks = chunks, refusal);
    };
    check(&[(0, 4)], 4);
    check(&[(0, 2), (2, 3)], 3);
    check(&[(0, 2), (2, 5)], 5);
    check(&[(0, 2), (3, 4)], 2);
    check(&[(1, 2), (2, 4)], 0);
    check(&[(2, 4), (0, 2)], 2);
    check(&[(0, 2), (1, 4)], 2);
    check(&[(0, 1), (1, 2), (2, 4)], 4);
}

#[test]
fn twins_have_the_same_layers() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    let spoil = |plan: &mut PlanRecord| {
        crossed(plan);
        plan.chunks[2] = LayerRange::new(0, 2);
        plan.chunks[3] = LayerRange::new(2, 4);
    };
    let (chunk, twin) = (ChunkIndex(0), ChunkIndex(2));
    refuse(&mut log, &[1, 2], spoil, PlanRefusal::Twins { chunk, twin });
    let spoil = |plan: &mut PlanRecord| {
        crossed(plan);
        // As many chunks as there are, and the model's layers end where they should.
        plan.chunks = (0..4).map(|layer| LayerRange::new(layer, layer + 1)).collect();
    };
    let chunks = PlanRefusal::Chunks { expected: 4, found: 4, end: 2, layer_count: 4 };
    refuse(&mut log, &[1, 2], spoil, chunks);
}

#[test]
fn each_layer_of_two_replicas_has_one_owner_and_both_load_it() {
    let mut log = FixtureLog::with_job(JobSpec { copies: 0, ..spec() }, &[1, 2]);
    let mut plan = log.plan(&[1, 2]);
    crossed(&mut plan);
    let layers = |found: Vec<LayerId>| found.iter().map(|layer| layer.0).collect::<Vec<_>>();
    let (first, last) = (StageIndex(0), StageIndex(1));
    assert_eq!(layers(plan.layers_of(first).collect()), [0]);
    assert_eq!(layers(plan.layers_of(last).collect()), [1, 2, 3]);
    assert_eq!(layers(copied_layers(&plan, first)), [1, 2, 3], "though there are no copies");
    assert_eq!(layers(copied_layers(&plan, last)), [0]);
    let holders: Vec<u64> = plan.holders_of(first).map(|holder| holder.node.0).collect();
    assert_eq!(holders, [1, 2]);
    log.adopt(plan);
    let mut ready = log.ready(0);
    let holder = ready.holder;
    ready.copies.pop();
    log.refuse(Entry::Ready(ready), EntryRefusal::OtherLayers { holder });
    let mut ready = log.ready(0);
    ready.copies[0].1 = Digest([7; 32]);
    log.apply(Entry::Ready(ready));
    log.apply(Entry::Ready(log.ready(1)));
    let resume = Entry::Resume { generation: log.state.generation() };
    log.refuse(resume, EntryRefusal::DigestsDiffer { layer: LayerId(1) });
}

/// Two pipelines of two stages: the first one's stages speak for all layers, and with one copy required
/// nobody keeps any, because the other's train each layer too.
#[test]
fn each_layer_of_two_pipelines_has_one_owner_and_needs_no_copy() {
    let spec = spec();
    let log = FixtureLog::with_job(spec.clone(), &[1, 2, 3, 4]);
    let mut plan = log.plan(&[1, 2, 3, 4]);
    side_by_side_twice(&mut plan);
    assert_eq!(plan.check(&spec), Ok(()));
    assert_eq!(plan.promise, Promise::Kept);
    let layers = |found: Vec<LayerId>| found.iter().map(|layer| layer.0).collect::<Vec<_>>();
    let of = |stage| layers(plan.layers_of(StageIndex(stage)).collect());
    assert_eq!([0, 1, 2, 3].map(of), [vec![0], vec![1, 2, 3], vec![], vec![]]);
    let beside = |stage| layers(copied_layers(&plan, StageIndex(stage)));
    assert_eq!([0, 1, 2, 3].map(beside), [vec![], vec![], vec![0], vec![1, 2, 3]]);
    let twins: Vec<_> = plan.stage_indices().map(|stage| plan.twins_of(stage)).collect();
    assert_eq!(twins, [vec![StageIndex(2)], vec![StageIndex(3)], vec![], vec![]]);
    let holders = |stage| plan.holders_of(StageIndex(stage)).map(|h| h.node.0).collect::<Vec<_>>();
    assert_eq!([holders(0), holders(1)], [vec![1, 3], vec![2, 4]]);
    assert!(plan.has_head(NodeId(2)) && plan.has_head(NodeId(4)));
    let last = plan.chunks.iter().flat_map(|chunk| chunk.layers()).max().expect("layers");
    let of_last: Vec<u64> = (1..=5).filter(|node| plan.trains(NodeId(*node), last)).collect();
    assert_eq!(of_last, [2, 4], "and nobody else");
    let refused = Err(PlanRefusal::Promise { promise: plan.promise });
    let mut at_a_twin = plan.clone();
    at_a_twin.copies[0] = vec![StageIndex(1)];
    assert_eq!(at_a_twin.check(&spec), refused, "one more than is required");
    let two = JobSpec { copies: 2, ..spec };
    at_a_twin.copies[1] = vec![StageIndex(2)];
    assert_eq!(at_a_twin.check(&two), Ok(()));
    at_a_twin.copies[1] = vec![StageIndex(3)];
    assert_eq!(at_a_twin.check(&two), refused, "that trains the layer itself");
}

/// Two replicas that share the optimizer: each speaks for the layers of its shard and is their one holder, and
/// gathers those of the other.
#[test]
fn each_layer_of_a_shard_is_held_where_it_is_updated() {
    let spec = JobSpec { copies: 0, ..spec() };
    let log = FixtureLog::with_job(spec.clone(), &[1, 2]);
    let mut plan = log.plan(&[1, 2]);
    one_stage_sharded(&mut plan, &[1, LAYERS - 1]);
    assert_eq!(plan.check(&spec), Ok(()));
    let bytes = codec::encode(&plan);
    assert_eq!(codec::decode(&bytes, bytes.len()), Ok(plan.clone()), "it travels");
    let layers = |found: Vec<LayerId>| found.iter().map(|layer| layer.0).collect::<Vec<_>>();
    let [first, second] = [StageIndex(0), StageIndex(1)];
    let own = [first, second].map(|stage| layers(plan.layers_of(stage).collect()));
    assert_eq!(own, [vec![0], vec![1, 2, 3]]);
    let trained = [first, second].map(|stage| layers(plan.layers_at(stage).collect()));
    assert_eq!(trained, [[0, 1, 2, 3], [0, 1, 2, 3]]);
    for (stage, node) in [(first, 1), (second, 2)] {
        assert_eq!(copied_layers(&plan, stage), [], "what is gathered is not held");
        assert_eq!(plan.twins_of(stage), []);
        assert_eq!(plan.holders_of(stage).map(|h| h.node.0).collect::<Vec<_>>(), [node]);
    }
    // The other replica does not count as a holder: where a copy is required, it keeps one.
    let refused = Err(PlanRefusal::Promise { promise: plan.promise });
    assert_eq!(plan.check(&JobSpec { copies: 1, ..spec.clone() }), refused);
    let chunk = ChunkIndex(0);
    for shards in [[0, LAYERS], [1, LAYERS], [1, 1]] {
        one_stage_sharded(&mut plan, &shards);
        let found = u64::from(shards[0] + shards[1]);
        let refusal = PlanRefusal::Shards { chunk, expected: LAYERS.into(), found };
        assert_eq!(plan.check(&spec), Err(refusal));
    }
}

/// A worker that stands in two pipelines is one holder of what it trains: where nobody else is, a copy is
/// kept elsewhere.
#[test]
fn a_worker_of_two_pipelines_is_one_holder() {
    let spec = spec();
    let log = FixtureLog::with_job(spec.clone(), &[1, 2, 3]);
    let mut plan = log.plan(&[1, 2, 3]);
    let [before, mut shared] = [plan.clone(), plan.clone()].map(|mut plan| {
        side_by_side_twice(&mut plan);
        plan
    });
    without_the_third(&mut shared);
    let refused = Err(PlanRefusal::Promise { promise: shared.promise });
    assert_eq!(shared.check(&spec), refused, "a copy of the first stage is missing");
    shared.copies[0] = vec![StageIndex(1)];
    assert_eq!(shared.check(&spec), Ok(()));
    let bytes = codec::encode(&shared);
    assert_eq!(codec::decode(&bytes, bytes.len()), Ok(shared.clone()), "it travels");
    let holders =
        |stage| shared.holders_of(StageIndex(stage)).map(|h| h.node.0).collect::<Vec<_>>();
    assert_eq!([holders(0), holders(1), holders(2)], [vec![1, 2], vec![2, 3], vec![3]]);
    assert_eq!(shared.cells().map(|holder| holder.node.0).collect::<Vec<_>>(), [1, 2, 1, 3]);
    let twins: Vec<_> = shared.stage_indices().map(|stage| shared.twins_of(stage)).collect();
    assert_eq!(twins, [vec![], vec![StageIndex(2)], vec![]]);
    let none = JobSpec { copies: 0, ..spec };
    shared.copies[0].clear();
    shared.promise = Promise::of(0, 3);
    assert_eq!(shared.check(&none), Ok(()));
    // The plan before, on four.
    let fourth = log.plan(&[1, 2, 3]).stages[0];
    let stages = vec![shared.stages[0], shared.stages[1], fourth, shared.stages[2]];
    let before = PlanRecord { stages, ..before };
    assert!(shared.reroutes(&before));
    plan.stages.swap(0, 1);
    assert!(!PlanRecord { stages: plan.stages, ..shared.clone() }.reroutes(&before), "layers move");
    assert!(!before.reroutes(&shared), "there are more");
}

/// Of four replicas in two shards the third is lost: the first one, which updates the same layer, stands in both.
/// It is left as the only holder, so one that gathers the layer keeps a copy of it.
#[test]
fn who_updates_the_same_shard_stands_for_a_lost_replica() {
    let spec = JobSpec { microbatch_count: 4, ..spec() };
    let log = FixtureLog::with_job(spec.clone(), &[1, 2, 3, 4]);
    let mut before = log.plan(&[1, 2, 3, 4]);
    four_in_two_shards(&mut before);
    assert_eq!(before.check(&spec), Ok(()));
    let mut shared = before.clone();
    without_the_third(&mut shared);
    shared.stages.remove(2);
    let refused = Err(PlanRefusal::Promise { promise: shared.promise });
    assert_eq!(shared.check(&spec), refused, "a copy of the first layer is missing");
    shared.copies[0] = vec![StageIndex(1)];
    assert_eq!(shared.check(&spec), Ok(()));
    let bytes = codec::encode(&shared);
    assert_eq!(codec::decode(&bytes, bytes.len()), Ok(shared.clone()), "it travels");
    assert_eq!(shared.cells().map(|holder| holder.node.0).collect::<Vec<_>>(), [1, 2, 1, 4]);
    let own = [0, 1, 2].map(|stage| shared.layers_of(StageIndex(stage)).count());
    assert_eq!(own, [1, 3, 0]);
    let held = [0, 1, 2].map(|stage| copied_layers(&shared, StageIndex(stage)).len());
    assert_eq!(held, [0, 1, 3], "a copy of one layer, and three of a twin");
    assert!(shared.reroutes(&before));
    let mut stages = shared.stages.clone();
    stages.swap(1, 2);
    assert!(PlanRecord { stages, ..shared.clone() }.reroutes(&before), "both update the others");
    let mut stages = shared.stages.clone();
    stages.swap(0, 1);
    assert!(!PlanRecord { stages, ..shared }.reroutes(&before), "moments move");
}

/// The stage in the middle holds one part of the model twice, and that is its own.
#[test]
fn the_middle_of_three_stages_is_its_own_twin() {
    let log = FixtureLog::with_job(spec(), &[1, 2, 3]);
    let mut plan = log.plan(&[1, 2, 3]);
    let three = generate(ScheduleKind::Gems, 3, 2).expect("the size is legal");
    plan.program = lower(&three, LowerOptions { window: Window::One, early_head_weights: false });
    plan.chunks = chunks(3).repeat(2);
    assert_eq!(plan.check(&spec()), Ok(()));
    let twins: Vec<_> = plan.stage_indices().map(|stage| plan.twins_of(stage)).collect();
    assert_eq!(twins, [vec![StageIndex(2)], vec![], vec![StageIndex(0)]]);
    // It keeps the copy of the first stage, and of its own layers none.
    assert_eq!(copied_layers(&plan, StageIndex(1)), [LayerId(0)]);
    assert_eq!(plan.layers_at(StageIndex(1)).count(), 2);
}

#[test]
fn every_layer_has_a_source() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    let mut check = |sources: Vec<LayerSource>| {
        let refusal = PlanRefusal::Sources { expected: 4, found: sources.len() };
        refuse(&mut log, &[1, 2], |plan| plan.sources = sources, refusal);
    };
    let nodes = |count: usize| LayerSource::Nodes(vec![NodeId(1); count]);
    check(vec![LayerSource::Initial; 3]);
    check(vec![LayerSource::Initial; 5]);
    check(vec![nodes(0); 4]);
    check(vec![nodes(SOURCES_MAX + 1); 4]);
    let mut plan = log.plan(&[1, 2]);
    plan.sources = vec![nodes(SOURCES_MAX); 4];
    log.adopt(plan);
}

/// R3 is on record: a promise without copies elsewhere is not accepted, nor are copies without it.
#[test]
fn r3_copies_are_where_the_promise_says() {
    let (kept, one) = (Promise::Kept, Promise::Off(PromiseOff::OneStage));
    let off = Promise::Off(PromiseOff::Configured);
    let check = |copies: u32, promise: Promise, by: &[&[u32]], is_fit: bool| {
        let nodes = &[1, 2, 3][..by.len()];
        let mut log = FixtureLog::with_job(JobSpec { copies, ..spec() }, &[1, 2, 3]);
        let mut plan = log.plan(nodes);
        let by = by.iter().map(|by| by.iter().map(|stage| StageIndex(*stage)).collect());
        (plan.promise, plan.copies) = (promise, by.collect());
        match is_fit {
            true => drop(log.adopt(plan)),
            false => log.refuse(Entry::Adopt(Box::new(plan)), PlanRefusal::Promise { promise }),
        }
    };
    check(1, kept, &[&[1], &[0]], true);
    check(1, kept, &[&[0], &[0]], false);
    check(1, kept, &[&[1], &[2]], false);
    check(1, kept, &[&[1], &[]], false);
    check(0, kept, &[&[1], &[0]], false);
    check(1, off, &[&[], &[]], false);
    check(0, off, &[&[], &[]], true);
    check(0, off, &[&[1], &[0]], false);
    check(1, one, &[&[], &[]], false);
    check(1, one, &[&[]], true);
    check(0, one, &[&[]], false);
    check(1, kept, &[&[]], false);
    let twice: &[&[u32]] = &[&[1, 2], &[2, 0], &[0, 1]];
    check(2, kept, twice, true);
    check(1, kept, twice, false);
    check(2, kept, &[&[1, 2], &[2, 0], &[0]], false);
    check(2, kept, &[&[1, 2], &[2, 0], &[0, 0]], false);
    check(2, kept, &[&[1, 2], &[2, 0], &[0, 2]], false);
    check(2, kept, &[&[1, 2], &[2, 0], &[0, 3]], false);
}

/// Where there are fewer others than copies are wanted, the plan states how many there are.
#[test]
fn r3_a_promise_of_fewer_copies_is_told_as_that() {
    let check = |promise: Promise, is_fit: bool| {
        let mut log = FixtureLog::with_job(JobSpec { copies: 2, ..spec() }, &[1, 2]);
        let mut plan = log.plan(&[1, 2]);
        assert_eq!(plan.copies, [[StageIndex(1)], [StageIndex(0)]]);
        plan.promise = promise;
        match is_fit {
            true => drop(log.adopt(plan)),
            false => log.refuse(Entry::Adopt(Box::new(plan)), PlanRefusal::Promise { promise }),
        }
    };
    check(Promise::Fewer { copies: 1 }, true);
    check(Promise::Fewer { copies: 2 }, false);
    check(Promise::Kept, false);
    check(Promise::Off(PromiseOff::OneStage), false);
    assert_eq!(Promise::of(2, 1), Promise::Off(PromiseOff::OneStage));
    assert_eq!(Promise::of(2, 3), Promise::Kept);
}

#[test]
fn the_program_is_legal_for_the_job() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    let (expected, found) = (2, 3);
    let refusal = PlanRefusal::Microbatches { expected, found };
    refuse(&mut log, &[1, 2], |plan| plan.program.microbatch_count = 3, refusal);
    let zero = PlanRefusal::Window { found: Some(Window::Zero) };
    refuse(&mut log, &[1, 2], |plan| plan.program = program(2, Window::Zero), zero);
    let none = PlanRefusal::Window { found: None };
    refuse(&mut log, &[1, 2], |plan| plan.program.window = None, none.clone());
    let broken = PlanRefusal::Program { count: 1 };
    refuse(&mut log, &[1, 2], |plan| drop(plan.program.stages.pop()), broken);
    let mut log = FixtureLog::with_job(JobSpec { window: WindowPolicy::Auto, ..spec() }, &[1, 2]);
    refuse(&mut log, &[1, 2], |plan| plan.program.window = None, none);
    let mut plan = log.plan(&[1, 2]);
    plan.program = program(2, Window::Zero);
    log.adopt(plan);
}

/// A planned plan and the one it follows, with its first step so far ahead.
fn planned(ahead: u64) -> (FixtureLog, PlanRecord) {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.join(3);
    log.keep(1);
    let mut plan = log.plan(&[1, 2, 3]);
    plan.from_step = Step(1 + ahead);
    (log, plan)
}

#[test]
fn a_planned_change_begins_with_its_step_and_not_before() {
    let (mut log, plan) = planned(2);
    assert!(matches!(log.adopt(plan), StateChange::Planned(_)));
    log.keep(1);
    assert_eq!((log.state.generation(), log.state.is_running()), (Generation(1), true));
    let seal = log.seal(crate::validation::Verdict::Keep);
    let StateChange::Sealed { adopted, .. } = log.apply(Entry::Seal(seal)) else {
        panic!("a seal")
    };
    assert_eq!(adopted.map(|plan| plan.generation), Some(Generation(2)));
    assert!(log.state.next_plan().is_none() && is_loading(&log, 3));
    let open = log.state.open_turn();
    assert_eq!((open.generation, open.step), (Generation(2), Step(3)));
    log.load();
    assert!(log.state.is_running());
}

#[test]
fn a_change_is_planned_so_far_ahead_and_only_once_and_only_while_it_runs() {
    let (mut log, plan) = planned(PLANNED_AHEAD_MAX + 1);
    let from_step = |open, found| PlanRefusal::FromStep { open: Step(open), found: Step(found) };
    log.refuse(Entry::Adopt(Box::new(plan)), from_step(1, 2 + PLANNED_AHEAD_MAX));
    let (mut log, plan) = planned(PLANNED_AHEAD_MAX);
    log.adopt(plan);
    let mut second = log.plan(&[1, 2]);
    second.from_step = Step(3);
    log.refuse(Entry::Adopt(Box::new(second.clone())), from_step(1, 3));
    let (mut log, plan) = planned(2);
    log.lose(2);
    let mut plan = PlanRecord { stages: vec![], ..plan };
    plan.from_step = Step(3);
    log.refuse(Entry::Adopt(Box::new(plan)), from_step(1, 3));
}

/// A node that breaks down before the change is no reason to lose the step: a plan for now replaces
/// it.
#[test]
fn a_plan_for_now_replaces_a_planned_one() {
    let (mut log, plan) = planned(2);
    log.adopt(plan);
    log.lose(3);
    let now = log.plan(&[1, 2]);
    assert_eq!(now.generation, Generation(3));
    log.adopt(now);
    assert!(log.state.next_plan().is_none());
    log.load();
    log.keep(4);
    assert_eq!(log.state.generation(), Generation(3));
}

#[test]
fn who_is_ready_names_its_layers_and_its_copies_once() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2, 3]);
    let refuse = |log: &mut FixtureLog, ready: ReadyRecord, refusal| {
        log.refuse(Entry::Ready(ready), refusal);
    };
    log.adopt(log.plan(&[1, 2]));
    let (holder, ready) = (log.holder(1), log.ready(0));
    let other = ReadyRecord { generation: Generation(2), ..ready.clone() };
    let (expected, found) = (Generation(1), Generation(2));
    refuse(&mut log, other, EntryRefusal::OtherGeneration { expected, found });
    let spare = log.holder(3);
    let unknown = ReadyRecord { holder: spare, ..ready.clone() };
    refuse(&mut log, unknown, EntryRefusal::NotAHolder { holder: spare });
    let swapped = ReadyRecord { layers: ready.copies.clone(), ..ready.clone() };
    let reversed =
        ReadyRecord { layers: ready.layers.iter().rev().copied().collect(), ..ready.clone() };
    let bare = ReadyRecord { copies: vec![], ..ready.clone() };
    for wrong in [swapped, reversed, bare] {
        refuse(&mut log, wrong, EntryRefusal::OtherLayers { holder });
    }
    assert_eq!(log.apply(Entry::Ready(ready.clone())), StateChange::Ready(holder));
    refuse(&mut log, ready, EntryRefusal::AlreadyReady { holder });
    let ready = log.ready(1);
    log.lose(2);
    let holder = ready.holder;
    refuse(&mut log, ready, EntryRefusal::NotAHolder { holder });
}

#[test]
fn a_plan_runs_once_everybody_is_ready_and_there() {
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    let resume = |generation| Entry::Resume { generation: Generation(generation) };
    log.refuse(resume(0), EntryRefusal::NotLoading { generation: Generation(0) });
    log.adopt(log.plan(&[1, 2]));
    log.refuse(resume(1), EntryRefusal::NotReady { missing: 2 });
    let (expected, found) = (Generation(1), Generation(0));
    log.refuse(resume(0), EntryRefusal::OtherGeneration { expected, found });
    log.apply(Entry::Ready(log.ready(0)));
    log.refuse(resume(1), EntryRefusal::NotReady { missing: 1 });
    log.apply(Entry::Ready(log.ready(1)));
    let mut gone = log.clone();
    let holder = gone.holder(2);
    gone.lose(2);
    gone.refuse(resume(1), EntryRefusal::NotAHolder { holder });
    assert_eq!(log.resume(), StateChange::Resumed(Generation(1)));
    log.refuse(resume(1), EntryRefusal::NotLoading { generation: Generation(1) });
    let again = log.ready(0);
    log.refuse(Entry::Ready(again), EntryRefusal::NotLoading { generation: Generation(1) });
}

/// Invariant N1 begins here: what was loaded is the same wherever it is, and what was to be read.
#[test]
fn a_plan_does_not_run_on_layers_that_differ() {
    let load = |log: &mut FixtureLog, spoil: &dyn Fn(usize, &mut ReadyRecord)| {
        for stage in [0, 1] {
            let mut ready = log.ready(stage);
            spoil(stage, &mut ready);
            log.apply(Entry::Ready(ready));
        }
    };
    let resume = Entry::Resume { generation: Generation(1) };
    let differ = |layer| EntryRefusal::DigestsDiffer { layer: zbelastic_types::LayerId(layer) };
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    log.adopt(log.plan(&[1, 2]));
    load(&mut log, &|stage, ready| {
        if stage == 1 {
            ready.copies[1].1 = Digest([7; 32]);
        }
    });
    log.refuse(resume.clone(), differ(1));
    let mut log = FixtureLog::with_job(spec(), &[1, 2]);
    let mut plan = log.plan(&[1, 2]);
    let read = |layer, version| LayerSource::Checkpoint {
        version: Step(0),
        digest: digest(layer, version),
    };
    plan.sources = vec![read(0, 0), read(1, 0), read(2, 1), read(3, 0)];
    log.adopt(plan);
    load(&mut log, &|_, _| {});
    log.refuse(resume, differ(2));
}

#[test]
fn what_was_struck_after_it_was_told_of_does_not_run() {
    let mut log = FixtureLog::running(spec(), &[1, 2]);
    log.keep(1);
    let plan =
        PlanRecord { expected: vec![Some(digest(9, 9)); LAYERS as usize], ..log.plan(&[1, 2]) };
    log.adopt(plan);
    (0..2).for_each(|stage| drop(log.apply(Entry::Ready(log.ready(stage)))));
    let generation = log.state.generation();
    log.refuse(Entry::Resume { generation }, EntryRefusal::DigestsDiffer { layer: LayerId(0) });
}

#[test]
fn who_trains_the_last_layer_computes_the_loss() {
    let log = FixtureLog::with_job(spec(), &[1, 2, 3]);
    let mut plan = log.plan(&[1, 2]);
    let heads = |plan: &PlanRecord| [1, 2, 3].map(|node| plan.has_head(NodeId(node)));
    assert_eq!(heads(&plan), [false, true, false]);
    crossed(&mut plan);
    assert_eq!(heads(&plan), [true, true, false], "each stage has one of two replicas");
}
