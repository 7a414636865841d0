//! What holds for every schedule, size and time.

mod exact;
mod problems;
mod solved;
mod tables;

use std::collections::BTreeMap;

use proptest::prelude::*;
use zbelastic_schedule::{
    ChunkCounts, ChunkMemory, ChunkTimes, Compute, Costs, LowerOptions, MemoryCosts, Op, Pass,
    PipelineSize, Program, ScheduleKind, Timeline, TimelineSlice, UpdateOp, Window, check,
    check_size, generate_sized, live_passes, lower, peak_memory, simulate,
};
use zbelastic_types::{ChunkIndex, StageIndex};

fn kind() -> impl Strategy<Value = ScheduleKind> {
    prop::sample::select(ScheduleKind::ALL.to_vec())
}

fn options() -> impl Strategy<Value = LowerOptions> {
    let window = prop::sample::select(vec![Window::Zero, Window::One]);
    (window, any::<bool>())
        .prop_map(|(window, early_head_weights)| LowerOptions { window, early_head_weights })
}

/// A program of up to 6 stages, with 2 to 4 chunks each where their number is free, and as many
/// slices. A schedule that does not exist for the microbatches or stages drawn gets the next number
/// that it exists for.
fn program() -> impl Strategy<Value = Program> {
    (kind(), 1..=6u32, 2..=4u32, 1..=20u32).prop_map(|(kind, stages, chunks, microbatches)| {
        let stages =
            if kind == ScheduleKind::Chimera { stages.next_multiple_of(2) } else { stages };
        let chunks_per_stage = match kind.chunk_counts() {
            ChunkCounts::Exactly(count) => count,
            ChunkCounts::AtLeast(_) => chunks,
        };
        let sizes = (microbatches..).map(|microbatch_count| PipelineSize {
            stage_count: stages,
            chunks_per_stage,
            microbatch_count,
            slice_count: if kind.is_sliced() { chunks } else { 1 },
        });
        let size = sizes.take(20).find(|size| check_size(kind, *size).is_ok());
        generate_sized(kind, size.expect("one of twenty is legal")).expect("the size is legal")
    })
}

fn chunk_times() -> impl Strategy<Value = ChunkTimes> {
    (0.1..10.0, 0.1..10.0, 0.1..10.0, 0.0..1.0).prop_map(|(f, b, w, early_share)| ChunkTimes {
        f,
        b,
        w,
        w_early: w * early_share,
    })
}

/// Times of 24 chunks: as many as the largest program has. Every chunk has its own.
fn costs() -> impl Strategy<Value = Costs> {
    let chunks = prop::collection::vec(chunk_times(), 24);
    let occupancy = prop_oneof![Just(0.0), 0.0..3.0];
    (chunks, 0.0..3.0, occupancy, 0.0..30.0, 0.0..5.0).prop_map(
        |(chunks, link, occupancy, verdict, step)| {
            let slice_shares = Vec::new();
            let gradients = Vec::new();
            let memory = MemoryCosts::default();
            let tied = 0.0;
            Costs { chunks, slice_shares, link, occupancy, verdict, step, memory, gradients, tied }
        },
    )
}

fn run(program: &Program, costs: &Costs, steps: u32) -> Timeline {
    let mut costs = costs.clone();
    costs.chunks.truncate(program.placement.chunk_count() as usize);
    simulate(program, &costs, steps).expect("a generated program runs to its end")
}

/// When each pass of a timeline ran, by step; B and BW are both filed under B.
fn times_of(timeline: &Timeline) -> BTreeMap<(u32, Compute, Pass), (f64, f64)> {
    let mut times = BTreeMap::new();
    for slice in timeline.all_slices() {
        let Op::Compute(compute, pass) = slice.op else { continue };
        let filed = if compute.yields_input_gradient() { Compute::B } else { compute };
        times.insert((slice.step, filed, pass), (slice.start, slice.end));
    }
    times
}

/// The passes that must have ended, and their results arrived, before this one may start.
fn dependencies(program: &Program, compute: Compute, pass: Pass) -> Vec<(Compute, Pass)> {
    let Pass { chunk, .. } = pass;
    let neighbour = |chunk: u32| Pass { chunk: ChunkIndex(chunk), ..pass };
    let placement = &program.placement;
    match compute {
        Compute::F if placement.is_first(chunk) => vec![],
        Compute::F => vec![(Compute::F, neighbour(chunk.0 - 1))],
        Compute::B | Compute::BW if placement.is_last(chunk) => vec![(Compute::F, pass)],
        Compute::B | Compute::BW => vec![(Compute::B, neighbour(chunk.0 + 1))],
        Compute::W | Compute::WE => vec![(Compute::B, pass)],
        Compute::R => vec![(Compute::F, pass)],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn text_and_program_are_inverses(program in program(), options in options()) {
        prop_assert_eq!(program.to_string().parse(), Ok(program.clone()));
        let lowered = lower(&program, options);
        prop_assert_eq!(lowered.to_string().parse(), Ok(lowered.clone()));
    }

    #[test]
    fn lowering_is_legal(program in program(), options in options()) {
        prop_assert_eq!(check(&program), Ok(()));
        prop_assert_eq!(check(&lower(&program, options)), Ok(()));
    }

    #[test]
    fn nothing_is_faster_than_its_work(
        program in program(), costs in costs(), options in options(), steps in 1..=3u32,
    ) {
        let timeline = run(&lower(&program, options), &costs, steps);
        for step in 0..steps {
            let work = timeline.stages().map(|stage| timeline.work(stage, step)).fold(0.0, f64::max);
            prop_assert!(timeline.cost(step) >= work - 1e-9);
            prop_assert!(timeline.makespan(step) >= timeline.cost(step));
            prop_assert!(timeline.bubble_span(step) <= timeline.bubble_sync(step));
        }
    }

    #[test]
    fn stages_do_one_thing_at_a_time(
        program in program(), costs in costs(), options in options(), steps in 1..=3u32,
    ) {
        let lowered = lower(&program, options);
        let timeline = run(&lowered, &costs, steps);
        for stage in timeline.stages() {
            let slices = timeline.slices(stage);
            let ran: Vec<Op> = slices.iter().map(|slice| slice.op).collect();
            prop_assert_eq!(ran, lowered.ops(stage).repeat(steps as usize));
            prop_assert!(slices.iter().all(|slice| slice.start <= slice.end));
            let is_copy = |slice: &&TimelineSlice| matches!(slice.op, Op::Memory(..));
            for copies in [false, true] {
                let lane = slices.iter().filter(|slice| is_copy(slice) == copies);
                let lane: Vec<_> = lane.filter(|slice| slice.duration() > 0.0).collect();
                prop_assert!(lane.windows(2).all(|pair| pair[0].end <= pair[1].start));
            }
        }
    }

    #[test]
    fn passes_respect_their_dependencies(
        program in program(), costs in costs(), options in options(), steps in 1..=2u32,
    ) {
        let timeline = run(&lower(&program, options), &costs, steps);
        let times = times_of(&timeline);
        for slice in timeline.all_slices() {
            let Op::Compute(compute, pass) = slice.op else { continue };
            for (needed, needed_pass) in dependencies(&program, compute, pass) {
                let stage_of = |pass: Pass| program.placement.stage_of(pass.chunk);
                let hop = if stage_of(needed_pass) == stage_of(pass) { 0.0 } else { costs.link };
                let (_, end) = times[&(slice.step, needed, needed_pass)];
                prop_assert!(slice.start >= end + hop, "{} starts before {needed} arrives", slice.op);
            }
        }
    }

    /// The times of reports, gates and steps, computed again from each other.
    #[test]
    fn updates_wait_for_the_reports_they_are_about(
        program in program(), costs in costs(), options in options(), steps in 1..=3u32,
    ) {
        let timeline = run(&lower(&program, options), &costs, steps);
        let start = |stage: StageIndex, step, update| {
            let is_it = |slice: &&TimelineSlice| slice.op == Op::Update(update) && slice.step == step;
            timeline.slices(stage).iter().find(is_it).expect("every step has its updates").start
        };
        let report = |stage, step| start(stage, step, UpdateOp::Report);
        for (stage, step) in timeline.stages().flat_map(|stage| (0..steps).map(move |t| (stage, t))) {
            let stages = || timeline.stages();
            let verdict =
                |step| stages().map(|s| report(s, step)).fold(0.0, f64::max) + costs.verdict;
            if options.window == Window::Zero {
                prop_assert_eq!(start(stage, step, UpdateOp::GateThis), verdict(step));
                continue;
            }
            if step > 0 {
                prop_assert!(start(stage, step, UpdateOp::GatePrevious) >= verdict(step - 1));
            }
            let sums_from = |from: StageIndex| {
                report(from, step) + f64::from(stage.0 - from.0) * costs.link
            };
            let prefix = stages().filter(|from| *from <= stage).map(sums_from).fold(0.0, f64::max);
            prop_assert!((start(stage, step, UpdateOp::Step) - prefix).abs() < 1e-9);
        }
    }

    /// A pass starts when its stage is free and its operands are there, not later: at equal costs
    /// a program takes the same time before and after lowering.
    #[test]
    fn lowering_takes_no_time(program in program(), costs in costs(), window in options()) {
        let options = LowerOptions { early_head_weights: false, ..window };
        let bare = run(&program, &costs, 1);
        let lowered = run(&lower(&program, options), &costs, 1);
        prop_assert_eq!(times_of(&bare), times_of(&lowered));
    }

    /// Window zero commits a step before the next begins. Window one must not be slower.
    #[test]
    fn an_optimistic_step_is_not_later(program in program(), costs in costs()) {
        let end = |window| {
            let options = LowerOptions { window, early_head_weights: false };
            let timeline = run(&lower(&program, options), &costs, 3);
            timeline.all_slices().map(|slice| slice.end).fold(0.0, f64::max)
        };
        let hops = f64::from(program.placement.stage_count()) * costs.link;
        // The sums travel from stage to stage, the verdict at once: see `Costs`.
        prop_assume!(costs.verdict >= hops);
        prop_assert!(end(Window::One) <= end(Window::Zero) + 1e-9);
    }

    #[test]
    fn memory_stays_within_what_the_schedule_promises(
        program in program(), kept_by_b in 0.0..1.0f64,
    ) {
        let per_stage = 1.0 / program.placement.chunk_share();
        let chunk = ChunkMemory {
            after_forward: 1.0 / per_stage,
            after_drop: 0.0,
            after_input_gradient: kept_by_b / per_stage,
            after_early_weights: 0.0,
        };
        let chunks = vec![chunk; program.placement.chunk_count() as usize];
        let p = program.placement.stage_count();
        let m = program.microbatch_count;
        let stages = f64::from(p);
        let microbatches = f64::from(m);
        let promise = match program.kind {
            ScheduleKind::GPipe | ScheduleKind::LoopedBfs => microbatches,
            ScheduleKind::OneFOneB
            | ScheduleKind::ZbH1
            | ScheduleKind::ZbAuto
            | ScheduleKind::ZbV
            | ScheduleKind::Gis => stages,
            ScheduleKind::GisH => ((per_stage - 1.0) * f64::from(p.div_ceil(2)) + stages) / per_stage,
            // Up to one chunk more for each that the stage holds but one.
            ScheduleKind::Po => {
                ((per_stage - 1.0) * f64::from(p.div_ceil(2) + 1) + stages) / per_stage
            }
            // The published share of what is left, and some chunks that are being copied.
            ScheduleKind::PoHalf => ((per_stage + 2.0) * stages / 8.0 + 4.0) / per_stage,
            ScheduleKind::PoFull | ScheduleKind::PoSelective => 5.0 / per_stage,
            ScheduleKind::VHalf => f64::from(p / 2 + 1),
            ScheduleKind::VMin => f64::from((p + 1) / 3 + 1),
            ScheduleKind::OneFOneBV => f64::from(2 * p / 3 + 1),
            ScheduleKind::DualPipeV => stages + 0.5,
            ScheduleKind::Interleaved => stages + (stages - 1.0) / per_stage,
            ScheduleKind::ZbH2 => 2.0 * stages - 1.0,
            ScheduleKind::Gems => 1.0,
            ScheduleKind::Chimera => stages,
            ScheduleKind::Seq1F1B => 1.0 + (stages - 1.0) / f64::from(program.slice_count),
        };
        for peak in peak_memory(&program, &chunks) {
            prop_assert!(peak <= promise.min(microbatches) + 1e-9);
        }
        let most = live_passes(&program).iter().map(|live| live.slots).max();
        prop_assert!(most.is_some_and(|slots| slots <= m * program.slice_count));
    }
}
