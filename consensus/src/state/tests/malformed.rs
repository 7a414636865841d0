//! Plans whose parts contradict each other in ways no solver makes: every node that applies them
//! refuses them, all the same way, and none panics.

use proptest::prelude::*;
use zbelastic_schedule::{
    Compute, Flow, MemoryOp, Op, Pass, Placement, PlacementShape, Program, Reduction, ScheduleKind,
    Transfer, TreeExchange, TreeLevel, UpdateOp, Window,
};
use zbelastic_types::{ChunkIndex, Generation, Incarnation, LayerRange, NodeId, StageIndex, Step};

use crate::codec;
use crate::entry::Entry;
use crate::fixture::{FixtureLog, program, spec};
use crate::job::JobSpec;
use crate::member::Holder;
use crate::plan::{LayerSource, PlanRecord, PlanRefusal, Promise, PromiseOff};
use crate::state::EntryRefusal;

/// One thing that is wrong with a program. Places beyond the end mean nothing.
#[derive(Clone, Debug)]
enum ProgramEdit {
    Replace { stage: usize, at: usize, op: Op },
    Insert { stage: usize, at: usize, op: Op },
    Remove { stage: usize, at: usize },
    Swap { stage: usize, at: usize, with: usize },
    Empty { stage: usize },
    DropList,
    RepeatList { stage: usize },
    Placement(PlacementShape, u32, u32),
    Microbatches(u32),
    Slices(u32),
    Window(Option<Window>),
    Kind(ScheduleKind),
}

/// One thing that is wrong with what stands around it.
#[derive(Clone, Debug)]
enum PlanEdit {
    Chunk { at: usize, start: u32, length: u32 },
    DropChunk,
    Holder { stage: usize, node: u64, incarnation: u64 },
    DropHolder,
    Copy { stage: usize, by: Vec<StageIndex> },
    DropCopy,
    Promise(Promise),
    Source { at: usize, nodes: usize },
    DropSource,
    Generation(u64),
    FromStep(u64),
}

/// A number that is small, or as large as can be.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..6_u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn ops() -> impl Strategy<Value = Op> {
    let pass = || {
        (number(), number(), prop_oneof![8 => Just(0), 1 => number()])
            .prop_map(|(chunk, microbatch, slice)| Pass::sliced(chunk, microbatch, slice))
    };
    let compute = prop::sample::select(vec![
        Compute::F,
        Compute::B,
        Compute::W,
        Compute::WE,
        Compute::BW,
        Compute::R,
    ]);
    let memory = prop::sample::select(vec![MemoryOp::Offload, MemoryOp::Reload, MemoryOp::Drop]);
    let transfer = prop::sample::select(vec![Transfer::Send, Transfer::Receive, Transfer::Local]);
    let flow = prop::sample::select(vec![Flow::Forward, Flow::Backward]);
    let update = prop::sample::select(vec![
        UpdateOp::Report,
        UpdateOp::Step,
        UpdateOp::GatePrevious,
        UpdateOp::GateThis,
        UpdateOp::Commit,
    ]);
    let exchanges = [TreeExchange::Reduce, TreeExchange::Gather]
        .into_iter()
        .flat_map(|exchange| [0, 3].map(|level| exchange(TreeLevel(level))));
    let between = [Reduction::Send, Reduction::Receive, Reduction::Local, Reduction::Merge];
    let between = exchanges.flat_map(|exchange| between.map(|reduction| reduction(exchange)));
    let tied = [Reduction::SendTied, Reduction::ReceiveTied, Reduction::Tie];
    let reduction = prop::sample::select(between.chain(tied).collect::<Vec<_>>());
    prop_oneof![
        (compute, pass()).prop_map(|(compute, pass)| Op::Compute(compute, pass)),
        (transfer, flow, pass())
            .prop_map(|(transfer, flow, pass)| Op::Transfer(transfer, flow, pass)),
        update.prop_map(Op::Update),
        (reduction, number())
            .prop_map(|(reduction, chunk)| Op::Reduce(reduction, ChunkIndex(chunk))),
        (memory, pass()).prop_map(|(memory, pass)| Op::Memory(memory, pass)),
    ]
}

fn edits_of_programs() -> impl Strategy<Value = ProgramEdit> {
    let (stage, at) = (|| 0..4_usize, || 0..40_usize);
    let shape = prop::sample::select(vec![
        PlacementShape::Line,
        PlacementShape::Loop,
        PlacementShape::Vee,
        PlacementShape::Cross,
    ]);
    let window = prop::sample::select(vec![None, Some(Window::Zero), Some(Window::One)]);
    prop_oneof![
        6 => (stage(), at(), ops())
            .prop_map(|(stage, at, op)| ProgramEdit::Replace { stage, at, op }),
        6 => (stage(), at(), ops())
            .prop_map(|(stage, at, op)| ProgramEdit::Insert { stage, at, op }),
        6 => (stage(), at()).prop_map(|(stage, at)| ProgramEdit::Remove { stage, at }),
        6 => (stage(), at(), at())
            .prop_map(|(stage, at, with)| ProgramEdit::Swap { stage, at, with }),
        1 => stage().prop_map(|stage| ProgramEdit::Empty { stage }),
        1 => Just(ProgramEdit::DropList),
        1 => stage().prop_map(|stage| ProgramEdit::RepeatList { stage }),
        2 => (shape, 0..6_u32, 0..9_u32).prop_map(|(s, p, c)| ProgramEdit::Placement(s, p, c)),
        1 => number().prop_map(ProgramEdit::Microbatches),
        1 => number().prop_map(ProgramEdit::Slices),
        1 => window.prop_map(ProgramEdit::Window),
        1 => prop::sample::select(ScheduleKind::ALL.to_vec()).prop_map(ProgramEdit::Kind),
    ]
}

fn edits_of_plans() -> impl Strategy<Value = PlanEdit> {
    let promises = vec![
        Promise::Kept,
        Promise::Off(PromiseOff::OneStage),
        Promise::Off(PromiseOff::Configured),
        Promise::Fewer { copies: 1 },
    ];
    let stage = || 0..4_usize;
    let copies = prop::collection::vec(number().prop_map(StageIndex), 0..3);
    prop_oneof![
        (stage(), 0..5_u32, 1..5_u32).prop_map(|(at, start, length)| PlanEdit::Chunk {
            at,
            start,
            length
        }),
        Just(PlanEdit::DropChunk),
        (stage(), 0..6_u64, 0..6_u64).prop_map(|(stage, node, incarnation)| PlanEdit::Holder {
            stage,
            node,
            incarnation
        }),
        Just(PlanEdit::DropHolder),
        (stage(), copies).prop_map(|(stage, by)| PlanEdit::Copy { stage, by }),
        Just(PlanEdit::DropCopy),
        prop::sample::select(promises).prop_map(PlanEdit::Promise),
        (stage(), 0..12_usize).prop_map(|(at, nodes)| PlanEdit::Source { at, nodes }),
        Just(PlanEdit::DropSource),
        prop_oneof![0..4_u64, Just(u64::MAX)].prop_map(PlanEdit::Generation),
        prop_oneof![0..8_u64, Just(u64::MAX)].prop_map(PlanEdit::FromStep),
    ]
}

fn edit_program(program: &mut Program, edit: ProgramEdit) {
    let mut nothing = Vec::new();
    let stages = &mut program.stages;
    match edit {
        ProgramEdit::Replace { stage, at, op } => {
            let place = stages.get_mut(stage).and_then(|ops| ops.get_mut(at));
            place.into_iter().for_each(|place| *place = op);
        }
        ProgramEdit::Insert { stage, at, op } => {
            let ops = stages.get_mut(stage).unwrap_or(&mut nothing);
            ops.insert(at.min(ops.len()), op);
        }
        ProgramEdit::Remove { stage, at } => {
            let ops = stages.get_mut(stage).filter(|ops| at < ops.len());
            ops.into_iter().for_each(|ops| _ = ops.remove(at));
        }
        ProgramEdit::Swap { stage, at, with } => {
            let ops = stages.get_mut(stage).filter(|ops| at.max(with) < ops.len());
            ops.into_iter().for_each(|ops| ops.swap(at, with));
        }
        ProgramEdit::Empty { stage } => stages.get_mut(stage).unwrap_or(&mut nothing).clear(),
        ProgramEdit::DropList => drop(stages.pop()),
        ProgramEdit::RepeatList { stage } => {
            let again = stages.get(stage).cloned();
            stages.extend(again);
        }
        ProgramEdit::Placement(shape, stages, chunks) => {
            let placement = Placement::of_shape(shape, stages, chunks);
            program.placement = placement.unwrap_or_else(|_| program.placement.clone());
        }
        ProgramEdit::Microbatches(count) => program.microbatch_count = count,
        ProgramEdit::Slices(count) => program.slice_count = count,
        ProgramEdit::Window(window) => program.window = window,
        ProgramEdit::Kind(kind) => program.kind = kind,
    }
}

fn edit_plan(plan: &mut PlanRecord, edit: PlanEdit) {
    match edit {
        PlanEdit::Chunk { at, start, length } => {
            let chunk = plan.chunks.get_mut(at);
            chunk.into_iter().for_each(|chunk| *chunk = LayerRange::new(start, start + length));
        }
        PlanEdit::DropChunk => drop(plan.chunks.pop()),
        PlanEdit::Holder { stage, node, incarnation } => {
            let (node, incarnation) = (NodeId(node), Incarnation(incarnation));
            let holder = plan.stages.get_mut(stage);
            holder.into_iter().for_each(|holder| *holder = Holder { node, incarnation });
        }
        PlanEdit::DropHolder => drop(plan.stages.pop()),
        PlanEdit::Copy { stage, by } => {
            let copy = plan.copies.get_mut(stage);
            copy.into_iter().for_each(|copy| copy.clone_from(&by));
        }
        PlanEdit::DropCopy => drop(plan.copies.pop()),
        PlanEdit::Promise(promise) => plan.promise = promise,
        PlanEdit::Source { at, nodes } => {
            let source = plan.sources.get_mut(at);
            let nodes = vec![NodeId(1); nodes];
            source.into_iter().for_each(|source| *source = LayerSource::Nodes(nodes.clone()));
        }
        PlanEdit::DropSource => drop(plan.sources.pop()),
        PlanEdit::Generation(generation) => plan.generation = Generation(generation),
        PlanEdit::FromStep(step) => plan.from_step = Step(step),
    }
}

/// A plan that was edited is adopted and can be run to the end of a step, or changes nothing.
fn check(of_program: Vec<ProgramEdit>, of_plan: Vec<PlanEdit>) {
    let mut log = FixtureLog::with_job(spec(), &[1, 2, 3]);
    let mut plan = log.plan(&[1, 2]);
    of_program.into_iter().for_each(|edit| edit_program(&mut plan.program, edit));
    of_plan.into_iter().for_each(|edit| edit_plan(&mut plan, edit));
    let mut before = log.state.clone();
    match log.try_apply(Entry::Adopt(Box::new(plan))) {
        Ok(_) => {
            log.load();
            log.keep(1);
        }
        Err(_) => {
            before.pass(log.state.applied());
            assert_eq!(codec::encode(&log.state), codec::encode(&before));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_plan_with_a_malformed_program_changes_nothing(
        edits in prop::collection::vec(edits_of_programs(), 1..5),
    ) {
        check(edits, Vec::new());
    }

    #[test]
    fn a_plan_that_contradicts_itself_changes_nothing(
        of_program in prop::collection::vec(edits_of_programs(), 0..2),
        of_plan in prop::collection::vec(edits_of_plans(), 1..4),
    ) {
        check(of_program, of_plan);
    }
}

/// The job sets how many microbatches there are, and it may be wrong as well: a program so large
/// that no node could hold it is refused, and nothing is laid out for it.
#[test]
fn a_program_larger_than_anybody_can_hold_is_refused() {
    let microbatch_count = u32::MAX;
    let mut log = FixtureLog::with_job(JobSpec { microbatch_count, ..spec() }, &[1, 2]);
    let mut plan = log.plan(&[1, 2]);
    let two = program(2, Window::One);
    assert_eq!(plan.program, two);
    plan.program.microbatch_count = microbatch_count;
    let refusal = EntryRefusal::Plan(PlanRefusal::Program { count: 1 });
    log.refuse(Entry::Adopt(Box::new(plan)), refusal);
}
