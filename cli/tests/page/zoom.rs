//! Zooming the curves: by keys, by a mouse and by a finger. And what colours of lanes mean.

use serde_json::{Value, json};

use crate::browser::Browser;

/// The steps that all three curves show, and whether there are more.
const SHOWN: &str = "return Object.values(charts.plots).map(plot => [plot.scales.x.min, plot.scales.x.max, \
     !document.getElementById('zoom-out').disabled])";

fn expect(browser: &Browser, what: &str, shown: &Value) {
    let script = format!(
        "const found = (() => {{ {SHOWN} }})(); return found.length === 3 && found.every(one => \
         one.every((value, at) => typeof value === 'boolean' ? value === {shown}[at] : \
         Math.abs(value - {shown}[at]) < 1.5))"
    );
    browser.wait(what, &script);
}

/// Where the middle of the loss curve's height is, and its left end and width.
fn plot_place(browser: &Browser) -> [f64; 3] {
    let place = browser.run(
        "const plot = document.querySelector('#loss .u-over'); plot.scrollIntoView(); \
         scrollBy(0, -100); const box = plot.getBoundingClientRect(); \
         return [box.left, box.width, box.top + box.height / 2]",
    );
    [0, 1, 2].map(|at| place[at].as_f64().expect("a number"))
}

/// Zooms to the second quarter of what is shown, twice, with what `point` does at a place for `begin`,
/// `move` and `end`.
fn check_drag(browser: &Browser, point: impl Fn(&str, f64, f64)) {
    let [left, width, y] = plot_place(browser);
    for shown in [json!([100.75, 200.5, true]), json!([125.69, 150.63, true])] {
        let at = |share: f64| left + width * share;
        point("begin", at(0.25), y);
        for share in [0.3, 0.4, 0.5] {
            point("move", at(share), y);
        }
        point("end", at(0.5), y);
        expect(browser, "the dragged part", &shown);
    }
    browser.press("Escape");
    expect(browser, "all steps", &json!([1, 400, false]));
}

/// Draws 400 steps on a page that is open, and zooms into them.
pub fn check_zoom(browser: &Browser) {
    // A step is some pixels wide then.
    browser.resize(1440, 1200);
    browser.wait("a wide page", "return innerWidth === 1440");
    browser.run(
        "const of = value => Array.from({ length: 400 }, (_, at) => value(at)); \
         const steps = Object.fromEntries(Object.keys(state.steps).map(name => [name, of(() => 1)])); \
         receive({ kind: 'rewound', step: 0 }); \
         receive({ kind: 'added', held_out: [], marks: [], causes: null, \
         steps: { ...steps, step: of(at => at + 1), verdicts: 'k'.repeat(400) } })",
    );
    expect(browser, "all steps", &json!([1, 400, false]));
    browser.run("document.getElementById('norm').focus()");
    for (key, shown) in [
        ("+", json!([100.75, 300.25, true])),
        ("+", json!([150.63, 250.38, true])),
        ("ArrowLeft", json!([125.69, 225.44, true])),
        ("ArrowRight", json!([150.63, 250.38, true])),
        ("-", json!([100.75, 300.25, true])),
        ("Escape", json!([1, 400, false])),
    ] {
        browser.press(key);
        expect(browser, key, &shown);
    }
    check_drag(browser, |phase, x, y| {
        let send = |kind: &str, buttons: u32| {
            let place = json!({ "type": kind, "x": x, "y": y, "button": "left",
                "buttons": buttons, "clickCount": 1 });
            browser.chrome("Input.dispatchMouseEvent", &place);
        };
        match phase {
            "begin" => {
                send("mouseMoved", 0);
                send("mousePressed", 1);
            }
            "move" => send("mouseMoved", 1),
            _ => send("mouseReleased", 0),
        }
    });
    // A mouse that rests over a curve points at it.
    let away = json!({ "type": "mouseMoved", "x": 1, "y": 1, "button": "none", "buttons": 0 });
    browser.chrome("Input.dispatchMouseEvent", &away);
    check_drag(browser, |phase, x, y| {
        let point = json!([{ "x": x, "y": y }]);
        let (kind, points) = match phase {
            "begin" => ("touchStart", point),
            "move" => ("touchMove", point),
            _ => ("touchEnd", json!([])),
        };
        browser.chrome("Input.dispatchTouchEvent", &json!({ "type": kind, "touchPoints": points }));
    });
    let tips = browser.run("return document.querySelectorAll('.plot-tip').length");
    assert_eq!(tips, json!(0), "a finger that is lifted points at nothing");
}

#[test]
fn each_category_of_a_trace_has_a_legend_entry() {
    let trace = include_str!("../../../schedule/src/render/chrome_trace.rs");
    let (_, categories) = trace.split_once("pub fn category<").expect("it names them");
    let (categories, _) = categories.split_once("\n}\n").expect("it ends");
    let mut names: Vec<&str> = categories.split('"').skip(1).step_by(2).collect();
    names.push("evaluation");
    assert!(names.len() > 10 && names.contains(&"copy back"), "they were read: {names:?}");
    let lanes = include_str!("../../../ui/assets/lanes.js");
    for name in names {
        assert!(lanes.contains(&format!("\n  \"{name}\": [")), "{name} has no colour and no name");
    }
}
