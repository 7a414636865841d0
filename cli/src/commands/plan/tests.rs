use zbelastic_config::{ConfigFlag, ConfigSources, NetworkSpec, NodeSpec, RunConfig, load};
use zbelastic_schedule::ScheduleKind;
use zbelastic_schedule::render::{TimeUnit, svg};
use zbelastic_trainer::model::{MicrobatchShape, ModelConfig};
use zbelastic_trainer::plan::Pace;
use zbelastic_types::Bytes;

use super::compared;
use super::forecast::{Forecast, ForecastInput, ForecastRow};
use super::report::{write_json, write_text};

fn config(keys: &[&str]) -> RunConfig {
    let flags = ["model.preset=tiny"].iter().chain(keys);
    let flags = flags.map(|key| ConfigFlag::Set((*key).to_owned())).collect();
    load(&ConfigSources { file: None, flags }).expect("legal").config
}

fn node(name: &str, speed: f64, memory: Option<Bytes>) -> NodeSpec {
    NodeSpec { name: name.to_owned(), speed, memory, zone: String::new() }
}

fn alike(count: usize) -> Vec<NodeSpec> {
    (0..count).map(|index| node(&format!("n{index}"), 1.0, None)).collect()
}

/// A second for a thousand million operations.
fn pace(model: &ModelConfig, shape: MicrobatchShape) -> Pace {
    let mut pace = Pace::estimated(model, shape);
    for layer in &mut pace.layers {
        for time in [&mut layer.f, &mut layer.b, &mut layer.w, &mut layer.w_early] {
            *time /= 1e9;
        }
    }
    pace
}

fn forecast<T>(
    config: &RunConfig,
    network: &NetworkSpec,
    kinds: &[ScheduleKind],
    inspect: impl FnOnce(&Forecast<'_>) -> T,
) -> Result<T, String> {
    let pace = pace(&config.model, config.batch.microbatch);
    let auto = config.schedule.kinds().expect("a schedule with steps");
    let input = ForecastInput { config, kinds: auto, network, pace: &pace };
    let forecast = Forecast::new(input, kinds);
    forecast.map(|forecast| inspect(&forecast)).map_err(|failure| failure.to_string())
}

fn machines(nodes: Vec<NodeSpec>) -> NetworkSpec {
    NetworkSpec { nodes, latency_s: 0.0, gbit_per_s: None }
}

#[test]
fn the_chosen_schedule_stands_beside_those_compared_and_is_the_fastest_that_fits() {
    let config = config(&[]);
    let kinds = [ScheduleKind::OneFOneB, ScheduleKind::ZbH1];
    let check = |forecast: &Forecast<'_>| {
        let chosen: Vec<_> = forecast.rows.iter().filter(|row| row.is_chosen).collect();
        let [chosen] = chosen[..] else { panic!("one is chosen: {:?}", forecast.rows) };
        for row in &forecast.rows {
            assert!(chosen.step_ms <= row.step_ms * 1.001, "{row:?}");
            assert!((row.tokens_per_s * row.step_ms - 1e3 * 1024.0).abs() < 1e-6, "{row:?}");
            assert_eq!(row.stage_bytes.len(), 2);
        }
        let names: Vec<_> = forecast.rows.iter().map(|row| row.schedule).collect();
        assert_eq!(names[..2], ["1f1b", "zb-h1"]);
        assert!(forecast.gap.is_none_or(|gap| gap < 0.1), "{:?}", forecast.gap);
    };
    forecast(&config, &machines(alike(2)), &kinds, check).expect("it fits");
}

#[test]
fn a_node_whose_memory_is_too_small_is_named_and_its_schedule_not_chosen() {
    let config = config(&[]);
    let kinds = [ScheduleKind::GPipe, ScheduleKind::ZbH1];
    let free = forecast(&config, &machines(alike(2)), &kinds, |found| found.rows.clone());
    let free = free.expect("it fits");
    let bytes = |name: &str| free.iter().find(|row| row.schedule == name).expect("it is there");
    let limit = Bytes(bytes("zb-h1").stage_bytes[1]);
    assert!(bytes("gpipe").stage_bytes[1] > limit.0);
    let narrow = machines(vec![node("a", 1.0, None), node("b", 1.0, Some(limit))]);
    let rows = forecast(&config, &narrow, &kinds, |found| found.rows.clone()).expect("it fits");
    for row in &rows {
        let expected: &[&str] = if row.schedule == "gpipe" { &["b"] } else { &[] };
        assert_eq!(row.too_small, expected, "{row:?}");
        assert!(!(row.is_chosen && row.schedule == "gpipe"));
    }
    let none = machines(vec![node("a", 1.0, None), node("b", 1.0, Some(Bytes(1)))]);
    let refused = forecast(&config, &none, &kinds, |_| ()).expect_err("nothing fits");
    assert!(refused.contains("no schedule fits these nodes"), "{refused}");
    assert!(refused.contains("stage 1 on b needs"), "{refused}");
}

#[test]
fn the_loss_of_the_fastest_is_the_worst_and_of_all_but_one_is_reported() {
    let config = config(&[]);
    let uneven = vec![node("slow", 0.5, None), node("fast", 3.0, None), node("mid", 1.0, None)];
    let losses = forecast(&config, &machines(uneven), &[], |found| found.losses.clone());
    let losses = losses.expect("it fits");
    let names: Vec<&[String]> = losses.iter().map(|loss| &loss.nodes[..]).collect();
    assert_eq!(names, [&["fast".to_owned()][..], &["fast".to_owned(), "mid".to_owned()][..]]);
    let stages = losses.iter().map(|loss| loss.then.as_ref().expect("it fits").stages);
    assert_eq!(stages.collect::<Vec<_>>(), [2, 1]);
    let one = forecast(&config, &machines(alike(1)), &[], |found| found.losses.len());
    assert_eq!(one, Ok(0));
}

#[test]
fn slow_links_and_slow_nodes_cost_time() {
    let config = config(&[]);
    let chosen_ms = |network: &NetworkSpec| {
        let of_chosen = |found: &Forecast<'_>| {
            found.rows.iter().find(|row| row.is_chosen).expect("one is chosen").step_ms
        };
        forecast(&config, network, &[], of_chosen).expect("it fits")
    };
    let quick = chosen_ms(&machines(alike(2)));
    let far = NetworkSpec { latency_s: 1.0, ..machines(alike(2)) };
    assert!(chosen_ms(&far) > quick + 500.0);
    let narrow = NetworkSpec { gbit_per_s: Some(1e-4), ..machines(alike(2)) };
    assert!(chosen_ms(&narrow) > quick + 500.0);
    let slow = machines(vec![node("a", 0.5, None), node("b", 0.5, None)]);
    assert!((chosen_ms(&slow) / quick - 2.0).abs() < 1e-3);
}

#[test]
fn a_forecast_is_written_as_text_and_as_json() {
    let config = config(&[]);
    let kinds = [ScheduleKind::Interleaved, ScheduleKind::ZbH1];
    let three = NetworkSpec { latency_s: 1e-4, ..machines(alike(3)) };
    let printed = forecast(&config, &three, &kinds, |found| {
        let mut text = Vec::new();
        let mut json = Vec::new();
        write_text(found, 2, &mut text).expect("memory");
        write_json(found, 2, &mut json).expect("memory");
        (String::from_utf8(text).expect("text"), serde_json::from_slice(&json).expect("JSON"))
    });
    let (text, json): (String, serde_json::Value) = printed.expect("it fits");
    for expected in [
        "3 stages: n0 n1 n2\n",
        "<- chosen",
        "interleaved is left out: interleaved with 3 stages needs a multiple of 3",
        "Assumptions: F, B, W and updates measured here with 2 threads; nodes are like this \
         machine; a message takes 0.100 ms.",
        "If one node leaves (n0 at worst): 2 stages, ",
        "If two leave (n0 and n1 at worst): 1 stage, ",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(json["nodes"][2]["name"], "n2");
    assert_eq!(json["left_out"][0]["schedule"], "interleaved");
    assert_eq!(json["losses"][1]["then"]["stages"], 1);
    assert_eq!(json["schedules"].as_array().expect("a list").len(), 2);
}

#[test]
fn a_schedule_that_is_none_is_named() {
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let kinds = compared(&names(&["zb-h1", "1f1b", "zb-h1"])).expect("they are schedules");
    assert_eq!(kinds, [ScheduleKind::ZbH1, ScheduleKind::OneFOneB]);
    let failure = compared(&names(&["zb-h1", "zb-h9"])).expect_err("there is none").to_string();
    assert!(failure.contains("zb-h9") && failure.contains("try: zb-h1"), "{failure}");
    let all = compared(&[]).expect("all there are");
    assert_eq!(all, ScheduleKind::ALL);
}

#[test]
fn replicas_stand_beside_the_others_with_both_states_and_what_runs_on_fewer() {
    let config = config(&["schedule.kind=chimera", "model.layers=4", "train.lanes=2"]);
    let kinds = [ScheduleKind::OneFOneB, ScheduleKind::Gems];
    let printed = forecast(&config, &machines(alike(4)), &kinds, |found| {
        let mut text = Vec::new();
        write_text(found, 1, &mut text).expect("memory");
        let spans = found.drawing().all_slices().count();
        (found.rows.clone(), found.losses.clone(), String::from_utf8(text).expect("text"), spans)
    });
    let (rows, losses, text, spans) = printed.expect("it fits");
    let row = |name: &str| rows.iter().find(|row| row.schedule == name).expect("it is there");
    let once = row("1f1b");
    let gems = row("gems");
    let chimera = row("chimera");
    assert!(chimera.is_chosen && chimera.step_ms < gems.step_ms, "{rows:?}");
    assert!(chimera.bubble < gems.bubble);
    let total = |row: &ForecastRow| row.stage_bytes.iter().sum::<u64>();
    assert!(total(chimera) > total(once) && total(gems) > total(once), "{rows:?}");
    let then: Vec<_> = losses.iter().filter_map(|loss| loss.then.as_ref()).collect();
    assert!((then[0].stages, then[0].schedule) != (3, "chimera"), "it does not exist");
    assert_eq!((then[0].stages, then[1].stages), (3, 2), "another has the same bits");
    let why = "as chimera needs an even number of stages, found 3";
    assert!(text.contains(why) && spans > 0, "{text}");
    let losses = forecast(&config, &machines(alike(2)), &[], |found| found.losses.clone());
    let alone = losses.expect("it fits")[0].then.clone().expect("it goes on");
    assert_eq!(alone.stages, 1);
    assert_ne!(alone.schedule, "chimera");
}

/// A narrow link carries a whole chunk's gradient once a step.
#[test]
fn gradients_of_replicas_take_their_time_on_a_narrow_link() {
    let config = config(&["schedule.kind=chimera", "train.lanes=2"]);
    let step_ms = |gbit_per_s| {
        let machines = NetworkSpec { gbit_per_s, ..machines(alike(2)) };
        let found = forecast(&config, &machines, &[], |found| found.rows[0].step_ms);
        found.expect("it fits")
    };
    let layers = zbelastic_trainer::model::model_layers(&config.model);
    let floats: usize = layers.iter().map(zbelastic_trainer::model::LayerSpec::len).sum();
    let half_ms = floats as f64 / 2.0 * 32.0 / 1e-3 / 1e9 * 1e3;
    let free = step_ms(None);
    let narrow = step_ms(Some(1e-3));
    assert!(narrow > free + half_ms, "{narrow} {free} {half_ms}");
}

#[test]
fn it_names_the_nodes_whose_layers_are_in_one_zone_only() {
    let exposed = |zones: &str, copies: &str| {
        let in_zone = |(node, zone): (NodeSpec, char)| {
            let zone = if zone == '?' { String::new() } else { zone.to_string() };
            NodeSpec { zone, ..node }
        };
        let nodes = alike(zones.len()).into_iter().zip(zones.chars()).map(in_zone).collect();
        let config = config(&["model.layers=6", copies]);
        let zones = |forecast: &Forecast<'_>| {
            let mut text = Vec::new();
            write_text(forecast, 1, &mut text).expect("memory");
            let text = String::from_utf8(text).expect("text");
            let zones = forecast.zones.clone();
            assert_eq!(
                zones.is_some(),
                text.contains("zones is lost") || text.contains("If one zone is lost"),
                "{text}"
            );
            zones.map(|zones| (zones.zones, zones.exposed.join(" ")))
        };
        forecast(&config, &machines(nodes), &[ScheduleKind::ZbH1], zones).expect("it fits")
    };
    let found = |count, names: &str| Some((count, names.to_owned()));
    assert_eq!(exposed("????", "elastic.copies=1"), None);
    assert_eq!(exposed("abab", "elastic.copies=1"), found(2, ""));
    assert_eq!(exposed("aabb", "elastic.copies=1"), found(2, ""));
    assert_eq!(exposed("aaaa", "elastic.copies=1"), found(1, "n0 n1 n2 n3"));
    assert_eq!(exposed("ab??", "elastic.copies=0"), found(2, "n0 n1"));
    assert_eq!(exposed("a???", "elastic.copies=1"), found(1, "n0"), "a copy is who knows where");
}

#[test]
fn a_picture_has_its_times_in_milliseconds() {
    let drawn = |forecast: &Forecast<'_>| {
        (svg::draw_in(&forecast.drawing(), TimeUnit::MILLISECONDS), forecast.drawing().makespan(0))
    };
    let drawn = forecast(&config(&[]), &machines(alike(2)), &[ScheduleKind::ZbH1], drawn);
    let (svg, makespan_s) = drawn.expect("it fits");
    let makespan = format!("makespan {} ms", (makespan_s * 1e6).round() / 1e3);
    assert!(svg.contains(&makespan) && svg.contains(">0 ms</text>"), "{makespan}: {svg}");
}
