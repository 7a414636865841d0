//! Every text form, compared with a file. After a wanted change: run with `ZBELASTIC_BLESS=1`,
//! read the difference, commit it.

use std::fs;
use std::path::Path;

use zbelastic_schedule::asynchronous::{
    AsyncKind, AsyncOp, AsyncRequest, AsyncVariant, DynamicOptions, DynamicRule, generate_async,
    simulate_async,
};
use zbelastic_schedule::render::{ascii, chrome_trace, svg};
use zbelastic_schedule::{
    Costs, LowerOptions, Program, ScheduleKind, SharedOrder, Timeline, Window, generate, lower,
    on_table, recompute, side_by_side, simulate,
};
use zbelastic_types::StageIndex;

const WINDOW_ONE: LowerOptions = LowerOptions { window: Window::One, early_head_weights: true };

fn lowered(kind: ScheduleKind, stages: u32, microbatches: u32) -> Program {
    lower(&generate(kind, stages, microbatches).expect("the size is legal"), WINDOW_ONE)
}

/// Every pass takes 1, and nothing else takes time, except for what `change` sets.
fn timeline(program: &Program, steps: u32, change: impl FnOnce(&mut Costs)) -> Timeline {
    let mut costs = Costs::even(&program.placement, 1.0, 1.0, 1.0, 0.0);
    change(&mut costs);
    simulate(program, &costs, steps).expect("the program is legal")
}

/// Compares `found` with the golden file `name`, or writes it there if `is_blessing`.
fn check(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if is_blessing() {
        fs::write(&path, found).expect("the golden folder can be written");
        return;
    }
    let expected = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{name}: {error}; run with ZBELASTIC_BLESS=1 to write it"));
    if expected != found {
        panic!(
            "{name} {}\nif this is wanted, run with ZBELASTIC_BLESS=1",
            difference(&expected, found)
        );
    }
}

/// The first line in which two texts differ.
fn difference(expected: &str, found: &str) -> String {
    let mut lines = (1..).zip(expected.lines().zip(found.lines()));
    match lines.find(|(_, (expected, found))| expected != found) {
        Some((line, (expected, found))) => {
            format!("differs in line {line}\nexpected: {expected}\nfound:    {found}")
        }
        None => format!(
            "differs in length: expected {} lines, found {}",
            expected.lines().count(),
            found.lines().count()
        ),
    }
}

#[expect(clippy::disallowed_methods, reason = "the package reads no environment, its tests may")]
fn is_blessing() -> bool {
    std::env::var("ZBELASTIC_BLESS").is_ok_and(|value| value == "1")
}

#[test]
fn programs_have_their_text() {
    for kind in ScheduleKind::ALL {
        let program = generate(kind, 4, 8).expect("the size is legal");
        check(&format!("{kind}.program.txt"), &program.to_string());
        check(&format!("{kind}.lowered.txt"), &lowered(kind, 4, 8).to_string());
    }
}

/// A pipeline of two stages, twice.
#[test]
fn replicas_have_their_text() {
    let column = generate(ScheduleKind::ZbH1, 2, 4).expect("the size is legal");
    let program = side_by_side(&[column.clone(), column]).expect("alike");
    let program = lower(&program, WINDOW_ONE);
    check("zb-h1-replicas.lowered.txt", &program.to_string());
    let timeline = timeline(&program, 1, |costs| costs.link = 0.5);
    check("zb-h1-replicas.ascii.txt", &ascii::draw(&timeline, 100));
    check("zb-h1-replicas.svg", &svg::draw(&timeline));
}

/// The same without the third worker: the first one stands in both.
#[test]
fn tables_have_their_text() {
    let column = generate(ScheduleKind::ZbH1, 2, 4).expect("the size is legal");
    let grid = side_by_side(&[column.clone(), column]).expect("alike");
    let (table, _) = grid.placement.table().rerouted(&[StageIndex(2)]).expect("one is left");
    let costs = Costs::even(&table, 1.0, 1.0, 1.0, 0.5);
    let shared = on_table(&grid, &table, &costs, SharedOrder::ByTime).expect("it runs");
    let program = lower(&shared, WINDOW_ONE);
    check("zb-h1-table.lowered.txt", &program.to_string());
    let timeline = timeline(&program, 1, |costs| costs.link = 0.5);
    check("zb-h1-table.ascii.txt", &ascii::draw(&timeline, 100));
    check("zb-h1-table.svg", &svg::draw(&timeline));
}

#[test]
fn a_timeline_has_its_text() {
    let options = LowerOptions { early_head_weights: false, ..WINDOW_ONE };
    let program = generate(ScheduleKind::ZbH2, 4, 8).expect("the size is legal");
    let program = lower(&program, options);
    check("zb-h2.ascii.txt", &ascii::draw(&timeline(&program, 1, |_| {}), 96));
    let program = lowered(ScheduleKind::ZbV, 2, 4);
    let timeline = timeline(&program, 2, |costs| {
        costs.verdict = 2.0;
        costs.step = 1.0;
    });
    check("zb-v-two-steps.ascii.txt", &ascii::draw(&timeline, 120));
}

#[test]
fn slices_have_their_text_picture_and_trace() {
    let program = lowered(ScheduleKind::Seq1F1B, 3, 3);
    let timeline = timeline(&program, 1, |costs| costs.slice_shares = vec![0.4, 0.6]);
    check("seq1f1b.ascii.txt", &ascii::draw(&timeline, 144));
    check("seq1f1b.svg", &svg::draw(&timeline));
    let tracks = chrome_trace::timeline_tracks(&timeline, 1500.0);
    check("seq1f1b.trace.json", &chrome_trace::write_trace(&tracks));
}

#[test]
fn a_timeline_that_does_not_fit_keeps_its_letters() {
    let program = lowered(ScheduleKind::Interleaved, 2, 12);
    check("interleaved-narrow.ascii.txt", &ascii::draw(&timeline(&program, 1, |_| {}), 60));
}

/// The gradients of replicas meet where an R stands.
#[test]
fn two_directions_have_their_text_and_picture() {
    let program = lowered(ScheduleKind::Chimera, 4, 8);
    let link = |costs: &mut Costs| {
        costs.chunks.iter_mut().for_each(|chunk| chunk.f = 2.0);
        costs.link = 0.25;
    };
    let timeline = timeline(&program, 1, link);
    check("chimera.ascii.txt", &ascii::draw(&timeline, 120));
    check("chimera.svg", &svg::draw(&timeline));
    let tracks = chrome_trace::timeline_tracks(&timeline, 1.0);
    check("chimera.trace.json", &chrome_trace::write_trace(&tracks));
    let program = lowered(ScheduleKind::Gems, 3, 4);
    check("gems.ascii.txt", &ascii::draw(&self::timeline(&program, 1, |_| {}), 120));
}

#[test]
fn a_timeline_has_its_picture() {
    let program = lowered(ScheduleKind::ZbV, 2, 3);
    let costs = |costs: &mut Costs| {
        costs.link = 0.25;
        costs.step = 0.5;
        costs.chunks[3].w_early = 0.25;
    };
    check("zb-v.svg", &svg::draw(&timeline(&program, 1, costs)));
}

#[test]
fn a_timeline_has_its_trace() {
    let program = lowered(ScheduleKind::ZbH1, 2, 2);
    let tracks = chrome_trace::timeline_tracks(&timeline(&program, 2, |_| {}), 1500.0);
    check("zb-h1.trace.json", &chrome_trace::write_trace(&tracks));
}

/// Copies have a row of their own, R is a pass like others.
#[test]
fn copies_are_drawn() {
    let order = generate(ScheduleKind::PoFull, 3, 4).expect("the size is legal");
    let round_trip = |costs: &mut Costs| {
        *costs = costs.clone().with_round_trip(&order.placement, 3.0);
    };
    check("po-full.ascii.txt", &ascii::draw(&timeline(&order, 1, round_trip), 120));
    let program = lower(&recompute(&order), WINDOW_ONE);
    let timeline = timeline(&program, 1, round_trip);
    check("po-full-recomputed.program.txt", &program.to_string());
    check("po-full-recomputed.ascii.txt", &ascii::draw(&timeline, 120));
    check("po-full-recomputed.svg", &svg::draw(&timeline));
    let tracks = chrome_trace::timeline_tracks(&timeline, 1000.0);
    check("po-full-recomputed.trace.json", &chrome_trace::write_trace(&tracks));
}

/// Without steps: so many of so many microbatches, F of 1, BW of 2 on a stage, a hop of `link`, an
/// update of `step`.
fn timeline_of_all(
    (kind, stages): (AsyncKind, u32),
    (minibatches, microbatches): (u32, u32),
    (link, step): (f64, f64),
) -> Timeline<AsyncOp> {
    let request = AsyncRequest {
        kind,
        stage_count: stages,
        minibatch_count: minibatches,
        microbatch_count: microbatches,
        replica_count: 2,
        dynamic: DynamicOptions { rule: DynamicRule::Oldest, cap: stages, update_every: 2 },
        variant: AsyncVariant::Usual,
    };
    let program = generate_async(request).expect("the size is legal");
    let mut costs = Costs::even(&program.placement, 1.0, 1.0, 1.0, link);
    costs.step = step;
    simulate_async(&program, &costs).expect("the program is legal").timeline
}

#[test]
fn programs_without_steps_have_their_text_picture_and_trace() {
    for kind in AsyncKind::ALL {
        let request = AsyncRequest {
            kind,
            stage_count: 3,
            minibatch_count: 4,
            microbatch_count: 3,
            replica_count: 2,
            dynamic: DynamicOptions { rule: DynamicRule::Oldest, cap: 3, update_every: 2 },
            variant: AsyncVariant::Usual,
        };
        let program = generate_async(request).expect("the size is legal");
        check(&format!("{kind}.program.txt"), &program.to_string());
        let timeline = timeline_of_all((kind, 3), (4, 3), (0.0, 0.0));
        check(&format!("{kind}.ascii.txt"), &ascii::draw_wrapped(&timeline, 120));
        let timeline = timeline_of_all((kind, 3), (4, 3), (0.25, 0.5));
        check(&format!("{kind}.svg"), &svg::draw(&timeline));
        let short = timeline_of_all((kind, 2), (2, 2), (0.25, 0.5));
        let tracks = chrome_trace::timeline_tracks(&short, 1000.0);
        check(&format!("{kind}.trace.json"), &chrome_trace::write_trace(&tracks));
    }
}

/// What a person sees of sizes that are common: every pass has its number, in as many blocks as
/// that takes.
#[test]
fn long_timelines_are_wrapped_until_every_number_fits() {
    let check_all_named = |name: &str, timeline: &Timeline<AsyncOp>| {
        let text = ascii::draw_wrapped(timeline, 120);
        check(name, &text);
        let is_bare = |row: &str| {
            ["FF", "F ", "F.", "BWB", "BW ", "BW."].iter().any(|bare| row.contains(bare))
        };
        let rows = || text.lines().filter(|row| row.starts_with("stage"));
        assert!(!rows().any(is_bare), "{name} has passes without numbers\n{text}");
        assert!(rows().all(|row| row.len() <= 120 + "stage 0  ".len()), "{name}\n{text}");
    };
    let of = |kind, stages, microbatches| {
        timeline_of_all((kind, stages), (2, microbatches), (0.25, 0.0))
    };
    check_all_named("pipedream-4x12.ascii.txt", &of(AsyncKind::PipeDream, 4, 12));
    check_all_named("spectrain-4x12.ascii.txt", &of(AsyncKind::SpecTrain, 4, 12));
    check_all_named("pipedream-2bw-8x32.ascii.txt", &of(AsyncKind::PipeDream2Bw, 8, 32));
    check_all_named("ampnet-8x32.ascii.txt", &of(AsyncKind::AmpNet, 8, 32));
}

/// The drawings in the documentation are those that this package makes.
#[test]
fn the_documentation_shows_what_is_drawn() {
    let schedule_ir = ("schedule-ir.md", include_str!("../../docs/schedule-ir.md"));
    let schedules = ("schedules.md", include_str!("../../docs/schedules.md"));
    for ((name, page), drawing) in [
        (schedule_ir, include_str!("golden/zb-h2.ascii.txt")),
        (schedule_ir, include_str!("golden/po-full.ascii.txt")),
        (schedules, include_str!("golden/pipedream.ascii.txt")),
    ] {
        assert!(page.contains(drawing), "docs/{name} should contain\n{drawing}");
    }
}

/// The value of an attribute in a tag, if it is a number there.
fn attribute(tag: &str, name: &str) -> Option<f64> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    rest.split_once('"')?.0.parse().ok()
}

/// Titles, legends and boxes: a sans-serif letter is half as wide as its font is high, and more if it
/// is bold.
#[test]
fn nothing_in_a_picture_is_cut_off() {
    const LETTER: f64 = 5.2;
    const TITLE_LETTER: f64 = 7.2;
    if is_blessing() {
        // Other tests write the files meanwhile.
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut pictures = 0;
    for entry in fs::read_dir(folder).expect("the golden folder is there") {
        let path = entry.expect("readable").path();
        if path.extension().is_none_or(|extension| extension != "svg") {
            continue;
        }
        pictures += 1;
        let svg = fs::read_to_string(&path).expect("text");
        let page = attribute(svg.lines().next().expect("a line"), "width").expect("it has one");
        for tag in svg.split('<').filter(|tag| tag.starts_with("rect ") || tag.starts_with("text "))
        {
            let Some(x) = attribute(tag, "x") else { continue };
            let text = tag.split_once('>').map_or("", |(_, text)| text).trim();
            let width = match attribute(tag, "width") {
                Some(width) => width,
                // Around its middle, in a box or below the axis.
                None if tag.contains("class=\"number\"") || tag.contains("class=\"tick\"") => 0.0,
                None if tag.contains("class=\"title\"") => text.len() as f64 * TITLE_LETTER,
                None => text.len() as f64 * LETTER,
            };
            assert!(x + width <= page - 5.0, "{}: <{tag} in {page}", path.display());
        }
    }
    assert!(pictures > 10, "{pictures}");
}
