use super::{AsyncSimulation, simulate_async};
use crate::asynchronous::check::check_async;
use crate::asynchronous::generate::{AsyncRequest, generate_async};
use crate::asynchronous::kind::AsyncKind;
use crate::asynchronous::op::{DynamicOptions, DynamicRule};
use crate::asynchronous::program::AsyncProgram;
use crate::asynchronous::variant::AsyncVariant;
use crate::cost::{CostError, Costs};
use crate::op::{Compute, Op, Pass};
use crate::simulate::{SimulateError, simulate};

const STAGES: u32 = 4;
const MICROBATCHES: u32 = 8;
const STEPS: u32 = 8;

fn request(kind: AsyncKind) -> AsyncRequest {
    AsyncRequest {
        kind,
        stage_count: STAGES,
        minibatch_count: STEPS,
        microbatch_count: MICROBATCHES,
        replica_count: 2,
        dynamic: DynamicOptions { rule: DynamicRule::Oldest, cap: 4, update_every: 3 },
        variant: AsyncVariant::Usual,
    }
}

fn program(kind: AsyncKind) -> AsyncProgram {
    generate_async(request(kind)).expect("the size is legal")
}

/// F takes 1 on a whole stage, B and W 1 each.
fn run(program: &AsyncProgram, change: impl FnOnce(&mut Costs)) -> AsyncSimulation {
    let mut costs = Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.0);
    change(&mut costs);
    simulate_async(program, &costs).expect("the program is legal")
}

/// Those whose order is 1F1B without a flush fill the pipeline once, and empty it once.
#[test]
fn without_a_flush_only_the_ends_of_a_run_are_idle() {
    let work = f64::from(3 * STEPS * MICROBATCHES);
    for kind in [
        AsyncKind::PipeDream,
        AsyncKind::PipeDream2Bw,
        AsyncKind::PipeMare,
        AsyncKind::XPipe,
        AsyncKind::SpecTrain,
    ] {
        let simulation = run(&program(kind), |_| {});
        let ramps = 3.0 * f64::from(STAGES - 1);
        assert_eq!(simulation.timeline.cost(0), work + ramps, "{kind}");
        assert_eq!(simulation.timeline.makespan(0), work + ramps, "{kind}");
        let steady = simulation.steady().expect("eight steps are enough");
        assert_eq!(steady.period, f64::from(3 * MICROBATCHES), "{kind}");
        assert_eq!(steady.work, [steady.period; STAGES as usize], "{kind}");
        assert_eq!(steady.bubble(), 0.0, "{kind}");
    }
}

#[test]
fn an_update_takes_time_of_its_stage_and_what_is_kept_takes_none() {
    let step = |costs: &mut Costs| costs.step = 0.5;
    // One update a microbatch, and one a step.
    for (kind, updates) in [(AsyncKind::PipeDream, MICROBATCHES), (AsyncKind::PipeDream2Bw, 1)] {
        let steady = run(&program(kind), step).steady().expect("eight steps are enough");
        let work = f64::from(3 * MICROBATCHES);
        assert_eq!(steady.period, work + 0.5 * f64::from(updates), "{kind}");
        assert_eq!(steady.work, [work; STAGES as usize], "{kind}");
    }
}

/// The passes are the events of a synchronous program, with links and lanes.
#[test]
fn passes_take_the_times_of_a_program_without_versions() {
    let costs = |costs: &mut Costs| {
        costs.link = 0.25;
        costs.occupancy = 2.5;
        costs.chunks[1].f = 2.0;
    };
    for kind in AsyncKind::ALL.into_iter().filter(|kind| *kind != AsyncKind::AmpNet) {
        let program = program(kind);
        let found = run(&program, costs);
        let mut plain = Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.0);
        costs(&mut plain);
        let plain = simulate(&program.plain(), &plain, 1).expect("the program is legal");
        for stage in plain.stages() {
            let plain: Vec<_> = plain
                .slices(stage)
                .iter()
                .map(|slice| (slice.op, slice.start, slice.end))
                .collect();
            let slices = found.timeline.slices(stage).iter();
            let slices =
                slices.filter_map(|slice| slice.op.plain().map(|op| (op, slice.start, slice.end)));
            assert_eq!(slices.collect::<Vec<_>>(), plain, "{kind}");
        }
    }
}

/// The simulator finds an order as a stage would, and gives it the times at which it was found.
#[test]
fn a_region_is_an_order_that_is_legal_and_the_region_around_it() {
    for (link, f) in [(0.0, 1.0), (0.75, 1.0), (0.0, 3.0)] {
        let program = program(AsyncKind::AmpNet);
        let simulation = run(&program, |costs| {
            costs.link = link;
            costs.chunks[2].f = f;
        });
        let found = &simulation.program;
        assert_eq!(check_async(found), Ok(()), "{found}");
        assert_eq!(found.live_passes()[0], 4, "as many as may be in flight");
        for stage in simulation.timeline.stages() {
            let [region, rest @ ..] = simulation.timeline.slices(stage) else { panic!("slices") };
            assert_eq!([region.op], *program.stages[stage.index()]);
            assert!(rest.iter().all(|s| region.start <= s.start && s.end <= region.end));
        }
        let mut again = simulation.clone();
        for slices in &mut again.timeline.slices {
            slices.remove(0);
        }
        let as_list = run(found, |costs| {
            costs.link = link;
            costs.chunks[2].f = f;
        });
        assert_eq!(as_list, again);
    }
}

/// A stage takes what is ready as soon as it is free, backward before forward, the oldest first. Of
/// the first stage, which lets microbatches in, this is said elsewhere.
#[test]
fn what_is_ready_is_taken_by_the_rule() {
    let link = 0.75;
    let simulation = run(&program(AsyncKind::AmpNet), |costs| {
        costs.link = link;
        costs.chunks[2].b = 2.5;
    });
    let placement = simulation.timeline.placement();
    let end_of = |op: Op| {
        let slices = simulation.timeline.all_slices();
        let found = slices.filter(|slice| slice.op.plain() == Some(op)).map(|slice| slice.end);
        found.last().expect("every pass ran")
    };
    let ready = |compute: Compute, pass: Pass| {
        let next_to = |chunk: u32| Op::Compute(compute, Pass::new(chunk, pass.microbatch.0));
        let is_last = pass.chunk.0 + 1 == placement.chunk_count();
        match compute == Compute::F {
            true => end_of(next_to(pass.chunk.0 - 1)) + link,
            false if is_last => end_of(Op::Compute(Compute::F, pass)),
            false => end_of(next_to(pass.chunk.0 + 1)) + link,
        }
    };
    for stage in simulation.timeline.stages().skip(1) {
        let slices = simulation.timeline.slices(stage).iter();
        let passes: Vec<_> = slices
            .filter_map(|slice| {
                let (compute, pass) = slice.op.plain()?.arithmetic()?;
                // What is to be taken first is the least.
                let rank = (compute == Compute::F, pass.microbatch);
                Some((rank, ready(compute, pass), slice))
            })
            .collect();
        let mut free = 0.0;
        for (position, (rank, _, slice)) in passes.iter().enumerate() {
            let waiting = || passes[position..].iter();
            let first = waiting().map(|(_, ready, _)| *ready).fold(f64::INFINITY, f64::min);
            assert_eq!(slice.start, f64::max(free, first), "{} on stage {stage}", slice.op);
            let here = waiting().filter(|(_, ready, _)| *ready <= slice.start);
            let best = here.map(|(rank, ..)| *rank).min();
            assert_eq!(best, Some(*rank), "{} on stage {stage}", slice.op);
            free = slice.end;
        }
    }
}

#[test]
fn a_run_that_never_fills_the_pipeline_has_no_rhythm() {
    let of_steps = |minibatch_count| {
        let request = AsyncRequest { minibatch_count, ..request(AsyncKind::PipeDream2Bw) };
        let program = generate_async(request).expect("the size is legal");
        run(&program, |_| {}).steady().map(|steady| (steady.from, steady.to))
    };
    assert_eq!(of_steps(1), None);
    assert_eq!(of_steps(2), None);
    assert_eq!(of_steps(3), Some((1, 2)));
}

/// Of eight steps the first three end with a flush: the ramps of 1F1B, of which the last is the
/// beginning of the rest.
#[test]
fn a_warm_up_costs_its_flushes_and_is_not_part_of_the_rhythm() {
    let of_warm_up = |minibatches| {
        let variant = AsyncVariant::WarmUp(minibatches);
        let request = AsyncRequest { variant, ..request(AsyncKind::PipeMare) };
        run(&generate_async(request).expect("the size is legal"), |_| {})
    };
    let work = f64::from(3 * STEPS * MICROBATCHES);
    let ramps = 3.0 * f64::from(STAGES - 1);
    assert_eq!(of_warm_up(0).timeline.makespan(0), work + ramps);
    let simulation = of_warm_up(3);
    assert_eq!(simulation.timeline.cost(0), work + 4.0 * ramps);
    let steady = simulation.steady().expect("five steps are enough");
    assert_eq!((steady.from, steady.bubble()), (4, 0.0));
    assert_eq!(of_warm_up(STEPS).steady(), None);
}

#[test]
fn costs_of_another_program_are_refused() {
    let program = program(AsyncKind::WPipe);
    let mut costs = Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.0);
    costs.chunks.pop();
    let error = CostError::ChunkCount { expected: 8, found: 7 };
    assert_eq!(simulate_async(&program, &costs), Err(SimulateError::Costs(error)));
}
