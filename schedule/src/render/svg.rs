//! A timeline as a picture: SVG that needs no script, font or style from elsewhere.

use zbelastic_types::StageIndex;

use super::{TimeUnit, end, has, headline, is_later, later_name, marks_of, pass_names, stage_name};
use crate::appearance::{OpAppearance, TimelineMark, TimelineOp};
use crate::op::{Compute, Pass};
use crate::timeline::{Timeline, TimelineExtent, TimelineSlice};

/// Lengths are in pixels.
const MARGIN: f64 = 12.0;
const LABEL_WIDTH: f64 = 64.0;
/// The name of the schedule, and below it its figures.
const TITLE_HEIGHT: f64 = 40.0;
/// A line of the legend, and the space below the last.
const LEGEND_LINE: f64 = 18.0;
const LEGEND_GAP: f64 = 8.0;
/// The box of an entry with its space, and the space behind its name.
const LEGEND_BOX: f64 = 17.0;
const LEGEND_SPACE: f64 = 14.0;
const ROW_HEIGHT: f64 = 22.0;
const ROW_GAP: f64 = 6.0;
const AXIS_HEIGHT: f64 = 26.0;
/// Wide enough for a microbatch number of two digits in the average pass.
const PASS_WIDTH: f64 = 18.0;
const PLOT_WIDTH_MIN: f64 = 720.0;
/// Some six screens. Beyond it passes get narrower and lose their numbers.
const PLOT_WIDTH_MAX: f64 = 12_000.0;
/// The plot is this many times wider at most for the sake of numbers in its narrow passes.
const WIDENED_MAX: f64 = 2.0;
/// The share of passes that are to have room for their number: a few may be as short as they like.
const NUMBERED_SHARE: f64 = 0.95;
const DIGIT_WIDTH: f64 = 6.0;
/// Space on both sides of a number.
const NUMBER_SPACE: f64 = 2.0;
const TICK_WIDTH_MIN: f64 = 60.0;
/// So that a step that needs no time is still seen.
const STEP_WIDTH_MIN: f64 = 3.0;
/// Copies, and operations on versions, are drawn between their stage's row and the next.
const COPY_HEIGHT: f64 = ROW_GAP - 1.0;
/// Operations on versions need no time; so many of them fit below one pass.
const VERSION_WIDTH: f64 = PASS_WIDTH / 4.0;

/// Passes have the colours of Okabe and Ito (2008), which people tell apart who do not see all of
/// them. A viewer with a dark theme has a dark page; passes and their numbers stay as they are.
const STYLE: &str = "text{font:10px sans-serif;fill:#222}.title{font-size:13px;font-weight:bold}\
.number{text-anchor:middle;fill:#111}.tick{text-anchor:middle;fill:#666}.page{fill:#fff}\
rect{stroke:#fff;stroke-width:.5}.row{fill:#f1f1f1}.f{fill:#56b4e9}.b{fill:#009e73}\
.w{fill:#f0e442}.we{fill:#e69f00}.bw{fill:#cc79a7}.r{fill:#bfe0f5}.out{fill:#8a8a8a}\
.back{fill:#c96a9b}.later{fill-opacity:.5}.step{fill:#444444}.reduce{fill:#7a5230}\
.gate{stroke:#d55e00;stroke-width:2;fill:none}.axis{stroke:#999}\
.stash{fill:#2f7d32}.predict{fill:#1f6fb5}.free{fill:#d08a8a}.average{fill:#8a4fc0}\
.region{fill:none;stroke:#d55e00;stroke-width:1;stroke-dasharray:4 3}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.number{fill:#111}.tick{fill:#999}\
.page{fill:#16181d}rect{stroke:#16181d}.row{fill:#24272e}.step{fill:#c8c8c8}\
.reduce{fill:#b98a5e}.later{fill-opacity:.75}.axis{stroke:#666}}";

/// `timeline` as the text of an SVG file: a row of boxes a stage, the number of the microbatch in
/// each box where it fits, a fainter shade for a stage's later chunk, a red line where the
/// gate lets the stage pass, a dark box for the step, below the row a thin box a copy or an
/// operation on a version, and a broken line around a region without an order before it runs.
#[must_use]
pub fn draw<O: TimelineOp>(timeline: &Timeline<O>) -> String {
    draw_in(timeline, TimeUnit::OWN)
}

/// The same with times in a unit.
#[must_use]
pub fn draw_in<O: TimelineOp>(timeline: &Timeline<O>, unit: TimeUnit) -> String {
    let picture = SvgPicture::new(timeline, unit);
    let mut svg = picture.head();
    svg.push_str(&picture.legend());
    for stage in timeline.stages() {
        svg.push_str(&picture.row(stage));
    }
    svg.push_str(&picture.axis());
    svg.push_str("</svg>\n");
    svg
}

struct SvgPicture<'a, O> {
    timeline: &'a Timeline<O>,
    unit: TimeUnit,
    time_end: f64,
    plot_width: f64,
    legend: Vec<LegendEntry>,
}

/// A box of a style with its name, and where it stands.
struct LegendEntry {
    class: String,
    name: String,
    x: f64,
    line: u32,
}

impl<'a, O: TimelineOp> SvgPicture<'a, O> {
    fn new(timeline: &'a Timeline<O>, unit: TimeUnit) -> Self {
        let passes = |stage| {
            let slices = timeline.slices(stage).iter();
            slices.filter(|slice| slice.op.computed().is_some()).count()
        };
        let passes = timeline.stages().map(passes).max().unwrap_or(0);
        let pass_width = match timeline.slice_count() {
            1 => PASS_WIDTH,
            _ => PASS_WIDTH + 2.0 * DIGIT_WIDTH,
        };
        let time_end = end(timeline);
        let usual = (passes as f64 * pass_width).clamp(PLOT_WIDTH_MIN, PLOT_WIDTH_MAX);
        let plot_width = numbered_width(timeline, time_end)
            .clamp(usual, (WIDENED_MAX * usual).min(PLOT_WIDTH_MAX));
        let legend = legend_entries(timeline, LABEL_WIDTH + plot_width);
        Self { timeline, unit, time_end, plot_width, legend }
    }

    fn head(&self) -> String {
        let width = MARGIN + LABEL_WIDTH + self.plot_width + MARGIN;
        let height = self.row_top(self.timeline.placement().stage_count()) + AXIS_HEIGHT;
        let headline = headline(self.timeline, self.unit);
        let (name, figures) = headline.split_once(": ").unwrap_or((&*headline, ""));
        let [name, figures] = [name, figures].map(escape);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<style>{STYLE}</style>\n\
             <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n\
             <text class=\"title\" x=\"{MARGIN}\" y=\"18\">{name}</text>\
             <text x=\"{MARGIN}\" y=\"33\">{figures}</text>\n"
        )
    }

    fn legend(&self) -> String {
        let entry = |LegendEntry { class, name, x, line }: &LegendEntry| {
            let top = TITLE_HEIGHT + 4.0 + f64::from(*line) * LEGEND_LINE;
            let baseline = top + 10.0;
            let text_x = x + LEGEND_BOX;
            format!(
                "<rect class=\"{class}\" x=\"{x}\" y=\"{top}\" width=\"12\" height=\"12\"/>\
                 <text x=\"{text_x}\" y=\"{baseline}\">{}</text>\n",
                escape(name)
            )
        };
        self.legend.iter().map(entry).collect()
    }

    fn row(&self, stage: StageIndex) -> String {
        let y = self.row_top(stage.0);
        let left = MARGIN + LABEL_WIDTH;
        let width = self.plot_width;
        let baseline = y + 15.0;
        let name = stage_name(self.timeline.placement(), stage);
        let mut svg = format!(
            "<text x=\"{MARGIN}\" y=\"{baseline}\">{name}</text>\
             <rect class=\"row\" x=\"{left}\" y=\"{y}\" width=\"{width}\" \
             height=\"{ROW_HEIGHT}\"/>\n"
        );
        // Gates last, so that no box hides them.
        let slices = || self.timeline.slices(stage).iter();
        svg.extend(slices().filter_map(|slice| self.slice_box(stage, slice)));
        svg.extend(slices().filter_map(|slice| self.copy_box(stage, slice)));
        svg.push_str(&self.versions(stage));
        svg.extend(slices().filter_map(|slice| self.region(stage, slice)));
        svg.extend(slices().filter_map(|slice| self.gate(stage, slice)));
        svg
    }

    /// A pass, or the ending of a step.
    fn slice_box(&self, stage: StageIndex, slice: &TimelineSlice<O>) -> Option<String> {
        let (class, width_min, number) = match slice.op.appearance() {
            OpAppearance::Pass(compute, pass, replica) => {
                let number = pass.microbatch_text(self.timeline.slice_count());
                let later = self.later_class(stage, (pass, replica));
                (format!("{}{later}", class_of(compute)), 0.0, number)
            }
            OpAppearance::Mark(mark @ (TimelineMark::Step | TimelineMark::Reduce)) => {
                (class_of_mark(mark).to_owned(), STEP_WIDTH_MIN, String::new())
            }
            OpAppearance::Mark(
                TimelineMark::Gate
                | TimelineMark::Stash
                | TimelineMark::Predict
                | TimelineMark::Free
                | TimelineMark::Average,
            )
            | OpAppearance::CopyOut(_)
            | OpAppearance::CopyBack(_)
            | OpAppearance::Bookkeeping
            | OpAppearance::Region
            | OpAppearance::Nothing => return None,
        };
        let y = self.row_top(stage.0);
        let width = (self.x(slice.end) - self.x(slice.start)).max(width_min);
        // The last step of all ends with its row.
        let x = self.x(slice.start).min(self.x(self.time_end) - width);
        let mut svg = format!(
            "<g>{}<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" \
             height=\"{ROW_HEIGHT}\"/>",
            self.tooltip(slice)
        );
        let has_room = number_width(&number) <= width;
        if has_room && !number.is_empty() {
            let middle = x + width / 2.0;
            let baseline = y + 15.0;
            svg.push_str(&format!(
                "<text class=\"number\" x=\"{middle:.2}\" y=\"{baseline}\">{number}</text>"
            ));
        }
        svg.push_str("</g>\n");
        Some(svg)
    }

    /// Operations on versions, side by side where they are done at one time.
    fn versions(&self, stage: StageIndex) -> String {
        let y = self.row_top(stage.0) + ROW_HEIGHT;
        let mut svg = String::new();
        let mut free = f64::NEG_INFINITY;
        for slice in self.timeline.slices(stage) {
            let class = match slice.op.appearance() {
                OpAppearance::Mark(
                    mark @ (TimelineMark::Stash
                    | TimelineMark::Predict
                    | TimelineMark::Free
                    | TimelineMark::Average),
                ) => class_of_mark(mark),
                OpAppearance::Mark(
                    TimelineMark::Gate | TimelineMark::Step | TimelineMark::Reduce,
                )
                | OpAppearance::Pass(..)
                | OpAppearance::CopyOut(_)
                | OpAppearance::CopyBack(_)
                | OpAppearance::Bookkeeping
                | OpAppearance::Region
                | OpAppearance::Nothing => continue,
            };
            let x = self.x(slice.start).max(free);
            free = x + VERSION_WIDTH;
            svg.push_str(&format!(
                "<g>{}<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y}\" width=\"{VERSION_WIDTH}\" \
                 height=\"{COPY_HEIGHT}\"/></g>\n",
                self.tooltip(slice)
            ));
        }
        svg
    }

    /// The time in which a stage finds its order.
    fn region(&self, stage: StageIndex, slice: &TimelineSlice<O>) -> Option<String> {
        let x = self.x(slice.start);
        let y = self.row_top(stage.0) - 1.0;
        let width = self.x(slice.end) - x;
        let height = ROW_HEIGHT + 2.0;
        (slice.op.appearance() == OpAppearance::Region).then(|| {
            format!(
                "<g>{}<rect class=\"region\" x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" \
                 height=\"{height}\"/></g>\n",
                self.tooltip(slice)
            )
        })
    }

    fn tooltip(&self, slice: &TimelineSlice<O>) -> String {
        let op = slice.op.text(self.timeline.slice_count());
        let start = self.unit.text(slice.start);
        let end = self.unit.text(slice.end);
        let step = match self.timeline.extent() {
            TimelineExtent::Steps(_) => format!(" step {}", slice.step),
            TimelineExtent::Segment { .. } => String::new(),
        };
        let text = format!("{op}{step}: {start} to {end}");
        format!("<title>{}</title>", escape(&text))
    }

    fn copy_box(&self, stage: StageIndex, slice: &TimelineSlice<O>) -> Option<String> {
        let (class, pass) = match slice.op.appearance() {
            OpAppearance::CopyOut(pass) => ("out", pass),
            OpAppearance::CopyBack(pass) => ("back", pass),
            OpAppearance::Pass(..)
            | OpAppearance::Mark(_)
            | OpAppearance::Bookkeeping
            | OpAppearance::Region
            | OpAppearance::Nothing => return None,
        };
        let x = self.x(slice.start);
        let y = self.row_top(stage.0) + ROW_HEIGHT;
        let width = self.x(slice.end) - x;
        let later = self.later_class(stage, (pass, 0));
        Some(format!(
            "<g>{}<rect class=\"{class}{later}\" x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" \
             height=\"{COPY_HEIGHT}\"/></g>\n",
            self.tooltip(slice)
        ))
    }

    fn later_class(&self, stage: StageIndex, of: (Pass, u32)) -> &'static str {
        if is_later(self.timeline, stage, of) { " later" } else { "" }
    }

    fn gate(&self, stage: StageIndex, slice: &TimelineSlice<O>) -> Option<String> {
        let is_gate = slice.op.appearance() == OpAppearance::Mark(TimelineMark::Gate);
        let x = self.x(slice.end);
        let top = self.row_top(stage.0) - ROW_GAP / 2.0;
        let bottom = top + ROW_HEIGHT + ROW_GAP;
        is_gate.then(|| {
            format!(
                "<line class=\"gate\" x1=\"{x:.2}\" y1=\"{top}\" x2=\"{x:.2}\" y2=\"{bottom}\">\
                 {}</line>\n",
                self.tooltip(slice)
            )
        })
    }

    fn axis(&self) -> String {
        let y = self.row_top(self.timeline.placement().stage_count());
        let left = self.x(0.0);
        let right = self.x(0.0) + self.plot_width;
        let mut svg =
            format!("<line class=\"axis\" x1=\"{left}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\"/>\n");
        let every = tick_interval(self.time_end / (self.plot_width / TICK_WIDTH_MIN));
        let ticks = if every > 0.0 { (self.time_end / every) as u32 } else { 0 };
        for time in (0..=ticks).map(|tick| f64::from(tick) * every) {
            let x = self.x(time);
            let bottom = y + 4.0;
            let baseline = y + 15.0;
            svg.push_str(&format!(
                "<line class=\"axis\" x1=\"{x:.2}\" y1=\"{y}\" x2=\"{x:.2}\" y2=\"{bottom}\"/>\
                 <text class=\"tick\" x=\"{x:.2}\" y=\"{baseline}\">{}</text>\n",
                self.unit.text(time)
            ));
        }
        svg
    }

    fn x(&self, time: f64) -> f64 {
        let share = if self.time_end == 0.0 { 0.0 } else { time / self.time_end };
        MARGIN + LABEL_WIDTH + share * self.plot_width
    }

    fn row_top(&self, row: u32) -> f64 {
        let lines = self.legend.last().map_or(0, |entry| entry.line + 1);
        let legend_height = f64::from(lines) * LEGEND_LINE + LEGEND_GAP;
        TITLE_HEIGHT + legend_height + f64::from(row) * (ROW_HEIGHT + ROW_GAP)
    }
}

fn number_width(number: &str) -> f64 {
    number.len() as f64 * DIGIT_WIDTH + NUMBER_SPACE
}

/// The width at which most passes have room for their number.
fn numbered_width<O: TimelineOp>(timeline: &Timeline<O>, time_end: f64) -> f64 {
    let slices = timeline.all_slices().filter_map(|slice| match slice.op.appearance() {
        OpAppearance::Pass(_, pass, _) => {
            let number = number_width(&pass.microbatch_text(timeline.slice_count()));
            Some(number * time_end / (slice.end - slice.start))
        }
        OpAppearance::Mark(_)
        | OpAppearance::CopyOut(_)
        | OpAppearance::CopyBack(_)
        | OpAppearance::Bookkeeping
        | OpAppearance::Region
        | OpAppearance::Nothing => None,
    });
    // A pass that takes no time has no room at any width.
    let mut widths: Vec<f64> = slices.filter(|width| width.is_finite()).collect();
    widths.sort_by(f64::total_cmp);
    let at = (NUMBERED_SHARE * widths.len() as f64).ceil() as usize;
    widths.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// What the boxes of a timeline mean, in lines of this width.
fn legend_entries<O: TimelineOp>(timeline: &Timeline<O>, width: f64) -> Vec<LegendEntry> {
    let of_class = |(class, name): (&str, &str)| (class.to_owned(), name.to_owned());
    let passes = pass_names(timeline);
    let mut entries: Vec<(String, String)> =
        passes.map(|(compute, name)| (class_of(compute), name.to_owned())).collect();
    if let Some(name) = later_name(timeline) {
        entries.push(("f later".to_owned(), format!("fainter: {name}")));
    }
    let has_copies = timeline
        .all_slices()
        .any(|slice| matches!(slice.op.appearance(), OpAppearance::CopyOut(_)));
    if has_copies {
        entries.extend([("out", "copy out"), ("back", "copy back")].map(of_class));
    }
    let marks = marks_of(timeline).map(|(mark, _, name)| (class_of_mark(mark), name));
    entries.extend(marks.map(of_class));
    if has(timeline, OpAppearance::Region) {
        entries.push(of_class(("region", "order found as it runs")));
    }
    let mut end = MARGIN;
    let mut line = 0;
    let place = |(class, name): (String, String)| {
        let entry_width = LEGEND_BOX + text_width(&name);
        if end > MARGIN && end + entry_width > MARGIN + width {
            end = MARGIN;
            line += 1;
        }
        let x = end;
        end += entry_width + LEGEND_SPACE;
        LegendEntry { class, name, x, line }
    };
    entries.into_iter().map(place).collect()
}

/// How wide a text is about, in a sans-serif font of ten pixels.
fn text_width(text: &str) -> f64 {
    let width = |letter| match letter {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | ' ' | ':' | ',' | '.' => 3.6,
        'm' | 'w' | 'W' | 'M' => 9.0,
        _ => DIGIT_WIDTH,
    };
    text.chars().map(width).sum()
}

/// Also the name of the style.
fn class_of(compute: Compute) -> String {
    compute.to_string().to_lowercase()
}

/// The same of a mark.
const fn class_of_mark(mark: TimelineMark) -> &'static str {
    match mark {
        TimelineMark::Gate => "gate",
        TimelineMark::Reduce => "reduce",
        TimelineMark::Step => "step",
        TimelineMark::Stash => "stash",
        TimelineMark::Predict => "predict",
        TimelineMark::Free => "free",
        TimelineMark::Average => "average",
    }
}

/// The next of 1, 2, 5, 10, 20, 50.. (or their tenths) that is at least `interval_min`.
fn tick_interval(interval_min: f64) -> f64 {
    if interval_min <= 0.0 {
        return 0.0;
    }
    let magnitude = 10f64.powf(interval_min.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * magnitude);
    steps.into_iter().find(|step| *step >= interval_min).unwrap_or(10.0 * magnitude)
}

/// Text as it stands between tags.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{STYLE, escape, tick_interval};

    /// What eyes without one kind of cones see of linear red, green and blue (Machado, Oliveira and
    /// Fernandes 2009, table 1, severity 1), and all of it.
    const EYES: [(&str, [[f64; 3]; 3]); 4] = [
        ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protanopia",
            [
                [0.152286, 1.052583, -0.204868],
                [0.114503, 0.786281, 0.099216],
                [-0.003882, -0.048116, 1.051998],
            ],
        ),
        (
            "deuteranopia",
            [
                [0.367322, 0.860646, -0.227968],
                [0.280085, 0.672501, 0.047413],
                [-0.011820, 0.042940, 0.968881],
            ],
        ),
        (
            "tritanopia",
            [
                [1.255528, -0.076749, -0.178779],
                [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900],
            ],
        ),
    ];
    /// Difference of two colours in CIE 1976 L*a*b*: some six times what is just seen (2.3).
    const APART: f64 = 14.0;

    /// Linear red, green and blue of a class of the style.
    fn linear(class: &str) -> [f64; 3] {
        let rule = format!("}}.{class}{{fill:#");
        let hex = &STYLE[STYLE.find(&rule).expect("a rule") + rule.len()..][..6];
        [0, 2, 4].map(|at| {
            let value = u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        })
    }

    /// The same in L*a*b*, as these eyes see it.
    fn seen(linear: [f64; 3], eyes: &[[f64; 3]; 3]) -> [f64; 3] {
        let dot = |row: &[f64; 3], with: [f64; 3]| -> f64 {
            row.iter().zip(with).map(|(a, b)| a * b).sum()
        };
        let seen = [0, 1, 2].map(|row: usize| dot(&eyes[row], linear));
        let to = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]];
        let white = [0.9505, 1.0, 1.089];
        let [x, y, z] = [0, 1, 2].map(|row: usize| {
            let share = (dot(&to[row], seen) / white[row]).max(0.0);
            if share > 0.008856 { share.cbrt() } else { 7.787 * share + 16.0 / 116.0 }
        });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    #[test]
    fn passes_are_told_apart_by_people_who_do_not_see_all_colours() {
        let classes = ["f", "b", "w", "we", "bw", "r", "step"];
        for (eyes, matrix) in EYES {
            for (index, class) in classes.iter().enumerate() {
                for other in &classes[..index] {
                    let [a, b] = [class, other].map(|class| seen(linear(class), &matrix));
                    let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2));
                    let found = squares.sum::<f64>().sqrt();
                    assert!(found > APART, "{eyes}: {class} and {other} are {found:.1} apart");
                }
            }
        }
    }

    #[test]
    fn text_cannot_open_a_tag() {
        assert_eq!(escape("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
    }

    #[test]
    fn ticks_are_round() {
        let check = |interval_min, expected| assert_eq!(tick_interval(interval_min), expected);
        check(1.0, 1.0);
        check(1.1, 2.0);
        check(2.0, 2.0);
        check(4.9, 5.0);
        check(7.0, 10.0);
        check(70_001.0, 100_000.0);
        check(0.0, 0.0);
    }
}
