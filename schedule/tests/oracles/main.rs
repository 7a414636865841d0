//! Replays of the hand-made schedules, and solved ones, against figures of another implementation:
//! rows that travel with the package, and the whole tables of the folder of oracles.

mod offloaded;
mod solved;
mod table;

use table::{OracleRow, OracleTable};
use zbelastic_oracles::{OracleTest, Oracles};
use zbelastic_schedule::{
    ChunkMemory, Costs, PipelineSize, ScheduleKind, generate_sized, peak_memory, simulate,
};

/// `None` for schedules we do not have.
fn kind_of(row: &OracleRow<'_>) -> Option<ScheduleKind> {
    match row.text("schedule") {
        "GPipe" => Some(ScheduleKind::GPipe),
        "1F1B" => Some(ScheduleKind::OneFOneB),
        "1F1B-I2" | "1F1B-I3" | "1F1B-I4" => Some(ScheduleKind::Interleaved),
        "ZB-H1" => Some(ScheduleKind::ZbH1),
        "ZB-H2" => Some(ScheduleKind::ZbH2),
        "ZB-V-hand" => Some(ScheduleKind::ZbV),
        "GIS2" | "GIS4" => Some(ScheduleKind::Gis),
        "GIS-H2" | "GIS-H4" => Some(ScheduleKind::GisH),
        "PO2" | "PO4" => Some(ScheduleKind::Po),
        "V-Half" => Some(ScheduleKind::VHalf),
        "V-Min" => Some(ScheduleKind::VMin),
        "1F1B-V" => Some(ScheduleKind::OneFOneBV),
        _ => None,
    }
}

/// Schedules without rows. What is solved is held against others in `solved.rs`, what is copied in
/// `offloaded.rs`.
const NOT_REPLAYED: [ScheduleKind; 9] = [
    ScheduleKind::ZbAuto,
    ScheduleKind::LoopedBfs,
    ScheduleKind::DualPipeV,
    ScheduleKind::Gems,
    ScheduleKind::Chimera,
    ScheduleKind::Seq1F1B,
    ScheduleKind::PoHalf,
    ScheduleKind::PoFull,
    ScheduleKind::PoSelective,
];

/// Checks the rows of our schedules and returns how many there were of each.
fn check_table(text: &str) -> Vec<(ScheduleKind, usize)> {
    let table = OracleTable::parse(text);
    let mut checked = ScheduleKind::ALL.map(|kind| (kind, 0)).to_vec();
    for row in table.rows() {
        let Some(kind) = kind_of(&row) else { continue };
        check_row(kind, &row);
        for (name, count) in &mut checked {
            *count += usize::from(*name == kind);
        }
    }
    checked
}

fn check_row(kind: ScheduleKind, row: &OracleRow<'_>) {
    let [p, v, m] = ["p", "v", "m"].map(|name| row.count(name));
    let size =
        PipelineSize { stage_count: p, chunks_per_stage: v, microbatch_count: m, slice_count: 1 };
    let [f, b, w, link] = ["t_f", "t_b", "t_w", "t_comm"].map(|name| row.number(name));
    let program = generate_sized(kind, size).unwrap_or_else(|error| panic!("{kind}: {error}"));
    let costs = Costs::even(&program.placement, f, b, w, link);
    let timeline = simulate(&program, &costs, 1).expect("a generated program runs to its end");
    let exact = |name: &str, ours: f64| {
        let theirs = row.number(name);
        let allowed = 1e-9 * theirs.abs();
        assert!((ours - theirs).abs() <= allowed, "{kind} {size:?}: {name} {ours}, not {theirs}");
    };
    exact("cost", timeline.cost(0));
    exact("makespan", timeline.makespan(0));
    exact("ideal", timeline.work(zbelastic_types::StageIndex(0), 0));
    exact("ideal", f64::from(m) * (f + b + w));
    exact("peak", peak(&program, row.number("m_f"), row.number("m_w_abs")));
    let four_digits = |name: &str, ours: f64| {
        let theirs = row.number(name);
        let is_rounded = (ours - theirs).abs() <= 5e-5 + 1e-12;
        assert!(is_rounded, "{kind} {size:?}: {name} {ours}, not {theirs}");
    };
    four_digits("bubble", timeline.bubble_span(0));
    four_digits("bubble_sync", timeline.bubble_sync(0));
}

/// The highest peak of any stage, where a stage keeps `after_forward` and then
/// `after_input_gradient`, divided among its chunks.
fn peak(
    program: &zbelastic_schedule::Program,
    after_forward: f64,
    after_input_gradient: f64,
) -> f64 {
    let share = |memory: f64| memory * program.placement.chunk_share();
    let chunk = ChunkMemory {
        after_forward: share(after_forward),
        after_drop: 0.0,
        after_input_gradient: share(after_input_gradient),
        after_early_weights: 0.0,
    };
    let chunks = vec![chunk; program.placement.chunk_count() as usize];
    peak_memory(program, &chunks).into_iter().fold(0.0, f64::max)
}

/// Every schedule that is not solved or copied has rows in the table.
fn replays_of_every_schedule_match(text: &str) {
    let checked = check_table(text);
    let is_checked = |(kind, count): &(_, usize)| NOT_REPLAYED.contains(kind) == (*count < 2);
    assert!(checked.iter().all(is_checked), "{checked:?}");
}

fn replays_match(text: &str) {
    let checked = check_table(text);
    let total: usize = checked.iter().map(|(_, count)| count).sum();
    assert!(total > 0, "no row of our schedules");
    eprintln!("{total} replays match: {checked:?}");
}

/// A comparison with a table, by the name that its test carries.
struct Comparison {
    name: &'static str,
    /// The table's file in the folder of oracles.
    file: &'static str,
    /// Rows of it that travel with the package.
    vectors: &'static str,
    compare: fn(&str),
}

const COMPARISONS: [Comparison; 6] = [
    Comparison {
        name: "replays_match",
        file: "schedules.csv",
        vectors: include_str!("vectors/replays.csv"),
        compare: replays_match,
    },
    Comparison {
        name: "even_stages_are_solved_as_well_as_the_published_search_does_or_better",
        file: "schedules.csv",
        vectors: include_str!("vectors/schedules.csv"),
        compare: solved::even_stages_are_solved_as_well_as_the_published_search_does_or_better,
    },
    Comparison {
        name: "uneven_stages_are_solved_better_than_by_the_published_search",
        file: "hetero.csv",
        vectors: include_str!("vectors/hetero.csv"),
        compare: solved::uneven_stages_are_solved_better_than_by_the_published_search,
    },
    Comparison {
        name: "vees_are_solved_as_well_as_by_the_published_search_or_better",
        file: "schedules.csv",
        vectors: include_str!("vectors/schedules.csv"),
        compare: solved::vees_are_solved_as_well_as_by_the_published_search_or_better,
    },
    Comparison {
        name: "the_published_sweep_over_limits_is_met_or_beaten",
        file: "mem_sweep.csv",
        vectors: include_str!("vectors/mem_sweep.csv"),
        compare: solved::the_published_sweep_over_limits_is_met_or_beaten,
    },
    Comparison {
        name: "copies_take_no_time_and_leave_no_more_than_theirs",
        file: "offload.csv",
        vectors: include_str!("vectors/offload.csv"),
        compare: offloaded::copies_take_no_time_and_leave_no_more_than_theirs,
    },
];

/// Each comparison twice: with the rows that travel with the package, and with the folder's whole
/// table.
fn main() {
    let oracles = Oracles::from_env();
    let every = OracleTest::new("oracle_rows_of_every_schedule_are_replayed", || {
        replays_of_every_schedule_match(include_str!("vectors/replays.csv"));
    });
    let pairs = COMPARISONS.iter().flat_map(|comparison| {
        let Comparison { name, file, vectors, compare } = *comparison;
        let small = OracleTest::new(format!("oracle_vectors_{name}"), move || compare(vectors));
        [small, oracles.of_file(name, file, compare)]
    });
    zbelastic_oracles::run(std::iter::once(every).chain(pairs))
}
