//! What holds for copies out of memory and back, whatever is offloaded and however long it takes.

use proptest::prelude::*;
use zbelastic_schedule::{
    ChunkMemory, CopyLanes, Costs, MemoryTimes, OffloadChunks, OffloadRequest, Op, PipelineSize,
    Program, ScheduleKind, Timeline, check, generate_sized, live_passes, offload, peak_memory,
    recompute, simulate,
};

const KINDS: [ScheduleKind; 9] = [
    ScheduleKind::GPipe,
    ScheduleKind::OneFOneB,
    ScheduleKind::ZbH2,
    ScheduleKind::ZbV,
    ScheduleKind::Interleaved,
    ScheduleKind::Gis,
    ScheduleKind::GisH,
    ScheduleKind::Po,
    ScheduleKind::VHalf,
];

fn order() -> impl Strategy<Value = Program> {
    let kind = prop::sample::select(KINDS.to_vec());
    (kind, 1..=5u32, 2..=4u32, 1..=3u32, any::<bool>()).prop_map(
        |(kind, stage_count, chunks, groups, has_recomputation)| {
            let counts = kind.chunk_counts();
            let chunks_per_stage = if counts.allow(chunks) { chunks } else { counts.least() };
            let microbatch_count = groups * stage_count;
            let slice_count = 1;
            let size =
                PipelineSize { stage_count, chunks_per_stage, microbatch_count, slice_count };
            let order = generate_sized(kind, size).expect("the size is legal");
            if has_recomputation { recompute(&order) } else { order }
        },
    )
}

fn chunks() -> impl Strategy<Value = OffloadChunks> {
    prop_oneof![(0..=4u32).prop_map(OffloadChunks::First), Just(OffloadChunks::Chosen)]
}

fn lanes() -> impl Strategy<Value = CopyLanes> {
    prop::sample::select(vec![CopyLanes::Alternating, CopyLanes::Duplex])
}

/// Times of passes, of a hop, and of copies.
type OffloadTimes = ((f64, f64, f64), f64, (f64, f64));

fn times() -> impl Strategy<Value = OffloadTimes> {
    ((0.1..5.0, 0.1..5.0, 0.1..5.0), 0.0..2.0, (0.0..9.0, 0.0..9.0))
}

fn costs(
    program: &Program,
    ((f, b, w), link, (offload, reload)): OffloadTimes,
    lanes: CopyLanes,
) -> Costs {
    let mut costs = Costs::even(&program.placement, f, b, w, link);
    let copies = |f| MemoryTimes { recompute: f, offload, reload };
    costs.memory.chunks = costs.chunks.iter().map(|chunk| copies(chunk.f)).collect();
    costs.memory.lanes = lanes;
    costs
}

/// A chunk keeps 3, after DROP 1, after B 2.
fn memory(program: &Program) -> Vec<ChunkMemory> {
    let chunk = ChunkMemory {
        after_forward: 3.0,
        after_drop: 1.0,
        after_input_gradient: 2.0,
        after_early_weights: 0.0,
    };
    vec![chunk; program.placement.chunk_count() as usize]
}

fn run(program: &Program, costs: &Costs) -> Timeline {
    simulate(program, costs, 1).expect("a legal program runs to its end")
}

fn copies(program: &Program) -> usize {
    program.stages.iter().flatten().filter(|op| matches!(op, Op::Memory(..))).count()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Copies are hidden behind passes, and spare memory.
    #[test]
    fn copies_delay_nothing_and_take_no_memory(
        order in order(), chunks in chunks(), times in times(), lanes in lanes(),
    ) {
        let costs = costs(&order, times, lanes);
        let memory = memory(&order);
        let request = OffloadRequest { costs: &costs, memory: &memory, chunks, limits: None };
        let program = offload(&order, request).expect("an order runs");
        prop_assert_eq!(check(&program), Ok(()));
        let bare = run(&order, &costs);
        let with = run(&program, &costs);
        prop_assert!(with.makespan(0) <= bare.makespan(0) * (1.0 + 1e-9));
        let peaks = peak_memory(&program, &memory).into_iter().zip(peak_memory(&order, &memory));
        for (with, bare) in peaks {
            prop_assert!(with <= bare);
        }
        for (with, bare) in live_passes(&program).iter().zip(live_passes(&order)) {
            prop_assert!(with.recomputed_slots <= with.slots && with.slots <= bare.slots.max(1));
        }
        prop_assert_eq!(offload(&program, request), Ok(program.clone()), "offloading again changes nothing");
    }

    /// A limit that one pass fits into can be met: in the worst case everything is offloaded and
    /// waited for.
    #[test]
    fn a_limit_is_met(order in order(), times in times(), lanes in lanes(), share in 0.0..1.0f64) {
        let costs = costs(&order, times, lanes);
        let memory = memory(&order);
        let peaks = peak_memory(&order, &memory);
        let limits: Vec<f64> = peaks.iter().map(|peak| peak * share).collect();
        let chunks = OffloadChunks::Chosen;
        let limited = |limits| OffloadRequest { costs: &costs, memory: &memory, chunks, limits };
        let program = offload(&order, limited(Some(&limits))).expect("an order runs");
        prop_assert_eq!(check(&program), Ok(()));
        let least = offload(&order, limited(None)).expect("an order runs");
        let found = peak_memory(&program, &memory).into_iter().zip(peak_memory(&least, &memory));
        for ((found, least), limit) in found.zip(limits) {
            prop_assert!(found <= limit.max(least), "{found}, limit {limit}, least {least}");
        }
    }

    #[test]
    fn what_fits_stays(order in order(), times in times()) {
        let costs = costs(&order, times, CopyLanes::Alternating);
        let memory = memory(&order);
        let limits = peak_memory(&order, &memory);
        let request = OffloadRequest {
            costs: &costs,
            memory: &memory,
            chunks: OffloadChunks::Chosen,
            limits: Some(&limits),
        };
        let found = offload(&order, request).expect("an order runs");
        prop_assert_eq!(copies(&found), copies(&order));
    }

    /// Memory after DROP and before R is not what it was after F.
    #[test]
    fn recomputation_never_takes_more(order in order()) {
        let bare = order.arithmetic();
        let with = recompute(&order);
        prop_assert_eq!(check(&with), Ok(()));
        let memory = memory(&order);
        for (with, bare) in peak_memory(&with, &memory).into_iter().zip(peak_memory(&bare, &memory)) {
            prop_assert!(with <= bare);
        }
        let text = with.to_string();
        prop_assert_eq!(text.parse(), Ok(with));
    }
}
