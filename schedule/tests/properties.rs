//! What holds for every schedule, size and time.

use std::collections::BTreeMap;

use proptest::prelude::*;
use zbelastic_schedule::{
    ChunkCosts, ChunkCounts, ChunkMemory, ChunkTimes, Compute, CopyLanes, Costs, Ending,
    LowerOptions, Memory, MemoryCosts, Op, Pass, PipelineSize, Placement, Problem, Program, Relief,
    Remake, ScheduleKind, Slice, SolveError, Timeline, Trip, Update, Window, check, check_size,
    generate, generate_sized, live_passes, lower, lower_bound, peak_memory, simulate, solve,
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
            let (slice_shares, gradients) = (Vec::new(), Vec::new());
            let memory = MemoryCosts::default();
            Costs { chunks, slice_shares, link, occupancy, verdict, step, memory, gradients }
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
            let is_copy = |slice: &&Slice| matches!(slice.op, Op::Memory(..));
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
            let is_it = |slice: &&Slice| slice.op == Op::Update(update) && slice.step == step;
            timeline.slices(stage).iter().find(is_it).expect("every step has its updates").start
        };
        let report = |stage, step| start(stage, step, Update::Report);
        for (stage, step) in timeline.stages().flat_map(|stage| (0..steps).map(move |t| (stage, t))) {
            let stages = || timeline.stages();
            let verdict =
                |step| stages().map(|s| report(s, step)).fold(0.0, f64::max) + costs.verdict;
            if options.window == Window::Zero {
                prop_assert_eq!(start(stage, step, Update::GateThis), verdict(step));
                continue;
            }
            if step > 0 {
                prop_assert!(start(stage, step, Update::GatePrevious) >= verdict(step - 1));
            }
            let sums_from = |from: StageIndex| {
                report(from, step) + f64::from(stage.0 - from.0) * costs.link
            };
            let prefix = stages().filter(|from| *from <= stage).map(sums_from).fold(0.0, f64::max);
            prop_assert!((start(stage, step, Update::Step) - prefix).abs() < 1e-9);
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
        let (p, m) = (program.placement.stage_count(), program.microbatch_count);
        let (stages, microbatches) = (f64::from(p), f64::from(m));
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
            // The published share of what is left, and some chunks on their way out and back.
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

/// A chunk, and how much of one B leaves to W.
fn chunk_costs() -> impl Strategy<Value = ChunkCosts> {
    (0.0..10.0, 0.0..10.0, 0.0..10.0, 0.1..10.0, 0.0..=1.0).prop_map(
        |(f, b, w, after_forward, share): (f64, f64, f64, f64, f64)| {
            let after_input_gradient = share * after_forward;
            ChunkCosts { f, b, w, after_forward, after_input_gradient }
        },
    )
}

/// A problem over this placement, whose stages' memory holds one to eight microbatches.
fn problem(placement: Placement, microbatches_max: u32) -> impl Strategy<Value = Problem> {
    let chunks = prop::collection::vec(chunk_costs(), placement.chunk_count() as usize);
    let rooms = prop::collection::vec(1.0..8.0, placement.stage_count() as usize);
    let occupancy = prop_oneof![Just(0.0), 0.0..6.0];
    let links = (0.0..3.0, occupancy);
    let ending = ending(placement.stage_count() as usize);
    (chunks, rooms, links, 1..=microbatches_max, ending).prop_map(
        move |(chunks, rooms, (link, occupancy), microbatch_count, ending)| {
            let rooms: Vec<f64> = rooms;
            let limit = |(stage, room): (u32, f64)| {
                let kept = placement.chunks_of(StageIndex(stage));
                room * kept.map(|chunk| chunks[chunk.index()].after_forward).sum::<f64>()
            };
            let limits = (0..).zip(rooms).map(limit).collect();
            let placement = placement.clone();
            let relief = Relief::default();
            Problem { placement, chunks, limits, link, occupancy, microbatch_count, ending, relief }
        },
    )
}

/// A verdict that takes as long as a pass.
const SHORT: f64 = 6.0;

/// With a step left open, as mostly, or with none.
fn ending(stage_count: usize) -> impl Strategy<Value = Ending> {
    let window = prop_oneof![2 => Just(Window::One), 1 => Just(Window::Zero)];
    let after = prop::collection::vec(0.0..6.0, stage_count);
    let after = prop_oneof![2 => Just(Vec::new()), 1 => after];
    let verdict = prop_oneof![2 => 0.0..SHORT, 1 => 0.0..60.0];
    (window, verdict, after).prop_map(|(window, verdict, after)| Ending { window, verdict, after })
}

fn line(stages_max: u32, microbatches_max: u32) -> impl Strategy<Value = Problem> {
    let sized = move |stages| problem(Placement::line(stages), microbatches_max);
    (1..=stages_max).prop_flat_map(sized)
}

fn vee(stages_max: u32, microbatches_max: u32) -> impl Strategy<Value = Problem> {
    let sized = move |stages| problem(Placement::vee(stages), microbatches_max);
    (1..=stages_max).prop_flat_map(sized)
}

fn cross(stages_max: u32, microbatches_max: u32) -> impl Strategy<Value = Problem> {
    let sized = move |stages| problem(Placement::cross(stages), microbatches_max);
    (1..=stages_max).prop_flat_map(sized)
}

/// Two chunks a stage or three, dealt round.
fn looped(stages_max: u32, microbatches_max: u32) -> impl Strategy<Value = Problem> {
    let sized =
        move |(stages, chunks)| problem(Placement::looped(stages, chunks), microbatches_max);
    (1..=stages_max, 2..=3_u32).prop_flat_map(sized)
}

/// What a program costs at a problem's times; `None` if a stage's memory does not hold it.
fn cost_of(problem: &Problem, program: &Program) -> Option<f64> {
    let timeline =
        simulate(program, &problem.costs(), 1).ok().filter(|_| problem.holds(program))?;
    Some(problem.cost(&timeline))
}

/// Whether what a program costs is not below the bound, with the memory there is if that holds it,
/// and with any amount.
fn check_bound(problem: &Problem, program: &Program) -> Result<(), TestCaseError> {
    if let Some(cost) = cost_of(problem, program) {
        let bound = lower_bound(problem).expect("legal");
        prop_assert!(bound <= cost * (1.0 + 1e-9), "{bound} above {cost}");
    }
    let limits = vec![f64::INFINITY; problem.limits.len()];
    let roomy = Problem { limits, ..problem.clone() };
    let cost = cost_of(&roomy, program).expect("it fits");
    let bound = lower_bound(&roomy).expect("legal");
    prop_assert!(bound <= cost * (1.0 + 1e-9), "{bound} above {cost}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12_000))]

    #[test]
    fn no_replay_costs_less_than_the_bound(
        problem in line(6, 12),
        kind in prop::sample::select(vec![
            ScheduleKind::ZbH1, ScheduleKind::ZbH2, ScheduleKind::ZbAuto,
        ]),
    ) {
        let stage_count = problem.limits.len() as u32;
        let program = generate(kind, stage_count, problem.microbatch_count).expect("legal");
        check_bound(&problem, &program)?;
    }

    #[test]
    fn no_replay_over_a_vee_costs_less_than_the_bound(problem in vee(6, 12)) {
        let stage_count = problem.limits.len() as u32;
        let program =
            generate(ScheduleKind::ZbV, stage_count, problem.microbatch_count).expect("legal");
        check_bound(&problem, &program)?;
    }

    #[test]
    fn no_replay_of_two_replicas_costs_less_than_the_bound(
        problem in cross(6, 12),
        kind in prop::sample::select(vec![ScheduleKind::Gems, ScheduleKind::Chimera]),
    ) {
        let stage_count = problem.limits.len() as u32;
        if let Ok(program) = generate(kind, stage_count, problem.microbatch_count) {
            check_bound(&problem, &program)?;
        }
        let found = problem.placement.shape();
        prop_assert_eq!(solve(&problem), Err(SolveError::Shape { found }));
    }

    #[test]
    fn no_replay_over_a_loop_costs_less_than_the_bound(
        problem in looped(5, 10),
        kind in prop::sample::select(vec![
            ScheduleKind::Gis, ScheduleKind::Po, ScheduleKind::LoopedBfs, ScheduleKind::Interleaved,
        ]),
    ) {
        let size = PipelineSize {
            stage_count: problem.limits.len() as u32,
            chunks_per_stage: problem.placement.chunks_per_stage(),
            microbatch_count: problem.microbatch_count,
            slice_count: 1,
        };
        if let Ok(program) = generate_sized(kind, size) {
            check_bound(&problem, &program)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_solved_is_an_order_that_fits(
        problem in prop_oneof![line(5, 9), vee(5, 9), looped(4, 8)],
    ) {
        let found = solve(&problem).expect("legal");
        prop_assert_eq!(check(&found.program), Ok(()));
        let cost = cost_of(&problem, &found.program).expect("memory holds it");
        prop_assert!((found.cost - cost).abs() <= 1e-9 * cost, "{cost}, told as {}", found.cost);
        prop_assert!(found.lower_bound <= cost * (1.0 + 1e-9), "{found:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// In a run, steps follow each other as closely as is told.
    #[test]
    fn steps_of_what_is_solved_follow_each_other_at_its_cost(
        problem in prop_oneof![line(5, 9), vee(5, 9), looped(4, 8)],
    ) {
        const STEPS: u32 = 6;
        let ending = Ending { after: Vec::new(), ..problem.ending };
        let problem = Problem { ending, ..problem };
        let found = solve(&problem).expect("legal");
        let (window, verdict) = (problem.ending.window, problem.ending.verdict);
        let options = LowerOptions { window, early_head_weights: false };
        let lowered = lower(&found.program, options);
        let costs = Costs { verdict, ..problem.costs() };
        let timeline = simulate(&lowered, &costs, STEPS).expect("it runs");
        let end = |step: u32| {
            let slices = timeline.all_slices().filter(|slice| slice.step == step);
            slices.map(|slice| slice.end).fold(0.0, f64::max)
        };
        for step in 1..STEPS {
            let at_most = end(0) + f64::from(step) * found.cost;
            prop_assert!(end(step) <= at_most * (1.0 + 1e-9), "{step}: {} {at_most}", end(step));
        }
    }
}

/// What the stages of a problem may do: make passes again, let them leave, or both.
fn relief(problem: &Problem) -> impl Strategy<Value = Relief> + use<> {
    let chunks = problem.chunks.clone();
    let times = prop::collection::vec((0.0..10.0, 0.0..=1.0, 0.0..10.0, 0.0..10.0), chunks.len());
    let lanes = prop::sample::select(vec![CopyLanes::Alternating, CopyLanes::Duplex]);
    (times, 1..=3_u8, lanes).prop_map(move |(times, which, lanes)| {
        let remake = |(costs, (time, share, ..)): (&ChunkCosts, &(f64, f64, f64, f64))| Remake {
            time: *time,
            after_drop: share * costs.after_forward,
        };
        let trip = |(_, _, offload, reload): &(f64, f64, f64, f64)| Trip {
            offload: *offload,
            reload: *reload,
        };
        let remakes = chunks.iter().zip(&times).map(remake).collect();
        let trips = times.iter().map(trip).collect();
        match which {
            1 => Relief { remakes, lanes, ..Relief::default() },
            2 => Relief { trips, lanes, ..Relief::default() },
            _ => Relief { remakes, trips, lanes },
        }
    })
}

/// A problem with so many times the memory, which may be too little without a relief.
fn relieved() -> impl Strategy<Value = Problem> {
    let problems = prop_oneof![line(4, 8), vee(3, 7), looped(3, 6)];
    (problems, 0.2..1.0).prop_flat_map(|(problem, share)| {
        let limits = problem.limits.iter().map(|limit| limit * share).collect();
        let problem = Problem { limits, ..problem };
        relief(&problem).prop_map(move |relief| Problem { relief, ..problem.clone() })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_is_relieved_fits_and_costs_no_more_than_without(problem in relieved()) {
        let plain = solve(&Problem { relief: Relief::default(), ..problem.clone() });
        let found = match solve(&problem) {
            Ok(found) => found,
            Err(SolveError::Limit { .. }) => {
                prop_assert!(plain.is_err(), "it fits without a relief");
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        prop_assert_eq!(check(&found.program), Ok(()));
        let cost = cost_of(&problem, &found.program).expect("memory holds it");
        prop_assert!((found.cost - cost).abs() <= 1e-9 * cost, "{cost}, told as {}", found.cost);
        prop_assert!(found.lower_bound <= cost * (1.0 + 1e-9), "{found:?}");
        if let Ok(plain) = plain {
            let least = plain.cost * (1.0 + 1e-9);
            prop_assert!(found.cost <= least, "{} above {}", found.cost, plain.cost);
        }
    }
}

/// Every order of a stage's passes: F before B before W, microbatches in turn, and of two chunks
/// the first one's F before, its B after the other's.
fn orders(chunks: &[u32], microbatches: u32) -> Vec<Vec<Op>> {
    type Done = Vec<[u32; 3]>;
    fn extend(chunks: &[u32], m: u32, done: &mut Done, list: &mut Vec<Op>, all: &mut Vec<Vec<Op>>) {
        if done.iter().all(|done| *done == [m; 3]) {
            all.push(list.clone());
            return;
        }
        for place in 0..chunks.len() {
            let [f, b, w] = done[place];
            let f_max = place.checked_sub(1).map_or(m, |before| done[before][0]);
            let b_max = done.get(place + 1).map_or(f, |after| after[1]);
            let next = [(f < f_max, Compute::F), (b < b_max, Compute::B), (w < b, Compute::W)];
            for (kind, (is_legal, compute)) in next.into_iter().enumerate() {
                if is_legal {
                    list.push(Op::Compute(compute, Pass::new(chunks[place], done[place][kind])));
                    done[place][kind] += 1;
                    extend(chunks, m, done, list, all);
                    done[place][kind] -= 1;
                    list.pop();
                }
            }
        }
    }
    let mut all = Vec::new();
    extend(chunks, microbatches, &mut vec![[0; 3]; chunks.len()], &mut Vec::new(), &mut all);
    all
}

/// Every order with every choice of passes that are given up behind F and made again before B.
fn remade(orders: Vec<Vec<Op>>) -> Vec<Vec<Op>> {
    let with_drops = |(list, which): (&Vec<Op>, u32)| -> Vec<Op> {
        let is_dropped = |pass: Pass| which >> pass.microbatch.0 & 1 == 1;
        let with = |op: &Op| match *op {
            Op::Compute(Compute::F, pass) if is_dropped(pass) => {
                vec![*op, Op::Memory(Memory::Drop, pass)]
            }
            Op::Compute(Compute::B, pass) if is_dropped(pass) => {
                vec![Op::Compute(Compute::R, pass), *op]
            }
            Op::Compute(..)
            | Op::Transfer(..)
            | Op::Update(_)
            | Op::Reduce(..)
            | Op::Memory(..) => {
                vec![*op]
            }
        };
        list.iter().flat_map(with).collect()
    };
    let choices = |list: &Vec<Op>| -> Vec<Vec<Op>> {
        let microbatches = list.len() as u32 / 3;
        (0..1 << microbatches).map(|which| with_drops((list, which))).collect()
    };
    orders.iter().flat_map(choices).collect()
}

/// The least that any order costs.
fn exact(problem: &Problem) -> f64 {
    let mut program = solve(problem).expect("legal").program;
    let chunks_of = |stage| -> Vec<u32> {
        problem.placement.chunks_of(StageIndex(stage)).map(|chunk| chunk.0).collect()
    };
    let choices: Vec<_> = (0..problem.limits.len() as u32)
        .map(|stage| orders(&chunks_of(stage), problem.microbatch_count))
        .map(|orders| if problem.relief.is_any() { remade(orders) } else { orders })
        .collect();
    let mut least = f64::INFINITY;
    for number in 0..choices.iter().map(Vec::len).product() {
        let mut rest: usize = number;
        for (list, choices) in program.stages.iter_mut().zip(&choices) {
            list.clone_from(&choices[rest % choices.len()]);
            rest /= choices.len();
        }
        least = least.min(cost_of(problem, &program).unwrap_or(f64::INFINITY));
    }
    least
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// On problems so small that all orders can be tried, the solver finds the best one. Where a verdict
    /// takes longer than passes do, in about 1 of 150 it does not, and is above it by up to 7 %.
    #[test]
    fn tiny_problems_are_solved_exactly(
        problem in prop_oneof![line(2, 3), line(4, 2), vee(1, 2), vee(2, 1)],
    ) {
        let (found, least) = (solve(&problem).expect("legal"), exact(&problem));
        prop_assert!(found.lower_bound <= least * (1.0 + 1e-9), "{found:?}, {least}");
        prop_assert!(found.cost >= least * (1.0 - 1e-9), "{found:?}, {least}");
        let Ending { window, verdict, .. } = problem.ending;
        let most = if window == Window::One && verdict > SHORT { 1.1 } else { 1.0 + 1e-9 };
        prop_assert!(found.cost <= least * most, "{found:?}, {least}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The same where stages may make passes again. Which ones is decided list by list, so the best is
    /// missed now and then: in 2 of 400 problems, by up to 6 %.
    #[test]
    fn tiny_problems_with_passes_made_again_are_solved_closely(
        problem in prop_oneof![line(2, 3), line(3, 2)],
        times in prop::collection::vec((0.0..10.0, 0.0..=1.0), 3),
        share in 0.3..1.0_f64,
    ) {
        let remake = |(costs, (time, share)): (&ChunkCosts, &(f64, f64))| Remake {
            time: *time,
            after_drop: share * costs.after_forward,
        };
        let remakes = problem.chunks.iter().zip(&times).map(remake).collect();
        let limit = |(limit, costs): (&f64, &ChunkCosts)| f64::max(limit * share, costs.after_forward);
        let limits = problem.limits.iter().zip(&problem.chunks).map(limit).collect();
        let relief = Relief { remakes, ..Relief::default() };
        let problem = Problem { limits, relief, ..problem };
        let (found, least) = (solve(&problem).expect("legal"), exact(&problem));
        prop_assert!(found.lower_bound <= least * (1.0 + 1e-9), "{found:?}, {least}");
        prop_assert!(found.cost >= least * (1.0 - 1e-9), "{found:?}, {least}");
        prop_assert!(found.cost <= least * 1.1, "{found:?}, {least}");
    }
}
