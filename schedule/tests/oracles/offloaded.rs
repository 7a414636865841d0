//! What is copied out of memory and back, against an independent implementation of PipeOffload.

use super::table::{OracleRow, OracleTable};
use zbelastic_schedule::{
    ChunkMemory, Costs, OffloadChunks, OffloadRequest, PipelineSize, Program, ScheduleKind, check,
    generate_sized, offload, peak_memory, simulate,
};

/// How long every pass of a chunk takes in the table.
const PASS: f64 = 1000.0;

fn kind_of(row: &OracleRow<'_>) -> ScheduleKind {
    match row.text("family") {
        "GIS" => ScheduleKind::Gis,
        "GIS-H" => ScheduleKind::GisH,
        "PO" => ScheduleKind::Po,
        other => panic!("{other} is a family of the table"),
    }
}

/// The costs of a row: a chunk's offload and reload take `k` times its passes.
fn costs(row: &OracleRow<'_>, program: &Program) -> Costs {
    let stage = f64::from(program.placement.chunks_per_stage()) * PASS;
    let costs = Costs::even(&program.placement, stage, stage, stage, 0.0);
    costs.with_round_trip(&program.placement, row.number("k") * 3.0 * stage)
}

/// Every pass keeps one, from F to W.
fn resident(program: &Program) -> Vec<ChunkMemory> {
    let one = ChunkMemory {
        after_forward: 1.0,
        after_drop: 1.0,
        after_input_gradient: 1.0,
        after_early_weights: 1.0,
    };
    vec![one; program.placement.chunk_count() as usize]
}

fn peak(program: &Program) -> f64 {
    peak_memory(program, &resident(program)).into_iter().fold(0.0, f64::max)
}

#[derive(Debug, Default)]
struct OffloadTally {
    rows: usize,
    equal: usize,
    below: usize,
    refused_by_them: usize,
}

fn check_row(row: &OracleRow<'_>, tally: &mut OffloadTally) {
    let [stage_count, chunks_per_stage, microbatch_count] =
        ["p", "v", "m"].map(|name| row.count(name));
    let size = PipelineSize { stage_count, chunks_per_stage, microbatch_count, slice_count: 1 };
    let order = generate_sized(kind_of(row), size).expect("the size is legal");
    let costs = costs(row, &order);
    let memory = resident(&order);
    let chunks = OffloadChunks::First(row.count("offload_chunks"));
    let request = OffloadRequest { costs: &costs, memory: &memory, chunks, limits: None };
    let program = offload(&order, request).expect("an order that runs");
    check(&program).unwrap_or_else(|violations| panic!("{row:?}: {violations:?}"));
    let [bare, timeline] = [&order, &program].map(|it| simulate(it, &costs, 1).expect("it runs"));
    for (ours, without) in
        [(timeline.makespan(0), bare.makespan(0)), (timeline.cost(0), bare.cost(0))]
    {
        assert!(ours <= without * (1.0 + 1e-9), "copies cost time: {ours}, {without}: {row:?}");
    }
    tally.rows += 1;
    if row.text("status") != "ok" {
        tally.refused_by_them += 1;
        return;
    }
    let at_most = |name: &str, ours: f64| {
        let theirs = row.number(name);
        assert!(ours <= theirs * (1.0 + 1e-9), "{name} {ours}, not {theirs}: {row:?}");
        ours < theirs * (1.0 - 1e-9)
    };
    assert_eq!(peak(&order), row.number("peak_before"), "{row:?}");
    at_most("makespan", timeline.makespan(0));
    at_most("span", timeline.cost(0));
    let is_below = at_most("peak_after", peak(&program));
    tally.below += usize::from(is_below);
    tally.equal += usize::from(!is_below);
}

pub fn copies_take_no_time_and_leave_no_more_than_theirs(text: &str) {
    let mut tally = OffloadTally::default();
    for row in OracleTable::parse(text).rows() {
        check_row(&row, &mut tally);
    }
    eprintln!("{tally:?}");
    assert!(tally.rows > 0);
}
